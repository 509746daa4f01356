"""Configure, run and evaluate experiments: settings, the three runtimes, run folders, figures, and the command line."""
