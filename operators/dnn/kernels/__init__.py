"""Numba kernels, nogil and batch-innermost."""
