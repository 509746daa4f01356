"""The search for settings: grids scored on validation rows, and the search that is charged to the privacy budget."""
