"""Metrics, events and reports."""
