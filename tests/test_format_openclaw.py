"""OpenClaw: what `details` add to pi's lines, telemetry paired in order, the index's parent links, hostile input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emitting import HOSTILE, feed, feed_document, head_of
from loopstats.formats.openclaw import OpenClaw, OpenClawIndex
from loopstats.formats.pi import Pi
from test_format_pi import BASH, LONG, answered, asked, header


@pytest.mark.parametrize(
    ("tool", "details", "is_error", "expected"),
    [
        ("exec", {"status": "completed", "exitCode": 0}, False, ("success", None)),
        ("exec", {"status": "completed", "exitCode": 3}, False, ("failure", None)),
        ("exec", {"status": "running", "sessionId": "x"}, False, ("unknown", None)),
        ("exec", {"status": "completed", "exitCode": 1, "timedOut": True}, True, ("failure", "timeout")),
        ("web_search", {"status": "error"}, True, ("failure", None)),
        ("web_search", {"status": "error"}, False, ("failure", None)),
        ("sessions_spawn", {"status": "accepted"}, False, ("success", None)),
    ],
)
def test_details_beside_the_flag(
    tool: str, details: dict[str, Any], is_error: bool, expected: tuple[str, str | None]
) -> None:
    fed = feed(
        OpenClaw(), [header(), asked((LONG, tool, BASH)), answered(LONG, "text", is_error, tool, details=details)]
    )
    assert [o[1:] for o in fed.outcomes()] == [expected]
    assert fed.rows["session"][0]["harness"] == "openclaw"


def start(session: str, tool: str, command: str) -> dict[str, Any]:
    return {
        "type": "tool.start",
        "sessionKey": session,
        "agentId": "main",
        "toolName": tool,
        "params": {"command": command},
    }


def end(session: str, tool: str, success: bool) -> dict[str, Any]:
    return {
        "type": "tool.end",
        "sessionKey": session,
        "agentId": "main",
        "toolName": tool,
        "success": success,
        "durationMs": 9,
    }


TELEMETRY = [
    {"type": "agent.start", "sessionKey": "agent:a", "agentId": "main"},
    start("agent:a", "exec", "one"),
    start("agent:a", "exec", "two"),
    start("agent:b", "exec", "three"),
    end("agent:b", "exec", True),
    end("agent:a", "exec", False),
    end("agent:a", "exec", True),
    start("agent:a", "exec", "four"),
]


def test_telemetry_is_paired_in_order_by_session_and_tool() -> None:
    fed = feed(OpenClaw(), TELEMETRY)
    assert [o[1] for o in fed.outcomes()] == ["failure", "success", "success", "unknown"]
    assert fed.nothing == {"agent.start": 1}
    assert {row["session_id"] for row in fed.rows["session"]} == {"agent:a", "agent:b"}
    assert all(row["decision_key"] is None for row in fed.calls)


def test_telemetry_goes_on_where_it_stopped_and_an_end_alone_is_rejected() -> None:
    first = feed(OpenClaw(), TELEMETRY[:4])
    rest = feed(
        OpenClaw(), TELEMETRY[4:7], state=json.loads(json.dumps(first.state)), pending=first.pending, first_line=5
    )
    assert {row["call_id"] for row in rest.rows["result"]} == {row["call_id"] for row in first.calls}
    assert feed(OpenClaw(), [end("agent:a", "exec", True)]).rejects == [(1, "end_without_start")]


def test_another_file_of_the_same_session_does_not_meet_the_same_ids() -> None:
    one = feed(OpenClaw(), [start("agent:a", "exec", "one")])
    two = feed(OpenClaw(), [start("agent:a", "exec", "other")])
    copy = feed(OpenClaw(), [start("agent:a", "exec", "one"), start("agent:a", "exec", "one")])
    assert one.calls[0]["uid"] == copy.calls[0]["uid"] != copy.calls[1]["uid"]
    assert one.calls[0]["uid"] != two.calls[0]["uid"]


def test_index_carries_parent_links_only() -> None:
    index = {
        "agent:main:main": {"sessionId": "p", "updatedAt": 1, "label": "private words"},
        "agent:main:subagent:x": {"sessionId": "c", "updatedAt": 1, "spawnedBy": "agent:main:main"},
        "agent:main:subagent:y": {"sessionId": "d", "updatedAt": 1, "parentSessionKey": "agent:main:gone"},
        "agent:z": 7,
    }
    fed = feed_document(OpenClawIndex(), index)
    assert [(row["session_id"], row["parent_session"]) for row in fed.rows["session"]] == [("c", "p")]
    assert fed.nothing == {"session without parent": 3}
    assert "private" not in json.dumps(fed.rows)
    good = {key: value for key, value in index.items() if value != 7}
    assert OpenClawIndex().matches(head_of(json.dumps(good, indent=1))) == 92
    assert OpenClawIndex().matches(head_of(json.dumps(index, indent=1))) == 0
    assert feed_document(OpenClawIndex(), b"{").rejects == [(0, "not_json")]


def test_marks_of_its_own_tell_it_from_pi() -> None:
    text = json.dumps(header()) + "\n" + json.dumps(asked((LONG, "sessions_spawn", {})))
    assert OpenClaw().matches(head_of(text)) > Pi().matches(head_of(text)) > 0
    plain = json.dumps(header()) + "\n" + json.dumps(asked((LONG, "bash", BASH)))
    assert OpenClaw().matches(head_of(plain)) == 0 < Pi().matches(head_of(plain))
    assert OpenClaw().matches(head_of("\n".join(map(json.dumps, TELEMETRY)))) == 92


def test_hostile_shapes_are_rejected_or_skipped() -> None:
    fed = feed(
        OpenClaw(),
        [
            header(),
            *HOSTILE,
            asked((LONG, "exec", BASH)),
            answered(LONG, "x", False, "exec", details={"exitCode": 4, "status": []}),
        ],
    )
    assert fed.results[LONG]["exit_code"] == 4
    assert fed.lines_used + sum(fed.nothing.values()) + sum(fed.folds.values()) + len(fed.rejects) == len(HOSTILE) + 3
    assert {reason for _, reason in fed.rejects} >= {"step_without_tool", "no_session"}
