"""Handwritten digits with a small CNN over sites that keep their images."""
