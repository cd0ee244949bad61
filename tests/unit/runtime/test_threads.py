from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dataflow.cli.main import main
from dataflow.errors import ConfigError
from dataflow.runtime import threads
from dataflow.runtime.client import Client
from dataflow.runtime.local_cluster import LocalCluster


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives five threads."""
    start, given = threading.Thread.start, list[threading.Thread]()

    def refuse(thread: threading.Thread) -> None:
        if len(given) == 5:
            raise RuntimeError("can't start new thread")
        given.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_threads_that_there_are_are_granted_and_gone() -> None:
    before = set(threading.enumerate())
    threads.require(20, "a master")
    assert set(threading.enumerate()) <= before


def test_threads_that_there_are_not_are_refused_with_how_many_there_are(few: None) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match=r"a master needs 8 more threads, and the system gives 5; .*`ulimit -u`"):
        threads.require(8, "a master")
    assert set(threading.enumerate()) <= before


def test_client_that_can_have_no_threads_is_refused(few: None) -> None:
    with pytest.raises(ConfigError, match="a client of a master needs 8 more threads"):
        Client("127.0.0.1:1", "token")


@pytest.mark.parametrize(
    ("arguments", "who"),
    [(["master", "--port", "0"], "a master"), (["node", "--master", "127.0.0.1:1"], "a node's agent")],
)
def test_command_that_can_have_no_threads_says_so(
    arguments: list[str],
    who: str,
    few: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AKO_STATE_DIR", str(tmp_path))
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {who} needs 8 more threads, and the system gives 5; ")


def test_cluster_that_can_have_no_threads_is_refused_before_a_process_is_started(few: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a cluster of 2 nodes on this machine needs 59 more threads"):
        LocalCluster(nodes=2, state_dir=tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []
