"""Processes of a local cluster are forks that pass for new programs, and those where forks cannot do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dataflow.clock import SystemClock
from dataflow.runtime.cluster_processes import ClusterProcess, Nursery
from dataflow.runtime.process import module_command

PROGRAM = """
import json, os, random, signal, sys, threading, time

def main():
    facts = {
        "arguments": sys.argv[1:], "process": os.getpid(), "parent": os.getppid(), "session": os.getsid(0),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "environment": sorted(os.environ), "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(), "ahead": "ahead" in sys.modules,
    }
    if "numpy" in sys.modules:
        facts["drawn"] = sys.modules["numpy"].random.random()
    print(json.dumps(facts), flush=True)
    if "stay" in sys.argv:
        time.sleep(60)
    if "raise" in sys.argv:
        raise ValueError("of the program")
    return 3

if __name__ == "__main__":
    sys.exit(main())
"""


class Play:
    """Programs of a nursery, which print to a file."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        self._log, self._nursery = folder / "log", nursery

    def start(self, *arguments: str) -> ClusterProcess:
        with self._log.open("ab", buffering=0) as log:
            return self._nursery.start("program", arguments, log)

    @property
    def told(self) -> str:
        return self._log.read_text()

    def facts(self, count: int) -> list[dict[str, Any]]:
        """What so many processes have printed, which is waited for."""
        while len(lines := [line for line in self.told.splitlines() if line.startswith("{")]) < count:
            SystemClock().sleep(0.01)
        return [json.loads(line) for line in lines]


@contextmanager
def nursery_in(folder: Path, *modules: str) -> Iterator[Nursery]:
    """A nursery whose processes find the program in a folder, and modules."""
    (folder / "program.py").write_text(PROGRAM)
    nursery = Nursery(modules, folder / "zygote.log", SystemClock())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("AKO_TOKEN", "of another cluster")
        try:
            yield nursery
        finally:
            nursery.close()


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery_in(tmp_path_factory.mktemp("programs"), "numpy") as made:
        yield made


@pytest.fixture
def play(nursery: Nursery, tmp_path: Path) -> Play:
    return Play(tmp_path, nursery)


def title(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def test_forks_pass_for_new_programs_and_share_nothing(play: Play) -> None:
    forks = [play.start("stay", f"--number={number}") for number in range(3)]
    for process, facts in zip(forks, sorted(play.facts(3), key=lambda facts: facts["arguments"][1]), strict=True):
        assert facts["process"] == facts["session"] == process.pid
        assert "dataflow.runtime.zygote" in title(facts["parent"])
        assert title(process.pid) == [*module_command("program"), *facts["arguments"]]
        assert facts["interrupt"]
        assert facts["descriptors"] == 4  # the three that all have, and the folder that was listed
        assert facts["threads"] == 1
        assert "AKO_TOKEN" not in facts["environment"]
    assert len({facts["drawn"] for facts in play.facts(3)}) == 3


def test_status_is_as_of_any_other_process(play: Play) -> None:
    returns, raises, stays = (play.start(what) for what in ("return", "raise", "stay"))
    assert returns.wait() == returns.returncode == returns.poll() == 3
    assert raises.wait(timeout=60) == 1
    assert "ValueError: of the program" in play.told
    play.facts(3)
    assert stays.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        stays.wait(timeout=0.01)
    stays.terminate()
    assert stays.wait() == -signal.SIGTERM
    stays.kill()  # is none any more, and nobody else is


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_forks_end_with_what_they_were_forked_from_and_it_when_it_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr("dataflow.runtime.cluster_processes.ANSWER_S", 0.2)
    with nursery_in(tmp_path) as nursery:
        play = Play(tmp_path, nursery)
        stays = play.start("stay")
        (facts,) = play.facts(1)
        os.kill(facts["parent"], number)
        assert stays.wait() == -signal.SIGKILL
        while state(stays.pid) not in ("", "Z"):
            SystemClock().sleep(0.01)
        with pytest.raises(OSError, match="the process that it was to be forked from has ended by SIGKILL"):
            play.start("stay")


def test_one_that_cannot_be_forked_from_says_why(tmp_path: Path) -> None:
    (tmp_path / "ahead.py").write_text("import os\nprint('no more', flush=True)\nos._exit(7)\n")
    with nursery_in(tmp_path, "ahead") as nursery, pytest.raises(OSError, match="with exit status 7: no more"):
        Play(tmp_path, nursery).start("return")


def test_answer_that_nobody_waited_for_is_nobody_elses(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    stays = play.start("stay")

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dataflow.runtime.cluster_processes.json.loads", interrupt)  # as if it came a moment before
        with pytest.raises(KeyboardInterrupt):
            play.start("return")
    sent = socket.send_fds
    with monkeypatch.context() as patch:
        patch.setattr(socket, "send_fds", lambda *arguments: (sent(*arguments), interrupt()))
        with pytest.raises(KeyboardInterrupt):
            play.start("return")
    assert stays.poll() is None
    stays.kill()
    assert stays.wait() == -signal.SIGKILL


def test_any_number_may_wait_for_one(play: Play) -> None:
    stays = play.start("stay")
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(stays.wait())) for _ in range(8)]
    for thread in threads:
        thread.start()
    play.facts(1)
    stays.kill()
    for thread in threads:
        thread.join()
    assert statuses == [-signal.SIGKILL] * 8
    assert play.start("return").wait() == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", ""),
        ("held = open(__file__)", ""),
        ("raise SystemExit(5)", "not imported ahead: ahead: SystemExit(5)"),
    ],
)
def test_forks_do_without_what_forks_cannot_have(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "ahead.py").write_text(f"import threading\n{line}\n")
    with nursery_in(tmp_path, "ahead", "there_is_none") as nursery:
        play = Play(tmp_path, nursery)
        process = play.start("return")
        (facts,) = play.facts(1)
        assert (facts["process"], facts["threads"], facts["ahead"]) == (process.pid, 1, False)
        assert process.wait() == 3
    assert said in (tmp_path / "zygote.log").read_text()
