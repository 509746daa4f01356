"""Robust regression of water demand over water utilities that keep their rows."""
