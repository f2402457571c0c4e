"""The only place with state on disk: one SQLite file per workspace.

Home folders of login nodes are NFS or Lustre: no write-ahead log (it needs shared memory), one writer with a lock file
that names its holder, readers that never wait for a dead lock.
"""

from __future__ import annotations

import errno
import json
import shlex
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from memx_engine.errors import InputError, MemxError
from memx_engine.lockfile import Holder, LockFile, read_holder
from memx_engine.measurement import Measurement
from memx_engine.profile.records import measurement_from_document, measurement_to_document
from memx_engine.profile.store import Accept, ImportedRow

FILE_NAME = "memx.sqlite"
LOCK_NAME = "memx.lock"


class StorageError(MemxError):
    """The workspace cannot be read or written (disk full, read-only folder, damaged or newer file)."""

    exit_code = 2
    title = "The workspace cannot be used"


def _version_1(db: sqlite3.Connection) -> None:
    db.execute(
        "CREATE TABLE measurement (id INTEGER PRIMARY KEY, point_key TEXT NOT NULL, gpu_type TEXT NOT NULL,"
        " truth_name TEXT NOT NULL, outcome TEXT NOT NULL, document TEXT NOT NULL)"
    )
    db.execute("CREATE INDEX measurement_by_point ON measurement (truth_name, gpu_type, point_key)")
    db.execute("CREATE TABLE imported (id INTEGER PRIMARY KEY, source TEXT NOT NULL, digest TEXT NOT NULL UNIQUE,"
               " kind TEXT NOT NULL, document TEXT NOT NULL)")  # fmt: skip
    db.execute("CREATE TABLE note (name TEXT PRIMARY KEY, document TEXT NOT NULL)")


def _version_2(db: sqlite3.Connection) -> None:
    """Measurements say which described device they were made on, which a reader of version 1 does not understand.

    For those that are there nobody knows it any more: their documents stay as they are.
    """


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_version_1, _version_2)
"""Step n brings a file of version n to version n + 1; steps are never changed once released."""

READABLE_FROM = 1
"""The oldest version that can be read as it is: who may not write need not bring a file up to date."""


class Workspace:
    """One folder with measurements, imported tables and what was learned from them.

    Args:
        folder: Created if absent (unless ``read_only``).
        read_only: Never writes, needs no lock, works on a read-only file system and beside a living writer.

    Raises:
        LockedError: Another process writes to it. StorageError: It cannot be created, read or written.
    """

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.folder, self.read_only = folder, read_only
        self.path = folder / FILE_NAME
        self.notices: tuple[str, ...] = ()
        self._lock = LockFile(folder / LOCK_NAME)
        if read_only:
            self._db = self._open_read_only()
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            takeover = self._lock.acquire()
        except OSError as error:
            raise self._storage_error("cannot be created or locked", error) from error
        self.notices = (takeover,) if takeover else ()
        try:
            with self._guard("opened"):
                self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
                self._db.execute("PRAGMA journal_mode=DELETE")
                self._db.execute("PRAGMA synchronous=FULL")
                # 32 MB: the index over a million imported rows is written at random places.
                self._db.execute("PRAGMA cache_size=-32000")
                self._migrate()
        except BaseException:
            self._lock.release()
            raise

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether ``folder`` holds a workspace."""
        return (folder / FILE_NAME).exists()

    def _open_read_only(self) -> sqlite3.Connection:
        if not self.path.exists():
            raise StorageError("there is no workspace here", where=str(self.folder), hint="profile or import first")
        with self._guard("read"):
            self._db = db = self._connect_to_read()
        try:
            version = self._check_version()
        except sqlite3.OperationalError as error:
            if not self.path.with_name(FILE_NAME + "-journal").exists():
                raise self._storage_error("cannot be read", error) from error
            db.close()
            self._undo_unfinished()
            with self._guard("read"):
                self._db = db = self._connect_to_read()
                version = self._check_version()
        except sqlite3.Error as error:
            raise self._storage_error("cannot be read", error) from error
        if version < READABLE_FROM:
            db.close()
            raise StorageError(
                "the workspace is just being made, or was left empty",
                where=str(self.folder),
                hint="try again in a moment; where nobody writes to it, profile or import first",
            )
        return db

    def _connect_to_read(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)

    def _undo_unfinished(self) -> None:
        """Let SQLite undo what a session that was killed in the middle of a write left; readers alone may not."""
        try:
            self._lock.acquire()
            try:
                db = sqlite3.connect(self.path)
                db.execute("SELECT COUNT(*) FROM sqlite_master")
                db.close()
            finally:
                self._lock.release()
        except (OSError, sqlite3.Error) as error:
            raise StorageError(
                f"a session was killed in the middle of a write, and its rest cannot be undone here: {error}",
                where=str(self.folder),
                hint="open it once where it can be written, with plan or profile --resume; nothing stored is lost",
            ) from error

    def _storage_error(self, what: str, error: Exception) -> StorageError:
        text = getattr(error, "strerror", None) or str(error)
        full = "full" in text or getattr(error, "errno", None) == errno.ENOSPC
        hint = "free some space and resume; nothing stored is lost" if full else ""
        if "readonly" in text.replace("-", "").lower() or (isinstance(error, OSError) and error.errno != errno.ENOSPC):
            hint = "use another folder with --workspace"
        damaged = any(words in text for words in ("not a database", "malformed", "no such", "is damaged"))
        if damaged or self.path.is_dir():
            hint = f"move {self.path} aside; its measurements can be made again or imported"
        return StorageError(f"the workspace {what}: {text}", where=str(self.folder), hint=hint)

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._storage_error(f"cannot be {what}", error) from error

    def _check_version(self) -> int:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > len(MIGRATIONS):
            raise StorageError(
                f"the workspace was written by a newer release (schema {version}, this one reads {len(MIGRATIONS)})",
                where=str(self.path),
                hint="update memx-tui, or use another folder with --workspace",
            )
        if version < 0:
            raise self._storage_error("cannot be read", ValueError(f"the file is damaged (schema {version})"))
        return version

    def _migrate(self) -> None:
        version = self._check_version()
        for step in range(version, len(MIGRATIONS)):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                MIGRATIONS[step](self._db)
                self._db.execute(f"PRAGMA user_version = {step + 1}")
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

    def add(self, measurement: Measurement) -> None:
        """Store one measurement; on disk when this returns."""
        document = json.dumps(measurement_to_document(measurement), allow_nan=False)
        point = measurement.point
        with self._guard("written"):
            self._db.execute(
                "INSERT INTO measurement (point_key, gpu_type, truth_name, outcome, document) VALUES (?, ?, ?, ?, ?)",
                (point.key, point.gpu_type, measurement.truth_name, measurement.outcome.value, document),
            )

    def measurements(self) -> Iterator[Measurement]:
        """All measurements in the order they came."""
        with self._guard("read"):
            rows = self._db.execute("SELECT id, document FROM measurement ORDER BY id").fetchall()
        for number, document in rows:
            yield self._read(number, document)

    def _document(self, table: str, number: int, text: Any) -> dict[str, Any]:
        """A stored document; StorageError names the row that is damaged, and how to go on without it."""
        try:
            document = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._damaged(table, number, str(error)) from error
        if not isinstance(document, dict):
            raise self._damaged(table, number, "it holds no document")
        return document

    def _read(self, number: int, text: Any) -> Measurement:
        try:
            return measurement_from_document(self._document("measurement", number, text))
        except InputError as error:
            raise self._damaged("measurement", number, error.message) from error

    def _damaged(self, table: str, number: int, why: str) -> StorageError:
        return StorageError(
            f"row {number} of the table {table} is damaged: {why[:200]}",
            where=str(self.path),
            hint=f"the other rows stay; go on without this one after: sqlite3 {shlex.quote(str(self.path))} "
            f"'DELETE FROM {table} WHERE id = {number}'",
        )

    def finished_points(self) -> dict[tuple[str, str], str]:
        """(truth name, point key) → outcome of the latest measurement; reads no documents, so resuming stays quick."""
        with self._guard("read"):
            rows = self._db.execute("SELECT truth_name, point_key, outcome FROM measurement ORDER BY id").fetchall()
        return {(truth, key): outcome for truth, key, outcome in rows}

    def latest(self, truth_name: str, keys: Collection[str], accept: Accept | None = None) -> dict[str, Measurement]:
        """The latest measurement of every point key among ``keys`` that this ground has and ``accept`` takes."""
        wanted = sorted(keys)
        rows: list[tuple[int, str]] = []
        with self._guard("read"):
            # SQLite takes at most 999 parameters in releases before 3.32.
            for first in range(0, len(wanted), 500):
                some = wanted[first : first + 500]
                marks = ", ".join("?" * len(some))
                rows += self._db.execute(
                    f"SELECT id, document FROM measurement WHERE truth_name = ? AND point_key IN ({marks}) ORDER BY id",
                    (truth_name, *some),
                )
        found = (self._read(number, document) for number, document in rows)
        return {m.point.key: m for m in found if accept is None or accept(m)}

    def counts(self) -> dict[tuple[str, str, str], int]:
        """How many measurements there are by (truth name, GPU type, outcome)."""
        with self._guard("read"):
            rows = self._db.execute(
                "SELECT truth_name, gpu_type, outcome, COUNT(*) FROM measurement GROUP BY 1, 2, 3"
            ).fetchall()
        return {(truth, gpu_type, outcome): count for truth, gpu_type, outcome, count in rows}

    def add_imported(self, rows: list[ImportedRow]) -> int:
        """Store imported rows in one transaction; returns how many were new (equal rows are kept once)."""
        with self._guard("written"):
            before = self._db.total_changes
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(
                    "INSERT OR IGNORE INTO imported (source, digest, kind, document) VALUES (?, ?, ?, ?)",
                    ((r.source, r.digest, r.kind, json.dumps(r.document)) for r in rows),
                )
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            return self._db.total_changes - before

    def imported(self, kind: str) -> Iterator[ImportedRow]:
        """Imported rows of one kind in the order they came."""
        last = 0
        while True:
            # In pages: a table may hold a million rows, and another session may be adding to it.
            with self._guard("read"):
                rows = self._db.execute(
                    "SELECT source, digest, document, id FROM imported WHERE kind = ? AND id > ?"
                    " ORDER BY id LIMIT 2000",
                    (kind, last),
                ).fetchall()
            if not rows:
                return
            last = rows[-1][3]
            for source, digest, document, number in rows:
                yield ImportedRow(source, kind, self._document("imported", number, document), digest)

    def set_note(self, name: str, document: dict[str, Any]) -> None:
        """Keep a small named document, such as the last profiling design."""
        with self._guard("written"):
            self._db.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (name, json.dumps(document)))

    def note(self, name: str) -> dict[str, Any] | None:
        with self._guard("read"):
            row = self._db.execute("SELECT document FROM note WHERE name = ?", (name,)).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    @property
    def writer(self) -> Holder | None:
        """Who writes to this workspace now, this process included."""
        return read_holder(self.folder / LOCK_NAME)

    def close(self) -> None:
        self._db.close()
        self._lock.release()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
