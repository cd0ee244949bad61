"""Accumulate: keep a node's recent gradients in its window until everybody has been sent them."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from dataflow.errors import OperatorError
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator, Sample
from dataflow.ports import In, Out
from dataflow.state import Writes
from operators.messages import Accumulated, Gradient
from operators.quarantine import MAX_POISON, compile_check, sound
from operators.window import WindowState


class Accumulate(Operator):
    """Adds each gradient to the window (ako.txt 3.1, step 1; intervals instead of the paper's running sum).

    One that is not finite, which `Compute` never emits, is added as zeros, with the sample `poisoned_gradients`.

    Args:
        max_poison: such gradients that are borne; with one more the job fails.
    """

    pool = "network"
    drained = True
    max_poison: int = Field(default=MAX_POISON, ge=0)
    gradients = In(Gradient)
    accumulated = Out(Accumulated)
    window = Writes()

    def open(self, node: NodeContext) -> None:
        """Compile the look at every gradient."""
        compile_check()

    def process(self, gradient: Gradient, window: WindowState) -> Emissions:
        """Take in a gradient."""
        values = gradient.values
        if values.dtype != np.float32 or values.ndim != 1:
            what = f"gradient {gradient.number} is {values.ndim}-dimensional {values.dtype}, not a vector of float32"
            raise OperatorError(what, fix="look at the operators between compute and accumulate")
        if not sound(values):
            window.poisoned += 1
            if window.poisoned > self.max_poison:
                counted = f"{window.poisoned} poisoned gradients, max_poison is {self.max_poison}"
                what = f"gradient {gradient.number} is not finite ({counted})"
                raise OperatorError(what, fix="look at the operator that emits gradients; max_poison=N bears more")
            values = np.zeros_like(values)
            yield Sample("poisoned_gradients", 1.0)
        window.append(gradient.number, values, gradient.rate, gradient.images)
        if window.dropped:
            yield Sample("dropped_gradients", float(window.dropped))
        yield Sample("window_nbytes", float(window.nbytes))
        yield self.accumulated(Accumulated(gradient.number))
