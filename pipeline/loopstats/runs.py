"""Runs as evaluations: was it solved, how long did it take, what did it cost, what was found in it (METHOD 13).

A room of its own because here an agent is judged by facts from outside it and never by its own claim: `solved` comes
from results and graders, the run's own last check is `last_verify`. A pure stage over complete runs; what is made of
its table, distributions and comparisons, is in `compare.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from loopstats.tables import RUNS, is_attempt
from loopstats.waste import tokens_of_turn

RULE_VERSION = "runs/1"
_FACTS = ("solved", "ending", "bait", "expected_ending", "claimed")


def evaluate(
    steps: pl.DataFrame,
    turns: pl.DataFrame,
    sessions: pl.DataFrame,
    results: pl.DataFrame,
    frozen: pl.DataFrame,
    findings: Mapping[str, pl.DataFrame],
) -> pl.DataFrame:
    """RUNS of complete runs: every run that has a step, a turn or a result.

    `frozen` as `drift.frozen_stretches` gives it; `findings`: loops, drifts, echoes, ghosts, chases, bypasses, resets.
    Of several results of a run the last that tells a fact stands.
    """
    names = (
        pl.concat([frame.select("run_id", "session_id") for frame in (steps, turns, results)])
        .unique("run_id", keep="first")
        .sort("run_id")
    )
    about = sessions.select(
        "session_id",
        "format",
        "version",
        "task",
        *[pl.col(n).alias(f"{n}_session") for n in ("harness", "model", "project", "group")],
    )
    mine = steps.sort("run_id", "step").filter(pl.col("actor") == "agent")
    is_edit = (pl.col("kind") == "edit") & (pl.col("outcome") == "success")
    is_verify = (pl.col("kind") == "verify") & (pl.col("outcome") != "vetoed")
    counts = mine.group_by("run_id").agg(
        pl.len().cast(pl.Int64).alias("count_steps"),
        is_attempt().sum().cast(pl.Int64).alias("count_attempts"),
        (is_attempt() & (pl.col("outcome") == "failure")).sum().cast(pl.Int64).alias("count_failures"),
        pl.col("fingerprint").n_unique().cast(pl.Int64).alias("count_fingerprints"),
        pl.col("state_hash").is_not_null().sum().cast(pl.Int64).alias("count_state_known"),
        pl.col("outcome").filter(is_verify).last().alias("last_verify"),
        pl.col("step").filter(is_edit).max().alias("last_edit_step"),
        pl.col("step").filter(is_verify).max().alias("last_verify_step"),
        pl.col("model").drop_nulls().first().alias("model_step"),
    )
    spans = (
        pl.concat([frame.select("run_id", "ts") for frame in (steps, turns, results)])
        .group_by("run_id")
        .agg(pl.col("ts").min().alias("first_at"), pl.col("ts").max().alias("last_at"))
    )
    spent = (
        turns.sort("run_id", "decision")
        .with_columns(tokens_of_turn())
        .group_by("run_id")
        .agg(
            pl.len().cast(pl.Int64).alias("count_turns"),
            pl.col("tokens").is_not_null().sum().cast(pl.Int64).alias("count_turns_told"),
            pl.when(pl.col("tokens").count() > 0).then(pl.col("tokens").sum()).alias("tokens"),
            pl.col("cost_micros").is_not_null().sum().cast(pl.Int64).alias("count_turns_priced"),
            pl.when(pl.col("cost_micros").count() > 0).then(pl.col("cost_micros").sum()).alias("cost_micros"),
            pl.col("model").drop_nulls().first().alias("model_turn"),
        )
    )
    facts = (
        results.sort("session_id", "result")
        .group_by("run_id")
        .agg([pl.col(name).drop_nulls().last() for name in _FACTS])
    )
    first = (
        steps.sort("run_id", "step")
        .group_by("run_id")
        .agg(
            pl.col("parent_run_id").drop_nulls().first(),
            pl.col("harness").first(),
            pl.col("project").drop_nulls().first(),
            pl.col("group").drop_nulls().first(),
        )
    )
    frame = names
    for part in (first, counts, spans, spent, facts, frozen, *_counted(findings), _first_detections(findings)):
        frame = frame.join(part, on="run_id", how="left")
    frame = frame.join(about, on="session_id", how="left")
    zero = [c.name for c in RUNS.columns if c.is_required and c.name.startswith("count_")]
    return RUNS.conform(
        frame.with_columns([pl.col(name).fill_null(0) for name in zero]).with_columns(
            *[pl.coalesce(name, f"{name}_session").alias(name) for name in ("harness", "project", "group")],
            pl.coalesce("model_turn", "model_step", "model_session").alias("model"),
            pl.when(pl.col("count_steps") > 0)
            .then(pl.col("count_fingerprints") / pl.col("count_steps"))
            .alias("distinct_ratio"),
            pl.when(pl.col("last_edit_step").is_not_null())
            .then(pl.col("last_verify_step").fill_null(-1) < pl.col("last_edit_step"))
            .alias("is_unverified"),
            pl.lit(RULE_VERSION).alias("rule_version"),
        )
    )


def _counted(findings: Mapping[str, pl.DataFrame]) -> list[pl.DataFrame]:
    loops, drifts, resets = findings["loops"], findings["drifts"], findings["resets"]
    counted = {
        "count_loops": loops.filter(pl.col("rule").str.starts_with("strategy-loop/")),
        "count_repeats": loops.filter(pl.col("rule").str.starts_with("repeat/")),
        "count_drifts": drifts.filter(pl.col("rule") == "drift/1"),
        "count_echoes": findings["echoes"],
        "count_ghosts": findings["ghosts"],
        "count_chases": findings["chases"],
        "count_bypasses": findings["bypasses"],
        "count_clean_resets": resets.filter(pl.col("reason") == "unproductive"),
    }
    return [frame.group_by("run_id").agg(pl.len().cast(pl.Int64).alias(name)) for name, frame in counted.items()]


def _first_detections(findings: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    loops = findings["loops"].filter(pl.col("rule").str.starts_with("strategy-loop/"))
    drifts = findings["drifts"].filter(pl.col("rule") == "drift/1")
    columns = ["run_id", "detected_step"]
    return (
        pl.concat([frame.select(columns) for frame in (loops, drifts, findings["echoes"])])
        .group_by("run_id")
        .agg(pl.col("detected_step").min().alias("first_detected_step"))
    )
