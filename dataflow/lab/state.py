"""Which lab is up: noted in the state directory, so that later commands find it, and know what an earlier one made.

Invariant: the note is there before anything of the lab is, and goes after everything of it has gone.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from dataflow.errors import LabError
from dataflow.lab.plan import LabPlan

_FOLDER, _NOTE, _LOCK, _LOGS = "lab", "lab.json", "lock", "relay-*.log"


class LabState(BaseModel):
    """A lab.

    Args:
        plan: what it is to be.
        complete: whether all of it was made.
        lent: whether the root of the control groups hands the CPU down only since this lab was made.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    plan: LabPlan
    complete: bool
    lent: bool = False


def read_state(state_dir: Path) -> LabState | None:
    """The lab of a state directory; None if there is none, or its note cannot be read."""
    try:
        return LabState.model_validate_json((state_dir / _FOLDER / _NOTE).read_text())
    except (OSError, ValidationError):
        return None


def write_state(state_dir: Path, state: LabState) -> None:
    """Note a lab."""
    folder = _folder(state_dir)
    fresh = folder / f"{_NOTE}.new"
    fresh.write_text(state.model_dump_json(indent=2) + "\n")
    fresh.rename(folder / _NOTE)


def forget_state(state_dir: Path) -> None:
    """Note that there is no lab."""
    for log in (state_dir / _FOLDER).glob(_LOGS):
        log.unlink(missing_ok=True)
    (state_dir / _FOLDER / _NOTE).unlink(missing_ok=True)


def relay_log(state_dir: Path, host: int) -> Path:
    """What the relay of a host has said."""
    return state_dir / _FOLDER / _LOGS.replace("*", str(host))


@contextmanager
def in_use(state_dir: Path, *, alone: bool) -> Iterator[None]:
    """Hold the lab of a state directory inside the ``with`` block; freed when the process ends, however it ends.

    Args:
        state_dir: the state directory.
        alone: let nobody else hold it meanwhile, and not only nobody who would hold it alone.

    Raises:
        LabError: somebody holds it.
    """
    with (_folder(state_dir) / _LOCK).open("a") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            fix = "wait for the job that runs in it, or end it too with `ako lab down --force`"
            raise LabError(what="the lab is in use", got=str(state_dir), fix=fix) from error
        yield


def _folder(state_dir: Path) -> Path:
    folder = state_dir / _FOLDER
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        what = f"cannot keep the lab's state there: {error.strerror}"
        raise LabError(what, got=str(folder), fix="name another in AKO_STATE_DIR") from error
    return folder
