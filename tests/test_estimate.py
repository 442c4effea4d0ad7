"""The readout through its public call: known counts to known intervals, every reason to withhold, every odd lake.

Names R1..R32 are the reference values of the statistical specification. Frames are made by hand with the columns of the
contract. Each readout passes `checked`, which holds what must be true of all of them. Warnings are errors here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from loopstats import estimate, rule
from loopstats import intervals as iv
from loopstats.config import Experiment, Settings
from loopstats.errors import UsageError
from loopstats.estimate import Rate
from loopstats.tables import DELIVERIES, DETECTIONS, LOOPS, SESSIONS, STEPS

pytestmark = pytest.mark.filterwarnings("error")
SLOW = hypothesis_settings(max_examples=15, deadline=None, derandomize=True)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 11, 2, 9, tzinfo=UTC)
AS_OF = datetime(2026, 11, 20, tzinfo=UTC)
DAY = timedelta(days=1)
HINT = Experiment("hint", "pepper", 5000, 500)
SETTINGS = Settings(experiments={"hint": HINT})
ROW_KEYS = [
    "scope",
    "experiment",
    *[
        f"{name}_{arm}"
        for arm in ("treated", "holdout")
        for name in ("n", "broke", "recurred", "unresolved", "sessions", "rate")
    ],
    "lift",
    "ci_fixed_low",
    "ci_fixed_high",
    "ci_anytime_low",
    "ci_anytime_high",
    "verdict",
    "reasons",
    "details",
]
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


def us(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def printed(*values: float) -> object:
    """Equal to all of six printed decimals."""
    return pytest.approx(values if len(values) > 1 else values[0], abs=6e-7, rel=0)


def loop(number: int, session: str, arm: str | None, outcome: str = "broke", **other: Any) -> dict[str, Any]:
    """One enrolled strategy loop; `number` makes its class and its time."""
    at = other.pop("detected_at", START + timedelta(minutes=number))
    row = {
        "loop_id": f"{number:016x}",
        "run_id": session,
        "session_id": session,
        "signature": f"{number:016x}",
        "rule": rule.STRATEGY_LOOP,
        "rule_version": rule.STRATEGY_LOOP,
        "tool": "Edit",
        "kind": "edit",
        "detected_step": number,
        "detected_at": at,
        "count_events": 3,
        "count_targets": 2,
        "count_decisions": 3,
        "span_steps": 2,
        "is_interrupted": False,
        "is_infra": False,
        "failures_before": 2,
        "experiment": "hint",
        "salt_id": HINT.salt_id,
        "share_bp": 5000,
        "rule_digest": "r",
        "is_enrolled": True,
        "arm": arm,
        "arm_bp": 1,
        "is_delivered": arm == "treated",
        "outcome": outcome,
        "mature_at": None if at is None else at + DAY,
        "steps_to_outcome": None if outcome == "unresolved" else 1 + number % 30,
        "outcome_final": outcome,
        "is_relapsed": False,
        "is_sidestepped": False,
        "outcome_10": outcome,
        "outcome_20": outcome,
        "outcome_50": outcome,
        "last_step": number + 50,
        "harness": "h",
    }
    return row | other


def table_of(rows: Sequence[dict[str, Any]], table: Any = LOOPS) -> pl.DataFrame:
    """Rows with the columns and types of a table, in the order given, repeated rows kept."""
    full = [{name: row.get(name) for name in table.names} for row in rows]
    return pl.DataFrame(full, schema=table.schema, orient="row") if full else table.empty()


def sessions_of(rows: Iterable[dict[str, Any]], **other: Any) -> pl.DataFrame:
    """A session row for each session of the loops."""
    first = {row["session_id"]: row for row in rows}
    out = []
    for name, row in sorted(first.items()):
        is_in = row["is_enrolled"]
        out.append(
            {
                "session_id": name,
                "format": "native",
                "harness": "h",
                "cwd": "",
                "count_runs": 1,
                "count_steps": 9,
                "count_attempts": 9,
                "count_failures": 5,
                "count_unknown": 0,
                "is_open": False,
                "is_enrolled": is_in,
                "is_late_enrolment": False,
                "experiment": row["experiment"] if is_in else None,
                "salt_id": row["salt_id"] if is_in else None,
                "share_bp": row["share_bp"] if is_in else None,
                "epoch": row.get("epoch"),
                "enrolled_at": START if is_in else None,
                "enrolled_line": 1 if is_in else None,
                "rule_digest": "r" if is_in else None,
            }
            | other
        )
    return table_of(out, SESSIONS)


def record(row: dict[str, Any], **other: Any) -> dict[str, Any]:
    """A detection or delivery record of a loop, with the arm that its salt gives."""
    points = rule.arm_bp(HINT.salt, row["run_id"], row["signature"])
    arm = rule.arm_of(points)
    return {
        "session_id": row["session_id"],
        "run_id": row["run_id"],
        "detection": 0,
        "delivery": 0,
        "ts": row["detected_at"],
        "experiment": "hint",
        "signature": row["signature"],
        "rule": rule.STRATEGY_LOOP,
        "arm": arm,
        "arm_bp": points,
        "share_bp": 5000,
        "is_delivered": arm == "treated",
        "source_file": "a.jsonl",
        "source_line": 7,
    } | other


def hashed(number: int, session: str, outcome: str = "broke", **other: Any) -> dict[str, Any]:
    """A loop in the arm that its salt gives."""
    row = loop(number, session, "treated", outcome)
    points = rule.arm_bp(HINT.salt, row["run_id"], row["signature"])
    arm = rule.arm_of(points)
    return row | {"arm": arm, "arm_bp": points, "is_delivered": arm == "treated"} | other


def single(arm: str, broke: int, recurred: int, unresolved: int, start: int, **other: Any) -> list[dict[str, Any]]:
    """Loops of one arm, each in a session of its own."""
    words = ["broke"] * broke + ["recurred"] * recurred + ["unresolved"] * unresolved
    return [loop(start + i, f"s{start + i:05d}", arm, word, **other) for i, word in enumerate(words)]


def two_arms(x1: int, n1: int, x0: int, n0: int, start: int = 0, **other: Any) -> list[dict[str, Any]]:
    """x1 of n1 treated and x0 of n0 holdout loops broke, the others recurred; a session each."""
    return single("treated", x1, n1 - x1, 0, start, **other) + single("holdout", x0, n0 - x0, 0, start + n1, **other)


def clustered(rows: Sequence[Sequence[int]], **other: Any) -> list[dict[str, Any]]:
    """Loops of sessions given as (n1, y1, n0, y0)."""
    out: list[dict[str, Any]] = []
    for session, (n1, y1, n0, y0) in enumerate(rows):
        for arm, n, y in (("treated", n1, y1), ("holdout", n0, y0)):
            for i in range(n):
                out.append(loop(len(out), f"s{session:05d}", arm, "broke" if i < y else "recurred", **other))
    return out


def checked(
    rows: Sequence[dict[str, Any]],
    *,
    settings: Settings = SETTINGS,
    sessions: pl.DataFrame | None = None,
    detections: Sequence[dict[str, Any]] = (),
    deliveries: Sequence[dict[str, Any]] = (),
    as_of: datetime = AS_OF,
    **asked: Any,
) -> estimate.Readout:
    """The readout, after what holds for all: the keys of its rows, no nan, intervals that contain the lift."""
    readout = estimate.lift(
        table_of(rows),
        sessions_of(rows) if sessions is None else sessions,
        table_of(detections, DETECTIONS),
        table_of(deliveries, DELIVERIES),
        settings,
        as_of_us=us(as_of),
        **asked,
    )
    envelope = readout.to_json()
    json.dumps(envelope, allow_nan=False)
    assert list(envelope) == ["schema", "as_of", "interval", "tz", "rule_digest", "rows", "warnings"]
    for row in envelope["rows"]:
        assert list(row) == ROW_KEYS
        for low, high in (("ci_fixed_low", "ci_fixed_high"), ("ci_anytime_low", "ci_anytime_high")):
            assert (row[low] is None) == (row[high] is None)
            if row[low] is not None:
                assert -1 <= row[low] <= row["lift"] <= row[high] <= 1
        if row["ci_anytime_low"] is not None:
            assert row["ci_anytime_low"] <= row["ci_fixed_low"] and row["ci_fixed_high"] <= row["ci_anytime_high"]
        assert row["verdict"] in (None, "helps", "harms", "no verdict yet", "withheld")
        assert row["lift"] is not None or row["reasons"]
    return readout


def to_date(rows: Sequence[dict[str, Any]], **asked: Any) -> estimate.Estimate:
    found = checked(rows, **asked).scope("to_date")
    assert found is not None
    return found


def codes(readout: estimate.Readout) -> list[str]:
    return [notice.code for notice in readout.warnings]


# --- the rate that cannot lose its n ---------------------------------------------------------------------------------


def test_a_rate_shows_its_n_in_every_form() -> None:
    rate = Rate(7, 34)
    assert str(rate) == f"{rate}" == "7/34 (20.6 %)"
    assert f"{rate:>16}" == "   7/34 (20.6 %)"
    assert rate.to_json() == {"x": 7, "n": 34, "rate": 0.205882352941}
    for spec in (".3f", "%", ".1%", "e", "d"):
        with pytest.raises(TypeError):
            format(rate, spec)
    with pytest.raises(TypeError):
        float(rate)  # type: ignore[arg-type]


def test_a_rate_of_fewer_than_five_has_no_percentage() -> None:
    assert str(Rate(3, 4)) == "3/4" and Rate(3, 4).to_json()["rate"] is None
    assert str(Rate(0, 0)) == "0/0"
    assert str(Rate(3, 40, is_withheld=True)) == "3/40" and Rate(3, 40, True).to_json()["rate"] is None
    with pytest.raises(ValueError, match="x <= n"):
        Rate(3, 2)


# --- known counts to known intervals ---------------------------------------------------------------------------------


def test_r1_newcombe_through_the_estimate() -> None:
    found = to_date(two_arms(56, 70, 48, 80))
    assert found.headline.lift == pytest.approx(0.2)
    assert found.sensitivities["first_loop_only"].ci_fixed == printed(0.052431, 0.333873)


def test_one_epoch_has_the_intervals_of_the_published_functions_to_the_last_bit() -> None:
    found = to_date(clustered(FIXTURE_A))
    totals = [sum(row[i] for row in FIXTURE_A) for i in (1, 0, 3, 2)]
    assert found.headline.ci_fixed == iv.newcombe_clustered(FIXTURE_A)
    assert found.headline.ci_anytime == iv.newcombe_anytime(*totals, 500, rows=FIXTURE_A)


def test_r16_clusters_through_the_estimate() -> None:
    found = to_date(clustered(FIXTURE_A))
    assert found.headline.lift == printed(0.328671)
    assert found.headline.df == printed(8.618801)
    assert found.headline.ci_fixed == printed(-0.059902, 0.599887)
    assert found.headline.ci_anytime == printed(-0.343255, 0.719188)
    assert (found.headline.sessions_treated, found.headline.sessions_holdout) == (10, 10)
    assert found.verdict == "no verdict yet"


def test_r29_unresolved_through_the_estimate() -> None:
    found = to_date(single("treated", 28, 14, 8, 0) + single("holdout", 18, 28, 4, 100))
    assert found.headline.lift == pytest.approx(0.2)
    assert (found.recurred, found.unresolved) == ((14, 28), (8, 4))
    assert found.sensitivities["first_loop_only"].ci_fixed == printed(0.005168, 0.374785)
    assert found.sensitivities["resolved_only"].lift == printed(0.275362)
    bounds, attrition = found.details["bounds"], found.details["attrition"]
    assert (bounds["low"], bounds["high"]) == printed(0.12, 0.36)
    assert (bounds["ci_low"], bounds["ci_high"]) == printed(-0.043320, 0.512914)
    assert attrition["fisher_p"] == printed(0.356661)


def epochs() -> list[dict[str, Any]]:
    first = two_arms(28, 50, 18, 50, 0, epoch="one", share_bp=5000)
    return first + two_arms(45, 50, 9, 10, 200, epoch="two", share_bp=8333)


def test_r30_epochs_are_stratified_and_never_pooled_crudely() -> None:
    readout = checked(epochs())
    found = readout.scope("to_date")
    assert found is not None
    assert found.headline.lift == pytest.approx(0.15)
    pooled = found.details["pooling"]["mantel_haenszel"]
    assert (pooled["lift"], pooled["se"]) == printed(0.15, 0.080321)
    assert (pooled["ci_low"], pooled["ci_high"]) == printed(-0.007427, 0.307427)
    assert not [value for value in floats(readout.to_json()) if value == pytest.approx(0.28)]
    assert "epochs_stratified" in codes(readout)
    low, high = found.headline.ci_fixed or (0, 0)
    assert low == pytest.approx(-0.007, abs=0.03) and high == pytest.approx(0.307, abs=0.03)


def floats(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [x for part in value.values() for x in floats(part)]
    if isinstance(value, list):
        return [x for part in value for x in floats(part)]
    return [value] if isinstance(value, float) else []


def test_equal_epochs_pool_to_the_lift_of_each() -> None:
    """Two epochs with the same counts: twice the loops, so an interval narrower by about the square root of two."""
    one = to_date(two_arms(30, 50, 20, 50, 0, epoch="one"))
    two = to_date(two_arms(30, 50, 20, 50, 0, epoch="one") + two_arms(30, 50, 20, 50, 500, epoch="two"))
    assert two.headline.lift == pytest.approx(one.headline.lift)
    (low, high), (low2, high2) = one.headline.ci_fixed or (0, 0), two.headline.ci_fixed or (0, 0)
    assert (high2 - low2) / (high - low) == pytest.approx(math.sqrt(0.5), abs=0.02)


def test_an_epoch_with_one_arm_adds_to_the_counts_only() -> None:
    both = two_arms(30, 50, 20, 50, 0, epoch="one")
    found = to_date(both + single("treated", 5, 5, 0, 500, epoch="two"))
    assert (found.headline.treated, found.headline.holdout) == (Rate(35, 60), Rate(20, 50))
    assert found.headline.lift == pytest.approx(0.2)
    apart = to_date(single("treated", 9, 9, 0, 0, epoch="one") + single("holdout", 9, 9, 0, 50, epoch="two"))
    assert apart.headline.lift is None and apart.reasons == ("no_shared_epoch",)


def test_a_changed_salt_or_writer_digest_is_an_epoch_too() -> None:
    rows = two_arms(30, 50, 20, 50, 0) + two_arms(30, 50, 20, 50, 500)
    digests = pl.when(pl.col("session_id") < "s00500").then(pl.lit("r")).otherwise(pl.lit("q"))
    sessions = sessions_of(rows).with_columns(digests.alias("rule_digest"))
    readout = checked(rows, sessions=sessions)
    found = readout.scope("to_date")
    assert found is not None and found.details["pooling"]["count_strata"] == 2
    assert [stratum["digest_told"] for stratum in found.details["strata"]] == ["q", "r"]
    assert {"epochs_stratified", "rule_digest_differs"} <= set(codes(readout))


def test_a_changed_salt_is_an_epoch_where_both_salts_are_configured() -> None:
    old = Experiment("hint-old", "salt", 5000, 500)
    settings = Settings(experiments={"hint": HINT, "hint-old": old})
    rows = two_arms(30, 50, 20, 50) + two_arms(20, 60, 30, 40, 500, salt_id=old.salt_id)
    found = to_date(rows, settings=settings)
    assert found.headline.lift == pytest.approx((25 * 0.2 + 24 * (20 / 60 - 30 / 40)) / 49)
    parts = found.details["pooling"]["parts"]
    assert {(part["salt_id"], part["treated"]["n"]) for part in parts} == {(HINT.salt_id, 50), (old.salt_id, 60)}


def test_bounds_of_epochs_are_pooled_with_the_same_weights() -> None:
    one = single("treated", 28, 14, 8, 0, epoch="a") + single("holdout", 18, 28, 4, 100, epoch="a")
    two = single("treated", 10, 10, 0, 300, epoch="b") + single("holdout", 5, 10, 5, 400, epoch="b")
    bounds = to_date([*one, *two]).details["bounds"]
    assert bounds["low"] == pytest.approx((25 * 0.12 + 10 * (0.5 - 0.5)) / 35)
    assert bounds["high"] == pytest.approx((25 * 0.36 + 10 * (0.5 - 0.25)) / 35)
    assert bounds["reason"] == "stratified" and bounds["ci_low"] is None


def test_an_epoch_too_small_for_its_own_design_effect_takes_the_largest_of_the_others() -> None:
    """The small epoch widens the interval a little and never hides it."""
    large = [row | {"epoch": "a"} for row in clustered([(2, 2, 2, 0), (2, 0, 2, 2)] * 10)]
    small = [loop(900, "late", "treated", epoch="b"), loop(901, "late", "holdout", epoch="b")]
    alone, both = to_date(large), to_date([*large, *small])
    assert both.headline.ci_fixed is not None and alone.headline.deff is not None
    assert both.headline.deff == pytest.approx(alone.headline.deff)
    deff = alone.headline.deff
    evidence = iv.log_e_value(20, 40, 20, 40, 500, deff=deff) + iv.log_e_value(1, 1, 1, 1, 500, deff=deff)
    assert deff > 1.1 and both.details["log_e_value"] == pytest.approx(evidence)


def test_r28_compliance_through_the_estimate() -> None:
    cells = {
        (1, 1, 1): 34,
        (1, 1, 0): 14,
        (1, 0, 1): 5,
        (1, 0, 0): 7,
        (0, 1, 1): 2,
        (0, 1, 0): 1,
        (0, 0, 1): 14,
        (0, 0, 0): 23,
    }
    rows: list[dict[str, Any]] = []
    for (z, d, y), n in cells.items():
        for _ in range(n):
            word, arm = ("broke" if y else "recurred"), ("treated" if z else "holdout")
            rows.append(loop(len(rows), f"s{len(rows)}", arm, word, is_delivered=bool(d) or None))
    readout = checked(rows, deliveries=[record(rows[0], arm=None)])
    found = readout.scope("to_date")
    assert found is not None
    cace = found.details["cace"]
    assert (cace["value"], cace["first_stage"]) == printed(0.344828, 0.725)
    assert (cace["ci_low"], cace["ci_high"]) == printed(0.076711, 0.616643)
    assert found.details["delivery"]["treated"]["x"] == 48 and found.details["delivery"]["holdout"]["x"] == 3
    assert {"holdout_delivered", "treated_not_delivered"} <= set(codes(readout))


def test_time_to_break_is_aalen_johansen_without_cut_offs_and_ends_at_the_rate() -> None:
    rows = single("treated", 20, 15, 5, 3) + single("holdout", 9, 21, 10, 103)
    found = to_date(rows)
    for arm in ("treated", "holdout"):
        mine = [row for row in rows if row["arm"] == arm]
        times = [row["steps_to_outcome"] or row["last_step"] - row["detected_step"] for row in mine]
        causes = [{"broke": 1, "recurred": 2, "unresolved": 3}[row["outcome"]] for row in mine]
        steps = iv.aalen_johansen(times, causes)
        for point in found.details["time_to_break"][arm]:
            passed = [step for step in steps if point["steps"] is None or step.time <= point["steps"]]
            want = (passed[-1].cif, passed[-1].se) if passed else (0.0, 0.0)
            assert (point["rate"], point["se"]) == pytest.approx(want, abs=1e-12)
    last = found.details["time_to_break"]["treated"][-1]
    assert (last["x"], last["n"]) == (20, 40) == (found.headline.treated.x, found.headline.treated.n)


# --- when to withhold ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "reason"),
    [((1, 1, 0, 0), "empty_arm"), ((0, 0, 3, 9), "empty_arm"), ((1, 1, 0, 1), "n_lt_5"), ((9, 30, 2, 4), "n_lt_5")],
)
def test_small_arms_show_counts_only(counts: tuple[int, int, int, int], reason: str) -> None:
    found = to_date(two_arms(*counts))
    row = found.to_row()
    assert found.headline.reasons == (reason,)
    assert (row["n_treated"], row["broke_treated"], row["n_holdout"], row["broke_holdout"]) == (
        counts[1],
        counts[0],
        counts[3],
        counts[2],
    )
    assert all(row[key] is None for key in ("rate_treated", "rate_holdout", "lift", "ci_fixed_low", "ci_anytime_low"))
    assert row["verdict"] == "no verdict yet"


def test_five_to_nine_loops_are_wide_and_give_no_verdict() -> None:
    found = to_date(two_arms(9, 9, 0, 40))
    assert found.headline.ci_anytime is not None and found.headline.ci_anytime[0] > 0
    assert "wide" in found.reasons and found.verdict == "no verdict yet"


def test_fewer_than_ten_sessions_are_wide_however_many_loops() -> None:
    found = to_date(clustered([(10, 10, 10, 0)] * 9))
    assert found.headline.treated.n == 90 and "wide" in found.reasons and found.verdict == "no verdict yet"


def test_one_session_with_a_whole_arm_has_the_first_loop_interval_or_none() -> None:
    rows = clustered([(8, 4, 0, 0), (0, 0, 3, 1), (0, 0, 4, 2)])
    found = to_date(rows)
    assert "clusters_lt_2" in found.reasons and found.headline.ci_anytime is None
    assert found.headline.ci_fixed is None
    assert found.sensitivities["first_loop_only"].reasons == ("n_lt_5",)
    assert found.verdict == "no verdict yet"


def test_epochs_of_one_session_an_arm_have_the_interval_of_the_first_loops() -> None:
    rows: list[dict[str, Any]] = []
    for epoch in range(12):
        for arm, outcome in (("treated", "broke"), ("holdout", "recurred")):
            for _ in range(2):
                rows.append(loop(len(rows), f"{arm}{epoch}", arm, outcome, epoch=f"e{epoch:02d}"))
    found = to_date(rows)
    assert "clusters_lt_2" in found.reasons and found.headline.ci_anytime is None
    assert found.headline.ci_fixed is not None
    assert found.headline.ci_fixed == found.sensitivities["first_loop_only"].ci_fixed
    assert found.verdict == "no verdict yet"


def test_a_verdict_is_from_the_anytime_interval_only() -> None:
    helps, harms = to_date(two_arms(90, 100, 30, 100)), to_date(two_arms(30, 100, 90, 100))
    assert (helps.verdict, harms.verdict) == ("helps", "harms")
    # The one-look interval leaves out 0 here, the anytime interval does not.
    between = to_date(two_arms(56, 70, 48, 80))
    assert between.headline.ci_fixed is not None and between.headline.ci_fixed[0] > 0
    assert between.verdict == "no verdict yet"


def test_a_window_and_a_replay_get_no_nightly_interval_and_no_verdict() -> None:
    rows = two_arms(90, 100, 30, 100)
    away = [
        row
        | {
            "is_enrolled": False,
            "experiment": None,
            "salt_id": None,
            "session_id": row["session_id"] + "r",
            "run_id": row["run_id"] + "r",
        }
        for row in rows
    ]
    readout = checked(rows + away, since_us=us(START))
    scopes = [(e.scope, e.experiment) for e in readout.estimates]
    assert scopes == [("window", "hint"), ("to_date", "hint"), ("replay", "")]
    window, whole, replay = readout.estimates
    assert window.headline.ci_anytime is None and window.verdict is None
    assert window.reasons == ("window_has_no_nightly_verdict",)
    assert replay.headline.ci_anytime is None and replay.verdict is None
    assert replay.reasons == ("replay_has_no_verdict",)
    assert whole.verdict == "helps" and window.headline.lift == whole.headline.lift


def test_attrition_that_differs_hides_the_resolved_only_lift() -> None:
    readout = checked(single("treated", 30, 10, 40, 0) + single("holdout", 30, 40, 10, 200))
    found = readout.scope("to_date")
    assert found is not None and found.details["attrition"]["fisher_p"] < 0.01
    assert found.sensitivities["resolved_only"].lift is None
    assert found.sensitivities["resolved_only"].reasons == ("attrition_differs",)
    assert found.headline.lift is not None and found.details["bounds"]["low"] is not None
    assert "attrition_differs" in codes(readout)


def test_a_failed_sample_ratio_withholds_the_lift_everywhere() -> None:
    readout = checked(two_arms(90, 200, 30, 80), since_us=us(START), by=("tool",))
    for found in readout.estimates[:2]:
        assert found.reasons[0] == "srm_failed" and found.verdict == "withheld"
        assert found.headline.lift is None and found.headline.treated == Rate(90, 200, True)
        assert found.headline.treated.to_json()["rate"] is None and found.sensitivities == {}
        assert [segment.comparison.lift for segment in found.segments] == [None]
    assert codes(readout)[0] == "srm_failed"
    split = readout.audit.of("hint").splits[0]
    assert split.p == pytest.approx(iv.srm_exact(200, 280, 0.5))


def test_an_unlikely_split_warns_before_it_fails() -> None:
    readout = checked(two_arms(60, 130, 40, 78))
    assert iv.srm_exact(130, 208, 0.5) < 1e-3 and iv.srm_e_value(130, 78, 0.5) < 1000
    assert "srm_warning" in codes(readout) and readout.estimates[0].headline.lift is not None


def test_the_split_is_checked_against_the_share_of_each_epoch() -> None:
    rows = two_arms(90, 180, 10, 20, share_bp=9000)
    assert not checked(rows).audit.is_failed
    even = [row | {"share_bp": 5000} for row in rows]
    assert checked(even).audit.of("hint").failures == ("srm_failed",)


@pytest.mark.parametrize("share", [None, 0, 10_000, -5, 12_000])
def test_an_impossible_share_withholds_the_lift(share: int | None) -> None:
    readout = checked(two_arms(30, 50, 20, 50, share_bp=share))
    assert "share_invalid" in readout.estimates[0].reasons and readout.estimates[0].headline.lift is None


def test_an_unknown_salt_withholds_the_lift() -> None:
    rows = two_arms(30, 50, 20, 50)
    old = [row | {"salt_id": "0" * 16, "arm_bp": None} for row in two_arms(3, 5, 2, 5, 500)]
    readout = checked([*rows, *old])
    found = readout.scope("to_date")
    assert found is not None and found.headline.lift is None and found.reasons == ("salt_unknown",)
    assert found.details["count_salt_unknown"] == 10 and "salt_unknown" in codes(readout)
    assert checked(rows).estimates[0].headline.lift is not None
    # A window that holds only loops with the known salt has a lift.
    moved = ("detected_at", "mature_at")
    later = [row | {name: row[name] + 2 * DAY for name in moved} for row in rows]
    window = checked([*later, *old], since_us=us(START + 2 * DAY)).scope("window")
    assert window is not None and window.headline.lift == pytest.approx(0.2)


def test_loops_without_any_arm_are_counted_and_withhold() -> None:
    rows = [*two_arms(30, 50, 20, 50), loop(900, "x", None, arm_bp=None, salt_id=None)]
    found = to_date(rows)
    assert found.reasons == ("salt_unknown",) and found.details["count_salt_unknown"] == 1
    assert found.headline.treated.n + found.headline.holdout.n == 100


# --- odd lakes -------------------------------------------------------------------------------------------------------


def test_no_loops_at_all() -> None:
    readout = checked([])
    assert [e.scope for e in readout.estimates] == ["replay"] and readout.is_replay_only
    assert readout.estimates[0].reasons == ("empty_arm", "replay_has_no_verdict")
    assert codes(readout) == ["no_loops", "no_enrolled_session"]


def test_an_enrolled_session_without_loops_names_its_experiment() -> None:
    sessions = sessions_of([loop(0, "s", "treated")])
    readout = checked([], sessions=sessions)
    found = readout.scope("to_date", "hint")
    assert found is not None and found.reasons == ("empty_arm",) and "no_loops" in codes(readout)


def test_no_enrolled_session_is_an_aa_replay() -> None:
    rows = [row | {"is_enrolled": False, "experiment": None, "salt_id": None} for row in two_arms(56, 70, 48, 80)]
    readout = checked(rows)
    assert readout.is_replay_only and codes(readout) == ["no_enrolled_session"]
    assert readout.estimates[0].headline.lift == pytest.approx(0.2) and readout.estimates[0].verdict is None


@pytest.mark.parametrize("outcome", ["broke", "recurred", "unresolved"])
def test_all_loops_end_alike(outcome: str) -> None:
    rows = [loop(i, f"s{i}", "treated" if i % 2 else "holdout", outcome) for i in range(60)]
    found = to_date(rows)
    assert found.headline.lift == 0.0 and found.verdict == "no verdict yet"
    assert found.headline.ci_fixed is not None and found.headline.ci_fixed[0] < 0 < found.headline.ci_fixed[1]
    if outcome == "unresolved":
        assert (found.details["bounds"]["low"], found.details["bounds"]["high"]) == (-1.0, 1.0)
        assert found.sensitivities["resolved_only"].reasons == ("empty_arm",)


def test_repeat_loops_take_no_part() -> None:
    rows = two_arms(30, 50, 20, 50)
    repeats = [row | {"rule": rule.REPEAT, "arm": None, "arm_bp": None} for row in two_arms(9, 9, 9, 9, 900)]
    assert checked(rows).to_json()["rows"] == checked(rows + repeats, sessions=sessions_of(rows)).to_json()["rows"]


def test_two_experiments_are_never_pooled() -> None:
    other = Experiment("other", "salt", 5000, 100)
    settings = Settings(experiments={"hint": HINT, "other": other})
    rows = two_arms(30, 50, 20, 50) + two_arms(20, 50, 30, 50, 500, experiment="other", salt_id=other.salt_id)
    readout = checked(rows, settings=settings)
    lifts = {e.experiment: e.headline.lift for e in readout.estimates if e.scope == "to_date"}
    assert lifts == pytest.approx({"hint": 0.2, "other": -0.2})
    assert [e.n_star for e in readout.estimates] == [500, 100, 200]


# --- which loops are in the analysis ---------------------------------------------------------------------------------


def test_young_loops_are_pending_and_later_ones_unknown() -> None:
    rows = two_arms(30, 50, 20, 50)
    edge = AS_OF - DAY
    young = [
        loop(900, "y0", "treated", detected_at=edge),
        loop(901, "y1", "treated", detected_at=edge + timedelta(microseconds=1)),
        loop(902, "y2", "holdout", detected_at=AS_OF),
        loop(903, "y3", "holdout", detected_at=AS_OF + timedelta(microseconds=1)),
    ]
    readout = checked(rows + young)
    found = readout.scope("to_date")
    assert found is not None
    assert (found.headline.treated.n, found.headline.holdout.n, found.pending) == (51, 50, (1, 1))
    assert "pending" in codes(readout)


def test_a_past_as_of_gives_the_same_bytes_whatever_came_later() -> None:
    early = two_arms(30, 50, 20, 50)
    late = [loop(900 + i, f"z{i}", "holdout", detected_at=AS_OF + (1 + i) * DAY) for i in range(20)]
    then = checked(early).to_json(with_known_now=False)
    relapsed = [row | {"is_relapsed": row["outcome"] == "broke", "outcome_final": "recurred"} for row in early]
    records = [record(row) for row in late]
    now = checked(relapsed + late, detections=records, sessions=sessions_of(early)).to_json(with_known_now=False)
    assert json.dumps(then) == json.dumps(now)


def test_a_window_is_by_the_time_of_detection() -> None:
    rows = two_arms(30, 50, 20, 50)
    since, until = START + timedelta(minutes=10), START + timedelta(minutes=90)
    window = checked(rows, since_us=us(since), until_us=us(until)).scope("window")
    assert window is not None
    assert (window.headline.treated.n, window.headline.holdout.n) == (40, 40)


def test_loops_without_a_time_count_only_where_no_window_is_asked() -> None:
    rows = two_arms(30, 50, 20, 50) + [loop(900 + i, f"t{i}", "holdout", detected_at=None) for i in range(7)]
    readout = checked(rows, since_us=us(START))
    window, whole = readout.estimates[:2]
    assert (window.headline.holdout.n, window.count_untimed) == (50, 0)
    assert (whole.headline.holdout.n, whole.count_untimed) == (57, 7)
    assert "untimed" in codes(readout)


def test_an_empty_window_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="empty"):
        checked([], since_us=us(AS_OF), until_us=us(START))


def test_late_enrolment_is_counted_beside_the_lift() -> None:
    rows = two_arms(30, 50, 20, 50)
    late = sessions_of([loop(900, "late", "treated")], is_enrolled=False, is_late_enrolment=True)
    unnamed = sessions_of([loop(901, "later", "treated")], is_enrolled=False, is_late_enrolment=True, experiment=None)
    readout = checked(
        rows, sessions=pl.concat([sessions_of(rows), late, unnamed]), deliveries=[record(loop(901, "later", "treated"))]
    )
    assert readout.estimates[0].details["count_late_enrolment"] == 2
    notice = next(n for n in readout.warnings if n.code == "late_enrolment")
    assert "2/102 (2.0 %)" in notice.text


# --- sensitivities ---------------------------------------------------------------------------------------------------


def test_the_lift_without_interrupted_infra_and_one_turn_loops() -> None:
    rows = two_arms(30, 50, 20, 50)
    marked = two_arms(10, 10, 0, 10, 500, is_interrupted=True, is_infra=True, count_decisions=1)
    found = to_date(rows + marked)
    assert found.headline.lift == pytest.approx(40 / 60 - 20 / 60)
    for name in ("without_interrupted", "without_infra", "without_one_turn"):
        assert found.sensitivities[name].lift == pytest.approx(0.2)
    for name in ("interrupted", "infra", "one_turn"):
        assert found.details[name] == {"x": 20, "n": 120, "rate": pytest.approx(1 / 6)}


def test_first_loops_and_holdout_loops_after_a_treated_one() -> None:
    rows: list[dict[str, Any]] = []
    for i in range(20):
        rows.append(loop(2 * i, f"s{i}", "treated" if i < 10 else "holdout", "recurred"))
        rows.append(loop(2 * i + 1, f"s{i}", "holdout", "broke"))
    found = to_date(rows)
    first = found.sensitivities["first_loop_only"]
    assert (first.treated, first.holdout) == (Rate(0, 10), Rate(0, 10))
    after = found.details["holdout_after_treated"]
    assert (after["after"]["x"], after["after"]["n"]) == (10, 10)
    assert (after["not_after"]["x"], after["not_after"]["n"]) == (10, 20)


def test_the_first_loop_is_decided_by_run_and_step_where_times_tie_or_lack() -> None:
    for at in (START, None):
        rows = [
            loop(i * 3 + j, f"s{i}", "holdout" if j else "treated", "recurred" if j else "broke", detected_at=at)
            for i in range(12)
            for j in (2, 0, 1)
        ]
        found = to_date(rows)
        first = found.sensitivities["first_loop_only"]
        assert (first.treated.x, first.treated.n, first.holdout.n) == (12, 12, 0)
        assert found.details["holdout_after_treated"]["after"]["n"] == 24


def test_the_first_loop_of_a_session_may_lie_before_the_window() -> None:
    rows = [loop(i, f"s{i % 12}", "treated" if i % 2 else "holdout") for i in range(48)]
    window = checked(rows, since_us=us(START + timedelta(minutes=12))).scope("window")
    assert window is not None and window.headline.treated.n == 18
    assert window.sensitivities["first_loop_only"].reasons == ("empty_arm",)


def test_planning_numbers() -> None:
    found = to_date(two_arms(56, 70, 48, 80))
    planning = found.details["planning"]
    headline = found.headline
    assert headline.deff is not None and headline.df is not None
    assert planning["n_effective"] == pytest.approx(150 / headline.deff)
    assert planning["mde_at_n_star"] == pytest.approx(
        iv.mde(500 * 70 / 150, 500 * 80 / 150, 0.6, inflate=iv.anytime_inflation())
    )
    assert planning["mde_now"] is None or planning["mde_now"] > planning["mde_at_n_star"]
    nights = (AS_OF - DAY - START) / DAY
    assert planning["nights_to_n_star"] == iv.nights_to_n_star(150 / headline.deff, 500, nights)


def test_the_relative_lift_needs_a_holdout_rate_that_is_not_near_zero() -> None:
    assert to_date(two_arms(30, 50, 20, 50)).details["relative_lift"]["value"] == pytest.approx(0.5)
    low = to_date(two_arms(30, 50, 2, 50)).details["relative_lift"]
    assert low == {"value": None, "reason": "holdout_rate_low"}


def test_sidestepped_and_relapsed_loops_are_shares_by_arm() -> None:
    rows = single("treated", 20, 5, 15, 0) + single("holdout", 10, 20, 10, 100)
    for row in rows:
        row["is_sidestepped"] = row["outcome"] == "unresolved" and row["arm"] == "treated"
        row["is_relapsed"] = row["outcome"] == "broke" and row["arm"] == "holdout"
    found = to_date(rows)
    assert found.details["sidestepped"]["treated"]["x"] == 15 and found.details["sidestepped"]["treated"]["n"] == 40
    assert found.known_now["relapsed"]["holdout"] == {"x": 10, "n": 10, "rate": 1.0}
    assert "known_now" not in found.to_row(with_known_now=False)["details"]


# --- splits and filters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column", ["outcome", "is_delivered", "steps_to_outcome", "is_relapsed", "arm", "arm_bp", "nope"]
)
def test_splits_and_filters_by_what_is_not_known_at_detection_are_refused(column: str) -> None:
    with pytest.raises(UsageError, match=column):
        checked([], by=(column,))
    with pytest.raises(UsageError, match=column):
        checked([], where=pl.col(column).is_not_null())


def test_a_filter_that_cannot_be_applied_is_a_usage_error() -> None:
    for where in (pl.col("tool") + 1, pl.col("tool"), pl.col("count_events").str.len_chars() > 1):
        with pytest.raises(UsageError, match="filter"):
            checked([], where=where)


def test_segments_are_tested_by_n_and_selected_by_e_bh() -> None:
    rows = two_arms(95, 100, 10, 100, 0, tool="Edit") + two_arms(50, 100, 50, 100, 500, tool="Bash")
    rows += two_arms(9, 9, 0, 9, 900, tool="Write") + clustered_at(950, [(9, 9, 9, 0)] * 5, tool="Task")
    found = to_date(rows, by=("tool",))
    by_tool = {segment.label: segment for segment in found.segments}
    assert list(by_tool) == ["Bash", "Edit", "Task", "Write"]
    assert by_tool["Write"].comparison.reasons == ("segment_n_lt_10",) and by_tool["Write"].comparison.lift is None
    assert by_tool["Task"].log_e is None and by_tool["Task"].comparison.lift == 1.0
    tested = [segment for segment in found.segments if segment.log_e is not None]
    assert [segment.label for segment in tested] == ["Bash", "Edit"]
    assert by_tool["Edit"].is_selected and not by_tool["Bash"].is_selected
    # One of two tested is selected: its interval is at level 1 - 0.05 * 1/2, wider than the plain anytime interval.
    plain, wider = by_tool["Edit"].comparison.ci_anytime, by_tool["Edit"].ci_selected
    assert plain is not None and wider is not None and wider[0] < plain[0] and plain[1] < wider[1]
    design = by_tool["Edit"].comparison.deff
    assert by_tool["Edit"].log_e == pytest.approx(iv.log_e_value(95, 100, 10, 100, 500, deff=design or 0))


def clustered_at(start: int, rows: Sequence[Sequence[int]], **other: Any) -> list[dict[str, Any]]:
    return [
        row
        | {
            "signature": f"{start + i:016x}",
            "session_id": f"c{start}{row['session_id']}",
            "run_id": f"c{start}{row['run_id']}",
        }
        for i, row in enumerate(clustered(rows, **other))
    ]


def test_no_segment_is_tested_in_a_window() -> None:
    readout = checked(two_arms(95, 100, 10, 100), by=("tool", "kind"), since_us=us(START))
    window = readout.scope("window")
    assert window is not None and window.segments[0].log_e is None and not window.segments[0].is_selected
    assert window.segments[0].values == (("tool", "Edit"), ("kind", "edit"))


def test_a_filter_narrows_the_lift_and_not_the_audit() -> None:
    rows = [hashed(i, f"s{i}", tool="Edit" if i % 2 else "Bash") for i in range(100)]
    records = [record(row) for row in rows]
    readout = checked(rows, detections=records, where=pl.col("tool") == "Edit")
    headline = readout.estimates[0].headline
    assert headline.treated.n + headline.holdout.n == 50
    checks = readout.audit.of("hint")
    assert (checks.n_checked, checks.only_log_named.n, checks.only_replay_named.n) == (100, 0, 0)
    assert "filtered" in codes(readout)


# --- audit -----------------------------------------------------------------------------------------------------------


def test_a_clean_log_passes_the_audit() -> None:
    rows = [hashed(i, f"s{i}", "broke" if i % 3 else "recurred") for i in range(120)]
    records = [record(row) for row in rows]
    readout = checked(rows, detections=records, deliveries=records)
    checks = readout.audit.of("hint")
    assert checks.failures == () and checks.n_checked == 240 and not readout.audit.is_failed
    assert [notice for notice in readout.warnings if notice.code != "rule_digest_differs"] == []


def test_an_arm_that_the_salt_does_not_give_fails_the_audit_and_is_named() -> None:
    rows = [hashed(i, f"s{i}") for i in range(60)]
    records = [record(row) for row in rows]
    other = "holdout" if records[7]["arm"] == "treated" else "treated"
    for wrong in (records[7] | {"arm": other}, records[7] | {"arm_bp": records[7]["arm_bp"] ^ 1}):
        readout = checked(rows, detections=[*records[:7], wrong, *records[8:]])
        checks = readout.audit.of("hint")
        assert checks.hash_failures.n == 1 and dict(checks.hash_failures.names[0])["run_id"] == "s7"
        found = readout.estimates[0]
        assert found.reasons == ("hash_audit_failed",) and found.headline.lift is None and found.verdict == "withheld"
        assert found.headline.treated.n + found.headline.holdout.n == 60
        assert codes(readout)[0] == "hash_audit_failed"


def test_a_delivery_record_is_audited_as_a_detection_is() -> None:
    rows = [hashed(i, f"s{i}") for i in range(60)]
    wrong = record(rows[3], arm="treated" if rows[3]["arm"] == "holdout" else "holdout")
    assert checked(rows, deliveries=[wrong]).audit.is_failed


def test_the_share_of_the_session_decides_the_arm_in_the_audit() -> None:
    rows = [hashed(i, f"s{i}", share_bp=9000) for i in range(60)]
    rows = [row | {"arm": rule.arm_of(row["arm_bp"], 9000)} for row in rows]
    right = [record(row, arm=rule.arm_of(row["arm_bp"], 9000), share_bp=9000) for row in rows]
    assert not checked(rows, detections=right).audit.is_failed
    assert checked(rows, detections=[record(row) for row in rows]).audit.is_failed


def test_records_with_an_unknown_salt_are_counted_as_unchecked() -> None:
    rows = [hashed(i, f"s{i}", salt_id="0" * 16, arm_bp=None) for i in range(20)]
    checks = checked(rows, detections=[record(row, arm="treated") for row in rows]).audit.of("hint")
    assert (checks.n_checked, checks.n_unchecked, checks.hash_failures.n) == (0, 20, 0)


def test_repeat_detections_enter_no_audit() -> None:
    rows = [hashed(i, f"s{i}") for i in range(20)]
    extra = record(hashed(99, "s1"), rule=rule.REPEAT, arm="nonsense", arm_bp=3)
    checks = checked(rows, detections=[*map(record, rows), extra]).audit.of("hint")
    assert (checks.n_checked, checks.hash_failures.n, checks.only_log_named.n) == (20, 0, 0)


def test_loops_that_only_the_log_or_only_the_replay_has() -> None:
    rows = [hashed(i, f"s{i}") for i in range(40)]
    ghost = hashed(500, "s1")
    records = [record(row) for row in rows[2:]] + [record(ghost)]
    readout = checked(rows, detections=records)
    checks = readout.audit.of("hint")
    assert checks.only_log_named.n == 1 and dict(checks.only_log_named.names[0])["signature"] == ghost["signature"]
    assert {dict(name)["run_id"] for name in checks.only_replay_named.names} == {"s0", "s1"}
    assert sum(rate.x for _, rate in checks.only_replay) == 2 and sum(rate.n for _, rate in checks.only_replay) == 40
    assert sum(rate.n for _, rate in checks.only_log) == 39
    assert {"loops_only_in_log", "loops_only_in_replay"} <= set(codes(readout))


def test_delivery_is_compared_with_the_arm() -> None:
    rows = [hashed(i, f"s{i}") for i in range(40)]
    treated = next(row for row in rows if row["arm"] == "treated")
    held = next(row for row in rows if row["arm"] == "holdout")
    treated["is_delivered"], held["is_delivered"] = False, True
    stray = record(hashed(700, "s9"), is_delivered=True)
    outside = record(loop(800, "nowhere", None), is_delivered=True, experiment=None)
    readout = checked(rows, deliveries=[*map(record, rows), stray, outside])
    checks = readout.audit.of("hint")
    missed, leaked = checks.treated_not_delivered_named.names[0], checks.holdout_delivered_named.names[0]
    assert checks.treated_not_delivered.x == 1 and dict(missed)["run_id"] == treated["run_id"]
    assert checks.holdout_delivered.x == 1 and dict(leaked)["run_id"] == held["run_id"]
    assert checks.delivered_without_loop.n == 1 and readout.audit.outside.delivered_without_loop.n == 1
    assert {"holdout_delivered", "treated_not_delivered", "delivered_without_loop"} <= set(codes(readout))


def test_no_delivery_logged_is_said_once_and_no_hole() -> None:
    rows = [hashed(i, f"s{i}", is_delivered=None) for i in range(40)]
    found = codes(checked(rows, detections=[record(row) for row in rows]))
    assert "no_delivery_logged" in found and "treated_not_delivered" not in found


def test_the_audit_stands_alone() -> None:
    rows = [hashed(i, f"s{i}") for i in range(40)]
    wrong = record(rows[0], arm="treated" if rows[0]["arm"] == "holdout" else "holdout")
    found = estimate.audit(
        table_of(rows), sessions_of(rows), table_of([wrong], DETECTIONS), DELIVERIES.empty(), SETTINGS
    )
    assert found.is_failed and found.of("hint").failures == ("hash_audit_failed",)


# --- properties ------------------------------------------------------------------------------------------------------


@st.composite
def lakes(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for session in range(draw(st.integers(2, 16))):
        epoch = draw(st.sampled_from([None, None, "b"]))
        for _ in range(draw(st.integers(1, 5))):
            arm = draw(st.sampled_from(["treated", "holdout"]))
            outcome = draw(st.sampled_from(["broke", "recurred", "unresolved"]))
            rows.append(
                loop(
                    len(rows),
                    f"s{session}",
                    arm,
                    outcome,
                    epoch=epoch,
                    is_interrupted=draw(st.booleans()),
                    tool=draw(st.sampled_from(["Edit", "Bash"])),
                )
            )
    return rows


def mirrored(value: Any) -> Any:
    return None if value is None else pytest.approx((-value[1], -value[0]), abs=1e-12)


@SLOW
@given(lakes())
def test_swapping_the_arms_negates_the_lift_and_mirrors_the_intervals(rows: list[dict[str, Any]]) -> None:
    swap = {"treated": "holdout", "holdout": "treated"}
    here, there = checked(rows), checked([row | {"arm": swap[row["arm"]]} for row in rows])
    a, b = here.estimates[0], there.estimates[0]
    for one, two in ((a.headline, b.headline), *((a.sensitivities[n], b.sensitivities[n]) for n in a.sensitivities)):
        assert (one.treated, one.holdout) == (two.holdout, two.treated)
        assert one.lift == (None if two.lift is None else pytest.approx(-two.lift))
        assert one.ci_fixed == mirrored(two.ci_fixed) and one.ci_anytime == mirrored(two.ci_anytime)
        assert one.reasons == two.reasons


@SLOW
@given(lakes(), st.randoms(use_true_random=False))
def test_order_and_repeated_rows_change_nothing(rows: list[dict[str, Any]], chance: Any) -> None:
    records = [record(row, arm=None, arm_bp=None) for row in rows]
    plain = checked(rows, detections=records, by=("tool",), since_us=us(START)).to_json()
    again, told = rows + rows[:3], records + records[:2]
    chance.shuffle(again)
    chance.shuffle(told)
    sessions = sessions_of(rows)
    twice = pl.concat([sessions, sessions])
    shuffled = checked(again, detections=told, by=("tool",), since_us=us(START), sessions=twice).to_json()
    assert json.dumps(plain) == json.dumps(shuffled)


@SLOW
@given(lakes())
def test_every_lake_gives_a_readout_in_each_scope(rows: list[dict[str, Any]]) -> None:
    """`checked` asserts the invariants; here the headline is what the counts say."""
    found = to_date(rows, by=("tool",))
    want = {arm: [row for row in rows if row["arm"] == arm] for arm in ("treated", "holdout")}
    assert found.headline.treated.n == len(want["treated"]) and found.headline.holdout.n == len(want["holdout"])
    assert found.headline.treated.x == sum(row["outcome"] == "broke" for row in want["treated"])
    assert sum(s.comparison.treated.n for s in found.segments) == len(want["treated"])


# --- loop rates ------------------------------------------------------------------------------------------------------


def step(run: str, number: int, **other: Any) -> dict[str, Any]:
    return {
        "session_id": run,
        "run_id": run,
        "step": number,
        "ts": START + timedelta(minutes=number),
        "kind": "edit",
        "actor": "agent",
        "outcome": "failure",
    } | other


def test_loop_rates_count_runs_with_enough_attempts_and_loops_per_thousand_attempts() -> None:
    steps = [step(f"s{i}", j) for i in range(10) for j in range(5)]
    steps += [step("short", j) for j in range(2)]
    steps += [step("reader", j, kind="read") for j in range(9)]
    steps += [step("refused", j, outcome="vetoed") for j in range(9)]
    steps += [step("typed", j, actor="user") for j in range(9)]
    loops = [loop(0, "s0", "treated"), loop(1, "s0", "holdout"), loop(2, "s1", "holdout", rule=rule.REPEAT)]
    found = estimate.loop_rates(table_of(loops), table_of(steps, STEPS), as_of_us=us(AS_OF))
    assert found.runs == Rate(1, 10) and (found.runs_low, found.runs_high) == iv.wilson(1, 10)
    assert (found.loops.events, found.loops.exposure) == (2, 52)
    # Exact Poisson interval of 2 events, published (Garwood): 0.2422 to 7.2247.
    assert (found.loops.low, found.loops.high) == pytest.approx((242.2 / 52, 7224.7 / 52), rel=1e-4)
    assert str(found.loops) == "38.5 per 1,000 (2/52)"
    json.dumps(found.to_json(), allow_nan=False)


def test_loop_rates_of_nothing() -> None:
    found = estimate.loop_rates(LOOPS.empty(), STEPS.empty(), as_of_us=us(AS_OF))
    assert found.runs == Rate(0, 0) and found.loops.low is None
    assert found.to_json()["loops_per_1000_attempts"]["per_1000"] is None


def test_loop_rates_of_a_window() -> None:
    steps = [step(f"s{i}", j) for i in range(10) for j in range(6)]
    loops = [loop(1, "s0", "treated"), loop(4, "s1", "treated")]
    found = estimate.loop_rates(
        table_of(loops), table_of(steps, STEPS), as_of_us=us(AS_OF), since_us=us(START + timedelta(minutes=3))
    )
    assert found.runs == Rate(1, 10) and (found.loops.events, found.loops.exposure) == (1, 30)
