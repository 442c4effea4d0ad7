"""The line from records to loops: the stages in their order, for batches of complete sessions.

A room of its own because a newcomer should see the whole line at once, and because whoever works, this machine or a
cluster's partitions, has to run the very same one: `derive` is the line itself, pure; `make` deals its tables out to
their buckets, and `make_batch` does so from files, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import polars as pl

from loopstats import audits, drift, prices, runs
from loopstats.assign import assign
from loopstats.classify import classify
from loopstats.config import Settings
from loopstats.detect import detect, enrol
from loopstats.steps import build
from loopstats.store import Snapshot, bucket_of, scan_files
from loopstats.tables import (
    BYPASSES,
    CHASES,
    DELIVERIES,
    DETECTIONS,
    DRIFTS,
    ECHOES,
    GHOSTS,
    GUARDS,
    LOOPS,
    RECORDS,
    RESETS,
    RESULTS,
    RUNS,
    SESSIONS,
    STEPS,
    STR,
    TURNS,
    Table,
)

BUCKETED: tuple[Table, ...] = (
    STEPS,
    TURNS,
    SESSIONS,
    DELIVERIES,
    DETECTIONS,
    GUARDS,
    RESULTS,
    LOOPS,
    DRIFTS,
    ECHOES,
    GHOSTS,
    CHASES,
    BYPASSES,
    RESETS,
    RUNS,
)
FOLDED = Table("folded", "lines folded in one bucket, internal", (), ())
Item = TypeVar("Item")
BATCH_ROWS = 200_000  # records that are made at once: about 2 kB of memory each


@dataclass(frozen=True)
class Terms:
    """What `derive` needs beside the records: the same for every bucket, and small enough to be sent along."""

    sources: pl.DataFrame
    shadows: pl.DataFrame
    settings: Settings
    is_copied: bool = False  # the records go into another lake too


class Batch(NamedTuple):
    """Buckets that are made together, and the files of their records."""

    buckets: list[int]
    paths: list[Path]


def derive(
    records: pl.LazyFrame, sources: pl.DataFrame, shadows: pl.DataFrame, settings: Settings
) -> dict[str, pl.DataFrame]:
    """Every table of one bucket of complete sessions, by name, and `folded`: the line from records to loops."""
    built = build(records, sources, shadows)
    built = replace(built, turns=prices.priced(built.turns, settings.prices))
    sessions = SESSIONS.conform(enrol(built.steps, built.sessions))
    loops = detect(built.steps, sessions)
    loops = assign(loops, sessions, built.detections, built.deliveries, settings.salts)
    blind = ("run_id", "signature", "rule", "is_enrolled", "detected_step", "detected_at")
    outcomes = classify(loops.select(blind), built.steps, built.turns, settings.maturity_us)
    loops = loops.join(
        outcomes.drop("detected_step", "detected_at"), on=["run_id", "signature", "rule", "is_enrolled"], how="left"
    )
    loops = loops.with_columns(pl.lit(settings.rule_digest).alias("rule_digest"), pl.col("rule").alias("rule_version"))
    loops = LOOPS.conform(loops)
    steps = STEPS.conform(drift.world(built.steps))
    findings = {
        "loops": loops,
        "drifts": drift.drifts(steps, built.turns),
        "echoes": drift.echoes(steps, built.turns),
        "ghosts": audits.ghosts(steps, built.guards, built.turns),
        "chases": audits.chases(steps, built.turns),
        "bypasses": audits.bypasses(steps, built.guards, built.turns),
        "resets": audits.resets(steps, built.guards, built.turns),
    }
    evaluated = runs.evaluate(steps, built.turns, sessions, built.results, drift.frozen_stretches(steps), findings)
    return {
        "steps": steps,
        "turns": built.turns,
        "sessions": sessions,
        "deliveries": built.deliveries,
        "detections": built.detections,
        "guards": built.guards,
        "results": built.results,
        **findings,
        "runs": evaluated,
        "folded": built.folded,
        "obsolete": built.obsolete,
    }


def make_batch(batch: Batch, terms: Terms, rows: int = BATCH_ROWS) -> Iterator[tuple[Table, int, pl.DataFrame]]:
    """`make` of what lies in files; a batch of more than `rows` records goes by groups of sessions, one after another.

    What is made of a large bucket is held whole, a row of a table being much smaller than the records behind it.
    """
    scanned = scan_files(RECORDS, batch.paths)
    sizes = dict(scanned.group_by("session_id").agg(pl.len().alias("n")).collect().iter_rows())
    groups = _session_groups(sizes, rows) or [[]]
    made: dict[tuple[str, int], tuple[Table, list[pl.DataFrame]]] = {}
    obsolete: list[pl.DataFrame] = []
    for group in groups:
        records = scanned if len(groups) == 1 else scanned.filter(pl.col("session_id").is_in(group))
        # A session that is larger by itself stays in its files, and of each type the columns are read that it has.
        if sum(sizes[session] for session in group) <= rows:
            records = _lean(records.collect()).lazy()
        if len(groups) == 1:
            yield from make(records, batch.buckets, terms)
            return
        tables = derive(records, terms.sources, terms.shadows, terms.settings)
        obsolete.append(tables["obsolete"])
        for table, bucket, part in _by_bucket(tables, batch.buckets):
            made.setdefault((table.name, bucket), (table, []))[1].append(part)
    for key in list(made):
        table, parts = made.pop(key)
        whole = pl.concat(parts)
        yield table, key[1], whole.sort(table.key, maintain_order=True) if table.key else whole
    yield from _still_needed(scanned, pl.concat(obsolete), batch.buckets, terms.is_copied)


def _session_groups(sizes: dict[str, int], rows: int) -> list[list[str]]:
    """Sessions in groups of about `rows` records. A session `s/a` stays beside the subagent `a` of `s`."""
    families: dict[str, list[str]] = {}
    for session in sorted(sizes):
        families.setdefault(session.partition("/")[0], []).append(session)
    sized = [(family, sum(sizes[session] for session in family)) for family in families.values()]
    return [[session for family in group for session in family] for group in in_groups(sized, rows)]


def in_groups(sized: Iterable[tuple[Item, int]], room: int) -> list[list[Item]]:
    """Items with their sizes in groups of together at most `room`, in order; one that is larger is a group alone."""
    groups: list[list[Item]] = []
    left = 0
    for item, size in sized:
        if left < size or not groups:
            groups.append([])
            left = room
        groups[-1].append(item)
        left -= size
    return groups


def make(records: pl.LazyFrame, buckets: Sequence[int], terms: Terms) -> Iterator[tuple[Table, int, pl.DataFrame]]:
    """Every table of complete buckets as (table, bucket, rows), those without rows too: what any engine runs.

    Records come back where some of them are no longer needed, and all of them where another lake is filled.
    """
    tables = derive(records, terms.sources, terms.shadows, terms.settings)
    yield from _by_bucket(tables, buckets)
    yield from _still_needed(records, tables["obsolete"], buckets, terms.is_copied)


def _by_bucket(tables: dict[str, pl.DataFrame], buckets: Sequence[int]) -> Iterator[tuple[Table, int, pl.DataFrame]]:
    for table in (*BUCKETED, FOLDED):
        for bucket, part in zip(buckets, split(tables[table.name], buckets), strict=True):
            yield table, bucket, part


def _still_needed(
    records: pl.LazyFrame, obsolete: pl.DataFrame, buckets: Sequence[int], is_copied: bool
) -> Iterator[tuple[Table, int, pl.DataFrame]]:
    """Records of the buckets that lose some, or of all; obsolete are those that a rewritten file's newer form has."""
    sessions = obsolete["session_id"].unique().to_list()
    touched = list(buckets) if is_copied else sorted({bucket_of(session) for session in sessions})
    if not touched:
        return
    if obsolete.height:
        keys = ["session_id", "source_id", "source_line", "ordinal"]
        records = records.join(obsolete.lazy(), on=keys, how="anti", maintain_order="left")
    names = records.select(pl.col("session_id").unique()).collect()["session_id"].to_list()
    wanted = [name for name in names if bucket_of(name) in set(touched)]
    rest = records.filter(pl.col("session_id").is_in(wanted)).collect()
    for bucket, part in zip(touched, split(rest, touched), strict=True):
        yield RECORDS, bucket, part


def _lean(frame: pl.DataFrame) -> pl.DataFrame:
    """The same, its columns without any value held as one null: of a record's many columns those are the most."""
    empty = [name for name in frame.columns if frame[name].null_count() == frame.height]
    return frame.with_columns([pl.lit(None, dtype=frame.schema[name]).alias(name) for name in empty])


def batches(snapshot: Snapshot, buckets: Sequence[int], rows: int) -> list[Batch]:
    """Buckets in groups of at most about `rows` records: small lakes in one go, large ones in bounded memory."""
    sizes = dict.fromkeys(buckets, 0)
    for file in snapshot.files:
        if file.name == RECORDS.name and file.bucket in sizes:
            sizes[file.bucket] += file.count_rows
    groups = in_groups([(bucket, sizes[bucket]) for bucket in buckets], rows)
    return [Batch(group, [p for bucket in group for p in snapshot.paths(RECORDS.name, bucket)]) for group in groups]


def split(frame: pl.DataFrame, buckets: Sequence[int]) -> list[pl.DataFrame]:
    """Rows of `frame` by the bucket of their session, in the order of `buckets`."""
    if len(buckets) == 1:
        return [frame]
    names = frame["session_id"].unique(maintain_order=True).to_list()
    keys = pl.DataFrame(
        {"session_id": names, "bucket_": [bucket_of(name) for name in names]},
        schema={"session_id": STR, "bucket_": pl.Int64()},
    )
    parts = frame.join(keys, on="session_id", how="left", maintain_order="left").partition_by(
        "bucket_", as_dict=True, include_key=False
    )
    none = frame.clear()
    return [parts.get((bucket,), none) for bucket in buckets]
