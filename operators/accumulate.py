"""Accumulate: keep a node's recent gradients in its window until everybody has been sent them."""

from __future__ import annotations

from dataflow.operators_api import Emissions, Operator, Sample
from dataflow.ports import In, Out
from dataflow.state import Writes
from operators.messages import Accumulated, Gradient
from operators.window import WindowState


class Accumulate(Operator):
    """Adds each gradient to the window (ako.txt 3.1, step 1; intervals instead of the paper's running sum)."""

    pool = "network"
    gradients = In(Gradient)
    accumulated = Out(Accumulated)
    window = Writes()

    def process(self, gradient: Gradient, window: WindowState) -> Emissions:
        """Take in a gradient."""
        window.append(gradient.number, gradient.values)
        if window.dropped:
            yield Sample("dropped_gradients", float(window.dropped))
        yield Sample("window_nbytes", float(window.nbytes))
        yield self.accumulated(Accumulated(gradient.number))
