"""The master's state directory: who holds it, and where its master listens."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from dataflow.errors import MasterError

ENDPOINT_FILE = "endpoint"
"""Name of the file that holds the ``host:port`` of the running master."""

LOCK_FILE = "lock"

DEFAULT_ADDRESS = "127.0.0.1:7461"
"""Where a master listens unless told otherwise."""

STATE_VARIABLE = "AKO_STATE_DIR"
"""Environment variable that names the state directory."""


def default_state_dir() -> Path:
    """The state directory of this user: `AKO_STATE_DIR`, else ``ako`` in the XDG state home.

    Raises:
        MasterError: neither is named, and the user has no home.
    """
    if named := os.environ.get(STATE_VARIABLE, ""):
        return Path(named)
    try:
        home = os.environ.get("XDG_STATE_HOME", "") or Path.home() / ".local" / "state"
    except RuntimeError as error:
        what = "this user has no home directory, where the master's state is kept"
        raise MasterError(what, fix=f"set HOME, or {STATE_VARIABLE}") from error
    return Path(home) / "ako"


class StateDirLock:
    """Holds a state directory for one master; freed when the process ends, however it ends.

    Args:
        state_dir: created, readable by its owner only, if it does not exist.

    Raises:
        MasterError: another master holds it, or it cannot be made or written.
    """

    def __init__(self, state_dir: Path) -> None:
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            what = f"cannot keep the master's state there: {error.strerror}"
            raise MasterError(what, where=str(state_dir), fix="name another --state-dir") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise MasterError(
                what="another master runs on this state directory",
                where=str(state_dir),
                fix="stop it, or give this one another --state-dir",
            ) from error

    def release(self) -> None:
        """Let another master have it."""
        os.close(self._descriptor)


def write_endpoint(state_dir: Path, address: str) -> None:
    """Tell clients and agents on this machine where the master listens; nothing is written if that says so already.

    Raises:
        MasterError: it cannot be written.
    """
    path, fresh = state_dir / ENDPOINT_FILE, state_dir / f"{ENDPOINT_FILE}.new"
    line = f"{address}\n".encode()
    try:
        if not path.exists() or path.read_bytes() != line:
            fresh.write_bytes(line)
            fresh.rename(path)
    except OSError as error:
        what, fix = f"cannot write the master's address: {error.strerror}", "make some room, or use another --state-dir"
        raise MasterError(what, where=str(path), fix=fix) from error


def read_endpoint(state_dir: Path) -> str:
    """Where the master of this state directory listens; empty if none has started, or that cannot be read.

    Raises:
        MasterError: what is there is no text.
    """
    path = state_dir / ENDPOINT_FILE
    try:
        return path.read_text().strip()
    except OSError:
        return ""
    except ValueError as error:
        what, fix = "the file of the master's address is broken", "restart the master, or say --master HOST:PORT"
        raise MasterError(what, where=str(path), fix=fix) from error
