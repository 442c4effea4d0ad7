"""Copilot CLI events: calls and results by id, subagents, the turn that asked for a call."""

from __future__ import annotations

from typing import Any

import pytest

from emitting import HOSTILE, feed
from loopstats.formats import Head
from loopstats.formats.copilot import REMEMBERED, Copilot


def _event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, "id": "e", "parentId": None, "timestamp": "2025-01-01T00:00:00.000Z"}


START = _event("session.start", sessionId="S", copilotVersion="1.0", selectedModel="m", context={"cwd": "/w"})
LOG = [
    START,
    _event(
        "assistant.message",
        messageId="m1",
        model="m",
        outputTokens=12,
        toolRequests=[{"toolCallId": "c1", "name": "bash"}, {"toolCallId": "c2", "name": "task"}],
    ),
    _event("tool.execution_start", toolCallId="c1", toolName="bash", arguments={"command": "make"}),
    _event(
        "tool.execution_complete",
        toolCallId="c1",
        success=False,
        error={"message": "boom", "code": "failure"},
        toolTelemetry={"metrics": {"durationMs": 4}},
    ),
    _event("tool.execution_start", toolCallId="c2", toolName="task", arguments='{"prompt": "x"}'),
    _event("tool.execution_start", toolCallId="c3", toolName="view", arguments={"path": "a"}, parentToolCallId="c2"),
    _event("tool.execution_complete", toolCallId="c3", success=True, result={"content": "text"}, parentToolCallId="c2"),
    _event("tool.execution_start", toolCallId="c4", toolName="bash", arguments={"command": "rm x"}),
    _event("tool.execution_complete", toolCallId="c4", success=False, error={"message": "no", "code": "denied"}),
    _event("hook.start", hookType="postToolUse"),
]


def test_calls_results_turns_and_subagents() -> None:
    fed = feed(Copilot(), LOG)
    assert fed.outcomes() == [
        ("bash", "failure", None),
        ("task", "unknown", "missing"),
        ("view", "success", None),
        ("bash", "vetoed", "user"),
    ]
    assert [(row["session_id"], row["agent"], row["decision_key"]) for row in fed.calls] == [
        ("S", None, "m1"),
        ("S", None, "m1"),
        ("S", "c2", None),
        ("S", None, None),
    ]
    assert (fed.rows["turn"][0]["tokens_output"], fed.rows["turn"][0]["tokens_input"]) == (12, None)
    assert fed.results["c1"]["duration_ms"] == 4
    assert (fed.rows["session"][0]["cwd"], fed.rows["session"][0]["version"]) == ("/w", "1.0")
    assert fed.nothing == {"hook.start": 1}


@pytest.mark.parametrize(
    ("tool", "text", "expected"),
    [
        ("bash", "make: boom\n<exited with exit code 2>", ("failure", 2)),
        ("powershell", "fine\n<exited with exit code 0>\n", ("success", 0)),
        ("bash", "<exited with exit code 1>", ("failure", 1)),
        ("bash", "<exited with exit code 1>\nsays the manual", ("success", None)),
        ("bash", "it <exited with exit code 1>", ("success", None)),
        ("view", "a\n<exited with exit code 1>", ("success", None)),
    ],
)
def test_the_exit_code_of_a_command_stands_behind_its_output(
    tool: str, text: str, expected: tuple[str, int | None]
) -> None:
    asked = _event("tool.execution_start", toolCallId="c9", toolName=tool, arguments={"command": "make", "path": "a"})
    answered = _event("tool.execution_complete", toolCallId="c9", success=True, result={"content": text})
    first = feed(Copilot(), [START, asked])
    fed = feed(Copilot(), [answered], state=first.state, pending=first.pending, first_line=3)
    fed.rows["call"] = first.calls
    assert (fed.outcomes()[0][1], fed.results["c9"]["exit_code"]) == expected
    if expected[1] == 2:
        assert fed.results["c9"]["message"] == "make: boom"


def test_reading_on_from_the_middle_gives_the_same() -> None:
    whole = feed(Copilot(), LOG)
    first = feed(Copilot(), LOG[:2])
    second = feed(Copilot(), LOG[2:], state=first.state, pending=first.pending, first_line=3)
    assert [row["uid"] for row in whole.calls] == [row["uid"] for row in second.calls]
    assert [row["decision_key"] for row in whole.calls] == [row["decision_key"] for row in second.calls]


def test_without_a_start_the_first_event_of_the_model_names_the_session() -> None:
    fed = feed(Copilot(), LOG[1:])
    names = {row["session_id"] for row in fed.calls}
    assert len(names) == 1 and names.pop().startswith("copilot~")


def test_the_state_stays_small() -> None:
    lines = [
        _event("assistant.message", messageId=f"m{n}", toolRequests=[{"toolCallId": f"c{n}"}])
        for n in range(REMEMBERED + 50)
    ]
    assert len(feed(Copilot(), [START, *lines]).state["turns"]) == REMEMBERED


def test_recognised_by_content_and_experimental() -> None:
    assert Copilot().matches(Head("x", "", LOG)) > 0
    assert Copilot().matches(Head("x", "", [{"type": "session.start", "data": {}}])) == 0
    assert Copilot.is_experimental


@pytest.mark.parametrize(
    "shape",
    [
        *HOSTILE,
        _event("tool.execution_start"),
        _event("tool.execution_complete", toolCallId={}),
        {"type": "session.start", "data": 7},
        _event("assistant.message", messageId="m", toolRequests=[7, {"toolCallId": []}]),
    ],
)
def test_hostile_shapes_end_in_a_reject_or_nothing(shape: Any) -> None:
    assert len(feed(Copilot(), [START, shape, *LOG[1:]]).calls) == 4
