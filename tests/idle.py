"""Operators that do nothing: bases of those of which tests look at the declaration only."""

from __future__ import annotations

from typing import Any

from dataflow.operators_api import Emissions, Gather, Operator


class Idle(Operator):
    """Takes whatever comes, and yields nothing."""

    def process(self, _message: Any) -> Emissions:
        """Nothing."""
        yield from ()


class IdleGather(Gather):
    """Likewise, in parts."""

    def process(self, _message: Any) -> None:
        """No part."""

    def merge(self, _parts: list[Any]) -> Emissions:
        """Nothing."""
        yield from ()
