"""Rates and times as users write them."""

from __future__ import annotations

import re

from dataflow.errors import ConfigError

_BITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def bytes_per_second(text: str) -> float:
    """Bytes per second of a rate such as ``100mbit`` or ``1gbit``.

    Raises:
        ConfigError: not a rate, or not one that anything has: less than 1 byte/s or more than 10^15.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kmg]?)bit", text.strip().lower())
    rate = float(match[1]) * _BITS[match[2]] / 8 if match else 0.0
    if not 1 <= rate <= 1e15:
        raise ConfigError(what="not a bandwidth", got=text, fix="write it like 100mbit or 1gbit")
    return rate


def duration(text: str) -> float:
    """Seconds of a time such as ``5ms``.

    Raises:
        ConfigError: it is not a time.
    """
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(us|ms|s)", text.strip())
    if not found:
        raise ConfigError(what="not a time", got=text, fix="write it like 100us, 5ms or 2s")
    return float(found[1]) * _SECONDS[found[2]]


def bandwidth_text(rate: float) -> str:
    """A rate in bytes per second as `bytes_per_second` reads it, in the largest unit that is not below one."""
    bits = rate * 8
    unit = next((unit for unit in ("g", "m", "k") if bits >= _BITS[unit]), "")
    return f"{bits / _BITS[unit]:.10g}{unit}bit"
