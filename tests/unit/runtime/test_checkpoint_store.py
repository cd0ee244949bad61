"""Checkpoints on disks that fail, and in files that are not what was written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from dataflow.engine.checkpoints import KeptFile, Manifest, encode
from dataflow.engine.events import Snapshot
from dataflow.errors import CheckpointError, ConfigError
from dataflow.runtime.checkpoint_store import (
    MANIFEST,
    CheckpointStore,
    load_manifest,
    newest_whole,
    numbers,
    remove,
    search,
    verify,
)
from dataflow.runtime.folders import Disk, Folder, LocalFolder, RemoteFolder, open_folder

NODES = 2


class Crash(BaseException):
    """The process is gone: nothing that would follow happens."""


class QuickDisk(Disk):
    """Ends of processes are tested, not of machines: what was written is there."""

    def sync(self, descriptor: int) -> None:
        assert descriptor > 2

    def sync_folder(self, folder: Path) -> None:
        assert folder.is_dir()


class FailingDisk(QuickDisk):
    """A disk whose operation number `at` fails, or at which the process ends, before or after it was done."""

    def __init__(self, at: int, error: BaseException, *, after: bool = False, lasting: bool = False) -> None:
        self.at, self.error, self.after, self.lasting, self.count = at, error, after, lasting, 0

    def __getattribute__(self, name: str):
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found

        def call(*arguments):
            number = self.count
            self.count += 1
            fails = number == self.at or (self.lasting and number > self.at)
            if fails and not self.after and name != "close":
                raise self.error
            result = found(*arguments)
            if fails:
                raise self.error
            return result

        return call


def content(node: int, number: int, size: int = 64) -> bytes:
    values = np.full(size, number, np.float32)
    return encode(
        Snapshot(node, f"node-{node}", ("worker",), number, number, {"source": number}, {"replica/values": values})
    )


def manifest(number: int, files: tuple[KeptFile, ...]) -> Manifest:
    return Manifest(
        version="1",
        job="a",
        number=number,
        plan="",
        seed=0,
        wall_s=0,
        roles={"worker": NODES},
        elements=(),
        files=files,
    )


def store(folder: Folder, warnings: list[str], keep: int = 2) -> CheckpointStore:
    return CheckpointStore(folder, keep=keep, manifest=manifest, nodes=frozenset(range(NODES)), warn=warnings.append)


def write(kept: CheckpointStore, number: int, size: int = 64) -> None:
    for node in range(NODES):
        data = content(node, number, size)
        middle = len(data) // 2
        kept.write(node, number, data[:middle], last=False)
        kept.write(node, number, data[middle:], last=True)


def test_store_keeps_the_last_ones_whole_and_nothing_else(tmp_path: Path) -> None:
    warnings: list[str] = []
    kept = store(LocalFolder(tmp_path / "job"), warnings)
    for number in (10, 20, 30):
        write(kept, number)
    kept.write(0, 40, content(0, 40), last=True)
    kept.write(1, 40, b"12345678", last=False)
    kept.close()
    folder = LocalFolder(tmp_path / "job")
    assert numbers(folder) == [30, 20]
    found = verify(folder, 30)
    assert [(file.member.node, file.member.steps, file.tensors["replica/values"].shape) for file in found.files] == [
        (0, 30, (64,)),
        (1, 30, (64,)),
    ]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == 2 * [MANIFEST] + 2 * [
        "node-0.safetensors"
    ] + 2 * ["node-1.safetensors"]
    assert warnings == []


def test_store_without_a_node_that_has_left_is_whole(tmp_path: Path) -> None:
    kept = store(LocalFolder(tmp_path / "job"), [])
    kept.write(0, 10, content(0, 10), last=True)
    assert numbers(LocalFolder(tmp_path / "job")) == [10]
    with pytest.raises(CheckpointError, match="no manifest"):
        load_manifest(LocalFolder(tmp_path / "job"), 10)
    kept.leave(1)
    assert [file.member.node for file in verify(LocalFolder(tmp_path / "job"), 10).files] == [0]


def test_store_keeps_no_more_once_a_node_has_come_of_whose_part_others_have_a_share(tmp_path: Path) -> None:
    folder, warnings = LocalFolder(tmp_path), list[str]()
    both = frozenset(range(NODES))
    kept = CheckpointStore(
        folder,
        keep=9,
        manifest=manifest,
        nodes=both,
        needed=both,
        inherited={0: "a", 1: "b"},
        warn=warnings.append,
    )
    write(kept, 10)
    kept.leave(1)
    kept.write(0, 20, content(0, 20), last=True)
    kept.join(1)
    write(kept, 20)
    write(kept, 30)
    assert newest_whole(folder)[0].number == 10
    assert numbers(folder) == [10]
    assert len(warnings) == 1


def test_store_keeps_no_more_once_a_vacant_place_has_been_taken_whose_part_nobody_would_go_on_with(
    tmp_path: Path,
) -> None:
    folder, warnings = LocalFolder(tmp_path), list[str]()
    kept = CheckpointStore(
        folder,
        keep=9,
        manifest=manifest,
        nodes=frozenset({0, 1}),
        needed=frozenset({0}),
        inherited={0: "a", 1: "b"},
        vacant=frozenset({1}),
        warn=warnings.append,
    )
    kept.leave(1)
    kept.write(0, 10, content(0, 10), last=True)
    assert newest_whole(folder)[0].number == 10
    kept.join(1)
    write(kept, 20)
    assert numbers(folder) == [10]
    assert ["node b has come" in warning for warning in warnings] == [True]


def test_store_expects_a_node_that_has_joined_from_its_first_file_on(tmp_path: Path) -> None:
    """While it catches up, checkpoints are whole without it, and nobody is warned of what it never makes."""
    warnings: list[str] = []
    kept, folder = store(LocalFolder(tmp_path), warnings, keep=20), LocalFolder(tmp_path)
    kept.leave(1)
    kept.join(1)
    for number in range(10, 100, 10):
        kept.write(0, number, content(0, number), last=True)
        assert newest_whole(folder)[0].number == number
    kept.write(1, 110, content(1, 110)[:8], last=False)
    kept.write(0, 100, content(0, 100), last=True)
    kept.write(0, 110, content(0, 110), last=True)
    assert newest_whole(folder)[0].number == 100  # the next is whole with both only
    kept.write(1, 110, content(1, 110)[8:], last=True)
    assert [file.member.node for file in verify(folder, 110).files] == [0, 1]
    kept.write(0, 120, content(0, 120), last=True)
    assert newest_whole(folder)[0].number == 110
    assert warnings == []


def test_store_without_a_needed_node_that_has_left_is_not_whole(tmp_path: Path) -> None:
    nodes = frozenset(range(NODES))
    warnings: list[str] = []
    store = CheckpointStore(
        LocalFolder(tmp_path, QuickDisk()),
        keep=3,
        manifest=manifest,
        nodes=nodes,
        needed=frozenset({1}),
        warn=warnings.append,
    )
    for node in range(NODES):
        store.write(node, 1, content(node, 1), last=True)
    store.write(0, 2, content(0, 2), last=True)
    store.leave(1)
    store.write(0, 3, content(0, 3), last=True)
    assert newest_whole(LocalFolder(tmp_path))[0].number == 1
    store.join(1)
    store.write(1, 3, content(1, 3), last=True)
    assert newest_whole(LocalFolder(tmp_path))[0].number == 3
    assert warnings == []


def test_store_keeps_no_more_once_a_node_is_gone_whose_part_is_in_no_file_and_says_what_to_do(tmp_path: Path) -> None:
    warnings: list[str] = []
    kept = CheckpointStore(
        LocalFolder(tmp_path, QuickDisk()),
        keep=3,
        manifest=manifest,
        nodes=frozenset(range(NODES)),
        needed=frozenset(range(NODES)),
        inherited={0: "left", 1: "right"},
        warn=warnings.append,
    )
    for number in (1, 2):
        kept.write(1, number, content(1, number), last=True)
    kept.write(0, 1, content(0, 1), last=True)
    kept.write(0, 3, content(0, 3), last=True)
    kept.leave(1)
    kept.leave(1)
    for number in range(3, 30):
        kept.write(0, number, content(0, number), last=True)
    assert numbers(LocalFolder(tmp_path)) == [2, 1]
    kept.write(0, 2, content(0, 2), last=True)
    assert newest_whole(LocalFolder(tmp_path))[0].number == 2  # all that the node was to give was there before it went
    (warning,) = warnings
    assert warning == (
        f"no more checkpoints are kept in {tmp_path}: node right is gone, and others have what it held, but no file;"
        " the job goes on. To have more, cancel it, and ako resume goes on from checkpoint 1"
    )


def test_store_without_any_node_of_a_role_is_not_whole(tmp_path: Path) -> None:
    def with_servers(number: int, files: tuple[KeptFile, ...]) -> Manifest:
        return manifest(number, files).model_copy(update={"roles": {"worker": 1, "server": 1}})

    store = CheckpointStore(
        LocalFolder(tmp_path, QuickDisk()),
        keep=3,
        manifest=with_servers,
        nodes=frozenset(range(NODES)),
        warn=pytest.fail,
    )
    store.write(0, 1, content(0, 1), last=True)
    store.leave(1)
    assert not (tmp_path / "000000001" / MANIFEST).exists()


def test_store_gives_up_what_a_node_never_sends(tmp_path: Path) -> None:
    warnings: list[str] = []
    kept = store(LocalFolder(tmp_path / "job"), warnings)
    for number in range(10, 100, 10):
        kept.write(0, number, content(0, number), last=True)
    assert numbers(LocalFolder(tmp_path / "job")) == [90, 80, 70, 60]
    (warning,) = warnings
    assert "checkpoint 10" in warning
    assert "others went on: 1" in warning


def test_store_gives_up_what_all_nodes_are_too_slow_for_and_says_what_to_do(tmp_path: Path) -> None:
    warnings: list[str] = []
    kept = store(LocalFolder(tmp_path / "job"), warnings)
    kept.write(0, 10, content(0, 10)[:8], last=False)
    for number in (20, 30, 40, 50):
        kept.write(1, number, content(1, number), last=True)
    (warning,) = warnings
    assert "no node had sent its part of it when 4 later ones had begun; have them made more rarely" in warning


def attempt(disk: Disk, path: Path) -> list[str]:
    warnings: list[str] = []
    kept = store(LocalFolder(path / "job", disk), warnings)
    for number in (10, 20, 30, 40):
        write(kept, number)
    return warnings


@pytest.mark.parametrize("after", [False, True])
def test_crash_between_any_two_operations_leaves_the_newest_whole_one(tmp_path: Path, *, after: bool) -> None:
    at = 0
    newest: list[int] = []
    while True:
        disk, path = FailingDisk(at, Crash(), after=after), tmp_path / f"{at}"
        try:
            attempt(disk, path)
        except Crash:
            pass
        else:
            break
        folder = LocalFolder(path / "job")
        whole = [number for number in numbers(folder) if is_whole(folder, number)]
        newest.append(max(whole, default=0))
        write(store(LocalFolder(path / "job", QuickDisk()), []), 50)
        assert newest_whole(folder) == (verify(folder, 50), [])
        at += 1
    assert newest == sorted(newest)  # what was whole once is there for good
    assert set(newest) == {0, 10, 20, 30, 40}
    assert at > 60


def is_whole(folder: Folder, number: int) -> bool:
    """Every checkpoint that has a manifest has what it says."""
    if not (Path(folder.place) / f"{number:09d}" / MANIFEST).exists():
        return False
    verify(folder, number)
    return True


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_error_at_any_operation_is_told_and_the_next_checkpoint_is_kept(tmp_path: Path, code: int) -> None:
    at = told = 0
    while True:
        disk, path = FailingDisk(at, OSError(code, os.strerror(code))), tmp_path / f"{at}"
        warnings = attempt(disk, path)
        if disk.count <= at:
            break
        folder = LocalFolder(path / "job")
        found, broken = newest_whole(folder)
        assert broken == []
        assert found.number in (30, 40)
        assert len(warnings) <= 1
        told += len(warnings)
        assert all(os.strerror(code) in warning and str(path) in warning for warning in warnings)
        assert not list(path.rglob("*.part"))
        at += 1
    assert told > 30


def test_disk_that_stays_full_or_read_only_is_told_once(tmp_path: Path) -> None:
    warnings = attempt(FailingDisk(20, OSError(errno.EROFS, "Read-only file system"), lasting=True), tmp_path)
    (warning,) = warnings
    assert "the job goes on without it" in warning
    descriptors = os.listdir("/proc/self/fd")
    attempt(FailingDisk(3, OSError(errno.ENOSPC, "No space left on device"), lasting=True), tmp_path / "more")
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


class SmallDisk(QuickDisk):
    """A disk with room for `nbytes` of files below `path`."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path, self.nbytes = path, nbytes

    def write(self, descriptor: int, data: memoryview) -> int:
        if len(data) + sum(each.stat().st_size for each in self.path.rglob("*") if each.is_file()) > self.nbytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, data)


@pytest.mark.parametrize(("fit", "lost", "kept"), [(2, [30], 1), (3, [40], 2)])
def test_disk_with_room_for_fewer_than_are_to_be_kept_loses_one_checkpoint(
    tmp_path: Path, fit: int, lost: list[int], kept: int
) -> None:
    write(store(LocalFolder(tmp_path / "large"), []), 10)
    nbytes = sum(each.stat().st_size for each in (tmp_path / "large" / "000000010").iterdir())
    warnings: list[str] = []
    path, missing = tmp_path / "small", []
    checkpoints = store(LocalFolder(path, SmallDisk(path, int((fit + 0.5) * nbytes))), warnings, keep=5)
    for number in range(10, 110, 10):
        write(checkpoints, number)
        if number not in numbers(LocalFolder(path)):
            missing.append(number)
    assert missing == lost
    assert numbers(LocalFolder(path)) == list(range(100, 100 - 10 * kept, -10))
    (warning,) = warnings
    assert f"from now on it keeps {kept} instead of {fit} that are whole, to make room" in warning


@pytest.mark.parametrize("file", ["node-1.safetensors", MANIFEST])
def test_truncation_at_every_kib_and_every_byte_of_the_manifest_is_caught(tmp_path: Path, file: str) -> None:
    folder = written(tmp_path)
    path = tmp_path / "job" / "000000020" / file
    data = path.read_bytes()
    for size in range(0, len(data), 1024 if file != MANIFEST else 7):
        path.write_bytes(data[:size])
        found, broken = newest_whole(folder)
        assert found.number == 10
        assert len(broken) == 1
        assert file in broken[0]
    path.write_bytes(data)
    assert newest_whole(folder)[0].number == 20


@pytest.mark.parametrize("file", ["node-0.safetensors", MANIFEST])
def test_flipped_bits_are_caught(tmp_path: Path, file: str) -> None:
    folder = written(tmp_path)
    path = tmp_path / "job" / "000000020" / file
    data = path.read_bytes()
    for bit in np.random.default_rng(1).integers(8 * len(data), size=250).tolist():
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        found, broken = newest_whole(folder)
        assert found.number == 10, bit
        assert file in broken[0]


def written(tmp_path: Path) -> Folder:
    kept = store(LocalFolder(tmp_path / "job"), [])
    write(kept, 10, 4096)
    write(kept, 20, 4096)
    return LocalFolder(tmp_path / "job")


def test_lost_file_is_caught_and_nothing_whole_says_why(tmp_path: Path) -> None:
    folder = written(tmp_path)
    for number in (10, 20):
        (tmp_path / "job" / f"{number:09d}" / "node-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no whole checkpoint; checkpoint 20 is left out.*node-1.*checkpoint 10"):
        newest_whole(folder)
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        newest_whole(LocalFolder(tmp_path / "elsewhere"))


def test_folder_that_holds_those_of_jobs_is_told_to_be_one_level_too_high(tmp_path: Path) -> None:
    for name in ("5f0c9a1be2d4", "music"):
        (tmp_path / name / "000000010").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="; name the folder of a job in it, such as 5f0c9a1be2d4"):
        newest_whole(LocalFolder(tmp_path))


def test_checkpoint_that_is_asked_for_and_broken_says_what_is_wrong_and_only_whole_ones_are_offered(
    tmp_path: Path,
) -> None:
    folder = written(tmp_path)
    file = tmp_path / "job" / "000000020" / "node-1.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    with pytest.raises(CheckpointError) as broken:
        newest_whole(folder, 20)
    wrong = f"a file of {len(whole)} bytes has 100 at {file}"
    assert str(broken.value) == f"checkpoint 20 cannot be used: {wrong}; name one that is whole: 10"
    with pytest.raises(CheckpointError) as unknown:
        newest_whole(folder, 77)
    assert str(unknown.value) == f"there is no checkpoint 77 at {tmp_path / 'job'}; name one that is whole: 10"


def test_checkpoint_that_is_asked_for_where_none_is_whole_offers_none(tmp_path: Path) -> None:
    folder = written(tmp_path)
    for number in (10, 20):
        (tmp_path / "job" / f"{number:09d}" / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"20 cannot be used: .* no manifest .*; see checkpoint_every$"):
        newest_whole(folder, 20)


def test_store_that_goes_on_from_an_older_checkpoint_makes_the_newer_ones_again(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (tmp_path / "job" / "000000020" / "node-1.safetensors").write_bytes(b"broken")
    remove(folder, search(folder).left_out)
    assert numbers(folder) == [10]
    again = store(folder, [])
    write(again, 20, 4096)
    assert newest_whole(folder)[0].number == 20


def test_file_of_another_node_or_of_none_is_refused(tmp_path: Path) -> None:
    warnings: list[str] = []
    kept = store(LocalFolder(tmp_path), warnings)
    kept.write(0, 10, content(1, 10), last=True)
    kept.write(1, 20, b"no header at all, but long enough", last=True)
    assert len(warnings) == 1
    assert "a file of node 1" in warnings[0]
    assert numbers(LocalFolder(tmp_path)) == []


def test_manifest_of_a_later_version_is_refused() -> None:
    later = manifest(1, ()).model_copy(update={"schema_version": 2})
    with pytest.raises(CheckpointError, match="of version 2, this program reads 1"):
        Manifest.decode(later.encode())


@pytest.fixture
def memory() -> Iterator[str]:
    yield "memory://checkpoints/job"
    fsspec.filesystem("memory").store.clear()


def test_object_store_keeps_prunes_and_verifies_like_a_disk(memory: str) -> None:
    folder = open_folder(memory)
    assert isinstance(folder, RemoteFolder)
    assert numbers(folder) == []
    kept = store(folder, [])
    for number in (10, 20, 30):
        write(kept, number)
    assert numbers(folder) == [30, 20]
    assert newest_whole(folder)[0].number == 30
    files = fsspec.filesystem("memory")
    path = "/checkpoints/job/000000030/node-0.safetensors"
    files.pipe_file(path, files.cat_file(path)[:-1])
    found, broken = newest_whole(folder)
    assert (found.number, len(broken)) == (20, 1)
    assert path.lstrip("/") in broken[0]


def test_unknown_kind_of_address_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nowhere://x.*ako-dataflow\[remote\]"):
        open_folder("nowhere://x")
