"""What a codec makes of a gradient is about so large."""

from __future__ import annotations

import math

from operators.compression.codec import Codec, Half, Int8, OneBit, Threshold, TopK

_ASSUMED_DENSITY = 0.01


def expected_nbytes(codec: Codec, n_weights: int) -> int:
    """Bytes that a code of so many weights takes, about; with a tau that is given, of a hundredth of them.

    Positions cost the entropy of a random choice of as many (methods: Golomb-Rice coding is within 3% of it).
    """
    match codec:
        case Threshold():
            density = _ASSUMED_DENSITY if codec.tau is not None else codec.density
            bits = _entropy(density) + density
        case TopK():
            bits = _entropy(codec.density) + 32 * codec.density
        case Half():
            bits = 16.0
        case Int8():
            bits = 8.0
        case OneBit():
            bits = 1.0
    return max(1, math.ceil(n_weights * bits / 8))


def most_nbytes(codec: Codec, n_weights: int, of_all: int) -> int:
    """Bytes that a code of so many weights takes at most, whatever they are; but for the heads of sections.

    Args:
        codec: what makes the code.
        n_weights: those of the code.
        of_all: those that are quantised with them; of the largest of these, all may be in the code.
    """
    match codec:
        case Threshold():
            each = {"auto": 1 / 4, "bitmap": 1 / 4, "words": 4.0, "rice": 5.0}[codec.packing]
            each *= 8 if codec.most == "fit" else 1
        case TopK():
            count = min(n_weights, codec.count(of_all))
            return 4 * count + min(math.ceil(n_weights / 8), 4 * count)
        case Half():
            each = 2.0
        case Int8():
            each = 1.0
        case OneBit():
            each = 1 / 8
    return math.ceil(n_weights * each)


def _entropy(share: float) -> float:
    """Bits that it takes to say of one of many whether it is among so large a share."""
    return -sum(each * math.log2(each) for each in (share, 1 - share) if each > 0)
