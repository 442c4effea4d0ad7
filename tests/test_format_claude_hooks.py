"""Inputs of Claude Code's hooks: both halves of a call meet, in one file or two, with ids or without.

Inputs with `tool_use_id`, `PostToolUseFailure`, `PermissionDenied` and `agent_id` are documented shapes: no real file
had them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from emitting import HOSTILE, Fed, feed, feed_document, head_of
from loopstats.formats.claude_code import ClaudeCode
from loopstats.formats.claude_hooks import ClaudeHooks, ClaudeHooksLines

SESSION = "hook-session"
CALL = "toolu_01HookCall34567890Hooks"


def hook(event: str, tool: str | None = "Bash", command: str = "make", **more: Any) -> dict[str, Any]:
    base = {
        "session_id": SESSION,
        "transcript_path": "/home/ann/.claude/projects/x/s.jsonl",
        "cwd": "/home/ann/shop",
        "hook_event_name": event,
        "tool_name": tool,
        "tool_input": {"command": command},
    }
    return {key: value for key, value in (base | more).items() if value is not None}


def before(command: str = "make", **more: Any) -> dict[str, Any]:
    return hook("PreToolUse", command=command, **more)


def after(command: str = "make", response: Any = None, **more: Any) -> dict[str, Any]:
    return hook(
        "PostToolUse",
        command=command,
        tool_response=response or {"stdout": "ok", "stderr": "", "interrupted": False},
        **more,
    )


def by_id(fed: Fed) -> list[str]:
    return [call["call_id"] for call in fed.calls]


def test_pairs_in_order_by_tool_and_input_and_leaves_the_rest_unknown() -> None:
    fed = feed_document(ClaudeHooks(), [before("a"), before("b"), before("a"), after("a"), after("b")])
    assert fed.outcomes() == [("Bash", "success", None), ("Bash", "success", None), ("Bash", "unknown", "missing")]
    assert len(set(by_id(fed))) == 3


def test_two_files_of_one_session_meet() -> None:
    first = feed_document(ClaudeHooks(), [before("a"), before("b"), before("a")])
    second = feed_document(ClaudeHooks(), [after("a"), after("a")])
    uids = {call["call_id"]: call["uid"] for call in first.calls}
    assert [uids.get(call["call_id"]) for call in second.calls] == [call["uid"] for call in second.calls]
    assert set(second.results) == {first.calls[0]["call_id"], first.calls[2]["call_id"]}


def test_call_is_emitted_once_where_both_halves_stand_in_one_file() -> None:
    fed = feed_document(ClaudeHooks(), [before(tool_use_id=CALL), after(tool_use_id=CALL)])
    assert by_id(fed) == [CALL]
    assert fed.results[CALL]["is_error"] is False


def test_transcript_and_hook_share_the_identity_of_a_call_with_an_id() -> None:
    fed = feed_document(ClaudeHooks(), [after(tool_use_id=CALL)])
    message = {"id": "m", "content": [{"type": "tool_use", "id": CALL, "name": "Bash", "input": {"command": "make"}}]}
    log = feed(ClaudeCode(), [{"type": "assistant", "uuid": "u", "sessionId": SESSION, "message": message}])
    assert fed.calls[0]["uid"] == log.calls[0]["uid"]
    assert fed.calls[0]["rank"] > log.calls[0]["rank"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (hook("PostToolUseFailure", error="Exit code 2\nno rule", is_interrupt=False), ("failure", None)),
        (hook("PostToolUseFailure", error="stopped", is_interrupt=True), ("unknown", "interrupt")),
        (hook("PostToolUseFailure", error="Command timed out after 2m 0s"), ("failure", "timeout")),
        (hook("PostToolUseFailure", error="The user doesn't want to proceed with this tool use."), ("vetoed", "user")),
        (hook("PermissionDenied", reason="a rule says no"), ("vetoed", "permission")),
        (after(response={"stdout": "", "stderr": "", "interrupted": True}), ("unknown", "interrupt")),
        (after(response={"filePath": "a.py", "success": False}), ("failure", None)),
        (after(response={"content": "no such row", "isError": True}), ("failure", None)),
        (after(response=[{"type": "text", "text": "fine"}]), ("success", None)),
        (after(response="fine"), ("success", None)),
    ],
)
def test_outcomes(line: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert feed_document(ClaudeHooks(), [line]).outcomes() == [("Bash", *expected)]


def test_failure_keeps_exit_code_and_duration() -> None:
    fed = feed_document(
        ClaudeHooks(), [hook("PostToolUseFailure", error="Exit code 7\nboom", tool_use_id=CALL, duration_ms=12)]
    )
    row = fed.results[CALL]
    assert (row["exit_code"], row["is_error"], row["duration_ms"]) == (7, True, 12)


def test_structured_responses_without_text_are_told_apart() -> None:
    def result_hash(response: dict[str, Any]) -> str:
        return next(iter(feed_document(ClaudeHooks(), [after(response=response)]).results.values()))["result_hash"]

    one, two = {"type": "text", "file": {"numLines": 1}}, {"type": "text", "file": {"numLines": 2}}
    assert result_hash(one) != result_hash(two)
    assert result_hash(one) == result_hash(dict(reversed(one.items())))


def test_subagent_is_a_run_of_its_own_and_its_end_is_no_step() -> None:
    lines = [
        before(agent_id="a1"),
        before(),
        after(agent_id="a1"),
        hook("SubagentStop", tool=None, agent_id="a1"),
        hook("SessionStart", tool=None),
        hook("Notification", tool=None),
    ]
    fed = feed_document(ClaudeHooks(), lines)
    assert [(call["agent"], call["call_id"] in fed.results) for call in fed.calls] == [("a1", True), (None, True)]
    assert [row["agent"] for row in fed.rows["result"]] == ["a1"]
    assert fed.nothing == {"SubagentStop": 1, "SessionStart": 1, "Notification": 1}


def test_session_facts_once_per_change() -> None:
    fed = feed_document(
        ClaudeHooks(), [before(), after(), before(cwd="/home/ann/shop/web"), before(session_id="other", turn_id="t")]
    )
    assert [(row["session_id"], row["cwd"], row["project"], row["harness"]) for row in fed.rows["session"]] == [
        (SESSION, "/home/ann/shop", "shop", "claude-code"),
        (SESSION, "/home/ann/shop/web", None, "claude-code"),
        ("other", "/home/ann/shop", "shop", "codex"),
    ]


def test_lines_are_the_same_inputs_and_are_read_on() -> None:
    inputs = [before("a"), before("a"), after("a"), after("a"), before("a")]
    whole = feed_document(ClaudeHooks(), inputs)
    for cut in range(1, len(inputs)):
        first = feed(ClaudeHooksLines(), inputs[:cut])
        rest = feed(ClaudeHooksLines(), inputs[cut:], state=json.loads(json.dumps(first.state)), pending=first.pending)
        for kind in ("call", "result"):
            assert [row["uid"] for row in first.rows[kind] + rest.rows[kind]] == [
                row["uid"] for row in whole.rows[kind]
            ]


def test_recognised_by_content() -> None:
    array = head_of(json.dumps([before(), after()], indent=2), "post_tool_use.json")
    lines = head_of(json.dumps(before()) + "\n" + json.dumps(after()) + "\n")
    assert (ClaudeHooks().matches(array), ClaudeHooksLines().matches(array)) == (95, 0)
    assert (ClaudeHooks().matches(lines), ClaudeHooksLines().matches(lines)) == (0, 95)
    assert ClaudeHooks().matches(head_of('[{"role": "user", "content": "x"}]')) == 0
    assert ClaudeCode().matches(lines) == 0


def test_bad_inputs_are_counted_and_the_others_read() -> None:
    fed = feed_document(ClaudeHooks(), [7, {}, hook("PreToolUse", tool=None), before(session_id=None), before()])
    assert [number for number, _ in fed.rejects] == [1, 2, 3, 4]
    assert len(fed.calls) == 1
    assert feed(ClaudeHooksLines(), [before(session_id=None), hook("PostToolUse", tool=None)]).rejects == [
        (1, "no_session"),
        (2, "no_tool"),
    ]


def test_wrong_shapes_never_stop_the_file() -> None:
    odd: list[Any] = [None, 7, -1.5, "", "x\ud800", True, [], [None], {"a": {"b": []}}]
    shapes = [
        line | {key: value}
        for line in (before(), after(), hook("PostToolUseFailure", error="x"))
        for key in line
        for value in odd
    ]
    fed = feed(ClaudeHooksLines(), [*HOSTILE, *shapes, before("the last one")])
    assert fed.calls[-1]["source_line"] == len(HOSTILE) + len(shapes) + 1
    assert {reason for _, reason in fed.rejects} <= {"no_session", "no_tool", "not_an_object"}
