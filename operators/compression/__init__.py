"""Lossy codecs for gradients with error feedback: what a node cannot send now it owes, and sends later.

A `Residual` adds gradients up; `Residual.quantise` takes an `Update` out of it, which encodes any range of weights;
`add` adds a code to such a range. docs/compression.md has each codec and every byte of a code.
"""

from operators.compression.account import Account
from operators.compression.codec import Codec, Half, Int8, OneBit, Threshold, TopK, parse_codec, pooled
from operators.compression.codes import add, join
from operators.compression.residual import Residual
from operators.compression.sizes import expected_nbytes, most_nbytes
from operators.compression.total import total
from operators.compression.update import Update

__all__ = [
    "Account",
    "Codec",
    "Half",
    "Int8",
    "OneBit",
    "Residual",
    "Threshold",
    "TopK",
    "Update",
    "add",
    "expected_nbytes",
    "join",
    "most_nbytes",
    "parse_codec",
    "pooled",
    "total",
]
