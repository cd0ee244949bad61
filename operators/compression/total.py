"""Several updates as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operators.compression.codes import add
from operators.compression.update import Sparse, Update
from operators.dnn.arrays import read_only


def total(updates: Sequence[Update]) -> Update:
    """The sum of updates of the same weights: a float32 for each weight that it is not 0 for.

    Args:
        updates: at least one.
    """
    n_weights = updates[0].n_weights
    values = np.zeros(n_weights, np.float32)
    for update in updates:
        add(values, update.encode(0, n_weights))
    places, bounds = np.flatnonzero(values), read_only(np.array([0, n_weights], np.int64))
    words = (2 * places).astype(np.uint32)
    return Sparse(words, values[places], bounds, np.zeros(1, np.float32))
