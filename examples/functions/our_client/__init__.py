"""Twinflower's client under Flower's own FedAvg."""
