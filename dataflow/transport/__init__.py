"""Moves frames between nodes."""
