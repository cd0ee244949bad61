"""Which samples a node reads, and in what order: pure functions of sizes, seed, epoch and rank.

Any two calls that differ in purpose, seed, epoch or rank draw from independent random streams: the
seed is the entropy of a `numpy.random.SeedSequence` and the rest its spawn key. (A plain list of
integers will not do: `SeedSequence` pads it with zeros, so [7] and [7, 0, 0] give one stream.)
"""

import numpy as np
from numpy.typing import NDArray

# First word of the spawn key: one number per purpose.
_VALIDATION, _EPOCH = 0x56414C, 0x45504F


def split_validation(n: int, fraction: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hold out a random fraction of a training set for validation.

    Args:
        n: number of training samples.
        fraction: share to hold out, above 0 and below 1; round(n * fraction) samples are.
        seed: non-negative; the same seed gives the same split.

    Returns:
        Training and validation indices, each sorted int64; together they are range(n).

    Raises:
        ValueError: the fraction is out of range, or leaves either part empty.
    """
    if not 0 < fraction < 1:
        message = f"fraction must be above 0 and below 1, got {fraction}"
        raise ValueError(message)
    n_validation = round(n * fraction)
    if not 0 < n_validation < n:
        message = f"holding out {fraction} of {n} samples leaves one part empty; change the fraction"
        raise ValueError(message)
    order = _permutation(n, seed, (_VALIDATION,))
    return np.sort(order[n_validation:]), np.sort(order[:n_validation])


def node_indices(n: int, rank: int, size: int) -> slice:
    """Select the samples of one node: node `rank` of `size` owns samples rank, rank + size, ...

    Returns:
        A slice into n samples; over all ranks every sample is owned once, and no two nodes differ
        by more than one sample.

    Raises:
        ValueError: rank is not in range(size), or there are fewer samples than nodes.
    """
    if not 0 <= rank < size:
        message = f"rank must be 0 to size - 1, got rank {rank} of size {size}"
        raise ValueError(message)
    if n < size:
        message = f"every node needs a sample, got {n} samples for {size} nodes; use fewer nodes"
        raise ValueError(message)
    return slice(rank, n, size)


def epoch_order(n: int, seed: int, epoch: int, rank: int) -> NDArray[np.int64]:
    """Shuffle a node's samples for one epoch.

    Args:
        n: number of samples the node owns.
        seed: non-negative, the job's.
        epoch: non-negative.
        rank: the node's, non-negative.

    Returns:
        A permutation of range(n), int64, the same for the same arguments on every machine.
    """
    return _permutation(n, seed, (_EPOCH, epoch, rank))


def _permutation(n: int, seed: int, key: tuple[int, ...]) -> NDArray[np.int64]:
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
    return generator.permutation(np.arange(n, dtype=np.int64))
