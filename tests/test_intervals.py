"""Interval mathematics against published values, other programs, and properties that must hold for all data.

Names R1..R32 are the reference values of the statistical specification; each test says which paper or program the
number comes from. Warnings are errors here: a division by zero in numpy would fail the test.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats import proportion as sm

from loopstats import intervals as iv

pytestmark = pytest.mark.filterwarnings("error")
SETTINGS = settings(max_examples=100, deadline=None, derandomize=True)

FIXTURE_A = [
    (2, 1, 1, 0),
    (1, 1, 0, 0),
    (3, 2, 1, 1),
    (0, 0, 2, 1),
    (1, 0, 1, 0),
    (4, 3, 1, 0),
    (2, 2, 0, 0),
    (1, 1, 2, 1),
    (0, 0, 1, 0),
    (2, 1, 1, 1),
    (5, 2, 2, 0),
    (1, 1, 1, 0),
]
TREATED = ([2, 3, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10], [1, 1, 2, 1, 0, 1, 2, 1, 3, 1, 0, 0])
HOLDOUT = ([1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 9, 10], [2, 1, 2, 2, 3, 2, 1, 2, 0, 2, 1, 0])
CACE_CELLS = {
    (1, 1, 1): 34,
    (1, 1, 0): 14,
    (1, 0, 1): 5,
    (1, 0, 0): 7,
    (0, 1, 1): 2,
    (0, 1, 0): 1,
    (0, 0, 1): 14,
    (0, 0, 0): 23,
}


def printed(*values: float) -> object:
    """Equal to all of six printed decimals."""
    return pytest.approx(values if len(values) > 1 else values[0], abs=6e-7, rel=0)


@st.composite
def arms(draw: st.DrawFn, largest: int = 400) -> tuple[int, int, int, int]:
    n1, n0 = draw(st.integers(1, largest)), draw(st.integers(1, largest))
    return draw(st.integers(0, n1)), n1, draw(st.integers(0, n0)), n0


@st.composite
def clusters(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Rows in which each arm lies in at least two clusters."""

    def one_row() -> tuple[int, int, int, int]:
        n1, n0 = draw(st.integers(0, 6)), draw(st.integers(0, 6))
        return n1, draw(st.integers(0, n1)), n0, draw(st.integers(0, n0))

    rows = [one_row() for _ in range(draw(st.integers(2, 14)))]
    assume(sum(row[0] > 0 for row in rows) >= 2 and sum(row[2] > 0 for row in rows) >= 2)
    return rows


def totals(rows: list[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    n1, y1, n0, y0 = (sum(column) for column in zip(*rows, strict=True))
    return y1, n1, y0, n0


# --- one look --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param((56, 70, 48, 80), (0.052431, 0.333873), id="R1"),
        pytest.param((6, 7, 2, 7), (0.058228, 0.806250), id="R3"),
        pytest.param((5, 56, 0, 29), (-0.038137, 0.192560), id="R4"),
        pytest.param((0, 10, 0, 10), (-0.277533, 0.277533), id="R6"),
        pytest.param((10, 10, 0, 10), (0.607509, 1.0), id="R8"),
        pytest.param((12, 15, 30, 60), (0.019869, 0.478380), id="R9"),
        pytest.param((7, 34, 1, 34), (0.018921, 0.340369), id="R11"),
        pytest.param((150, 500, 120, 500), (0.004952, 0.114574), id="R12"),
        pytest.param((39, 60, 16, 40), (0.050754, 0.424271), id="R28"),
        pytest.param((28, 50, 18, 50), (0.005168, 0.374785), id="R29"),
        pytest.param((28, 42, 18, 46), (0.066517, 0.452574), id="R29-resolved-only"),
    ],
)
def test_newcombe_equals_statsmodels_and_ratesci(counts: tuple[int, ...], expected: tuple[float, float]) -> None:
    """statsmodels 0.15.0 'newcomb' and R ratesci 1.1.0 moverci, which print the same digits."""
    assert iv.newcombe(*counts) == printed(*expected)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((56, 70, 48, 80), (0.0524, 0.3339)),
        ((9, 10, 3, 10), (0.1705, 0.8090)),
        ((6, 7, 2, 7), (0.0582, 0.8062)),
        ((5, 56, 0, 29), (-0.0381, 0.1926)),
    ],
)
def test_newcombe_equals_the_printed_table(counts: tuple[int, ...], expected: tuple[float, float]) -> None:
    """Newcombe (1998), Table II, cases a to d, method 10, four printed digits."""
    # Half a unit of the last digit, and a hair for the float: .80625 is printed as .8062.
    assert iv.newcombe(*counts) == pytest.approx(expected, abs=5.1e-5, rel=0)


def test_newcombe_at_90_percent() -> None:
    """R13: R1 at level 0.90, statsmodels."""
    assert iv.newcombe(56, 70, 48, 80, level=0.90) == printed(0.076564, 0.313645)


def test_newcombe_at_the_bounds_of_the_unresolved() -> None:
    """R29: the outer ends when every unresolved unit is counted against, and for, the treated arm."""
    assert iv.newcombe(28, 50, 22, 50)[0] == printed(-0.073662)
    assert iv.newcombe(36, 50, 18, 50)[1] == printed(0.518582)


@given(arms(), st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.999]))
@SETTINGS
def test_newcombe_equals_statsmodels_everywhere(counts: tuple[int, int, int, int], level: float) -> None:
    x1, n1, x0, n0 = counts
    expected = sm.confint_proportions_2indep(x1, n1, x0, n0, method="newcomb", compare="diff", alpha=1 - level)
    assert iv.newcombe(*counts, level=level) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("x", "n", "expected"),
    [
        (0, 10, (0.0, 0.277533)),
        (5, 10, (0.236593, 0.763407)),
        (12, 15, (0.548146, 0.929525)),
        (81, 263, (0.255289, 0.366210)),
    ],
)
def test_wilson_reference_values(x: int, n: int, expected: tuple[float, float]) -> None:
    """R14: scipy; 81/263 is also in Newcombe (1998a)."""
    assert iv.wilson(x, n) == printed(*expected)


@given(st.integers(1, 5000), st.floats(0, 1), st.floats(0.01, 0.9999))
@SETTINGS
def test_wilson_equals_scipy(n: int, part: float, level: float) -> None:
    x = min(n, int(part * (n + 1)))
    expected = stats.binomtest(x, n).proportion_ci(level, method="wilson")
    assert iv.wilson(x, n, level) == pytest.approx((expected.low, expected.high), abs=1e-10)


def test_a_multiplier_replaces_the_level() -> None:
    assert iv.wilson(3, 9, level=0.5, z=stats.norm.ppf(0.975)) == pytest.approx(iv.wilson(3, 9), abs=1e-14)
    assert iv.newcombe(3, 9, 1, 9, 0.5, stats.norm.ppf(0.975)) == pytest.approx(iv.newcombe(3, 9, 1, 9), abs=1e-14)


@given(st.integers(1, 10**6), st.floats(0.01, 50), st.floats(1, 30))
@SETTINGS
def test_none_and_all_end_exactly_at_0_and_1(n: int, z: float, deff: float) -> None:
    """Not a rounding error beside it: a lower end of 1e-17 would read as "more than never"."""
    assert iv.wilson(0, n / deff, z=z)[0] == 0.0
    assert iv.wilson(n / deff, n / deff, z=z)[1] == 1.0


fractions = st.tuples(st.floats(1e-3, 1e6), st.floats(0, 1), st.floats(1e-3, 1e6), st.floats(0, 1))


@given(fractions, st.floats(0.01, 12))
@SETTINGS
def test_newcombe_holds_its_invariants_for_fractions(parts: tuple[float, float, float, float], z: float) -> None:
    n1, q1, n0, q0 = parts
    x1, x0 = n1 * q1, n0 * q0
    low, high = iv.newcombe(x1, n1, x0, n0, z=z)
    assert -1 <= low <= x1 / n1 - x0 / n0 <= high <= 1
    assert low < high
    swapped = iv.newcombe(x0, n0, x1, n1, z=z)
    assert (-swapped[1], -swapped[0]) == (low, high)
    wider = iv.newcombe(x1, n1, x0, n0, z=1.1 * z)
    assert wider[0] <= low + 1e-15 and wider[1] >= high - 1e-15


@pytest.mark.parametrize("n", [1, 2, 10, 10**6, 10**12])
@pytest.mark.parametrize(("q1", "q0"), [(0, 0), (1, 1), (1, 0), (0, 1)])
def test_newcombe_is_never_of_zero_width(n: int, q1: int, q0: int) -> None:
    low, high = iv.newcombe(q1 * n, n, q0 * n, n)
    assert low < high


@given(st.lists(arms(), min_size=1, max_size=20), st.floats(0.01, 9))
@SETTINGS
def test_the_array_form_gives_the_bits_of_the_scalar_form(cases: list[tuple[int, ...]], z: float) -> None:
    """The array form is what enumeration and simulation run; its figures are claims about the public function."""
    columns = (np.array(column, dtype=float) for column in zip(*cases, strict=True))
    low, high = iv._newcombe_arrays(*columns, np.float64(z))
    assert list(zip(low.tolist(), high.tolist(), strict=True)) == [iv.newcombe(*case, z=z) for case in cases]


# --- clusters --------------------------------------------------------------------------------------------------------


def cr2_by_matrices(rows: list[tuple[int, int, int, int]]) -> tuple[float, float]:
    """CR2 variance and Bell-McCaffrey df of the arm coefficient of OLS, with matrix square roots on single units.

    Written from Bell and McCaffrey (2002), on purpose in the general form that knows nothing of two arms.
    """
    design, outcome, group = [], [], []
    for g, (n1, y1, n0, y0) in enumerate(rows):
        design += [[1.0, 1.0]] * n1 + [[1.0, 0.0]] * n0
        outcome += [1.0] * y1 + [0.0] * (n1 - y1) + [1.0] * y0 + [0.0] * (n0 - y0)
        group += [g] * (n1 + n0)
    x, y, label = np.array(design), np.array(outcome), np.array(group)
    bread = np.linalg.inv(x.T @ x)
    annihilator = np.eye(len(y)) - x @ bread @ x.T
    residual = annihilator @ y
    pick = bread @ np.array([0.0, 1.0])
    vectors, variance = [], 0.0
    for g in sorted(set(group)):
        inside = label == g
        values, basis = np.linalg.eigh(annihilator[np.ix_(inside, inside)])
        values = np.where(values > 1e-10, values, np.inf)
        root = basis @ np.diag(values**-0.5) @ basis.T
        weight = root @ x[inside] @ pick
        variance += float(weight @ residual[inside]) ** 2
        vectors.append(annihilator[:, inside] @ weight)
    gram = np.array(vectors) @ np.array(vectors).T
    return variance, float(np.trace(gram) ** 2 / np.trace(gram @ gram))


def test_cluster_fixture_a() -> None:
    """R16: R clubSandwich 0.5.8, vcovCR type CR2 with Satterthwaite df."""
    design = iv.cluster_design(FIXTURE_A)
    assert design.lift == printed(0.328671)
    assert math.sqrt(design.variance) == printed(0.121975)
    assert design.df == printed(8.618801)
    half = stats.t.ppf(0.975, design.df) * math.sqrt(design.variance)
    assert (design.lift - half, design.lift + half) == printed(0.050873, 0.606470)
    y1, n1, y0, n0 = totals(FIXTURE_A)
    binomial = y1 * (n1 - y1) / n1**3 + y0 * (n0 - y0) / n0**3
    assert design.variance / binomial == printed(0.552993)
    assert design.deff == 1.0


def test_cluster_intervals_of_fixture_a() -> None:
    """R16: NewcD-t, the unclustered interval, and the anytime interval with deff (n* = 500)."""
    assert iv.newcombe_clustered(FIXTURE_A) == printed(-0.059902, 0.599887)
    assert iv.newcombe(*totals(FIXTURE_A)) == printed(-0.010355, 0.574388)
    assert iv.newcombe_anytime(*totals(FIXTURE_A), 500, rows=FIXTURE_A) == printed(-0.343255, 0.719188)


@given(clusters())
@SETTINGS
def test_the_closed_form_equals_the_general_cr2(rows: list[tuple[int, int, int, int]]) -> None:
    variance, df = cr2_by_matrices(rows)
    design = iv.cluster_design(rows)
    assert design.variance == pytest.approx(variance, abs=1e-9)
    assert design.df == pytest.approx(df, rel=1e-7)


@given(clusters(), st.randoms(use_true_random=False), st.integers(0, 3))
@SETTINGS
def test_row_order_and_empty_rows_change_no_bit(
    rows: list[tuple[int, int, int, int]], shuffler: random.Random, empty: int
) -> None:
    other = rows + [(0, 0, 0, 0)] * empty
    shuffler.shuffle(other)
    assert iv.cluster_design(other) == iv.cluster_design(rows)
    assert iv.cluster_design(np.array(other)) == iv.cluster_design(rows)
    assert iv.newcombe_clustered(other) == iv.newcombe_clustered(rows)


@given(clusters())
@SETTINGS
def test_clustered_intervals_hold_their_invariants(rows: list[tuple[int, int, int, int]]) -> None:
    design = iv.cluster_design(rows)
    assert design.deff >= 1 and 1 - 1e-9 <= design.df <= len(rows) and design.variance >= 0
    low, high = iv.newcombe_clustered(rows)
    assert -1 <= low <= design.lift + 1e-12 and design.lift - 1e-12 <= high <= 1
    assert low < high
    plain = iv.newcombe(*totals(rows))
    assert high - low >= plain[1] - plain[0] - 1e-12
    swapped = iv.newcombe_clustered([(n0, y0, n1, y1) for n1, y1, n0, y0 in rows])
    assert (-swapped[1], -swapped[0]) == pytest.approx((low, high), abs=1e-9)


@given(clusters(), st.integers(2, 1000), st.sampled_from([0.01, 0.05, 0.1, 0.2]))
@SETTINGS
def test_the_anytime_interval_contains_the_fixed_one(
    rows: list[tuple[int, int, int, int]], n_star: int, alpha: float
) -> None:
    counts = totals(rows)
    for fixed, anytime in (
        (iv.newcombe(*counts, level=1 - alpha), iv.newcombe_anytime(*counts, n_star, alpha)),
        (iv.newcombe_clustered(rows, 1 - alpha), iv.newcombe_anytime(*counts, n_star, alpha, rows)),
    ):
        assert anytime[0] <= fixed[0] and fixed[1] <= anytime[1]


@given(arms(60))
@SETTINGS
def test_one_unit_a_cluster_is_hc2(counts: tuple[int, int, int, int]) -> None:
    x1, n1, x0, n0 = counts
    assume(n1 >= 2 and n0 >= 2)
    rows = [(1, int(i < x1), 0, 0) for i in range(n1)] + [(0, 0, 1, int(i < x0)) for i in range(n0)]
    p1, p0 = x1 / n1, x0 / n0
    hc2 = p1 * (1 - p1) / (n1 - 1) + p0 * (1 - p0) / (n0 - 1)
    assert iv.cluster_design(rows).variance == pytest.approx(hc2, abs=1e-12)


def test_with_deff_1_and_many_df_clustering_changes_nothing() -> None:
    """Pairs of one treated and one held-out unit with unlike outcomes: the arms' cluster effects cancel."""
    rows = [(1, 1, 1, 1), (1, 0, 1, 0)] * 40_000
    assert iv.cluster_design(rows).deff == 1.0
    assert iv.newcombe_clustered(rows) == pytest.approx(iv.newcombe(*totals(rows)), abs=1e-6)


def test_df_survives_a_cluster_that_holds_nearly_a_whole_arm() -> None:
    """Against the textbook expansion in exact fractions of 60 digits."""
    from decimal import Decimal, localcontext

    rows = [(10**9, 4 * 10**8, 1, 0), (1, 1, 3, 1), (2, 0, 5, 2)]
    with localcontext() as context:
        context.prec = 60
        total1, total0 = (sum(Decimal(row[i]) for row in rows) for i in (0, 2))
        d, b1, b0 = [], [], []
        for n1, _, n0, _ in rows:
            a1 = 1 / (total1 * (1 - n1 / total1).sqrt())
            a0 = 1 / (total0 * (1 - n0 / total0).sqrt())
            d.append(n1 * a1 * a1 + n0 * a0 * a0)
            b1.append(n1 * a1)
            b0.append(-n0 * a0)
        s1, s0 = sum(b * b for b in b1) / total1, sum(b * b for b in b0) / total0
        trace = sum(d) - s1 - s0
        trace2 = sum(v * v for v in d) + s1 * s1 + s0 * s0
        trace2 -= 2 * sum(v * (p * p / total1 + q * q / total0) for v, p, q in zip(d, b1, b0, strict=True))
        trace2 += 2 * sum(p * q for p, q in zip(b1, b0, strict=True)) ** 2 / (total1 * total0)
        expected = float(trace * trace / trace2)
    assert iv.cluster_design(rows).df == pytest.approx(expected, rel=1e-9)


def test_a_rare_outcome_at_90_10_keeps_its_width() -> None:
    """A holdout of all zeros gives the sandwich variance 0 from that arm; the interval must not follow it."""
    rows = [(9, int(g % 10 == 0), 1, 0) for g in range(20)]
    low, high = iv.newcombe_clustered(rows)
    assert high - low > 0.15


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "empty_arm"),
        (np.zeros((0, 4)), "empty_arm"),
        ([(0, 0, 0, 0)], "empty_arm"),
        ([(3, 1, 0, 0), (2, 1, 0, 0)], "empty_arm"),
        ([(3, 1, 2, 1)], "clusters_lt_2"),
        ([(3, 1, 2, 1), (4, 1, 0, 0)], "clusters_lt_2"),
        ([(3, 1, 2, 1), (0, 0, 2, 2)], "clusters_lt_2"),
    ],
)
def test_clusters_for_which_no_variance_exists(rows: object, reason: str) -> None:
    for call in (iv.cluster_design, iv.newcombe_clustered):
        with pytest.raises(iv.Undefined) as caught:
            call(rows)
        assert caught.value.reason == reason
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "rows",
    [
        [(1, 2, 3)],
        [(1, 0, 1, 0), (1, 0, 1)],
        [1, 2, 3, 4],
        [(1, 2, 1, 0), (1, 0, 1, 0)],
        [(1, 0, 1, 2), (1, 0, 1, 0)],
        [(-1, 0, 1, 0), (1, 0, 1, 0)],
        [(1.5, 0, 1, 0), (1, 0, 1, 0)],
        [(math.nan, 0, 1, 0), (1, 0, 1, 0)],
        [(math.inf, 0, 1, 0), (1, 0, 1, 0)],
        [("1", "0", "1", "0")],
        [(10**400, 0, 1, 0), (1, 0, 1, 0)],
        [(10**12, 0, 1, 0), (10**12, 0, 1, 0)],
    ],
)
def test_rows_that_are_no_counts_are_refused(rows: object) -> None:
    with pytest.raises(ValueError, match=r"rows|arm") as caught:
        iv.cluster_design(rows)
    assert not isinstance(caught.value, iv.Undefined)


def test_many_clusters_are_counted_in_arrays() -> None:
    """300,000 clusters, with a generous limit on the time that a loop in Python would not meet."""
    from time import perf_counter

    rng = np.random.default_rng(7)
    n = rng.integers(0, 5, size=(300_000, 2))
    y = rng.binomial(n, 0.3)
    table = np.stack([n[:, 0], y[:, 0], n[:, 1], y[:, 1]], axis=1)
    started = perf_counter()
    design = iv.cluster_design(table)
    assert perf_counter() - started < 5
    assert design.deff < 1.05 and design.df > 100_000


# --- every night -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "n_star", "expected"),
    [
        (10, 500, 6.694389),
        (50, 500, 3.855055),
        (100, 500, 3.363888),
        (500, 500, 3.035209),
        (1000, 500, 3.061477),
        (5000, 500, 3.241723),
        (20000, 500, 3.433941),
        (50, 200, 3.264293),
        (200, 200, 3.035209),
        (1000, 200, 3.153030),
    ],
)
def test_anytime_multiplier_reference_values(n: int, n_star: int, expected: float) -> None:
    """R18: Waudby-Smith et al. (2024), eq. 9."""
    assert iv.anytime_multiplier(n, n_star) == printed(expected)


@pytest.mark.parametrize(("n_star", "expected"), [(200, 0.039680773), (500, 0.015872309), (5000, 0.001587231)])
def test_the_mixture_variance_shows_in_the_multiplier(n_star: int, expected: float) -> None:
    """R18: rho^2 is what makes z^2 * k = (k + 1) * ln((k + 1) / alpha^2) with k = n * rho^2."""
    k = 321 * expected
    z = math.sqrt((k + 1) / k * math.log((k + 1) / 0.05**2))
    assert iv.anytime_multiplier(321, n_star) == pytest.approx(z, abs=1e-6)


@pytest.mark.parametrize(("v", "bound"), [(25, 16.321467), (100, 30.352090), (400, 62.542283)])
def test_anytime_multiplier_equals_confseq(v: int, bound: float) -> None:
    """R19: normal_mixture_bound(v, .05, v_opt=100, two-sided) of the confseq C++ header is sqrt(v) * z_v."""
    assert math.sqrt(v) * iv.anytime_multiplier(v, 100) == printed(bound)


def test_anytime_multiplier_equals_gbstats() -> None:
    """R20: gbstats 0.8.0 SequentialTwoSidedTTest, absolute, tuning 500, which multiplies the Wald standard error."""
    se = math.sqrt(150 * 350 / 500**3 + 120 * 380 / 500**3)
    half = iv.anytime_multiplier(1000, 500) * se
    assert (0.06 - half, 0.06 + half) == printed(-0.025765, 0.145765)


@pytest.mark.parametrize(("n_star", "expected"), [(500, (-0.025971, 0.144825)), (200, (-0.028536, 0.147321))])
def test_anytime_interval_reference_values(n_star: int, expected: tuple[float, float]) -> None:
    """R20: the data of R12."""
    assert iv.newcombe_anytime(150, 500, 120, 500, n_star) == printed(*expected)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((150, 500, 120, 500), 2.078261), ((12, 15, 30, 60), 2.485833), ((0, 10, 0, 10), 0.871231)],
)
def test_e_value_reference_values(counts: tuple[int, ...], expected: float) -> None:
    """R22: n* = 500, add-one smoothed."""
    assert iv.e_value(*counts, 500) == printed(expected)


@given(arms(), st.integers(1, 5000), st.floats(1, 20))
@SETTINGS
def test_e_values_scale_once_and_do_not_know_the_sign(
    counts: tuple[int, int, int, int], n_star: int, deff: float
) -> None:
    x1, n1, x0, n0 = counts
    e = iv.e_value(*counts, n_star, deff=deff)
    assert e > 0
    assert e == pytest.approx(iv.e_value(x1 / deff, n1 / deff, x0 / deff, n0 / deff, n_star), rel=1e-12)
    assert e == pytest.approx(iv.e_value(x0, n0, x1, n1, n_star, deff=deff), rel=1e-12)
    assert math.log(e) == pytest.approx(iv.log_e_value(*counts, n_star, deff=deff), abs=1e-9)


def test_e_values_overflow_to_infinity() -> None:
    assert iv.e_value(10**9, 10**9, 0, 10**9, 200) == math.inf
    assert math.isfinite(iv.log_e_value(10**9, 10**9, 0, 10**9, 200))
    assert iv.srm_e_value(10**6, 0, 0.5) == math.inf
    assert math.isfinite(iv.srm_log_e_value(10**6, 0, 0.5))


def test_rows_must_be_the_counts_they_come_with() -> None:
    with pytest.raises(ValueError, match="totals"):
        iv.newcombe_anytime(14, 22, 5, 13, 500, rows=FIXTURE_A)


def test_clustered_anytime_divides_n_by_deff_once() -> None:
    """Clusters of four equal units with one outcome each: by hand from deff and df."""
    rows = [(4, 4 * (g % 2), 0, 0) for g in range(20)] + [(0, 0, 4, 4 * (g % 4 == 0)) for g in range(20)]
    design = iv.cluster_design(rows)
    assert design.deff == pytest.approx(4 * 20 / 19, rel=1e-12)
    x1, n1, x0, n0 = (count / design.deff for count in totals(rows))
    z = iv.anytime_multiplier(160 / design.deff, 200) * stats.t.ppf(0.975, design.df) / 1.959963984540054
    assert iv.newcombe_anytime(*totals(rows), 200, rows=rows) == pytest.approx(
        iv.newcombe(x1, n1, x0, n0, z=z), abs=1e-12
    )


# --- many segments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([40, 12, 3, 0.5, 200], [4]),
        ([200, 60, 40, 12, 3], [0, 1, 2]),
        ([3, 40, 200, 12, 60], [1, 2, 4]),
        ([19.9], []),
        ([20.0], [0]),
        ([30, 30, 0.1], [0, 1]),
        ([math.inf, 0], [0]),
        ([0, 0], []),
        ([], []),
    ],
)
def test_e_bh(values: list[float], expected: list[int]) -> None:
    """R32 (the first two; thresholds 100, 50, 33.33, 25, 20) and the borders of the rule."""
    assert iv.e_bh(values) == expected


@given(st.lists(st.floats(0, 1e4), max_size=12), st.sampled_from([0.05, 0.1, 0.2]))
@SETTINGS
def test_e_bh_is_bh_on_the_reciprocals(values: list[float], alpha: float) -> None:
    """e-BH equals Benjamini-Hochberg on p = 1/e; scipy's adjusted p-values are the oracle, away from the border."""
    assume(values and all(abs(alpha * v * k / len(values) - 1) > 1e-9 for v in values for k in range(1, 13)))
    p = [min(1.0, 1 / v) if v > 0 else 1.0 for v in values]
    adjusted = stats.false_discovery_control(p, method="bh")
    assert iv.e_bh(values, alpha) == [i for i, q in enumerate(adjusted) if q <= alpha]


def test_fcr_level() -> None:
    """Benjamini and Yekutieli (2005): 1 - alpha*k/m."""
    assert iv.fcr_level(3, 5, 0.05) == pytest.approx(0.97, abs=1e-15)
    assert iv.fcr_level(5, 5, 0.05) == 0.95
    for selected, tested in ((0, 5), (6, 5), (1, 0)):
        with pytest.raises(ValueError, match="count_"):
            iv.fcr_level(selected, tested, 0.05)


# --- the split -------------------------------------------------------------------------------------------------------

SRM = [
    (530, 470, 0.5, 0.062023, 0.437446),
    (180, 12, 0.9, 0.091410, 0.656609),
    (821, 179, 0.8, 0.104949, 0.119860),
    (10, 0, 0.5, 0.001953, 0.411466),
    (9200, 800, 0.9, 7.07255e-12, 21.224029),
]


@pytest.mark.parametrize(("n1", "n0", "share", "p", "log_e"), SRM)
def test_srm_reference_values(n1: int, n0: int, share: float, p: float, log_e: float) -> None:
    """R24: scipy binomtest; ln E of ssrm-test 0.1.5 with c = 100."""
    assert iv.srm_exact(n1, n1 + n0, share) == pytest.approx(p, abs=min(6e-7, 1e-6 * p) if p < 1e-6 else 6e-7, rel=0)
    assert iv.srm_log_e_value(n1, n0, share) == printed(log_e)
    assert iv.srm_e_value(n1, n0, share) == pytest.approx(math.exp(log_e), rel=1e-6)


def test_srm_small_split_is_exact_not_chi_square() -> None:
    """4 treated of 10 at a design share of .9: exact 1.5e-4, where chi-square says 1.4e-7 (a5)."""
    assert iv.srm_exact(4, 10, 0.9) == pytest.approx(1.5e-4, abs=5e-6)


@given(st.integers(0, 300), st.integers(0, 300), st.floats(0.02, 0.98))
@SETTINGS
def test_the_srm_e_value_is_a_fair_bet(n1: int, n0: int, share: float) -> None:
    """Under the design the expected e-value after one more unit is the e-value now, so looking is free."""
    now = iv.srm_log_e_value(n1, n0, share)
    up, down = iv.srm_log_e_value(n1 + 1, n0, share), iv.srm_log_e_value(n1, n0 + 1, share)
    assert share * math.exp(up - now) + (1 - share) * math.exp(down - now) == pytest.approx(1.0, abs=1e-9)
    assert iv.srm_log_e_value(n0, n1, 1 - share) == pytest.approx(now, abs=1e-8)


def test_srm_at_shares_where_an_arm_cannot_exist() -> None:
    assert iv.srm_e_value(5, 0, 1.0) == 1.0 and iv.srm_e_value(0, 5, 0.0) == 1.0
    assert iv.srm_e_value(5, 1, 1.0) == math.inf and iv.srm_e_value(1, 5, 0.0) == math.inf
    assert iv.srm_exact(5, 5, 1.0) == 1.0 and iv.srm_exact(4, 5, 1.0) == 0.0
    assert iv.srm_e_value(0, 0, 0.5) == 1.0 and iv.srm_exact(0, 0, 0.5) == 1.0


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ((8, 50, 4, 50), 0.356661),
        ((12, 15, 30, 60), 0.044699),
        ((7, 34, 1, 34), 0.054400),
        ((9, 10, 3, 10), 0.019767),
    ],
)
def test_fisher_reference_values(cells: tuple[int, ...], expected: float) -> None:
    """R29 (attrition) and the Fisher column of R15 (R9, R11, R2): scipy."""
    assert iv.fisher_attrition(*cells) == printed(expected)


@given(st.integers(0, 3_000_000), st.sampled_from([0.5, 0.9, 1 / 3, 0.01, 1e-4]), st.floats(-8, 8))
@SETTINGS
def test_the_exact_split_test_equals_scipys(n: int, share: float, distance: float) -> None:
    n1 = min(n, max(0, round(n * share + distance * math.sqrt(n * share * (1 - share)))))
    assert iv.srm_exact(n1, n, share) == pytest.approx(
        float(stats.binomtest(n1, n, share).pvalue) if n else 1, rel=1e-6
    )


@given(arms(5000))
@SETTINGS
def test_the_attrition_test_equals_scipys(cells: tuple[int, int, int, int]) -> None:
    u1, n1, u0, n0 = cells
    expected = float(stats.fisher_exact([[u1, n1 - u1], [u0, n0 - u0]])[1])
    assert iv.fisher_attrition(*cells) == pytest.approx(expected, rel=1e-6, abs=1e-300)


@given(arms(40))
@SETTINGS
def test_fisher_equals_the_sum_over_tables(cells: tuple[int, int, int, int]) -> None:
    u1, n1, u0, n0 = cells
    lost = u1 + u0
    ways = {k: math.comb(n1, k) * math.comb(n0, lost - k) for k in range(max(0, lost - n0), min(n1, lost) + 1)}
    expected = sum(w for w in ways.values() if w <= ways[u1]) / math.comb(n1 + n0, lost)
    assert iv.fisher_attrition(*cells) == pytest.approx(expected, rel=1e-7)


# --- delivery, attrition, strata -------------------------------------------------------------------------------------


def test_cace_reference_values() -> None:
    """R28: Fieller with ddof 1 (own), point values as linearmodels IV2SLS."""
    cace = iv.cace_fieller(CACE_CELLS)
    assert (cace.itt, cace.first_stage, cace.cace) == printed(0.25, 0.725, 0.344828)
    assert (cace.low, cace.high) == printed(0.076711, 0.616643)
    assert cace.is_bounded and cace.reason is None


cell_counts = st.lists(st.integers(0, 30), min_size=8, max_size=8)
CELL_KEYS = [(z, d, y) for z in (0, 1) for d in (0, 1) for y in (0, 1)]


@given(cell_counts)
@SETTINGS
def test_the_fieller_ends_solve_the_test_they_invert(counts: list[int]) -> None:
    """At an end, the difference of the arms' means of y - b*d is exactly z standard errors from 0."""
    cells = dict(zip(CELL_KEYS, counts, strict=True))
    assume(sum(counts[:4]) >= 2 and sum(counts[4:]) >= 2)
    result = iv.cace_fieller(cells)
    if not result.is_bounded:
        assert result.low is None and result.high is None and result.reason in ("weak_first_stage", "no_variance")
        return
    assert result.low is not None and result.high is not None and result.cace is not None
    # The sign of the first stage decides nothing about the order of the ends.
    assert result.low < result.high
    assert result.low - 1e-9 <= result.cace <= result.high + 1e-9
    for end in (result.low, result.high):
        means, variances = [], []
        for arm in (1, 0):
            adjusted = np.repeat(
                [y - end * d for z, d, y in CELL_KEYS if z == arm], [cells[key] for key in CELL_KEYS if key[0] == arm]
            )
            means.append(adjusted.mean())
            variances.append(adjusted.var(ddof=1) / len(adjusted))
        statistic = abs(means[0] - means[1])
        assert statistic == pytest.approx(1.959963984540054 * math.sqrt(sum(variances)), rel=1e-5, abs=1e-7)


def test_cace_where_no_interval_may_be_shown() -> None:
    weak = iv.cace_fieller({(1, 1, 1): 1, (1, 0, 0): 19, (0, 0, 0): 15, (0, 0, 1): 5})
    assert not weak.is_bounded and weak.reason == "weak_first_stage" and weak.cace == pytest.approx(-4.0)
    none = iv.cace_fieller({(1, 0, 1): 5, (1, 0, 0): 5, (0, 0, 0): 5, (0, 0, 1): 5})
    assert none.cace is None and none.first_stage == 0 and not none.is_bounded
    certain = iv.cace_fieller({(1, 1, 0): 10, (0, 0, 0): 10})
    assert certain.reason == "no_variance" and certain.low is None and certain.cace == 0.0


@pytest.mark.parametrize(
    ("cells", "reason"),
    [({}, "empty_arm"), ({(1, 1, 1): 5}, "empty_arm"), ({(1, 1, 1): 5, (0, 0, 0): 1}, "n_lt_2")],
)
def test_cace_of_arms_too_small(cells: dict[tuple[int, int, int], int], reason: str) -> None:
    with pytest.raises(iv.Undefined) as caught:
        iv.cace_fieller(cells)
    assert caught.value.reason == reason


UNRESOLVED = (28, 8, 50, 18, 4, 50)


def test_bounds_reference_values() -> None:
    """R29: bounds, and the Imbens-Manski interval with its multiplier."""
    low, high = iv.manski_bounds(*UNRESOLVED)
    assert (low, high) == printed(0.12, 0.36)
    se = max(math.sqrt(28 * 22 / 50**3 + 22 * 28 / 50**3), math.sqrt(36 * 14 / 50**3 + 18 * 32 / 50**3))
    assert iv.imbens_manski_multiplier(high - low, se) == printed(1.645089)
    assert iv.imbens_manski(*UNRESOLVED) == printed(-0.043320, 0.512914)


@st.composite
def resolved_arms(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    arm = []
    for _ in range(2):
        b, u, r = draw(st.integers(0, 60)), draw(st.integers(0, 30)), draw(st.integers(0, 60))
        assume(b + u + r > 0)
        arm += [b, u, b + u + r]
    return tuple(arm)  # type: ignore[return-value]


@given(resolved_arms())
@SETTINGS
def test_bounds_hold_their_invariants(counts: tuple[int, int, int, int, int, int]) -> None:
    b1, u1, n1, b0, u0, n0 = counts
    low, high = iv.manski_bounds(*counts)
    assert -1 <= low <= high + 1e-15 and high <= 1
    assert low - 1e-12 <= b1 / n1 - b0 / n0 <= high + 1e-12
    assert high - low == pytest.approx(u1 / n1 + u0 / n0, abs=1e-12)
    swapped = iv.manski_bounds(b0, u0, n0, b1, u1, n1)
    assert (-swapped[1], -swapped[0]) == pytest.approx((low, high), abs=1e-12)
    try:
        outer = iv.imbens_manski(*counts)
    except iv.Undefined as error:
        assert error.reason == "no_variance"
        assert any({x1 / n1, x0 / n0} <= {0.0, 1.0} for x1, x0 in ((b1, b0 + u0), (b1 + u1, b0)))
        return
    assert -1 <= outer[0] <= low + 1e-12 and high - 1e-12 <= outer[1] <= 1


@given(st.floats(0, 50), st.floats(1e-3, 10), st.floats(0.05, 0.999))
@SETTINGS
def test_the_imbens_manski_multiplier_solves_its_equation(width: float, se: float, level: float) -> None:
    c = iv.imbens_manski_multiplier(width, se, level)
    assert stats.norm.cdf(c + width / se) - stats.norm.cdf(-c) == pytest.approx(level, abs=1e-12)


def test_mantel_haenszel_reference_values() -> None:
    """R30: metafor 3.8-1 rma.mh, measure RD. The crude lift of the same data is .28."""
    pooled = iv.mantel_haenszel([(28, 50, 18, 50), (45, 50, 9, 10)])
    assert pooled == printed(0.15, 0.080321, -0.007427, 0.307427)


@given(arms(60), arms(60))
@SETTINGS
def test_mantel_haenszel_holds_its_invariants(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    try:
        pooled = iv.mantel_haenszel([first, second])
    except iv.Undefined as error:
        assert error.reason == "no_variance"
        return
    lifts = [x1 / n1 - x0 / n0 for x1, n1, x0, n0 in (first, second)]
    assert min(lifts) - 1e-12 <= pooled.lift <= max(lifts) + 1e-12
    assert -1 <= pooled.low < pooled.high <= 1 and pooled.low <= pooled.lift <= pooled.high
    assert iv.mantel_haenszel([first, (0, 0, 3, 5), second, (2, 5, 0, 0)]) == pooled
    swapped = iv.mantel_haenszel([(x0, n0, x1, n1) for x1, n1, x0, n0 in (second, first)])
    assert (-swapped.lift, swapped.se) == pytest.approx((pooled.lift, pooled.se), abs=1e-9)


def test_mantel_haenszel_of_one_stratum_is_the_lift() -> None:
    assert iv.mantel_haenszel([(28, 50, 18, 50)]).lift == pytest.approx(0.2, abs=1e-15)


@pytest.mark.parametrize(
    ("strata", "reason"),
    [
        ([], "empty_arm"),
        ([(0, 0, 3, 5)], "empty_arm"),
        ([(0, 5, 0, 5)], "no_variance"),
        ([(5, 5, 0, 7)], "no_variance"),
        ([(5, 5, 7, 7)], "no_variance"),
    ],
)
def test_mantel_haenszel_where_no_interval_exists(strata: list[tuple[int, ...]], reason: str) -> None:
    with pytest.raises(iv.Undefined) as caught:
        iv.mantel_haenszel(strata)
    assert caught.value.reason == reason


# --- time to the outcome ---------------------------------------------------------------------------------------------


def at(rows: list[iv.CifRow], horizon: float) -> tuple[float, float]:
    last = [row for row in rows if row.time <= horizon][-1]
    return last.cif, last.se


def test_aalen_johansen_reference_values() -> None:
    """R27: R survival 3.5-3, survfit with a multi-state outcome."""
    treated, holdout = iv.aalen_johansen(*TREATED), iv.aalen_johansen(*HOLDOUT)
    assert at(treated, 5) == printed(0.333333, 0.136083)
    assert at(treated, 8) == printed(0.527778, 0.150231)
    assert at(holdout, 5) == printed(0.166667, 0.107583)
    assert at(holdout, 8) == printed(0.166667, 0.107583)
    recurred1, recurred0 = iv.aalen_johansen(*TREATED, cause=2), iv.aalen_johansen(*HOLDOUT, cause=2)
    assert (at(recurred1, 5)[0], at(recurred1, 8)[0]) == printed(0.083333, 0.180556)
    assert (at(recurred0, 5)[0], at(recurred0, 8)[0]) == printed(0.333333, 0.527778)


def aalen_johansen_by_definition(units: list[tuple[int, int]], horizon: int) -> tuple[float, float]:
    """The printed formula with its double sum, as it stands in a9."""
    steps, survival, cif = [], 1.0, 0.0
    for time in sorted({t for t, c in units if c and t <= horizon}):
        n = sum(t >= time for t, _ in units)
        d, own = sum(t == time and c > 0 for t, c in units), sum(t == time and c == 1 for t, c in units)
        cif += survival * own / n
        steps.append((n, d, own, survival, cif))
        survival *= 1 - d / n
    variance = 0.0
    for n, d, own, before, value in steps:
        gap = cif - value
        variance += gap * gap * d / (n * (n - d)) if n > d else 0.0
        variance += before**2 * (n - own) * own / n**3 - 2 * gap * before * own / n**2
    return cif, math.sqrt(max(0.0, variance))


unit_lists = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 3)), min_size=1, max_size=40)


@given(unit_lists)
@SETTINGS
def test_aalen_johansen_equals_its_definition(units: list[tuple[int, int]]) -> None:
    rows = iv.aalen_johansen(*zip(*units, strict=True))
    assert [row.time for row in rows] == sorted({float(t) for t, _ in units})
    for row in rows:
        expected = aalen_johansen_by_definition(units, int(row.time))
        assert row.cif == pytest.approx(expected[0], abs=1e-12)
        # A standard error of 0 is the root of what rounding leaves of a difference.
        assert row.se**2 == pytest.approx(expected[1] ** 2, abs=1e-12)
        assert row.n_at_risk == sum(t >= row.time for t, _ in units)


@given(unit_lists, st.randoms(use_true_random=False))
@SETTINGS
def test_incidences_are_shares_that_add_up(units: list[tuple[int, int]], shuffler: random.Random) -> None:
    times, causes = zip(*units, strict=True)
    curves = [iv.aalen_johansen(times, causes, cause) for cause in (1, 2, 3)]
    for curve in curves:
        assert all(0 <= a.cif <= b.cif <= 1 for a, b in pairwise(curve))
    assert sum(curve[-1].cif for curve in curves) <= 1 + 1e-12
    mixed = list(units)
    shuffler.shuffle(mixed)
    assert iv.aalen_johansen(*zip(*mixed, strict=True)) == curves[0]


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(1, 3)), min_size=1, max_size=40))
@SETTINGS
def test_without_cut_offs_the_incidence_ends_at_the_plain_rate(units: list[tuple[int, int]]) -> None:
    """Then the competing-risks reading and intention to treat are one number, and its error is binomial."""
    end = iv.aalen_johansen(*zip(*units, strict=True))[-1]
    p = sum(c == 1 for _, c in units) / len(units)
    assert end.cif == pytest.approx(p, abs=1e-12)
    assert end.se**2 == pytest.approx(p * (1 - p) / len(units), abs=1e-12)


def test_aalen_johansen_of_nothing() -> None:
    assert iv.aalen_johansen([], []) == []
    assert iv.aalen_johansen([3, 4], [0, 0]) == [(3.0, 0.0, 0.0, 2), (4.0, 0.0, 0.0, 1)]


# --- planning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p1", "p0", "ratio", "expected"),
    [(0.5, 0.3, 1, 92.998845), (0.5, 0.3, 0.25, 234.543295), (0.6, 0.5, 1 / 9, 1915.300211)],
)
def test_sample_size_reference_values(p1: float, p0: float, ratio: float, expected: float) -> None:
    """R25: statsmodels 0.15.0 samplesize_proportions_2indep_onetail at alpha/2."""
    assert iv.sample_size(p1, p0, ratio) == printed(expected)
    oracle = sm.samplesize_proportions_2indep_onetail(p1 - p0, p0, 0.8, ratio=ratio, alpha=0.025, alternative="larger")
    assert iv.sample_size(p1, p0, ratio) == pytest.approx(float(oracle), rel=1e-9)


@pytest.mark.parametrize(
    ("n1", "n0", "p1", "p0", "expected"),
    [(93, 93, 0.5, 0.3, 0.800006), (200, 50, 0.5, 0.3, 0.731376), (450, 50, 0.6, 0.5, 0.278965)],
)
def test_power_reference_values(n1: int, n0: int, p1: float, p0: float, expected: float) -> None:
    """R25: statsmodels 0.15.0 power_proportions_2indep, two-sided."""
    assert iv.power(n1, n0, p1, p0) == printed(expected)
    oracle = sm.power_proportions_2indep(p1 - p0, p0, n1, ratio=n0 / n1, alpha=0.05, return_results=False)
    assert iv.power(n1, n0, p1, p0) == pytest.approx(float(oracle), abs=1e-9)


@pytest.mark.parametrize(
    ("n1", "n0", "p1", "p0", "expected"),
    [
        (93, 93, 0.5, 0.3, 0.799098),
        (200, 50, 0.5, 0.3, 0.742210),
        (40, 10, 0.5, 0.3, 0.209266),
        (93, 93, 0.3, 0.3, 0.049119),
    ],
)
def test_exact_power_reference_values(n1: int, n0: int, p1: float, p0: float, expected: float) -> None:
    """R25: enumeration of the Newcombe interval."""
    assert iv.power_exact(n1, n0, p1, p0) == printed(expected)


def test_exact_power_is_the_sum_over_the_public_interval() -> None:
    n1, n0, p1, p0 = 17, 6, 0.7, 0.2
    total = 0.0
    for x1 in range(n1 + 1):
        for x0 in range(n0 + 1):
            low, high = iv.newcombe(x1, n1, x0, n0)
            if low > 0 or high < 0:
                total += stats.binom.pmf(x1, n1, p1) * stats.binom.pmf(x0, n0, p0)
    assert iv.power_exact(n1, n0, p1, p0) == pytest.approx(total, abs=1e-12)
    assert iv.power_exact(n1, n0, 1.0, 0.0) == 1.0
    assert iv.power_exact(n1, n0, 0.0, 0.0) == 0.0
    with pytest.raises(ValueError, match="500"):
        iv.power_exact(251, 250, 0.5, 0.5)


@pytest.mark.parametrize(
    ("n1", "n0", "p0", "deff", "expected"),
    [
        (93, 93, 0.3, 1.0, 0.199999),
        (200, 50, 0.3, 1.0, 0.216855),
        (500, 500, 0.3, 1.0, 0.083954),
        (18, 2, 0.3, 1.0, 0.682662),
        (93, 93, 0.3, 1.5, 0.246242),
        (200, 50, 0.3, 1.5, 0.265658),
        (450, 50, 0.5, 1.5, 0.237675),
        (500, 500, 0.3, 1.5, 0.103441),
    ],
)
def test_mde_reference_values(n1: int, n0: int, p0: float, deff: float, expected: float) -> None:
    """R26: own solution of the equation of R25. The third figure at deff 1.5 belongs to 450 v 50 at a rate of .5."""
    assert iv.mde(n1, n0, p0, deff=deff) == printed(expected)


def test_mde_that_no_lift_attains() -> None:
    """R26: 18 v 2 at deff 1.5 has no root; a holdout that always breaks leaves no room."""
    assert iv.mde(18, 2, 0.3, deff=1.5) is None
    assert iv.mde(500, 500, 1.0) is None


@given(st.integers(5, 3000), st.integers(5, 3000), st.floats(0, 0.99), st.floats(1, 4), st.floats(1, 2))
@SETTINGS
def test_mde_inverts_sample_size(n1: int, n0: int, p0: float, deff: float, inflate: float) -> None:
    lift = iv.mde(n1, n0, p0, deff=deff, inflate=inflate)
    if lift is None:
        assert iv.sample_size(1.0, p0, n0 / n1, deff=deff, inflate=inflate) >= n1 * (1 - 1e-9)
        return
    assert 0 < lift <= 1 - p0
    size = iv.sample_size(min(1.0, p0 + lift), p0, n0 / n1, deff=deff, inflate=inflate)
    assert size == pytest.approx(n1, rel=1e-6)
    # At least: power() also counts findings in the wrong direction.
    assert iv.power(n1, n0, min(1.0, p0 + lift), p0, deff=deff, inflate=inflate) >= 0.8 - 1e-6


def test_anytime_inflation() -> None:
    """a7: ((3.035209 + z_pow) / (1.959964 + z_pow))^2 at alpha .05 and power .8."""
    assert iv.anytime_inflation() == printed(1.914899)


def test_power_without_a_difference_is_alpha() -> None:
    assert iv.power(80, 40, 0.3, 0.3) == pytest.approx(0.05, abs=1e-12)
    assert iv.power(80, 40, 1.0, 0.0) == 1.0
    assert iv.power(80, 40, 0.0, 0.0) == 0.0


@pytest.mark.parametrize(
    ("n", "n_star", "nights", "expected"),
    [(50, 200, 10, 30), (200, 200, 10, 0), (250, 200, 10, 0), (0, 200, 10, None), (50, 200, 0, None), (7, 200, 3, 83)],
)
def test_nights_to_n_star(n: float, n_star: float, nights: float, expected: int | None) -> None:
    assert iv.nights_to_n_star(n, n_star, nights) == expected


# --- arguments and results -------------------------------------------------------------------------------------------

ROWS = [(2, 1, 1, 0), (1, 1, 2, 1), (3, 1, 1, 1)]
CALLS: list[tuple[Callable[..., object], tuple[object, ...]]] = [
    (iv.wilson, (3, 9, 0.9)),
    (iv.newcombe, (3, 9, 1, 9, 0.9)),
    (iv.newcombe_clustered, (ROWS, 0.9)),
    (iv.anytime_multiplier, (20, 200, 0.05)),
    (iv.newcombe_anytime, (3, 9, 1, 9, 200, 0.05)),
    (iv.newcombe_anytime, (3, 6, 2, 4, 200, 0.05, ROWS)),
    (iv.e_value, (3, 9, 1, 9, 200, 0.05, 1.5)),
    (iv.log_e_value, (3, 9, 1, 9, 200, 0.05, 1.5)),
    (iv.anytime_inflation, (0.05, 0.8)),
    (iv.e_bh, ([30.0, 2.0], 0.05)),
    (iv.fcr_level, (1, 3, 0.05)),
    (iv.srm_exact, (5, 9, 0.5)),
    (iv.srm_log_e_value, (5, 4, 0.5, 100)),
    (iv.srm_e_value, (5, 4, 0.5, 100)),
    (iv.fisher_attrition, (3, 9, 1, 9)),
    (iv.manski_bounds, (3, 1, 9, 1, 2, 9)),
    (iv.imbens_manski, (3, 1, 9, 1, 2, 9, 0.9)),
    (iv.imbens_manski_multiplier, (0.2, 0.1, 0.9)),
    (iv.mantel_haenszel, ([(3, 9, 1, 9)], 0.9)),
    (iv.aalen_johansen, ([1, 2, 2], [1, 0, 2], 1)),
    (iv.sample_size, (0.5, 0.3, 1.0, 0.8, 0.05, 1.0, 1.0)),
    (iv.power, (93, 93, 0.5, 0.3, 0.05, 1.0, 1.0)),
    (iv.mde, (93, 93, 0.3, 0.8, 0.05, 1.0, 1.0)),
    (iv.nights_to_n_star, (50, 200, 10)),
    (iv.power_exact, (9, 9, 0.5, 0.3, 0.05)),
    (iv.cluster_design, (ROWS,)),
    (iv.cace_fieller, (CACE_CELLS, 0.9)),
]
HOSTILE = [math.nan, math.inf, -math.inf, -1, -0.5, "3", b"3", None, [], 10**400, 1e300, object()]


def plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(plain(part) for part in value)
    return value is None or type(value) in (int, bool, str) or (type(value) is float and not math.isnan(value))


@pytest.mark.parametrize(("call", "arguments"), CALLS, ids=lambda part: getattr(part, "__name__", ""))
def test_results_are_plain_python_values(call: Callable[..., object], arguments: tuple[object, ...]) -> None:
    assert plain(call(*arguments))
    as_numpy = [np.float64(a) if isinstance(a, float) else np.int64(a) if isinstance(a, int) else a for a in arguments]
    assert plain(call(*as_numpy))
    assert call(*as_numpy) == call(*arguments)


@pytest.mark.parametrize(("call", "arguments"), CALLS, ids=lambda part: getattr(part, "__name__", ""))
def test_every_argument_is_checked(call: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Each number in turn replaced by each hostile value: a plain result or a ValueError, and nothing else."""
    refused = 0
    for position, given_value in enumerate(arguments):
        if not isinstance(given_value, int | float):
            continue
        for hostile in HOSTILE:
            try:
                result = call(*arguments[:position], hostile, *arguments[position + 1 :])
            except ValueError:
                refused += 1
                continue
            assert plain(result), (position, hostile)
        with pytest.raises(ValueError):
            call(*arguments[:position], math.nan, *arguments[position + 1 :])
    assert refused or all(not isinstance(a, int | float) for a in arguments)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (iv.wilson, (3, 2)),
        (iv.wilson, (1, 2, 1.0)),
        (iv.wilson, (1, 2, 0.0)),
        (iv.wilson, (1, 2, 1e-18)),
        (iv.wilson, (1, 2, 0.95, 0.0)),
        (iv.wilson, (1, 2, 0.95, -1.0)),
        (iv.newcombe, (3, 2, 0, 2)),
        (iv.newcombe, (1, 2, 3, 2)),
        (iv.anytime_multiplier, (0, 200)),
        (iv.anytime_multiplier, (10, 0)),
        (iv.e_value, (1, 2, 1, 2, 200, 0.05, 0.9)),
        (iv.e_bh, ([1.0, math.nan],)),
        (iv.e_bh, ([1.0, -1.0],)),
        (iv.srm_exact, (3, 2, 0.5)),
        (iv.srm_exact, (1.5, 2, 0.5)),
        (iv.srm_exact, (1, 2, 1.5)),
        (iv.srm_e_value, (1, 2, 0.5, 0)),
        (iv.fisher_attrition, (3, 2, 0, 2)),
        (iv.manski_bounds, (3, 3, 5, 1, 1, 5)),
        (iv.mantel_haenszel, ([(1, 2, 3)],)),
        (iv.mantel_haenszel, ([(1, 0, 3, 5)],)),
        (iv.aalen_johansen, ([1, 2], [1])),
        (iv.aalen_johansen, ([math.nan], [1])),
        (iv.aalen_johansen, ([1], [-1])),
        (iv.aalen_johansen, ([1], [1], 0)),
        (iv.cace_fieller, ({(2, 0, 0): 1},)),
        (iv.cace_fieller, ({(1, 0): 1},)),
        (iv.cace_fieller, ({(1, 0, 0): -1},)),
        (iv.sample_size, (0.3, 0.3)),
        (iv.sample_size, (0.5, 0.3, 0)),
        (iv.power, (10, 10, 1.2, 0.3)),
        (iv.mde, (10, 10, 0.3, 1.0)),
        (iv.mde, (10, 10, 0.3, 0.2)),
    ],
)
def test_wrong_arguments_are_value_errors(call: Callable[..., object], arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        call(*arguments)
    assert not isinstance(caught.value, iv.Undefined)
    assert str(caught.value)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (iv.wilson, (0, 0)),
        (iv.newcombe, (0, 0, 1, 2)),
        (iv.newcombe, (1, 2, 0, 0)),
        (iv.newcombe_anytime, (1, 2, 0, 0, 200)),
        (iv.e_value, (0, 0, 1, 2, 200)),
        (iv.fisher_attrition, (0, 0, 1, 2)),
        (iv.manski_bounds, (0, 0, 0, 1, 1, 2)),
        (iv.power, (0, 10, 0.5, 0.3)),
        (iv.mde, (10, 0, 0.3)),
        (iv.power_exact, (0, 10, 0.5, 0.3)),
    ],
)
def test_an_empty_arm_has_a_reason(call: Callable[..., object], arguments: tuple[object, ...]) -> None:
    with pytest.raises(iv.Undefined) as caught:
        call(*arguments)
    assert caught.value.reason == "empty_arm"


def test_no_variance_has_a_reason() -> None:
    with pytest.raises(iv.Undefined) as caught:
        iv.imbens_manski(5, 0, 5, 0, 0, 5)
    assert caught.value.reason == "no_variance"


def test_importing_the_module_imports_no_numerics() -> None:
    """The command line starts without numpy and scipy; a unique interpreter shows what the import brings."""
    source = "import json, sys; import loopstats.intervals; print(json.dumps(sorted(sys.modules)))"
    package = Path(iv.__file__).resolve().parents[1]
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(package)!r}); {source}"]
    loaded = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert "loopstats.intervals" in loaded
    assert not {"numpy", "scipy", "polars"} & set(loaded)


def test_the_public_names_are_the_ones_listed() -> None:
    own = [name for name, value in vars(iv).items() if getattr(value, "__module__", "") == iv.__name__]
    assert sorted(name for name in own if not name.startswith("_")) == sorted(iv.__all__)
