"""OpenTelemetry spans of agents, GenAI conventions and OpenInference, as OTLP JSON or as printed on a console.

A room of its own because a span is call and result at once, children are written before their parents, and a trace is
spread over lines; so the file is read whole, and conversation, subagent and model turn of a tool span are found along
its parents. A tool that returns an error as text has no error status and counts as a success, as the log says.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from loopstats.decode import decode_document
from loopstats.errors import Reject
from loopstats.formats import (
    EXPORT,
    Emit,
    Format,
    Head,
    Reader,
    Source,
    as_dict,
    as_int,
    as_list,
    as_str,
    objects,
    text_of,
    time_us,
)
from loopstats.formats.pairing import each, first_known, parsed, without_cache

CHAT = frozenset({"chat", "text_completion", "generate_content"})
ERROR_STATUS = frozenset({2, "2", "STATUS_CODE_ERROR", "ERROR", "StatusCode.ERROR"})
PARENTS_CAP = 64
VALUE_DEPTH = 8
HTTP_CODE = range(400, 600)
MARKS = ("gen_ai.", "openinference.span.kind", "llm.token_count")


class OtelGenAi(Format):
    """OTLP JSON, one document, JSON Lines, or pretty objects one after another; or console spans."""

    name: ClassVar[str] = "otel-genai"
    unit: ClassVar[str] = "container"
    rank: ClassVar[int] = EXPORT

    def matches(self, head: Head) -> int:
        """Sure where resource spans speak of models or tools, less so where not; console spans only where they do."""
        if head.text.lstrip()[:1] not in ("{", "["):
            return 0
        is_marked = any(mark in head.text for mark in MARKS)
        if '"resourceSpans"' in head.text or '"resource_spans"' in head.text:
            return 85 if is_marked else 45
        is_console = '"trace_id"' in head.text and '"span_id"' in head.text and '"start_time"' in head.text
        return 75 if is_marked and is_console else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole file."""
        return OtelReader(source, state)

    def load(self, data: bytes) -> Any:
        """The objects of a file that is not one JSON value; None stands for each part that is no object."""
        text = data.decode("utf-8", "replace").removeprefix("\ufeff")
        parts = self._parts(text)
        # only an escape can name half of a surrogate pair, which has no UTF-8 form
        return decode_document(json.dumps(parts).encode()) if "\\ud" in text.lower() else parts

    def _parts(self, text: str) -> list[dict[str, Any] | None]:
        found: list[dict[str, Any] | None] = []
        try:
            found.extend(objects(text))
        except RecursionError:
            raise Reject("too_deep") from None
        except ValueError:
            by_line = [_object(line) for line in text.splitlines() if line.strip()]
            if sum(item is not None for item in by_line) >= max(len(found), 1):
                return by_line
            found.append(None)
        return found


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class Span:
    """One span in one form; times are as the log has them, `kind` is `tool`, `chat`, `agent` or empty."""

    def __init__(self, record: dict[str, Any]) -> None:
        context = as_dict(record.get("context"))
        self.trace = _hex(first_known(record, "traceId", "trace_id") or context.get("trace_id"))
        self.id = _hex(first_known(record, "spanId", "span_id") or context.get("span_id"))
        self.parent = _hex(first_known(record, "parentSpanId", "parent_span_id", "parent_id"))
        self.name = as_str(record.get("name")) or ""
        self.start = first_known(record, "startTimeUnixNano", "start_time_unix_nano", "start_time")
        self.end = first_known(record, "endTimeUnixNano", "end_time_unix_nano", "end_time")
        self.attributes = _attributes(record.get("attributes"))
        status = as_dict(record.get("status"))
        self.is_error = first_known(status, "code", "status_code") in ERROR_STATUS
        self.status_text = as_str(first_known(status, "message", "description")) or ""
        self.events = as_list(record.get("events"))
        self.kind = self._kind()
        self.conversation = as_str(self.get("gen_ai.conversation.id", "session.id"))

    @property
    def is_ended(self) -> bool:
        """The span has an end: something came back."""
        return self.end not in (None, "", 0, "0")

    def get(self, *keys: str) -> Any:
        """The value of the first attribute that is there."""
        return first_known(self.attributes, *keys)

    def _kind(self) -> str:
        operation = self.get("gen_ai.operation.name")
        inference = self.get("openinference.span.kind")
        if operation == "execute_tool" or inference == "TOOL":
            return "tool"
        if operation in CHAT or inference == "LLM":
            return "chat"
        if (operation in ("invoke_agent", "create_agent") or inference == "AGENT") and self.get(
            "gen_ai.agent.name", "gen_ai.agent.id", "agent.name", "graph.node.id"
        ):
            return "agent"
        return ""


def _hex(value: Any) -> str:
    return (as_str(value) or "").removeprefix("0x")


def _attributes(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {
        str(item["key"]): _value(item.get("value"), 0)
        for item in as_list(value)
        if isinstance(item, dict) and "key" in item
    }


def _value(value: Any, depth: int) -> Any:
    value = as_dict(value)
    if "intValue" in value:
        return as_int(value["intValue"])
    for key in ("stringValue", "doubleValue", "boolValue", "bytesValue"):
        if key in value:
            return value[key]
    if depth > VALUE_DEPTH:
        return None
    if "arrayValue" in value:
        return [_value(item, depth + 1) for item in as_list(as_dict(value["arrayValue"]).get("values"))]
    if "kvlistValue" in value:
        return {
            str(as_dict(item).get("key")): _value(as_dict(item).get("value"), depth + 1)
            for item in as_list(as_dict(value["kvlistValue"]).get("values"))
        }
    return None


def spans_of(document: Any) -> list[Span]:
    """The spans of a document in order; of two records of one span the ended one."""
    found: dict[tuple[str, str], Span] = {}
    for part in document if isinstance(document, list) else [document]:
        for record in _span_records(as_dict(part)):
            span = Span(record)
            known = found.get((span.trace, span.id))
            if span.id and (known is None or (span.is_ended and not known.is_ended)):
                found[(span.trace, span.id)] = span
    return list(found.values())


def _span_records(part: dict[str, Any]) -> list[dict[str, Any]]:
    groups = as_list(first_known(part, "resourceSpans", "resource_spans"))
    if not groups:
        return [part] if "attributes" in part and ("context" in part or "span_id" in part or "spanId" in part) else []
    records: list[dict[str, Any]] = []
    for group in groups:
        for scope in as_list(first_known(as_dict(group), "scopeSpans", "scope_spans", "instrumentationLibrarySpans")):
            records.extend(span for span in as_list(as_dict(scope).get("spans")) if isinstance(span, dict))
    return records


class OtelReader(Reader):
    """One record of the container is one span, in the order of their starts."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on tool and chat spans; all others carry nothing, and a part that is no object is rejected."""
        spans = spans_of(document)
        if spans:
            _Walk(spans, emit).walk()
        else:
            emit.at(1)
            emit.nothing("no spans")
        for number, part in enumerate(as_list(document), start=1):
            if not isinstance(part, dict):
                emit.at(number)
                emit.reject("not_an_object")


class _Walk:
    """The spans of a file with their parents."""

    def __init__(self, spans: list[Span], emit: Emit) -> None:
        self._emit = emit
        self._by_id = {(span.trace, span.id): span for span in spans}
        self._spans = sorted(spans, key=lambda span: time_us(span.start) or 0)
        self._conversations: dict[str, str] = {}
        for span in self._spans:
            if span.conversation:
                self._conversations.setdefault(span.trace, span.conversation)
        self._last_chat: dict[tuple[str, str], str] = {}
        self._known: set[tuple[str, str | None]] = set()
        self._call_ids: set[tuple[str, str | None, str]] = set()

    def walk(self) -> None:
        """Hand on all spans."""
        each(self._spans, self._emit, self._read)

    def _read(self, span: Span) -> None:
        kind = span.kind
        if kind == "tool":
            self._tool(span)
        elif kind == "chat":
            self._chat(span)
        else:
            self._emit.nothing(kind or "span")

    def _place(self, span: Span) -> tuple[str, str | None, str | None]:
        """Session, agent and name of the agent: by the span itself and the nearest of its parents that tells."""
        above = self._above(span)
        agents = [parent for parent in above if parent.kind == "agent"]
        session = next((one.conversation for one in (span, *above) if one.conversation), None)
        session = session or self._conversations.get(span.trace) or span.trace
        if not session:
            raise Reject("no_session")
        mine = [agent for agent in agents if agent.conversation in (None, session)]
        agent = mine[0].id if len(mine) > 1 else None
        name = as_str((mine[0] if mine else span).get("gen_ai.agent.name", "agent.name", "graph.node.id"))
        return session, agent, name

    def _above(self, span: Span) -> list[Span]:
        above: list[Span] = []
        parent = self._by_id.get((span.trace, span.parent))
        seen = {span.id}
        while parent is not None and len(above) < PARENTS_CAP and parent.id not in seen:
            above.append(parent)
            seen.add(parent.id)
            parent = self._by_id.get((parent.trace, parent.parent))
        return above

    def _begin(self, span: Span, session: str, agent: str | None, name: str | None, model: str | None) -> None:
        if (session, agent) not in self._known:
            self._known.add((session, agent))
            self._emit.session(session=session, agent=agent, ts=span.start, harness=name, model=model)

    def _chat(self, span: Span) -> None:
        session, agent, name = self._place(span)
        model = as_str(span.get("gen_ai.response.model", "gen_ai.request.model", "llm.model_name"))
        self._begin(span, session, agent, name, model)
        self._last_chat[(span.trace, span.parent)] = span.id
        read = as_int(span.get("gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read"))
        write = as_int(
            span.get("gen_ai.usage.cache_creation.input_tokens", "llm.token_count.prompt_details.cache_write")
        )
        total = as_int(span.get("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"))
        self._emit.turn(
            session=session,
            agent=agent,
            decision=span.id,
            ts=span.end if span.is_ended else span.start,
            model=model,
            tokens_input=without_cache(total, read, write),
            tokens_cache_read=read,
            tokens_cache_write=write,
            tokens_output=as_int(
                span.get("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
            ),
        )

    def _tool(self, span: Span) -> None:
        session, agent, name = self._place(span)
        self._begin(span, session, agent, name, None)
        tool = as_str(span.get("gen_ai.tool.name", "tool.name")) or span.name.removeprefix("execute_tool ")
        if not tool:
            raise Reject("call_without_tool")
        call_id = as_str(span.get("gen_ai.tool.call.id", "tool_call.id")) or span.id
        if (session, agent, call_id) in self._call_ids:
            call_id = f"{call_id}#{span.id}"
        self._call_ids.add((session, agent, call_id))
        arguments = parsed(
            span.get("gen_ai.tool.call.arguments", "tool_call.function.arguments", "input.value", "tool.parameters")
        )
        self._emit.call(
            session=session,
            agent=agent,
            call_id=call_id,
            tool=tool,
            arguments=arguments,
            ts=span.start,
            decision=self._last_chat.get((span.trace, span.parent)),
        )
        if not span.is_ended:
            return
        kind = as_str(span.get("error.type")) or ""
        code = as_int(kind)
        start, end = time_us(span.start), time_us(span.end)
        self._emit.result(
            session=session,
            agent=agent,
            call_id=call_id,
            text=self._text(span),
            ts=span.end,
            is_error=span.is_error,
            is_timeout=span.is_error and kind in ("timeout", "TimeoutError", "asyncio.TimeoutError"),
            structured_code=str(code) if code in HTTP_CODE else None,
            duration_ms=(end - start) // 1000 if start is not None and end is not None and end >= start else None,
        )

    def _text(self, span: Span) -> str:
        if span.is_error:
            for event in map(as_dict, span.events):
                facts = _attributes(event.get("attributes"))
                said = as_str(facts.get("exception.message")) or ""
                if event.get("name") == "exception" and (said or facts.get("exception.type")):
                    return ": ".join(part for part in (as_str(facts.get("exception.type")), said) if part)
            if span.status_text:
                return span.status_text
        return text_of(span.get("gen_ai.tool.call.result", "output.value"))
