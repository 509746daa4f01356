"""Running it: configuration, the three runtimes, run folders, figures, and the command line."""
