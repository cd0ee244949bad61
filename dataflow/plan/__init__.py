"""Physical plans."""
