"""mini-swe-agent: tool calls, fenced blocks, response items, format errors, time-outs, run ids, endings."""

from __future__ import annotations

import json
from typing import Any

from emitting import HOSTILE, feed_document, head_of
from loopstats.formats import canonical_id
from loopstats.formats.mini_swe import MiniSwe, fenced


def asked(call_id: str, command: str, cost: float = 0.25) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "next",
        "tool_calls": [{"id": call_id, "function": {"name": "bash", "arguments": json.dumps({"command": command})}}],
        "extra": {
            "cost": cost,
            "timestamp": 1_760_000_000.5,
            "response": {
                "model": "m-1",
                "usage": {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}},
            },
        },
    }


def answered(call_id: str, code: int, text: str = "out", **extra: Any) -> dict[str, Any]:
    return {
        "role": "tool",
        "tool_call_id": call_id,
        "content": f"<returncode>{code}</returncode>\n<output>\n{text}\n</output>",
        "extra": {"returncode": code, "raw_output": text, "timestamp": 1_760_000_001.0, **extra},
    }


def run(messages: list[Any], status: str | None = "Submitted", instance: str | None = "repo__task-1") -> dict[str, Any]:
    info = {"mini_version": "2.2.0", "config": {"environment": {"cwd": "/srv"}, "model": {"model_name": "p/m"}}}
    start = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    body = {
        "trajectory_format": "mini-swe-agent-1.1",
        "info": info | ({"exit_status": status} if status else {}),
        "messages": start + messages,
    }
    return body | ({"instance_id": instance} if instance else {})


def text_turn(command: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"Thinking.\n\n```mswea_bash_command\n{command}\n```"}


END = {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted", "submission": "diff"}}


def test_calls_results_usage_and_ending() -> None:
    fed = feed_document(
        MiniSwe(), run([asked("a", "pytest -q"), answered("a", 1, "1 failed"), asked("b", "echo COMPLETE"), END])
    )
    assert fed.rejects == []
    assert fed.outcomes() == [("bash", "failure", None), ("bash", "success", None)]
    session = fed.rows["session"][0]
    assert (session["task"], session["harness"], session["cwd"], session["model"]) == (
        "repo__task-1",
        "mini-swe-agent 2.2.0",
        "/srv",
        "p/m",
    )
    turn = fed.rows["turn"][0]
    assert (
        turn["tokens_input"],
        turn["tokens_cache_read"],
        turn["tokens_output"],
        turn["cost_micros"],
        turn["model"],
    ) == (40, 60, 7, 250_000, "m-1")
    assert [row["decision_key"] for row in fed.calls] == [row["decision_key"] for row in fed.rows["turn"]]
    assert [(f["ending"], f["solved"]) for f in fed.rows["fact"]] == [("commit", None)]
    assert fed.calls[0]["ts"] == 1_760_000_000_500_000


def test_run_id_is_the_instance_and_the_hash_of_the_first_model_turn() -> None:
    first = asked("a", "ls")
    fed = feed_document(MiniSwe(), run([first, answered("a", 0)]))
    assert fed.calls[0]["session_id"] == f"repo__task-1~{canonical_id(first)}"
    unnamed = feed_document(MiniSwe(), run([first], instance=None))
    assert unnamed.calls[0]["session_id"] == f"mini-swe-agent~{canonical_id(first)}"


def test_return_code_minus_one_is_a_time_out() -> None:
    fed = feed_document(MiniSwe(), run([asked("a", "sleep 99"), answered("a", -1, "", exception_info="timed out")]))
    assert fed.outcomes() == [("bash", "failure", "timeout")]
    assert fed.results["a"]["error_code"] == "timeout"


def test_endings() -> None:
    for status, ending in (("LimitsExceeded", "cap"), ("Timeout", "cap"), ("InternalServerError", "crash")):
        fed = feed_document(MiniSwe(), run([asked("a", "ls"), answered("a", 0)], status=status))
        assert [f["ending"] for f in fed.rows["fact"]] == [ending]
    assert feed_document(MiniSwe(), run([asked("a", "ls")], status=None)).rows["fact"] == []


def test_run_that_ended_before_any_turn_has_an_ending_and_no_call() -> None:
    exit_only = {"role": "exit", "content": "", "extra": {"exit_status": "Timeout"}}
    fed = feed_document(MiniSwe(), run([exit_only], status="Timeout"))
    assert fed.calls == [] and [f["ending"] for f in fed.rows["fact"]] == ["cap"]
    assert feed_document(MiniSwe(), run([], status=None)).rows["session"] == []


def test_grown_file_repeats_the_identities() -> None:
    messages = [asked("a", "ls"), answered("a", 0), asked("b", "make"), answered("b", 2), END]
    short, long = feed_document(MiniSwe(), run(messages[:2], status=None)), feed_document(MiniSwe(), run(messages))
    for kind in ("call", "result", "turn", "session"):
        assert {row["uid"] for row in short.rows[kind]} <= {row["uid"] for row in long.rows[kind]}
    again = feed_document(MiniSwe(), run([*messages, {"role": "user", "content": "late"}]))
    assert {row["uid"] for row in again.rows["fact"]} == {row["uid"] for row in long.rows["fact"]}


def test_bare_list_with_fenced_commands() -> None:
    document = [
        {"role": "system", "content": "```bash\nnot a call\n```"},
        {"role": "user", "content": "task"},
        text_turn("cat a.py"),
        {"role": "user", "content": "<returncode>1</returncode>\n<output>\ncat: a.py: No such file\n</output>"},
        text_turn("sleep 99"),
        {"role": "user", "content": "The last command <command>sleep 99</command> timed out and has been killed."},
        text_turn("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff"),
        {"role": "user", "content": "diff --git a b"},
    ]
    fed = feed_document(MiniSwe(), document)
    assert [outcome[1:] for outcome in fed.outcomes()] == [("failure", None), ("failure", "timeout"), ("success", None)]
    assert len({row["decision_key"] for row in fed.calls}) == 3
    cut_off = fed.rows["result"][1]
    assert (cut_off["message"], cut_off["outcome_source"]) == (
        "the last command timed out and has been killed.",
        "text",
    )
    assert MiniSwe().matches(head_of(json.dumps(document))) == 85


def test_format_error_is_a_malformed_call() -> None:
    complaint = {
        "role": "user",
        "content": "Please always provide EXACTLY ONE action in triple backticks, found 2 actions.",
    }
    two = {"role": "assistant", "content": "```bash\nls\n```\n```bash\npwd\n```"}
    fed = feed_document(MiniSwe(), run([two, complaint, asked("a", "ls"), answered("a", 0)]))
    assert [outcome[:2] for outcome in fed.outcomes()] == [("bash", "failure"), ("bash", "success")]
    bad = fed.results[fed.calls[0]["call_id"]]
    assert (bad["error_code"], bad["outcome_source"]) == ("format_error", "log")
    assert fed.calls[0]["decision_key"] != fed.calls[1]["decision_key"]
    marked = {"role": "user", "content": "other words", "extra": {"interrupt_type": "FormatError"}}
    assert [o[1] for o in feed_document(MiniSwe(), run([asked("a", "ls"), answered("a", 0), marked])).outcomes()] == [
        "success",
        "failure",
    ]


def test_response_items() -> None:
    reply = {
        "object": "response",
        "model": "m-2",
        "usage": {"input_tokens": 50, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 20}},
        "output": [
            {"type": "reasoning"},
            {"type": "function_call", "call_id": "x", "name": "bash", "arguments": '{"command": "make"}'},
            {"type": "function_call", "call_id": "y", "name": "bash", "arguments": '{"command": "ls"}'},
        ],
    }
    results = [
        {"type": "function_call_output", "call_id": "y", "output": "<returncode>0</returncode>"},
        {
            "type": "function_call_output",
            "call_id": "x",
            "output": "<returncode>2</returncode>\n<output>\nbroken\n</output>",
        },
    ]
    fed = feed_document(MiniSwe(), run([reply, *results]))
    assert [o[1] for o in fed.outcomes()] == ["failure", "success"]
    assert len({row["decision_key"] for row in fed.calls}) == 1
    assert (fed.rows["turn"][0]["tokens_input"], fed.rows["turn"][0]["model"]) == (30, "m-2")


def test_result_without_id_answers_the_oldest_open_call() -> None:
    fed = feed_document(MiniSwe(), run([asked("a", "ls"), {"role": "tool", "content": "<returncode>3</returncode>"}]))
    assert fed.results["a"]["exit_code"] == 3


def test_an_id_that_is_given_again_is_another_call() -> None:
    fed = feed_document(MiniSwe(), run([asked("c", "make"), answered("c", 2), asked("c", "make"), answered("c", 0)]))
    assert [o[1] for o in fed.outcomes()] == ["failure", "success"]


def test_fences() -> None:
    assert fenced("a\n```bash\nls\npwd\n```\nb\n```python\nx\n```") == ["ls\npwd"]
    assert fenced("```bash\nnever closed") == []
    assert fenced("```bash\n" * 200_000) == []


def test_matches_by_content() -> None:
    assert MiniSwe().matches(head_of(json.dumps(run([]), indent=1))) == 98
    assert MiniSwe().matches(head_of(json.dumps({"messages": [], "info": {}}, indent=1))) == 0


def test_hostile_shapes_are_skipped_and_the_rest_is_read() -> None:
    fed = feed_document(
        MiniSwe(), run([*HOSTILE, None, 7, asked("a", "ls"), answered("a", 4), {"role": "tool", "content": [[[]]]}])
    )
    assert fed.results["a"]["exit_code"] == 4
    assert {reason for _, reason in fed.rejects} == {"not_an_object"} and len(fed.rejects) == 2
    for document in ({}, {"messages": 7}, [], 7, None, {"messages": [], "info": 7}):
        assert feed_document(MiniSwe(), document).calls == []
    assert feed_document(MiniSwe(), b"{ not json").rejects == [(0, "not_json")]
