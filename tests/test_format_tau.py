"""tau-bench and tau2-bench: ids that repeat, calls of the simulated user, rewards as facts."""

from __future__ import annotations

import pytest

from emitting import HOSTILE, feed_document
from loopstats.formats import Head
from loopstats.formats.tau import Tau2Bench, TauBench, solved


def _call(log_id: str, name: str, arguments: object) -> dict[str, object]:
    return {"id": log_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _run(task: int = 3, reward: float = 1.0) -> dict[str, object]:
    return {
        "task_id": task,
        "trial": 0,
        "reward": reward,
        "info": {},
        "traj": [
            {"role": "user", "content": "Please cancel R1."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [_call("c1", "cancel_reservation", '{"reservation_id": "R1"}')],
            },
            {
                "role": "tool",
                "tool_call_id": "c1",
                "name": "cancel_reservation",
                "content": "Error: reservation R1 not found",
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [_call("c1", "cancel_reservation", '{"reservation_id": "R2"}')],
            },
            {"role": "tool", "tool_call_id": "c1", "name": "cancel_reservation", "content": "cancelled, no Error here"},
        ],
    }


def test_a_repeated_call_id_is_two_steps_and_error_counts_only_at_the_start() -> None:
    fed = feed_document(TauBench(), [_run()])
    assert [row["call_id"] for row in fed.calls] == ["c1", "c1#2"]
    assert [row["target"] for row in fed.calls] == ["R1", "R2"]
    assert [word for _, word, _ in fed.outcomes()] == ["failure", "success"]
    assert {row["outcome_source"] for row in fed.rows["result"]} == {"text"}


def test_sessions_are_named_by_task_trial_and_first_turn() -> None:
    first, second = _run(3), _run(4, reward=0.0)
    fed = feed_document(TauBench(), [first, second])
    sessions = [row["session_id"] for row in fed.rows["session"]]
    assert [name.split("~")[0] for name in sessions] == ["3/0", "4/0"]
    assert len({name.split("~")[1] for name in sessions}) == 1
    assert [row["solved"] for row in fed.rows["fact"]] == [True, False]
    assert sessions == [
        row["session_id"] for row in feed_document(TauBench(), [first, second], name="elsewhere.json").rows["session"]
    ]


def test_half_a_surrogate_pair_in_the_arguments_is_replaced() -> None:
    run = _run()
    run["traj"][1]["tool_calls"][0]["function"]["arguments"] = '{"reservation_id": "R\\ud800"}'  # type: ignore[index]
    assert feed_document(TauBench(), [run]).calls[0]["target"].encode() == "R\ufffd".encode()


def test_a_bad_run_costs_no_other_run() -> None:
    fed = feed_document(TauBench(), [_run(1), {"task_id": 2, "traj": 7}, {"traj": []}, _run(5)])
    assert {row["session_id"].split("/")[0] for row in fed.calls} == {"1", "5"}
    assert [reason for _, reason in fed.rejects] == ["wrong_shape", "run_without_task"]
    assert fed.lines_used == 2


def test_a_run_without_a_model_turn_carries_nothing() -> None:
    fed = feed_document(
        TauBench(), [{"task_id": 1, "trial": 0, "reward": 0.0, "traj": [{"role": "user", "content": "hi"}]}]
    )
    assert fed.rejects == [] and fed.calls == []
    assert fed.nothing == {"run without a model turn": 1}


def _simulation() -> dict[str, object]:
    return {
        "id": "sim-1",
        "task_id": "roaming",
        "trial": 0,
        "start_time": "2025-01-02T03:04:05.000000",
        "end_time": "2025-01-02T03:05:00.000000",
        "termination_reason": "max_steps",
        "reward_info": {"reward": 0.0},
        "messages": [
            {
                "role": "assistant",
                "turn_idx": 0,
                "timestamp": "2025-01-02T03:04:06",
                "cost": 0.5,
                "usage": {"prompt_tokens": 90, "completion_tokens": 9},
                "tool_calls": [
                    {"id": "a", "name": "get_line", "arguments": {"line_id": "L1"}, "requestor": "assistant"},
                    {"id": "b", "name": "set_roaming", "arguments": {"line_id": "L1"}, "requestor": "assistant"},
                ],
            },
            {
                "role": "tool",
                "id": "a",
                "content": "{}",
                "error": False,
                "requestor": "assistant",
                "timestamp": "2025-01-02T03:04:07",
            },
            {"role": "tool", "id": "b", "content": "Error: locked", "error": True, "requestor": "assistant"},
            {
                "role": "user",
                "turn_idx": 3,
                "content": None,
                "usage": {"prompt_tokens": 5, "completion_tokens": 5},
                "tool_calls": [{"id": "u", "name": "toggle_data", "arguments": {}, "requestor": "user"}],
            },
            {"role": "tool", "id": "u", "content": "on", "error": False, "requestor": "user"},
        ],
    }


def test_simulations_keep_the_users_calls_apart() -> None:
    fed = feed_document(Tau2Bench(), {"info": {"agent_info": {"llm": "some-model"}}, "simulations": [_simulation()]})
    assert [(row["tool"], row["actor"]) for row in fed.calls] == [
        ("get_line", "agent"),
        ("set_roaming", "agent"),
        ("toggle_data", "user"),
    ]
    assert fed.calls[0]["decision_key"] == fed.calls[1]["decision_key"] != fed.calls[2]["decision_key"]
    assert [word for _, word, _ in fed.outcomes()] == ["success", "failure", "success"]
    assert {row["session_id"] for row in fed.calls} == {"sim-1"}
    (turn,) = fed.rows["turn"]
    assert (turn["tokens_input"], turn["tokens_output"], turn["cost_micros"], turn["model"]) == (
        90,
        9,
        500_000,
        "some-model",
    )
    (fact,) = fed.rows["fact"]
    assert (fact["solved"], fact["ending"]) == (False, "cap")


def _tool_messages(*answers: tuple[str, bool]) -> list[dict[str, object]]:
    return [{"role": "tool", "id": log_id, "error": is_error, "content": "x"} for log_id, is_error in answers]


@pytest.mark.parametrize("ids", [("", ""), ("c1", "c2"), ("c1", "c1")])
@pytest.mark.parametrize("is_nested", [False, True])
def test_results_with_an_empty_id_answer_the_calls_before_them_in_order(ids: tuple[str, str], is_nested: bool) -> None:
    def asked(*names: str) -> dict[str, object]:
        calls = [{"id": log_id, "name": name, "arguments": {}} for log_id, name in zip(ids, names, strict=True)]
        return {"role": "assistant", "tool_calls": calls}

    is_last_named = "c2" in ids
    answers = _tool_messages(("c3" if is_last_named else "", True), ("", False))
    named = {"id": "c3", "name": "get_c", "arguments": {}}
    last = asked("get_a", "get_b")
    if is_last_named:
        last["tool_calls"] = [*last["tool_calls"], named]  # type: ignore[misc]
    messages: list[dict[str, object]] = [
        asked("lost", "lost_too"),
        {"role": "assistant", "content": "sorry"},
        *_tool_messages(("", True)),
        last,
        *([{"role": "tool", "tool_messages": answers}] if is_nested else answers),
    ]
    fed = feed_document(Tau2Bench(), {"simulations": [{"id": "s", "messages": messages}]})
    words = {tool: word for tool, word, _ in fed.outcomes()}
    told = {"get_a": "success", "get_c": "failure"} if is_last_named else {"get_a": "failure", "get_b": "success"}
    assert words == {"lost": "unknown", "lost_too": "unknown", "get_b": "unknown"} | told


@pytest.mark.parametrize(
    ("reward", "expected"),
    [(1.0, True), (1, True), (0.999_999_9, True), (0.5, False), (0, False), (None, None), ("1", None), (True, None)],
)
def test_only_the_full_reward_is_solved(reward: object, expected: bool | None) -> None:
    assert solved(reward) is expected


def test_recognised_by_content() -> None:
    assert TauBench().matches(Head("x", "", [], [_run()])) > 0
    assert Tau2Bench().matches(Head("x", "", [], {"simulations": [_simulation()]})) > 0
    assert TauBench().matches(Head("x", "", [], {"simulations": [_simulation()]})) == 0
    assert Tau2Bench().matches(Head("x", "", [], [_run()])) == 0
    assert TauBench().matches(Head("x", "", [], [{"instance_id": "p", "model_patch": ""}])) == 0


@pytest.mark.parametrize("shape", [*HOSTILE, [], None, 7, "x"])
def test_hostile_shapes_end_in_a_reject_or_nothing(shape: object) -> None:
    for fmt, document in ((TauBench(), [shape, _run()]), (Tau2Bench(), {"simulations": [shape, _simulation()]})):
        fed = feed_document(fmt, document)
        assert len(fed.calls) in (2, 3)
        assert feed_document(fmt, shape).calls == []
