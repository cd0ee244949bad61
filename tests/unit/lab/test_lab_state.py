from __future__ import annotations

from pathlib import Path

import pytest

from dataflow.errors import LabError
from dataflow.lab.plan import Host, LabPlan
from dataflow.lab.state import LabState, forget_state, in_use, read_state, relay_log, write_state

STATE = LabState(plan=LabPlan(name="ako-lab-12", hosts=(Host(rate=1e6, cores=0.5), Host(rate=1e7))), complete=False)


def test_state_is_read_as_it_was_written_until_it_is_forgotten(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    for complete in (False, True):
        state = STATE.model_copy(update={"complete": complete})
        write_state(tmp_path, state)
        assert read_state(tmp_path) == state
    forget_state(tmp_path)
    forget_state(tmp_path)
    assert read_state(tmp_path) is None


def test_state_forgotten_takes_the_logs_of_relays_with_it(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    relay_log(tmp_path, 11).write_text("said")
    assert relay_log(tmp_path, 11) == tmp_path / "lab" / "relay-11.log"
    forget_state(tmp_path)
    assert list((tmp_path / "lab").iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", '{"plan": {}, "complete": true}'])
def test_state_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    write_state(tmp_path, STATE)
    (tmp_path / "lab" / "lab.json").write_text(text)
    assert read_state(tmp_path) is None


def test_state_of_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"cannot keep the lab's state there.*AKO_STATE_DIR"):
        write_state(tmp_path / "file", STATE)


def test_in_use_by_jobs_excludes_who_would_be_alone_and_not_other_jobs(tmp_path: Path) -> None:
    def refused(*, alone: bool) -> bool:
        try:
            with in_use(tmp_path, alone=alone):
                return False
        except LabError:
            return True

    with in_use(tmp_path, alone=False):
        assert (refused(alone=False), refused(alone=True)) == (False, True)
    with in_use(tmp_path, alone=True):
        assert (refused(alone=False), refused(alone=True)) == (True, True)
    assert (refused(alone=False), refused(alone=True)) == (False, False)
