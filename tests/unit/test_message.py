from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest

from dataflow.message import HEADER_NBYTES, Message, Sharded, Tick, field_names, nbytes


@dataclass(frozen=True, slots=True)
class Images(Sharded):
    pixels: np.ndarray
    labels: np.ndarray
    note: str | None = None


def test_nbytes_is_arrays_and_texts_plus_header() -> None:
    message = Images(0, 0, 1, np.zeros((2, 3), np.float32), np.zeros(5, np.uint8), "a text")
    assert nbytes(message) == 2 * 3 * 4 + 5 + 6 + HEADER_NBYTES == 163
    assert nbytes(message, tensor_scale=10) == 10 * (2 * 3 * 4 + 5) + 6 + HEADER_NBYTES


def test_nbytes_of_numbers_alone_is_the_header() -> None:
    assert nbytes(Tick(step=1, shard=0, shards=1)) == 128


def test_nbytes_of_a_view_counts_its_own_elements() -> None:
    view = np.zeros(1000, np.float64)[::10]
    assert nbytes(Images(0, 0, 1, view, np.zeros(0))) == 100 * 8 + 128


def test_field_names_are_in_order_with_the_bases_first() -> None:
    assert field_names(Images) == ("step", "shard", "shards", "pixels", "labels", "note")
    assert field_names(Message) == ()


def test_message_is_frozen() -> None:
    tick = Tick(1, 0, 1)
    with pytest.raises(FrozenInstanceError):
        tick.step = 2  # type: ignore[misc]
