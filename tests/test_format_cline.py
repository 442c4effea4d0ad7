"""Cline and Roo Code: XML tags in text, native calls, results as text, usage from the screen's messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emitting import HOSTILE, feed_document
from loopstats.formats import Head
from loopstats.formats.cline import ClineRoo, parameters

ENVIRONMENT = {
    "type": "text",
    "text": "<environment_details>\n# Current Workspace Directory (/home/ada/shop) Files\n</environment_details>",
}


def _ask(ts: int, *texts: str) -> dict[str, Any]:
    return {"role": "user", "ts": ts, "content": [*({"type": "text", "text": text} for text in texts), ENVIRONMENT]}


def _say(ts: int, text: str) -> dict[str, Any]:
    return {"role": "assistant", "ts": ts, "content": [{"type": "text", "text": text}]}


TASK = [
    _ask(1_700_000_000_000, "<task>\nmend it\n</task>"),
    _say(
        1_700_000_001_000,
        "I know `<read_file>`.\n<execute_command>\n<command>npm test && echo <b></command>\n</execute_command>",
    ),
    _ask(
        1_700_000_002_000,
        "[execute_command for 'npm test'] Result:",
        "Command executed in terminal  within working directory '/home/ada/shop'. Exit code: 1\nOutput:\n1 failing",
    ),
    _say(
        1_700_000_003_000,
        "<read_file>\n<args>\n<file>\n<path>src/a.ts</path>\n<line_range>1-9</line_range>\n</file>\n</args>\n</read_file>",
    ),
    _ask(1_700_000_004_000, "[read_file for 'src/a.ts'] Result:\n\n<files>an <error> in the middle</files>"),
    _say(1_700_000_005_000, "<write_to_file>\n<path>src/b.ts</path>\n<content>never closed"),
    _ask(
        1_700_000_006_000,
        "[write_to_file for 'src/b.ts'] Result:",
        "The tool execution failed with the following error:\n<error>\nno\n</error>",
    ),
    _say(1_700_000_007_000, "<apply_diff>\n<path>src/b.ts</path>\n<diff>x</diff>\n</apply_diff>"),
    _ask(1_700_000_008_000, "[apply_diff for 'src/b.ts'] Result:", "The user denied this operation."),
    _say(1_700_000_009_000, "<attempt_completion>\n<result>done</result>\n</attempt_completion>"),
]


def test_tags_at_the_start_of_a_line_are_calls() -> None:
    fed = feed_document(ClineRoo(), TASK)
    assert fed.outcomes() == [
        ("execute_command", "failure", None),
        ("read_file", "success", None),
        ("write_to_file", "failure", None),
        ("apply_diff", "vetoed", "user"),
        ("attempt_completion", "unknown", "missing"),
    ]
    assert [row["target"] for row in fed.calls[1:4]] == [row["target"] for row in fed.calls[1:2]] + [
        fed.calls[2]["target"]
    ] * 2
    assert fed.calls[1]["target"].endswith("src/a.ts")
    first = fed.results[fed.calls[0]["call_id"]]
    assert (first["exit_code"], first["message"]) == (1, "1 failing")
    assert len({row["decision_key"] for row in fed.calls}) == 5
    assert fed.rows["session"][0]["cwd"] == "/home/ada/shop"
    assert all(row["ts"] for row in fed.calls)
    thanks = _ask(1_700_000_010_000, "thanks")
    assert feed_document(ClineRoo(), [*TASK, thanks]).nothing == {"message/user": 1}


def test_the_session_does_not_come_from_the_path() -> None:
    names = {
        row["session_id"]
        for path in ("t1/api_conversation_history.json", "t2/x.json")
        for row in feed_document(ClineRoo(), TASK, name=path).calls
    }
    assert len(names) == 1 and names.pop().startswith("cline-roo~")


def test_native_calls() -> None:
    task = [
        _ask(1, "<task>x</task>"),
        {
            "role": "assistant",
            "ts": 2,
            "content": [
                {"type": "tool_use", "id": "u1", "name": "read_file", "input": {"path": "a"}},
                {"type": "tool_use", "id": "u2", "name": "read_file", "input": {"path": "b"}},
            ],
        },
        {
            "role": "user",
            "ts": 3,
            "content": [
                {"type": "tool_result", "tool_use_id": "u2", "content": "no", "is_error": True},
                {"type": "tool_result", "tool_use_id": "u1", "content": [{"type": "text", "text": "ok"}]},
            ],
        },
    ]
    fed = feed_document(ClineRoo(), task)
    assert fed.outcomes() == [("read_file", "success", None), ("read_file", "failure", None)]
    assert len({row["decision_key"] for row in fed.calls}) == 1


def test_summaries_carry_nothing_and_keep_the_ids_of_what_follows() -> None:
    condensed = [
        TASK[0],
        TASK[1],
        TASK[2],
        {"role": "assistant", "ts": 5, "isSummary": True, "content": "<read_file>"},
        *TASK[3:],
    ]
    fed = feed_document(ClineRoo(), condensed)
    assert {row["uid"] for row in fed.calls} == {row["uid"] for row in feed_document(ClineRoo(), TASK).calls}
    assert fed.nothing == {"summary": 1}


def test_usage_of_the_screen_goes_to_the_turns_of_the_conversation_beside_it(tmp_path: Path) -> None:
    screen = [
        {
            "ts": 1_700_000_000_500,
            "type": "say",
            "say": "api_req_started",
            "text": json.dumps(
                {"request": "…", "tokensIn": 10, "tokensOut": 3, "cacheReads": 7, "cacheWrites": 2, "cost": 0.5}
            ),
        },
        {"ts": 1_700_000_001_500, "type": "say", "say": "error", "text": "repeated"},
        {"ts": 1_700_000_002_500, "type": "say", "say": "api_req_started", "text": '{"request": "no usage yet"}'},
    ]
    (tmp_path / "api_conversation_history.json").write_text(json.dumps(TASK))
    fed = feed_document(ClineRoo(), screen, name=str(tmp_path / "ui_messages.json"))
    (turn,) = fed.rows["turn"]
    call = feed_document(ClineRoo(), TASK).calls[0]
    assert (turn["session_id"], turn["decision_key"]) == (call["session_id"], call["decision_key"])
    assert (
        turn["tokens_input"],
        turn["tokens_output"],
        turn["tokens_cache_read"],
        turn["tokens_cache_write"],
        turn["cost_micros"],
    ) == (10, 3, 7, 2, 500_000)
    assert fed.calls == [] and fed.nothing == {"ui_message": 2}
    alone = feed_document(ClineRoo(), screen, name=str(tmp_path / "elsewhere" / "ui_messages.json"))
    assert alone.rows["turn"] == [] and alone.nothing == {"ui_message": 3}


def test_parameters() -> None:
    text = '<use_mcp_tool>\n<server_name>s</server_name>\n<arguments>{"a": 1}</arguments>\n</use_mcp_tool> <b>no</b>'
    assert parameters(text, len("<use_mcp_tool>"), "use_mcp_tool") == {"server_name": "s", "arguments": {"a": 1}}
    assert parameters("<path>" * 50_000, 0, "read_file")["path"].startswith("<path>")


def test_recognised_by_content() -> None:
    assert ClineRoo().matches(Head("x", "", [], TASK)) > 0
    assert ClineRoo().matches(Head("x", "", [], [{"ts": 1, "type": "say", "say": "text", "text": ""}])) > 0
    assert ClineRoo().matches(Head("task_metadata.json", "", [], {"files_in_context": []})) > 0
    assert (
        ClineRoo().matches(
            Head("x", "", [], [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}])
        )
        == 0
    )


@pytest.mark.parametrize(
    "shape",
    [*HOSTILE, [], None, 7, {"role": "user", "content": [7, {"type": "tool_result"}, {"type": "text", "text": 7}]}],
)
def test_hostile_shapes_end_in_a_reject_or_nothing(shape: Any) -> None:
    assert len(feed_document(ClineRoo(), [*TASK[:3], shape, *TASK[3:]]).calls) == 5
    assert feed_document(ClineRoo(), shape).calls == []
