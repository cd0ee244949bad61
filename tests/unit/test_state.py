from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from pydantic import ValidationError

from dataflow.node_context import NodeContext
from dataflow.state import Reads, State, StateElement, StateKind, Writes


class Counter(StateElement):
    kind = StateKind.PARTITIONED
    start: int = 5


class User:
    model = Reads()
    live = Writes("model")


def test_access_element_defaults_to_the_attributes_name() -> None:
    assert (User.model.name, User.model.element, User.model.writes) == ("model", "model", False)


def test_access_element_given_is_kept() -> None:
    assert (User.live.name, User.live.element, User.live.writes) == ("live", "model", True)


def test_element_parameters_are_typed_and_closed() -> None:
    assert Counter(start=7).model_dump_json() == '{"start":7}'
    with pytest.raises(ValidationError):
        Counter(begin=7)  # type: ignore[call-arg]


def test_element_kind_defaults_to_local() -> None:
    assert StateElement.kind is StateKind.LOCAL
    assert Counter.kind is StateKind.PARTITIONED


def test_element_without_create_says_so() -> None:
    with pytest.raises(TypeError, match=r"Counter must define create\(node\)"):
        Counter().create(NodeContext())


def test_state_incomplete_cannot_be_made() -> None:
    class Half(State):
        def tensors(self) -> dict[str, np.ndarray]:
            return {}

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


def test_snapshot_that_nobody_overrides_is_a_copy_of_the_tensors() -> None:
    class Count(State):
        def __init__(self) -> None:
            self.numbers = np.array([1, 2])

        def tensors(self) -> dict[str, np.ndarray]:
            return {"numbers": self.numbers}

        def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
            self.numbers[:] = tensors["numbers"]

    count = Count()
    seen = count.snapshot()
    count.numbers += 10
    assert seen["numbers"].tolist() == [1, 2]
