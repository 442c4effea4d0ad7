"""OpenCode's storage files: tool parts, messages, sessions; everything else carries nothing."""

from __future__ import annotations

from typing import Any

import pytest

from emitting import HOSTILE, feed_document
from loopstats.formats import Head
from loopstats.formats.opencode import OpenCode


def _part(**state: Any) -> dict[str, Any]:
    return {
        "id": "p1",
        "sessionID": "s1",
        "messageID": "m1",
        "type": "tool",
        "callID": "c1",
        "tool": "bash",
        "state": {
            "status": "completed",
            "input": {"command": "make", "cwd": "/w"},
            "output": "text",
            "time": {"start": 1_700_000_000_000, "end": 1_700_000_000_250},
        }
        | state,
    }


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"metadata": {"exit": 0}}, ("success", None)),
        ({"metadata": {"exit": 2}}, ("failure", None)),
        ({}, ("success", None)),
        ({"status": "error", "error": "no such tool"}, ("failure", None)),
        ({"status": "error", "error": "The user rejected permission to use this tool."}, ("vetoed", "user")),
        ({"status": "running"}, ("unknown", "missing")),
        ({"status": "pending"}, ("unknown", "missing")),
    ],
)
def test_outcomes(state: dict[str, Any], expected: tuple[str, str | None]) -> None:
    fed = feed_document(OpenCode(), _part(**state))
    assert [outcome[1:] for outcome in fed.outcomes()] == [expected]
    (call,) = fed.calls
    assert (call["session_id"], call["call_id"], call["decision_key"]) == ("s1", "c1", "m1")
    assert all(row["duration_ms"] == 250 for row in fed.rows["result"])


def test_usage_is_taken_from_the_message_alone() -> None:
    message = {
        "id": "m1",
        "sessionID": "s1",
        "role": "assistant",
        "time": {"created": 1_700_000_000_000},
        "modelID": "m",
        "cost": 0.25,
        "tokens": {"input": 5, "output": 2, "cache": {"read": 3, "write": 1}},
    }
    (turn,) = feed_document(OpenCode(), message).rows["turn"]
    assert (
        turn["tokens_input"],
        turn["tokens_cache_read"],
        turn["tokens_cache_write"],
        turn["cost_micros"],
        turn["decision_key"],
    ) == (5, 3, 1, 250_000, "m1")
    (free,) = feed_document(OpenCode(), message | {"cost": 0}).rows["turn"]
    assert free["cost_micros"] is None
    finish = feed_document(
        OpenCode(), {"id": "p9", "sessionID": "s1", "messageID": "m1", "type": "step-finish", "tokens": {"input": 5}}
    )
    assert finish.rows["turn"] == [] and finish.nothing == {"step-finish": 1}


def test_a_session_names_its_folder_and_parent() -> None:
    (session,) = feed_document(
        OpenCode(),
        {"id": "s2", "projectID": "p", "directory": "/w", "parentID": "s1", "version": "1.3", "time": {"created": 5}},
    ).rows["session"]
    assert (session["cwd"], session["parent_session"], session["version"]) == ("/w", "s1", "1.3")


def test_a_part_of_the_oldest_layout_names_no_session() -> None:
    part = _part()
    del part["sessionID"]
    assert feed_document(OpenCode(), part).rejects == [(0, "no_session")]


def test_recognised_by_content_and_experimental() -> None:
    assert OpenCode().matches(Head("x", "", [], _part())) > 0
    assert OpenCode().matches(Head("x", "", [], {"id": "p", "type": "text", "messageID": "m"})) > 0
    assert OpenCode().matches(Head("x", "", [], {"id": "p", "type": "text"})) == 0
    assert OpenCode.is_experimental


@pytest.mark.parametrize("shape", [*HOSTILE, [], None, 7, {"type": "tool", "callID": {}, "tool": 7, "state": 7}])
def test_hostile_shapes_end_in_a_reject_or_nothing(shape: Any) -> None:
    assert feed_document(OpenCode(), shape).calls == []
