"""What a run is: its setup from a configuration, its parties, its privacy and forecasts, and advice about it."""
