"""Topologies, models and data sets."""
