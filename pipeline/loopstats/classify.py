"""Loops to outcomes: recurred, broke or unresolved, judged by one ruler in both arms.

A room of its own because here the arm must not be seen: the stage is given no column of the assignment. A pure stage
over complete runs that follows METHOD 9: the walk begins after the detection, steps of the detection's own decision
only update which pairs fail, and it ends before the first step later than detection + maturity. The incremental twin
is `rule.Classifier`.
"""

from __future__ import annotations

import polars as pl

from loopstats import rule
from loopstats.tables import is_attempt

PAIR = ["run_id", "action", "target"]
LOOP = "loop_row"


def classify(loops: pl.DataFrame, steps: pl.DataFrame, turns: pl.DataFrame, maturity_us: int) -> pl.DataFrame:
    """Outcome columns of `tables.LOOPS` for `loops` (run_id, signature, detected_step, detected_at, rule, is_enrolled).

    `maturity_us` in microseconds. A loop whose detection has no time is judged to the end of its run.
    """
    frame = loops.with_row_index(LOOP).with_columns(
        (pl.col("detected_at") + pl.duration(microseconds=maturity_us)).alias("mature_at")
    )
    own = steps.select("run_id", pl.col("step").alias("detected_step"), pl.col("decision").alias("detected_decision"))
    frame = frame.join(own, on=["run_id", "detected_step"], how="left", maintain_order="left")
    attempts = steps.filter(is_attempt() & pl.col("outcome").is_in(["success", "failure"])).select(
        *PAIR, "step", "decision", "outcome", "signature"
    )
    failing = _until_success(attempts)
    ends = steps.group_by("run_id").agg(pl.col("step").max().alias("last_step"))
    frame = frame.join(ends, on="run_id", how="left", maintain_order="left")
    frame = frame.join(_walk_end(frame, steps), on=LOOP, how="left", maintain_order="left")
    mine = frame.select(LOOP, "run_id", "signature", "detected_step", "detected_decision", "walk_end").join(
        failing, on=["run_id", "signature"]
    )
    frame = frame.join(_breaks(mine), on=LOOP, how="left", maintain_order="left")
    frame = frame.join(_recurrences(mine), on=LOOP, how="left", maintain_order="left")
    frame = _decide(frame)
    frame = frame.join(_relapses(frame, mine), on=LOOP, how="left", maintain_order="left")
    frame = frame.join(_sidesteps(frame, mine, attempts), on=LOOP, how="left", maintain_order="left")
    frame = _horizons(frame, steps)
    frame = _times(frame, steps)
    return _waste(frame, turns).drop(LOOP)


def _until_success(attempts: pl.DataFrame) -> pl.DataFrame:
    """Failed attempts, each with the step and decision of the next success of its pair: until then the pair fails."""
    failures = attempts.filter((pl.col("outcome") == "failure") & pl.col("signature").is_not_null()).sort("step")
    successes = attempts.filter(pl.col("outcome") == "success").select(
        *PAIR, pl.col("step").alias("healed_step"), pl.col("decision").alias("healed_decision")
    ).sort("healed_step")
    return failures.join_asof(
        successes, left_on="step", right_on="healed_step", by=PAIR, strategy="forward", check_sortedness=False
    )


def _walk_end(frame: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The first step after the detection that is later than its maturity; no row where there is none."""
    latest = steps.group_by("run_id").agg(pl.col("ts").max().alias("latest"))
    long_runs = frame.join(latest, on="run_id").filter(pl.col("latest") > pl.col("mature_at")).select(
        LOOP, "run_id", "detected_step", "mature_at"
    )
    return (
        long_runs.join(steps.select("run_id", "step", "ts"), on="run_id")
        .filter((pl.col("step") > pl.col("detected_step")) & (pl.col("ts") > pl.col("mature_at")))
        .group_by(LOOP).agg(pl.col("step").min().alias("walk_end"))
    )


def _breaks(mine: pl.DataFrame) -> pl.DataFrame:
    return (
        mine.filter(
            (pl.col("healed_step") > pl.col("detected_step")) & (pl.col("healed_decision") != pl.col("detected_decision"))
        )
        .group_by(LOOP).agg(pl.col("healed_step").min().alias("break_step"))
    )


def _recurrences(mine: pl.DataFrame) -> pl.DataFrame:
    return (
        mine.filter((pl.col("step") > pl.col("detected_step")) & (pl.col("decision") != pl.col("detected_decision")))
        .sort("step").group_by(LOOP)
        .agg(pl.col("step").slice(rule.FAILURES_TO_RECUR - 1, 1).first().alias("recur_step"))
    )


def _decide(frame: pl.DataFrame) -> pl.DataFrame:
    first = pl.min_horizontal("break_step", "recur_step")
    word = (
        pl.when(first.is_null()).then(pl.lit("unresolved"))
        .when(first == pl.col("break_step")).then(pl.lit("broke")).otherwise(pl.lit("recurred"))
    )
    is_in_time = first.is_not_null() & (pl.col("walk_end").is_null() | (first < pl.col("walk_end")))
    return frame.with_columns(
        word.alias("outcome_final"), first.alias("final_step"),
        pl.when(is_in_time).then(word).otherwise(pl.lit("unresolved")).alias("outcome"),
        pl.when(is_in_time).then(first).alias("outcome_step"),
    ).with_columns((pl.col("outcome_step") - pl.col("detected_step")).alias("steps_to_outcome"))


def _relapses(frame: pl.DataFrame, mine: pl.DataFrame) -> pl.DataFrame:
    broken = frame.filter(pl.col("outcome") == "broke").select(LOOP, "outcome_step")
    return (
        mine.join(broken, on=LOOP).group_by(LOOP)
        .agg(((pl.col("step") > pl.col("outcome_step")).sum() >= rule.FAILURES_TO_RECUR).alias("is_relapsed"))
    )


def _sidesteps(frame: pl.DataFrame, mine: pl.DataFrame, attempts: pl.DataFrame) -> pl.DataFrame:
    """Unresolved loops with a success of another action on a target that was failing then."""
    open_loops = frame.filter(pl.col("outcome") == "unresolved").select(LOOP)
    others = attempts.filter(pl.col("outcome") == "success").select(
        "run_id", "target", pl.col("action").alias("other_action"), pl.col("step").alias("other_step"),
        pl.col("decision").alias("other_decision"),
    )
    return (
        mine.join(open_loops, on=LOOP).join(others, on=["run_id", "target"])
        .filter(
            (pl.col("other_action") != pl.col("action"))
            & (pl.col("other_step") > pl.max_horizontal("step", "detected_step"))
            & (pl.col("other_decision") != pl.col("detected_decision"))
            & (pl.col("healed_step").is_null() | (pl.col("other_step") < pl.col("healed_step")))
            & (pl.col("walk_end").is_null() | (pl.col("other_step") < pl.col("walk_end")))
        )
        .select(LOOP, pl.lit(True).alias("is_sidestepped")).unique()
    )


def _horizons(frame: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Outcome within a number of attempts after the detection, its own decision left out, whatever the time."""
    attempts = steps.filter(is_attempt() & (pl.col("outcome") != "vetoed")).select("run_id", "step", "decision")
    counted = (
        frame.filter(pl.col("final_step").is_not_null())
        .select(LOOP, "run_id", "detected_step", "detected_decision", "final_step")
        .join(attempts, on="run_id")
        .filter(
            (pl.col("step") > pl.col("detected_step")) & (pl.col("step") <= pl.col("final_step"))
            & (pl.col("decision") != pl.col("detected_decision"))
        )
        .group_by(LOOP).agg(pl.len().alias("attempts_to_final"))
    )
    frame = frame.join(counted, on=LOOP, how="left", maintain_order="left")
    return frame.with_columns([
        pl.when(pl.col("attempts_to_final") <= horizon).then(pl.col("outcome_final")).otherwise(pl.lit("unresolved")).alias(f"outcome_{horizon}")
        for horizon in rule.HORIZONS
    ])


def _times(frame: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    at = steps.select(
        "run_id", pl.col("step").alias("outcome_step"), pl.col("ts").alias("outcome_at"), pl.col("decision").alias("outcome_decision")
    )
    frame = frame.join(at, on=["run_id", "outcome_step"], how="left", maintain_order="left")
    return frame.with_columns(
        (pl.col("outcome_decision") - pl.col("detected_decision")).alias("decisions_to_outcome"),
        pl.when(pl.col("outcome") == "broke").then(pl.col("is_relapsed").fill_null(False)).alias("is_relapsed"),
        pl.when(pl.col("outcome") == "unresolved").then(pl.col("is_sidestepped").fill_null(False)).alias("is_sidestepped"),
    )


def _waste(frame: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """Tokens and cost of the turns after the detection's up to the outcome's, or to the end; each turn once a loop."""
    parts = [pl.col(name).fill_null(0) for name in ("tokens_input", "tokens_output", "tokens_cache_read", "tokens_cache_write")]
    is_counted = pl.any_horizontal([pl.col(name).is_not_null() for name in ("tokens_input", "tokens_output", "tokens_cache_read", "tokens_cache_write")])
    spent = turns.select("run_id", "decision", pl.when(is_counted).then(pl.sum_horizontal(parts)).alias("tokens"), "cost_micros")
    between = (
        frame.select(LOOP, "run_id", "detected_decision", "outcome_decision").join(spent, on="run_id")
        .filter(
            (pl.col("decision") > pl.col("detected_decision"))
            & (pl.col("outcome_decision").is_null() | (pl.col("decision") <= pl.col("outcome_decision")))
        )
    )
    wasted = between.group_by(LOOP).agg(
        pl.when(pl.col("tokens").is_not_null().any()).then(pl.col("tokens").sum()).alias("tokens_wasted"),
        pl.when(pl.col("cost_micros").is_not_null().all()).then(pl.col("cost_micros").sum()).alias("cost_wasted_micros"),
    )
    return frame.join(wasted, on=LOOP, how="left", maintain_order="left")
