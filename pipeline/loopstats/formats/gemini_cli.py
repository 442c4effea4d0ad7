"""Gemini CLI sessions: one JSON document, since 0.40 JSON Lines in which a later line replaces an earlier one.

A room of its own because the shell tool's status is `success` whatever its exit code, which stands only in the result's
text, and because the lines must be read as a whole: a message that is written again counts in its last form.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from loopstats.errors import Reject
from loopstats.formats import Emit, Format, Head, Reader, Source, as_dict, as_int, as_list, as_str, text_of
from loopstats.formats.pairing import SHAPE_ERRORS

LONG_ID = 20
SHELL = "run_shell_command"
ENDED = frozenset({"success", "error", "cancelled"})
EXIT = re.compile(r"^Exit Code: (-?[0-9]{1,9})[ \t]*\r?$", re.ASCII | re.MULTILINE)
SIGNAL = re.compile(r"^Signal: (SIG[A-Z0-9]{1,12}|[1-9][0-9]{0,2})[ \t]*\r?$", re.ASCII | re.MULTILINE)
FOOTER = re.compile(
    r"^(?:Exit Code|Signal|Background PIDs|Process Group PGID): ?[^\n]{0,200}$", re.ASCII | re.MULTILINE
)
HEADER = re.compile(r"^(?:Output|Stdout): ?", re.ASCII | re.MULTILINE)
STDERR = re.compile(r"^Stderr: ?", re.ASCII | re.MULTILINE)
NO_STDERR = re.compile(r"^Error: \(none\)[ \t]*\r?\n?", re.ASCII | re.MULTILINE)
TIMED_OUT = ("Command timed out", "Command was automatically cancelled because it exceeded the timeout")
NOT_ALLOWED = "[Operation Cancelled] Reason: User did not allow"
TAIL = 2000


class GeminiCli(Format):
    """Session files of Gemini CLI."""

    name: ClassVar[str] = "gemini-cli"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """Sure by session and project hash around a list of messages; by header and `$set` lines for JSON Lines."""
        document = head.document
        if isinstance(document, dict) and isinstance(document.get("sessionId"), str) and "messages" in document:
            return 95 if "projectHash" in document else 80
        records = head.records
        if any(isinstance(r.get("sessionId"), str) and "projectHash" in r and "uuid" not in r for r in records):
            return 92
        is_update = any("$set" in r for r in records)
        is_message = any(r.get("type") == "gemini" and ("toolCalls" in r or "tokens" in r) for r in records)
        return 88 if is_message else 70 if is_update and any(r.get("type") == "user" for r in records) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of whole sessions."""
        return GeminiReader(source, state)

    def load(self, data: bytes) -> Any:
        """JSON Lines to a list of records; a line that is no object stands as None."""
        records: list[dict[str, Any] | None] = []
        for line in data.decode("utf-8", "replace").removeprefix("\ufeff").split("\n"):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            records.append(value if isinstance(value, dict) else None)
        if not any(records):
            raise Reject("not_json")
        return records


class GeminiReader(Reader):
    """Record n is message n of the document, or line n."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on one session; without a session id it is rejected."""
        if isinstance(document, list):
            header = next((record for record in map(as_dict, document) if isinstance(record.get("sessionId"), str)), {})
            messages = document
        else:
            header = as_dict(document)
            messages = header.get("messages", [header])
        session = as_str(header.get("sessionId"))
        if session is None:
            raise Reject("no_session")
        if not isinstance(messages, list):
            raise Reject("no_messages")
        latest = {m["id"]: n for n, m in enumerate(messages) if isinstance(m, dict) and isinstance(m.get("id"), str)}
        model = next((text for text in (as_str(as_dict(m).get("model")) for m in messages) if text), None)
        is_told = False
        for number, raw in enumerate(messages, start=1):
            emit.at(number)
            if not isinstance(raw, dict):
                emit.reject("not_an_object")
                continue
            is_first = not is_told
            if is_first:
                emit.session(session=session, ts=header.get("startTime"), harness="gemini-cli", model=model)
                is_told = True
            try:
                self._record(session, number, raw, latest, is_first, emit)
            except SHAPE_ERRORS:
                emit.reject("wrong_shape")

    def _record(
        self,
        session: str,
        number: int,
        message: dict[str, Any],
        latest: dict[str, int],
        is_first: bool,
        emit: Emit,
    ) -> None:
        own = message.get("id")
        if isinstance(own, str) and latest[own] != number - 1:
            emit.fold("repeat")
        elif message.get("type") == "gemini":
            self._answer(session, number, message, emit)
        elif not is_first:
            emit.nothing(as_str(message.get("type")) or next(iter(message), "-"))

    def _answer(self, session: str, number: int, message: dict[str, Any], emit: Emit) -> None:
        own, ts, model = as_str(message.get("id")), message.get("timestamp"), as_str(message.get("model"))
        decision = own or f"t{number}"
        identity = own if own is not None and len(own) >= LONG_ID else None
        tokens = as_dict(message.get("tokens"))
        total = as_int(tokens.get("input"))
        if total is not None:
            cached, thoughts, tool = (max(as_int(tokens.get(key)) or 0, 0) for key in ("cached", "thoughts", "tool"))
            emit.turn(
                session=session,
                decision=decision,
                ts=ts,
                model=model,
                tokens_input=max(total + tool - cached, 0),
                tokens_output=(as_int(tokens.get("output")) or 0) + thoughts,
                tokens_cache_read=cached,
                identity=identity,
            )
        calls = [as_dict(call) for call in as_list(message.get("toolCalls"))]
        for place, call in enumerate(calls):
            tool_name = as_str(call.get("name"))
            if tool_name is None:
                continue
            call_id = as_str(call.get("id")) or f"{decision}.{place}"
            copied = None if identity is None else f"{identity}/{call_id}"
            args = call.get("args")
            when = call.get("timestamp") or ts
            emit.call(
                session=session,
                call_id=call_id,
                tool=tool_name,
                arguments=args,
                ts=ts,
                decision=decision,
                model=model,
                cwd=as_str(as_dict(args).get("cwd")),
                identity=copied,
            )
            if call.get("status") in ENDED:
                emit.result(session=session, call_id=call_id, ts=when, identity=copied, **read_result(tool_name, call))
        if not calls and total is None:
            emit.nothing("gemini")


def read_result(tool: str, call: dict[str, Any]) -> dict[str, Any]:
    """What an ended call says, as arguments of `Emit.result`."""
    text = _text(call.get("result")) or text_of(call.get("resultDisplay"))
    status = call.get("status")
    if status == "cancelled":
        is_refused = text.lstrip().startswith(NOT_ALLOWED)
        outcome, reason = ("vetoed", "user") if is_refused else ("unknown", "interrupt")
        return {"text": text, "outcome": outcome, "reason": reason, "source": "log"}
    found: dict[str, Any] = {"text": text, "is_error": status == "error"}
    if tool != SHELL:
        return found
    tail = text[-TAIL:]
    codes = EXIT.findall(tail)
    if codes:
        found["exit_code"] = int(codes[-1])
    elif SIGNAL.search(tail):
        found |= {"is_error": True, "source": "text"}
    if text.startswith(TIMED_OUT):
        found["is_timeout"] = True
    found["text"] = _output(text)
    return found


def _output(text: str) -> str:
    """What the command wrote: without the lines that the tool puts around it."""
    start = HEADER.search(text)
    body = text[start.end() :] if start else text
    if start and start.group().startswith("Stdout"):  # older versions give the two streams apart
        body = STDERR.sub("", body, count=1)
    cut = max(len(body) - TAIL, 0)
    end = FOOTER.search(body, cut)
    body = body[: end.start()] if end else body
    return NO_STDERR.sub("", body).strip()


def _text(result: Any) -> str:
    """The text of the function responses of a call, or of a result in another form."""
    if not isinstance(result, list):
        return text_of(as_dict(as_dict(result).get("functionResponse")).get("response") or result)
    parts = []
    for part in result:
        response = as_dict(as_dict(as_dict(part).get("functionResponse")).get("response"))
        parts.append(text_of(response.get("error") or response.get("output") or response))
    return "\n".join(part for part in parts if part) or text_of(result)
