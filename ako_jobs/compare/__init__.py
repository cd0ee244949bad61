"""Comparing jobs: run several with several seeds, put what came out side by side."""
