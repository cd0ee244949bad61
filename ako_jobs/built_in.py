"""Jobs that have a name of their own."""

from __future__ import annotations

BUILT_IN = {name: f"ako_jobs.{name}" for name in ("ako", "parameter_server", "all_to_all", "sparse", "tree")}
"""Their modules."""
