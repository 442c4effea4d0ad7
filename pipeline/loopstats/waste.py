"""What stretches of a run cost: turns summed over ranges, and each turn once where they overlap (METHOD 12, waste).

A room of its own because money is counted here and nowhere else: a turn belongs to a stretch by its number in the run,
a price that is not known stays unknown with a coverage figure beside it, and no turn is counted twice however many
findings lie over it. Pure functions of frames; no clock, no disk.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from loopstats.errors import UsageError
from loopstats.tables import STR

TOKENS = ("tokens_input", "tokens_output", "tokens_cache_read", "tokens_cache_write")
WASTE_BY = ("week", "tool", "project", "model", "harness", "group", "rule")
_STRETCH = ["run_id", "session_id", "rule", "tool", "project", "harness", "group", "model", "first_step", "last_step"]


def tokens_of_turn() -> pl.Expr:
    """All tokens of a turn (TURNS), null where the log tells none of them."""
    is_told = pl.any_horizontal([pl.col(name).is_not_null() for name in TOKENS])
    return pl.when(is_told).then(pl.sum_horizontal([pl.col(name).fill_null(0) for name in TOKENS])).alias("tokens")


def steps_of(found: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The steps of the runs in which something was found: mostly few."""
    return steps.filter(pl.col("run_id").is_in(found["run_id"].unique().implode()))


def spend(stretches: pl.DataFrame, steps: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """`stretches` (run_id, first_step, last_step) with `tokens` and `cost_micros` of their turns, in the same order.

    A stretch holds the turns from the one that asked for its first step to the one that asked for its last. `tokens` is
    null where no turn tells any, `cost_micros` where one of the turns has no price or there is no turn.
    """
    at = steps_of(stretches, steps).select("run_id", "step", "decision")
    placed = stretches.with_row_index("stretch_row")
    for end in ("first", "last"):
        place = at.rename({"step": f"{end}_step", "decision": f"{end}_decision"})
        placed = placed.join(place, on=["run_id", f"{end}_step"], how="left", maintain_order="left")
    placed = placed.with_columns(
        (pl.min_horizontal("first_decision", "last_decision") - 1).alias("before"),
        pl.max_horizontal("first_decision", "last_decision").alias("upto"),
    )
    sums = (
        steps_of(stretches, turns)
        .sort("run_id", "decision")
        .select(
            "run_id",
            "decision",
            tokens_of_turn().fill_null(0).cum_sum().over("run_id").alias("sum_tokens"),
            tokens_of_turn().is_not_null().cum_sum().over("run_id").cast(pl.Int64).alias("sum_told"),
            pl.col("cost_micros").fill_null(0).cum_sum().over("run_id").alias("sum_cost"),
            pl.col("cost_micros").is_not_null().cum_sum().over("run_id").cast(pl.Int64).alias("sum_priced"),
            pl.int_range(1, pl.len() + 1).over("run_id").cast(pl.Int64).alias("sum_turns"),
        )
        .sort("decision")
    )
    names = [name for name in sums.columns if name.startswith("sum_")]
    for end in ("before", "upto"):
        found = (
            placed.select("stretch_row", "run_id", pl.col(end).alias("decision"))
            .filter(pl.col("decision").is_not_null())
            .sort("decision")
            .join_asof(sums, on="decision", by="run_id", strategy="backward", check_sortedness=False)
            .select("stretch_row", *[pl.col(name).alias(f"{name}_{end}") for name in names])
        )
        placed = placed.join(found, on="stretch_row", how="left", maintain_order="left")
    placed = placed.with_columns(
        [(pl.col(f"{name}_upto").fill_null(0) - pl.col(f"{name}_before").fill_null(0)).alias(name) for name in names]
    )
    return stretches.with_columns(
        placed.select(pl.when(pl.col("sum_told") > 0).then(pl.col("sum_tokens")).alias("tokens")).to_series(),
        placed.select(
            pl.when((pl.col("sum_turns") > 0) & (pl.col("sum_priced") == pl.col("sum_turns")))
            .then(pl.col("sum_cost"))
            .alias("cost_micros")
        ).to_series(),
    )


def stretches_of(loops: pl.DataFrame, drifts: pl.DataFrame) -> pl.DataFrame:
    """Where waste lies: after a loop's detection up to its outcome, from a drift's onset to its last step.

    A loop without an outcome reaches to the end of its run. `drift/0` is left out: it is kept for comparison only.
    """
    of_loops = loops.with_columns(
        (pl.col("detected_step")).alias("first_step"),
        pl.coalesce("outcome_step", "last_step").alias("last_step"),
        pl.lit(True).alias("is_after"),
    )
    of_drifts = drifts.filter(pl.col("rule") != "drift/0").with_columns(pl.lit(False).alias("is_after"))
    columns = [*_STRETCH, "is_after"]
    return pl.concat([of_loops.select(columns), of_drifts.select(columns)])


def wasted_turns(stretches: pl.DataFrame, steps: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """The turns that lie in any stretch, each once, with the facts of the stretch that begins first.

    `is_after` stretches begin with the turn after the one that asked for their first step: the detection itself is not
    waste. Gives run_id, decision, ts, tokens, cost_micros and the columns of `WASTE_BY`.
    """
    at = steps_of(stretches, steps).select("run_id", "step", "decision")
    placed = stretches
    for end in ("first", "last"):
        place = at.rename({"step": f"{end}_step", "decision": f"{end}_decision"})
        placed = placed.join(place, on=["run_id", f"{end}_step"], how="left", maintain_order="left")
    placed = (
        placed.with_columns(
            (pl.min_horizontal("first_decision", "last_decision") + pl.col("is_after").cast(pl.Int64)).alias("begin"),
            pl.max_horizontal("first_decision", "last_decision").alias("end"),
        )
        .filter(pl.col("begin") <= pl.col("end"))
        .sort("run_id", "begin", "first_step", "rule", "tool", "end")
    )
    # Overlapping stretches are cut so that a turn lies in one piece: a piece begins where all before it have ended.
    reached = placed.with_columns(pl.col("end").cum_max().over("run_id").alias("reached"))
    pieces = reached.with_columns(
        pl.max_horizontal(pl.col("begin"), pl.col("reached").shift(1).over("run_id") + 1).alias("piece_begin")
    ).filter(pl.col("piece_begin") <= pl.col("end"))
    candidates = turns.select(
        "run_id", "decision", "ts", pl.col("model").alias("turn_model"), tokens_of_turn(), "cost_micros"
    ).sort("decision")
    found = candidates.join_asof(
        pieces.select(
            "run_id",
            "piece_begin",
            pl.col("end").alias("piece_end"),
            "session_id",
            "rule",
            "tool",
            "project",
            "harness",
            "group",
            "model",
        ).sort("piece_begin"),
        left_on="decision",
        right_on="piece_begin",
        by="run_id",
        strategy="backward",
        check_sortedness=False,
    ).filter(pl.col("decision") <= pl.col("piece_end"))
    return (
        found.with_columns(
            pl.coalesce("turn_model", "model").alias("model"),
            pl.col("ts").dt.truncate("1w").dt.strftime("%Y-%m-%d").alias("week"),
        )
        .drop("turn_model", "piece_begin", "piece_end")
        .sort("run_id", "decision")
    )


def waste(wasted: pl.DataFrame, turns: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Totals of `wasted_turns` by columns of `WASTE_BY` (week: its Monday, UTC), dearest first.

    Beside the sums stand their coverage: turns, turns whose tokens are told, turns whose price is told. With no `by`
    also the tokens of all turns, so that a share can be read.
    """
    for name in by:
        if name not in WASTE_BY:
            raise UsageError(f"waste --by {name}: use one of {', '.join(WASTE_BY)}")
    totals = [
        pl.len().cast(pl.Int64).alias("count_turns"),
        pl.col("run_id").n_unique().cast(pl.Int64).alias("count_runs"),
        pl.col("tokens").is_not_null().sum().cast(pl.Int64).alias("count_turns_told"),
        pl.when(pl.col("tokens").count() > 0).then(pl.col("tokens").sum()).alias("tokens"),
        pl.col("cost_micros").is_not_null().sum().cast(pl.Int64).alias("count_turns_priced"),
        pl.when(pl.col("cost_micros").count() > 0).then(pl.col("cost_micros").sum()).alias("cost_micros"),
    ]
    if not by:
        spent = turns.select(
            pl.len().cast(pl.Int64).alias("count_turns_all"),
            tokens_of_turn().sum().alias("tokens_all"),
            pl.col("cost_micros").sum().alias("cost_micros_all"),
        )
        return pl.concat([wasted.select(totals), spent], how="horizontal")
    keys = [pl.col(name).cast(STR) for name in by]
    return (
        wasted.group_by(keys)
        .agg(totals)
        .sort(
            [pl.col("tokens"), *[pl.col(name) for name in by]], descending=[True, *[False] * len(by)], nulls_last=True
        )
    )
