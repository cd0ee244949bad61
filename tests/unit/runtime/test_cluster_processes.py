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
from dataflow.runtime.starting import module_command

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
    os.write(1, json.dumps(facts).encode() + b"\\n")  # at once: others print to the same file
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

    def __init__(self, folder: Path, nursery: Nursery, *ahead: str) -> None:
        self._log, self._nursery, self._ahead = folder / "log", nursery, ahead
        self._started: list[ClusterProcess] = []

    def start(self, *arguments: str) -> ClusterProcess:
        with self._log.open("ab", buffering=0) as log:
            self._started.append(self._nursery.start("program", arguments, log, self._ahead))
        return self._started[-1]

    @property
    def told(self) -> str:
        return self._log.read_text()

    def facts(self, count: int) -> list[dict[str, Any]]:
        """What so many processes have printed, which is waited for."""
        clock = SystemClock()
        begin = clock.now()
        while len(lines := [line for line in self.told.splitlines() if line.startswith("{")]) < count:
            assert clock.now() < begin + 60, [(each.pid, each.poll(), state(each.pid)) for each in self._started]
            clock.sleep(0.01)
        return [json.loads(line) for line in lines]


@contextmanager
def nursery_in(folder: Path) -> Iterator[Nursery]:
    """A nursery whose processes find the program in a folder."""
    (folder / "program.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch, Nursery() as nursery:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("AKO_TOKEN", "of another cluster")
        yield nursery


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery_in(tmp_path_factory.mktemp("programs")) as made:
        made.begin(["numpy"])
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
        assert play.start("return").wait() == 3  # of another one
        assert stays.poll() == -signal.SIGKILL


def test_one_that_cannot_be_forked_from_says_why(tmp_path: Path) -> None:
    (tmp_path / "ahead.py").write_text("import os\nprint('no more', flush=True)\nos._exit(7)\n")
    for begins_with in ([], ["ahead"]):
        with nursery_in(tmp_path) as nursery:
            nursery.begin(begins_with)
            with pytest.raises(OSError, match="with exit status 7: no more"):
                Play(tmp_path, nursery, "ahead").start("return")


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


def test_fork_whose_answer_nobody_waited_for_is_ended(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = socket.send_fds

    def send(*arguments: Any) -> None:
        sent(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(socket, "send_fds", send)
        with pytest.raises(KeyboardInterrupt):
            play.start("stay")
    (facts,) = play.facts(1)
    assert play.start("return").wait() == 3
    assert state(facts["process"]) in ("", "Z")


def test_status_of_a_fork_is_not_that_of_an_earlier_one_with_its_id(play: Play) -> None:
    earlier = play.start("return")
    assert earlier.wait() == 3
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not os.access(last, os.W_OK):
        pytest.skip("may not say which id the next process gets")
    for _ in range(100):
        last.write_text(str(earlier.pid - 1))
        if (later := play.start("stay")).pid == earlier.pid:
            break
        later.kill()
    assert later.pid == earlier.pid
    assert later.poll() is None
    later.kill()
    assert later.wait() == -signal.SIGKILL


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
    with nursery_in(tmp_path) as nursery:
        play = Play(tmp_path, nursery, "ahead", "there_is_none")
        process = play.start("return")
        (facts,) = play.facts(1)
        assert (facts["process"], facts["threads"], facts["ahead"]) == (process.pid, 1, False)
        assert process.wait() == 3
        assert said in nursery.said
        assert Play(tmp_path, nursery, "json").start("return").wait() == 3
        assert [(facts["threads"], facts["ahead"]) for facts in play.facts(2)] == [(1, False)] * 2


def test_forks_have_what_is_imported_ahead_once_and_none_that_has_changed_since(tmp_path: Path) -> None:
    """Programs that share a nursery name what they need ahead, each of them."""
    (tmp_path / "ahead.py").write_text("print('imported', flush=True)\n")
    with nursery_in(tmp_path) as nursery:
        plain, eager = Play(tmp_path, nursery), Play(tmp_path, nursery, "ahead")
        for play in (plain, eager, eager):
            assert play.start("return").wait() == 3
        assert nursery.said.count("imported") == 1
        (tmp_path / "ahead.py").write_text("print('another', flush=True)\n")
        assert eager.start("return").wait() == 3
        assert [facts["ahead"] for facts in plain.facts(4)] == [False, True, True, False]
