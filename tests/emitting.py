"""Drives a format's reader the way the ingest does, for tests: lines or a document in, rows as dicts by type out.

A room of its own because each format's test needs the same three things: records fed one by one, a rejected record
taken back and noted, and call and result put together to the outcome that METHOD 5 gives.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from loopstats import rule
from loopstats.errors import Reject
from loopstats.formats import Emit, Format, Head, Source
from loopstats.tables import RECORD_TYPES

REJECTABLE = (Reject, KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)


class Fed:
    """What a format made of its input: `rows` by type, `rejects` as (record, reason), `folds`, `nothing`, `state`."""

    def __init__(self, emit: Emit, rejects: list[tuple[int, str]], state: dict[str, Any]) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {
            kind: [dict(zip(RECORD_TYPES[kind].names, row, strict=True)) for row in emit.rows.get(kind, [])]
            for kind in RECORD_TYPES
        }
        self.rejects = rejects
        self.folds = emit.fold_reasons
        self.nothing = emit.nothing_types
        self.lines_used = emit.lines_used
        self.pending = emit.pending
        self.state = state

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The call rows."""
        return self.rows["call"]

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Result rows by call id; the first of an id stands."""
        found: dict[str, dict[str, Any]] = {}
        for row in self.rows["result"]:
            found.setdefault(row["call_id"], row)
        return found

    def outcomes(self) -> list[tuple[str, str, str | None]]:
        """Tool, outcome and reason of every call, in the order of the calls."""
        results = self.results
        answers = []
        for call in self.calls:
            result = results.get(call["call_id"])
            get = result.get if result else (lambda _key: None)
            word, reason, _ = rule.outcome(
                call["kind"],
                call["program"],
                call["is_exit_masked"],
                call["is_piped"],
                result is not None,
                get("is_error"),
                get("exit_code"),
                get("outcome_log"),
                get("reason_log"),
                bool(get("is_timeout")),
                get("is_summary_failed"),
                get("has_error_text"),
            )
            answers.append((call["tool"], word, reason))
        return answers

    def count_failed(self) -> int:
        """Calls whose log says that they failed: flag, exit code, time-out or stated outcome, before any rule."""
        return sum(1 for row in self.results.values() if is_failed_as_logged(row))


def is_failed_as_logged(row: dict[str, Any]) -> bool:
    """Whether a result row holds any fact of failure."""
    return bool(
        row["is_error"]
        or row["exit_code"] not in (None, 0)
        or row["is_timeout"]
        or row["outcome_log"] in ("failure", "vetoed")
    )


def feed(
    fmt: Format,
    lines: list[Any],
    name: str = "log.jsonl",
    state: dict[str, Any] | None = None,
    pending: dict[str, list[Any]] | None = None,
    first_line: int = 1,
) -> Fed:
    """Read JSON Lines (objects, or text that is parsed); goes on from `state` and `pending` of an earlier part."""
    emit = Emit(fmt, 1, pending=pending)
    reader = fmt.reader(Source(name), state)
    rejects = []
    chain = ""
    for number, line in enumerate(lines, start=first_line):
        emit.at(number)
        if fmt.needs_chain:
            chain = hashlib.sha256(f"{chain}{line}".encode("utf-8", "replace")).hexdigest()[:32]
            emit.chain = chain
        try:
            record = json.loads(line) if isinstance(line, str) else line
            if not isinstance(record, dict):
                raise Reject("not_an_object")
            reader.read(record, emit)
        except REJECTABLE as error:
            emit.undo()
            rejects.append((number, getattr(error, "reason", type(error).__name__)))
    emit.close()
    json.dumps(reader.state)
    return Fed(emit, rejects, reader.state)


def feed_document(fmt: Format, document: Any, name: str = "log.json") -> Fed:
    """Read a container: a parsed document, or bytes where the format parses them itself."""
    emit = Emit(fmt, 1)
    reader = fmt.reader(Source(name))
    rejects = []
    try:
        reader.read_document(fmt.load(document) if isinstance(document, bytes) else document, emit)
    except REJECTABLE as error:
        emit.undo()
        rejects.append((0, getattr(error, "reason", type(error).__name__)))
    emit.close()
    return Fed(emit, emit.rejects + rejects, reader.state)


def head_of(text: str, name: str = "log") -> Head:
    """The head that the ingest builds from a file's text."""
    records = []
    for line in text.split("\n")[:20]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            records.append(value)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    return Head(name, text[:65_536], records, document)


HOSTILE: list[Any] = [
    {},
    {"type": None},
    {"type": 7},
    {"type": []},
    {"type": {"a": 1}},
    {"type": "message"},
    {"type": "session"},
    {"type": "message", "message": None},
    {"type": "message", "message": []},
    {"type": "message", "message": {"role": 7}},
    {"type": "message", "message": {"role": "assistant", "content": {"type": "toolCall"}}},
    {
        "type": "message",
        "message": {"role": "assistant", "content": [None, 7, "x", {"type": "toolCall", "id": {}, "name": []}]},
    },
    {"type": "message", "message": {"role": "toolResult", "toolCallId": None, "content": 7}},
    {"type": "response_item", "payload": None},
    {"type": "response_item", "payload": []},
    {"type": "response_item", "payload": {}},
    {"type": "response_item", "payload": {"type": "function_call", "name": None, "arguments": 7, "call_id": []}},
    {
        "type": "response_item",
        "payload": {"type": "function_call", "name": "t", "arguments": "{" * 5000, "call_id": "c"},
    },
    {
        "type": "response_item",
        "payload": {"type": "function_call_output", "call_id": "c", "output": {"text": {"text": [[[[]]]]}}},
    },
    {"type": "event_msg", "payload": {"type": "token_count", "info": {"total_token_usage": {"input_tokens": "many"}}}},
    {"type": "event_msg", "payload": {"type": "token_count", "info": {"total_token_usage": {"input_tokens": 1 << 80}}}},
    {"type": "event_msg", "payload": {"type": "mcp_tool_call_end", "call_id": "q", "result": 7, "invocation": []}},
    {"type": "tool_start", "call": None, "ts": "x"},
    {"type": "tool_start", "call": {"call_id": 1, "name": 2, "input": 3}, "ts": 1},
    {"type": "tool_result", "call_id": None, "output": 7, "ts": 1},
    {"type": "tool_result", "call_id": "z", "output": None},
    {"type": "step_usage", "step": {}, "cost_usd": "1e999", "input_tokens": -5, "ts": -1},
    {"type": "tool.start"},
    {"type": "tool.end", "sessionKey": 7, "toolName": {}, "success": "yes"},
    {"id": "x", "type": "gemini", "toolCalls": [None, {"id": 1}, {"name": [], "result": 7}]},
    {"$set": 7},
    {"trajectory": 7},
    {"messages": {"a": 1}},
    {"history": [None, 7, [], {}]},
    {"text": "\ud800 lone", "type": "\udcff"},
]
"""Shapes that no log should have and every reader must survive."""
