from __future__ import annotations

import pytest

from dataflow.artifact_names import check_artifact_name
from dataflow.errors import OperatorError, WireError
from dataflow.operators_api import Artifact


@pytest.mark.parametrize(
    "name", ["", "/abs", "../up", "a/../b", "a//b", ".hidden", "a/", "ä", "a b", "a\n", "a" * 200, "/".join("a" * 9)]
)
def test_artifact_names_that_lead_out_or_are_not_plain_are_refused_wherever_they_come_from(name: str) -> None:
    with pytest.raises(WireError, match="bad name"):
        check_artifact_name(name)
    with pytest.raises(OperatorError, match="bad name"):
        Artifact(name, b"")


@pytest.mark.parametrize("name", ["a", "a.csv", "node-0/weights.bin", "_x/-y/0.Z", "a" * 128, "/".join("a" * 8)])
def test_artifact_names_that_are_relative_paths_of_plain_names_are_taken(name: str) -> None:
    check_artifact_name(name)
    assert Artifact(name, b"x").name == name
