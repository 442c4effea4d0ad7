"""Detection, assignment and outcome in the vectorised stages against the plain walk of `oracle.py`, on random runs."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
from loopstats import rule
from loopstats.assign import assign
from loopstats.classify import classify
from loopstats.detect import detect, enrol
from loopstats.tables import DELIVERIES, DETECTIONS, SESSIONS, STEPS, TURNS

MATURITY = 1_000
SALT = "pepper"


step_values = st.tuples(
    st.sampled_from(["edit", "edit", "verify", "execute", "other", "read", "plan", "research"]),
    st.sampled_from(["agent"] * 9 + ["user"]),
    st.sampled_from(["Edit", "Bash:pytest", "Bash:make"]),
    st.sampled_from(["a", "b", "c", ""]),
    st.sampled_from(["failure"] * 6 + ["success"] * 3 + ["unknown", "vetoed"]),
    st.sampled_from(["s1", "s1", "s1", "s2"]),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(0, 400)),
)
run_values = st.one_of(st.lists(step_values, max_size=3), st.lists(step_values, min_size=12, max_size=30))
session_values = st.tuples(
    st.lists(run_values, min_size=1, max_size=2),
    st.one_of(
        st.none(),
        st.tuples(st.one_of(st.none(), st.integers(0, 4000)), st.integers(0, 30), st.booleans(), st.booleans()),
    ),
)


def build(
    sessions: list[Any],
) -> tuple[pl.DataFrame, pl.DataFrame, list[tuple[dict[str, list[dict[str, Any]]], dict[str, Any] | None]]]:
    """Frames of the lake's form, and the same as plain data for the oracle."""
    rows, session_rows, plain = [], [], []
    for number, (runs, naming) in enumerate(sessions):
        session_id = f"session-{number}"
        lists: dict[str, list[dict[str, Any]]] = {}
        for agent, values in enumerate(runs):
            run_id = session_id if agent == 0 else f"{session_id}/{agent}"
            decision, clock = 0, 1_000
            steps = []
            for step, (kind, actor, action, target, outcome, signature, turn, gap) in enumerate(values):
                decision += 1 if turn else 0
                clock += gap or 0
                steps.append(
                    {
                        "session_id": session_id,
                        "run_id": run_id,
                        "step": step,
                        "decision": decision,
                        "ts": None if gap is None else clock,
                        "tool": action.split(":")[0],
                        "action": action,
                        "kind": kind,
                        "kind_source": "table",
                        "target": target,
                        "outcome": outcome,
                        "outcome_source": "flag",
                        "actor": actor,
                        "signature": signature if outcome == "failure" else None,
                        "message": "boom",
                        "fingerprint": "f",
                        "harness": "h",
                        "source_file": "one.jsonl",
                        "source_line": 100 * agent + step + 1,
                        "call_id": f"c{step}",
                    }
                )
            lists[run_id] = steps
            rows.extend(steps)
        enrolment = None
        if naming is not None:
            at, line, is_session, same_file = naming
            enrolment = {
                "ts": at,
                "line": line,
                "file": "one.jsonl" if same_file else "two.jsonl",
                "is_session": is_session,
            }
        session_rows.append(
            {
                "session_id": session_id,
                "format": "native",
                "harness": "h",
                "cwd": "",
                "is_open": False,
                "experiment": "x" if enrolment else None,
                "salt_id": rule.salt_id(SALT),
                "share_bp": 4000,
                "enrolled_at": enrolment and enrolment["ts"],
                "enrolled_file": enrolment and enrolment["file"],
                "enrolled_line": enrolment and enrolment["line"],
                "is_enrolled": bool(enrolment and enrolment["is_session"]),
                "is_late_enrolment": bool(enrolment and not enrolment["is_session"]),
                **{f"count_{n}": 0 for n in ("runs", "steps", "attempts", "failures", "unknown")},
            }
        )
        plain.append((lists, enrolment))
    return frame(rows, STEPS), frame(session_rows, SESSIONS), plain


def frame(rows: list[dict[str, Any]], table: Any) -> pl.DataFrame:
    schema = {n: (pl.Int64() if isinstance(t, pl.Datetime) else t) for n, t in table.schema.items()}
    times = [n for n, t in table.schema.items() if isinstance(t, pl.Datetime)]
    made = pl.DataFrame(rows, schema=schema, orient="row") if rows else pl.DataFrame(schema=schema)
    return table.conform(made.with_columns([pl.from_epoch(n, "us").dt.replace_time_zone("UTC") for n in times]))


def run_stages(steps: pl.DataFrame, sessions: pl.DataFrame) -> list[dict[str, Any]]:
    sessions = SESSIONS.conform(enrol(steps, sessions))
    loops = assign(
        detect(steps, sessions), sessions, DETECTIONS.empty(), DELIVERIES.empty(), {rule.salt_id(SALT): (SALT, 5000)}
    )
    judged = classify(
        loops.select("run_id", "signature", "rule", "is_enrolled", "detected_step", "detected_at"),
        steps,
        TURNS.empty(),
        MATURITY,
    )
    keys = ["run_id", "signature", "rule", "is_enrolled"]
    return (
        loops.join(judged.drop("detected_step", "detected_at"), on=keys, how="left")
        .select(oracle.COMPARED)
        .sort(keys)
        .to_dicts()
    )


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(session_values, min_size=4, max_size=16))
def test_stages_equal_the_plain_walk(sessions: list[Any]) -> None:
    steps, session_frame, plain = build(sessions)
    expected = [
        row for runs, enrolment in plain for row in oracle.loops_of_session(runs, enrolment, SALT, 4000, MATURITY)
    ]
    expected = sorted(
        ({k: row[k] for k in oracle.COMPARED} for row in expected),
        key=lambda r: (r["run_id"], r["signature"], r["rule"], r["is_enrolled"]),
    )
    assert run_stages(steps, session_frame) == expected


@settings(max_examples=100, deadline=None)
@given(run_values)
def test_live_detector_and_classifier_equal_the_plain_walk(values: list[Any]) -> None:
    _, _, plain = build([([values], None)])
    steps = plain[0][0]["session-0"]
    detector, found = rule.Detector(), []
    for step in steps:
        name = detector.feed(step["kind"], step["actor"], step["outcome"], step["signature"], step["target"])
        if name is not None:
            found.append((name, step["step"]))
    assert found == [(name, step["step"]) for name, step, _ in oracle.first_detections(steps)]
    for _, detection, _ in oracle.first_detections(steps):
        judge = rule.Classifier(
            detection["signature"], detection["step"], detection["decision"], detection["ts"], MATURITY
        )
        for s in steps:
            judge.feed(
                s["step"],
                s["decision"],
                s["ts"],
                s["kind"],
                s["actor"],
                s["action"],
                s["target"],
                s["outcome"],
                s["signature"],
            )
        expected = oracle.judge(steps, detection, MATURITY)
        assert (judge.outcome, judge.outcome_step, judge.outcome_final) == (
            expected["outcome"],
            expected["outcome_step"],
            expected["outcome_final"],
        )


def test_arm_by_any_sha256_tool() -> None:
    # printf '%s' 'loopstats-sample|run-1|0123456789abcdef' | sha256sum: the first 13 hex digits modulo 10,000
    vectors = {
        ("loopstats-sample", "run-1", "0123456789abcdef"): "e96f16e0c29cd",
        ("", "run-1", "0123456789abcdef"): "faabf8b5475b6",
        ("pépper", "s/ä", "ffffffffffffffff"): "0579ffba8f98e",
    }
    for (salt, run_id, signature), digits in vectors.items():
        assert rule.arm_bp(salt, run_id, signature) == int(digits, 16) % 10_000
    assert [rule.arm_of(bp, 5000) for bp in (0, 4999, 5000, 9999)] == ["treated", "treated", "holdout", "holdout"]
