"""Interval estimates, e-values and planning numbers for a lift, on plain numbers.

This is a room of its own because it is the only part whose correctness is a matter of mathematics: nothing here knows a
frame, a file, a configuration or a word of the report, so every function can be checked against a published value or
another program. numpy and scipy are imported where they are needed, so that importing this module stays cheap.

Conventions, everywhere: the treated arm comes first, the holdout second (`x1, n1, x0, n0`); a lift is the rate of the
treated arm minus the rate of the holdout, in [-1, 1]; an interval is the tuple `(low, high)`; every number returned is
a plain Python `float` (`int` where it is a count). No function returns nan. A wrong argument raises `ValueError`; a
right argument for which the quantity does not exist raises `Undefined`, which carries a machine-readable reason.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    Floats = FloatArray | np.float64

__all__ = [
    "Cace",
    "CifRow",
    "ClusterDesign",
    "StratifiedLift",
    "Undefined",
    "aalen_johansen",
    "anytime_inflation",
    "anytime_multiplier",
    "cace_fieller",
    "cluster_design",
    "e_bh",
    "e_value",
    "fcr_level",
    "fisher_attrition",
    "imbens_manski",
    "imbens_manski_multiplier",
    "log_e_value",
    "manski_bounds",
    "mantel_haenszel",
    "mde",
    "newcombe",
    "newcombe_anytime",
    "newcombe_clustered",
    "nights_to_n_star",
    "power",
    "power_exact",
    "sample_size",
    "srm_e_value",
    "srm_exact",
    "srm_log_e_value",
    "wilson",
]

_NORMAL = NormalDist()

# Above this the spacing of floats near 1 begins to eat the width of an interval; no log holds that many loops.
_MAX_COUNT = 1e12

# Above this the square of a multiplier times a count comes near the largest float.
_MAX_Z = 1e100

_EXACT_POWER_MAX_N = 500


class Undefined(ValueError):
    """The quantity does not exist for these data. `reason` is one of:

    `empty_arm` (an arm has no units), `clusters_lt_2` (an arm lives in fewer than two clusters, which is also the case
    where one cluster holds a whole arm), `n_lt_2` (a sample variance needs two units in each arm), `no_variance` (the
    variance estimate is zero or less, so a normal-theory interval would claim certainty).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class ClusterDesign(NamedTuple):
    """What clustering does to a lift: the lift, its CR2 variance, the Bell-McCaffrey degrees of freedom, deff >= 1."""

    lift: float
    variance: float
    df: float
    deff: float


class Cace(NamedTuple):
    """Complier average causal effect. `cace` is None where the first stage is 0; `low` and `high` are None where no
    interval may be shown, and `reason` says why: `weak_first_stage` (the Fieller set is unbounded) or `no_variance`
    (neither arm's outcome varies, so the set would collapse to a point)."""

    itt: float
    first_stage: float
    cace: float | None
    low: float | None
    high: float | None
    is_bounded: bool
    reason: str | None


class StratifiedLift(NamedTuple):
    """A pooled risk difference over strata, its standard error and its interval."""

    lift: float
    se: float
    low: float
    high: float


class CifRow(NamedTuple):
    """Cumulative incidence just after `time`; `n_at_risk` is the number still at risk just before it."""

    time: float
    cif: float
    se: float
    n_at_risk: int


# --- arguments -------------------------------------------------------------------------------------------------------


def _number(name: str, value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise ValueError(f"{name} must be a number, not text")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a finite number") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number")
    return number


def _inside(name: str, value: Any, low: float, high: float) -> float:
    """A number strictly between low and high."""
    number = _number(name, value)
    if not low < number < high:
        raise ValueError(f"{name} must lie strictly between {low:g} and {high:g}, got {number!r}")
    return number


def _rate(name: str, value: Any) -> float:
    number = _number(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {number!r}")
    return number


def _at_least(name: str, value: Any, low: float) -> float:
    number = _number(name, value)
    if number < low:
        raise ValueError(f"{name} must be at least {low:g}, got {number!r}")
    return number


def _whole(name: str, value: Any, low: int = 0) -> int:
    number = _number(name, value)
    if number != math.floor(number) or not low <= number <= _MAX_COUNT:
        raise ValueError(f"{name} must be a whole number from {low} to {_MAX_COUNT:g}, got {number!r}")
    return int(number)


def _size(name: str, value: Any) -> float:
    """The size of an arm, not necessarily whole."""
    number = _number(name, value)
    if number == 0:
        raise Undefined("empty_arm", f"{name} is 0")
    if not 0 < number <= _MAX_COUNT:
        raise ValueError(f"{name} must lie in (0, {_MAX_COUNT:g}], got {number!r}")
    return number


def _counts(x_name: str, x: Any, n_name: str, n: Any) -> tuple[float, float]:
    size = _size(n_name, n)
    count = _number(x_name, x)
    if not 0 <= count <= size:
        raise ValueError(f"{x_name} must lie in [0, {n_name}], got {count!r} of {size!r}")
    return count, size


def _two_arms(x1: Any, n1: Any, x0: Any, n0: Any) -> tuple[float, float, float, float]:
    return (*_counts("x1", x1, "n1", n1), *_counts("x0", x0, "n0", n0))


def _z(level: Any, z: Any = None) -> float:
    """The two-sided normal multiplier of a level, or the multiplier given instead of one."""
    if z is not None:
        return _inside("z", z, 0.0, _MAX_Z)
    return _normal_quantile(0.5 + 0.5 * _inside("level", level, 0.0, 1.0), "level")


def _normal_quantile(probability: float, name: str) -> float:
    if not 0.5 < probability < 1.0:
        raise ValueError(f"{name} is too close to 0 or 1 for a normal quantile")
    return _NORMAL.inv_cdf(probability)


def _t(level: Any, df: float) -> float:
    from scipy.special import stdtrit

    probability = 0.5 + 0.5 * _inside("level", level, 0.0, 1.0)
    if not 0.5 < probability < 1.0:
        raise ValueError("level is too close to 0 or 1 for a t quantile")
    return float(stdtrit(df, probability))


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _exp(log_value: float) -> float:
    """exp that becomes infinite instead of raising."""
    try:
        return math.exp(log_value)
    except OverflowError:
        return math.inf


def _clip(value: float) -> float:
    return min(1.0, max(-1.0, value))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """The root of an increasing function between low (negative there) and high (positive there), to the last float.

    Bisection: a root finder from scipy would cost more to import than this costs to run.
    """
    while True:
        middle = low + 0.5 * (high - low)
        if not low < middle < high:
            return middle
        if function(middle) < 0.0:
            low = middle
        else:
            high = middle


# --- one look --------------------------------------------------------------------------------------------------------


def wilson(x: float, n: float, level: float = 0.95, z: float | None = None) -> tuple[float, float]:
    """Wilson score interval of a rate x/n, without continuity correction, inside [0, 1] (Wilson 1927).

    x and n may be fractions, as they are after division by a design effect. `z` replaces the level where it is given.
    Raises `Undefined("empty_arm")` for n = 0.
    """
    count, size = _counts("x", x, "n", n)
    return _wilson(count, size, _z(level, z))


def _wilson(x: float, n: float, z: float) -> tuple[float, float]:
    z2 = z * z
    centre = (x + 0.5 * z2) / (n + z2)
    half = z * math.sqrt(x * ((n - x) / n) + 0.25 * z2) / (n + z2)
    # At 0/n and n/n the exact bound is 0 or 1; rounding alone would leave it a little beside.
    low = 0.0 if x == 0 else max(0.0, centre - half)
    high = 1.0 if x == n else min(1.0, centre + half)
    return low, high


def newcombe(
    x1: float, n1: float, x0: float, n0: float, level: float = 0.95, z: float | None = None
) -> tuple[float, float]:
    """Interval of the lift x1/n1 - x0/n0: Newcombe (1998), method 10, no continuity correction.

    Two Wilson intervals joined by square-and-add. Inside [-1, 1], contains the lift, and is never of zero width, also
    at 0/n and n/n. Counts may be fractions. `z` replaces the level. Raises `Undefined("empty_arm")`.
    """
    return _newcombe(*_two_arms(x1, n1, x0, n0), _z(level, z))


def _newcombe(x1: float, n1: float, x0: float, n0: float, z: float) -> tuple[float, float]:
    p1, p0 = x1 / n1, x0 / n0
    low1, high1 = _wilson(x1, n1, z)
    low0, high0 = _wilson(x0, n0, z)
    lift = p1 - p0
    below = math.sqrt((p1 - low1) * (p1 - low1) + (high0 - p0) * (high0 - p0))
    above = math.sqrt((high1 - p1) * (high1 - p1) + (p0 - low0) * (p0 - low0))
    return _clip(lift - below), _clip(lift + above)


def _newcombe_arrays(
    x1: FloatArray, n1: Floats, x0: FloatArray, n0: Floats, z: Floats
) -> tuple[FloatArray, FloatArray]:
    """`newcombe` on arrays that broadcast, without validation, for enumeration and simulation.

    The operations are in the order of the scalar form, so that both give the same bits.
    """
    import numpy as np

    def one_arm(x: FloatArray, n: Floats) -> tuple[FloatArray, FloatArray, FloatArray]:
        z2 = z * z
        centre = (x + 0.5 * z2) / (n + z2)
        half = z * np.sqrt(x * ((n - x) / n) + 0.25 * z2) / (n + z2)
        low = np.where(x == 0, 0.0, np.maximum(0.0, centre - half))
        high = np.where(x == n, 1.0, np.minimum(1.0, centre + half))
        return x / n, low, high

    p1, low1, high1 = one_arm(x1, n1)
    p0, low0, high0 = one_arm(x0, n0)
    lift = p1 - p0
    below = np.sqrt((p1 - low1) * (p1 - low1) + (high0 - p0) * (high0 - p0))
    above = np.sqrt((high1 - p1) * (high1 - p1) + (p0 - low0) * (p0 - low0))
    return np.clip(lift - below, -1.0, 1.0), np.clip(lift + above, -1.0, 1.0)


# --- clusters --------------------------------------------------------------------------------------------------------


def cluster_design(
    rows: Sequence[Sequence[int]] | NDArray[Any], counts: Sequence[int] | NDArray[Any] | None = None
) -> ClusterDesign:
    """Variance, degrees of freedom and design effect of the lift when units share clusters.

    `rows` has one row (n1, y1, n0, y0) per cluster: units and successes in the treated arm, then in the holdout; a
    sequence of tuples or an array of shape (clusters, 4). A cluster may have units in both arms. The order of rows and
    rows without units change nothing, not even the last bit. `counts`, one whole number >= 1 per row, says how many
    clusters have that row: the same bits as of the rows written out, in less time.

    Variance: CR2 of the two-sample difference. df: Bell and McCaffrey (2002), closed form: with the matrix P of the
    working model, (trace P)^2 / trace(P^2), where trace P = 1/N1 + 1/N0. deff: variance over the binomial variance,
    at least 1, and 1 where the binomial variance is 0. Raises `Undefined` with `empty_arm` or `clusters_lt_2`.
    """
    if counts is None:
        return _cluster_design(_cluster_rows(rows))
    table = _checked_rows(rows)
    order = _row_order(table)
    return _cluster_design(table[order], _checked_counts(counts, table)[order])


def _cluster_design(table: FloatArray, counts: NDArray[np.int64] | None = None) -> ClusterDesign:
    import numpy as np

    n1, y1, n0, y0 = table.T
    if counts is None:
        counts = np.ones(len(table), dtype=np.int64)
    total1, total0 = float(n1 @ counts), float(n0 @ counts)
    if total1 == 0 or total0 == 0:
        raise Undefined("empty_arm", "an arm has no units")
    if counts[n1 > 0].sum() < 2 or counts[n0 > 0].sum() < 2:
        raise Undefined("clusters_lt_2", "an arm lies in fewer than two clusters")
    p1, p0 = float(y1 @ counts) / total1, float(y0 @ counts) / total0
    a1 = 1.0 / np.sqrt(total1 * (total1 - n1))
    a0 = 1.0 / np.sqrt(total0 * (total0 - n0))
    score = (y1 - n1 * p1) * a1 - (y0 - n0 * p0) * a0
    # Sums of fractions run over the rows written out: a product with the counts would round differently.
    variance = float(np.repeat(np.square(score), counts).sum())

    # trace(P^2) as the squares of its diagonal plus those of the rest. The textbook expansion subtracts numbers that
    # agree in every digit when one cluster holds nearly a whole arm; here all terms are positive.
    trace = 1.0 / total1 + 1.0 / total0
    b1, b0 = n1 * a1, n0 * a0
    diagonal = n1 / (total1 * total1) + n0 / (total0 * total0)
    trace2 = float(np.repeat(np.square(diagonal), counts).sum())
    for term in (b1 * b1 / total1, b0 * b0 / total0):
        trace2 += _sum_of_pairs(term, counts)
    trace2 += 2.0 * _sum_of_pairs(b1 * b0, counts) / (total1 * total0)

    binomial = p1 * (1.0 - p1) / total1 + p0 * (1.0 - p0) / total0
    deff = max(1.0, variance / binomial) if binomial > 0 else 1.0
    return ClusterDesign(p1 - p0, variance, trace * trace / trace2, deff)


def _sum_of_pairs(values: FloatArray, counts: NDArray[np.int64]) -> float:
    """Sum of v[g]*v[h] over all g != h, for values that are not negative, without a subtraction of large numbers."""
    import numpy as np

    order = np.argsort(values)
    ascending = np.repeat(values[order], counts[order])
    return 2.0 * float((ascending[1:] * np.cumsum(ascending)[:-1]).sum())


def _cluster_rows(rows: Sequence[Sequence[int]] | NDArray[Any]) -> FloatArray:
    """The rows as a checked, sorted float array of shape (clusters, 4) without rows of no units."""
    table = _checked_rows(rows)
    return table[_row_order(table)]


def _row_order(table: FloatArray) -> NDArray[np.int64]:
    """Where the rows with units stand, in the order in which they are added up."""
    import numpy as np

    order = np.lexsort(table.T)
    kept: NDArray[np.int64] = order[(table[order, 0] > 0) | (table[order, 2] > 0)]
    return kept


def _checked_counts(counts: Sequence[int] | NDArray[Any], table: FloatArray) -> NDArray[np.int64]:
    import numpy as np

    checked = np.asarray(counts)
    if checked.shape != table.shape[:1] or checked.dtype.kind not in "iu" or not bool((checked >= 1).all()):
        raise ValueError("counts must be one whole number of at least 1 for each row")
    if max(float(table[:, 0] @ checked), float(table[:, 2] @ checked)) > _MAX_COUNT:
        raise ValueError(f"an arm must not have more than {_MAX_COUNT:g} units")
    return checked.astype(np.int64)


def _checked_rows(rows: Sequence[Sequence[int]] | NDArray[Any]) -> FloatArray:
    import numpy as np

    try:
        table = np.asarray(rows)
    except ValueError:
        raise ValueError("rows must all have the four counts (n1, y1, n0, y0)") from None
    if table.size == 0:
        raise Undefined("empty_arm", "there are no rows")
    if table.ndim != 2 or table.shape[1] != 4 or table.dtype.kind not in "iuf":
        raise ValueError("rows must be numbers of shape (clusters, 4): n1, y1, n0, y0")
    # A bound before anything else also refuses nan and infinities, for which the comparison is false.
    if not bool(((table >= 0) & (table <= _MAX_COUNT)).all()):
        raise ValueError(f"rows must hold counts from 0 to {_MAX_COUNT:g}")
    table = table.astype(np.float64)
    if not bool((table == np.floor(table)).all()):
        raise ValueError("rows must hold whole numbers")
    if bool((table[:, 1] > table[:, 0]).any()) or bool((table[:, 3] > table[:, 2]).any()):
        raise ValueError("rows must have y1 <= n1 and y0 <= n0")
    if max(float(table[:, 0].sum()), float(table[:, 2].sum())) > _MAX_COUNT:
        raise ValueError(f"an arm must not have more than {_MAX_COUNT:g} units")
    return table


def newcombe_clustered(rows: Sequence[Sequence[int]] | NDArray[Any], level: float = 0.95) -> tuple[float, float]:
    """Interval of the lift for clustered units: Newcombe on counts divided by deff, with a t multiplier.

    Rows as in `cluster_design`. The counts are scaled once; the t quantile has the Bell-McCaffrey df. Keeps its level
    at a 90/10 split with rare outcomes, where sandwich and bootstrap intervals do not. Raises `Undefined` as
    `cluster_design` does.
    """
    table = _cluster_rows(rows)
    design = _cluster_design(table)
    return _newcombe(*_scaled(table, design.deff), _t(level, design.df))


def _scaled(table: FloatArray, deff: float) -> tuple[float, float, float, float]:
    n1, y1, n0, y0 = (float(total) for total in table.sum(axis=0))
    return y1 / deff, n1 / deff, y0 / deff, n0 / deff


# --- every night -----------------------------------------------------------------------------------------------------


def anytime_multiplier(n: float, n_star: float, alpha: float = 0.05) -> float:
    """The multiplier that takes the place of the normal quantile when a result is read at every n.

    Robbins' normal mixture as in Waudby-Smith et al. (2024), eq. 9. n: units of both arms together (divided by deff
    where units are clustered); n_star: the planned total, for which the interval is tightest relative to a fixed one.
    """
    size = _number("n", n)
    if not 0 < size <= 2 * _MAX_COUNT:
        raise ValueError(f"n must lie in (0, {2 * _MAX_COUNT:g}], got {size!r}")
    miss = _inside("alpha", alpha, 0.0, 1.0)
    k = size * _rho2(n_star, miss)
    return math.sqrt((k + 1.0) / k * (math.log1p(k) - 2.0 * math.log(miss)))


def _rho2(n_star: Any, alpha: float) -> float:
    planned = _number("n_star", n_star)
    if not 1 <= planned <= _MAX_COUNT:
        raise ValueError(f"n_star must lie in [1, {_MAX_COUNT:g}], got {planned!r}")
    return (-2.0 * math.log(alpha) + math.log(1.0 - 2.0 * math.log(alpha))) / planned


def newcombe_anytime(
    x1: float,
    n1: float,
    x0: float,
    n0: float,
    n_star: float,
    alpha: float = 0.05,
    rows: Sequence[Sequence[int]] | NDArray[Any] | None = None,
) -> tuple[float, float]:
    """Interval of the lift that stays valid when it is read every night: Newcombe with the anytime multiplier.

    With `rows` (as in `cluster_design`, whose totals must be the four counts) the counts and the n of the multiplier
    are divided by deff, and the multiplier grows by t(df)/z. Its validity at small n rests on simulation, not on a
    proof. Raises `Undefined` as `newcombe` and `cluster_design` do.
    """
    counts = _two_arms(x1, n1, x0, n0)
    if rows is None:
        return _newcombe(*counts, anytime_multiplier(counts[1] + counts[3], n_star, alpha))
    table = _cluster_rows(rows)
    if _scaled(table, 1.0) != counts:
        raise ValueError("the totals of rows differ from x1, n1, x0, n0")
    design = _cluster_design(table)
    scaled = _scaled(table, design.deff)
    level = 1.0 - _inside("alpha", alpha, 0.0, 1.0)
    widening = _t(level, design.df) / _z(level)
    return _newcombe(*scaled, anytime_multiplier(scaled[1] + scaled[3], n_star, alpha) * widening)


def log_e_value(
    x1: float, n1: float, x0: float, n0: float, n_star: float, alpha: float = 0.05, deff: float = 1.0
) -> float:
    """Natural logarithm of `e_value`, finite for all data."""
    counts = _two_arms(x1, n1, x0, n0)
    scale = _at_least("deff", deff, 1.0)
    x1, n1, x0, n0 = (count / scale for count in counts)
    k = (n1 + n0) * _rho2(n_star, _inside("alpha", alpha, 0.0, 1.0))
    p1, p0 = (x1 + 1.0) / (n1 + 2.0), (x0 + 1.0) / (n0 + 2.0)
    variance = p1 * (1.0 - p1) / (n1 + 2.0) + p0 * (1.0 - p0) / (n0 + 2.0)
    return (p1 - p0) * (p1 - p0) / variance * (k / (2.0 * (k + 1.0))) - 0.5 * math.log1p(k)


def e_value(x1: float, n1: float, x0: float, n0: float, n_star: float, alpha: float = 0.05, deff: float = 1.0) -> float:
    """Evidence against a lift of 0, valid at every look: the mixture behind `anytime_multiplier`, add-one smoothed.

    Counts and sizes are divided by deff. The anytime p-value is min(1, 1/e). Infinite where it exceeds the largest
    float. alpha enters only through the mixture's width. Raises `Undefined("empty_arm")`.
    """
    return _exp(log_e_value(x1, n1, x0, n0, n_star, alpha, deff))


def anytime_inflation(alpha: float = 0.05, target_power: float = 0.8) -> float:
    """How many times more units a verdict by the anytime interval needs at n = n_star than one by a single look."""
    z = _z(1.0 - _inside("alpha", alpha, 0.0, 1.0))
    z_power = _z_power(target_power)
    ratio = (anytime_multiplier(1.0, 1.0, alpha) + z_power) / (z + z_power)
    return ratio * ratio


# --- many segments ---------------------------------------------------------------------------------------------------


def e_bh(values: Iterable[float], alpha: float = 0.05) -> list[int]:
    """Positions of the hypotheses rejected by e-BH (Wang and Ramdas 2022), in ascending order of position.

    Rejects the k largest e-values for the largest k with e_(k) >= m/(alpha*k). Holds the false discovery rate under
    any dependence. An infinite e-value is allowed; a tie at the border is rejected whole.
    """
    evidence: list[float] = []
    for value in values:
        number = math.inf if value == math.inf else _number("an e-value", value)
        evidence.append(_check_not_negative("an e-value", number))
    miss = _inside("alpha", alpha, 0.0, 1.0)
    count_tested = len(evidence)
    border = math.inf
    is_any = False
    for k, value in enumerate(sorted(evidence, reverse=True), start=1):
        if value >= count_tested / (miss * k):
            border, is_any = value, True
    return [i for i, value in enumerate(evidence) if value >= border] if is_any else []


def _check_not_negative(name: str, value: float) -> float:
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value!r}")
    return value


def fcr_level(count_selected: int, count_tested: int, alpha: float) -> float:
    """Level of the intervals of selected segments: 1 - alpha*k/m (Benjamini and Yekutieli 2005), 1 <= k <= m."""
    tested = _whole("count_tested", count_tested, 1)
    selected = _whole("count_selected", count_selected, 1)
    if selected > tested:
        raise ValueError("count_selected must not exceed count_tested")
    return 1.0 - _inside("alpha", alpha, 0.0, 1.0) * selected / tested


# --- the split -------------------------------------------------------------------------------------------------------


def srm_exact(n1: int, n: int, share: float) -> float:
    """Exact two-sided binomial p-value that n1 of n units are treated when the design share is `share` (in [0, 1])."""
    total = _whole("n", n)
    treated = _whole("n1", n1)
    if treated > total:
        raise ValueError("n1 must not exceed n")
    design = _rate("share", share)

    def log_odds(k: FloatArray) -> Any:
        return _log_ways(total, k) + _log_power(design, k) + _log_power(1.0 - design, total - k)

    spread = math.sqrt(total * design * (1.0 - design))
    return _two_sided(log_odds, treated, total * design, spread, 0, total)


def srm_log_e_value(n1: int, n0: int, share: float, c: float = 100) -> float:
    """Natural logarithm of `srm_e_value`."""
    treated, held_out = _whole("n1", n1), _whole("n0", n0)
    design = _rate("share", share)
    strength = _inside("c", c, 0.0, _MAX_COUNT)
    impossible = (design == 0.0 and treated > 0) or (design == 1.0 and held_out > 0)
    if impossible:
        return math.inf
    if design in (0.0, 1.0):
        return 0.0
    return float(_srm_log_e(treated, held_out, design, strength))


def _srm_log_e(n1: Any, n0: Any, share: float, c: float) -> Any:
    """The formula of `srm_log_e_value` for 0 < share < 1, on numbers or arrays."""
    from scipy.special import betaln

    prior1, prior0 = c * share, c * (1.0 - share)
    mixture = betaln(prior1 + n1, prior0 + n0) - betaln(prior1, prior0)
    return mixture - n1 * math.log(share) - n0 * math.log1p(-share)


def srm_e_value(n1: int, n0: int, share: float, c: float = 100) -> float:
    """Evidence that the split is not the design share, valid at every look: a beta(c*share, c*(1-share)) mixture.

    n1, n0: treated and holdout units so far. Epochs of different share multiply. Infinite where it exceeds the largest
    float, and where a unit lies in an arm of share 0.
    """
    return _exp(srm_log_e_value(n1, n0, share, c))


def fisher_attrition(u1: int, n1: int, u0: int, n0: int) -> float:
    """Fisher's exact two-sided p-value that u1 of n1 and u0 of n0 have the same rate of unresolved units."""
    lost1, size1, lost0, size0 = (_whole(*pair) for pair in (("u1", u1), ("n1", n1), ("u0", u0), ("n0", n0)))
    _two_arms(lost1, size1, lost0, size0)
    size, lost = size1 + size0, lost1 + lost0

    def log_odds(k: FloatArray) -> Any:
        return _log_ways(size1, k) + _log_ways(size0, lost - k) - float(_log_ways(size, lost))

    rate = lost / size
    spread = math.sqrt(size1 * rate * (1.0 - rate) * size0 / max(size - 1, 1))
    return _two_sided(log_odds, lost1, size1 * rate, spread, max(0, lost - size0), min(lost, size1))


def _two_sided(
    log_odds: Callable[[FloatArray], Any], seen: int, mean: float, spread: float, lowest: int, highest: int
) -> float:
    """Exact p-value: the sum of all probabilities that do not exceed the one of what was seen.

    The rule of R's binom.test and fisher.test, ties within 1e-7. Beyond 40 standard deviations nothing is left to add.
    """
    import numpy as np

    reach = 40.0 * spread + 50.0
    first = max(lowest, math.floor(min(mean, seen) - reach))
    last = min(highest, math.ceil(max(mean, seen) + reach))
    logs = log_odds(np.arange(first, last + 1, dtype=np.float64))
    is_as_rare = logs <= logs[seen - first] + 1e-7
    return min(1.0, float(np.exp(logs[is_as_rare]).sum()))


def _log_ways(n: float, k: Any) -> Any:
    """Logarithm of n over k."""
    from scipy.special import gammaln

    return gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)


def _log_power(base: float, exponent: FloatArray) -> FloatArray:
    """Logarithm of base**exponent, where 0**0 is 1."""
    from scipy.special import xlogy

    powers: FloatArray = xlogy(exponent, base)
    return powers


# --- delivery, attrition, strata -------------------------------------------------------------------------------------


def cace_fieller(cells: Mapping[tuple[int, int, int], int], level: float = 0.95) -> Cace:
    """Effect of delivery among those whose delivery follows the arm, with a Fieller (Anderson-Rubin) interval.

    `cells` maps (z, d, y), each 0 or 1 (assigned, delivered, success), to a count; absent cells are 0. Variances are
    sample variances (ddof 1). The interval may reach outside [-1, 1]. Where the first stage does not differ from 0 at
    this level the set is unbounded, and no ends are given. Raises `Undefined` with `empty_arm` or `n_lt_2`.
    """
    z = _z(level)
    count: dict[tuple[int, int, int], int] = {}
    for key, value in cells.items():
        if len(key) != 3 or any(part not in (0, 1) for part in key):
            raise ValueError("cells must be keyed by (z, d, y), each 0 or 1")
        count[key] = _whole("a cell", value)
    itt = first_stage = var_y = var_d = covariance = 0.0
    for arm, sign in ((1, 1.0), (0, -1.0)):
        both, delivered, success, neither = (count.get((arm, d, y), 0) for d, y in ((1, 1), (1, 0), (0, 1), (0, 0)))
        n = both + delivered + success + neither
        if n == 0:
            raise Undefined("empty_arm", f"arm {arm} has no units")
        if n < 2:
            raise Undefined("n_lt_2", f"arm {arm} has one unit")
        y_sum, d_sum = both + success, both + delivered
        itt += sign * (y_sum / n)
        first_stage += sign * (d_sum / n)
        # Sums of squares about the mean in whole numbers: exact, and exactly 0 where nothing varies.
        per = n * n * (n - 1)
        var_y += y_sum * (n - y_sum) / per
        var_d += d_sum * (n - d_sum) / per
        covariance += (n * both - y_sum * d_sum) / per
    cace = itt / first_stage if first_stage != 0 else None
    z2 = z * z
    square = first_stage * first_stage - z2 * var_d
    if square <= 0:
        return Cace(itt, first_stage, cace, None, None, False, "weak_first_stage")
    if var_y == 0:
        return Cace(itt, first_stage, cace, None, None, False, "no_variance")
    middle = itt * first_stage - z2 * covariance
    # The ratio itself lies in the set, so the true discriminant is not negative; rounding may say otherwise.
    root = math.sqrt(max(0.0, middle * middle - square * (itt * itt - z2 * var_y)))
    return Cace(itt, first_stage, cace, (middle - root) / square, (middle + root) / square, True, None)


def _resolved_arms(
    b1: Any, u1: Any, n1: Any, b0: Any, u0: Any, n0: Any
) -> tuple[float, float, float, float, float, float]:
    broke1, size1, broke0, size0 = _two_arms(b1, n1, b0, n0)
    lost1, lost0 = _at_least("u1", u1, 0.0), _at_least("u0", u0, 0.0)
    if broke1 + lost1 > size1 or broke0 + lost0 > size0:
        raise ValueError("broke and unresolved units together must not exceed the arm")
    return broke1, lost1, size1, broke0, lost0, size0


def manski_bounds(b1: float, u1: float, n1: float, b0: float, u0: float, n0: float) -> tuple[float, float]:
    """The lifts that remain possible whatever the unresolved units would have become (Manski 1990).

    Per arm: successes b, unresolved u, assigned n. No sampling error: see `imbens_manski`. Raises
    `Undefined("empty_arm")`.
    """
    broke1, lost1, size1, broke0, lost0, size0 = _resolved_arms(b1, u1, n1, b0, u0, n0)
    return broke1 / size1 - (broke0 + lost0) / size0, (broke1 + lost1) / size1 - broke0 / size0


def imbens_manski_multiplier(width: float, se: float, level: float = 0.95) -> float:
    """The c with Phi(c + width/se) - Phi(-c) = level; width of the bounds >= 0, se the larger of the two (> 0)."""
    probability = _inside("level", level, 0.0, 1.0)
    z = _z(probability)
    spread = _at_least("se", se, 0.0)
    if spread == 0:
        raise Undefined("no_variance", "the standard error is 0")
    shift = _at_least("width", width, 0.0) / spread
    # c lies between the one-sided and the two-sided quantile; the margin keeps the signs at the ends certain.
    low = _NORMAL.inv_cdf(probability) - 1.0
    return _root(lambda c: _normal_cdf(c + shift) - _normal_cdf(-c) - probability, low, z + 1.0)


def imbens_manski(
    b1: float, u1: float, n1: float, b0: float, u0: float, n0: float, level: float = 0.95
) -> tuple[float, float]:
    """Interval of the lift that allows for the unresolved units and for sampling (Imbens and Manski 2004).

    Arguments as in `manski_bounds`; inside [-1, 1]. Raises `Undefined` with `empty_arm`, or with `no_variance` where
    the standard error of a bound is 0 (all or none in both arms): Newcombe at the bounds remains possible there.
    """
    broke1, lost1, size1, broke0, lost0, size0 = _resolved_arms(b1, u1, n1, b0, u0, n0)
    low, high = manski_bounds(b1, u1, n1, b0, u0, n0)
    se_low = _binomial_se(broke1, size1, broke0 + lost0, size0)
    se_high = _binomial_se(broke1 + lost1, size1, broke0, size0)
    if se_low == 0 or se_high == 0:
        raise Undefined("no_variance", "a bound has no sampling variance")
    # b/n - (b + u)/n may round to a hair above the other end when nothing is unresolved.
    c = imbens_manski_multiplier(max(0.0, high - low), max(se_low, se_high), level)
    return _clip(low - c * se_low), _clip(high + c * se_high)


def _binomial_se(x1: float, n1: float, x0: float, n0: float) -> float:
    return math.sqrt(x1 * (n1 - x1) / (n1 * n1 * n1) + x0 * (n0 - x0) / (n0 * n0 * n0))


def mantel_haenszel(strata: Iterable[Sequence[float]], level: float = 0.95) -> StratifiedLift:
    """Lift pooled over strata (epochs of different share) with weights n1*n0/(n1+n0).

    `strata` holds (x1, n1, x0, n0). Standard error: Sato, Greenland and Robins (1989). The interval is normal, cut to
    [-1, 1]. A stratum with an empty arm says nothing about a difference and is passed over. Raises `Undefined` with
    `empty_arm` where no stratum is left, `no_variance` where the variance estimate is not positive.
    """
    z = _z(level)
    total = weighted = linear = constant = 0.0
    for stratum in strata:
        if len(stratum) != 4:
            raise ValueError("a stratum must have the four counts (x1, n1, x0, n0)")
        if any(size == 0 and count != 0 for count, size in (stratum[:2], stratum[2:])):
            raise ValueError("a stratum has successes in an empty arm")
        if stratum[1] == 0 or stratum[3] == 0:
            continue
        x1, n1, x0, n0 = _two_arms(*stratum)
        n = n1 + n0
        total += n1 * (n0 / n)
        weighted += x1 * (n0 / n) - x0 * (n1 / n)
        linear += x0 * (n1 / n) ** 2 - x1 * (n0 / n) ** 2 + (n1 / n) * (n0 / n) * (n0 - n1) / 2.0
        constant += (x1 * ((n0 - x0) / n) + x0 * ((n1 - x1) / n)) / 2.0
    if total == 0:
        raise Undefined("empty_arm", "no stratum has units in both arms")
    lift = _clip(weighted / total)
    variance = (lift * linear + constant) / (total * total)
    # What is left of an exact zero after rounding is not a variance.
    if variance <= 1e-14 / total:
        raise Undefined("no_variance", "the variance estimate is not positive")
    se = math.sqrt(variance)
    return StratifiedLift(lift, se, _clip(lift - z * se), _clip(lift + z * se))


# --- time to the outcome ---------------------------------------------------------------------------------------------


def aalen_johansen(times: Sequence[float], causes: Sequence[int], cause: int = 1) -> list[CifRow]:
    """Cumulative incidence of one cause among competing causes, one row per distinct time, in order of time.

    `causes[i]` is what ended unit i at `times[i]`: 0 is the data cut-off (censored), 1, 2, ... are causes. Ties are
    kept: at one time all events come before all cut-offs. The standard error is the delta-method one that R's survfit
    prints. Without cut-offs the last value is the plain share of the cause. No units give no rows.
    """
    if len(times) != len(causes):
        raise ValueError("times and causes must have the same length")
    wanted = _whole("cause", cause, 1)
    units = sorted((_number("a time", t), _whole("a cause", c)) for t, c in zip(times, causes, strict=True))
    rows: list[CifRow] = []
    cif, survival = 0.0, 1.0
    # Sums over past event times of w, (F - F_i) w and (F - F_i)^2 w, carried forward as F grows: no large terms cancel.
    weight, weight_gap, weight_gap2 = 0.0, 0.0, 0.0
    cross, cross_gap = 0.0, 0.0
    own = 0.0
    start = 0
    while start < len(units):
        time = units[start][0]
        end = start
        events = wanted_events = 0
        while end < len(units) and units[end][0] == time:
            events += units[end][1] != 0
            wanted_events += units[end][1] == wanted
            end += 1
        n = len(units) - start
        step = survival * wanted_events / n
        cif += step
        weight_gap2 += 2.0 * step * weight_gap + step * step * weight
        weight_gap += step * weight
        cross_gap += step * cross
        own += survival * survival * (n - wanted_events) * wanted_events / n**3
        cross += survival * wanted_events / n**2
        # Where everybody left has an event, F no longer grows and the infinite weight never meets a gap.
        if events < n:
            weight += events / (n * (n - events))
        survival *= (n - events) / n
        variance = weight_gap2 + own - 2.0 * cross_gap
        rows.append(CifRow(time, min(1.0, cif), math.sqrt(max(0.0, variance)), n))
        start = end
    return rows


# --- planning --------------------------------------------------------------------------------------------------------


def _z_power(target_power: Any) -> float:
    probability = _number("target_power", target_power)
    if not 0.5 <= probability < 1.0:
        raise ValueError(f"target_power must lie in [0.5, 1), got {probability!r}")
    return _NORMAL.inv_cdf(probability)


def _spreads(p1: float, p0: float, ratio: float) -> tuple[float, float]:
    """Standard deviations per sqrt(n1) under no difference (rates pooled) and under the difference."""
    pooled = (p1 + ratio * p0) / (1.0 + ratio)
    null = math.sqrt((1.0 + 1.0 / ratio) * pooled * max(0.0, 1.0 - pooled))
    return null, math.sqrt(p1 * (1.0 - p1) + p0 * (1.0 - p0) / ratio)


def sample_size(
    p1: float,
    p0: float,
    ratio: float = 1.0,
    target_power: float = 0.8,
    alpha: float = 0.05,
    deff: float = 1.0,
    inflate: float = 1.0,
) -> float:
    """Treated units, not rounded, for a two-sided test of p1 against p0 to have the power.

    ratio: holdout units per treated unit. deff >= 1: design effect. inflate >= 1: `anytime_inflation` where the verdict
    is by the anytime interval. The usual normal formula with pooled variance under no difference. p1 = p0 is refused.
    """
    treated, holdout = _rate("p1", p1), _rate("p0", p0)
    if treated == holdout:
        raise ValueError("p1 and p0 must differ")
    null, alternative = _spreads(treated, holdout, _inside("ratio", ratio, 0.0, _MAX_COUNT))
    z = _z(1.0 - _inside("alpha", alpha, 0.0, 1.0))
    need = (z * null + _z_power(target_power) * alternative) / (treated - holdout)
    return need * need * _at_least("deff", deff, 1.0) * _at_least("inflate", inflate, 1.0)


def power(
    n1: float, n0: float, p1: float, p0: float, alpha: float = 0.05, deff: float = 1.0, inflate: float = 1.0
) -> float:
    """Power of the two-sided test for arms of n1 and n0; the other arguments are those of `sample_size`.

    Findings in either direction count, so p1 = p0 gives alpha (and 0 where neither arm can vary). `sample_size` and
    `mde` leave the wrong direction out, as is usual; at a power of 0.8 that matters only for a handful of units. Raises
    `Undefined("empty_arm")`.
    """
    size1, size0 = _size("n1", n1), _size("n0", n0)
    treated, holdout = _rate("p1", p1), _rate("p0", p0)
    null, alternative = _spreads(treated, holdout, size0 / size1)
    z = _z(1.0 - _inside("alpha", alpha, 0.0, 1.0))
    effective = size1 / (_at_least("deff", deff, 1.0) * _at_least("inflate", inflate, 1.0))
    shift = abs(treated - holdout) * math.sqrt(effective)
    if alternative == 0:
        return 1.0 if shift > z * null else 0.0
    return _normal_cdf((shift - z * null) / alternative) + _normal_cdf((-shift - z * null) / alternative)


def mde(
    n1: float,
    n0: float,
    p0: float,
    target_power: float = 0.8,
    alpha: float = 0.05,
    deff: float = 1.0,
    inflate: float = 1.0,
) -> float | None:
    """The smallest positive lift over a holdout rate p0 that arms of n1 and n0 find with the power.

    None where no lift up to 1 - p0 is found with that power. Solves the equation of `sample_size` for the lift.
    Raises `Undefined("empty_arm")`.
    """
    size1, size0 = _size("n1", n1), _size("n0", n0)
    holdout = _rate("p0", p0)
    z, z_power = _z(1.0 - _inside("alpha", alpha, 0.0, 1.0)), _z_power(target_power)
    root_n = math.sqrt(size1 / (_at_least("deff", deff, 1.0) * _at_least("inflate", inflate, 1.0)))

    def margin(lift: float) -> float:
        null, alternative = _spreads(min(1.0, holdout + lift), holdout, size0 / size1)
        return lift * root_n - z * null - z_power * alternative

    # The margin is a line minus concave functions and not positive at 0: it rises through 0 once, or never.
    room = 1.0 - holdout
    if room <= 0 or margin(room) <= 0:
        return None
    return _root(margin, 0.0, room)


def nights_to_n_star(n: float, n_star: float, nights: float) -> int | None:
    """Further nights until n_star at the pace so far: n units (divided by deff where clustered) in `nights` nights.

    0 where n_star is reached, None where the pace is 0 or no night has passed.
    """
    have, planned = _at_least("n", n, 0.0), _at_least("n_star", n_star, 1.0)
    passed = _at_least("nights", nights, 0.0)
    if have >= planned:
        return 0
    if have == 0 or passed == 0:
        return None
    try:
        return math.ceil((planned - have) * passed / have)
    except OverflowError:
        return None


def power_exact(n1: int, n0: int, p1: float, p0: float, alpha: float = 0.05) -> float:
    """Exact chance that the Newcombe interval at level 1 - alpha excludes 0, by enumeration of all outcomes.

    For p1 = p0 this is the true size of the test. Arms of at most 500 units together; more raise `ValueError`.
    """
    import numpy as np

    size1, size0 = _whole("n1", n1), _whole("n0", n0)
    if size1 == 0 or size0 == 0:
        raise Undefined("empty_arm", "an arm has no units")
    if size1 + size0 > _EXACT_POWER_MAX_N:
        raise ValueError(f"n1 + n0 must not exceed {_EXACT_POWER_MAX_N}: use power()")
    z = _z(1.0 - _inside("alpha", alpha, 0.0, 1.0))
    x1 = np.arange(size1 + 1, dtype=np.float64)[:, None]
    x0 = np.arange(size0 + 1, dtype=np.float64)[None, :]
    low, high = _newcombe_arrays(x1, np.float64(size1), x0, np.float64(size0), np.float64(z))
    is_found = ((low > 0) | (high < 0)).astype(np.float64)
    weight1, weight0 = _binomial_weights(size1, _rate("p1", p1)), _binomial_weights(size0, _rate("p0", p0))
    return min(1.0, float(weight1 @ is_found @ weight0))


def _binomial_weights(n: int, p: float) -> FloatArray:
    """Probabilities of 0..n successes."""
    import numpy as np

    k = np.arange(n + 1, dtype=np.float64)
    weights: FloatArray = np.exp(_log_ways(n, k) + _log_power(p, k) + _log_power(1.0 - p, n - k))
    return weights
