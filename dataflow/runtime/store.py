"""What the master keeps: jobs, their events, statistics, log lines and artifacts, in its state directory.

Everything but artifacts is in one SQLite database; every method commits before it returns, so a master that is killed
loses nothing that it has announced. One thread uses a store, and one master a state directory (`StateDirLock`).

A disk that is full stops no job: what it does not take is kept in memory, where it is found like the rest, until there
is room again; only a master that ends before that loses it. New jobs are refused meanwhile.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dataflow.errors import MasterError, WireError
from dataflow.runtime.bundle import Bundle
from dataflow.transport.generated import control_pb2 as pb

MAX_LOG_LINES = 100_000
"""Log lines kept per job; the oldest go first."""

MAX_ARTIFACT_NBYTES = 1 << 30
"""Largest artifact, in bytes."""

MAX_SPARE_LOG_LINES = 1000
"""Log lines kept in memory per job while the disk takes none."""

_SEARCHED_LINES = 5000
_DISK_ERRORS = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_SCHEMA_VERSION = 1

_JOBS = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL UNIQUE,
    operation_id TEXT NOT NULL UNIQUE,
    spec_json BLOB NOT NULL,
    bundle BLOB NOT NULL,
    bundle_digest TEXT NOT NULL,
    status BLOB NOT NULL
);
"""
_GROWING = """
CREATE TABLE {0}events (job TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, number));
CREATE TABLE {0}statistics (job TEXT NOT NULL, node INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, node));
CREATE TABLE {0}logs (job TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, number));
"""
_SCHEMA = _JOBS + _GROWING.format("main.")
_SPARE = f"""
ATTACH ':memory:' AS spare;
{_GROWING.format("spare.")}
CREATE TABLE spare.statuses (job TEXT PRIMARY KEY, status BLOB NOT NULL);
CREATE TEMP VIEW every_event AS SELECT * FROM main.events UNION ALL SELECT * FROM spare.events;
CREATE TEMP VIEW every_log AS SELECT * FROM main.logs UNION ALL SELECT * FROM spare.logs;
CREATE TEMP VIEW every_status AS
    SELECT jobs.number, jobs.job, COALESCE(statuses.status, jobs.status) AS status
    FROM main.jobs LEFT JOIN spare.statuses ON statuses.job = jobs.job;
"""
"""What the disk does not take is in the database `spare`; the views show both."""

_MOVE = """
BEGIN;
INSERT OR REPLACE INTO main.events SELECT * FROM spare.events;
INSERT OR REPLACE INTO main.statistics SELECT * FROM spare.statistics;
INSERT OR REPLACE INTO main.logs SELECT * FROM spare.logs;
UPDATE main.jobs SET status = (SELECT status FROM spare.statuses WHERE statuses.job = jobs.job)
    WHERE job IN (SELECT job FROM spare.statuses);
DELETE FROM spare.events; DELETE FROM spare.statistics; DELETE FROM spare.logs; DELETE FROM spare.statuses;
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it was submitted.

    Args:
        job: its id.
        spec_json: JSON text of its specification.
        bundle: the user's code; its data is empty if there is none.
        status: where it is now.
    """

    job: str
    spec_json: bytes
    bundle: Bundle
    status: pb.JobStatus


class Store:
    """The database and files of a state directory.

    Args:
        state_dir: an existing directory.
        warn: told when the disk takes nothing more, and when it does again.

    Raises:
        MasterError: the database is from another version of the program, or is none.
    """

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _text: None) -> None:
        self._warn, self._full = warn, False
        self._broken: set[Path] = set()
        self._artifacts = state_dir / "artifacts"
        path = state_dir / "jobs.sqlite"
        # For their owner only, even where others may look into the directory: jobs hold code and models.
        self._artifacts.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        self._database = sqlite3.connect(path, isolation_level=None)
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                self._database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")
        except sqlite3.DatabaseError as error:
            self._database.close()
            raise MasterError(what=f"cannot use the master's database: {error}", where=str(path)) from error
        self._database.executescript(_SPARE)
        if version not in (0, _SCHEMA_VERSION):
            self._database.close()
            what = f"the master's database has version {version}, this program writes version {_SCHEMA_VERSION}"
            raise MasterError(what, where=str(path), fix="use another --state-dir")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def add_job(self, operation_id: str, job: StoredJob) -> str:
        """Keep a new job.

        Returns:
            Its id; that of the job submitted with the same operation id before, if there is one.

        Raises:
            MasterError: that one was another job, or the disk takes no more.
        """
        before = self._database.execute(
            "SELECT job, spec_json, bundle_digest FROM jobs WHERE operation_id = ?", (operation_id,)
        ).fetchone()
        if before is not None:
            if before[1:] != (job.spec_json, job.bundle.digest):
                raise MasterError(what="another job was submitted with this operation id", got=operation_id)
            return str(before[0])
        try:
            self._database.execute(
                "INSERT INTO jobs (job, operation_id, spec_json, bundle, bundle_digest, status) VALUES (?,?,?,?,?,?)",
                (job.job, operation_id, job.spec_json, job.bundle.data, job.bundle.digest, _bytes(job.status)),
            )
        except sqlite3.OperationalError as error:
            if not _of_disk(error):
                raise
            what, fix = f"the master cannot keep the job: {error}", "make room on the disk of its state directory"
            raise MasterError(what, where=str(self._artifacts.parent), fix=fix) from error
        return job.job

    def statuses(self) -> list[pb.JobStatus]:
        """Where every job is, oldest first."""
        rows = self._database.execute("SELECT status FROM every_status ORDER BY number")
        return [pb.JobStatus.FromString(status) for (status,) in rows]

    def job(self, job: str) -> StoredJob:
        """The job with this id, which must exist."""
        spec, data, digest, status = self._database.execute(
            "SELECT spec_json, bundle, bundle_digest, every_status.status FROM jobs JOIN every_status USING (job)"
            " WHERE job = ?",
            (job,),
        ).fetchone()
        return StoredJob(job, spec, Bundle(digest, data), pb.JobStatus.FromString(status))

    def find(self, prefix: str) -> str:
        """The id of the one job whose id is, or begins with, `prefix`.

        Raises:
            MasterError: there is none, or more than one.
        """
        rows = self._database.execute(
            "SELECT job FROM jobs WHERE substr(job, 1, ?) = ? ORDER BY number", (len(prefix), prefix)
        )
        found = [str(job) for (job,) in rows]
        if prefix in found:
            return prefix
        if not found or not prefix:
            raise MasterError(what="there is no such job", got=prefix, fix="list them with `ako ls`")
        if len(found) > 1:
            raise MasterError(what="several jobs' ids begin like this", got=prefix, fix=f"one of: {', '.join(found)}")
        return found[0]

    def set_status(self, status: pb.JobStatus) -> None:
        """Keep where a job is now."""
        body = _bytes(status)
        if not self._write("UPDATE main.jobs SET status = ? WHERE job = ?", [(body, status.job)]):
            self._database.execute("INSERT OR REPLACE INTO spare.statuses VALUES (?, ?)", (status.job, body))

    def add_event(self, job: str, event: pb.JobEvent) -> None:
        """Keep an event, under its index."""
        self._insert("events", [(job, event.index, _bytes(event))])

    def events(self, job: str, since: int, limit: int = 1000) -> list[pb.JobEvent]:
        """Up to `limit` events with index `since` or more, in order."""
        rows = self._database.execute(
            "SELECT body FROM every_event WHERE job = ? AND number >= ? ORDER BY number LIMIT ?", (job, since, limit)
        )
        return [pb.JobEvent.FromString(body) for (body,) in rows]

    def event_count(self, job: str) -> int:
        """Number of a job's events, which is the index of the next."""
        row = self._database.execute("SELECT COUNT(*) FROM every_event WHERE job = ?", (job,)).fetchone()
        return int(row[0])

    def set_statistics(self, job: str, statistics: pb.NodeStatistics) -> None:
        """Keep a node's newest statistics."""
        self._insert("statistics", [(job, statistics.node, _bytes(statistics))])

    def statistics(self, job: str) -> list[pb.NodeStatistics]:
        """Newest statistics of every node that has sent some."""
        newest: dict[int, bytes] = {}
        for database in ("main", "spare"):
            newest.update(self._database.execute(f"SELECT node, body FROM {database}.statistics WHERE job = ?", (job,)))
        return [pb.NodeStatistics.FromString(body) for _, body in sorted(newest.items())]

    def add_log_lines(self, job: str, lines: Iterable[pb.LogLine]) -> None:
        """Keep log lines, and no more than `MAX_LOG_LINES` of a job."""
        numbers = [
            self._database.execute(f"SELECT MAX(number) FROM {database}.logs WHERE job = ?", (job,)).fetchone()[0]
            for database in ("main", "spare")
        ]
        first = max((number + 1 for number in numbers if number is not None), default=0)
        rows = [(job, number, _bytes(line)) for number, line in enumerate(lines, first)]
        end = first + len(rows)
        if self._insert("logs", rows):
            self._write("DELETE FROM main.logs WHERE job = ? AND number < ?", [(job, end - MAX_LOG_LINES)])
        else:
            oldest = end - MAX_SPARE_LOG_LINES
            self._database.execute("DELETE FROM spare.logs WHERE job = ? AND number < ?", (job, oldest))

    def log_lines(self, job: str, since: int, limit: int = 1000) -> list[tuple[int, pb.LogLine]]:
        """Up to `limit` log lines with number `since` or more, in order, with their numbers."""
        rows = self._database.execute(
            "SELECT number, body FROM every_log WHERE job = ? AND number >= ? ORDER BY number LIMIT ?",
            (job, since, limit),
        )
        return [(number, pb.LogLine.FromString(body)) for number, body in rows]

    def last_log_lines(self, job: str, node: int, count: int) -> list[str]:
        """The newest `count` log lines of a node, oldest first, of those among the job's newest few thousand."""
        rows = self._database.execute(
            "SELECT body FROM every_log WHERE job = ? ORDER BY number DESC LIMIT ?", (job, _SEARCHED_LINES)
        )
        lines = (pb.LogLine.FromString(body) for (body,) in rows)
        return [line.text for line in islice((line for line in lines if line.node == node), count)][::-1]

    def write_artifact(self, job: str, writer: int, chunk: pb.ArtifactChunk) -> None:
        """Take the next chunk of an artifact; it is there under its name as a whole once the last has come.

        Args:
            job: id of the job.
            writer: number of the node that sends it; a node sends one artifact after the other.
            chunk: its next bytes.

        Raises:
            WireError: its name leads out of the job's folder, or it is too large.
            MasterError: the disk does not take it; nothing is left of it, and its other chunks are dropped.
        """
        check_artifact_name(chunk.name)
        partial = self._artifacts / f"{job}.{writer}.part"
        if partial in self._broken:
            self._broken -= {partial} if chunk.last else set()
            return
        try:
            self._append(partial, chunk)
            if chunk.last:
                target = self._artifacts / job / chunk.name
                target.parent.mkdir(parents=True, exist_ok=True)
                partial.replace(target)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            self._broken |= set() if chunk.last else {partial}
            raise MasterError(what=f"the master cannot keep an artifact: {error}", got=chunk.name) from error

    def drop_partial_artifacts(self, job: str) -> None:
        """Remove what was begun by nodes that ended before its last chunk."""
        for path in self._artifacts.glob(f"{job}.*.part"):
            path.unlink(missing_ok=True)
        self._broken = {path for path in self._broken if not path.name.startswith(f"{job}.")}

    def artifacts(self, job: str) -> Iterator[tuple[str, Path]]:
        """Name and file of every whole artifact of a job, by name."""
        folder = self._artifacts / job
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path

    def _insert(self, table: str, rows: Sequence[tuple[str, int, bytes]]) -> bool:
        """Keep rows of a table, in memory if the disk does not take them; returns whether it has."""
        taken = self._write(f"INSERT OR REPLACE INTO main.{table} VALUES (?, ?, ?)", rows)
        if not taken:
            self._database.executemany(f"INSERT OR REPLACE INTO spare.{table} VALUES (?, ?, ?)", rows)
        return taken

    def _write(self, sql: str, rows: Sequence[tuple[object, ...]]) -> bool:
        """Change the database, all rows or none; returns whether the disk has taken it."""
        try:
            if self._full:
                self._database.executescript(_MOVE)
                self._full = False
                self._warn("there is room on the master's disk again")
            self._database.execute("BEGIN")
            self._database.executemany(sql, rows)
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            if not _of_disk(error):
                raise
            if not self._full:
                self._warn(f"the master's disk takes no more ({error}): what jobs tell is kept in memory until it does")
            self._full = True
            return False
        return True

    def _append(self, partial: Path, chunk: pb.ArtifactChunk) -> None:
        with partial.open("ab") as file:
            if file.tell() + len(chunk.data) > MAX_ARTIFACT_NBYTES:
                raise WireError(what=f"an artifact may have {MAX_ARTIFACT_NBYTES} bytes", got=chunk.name)
            file.write(chunk.data)


def check_artifact_name(name: str) -> None:
    """Refuse names of artifacts that are no relative path of plain names.

    Raises:
        WireError: the name is one of them.
    """
    parts = name.split("/")
    plain = all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", part) for part in parts)
    if not plain or len(parts) > 8:
        fix = "use a relative path of letters, digits, '._-' and '/', whose names do not begin with '.'"
        raise WireError(what="an artifact has a bad name", got=name, fix=fix)


def _of_disk(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in _DISK_ERRORS


def _bytes(message: pb.JobStatus | pb.JobEvent | pb.NodeStatistics | pb.LogLine) -> bytes:
    return message.SerializeToString(deterministic=True)
