"""The ako command."""
