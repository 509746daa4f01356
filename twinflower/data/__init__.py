"""Data for federated experiments: `sets` loads tables, `partition` divides their rows among clients.

`files` reads the formats (IDX, comma separated, LIBSVM). Import from the modules themselves; this package
re-exports nothing, so that dividing rows does not import scikit-learn.
"""
