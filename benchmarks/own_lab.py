"""A lab of a benchmark's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dataflow.clock import SystemClock
from dataflow.lab import lab
from dataflow.lab.plan import Host, LabPlan, lab_name
from dataflow.runtime.signals import ended_in_order


@contextmanager
def own_lab(hosts: Sequence[Host], latency_s: float = 0.0) -> Iterator[tuple[LabPlan, Path]]:
    """A lab with these hosts, and its state directory: up inside the ``with`` block, and gone however that ends."""
    clock = SystemClock()
    with ended_in_order(), tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder)
        plan = LabPlan(name=lab_name(state_dir), hosts=tuple(hosts), latency_s=latency_s)
        try:
            lab.up(plan, state_dir, clock)
            yield plan, state_dir
        finally:
            lab.down(state_dir, clock, force=True)
