"""What is shown of stored results: figures, comparisons, and the ledgers of a site."""
