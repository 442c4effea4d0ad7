"""ATIF trajectories and trial results: flags of several exporters, results by position, the link of the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emitting import HOSTILE, feed_document
from loopstats.formats import Head
from loopstats.formats.atif import Atif, AtifResult


def _step(number: int, calls: list[str], results: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "step_id": number,
        "source": "agent",
        "message": "",
        "tool_calls": [
            {"tool_call_id": call, "function_name": "bash", "arguments": {"command": f"make {call}"}} for call in calls
        ],
        "observation": {"results": results},
    } | more


def _trajectory(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "S",
        "agent": {"name": "a", "version": "1", "model_name": "m"},
        "steps": [{"step_id": 1, "source": "user", "message": "mend it"}, *steps],
    } | more


def _result(call: str | None, content: str = "", **extra: Any) -> dict[str, Any]:
    return {"source_call_id": call, "content": content} | ({"extra": extra} if extra else {})


@pytest.mark.parametrize(
    ("result", "step", "expected"),
    [
        (_result("c", "x", status="ok"), {}, "success"),
        (_result("c", "x", status="error"), {}, "failure"),
        (_result("c", "x", tool_result_is_error=True), {}, "failure"),
        (_result("c", "x"), {"tool_result_is_error": False}, "success"),
        (_result("c", "x"), {"tool_result_metadata": {"is_error": True}}, "failure"),
        (_result("c", "x"), {"tool_result_metadata": {"raw_tool_result": {"is_error": False}}}, "success"),
        (_result("c", "Error: x"), {}, "unknown"),
        (_result("c", "x\n[exit code: 3]"), {}, "failure"),
        (_result("c", "x\n[exit_code] 0\n"), {}, "success"),
        (_result("c", "<returncode>2</returncode>\n<output>"), {}, "failure"),
        (_result("c", "prose says [exit code: 3] in the middle"), {}, "unknown"),
        (_result("c", "x\n[exit code: 3]", status="ok"), {}, "success"),
    ],
)
def test_flags(result: dict[str, Any], step: dict[str, Any], expected: str) -> None:
    fed = feed_document(Atif(), _trajectory(_step(2, ["c"], [result], extra=step)))
    assert [word for _, word, _ in fed.outcomes()] == [expected]


def test_results_by_id_else_by_position_within_the_step() -> None:
    fed = feed_document(
        Atif(),
        _trajectory(
            _step(2, ["a", "b"], [_result("b", "", status="error"), _result("a", "", status="ok")]),
            _step(3, ["c", "d"], [_result(None, "", status="ok"), _result(None, "", status="error")]),
            _step(4, ["a"], [_result("a", "", status="error")]),
            _step(5, ["z"], []),
        ),
    )
    assert [(row["call_id"], word) for row, (_, word, _) in zip(fed.calls, fed.outcomes(), strict=True)] == [
        ("a", "success"),
        ("b", "failure"),
        ("c", "success"),
        ("d", "failure"),
        ("a#2", "failure"),
        ("z", "unknown"),
    ]


@pytest.mark.parametrize("source", ["system", "user"])
def test_a_result_in_a_step_of_another_answers_the_call_that_it_names(source: str) -> None:
    def told(number: int, *results: dict[str, Any], **more: Any) -> dict[str, Any]:
        observation = {"results": list(results)}
        return {"step_id": number, "source": source, "message": "", "observation": observation} | more

    fed = feed_document(
        Atif(),
        _trajectory(
            _step(2, ["a", "b", "c"], [_result("b", "", status="ok")]),
            told(3, _result("a", "boom", status="error"), _result(None, "of no call", status="error")),
            told(4, _result("c", "boom"), extra={"tool_result_is_error": True}),
            _step(5, ["d", "e"], []),
            told(6, _result("d"), _result("e"), extra={"tool_result_is_error": True}),
        ),
    )
    assert [(row["call_id"], word) for row, (_, word, _) in zip(fed.calls, fed.outcomes(), strict=True)] == [
        ("a", "failure"),
        ("b", "success"),
        ("c", "failure"),
        ("d", "unknown"),
        ("e", "unknown"),
    ]
    assert len(fed.rows["result"]) == 5


def test_the_result_as_it_was_is_preferred_to_the_exporter_s_rendering() -> None:
    metadata = {"raw_tool_result": {"tool_use_id": "a", "content": "boom", "is_error": True}}
    rendered = _step(2, ["a"], [_result("a", "boom\n[stdout]\nboom")], extra={"tool_result_metadata": metadata})
    other = _step(2, ["a"], [_result("a", "boom", is_error=True)])
    first, second = (feed_document(Atif(), _trajectory(step)).results["a"] for step in (rendered, other))
    assert (first["result_hash"], first["signature"]) == (second["result_hash"], second["signature"])


def test_copied_steps_are_folded() -> None:
    fed = feed_document(Atif(), _trajectory(_step(2, ["a"], [], is_copied_context=True), _step(3, ["b"], [])))
    assert [row["call_id"] for row in fed.calls] == ["b"]
    assert fed.folds == {"resume": 1}


def test_a_step_without_a_fact_is_counted_by_who_took_it() -> None:
    asked, thought = _step(1, [], [], source="user"), _step(3, [], [])
    fed = feed_document(Atif(), _trajectory(_step(0, ["a"], []), asked, thought))
    assert fed.nothing == {"step/user": 1, "step/agent": 1}


def test_decisions_and_usage() -> None:
    metrics = {
        "prompt_tokens": 100,
        "cached_tokens": 60,
        "completion_tokens": 7,
        "cost_usd": 0.5,
        "extra": {"cache_write_tokens": 10},
    }
    fed = feed_document(
        Atif(),
        _trajectory(
            _step(2, [], [], metrics=metrics),
            _step(3, ["a"], []),
            _step(4, ["b"], []),
            _step(5, ["c"], [], metrics=metrics),
            {"step_id": 6, "source": "user", "message": "more"},
            _step(7, ["d"], []),
        ),
    )
    assert [row["decision_key"] for row in fed.calls] == ["2", "2", "5", None]
    turn = fed.rows["turn"][0]
    assert (
        turn["tokens_input"],
        turn["tokens_cache_read"],
        turn["tokens_cache_write"],
        turn["tokens_output"],
        turn["cost_micros"],
    ) == (30, 60, 10, 7, 500_000)


def test_subagents_are_runs_of_the_session() -> None:
    inner = _trajectory(
        _step(1, ["a"], []),
        session_id="S2",
        trajectory_id="T2",
        subagent_trajectories=[_trajectory(_step(1, ["a"], []), session_id="S3")],
    )
    fed = feed_document(
        Atif(),
        _trajectory(
            _step(2, ["a"], []), _step(3, ["b"], [], extra={"is_sidechain": True}), subagent_trajectories=[inner]
        ),
    )
    assert [(row["session_id"], row["agent"], row["parent_agent"]) for row in fed.calls] == [
        ("S", None, None),
        ("S", "sidechain", None),
        ("S", "T2", None),
        ("S", "S3", "T2"),
    ]


def test_without_a_session_id_the_first_turn_names_it() -> None:
    first, second = (feed_document(Atif(), _trajectory(_step(2, [call], []), session_id=None)) for call in ("a", "b"))
    assert first.calls[0]["session_id"].startswith("atif~")
    assert first.calls[0]["session_id"] != second.calls[0]["session_id"]


def _trial(**more: Any) -> dict[str, Any]:
    return {
        "id": "trial-1",
        "task_name": "bench/x",
        "trial_name": "x__1",
        "started_at": "2025-01-01T00:00:00Z",
        "finished_at": "2025-01-01T00:10:00Z",
        "agent_info": {"name": "a", "version": "1", "model_info": {"name": "m"}},
        "agent_result": {"n_input_tokens": 5},
        "verifier_result": {"rewards": {"reward": 1.0}},
        "exception_info": None,
        "config": {"trials_dir": "/w/jobs/0af3-a-with-hints"},
    } | more


@pytest.mark.parametrize(
    ("names", "trajectory"), [("x.result.json", "x.trajectory.json"), ("result.json", "agent/trajectory.json")]
)
def test_a_result_finds_the_session_in_the_trajectory_beside_it(tmp_path: Path, names: str, trajectory: str) -> None:
    place = tmp_path / trajectory
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(_trajectory()))
    fed = feed_document(AtifResult(), _trial(), name=str(tmp_path / names))
    (fact,) = fed.rows["fact"]
    assert (fact["session_id"], fact["solved"], fact["ending"]) == ("S", True, None)
    (session,) = fed.rows["session"]
    assert (session["task"], session["group"], session["harness"], session["model"]) == (
        "bench/x",
        "a-with-hints",
        "a",
        "m",
    )


@pytest.mark.parametrize(
    ("more", "solved", "ending"),
    [
        ({"exception_info": {"exception_type": "AgentTimeoutError"}}, True, "cap"),
        ({"exception_info": {"exception_type": "NonZeroAgentExitCodeError"}, "verifier_result": None}, None, "crash"),
        (
            {"exception_info": {"exception_type": "SomethingElse"}, "verifier_result": {"rewards": {"reward": 0.5}}},
            False,
            None,
        ),
    ],
)
def test_a_result_alone_stands_for_its_own_id(more: dict[str, Any], solved: bool | None, ending: str | None) -> None:
    (fact,) = feed_document(AtifResult(), _trial(**more), name="nowhere/result.json").rows["fact"]
    assert (fact["session_id"], fact["solved"], fact["ending"]) == ("trial-1", solved, ending)


@pytest.mark.parametrize(
    ("folder", "group"),
    [("/w/jobs/2026-08-10__10-18-33", None), ("/w/jobs/nightly", None), (None, None), ("C:\\w\\0af3-arm", "arm")],
)
def test_only_a_labelled_job_names_an_arm(folder: str | None, group: str | None) -> None:
    assert feed_document(AtifResult(), _trial(config={"trials_dir": folder})).rows["session"][0]["group"] == group


def test_recognised_by_content() -> None:
    assert Atif().matches(Head("x", "", [], _trajectory())) > 0
    assert Atif().matches(Head("x", "", [], {"steps": [{"a": 1}]})) == 0
    assert AtifResult().matches(Head("x", "", [], _trial())) > 0
    assert AtifResult().matches(Head("x", "", [], _trajectory())) == 0


@pytest.mark.parametrize(
    "shape",
    [
        *HOSTILE,
        [],
        None,
        7,
        {"step_id": {}, "source": "agent", "tool_calls": [7], "observation": {"results": [7, {"extra": 7}]}},
    ],
)
def test_hostile_shapes_end_in_a_reject_or_nothing(shape: Any) -> None:
    assert [row["call_id"] for row in feed_document(Atif(), _trajectory(shape, _step(3, ["b"], []))).calls] == ["b"]
    assert feed_document(Atif(), shape).calls == []
    assert feed_document(AtifResult(), shape).calls == []
