"""The short, seeded form of the coverage simulation, and the proof that its arrays are the public functions.

`make coverage` runs the long form. Both print the same table; here every line of it is a test of its own meaning.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import coverage_claims as claims
from loopstats import intervals as iv

SHORT = claims.SHORT


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.__name__)
def test_the_short_simulation_keeps_every_claim(claim) -> None:
    results = list(claim(SHORT, claims.SEED))
    assert any(result.claim.startswith("control") for result in results)
    assert [result for result in results if not result.is_kept] == []


def test_the_simulation_is_a_function_of_its_seed() -> None:
    plan = SHORT._replace(srm_paths=50, nights=30)
    assert list(claims.srm(plan, 1)) == list(claims.srm(plan, 1))
    assert list(claims.srm(plan, 1)) != list(claims.srm(plan, 2))


def test_looking_every_night_in_arrays_is_looking_with_the_public_interval() -> None:
    paths, nights, truth = 12, 60, 0.2
    rng = np.random.default_rng(5)
    counts = claims.nightly_counts(rng, paths, nights, 1.5, 0.8, 0.5, 0.3)
    largest = int((counts[1] + counts[3]).max())
    for alpha_like in (1.0, 0.55):
        # The narrower multiplier makes some paths exclude the truth, so that both answers occur.
        expected = 0
        for path in range(paths):
            wrong = False
            for night in range(nights):
                x1, n1, x0, n0 = (float(column[path, night]) for column in counts)
                if n1 == 0 or n0 == 0:
                    continue
                z = iv.anytime_multiplier(n1 + n0, 200) * alpha_like
                low, high = iv.newcombe(x1, n1, x0, n0, z=z)
                if alpha_like == 1.0:
                    assert (low, high) == iv.newcombe_anytime(x1, n1, x0, n0, 200)
                wrong |= low > truth or high < truth
            expected += wrong
        found = claims.ever_excludes(counts, truth, claims.multipliers(largest, 200) * alpha_like)
        assert found == expected / paths
    assert 0 < expected < paths


def test_srm_in_arrays_is_the_public_e_value() -> None:
    rng = np.random.default_rng(6)
    n1, n0 = rng.integers(0, 2000, 200), rng.integers(0, 2000, 200)
    for share in (0.5, 0.9):
        array = iv._srm_log_e(n1.astype(float), n0.astype(float), share, 100.0)
        public = [iv.srm_log_e_value(int(a), int(b), share) for a, b in zip(n1, n0, strict=True)]
        assert array == pytest.approx(public, abs=1e-9)


def test_segment_evidence_in_arrays_is_the_public_e_value() -> None:
    counts = claims.segment_counts(np.random.default_rng(9), 30, 20, 0.3)
    array = claims.log_e_arrays(*counts, 200)
    checked = 0
    for night, segment in np.ndindex(array.shape):
        x1, n1, x0, n0 = (float(column[night, segment]) for column in counts)
        if n1 > 0 and n0 > 0:
            assert array[night, segment] == pytest.approx(iv.log_e_value(x1, n1, x0, n0, 200), abs=1e-12)
            checked += 1
    assert checked > 400
    assert claims.segment_findings(counts, 200) <= set(range(20))


def test_coverage_by_enumeration_agrees_with_a_sum_by_hand() -> None:
    """One arm of one unit and one of two, at the pair of rates that covers least."""

    def by_hand(p1: float, p0: float) -> float:
        total = 0.0
        for x1 in range(2):
            for x0 in range(3):
                low, high = iv.newcombe(x1, 1, x0, 2)
                weight = (p1 if x1 else 1 - p1) * math.comb(2, x0) * p0**x0 * (1 - p0) ** (2 - x0)
                total += weight * (low <= p1 - p0 + 1e-12 and p1 - p0 - 1e-12 <= high)
        return total

    every = [by_hand(p1, p0) for p1 in claims.GRID for p0 in claims.GRID]
    mean, smallest = claims.exact_coverage(1, 2, iv.newcombe)
    assert mean == pytest.approx(sum(every) / len(every), abs=1e-12)
    assert smallest == pytest.approx(min(every), abs=1e-12)


def test_a_claim_that_fails_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(plan: claims.Plan, seed: int):
        yield claims.Result("an interval that covers too little", 0.80, ">=", 0.93, 10, seed)

    def sound(plan: claims.Plan, seed: int):
        yield claims.Result("an interval that covers", 0.95, ">=", 0.93, 10, seed)

    monkeypatch.setattr(claims, "CLAIMS", (sound, broken))
    assert claims.main(["--short"]) == 1
    assert capsys.readouterr().out.count("FAILED") == 1
    monkeypatch.setattr(claims, "CLAIMS", (sound,))
    assert claims.main(["--short"]) == 0
    assert "FAILED" not in capsys.readouterr().out
