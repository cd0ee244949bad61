"""One SQLite database: on disk for as long as the disk takes what is written, else in memory until it does again.

Invariant: what is read is what was written, wherever it is; only a process that ends while its disk is full loses any.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dataflow.errors import MasterError

RETRY_EVERY = 8
"""After so many transactions in memory it is tried to have the database on disk again."""

_DISK_ERRORS = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY})
_SPARE_NBYTES = 1 << 20

_Row = tuple[Any, ...]


class Database:
    """A database and its one connection; one thread uses it.

    Args:
        path: its file, which exists.
        schema: SQL that makes its tables.
        version: of the schema.
        warn: told when the disk takes nothing more, and when it does again.

    Attributes:
        on_disk: whether what is written reaches the disk.
        refusal: why the disk took nothing more, when that was so last.

    Raises:
        MasterError: it is from another version of the program, or is none.
    """

    def __init__(self, path: Path, schema: str, version: int, warn: Callable[[str], None]) -> None:
        self._path, self._warn, self.on_disk, self.refusal = path, warn, True, ""
        self._file = self._connection = sqlite3.connect(path, isolation_level=None)
        self._done: list[tuple[str, tuple[_Row, ...]]] | None = None
        self._in_memory = 0
        try:
            # Of a new one; so the disk, and memory while that is full, has room again for what is removed.
            self._file.execute("PRAGMA auto_vacuum = FULL")
            self._file.execute("PRAGMA journal_mode = WAL")
            found = self._file.execute("PRAGMA user_version").fetchone()[0]
            if found == 0:
                self._file.executescript(f"BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;")
        except sqlite3.DatabaseError as error:
            self._file.close()
            what = f"cannot use the master's database: {error}"
            of_disk = error.sqlite_errorcode & 0xFF in _DISK_ERRORS
            fix = (
                "make some room if its disk is full"
                if of_disk
                else "put a copy of it there, or use another --state-dir"
            )
            raise MasterError(what, where=str(path), fix=fix) from error
        if found not in (0, version):
            self._file.close()
            what = f"the master's database has version {found}, this program writes version {version}"
            raise MasterError(what, where=str(path), fix="use another --state-dir")

    def close(self) -> None:
        """Close the database."""
        self._file.close()
        self._connection.close()

    def read(self, sql: str, *parameters: object) -> list[_Row]:
        """The rows that a query gives."""
        return self._connection.execute(sql, parameters).fetchall()

    def write(self, sql: str, *rows: _Row) -> None:
        """Carry out a statement for each of these rows of parameters, all or none."""
        with self.transaction(durable=False):
            assert self._done is not None
            self._done.append((sql, rows))
            try:
                self._connection.executemany(sql, rows)
            except sqlite3.OperationalError as error:
                self._go_to_memory(error)

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """Keep all that the ``with`` block writes, or nothing if it raises; one inside another is part of it.

        Args:
            durable: once it is kept, it outlives a power failure too, as does all that was kept before.
        """
        if self._done is not None:
            yield
            return
        if not self.on_disk:
            self._try_disk()
        # NORMAL leaves it to the kernel when the log reaches the disk; the level cannot change inside a transaction.
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._connection.execute("BEGIN IMMEDIATE")
        self._done = []
        try:
            yield
            self._commit()
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._done = None

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self._go_to_memory(error)
            self._connection.execute("COMMIT")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _go_to_memory(self, error: sqlite3.OperationalError) -> None:
        """Go on in memory with this transaction as far as it has come."""
        if not self.on_disk or error.sqlite_errorcode & 0xFF not in _DISK_ERRORS:
            raise error
        assert self._done is not None
        self._roll_back()
        self.refusal = str(error)
        self._warn(f"the master's disk takes no more ({error}): what jobs tell is kept in memory until it does")
        self._connection, self.on_disk, self._in_memory = sqlite3.connect(":memory:", isolation_level=None), False, 0
        self._file.backup(self._connection)
        self._connection.execute("BEGIN")
        for sql, rows in self._done:
            self._connection.executemany(sql, rows)

    def _try_disk(self) -> None:
        """Write everything to disk, if there may be room, and go on there."""
        self._in_memory += 1
        if self._in_memory % RETRY_EVERY:
            return
        (pages,), (nbytes,) = self.read("PRAGMA page_count") + self.read("PRAGMA page_size")
        if shutil.disk_usage(self._path.parent).free < pages * nbytes + _SPARE_NBYTES:
            return
        self._file.execute("PRAGMA synchronous = FULL")  # others are told of it from now on
        try:
            self._connection.backup(self._file)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _DISK_ERRORS:
                raise
            return
        self._connection.close()
        self._connection, self.on_disk = self._file, True
        self._warn("there is room on the master's disk again")
