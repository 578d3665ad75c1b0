"""Hospitals that train a model together."""
