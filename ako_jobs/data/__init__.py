"""Data files carried in the package."""
