"""Codex rollouts: calls, every form of output, usage as differences, decisions, forks, old shapes, hostile input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emitting import HOSTILE, feed, head_of
from lines import ingest, tables_of
from loopstats.formats.codex import Codex, read_output

CALL_A, CALL_B, CALL_C = "call_aaaaaaaaaaaaaaaaaaaa", "call_bbbbbbbbbbbbbbbbbbbb", "call_cccccccccccccccccccc"


def line(kind: str, payload: dict[str, Any], ts: str = "2026-01-02T03:04:05Z") -> dict[str, Any]:
    return {"timestamp": ts, "type": kind, "payload": payload}


def meta(session: str = "s-1", **more: Any) -> dict[str, Any]:
    return line("session_meta", {"id": session, "cwd": "/repo", "cli_version": "0.40.0", **more})


def call(call_id: str, command: str = "make check", **more: Any) -> dict[str, Any]:
    arguments = json.dumps({"command": ["bash", "-lc", command], **more})
    return line("response_item", {"type": "function_call", "name": "shell", "arguments": arguments, "call_id": call_id})


def output(call_id: str, value: Any) -> dict[str, Any]:
    return line("response_item", {"type": "function_call_output", "call_id": call_id, "output": value})


def exited(code: int, text: str = "done") -> str:
    return json.dumps({"output": text, "metadata": {"exit_code": code, "duration_seconds": 1.5}})


def count(total: tuple[int, int, int], last: tuple[int, int, int] | None = None) -> dict[str, Any]:
    def usage(numbers: tuple[int, int, int]) -> dict[str, int]:
        return {"input_tokens": numbers[0], "cached_input_tokens": numbers[1], "output_tokens": numbers[2]}

    return line(
        "event_msg",
        {"type": "token_count", "info": {"total_token_usage": usage(total), "last_token_usage": usage(last or total)}},
    )


def user() -> dict[str, Any]:
    return line(
        "response_item", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]}
    )


def test_session_facts_come_from_the_first_meta_and_the_turn_context() -> None:
    fed = feed(Codex(), [meta(), line("turn_context", {"cwd": "/repo/sub", "model": "gpt-x"}), call(CALL_A), meta()])
    first = fed.rows["session"][0]
    assert (first["session_id"], first["cwd"], first["harness"], first["version"]) == (
        "s-1",
        "/repo",
        "codex 0.40.0",
        "0.40.0",
    )
    assert fed.rows["session"][1]["model"] == "gpt-x"
    assert fed.calls[0]["model"] == "gpt-x"
    assert fed.folds == {"repeat": 1}


@pytest.mark.parametrize(
    ("meta_fields", "parent"),
    [
        ({"forked_from_id": "p"}, "p"),
        ({"parent_thread_id": "p"}, "p"),
        ({"source": {"subagent": {"thread_spawn": {"parent_thread_id": "p"}}}}, "p"),
        ({"session_id": "s-1"}, None),
        ({}, None),
    ],
)
def test_parent_session_is_the_one_that_the_log_names(meta_fields: dict[str, Any], parent: str | None) -> None:
    assert feed(Codex(), [meta(**meta_fields)]).rows["session"][0]["parent_session"] == parent


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (exited(0), ("success", None)),
        (exited(2, "ERROR collecting"), ("failure", None)),
        (
            "failed in sandbox None with execution error: sandbox denied exec error, exit code: 2, stdout: a, stderr: ",
            ("failure", None),
        ),
        ("failed in sandbox None with execution error: command timed out", ("failure", "timeout")),
        ("error: Failed to find expected lines in /repo/a.py:\nx = 1", ("failure", None)),
        ("unsupported call: no_such_tool", ("failure", None)),
        ("exec command rejected by user", ("vetoed", "user")),
        ("patch rejected by user", ("vetoed", "user")),
        (
            "patch rejected: writing outside of the project; rejected by user approval settings",
            ("vetoed", "permission"),
        ),
        ("aborted by user after 3.1s", ("unknown", "interrupt")),
        ("Exit code: 1\nWall time: 0.2 seconds\nOutput:\nboom", ("failure", None)),
        ("Exit code: 0\nWall time: 0.2 seconds\nOutput:\nExit code: 9", ("success", None)),
        (
            "Chunk ID: ab12\nWall time: 1.0 seconds\nProcess exited with code 3\nOriginal token count: 4\nOutput:\nx",
            ("failure", None),
        ),
        ("Chunk ID: ab12\nWall time: 1.0 seconds\nProcess running with session ID 7\nOutput:\nx", ("unknown", None)),
        (
            "Exit code: 124\nWall time: 10 seconds\nOutput:\ncommand timed out after 10000 milliseconds",
            ("failure", "timeout"),
        ),
        ([{"type": "input_text", "text": "Exit code: 5\nOutput:\n"}], ("failure", None)),
        ({"content": "no", "success": False}, ("failure", None)),
        ("Success. Updated the following files:\nM a.py", ("success", None)),
        ("the word error: in the middle is no failure", ("unknown", None)),
        ({"type": "input_text", "text": "plain"}, ("unknown", None)),
    ],
)
def test_outcome_of_each_form_of_output(value: Any, expected: tuple[str, str | None]) -> None:
    fed = feed(Codex(), [meta(), call(CALL_A), output(CALL_A, value)])
    assert [outcome[1:] for outcome in fed.outcomes()] == [expected]


def test_the_wrapper_of_the_sandbox_and_the_header_block_are_taken_off_the_text() -> None:
    denied = read_output(
        "failed in sandbox LinuxSeccomp with execution error: sandbox denied exec error, "
        "exit code: 7, stdout: out, stderr: err"
    )
    assert (denied.text, denied.exit_code, denied.is_error, denied.source) == ("out\nerr", 7, True, "text")
    block = read_output("Exit code: 3\nWall time: 2.5 seconds\nTotal output lines: 9\nOutput:\nline one")
    assert (block.text, block.exit_code, block.duration_ms) == ("line one", 3, 2500)
    assert read_output(exited(0)).duration_ms == 1500
    assert read_output(exited(0, "a\n[... omitted 12 of 400 lines ...]\nb")).is_truncated is True


def test_exit_code_and_message_of_a_failure_reach_the_row() -> None:
    fed = feed(Codex(), [meta(), call(CALL_A), output(CALL_A, exited(2, "E0001 wrong"))])
    row = fed.results[CALL_A]
    assert (row["exit_code"], row["outcome_source"], row["duration_ms"]) == (2, "exit", 1500)
    assert row["signature"]


def test_call_without_output_is_unknown_and_an_aborted_turn_says_nothing() -> None:
    fed = feed(Codex(), [meta(), call(CALL_A), line("event_msg", {"type": "turn_aborted", "reason": "interrupted"})])
    assert fed.outcomes() == [("shell", "unknown", "missing")]
    assert fed.nothing == {"event_msg/turn_aborted": 1}


def test_working_directory_of_the_call_is_resolved_against_the_session() -> None:
    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch"

    def with_patch(call_id: str, workdir: str | None) -> dict[str, Any]:
        arguments = {"input": patch} | ({"workdir": workdir} if workdir else {})
        return line(
            "response_item",
            {"type": "function_call", "name": "apply_patch", "arguments": json.dumps(arguments), "call_id": call_id},
        )

    fed = feed(Codex(), [meta(), with_patch(CALL_A, None), with_patch(CALL_B, "sub"), with_patch(CALL_C, "/other")])
    assert [row["target"] for row in fed.calls] == ["/repo/a.py", "/repo/sub/a.py", "/other/a.py"]
    assert {row["kind"] for row in fed.calls} == {"edit"}


def test_all_kinds_of_call_items_are_calls() -> None:
    items = [
        {
            "type": "custom_tool_call",
            "name": "apply_patch",
            "call_id": CALL_A,
            "input": "*** Begin Patch\n*** Add File: n.py\n+x\n*** End Patch",
        },
        {
            "type": "local_shell_call",
            "call_id": CALL_B,
            "status": "completed",
            "action": {"type": "exec", "command": ["pytest", "-q"]},
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "web_search_call", "status": "failed", "action": {"type": "search", "query": "q"}},
        {"type": "tool_search_call", "call_id": "ts", "status": "completed", "arguments": {"query": "q"}},
        {"type": "tool_search_output", "call_id": "ts", "status": "completed", "tools": []},
    ]
    fed = feed(Codex(), [meta(), *(line("response_item", item) for item in items), output(CALL_B, exited(1))])
    assert fed.outcomes() == [
        ("apply_patch", "unknown", "missing"),
        ("local_shell", "failure", None),
        ("web_search", "success", None),
        ("web_search", "failure", None),
        ("tool_search", "success", None),
    ]
    assert fed.calls[0]["target"] == "/repo/n.py"


def test_an_event_repeats_the_item_and_adds_only_what_it_lacks() -> None:
    end = line(
        "event_msg",
        {"type": "exec_command_end", "call_id": CALL_A, "exit_code": 4, "duration": {"secs": 1, "nanos": 5_000_000}},
    )
    plain = feed(Codex(), [meta(), call(CALL_A), end, output(CALL_A, "no code here")])
    assert plain.outcomes() == [("shell", "failure", None)]
    assert plain.results[CALL_A]["duration_ms"] == 1005
    stated = feed(Codex(), [meta(), call(CALL_A), end, output(CALL_A, exited(0))])
    assert stated.outcomes() == [("shell", "success", None)]
    assert stated.nothing == {"event_msg/exec_command_end": 1}


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "exec_command_end", "exit_code": 4, "stderr": "error: boom"}, 4),
        (
            {"type": "mcp_tool_call_end", "result": {"Ok": {"isError": True, "content": [{"text": "error: boom"}]}}},
            None,
        ),
        ({"type": "mcp_tool_call_end", "result": {"Err": "error: boom"}}, None),
    ],
)
@pytest.mark.parametrize("is_grown", [False, True])
def test_an_event_after_the_output_adds_what_the_output_lacks(
    event: dict[str, Any], code: int | None, is_grown: bool, tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "rollout.jsonl"
    log.parent.mkdir()
    lines = [meta(), call(CALL_A), output(CALL_A, "text alone"), call(CALL_B), output(CALL_B, exited(0))]
    lines += [line("event_msg", event | {"call_id": CALL_A}), line("event_msg", event | {"call_id": CALL_B})]
    for upto in (3, len(lines)) if is_grown else (len(lines),):
        log.write_text("".join(json.dumps(record) + "\n" for record in lines[:upto]))
        ingest(tmp_path / "lake", log)
    steps = tables_of(tmp_path / "lake")["steps"].sort("step")
    assert steps.select("call_id", "outcome", "exit_code", "message").rows() == [
        (CALL_A, "failure", code, "error: boom"),
        (CALL_B, "success", 0, None),
    ]
    assert steps["signature"][0] is not None


def test_an_event_in_a_later_file_of_the_session_adds_what_the_output_lacks(tmp_path: Path) -> None:
    def at(second: int, record: dict[str, Any]) -> dict[str, Any]:
        return record | {"timestamp": f"2026-01-02T03:04:{second:02d}Z"}

    end = {"type": "exec_command_end", "call_id": CALL_A, "command": ["make"], "exit_code": 4, "stderr": "error: boom"}
    files = {
        "a": [at(1, meta()), at(2, call(CALL_A)), at(3, output(CALL_A, "text alone"))],
        "b": [at(5, meta()), at(6, line("event_msg", end))],
    }
    logs = tmp_path / "logs"
    logs.mkdir()
    for order in ("ab", "ba"):
        lake = tmp_path / order
        for name in order:
            (logs / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in files[name]))
            ingest(lake, logs / f"{name}.jsonl")
        steps = tables_of(lake)["steps"]
        assert steps.select("call_id", "tool", "outcome", "exit_code", "message").rows() == [
            (CALL_A, "shell", "failure", 4, "error: boom")
        ]
        assert tables_of(lake)["folds"].height == 2


def test_a_call_that_only_an_event_tells_of_is_a_step() -> None:
    end = line(
        "event_msg",
        {
            "type": "mcp_tool_call_end",
            "call_id": CALL_A,
            "invocation": {"server": "db", "tool": "write_row", "arguments": {"id": 7}},
            "result": {"Err": "no such table"},
        },
    )
    fed = feed(Codex(), [meta(), end])
    assert fed.outcomes() == [("mcp__db__write_row", "failure", None)]
    users = line("event_msg", {"type": "exec_command_end", "call_id": "u", "source": "userShell", "exit_code": 1})
    assert feed(Codex(), [meta(), users]).calls == []


def test_usage_is_the_difference_of_totals_and_a_repeat_is_folded() -> None:
    fed = feed(
        Codex(),
        [
            meta(),
            user(),
            count((100, 80, 10)),
            call(CALL_A),
            output(CALL_A, exited(0)),
            count((100, 80, 10)),
            count((250, 200, 30), (150, 120, 20)),
        ],
    )
    turns = fed.rows["turn"]
    assert [(t["tokens_input"], t["tokens_cache_read"], t["tokens_output"]) for t in turns] == [
        (20, 80, 10),
        (30, 120, 20),
    ]
    assert fed.folds == {"repeat": 1}


def test_a_total_that_falls_starts_again_with_the_last_usage() -> None:
    fed = feed(Codex(), [meta(), count((500, 0, 50)), count((40, 0, 4), (40, 0, 4))])
    assert [t["tokens_input"] for t in fed.rows["turn"]] == [500, 40]


def test_calls_between_two_counts_share_the_turn_of_the_count_before_them_in_old_logs() -> None:
    fed = feed(
        Codex(),
        [
            meta(),
            user(),
            count((10, 0, 1)),
            call(CALL_A),
            output(CALL_A, exited(0)),
            call(CALL_B),
            output(CALL_B, exited(0)),
            count((20, 0, 2)),
            call(CALL_C),
        ],
    )
    keys = [row["decision_key"] for row in fed.calls]
    assert keys[0] == keys[1] != keys[2]
    assert [t["decision_key"] for t in fed.rows["turn"]] == [keys[0], keys[2]]


def test_calls_share_the_turn_of_the_count_behind_them_in_new_logs() -> None:
    fed = feed(
        Codex(),
        [
            meta(),
            user(),
            call(CALL_A),
            call(CALL_B),
            count((10, 0, 1)),
            output(CALL_A, exited(0)),
            output(CALL_B, exited(0)),
            call(CALL_C),
            count((20, 0, 2)),
        ],
    )
    keys = [row["decision_key"] for row in fed.calls]
    assert keys[0] == keys[1] != keys[2]
    assert [t["decision_key"] for t in fed.rows["turn"]] == [keys[0], keys[2]]


def test_without_counts_only_neighbouring_calls_share_a_turn() -> None:
    fed = feed(
        Codex(),
        [meta(), call(CALL_A), call(CALL_B), output(CALL_A, exited(0)), output(CALL_B, exited(0)), call(CALL_C)],
    )
    keys = [row["decision_key"] for row in fed.calls]
    assert keys[0] == keys[1] != keys[2]


def test_a_fork_repeats_the_identities_of_its_parents_calls_results_and_counts() -> None:
    history = [user(), count((10, 0, 1)), call(CALL_A), output(CALL_A, exited(1)), count((25, 0, 2), (15, 0, 1))]
    parent = feed(Codex(), [meta("parent"), *history])
    child = feed(
        Codex(),
        [meta("child", forked_from_id="parent"), meta("parent"), *history, call(CALL_B), count((60, 0, 3), (35, 0, 1))],
    )
    grandchild = feed(Codex(), [meta("grandchild", forked_from_id="child"), *history, count((70, 0, 3), (45, 0, 1))])
    for kind in ("call", "result", "turn"):
        known = {row["uid"] for row in parent.rows[kind]}
        assert known and known <= {row["uid"] for row in child.rows[kind]}
        assert all(row["is_global"] for row in parent.rows[kind])
    assert len(child.rows["turn"]) == 3
    assert {row["uid"] for row in parent.rows["turn"][1:]} < {row["uid"] for row in grandchild.rows["turn"]}


def test_short_call_ids_hold_in_their_session_only() -> None:
    one, two = (feed(Codex(), [meta(name), call("call-1")]).calls[0] for name in ("a", "b"))
    assert one["uid"] != two["uid"] and not one["is_global"]


def test_replacement_history_of_a_compaction_is_no_call() -> None:
    fed = feed(
        Codex(),
        [
            meta(),
            line("compacted", {"message": "m", "replacement_history": [{"type": "function_call", "name": "shell"}]}),
        ],
    )
    assert fed.calls == [] and fed.nothing == {"compacted": 1}


def test_old_lines_without_a_wrapper() -> None:
    old = [
        {"id": "old-1", "timestamp": "2025-05-01T00:00:00Z", "instructions": None},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": []},
        {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": CALL_A},
        {"type": "function_call_output", "call_id": CALL_A, "output": exited(1)},
    ]
    fed = feed(Codex(), old)
    assert fed.rejects == [] and fed.calls[0]["session_id"] == "old-1"
    assert fed.results[CALL_A]["exit_code"] == 1
    assert Codex().matches(head_of("\n".join(map(json.dumps, old)))) >= 75


def test_reading_goes_on_where_it_stopped() -> None:
    lines = [
        meta(),
        user(),
        count((10, 0, 1)),
        call(CALL_A),
        output(CALL_A, exited(1)),
        count((30, 0, 2)),
        call(CALL_B),
        output(CALL_B, exited(0)),
    ]
    whole = feed(Codex(), lines)
    for cut in range(1, len(lines)):
        first = feed(Codex(), lines[:cut])
        rest = feed(
            Codex(),
            lines[cut:],
            state=json.loads(json.dumps(first.state)),
            pending=json.loads(json.dumps(first.pending)),
            first_line=cut + 1,
        )
        for kind in ("call", "result", "turn"):
            assert first.rows[kind] + rest.rows[kind] == whole.rows[kind]


def test_matches_by_content() -> None:
    assert Codex().matches(head_of(json.dumps(meta()) + "\n" + json.dumps(user()))) == 95
    assert Codex().matches(head_of(json.dumps({"type": "user", "uuid": "u", "message": {}}))) == 0


def test_hostile_shapes_are_rejected_or_skipped() -> None:
    fed = feed(Codex(), [meta(), *HOSTILE, call(CALL_A), output(CALL_A, exited(1))])
    assert fed.results[CALL_A]["exit_code"] == 1
    assert fed.lines_used + sum(fed.nothing.values()) + sum(fed.folds.values()) + len(fed.rejects) == len(HOSTILE) + 3
    assert {reason for _, reason in fed.rejects} >= {"call_without_tool"}


def test_long_outputs_are_read_in_linear_time() -> None:
    for text in (
        "Exit code: 1\n" * 80_000,
        "failed in sandbox " + "x" * 1_000_000,
        "[... omitted " * 80_000,
        "\n" * 1_000_000,
    ):
        assert read_output(text).outcome is None


def test_an_output_that_is_an_object_keeps_its_exit_code() -> None:
    told = {"output": "E0001 wrong", "metadata": {"exit_code": 2, "duration_seconds": 1.5}}
    as_object, as_text = (
        feed(Codex(), [meta(), call(CALL_A), output(CALL_A, form)]) for form in (told, json.dumps(told))
    )
    assert as_object.outcomes() == [("shell", "failure", None)]
    assert as_object.results[CALL_A] == as_text.results[CALL_A]


def test_two_rollouts_in_one_file_stay_two() -> None:
    other = meta() | {"payload": meta()["payload"] | {"id": "11111111-0000-7000-8000-000000000002", "cwd": "/other"}}
    lines = [meta(), call(CALL_A), output(CALL_A, exited(2)), other, call(CALL_B), output(CALL_B, exited(0))]
    fed = feed(Codex(), lines)
    assert [row["session_id"] for row in fed.calls] == [meta()["payload"]["id"], other["payload"]["id"]]
    assert [word for _, word, _ in fed.outcomes()] == ["failure", "success"]
    assert fed.folds == {}
