"""What a safety net hides: ghosts, chases, bypasses, clean resets, overrides, states without end (METHOD 12).

A room of its own because these rules judge the guards as much as the agent: they read the guards' own records beside
the steps. The first half are pure stages over complete runs whose rows are kept in the lake; the second half is the
audit, which counts the findings of a whole lake, each with the number of cases in which it could have been one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopstats import rule
from loopstats.tables import BYPASSES, CHASES, GHOSTS, RESETS, is_attempt
from loopstats.waste import spend, steps_of

GHOST_1 = "ghost/1"
CHASE_1 = "chase/1"
BYPASS_1 = "bypass/1"
CLEAN_RESET_1 = "clean-reset/1"
UNVERIFIED_1 = "unverified/1"
GHOST_WINDOW = 8
GHOST_FEW = 3
TIER_BLOCK = 3
SILENT_FACTOR = 3
# Longer than any log, and short enough to be added to a time.
TTL_CAP_S = 10_000_000_000
SILENT_GAPS = 3
ENDS_A_BLOCK = ("expire", "reset", "override")
_ABOUT = ("session_id", "tool", "kind", "harness", "model", "project", "group")


def _named(frame: pl.DataFrame, rule_name: str) -> pl.DataFrame:
    return frame.with_columns(pl.lit(rule_name).alias("rule"), pl.lit(rule_name).alias("rule_version"))


# --- ghosts -------------------------------------------------------------------------------------------------------


def ghosts(steps: pl.DataFrame, guards: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """GHOSTS of complete runs.

    Where the run's log has cycles (reason `cycle`), or guards but no cycles so that each model turn is one (`guard`),
    every cycle without an attempt or research. Elsewhere (`streak`) at least eight such turns in a row with fewer than
    three fingerprints that are new to the run. Turns that only wait are left out, unless they are a cycle of the log.
    """
    guarded = guards.select("run_id", pl.lit(True).alias("is_guarded")).unique()
    mine = (
        steps.filter(pl.col("actor") == "agent")
        .sort("run_id", "step")
        .join(guarded, on="run_id", how="left", maintain_order="left")
        .with_columns(
            pl.struct("run_id", "fingerprint").is_first_distinct().alias("is_new"),
            (pl.col("cycle").count().over("run_id") > 0).alias("has_cycles"),
            (is_attempt() | (pl.col("kind") == "research")).alias("is_seen"),
        )
        .with_columns(
            pl.when("has_cycles")
            .then("c" + pl.col("cycle"))
            .otherwise("d" + pl.col("decision").cast(pl.String))
            .alias("turn")
        )
        .filter(pl.col("turn").is_not_null())
    )
    cycles = (
        mine.group_by("run_id", "turn", maintain_order=True)
        .agg(
            pl.col("step").min().alias("first_step"),
            pl.col("step").max().alias("last_step"),
            pl.col("ts").min().alias("first_at"),
            pl.col("ts").max().alias("last_at"),
            pl.len().cast(pl.Int64).alias("count_steps"),
            (~pl.col("is_seen")).all().alias("is_ghost"),
            pl.col("is_new").sum().cast(pl.Int64).alias("new"),
            (pl.col("kind") == "wait").all().alias("is_waiting"),
            pl.col("has_cycles").first(),
            pl.col("is_guarded").fill_null(False).first(),
            pl.col(_ABOUT).first(),
        )
        .filter(pl.col("has_cycles") | ~pl.col("is_waiting"))
        .sort("run_id", "first_step")
    )
    is_judged = pl.col("has_cycles") | pl.col("is_guarded")
    fires = pl.when(is_judged).then(pl.col("is_ghost")).otherwise(pl.Series(_streaks(cycles), dtype=pl.Boolean))
    marked = cycles.with_columns(fires.alias("fires"))
    goes_on = (pl.col("fires").shift(1) & (pl.col("run_id") == pl.col("run_id").shift(1))).fill_null(False)
    found = (
        marked.with_columns((pl.col("fires") & ~goes_on).cum_sum().alias("episode"))
        .filter("fires")
        .group_by("episode", maintain_order=True)
        .agg(
            pl.col("run_id").first(),
            pl.col("first_step").first(),
            pl.col("last_step").max(),
            pl.col("first_at").first(),
            pl.col("last_at").max(),
            pl.len().cast(pl.Int64).alias("length"),
            pl.col("count_steps").sum(),
            pl.when(pl.col("has_cycles").first())
            .then(pl.lit("cycle"))
            .when(pl.col("is_guarded").first())
            .then(pl.lit("guard"))
            .otherwise(pl.lit("streak"))
            .alias("reason"),
            pl.col(_ABOUT).first(),
        )
    )
    return GHOSTS.conform(spend(_named(found, GHOST_1), steps, turns))


def _streaks(cycles: pl.DataFrame) -> NDArray[np.bool_]:
    """Cycles inside any window of eight of one run that are all ghosts and bring fewer than three new fingerprints."""
    n = cycles.height
    rows = np.arange(n)
    is_first = cycles.select((pl.col("run_id") != pl.col("run_id").shift(1)).fill_null(True)).to_series().to_numpy()
    start = np.maximum.accumulate(np.where(is_first, rows, 0)) if n else rows
    before = np.maximum(rows + 1 - GHOST_WINDOW, 0)
    sums = [np.concatenate([[0], np.cumsum(cycles[name].to_numpy().astype(np.int64))]) for name in ("is_ghost", "new")]
    count_ghosts, count_new = (total[1:] - total[before] for total in sums)
    ends = (rows - start + 1 >= GHOST_WINDOW) & (count_ghosts == GHOST_WINDOW) & (count_new < GHOST_FEW)
    reach = np.concatenate([np.cumsum(ends), np.full(GHOST_WINDOW, ends.sum())])
    is_inside: NDArray[np.bool_] = reach[rows + GHOST_WINDOW - 1] - reach[rows] + ends > 0
    return is_inside


# --- chases -------------------------------------------------------------------------------------------------------


def chases(steps: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """CHASES of complete runs: reads of what a truncated result had overflowed into, truncated again.

    One row per result that begins a chain; `length` counts all reads that hang on it, `depth` the longest chain. A path
    is compared as the target is written: with known roots mapped, and by its end where the target is relative.
    """
    spilled = steps.filter(pl.col("overflow_path").is_not_null() & pl.col("is_truncated").fill_null(True)).select(
        "run_id", pl.col("step").alias("parent"), pl.col("overflow_path")
    )
    places = {path: rule.place(path, None) for path in spilled["overflow_path"].unique().to_list()}
    spilled = spilled.with_columns(
        pl.col("overflow_path").replace_strict(places, default=None, return_dtype=pl.String).alias("overflow")
    )
    reads = steps.filter(
        (pl.col("actor") == "agent")
        & (pl.col("kind") == "read")
        & pl.col("is_truncated").fill_null(False)
        & (pl.col("target") != "")
    ).select("run_id", "step", "target")
    name = pl.col("overflow").str.split("/").list.last(), pl.col("target").str.split("/").list.last()
    links = (
        reads.with_columns(name[1].alias("name"))
        .join(spilled.with_columns(name[0].alias("name")), on=["run_id", "name"])
        .filter(
            (pl.col("parent") < pl.col("step"))
            & ((pl.col("overflow") == pl.col("target")) | pl.col("overflow").str.ends_with("/" + pl.col("target")))
        )
        .sort("run_id", "step", "parent")
        .unique(["run_id", "step"], keep="last", maintain_order=True)
    )
    links = links.select(
        "run_id", "step", "target", pl.col("parent").alias("root"), pl.lit(1, dtype=pl.Int64).alias("depth")
    )
    # A parent comes before its read, so each pass lifts the roots by at least one link.
    above = links.select("run_id", pl.col("step").alias("root"), pl.col("root").alias("root_above"))
    while links.height:
        lifted = links.join(above, on=["run_id", "root"], how="left", maintain_order="left")
        if not lifted["root_above"].is_not_null().any():
            break
        links = lifted.with_columns(
            (pl.col("depth") + pl.col("root_above").is_not_null().cast(pl.Int64)).alias("depth"),
            pl.coalesce("root_above", "root").alias("root"),
        ).drop("root_above")
    found = (
        links.sort("run_id", "step")
        .group_by("run_id", "root", maintain_order=True)
        .agg(
            pl.col("step").last().alias("last_step"),
            pl.len().cast(pl.Int64).alias("length"),
            pl.col("depth").max(),
            pl.col("target").last(),
        )
        .rename({"root": "first_step"})
        .with_columns(pl.lit("overflow").alias("reason"))
    )
    found = _with_facts(found, steps)
    return CHASES.conform(spend(_named(found, CHASE_1), steps, turns))


def _with_facts(found: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Facts of the last step and the times of both ends."""
    mine = steps_of(found, steps)
    last = mine.select("run_id", pl.col("step").alias("last_step"), pl.col("ts").alias("last_at"), *_ABOUT)
    first = mine.select("run_id", pl.col("step").alias("first_step"), pl.col("ts").alias("first_at"))
    return found.join(last, on=["run_id", "last_step"], how="left").join(first, on=["run_id", "first_step"], how="left")


# --- bypasses -----------------------------------------------------------------------------------------------------


def bypasses(steps: pl.DataFrame, guards: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """BYPASSES of complete runs.

    A refused step and the first later success of another tool on its target: reason `done`, or `looked` where an
    attempt was refused and the other step only read. Research that succeeded while a guard's block of research was
    active: `clothes` where it came as a shell command, code or another tool with a URL, `open` where a research tool
    ran.
    """
    found = (
        pl.concat([_around_refusals(steps), _around_blocks(steps, guards)])
        .unique(["run_id", "last_step", "first_step", "reason"], keep="first", maintain_order=True)
        .with_columns((pl.col("last_step") - pl.col("first_step")).alias("length"))
    )
    found = _with_facts(found, steps)
    return BYPASSES.conform(spend(_named(found, BYPASS_1), steps, turns))


_WAY = ["run_id", "first_step", "last_step", "reason", "refused_tool", "refused_by", "target"]


def _around_refusals(steps: pl.DataFrame) -> pl.DataFrame:
    mine = steps.filter((pl.col("actor") == "agent") & (pl.col("target") != ""))
    refused = mine.filter(pl.col("outcome") == "vetoed").select(
        "run_id",
        "target",
        pl.col("step").alias("first_step"),
        pl.col("tool").alias("refused_tool"),
        pl.col("outcome_reason").alias("refused_by"),
        pl.col("kind").is_in(sorted(rule.ATTEMPTS)).alias("was_attempt"),
    )
    others = (
        steps_of(refused, mine)
        .filter(pl.col("outcome") == "success")
        .select("run_id", "target", "tool", pl.col("step").alias("last_step"), is_attempt().alias("is_done"))
    )
    return (
        refused.join(others, on=["run_id", "target"])
        .filter((pl.col("last_step") > pl.col("first_step")) & (pl.col("tool") != pl.col("refused_tool")))
        .with_columns(
            pl.when(pl.col("is_done") | ~pl.col("was_attempt"))
            .then(pl.lit("done"))
            .otherwise(pl.lit("looked"))
            .alias("reason")
        )
        .sort("run_id", "first_step", "last_step")
        .unique(["run_id", "first_step", "reason"], keep="first", maintain_order=True)
        .select(_WAY)
    )


def _around_blocks(steps: pl.DataFrame, guards: pl.DataFrame) -> pl.DataFrame:
    keys = ["run_id", "name"]
    records = guards.with_columns(pl.col("name").fill_null(""), pl.col("step").fill_null(-1)).sort(
        "run_id", "name", "guard"
    )
    is_end = pl.col("event").is_in(ENDS_A_BLOCK)
    ends = pl.when(is_end).then(pl.col("step")).shift(-1).backward_fill().over(keys)
    blocks = (
        records.with_columns(ends.alias("end_step"))
        .filter((pl.col("event") == "block") & (pl.col("tier").fill_null(TIER_BLOCK) >= TIER_BLOCK))
        .select(
            *keys,
            "step",
            "guard",
            "end_step",
            (pl.col("ts") + pl.duration(seconds=pl.col("ttl_s").clip(-1, TTL_CAP_S))).alias("end_at"),
        )
    )
    is_research = pl.col("kind") == "research"
    is_url = pl.col("target").str.contains("^(?i:https?)://") & pl.col("kind").is_in(["execute", "read", "other"])
    fetched = steps.filter(
        (pl.col("actor") == "agent") & (pl.col("outcome") == "success") & (is_research | is_url)
    ).select("run_id", pl.col("step").alias("last_step"), "ts", "target", "kind", "kind_source")
    pairs = fetched.join(blocks.select(keys).unique(), on="run_id").with_columns(
        (pl.col("last_step") - 1).alias("step")
    )
    active = (
        pairs.sort("step")
        .join_asof(blocks.sort("step", "guard"), on="step", by=keys, strategy="backward", check_sortedness=False)
        .filter(
            pl.col("guard").is_not_null()
            & (pl.col("end_step").is_null() | (pl.col("last_step") <= pl.col("end_step")))
            & (pl.col("end_at").is_null() | pl.col("ts").is_null() | (pl.col("ts") <= pl.col("end_at")))
        )
    )
    is_open = is_research & pl.col("kind_source").is_in(["table", "name"])
    return (
        active.sort("run_id", "last_step", "name")
        .unique(["run_id", "last_step"], keep="first", maintain_order=True)
        .select(
            "run_id",
            pl.col("last_step").alias("first_step"),
            "last_step",
            pl.when(is_open).then(pl.lit("open")).otherwise(pl.lit("clothes")).alias("reason"),
            pl.lit(None, dtype=pl.String).alias("refused_tool"),
            pl.col("name").alias("refused_by"),
            "target",
        )
    )


# --- resets -------------------------------------------------------------------------------------------------------


def resets(steps: pl.DataFrame, guards: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """RESETS of complete runs: each return of a guard's counter to zero, and whether anything productive lay between.

    Between are the steps after the record of the same guard before, up to the reset. `steps` have `is_productive`.
    """
    counter = pl.col("counter")
    records = (
        guards.with_columns(pl.col("name").fill_null(""))
        .sort("run_id", "name", "guard")
        .with_columns(
            [pl.col(name).shift(1).over("run_id", "name").alias(f"{name}_before") for name in ("counter", "step")]
        )
    )
    before = pl.col("counter_before")
    is_reset = ((counter == 0) & (before > 0)) | (
        (pl.col("event") == "reset") & (counter.fill_null(0) == 0) & (before.fill_null(1) > 0)
    )
    found = records.filter(is_reset.fill_null(False)).with_columns(
        pl.col("step").fill_null(-1), pl.col("step_before").fill_null(-1)
    )
    known = steps.sort("run_id", "step").select(
        "run_id",
        "step",
        pl.col("is_productive").fill_null(False).cast(pl.Int64).cum_sum().over("run_id").alias("sum_true"),
        pl.col("is_productive").is_null().cast(pl.Int64).cum_sum().over("run_id").alias("sum_unknown"),
    )
    for end, name in (("step_before", "a"), ("step", "b")):
        at = known.rename({"step": end, "sum_true": f"true_{name}", "sum_unknown": f"unknown_{name}"})
        found = found.join(at, on=["run_id", end], how="left", maintain_order="left")
    count_true = pl.col("true_b").fill_null(0) - pl.col("true_a").fill_null(0)
    count_unknown = pl.col("unknown_b").fill_null(0) - pl.col("unknown_a").fill_null(0)
    has_steps = pl.col("step") > pl.col("step_before")
    found = found.with_columns(
        pl.when(count_true > 0)
        .then(pl.lit("productive"))
        .when(count_unknown > 0)
        .then(pl.lit("unknown"))
        .otherwise(pl.lit("unproductive"))
        .alias("reason"),
        pl.when(has_steps).then(pl.col("step_before") + 1).alias("first_step"),
        pl.when(has_steps).then(pl.col("step")).alias("last_step"),
        (pl.col("step") - pl.col("step_before")).alias("length"),
        pl.col("ts").alias("last_at"),
    )
    return RESETS.conform(spend(_named(found, CLEAN_RESET_1), steps, turns))


# --- the audit ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """A kind of finding: what counts as one (`unit`) and what it means in one line."""

    name: str
    unit: str
    about: str


FINDINGS: tuple[Finding, ...] = (
    Finding("drift/1", "runs of 8 steps or more", "turned in circles while the world stayed as it was"),
    Finding("echo/1", "runs", "got one answer to one call four times with nothing productive between"),
    Finding("ghost/1", "runs", "went through cycles that no budget or counter sees"),
    Finding("chase/1", "truncated results with a rest", "rest was read and truncated again"),
    Finding("bypass/1 done", "refused steps with a target", "done by another tool after the refusal"),
    Finding("bypass/1 looked", "refused steps with a target", "target only looked at by another tool"),
    Finding("bypass/1 clothes", "blocks of research", "research got through as something else"),
    Finding("bypass/1 open", "blocks of research", "research tools still worked"),
    Finding("clean-reset/1", "resets of a counter", "went to zero over unproductive steps"),
    Finding("unverified/1", "runs with an edit", "no verification after the last edit"),
    Finding("override", "guarded runs", "a guard was overridden; the rows name by whom"),
    Finding("override tier 3", "overrides", "beat a block of tier 3 or higher"),
    Finding("override stale", "overrides", "by a state whose time to live was over"),
    Finding("state without end", "states raised", "no time to live was given"),
    Finding("treated, not delivered", "treated loops", "the hint never reached the agent"),
    Finding("heal failed", "repairs tried", "failed"),
    Finding("guard never fired", "guarded runs with a detection", "no raise or block although a rule held"),
    Finding(
        "guard fell silent",
        "guards with an interval",
        "no record for longer than its own interval, while the run went on",
    ),
)
_ROW = {
    "finding": pl.String(),
    "session_id": pl.String(),
    "run_id": pl.String(),
    "step": pl.Int64(),
    "at": pl.Datetime("us", "UTC"),
    "detail": pl.String(),
}


@dataclass(frozen=True)
class Audit:
    """`rows`: one a finding, for the drill-down. `cases`: by kind of finding, in how many units it could have been one,
    and in how many it was."""

    rows: pl.DataFrame
    cases: Mapping[str, tuple[int, int]]

    def lines(self) -> pl.DataFrame:
        """One line a kind: finding, x of n units, how many rows stand behind it, and what it means."""
        counts = dict(self.rows.group_by("finding").len().iter_rows())
        lines = [(f.name, *self.cases.get(f.name, (0, 0)), f.unit, f.about, counts.get(f.name, 0)) for f in FINDINGS]
        schema = {
            "finding": pl.String,
            "x": pl.Int64,
            "n": pl.Int64,
            "unit": pl.String,
            "about": pl.String,
            "count_rows": pl.Int64,
        }
        return pl.DataFrame(lines, schema=schema, orient="row")


def audit(tables: Mapping[str, pl.DataFrame]) -> Audit:
    """All findings over `tables`: steps, guards, loops, drifts, echoes, ghosts, chases, bypasses, resets, runs."""
    rows: list[pl.DataFrame] = []
    cases: dict[str, tuple[int, int]] = {}
    runs, steps, guards = tables["runs"], tables["steps"], tables["guards"]

    def add(name: str, frame: pl.DataFrame, n: int, unit: tuple[str, ...] = ("run_id",)) -> None:
        cases[name] = (frame.select(unit).unique().height, n)
        rows.append(
            frame.with_columns(pl.lit(name).alias("finding")).select(
                [
                    pl.col(column).cast(dtype)
                    if column in frame.columns or column == "finding"
                    else pl.lit(None, dtype=dtype).alias(column)
                    for column, dtype in _ROW.items()
                ]
            )
        )

    def seen(name: str, detail: pl.Expr, at: str = "detected_step") -> pl.DataFrame:
        return tables[name].with_columns(
            pl.col(at).alias("step"), pl.col("last_at").alias("at"), detail.alias("detail")
        )

    length = pl.col("length").cast(pl.String)
    add(
        "drift/1",
        seen("drifts", pl.col("reason") + ", " + length + " steps").filter(pl.col("rule") == "drift/1"),
        runs.filter(pl.col("count_steps") >= GHOST_WINDOW).height,
    )
    add("echo/1", seen("echoes", pl.col("tool") + " " + length + " times, " + pl.col("outcome")), runs.height)
    add("ghost/1", seen("ghosts", pl.col("reason") + ", " + length + " cycles", "first_step"), runs.height)
    spilled = steps.filter(pl.col("overflow_path").is_not_null() & pl.col("is_truncated").fill_null(True))
    add(
        "chase/1",
        seen("chases", length + " reads, " + pl.col("depth").cast(pl.String) + " deep", "last_step"),
        spilled.height,
        ("run_id", "first_step"),
    )
    ways = seen(
        "bypasses",
        pl.coalesce(pl.col("refused_tool") + " refused by " + pl.col("refused_by").fill_null("someone"), "refused_by")
        + ", then "
        + pl.col("tool"),
        "last_step",
    )
    count_refused = steps.filter(
        (pl.col("outcome") == "vetoed") & (pl.col("target") != "") & (pl.col("actor") == "agent")
    ).height
    blocks = guards.filter((pl.col("event") == "block") & (pl.col("tier").fill_null(TIER_BLOCK) >= TIER_BLOCK))
    for reason in ("done", "looked"):
        add(f"bypass/1 {reason}", ways.filter(pl.col("reason") == reason), count_refused, ("run_id", "first_step"))
    for reason in ("clothes", "open"):
        part = ways.filter(pl.col("reason") == reason)
        add(f"bypass/1 {reason}", part, blocks.height, ("run_id", "first_step"))
        cases[f"bypass/1 {reason}"] = (min(_blocks_passed(blocks, part), blocks.height), blocks.height)
    cleared = seen(
        "resets",
        pl.col("name").fill_null("")
        + " from "
        + pl.col("counter_before").cast(pl.String).fill_null("?")
        + " over "
        + length
        + " steps",
        "last_step",
    )
    add("clean-reset/1", cleared.filter(pl.col("reason") == "unproductive"), cleared.height, ("session_id", "guard"))
    edited = runs.filter(pl.col("is_unverified").is_not_null()).with_columns(
        pl.col("last_edit_step").alias("step"), pl.col("last_at").alias("at"), pl.lit("last edit").alias("detail")
    )
    add("unverified/1", edited.filter("is_unverified"), edited.height)
    _add_guard_findings(add, guards, tables)
    return Audit(
        pl.concat(rows).sort("finding", "session_id", "run_id", "step", "at", "detail", nulls_last=True), cases
    )


def _blocks_passed(blocks: pl.DataFrame, ways: pl.DataFrame) -> int:
    """How many blocks any of `ways` went through: each way passes the last block of its guard before it."""
    if not ways.height:
        return 0
    starts = blocks.select(
        "run_id", pl.col("name").fill_null("").alias("name"), pl.col("step").fill_null(-1), "session_id", "guard"
    ).sort("step", "guard")
    passed = (
        ways.select("run_id", pl.col("refused_by").alias("name"), (pl.col("last_step") - 1).alias("step"))
        .sort("step")
        .join_asof(starts, on="step", by=["run_id", "name"], strategy="backward", check_sortedness=False)
    )
    return passed.select("session_id", "guard").unique().height


def guard_states(guards: pl.DataFrame) -> pl.DataFrame:
    """Guard records in order with `tier_before`: the highest tier that is raised or blocked in the run at that instant
    by any guard, and `is_stale`: an override by a state (a guard named as `by`) whose last raise has no time to live
    left. A state of tier t ends with `reset`, `expire` or `override` of its guard, or with its time to live."""
    order = guards.sort("run_id", "guard")
    active: dict[str, tuple[int, int | None]] = {}
    tiers: list[int | None] = []
    stale: list[bool] = []
    run_before = None
    for run_id, name, event, tier, by, ttl_s, at in order.select(
        "run_id", pl.col("name").fill_null(""), "event", "tier", "by", "ttl_s", pl.col("ts").dt.epoch("us")
    ).iter_rows():
        if run_id != run_before:
            active, run_before = {}, run_id
        tiers.append(max((t for t, end in active.values() if _is_alive(end, at)), default=None))
        stale.append(event == "override" and by in active and not _is_alive(active[by][1], at))
        if event in ("raise", "block"):
            end = None if at is None or ttl_s is None else at + ttl_s * 1_000_000
            active[name] = (tier or (TIER_BLOCK if event == "block" else 0), end)
        elif event in ENDS_A_BLOCK:
            active.pop(name, None)
    return order.with_columns(
        pl.Series("tier_before", tiers, dtype=pl.Int64), pl.Series("is_stale", stale, dtype=pl.Boolean)
    )


def _is_alive(end: int | None, now: int | None) -> bool:
    return end is None or now is None or now <= end


def _add_guard_findings(add: Callable[..., None], guards: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> None:
    states = guard_states(guards).with_columns(pl.col("ts").alias("at"), pl.col("name").fill_null("").alias("name"))
    record = ("session_id", "guard")
    overrides = states.filter(pl.col("event") == "override").with_columns(
        (pl.col("name") + " by " + pl.col("by").fill_null("nobody named")).alias("detail")
    )
    add("override", overrides, guards["run_id"].n_unique())
    beats = (pl.col("tier_before") >= TIER_BLOCK) | (pl.col("tier") >= TIER_BLOCK)
    add("override tier 3", overrides.filter(beats.fill_null(False)), overrides.height, record)
    add("override stale", overrides.filter("is_stale"), overrides.height, record)
    raised = states.filter(pl.col("event").is_in(["raise", "block", "override"])).with_columns(
        (pl.col("name") + " " + pl.col("event")).alias("detail")
    )
    add("state without end", raised.filter(pl.col("ttl_s").is_null()), raised.height, record)
    treated = (
        tables["loops"]
        .filter((pl.col("arm") == "treated") & pl.col("is_enrolled") & (pl.col("rule") == rule.STRATEGY_LOOP))
        .with_columns(
            pl.col("detected_step").alias("step"), pl.col("detected_at").alias("at"), pl.col("loop_id").alias("detail")
        )
    )
    add(
        "treated, not delivered", treated.filter(~pl.col("is_delivered").fill_null(False)), treated.height, ("loop_id",)
    )
    repairs = states.filter(pl.col("event").is_in(["heal", "heal_failed"])).with_columns(
        (pl.col("name") + pl.coalesce(" by " + pl.col("by"), pl.lit(""))).alias("detail")
    )
    add("heal failed", repairs.filter(pl.col("event") == "heal_failed"), repairs.height, record)
    guarded = guards.select("run_id").unique()
    detected = (
        tables["runs"]
        .join(guarded, on="run_id", how="semi")
        .filter(pl.col("first_detected_step").is_not_null())
        .with_columns(
            pl.col("first_detected_step").alias("step"),
            pl.col("last_at").alias("at"),
            pl.lit("first detection").alias("detail"),
        )
    )
    fired = guards.filter(pl.col("event").is_in(["raise", "block"])).select("run_id").unique()
    add("guard never fired", detected.join(fired, on="run_id", how="anti"), detected.height)
    silent, count_intervals = silences(guards, tables["steps"])
    add("guard fell silent", silent, count_intervals, ("run_id", "name"))


def silences(guards: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Guards that were silent for longer than their own interval while the run went on, and how many have an interval.

    The interval is three times the gap that nine in ten of its gaps do not exceed, where there are at least three gaps:
    a time to live is no promise to speak. The time from its last record to the last step counts as a gap.
    """
    ends = steps.group_by("run_id").agg(pl.col("ts").max().alias("end_at"))
    timed = (
        guards.filter(pl.col("ts").is_not_null())
        .with_columns(pl.col("name").fill_null(""))
        .sort("run_id", "name", "guard")
    )
    gap = (pl.col("ts") - pl.col("ts").shift(1).over("run_id", "name")).dt.total_microseconds()
    per_guard = (
        timed.with_columns(gap.alias("gap"))
        .join(ends, on="run_id", how="left")
        .group_by("run_id", "name", maintain_order=True)
        .agg(
            pl.col("session_id").first(),
            pl.col("gap").drop_nulls().quantile(0.9, interpolation="lower").alias("usual"),
            pl.col("gap").drop_nulls().len().alias("count_gaps"),
            pl.col("gap").max().alias("longest"),
            pl.col("ts").max().alias("at"),
            (pl.col("end_at").first() - pl.col("ts").max()).dt.total_microseconds().alias("tail"),
            pl.col("step").last(),
        )
        .with_columns(
            pl.when(pl.col("count_gaps") >= SILENT_GAPS)
            .then((pl.col("usual") * SILENT_FACTOR).cast(pl.Int64))
            .alias("interval"),
            pl.max_horizontal("longest", "tail").alias("silence"),
        )
        .filter(pl.col("interval").is_not_null())
    )
    silent = per_guard.filter(pl.col("silence") > pl.col("interval")).with_columns(
        (
            pl.col("name")
            + " silent "
            + (pl.col("silence") // 1_000_000).cast(pl.String)
            + " s, its interval "
            + (pl.col("interval") // 1_000_000).cast(pl.String)
            + " s"
        ).alias("detail")
    )
    return silent, per_guard.height
