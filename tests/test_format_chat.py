"""Chat messages with tool calls: the run id, the pairing and the outcome of a log that has none of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from emitting import HOSTILE, feed, head_of
from loopstats.formats.chat import Chat, exit_code_in


def asks(*calls: tuple[str | None, str], **more: Any) -> dict[str, Any]:
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"path": "a.py"}'}}
        for call_id, name in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": made, **more}


def tells(call_id: str | None, content: Any = "fine", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def test_run_id_is_the_hash_of_the_first_model_turn() -> None:
    turn = asks(("call_1", "read_file"))
    text = json.dumps(turn, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    expected = hashlib.sha256(text.encode()).hexdigest()[:12]
    fed = feed(
        Chat(),
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            turn,
            tells("call_1"),
            asks(("call_2", "x")),
        ],
    )
    assert {row["session_id"] for rows in fed.rows.values() for row in rows} == {f"chat~{expected}"}
    named = feed(Chat(), [{"task_id": "t-7", "trial": 2, "messages": [turn]}, {"id": "q1", "messages": [turn]}])
    assert [call["session_id"] for call in named.calls] == [f"t-7-2~{expected}", f"q1~{expected}"]


def test_session_id_of_the_log_wins() -> None:
    fed = feed(
        Chat(), [asks(("call_1", "x"), session_id="s9"), {"conversation_id": "c1", "messages": [asks(("call_1", "x"))]}]
    )
    assert [call["session_id"] for call in fed.calls] == ["s9", "c1"]


def test_message_a_line_and_conversation_a_line_give_the_same_steps() -> None:
    talk = [
        asks(("call_1", "read_file"), ("call_2", "run")),
        tells("call_2", "exit code: 3"),
        tells("call_1"),
        asks(("call_1", "run")),
    ]
    lines, whole = feed(Chat(), talk), feed(Chat(), [{"messages": talk}])
    assert [call["uid"] for call in lines.calls] == [call["uid"] for call in whole.calls]
    assert (
        lines.outcomes()
        == whole.outcomes()
        == [("read_file", "unknown", None), ("run", "failure", None), ("run", "unknown", "missing")]
    )
    assert [call["decision_key"] for call in lines.calls] == ["turn 1", "turn 1", "turn 2"]


def test_history_that_is_sent_again_gives_the_same_identities() -> None:
    talk = [asks(("call_1", "a")), tells("call_1"), asks(("call_2", "b")), tells("call_2")]
    fed = feed(Chat(), [{"messages": talk[:2]}, {"messages": talk}])
    assert len(fed.calls) == 3
    assert len({call["uid"] for call in fed.calls}) == 2


def test_ids_that_come_again_are_calls_of_their_own() -> None:
    fed = feed(
        Chat(),
        [
            asks(("call_0", "a")),
            tells("call_0", "x", is_error=True),
            asks(("call_0", "a")),
            tells("call_0", "y", is_error=False),
        ],
    )
    assert len({call["call_id"] for call in fed.calls}) == 2
    assert [word for _, word, _ in fed.outcomes()] == ["failure", "success"]


def test_calls_without_ids_pair_by_name_then_in_order() -> None:
    fed = feed(
        Chat(),
        [
            asks((None, "a"), (None, "b")),
            tells(None, "for b", name="b", is_error=True),
            tells(None, "for a", is_error=False),
            {"role": "assistant", "content": "", "function_call": {"name": "old", "arguments": "{broken"}},
            {"role": "function", "name": "old", "content": "x", "success": False},
            tells(None, "for nobody"),
            tells("unheard", "x"),
        ],
    )
    assert fed.outcomes() == [("a", "success", None), ("b", "failure", None), ("old", "failure", None)]
    assert len(fed.rows["result"]) == 3


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "unknown"),
        ({"is_error": True}, "failure"),
        ({"isError": False}, "success"),
        ({"error": "boom"}, "failure"),
        ({"success": True}, "success"),
        ({"status": "failed"}, "failure"),
        ({"status": "success"}, "success"),
        ({"status": "queued"}, "unknown"),
        ({"exit_code": 0}, "success"),
        ({"extra": {"returncode": 1}}, "failure"),
        ({"metadata": {"exitCode": 4}}, "failure"),
        ({"error": None}, "unknown"),
        ({"is_error": "maybe"}, "unknown"),
    ],
)
def test_outcome_from_what_the_message_carries(more: dict[str, Any], expected: str) -> None:
    fed = feed(Chat(), [asks(("call_1", "do_it")), tells("call_1", "Error: words do not make a failure", **more)])
    assert [word for _, word, _ in fed.outcomes()] == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Exit code: 2\nno rule", 2),
        ("out\n[exit code: 0]", 0),
        ("Exit code 1", 1),
        ("<returncode>127</returncode>\n<output>x", 127),
        ("a\nb\nc\nProcess exited with code -1\n", -1),
        ("exit code: many", None),
        ("the exit code: 3 was seen", None),
        ("", None),
        ("1\n2\nexit code: 3\n4\n5", None),
        ("exit code: ٣", None),
    ],
)
def test_exit_code_must_be_a_line_of_its_own_at_an_edge(text: str, expected: int | None) -> None:
    assert exit_code_in(text) == expected


def test_exit_code_in_text_says_so() -> None:
    fed = feed(Chat(), [asks(("call_1", "run")), tells("call_1", "exit code: 5")])
    row = fed.rows["result"][0]
    assert (row["exit_code"], row["is_error"], row["outcome_source"]) == (5, None, "text")


def test_the_users_own_calls_are_marked() -> None:
    line = asks(("call_9", "toggle")) | {"role": "user"}
    assert [call["actor"] for call in feed(Chat(), [asks(("call_1", "x")), line]).calls] == ["agent", "user"]


def test_usage_and_model() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 60}}
    fed = feed(Chat(), [asks(("call_1", "x"), model="m-1", usage=usage, timestamp=1_760_000_000)])
    turn = fed.rows["turn"][0]
    assert (turn["tokens_input"], turn["tokens_output"], turn["tokens_cache_read"], turn["model"]) == (40, 9, 60, "m-1")
    assert turn["ts"] == 1_760_000_000_000_000
    assert fed.rows["session"][0]["model"] == "m-1"


def test_reading_on_from_the_state() -> None:
    talk = [asks(("call_1", "a")), tells("call_1"), asks(("call_1", "b")), tells("call_1", "z", is_error=True)]
    whole = feed(Chat(), talk)
    for cut in range(1, len(talk)):
        first = feed(Chat(), talk[:cut])
        rest = feed(
            Chat(), talk[cut:], state=json.loads(json.dumps(first.state)), pending=first.pending, first_line=cut + 1
        )
        for kind in whole.rows:
            assert first.rows[kind] + rest.rows[kind] == whole.rows[kind]


def test_matches_least_of_all() -> None:
    assert 0 < Chat().matches(head_of('{"role": "user", "content": "x"}\n{"role": "assistant", "content": "y"}')) < 10
    assert 0 < Chat().matches(head_of('{"messages": [{"role": "user", "content": "x"}]}')) < 10
    for text in (
        '{"role": "admin", "content": "x"}',
        '{"messages": 7}',
        '{"role": "user"}',
        "[]",
        "",
        '{"type": "user"}',
    ):
        assert Chat().matches(head_of(text)) == 0


def test_wrong_shapes_never_stop_the_file() -> None:
    odd: list[Any] = [
        None,
        7,
        -1.5,
        "",
        "x\ud800",
        True,
        [],
        [None, []],
        {"a": {"b": []}},
        [{"function": 7}],
        [{"id": [], "name": {}}],
    ]
    lines = (asks(("call_1", "x")), tells("call_1"))
    shapes = [line | {key: value} for line in lines for key in line for value in odd]
    shapes += [{"messages": [value]} for value in odd] + [{"messages": value} for value in odd]
    fed = feed(Chat(), [*HOSTILE, *shapes, asks(("last", "x"))])
    assert fed.calls[-1]["source_line"] == len(HOSTILE) + len(shapes) + 1
    assert {reason for _, reason in fed.rejects} <= {"not_an_object"}


def test_two_conversations_in_one_file_keep_their_equal_ids_apart() -> None:
    def own(session: str, message: dict[str, Any]) -> dict[str, Any]:
        return message | {"session_id": session}

    lines = [own("A", asks(("call_1", "x"))), own("B", asks(("call_1", "y")))]
    lines += [own("B", tells("call_1") | {"is_error": True}), own("A", tells("call_1") | {"is_error": False})]
    fed = feed(Chat(), lines)
    asked = {(row["session_id"], row["call_id"]): row["tool"] for row in fed.calls}
    answered = {asked[row["session_id"], row["call_id"]]: row["is_error"] for row in fed.rows["result"]}
    assert answered == {"x": False, "y": True}
