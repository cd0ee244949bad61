"""The bytes that docs/compression.md explains are those of the code that it shows, and decode to what it says."""

import re
from pathlib import Path

import numpy as np

from operators.compression import Residual, Threshold, add

PAGE = Path(__file__).resolve().parents[4] / "docs" / "compression.md"


def explained() -> bytes:
    """The first column of the page's last table before the figures."""
    table = PAGE.read_text().partition("| bytes | meaning |")[2].partition("## Figures")[0]
    return bytes.fromhex("".join(re.findall(r"^\| `([0-9a-f ]+)` \|", table, re.MULTILINE)))


def test_bytes_of_the_page_are_those_of_its_example() -> None:
    residual = Residual(Threshold(tau=0.5), 24)
    gradient = np.zeros(24, np.float32)
    gradient[[2, 9, 10, 20]] = 1, -2, 0.75, 3
    residual.add(gradient)
    assert residual.quantise().encode(0, 24).tobytes() == explained()


def test_bytes_of_the_page_decode_to_updates_at_2_9_10_and_20() -> None:
    target = np.zeros(24, np.float32)
    add(target, np.frombuffer(explained(), np.uint8))
    assert np.flatnonzero(target).tolist() == [2, 9, 10, 20]
    assert target[[2, 9, 10, 20]].tolist() == [0.5, -0.5, 0.5, 0.5]
