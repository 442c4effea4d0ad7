"""OpenHands: the four ways of writing a run, still-running commands, failed edits, cumulative files, event files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emitting import HOSTILE, Fed, feed, feed_document
from lines import ingest, tables_of
from loopstats.formats import Head
from loopstats.formats.openhands import OpenHands, OpenHandsCompletions, OpenHandsEvents, OpenHandsV1


def _action(number: int, action: str, response: str = "r1", total: float = 0.0, **args: Any) -> dict[str, Any]:
    return {
        "id": number,
        "timestamp": f"2025-01-01T00:00:{number:02d}",
        "source": "agent",
        "action": action,
        "args": args,
        "tool_call_metadata": {
            "function_name": "tool",
            "tool_call_id": "t_01",
            "model_response": {
                "id": response,
                "model": "m-1",
                "usage": {"prompt_tokens": 100, "completion_tokens": 7, "cache_read_input_tokens": 60},
            },
        },
        "llm_metrics": {"accumulated_cost": total},
    }


def _observation(
    cause: int, observation: str, content: str = "", exit_code: int | None = None, **more: Any
) -> dict[str, Any]:
    extras = {"metadata": {"exit_code": exit_code, "working_dir": "/workspace/repo"}} if exit_code is not None else {}
    return {
        "id": cause + 1,
        "timestamp": f"2025-01-01T00:00:{cause + 1:02d}",
        "source": "agent",
        "cause": cause,
        "observation": observation,
        "content": content,
        "extras": extras,
    } | more


EVENTS = [
    {
        "id": 0,
        "source": "agent",
        "action": "system",
        "args": {"openhands_version": "0.9"},
        "timestamp": "2025-01-01T00:00:00",
    },
    {
        "id": 1,
        "source": "user",
        "action": "message",
        "args": {"content": "mend it"},
        "timestamp": "2025-01-01T00:00:01",
    },
    _action(2, "run", "r1", 0.25, command="make test", thought="try"),
    _observation(2, "run", "boom", 2),
    _action(4, "edit", "r2", 0.75, path="/workspace/repo/a.c"),
    _observation(4, "edit", "ERROR:\nNo replacement was performed"),
    _action(6, "run", "r3", 0.75, command="./serve"),
    _observation(6, "run", "serving", -1),
    _action(8, "read", "r4", 1.0, path="/workspace/repo/a.c"),
    _observation(8, "read", "ERROR is a word in line 3"[6:]),
    {"id": 10, "source": "agent", "observation": "error", "content": "unknown parameter", "extras": {}},
    _action(12, "run", "r5", 1.0, command="rm x"),
    _observation(12, "user_rejected", "no"),
    _action(14, "finish", "r6", 1.0),
]


def _line(**more: Any) -> dict[str, Any]:
    return {
        "instance_id": "repo-1",
        "history": EVENTS,
        "metadata": {"llm_config": {"model": "m-0"}},
        "metrics": {},
        "error": None,
    } | more


def test_outcomes_of_a_run() -> None:
    fed = feed(OpenHands(), [_line()])
    assert fed.outcomes() == [
        ("run", "failure", None),
        ("edit", "failure", None),
        ("run", "unknown", "timeout"),
        ("read", "success", None),
        ("run", "vetoed", "user"),
        ("finish", "unknown", "missing"),
    ]
    assert fed.results["2"]["exit_code"] == 2
    assert fed.results["4"]["outcome_source"] == "text"
    (session,) = fed.rows["session"]
    assert (session["cwd"], session["version"], session["task"], session["model"]) == (
        "/workspace/repo",
        "0.9",
        "repo-1",
        "m-0",
    )


def test_usage_is_once_per_response_and_cost_is_what_the_sum_grew_by() -> None:
    fed = feed(OpenHands(), [_line()])
    assert [(row["decision_key"], row["cost_micros"]) for row in fed.rows["turn"]] == [
        ("r1", 250_000),
        ("r2", 500_000),
        ("r3", None),
        ("r4", 250_000),
        ("r5", None),
        ("r6", None),
    ]
    assert {(row["tokens_input"], row["tokens_cache_read"], row["tokens_output"]) for row in fed.rows["turn"]} == {
        (40, 60, 7)
    }
    listed = {
        "token_usages": [
            {"response_id": "r1", "prompt_tokens": 9, "completion_tokens": 1},
            {"response_id": "talk", "prompt_tokens": 5},
        ]
    }
    again = feed(OpenHands(), [_line(metrics=listed)])
    assert {row["decision_key"]: row["tokens_input"] for row in again.rows["turn"]}["r1"] == 9
    assert "talk" in {row["decision_key"] for row in again.rows["turn"]}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"error": "RuntimeError: Agent reached maximum iteration in headless mode"}, (None, "cap", None)),
        ({"error": "SomeError: gone"}, (None, "crash", None)),
        ({"test_result": {"result": True}}, (True, None, None)),
        ({"test_result": {"report": {"resolved": False}}}, (False, None, None)),
        ({"success": True}, (None, None, True)),
    ],
)
def test_ending_and_verdict(more: dict[str, Any], expected: tuple[Any, ...]) -> None:
    (fact,) = feed(OpenHands(), [_line(**more)]).rows["fact"]
    assert (fact["solved"], fact["ending"], fact["claimed"]) == expected


def test_its_own_loop_verdict_is_a_guard() -> None:
    fed = feed(OpenHands(), [_line(error="AgentStuckInLoopError: Agent got stuck in a loop")])
    assert [(row["name"], row["event"]) for row in fed.rows["guard"]] == [("stuck-in-loop", "raise")]


def test_oldest_pairs_and_resolver_shape() -> None:
    pairs = {
        "id": "P_1",
        "metadata": {"model_name": "old"},
        "test_result": {"result": False},
        "history": [
            [{"id": 0, "source": "user", "action": "message", "args": {}}, {"observation": "null", "content": ""}],
            [
                {"id": 3, "source": "agent", "action": "run_ipython", "args": {"code": "1/0"}},
                {
                    "id": 4,
                    "cause": 3,
                    "observation": "run_ipython",
                    "content": "Traceback (most recent call last):\nZeroDivisionError: x",
                    "extras": {},
                },
            ],
        ],
    }
    resolver = {
        "issue": {"owner": "o", "repo": "r", "number": 5},
        "git_patch": "",
        "metrics": {},
        "error": None,
        "history": [
            {"action": "message", "content": "mend"},
            {"action": "run", "command": "ls", "thought": "look"},
            {"observation": "run", "command": "ls", "exit_code": 0, "content": "a"},
            {"action": "run_ipython", "code": "open_file('a')"},
            {"observation": "run_ipython", "content": "[File: a]\nTraceback (most recent call last)"},
            {"action": "finish", "outputs": {}},
        ],
    }
    fed = feed(OpenHands(), [pairs, resolver])
    assert fed.outcomes() == [
        ("run_ipython", "failure", None),
        ("run", "success", None),
        ("run_ipython", "success", None),
        ("finish", "unknown", "missing"),
    ]
    assert [row["session_id"].split("~")[0] for row in fed.rows["session"]] == ["P_1", "o/r#5"]
    assert fed.rejects == []


def test_a_saved_trajectory_has_the_session_of_its_first_action_wherever_it_lies() -> None:
    here, there = (feed_document(OpenHandsEvents(), EVENTS, name=name) for name in ("a/t.json", "b/u.json"))
    assert {row["session_id"] for row in here.calls} == {row["session_id"] for row in there.calls}
    assert here.calls[0]["session_id"].startswith("openhands~")
    assert len(here.outcomes()) == 6 and here.nothing == {"message": 1, "error": 1}


def _completion(turns: int) -> dict[str, Any]:
    def assistant(number: int) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": f"step {number}",
            "tool_calls": [
                {
                    "id": f"tooluse_abcdefghijkl{number}",
                    "type": "function",
                    "index": 1,
                    "function": {"name": "execute_bash", "arguments": json.dumps({"command": f"make t{number}"})},
                }
            ],
        }

    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "mend it"}]}]
    for number in range(turns):
        said = assistant(number)
        messages.append(said | {"content": [{"type": "text", "text": said["content"]}]})
        messages.append(
            {
                "role": "tool",
                "tool_call_id": said["tool_calls"][0]["id"],
                "content": [
                    {
                        "type": "text",
                        "text": f"[Command finished with exit code 9]\n...\n[Command finished with exit code {number}]",
                    }
                ],
            }
        )
    return {
        "messages": messages,
        "args": [],
        "kwargs": {},
        "timestamp": 1_700_000_000.5 + turns,
        "cost": 0.01,
        "response": {
            "id": f"resp{turns}",
            "model": "m",
            "choices": [{"message": assistant(turns)}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2},
        },
    }


def test_cumulative_files_of_one_run_give_the_same_records() -> None:
    files = [feed_document(OpenHandsCompletions(), _completion(turns)) for turns in range(3)]
    assert len({row["session_id"] for fed in files for row in fed.calls}) == 1
    assert [len(fed.calls) for fed in files] == [1, 2, 3]
    assert {row["uid"] for row in files[0].calls} < {row["uid"] for row in files[2].calls}
    assert {row["decision_key"] for fed in files for row in fed.rows["turn"]} == {
        row["decision_key"] for row in files[2].calls
    }
    assert [word for _, word, _ in files[2].outcomes()] == ["success", "failure", "unknown"]
    assert files[2].results["tooluse_abcdefghijkl1"]["exit_code"] == 1


def _event(kind: str, number: int, **more: Any) -> dict[str, Any]:
    source = "agent" if kind in ("ActionEvent", "SystemPromptEvent") else "environment"
    return {"id": f"e{number}", "kind": kind, "source": source, "timestamp": f"2026-01-01T00:00:{number:02d}"} | more


def _write(folder: Path, events: list[dict[str, Any]]) -> list[Path]:
    folder.mkdir(parents=True)
    paths = [folder / f"event-{number:05d}-{event['id']}.json" for number, event in enumerate(events)]
    for path, event in zip(paths, events, strict=True):
        path.write_text(json.dumps(event))
    return paths


def _read(paths: list[Path]) -> list[Fed]:
    return [feed_document(OpenHandsV1(), json.loads(path.read_text()), name=str(path)) for path in paths]


V1 = [
    _event("SystemPromptEvent", 0),
    _event(
        "ActionEvent",
        1,
        tool_name="terminal",
        tool_call_id="call_1",
        llm_response_id="r1",
        action={"command": "make", "kind": "TerminalAction"},
    ),
    _event(
        "ObservationEvent",
        2,
        tool_call_id="call_1",
        action_id="e1",
        observation={
            "is_error": False,
            "exit_code": 2,
            "content": [{"type": "text", "text": "boom"}],
            "metadata": {"working_dir": "/w"},
        },
    ),
    _event(
        "ActionEvent",
        3,
        tool_name="file_editor",
        tool_call_id="call_2",
        llm_response_id="r2",
        action=None,
        tool_call={"name": "file_editor", "arguments": '{"path": "a.py", "summary": "words"}'},
    ),
    _event("AgentErrorEvent", 4, tool_call_id="call_2", tool_name="file_editor", error="bad arguments"),
    _event("ActionEvent", 5, tool_name="terminal", tool_call_id="call_3", action={"command": "rm x"}),
    _event("UserRejectObservation", 6, tool_call_id="call_3", action_id="e5", rejection_reason="no"),
]


def test_event_files_are_one_session_whatever_their_folder_is_called(tmp_path: Path) -> None:
    first, second = (_read(_write(tmp_path / name / "events", V1)) for name in ("aa11", "bb22"))
    sessions = {row["session_id"] for fed in [*first, *second] for rows in fed.rows.values() for row in rows}
    assert len(sessions) == 1
    (session,) = sessions
    assert session.startswith("openhands-v1~") and "aa11" not in session
    calls = [row for fed in first for row in fed.calls]
    results = {row["call_id"]: row for fed in first for row in fed.rows["result"]}
    assert [(row["tool"], row["decision_key"]) for row in calls] == [
        ("terminal", "r1"),
        ("file_editor", "r2"),
        ("terminal", None),
    ]
    assert (results["call_1"]["exit_code"], results["call_2"]["is_error"], results["call_3"]["outcome_log"]) == (
        2,
        True,
        "vetoed",
    )
    assert calls[1]["target"] == "a.py"
    assert first[0].nothing == {"SystemPromptEvent": 1}


def test_the_state_file_names_the_session(tmp_path: Path) -> None:
    paths = _write(tmp_path / "cc33" / "events", V1)
    state = tmp_path / "cc33" / "base_state.json"
    state.write_text(json.dumps({"id": "conversation-7", "agent": {}, "execution_status": "idle"}))
    assert {row["session_id"] for fed in _read(paths) for row in fed.calls} == {"conversation-7"}
    document = json.loads(state.read_text())
    assert OpenHandsV1().matches(Head("base_state.json", "", [], document)) > 0
    assert feed_document(OpenHandsV1(), document, name=str(state)).nothing == {"base_state": 1}


def test_a_lone_observation_has_no_session(tmp_path: Path) -> None:
    (lone,) = _write(tmp_path / "dd44", [V1[2]])
    (fed,) = _read([lone])
    assert fed.rejects == [(0, "no_session")] and fed.lines_used == 0


def test_recognised_by_content() -> None:
    assert OpenHands().matches(Head("x", "", [_line()])) > 0
    assert OpenHandsEvents().matches(Head("x", "", [], EVENTS)) > 0
    assert OpenHandsCompletions().matches(Head("x", "", [], _completion(1))) > 0
    assert OpenHandsV1().matches(Head("x", "", [], V1[2])) > 0
    patches = [{"instance_id": "a", "model_patch": "diff", "model_name_or_path": "m"}]
    for fmt in (OpenHands(), OpenHandsEvents(), OpenHandsCompletions(), OpenHandsV1()):
        assert fmt.matches(Head("output.jsonl", "", patches, patches)) == 0


@pytest.mark.parametrize(
    "shape",
    [*HOSTILE, [], None, 7, {"history": [[[]]], "instance_id": {}}, {"messages": [7], "response": {"choices": [7]}}],
)
def test_hostile_shapes_end_in_a_reject_or_nothing(shape: Any) -> None:
    lines = feed(OpenHands(), [shape, _line()])
    assert len(lines.calls) == 6
    for fmt in (OpenHandsEvents(), OpenHandsCompletions(), OpenHandsV1()):
        assert feed_document(fmt, shape).calls == []


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (_observation(2, "run", "boom\n[The command completed with exit code 2.]"), ("failure", 2)),
        (_observation(2, "run", "boom\n[Command finished with exit code 2]"), ("failure", 2)),
        (
            _observation(2, "run", "[Command finished with exit code 2]\n[The command completed with exit code 0.]"),
            ("success", 0),
        ),
        (_observation(2, "run", "x\n[The command completed with exit code -1.]"), ("unknown", None)),
        (_observation(2, "run", "boom", success=False), ("failure", None)),
        (_observation(2, "run", "boom", 0, success=False), ("success", 0)),
        (_observation(2, "run", "the docs say exit code 2"), ("success", None)),
    ],
)
def test_an_exit_code_that_only_the_text_tells(observation: dict[str, Any], expected: tuple[str, int | None]) -> None:
    fed = feed(OpenHands(), [_line(history=[EVENTS[2], observation])])
    assert (fed.outcomes()[0][1], fed.results["2"]["exit_code"]) == expected


def test_the_message_of_a_failed_mcp_call_is_what_its_answer_says() -> None:
    answer = json.dumps({"isError": True, "content": [{"type": "text", "text": "no such issue"}]})
    fed = feed(OpenHands(), [_line(history=[_action(2, "call_tool_mcp", name="x"), _observation(2, "mcp", answer)])])
    assert fed.outcomes() == [("call_tool_mcp", "failure", None)]
    assert fed.results["2"]["message"] == "no such issue"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [({"metadata": {"exit_code": 3}}, "failure"), ({"error": True}, "failure"), ({"error": "word"}, "success")],
)
def test_a_v1_observation_may_tell_its_failure_elsewhere(answer: dict[str, Any], expected: str, tmp_path: Path) -> None:
    observed = V1[2] | {"observation": {"content": [{"type": "text", "text": "boom"}]} | answer}
    asked, answered = _read(_write(tmp_path / "c", [V1[1], observed]))
    asked.rows["result"] = answered.rows["result"]
    assert [outcome for _, outcome, _ in asked.outcomes()] == [expected]


@pytest.mark.parametrize("seconds", [None, [7] * 12, [11 - n for n in range(12)], [None, 5] * 6])
def test_event_files_stand_in_the_order_of_their_numbers(seconds: list[int | None] | None, tmp_path: Path) -> None:
    events = []
    for number in range(12):
        call, is_call = f"call_{number // 2}", number % 2 == 0
        event = _event("ActionEvent" if is_call else "ObservationEvent", 0, id=f"e{number}", tool_call_id=call)
        event |= (
            {"tool_name": "terminal", "action": {"command": f"make t{number // 2}"}}
            if is_call
            else {"observation": {"is_error": True, "exit_code": 2, "content": [{"type": "text", "text": "boom"}]}}
        )
        second = None if seconds is None else seconds[number]
        event["timestamp"] = None if second is None else f"2026-01-01T00:00:{second:02d}"
        events.append(event)
    _write(tmp_path / "c" / "events", events)
    ingest(tmp_path / "lake", tmp_path / "c")
    steps = tables_of(tmp_path / "lake")["steps"].sort("step")
    assert steps["call_id"].to_list() == [f"call_{number}" for number in range(6)]
