"""The stages in their order, and the one place around them where things are read and written.

A room of its own because a newcomer should see the whole line at once: `derive` is the line from records to loops, and
to what the hard rule does not see, for one bucket of complete sessions, `ingest` brings files in and makes the dirty buckets anew. The same `derive` runs here
and inside the partitions of a distributed engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from loopstats import audits, drift, runs
from loopstats import ingest as reading
from loopstats.assign import assign
from loopstats.classify import classify
from loopstats.config import Settings
from loopstats.detect import detect, enrol
from loopstats.errors import RejectsError
from loopstats.steps import build, find_shadows, record_index
from loopstats.store import Lake, Snapshot, Writer, bucket_of
from loopstats.tables import (
    BUCKETS, BYPASSES, CHASES, DELIVERIES, DETECTIONS, DRIFTS, ECHOES, FOLDS, GHOSTS, GUARDS, LOOPS, RECORDS, REJECTS,
    RESETS, RESULTS, RUNS, SESSIONS, SOURCES, STEPS, STR, TABLES, TURNS, Table,
)

BUCKETED: tuple[Table, ...] = (
    STEPS, TURNS, SESSIONS, DELIVERIES, DETECTIONS, GUARDS, RESULTS, LOOPS, DRIFTS, ECHOES, GHOSTS, CHASES, BYPASSES,
    RESETS, RUNS,
)
FOLDED = Table("folded", "lines folded in one bucket, internal", (), ())
SHADOWS = Table("shadows", "records of another session's history, internal", (), (), is_bucketed=False)
FLUSH_ROWS = 400_000
BATCH_ROWS = 500_000


def derive(records: pl.DataFrame, sources: pl.DataFrame, shadows: pl.DataFrame, settings: Settings) -> dict[str, pl.DataFrame]:
    """Every table of one bucket of complete sessions, by name, and `folded`: the line from records to loops."""
    built = build(records, sources, shadows)
    sessions = SESSIONS.conform(enrol(built.steps, built.sessions))
    loops = detect(built.steps, sessions)
    loops = assign(loops, sessions, built.detections, built.deliveries, settings.salts)
    blind = ("run_id", "signature", "rule", "is_enrolled", "detected_step", "detected_at")
    outcomes = classify(loops.select(blind), built.steps, built.turns, settings.maturity_us)
    loops = loops.join(outcomes.drop("detected_step", "detected_at"), on=["run_id", "signature", "rule", "is_enrolled"], how="left")
    loops = loops.with_columns(pl.lit(settings.rule_digest).alias("rule_digest"), pl.col("rule").alias("rule_version"))
    loops = LOOPS.conform(loops)
    steps = STEPS.conform(drift.world(built.steps))
    findings = {
        "loops": loops, "drifts": drift.drifts(steps, built.turns), "echoes": drift.echoes(steps, built.turns),
        "ghosts": audits.ghosts(steps, built.guards, built.turns), "chases": audits.chases(steps, built.turns),
        "bypasses": audits.bypasses(steps, built.guards, built.turns), "resets": audits.resets(steps, built.guards, built.turns),
    }
    evaluated = runs.evaluate(steps, built.turns, sessions, built.results, drift.frozen_stretches(steps), findings)
    return {
        "steps": steps, "turns": built.turns, "sessions": sessions, "deliveries": built.deliveries,
        "detections": built.detections, "guards": built.guards, "results": built.results, **findings, "runs": evaluated,
        "folded": built.folded,
    }


def ingest(lake: Lake, paths: Sequence[str], settings: Settings, *, is_full: bool = False, max_rejects: int | None = None,
           progress: Callable[[str, int, int], None] | None = None) -> dict[str, Any]:
    """Read what is new under `paths` and bring every derived table up to date; one commit, or nothing.

    Gives the counts for the summary: files by what became of them, and per format steps, folds and rejects.
    """
    found, refused = reading.discover(paths)
    with lake.write() as writer:
        known = {row["path"]: row for row in writer.sources() if not row["is_superseded"]}
        todo, count_same = (list(found), 0) if is_full else reading.plan(found, known)
        state = _Intake(writer, settings, known)
        for number, file in enumerate(todo):
            if progress is not None:
                progress(file.source_file, number, len(todo))
            state.read(file, is_full)
        state.note_gone(found, paths)
        state.note_refused(refused)
        summary = {
            "files_new": state.count_new, "files_grown": state.count_grown, "files_same": count_same,
            "files_gone": state.count_gone, "files_skipped": state.count_skipped, "records": state.count_records,
        }
        is_settled = writer.meta("derived_digest") == settings.derived_digest
        if state.is_empty and is_settled:
            return summary | _report(writer.snapshot(), state)
        state.flush()
        if max_rejects is not None and (count := state.count_rejected()) > max_rejects:
            raise RejectsError(f"{count} records were rejected, more than --max-rejects {max_rejects}; nothing was written")
        _derive_dirty(writer, state, settings, is_settled, progress)
        writer.commit(state.rows_changed(), state.rejects, sorted(state.cleared), {"derived_digest": settings.derived_digest})
        return summary | _report(writer.snapshot(), state)


class _Intake:
    """What one ingest has read so far: ledger rows, rejects and staged records. Nothing of it is true before the commit."""

    def __init__(self, writer: Writer, settings: Settings, known: dict[str, dict[str, Any]]) -> None:
        self.writer = writer
        self.tool_rows = dict(settings.tool_rows)
        self.rows: dict[int, dict[str, Any]] = {row["source_id"]: row for row in writer.sources()}
        self.known = known
        self.changed: set[int] = set()
        self.cleared: set[int] = set()
        self.rejects: list[tuple[int, int, int, str, str | None]] = []
        self.dirty: set[int] = set()
        self.count_new = self.count_grown = self.count_gone = self.count_skipped = self.count_records = 0
        self._pending: list[pl.DataFrame] = []
        self._next_id = max(self.rows, default=0) + 1
        self._shown = {row["source_file"]: row["path"] for row in known.values()}

    @property
    def is_empty(self) -> bool:
        """Nothing was read and nothing is known anew."""
        return not self.changed and not self.rejects

    def read(self, file: reading.Found, is_full: bool) -> None:
        """Read one file; its failure to open is a reject, not an error."""
        before = self.known.get(file.path)
        if self._shown.get(file.source_file, file.path) != file.path:
            file = reading.Found(file.path, file.path, file.size_bytes, file.mtime_ns, file.inode, file.is_named)
        try:
            result = reading.read_source(file, None if is_full else before, self._next_id, self.tool_rows)
        except OSError as error:
            reason = "permission" if isinstance(error, PermissionError) else "unreadable"
            self._refuse(file.path, file.source_file, reason)
            return
        row = result.row
        if not row["format"] and not result.rejects:
            self.count_skipped += 1
            return
        if before is not None:
            row = row | {"source_file": before["source_file"]}
        source_id = row["source_id"]
        if source_id == self._next_id:
            self._next_id += 1
            if before is None:
                self.count_new += 1
            else:
                self.count_grown += 1
                self._supersede(before)
        else:
            self.count_grown += 1
        self._shown[row["source_file"]] = row["path"]
        self.rows[source_id] = row
        self.changed.add(source_id)
        self.rejects.extend(result.rejects)
        if any(result.rows.values()):
            frame = reading.frame_of(result.rows)
            self.count_records += frame.height
            self._pending.append(frame)
            if sum(f.height for f in self._pending) >= FLUSH_ROWS:
                self.flush()

    def _supersede(self, before: dict[str, Any]) -> None:
        old = before["source_id"]
        self.rows[old] = before | {"is_superseded": 1}
        self.changed.add(old)
        self.cleared.add(old)
        self.dirty.update(self._buckets_of_source(old))

    def _buckets_of_source(self, source_id: int) -> list[int]:
        frame = self.writer.snapshot().scan("records").filter(pl.col("source_id") == source_id).select("session_id").unique().collect()
        return sorted({bucket_of(session) for session in frame["session_id"].to_list()})

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

    def note_gone(self, found: Sequence[reading.Found], paths: Sequence[str]) -> None:
        """Files of the ledger under `paths` that are no longer on disk: their rows stay, and it is said."""
        present = {file.path for file in found}
        roots = reading.resolved_roots(paths)
        for path, row in self.known.items():
            is_below = any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
            if is_below and path not in present and not row["is_gone"] and not path.startswith("refused:"):
                self.rows[row["source_id"]] = self.rows[row["source_id"]] | {"is_gone": 1}
                self.changed.add(row["source_id"])
                self.count_gone += 1

    def flush(self) -> None:
        """Stage what was read as one more records file per bucket."""
        if not self._pending:
            return
        frame = pl.concat(self._pending)
        self._pending = []
        sessions = frame.select(pl.col("session_id").unique())["session_id"].to_list()
        buckets = pl.DataFrame({"session_id": sessions, "bucket": [bucket_of(s) for s in sessions]})
        for key, part in frame.join(buckets, on="session_id", maintain_order="left").partition_by("bucket", as_dict=True).items():
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
            (r["source_id"], r["source_file"], r["order_us"], r["order_sha256"], bool(r["is_superseded"])) for r in self.rows.values()
        ]
        schema = {"source_id": pl.Int64(), "source_file": STR, "order_us": pl.Int64(), "order_sha256": STR, "is_superseded": pl.Boolean()}
        return pl.DataFrame(rows, schema=schema, orient="row")


def _derive_dirty(writer: Writer, state: _Intake, settings: Settings, is_settled: bool,
                  progress: Callable[[str, int, int], None] | None) -> None:
    snapshot = writer.snapshot()
    shadows = find_shadows(record_index(snapshot.scan("records")))
    before = _read_shadows(snapshot)
    dirty = set(state.dirty) | _changed_buckets(before, shadows)
    if not is_settled:
        dirty |= set(snapshot.buckets("records"))
    if not shadows.equals(before):
        writer.replace(SHADOWS, 0, shadows)
    sources = state.sources_frame()
    todo = sorted(dirty)
    for number, batch in enumerate(_batches(snapshot, todo)):
        if progress is not None:
            progress("deriving", number * len(batch), len(todo))
        records = pl.concat([snapshot.scan("records", bucket).collect() for bucket in batch])
        tables = derive(records, sources, shadows, settings)
        for table in (*BUCKETED, FOLDED):
            for bucket, part in zip(batch, split(tables[table.name], batch), strict=True):
                writer.replace(table, bucket, part)
    _publish_counts(writer, state)


def _batches(snapshot: Snapshot, buckets: Sequence[int]) -> list[list[int]]:
    """Buckets in groups of at most about `BATCH_ROWS` records: small lakes in one go, large ones in bounded memory."""
    sizes = {bucket: 0 for bucket in buckets}
    for file in snapshot.files:
        if file.name == RECORDS.name and file.bucket in sizes:
            sizes[file.bucket] += file.count_rows
    batches: list[list[int]] = []
    room = 0
    for bucket in buckets:
        if room < sizes[bucket] or not batches:
            batches.append([])
            room = BATCH_ROWS
        batches[-1].append(bucket)
        room -= sizes[bucket]
    return batches


def split(frame: pl.DataFrame, buckets: Sequence[int]) -> list[pl.DataFrame]:
    """Rows of `frame` by the bucket of their session, in the order of `buckets`."""
    if len(buckets) == 1:
        return [frame]
    names = frame["session_id"].unique(maintain_order=True).to_list()
    keys = pl.DataFrame({"session_id": names, "bucket_": [bucket_of(name) for name in names]}, schema={"session_id": STR, "bucket_": pl.Int64()})
    parts = frame.join(keys, on="session_id", how="left", maintain_order="left").partition_by("bucket_", as_dict=True, include_key=False)
    return [parts.get((bucket,), frame.clear()) for bucket in buckets]


def _read_shadows(snapshot: Snapshot) -> pl.DataFrame:
    paths = snapshot.paths(SHADOWS.name)
    return pl.concat([pl.read_parquet(p, glob=False) for p in paths]) if paths else find_shadows(record_index(RECORDS.empty().lazy()))


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
    folds = pl.DataFrame(fold_rows, schema=FOLDS.schema, orient="row").group_by("source_file", "reason").agg(pl.col("count_lines").sum())
    rejects = [(named[i], line, offset, reason, sha) for i, line, offset, reason, sha in state.all_rejects() if i in named]
    writer.replace(FOLDS, 0, FOLDS.conform(folds))
    writer.replace(REJECTS, 0, REJECTS.conform(pl.DataFrame(rejects, schema=REJECTS.schema, orient="row").unique(maintain_order=True)))
    count_folded = dict(folded.group_by("source_id").len().iter_rows())
    count_rejects: dict[int, int] = {}
    for source_id, line, _, _, _ in state.all_rejects():
        count_rejects[source_id] = count_rejects.get(source_id, 0) + (1 if line else 0)
    rows = []
    for source_id, row in live.items():
        inner = sum(reading.counts(row["folded"]).values())
        lines_folded = count_folded.get(source_id, 0)
        rows.append((
            row["source_file"], row["format"], bool(row["is_experimental"]), bool(row["is_gone"]), row["size_bytes"],
            row["count_lines"] + row["count_waiting"], row["count_carrying"] - lines_folded, sum(reading.counts(row["nothing_types"]).values()),
            lines_folded + inner, count_rejects.get(source_id, 0), row["count_waiting"],
            sum(reading.counts(row["repair_kinds"]).values()), row["nothing_types"], row["repair_kinds"],
        ))
    writer.replace(SOURCES, 0, SOURCES.conform(pl.DataFrame(rows, schema=SOURCES.schema, orient="row")))


def _report(snapshot: Snapshot, state: _Intake) -> dict[str, Any]:
    sources = snapshot.read("sources")
    by_format = sources.group_by("format").agg(
        pl.len().alias("files"), pl.col("is_experimental").any().alias("is_experimental"),
        *[pl.col(f"count_{n}").sum().alias(n) for n in ("read", "used", "nothing", "folded", "rejected", "waiting", "repaired")],
    ).sort("format")
    harness_steps = snapshot.scan("steps").select("source_file").collect().join(
        sources.select("source_file", "format"), on="source_file", how="left"
    ).group_by("format").len("steps")
    rows = by_format.join(harness_steps, on="format", how="left").with_columns(pl.col("steps").fill_null(0)).sort("format")
    fresh = [
        (state.rows[i]["source_file"], line, reason) for i, line, _, reason, _ in sorted(state.rejects, key=lambda r: (state.rows[r[0]]["source_file"], r[1:]))
    ]
    unbalanced = sources.filter(
        pl.col("count_read") != pl.sum_horizontal("count_used", "count_nothing", "count_folded", "count_rejected", "count_waiting")
    )
    return {"formats": rows.to_dicts(), "rejects": fresh, "unbalanced": unbalanced["source_file"].to_list(),
            "buckets": BUCKETS, "tables": {name: snapshot_count(snapshot, name) for name in TABLES}}


def snapshot_count(snapshot: Snapshot, name: str) -> int:
    """Rows of a table by the manifest, without opening a file."""
    return sum(f.count_rows for f in snapshot.files if f.name == name)
