"""Diagrams, tables and plans in the pages are those of the code."""

from __future__ import annotations

import pytest

from dataflow.engine.job_life import TRANSITIONS, JobState
from tests.docs.generated import parts, render
from tests.docs.pages import PAGES, ROOT

PARTS = [
    pytest.param(name, text, id=f"{page.relative_to(ROOT)}-{name}") for page in PAGES for name, text in parts(page)
]


@pytest.mark.parametrize(("name", "text"), PARTS)
def test_generated_part_equals_what_the_code_gives(name: str, text: str) -> None:
    assert text == render(name), "run python -m tests.docs.generated"


def test_state_diagram_has_an_arrow_for_every_transition() -> None:
    diagram = dict(parts(ROOT / "docs" / "architecture.md"))["states"]
    for (source, trigger), target in TRANSITIONS.items():
        assert f"{source} --> {target}: {trigger.value}" in diagram
    assert all(state.value in diagram for state in JobState)
