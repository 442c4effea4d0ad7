"""Runs set against runs: distributions per group, did they get longer at the same pass rate, did they end rightly.

A room of its own because "longer at a flat pass rate" must be a number with an interval. Lengths are compared by the
bootstrap: whole clusters (a task with all its runs, on both sides; a session where the task is not known) are drawn
with replacement `DRAWS` times from a fixed seed, the statistic is taken of each draw, and the interval lies between the
2.5th and the 97.5th percentile of the draws (the percentile method: Efron 1979; Davison and Hinkley 1997, section
5.3.1, for data in clusters section 3.8). Quantiles are interpolated linearly. Pure functions of `tables.RUNS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopstats.errors import UsageError
from loopstats.estimate import Rate
from loopstats.tables import STR

GROUPS = ("version", "model", "group", "harness", "project", "format", "task", "bait")
DRAWS = 2_000
SEED = 2013
MIN_CLUSTERS = 10
LEVEL = 0.95
QUANTILES = (0.5, 0.9)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def distributions(runs: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """One row a group of runs that have a step: n, pass rate as x and n, quantiles of steps, tokens and cost."""
    for name in by:
        if name not in GROUPS:
            raise UsageError(f"runs --by {name}: use one of {', '.join(GROUPS)}")
    counted = runs.filter(pl.col("count_steps") > 0)
    quantiles = [
        pl.col(column).quantile(q, interpolation="linear").alias(f"{column.removeprefix('count_')}_p{round(100 * q)}")
        for column in ("count_steps", "tokens", "cost_micros")
        for q in QUANTILES
    ]
    totals = [
        pl.len().cast(pl.Int64).alias("n"),
        pl.col("solved").sum().cast(pl.Int64).alias("solved"),
        pl.col("solved").is_not_null().sum().cast(pl.Int64).alias("n_judged"),
        *quantiles,
        pl.col("count_steps").sum().alias("steps"),
        pl.col("tokens").sum().alias("tokens"),
        pl.col("count_turns").sum().alias("turns"),
        pl.col("count_turns_told").sum().alias("turns_told"),
        pl.col("count_turns_priced").sum().alias("turns_priced"),
        pl.col("cost_micros").sum().alias("cost_micros"),
        pl.col("distinct_ratio").median().alias("distinct_ratio_p50"),
        pl.col("longest_frozen").max().alias("longest_frozen"),
        *[
            (pl.col(f"count_{name}") > 0).sum().cast(pl.Int64).alias(f"runs_with_{name}")
            for name in ("loops", "repeats", "drifts", "echoes", "ghosts", "chases", "bypasses", "clean_resets")
        ],
        pl.col("is_unverified").fill_null(False).sum().cast(pl.Int64).alias("unverified"),
        pl.col("is_unverified").is_not_null().sum().cast(pl.Int64).alias("n_edited"),
        _is_right_ending().sum().cast(pl.Int64).alias("right_endings"),
        _is_right_ending().count().cast(pl.Int64).alias("n_endings"),
        _is_false_claim().sum().cast(pl.Int64).alias("false_claims"),
        _is_false_claim().count().cast(pl.Int64).alias("n_claims"),
    ]
    if not by:
        return counted.select(totals)
    return counted.group_by([pl.col(name).cast(STR) for name in by]).agg(totals).sort(list(by), nulls_last=True)


@dataclass(frozen=True)
class Shift:
    """How far a quantile of the steps moved from A to B; the interval is None where it is withheld, with the reason."""

    quantile: float
    a: float | None
    b: float | None
    low: float | None
    high: float | None
    reason: str | None

    @property
    def shift(self) -> float | None:
        """B minus A, in steps."""
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass(frozen=True)
class Compared:
    """Runs of A against runs of B."""

    name_a: str
    name_b: str
    shifts: tuple[Shift, ...]
    solved_a: Rate
    solved_b: Rate
    pass_low: float | None
    pass_high: float | None
    n_a: int
    n_b: int
    count_clusters: int
    count_tasks_shared: int
    gate: str
    reasons: tuple[str, ...]

    @property
    def is_failed(self) -> bool:
        """Runs of B are longer and it is not shown that they solve more."""
        return self.gate == "fail"

    def to_row(self) -> dict[str, Any]:
        """A flat row with every number and its n."""
        row: dict[str, Any] = {"a": self.name_a, "b": self.name_b, "gate": self.gate, "n_a": self.n_a, "n_b": self.n_b}
        for shift in self.shifts:
            name = f"p{round(100 * shift.quantile)}"
            row |= {
                f"steps_{name}_a": shift.a,
                f"steps_{name}_b": shift.b,
                f"shift_{name}": shift.shift,
                f"shift_{name}_low": shift.low,
                f"shift_{name}_high": shift.high,
            }
        return row | {
            "solved_a": self.solved_a.x,
            "n_judged_a": self.solved_a.n,
            "solved_b": self.solved_b.x,
            "n_judged_b": self.solved_b.n,
            "pass_diff_low": self.pass_low,
            "pass_diff_high": self.pass_high,
            "count_clusters": self.count_clusters,
            "count_tasks_shared": self.count_tasks_shared,
            "draws": DRAWS,
            "level": LEVEL,
            "reasons": list(self.reasons),
        }


def compare(a: pl.DataFrame, b: pl.DataFrame, name_a: str, name_b: str, draws: int = DRAWS) -> Compared:
    """Steps and pass rates of the RUNS `a` against `b`, with bootstrap intervals clustered by task, and the gate.

    The gate fails where the interval of a shift lies above zero, unless the pass rate is shown to have risen too;
    it is `unknown` where an interval is withheld (fewer than `MIN_CLUSTERS` clusters on a side), else `pass`.
    """
    sides = [_side(frame, number) for number, frame in enumerate((a, b))]
    both = pl.concat(sides)
    clusters = both.select(pl.col("cluster").unique().sort())["cluster"]
    both = both.join(
        pl.DataFrame({"cluster": clusters, "code": np.arange(clusters.len())}),
        on="cluster",
        how="left",
        maintain_order="left",
    )
    per_side = [both.filter(pl.col("side") == side)["cluster"].n_unique() for side in (0, 1)]
    shared = sum(
        1
        for n in both.filter(pl.col("has_task")).group_by("cluster").agg(pl.col("side").n_unique())["side"].to_list()
        if n == 2
    )
    points = [[_quantile(s["count_steps"].to_numpy(), q) for s in sides] for q in QUANTILES]
    solved = [Rate(int(s["solved"].sum() or 0), int(s["solved"].is_not_null().sum())) for s in sides]
    reasons = [
        reason
        for reason, is_so in (
            ("few_clusters", min(per_side) < MIN_CLUSTERS),
            ("pass_rate_unknown", min(rate.n for rate in solved) == 0),
        )
        if is_so
    ]
    ends: list[tuple[float | None, float | None]] = [(None, None)] * 3
    if min(per_side) >= MIN_CLUSTERS:
        ends = _bootstrap(both, clusters.len(), draws)
    shifts = tuple(
        Shift(q, points[i][0], points[i][1], *ends[i], "few_clusters" if ends[i][0] is None else None)
        for i, q in enumerate(QUANTILES)
    )
    pass_low, pass_high = ends[2]
    is_longer = any(shift.low is not None and shift.low > 0 for shift in shifts)
    has_risen = pass_low is not None and pass_low > 0
    gate = "unknown" if ends[0][0] is None else "fail" if is_longer and not has_risen else "pass"
    if is_longer:
        reasons.append("longer_and_solves_more" if has_risen else "longer_at_flat_pass_rate")
    return Compared(
        name_a,
        name_b,
        shifts,
        solved[0],
        solved[1],
        pass_low,
        pass_high,
        a.filter(pl.col("count_steps") > 0).height,
        b.filter(pl.col("count_steps") > 0).height,
        clusters.len(),
        shared,
        gate,
        tuple(reasons),
    )


def _side(runs: pl.DataFrame, side: int) -> pl.DataFrame:
    has_task = pl.col("task").is_not_null()
    return (
        runs.filter(pl.col("count_steps") > 0)
        .sort("run_id")
        .select(
            pl.when(has_task).then("t" + pl.col("task")).otherwise("s" + pl.col("session_id")).alias("cluster"),
            has_task.alias("has_task"),
            "count_steps",
            "solved",
            pl.lit(side).alias("side"),
        )
    )


def _quantile(values: Ints, q: float) -> float | None:
    return float(np.quantile(values, q)) if values.size else None


def _bootstrap(both: pl.DataFrame, count_clusters: int, draws: int) -> list[tuple[float | None, float | None]]:
    """Intervals of the shift of each quantile and of the difference of pass rates, by drawing whole clusters."""
    random = np.random.default_rng(SEED)
    sides = []
    for side in (0, 1):
        part = both.filter(pl.col("side") == side).sort("count_steps")
        sides.append(
            (
                part["code"].to_numpy(),
                part["count_steps"].to_numpy().astype(np.float64),
                part["solved"].is_not_null().to_numpy(),
                part["solved"].fill_null(False).to_numpy(),
            )
        )
    found: list[list[float]] = [[] for _ in range(len(QUANTILES) + 1)]
    for _ in range(draws):
        weights = np.bincount(random.integers(0, count_clusters, count_clusters), minlength=count_clusters)
        drawn = [weights[codes] for codes, *_ in sides]
        if all(w.any() for w in drawn):
            for number, q in enumerate(QUANTILES):
                a, b = (_weighted_quantile(values, w, q) for (_, values, *_), w in zip(sides, drawn, strict=True))
                found[number].append(b - a)
        judged = [int(w[is_judged].sum()) for (_, _, is_judged, _), w in zip(sides, drawn, strict=True)]
        if all(judged):
            a, b = (
                float(w[is_solved].sum()) / n for (_, _, _, is_solved), w, n in zip(sides, drawn, judged, strict=True)
            )
            found[-1].append(b - a)
    tail = (1 - LEVEL) / 2
    return [
        (float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail)))
        if len(values) >= draws // 2
        else (None, None)
        for values in found
    ]


def _weighted_quantile(values: Floats, weights: Ints, q: float) -> float:
    """The quantile of `values` (sorted), each repeated as often as its weight, interpolated linearly."""
    upto = np.cumsum(weights)
    place = (upto[-1] - 1) * q
    below = int(np.floor(place))
    ends = np.searchsorted(upto, [below, min(below + 1, int(upto[-1]) - 1)], side="right")
    low, high = values[ends].tolist()
    return float(low + (high - low) * (place - below))


def _is_right_ending() -> pl.Expr:
    """Null where the ending or the right one is not known."""
    return pl.col("ending") == pl.col("expected_ending")


def _is_false_claim() -> pl.Expr:
    """Null where the run did not say that it had succeeded, or nobody outside judged it."""
    return pl.when(pl.col("claimed").fill_null(False)).then(~pl.col("solved"))


def endings(runs: pl.DataFrame) -> list[tuple[str, Rate]]:
    """Share of right endings by bait label, among runs whose ending and right ending are both known."""
    counts = (
        runs.filter(pl.col("bait").is_not_null())
        .group_by("bait")
        .agg(_is_right_ending().sum().alias("x"), _is_right_ending().count().alias("n"))
        .filter(pl.col("n") > 0)
        .sort("bait")
    )
    return [(bait, Rate(int(x), int(n))) for bait, x, n in counts.iter_rows()]


def false_claims(runs: pl.DataFrame) -> Rate:
    """Runs that said they had succeeded and had not, among those that said so and were judged from outside."""
    x, n = runs.select(_is_false_claim().sum().alias("x"), _is_false_claim().count().alias("n")).row(0)
    return Rate(int(x), int(n))
