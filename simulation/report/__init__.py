"""Reports on stored results: figures, comparisons, and the ledgers of a site."""
