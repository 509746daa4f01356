"""What is minimised: objectives, non-smooth terms, constraints, communication graphs, and the order of the rows."""
