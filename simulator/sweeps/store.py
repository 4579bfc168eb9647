"""The one file of a sweep, ``sweep.sqlite``: every row computed so far, with what it depends on.

Rows come in transactions of about a second, so whatever stops the process leaves a file of whole
rows; SQLite rolls back what was half written. A row is inserted once and never changed. Tables:

- ``results``: a row a point, by key; the columns are those of ``points.row``, added as they come;
- ``sweeps`` and ``members``: each spec that was run, with its text, the version of the code and
  the hashes of its profiles, and the keys of its points in order;
- ``profiles``: each GPU profile in full, by hash;
- ``points``: a view of the rows of the sweep that ran last.
"""

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import InputError

FILE = "sweep.sqlite"
LOCK = "sweep.lock"
FORMAT = 1
APPLICATION_ID = 0x68626D72  # "hbmr": tells our file from other SQLite files
COMMIT_SECONDS = 1.0
READ_TIMEOUT_SECONDS = 30.0

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE results (key TEXT PRIMARY KEY, code TEXT NOT NULL, profile TEXT NOT NULL);
CREATE TABLE profiles (profile TEXT PRIMARY KEY, gpu TEXT NOT NULL, document TEXT NOT NULL);
CREATE TABLE sweeps (sweep TEXT PRIMARY KEY, number INTEGER NOT NULL, title TEXT NOT NULL,
                     spec TEXT NOT NULL, code TEXT NOT NULL, profiles TEXT NOT NULL);
CREATE TABLE members (sweep TEXT NOT NULL, place INTEGER NOT NULL, key TEXT NOT NULL,
                      PRIMARY KEY (sweep, place)) WITHOUT ROWID;
CREATE VIEW points AS
  SELECT results.* FROM members JOIN results USING (key)
  WHERE sweep = (SELECT sweep FROM sweeps ORDER BY number DESC LIMIT 1) ORDER BY place;
"""


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors as one line about the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise InputError(f"{path}: {error}; rows that it holds are kept") from error
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} is not the file of a sweep, or is damaged: {error}") from error


def _check_is_ours(connection: sqlite3.Connection, path: Path) -> None:
    ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    if not ours:
        raise InputError(f"{path} is not the file of a sweep")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT:
        raise InputError(f"{path} has format {version}, this hbmeter reads {FORMAT}: give another "
                         "folder")


class Store:
    """The file open for one writer; others may read it at the same time.

    Raises InputError when another sweep is writing to the folder, when the file is not ours, and
    when it cannot be written (no room, no permission).
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._lock = _locked(folder)
        with _told(self.path):
            self._file = sqlite3.connect(self.path, timeout=READ_TIMEOUT_SECONDS,
                                         isolation_level=None)
            self._file.execute("BEGIN IMMEDIATE")
            if not self._file.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                for statement in _SCHEMA.split(";"):
                    self._file.execute(statement)
            self._file.execute("COMMIT")
            _check_is_ours(self._file, self.path)
            self._columns = [c[1] for c in self._file.execute("PRAGMA table_info(results)")]
        self._waiting: list[tuple[tuple[str, ...], tuple[Any, ...]]] = []
        self._committed = time.monotonic()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.commit()
        finally:
            self._file.close()
            self._lock.close()

    def keys(self) -> set[str]:
        """Keys of all rows, whichever spec they were computed for."""
        with _told(self.path):
            return {key for key, in self._file.execute("SELECT key FROM results")}

    def refused(self) -> int:
        """Points of the present sweep that cannot be run."""
        with _told(self.path):
            return int(self._file.execute("SELECT count(why_not) FROM points").fetchone()[0])

    def begin(self, sweep: str, spec: Any, code: str, profiles: dict[str, Any],
              keys: Iterable[str]) -> None:
        """Make a sweep the one that ``points`` shows, and record what it is.

        ``profiles`` maps hashes to Profiles; ``keys`` are the sweep's points in order.
        """
        with _told(self.path), self._transaction():
            last = self._file.execute("SELECT sweep, number FROM sweeps ORDER BY number DESC "
                                      "LIMIT 1").fetchone()
            if last and last[0] == sweep:
                return
            self._file.execute(
                "INSERT INTO sweeps VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (sweep) DO UPDATE SET "
                "number = excluded.number",
                (sweep, last[1] + 1 if last else 1, spec.title, spec.text, code,
                 json.dumps(sorted(profiles))))
            self._file.executemany("INSERT OR IGNORE INTO profiles VALUES (?, ?, ?)", [
                (name, gpu.name, gpu.model_dump_json()) for name, gpu in profiles.items()])
            self._file.executemany("INSERT OR IGNORE INTO members VALUES (?, ?, ?)",
                                   ((sweep, place, key) for place, key in enumerate(keys)))

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Keep rows; they are on disk at the latest a second later, or after ``commit``."""
        self._waiting += [(tuple(row), tuple(row.values())) for row in rows]
        if time.monotonic() - self._committed > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Put what waits on disk, all of it or nothing."""
        by_columns: dict[tuple[str, ...], Any] = {}
        for columns, values in self._waiting:
            by_columns.setdefault(columns, []).append(values)
        self._waiting, self._committed = [], time.monotonic()
        if not by_columns:
            return
        with _told(self.path), self._transaction():
            for columns, rows in by_columns.items():
                self._add_columns(columns)
                names, marks = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
                self._file.executemany(f"INSERT INTO results ({names}) VALUES ({marks})", rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise

    def _add_columns(self, columns: Iterable[str]) -> None:
        for name in columns:
            if name not in self._columns:
                self._file.execute(f"ALTER TABLE results ADD COLUMN {quoted(name)}")
                self._columns.append(name)


def _locked(folder: Path) -> sqlite3.Connection:
    """An exclusive lock that the system releases with the process, however that ends."""
    path = folder / LOCK
    lock = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        if "locked" in str(error):
            raise InputError(f"another sweep is writing to {folder}: wait for it, or give "
                             "another folder") from None
        raise InputError(f"{path}: {error}") from None
    return lock


def read_only(folder: Path) -> sqlite3.Connection:
    """The file of a folder for reading. Raises InputError when it is not there or not ours."""
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"{folder}: no {FILE} there; hbmeter sweep SPEC.yaml --out {folder} "
                         "makes one")
    with _told(path):  # "rw": after a crash, SQLite must roll back what was half written
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True,
                                     timeout=READ_TIMEOUT_SECONDS)
        connection.execute("PRAGMA query_only = ON")
        _check_is_ours(connection, path)
    return connection
