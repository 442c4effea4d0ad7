"""The questions behind `drift`, `audit`, `waste`, `runs` and `ladder`: which runs, known when, in which columns.

A room of its own because these commands share how they choose: by the end of a run, at an as-of. What was found is kept
in the lake for everything that is known; for an earlier as-of the stages are run again over the steps up to it, so that
a result for a given lake and as-of is the same for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

import polars as pl

from loopstats import audits, compare, drift, ladder, query, runs, waste
from loopstats.errors import NothingError, UsageError
from loopstats.estimate import Rate
from loopstats.when import Interval, iso, moment

if TYPE_CHECKING:
    from loopstats.query import Filters
    from loopstats.store import Snapshot

Tables = Mapping[str, pl.DataFrame]
NAMES = (
    "steps",
    "turns",
    "sessions",
    "guards",
    "results",
    "loops",
    "drifts",
    "echoes",
    "ghosts",
    "chases",
    "bypasses",
    "resets",
    "runs",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def tables_as_of(snapshot: Snapshot, as_of_us: int) -> dict[str, pl.DataFrame]:
    """The tables that these commands read, as they would stand had nothing come after the as-of."""
    tables = {name: snapshot.read(name) for name in NAMES}
    at = _EPOCH + timedelta(microseconds=as_of_us)
    tables["loops"] = _seen(tables["loops"], at)
    is_known = (pl.col("ts") <= at).fill_null(True)
    timed = ("steps", "turns", "guards", "results")
    known = {name: tables[name].filter(is_known) for name in timed}
    if all(known[name].height == tables[name].height for name in timed):
        return tables
    tables |= known
    steps, turns, guards = known["steps"], known["turns"], known["guards"]
    ends = steps.group_by("run_id").agg(pl.col("step").max().alias("last_known"))
    tables["loops"] = (
        tables["loops"]
        .join(ends, on="run_id", how="left", maintain_order="left")
        .with_columns(pl.coalesce("last_known", "last_step").alias("last_step"))
        .drop("last_known")
    )
    tables |= {
        "drifts": drift.drifts(steps, turns),
        "echoes": drift.echoes(steps, turns),
        "ghosts": audits.ghosts(steps, guards, turns),
        "chases": audits.chases(steps, turns),
        "bypasses": audits.bypasses(steps, guards, turns),
        "resets": audits.resets(steps, guards, turns),
    }
    tables["runs"] = runs.evaluate(
        steps, turns, tables["sessions"], known["results"], drift.frozen_stretches(steps), tables
    )
    return tables


def _seen(loops: pl.DataFrame, at: datetime) -> pl.DataFrame:
    """The loops known at the time; of a pending one neither the outcome nor what follows from it."""
    is_pending = (pl.col("mature_at") > at).fill_null(False)
    hidden = [pl.when(~is_pending).then(pl.col(name)).alias(name) for name in query.DECIDED]
    outcome = pl.when(is_pending).then(pl.lit("pending")).otherwise("outcome").alias("outcome")
    return loops.filter((pl.col("detected_at") <= at).fill_null(True)).with_columns(outcome, *hidden)


def chosen(tables: Tables, interval: Interval, filters: Filters) -> dict[str, pl.DataFrame]:
    """The tables of the runs that ended in the interval and meet the filters; `--where` sees the columns of `runs`."""
    if filters.tools:
        raise UsageError(
            "--tool: a run has many tools; use it with drift or waste, or --where over the columns of runs"
        )
    kept = query.choose(tables["runs"], interval, filters, "last_at")
    ids = kept.select("run_id")
    return {
        name: kept
        if name == "runs"
        else frame.join(ids, on="run_id", how="semi", maintain_order="left")
        if "run_id" in frame.columns
        else frame
        for name, frame in tables.items()
    }


def ended(tables: Tables, interval: Interval, filters: Filters) -> pl.DataFrame:
    """The runs that ended in the interval and meet the filters, newest first."""
    frame = chosen(tables, interval, filters)["runs"]
    return frame.sort("last_at", "run_id", descending=[True, False], nulls_last=True)


def drifts(tables: Tables, interval: Interval, filters: Filters, is_all: bool) -> tuple[pl.DataFrame, str]:
    """Rows of `drifts` by the time of their detection, newest first (drift/1; all rules with `is_all`), and in words
    the share of the runs that ended in the interval and are long enough, whatever `--tool` and `--where` say."""
    frame = query.choose(tables["drifts"], interval, filters, "detected_at")
    shown = frame if is_all else frame.filter(pl.col("rule") == drift.DRIFT_1)
    ended = query.choose(tables["runs"], interval, replace(filters, tools=(), where=None), "last_at")
    long_enough = ended.filter(pl.col("count_steps") >= drift.WINDOW)
    rate = Rate(long_enough.filter(pl.col("count_drifts") > 0).height, long_enough.height)
    text = f"{drift.DRIFT_1} in {rate} runs with {drift.WINDOW} steps or more"
    return shown.sort(
        "detected_at", "run_id", "rule", "first_step", descending=[True, False, False, False], nulls_last=True
    ), text


def audit(tables: Tables, is_all: bool) -> pl.DataFrame:
    """One line a kind of finding with its rate, or with `is_all` one row a finding."""
    done = audits.audit(tables)
    if is_all:
        return done.rows
    lines = done.lines()
    rates = [str(Rate(x, n)) for x, n in lines.select("x", "n").iter_rows()]
    return lines.with_columns(pl.Series("rate", rates, dtype=pl.String))


def wasted(tables: Tables, interval: Interval, filters: Filters, by: Sequence[str]) -> tuple[pl.DataFrame, str]:
    """Totals of the wasted turns of the interval, by columns of `waste.WASTE_BY`; and their coverage in words.

    What a pending loop wastes is not known before its outcome is: such loops are counted in the words alone.
    """
    is_pending = pl.col("outcome") == "pending"
    decided, pending = tables["loops"].filter(~is_pending), tables["loops"].filter(is_pending)
    pending = query.choose(pending, interval, replace(filters, where=None), "detected_at")
    turns = waste.wasted_turns(waste.stretches_of(decided, tables["drifts"]), tables["steps"], tables["turns"])
    turns = query.choose(turns, interval, filters, "ts")
    everything = query.choose(
        tables["turns"],
        Interval(interval.as_of_us, interval.since_us, interval.until_us, interval.tz),
        query.Filters(),
        "ts",
    )
    total = waste.waste(turns, everything).row(0, named=True)
    text = (
        f"{total['count_turns']} turns in {total['count_runs']} runs, each counted once; tokens told for "
        f"{Rate(total['count_turns_told'], total['count_turns'])}, price known for "
        f"{Rate(total['count_turns_priced'], total['count_turns'])}"
    )
    if pending.height:
        text += f"; not known yet for {pending.height} pending loop{'' if pending.height == 1 else 's'}"
    return waste.waste(turns, everything, by), text


def by_week(tables: Tables, interval: Interval, filters: Filters) -> pl.DataFrame:
    """Runs by the week of their end (its Monday, UTC; null: no time), oldest first, with what was found in them.

    count_runs, count_looping of them with a strategy loop, count_echoing with an echo; count_long of them with enough
    steps for drift/1, count_drifting of these with one.
    """
    ended = query.choose(tables["runs"], interval, replace(filters, tools=(), where=None), "last_at")
    is_long = pl.col("count_steps") >= drift.WINDOW
    totals = {
        "count_runs": pl.col("run_id").is_not_null(),
        "count_looping": pl.col("count_loops") > 0,
        "count_echoing": pl.col("count_echoes") > 0,
        "count_long": is_long,
        "count_drifting": is_long & (pl.col("count_drifts") > 0),
    }
    return (
        ended.with_columns(pl.col("last_at").dt.truncate("1w").dt.strftime("%Y-%m-%d").alias("week"))
        .group_by("week")
        .agg([chosen.sum().cast(pl.Int64).alias(name) for name, chosen in totals.items()])
        .sort("week", nulls_last=True)
    )


def compared(table: pl.DataFrame, a: str, b: str, by: str, interval: Interval, zone: tzinfo) -> compare.Compared:
    """Runs with `a` in the column `by` against those with `b`; by `period` each is `START..END` as --since has it."""
    if by == "period":
        sides = [_period(table, text, interval, zone) for text in (a, b)]
    elif by in compare.GROUPS:
        sides = [table.filter(pl.col(by) == value) for value in (a, b)]
    else:
        raise UsageError(f"runs --compare --by {by}: use one of period, {', '.join(compare.GROUPS)}")
    for value, side in zip((a, b), sides, strict=True):
        if not side.height:
            known = (
                ""
                if by == "period"
                else "; there are: " + ", ".join(table[by].drop_nulls().unique().sort().head(10).to_list())
            )
            raise NothingError(f"no run has {by} {value!r}{known}")
    return compare.compare(sides[0], sides[1], a, b)


def _period(table: pl.DataFrame, text: str, interval: Interval, zone: tzinfo) -> pl.DataFrame:
    start, dots, end = text.partition("..")
    if not dots or not start:
        raise UsageError(f"runs --by period {text!r}: write START..END, e.g. 2026-11-01..2026-11-08 or 14d..7d")
    low = moment(start, interval.as_of_us, zone, "--compare")
    high = moment(end, interval.as_of_us, zone, "--compare") if end else None
    ends = [pl.lit(True)]
    if low is not None:
        ends.append(pl.col("last_at") >= _EPOCH + timedelta(microseconds=low))
    if high is not None:
        ends.append(pl.col("last_at") < _EPOCH + timedelta(microseconds=high))
    if low is not None and high is not None and low >= high:
        raise UsageError(f"runs --by period {text!r}: {iso(low)} is not before {iso(high)}")
    return table.filter(pl.all_horizontal(ends))


def climbed(policy: ladder.Policy, tables: Tables) -> tuple[pl.DataFrame, pl.DataFrame, str]:
    """The ladder's tiers, the faults of the policy, and what was replayed in words."""
    done = ladder.replay(policy, tables["steps"], tables["guards"], tables["turns"])
    schema: dict[str, Any] = {"run_id": pl.String, "step": pl.Int64, "detail": pl.String}
    faults = pl.DataFrame(done.fault_rows(), schema_overrides=schema)
    tiers = pl.DataFrame(
        done.tier_rows(),
        schema_overrides={
            "cleared_first_by": pl.String,
            "median_first_step": pl.Float64,
            "tokens_left": pl.Int64,
            "cost_left_micros": pl.Int64,
        },
    )
    named = done.named()
    text = f"policy {policy.name}: {done.count_cycles} cycles of {done.count_runs} runs; " + (
        f"faults ({len(named)}): {', '.join(named)}" if named else "no fault"
    )
    return tiers, faults, text
