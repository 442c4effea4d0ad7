"""The rule walked by hand, step by step, as METHOD 7 to 9 word it: slow, plain, and sharing no code with the package.

Steps are dictionaries of one run in order; times are integers (microseconds) or None.
"""

from __future__ import annotations

import hashlib
from typing import Any

ATTEMPTS = ("edit", "verify", "execute", "communicate", "operate", "other")
COMPARED = [
    "run_id",
    "signature",
    "rule",
    "is_enrolled",
    "detected_step",
    "count_events",
    "count_targets",
    "count_decisions",
    "span_steps",
    "failures_before",
    "is_interrupted",
    "arm_bp",
    "arm",
    "outcome",
    "outcome_step",
    "outcome_final",
    "is_relapsed",
    "is_sidestepped",
    "outcome_10",
    "outcome_20",
    "outcome_50",
]
"""Columns of a loop row on which the stages, the lake and this walk must agree."""


def is_attempt(step: dict[str, Any]) -> bool:
    return step["kind"] in ATTEMPTS and step["actor"] == "agent"


def is_failed_attempt(step: dict[str, Any]) -> bool:
    return is_attempt(step) and step["outcome"] == "failure" and step["signature"] is not None


def is_before(step: dict[str, Any], enrolment: dict[str, Any]) -> bool:
    """The step belongs to the count before the enrolment record: by time, without times by order in its file."""
    if step["ts"] is not None and enrolment["ts"] is not None:
        return step["ts"] < enrolment["ts"]
    return step["source_file"] == enrolment["file"] and step["source_line"] < enrolment["line"]


def comes_at_or_after(enrolment: dict[str, Any], step: dict[str, Any]) -> bool:
    """The naming record comes at or after this step; with equal times in one file the order of lines decides."""
    both = step["ts"] is not None and enrolment["ts"] is not None
    if both and step["ts"] != enrolment["ts"]:
        return step["ts"] < enrolment["ts"]
    if step["source_file"] == enrolment["file"]:
        return step["source_line"] < enrolment["line"]
    return both


def first_detections(steps: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """(rule, detecting step, events) in the order found, over one count."""
    seen: dict[str, list[dict[str, Any]]] = {}
    done: set[tuple[str, str]] = set()
    found = []
    for step in steps:
        if not is_failed_attempt(step):
            continue
        events = seen.setdefault(step["signature"], [])
        events.append(step)
        if len(events) < 3:
            continue
        distinct = {event["target"] for event in events}
        rule = "strategy-loop/1" if len(distinct) >= 2 else "repeat/1"
        if (step["signature"], rule) not in done:
            done.add((step["signature"], rule))
            found.append((rule, step, list(events)))
    return found


def is_late(runs: list[list[dict[str, Any]]], enrolment: dict[str, Any] | None) -> bool:
    """Any strategy loop of the session, counted from its start, at or before the record that names the experiment."""
    if enrolment is None:
        return False
    return any(
        rule == "strategy-loop/1" and comes_at_or_after(enrolment, step)
        for steps in runs
        for rule, step, _ in first_detections(steps)
    )


def judge(steps: list[dict[str, Any]], detection: dict[str, Any], maturity: int) -> dict[str, Any]:
    """Walk the run from its first step; what comes after the detection decides."""
    failing: set[tuple[str, str]] = set()
    again = 0
    over = False
    verdict = final = "unresolved"
    verdict_step = None
    attempts_after = 0
    attempts_at_final = None
    sidestepped = False
    signature = detection["signature"]
    for step in steps:
        after = step["step"] > detection["step"]
        own = step["decision"] == detection["decision"]
        if after and step["ts"] is not None and detection["ts"] is not None and step["ts"] > detection["ts"] + maturity:
            over = True
        if not is_attempt(step):
            continue
        if after and not own and step["outcome"] != "vetoed":
            attempts_after += 1
        pair = (step["action"], step["target"])
        decided = None
        if step["outcome"] == "failure" and step["signature"] == signature:
            failing.add(pair)
            if after and not own:
                again += 1
                if again == 3:
                    decided = "recurred"
        elif step["outcome"] == "success":
            if after and not own and not over and any(t == pair[1] and a != pair[0] for a, t in failing):
                sidestepped = True
            if pair in failing:
                failing.discard(pair)
                if after and not own:
                    decided = "broke"
        if decided and final == "unresolved":
            final, attempts_at_final = decided, attempts_after
            if not over:
                verdict, verdict_step = decided, step["step"]
    later = sum(
        1
        for s in steps
        if verdict_step is not None
        and s["step"] > verdict_step
        and is_failed_attempt(s)
        and s["signature"] == signature
    )
    return {
        "outcome": verdict,
        "outcome_step": verdict_step,
        "outcome_final": final,
        "is_relapsed": (later >= 3) if verdict == "broke" else None,
        "is_sidestepped": sidestepped if verdict == "unresolved" else None,
        **{
            f"outcome_{h}": final if attempts_at_final is not None and attempts_at_final <= h else "unresolved"
            for h in (10, 20, 50)
        },
    }


def loops_of_session(
    runs: dict[str, list[dict[str, Any]]], enrolment: dict[str, Any] | None, salt: str, share_bp: int, maturity: int
) -> list[dict[str, Any]]:
    """All loop rows of one session. `enrolment`: ts, file, line and is_session of its first naming record, or None."""
    enrolled = enrolment is not None and enrolment["is_session"] and not is_late(list(runs.values()), enrolment)
    out = []
    for run_id, steps in runs.items():
        if enrolled and enrolment is not None:
            counts = [
                ([s for s in steps if is_before(s, enrolment)], False),
                ([s for s in steps if not is_before(s, enrolment)], True),
            ]
        else:
            counts = [(steps, False)]
        for counted, is_enrolled in counts:
            for rule, step, events in first_detections(counted):
                first = events[0]["step"]
                row = {
                    "run_id": run_id,
                    "signature": step["signature"],
                    "rule": rule,
                    "is_enrolled": is_enrolled,
                    "detected_step": step["step"],
                    "count_events": len(events),
                    "count_targets": len({e["target"] for e in events}),
                    "count_decisions": len({e["decision"] for e in events}),
                    "span_steps": events[2]["step"] - first,
                    "failures_before": sum(
                        1 for s in steps if s["step"] < step["step"] and is_attempt(s) and s["outcome"] == "failure"
                    ),
                    "is_interrupted": any(
                        is_attempt(s)
                        and s["outcome"] == "success"
                        and s["action"] == step["action"]
                        and first < s["step"] < step["step"]
                        for s in steps
                    ),
                    "arm_bp": None,
                    "arm": None,
                }
                if rule == "strategy-loop/1":
                    prefix = f"{salt}|" if is_enrolled and salt else ""
                    digest = hashlib.sha256(f"{prefix}{run_id}|{step['signature']}".encode()).hexdigest()
                    row["arm_bp"] = int(digest[:13], 16) % 10_000
                    row["arm"] = "treated" if row["arm_bp"] < (share_bp if is_enrolled else 5000) else "holdout"
                out.append(row | judge(steps, step, maturity))
    return out
