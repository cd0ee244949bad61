"""A stateful dataflow engine."""
