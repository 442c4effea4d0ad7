"""SWE-agent: text actions, outcomes by the interface's sentences, open file by version, history as last resort."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emitting import HOSTILE, feed_document, head_of
from loopstats.formats import canonical_id
from loopstats.formats.swe_agent import SweAgent, read_observation, tool_of


def step(
    action: str, observation: str | None = "", open_file: str = "n/a", is_text_state: bool = True, **more: Any
) -> dict[str, Any]:
    state = {"open_file": open_file, "working_dir": "/repo"}
    return {
        "action": action,
        "observation": observation,
        "thought": "t",
        "state": json.dumps(state) if is_text_state else state,
        **more,
    }


def run(*steps: dict[str, Any], status: str | None = "submitted") -> dict[str, Any]:
    return {"environment": "main", "trajectory": list(steps), "history": [], "info": {"exit_status": status}}


def test_run_id_decision_and_ending() -> None:
    document = run(step("ls", "a.py"), step("pwd", "/repo"))
    fed = feed_document(SweAgent(), document)
    assert {row["session_id"] for row in fed.calls} == {f"swe-agent~{canonical_id(document['trajectory'][0])}"}
    assert len({row["decision_key"] for row in fed.calls}) == 2
    assert all(row["ts"] is None for row in fed.calls)
    assert fed.rows["session"][0]["cwd"] == "/repo"


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        ("submitted", "commit"),
        ("submitted (exit_cost)", "cap"),
        ("exit_context", "cap"),
        ("exit_format", "crash"),
        ("exit_forfeit", "give-up"),
        (None, None),
    ],
)
def test_ending(status: str | None, ending: str | None) -> None:
    fed = feed_document(SweAgent(), run(step("ls"), step("exit_cost", "Exited (autosubmitted)"), status=status))
    assert [row["ending"] for row in fed.rows["fact"]] == ([] if ending is None else [ending])
    assert len(fed.calls) == 1


@pytest.mark.parametrize(
    ("action", "tool", "arguments"),
    [
        ("open src/a.py 27", "open", {"path": "src/a.py", "line": "27"}),
        ('search_dir "def x" src', "search_dir", {"search_term": "def x", "path": "src"}),
        ("search_file needle", "search_file", {"search_term": "needle", "path": "/repo/open.py"}),
        ("search_file needle b.py", "search_file", {"search_term": "needle", "path": "b.py"}),
        (
            "edit 3:4\nx = 1\nend_of_edit",
            "edit",
            {"lines": "3:4", "path": "/repo/open.py", "text": "x = 1\nend_of_edit"},
        ),
        ("str_replace_editor view /repo/a.py", "str_replace_editor", {"command": "view", "path": "/repo/a.py"}),
        ("scroll_down", "scroll_down", {"path": "/repo/open.py"}),
        ("submit", "submit", {}),
        ("python a.py | head", "bash", {"command": "python a.py | head"}),
    ],
)
def test_actions(action: str, tool: str, arguments: dict[str, str]) -> None:
    assert tool_of(action, "/repo/open.py") == (tool, arguments)


def test_an_edit_without_an_open_file_has_no_path() -> None:
    assert tool_of("edit 1:1\nx", "n/a") == ("edit", {"lines": "1:1", "text": "x"})


def test_the_open_file_is_of_before_the_action_in_both_versions() -> None:
    old = run(
        step("create a.py"), step("edit 1:1\nx", open_file="/repo/a.py"), step("edit 2:2\ny", open_file="/repo/b.py")
    )
    new = run(
        *(
            step(action, "", after, False)
            for action, after in (
                ("create a.py", "/repo/a.py"),
                ("edit 1:1\nx", "/repo/b.py"),
                ("edit 2:2\ny", "/repo/c.py"),
            )
        )
    )
    for document in (old, new):
        assert [row["target"] for row in feed_document(SweAgent(), document).calls][1:] == ["/repo/a.py", "/repo/b.py"]


@pytest.mark.parametrize(
    ("text", "is_shell", "expected"),
    [
        ("", False, (False, False)),
        ("Your proposed edit has introduced new syntax error(s). Please read", False, (True, False)),
        ("Traceback (most recent call last):\n  File x\nValueError: no", True, (True, False)),
        ("some output\nValueError: no", True, (True, False)),
        ("[File: /repo/a.py (3 lines total)]\n1:x\nValueError: no", False, (False, False)),
        ("Usage: edit <start>:<end>", False, (True, False)),
        ("EXECUTION TIMED OUT", True, (None, True)),
        ("EXECUTION FAILED OR COMMAND MALFORMED", True, (True, False)),
        ("/bin/bash: line 3: foo: command not found", True, (True, False)),
        ("File missing.py not found", False, (True, False)),
        ('No matches found for "x" in /repo', False, (False, False)),
        ('Found 3 matches for "Error" in /repo', False, (False, False)),
        ("def f():\n    raise ValueError('Error')  # Traceback (most recent call last):", True, (None, False)),
        ("printed lines with an Error: inside", True, (None, False)),
    ],
)
def test_outcome_by_anchored_sentences(text: str, is_shell: bool, expected: tuple[bool | None, bool]) -> None:
    assert read_observation(text, is_shell) == expected


def test_outcomes_of_steps_and_their_source() -> None:
    fed = feed_document(
        SweAgent(),
        run(
            step("python r.py", "Traceback (most recent call last):\n  x\nKeyError: 'a'"),
            step("python r.py", "fine"),
            step("python r.py", ""),
            step("python r.py", None),
            step("python r.py", "EXECUTION TIMED OUT"),
        ),
    )
    assert [outcome[1:] for outcome in fed.outcomes()] == [
        ("failure", None),
        ("unknown", None),
        ("success", None),
        ("unknown", "missing"),
        ("failure", "timeout"),
    ]
    assert [fed.results[f"t{n}"]["outcome_source"] for n in (1, 2, 3)] == ["text", "none", "text"]


def test_execution_time_is_the_duration() -> None:
    fed = feed_document(SweAgent(), run(step("ls", "x", execution_time=0.25)))
    assert fed.results["t1"]["duration_ms"] == 250


def test_history_is_read_only_where_there_is_no_trajectory_and_without_its_demonstration() -> None:
    history = [
        {"role": "system", "content": "s", "agent": "main", "message_type": "system_prompt"},
        {"role": "assistant", "action": "ls", "agent": "main", "is_demo": True},
        {"role": "user", "content": "a", "agent": "main", "is_demo": True},
        {
            "role": "assistant",
            "agent": "main",
            "thought": "t",
            "action": "find_file a.py",
            "tool_calls": [{"id": "call_1", "function": {"name": "find_file", "arguments": '{"file_name": "a.py"}'}}],
        },
        {
            "role": "tool",
            "content": "File a.py not found\n(Open file: n/a)",
            "tool_call_ids": ["call_1"],
            "agent": "main",
        },
    ]
    alone = feed_document(SweAgent(), {"history": history})
    assert alone.outcomes() == [("find_file", "failure", None)]
    assert alone.nothing == {"system": 1, "demonstration": 2}
    both = feed_document(SweAgent(), run(step("ls", "a.py")) | {"history": history})
    assert [row["tool"] for row in both.calls] == ["bash"]
    demo = feed_document(SweAgent(), {"history": history[:3]})
    assert [row["tool"] for row in demo.calls] == ["bash"]


def test_matches_by_content() -> None:
    assert SweAgent().matches(head_of(json.dumps(run(step("ls")), indent=1))) == 95
    assert SweAgent().matches(head_of(json.dumps({"messages": []}, indent=1))) == 0
    torn = '{\n "environment": "main",\n "trajectory": [\n {"action": "ls", "observation": "x", "thought": "unclosed'
    assert SweAgent().matches(head_of(torn)) == 60
    assert feed_document(SweAgent(), torn.encode()).rejects == [(0, "not_json")]


def test_hostile_shapes_are_skipped_and_the_rest_is_read() -> None:
    fed = feed_document(
        SweAgent(),
        run(*HOSTILE, step("ls", "x" * 1_000_000), {"action": 7}, {"action": "ls", "observation": [[7]], "state": "{"}),
    )
    assert len(fed.calls) == 2
    assert {reason for _, reason in fed.rejects} == {"wrong_shape"}
    for document in ({}, {"trajectory": 7}, {"history": 7}, {"trajectory": [], "history": [None, 7]}, 7, None):
        assert feed_document(SweAgent(), document).calls == []
    for text in ("The command '" + "x" * 1_000_000, "File " + "x" * 1_000_000, "\n" * 1_000_000, "a." * 500_000):
        assert read_observation(text, True) in ((None, False), (False, False))
    assert tool_of("open " + '"' * 1_000_000, None)[0] == "open"
