"""Gemini CLI telemetry: objects one after another, calls without ids, what the shell's success does not say."""

from __future__ import annotations

import json
from typing import Any

from emitting import feed_document, head_of
from loopstats.formats.gemini_telemetry import GeminiTelemetry


def event(name: str, **attributes: Any) -> dict[str, Any]:
    return {
        "hrTime": [1_764_144_760, 500_000_000],
        "attributes": {"session.id": "s-1", "event.name": f"gemini_cli.{name}", **attributes},
    }


def tool(name: str, success: bool, **more: Any) -> dict[str, Any]:
    return event(
        "tool_call",
        function_name=name,
        function_args=json.dumps({"file_path": "a.py"}),
        success=success,
        duration_ms=12,
        prompt_id="p",
        **more,
    )


def response(**more: Any) -> dict[str, Any]:
    return event(
        "api_response",
        model="g-1",
        input_token_count=100,
        output_token_count=5,
        cached_content_token_count=60,
        thoughts_token_count=3,
        tool_token_count=0,
        **more,
    )


def written(*records: Any) -> bytes:
    return "\n".join(json.dumps(record, indent=2) for record in records).encode()


def test_calls_usage_and_what_is_not_used() -> None:
    fed = feed_document(
        GeminiTelemetry(),
        written(
            event("config"),
            response(),
            tool("read_file", True),
            tool("replace", False, error="no match", error_type="edit_no_occurrence_found"),
            {"resource": {}, "scopeMetrics": []},
            response(),
            tool("run_shell_command", True),
            tool("write_file", False, decision="reject"),
        ),
    )
    assert fed.outcomes() == [
        ("read_file", "success", None),
        ("replace", "failure", None),
        ("run_shell_command", "unknown", None),
        ("write_file", "vetoed", "user"),
    ]
    assert fed.nothing == {"gemini_cli.config": 1, "metric": 1}
    keys = [row["decision_key"] for row in fed.calls]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert [row["decision_key"] for row in fed.rows["turn"]] == [keys[0], keys[2]]
    turn = fed.rows["turn"][0]
    assert (turn["tokens_input"], turn["tokens_output"], turn["tokens_cache_read"]) == (40, 8, 60)
    assert fed.calls[0]["ts"] == 1_764_144_760_500_000
    assert len({row["call_id"] for row in fed.calls}) == 4


def test_a_torn_end_loses_nothing_before_it_and_a_grown_file_keeps_its_ids() -> None:
    full = written(response(), tool("read_file", True), tool("read_file", True))
    torn = feed_document(GeminiTelemetry(), full[:-40])
    assert len(torn.calls) == 1 and torn.rejects == [(3, "not_json")]
    assert torn.calls[0]["uid"] == feed_document(GeminiTelemetry(), full).calls[0]["uid"]


def test_matches_by_content() -> None:
    assert GeminiTelemetry().matches(head_of(written(event("config")).decode())) == 93
    assert GeminiTelemetry().matches(head_of('{"type": "user", "text": "gemini_cli."}')) == 0


def test_hostile_shapes() -> None:
    assert feed_document(GeminiTelemetry(), b"[1, 2] {").rejects == [(0, "not_json")]
    bad = [
        event("tool_call"),
        event("tool_call", function_name=[], success="yes"),
        {"attributes": 7},
        {"attributes": {"event.name": {}}},
        event("api_response", input_token_count="many"),
        event("tool_call", function_name="x", function_args="{" * 5000, success=None),
    ]
    fed = feed_document(GeminiTelemetry(), written(*bad, tool("read_file", True)))
    assert fed.rejects == [] and [o[1] for o in fed.outcomes()] == ["unknown", "success"]
    assert feed_document(GeminiTelemetry(), b'{"a":' * 100_000).calls == []
