"""Gemini CLI's telemetry file: log records and metrics, pretty-printed JSON objects one after another.

A room of its own because it is no JSON Lines, and because it knows of a call neither id nor result: a call is named by
its place among the calls of its prompt, and the shell tool's `success` says only that the command was started.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from loopstats.errors import Reject
from loopstats.formats import (
    EXPORT,
    Emit,
    Format,
    Head,
    Reader,
    Source,
    as_bool,
    as_dict,
    as_int,
    as_str,
    objects,
    text_of,
)

SHELL = "run_shell_command"
CALL, RESPONSE = "gemini_cli.tool_call", "gemini_cli.api_response"


class GeminiTelemetry(Format):
    """`telemetry.log` of Gemini CLI."""

    name: ClassVar[str] = "gemini-cli-telemetry"
    unit: ClassVar[str] = "container"
    rank: ClassVar[int] = EXPORT

    def matches(self, head: Head) -> int:
        """Sure by an event name of Gemini CLI in a log record."""
        start = head.text[:65_536]
        if '"gemini_cli.' not in start or '"event.name"' not in start:
            return 0
        return 93 if '"hrTime"' in start or '"attributes"' in start else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole file."""
        return GeminiTelemetryReader(source, state)

    def load(self, data: bytes) -> Any:
        """All objects in order; a torn end stands as None."""
        found: list[dict[str, Any] | None] = []
        try:
            found.extend(objects(data.decode("utf-8", "replace").removeprefix("\ufeff")))
        except (ValueError, RecursionError):
            found.append(None)
        if not any(found):
            raise Reject("not_json")
        return found


class GeminiTelemetryReader(Reader):
    """Record n is object n."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on calls and usage."""
        responses: dict[str, int] = {}
        calls: dict[tuple[str, str], int] = {}
        known: set[str] = set()
        for number, raw in enumerate(document if isinstance(document, list) else [document], start=1):
            emit.at(number)
            if raw is None:
                emit.reject("not_json")
                continue
            record = as_dict(raw)
            attributes = as_dict(record.get("attributes"))
            event, session = as_str(attributes.get("event.name")), as_str(attributes.get("session.id"))
            ts = attributes.get("event.timestamp") or record.get("hrTime")
            if event not in (CALL, RESPONSE) or session is None:
                emit.nothing(event or "metric")
                continue
            if session not in known:
                known.add(session)
                emit.session(session=session, ts=ts, harness="gemini-cli", model=as_str(attributes.get("model")))
            if event == RESPONSE:
                responses[session] = responses.get(session, 0) + 1
                self._usage(session, f"r{responses[session]}", attributes, ts, emit)
                continue
            prompt = as_str(attributes.get("prompt_id")) or "-"
            calls[session, prompt] = calls.get((session, prompt), 0) + 1
            decision = f"r{responses[session]}" if session in responses else None
            self._call(session, f"{prompt}~{calls[session, prompt]}", decision, attributes, ts, emit)

    def _usage(self, session: str, decision: str, attributes: dict[str, Any], ts: Any, emit: Emit) -> None:
        names = (
            "input_token_count",
            "output_token_count",
            "cached_content_token_count",
            "thoughts_token_count",
            "tool_token_count",
        )
        total, output, cached, thoughts, tool = (max(as_int(attributes.get(name)) or 0, 0) for name in names)
        emit.turn(
            session=session,
            decision=decision,
            ts=ts,
            model=as_str(attributes.get("model")),
            tokens_input=max(total + tool - cached, 0),
            tokens_output=output + thoughts,
            tokens_cache_read=cached,
        )

    def _call(
        self, session: str, call_id: str, decision: str | None, attributes: dict[str, Any], ts: Any, emit: Emit
    ) -> None:
        tool = as_str(attributes.get("function_name"))
        if tool is None:
            emit.nothing(CALL)
            return
        emit.call(
            session=session,
            call_id=call_id,
            tool=tool,
            arguments=_arguments(attributes.get("function_args")),
            ts=ts,
            decision=decision,
        )
        success, duration = as_bool(attributes.get("success")), as_int(attributes.get("duration_ms"))
        facts: dict[str, Any] = {"is_error": None if success is None or (success and tool == SHELL) else not success}
        if attributes.get("decision") == "reject":
            facts = {"outcome": "vetoed", "reason": "user", "source": "log"}
        emit.result(
            session=session,
            call_id=call_id,
            text=text_of(attributes.get("error")),
            ts=ts,
            duration_ms=duration if duration is not None and duration >= 0 else None,
            structured_code=as_str(attributes.get("error_type")),
            **facts,
        )


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return {"input": value}
