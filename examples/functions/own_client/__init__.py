"""FedPDM's strategy over a client that is a function."""
