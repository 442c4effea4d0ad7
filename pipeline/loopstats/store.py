"""The lake on disk: bucketed Parquet, one SQLite ledger, immutable files listed by a manifest.

A room of its own because here, and only here, things are written. The protocol: one writer at a time (`_lock`); new
Parquet files get names of their own and are synced at the commit; ONE ledger transaction makes files, offsets and
rejects true together; then `manifest.json` is replaced. A crash before the transaction leaves files that nobody lists
(swept by the next writer), a crash after it is rolled forward (the manifest is written again from the ledger). Readers
read the manifest once and never take a lock; files of older generations stay for `KEEP_GENERATIONS` commits.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import polars as pl

from loopstats import __version__
from loopstats.errors import LakeError, LockedError, StorageError, UsageError
from loopstats.found import DATA as DATA
from loopstats.found import LEDGER as LEDGER
from loopstats.found import MANIFEST as MANIFEST
from loopstats.found import SCHEMA_VERSION as SCHEMA_VERSION
from loopstats.found import make_folder
from loopstats.tables import BUCKETS, LIFT, RECORDS, TABLES, Table

KEEP_GENERATIONS = 2
SYNCS_AT_ONCE = 8
OWN_FILES = "*/bucket=*/*.parquet"  # below DATA: what a writer makes, and sweeps

_DDL = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE sources(
  source_id INTEGER PRIMARY KEY, path TEXT NOT NULL, source_file TEXT NOT NULL, format TEXT NOT NULL,
  is_experimental INTEGER NOT NULL, is_gone INTEGER NOT NULL, is_superseded INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL, offset INTEGER NOT NULL,
  tail_sha256 TEXT NOT NULL, chain TEXT NOT NULL, count_lines INTEGER NOT NULL, is_line_open INTEGER NOT NULL,
  order_us INTEGER, order_sha256 TEXT NOT NULL, state TEXT NOT NULL, count_carrying INTEGER NOT NULL,
  count_waiting INTEGER NOT NULL, nothing_types TEXT NOT NULL, folded TEXT NOT NULL, repair_kinds TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX sources_path ON sources(path) WHERE is_superseded = 0;
CREATE TABLE rejects(
  source_id INTEGER NOT NULL, source_line INTEGER NOT NULL, byte_offset INTEGER NOT NULL, reason TEXT NOT NULL,
  bytes_sha256 TEXT, PRIMARY KEY(source_id, source_line, byte_offset, reason)
) STRICT;
CREATE TABLE files(
  path TEXT PRIMARY KEY, name TEXT NOT NULL, bucket INTEGER NOT NULL, count_rows INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, added INTEGER NOT NULL, removed INTEGER
) STRICT;
"""
_REJECTS = "SELECT * FROM rejects ORDER BY 1,2,3,4"

# The n-th entry brings a ledger of schema n to n + 1. Data files need none: a new column is null in old ones.
_MIGRATIONS: tuple[tuple[str, ...], ...] = ()


def bucket_of(session_id: str) -> int:
    """Bucket of a session, so of all its runs: what a run needs (enrolment, first folder, parent) lies together."""
    name = session_id.partition("/")[0]  # a session "s/a" must lie beside the subagent "a" of "s"
    return int(hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8], 16) % BUCKETS


@dataclass(frozen=True)
class DataFile:
    """One Parquet file of a generation; `path` is relative to the lake."""

    path: str
    name: str
    bucket: int
    count_rows: int
    size_bytes: int
    sha256: str


def damage(root: Path, file: DataFile, data: bytes | None = None) -> str | None:
    """What is wrong with the bytes of a file of the lake; None where they are those that were committed."""
    if data is None:
        try:
            data = (root / file.path).read_bytes()
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            return f"unreadable ({error.strerror})"
    if len(data) != file.size_bytes:
        return f"{len(data)} bytes, {file.size_bytes} were committed"
    if hashlib.sha256(data).hexdigest() != file.sha256:
        return "its bytes are not those that were committed (SHA-256)"
    return None


@dataclass(frozen=True)
class Snapshot:
    """One generation as a reader sees it: fixed files, whatever a writer does meanwhile."""

    root: Path
    generation: int
    files: tuple[DataFile, ...]

    def paths(self, name: str, bucket: int | None = None) -> list[Path]:
        """Files of table `name`, in a fixed order."""
        return [
            self.root / f.path
            for f in sorted(self.files, key=lambda f: (f.bucket, f.path))
            if f.name == name and (bucket is None or f.bucket == bucket)
        ]

    def count_rows(self, name: str) -> int:
        """Rows of table `name`, without opening a file."""
        return sum(f.count_rows for f in self.files if f.name == name)

    @property
    def max_bucket_bytes(self) -> int:
        """Size of the records of the largest bucket: what a worker of a cluster has to hold (docs/scale.md)."""
        sizes = dict.fromkeys((f.bucket for f in self.files), 0)
        for file in self.files:
            sizes[file.bucket] += file.size_bytes if file.name == RECORDS.name else 0
        return max(sizes.values(), default=0)

    def buckets(self, name: str) -> list[int]:
        """Buckets in which table `name` has rows."""
        return sorted({f.bucket for f in self.files if f.name == name})

    def digest(self) -> str:
        """Hash of every table that is made of the records: equal for equal content, by one version of the libraries."""
        tables = sorted((f.name, f.bucket, f.sha256) for f in self.files if f.name in TABLES and f.name != LIFT.name)
        return hashlib.sha256(json.dumps(tables).encode()).hexdigest()

    def scan(self, name: str, bucket: int | None = None) -> pl.LazyFrame:
        """Table `name`, columns and types of this version, rows in file order."""
        table = RECORDS if name == RECORDS.name else TABLES[name]
        return scan_files(table, self.paths(name, bucket))

    def read(self, name: str, bucket: int | None = None) -> pl.DataFrame:
        """Table `name` in its canonical order."""
        frame = self.scan(name, bucket).collect()
        key = TABLES[name].key if name in TABLES else ()
        return frame.sort(key, maintain_order=True) if key and bucket is None else frame


class Lake:
    """A lake folder. `Lake.open` refuses what is no lake, is damaged, or was written by a newer version."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, root: Path) -> Lake:
        """The lake at `root` for reading; UsageError where there is none."""
        lake = cls(root)
        if not (root / LEDGER).exists() and not (root / MANIFEST).exists():
            raise UsageError(f"no lake at {root}: run `loopstats ingest PATH` first, or name one with --lake")
        return lake

    def snapshot(self) -> Snapshot:
        """The newest published generation."""
        path = self.root / MANIFEST
        try:
            manifest = json.loads(path.read_bytes())
            version = manifest["schema_version"]
            files = tuple(DataFile(**entry) for entry in manifest["files"])
            generation = int(manifest["generation"])
        except FileNotFoundError:
            if (self.root / LEDGER).exists():
                return Snapshot(self.root, 0, ())
            raise UsageError(f"no lake at {self.root}: run `loopstats ingest PATH` first") from None
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(
                f"{path}: damaged manifest; run `loopstats ingest` once, it is written anew from the ledger"
            ) from error
        check_schema(self.root, version)
        return Snapshot(self.root, generation, files)

    def peek(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Rows of the ledger's `sources`, and its `meta`, read without a lock or a trace; none without a lake."""
        if not (self.root / LEDGER).exists():
            return [], {}
        with self.reading() as ledger:
            return source_rows(ledger), dict(ledger.execute("SELECT key, value FROM meta"))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The ledger at one instant, to be read only; LakeError where it is damaged."""
        path = self.root / LEDGER
        # A writer that was killed in its commit leaves a journal, and only one who may write can take it back.
        is_torn = Path(f"{path}-journal").exists()
        try:
            uri = f"{path.resolve().as_uri()}?mode={'rw' if is_torn else 'ro'}"
            with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as ledger:
                ledger.execute("BEGIN")
                yield ledger
        except sqlite3.OperationalError as error:
            raise _operational(path, error) from error
        except sqlite3.DatabaseError as error:
            raise LakeError(f"{path}: damaged ledger ({error}); restore it, or move {self.root} away") from error

    def ledger_rows(self) -> tuple[list[dict[str, Any]], dict[str, str], list[tuple[int, int, int, str, str | None]]]:
        """Rows of the ledger's `sources`, its `meta`, and its rejects."""
        sources, meta = self.peek()
        if not sources:
            return sources, meta, []
        with contextlib.closing(
            sqlite3.connect(f"{(self.root / LEDGER).resolve().as_uri()}?mode=ro", uri=True)
        ) as ledger:
            return sources, meta, ledger.execute(_REJECTS).fetchall()

    @contextlib.contextmanager
    def write(self) -> Iterator[Writer]:
        """Hold the lake for writing, mending first what a crash left; LockedError where another writer holds it."""
        os.umask(0o077)
        with _storage_errors(self.root):
            make_folder(self.root)
            lock = filelock.FileLock(self.root / "_lock", mode=0o600)
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                raise LockedError(f"{self.root}: another loopstats is writing; try again later") from None
            try:
                with contextlib.closing(self._connect()) as ledger:
                    writer = Writer(self.root, ledger)
                    writer.recover()
                    yield writer
            finally:
                lock.release()

    def _connect(self) -> sqlite3.Connection:
        path = self.root / LEDGER
        is_new = not path.exists() or path.stat().st_size == 0
        if is_new and ((self.root / MANIFEST).exists() or (self.root / DATA).exists()):
            raise LakeError(
                f"{path}: the ledger is missing but data is there; restore it, or move the lake away and ingest again"
            )
        try:
            ledger = sqlite3.connect(path, isolation_level=None)
            ledger.execute("PRAGMA synchronous=EXTRA")
            is_empty = ledger.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
            if is_empty and (is_new or not (self.root / DATA).exists()):
                ledger.execute("BEGIN IMMEDIATE")
                for statement in _DDL.split(";\n"):
                    if statement.strip():
                        ledger.execute(statement)
                ledger.executemany(
                    "INSERT INTO meta VALUES(?,?)", [("schema_version", str(SCHEMA_VERSION)), ("generation", "0")]
                )
                ledger.execute("COMMIT")
            row = ledger.execute("SELECT value FROM meta WHERE key='schema_version'").fetchone()
            check = ledger.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.OperationalError as error:
            raise _operational(path, error) from error
        except sqlite3.DatabaseError as error:
            raise LakeError(
                f"{path}: damaged ledger ({error}); restore it, or move {self.root} away and ingest again"
            ) from error
        if row is None or check != ("ok",):
            raise LakeError(f"{path}: damaged ledger; restore it, or move {self.root} away and ingest again")
        version = int(row[0])
        check_schema(self.root, version)
        if version < SCHEMA_VERSION:
            _migrate(ledger, version)
        return ledger


class Writer:
    """The one writer of a lake. Nothing that it stages is seen before `commit`."""

    def __init__(self, root: Path, ledger: sqlite3.Connection) -> None:
        self.root = root
        self.ledger = ledger
        self.generation = int(self.meta("generation") or 0)
        self._added: list[DataFile] = []
        self._removed: list[str] = []
        self._live: list[DataFile] | None = None

    def meta(self, key: str) -> str | None:
        """A value that the ledger keeps beside the files."""
        row = self.ledger.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def sources(self) -> list[dict[str, Any]]:
        """All rows of the ledger's `sources`, as dictionaries."""
        return source_rows(self.ledger)

    def rejects(self) -> list[tuple[int, int, int, str, str | None]]:
        """All rejects: source, line, offset, reason, hash."""
        return self.ledger.execute(_REJECTS).fetchall()

    def snapshot(self) -> Snapshot:
        """The committed generation with what is staged on top: what the next generation will be."""
        removed = set(self._removed)
        files = [*self._committed(), *self._added]
        return Snapshot(self.root, self.generation, tuple(f for f in files if f.path not in removed))

    def _committed(self) -> list[DataFile]:
        if self._live is None:
            rows = self.ledger.execute(
                "SELECT path, name, bucket, count_rows, size_bytes, sha256 FROM files WHERE removed IS NULL "
                "ORDER BY path"
            )
            self._live = [DataFile(*row) for row in rows]
        return self._live

    def append(self, table: Table, bucket: int, frame: pl.DataFrame) -> None:
        """Stage one more file of `table` in `bucket`."""
        if frame.height:
            self._added.append(self._write(table, bucket, frame))

    def replace(self, table: Table, bucket: int, frame: pl.DataFrame) -> None:
        """Stage `frame` as all of `table` in `bucket`; the files of before are dropped at the commit."""
        self._drop(table.name, bucket)
        self.append(table, bucket, frame)

    def merge(self, table: Table, bucket: int) -> int:
        """Stage the files of `table` in `bucket` as one; how many there were (one file, or none, is left alone)."""
        snapshot = self.snapshot()
        count = len(snapshot.paths(table.name, bucket))
        if count > 1:
            self.replace(table, bucket, snapshot.scan(table.name, bucket).collect())
        return count

    def drop(self, path: str) -> None:
        """Stage that a file is no longer part of the lake."""
        self._removed.append(path)

    def adopt(self, file: DataFile, data: bytes | None) -> None:
        """Stage a file that somebody else made (`encode`) as all of its table in its bucket; no rows, no file.

        `data` None: it lies in the lake already (`write_file`).
        """
        self._drop(file.name, file.bucket)
        if file.count_rows:
            if data is not None:
                write_file(self.root, file, data)
            self._added.append(file)

    def _drop(self, name: str, bucket: int) -> None:
        for file in (*self._committed(), *self._added):
            if file.bucket == bucket and file.name == name and file.path not in self._removed:
                self._removed.append(file.path)

    def _write(self, table: Table, bucket: int, frame: pl.DataFrame) -> DataFile:
        file, data = encode(self.generation, table, bucket, frame)
        write_file(self.root, file, data)
        return file

    def commit(
        self,
        sources: Sequence[dict[str, Any]],
        rejects: Sequence[tuple[int, int, int, str, str | None]],
        cleared: Sequence[int],
        meta: dict[str, str],
    ) -> None:
        """Make everything staged true at once: files, `sources` (whole rows by source_id), rejects and `meta`.

        `cleared` are sources whose old rejects go away (they were read anew).
        """
        _sync_each(_sync_file, [self.root / file.path for file in self._added])
        folders = {(self.root / f.path).parent for f in self._added}
        _sync_each(
            _sync_folder,
            sorted(folders | {f.parent for f in folders} | ({self.root / DATA, self.root} if folders else set())),
        )
        generation = self.generation + 1
        execute = self.ledger.execute
        execute("BEGIN IMMEDIATE")
        try:
            for row in sources:
                names = ",".join(row)
                execute(
                    f"INSERT OR REPLACE INTO sources({names}) VALUES({','.join('?' * len(row))})", tuple(row.values())
                )
            for source_id in cleared:
                execute("DELETE FROM rejects WHERE source_id=?", (source_id,))
            self.ledger.executemany("INSERT OR REPLACE INTO rejects VALUES(?,?,?,?,?)", rejects)
            self.ledger.executemany(
                "INSERT INTO files VALUES(?,?,?,?,?,?,?,NULL)",
                [(f.path, f.name, f.bucket, f.count_rows, f.size_bytes, f.sha256, generation) for f in self._added],
            )
            self.ledger.executemany("UPDATE files SET removed=? WHERE path=?", [(generation, p) for p in self._removed])
            self.ledger.executemany(
                "INSERT OR REPLACE INTO meta VALUES(?,?)",
                [*meta.items(), ("generation", str(generation)), ("version", __version__)],
            )
            execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise
        self.generation = generation
        self._added, self._removed, self._live = [], [], None
        self._publish()
        self._sweep()

    def recover(self) -> None:
        """Roll a commit forward that was not published, and sweep what no commit lists."""
        try:
            published = (self.root / MANIFEST).read_bytes()
        except OSError:
            published = b""
        if published != self._manifest():
            self._publish()
        self._sweep()

    def _manifest(self) -> bytes:
        # A file a line; `indent` would do it too, at ten times the cost.
        snapshot = self.snapshot()
        head = json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "generation": self.generation,
                "version": __version__,
                "max_bucket_bytes": snapshot.max_bucket_bytes,
            }
        )
        files = ",\n".join(json.dumps(vars(f)) for f in snapshot.files)
        return f'{head[:-1]}, "files": [\n{files}\n]}}\n'.encode()

    def _publish(self) -> None:
        temporary = self.root / f".{MANIFEST}.new"
        _write_synced(temporary, self._manifest())
        temporary.replace(self.root / MANIFEST)
        _sync_folder(self.root)

    def _sweep(self) -> None:
        oldest = self.generation - KEEP_GENERATIONS
        doomed = [row[0] for row in self.ledger.execute("SELECT path FROM files WHERE removed <= ?", (oldest,))]
        known = {row[0] for row in self.ledger.execute("SELECT path FROM files")} - set(doomed)
        for path in (self.root / DATA).glob(OWN_FILES):
            if path.relative_to(self.root).as_posix() not in known:
                path.unlink(missing_ok=True)
        if doomed:
            self.ledger.execute("DELETE FROM files WHERE removed <= ?", (oldest,))


def check_schema(root: Path, version: int) -> None:
    """LakeError for a lake of a newer schema."""
    if version > SCHEMA_VERSION:
        raise LakeError(f"{root}: lake of schema {version}, this loopstats knows {SCHEMA_VERSION}; upgrade loopstats")


def _migrate(ledger: sqlite3.Connection, version: int) -> None:
    """Bring an older ledger to this schema in one transaction; the manifest follows with the next commit."""
    ledger.execute("BEGIN IMMEDIATE")
    try:
        for statements in _MIGRATIONS[version - 1 :]:
            for statement in statements:
                ledger.execute(statement)
        ledger.execute("UPDATE meta SET value=? WHERE key='schema_version'", (str(SCHEMA_VERSION),))
        ledger.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            ledger.execute("ROLLBACK")
        raise


def scan_files(table: Table, paths: Sequence[Path]) -> pl.LazyFrame:
    """Rows of some files of `table` in this order, columns and types of this version."""
    if not paths:
        return table.empty().lazy()
    return pl.scan_parquet(list(paths), schema=table.schema, missing_columns="insert", glob=False)


def encode(generation: int, table: Table, bucket: int, frame: pl.DataFrame) -> tuple[DataFile, memoryview]:
    """`frame` as a file that the commit after `generation` may list, under a name of its own, and the file's bytes."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", row_group_size=65_536, statistics=False)
    data = buffer.getbuffer()
    path = Path(DATA, table.name, f"bucket={bucket:02d}", f"{generation + 1:08d}-{uuid.uuid4().hex[:16]}.parquet")
    digest = hashlib.sha256(data).hexdigest()
    return DataFile(path.as_posix(), table.name, bucket, frame.height, len(data), digest), data


def write_file(root: Path, file: DataFile, data: bytes | memoryview, *, is_synced: bool = False) -> None:
    """Put a file in its place. Nobody reads it before a commit lists it, and what no commit lists is swept."""
    path = root / file.path
    make_folder(path.parent)
    (_write_synced if is_synced else _write)(path, data)


def source_rows(ledger: sqlite3.Connection) -> list[dict[str, Any]]:
    cursor = ledger.execute("SELECT * FROM sources ORDER BY source_id")
    names = [item[0] for item in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _write(path: Path, data: bytes | memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_each(sync: Callable[[Path], None], paths: Sequence[Path]) -> None:
    """Sync many small files or folders: most of the time of one is waiting for the disk, so several wait at once."""
    with ThreadPoolExecutor(SYNCS_AT_ONCE) as pool:
        list(pool.map(sync, paths))


def _write_synced(path: Path, data: bytes | memoryview) -> None:
    _write(path, data)
    _sync_file(path)


def _sync_folder(path: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _operational(path: Path, error: sqlite3.OperationalError) -> Exception:
    text = str(error)
    if "locked" in text:
        return LockedError(f"{path}: the ledger is in use; try again later")
    return StorageError(f"{path}: {text}")


@contextlib.contextmanager
def _storage_errors(root: Path) -> Iterator[None]:
    """Turn a failing disk into an error with its exit code; what was committed stays readable."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise _operational(root / LEDGER, error) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(
                f"{error.filename or root}: disk full; free some space and run again, nothing is lost"
            ) from error
        if error.errno in (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM):
            raise StorageError(f"{error.filename or root}: {error.strerror}") from error
        raise
