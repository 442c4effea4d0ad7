"""stella's event stream: calls, failures without `ok`, usage, the derived run id, hostile input."""

from __future__ import annotations

import json
from typing import Any

from emitting import HOSTILE, feed, head_of
from loopstats.formats import canonical_id
from loopstats.formats.stella import StellaEvents

LONG = "call_aaaaaaaaaaaaaaaaaaaa"


def usage(step: int, **more: Any) -> dict[str, Any]:
    return {
        "ts": 1_786_000_000_000 + step,
        "type": "step_usage",
        "step": step,
        "model": "m",
        "input_tokens": 100,
        "output_tokens": 9,
        "cached_input_tokens": 70,
        "cache_write_tokens": 10,
        "cost_usd": 0.002,
        **more,
    }


def start(call_id: str, name: str = "bash", **given: Any) -> dict[str, Any]:
    return {
        "ts": 1_786_000_000_100,
        "type": "tool_start",
        "call": {"call_id": call_id, "name": name, "input": given or {"command": "make"}},
    }


def result(call_id: str, output: Any) -> dict[str, Any]:
    return {
        "ts": 1_786_000_000_200,
        "type": "tool_result",
        "call_id": call_id,
        "output": output,
        "duration_ms": 31,
        "speculated": False,
    }


PIECE = {"ts": 1_786_000_000_000, "type": "text_delta", "delta": "x"}


def test_calls_outcomes_usage_and_pieces() -> None:
    fed = feed(
        StellaEvents(),
        [
            PIECE,
            usage(0),
            start(LONG),
            result(LONG, {"ok": {"content": "fine"}}),
            start("b", "verify_done"),
            result("b", {"error": {"message": "NOT DONE"}}),
            usage(1),
            start("c"),
            {"ts": 1, "type": "complete"},
        ],
    )
    assert fed.outcomes() == [
        ("bash", "success", None),
        ("verify_done", "failure", None),
        ("bash", "unknown", "missing"),
    ]
    keys = [row["decision_key"] for row in fed.calls]
    assert keys[0] == keys[1] != keys[2]
    turn = fed.rows["turn"][0]
    assert (
        turn["decision_key"],
        turn["tokens_input"],
        turn["tokens_cache_read"],
        turn["tokens_cache_write"],
        turn["cost_micros"],
    ) == (keys[0], 20, 70, 10, 2000)
    assert fed.nothing == {"text_delta": 1, "complete": 1}
    assert fed.results[LONG]["duration_ms"] == 31
    assert fed.calls[0]["ts"] == 1_786_000_000_100_000


def test_run_id_is_the_hash_of_the_first_step_call_or_usage() -> None:
    first = {"ts": 5, "type": "step_manifest", "step": 0, "model": "m"}
    fed = feed(StellaEvents(), [PIECE, first, usage(0), start(LONG)])
    assert {row["session_id"] for row in fed.calls} == {f"stella-events~{canonical_id(first)}"}
    assert feed(StellaEvents(), [start("a")]).calls[0]["session_id"] == f"stella-events~{canonical_id(start('a'))}"


def test_without_usage_every_call_is_its_own_decision() -> None:
    fed = feed(StellaEvents(), [start("a"), result("a", {"err": "x"}), start("b")])
    assert [row["decision_key"] for row in fed.calls] == [None, None]
    assert fed.outcomes()[0][1] == "failure"


def test_reading_goes_on_where_it_stopped() -> None:
    lines = [usage(0), start("a"), result("a", {"error": "x"}), usage(1), start("b"), result("b", {"ok": {}})]
    whole = feed(StellaEvents(), lines)
    for cut in range(1, len(lines)):
        first = feed(StellaEvents(), lines[:cut])
        rest = feed(
            StellaEvents(),
            lines[cut:],
            state=json.loads(json.dumps(first.state)),
            pending=first.pending,
            first_line=cut + 1,
        )
        for kind in ("call", "result", "turn"):
            assert first.rows[kind] + rest.rows[kind] == whole.rows[kind]


def test_matches_by_content() -> None:
    assert StellaEvents().matches(head_of("\n".join(map(json.dumps, [PIECE, start("a")])))) == 95
    assert StellaEvents().matches(head_of(json.dumps(PIECE) + "\n" + json.dumps(PIECE))) == 85
    assert StellaEvents().matches(head_of(json.dumps({"type": "reasoning", "text": "x"}))) == 0


def test_hostile_shapes_are_rejected_or_skipped() -> None:
    fed = feed(StellaEvents(), [*HOSTILE, start(LONG), result(LONG, {"ok": {"content": [[[7]]]}})])
    assert fed.outcomes()[-1][1] == "success"
    assert fed.lines_used + sum(fed.nothing.values()) + sum(fed.folds.values()) + len(fed.rejects) == len(HOSTILE) + 2
    assert {reason for _, reason in fed.rejects} >= {"step_without_id", "result_without_output"}
    assert feed(StellaEvents(), [result("a", {"ok": 1})]).rejects == [(1, "no_session")]


def test_an_error_that_is_a_text_is_the_message() -> None:
    fed = feed(
        StellaEvents(),
        [start("a"), result("a", {"err": "no such file"}), start("b"), result("b", {"err": {"message": "busy"}})],
    )
    assert [row["message"] for row in fed.rows["result"]] == ["no such file", "busy"]
