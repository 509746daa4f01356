"""What a run leaves behind: its metrics, its folder, and its checkpoints, and the rules for resuming from them."""
