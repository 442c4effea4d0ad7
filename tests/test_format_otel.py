"""OpenTelemetry spans: three ways of writing them, both conventions, parents that come later, subagents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emitting import HOSTILE, feed_document, head_of
from loopstats.formats.otel import OtelGenAi

BASE = 1_700_000_000_000_000_000


def _span(
    span: str,
    parent: str,
    begin: int,
    trace: str = "t1",
    status: int = 0,
    events: list[Any] | None = None,
    **attributes: Any,
) -> dict[str, Any]:
    def value(item: Any) -> dict[str, Any]:
        return {"intValue": str(item)} if isinstance(item, int) else {"stringValue": item}

    return {
        "traceId": trace,
        "spanId": span,
        "parentSpanId": parent,
        "name": attributes.pop("span_name", "x"),
        "startTimeUnixNano": str(BASE + begin * 1_000_000),
        "endTimeUnixNano": str(BASE + (begin + 5) * 1_000_000),
        "attributes": [{"key": key.replace("__", "."), "value": value(item)} for key, item in attributes.items()],
        "status": {"code": status} if status else {},
        "events": events or [],
    }


def _chat(span: str, parent: str, begin: int, **more: Any) -> dict[str, Any]:
    return _span(
        span,
        parent,
        begin,
        gen_ai__operation__name="chat",
        gen_ai__response__model="m",
        gen_ai__usage__input_tokens=50,
        gen_ai__usage__output_tokens=4,
        gen_ai__usage__cache_read__input_tokens=20,
        **more,
    )


def _tool(span: str, parent: str, begin: int, call: str, **more: Any) -> dict[str, Any]:
    return _span(
        span,
        parent,
        begin,
        span_name="execute_tool run_sql",
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name="run_sql",
        gen_ai__tool__call__id=call,
        gen_ai__tool__call__arguments='{"query": "select 1"}',
        **more,
    )


def _agent(span: str, parent: str, begin: int, name: str, **more: Any) -> dict[str, Any]:
    return _span(span, parent, begin, gen_ai__operation__name="invoke_agent", gen_ai__agent__name=name, **more)


EXCEPTION = [
    {
        "name": "exception",
        "attributes": [
            {"key": "exception.type", "value": {"stringValue": "SqlError"}},
            {"key": "exception.message", "value": {"stringValue": "no such table"}},
        ],
    }
]
SPANS = [
    _chat("c1", "root", 10),
    _tool("k1", "root", 20, "call_1"),
    _tool("k2", "root", 21, "call_2", status=2, events=EXCEPTION),
    _chat("c2", "root", 40),
    _tool("k3", "root", 50, "call_1"),
    _agent("root", "", 0, "main", gen_ai__conversation__id="conv"),
]


def _document(spans: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {"name": "s"}, "spans": spans}]}]
    }


def test_calls_results_and_turns() -> None:
    fed = feed_document(OtelGenAi(), _document(SPANS))
    assert [(row["session_id"], row["agent"], row["call_id"], row["decision_key"]) for row in fed.calls] == [
        ("conv", None, "call_1", "c1"),
        ("conv", None, "call_2", "c1"),
        ("conv", None, "call_1#k3", "c2"),
    ]
    assert fed.outcomes() == [("run_sql", "success", None), ("run_sql", "failure", None), ("run_sql", "success", None)]
    assert "no such table" in fed.results["call_2"]["message"]
    assert fed.results["call_1"]["duration_ms"] == 5
    assert fed.results["call_1"]["ts"] - fed.calls[0]["ts"] == 5000
    turn = fed.rows["turn"][0]
    assert (turn["tokens_input"], turn["tokens_cache_read"], turn["tokens_output"], turn["model"]) == (30, 20, 4, "m")
    assert fed.nothing == {"agent": 1}


def test_lines_and_pretty_objects_give_what_the_document_gives() -> None:
    parts = [_document(SPANS[:3]), _document(SPANS[3:])]
    whole = [row["uid"] for row in feed_document(OtelGenAi(), _document(SPANS)).calls]
    for text in ("\n".join(map(json.dumps, parts)), "\n".join(json.dumps(part, indent=2) for part in parts)):
        fed = feed_document(OtelGenAi(), text.encode())
        assert [row["uid"] for row in fed.calls] == whole and fed.rejects == []
        assert OtelGenAi().matches(head_of(text)) > 0


def test_a_torn_line_costs_no_other_and_is_told() -> None:
    text = "\n".join(
        [json.dumps(_document(SPANS[:3])), '{"resourceSpans": [{"scopeSp', json.dumps(_document(SPANS[3:]))]
    )
    fed = feed_document(OtelGenAi(), text.encode())
    assert len(fed.calls) == 3
    assert [reason for _, reason in fed.rejects] == ["not_an_object"]


def test_without_a_conversation_the_trace_is_the_session() -> None:
    fed = feed_document(OtelGenAi(), _document([_tool("k1", "", 1, "a"), _tool("k2", "", 2, "a", trace="t2")]))
    assert [row["session_id"] for row in fed.calls] == ["t1", "t2"]


def test_a_nested_agent_is_a_run_of_its_own() -> None:
    fed = feed_document(
        OtelGenAi(),
        _document(
            [
                _agent("root", "", 0, "main"),
                _tool("k1", "root", 1, "a"),
                _agent("sub", "k1", 2, "helper"),
                _tool("k2", "sub", 3, "b"),
            ]
        ),
    )
    assert [(row["session_id"], row["agent"]) for row in fed.calls] == [("t1", None), ("t1", "sub")]


def test_openinference_spans() -> None:
    tool = _span(
        "k1",
        "turn",
        5,
        span_name="lookup",
        openinference__span__kind="TOOL",
        tool__name="lookup",
        input__value='{"order_id": "A1"}',
        output__value="shipped",
        status=1,
    )
    llm = _span(
        "c1",
        "turn",
        1,
        openinference__span__kind="LLM",
        llm__model_name="m",
        llm__token_count__prompt=9,
        llm__token_count__completion=2,
    )
    workflow = _span("w", "", 0, openinference__span__kind="AGENT")
    agent = _span("turn", "w", 0, openinference__span__kind="AGENT", agent__name="Triage")
    fed = feed_document(OtelGenAi(), _document([llm, tool, agent, workflow]))
    (call,) = fed.calls
    assert (call["call_id"], call["agent"], call["decision_key"], call["target"]) == ("k1", None, "c1", "A1")
    assert fed.outcomes() == [("lookup", "success", None)]
    assert fed.rows["turn"][0]["tokens_input"] == 9


def test_console_spans_and_their_open_duplicates() -> None:
    open_span = {
        "name": "execute_tool run",
        "context": {"trace_id": "0xt9", "span_id": "0xs1"},
        "parent_id": None,
        "start_time": "2025-01-01T00:00:00.000000Z",
        "end_time": None,
        "status": {"status_code": "UNSET"},
        "attributes": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "run"},
        "events": [],
    }
    ended = open_span | {
        "end_time": "2025-01-01T00:00:02.000000Z",
        "status": {"status_code": "ERROR", "description": "bad"},
    }
    text = "\n".join(json.dumps(span, indent=1) for span in (open_span, ended, open_span))
    fed = feed_document(OtelGenAi(), text.encode())
    assert [(row["session_id"], row["call_id"]) for row in fed.calls] == [("t9", "s1")]
    assert fed.outcomes() == [("run", "failure", None)]
    assert OtelGenAi().matches(head_of(text)) > 0
    assert feed_document(OtelGenAi(), open_span).outcomes() == [("run", "unknown", "missing")]


@pytest.mark.parametrize(("kind", "expected"), [("timeout", ("failure", "timeout")), ("429", ("failure", None))])
def test_error_types(kind: str, expected: tuple[str, str | None]) -> None:
    fed = feed_document(OtelGenAi(), _document([_tool("k1", "", 1, "a", status=2, error__type=kind)]))
    assert fed.outcomes()[0][1:] == expected
    assert fed.results["a"]["error_code"] == kind


def test_half_a_surrogate_pair_is_replaced() -> None:
    lines = [json.dumps(_document([_tool(span, "", 1, call)])) for span, call in (("k1", "a\ud800"), ("k2", "b"))]
    fed = feed_document(OtelGenAi(), "\n".join(lines).encode())
    assert [row["call_id"].encode() for row in fed.calls] == ["a\ufffd".encode(), b"b"]


def test_spans_in_a_circle_end() -> None:
    fed = feed_document(OtelGenAi(), _document([_tool("a", "b", 1, "x"), _tool("b", "a", 2, "y")]))
    assert len(fed.calls) == 2


def test_recognised_by_content() -> None:
    web = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "GET /"}]}]}]})
    assert 0 < OtelGenAi().matches(head_of(web)) < OtelGenAi().matches(head_of(json.dumps(_document(SPANS))))
    assert OtelGenAi().matches(head_of('{"versions": {"gen_ai": 1}}')) == 0


@pytest.mark.parametrize("shape", [*HOSTILE, [], None, 7, {"attributes": [7, {"key": "a", "value": 7}], "spanId": {}}])
def test_hostile_shapes_end_in_a_reject_or_nothing(shape: Any) -> None:
    fed = feed_document(OtelGenAi(), _document([shape, *SPANS]))
    assert len(fed.calls) == 3
    assert feed_document(OtelGenAi(), shape).calls == []
