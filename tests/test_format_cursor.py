"""Cursor transcripts: calls named by their place, results by order, no flag and therefore unknown."""

from __future__ import annotations

from typing import Any

import pytest

from emitting import HOSTILE, feed
from loopstats.formats import Head
from loopstats.formats.cursor import Cursor


def _assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "message": {"content": [{"type": "text", "text": "…"}, *blocks]}}


def _user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "message": {"content": list(blocks)}}


LOG = [
    _user({"type": "text", "text": "mend it"}),
    _assistant(
        {"type": "tool_use", "name": "Bash", "input": {"command": "make"}},
        {"type": "tool_call", "name": "read_file", "input": {"path": "a"}},
    ),
    _user(
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Error: boom"}]},
        {"type": "tool-result", "content": "text"},
    ),
    _assistant({"type": "tool_use", "name": "Bash", "input": {"command": "make"}}),
    {"type": "turn_ended", "status": "success"},
]


def test_without_a_flag_the_outcome_is_unknown_with_or_without_a_result() -> None:
    fed = feed(Cursor(), LOG)
    assert fed.outcomes() == [("Bash", "unknown", None), ("read_file", "unknown", None), ("Bash", "unknown", "missing")]
    assert len({row["call_id"] for row in fed.calls}) == 3
    assert fed.calls[0]["decision_key"] == fed.calls[1]["decision_key"] != fed.calls[2]["decision_key"]
    assert fed.calls[0]["session_id"].startswith("cursor~")
    assert fed.nothing == {"user": 1, "turn_ended": 1}


def test_a_flag_is_believed() -> None:
    flagged = [
        LOG[1],
        _user(
            {"type": "tool_result", "is_error": True, "content": "x"},
            {"type": "tool_result", "is_error": False, "content": "x"},
        ),
    ]
    assert [word for _, word, _ in feed(Cursor(), flagged).outcomes()] == ["failure", "success"]


def test_results_find_their_calls_when_the_file_has_grown_between() -> None:
    whole, first = feed(Cursor(), LOG), feed(Cursor(), LOG[:2])
    second = feed(Cursor(), LOG[2:], state=first.state, pending=first.pending, first_line=3)
    assert [row["uid"] for row in whole.rows["result"]] == [row["uid"] for row in second.rows["result"]]
    assert {row["session_id"] for row in second.calls} == {row["session_id"] for row in first.calls}


def test_recognised_by_content_and_experimental() -> None:
    assert Cursor().matches(Head("x", "", LOG)) > 0
    assert (
        Cursor().matches(Head("x", "", [{"type": "user", "uuid": "u", "role": "user", "message": {"content": []}}]))
        == 0
    )
    assert Cursor.is_experimental and Cursor.needs_chain


@pytest.mark.parametrize(
    "shape",
    [
        *HOSTILE,
        {"role": "assistant", "message": {"content": [7, {"type": "tool_use", "name": {}}]}},
        {"role": "user", "message": {"content": [{"type": []}]}},
    ],
)
def test_hostile_shapes_end_in_a_reject_or_nothing(shape: Any) -> None:
    assert len(feed(Cursor(), [*LOG, shape]).calls) == 3
