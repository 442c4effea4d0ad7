"""Gemini CLI sessions: statuses, exit codes in the text, replaced lines, usage, hostile input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emitting import HOSTILE, feed_document, head_of
from loopstats.formats.gemini_cli import GeminiCli

OWN = "11111111-2222-3333-4444-555555555555"


def called(call_id: str, name: str, status: str, text: str, key: str = "output", args: Any = None) -> dict[str, Any]:
    return {
        "id": call_id,
        "name": name,
        "args": args or {"command": "make test"},
        "status": status,
        "timestamp": "2026-01-02T03:04:06Z",
        "result": [{"functionResponse": {"id": call_id, "name": name, "response": {key: text}}}],
    }


def answer(*calls: dict[str, Any], own: str = OWN, tokens: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "id": own,
        "type": "gemini",
        "timestamp": "2026-01-02T03:04:05Z",
        "model": "g-1",
        "toolCalls": list(calls),
    } | ({"tokens": tokens} if tokens else {})


def session(*messages: Any) -> dict[str, Any]:
    return {
        "sessionId": "s-1",
        "projectHash": "h",
        "startTime": "2026-01-02T03:04:00Z",
        "messages": [{"id": "u", "type": "user", "content": "go"}, *messages],
    }


SHELL_TEXT = (
    "Command: make test\nDirectory: (root)\nOutput: E1 wrong\nError: (none)\nExit Code: {}\nSignal: 0\n"
    "Background PIDs: (none)\nProcess Group PGID: 9"
)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (called("a", "run_shell_command", "success", SHELL_TEXT.format(2)), ("failure", None)),
        (called("a", "run_shell_command", "success", SHELL_TEXT.format(0)), ("success", None)),
        (called("a", "run_shell_command", "success", "Output: fine\nProcess Group PGID: 9"), ("success", None)),
        (
            called("a", "run_shell_command", "success", "Output: x\nExit Code: 7\nProcess Group PGID: 9"),
            ("failure", None),
        ),
        (called("a", "run_shell_command", "success", "Output: Exit Code: 5\nExit Code: 0"), ("success", None)),
        (called("a", "run_shell_command", "success", "Output: x\nSignal: SIGKILL"), ("failure", None)),
        (
            called(
                "a",
                "run_shell_command",
                "error",
                "Command was automatically cancelled because it exceeded the timeout of 5 minutes",
                "error",
            ),
            ("failure", "timeout"),
        ),
        (called("a", "read_file", "error", "File not found", "error", {"file_path": "x.py"}), ("failure", None)),
        (
            called("a", "read_file", "success", "Error: Exit Code: 1", "output", {"file_path": "x.py"}),
            ("success", None),
        ),
        (
            called("a", "replace", "cancelled", "[Operation Cancelled] Reason: User did not allow tool call", "error"),
            ("vetoed", "user"),
        ),
        (called("a", "replace", "cancelled", "User cancelled the operation.", "error"), ("unknown", "interrupt")),
        (called("a", "replace", "executing", ""), ("unknown", "missing")),
    ],
)
def test_outcomes(call: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert [o[1:] for o in feed_document(GeminiCli(), session(answer(call))).outcomes()] == [expected]


def test_flag_and_exit_code_are_both_kept() -> None:
    fed = feed_document(GeminiCli(), session(answer(called("a", "run_shell_command", "success", SHELL_TEXT.format(2)))))
    assert (fed.results["a"]["is_error"], fed.results["a"]["exit_code"]) == (False, 2)


def test_usage_decision_and_session() -> None:
    tokens = {"input": 100, "output": 5, "cached": 60, "thoughts": 7, "tool": 0, "total": 112}
    fed = feed_document(
        GeminiCli(), session(answer(called("a", "x", "success", ""), called("b", "x", "success", ""), tokens=tokens))
    )
    turn = fed.rows["turn"][0]
    assert (turn["tokens_input"], turn["tokens_output"], turn["tokens_cache_read"], turn["model"]) == (
        40,
        12,
        60,
        "g-1",
    )
    assert {row["decision_key"] for row in fed.calls} == {turn["decision_key"]}
    assert (fed.rows["session"][0]["session_id"], fed.rows["session"][0]["model"]) == ("s-1", "g-1")


def test_a_snapshot_repeats_identities_and_a_copy_in_another_session_too() -> None:
    call = called("a", "x", "success", "")
    one = feed_document(GeminiCli(), session(answer(call)))
    other = feed_document(GeminiCli(), session(answer(call)) | {"sessionId": "s-2"})
    assert one.calls[0]["uid"] == other.calls[0]["uid"] and one.calls[0]["is_global"]
    plain = [
        feed_document(GeminiCli(), session(answer(call, own="m1")) | {"sessionId": name}).calls[0]
        for name in ("s-1", "s-2")
    ]
    assert plain[0]["uid"] != plain[1]["uid"]


def lines(*records: Any) -> bytes:
    return "\n".join(r if isinstance(r, str) else json.dumps(r) for r in records).encode()


HEADER = {"sessionId": "s-1", "projectHash": "h", "startTime": "2026-01-02T03:04:00Z", "kind": "main"}


def test_json_lines_in_which_a_later_line_replaces_an_earlier_one() -> None:
    running = answer(called("a", "run_shell_command", "executing", ""))
    done = answer(called("a", "run_shell_command", "success", "Output: x\nExit Code: 3"))
    fed = feed_document(GeminiCli(), lines(HEADER, running, {"$set": {"lastUpdated": "t"}}, done, '{"torn'))
    assert fed.outcomes() == [("run_shell_command", "failure", None)]
    assert fed.folds == {"repeat": 1}
    assert fed.nothing == {"$set": 1} and fed.rejects == [(5, "not_an_object")]
    assert fed.calls[0]["source_line"] == 4


def test_matches_by_content() -> None:
    assert GeminiCli().matches(head_of(json.dumps(session(answer()), indent=2))) == 95
    assert GeminiCli().matches(head_of(lines(HEADER, answer(), {"$set": {}}).decode())) == 92
    assert GeminiCli().matches(head_of(json.dumps({"sessionId": "s", "type": "user", "uuid": "u"}))) == 0


def test_hostile_shapes_are_skipped_and_the_rest_is_read() -> None:
    fed = feed_document(
        GeminiCli(),
        session(*HOSTILE, None, 7, answer(called("a", "run_shell_command", "success", SHELL_TEXT.format(2)))),
    )
    assert fed.results["a"]["exit_code"] == 2
    assert [reason for _, reason in fed.rejects] == ["not_an_object"] * 2
    assert feed_document(GeminiCli(), b"nothing\nhere").rejects == [(0, "not_json")]
    assert feed_document(GeminiCli(), {"messages": []}).rejects == [(0, "no_session")]
    assert feed_document(GeminiCli(), {"sessionId": "s", "messages": 7}).rejects == [(0, "no_messages")]
    for text in ("Exit Code: " * 90_000, "Error: (none)\n" * 70_000, "Output: " * 120_000):
        assert (
            len(feed_document(GeminiCli(), session(answer(called("a", "run_shell_command", "success", text)))).calls)
            == 1
        )


@pytest.mark.parametrize(
    "result",
    [
        "file not found",
        {"error": "file not found"},
        ["file not found"],
        {"functionResponse": {"response": {"error": "file not found"}}},
        [{"functionResponse": {"response": {"content": [{"type": "text", "text": "file not found"}]}}}],
        None,
    ],
)
def test_a_result_in_any_form_has_a_message(result: Any) -> None:
    call = called("a", "read_file", "error", "") | {"result": result}
    fed = feed_document(GeminiCli(), session(answer(call | ({} if result else {"resultDisplay": "file not found"}))))
    assert fed.results["a"]["message"] == "file not found"


def test_the_two_streams_of_older_versions_have_no_labels_in_the_message() -> None:
    text = (
        "Command: make\nDirectory: (root)\nStdout: \nStderr: boom failed\nError: (none)\nExit Code: 2\nSignal: (none)"
    )
    fed = feed_document(GeminiCli(), session(answer(called("a", "run_shell_command", "success", text))))
    assert (fed.results["a"]["exit_code"], fed.results["a"]["message"]) == (2, "boom failed")
