"""What waits for a disk is bounded, and a disk that hangs holds nothing up."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from dataflow.engine.checkpoints import KeptFile, Manifest, encode
from dataflow.engine.events import Snapshot
from dataflow.runtime import checkpoint_keeper
from dataflow.runtime.checkpoint_keeper import CheckpointKeeper
from dataflow.runtime.checkpoint_store import CheckpointStore, newest_whole, numbers
from dataflow.runtime.folders import Disk, LocalFolder
from dataflow.transport.generated import control_pb2 as pb


class HangingDisk(Disk):
    def __init__(self) -> None:
        self.go_on, self.hangs = threading.Event(), threading.Event()

    def open(self, path: Path) -> int:
        self.hangs.set()
        assert self.go_on.wait(30)
        return super().open(path)


def manifest(number: int, files: tuple[KeptFile, ...]) -> Manifest:
    return Manifest(
        version="1", job="a", number=number, plan="", seed=0, wall_s=0, roles={"worker": 1}, elements=(), files=files
    )


def chunks(number: int) -> list[pb.CheckpointChunk]:
    data = encode(Snapshot(0, "node-0", ("worker",), number, number, {}, {}))
    return [
        pb.CheckpointChunk(number=number, data=data[:20]),
        pb.CheckpointChunk(number=number, data=data[20:], last=True),
    ]


def run(path: Path, disk: Disk, talk: Any) -> list[str]:
    """What was warned of while `talk` gave a keeper work."""
    warnings: list[str] = []

    async def whole() -> None:
        def store(warn: Any) -> CheckpointStore:
            return CheckpointStore(LocalFolder(path, disk), keep=3, manifest=manifest, nodes=frozenset({0}), warn=warn)

        keeper = CheckpointKeeper(store, warnings.append)
        await talk(keeper)
        keeper.close()

    before = threading.active_count()
    asyncio.run(whole())
    for thread in threading.enumerate():
        if thread.name == "checkpoints":
            thread.join(30)
    assert threading.active_count() <= before
    return warnings


def test_keeper_keeps_what_comes_and_its_thread_ends(tmp_path: Path) -> None:
    async def talk(keeper: CheckpointKeeper) -> None:
        for number in (10, 20):
            for chunk in chunks(number):
                keeper.take(0, chunk)
            while newest(tmp_path) != number or keeper._writing:  # also the loop has heard that it is written
                await asyncio.sleep(0.001)

    assert run(tmp_path, Disk(), talk) == []
    assert numbers(LocalFolder(tmp_path)) == [20, 10]


def test_keeper_takes_one_of_all_that_was_kept_while_the_master_was_away_and_calls_no_disk_slow(tmp_path: Path) -> None:
    async def talk(keeper: CheckpointKeeper) -> None:
        for number in range(10, 210, 10):
            for chunk in chunks(number):
                keeper.take(0, chunk)
        while keeper._writing:
            await asyncio.sleep(0.001)
        for chunk in chunks(210):
            keeper.take(0, chunk)

    assert run(tmp_path, Disk(), talk) == []
    assert numbers(LocalFolder(tmp_path)) == [210, 10]


def newest(path: Path) -> int:
    whole = [int(each.parent.name) for each in path.glob("*/manifest.json")]
    return max(whole, default=0)


def test_keeper_with_a_disk_that_hangs_leaves_out_what_follows_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_keeper, "SLOW_S", -1.0)
    disk = HangingDisk()

    async def talk(keeper: CheckpointKeeper) -> None:
        for number in (10, 20, 30):
            for chunk in chunks(number):
                keeper.take(0, chunk)
        assert await asyncio.to_thread(disk.hangs.wait, 30)
        disk.go_on.set()
        while newest(tmp_path) != 10 or keeper._writing:
            await asyncio.sleep(0.001)
        for chunk in chunks(40):
            keeper.take(0, chunk)

    (warning,) = run(tmp_path, disk, talk)
    assert "checkpoint 20 is left out: the disk is too slow" in warning
    assert newest_whole(LocalFolder(tmp_path))[0].number == 40
    assert numbers(LocalFolder(tmp_path)) == [40, 10]


class BrokenDisk(Disk):
    def open(self, path: Path) -> int:
        what = "no disk of this world"
        raise RuntimeError(what)


def test_keeper_that_cannot_go_on_says_so_once_and_takes_nothing_more(tmp_path: Path) -> None:
    async def talk(keeper: CheckpointKeeper) -> None:
        for number in (10, 20):
            for chunk in chunks(number):
                keeper.take(0, chunk)
            await keeper.closed()
            await asyncio.sleep(0)

    (warning,) = run(tmp_path, BrokenDisk(), talk)
    assert warning == "no more checkpoints are kept: RuntimeError: no disk of this world; the job goes on without them"
