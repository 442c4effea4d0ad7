"""Do the intervals keep what they promise? A seeded simulation through the product's own functions.

Stands beside the tests because it takes minutes: `make coverage` runs it in full and fails when a claim fails, and
`test_coverage_claims.py` runs a short form of the same claims. Every claim that something holds has a control beside
it: a method known to break the promise must be seen to break it here, or the simulation could not find a fault.

Where 365 nights of thousands of paths are looked at, arrays stand in for the public functions; the tests show that
both give the same numbers.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from functools import cache
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopstats import intervals as iv

Array = NDArray[np.float64]

SEED = 20_240_229
Z95 = 1.959963984540054


class Result(NamedTuple):
    """One line of the table; `limit` is compared with `simulated` in the given direction."""

    claim: str
    simulated: float
    relation: str
    limit: float
    count: int
    seed: int | None

    @property
    def is_kept(self) -> bool:
        return self.simulated >= self.limit if self.relation == ">=" else self.simulated <= self.limit


class Plan(NamedTuple):
    """How much is simulated."""

    arm_sizes: tuple[tuple[int, int], ...]
    cluster_sets: int
    cluster_counts: tuple[int, ...]
    correlations: tuple[float, ...]
    paths: int
    splits: tuple[float, ...]
    nights: int
    clustered_paths: int
    srm_paths: int
    segment_paths: int


FULL = Plan(
    arm_sizes=((5, 5), (18, 2), (20, 20), (90, 10), (180, 20), (450, 50)),
    cluster_sets=2000,
    cluster_counts=(20, 40, 100),
    correlations=(0.3, 0.6),
    paths=2000,
    splits=(0.5, 0.8, 0.9),
    nights=365,
    clustered_paths=300,
    srm_paths=4000,
    segment_paths=1000,
)
SHORT = Plan(
    arm_sizes=((5, 5), (18, 2), (90, 10)),
    cluster_sets=400,
    cluster_counts=(40,),
    correlations=(0.6,),
    paths=400,
    splits=(0.9,),
    nights=365,
    clustered_paths=40,
    srm_paths=400,
    segment_paths=150,
)

# The mean and the smallest coverage over the grid that the specification prints for these arm sizes (a2).
NEWCOMBE_TABLE = {
    (5, 5): (0.957, 0.900),
    (18, 2): (0.953, 0.918),
    (20, 20): (0.952, 0.924),
    (90, 10): (0.952, 0.932),
    (180, 20): (0.953, 0.947),
    (450, 50): (0.951, 0.949),
}
GRID = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# Three printed digits, of which the last may have been rounded either way.
PRINTED = 6e-4


# --- claim 1: one look, independent units ----------------------------------------------------------------------------


def exact_coverage(n1: int, n0: int, interval: Callable[..., tuple[float, float]]) -> tuple[float, float]:
    """Mean and smallest exact coverage over the 100 pairs of rates, by enumeration of every outcome."""
    ends = np.array([[interval(x1, n1, x0, n0) for x0 in range(n0 + 1)] for x1 in range(n1 + 1)])
    coverage = []
    for p1 in GRID:
        weight1 = binomial_weights(n1, p1)
        for p0 in GRID:
            # .6 - .5 is not .1 in floats; an end that equals the truth counts as covering it.
            is_covered = (ends[:, :, 0] <= p1 - p0 + 1e-12) & (p1 - p0 - 1e-12 <= ends[:, :, 1])
            coverage.append(float(weight1 @ is_covered @ binomial_weights(n0, p0)))
    return float(np.mean(coverage)), min(coverage)


@cache
def binomial_weights(n: int, p: float) -> Array:
    return np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


def wald(x1: int, n1: int, x0: int, n0: int) -> tuple[float, float]:
    """The control: the textbook interval."""
    p1, p0 = x1 / n1, x0 / n0
    half = Z95 * math.sqrt(p1 * (1 - p1) / n1 + p0 * (1 - p0) / n0)
    return p1 - p0 - half, p1 - p0 + half


def one_look(plan: Plan, seed: int) -> Iterator[Result]:
    for n1, n0 in plan.arm_sizes:
        mean, smallest = exact_coverage(n1, n0, iv.newcombe)
        table_mean, table_smallest = NEWCOMBE_TABLE[n1, n0]
        cells = (n1 + 1) * (n0 + 1) * len(GRID) ** 2
        yield Result(f"Newcombe {n1} v {n0}: mean coverage", mean, ">=", table_mean - PRINTED, cells, None)
        yield Result(f"Newcombe {n1} v {n0}: smallest coverage", smallest, ">=", table_smallest - PRINTED, cells, None)
    n1, n0 = 18, 2
    mean, _ = exact_coverage(n1, n0, wald)
    yield Result("control: Wald 18 v 2 covers less", mean, "<=", 0.70, (n1 + 1) * (n0 + 1) * len(GRID) ** 2, None)


# --- claim 2: clusters -----------------------------------------------------------------------------------------------


class Clusters(NamedTuple):
    """How clusters come about: rates of the arms, treated share, correlation within a cluster, and the assignment."""

    p1: float
    p0: float
    share: float
    icc: float
    is_by_run: bool
    is_opposite: bool = False


def cluster_sets(rng: np.random.Generator, sets: int, groups: int, world: Clusters) -> Iterator[NDArray[np.int64]]:
    """Data sets of clusters with three units on average and a rate per cluster from a beta distribution.

    One latent rank per cluster drives both arms' rates, in the same or in opposite directions.
    """
    from scipy.special import betaincinv

    strength = 1 / world.icc - 1
    for _ in range(sets):
        size = 1 + rng.poisson(2.0, groups)
        is_treated = rng.random(groups) < world.share
        n1 = np.where(is_treated, size, 0) if world.is_by_run else rng.binomial(size, world.share)
        rank = rng.random(groups)
        rate1 = betaincinv(world.p1 * strength, (1 - world.p1) * strength, rank)
        rank0 = 1 - rank if world.is_opposite else rank
        rate0 = betaincinv(world.p0 * strength, (1 - world.p0) * strength, rank0)
        yield np.stack([n1, rng.binomial(n1, rate1), size - n1, rng.binomial(size - n1, rate0)], axis=1)


def share_covered(
    tables: Iterator[NDArray[np.int64]],
    truth: float,
    methods: dict[str, Callable[[NDArray[np.int64]], tuple[float, float]]],
) -> tuple[dict[str, float], int]:
    """Per method the share of data sets whose interval covers the truth, and how many sets have an interval."""
    covered = dict.fromkeys(methods, 0)
    defined = 0
    for table in tables:
        try:
            ends = {name: interval(table) for name, interval in methods.items()}
        except iv.Undefined:
            continue
        defined += 1
        for name, (low, high) in ends.items():
            covered[name] += low <= truth <= high
    return {name: times / defined for name, times in covered.items()}, defined


def sandwich(table: NDArray[np.int64]) -> tuple[float, float]:
    """A control: CR2 with the Bell-McCaffrey df, but without Newcombe."""
    from scipy.special import stdtrit

    design = iv.cluster_design(table)
    half = float(stdtrit(design.df, 0.975)) * math.sqrt(design.variance)
    return design.lift - half, design.lift + half


def unclustered(table: NDArray[np.int64]) -> tuple[float, float]:
    """A control: Newcombe as if units were independent."""
    n1, y1, n0, y0 = (int(total) for total in table.sum(axis=0))
    return iv.newcombe(y1, n1, y0, n0)


def clustered(plan: Plan, seed: int) -> Iterator[Result]:
    methods = {"NewcD-t": iv.newcombe_clustered, "CR2": sandwich, "plain": unclustered}
    worlds = [
        Clusters(p1, p0, 0.9, icc, is_by_run, is_opposite)
        for p1, p0 in ((0.1, 0.1), (0.95, 0.95), (0.3, 0.1))
        for icc in plan.correlations
        for is_by_run, is_opposite in ((True, False), (False, False), (False, True))
    ]
    lowest_control = {"CR2": 1.0, "plain": 1.0}
    for groups in plan.cluster_counts:
        lowest, count = 1.0, 0
        for i, world in enumerate(worlds):
            tables = cluster_sets(np.random.default_rng([seed, 2, groups, i]), plan.cluster_sets, groups, world)
            covered, defined = share_covered(tables, world.p1 - world.p0, methods)
            lowest, count = min(lowest, covered["NewcD-t"]), count + defined
            for name in lowest_control:
                lowest_control[name] = min(lowest_control[name], covered[name])
        yield Result(f"clusters, {groups} at 90/10, rare: lowest coverage", lowest, ">=", 0.93, count, seed)
    sets = plan.cluster_sets
    yield Result("control: CR2 without Newcombe, lowest coverage", lowest_control["CR2"], "<=", 0.90, sets, seed)
    yield Result("control: Newcombe without clusters, lowest", lowest_control["plain"], "<=", 0.90, sets, seed)


# --- claim 3: every night --------------------------------------------------------------------------------------------


def multipliers(largest: int, n_star: int) -> Array:
    """The public multiplier for every n up to the largest; at n = 0 there is no look, and a 1 fills the place."""
    return np.array([1.0] + [iv.anytime_multiplier(n, n_star) for n in range(1, largest + 1)])


def nightly_counts(
    rng: np.random.Generator, paths: int, nights: int, per_night: float, share: float, p1: float, p0: float
) -> tuple[Array, Array, Array, Array]:
    """Cumulative x1, n1, x0, n0 of shape (paths, nights)."""
    new = rng.poisson(per_night, (paths, nights))
    new1 = rng.binomial(new, share)
    steps = (rng.binomial(new1, p1), new1, rng.binomial(new - new1, p0), new - new1)
    x1, n1, x0, n0 = (np.cumsum(step, axis=1).astype(np.float64) for step in steps)
    return x1, n1, x0, n0


def ever_excludes(counts: tuple[Array, Array, Array, Array], truth: float, z: Array | float) -> float:
    """Share of paths on which some night with a unit in each arm has an interval without the truth."""
    x1, n1, x0, n0 = counts
    is_look = (n1 > 0) & (n0 > 0)
    size1, size0 = np.where(is_look, n1, 1.0), np.where(is_look, n0, 1.0)
    multiplier = z[(n1 + n0).astype(int)] if isinstance(z, np.ndarray) else np.float64(z)
    low, high = iv._newcombe_arrays(np.minimum(x1, size1), size1, np.minimum(x0, size0), size0, multiplier)
    return float((is_look & ((low > truth) | (high < truth))).any(axis=1).mean())


def every_night(plan: Plan, seed: int) -> Iterator[Result]:
    rates = ((0.3, 0.3), (0.5, 0.3), (0.1, 0.1), (0.9, 0.7), (0.95, 0.95))
    highest: dict[int, float] = {200: 0.0, 500: 0.0}
    fixed, count = 1.0, 0
    for i, per_night in enumerate((0.5, 2.0, 10.0)):
        for j, share in enumerate(plan.splits):
            for k, (p1, p0) in enumerate(rates):
                rng = np.random.default_rng([seed, 3, i, j, k])
                counts = nightly_counts(rng, plan.paths, plan.nights, per_night, share, p1, p0)
                largest = int((counts[1] + counts[3]).max())
                for n_star in highest:
                    missed = ever_excludes(counts, p1 - p0, multipliers(largest, n_star))
                    highest[n_star] = max(highest[n_star], missed)
                fixed = min(fixed, ever_excludes(counts, p1 - p0, Z95))
                count += plan.paths
    for n_star, missed in highest.items():
        claim = f"anytime, {plan.nights} nights, n*={n_star}: highest P(ever wrong)"
        yield Result(claim, missed, "<=", 0.05, count, seed)
    yield Result("control: a fixed interval read nightly, lowest P(ever wrong)", fixed, ">=", 0.08, count, seed)
    yield from every_night_clustered(plan, seed)


def every_night_clustered(plan: Plan, seed: int) -> Iterator[Result]:
    """240 clusters, two a night, looks from the tenth cluster, through the public function with its rows."""
    groups, per_night, p = 240, 2, 0.5
    wrong = {"anytime": 0, "without deff": 0, "fixed": 0}
    rng = np.random.default_rng([seed, 4])
    for table in cluster_sets(rng, plan.clustered_paths, groups, Clusters(p, p, 0.5, 0.5, is_by_run=True)):
        excluded = dict.fromkeys(wrong, False)
        for until in range(10, groups + 1, per_night):
            rows = table[:until]
            n1, y1, n0, y0 = (int(total) for total in rows.sum(axis=0))
            try:
                ends = {
                    "anytime": iv.newcombe_anytime(y1, n1, y0, n0, 200, rows=rows),
                    "without deff": iv.newcombe_anytime(y1, n1, y0, n0, 200),
                    "fixed": iv.newcombe_clustered(rows),
                }
            except iv.Undefined:
                continue
            for name, (low, high) in ends.items():
                excluded[name] |= low > 0 or high < 0
        for name in wrong:
            wrong[name] += excluded[name]
    share = {name: times / plan.clustered_paths for name, times in wrong.items()}
    count = plan.clustered_paths
    yield Result("anytime with clusters: P(ever wrong)", share["anytime"], "<=", 0.05, count, seed)
    yield Result("control: anytime without deff", share["without deff"], ">=", 0.06, count, seed)
    yield Result("control: fixed clustered interval read nightly", share["fixed"], ">=", 0.08, count, seed)


# --- claim 4: the split ----------------------------------------------------------------------------------------------


def srm(plan: Plan, seed: int) -> Iterator[Result]:
    limit = math.log(1000)
    alarms = chi_square = 0
    count = 0
    for i, share in enumerate((0.5, 0.8, 0.9)):
        rng = np.random.default_rng([seed, 5, i])
        _, n1, _, n0 = nightly_counts(rng, plan.srm_paths, plan.nights, 5.0, share, 0.5, 0.5)
        alarms += int((iv._srm_log_e(n1, n0, share, 100.0) >= limit).any(axis=1).sum())
        n = np.maximum(n1 + n0, 1.0)
        chi_square += int((np.square(n1 - n * share) / (n * share * (1 - share)) > Z95**2).any(axis=1).sum())
        count += plan.srm_paths
    # By Ville's inequality no design can alarm on more than 1 path in 1,000, however long it runs.
    yield Result(f"SRM: P(ever E >= 1000) in {plan.nights} nights", alarms / count, "<=", 0.001, count, seed)
    yield Result("control: chi-square p < .05 read nightly", chi_square / count, ">=", 0.25, count, seed)
    rng = np.random.default_rng([seed, 6])
    _, n1, _, n0 = nightly_counts(rng, plan.srm_paths, plan.nights, 5.0, 0.85, 0.5, 0.5)
    found = float((iv._srm_log_e(n1, n0, 0.9, 100.0) >= limit).any(axis=1).mean())
    yield Result("SRM: a true .85 at design .90 is found", found, ">=", 0.95, plan.srm_paths, seed)


# --- claim 5: segments -----------------------------------------------------------------------------------------------


def log_e_arrays(x1: Array, n1: Array, x0: Array, n0: Array, n_star: float) -> Array:
    """`log_e_value` at alpha .05 and deff 1 on arrays."""
    rho2 = (-2 * math.log(0.05) + math.log(1 - 2 * math.log(0.05))) / n_star
    k = (n1 + n0) * rho2
    p1, p0 = (x1 + 1) / (n1 + 2), (x0 + 1) / (n0 + 2)
    variance = p1 * (1 - p1) / (n1 + 2) + p0 * (1 - p0) / (n0 + 2)
    return np.square(p1 - p0) / variance * (k / (2 * (k + 1))) - 0.5 * np.log1p(k)


def segment_counts(
    rng: np.random.Generator, nights: int, per_night: int, lift_of_first: float
) -> tuple[Array, Array, Array, Array]:
    """Cumulative x1, n1, x0, n0 of shape (nights, 20): ten tools and ten models, and each unit has one of both."""
    units = nights * per_night
    arm, tool, model = rng.random(units) < 0.5, rng.integers(0, 10, units), rng.integers(0, 10, units)
    outcome = rng.random(units) < 0.4 + lift_of_first * (arm & (tool == 0))
    member = np.zeros((units, 20), dtype=bool)
    member[np.arange(units), tool] = True
    member[np.arange(units), 10 + model] = True

    def nightly(mask: NDArray[np.bool_]) -> Array:
        kept = (member & mask[:, None]).reshape(nights, per_night, 20).sum(axis=1)
        return np.cumsum(kept, axis=0).astype(np.float64)

    return nightly(arm & outcome), nightly(arm), nightly(~arm & outcome), nightly(~arm)


def segment_findings(counts: tuple[Array, Array, Array, Array], n_star: float) -> set[int]:
    """Segments that e-BH ever rejects, on any night; only segments with ten units in each arm are tested."""
    x1, n1, x0, n0 = counts
    evidence = log_e_arrays(x1, n1, x0, n0, n_star)
    is_tested = (n1 >= 10) & (n0 >= 10)
    found: set[int] = set()
    for night in range(len(evidence)):
        tested = np.flatnonzero(is_tested[night])
        values = [math.exp(value) for value in evidence[night, tested].tolist()]
        found.update(int(tested[position]) for position in iv.e_bh(values))
    return found


def segments(plan: Plan, seed: int) -> Iterator[Result]:
    nights, per_night = 90, 20
    false_e = false_fixed = real = 0
    for path in range(plan.segment_paths):
        null = segment_counts(np.random.default_rng([seed, 7, path]), nights, per_night, 0.0)
        false_e += bool(segment_findings(null, 200))
        x1, n1, x0, n0 = (column[-1] for column in null)
        low, high = iv._newcombe_arrays(x1, n1, x0, n0, np.float64(Z95))
        false_fixed += bool(((low > 0) | (high < 0)).any())
        planted = segment_counts(np.random.default_rng([seed, 8, path]), nights, per_night, 0.3)
        real += 0 in segment_findings(planted, 200)
    paths = plan.segment_paths
    yield Result("e-BH, 20 null segments, 90 nights: P(any finding)", false_e / paths, "<=", 0.05, paths, seed)
    yield Result("control: 20 plain intervals on the last night", false_fixed / paths, ">=", 0.30, paths, seed)
    yield Result("e-BH: a segment with a lift of .30 is found", real / paths, ">=", 0.50, paths, seed)


CLAIMS: tuple[Callable[[Plan, int], Iterator[Result]], ...] = (one_look, clustered, every_night, srm, segments)


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 0 when every claim is kept, 1 otherwise."""
    parser = argparse.ArgumentParser(description="Simulate the coverage claims of the intervals.")
    parser.add_argument("--short", action="store_true", help="the small simulation that the tests run")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args(arguments)
    plan = SHORT if options.short else FULL
    print(f"{'claim':<62} {'simulated':>9}  {'limit':>9} {'n':>9}  {'seed':>8}")
    is_kept = True
    for claim in CLAIMS:
        started = perf_counter()
        for result in claim(plan, options.seed):
            is_kept &= result.is_kept
            limit, seed = f"{result.relation} {result.limit:.4g}", "exact" if result.seed is None else result.seed
            mark = "" if result.is_kept else "  FAILED"
            print(f"{result.claim:<62} {result.simulated:>9.4f}  {limit:>9} {result.count:>9}  {seed:>8}{mark}")
        print(f"# {claim.__name__}: {perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
