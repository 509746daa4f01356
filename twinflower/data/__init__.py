"""Data for federated experiments: `sets` loads data sets, and `partition` divides their rows among clients.

`files` reads the file formats (IDX, comma-separated, LIBSVM). Import from the modules directly; this package
re-exports nothing, so that partitioning rows does not import scikit-learn.
"""
