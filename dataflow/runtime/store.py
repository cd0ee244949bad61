"""What the master keeps: jobs, their events, statistics, log lines and artifacts, in its state directory.

Everything but artifacts is in one SQLite database. Every method commits before it returns, or at the end of the
`transaction` around it, so a master that is killed loses nothing that it has announced; and nothing is lost with the
power that was to be durable. One thread uses a store, and one master a state directory (`StateDirLock`).

A disk that is full stops no job (`Database`); new jobs, and changes of those that run, are refused meanwhile.
"""

from __future__ import annotations

import math
import os
import shutil
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dataflow.artifact_names import check_artifact_name
from dataflow.errors import MasterError, WireError
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.database import Database
from dataflow.transport.generated import control_pb2 as pb

MAX_LOG_LINES = 100_000
"""Log lines kept per job; the oldest go first."""

MAX_LOG_NBYTES = 64 << 20
"""Bytes of log lines kept per job; once they are more, the oldest go until a tenth of that is free."""

MAX_ARTIFACT_NBYTES = 1 << 30
"""Largest artifact, in bytes."""

_SYNCED_NBYTES = 8 << 20
"""So often an artifact is synchronised: all of it at once could hold up everybody who talks to the master."""

_SEARCHED_LINES = 5000
_SCHEMA_VERSION = 6

_SCHEMA = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL UNIQUE,
    operation_id TEXT NOT NULL UNIQUE,
    spec_json BLOB NOT NULL,
    bundle BLOB NOT NULL,
    bundle_digest TEXT NOT NULL,
    status BLOB NOT NULL
);
CREATE TABLE events (job TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, number));
CREATE TABLE statistics (job TEXT NOT NULL, node INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, node));
CREATE TABLE logs (job TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (job, number));
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    now_s REAL NOT NULL,
    wall_s REAL NOT NULL,
    boot TEXT NOT NULL,
    event TEXT NOT NULL
);
CREATE INDEX decisions_of_job ON decisions (job, number);
CREATE TABLE over (number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL UNIQUE);
CREATE TABLE placements (job TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE agents (name TEXT PRIMARY KEY, life TEXT NOT NULL, kept INTEGER NOT NULL);
CREATE TABLE drained (name TEXT PRIMARY KEY, life TEXT NOT NULL, operation_id TEXT NOT NULL);
CREATE TABLE master (only INTEGER PRIMARY KEY CHECK (only = 0), alive_s REAL NOT NULL);
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

    Attributes:
        checkpoints: folder for those of jobs that name no other place.

    Raises:
        MasterError: the database is from another version of the program, or is none.
    """

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda _text: None) -> None:
        self._broken: set[Path] = set()
        self._log_nbytes: defaultdict[str, float] = defaultdict(lambda: math.inf)  # of jobs since the start
        self._artifacts, self.checkpoints = state_dir / "artifacts", state_dir / "checkpoints"
        path = state_dir / "jobs.sqlite"
        # For their owner only, even where others may look into the directory: jobs hold code and models.
        self._artifacts.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        self._database = Database(path, _SCHEMA, _SCHEMA_VERSION, warn)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def transaction(self, *, durable: bool) -> AbstractContextManager[None]:
        """See `Database.transaction`."""
        return self._database.transaction(durable=durable)

    def on_disk(self) -> bool:
        """Whether all that was kept is on the disk."""
        return self._database.on_disk

    def check_disk(self, what: str) -> None:
        """Refuse to keep something that must not be lost with the process.

        Raises:
            MasterError: the disk takes no more.
        """
        if not self.on_disk():
            what = f"the master cannot keep {what}: its disk takes no more ({self._database.refusal})"
            fix = "make room for its state directory, or have it be writable"
            raise MasterError(what, where=str(self._artifacts.parent), fix=fix)

    def add_job(self, operation_id: str, job: StoredJob) -> str:
        """Keep a new job, durably.

        Returns:
            Its id; that of the job submitted with the same operation id before, if there is one.

        Raises:
            MasterError: that one was another job, or the disk takes no more.
        """
        query = "SELECT job, spec_json, bundle_digest FROM jobs WHERE operation_id = ?"
        for before, *said in self._database.read(query, operation_id):
            if said != [job.spec_json, job.bundle.digest]:
                raise MasterError(what="another job was submitted with this operation id", got=operation_id)
            return str(before)
        with self.transaction(durable=True):
            self._database.write(
                "INSERT INTO jobs (job, operation_id, spec_json, bundle, bundle_digest, status)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (job.job, operation_id, job.spec_json, job.bundle.data, job.bundle.digest, _bytes(job.status)),
            )
            self.check_disk("the job")
        return job.job

    def statuses(self) -> list[pb.JobStatus]:
        """Where every job is, oldest first."""
        rows = self._database.read("SELECT status FROM jobs ORDER BY number")
        return [pb.JobStatus.FromString(status) for (status,) in rows]

    def job(self, job: str) -> StoredJob:
        """The job with this id, which must exist."""
        spec, data, digest, status = self._database.read(
            "SELECT spec_json, bundle, bundle_digest, status FROM jobs WHERE job = ?", job
        )[0]
        return StoredJob(job, spec, Bundle(digest, data), pb.JobStatus.FromString(status))

    def find(self, prefix: str) -> str:
        """The id of the one job whose id is, or begins with, `prefix`.

        Raises:
            MasterError: there is none, or more than one.
        """
        rows = self._database.read(
            "SELECT job FROM jobs WHERE substr(job, 1, ?) = ? ORDER BY number", len(prefix), prefix
        )
        found = [str(job) for (job,) in rows]
        if prefix in found:
            return prefix
        if not found or not prefix:
            raise MasterError(what="there is no such job", got=prefix, fix="list them with `ako ls`")
        if len(found) > 1:
            raise MasterError(what="several jobs' ids begin like this", got=prefix, fix=f"one of: {', '.join(found)}")
        return found[0]

    def remove(self, job: str) -> None:
        """Remove a job that is over, with all that the state directory has of it."""
        for folder in (self._artifacts / job, self.checkpoints / job):
            shutil.rmtree(folder, ignore_errors=True)
        with self.transaction(durable=False):
            # The job last: what is left of it can be found.
            for table in ("events", "statistics", "logs", "over", "jobs"):
                self._database.write(f"DELETE FROM {table} WHERE job = ?", (job,))

    def add_decision(self, job: str, time: tuple[float, float, str], event: str) -> None:
        """Keep what a job's coordinator has been given, as text, and when; see `history.on_this_clock`."""
        row = (job, *time, event)
        self._database.write("INSERT INTO decisions (job, now_s, wall_s, boot, event) VALUES (?, ?, ?, ?, ?)", row)

    def decisions(self, job: str) -> list[tuple[tuple[float, float, str], str]]:
        """All that a job's coordinator has been given, in order: when, and what; see `add_decision`."""
        query = "SELECT now_s, wall_s, boot, event FROM decisions WHERE job = ? ORDER BY number"
        rows = self._database.read(query, job)
        return [((float(now_s), float(wall_s), str(boot)), str(event)) for now_s, wall_s, boot, event in rows]

    def set_over(self, job: str) -> None:
        """Note that a job is over, and forget how it came to that, and what else only matters until then."""
        self._log_nbytes.pop(job, None)
        with self.transaction(durable=False):
            self._database.write("INSERT OR IGNORE INTO over (job) VALUES (?)", (job,))
            self._database.write("DELETE FROM decisions WHERE job = ?", (job,))
            self._database.write("DELETE FROM placements WHERE job = ?", (job,))

    def over(self) -> list[str]:
        """The jobs that are over, in the order in which they came to that, whatever the clock said."""
        return [str(job) for (job,) in self._database.read("SELECT job FROM over ORDER BY number")]

    def set_placement(self, job: str, placement: str) -> None:
        """Keep where a job runs, as text."""
        self._database.write("INSERT OR REPLACE INTO placements VALUES (?, ?)", (job, placement))

    def placement(self, job: str) -> str:
        """Where a job runs; empty if it has not been placed."""
        rows = self._database.read("SELECT body FROM placements WHERE job = ?", job)
        return str(rows[0][0]) if rows else ""

    def kept(self, agent: str, life: str) -> int:
        """Number of the last message of this life of an agent that is kept; 0 if none is."""
        rows = self._database.read("SELECT kept FROM agents WHERE name = ? AND life = ?", agent, life)
        return int(rows[0][0]) if rows else 0

    def set_kept(self, agent: str, life: str, number: int) -> None:
        """Note an agent's newest life, and that its messages of that up to this number are kept."""
        self._database.write("INSERT OR REPLACE INTO agents VALUES (?, ?, ?)", (agent, life, number))

    def life(self, agent: str) -> str | None:
        """The newest life of an agent; None if none of this name has ever attached."""
        rows = self._database.read("SELECT life FROM agents WHERE name = ?", agent)
        return str(rows[0][0]) if rows else None

    def is_drained(self, agent: str, life: str) -> bool:
        """Whether this life of an agent was asked to leave its jobs."""
        return bool(self._database.read("SELECT name FROM drained WHERE name = ? AND life = ?", agent, life))

    def has_drained(self, agent: str, operation_id: str) -> bool:
        """Whether this was the operation that asked an agent to leave its jobs last."""
        query = "SELECT name FROM drained WHERE name = ? AND operation_id = ?"
        return bool(self._database.read(query, agent, operation_id))

    def set_drained(self, agent: str, life: str, operation_id: str) -> None:
        """Note that an operation asked this life of an agent to leave its jobs; its next one was not."""
        self._database.write("INSERT OR REPLACE INTO drained VALUES (?, ?, ?)", (agent, life, operation_id))

    def alive_s(self) -> float | None:
        """When a master was last known to run here, in seconds since 1970-01-01 UTC; None if none has."""
        rows = self._database.read("SELECT alive_s FROM master")
        return float(rows[0][0]) if rows else None

    def set_alive_s(self, wall_s: float) -> None:
        """Note that the master runs."""
        self._database.write("INSERT OR REPLACE INTO master VALUES (0, ?)", (wall_s,))

    def set_status(self, status: pb.JobStatus) -> None:
        """Keep where a job is now."""
        self._database.write("UPDATE jobs SET status = ? WHERE job = ?", (_bytes(status), status.job))

    def add_event(self, job: str, event: pb.JobEvent) -> None:
        """Keep an event, under its index."""
        self._database.write("INSERT INTO events VALUES (?, ?, ?)", (job, event.index, _bytes(event)))

    def events(self, job: str, since: int, limit: int = 1000) -> list[pb.JobEvent]:
        """Up to `limit` events with index `since` or more, in order."""
        rows = self._database.read(
            "SELECT body FROM events WHERE job = ? AND number >= ? ORDER BY number LIMIT ?", job, since, limit
        )
        return [pb.JobEvent.FromString(body) for (body,) in rows]

    def event_count(self, job: str) -> int:
        """Number of a job's events, which is the index of the next."""
        return int(self._database.read("SELECT COUNT(*) FROM events WHERE job = ?", job)[0][0])

    def set_statistics(self, job: str, statistics: pb.NodeStatistics) -> None:
        """Keep a node's newest statistics."""
        row = (job, statistics.node, _bytes(statistics))
        self._database.write("INSERT OR REPLACE INTO statistics VALUES (?, ?, ?)", row)

    def drop_statistics(self, job: str) -> None:
        """Forget them: other nodes begin to count."""
        self._database.write("DELETE FROM statistics WHERE job = ?", (job,))

    def statistics(self, job: str) -> list[pb.NodeStatistics]:
        """Newest statistics of every node that has sent some."""
        rows = self._database.read("SELECT body FROM statistics WHERE job = ? ORDER BY node", job)
        return [pb.NodeStatistics.FromString(body) for (body,) in rows]

    def add_log_lines(self, job: str, lines: Iterable[pb.LogLine]) -> None:
        """Keep log lines, and no more than `MAX_LOG_LINES` and `MAX_LOG_NBYTES` of a job."""
        with self.transaction(durable=False):
            query = "SELECT COALESCE(MAX(number) + 1, 0) FROM logs WHERE job = ?"
            first = int(self._database.read(query, job)[0][0])
            rows = [(job, number, _bytes(line)) for number, line in enumerate(lines, first)]
            self._database.write("INSERT INTO logs VALUES (?, ?, ?)", *rows)
            oldest = first + len(rows) - MAX_LOG_LINES
            self._database.write("DELETE FROM logs WHERE job = ? AND number < ?", (job, oldest))
            self._log_nbytes[job] += sum(len(body) for _, _, body in rows)
            if self._log_nbytes[job] > MAX_LOG_NBYTES:
                self._drop_log_lines(job)

    def _drop_log_lines(self, job: str) -> None:
        """Count what a job's log lines take, and drop the oldest if that is too much."""
        sizes = "SELECT number, SUM(LENGTH(body)) OVER (ORDER BY number DESC) AS nbytes FROM logs WHERE job = ?"
        (nbytes,) = self._database.read("SELECT COALESCE(SUM(LENGTH(body)), 0) FROM logs WHERE job = ?", job)[0]
        if nbytes > MAX_LOG_NBYTES:
            query = f"SELECT MIN(number), MAX(nbytes) FROM ({sizes}) WHERE nbytes <= ?"
            oldest, nbytes = self._database.read(query, job, MAX_LOG_NBYTES - MAX_LOG_NBYTES // 10)[0]
            self._database.write("DELETE FROM logs WHERE job = ? AND number < ?", (job, oldest))
        self._log_nbytes[job] = nbytes

    def log_lines(self, job: str, since: int, limit: int = 1000) -> list[tuple[int, pb.LogLine]]:
        """Up to `limit` log lines with number `since` or more, in order, with their numbers."""
        rows = self._database.read(
            "SELECT number, body FROM logs WHERE job = ? AND number >= ? ORDER BY number LIMIT ?", job, since, limit
        )
        return [(number, pb.LogLine.FromString(body)) for number, body in rows]

    def last_log_lines(self, job: str, node: int, count: int) -> list[str]:
        """The newest `count` log lines of a node, oldest first, of those among the job's newest few thousand."""
        rows = self._database.read(
            "SELECT body FROM logs WHERE job = ? ORDER BY number DESC LIMIT ?", job, _SEARCHED_LINES
        )
        lines = (pb.LogLine.FromString(body) for (body,) in rows)
        return [line.text for line in islice((line for line in lines if line.node == node), count)][::-1]

    def write_artifact(self, job: str, writer: int, chunk: pb.ArtifactChunk) -> None:
        """Take the next chunk of an artifact; it is there under its name as a whole once the last has come.

        A chunk that comes again, because a master was killed before it could say that it has it, changes nothing.

        Args:
            job: id of the job.
            writer: number of the node that sends it.
            chunk: its next bytes.

        Raises:
            WireError: its name leads out of the job's folder, or it is too large.
            MasterError: the disk does not take it; nothing is left of it, and its other chunks are dropped.
        """
        check_artifact_name(chunk.name)
        partial = self._artifacts / f"{job}.{writer}.{zlib.crc32(chunk.name.encode()):08x}.part"
        if partial in self._broken:
            self._broken -= {partial} if chunk.last else set()
            return
        try:
            if self._append(partial, chunk) and chunk.last:
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

    def _append(self, partial: Path, chunk: pb.ArtifactChunk) -> bool:
        """Write a chunk in its place; false if the artifact is whole already, and has been given its name."""
        if chunk.start and not partial.exists():
            return False
        with partial.open("r+b" if chunk.start else "wb") as file:
            if chunk.start + len(chunk.data) > MAX_ARTIFACT_NBYTES:
                raise WireError(what=f"an artifact may have {MAX_ARTIFACT_NBYTES} bytes", got=chunk.name)
            file.seek(chunk.start)
            file.write(chunk.data)
            if chunk.last or (chunk.start + len(chunk.data)) // _SYNCED_NBYTES > chunk.start // _SYNCED_NBYTES:
                file.flush()
                os.fsync(file.fileno())
        return True


def _bytes(message: pb.JobStatus | pb.JobEvent | pb.NodeStatistics | pb.LogLine) -> bytes:
    return message.SerializeToString(deterministic=True)
