"""Operators over the dataflow engine."""
