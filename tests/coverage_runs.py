"""Simulates what `runs --compare` claims of its intervals and its gate: `python tests/coverage_runs.py` (two minutes).

Tasks differ in length (gamma, 5 + 30 steps on average), runs of one task by a few steps. Equal groups show coverage and
false alarms; a shift of 6 steps shows power.
"""

from __future__ import annotations

import numpy as np

from loopstats import compare
from test_runs import group

SEED, ROUNDS, DRAWS = 12, 200, 600


def side(random: np.random.Generator, lengths: list[int], name: str, shift: int = 0, noise: int = 8) -> list[tuple]:
    """Three runs of each task."""
    return [
        (f"{name}{task}", length + int(random.integers(0, noise)) + shift, bool(random.random() < 0.5))
        for task, length in enumerate(lengths)
        for _ in range(3)
    ]


def tasks(random: np.random.Generator, count: int) -> list[int]:
    """Lengths of that many tasks."""
    return [int(value) + 5 for value in random.gamma(3, 10, count)]


def measure(is_shared: bool, shift: int) -> tuple[float, float, float]:
    """Coverage of the true shift by the interval of the median and of the 90th percentile, and how often the gate fails."""
    random = np.random.default_rng(SEED)
    held, failed = np.zeros(2), 0
    for _ in range(ROUNDS):
        lengths = tasks(random, 30 if is_shared else 40)
        other = lengths if is_shared else tasks(random, 40)
        a = side(random, lengths, "t" if is_shared else "a")
        b = side(random, other, "t" if is_shared else "b", shift)
        done = compare.compare(group(a), group(b, "b"), "a", "b", draws=DRAWS)
        held += [(s.low or 0) <= shift <= (s.high or 0) for s in done.shifts]
        failed += done.is_failed
    return held[0] / ROUNDS, held[1] / ROUNDS, failed / ROUNDS


if __name__ == "__main__":
    for name, is_shared, shift in (
        ("equal, own tasks", False, 0),
        ("equal, same tasks", True, 0),
        ("+6, same tasks", True, 6),
    ):
        median, tail, failed = measure(is_shared, shift)
        print(
            f"{name}: median held {median:.3f}, 90th percentile held {tail:.3f}, gate failed {failed:.3f} of {ROUNDS}"
        )
