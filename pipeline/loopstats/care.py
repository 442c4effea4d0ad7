"""Care of the lake: is it whole, what is in it, and its many small files made few.

A room of its own because this looks at the lake from outside: `verify` trusts nothing that it was told and compares
bytes, ledger, manifest and tables with each other, and every fault that it names comes with its mend. Nothing here
changes a row; `compact` writes the same rows into fewer files, as one more generation.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import polars as pl

from loopstats import __version__
from loopstats.errors import LakeError, LockedError, LoopstatsError
from loopstats.found import real_path
from loopstats.store import (
    DATA,
    LEDGER,
    MANIFEST,
    OWN_FILES,
    SCHEMA_VERSION,
    DataFile,
    Lake,
    Snapshot,
    bucket_of,
    check_schema,
    damage,
    source_rows,
)
from loopstats.tables import BUCKETS, LIFT, RECORDS, SESSIONS, SOURCES, TABLES, Table

_ACCOUNTED = ("count_used", "count_nothing", "count_folded", "count_rejected", "count_waiting")
_RESTORE = "restore it from a backup"
_NEXT_WRITER = "the next `loopstats ingest` or `loopstats lake compact`"
_REBUILD = "run `loopstats lake rebuild`: the table is made of the records"
_REREAD = f"{_RESTORE}, or run `loopstats lake rebuild --from-sources` to read the logs anew"
_NO_LIFT = f"{_RESTORE}; else `loopstats lake rebuild` leaves it out, and the nights in it are lost"


@dataclass(frozen=True)
class Check:
    """One line of `verify`: `state` is `ok` or `mend`; `mend` says how, and is empty where all is well."""

    check: str
    state: str
    where: str
    detail: str
    mend: str = ""


@dataclass(frozen=True)
class _Listed:
    """What a ledger or a manifest says: its generation, its live files, and those kept for readers of before."""

    generation: int
    files: dict[str, DataFile]
    kept: frozenset[str] = frozenset()
    sources: tuple[dict[str, Any], ...] = ()
    rejects: Counter[int] | None = None


def verify(lake: Lake) -> list[Check]:
    """What is wrong with a lake, each with its mend; one `ok` line for every check that found nothing.

    Reads every byte, writes nothing and mends nothing. Works beside a writer: what is committed meanwhile is not looked
    at. LakeError for a lake of a newer schema, UsageError where there is none.
    """
    root = Lake.open(lake.root).root
    with _still(root) as is_alone:
        ledger, checks = _read_ledger(lake)
        manifest, more = _read_manifest(root)
        on_disk = {p.relative_to(root).as_posix() for p in (root / DATA).rglob("*") if not p.is_dir()}
    checks += more
    if ledger is not None and manifest is not None and (is_alone or ledger.generation == manifest.generation):
        checks += _compare(ledger, manifest)
    listed = ledger or manifest
    if listed is None:
        return checks
    found, lines = _check_files(lake, listed)
    count_bytes = sum(file.size_bytes for file in listed.files.values())
    whole = Check("files", "ok", DATA, f"{len(listed.files)} files, {count_bytes} bytes, as they were committed")
    checks += found or [whole]
    if ledger is not None:
        strays = sorted(on_disk - ledger.files.keys() - ledger.kept) if is_alone else []
        for path in strays:
            mend = f"{_NEXT_WRITER} sweeps it" if Path(path).match(f"{DATA}/{OWN_FILES}") else "move it away"
            checks.append(Check("strays", "mend", path, "no commit lists it", mend))
        checks += [] if strays else [Check("strays", "ok", DATA, "none")]
        is_whole = not any(check.where.startswith(f"{DATA}/{RECORDS.name}/") for check in found)
        checks += _check_lines(ledger, lines if is_whole else None)
        checks += _check_sources(lake, ledger) if not found else []
    return checks


@contextlib.contextmanager
def _still(root: Path) -> Iterator[bool]:
    """Hold writers off for the moment of a look; False where one is at work, whose new files are no strays."""
    lock = filelock.FileLock(root / "_lock", mode=0o600)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    except OSError:  # read-only: nobody writes from here
        yield True
        return
    try:
        yield True
    finally:
        lock.release()


def _read_ledger(lake: Lake) -> tuple[_Listed | None, list[Check]]:
    """The ledger and what is to be said of it; None where it cannot be read."""
    mend = f"{_RESTORE}; else move {lake.root} away and ingest again"
    if not (lake.root / LEDGER).exists():
        return None, [Check("ledger", "mend", LEDGER, "missing", mend)]
    try:
        with lake.reading() as ledger:
            faults = [row[0] for row in ledger.execute("PRAGMA integrity_check(3)") if row[0] != "ok"]
            meta = dict(ledger.execute("SELECT key, value FROM meta"))
            rows = ledger.execute("SELECT path, name, bucket, count_rows, size_bytes, sha256, removed FROM files")
            files = {row[0]: (DataFile(*row[:6]), row[6] is not None) for row in rows}
            rejects = Counter(
                dict(ledger.execute("SELECT source_id, count(*) FROM rejects WHERE source_line > 0 GROUP BY 1"))
            )
            sources = tuple(source_rows(ledger))
            version, generation = int(meta["schema_version"]), int(meta["generation"])
    except (LakeError, KeyError, ValueError) as error:
        return None, [Check("ledger", "mend", LEDGER, f"damaged: {error}", mend)]
    except LockedError:
        raise
    except LoopstatsError as error:
        return None, [Check("ledger", "mend", LEDGER, str(error), mend)]
    check_schema(lake.root, version)
    listed = _Listed(
        generation,
        {path: file for path, (file, is_removed) in files.items() if not is_removed},
        frozenset(path for path, (_, is_removed) in files.items() if is_removed),
        sources,
        rejects,
    )
    said = f"generation {generation}, schema {version}, {sum(not s['is_superseded'] for s in sources)} sources"
    checks = [Check("ledger", "mend", LEDGER, f"damaged: {fault}", mend) for fault in faults]
    return listed, checks or [Check("ledger", "ok", LEDGER, said)]


def _read_manifest(root: Path) -> tuple[_Listed | None, list[Check]]:
    mend = f"{_NEXT_WRITER} writes it anew from the ledger"
    try:
        manifest = json.loads((root / MANIFEST).read_bytes())
        files = [DataFile(**entry) for entry in manifest["files"]]
        listed = _Listed(int(manifest["generation"]), {file.path: file for file in files})
        version = int(manifest["schema_version"])
    except FileNotFoundError:
        return None, [Check("manifest", "mend", MANIFEST, "missing", mend)]
    except OSError as error:
        return None, [Check("manifest", "mend", MANIFEST, f"unreadable ({error.strerror})", _RESTORE)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return None, [Check("manifest", "mend", MANIFEST, f"damaged: {type(error).__name__}", mend)]
    check_schema(root, version)
    return listed, []


def _compare(ledger: _Listed, manifest: _Listed) -> list[Check]:
    """The manifest is what the ledger would write."""
    mend = f"{_NEXT_WRITER} writes it anew from the ledger"
    if ledger.generation != manifest.generation:
        detail = f"generation {manifest.generation}, the ledger has {ledger.generation}: the commit was not published"
        return [Check("manifest", "mend", MANIFEST, detail, mend)]
    differing = sorted({f.path for f in {*ledger.files.values()} ^ {*manifest.files.values()}})
    if differing:
        detail = f"{len(differing)} files are not as in the ledger, {differing[0]} first"
        return [Check("manifest", "mend", MANIFEST, detail, mend)]
    return [Check("manifest", "ok", MANIFEST, f"generation {manifest.generation}, {len(manifest.files)} files")]


def _mend_of(name: str) -> str:
    return _REREAD if name == RECORDS.name else _NO_LIFT if name == LIFT.name else _REBUILD


def _check_files(lake: Lake, listed: _Listed) -> tuple[list[Check], dict[int, int]]:
    """Every file that is missing or not as committed, and by source how many of its lines have records."""
    checks: list[Check] = []
    pieces: list[pl.DataFrame] = []
    for path, file in sorted(listed.files.items()):
        try:
            data = (lake.root / path).read_bytes()
        except OSError:
            data = None
        fault = damage(lake.root, file, data)
        if fault is None and data is not None:
            fault = _fault_inside(file, data)
            if file.name == RECORDS.name and fault is None:
                lines = pl.read_parquet(io.BytesIO(data), columns=["source_id", "source_line"])
                pieces.append(lines.unique())
        if fault is not None:
            checks.append(Check("files", "mend", path, fault, _mend_of(file.name)))
    if checks:
        checks = _still_listed(lake, listed, checks)
    if not pieces:
        return checks, {}
    return checks, dict(pl.concat(pieces).unique().group_by("source_id").len().iter_rows())


def _still_listed(lake: Lake, listed: _Listed, checks: list[Check]) -> list[Check]:
    """What a writer swept while we read is not missing."""
    now, _ = _read_ledger(lake)
    if now is None or now.generation == listed.generation:
        return checks
    return [check for check in checks if check.where in now.files]


def _fault_inside(file: DataFile, data: bytes) -> str | None:
    """What is wrong with a file whose bytes are as committed: a table of another shape, or rows that lie elsewhere."""
    try:
        schema = pl.read_parquet_schema(io.BytesIO(data))
        columns = [name for name in ("session_id",) if name in schema]
        frame = pl.read_parquet(io.BytesIO(data), columns=columns or None)
    except (pl.exceptions.PolarsError, OSError) as error:
        return f"no Parquet: {error}"
    if frame.height != file.count_rows:
        return f"{frame.height} rows, {file.count_rows} were committed"
    table: Table | None = RECORDS if file.name == RECORDS.name else TABLES.get(file.name)
    if table is not None:
        wrong = sorted(name for name, kind in schema.items() if table.schema.get(name, kind) != kind)
        if wrong:
            return f"column {wrong[0]} is {schema[wrong[0]]}, not {table.schema[wrong[0]]}"
    if columns and (table is None or table.is_bucketed) and file.name != "shadows":
        elsewhere = [s for s in frame["session_id"].unique().sort().to_list() if bucket_of(s) != file.bucket]
        if elsewhere:
            return f"{len(elsewhere)} sessions of other buckets in bucket {file.bucket}"
    return None


def _check_lines(ledger: _Listed, lines: dict[int, int] | None) -> list[Check]:
    """The lines that the ledger counts as used are those that have records; not asked where records are damaged."""
    if lines is None:
        return []
    checks = []
    for row in ledger.sources:
        held = lines.get(row["source_id"], 0)
        if not row["is_superseded"] and held != row["count_carrying"]:
            detail = f"{row['count_carrying']} lines were read into records, {held} have any"
            mend = "restore the lake from a backup, or run `loopstats lake rebuild --from-sources`"
            checks.append(Check("records", "mend", row["source_file"], detail, mend))
    return checks or [Check("records", "ok", RECORDS.name, f"{sum(lines.values())} lines have records, as counted")]


def _check_sources(lake: Lake, ledger: _Listed) -> list[Check]:
    """Conservation: every line of every file is accounted for once, and the table says what the ledger says."""
    snapshot = Snapshot(lake.root, ledger.generation, tuple(ledger.files.values()))
    sources = snapshot.read(SOURCES.name)
    mend = "run `loopstats lake rebuild --from-sources`; please report it"
    unbalanced = sources.filter(pl.col("count_read") != pl.sum_horizontal(*_ACCOUNTED))
    checks = [
        Check(
            "conservation", "mend", row["source_file"], f"{row['count_read']} lines read, not all accounted for", mend
        )
        for row in unbalanced.iter_rows(named=True)
    ]
    said = {row["source_file"]: row for row in sources.iter_rows(named=True)}
    for row in ledger.sources:
        if row["is_superseded"] or row["path"].startswith("refused:"):
            continue
        shown = said.pop(row["source_file"], None)
        count = row["count_lines"] + row["count_waiting"]
        count_rejected = (ledger.rejects or Counter())[row["source_id"]]
        if shown is None or (shown["count_read"], shown["count_rejected"]) != (count, count_rejected):
            detail = f"the ledger has {count} lines and {count_rejected} rejects, the table says otherwise"
            checks.append(Check("conservation", "mend", row["source_file"], detail, _REBUILD))
    checks += [
        Check("conservation", "mend", name, "in the table, not in the ledger", _REBUILD) for name in sorted(said)
    ]
    read = int(sources["count_read"].sum())
    return checks or [
        Check("conservation", "ok", SOURCES.name, f"{read} lines of {sources.height} files accounted for")
    ]


# --- compaction ------------------------------------------------------------------------------------------------------


def compact(lake: Lake) -> dict[str, int]:
    """Make one file of the many that a table has in a bucket; readers of the generations before are not disturbed.

    Gives the generation, and files before and after; nothing is committed where there is nothing to merge.
    """
    Lake.open(lake.root)
    with lake.write() as writer:
        before = len(writer.snapshot().files)
        places = Counter((file.name, file.bucket) for file in writer.snapshot().files)
        many = sorted(place for place, count in places.items() if count > 1)
        for name, bucket in many:
            writer.merge(RECORDS if name == RECORDS.name else TABLES[name], bucket)
        if many:
            writer.commit([], [], [], {})
        return {
            "generation": writer.generation,
            "count_files_before": before,
            "count_files": len(writer.snapshot().files),
        }


# --- what is in it ---------------------------------------------------------------------------------------------------


def info(lake: Lake) -> tuple[dict[str, Any], pl.DataFrame]:
    """Facts about a lake; and per table rows, bytes, files, most files in a bucket, bytes of its largest bucket."""
    snapshot = Lake.open(lake.root).snapshot()
    sources, meta = lake.peek()
    live = [row for row in sources if not row["is_superseded"] and not row["path"].startswith("refused:")]
    states = Counter(_state_on_disk(row) for row in live)
    times = snapshot.scan(SESSIONS.name).select(pl.col("first_at").min(), pl.col("last_at").max()).collect().row(0)
    per_bucket = Counter[int]()
    for file in snapshot.files:
        per_bucket[file.bucket] += file.size_bytes
    largest = max(per_bucket, key=lambda bucket: (per_bucket[bucket], -bucket), default=None)
    facts = {
        "lake": str(lake.root),
        "generation": snapshot.generation,
        "schema_version": int(meta.get("schema_version", SCHEMA_VERSION)),
        "version": __version__,
        "version_written": meta.get("version"),
        "digest": snapshot.digest(),
        "buckets": BUCKETS,
        "largest_bucket": largest,
        "largest_bucket_bytes": 0 if largest is None else per_bucket[largest],
        "sources": len(live),
        **{f"sources_{state}": states[state] for state in ("same", "changed", "gone")},
        "sources_waiting": sum(bool(row["count_waiting"]) for row in live),
        "first_event_at": times[0],
        "last_event_at": times[1],
        "most_files_in_a_bucket": most_files(snapshot),
    }
    return facts, _by_table(snapshot)


def most_files(snapshot: Snapshot) -> int:
    """The most files that one table has in one bucket; `compact` makes it 1."""
    return max(Counter((file.name, file.bucket) for file in snapshot.files).values(), default=0)


def _by_table(snapshot: Snapshot) -> pl.DataFrame:
    schema = {
        "name": pl.String,
        "count_rows": pl.Int64,
        "size_bytes": pl.Int64,
        "count_files": pl.Int64,
        "most_files_in_a_bucket": pl.Int64,
        "largest_bucket_bytes": pl.Int64,
    }
    rows = []
    for name in [RECORDS.name, *TABLES]:
        files = [file for file in snapshot.files if file.name == name]
        sizes: Counter[int] = Counter()
        for file in files:
            sizes[file.bucket] += file.size_bytes
        counts = Counter(file.bucket for file in files)
        rows.append(
            (
                name,
                sum(file.count_rows for file in files),
                sum(sizes.values()),
                len(files),
                max(counts.values(), default=0),
                max(sizes.values(), default=0),
            )
        )
    return pl.DataFrame(rows, schema=schema, orient="row")


def _state_on_disk(row: dict[str, Any]) -> str:
    """What the next ingest of its folder will find at the place of a source: `same`, `changed` or `gone`."""
    try:
        status = os.lstat(real_path(row["path"]))
    except OSError:
        return "gone"
    is_same = (status.st_size, status.st_mtime_ns) == (row["size_bytes"], row["mtime_ns"])
    return "same" if is_same else "changed"
