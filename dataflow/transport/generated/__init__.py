"""Modules generated from proto/; do not edit."""
