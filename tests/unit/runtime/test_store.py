from __future__ import annotations

import contextlib
import re
import resource
import stat
import zlib
from pathlib import Path

import pytest

from dataflow.errors import MasterError, WireError
from dataflow.runtime import store as stores
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.state_dir import StateDirLock
from dataflow.runtime.store import Store, StoredJob
from dataflow.transport.generated import control_pb2 as pb


def job(name: str, spec: bytes = b"{}") -> StoredJob:
    return StoredJob(name, spec, Bundle("digest", b"zip"), pb.JobStatus(job=name, state="SUBMITTED", nodes=2))


def test_reopened_store_has_jobs_events_statistics_and_logs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add_job("op-1", job("aaa"))
    store.add_job("op-2", job("abb"))
    store.add_event("aaa", pb.JobEvent(index=0, wall_s=1.0))
    store.add_event("aaa", pb.JobEvent(index=1, wall_s=2.0))
    store.set_statistics("aaa", pb.NodeStatistics(node=1, steps=3))
    store.set_statistics("aaa", pb.NodeStatistics(node=1, steps=5))
    store.add_log_lines("aaa", [pb.LogLine(node=1, text="one"), pb.LogLine(node=1, text="two")])
    store.set_status(pb.JobStatus(job="aaa", state="RUNNING"))
    store.close()

    store = Store(tmp_path)
    assert [status.job for status in store.statuses()] == ["aaa", "abb"]
    assert store.job("aaa").status.state == "RUNNING"
    assert store.job("aaa").bundle == Bundle("digest", b"zip")
    assert [event.wall_s for event in store.events("aaa", 1)] == [2.0]
    assert store.event_count("aaa") == 2
    assert [each.steps for each in store.statistics("aaa")] == [5]
    assert [(number, line.text) for number, line in store.log_lines("aaa", 1)] == [(1, "two")]
    store.close()


def test_what_is_kept_is_for_its_owner_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    store = Store(tmp_path)
    store.add_job("op", job("aaa"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    store.close()
    assert modes == {"artifacts": 0o700, "jobs.sqlite": 0o600, "jobs.sqlite-shm": 0o600, "jobs.sqlite-wal": 0o600}


def test_same_operation_id_gives_the_same_job_and_refuses_another(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.add_job("op", job("first")) == "first"
    assert store.add_job("op", job("second")) == "first"
    assert [status.job for status in store.statuses()] == ["first"]
    with pytest.raises(MasterError, match="another job was submitted"):
        store.add_job("op", job("third", b'{"other": 1}'))
    store.close()


def test_find_takes_a_beginning_of_exactly_one_id(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("aaa1", "aab2", "aa"):
        store.add_job(name, job(name))
    assert store.find("aaa") == "aaa1"
    assert store.find("aa") == "aa"
    with pytest.raises(MasterError, match="several"):
        store.find("a")
    for unknown in ("x", "", "%", "aaa11"):
        with pytest.raises(MasterError, match="no such job"):
            store.find(unknown)
    store.close()


def test_oldest_log_lines_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_LOG_LINES", 3)
    store = Store(tmp_path)
    store.add_log_lines("a", [pb.LogLine(text=str(number)) for number in range(5)])
    store.add_log_lines("a", [pb.LogLine(text="5")])
    assert [line.text for _, line in store.log_lines("a", 0)] == ["3", "4", "5"]
    store.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_oldest_log_lines_go_until_a_tenth_is_free_where_they_take_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    monkeypatch.setattr(stores, "MAX_LOG_NBYTES", 1000)
    store, line = Store(tmp_path), pb.LogLine(text="x" * 98)  # 100 bytes
    for _ in range(10):
        store.add_log_lines("a", [line])
        store.add_log_lines("b", [line])
    if restarts:
        store.close()
        store = Store(tmp_path)
    store.add_log_lines("a", [line])
    assert [number for number, _ in store.log_lines("a", 0)] == [*range(2, 11)]
    assert [number for number, _ in store.log_lines("b", 0)] == [*range(10)]
    store.close()


def test_artifact_is_there_under_its_name_once_the_last_chunk_has_come(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_artifact("a", 0, pb.ArtifactChunk(name="m/model.bin", data=b"12"))
    store.write_artifact("a", 1, pb.ArtifactChunk(name="other", data=b"x", last=True))
    assert [name for name, _ in store.artifacts("a")] == ["other"]
    store.write_artifact("a", 0, pb.ArtifactChunk(name="m/model.bin", data=b"3", last=True, start=2))
    assert [(name, path.read_bytes()) for name, path in store.artifacts("a")] == [
        ("m/model.bin", b"123"),
        ("other", b"x"),
    ]
    store.write_artifact("a", 0, pb.ArtifactChunk(name="other", data=b"y", last=True))
    assert dict(store.artifacts("a"))["other"].read_bytes() == b"y"
    store.close()


def test_artifacts_that_were_begun_and_not_finished_are_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("a", "ab"):
        store.write_artifact(name, 0, pb.ArtifactChunk(name="begun", data=b"1"))
    store.drop_partial_artifacts("a")
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == [f"ab.0.{zlib.crc32(b'begun'):08x}.part"]
    store.close()


def test_artifact_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_ARTIFACT_NBYTES", 3)
    store = Store(tmp_path)
    store.write_artifact("a", 0, pb.ArtifactChunk(name="big", data=b"12"))
    with pytest.raises(WireError, match="3 bytes"):
        store.write_artifact("a", 0, pb.ArtifactChunk(name="big", data=b"34", last=True, start=2))
    store.close()


def test_transaction_is_kept_whole_or_not_at_all_and_one_inside_is_part_of_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.transaction(durable=False), store.transaction(durable=True):
        store.add_decision("a", (0.5, 1.0, "boot"), "one")
    with contextlib.suppress(ValueError), store.transaction(durable=True):
        store.add_log_lines("a", [pb.LogLine(text="line")])
        store.add_decision("a", (1.5, 2.0, "boot"), "two")
        raise ValueError
    assert store.decisions("a") == [((0.5, 1.0, "boot"), "one")]
    assert store.log_lines("a", 0) == []
    store.set_over("a")
    assert store.decisions("a") == []
    store.close()


def test_jobs_that_are_over_are_in_the_order_of_that_and_each_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for job in ("b", "c", "a", "b"):
        store.set_over(job)
    store.remove("c")
    assert store.over() == ["b", "a"]
    store.close()


def test_messages_of_an_agent_are_counted_in_its_present_life(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.set_kept("a", "one", 7)
    assert (store.kept("a", "one"), store.kept("a", "two"), store.kept("b", "one")) == (7, 0, 0)
    store.set_kept("a", "two", 1)
    assert (store.kept("a", "one"), store.kept("a", "two")) == (0, 1)
    store.close()


def test_chunk_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    chunks = [
        pb.ArtifactChunk(name="m", data=b"12", start=0),
        pb.ArtifactChunk(name="m", data=b"34", start=2),
        pb.ArtifactChunk(name="m", data=b"5", start=4, last=True),
    ]
    for chunk in (chunks[0], chunks[1], chunks[1], chunks[2], chunks[1], chunks[2]):
        store.write_artifact("a", 0, chunk)
    assert [path.read_bytes() for _, path in store.artifacts("a")] == [b"12345"]
    assert list((tmp_path / "artifacts").glob("*.part")) == []
    store.close()


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite").write_bytes(b"something else, long enough to be looked at" * 10)
    with pytest.raises(MasterError, match="cannot use"):
        Store(tmp_path)


def test_database_is_as_small_again_as_before_a_job_that_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add_job("op-1", job("aaa"))

    def pages() -> int:
        return int(store._database.read("PRAGMA page_count")[0][0])

    before = pages()
    store.add_job("op-2", job("bbb", spec=b"x" * 1_000_000))
    store.add_log_lines("bbb", [pb.LogLine(text="x" * 1000)] * 1000)
    assert pages() > before + 400
    store.remove("bbb")
    assert pages() <= before + 1
    assert [status.job for status in store.statuses()] == ["aaa"]
    store.close()


def test_database_that_the_disk_has_no_room_to_open_is_refused_with_what_to_do(tmp_path: Path) -> None:
    Store(tmp_path).close()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(MasterError, match=r"cannot use the master's database: .*; make some room if its disk is"):
            Store(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    Store(tmp_path).close()


def test_second_lock_on_a_state_directory_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    first = StateDirLock(tmp_path)
    with pytest.raises(MasterError, match="another master runs"):
        StateDirLock(tmp_path)
    first.release()
    StateDirLock(tmp_path).release()


def pages(store: Store, most: str) -> None:
    """Let the database have so many pages at most, as a full disk would."""
    store._database._file.execute(f"PRAGMA main.max_page_count = {most}")


def full(store: Store) -> None:
    (count,) = store._database._file.execute("PRAGMA main.page_count").fetchone()
    pages(store, str(count))


def tell(store: Store, number: int) -> None:
    """All that a running job makes a store keep."""
    store.add_event("aaa", pb.JobEvent(index=number, wall_s=float(number)))
    store.add_log_lines("aaa", [pb.LogLine(node=1, text="x" * 3000 + str(number))])
    store.set_statistics("aaa", pb.NodeStatistics(node=0, steps=number, samples={"a" * 3000: pb.SampleStatistics()}))
    store.set_status(pb.JobStatus(job="aaa", state="RUNNING", reason=f"{number}" * 3000))


def check_told(store: Store, count: int) -> None:
    assert [event.wall_s for event in store.events("aaa", 0)] == list(range(count))
    assert store.event_count("aaa") == count
    assert [line.text.lstrip("x") for _, line in store.log_lines("aaa", 0)] == [str(each) for each in range(count)]
    assert store.last_log_lines("aaa", 1, 1)[0].lstrip("x") == str(count - 1)
    assert [each.steps for each in store.statistics("aaa")] == [count - 1]
    assert store.job("aaa").status.reason[0] == store.statuses()[0].reason[0] == str(count - 1)


def test_store_on_a_full_disk_shows_everything_as_before_and_keeps_it_once_there_is_room(tmp_path: Path) -> None:
    warnings: list[str] = []
    store = Store(tmp_path, warnings.append)
    store.add_job("op", job("aaa"))
    for number in range(2):
        tell(store, number)
    store.set_statistics("aaa", pb.NodeStatistics(node=0, steps=1))
    full(store)
    for number in range(2, 6):
        tell(store, number)
    check_told(store, 6)
    assert len(warnings) == 1
    assert re.match("the master's disk takes no more .*disk is full.*kept in memory", warnings[0])
    with pytest.raises(MasterError, match=r"the master cannot keep the job: .*full.*make room"):
        store.add_job("big", job("abb", bytes(100_000)))

    pages(store, "1000000")
    for number in range(6, 10):
        tell(store, number)
    check_told(store, 10)
    assert warnings[1:] == ["there is room on the master's disk again"]
    store.close()
    store = Store(tmp_path)
    check_told(store, 10)
    store.close()
