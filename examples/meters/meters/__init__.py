"""Robust regression of water demand over works that keep their rows."""
