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
    successes = (
        attempts.filter(pl.col("outcome") == "success")
        .select(*PAIR, pl.col("step").alias("healed_step"), pl.col("decision").alias("healed_decision"))
        .sort("healed_step")
    )
    return failures.join_asof(
        successes, left_on="step", right_on="healed_step", by=PAIR, strategy="forward", check_sortedness=False
    )


def _walk_end(frame: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The first step after the detection that is later than its maturity; no row where there is none.

    Times need not rise along a run: the latest time so far finds the step, unless a step before the detection was
    already later than the limit; only those loops are looked up step by step.
    """
    latest = steps.group_by("run_id").agg(pl.col("ts").max().alias("latest"))
    late = (
        frame.join(latest, on="run_id")
        .filter(pl.col("latest") > pl.col("mature_at"))
        .select(
            LOOP,
            "run_id",
            "detected_step",
            "mature_at",
            (pl.col("mature_at") + pl.duration(microseconds=1)).alias("limit"),
        )
    )
    if not late.height:
        return pl.DataFrame(schema={LOOP: late.schema[LOOP], "walk_end": pl.Int64()})
    timed = (
        steps.join(late.select("run_id").unique(), on="run_id", how="semi")
        .filter(pl.col("ts").is_not_null())
        .sort("run_id", "step")
    )
    rising = (
        timed.with_columns(pl.col("ts").cum_max().over("run_id").alias("limit"))
        .unique(["run_id", "limit"], keep="first", maintain_order=True)
        .select("run_id", "limit", pl.col("step").alias("walk_end"))
        .sort("limit")
    )
    found = late.sort("limit").join_asof(rising, on="limit", by="run_id", strategy="forward", check_sortedness=False)
    early = found.filter(pl.col("walk_end") <= pl.col("detected_step"))
    exact = (
        early.drop("walk_end")
        .join(timed.select("run_id", "step", "ts"), on="run_id")
        .filter((pl.col("step") > pl.col("detected_step")) & (pl.col("ts") > pl.col("mature_at")))
        .group_by(LOOP)
        .agg(pl.col("step").min().alias("walk_end"))
    )
    plain = found.filter(pl.col("walk_end") > pl.col("detected_step")).select(LOOP, "walk_end")
    return pl.concat([plain, exact])


def _breaks(mine: pl.DataFrame) -> pl.DataFrame:
    return (
        mine.filter(
            (pl.col("healed_step") > pl.col("detected_step"))
            & (pl.col("healed_decision") != pl.col("detected_decision"))
        )
        .group_by(LOOP)
        .agg(pl.col("healed_step").min().alias("break_step"))
    )


def _recurrences(mine: pl.DataFrame) -> pl.DataFrame:
    return (
        mine.filter((pl.col("step") > pl.col("detected_step")) & (pl.col("decision") != pl.col("detected_decision")))
        .sort("step")
        .group_by(LOOP)
        .agg(pl.col("step").slice(rule.FAILURES_TO_RECUR - 1, 1).first().alias("recur_step"))
    )


def _decide(frame: pl.DataFrame) -> pl.DataFrame:
    first = pl.min_horizontal("break_step", "recur_step")
    word = (
        pl.when(first.is_null())
        .then(pl.lit("unresolved"))
        .when(first == pl.col("break_step"))
        .then(pl.lit("broke"))
        .otherwise(pl.lit("recurred"))
    )
    is_in_time = first.is_not_null() & (pl.col("walk_end").is_null() | (first < pl.col("walk_end")))
    return frame.with_columns(
        word.alias("outcome_final"),
        first.alias("final_step"),
        pl.when(is_in_time).then(word).otherwise(pl.lit("unresolved")).alias("outcome"),
        pl.when(is_in_time).then(first).alias("outcome_step"),
    ).with_columns((pl.col("outcome_step") - pl.col("detected_step")).alias("steps_to_outcome"))


def _relapses(frame: pl.DataFrame, mine: pl.DataFrame) -> pl.DataFrame:
    broken = frame.filter(pl.col("outcome") == "broke").select(LOOP, "outcome_step")
    return (
        mine.join(broken, on=LOOP)
        .group_by(LOOP)
        .agg(((pl.col("step") > pl.col("outcome_step")).sum() >= rule.FAILURES_TO_RECUR).alias("is_relapsed"))
    )


def _sidesteps(frame: pl.DataFrame, mine: pl.DataFrame, attempts: pl.DataFrame) -> pl.DataFrame:
    """Unresolved loops with a success of another action on a target that was failing then.

    From every stretch in which a pair fails, the first success of another action on its target after the stretch's
    first failure is enough; a stretch whose first such success belongs to the detection's own decision is looked at
    success by success.
    """
    open_loops = frame.filter(pl.col("outcome") == "unresolved").select(LOOP)
    stretches = (
        mine.join(open_loops, on=LOOP, how="semi")
        .group_by(LOOP, "run_id", "action", "target", "healed_step", "detected_step", "detected_decision", "walk_end")
        .agg(pl.col("step").min())
        .with_columns(pl.max_horizontal("step", "detected_step").alias("start"))
    )
    successes = (
        attempts.filter(pl.col("outcome") == "success")
        .join(stretches.select("run_id", "target").unique(), on=["run_id", "target"], how="semi")
        .sort("run_id", "target", "step")
    )
    is_change = (pl.col("action").shift(-1) != pl.col("action")).over("run_id", "target")
    successes = successes.with_columns(
        pl.when(is_change)
        .then(pl.col("step").shift(-1).over("run_id", "target"))
        .otherwise(None)
        .backward_fill()
        .over("run_id", "target")
        .alias("next_other")
    )
    after = successes.select(
        "run_id", "target", pl.col("step").alias("start"), pl.col("action").alias("next_action"), "next_other"
    ).sort("start")
    found = (
        stretches.with_columns((pl.col("start") + 1).alias("start"))
        .sort("start")
        .join_asof(
            after.with_columns(pl.col("start").alias("next_step")),
            on="start",
            by=["run_id", "target"],
            strategy="forward",
            check_sortedness=False,
        )
        .with_columns(
            pl.when(pl.col("next_action") != pl.col("action"))
            .then(pl.col("next_step"))
            .otherwise(pl.col("next_other"))
            .alias("other_step")
        )
        .filter(pl.col("other_step").is_not_null() & _is_within("other_step"))
        .join(
            successes.select("run_id", pl.col("step").alias("other_step"), pl.col("decision").alias("other_decision")),
            on=["run_id", "other_step"],
            how="left",
        )
    )
    own = found.filter(pl.col("other_decision") == pl.col("detected_decision"))
    looked = own.join(
        successes.select(
            "run_id",
            "target",
            pl.col("step").alias("later_step"),
            pl.col("action").alias("later_action"),
            pl.col("decision").alias("later_decision"),
        ),
        on=["run_id", "target"],
    ).filter(
        (pl.col("later_step") >= pl.col("start"))
        & (pl.col("later_action") != pl.col("action"))
        & (pl.col("later_decision") != pl.col("detected_decision"))
        & _is_within("later_step")
    )
    loops = pl.concat(
        [found.filter(pl.col("other_decision") != pl.col("detected_decision")).select(LOOP), looked.select(LOOP)]
    )
    return loops.unique().with_columns(pl.lit(True).alias("is_sidestepped"))


def _is_within(step: str) -> pl.Expr:
    """Before the pair healed and before the walk ended."""
    return (pl.col("healed_step").is_null() | (pl.col(step) < pl.col("healed_step"))) & (
        pl.col("walk_end").is_null() | (pl.col(step) < pl.col("walk_end"))
    )


def _horizons(frame: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Outcome within a number of attempts after the detection, its own decision left out, whatever the time."""
    attempts = (
        steps.filter(is_attempt())
        .select("run_id", "step", "decision")
        .sort("run_id", "step")
        .with_columns(pl.int_range(1, pl.len() + 1).over("run_id").cast(pl.Int64).alias("attempts_so_far"))
    )
    decided = frame.filter(pl.col("final_step").is_not_null()).select(
        LOOP, "run_id", "detected_step", "detected_decision", "final_step"
    )
    own = (
        decided.join(attempts, left_on=["run_id", "detected_decision"], right_on=["run_id", "decision"])
        .filter((pl.col("step") > pl.col("detected_step")) & (pl.col("step") <= pl.col("final_step")))
        .group_by(LOOP)
        .agg(pl.len().cast(pl.Int64).alias("own"))
    )
    counted = (
        decided.join(
            attempts.select("run_id", pl.col("step").alias("detected_step"), pl.col("attempts_so_far").alias("before")),
            on=["run_id", "detected_step"],
        )
        .join(
            attempts.select("run_id", pl.col("step").alias("final_step"), pl.col("attempts_so_far").alias("at")),
            on=["run_id", "final_step"],
        )
        .join(own, on=LOOP, how="left")
        .select(LOOP, (pl.col("at") - pl.col("before") - pl.col("own").fill_null(0)).alias("attempts_to_final"))
    )
    frame = frame.join(counted, on=LOOP, how="left", maintain_order="left")
    return frame.with_columns(
        [
            pl.when(pl.col("attempts_to_final") <= horizon)
            .then(pl.col("outcome_final"))
            .otherwise(pl.lit("unresolved"))
            .alias(f"outcome_{horizon}")
            for horizon in rule.HORIZONS
        ]
    )


def _times(frame: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    at = steps.select(
        "run_id",
        pl.col("step").alias("outcome_step"),
        pl.col("ts").alias("outcome_at"),
        pl.col("decision").alias("outcome_decision"),
    )
    frame = frame.join(at, on=["run_id", "outcome_step"], how="left", maintain_order="left")
    return frame.with_columns(
        (pl.col("outcome_decision") - pl.col("detected_decision")).alias("decisions_to_outcome"),
        pl.when(pl.col("outcome") == "broke").then(pl.col("is_relapsed").fill_null(False)).alias("is_relapsed"),
        pl.when(pl.col("outcome") == "unresolved")
        .then(pl.col("is_sidestepped").fill_null(False))
        .alias("is_sidestepped"),
    )


def _waste(frame: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """Tokens and cost of the turns after the detection's up to the outcome's, or to the end; each turn once a loop."""
    kinds = ("tokens_input", "tokens_output", "tokens_cache_read", "tokens_cache_write")
    is_counted = pl.any_horizontal([pl.col(name).is_not_null() for name in kinds])
    so_far = (
        turns.sort("run_id", "decision")
        .with_columns(
            pl.sum_horizontal([pl.col(name).fill_null(0) for name in kinds]).cum_sum().over("run_id").alias("tokens"),
            is_counted.cast(pl.Int64).cum_sum().over("run_id").alias("counted"),
            pl.col("cost_micros").fill_null(0).cum_sum().over("run_id").alias("cost"),
            pl.col("cost_micros").is_null().cast(pl.Int64).cum_sum().over("run_id").alias("unpriced"),
            pl.int_range(1, pl.len() + 1).over("run_id").cast(pl.Int64).alias("turns"),
        )
        .select("run_id", "decision", "tokens", "counted", "cost", "unpriced", "turns")
        .sort("decision")
    )
    ends = frame.select(
        LOOP, "run_id", "detected_decision", pl.coalesce("outcome_decision", pl.lit(2**62)).alias("last_decision")
    )
    spent = _at(_at(ends, so_far, "last_decision", ""), so_far, "detected_decision", "_before")
    between = {
        name: pl.col(name).fill_null(0) - pl.col(f"{name}_before").fill_null(0)
        for name in ("tokens", "counted", "cost", "unpriced", "turns")
    }
    wasted = spent.select(
        LOOP,
        pl.when(between["counted"] > 0).then(between["tokens"]).alias("tokens_wasted"),
        pl.when((between["turns"] > 0) & (between["unpriced"] == 0)).then(between["cost"]).alias("cost_wasted_micros"),
    )
    return frame.join(wasted, on=LOOP, how="left", maintain_order="left")


def _at(ends: pl.DataFrame, so_far: pl.DataFrame, decision: str, suffix: str) -> pl.DataFrame:
    """The running sums of a run up to and with `decision`."""
    sums = so_far.rename({name: f"{name}{suffix}" for name in so_far.columns if name not in ("run_id", "decision")})
    return (
        ends.sort(decision)
        .join_asof(
            sums, left_on=decision, right_on="decision", by="run_id", strategy="backward", check_sortedness=False
        )
        .drop("decision", strict=False)
    )
