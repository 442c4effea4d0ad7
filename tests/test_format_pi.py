"""pi sessions: calls, exit codes at the end of the text, usage and cost, forks, own commands, hostile input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emitting import HOSTILE, feed, head_of
from loopstats.formats.pi import Pi

LONG = "toolu_aaaaaaaaaaaaaaaaaaaa"


def header(session: str = "s-1", **more: Any) -> dict[str, Any]:
    return {"type": "session", "id": session, "timestamp": "2026-01-02T03:04:00Z", "cwd": "/repo", **more}


def asked(*calls: tuple[str, str, Any], cost: float = 0.5, **message: Any) -> dict[str, Any]:
    blocks = [
        {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments} for call_id, name, arguments in calls
    ]
    usage = {"input": 3, "output": 4, "cacheRead": 5, "cacheWrite": 6, "cost": {"total": cost}}
    return {
        "type": "message",
        "timestamp": "2026-01-02T03:04:05Z",
        "message": {
            "role": "assistant",
            "content": blocks,
            "model": "m",
            "usage": usage,
            "timestamp": 1_767_323_045_000,
            **message,
        },
    }


def answered(call_id: str, text: str, is_error: bool, tool: str = "bash", **more: Any) -> dict[str, Any]:
    return {
        "type": "message",
        "timestamp": "2026-01-02T03:04:06Z",
        "message": {
            "role": "toolResult",
            "toolCallId": call_id,
            "toolName": tool,
            "content": [{"type": "text", "text": text}],
            "isError": is_error,
            **more,
        },
    }


BASH = {"command": "npm run check"}


@pytest.mark.parametrize(
    ("text", "is_error", "expected", "exit_code"),
    [
        ("boom\n\nCommand exited with code 2", True, ("failure", None), 2),
        ("(no output)\n\nCommand exited with code 1", True, ("failure", None), 1),
        ("fine", False, ("success", None), None),
        ("says Command exited with code 2", False, ("success", None), None),
        ("Command exited with code 2\nand went on", True, ("failure", None), None),
        ("half\n\nCommand aborted", True, ("unknown", "interrupt"), None),
        ("half\n\nCommand timed out after 30 seconds", True, ("failure", "timeout"), None),
    ],
)
def test_shell_results(text: str, is_error: bool, expected: tuple[str, str | None], exit_code: int | None) -> None:
    fed = feed(Pi(), [header(), asked((LONG, "bash", BASH)), answered(LONG, text, is_error)])
    assert [o[1:] for o in fed.outcomes()] == [expected]
    assert fed.results[LONG]["exit_code"] == exit_code


def test_calls_of_one_message_share_a_decision_with_its_usage() -> None:
    fed = feed(
        Pi(),
        [header(), asked(("a", "read", {"path": "x.py"}), ("b", "bash", BASH)), asked(("c", "bash", BASH), cost=0)],
    )
    keys = [row["decision_key"] for row in fed.calls]
    assert keys[0] == keys[1] != keys[2]
    turn = fed.rows["turn"][0]
    assert (
        turn["decision_key"],
        turn["tokens_input"],
        turn["tokens_output"],
        turn["tokens_cache_read"],
        turn["tokens_cache_write"],
    ) == (keys[0], 3, 4, 5, 6)
    assert [row["cost_micros"] for row in fed.rows["turn"]] == [500_000, None]
    assert fed.calls[0]["target"] == "/repo/x.py"


def test_a_short_id_that_is_given_again_is_another_call() -> None:
    again = [asked(("call_0", "bash", BASH)), answered("call_0", "no\n\nCommand exited with code 2", True)]
    fed = feed(Pi(), [header(), *again, *again[:1], answered("call_0", "yes", False)])
    assert [o[1] for o in fed.outcomes()] == ["failure", "success"]
    assert len({row["call_id"] for row in fed.calls}) == 2


def test_the_users_own_command_and_bookkeeping_are_no_calls() -> None:
    own = {"type": "message", "timestamp": "t", "message": {"role": "bashExecution", "command": "ls", "exitCode": 1}}
    fed = feed(
        Pi(),
        [
            header(),
            own,
            {"type": "compaction", "summary": "x"},
            {"type": "model_change", "modelId": "m-2"},
            {"type": "leaf"},
        ],
    )
    assert fed.calls == [] and fed.nothing == {"message/bashExecution": 1, "compaction": 1, "leaf": 1}
    assert [row["model"] for row in fed.rows["session"]] == [None, "m-2"]


def test_truncated_result_names_the_file_with_the_rest() -> None:
    details = {"truncation": {"truncated": True}, "fullOutputPath": "/tmp/full.log"}
    fed = feed(Pi(), [header(), asked((LONG, "bash", BASH)), answered(LONG, "x", False, details=details)])
    assert (fed.results[LONG]["is_truncated"], fed.results[LONG]["overflow_path"]) == (True, "/tmp/full.log")


def test_a_branched_session_repeats_the_identities_of_its_parent() -> None:
    history = [asked((LONG, "bash", BASH)), answered(LONG, "x", False)]
    parent = feed(Pi(), [header("p"), *history])
    path = "/home/u/.pi/sessions/2026-01-02T03-04_11111111-2222-3333-4444-555555555555.jsonl"
    child = feed(Pi(), [header("c", parentSession=path), *history])
    assert child.rows["session"][0]["parent_session"] == "11111111-2222-3333-4444-555555555555"
    for kind in ("call", "result", "turn"):
        assert [row["uid"] for row in parent.rows[kind]] == [row["uid"] for row in child.rows[kind]] != []


def test_call_without_result_is_unknown_and_an_empty_message_is_no_turn() -> None:
    empty = {
        "type": "message",
        "timestamp": "t",
        "message": {"role": "assistant", "content": [], "stopReason": "aborted", "usage": {"input": 0}},
    }
    fed = feed(Pi(), [header(), asked((LONG, "bash", BASH)), empty])
    assert fed.outcomes() == [("bash", "unknown", "missing")] and len(fed.rows["turn"]) == 1


def test_reading_goes_on_where_it_stopped() -> None:
    lines = [
        header(),
        asked(("a", "bash", BASH)),
        answered("a", "x\n\nCommand exited with code 3", True),
        asked(("b", "bash", BASH)),
        answered("b", "y", False),
    ]
    whole = feed(Pi(), lines)
    for cut in range(1, len(lines)):
        first = feed(Pi(), lines[:cut])
        rest = feed(
            Pi(),
            lines[cut:],
            state=json.loads(json.dumps(first.state)),
            pending=json.loads(json.dumps(first.pending)),
            first_line=cut + 1,
        )
        for kind in ("call", "result", "turn"):
            assert first.rows[kind] + rest.rows[kind] == whole.rows[kind]


def test_matches_by_content() -> None:
    assert Pi().matches(head_of(json.dumps(header()) + "\n" + json.dumps(asked()))) == 90
    assert Pi().matches(head_of(json.dumps({"type": "assistant", "message": {"role": "assistant"}}))) == 0


def test_hostile_shapes_are_rejected_or_skipped() -> None:
    fed = feed(
        Pi(),
        [
            header(),
            *HOSTILE,
            asked((LONG, "bash", BASH)),
            answered(LONG, "\n" * 1_000_000 + "Command exited with code 5", True),
        ],
    )
    assert fed.results[LONG]["exit_code"] == 5
    assert fed.lines_used + sum(fed.nothing.values()) + sum(fed.folds.values()) + len(fed.rejects) == len(HOSTILE) + 3
    assert feed(Pi(), [asked((LONG, "bash", BASH))]).rejects == [(1, "no_session")]


def test_two_sessions_in_one_file_stay_two() -> None:
    second = [header("s-2", cwd="/other"), asked(("b", "bash", BASH)), answered("b", "fine", False)]
    fed = feed(Pi(), [header(), asked(("a", "bash", BASH)), header(), answered("a", "fine", False), *second])
    assert [row["session_id"] for row in fed.calls] == [header()["id"], "s-2"]
    assert [row["session_id"] for row in fed.rows["result"]] == [header()["id"], "s-2"]
    assert [row["cwd"] for row in fed.rows["session"] if row["cwd"]] == ["/repo", "/other"]
    assert fed.folds == {"repeat": 1}
