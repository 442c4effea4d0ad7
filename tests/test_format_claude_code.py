"""Claude Code transcripts: which records become calls, results, turns and session facts, and under which identity."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emitting import HOSTILE, Fed, feed, feed_document, head_of
from loopstats.formats import is_long_id, recognise
from loopstats.formats.claude_code import ClaudeCode, ClaudeCodeArray, ClaudeCodeBeside

SESSION = "5d2c7a10-0000-4000-8000-00000000aaaa"
CALL = "toolu_01AbCdEfGh23456789JkLm"
MESSAGE = "msg_01ZyXwVuTs9876543210QrSt"
USAGE = {"input_tokens": 3, "cache_creation_input_tokens": 40, "cache_read_input_tokens": 500, "output_tokens": 7}


def record(kind: str, uuid: str, **more: Any) -> dict[str, Any]:
    base = {
        "type": kind,
        "uuid": uuid,
        "parentUuid": None,
        "sessionId": SESSION,
        "cwd": "/home/ann/shop",
        "version": "2.1.30",
        "timestamp": "2026-02-03T10:00:00.000Z",
        "isSidechain": False,
        "gitBranch": "main",
    }
    return base | more


def ask(
    uuid: str = "u-1",
    call_id: str | None = CALL,
    tool: str = "Bash",
    arguments: Any = None,
    message: str = MESSAGE,
    usage: Any = USAGE,
    **more: Any,
) -> dict[str, Any]:
    block = {"type": "tool_use", "id": call_id, "name": tool, "input": arguments or {"command": "make check"}}
    content = [{key: value for key, value in block.items() if value is not None}]
    body = {"id": message, "model": "claude-test-1", "role": "assistant", "content": content, "usage": usage}
    return record("assistant", uuid, message=body, requestId="req_1", **more)


def answer(
    uuid: str = "u-2",
    call_id: str | None = CALL,
    text: Any = "done",
    is_error: bool | None = None,
    used: Any = None,
    **more: Any,
) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": is_error}
    extra = {"toolUseResult": used} if used is not None else {}
    content = [{key: value for key, value in block.items() if value is not None}]
    return record("user", uuid, message={"role": "user", "content": content}, **extra, **more)


def one_result(
    text: Any, is_error: bool | None = True, used: Any = None, tool: str = "Bash", **more: Any
) -> dict[str, Any]:
    fed = feed(ClaudeCode(), [ask(tool=tool), answer(text=text, is_error=is_error, used=used, **more)])
    assert fed.rejects == []
    return fed.results[CALL]


def test_call_result_turn_and_session() -> None:
    fed = feed(ClaudeCode(), [ask(), answer()])
    call = fed.calls[0]
    assert (call["session_id"], call["agent"], call["call_id"], call["tool"]) == (SESSION, None, CALL, "Bash")
    assert (call["decision_key"], call["model"], call["is_global"], call["actor"]) == (
        MESSAGE,
        "claude-test-1",
        True,
        "agent",
    )
    assert fed.results[CALL]["is_error"] is False
    turn = fed.rows["turn"][0]
    assert [turn[f"tokens_{part}"] for part in ("input", "output", "cache_read", "cache_write")] == [3, 7, 500, 40]
    facts = fed.rows["session"][0]
    assert (facts["cwd"], facts["project"], facts["harness"]) == ("/home/ann/shop", "shop", "claude-code 2.1.30")
    assert (facts["version"], facts["model"]) == ("2.1.30", "claude-test-1")
    assert fed.lines_used == 2


def test_call_is_read_against_the_working_directory_of_its_record() -> None:
    inside = feed(ClaudeCode(), [ask(tool="Read", arguments={"file_path": "/home/ann/shop/a.py"})]).calls[0]["target"]
    assert inside.endswith("a.py")


def test_session_facts_come_once_per_change_and_the_project_once() -> None:
    lines = [
        record("user", "u-0", message={"role": "user", "content": "please"}),
        ask(),
        answer(),
        ask("u-3", "toolu_01Another567890AnotherXY"),
        ask("u-4", "toolu_01ThirdOne567890AnotherX", version="2.2.0"),
        ask("u-5", "toolu_01FourthOne67890AnotherX", version="2.2.0", cwd="/home/ann/shop/web"),
    ]
    rows = feed(ClaudeCode(), lines).rows["session"]
    assert [(row["model"], row["version"], row["project"]) for row in rows] == [
        (None, "2.1.30", "shop"),
        ("claude-test-1", "2.1.30", None),
        ("claude-test-1", "2.2.0", None),
        ("claude-test-1", "2.2.0", None),
    ]


def test_fork_names_its_parent() -> None:
    rows = feed(ClaudeCode(), [ask(forkedFrom={"sessionId": "parent-session", "messageUuid": "m-1"})]).rows["session"]
    assert rows[0]["parent_session"] == "parent-session"


def test_streamed_message_is_one_turn_whose_calls_share_the_decision() -> None:
    second = "toolu_01SecondCall34567890Abc"
    lines = [ask(usage=USAGE | {"output_tokens": 1}), answer(), ask("u-3", second, usage=USAGE | {"output_tokens": 99})]
    fed = feed(ClaudeCode(), lines)
    assert [call["decision_key"] for call in fed.calls] == [MESSAGE, MESSAGE]
    turns = fed.rows["turn"]
    assert len({turn["uid"] for turn in turns}) == 1
    assert [turn["tokens_output"] for turn in turns] == [1, 99]


@pytest.mark.parametrize(("is_named", "expected"), [(True, "req_1"), (False, "u-1")])
def test_decision_without_a_message_id(is_named: bool, expected: str) -> None:
    line = ask()
    del line["message"]["id"]
    if not is_named:
        del line["requestId"]
    assert feed(ClaudeCode(), [line]).calls[0]["decision_key"] == expected


def test_copied_history_has_the_same_identities() -> None:
    original = feed(ClaudeCode(), [ask(), answer()])
    copied = feed(ClaudeCode(), [ask(sessionId="resumed"), answer(sessionId="resumed")])
    for kind in ("call", "result", "turn"):
        assert original.rows[kind][0]["uid"] == copied.rows[kind][0]["uid"]
        assert original.rows[kind][0]["session_id"] != copied.rows[kind][0]["session_id"]


def test_short_ids_are_told_apart_by_the_record() -> None:
    first = feed(ClaudeCode(), [ask("uuid-a", "call_1", message="m1")])
    again = feed(ClaudeCode(), [ask("uuid-a", "call_1", message="m1", sessionId="resumed")])
    other = feed(ClaudeCode(), [ask("uuid-b", "call_1", message="m1", sessionId="elsewhere")])
    for kind in ("call", "turn"):
        assert first.rows[kind][0]["uid"] == again.rows[kind][0]["uid"] != other.rows[kind][0]["uid"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (CALL, True),
        ("call_0019f8a7b6c5d4e3f2a1b0c9", True),
        ("9f0e1d2c-3b4a-4958-8776-655443322110", True),
        (None, False),
        ("call_1", False),
        ("functions.TaskUpdate:112", False),
        ("call_for_a_tool_with_a_long_name_1", False),
        ("", False),
    ],
)
def test_which_ids_hold_across_sessions(value: str | None, expected: bool) -> None:
    assert is_long_id(value) is expected


def test_two_sessions_interleaved_in_one_file() -> None:
    old = record("progress", "p-1", sessionId="old", data={"type": "hook_progress"})
    fed = feed(ClaudeCode(), [old, ask(), old | {"uuid": "p-2"}, answer()])
    assert [row["session_id"] for row in fed.rows["session"]] == ["old", SESSION]
    assert fed.nothing == {"progress/hook_progress": 1}


def nested(kind: str, body: dict[str, Any], agent: str = "a1b2c3", **more: Any) -> dict[str, Any]:
    inner = {
        "type": kind,
        "message": body,
        "uuid": more.pop("inner_uuid", "n-1"),
        "timestamp": "2026-02-03T10:00:05.000Z",
    } | more
    data = {
        "type": "agent_progress",
        "agentId": agent,
        "prompt": "look around",
        "message": inner,
        "normalizedMessages": [
            {
                "type": "assistant",
                "message": {"content": [{"type": "tool_use", "id": "toolu_01Copied9876543210Copied", "name": "Bash"}]},
            },
        ],
    }
    return record("progress", "p-9", data=data, parentToolUseID=CALL)


def test_subagent_inside_progress_records() -> None:
    inner_call = "toolu_01InnerCall4567890Inner"
    lines = [
        ask(tool="Task", arguments={"description": "look"}),
        nested("assistant", ask(call_id=inner_call, tool="Read", arguments={"file_path": "b.py"})["message"]),
        nested("user", answer(call_id=inner_call, text="gone", is_error=True)["message"], inner_uuid="n-2"),
        nested("user", {"role": "user", "content": "look around"}, inner_uuid="n-3"),
        answer(),
    ]
    fed = feed(ClaudeCode(), lines)
    assert [(call["call_id"], call["agent"], call["parent_agent"]) for call in fed.calls] == [
        (CALL, None, None),
        (inner_call, "a1b2c3", None),
    ]
    assert fed.results[inner_call]["agent"] == "a1b2c3"
    assert fed.results[inner_call]["is_error"] is True
    assert fed.calls[1]["ts"] == fed.calls[0]["ts"] + 5_000_000
    assert fed.nothing == {"progress/agent_progress": 1}


def test_subagent_file_and_progress_record_are_one_call() -> None:
    inner_call = "toolu_01InnerCall4567890Inner"
    own_file = feed(ClaudeCode(), [ask("s-1", inner_call, isSidechain=True, agentId="a1b2c3")])
    progress = feed(ClaudeCode(), [nested("assistant", ask(call_id=inner_call)["message"])])
    assert own_file.calls[0]["uid"] == progress.calls[0]["uid"]
    assert own_file.calls[0]["agent"] == progress.calls[0]["agent"] == "a1b2c3"
    assert own_file.rows["session"][0]["agent"] == "a1b2c3"


def test_sidechain_without_agent_id_is_a_run_of_its_first_record() -> None:
    lines = [
        record("user", "s-1", isSidechain=True, message={"role": "user", "content": "first task"}),
        record("user", "t-1", isSidechain=True, message={"role": "user", "content": "second task"}),
        ask("s-2", "toolu_01SideOne45678901234567", isSidechain=True, parentUuid="s-1"),
        ask("t-2", "toolu_01SideTwo45678901234567", isSidechain=True, parentUuid="t-1"),
        answer("s-3", "toolu_01SideOne45678901234567", isSidechain=True, parentUuid="s-2"),
        ask("s-4", "toolu_01SideThree678901234567", isSidechain=True, parentUuid="s-3"),
        ask(),
    ]
    assert [call["agent"] for call in feed(ClaudeCode(), lines).calls] == ["s-1", "t-1", "s-1", None]


def test_failed_command_has_its_exit_code_and_no_other_result_has_one() -> None:
    row = one_result("Exit code 2\nmake: no rule")
    assert (row["is_error"], row["exit_code"], row["outcome_log"]) == (True, 2, None)
    assert one_result("Exit code 127")["exit_code"] == 127
    assert one_result("Exit code none\nx")["exit_code"] is None
    assert one_result("Exit code 2\nprinted by a page", is_error=False)["exit_code"] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The user doesn't want to proceed with this tool use. It was rejected.", ("vetoed", "user")),
        ("The user doesn't want to take this action right now.", ("vetoed", "user")),
        ("[Request interrupted by user for tool use]", ("unknown", "interrupt")),
        ("Exit code 137\n[Request interrupted by user for tool use]\nhalf a line", ("unknown", "interrupt")),
        ("<tool_use_error>Sibling tool call errored</tool_use_error>", ("unknown", "sibling")),
        ("<tool_use_error>Cancelled: parallel tool call Bash(ls) errored</tool_use_error>", ("unknown", "sibling")),
        ("Permission to use Bash with command rm has been denied.", ("vetoed", "permission")),
        ("Permission for this action has been denied. Reason: rule", ("vetoed", "permission")),
        ("Claude requested permissions to write to /etc/hosts, but it was not granted", ("vetoed", "permission")),
        (
            "cd to '/etc' was blocked. For security, Claude Code may only change into allowed folders",
            ("vetoed", "permission"),
        ),
        ("PreToolUse:Bash hook error: [guard.sh]: not on main", ("vetoed", "hook")),
        ("Hook PreToolUse:Bash denied this tool", ("vetoed", "hook")),
        ("<tool_use_error>File does not exist.</tool_use_error>", (None, None)),
        ("Exit code 1\nPermission denied: the user doesn't want to know", (None, None)),
    ],
)
def test_answers_of_the_program_itself(text: str, expected: tuple[str | None, str | None]) -> None:
    row = one_result(text)
    assert (row["outcome_log"], row["reason_log"]) == expected
    assert row["is_error"] is True
    quoted = one_result(text, is_error=False)
    assert (quoted["outcome_log"], quoted["is_timeout"]) == (None, False)


@pytest.mark.parametrize(
    ("denial", "expected"),
    [
        ("user-rejected", ("vetoed", "user")),
        ("interrupted", ("unknown", "interrupt")),
        ("cancelled", ("unknown", "sibling")),
        ("hook-blocked", ("vetoed", "hook")),
        ("classifier", ("vetoed", "permission")),
    ],
)
def test_denial_named_by_the_record_wins_over_the_text(denial: str, expected: tuple[str, str]) -> None:
    row = one_result("some words", toolDenialKind=denial)
    assert (row["outcome_log"], row["reason_log"]) == expected


@pytest.mark.parametrize(
    ("text", "is_error", "used"),
    [
        ("Exit code 143\nCommand timed out after 2m 0s\n", True, "Error: Exit code 143"),
        ("Command timed out after 2m 0.0s", True, None),
        ("Command timed out after 2m 0.0s", None, None),
        (
            "half of it\nCommand timed out after 2m",
            False,
            {"stdout": "half of it", "stderr": "Command timed out after 2m"},
        ),
    ],
)
def test_time_out_is_a_failure_also_where_the_flag_is_not_set(text: str, is_error: bool | None, used: Any) -> None:
    fed = feed(ClaudeCode(), [ask(), answer(text=text, is_error=is_error, used=used)])
    assert fed.results[CALL]["is_timeout"] is True
    assert fed.outcomes() == [("Bash", "failure", "timeout")]


def test_time_out_in_a_file_that_was_read_is_none() -> None:
    row = one_result("Command timed out after 2m", is_error=False, used={"type": "text", "file": {}}, tool="Read")
    assert row["is_timeout"] is False


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ({"stdout": "", "stderr": "", "interrupted": True}, ("unknown", "interrupt")),
        (
            {"stdout": "", "stderr": "", "interrupted": False, "returnCodeInterpretation": "No matches found"},
            ("success", None),
        ),
        ({"stdout": "", "stderr": "", "interrupted": False, "backgroundTaskId": "b1"}, ("success", None)),
        ({"isAsync": True, "status": "async_launched", "outputFile": "/tmp/o"}, ("success", None)),
        ({"url": "https://example.org/", "code": 404, "codeText": "Not Found"}, ("failure", None)),
        ({"url": "https://example.org/", "code": 200, "codeText": "OK"}, ("success", None)),
    ],
)
def test_structured_results(used: dict[str, Any], expected: tuple[str, str | None]) -> None:
    fed = feed(ClaudeCode(), [ask(tool="Task"), answer(text="", used=used)])
    assert fed.outcomes() == [("Task", *expected)]


def test_flag_of_the_structured_result_stands_in() -> None:
    assert one_result("x", is_error=None, used={"stdout": "", "stderr": "boom", "is_error": True})["is_error"] is True


def test_truncation_and_duration() -> None:
    row = one_result("start of it", is_error=False, used={"stdout": "", "persistedOutputPath": "/home/ann/out.txt"})
    assert (row["is_truncated"], row["overflow_path"]) == (True, "/home/ann/out.txt")
    row = one_result("a.py", is_error=False, used={"filenames": ["a.py"], "truncated": True, "durationMs": 31})
    assert (row["is_truncated"], row["overflow_path"], row["duration_ms"]) == (True, None, 31)
    assert one_result("a.py", is_error=False, used={"totalDurationMs": 1200})["duration_ms"] == 1200


def test_answer_to_a_plan_is_the_users_word_but_a_broken_call_is_not() -> None:
    assert one_result("rather do the tests first", tool="ExitPlanMode")["reason_log"] == "user"
    row = one_result("<tool_use_error>Error: No such tool available</tool_use_error>", tool="ExitPlanMode")
    assert (row["outcome_log"], row["is_error"]) == (None, True)


def test_error_tag_does_not_make_another_failure() -> None:
    bare = one_result("String to replace not found in file.", tool="Edit")
    tagged = one_result("<tool_use_error>String to replace not found in file.</tool_use_error>", tool="Edit")
    assert bare["signature"] == tagged["signature"] is not None


def test_results_in_parts_and_pictures() -> None:
    def picture(data: str) -> list[dict[str, Any]]:
        return [{"type": "image", "source": {"type": "base64", "data": data}}]

    parts = one_result([{"type": "text", "text": "alpha"}], is_error=False)["result_hash"]
    assert parts == one_result("alpha", is_error=False)["result_hash"]
    assert (
        one_result(picture("AAAA"), is_error=False)["result_hash"]
        != one_result(picture("BBBB"), is_error=False)["result_hash"]
    )
    assert (
        one_result(picture("AAAA"), is_error=False)["result_hash"]
        == one_result(picture("AAAA"), is_error=False)["result_hash"]
    )


def test_records_that_carry_nothing_are_counted_by_type() -> None:
    told = feed(ClaudeCode(), [ask(), answer()])
    synthetic = {"model": "<synthetic>", "content": [{"type": "text", "text": "none"}], "usage": USAGE}
    lines = [
        record("assistant", "x-1", message=synthetic, isApiErrorMessage=True),
        record("assistant", "x-2", message=synthetic),
        record("user", "x-3", message={"role": "user", "content": "hi"}),
        record("user", "x-4", message={"role": "user", "content": "hi"}, isMeta=True),
        record("user", "x-5", message={"role": "user", "content": "hi"}, isCompactSummary=True),
        record(
            "user",
            "x-6",
            message={"role": "user", "content": [{"type": "text", "text": "[Request interrupted by user]"}]},
        ),
        record("system", "x-7", subtype="compact_boundary"),
        record("attachment", "x-8", attachment={"type": "skill_listing"}),
        record("progress", "x-9", data={"type": "bash_progress"}),
        {"type": "summary", "summary": "s", "leafUuid": "l"},
        {"type": "file-history-snapshot", "snapshot": {}},
        {"type": "brand-new"},
        record(
            "assistant",
            "x-10",
            message={"id": "m", "model": "claude-test-1", "content": [{"type": "text", "text": "ok"}]},
        ),
    ]
    fed = feed(ClaudeCode(), lines, state=told.state)
    assert fed.nothing == {
        "assistant/api_error": 1,
        "assistant/synthetic": 1,
        "user/prompt": 2,
        "user/meta": 1,
        "user/compact_summary": 1,
        "system/compact_boundary": 1,
        "attachment/skill_listing": 1,
        "progress/bash_progress": 1,
        "summary": 1,
        "file-history-snapshot": 1,
        "brand-new": 1,
        "assistant/text": 1,
    }
    assert all(rows == [] for rows in fed.rows.values())


def test_calls_without_ids_are_paired_by_the_record_they_name_then_in_order() -> None:
    lines = [
        ask("u-1", None),
        ask("u-2", None),
        ask("u-3", None),
        answer("r-2", None, text="second", sourceToolAssistantUUID="u-2"),
        answer("r-1", None, text="first"),
        answer("r-3", None, text="third"),
        answer("r-4", None, text="nobody asked"),
    ]
    fed = feed(ClaudeCode(), lines)
    assert [row["call_id"] for row in fed.rows["result"]] == ["u-2#0", "u-1#0", "u-3#0"]
    assert [call["call_id"] for call in fed.calls] == ["u-1#0", "u-2#0", "u-3#0"]


def test_oldest_records_with_the_call_on_the_line_itself() -> None:
    lines = [
        record("tool_use", "t-1", name="bash", input={"command": "ls"}),
        record("tool_result", "t-2", name="bash", output="a.py"),
    ]
    fed = feed(ClaudeCode(), lines)
    assert [(call["tool"], fed.results[call["call_id"]]["is_error"]) for call in fed.calls] == [("bash", False)]


def test_result_whose_call_is_not_in_the_file_is_kept() -> None:
    assert feed(ClaudeCode(), [answer()]).results[CALL]["is_error"] is False


def test_message_without_a_session_is_rejected_and_the_next_is_read() -> None:
    fed = feed(ClaudeCode(), [{key: value for key, value in ask().items() if key != "sessionId"}, ask("u-9")])
    assert fed.rejects == [(1, "no_session")]
    assert len(fed.calls) == 1


def test_reading_on_from_the_state_is_the_same_as_reading_at_once() -> None:
    lines = [
        ask("u-1", None),
        ask("u-2", None, tool="ExitPlanMode"),
        answer("r-1", None),
        answer("r-2", None, "no", True),
        ask("u-3"),
    ]
    whole = feed(ClaudeCode(), lines)
    for cut in range(1, len(lines)):
        first = feed(ClaudeCode(), lines[:cut])
        rest = feed(
            ClaudeCode(),
            lines[cut:],
            state=json.loads(json.dumps(first.state)),
            pending=first.pending,
            first_line=cut + 1,
        )
        for kind in whole.rows:
            assert first.rows[kind] + rest.rows[kind] == whole.rows[kind]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ask()),
        json.dumps(answer()),
        json.dumps(record("progress", "p", data={})),
        json.dumps(record("system", "s")),
    ],
)
def test_recognises_a_single_record(text: str) -> None:
    assert ClaudeCode().matches(head_of(text)) >= 90


@pytest.mark.parametrize(
    "value",
    [
        {"type": "summary", "summary": "s", "leafUuid": "l"},
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s", "timestamp": "2026-01-01T00:00:00Z"},
    ],
)
def test_recognises_a_file_that_has_no_message_yet(value: dict[str, Any]) -> None:
    assert 0 < ClaudeCode().matches(head_of(json.dumps(value))) < 90


@pytest.mark.parametrize(
    "value",
    [
        {"type": "response_item", "payload": {}},
        {"v": 1, "type": "step", "session": "s"},
        {"role": "user", "content": "x"},
        {"type": "user", "sessionId": "s", "uuid": "u", "message": {"role": "user", "parts": [{"text": "x"}]}},
        {"type": "message", "message": {"role": "user"}},
        {"hook_event_name": "PreToolUse", "session_id": "s"},
        {"type": ["user"]},
    ],
)
def test_leaves_other_formats_alone(value: dict[str, Any]) -> None:
    assert ClaudeCode().matches(head_of(json.dumps(value))) == 0


def test_array_of_records_is_the_same_log() -> None:
    document = [ask(), answer(), 7, {"type": "user"}]
    head = head_of(json.dumps(document, indent=1), "chat.json")
    assert ClaudeCodeArray().matches(head) == 95
    fed = feed_document(ClaudeCodeArray(), document)
    lines = feed(ClaudeCode(), document[:2])
    for kind in ("call", "result", "turn"):
        assert [row["uid"] for row in fed.rows[kind]] == [row["uid"] for row in lines.rows[kind]]
    assert [row["source_line"] for row in fed.calls] == [1]
    assert fed.rejects == [(3, "not_an_object"), (4, "no_session")]


def _shapes() -> list[Any]:
    odd: list[Any] = [None, 7, -1.5, "", "x\ud800", True, [], [[]], [None, 7], {}, {"type": 7}, {"content": {"a": []}}]
    shapes = list(HOSTILE)
    for value in odd:
        for make in (ask, answer):
            line = make()
            shapes.extend(line | {key: value} for key in line)
            shapes.extend(line | {"message": line["message"] | {key: value}} for key in line["message"])
            block = line["message"]["content"][0]
            shapes.extend(line | {"message": line["message"] | {"content": [block | {key: value}]}} for key in block)
        shapes.append(answer(used=value))
        shapes.append(answer(used={"stdout": value, "stderr": value, "code": value, "url": value, "durationMs": value}))
        shapes.append(record("progress", "p", data={"type": "agent_progress", "agentId": value, "message": value}))
        shapes.append(nested("assistant", value))
    return shapes


def test_wrong_shapes_never_stop_the_file() -> None:
    shapes = _shapes()
    fed: Fed = feed(ClaudeCode(), [*shapes, ask("last", "toolu_01LastOne890123456789Last")])
    assert fed.calls[-1]["call_id"] == "toolu_01LastOne890123456789Last"
    assert {reason for _, reason in fed.rejects} <= {"no_session", "TypeError", "not_an_object"}
    assert len(fed.rejects) < len(shapes) / 2


@pytest.mark.parametrize(
    ("document", "types"),
    [
        ({"agentType": "general-purpose", "spawnDepth": 1}, ["agent meta"]),
        ({"version": 1, "entries": [{"sessionId": "a", "fullPath": "/a.jsonl"}] * 2}, ["sessions index"] * 2),
        ({"version": 1, "entries": []}, ["sessions index"]),
    ],
)
def test_what_lies_beside_the_logs_carries_nothing(document: Any, types: list[str]) -> None:
    """A home of the agent must be readable with --strict."""
    known = recognise(head_of(json.dumps(document)))
    assert known is not None and known.name == "claude-code-beside"
    fed = feed_document(ClaudeCodeBeside(), document)
    assert (fed.calls, fed.nothing) == ([], {types[0]: len(types)})


def test_a_document_with_an_agent_type_and_a_session_is_none_of_those() -> None:
    assert ClaudeCodeBeside().matches(head_of(json.dumps({"agentType": "x", "sessionId": "a"}))) == 0
