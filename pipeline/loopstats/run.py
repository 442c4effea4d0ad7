"""Bringing files in: what is new is read, what it touches is made anew, and all of it is committed once, or nothing.

A room of its own because the order in which files, ledger and tables change is what may never be wrong. `ingest` brings
files in and makes the dirty buckets anew, `rebuild` makes all of them, `detect_anew` makes them in another lake; what
is made of records is `derive.py`, and who does the work is an `Engine`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from loopstats import ingest as reading
from loopstats import prices, workers
from loopstats.config import Settings
from loopstats.derive import BATCH_ROWS, FOLDED, Terms, batches, make_batch
from loopstats.errors import LakeError, RejectsError, UsageError
from loopstats.found import NO_LOG, REPORT, elsewhere, installed, is_as_installed, parted
from loopstats.steps import find_shadows, record_index
from loopstats.store import Lake, Snapshot, Writer, bucket_of, damage
from loopstats.tables import (
    BUCKETS,
    FOLDS,
    LIFT,
    OVERSIZE_STEPS,
    RECORDS,
    REJECTS,
    RUNS,
    SOURCES,
    STR,
    TABLES,
    TURNS,
    Table,
)
from loopstats.waste import TOKENS

SHADOWS = Table("shadows", "records of another session's history, internal", (), (), is_bucketed=False)
Progress = Callable[[str, int, int, int, int], None]  # what, files done, files, bytes done, bytes
FLUSH_ROWS = 400_000
MERGE_FILES = 8


class Engine(Protocol):
    """Who does the work of an ingest: this machine (`Here`), or a cluster (`spark.py`). The stages are the same."""

    def read_all(
        self, tasks: Sequence[workers.Task], tool_rows: dict[str, str], tell: Callable[[reading.Found], None]
    ) -> Iterable[workers.Outcome]:
        """What came of each file, in the order of the tasks."""

    def derive_all(self, writer: Writer, source: Snapshot, buckets: Sequence[int], terms: Terms) -> Iterator[int]:
        """Stage in `writer` every derived table of these buckets; says before each step how many are done."""


@dataclass(frozen=True)
class Here:
    """This machine: `jobs` processes read (None: one for little, a core each for much), this one makes the tables."""

    jobs: int | None = None

    def read_all(
        self, tasks: Sequence[workers.Task], tool_rows: dict[str, str], tell: Callable[[reading.Found], None]
    ) -> Iterable[workers.Outcome]:
        total = sum(new_bytes(task.found, task.before) for task in tasks)
        return workers.read_all(tasks, tool_rows, workers.choose_jobs(total, self.jobs), tell)

    def derive_all(self, writer: Writer, source: Snapshot, buckets: Sequence[int], terms: Terms) -> Iterator[int]:
        count = 0
        for batch in batches(source, buckets, BATCH_ROWS):
            yield count
            for table, bucket, part in make_batch(batch, terms):
                writer.replace(table, bucket, part)
            count += len(batch.buckets)


def ingest(
    lake: Lake,
    paths: Sequence[str],
    settings: Settings,
    *,
    is_full: bool = False,
    max_rejects: int | None = None,
    jobs: int | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Read what is new under `paths` and bring every derived table up to date; one commit, or nothing.

    `jobs`: processes that read (None: one for little, a core each for much); `engine`: who does the work, by default
    this machine with its `jobs`. The tables depend on neither.
    Gives the counts for the summary: files by what became of them, and per format steps, folds and rejects; `stale` are
    files that are gone and so were read by an earlier rule.
    """
    engine = engine or Here(jobs)
    found, refused = reading.discover(paths)
    with lake.write() as writer:
        known = {row["path"]: row for row in writer.sources() if not row["is_superseded"]}
        # Kind, target and class stand in the records: another rule has to read every file anew.
        is_other_rule = writer.meta("rule_digest") not in (None, settings.rule_digest)
        kept = writer.meta(NO_LOG)
        rest, passed = (found, {}) if is_full or is_other_rule else parted(found, kept)
        passed |= elsewhere(kept, reading.resolved_roots(paths))
        # A file of no known format is looked at again when another format may have been installed.
        settled = known if is_as_installed(kept) else {path: row for path, row in known.items() if row["format"]}
        todo, count_same = (list(found), 0) if is_full else reading.plan(rest, settled)
        state = _Intake(writer, settings, known, passed)
        if is_other_rule:
            todo, count_same = reading.with_known(found, known), 0
        state.read(todo, is_full or is_other_rule, engine, progress)
        state.note_gone(found, reading.resolved_roots(paths))
        state.note_moved()
        state.note_refused(refused)
        summary = {
            "files_new": state.count_new,
            "files_grown": state.count_grown,
            "files_same": count_same,
            "files_gone": state.count_gone,
            "files_skipped": len(state.passed.keys() & {file.path for file in found}),
            "records": state.count_records,
            "stale": sorted(row["source_file"] for row in known.values() if row["is_gone"]) if is_other_rule else [],
        }
        is_settled = writer.meta("derived_digest") == settings.derived_digest
        if state.is_empty and is_settled and state.no_log() == kept:
            return summary | _report(writer.snapshot(), state) | _coverage(writer)
        state.flush()
        if max_rejects is not None and (count := state.count_rejected()) > max_rejects:
            raise RejectsError(
                f"{count} records were rejected, more than --max-rejects {max_rejects}; nothing was written",
                count,
            )
        state.mark_dirty()
        _merge_records(writer, state.dirty)
        _derive_dirty(writer, state, settings, is_settled, engine, progress)
        _commit(writer, state, settings)
        return summary | _report(writer.snapshot(), state) | _coverage(writer)


def rebuild(
    lake: Lake,
    settings: Settings,
    *,
    is_from_sources: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make every derived table anew of the records, whatever state they are in; one commit, or nothing.

    `is_from_sources`: read the files of the ledger that are still on disk anew first, and leave out record files that
    are missing or damaged. What was read of files that have vanished since stays. Gives `digest_before` and `digest` of
    the derived tables, `files_read`, `dropped` (files of the lake that were left out) and `lost` (source_file to lines
    whose records stood in a damaged file and whose source is gone). LakeError where records are damaged and may not be
    left out. The recorded nights (`lift`) cannot be made anew: they stay, but for a damaged file.
    """
    with lake.write() as writer:
        before = writer.snapshot()
        damaged = [f for f in before.files if f.name in (RECORDS.name, LIFT.name) and damage(lake.root, f)]
        if any(file.name == RECORDS.name for file in damaged) and not is_from_sources:
            raise LakeError(
                f"{damaged[0].path}: {damage(lake.root, damaged[0])}; restore it, or run "
                "`loopstats lake rebuild --from-sources` to read the logs anew"
            )
        for file in damaged:
            writer.drop(file.path)
        known = {row["path"]: row for row in writer.sources() if not row["is_superseded"]}
        state = _Intake(writer, settings, known)
        if is_from_sources:
            found = reading.with_known((), known)
            state.read(found, True, Here(jobs), progress)
            state.note_gone(found, None)
            state.note_moved()
            state.flush()
        lost = state.note_lost() if damaged else {}
        state.dirty.update(file.bucket for file in before.files if TABLES.get(file.name, FOLDED).is_bucketed)
        _derive_dirty(writer, state, settings, False, Here(jobs), progress)
        _commit(writer, state, settings)
        return {
            "digest_before": before.digest(),
            "digest": writer.snapshot().digest(),
            "generation": writer.generation,
            "files_read": state.count_new + state.count_grown,
            "files_gone": sum(bool(row["is_gone"]) for row in state.rows.values() if not row["is_superseded"]),
            "dropped": [file.path for file in damaged],
            "lost": lost,
            **_report(writer.snapshot(), state),
        }


def detect_anew(lake: Lake, out: Lake, settings: Settings, engine: Engine) -> dict[str, Any]:
    """Make every derived table of `lake` anew: in place, or with all records in `out`, which holds no lake yet.

    One commit, or nothing; gives `tables`: rows by name. UsageError where the records were read by another rule, since
    kind, target and class stand in them.
    """
    is_copied = out.root.resolve() != lake.root.resolve()
    with out.write() as writer:
        if is_copied and (writer.generation or writer.sources()):
            raise UsageError(f"--out {out.root}: there is a lake already; name a new folder, or leave --out away")
        sources, meta, rejects = lake.ledger_rows()
        if meta.get("rule_digest") != settings.rule_digest:
            raise UsageError(
                "the lake was read by another rule: run `loopstats ingest --full` with these settings first"
            )
        state = _Intake(writer, settings, {})
        if is_copied:
            state.rows = {row["source_id"]: row for row in sources}
            state.changed, state.rejects = set(state.rows), rejects
        _derive_dirty(writer, state, settings, False, engine, None, lake.snapshot() if is_copied else None)
        _commit(writer, state, settings)
        return {"tables": {name: writer.snapshot().count_rows(name) for name in TABLES}}


ARMS = ("rule", "is_enrolled", "experiment", "arm", "outcome")


def count_arms(loops: pl.LazyFrame) -> pl.DataFrame:
    """Loops, tokens and cost by `ARMS`: whole numbers, so that counts of parts may be counted on to the same sums."""
    if "count_loops" not in loops.collect_schema():
        loops = loops.with_columns(pl.lit(1, dtype=pl.Int64).alias("count_loops"))
    sums = ("count_loops", "tokens_wasted", "cost_wasted_micros")
    return loops.group_by(ARMS).agg([pl.col(name).sum() for name in sums]).sort(ARMS, nulls_last=True).collect()


def _commit(writer: Writer, state: _Intake, settings: Settings) -> None:
    writer.commit(
        state.rows_changed(),
        state.rejects,
        sorted(state.cleared),
        {
            "derived_digest": settings.derived_digest,
            "rule_digest": settings.rule_digest,
            **_cover(writer.snapshot()),
            **({NO_LOG: state.no_log()} if state.is_search else {}),
            REPORT: json.dumps(_tables_report(writer.snapshot())),
        },
    )


def _merge_records(writer: Writer, buckets: Iterable[int]) -> None:
    """Where every night appended a file, one is made of many: the bucket is read for its derivation anyway."""
    snapshot = writer.snapshot()
    for bucket in sorted(buckets):
        if len(snapshot.paths(RECORDS.name, bucket)) > MERGE_FILES:
            writer.merge(RECORDS, bucket)


def new_bytes(file: reading.Found, before: dict[str, Any] | None) -> int:
    """Bytes of a file that were not there when it was read last; all of them where it is read anew."""
    size, offset = file.size_bytes, 0 if before is None else before["offset"]
    return size - offset if size >= offset else size


def preview(lake: Lake, paths: Sequence[str], settings: Settings, *, is_full: bool = False) -> list[dict[str, Any]]:
    """What `ingest` would do with each file, without a trace: source_file, state, size_bytes, bytes_to_read.

    `state`: `new`, `grown` (only its new bytes are read), `changed` (read anew), `same`, `skipped` (it held no log),
    `gone`, or `refused` (a link, a device, a folder that cannot be read). Whether a new file holds a log at all is only
    known once it is read.
    """
    found, refused = reading.discover(paths)
    sources, meta = lake.peek()
    known = {row["path"]: row for row in sources if not row["is_superseded"]}
    is_anew = is_full or meta.get("rule_digest") not in (None, settings.rule_digest)
    if is_anew and not is_full:
        found = reading.with_known(found, known)
    rest, passed = (found, {}) if is_anew else parted(found, meta.get(NO_LOG))
    unread = {file.path for file in (found if is_anew else reading.plan(rest, known)[0])}
    rows: list[dict[str, Any]] = []

    def add(name: str, state: str, size_bytes: int | None, count_bytes: int) -> None:
        rows.append({"source_file": name, "state": state, "size_bytes": size_bytes, "bytes_to_read": count_bytes})

    for file in found:
        before = known.get(file.path)
        if file.path in passed:
            add(file.source_file, "skipped", file.size_bytes, 0)
        elif file.path not in unread:
            add(file.source_file, "same", file.size_bytes, 0)
        elif before is None:
            add(file.source_file, "new", file.size_bytes, file.size_bytes)
        elif not is_anew and reading.is_continued(file, before):
            add(file.source_file, "grown", file.size_bytes, new_bytes(file, before))
        else:
            add(file.source_file, "changed", file.size_bytes, file.size_bytes)
    present = {file.path for file in found}
    roots = reading.resolved_roots(paths)
    for path, row in sorted(known.items()):
        if path not in present and not row["is_gone"] and reading.is_below(path, roots):
            add(row["source_file"], "gone", None, 0)
    for name, _ in refused:
        add(name, "refused", None, 0)
    return rows


class _Intake:
    """What one ingest has read so far: ledger rows, rejects, staged records; not true before the commit."""

    def __init__(
        self,
        writer: Writer,
        settings: Settings,
        known: dict[str, dict[str, Any]],
        passed: dict[str, list[int]] | None = None,
    ) -> None:
        """`passed`: files that are known to hold no log; None where files are not looked for."""
        self.writer = writer
        self.is_search = passed is not None
        self.passed = passed or {}
        self.tool_rows = dict(settings.tool_rows)
        self.rows: dict[int, dict[str, Any]] = {row["source_id"]: row for row in writer.sources()}
        self.known = known
        self.changed: set[int] = set()
        self.cleared: set[int] = set()
        self.rejects: list[tuple[int, int, int, str, str | None]] = []
        self.dirty: set[int] = set()
        self.moved: set[int] = set()
        self.count_new = self.count_grown = self.count_gone = self.count_records = 0
        self._pending: list[pl.DataFrame] = []
        self._next_id = max(self.rows, default=0) + 1
        self._shown = {row["source_file"]: row["path"] for row in known.values()}

    @property
    def is_empty(self) -> bool:
        """Nothing was read and nothing is known anew."""
        return not self.changed and not self.rejects

    def no_log(self) -> str:
        """What the ledger keeps of the files that hold no log."""
        return json.dumps({"installed": installed(), "files": self.passed}, sort_keys=True)

    def read(self, todo: Sequence[reading.Found], is_full: bool, engine: Engine, progress: Progress | None) -> None:
        """Read files. A new source's number is its place among them, so it does not depend on who reads it when."""
        befores = [self.known.get(file.path) for file in todo]
        tasks = [
            workers.Task(file, None if is_full else before, self._next_id + number)
            for number, (file, before) in enumerate(zip(todo, befores, strict=True))
        ]
        self._next_id += len(tasks)
        sizes = [new_bytes(task.found, task.before) for task in tasks]
        left = dict(zip((task.found.path for task in tasks), sizes, strict=True))
        total = sum(sizes)

        def tell(file: reading.Found) -> None:
            left.pop(file.path)
            if progress is not None:
                progress(file.source_file, len(tasks) - len(left), len(tasks), total - sum(left.values()), total)

        outcomes = engine.read_all(tasks, self.tool_rows, tell)
        for task, before, outcome in zip(tasks, befores, outcomes, strict=True):
            self._take(task, before, outcome)

    def _take(self, task: workers.Task, before: dict[str, Any] | None, outcome: workers.Outcome) -> None:
        """Enter what one file gave; its failure to open is a reject, not an error."""
        file = task.found
        source_file = file.source_file
        if self._shown.get(source_file, file.path) != file.path:
            source_file = file.path
        if isinstance(outcome, OSError):
            self._refuse(file.path, source_file, "permission" if isinstance(outcome, PermissionError) else "unreadable")
            return
        result, frame = outcome
        row = result.row
        if row["source_id"] == task.source_id:
            row["source_file"] = source_file
        if before is not None and before["format"] and not row["format"] and file.size_bytes == 0:
            row["format"] = before["format"]
        if not row["format"] and not result.rejects and not row["count_waiting"]:
            self.passed[file.path] = [file.size_bytes, file.mtime_ns, file.inode]
            return
        if (link := self.known.get(f"refused:{source_file}")) is not None:
            self._supersede(link)
        if before is not None:
            row = row | {"source_file": before["source_file"]}
        source_id = row["source_id"]
        if source_id == task.source_id:
            if before is None:
                self.count_new += 1
            else:
                self.count_grown += 1
                self._supersede(before)
        else:
            self.count_grown += 1
        self._shown[row["source_file"]] = row["path"]
        if before is not None and before["source_id"] == source_id and before["order_us"] != row["order_us"]:
            self.moved.add(source_id)
        self.rows[source_id] = row
        self.changed.add(source_id)
        self.rejects.extend(result.rejects)
        if frame.height:
            self.count_records += frame.height
            self._pending.append(frame)
            if sum(f.height for f in self._pending) >= FLUSH_ROWS:
                self.flush()

    def _supersede(self, before: dict[str, Any]) -> None:
        old = before["source_id"]
        self.rows[old] = before | {"is_superseded": 1}
        self.changed.add(old)
        self.cleared.add(old)
        self.moved.add(old)

    def mark_dirty(self) -> None:
        """Buckets with records of a source that was rewritten, or whose place among the files is another now."""
        if self.moved:
            frame = self.writer.snapshot().scan("records").filter(pl.col("source_id").is_in(sorted(self.moved)))
            self.dirty.update(
                bucket_of(session) for session in frame.select("session_id").unique().collect()["session_id"].to_list()
            )

    def _refuse(self, path: str, source_file: str, reason: str) -> None:
        before = self.known.get(path)
        if before is not None and before["format"]:
            return
        if before is None:
            found = reading.Found(path, source_file.encode("utf-8", "replace").decode(), 0, 0, 0, False)
            before = reading._blank_row(found, self._next_id)
            self._next_id += 1
            self.rows[before["source_id"]] = before
            self.known[path] = before
            self.changed.add(before["source_id"])
            self.rejects.append((before["source_id"], 0, 0, reason, None))

    def note_refused(self, refused: Sequence[tuple[str, str]]) -> None:
        """Links, FIFOs and unreadable folders: a reject each, once."""
        for name, reason in refused:
            self._refuse(f"refused:{name}", name, reason)

    def note_gone(self, found: Sequence[reading.Found], roots: Sequence[str] | None) -> None:
        """Files of the ledger under `roots` (None: anywhere) that are gone from disk: their rows stay, it is said."""
        present = {file.path for file in found}
        for path, row in self.known.items():
            is_asked = not path.startswith("refused:") if roots is None else reading.is_below(path, roots)
            if path not in present and not row["is_gone"] and is_asked:
                self.rows[row["source_id"]] = self.rows[row["source_id"]] | {"is_gone": 1}
                self.changed.add(row["source_id"])
                self.count_gone += 1

    def note_moved(self) -> None:
        """Files that are gone from their place and stand elsewhere (moved, rotated, packed): the new place counts."""
        if not self.changed:
            return
        present: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.rows.values():
            if row["format"] and row["order_sha256"] and not row["is_gone"] and not row["is_superseded"]:
                present.setdefault((row["format"], row["order_sha256"]), []).append(row)
        for row in list(self.rows.values()):
            if not row["is_gone"] or row["is_superseded"]:
                continue
            others = present.get((row["format"], row["order_sha256"]), ())
            if any(reading.stands_for(other, row) for other in others):
                self.count_gone -= not self.known[row["path"]]["is_gone"]
                self._supersede(row)

    def note_lost(self) -> dict[str, int]:
        """Lines whose records are no longer in the lake, by file; from now on they count as not read."""
        held = held_lines(self.writer.snapshot())
        lost: dict[str, int] = {}
        for source_id, row in self.rows.items():
            missing = row["count_carrying"] - held.get(source_id, 0)
            if missing > 0 and not row["is_superseded"]:
                lost[row["source_file"]] = missing
                counts = {name: row[name] - missing for name in ("count_lines", "count_carrying")}
                self.rows[source_id] = row | counts
                self.changed.add(source_id)
        return lost

    def flush(self) -> None:
        """Stage what was read as one more records file per bucket."""
        if not self._pending:
            return
        frame = pl.concat(self._pending)
        self._pending = []
        sessions = frame.select(pl.col("session_id").unique())["session_id"].to_list()
        buckets = pl.DataFrame({"session_id": sessions, "bucket": [bucket_of(s) for s in sessions]})
        for key, part in (
            frame.join(buckets, on="session_id", maintain_order="left").partition_by("bucket", as_dict=True).items()
        ):
            bucket = int(key[0])
            self.writer.append(RECORDS, bucket, part.drop("bucket"))
            self.dirty.add(bucket)

    def rows_changed(self) -> list[dict[str, Any]]:
        """Ledger rows to write."""
        return [self.rows[source_id] for source_id in sorted(self.changed)]

    def count_rejected(self) -> int:
        """Rejects of this ingest."""
        return len(self.rejects)

    def all_rejects(self) -> list[tuple[int, int, int, str, str | None]]:
        """Rejects as they stand after this ingest."""
        return [r for r in self.writer.rejects() if r[0] not in self.cleared] + self.rejects

    def sources_frame(self) -> pl.DataFrame:
        """What `steps.build` needs to know of each source."""
        rows = [
            (r["source_id"], r["source_file"], r["order_us"], r["order_sha256"], bool(r["is_superseded"]))
            for r in self.rows.values()
        ]
        schema = {
            "source_id": pl.Int64(),
            "source_file": STR,
            "order_us": pl.Int64(),
            "order_sha256": STR,
            "is_superseded": pl.Boolean(),
        }
        return pl.DataFrame(rows, schema=schema, orient="row")


def _derive_dirty(
    writer: Writer,
    state: _Intake,
    settings: Settings,
    is_settled: bool,
    engine: Engine,
    progress: Progress | None,
    other: Snapshot | None = None,
) -> None:
    """`other`: the generation of another lake that the records come from."""
    source = other or writer.snapshot()
    shadows = find_shadows(record_index(source.scan("records")))
    dirty = set(state.dirty)
    is_same = False
    if is_settled:
        before = _read_shadows(writer.snapshot())
        dirty |= _changed_buckets(before, shadows)
        is_same = shadows.equals(before)
    else:
        dirty |= set(source.buckets("records"))
    if not is_same:
        writer.replace(SHADOWS, 0, shadows)
    todo = sorted(dirty)
    terms = Terms(state.sources_frame(), shadows, settings, other is not None)
    for count in engine.derive_all(writer, source, todo, terms):
        if progress is not None:
            progress("deriving", count, len(todo), 0, 0)
    _publish_counts(writer, state)


def held_lines(snapshot: Snapshot) -> dict[int, int]:
    """By source: how many of its lines have records in the lake."""
    lines = snapshot.scan(RECORDS.name).select("source_id", "source_line").unique().collect()
    return dict(lines.group_by("source_id").len().iter_rows())


def _read_shadows(snapshot: Snapshot) -> pl.DataFrame:
    paths = snapshot.paths(SHADOWS.name)
    return (
        pl.concat([pl.read_parquet(p, glob=False) for p in paths])
        if paths
        else find_shadows(record_index(RECORDS.empty().lazy()))
    )


def _changed_buckets(before: pl.DataFrame, after: pl.DataFrame) -> set[int]:
    keys = before.columns
    changed = pl.concat([before.join(after, on=keys, how="anti"), after.join(before, on=keys, how="anti")])
    return {bucket_of(session) for session in changed["session_id"].unique().to_list()}


def _publish_counts(writer: Writer, state: _Intake) -> None:
    """The tables about files: what became of every line (conservation), rejects, and folds by reason."""
    snapshot = writer.snapshot()
    parts = [pl.read_parquet(p, glob=False) for p in snapshot.paths(FOLDED.name)]
    schema = {"session_id": STR, "source_id": pl.Int64(), "source_line": pl.Int64(), "reason": STR}
    # A line belongs to one session in every known format; should one hold two, a copy in either folds it.
    folded = pl.concat(parts) if parts else pl.DataFrame(schema=schema)
    folded = folded.unique(["source_id", "source_line"], keep="first", maintain_order=True)
    per_source = folded.group_by("source_id", "reason").agg(pl.len().cast(pl.Int64).alias("count_lines"))
    live = {i: r for i, r in state.rows.items() if not r["is_superseded"] and not r["path"].startswith("refused:")}
    named = {i: r["source_file"] for i, r in state.rows.items() if not r["is_superseded"]}
    fold_rows = [(named[i], reason, n) for i, reason, n in per_source.iter_rows() if i in named]
    for source_id, row in live.items():
        fold_rows.extend((named[source_id], reason, n) for reason, n in reading.counts(row["folded"]).items())
    folds = (
        pl.DataFrame(fold_rows, schema=FOLDS.schema, orient="row")
        .group_by("source_file", "reason")
        .agg(pl.col("count_lines").sum())
    )
    rejects = [
        (named[i], line, offset, reason, sha) for i, line, offset, reason, sha in state.all_rejects() if i in named
    ]
    writer.replace(FOLDS, 0, FOLDS.conform(folds))
    writer.replace(
        REJECTS,
        0,
        REJECTS.conform(pl.DataFrame(rejects, schema=REJECTS.schema, orient="row").unique(maintain_order=True)),
    )
    count_folded = dict(folded.group_by("source_id").len().iter_rows())
    count_rejects: dict[int, int] = {}
    for source_id, line, _, _, _ in state.all_rejects():
        count_rejects[source_id] = count_rejects.get(source_id, 0) + (1 if line else 0)
    rows = []
    for source_id, row in live.items():
        inner = sum(reading.counts(row["folded"]).values())
        lines_folded = count_folded.get(source_id, 0)
        rows.append(
            (
                row["source_file"],
                row["format"],
                bool(row["is_experimental"]),
                bool(row["is_gone"]),
                row["size_bytes"],
                row["count_lines"] + row["count_waiting"],
                row["count_carrying"] - lines_folded,
                sum(reading.counts(row["nothing_types"]).values()),
                lines_folded + inner,
                count_rejects.get(source_id, 0),
                row["count_waiting"],
                sum(reading.counts(row["repair_kinds"]).values()),
                row["nothing_types"],
                row["repair_kinds"],
            )
        )
    writer.replace(SOURCES, 0, SOURCES.conform(pl.DataFrame(rows, schema=SOURCES.schema, orient="row")))


def _cover(snapshot: Snapshot) -> dict[str, str]:
    """Coverage of the prices, for the ledger: an ingest that finds nothing new reads it there."""
    priced, told = prices.coverage(snapshot.scan(TURNS.name).select(*TOKENS, "cost_micros").collect())
    return {"turns_priced": str(priced), "turns_told": str(told)}


def _coverage(writer: Writer) -> dict[str, int]:
    return {name: int(writer.meta(name) or 0) for name in ("turns_priced", "turns_told")}


def _report(snapshot: Snapshot, state: _Intake) -> dict[str, Any]:
    fresh = [
        (state.rows[i]["source_file"], line, reason)
        for i, line, _, reason, _ in sorted(state.rejects, key=lambda r: (state.rows[r[0]]["source_file"], r[1:]))
    ]
    return {"rejects": fresh} | _tables_report(snapshot)


def _tables_report(snapshot: Snapshot) -> dict[str, Any]:
    """What the summary says of the tables, kept in the ledger too, for the ingest that finds nothing new."""
    from loopstats import estimate

    sources = snapshot.read("sources")
    by_format = (
        sources.group_by("format")
        .agg(
            pl.len().alias("files"),
            pl.col("is_experimental").any().alias("is_experimental"),
            *[
                pl.col(f"count_{n}").sum().alias(n)
                for n in ("read", "used", "nothing", "folded", "rejected", "waiting", "repaired")
            ],
        )
        .sort("format")
    )
    harness_steps = (
        snapshot.scan("steps")
        .select("source_file")
        .collect()
        .join(sources.select("source_file", "format"), on="source_file", how="left")
        .group_by("format")
        .len("steps")
    )
    rows = (
        by_format.join(harness_steps, on="format", how="left").with_columns(pl.col("steps").fill_null(0)).sort("format")
    )
    unbalanced = sources.filter(
        pl.col("count_read")
        != pl.sum_horizontal("count_used", "count_nothing", "count_folded", "count_rejected", "count_waiting")
    )
    return {
        "formats": rows.to_dicts(),
        "unbalanced": unbalanced["source_file"].to_list(),
        "nothing_types": _summed(sources["nothing_types"].to_list()),
        "buckets": BUCKETS,
        "runs_oversize": count_oversize(snapshot),
        "warnings": [notice.text for notice in estimate.oversize(snapshot.scan(RUNS.name))],
        "tables": {name: snapshot.count_rows(name) for name in TABLES},
    }


def count_oversize(snapshot: Snapshot) -> int:
    """Runs beyond `OVERSIZE_STEPS`."""
    sizes = snapshot.scan(RUNS.name).select("count_steps").collect()["count_steps"]
    return int((sizes > OVERSIZE_STEPS).sum())


def _summed(texts: Iterable[str]) -> dict[str, int]:
    """Columns of counts by name, all in one; the most frequent name first."""
    total: Counter[str] = Counter()
    for text in texts:
        total.update(reading.counts(text))
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
