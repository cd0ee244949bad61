"""Logical graphs."""
