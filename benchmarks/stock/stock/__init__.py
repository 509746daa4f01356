"""FedAvg on MNIST with Flower alone."""
