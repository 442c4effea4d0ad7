"""GitHub Copilot CLI `events.jsonl`: one event per line, joined by the id of the tool call.

A room of its own because only the first line names the session, a message repeats the calls that the events hold, and
a command's exit code stands only behind its output, beside `success`.
Experimental: only samples written by a tool author stand behind it.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from loopstats.errors import Reject
from loopstats.formats import (
    Emit,
    Format,
    Head,
    Reader,
    Source,
    as_bool,
    as_dict,
    as_int,
    as_list,
    as_str,
    canonical_id,
    text_of,
)
from loopstats.formats.pairing import parsed

FAMILIES = ("session.", "tool.", "assistant.", "user.", "subagent.", "hook.", "system.")
DENIED = frozenset({"denied", "rejected", "permission_denied"})
SHELLS = ("bash", "powershell", "shell")
EXITED = re.compile(r"(?:\A|\n)<exited with exit code (-?[0-9]{1,9})>[ \t\r\n]*\Z", re.ASCII)
EXIT_TAIL = 200
REMEMBERED = 512


class Copilot(Format):
    """Events with `type`, `data`, `id` and `timestamp`."""

    name: ClassVar[str] = "copilot"
    is_experimental: ClassVar[bool] = True

    def matches(self, head: Head) -> int:
        """Sure where events of the known families carry data and a parent."""
        likely = [
            r
            for r in head.records
            if isinstance(r.get("data"), dict)
            and "id" in r
            and "parentId" in r
            and str(r.get("type", "")).startswith(FAMILIES)
        ]
        return 85 if likely and 2 * len(likely) >= len(head.records) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader that keeps the session, the turns of the calls that wait and which of these are shell calls."""
        return CopilotReader(source, state)


class CopilotReader(Reader):
    """One line, one event."""

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on one event."""
        kind, data, ts = as_str(record.get("type")) or "", as_dict(record.get("data")), record.get("timestamp")
        if kind == "session.start":
            self._start(data, ts, emit)
        elif kind == "tool.execution_start":
            self._call(record, data, ts, emit)
        elif kind == "tool.execution_complete":
            self._result(record, data, ts, emit)
        elif kind == "assistant.message":
            self._message(record, data, ts, emit)
        else:
            emit.nothing(kind or "no type")

    def _session(self, record: dict[str, Any]) -> str:
        if not self.state.get("session"):
            self.state["session"] = f"{Copilot.name}~{canonical_id(record)}"
        return str(self.state["session"])

    def _start(self, data: dict[str, Any], ts: Any, emit: Emit) -> None:
        session = as_str(data.get("sessionId"))
        if not session:
            raise Reject("no_session")
        self.state["session"] = session
        emit.session(
            session=session,
            ts=ts,
            cwd=as_str(as_dict(data.get("context")).get("cwd")),
            harness="copilot",
            version=as_str(data.get("copilotVersion")),
            model=as_str(data.get("selectedModel")),
        )

    def _call(self, record: dict[str, Any], data: dict[str, Any], ts: Any, emit: Emit) -> None:
        call_id, tool = as_str(data.get("toolCallId")), as_str(data.get("toolName"))
        if not call_id or not tool:
            raise Reject("call_without_id")
        turns = as_dict(self.state.get("turns"))
        if tool.endswith(SHELLS):
            shells = self.state.setdefault("shells", [])
            shells.append(call_id)
            del shells[:-REMEMBERED]
        emit.call(
            session=self._session(record),
            agent=as_str(data.get("parentToolCallId")),
            call_id=call_id,
            tool=tool,
            ts=ts,
            arguments=parsed(data.get("arguments")),
            model=as_str(data.get("model")),
            decision=turns.pop(call_id, None),
        )

    def _result(self, record: dict[str, Any], data: dict[str, Any], ts: Any, emit: Emit) -> None:
        call_id, success = as_str(data.get("toolCallId")), as_bool(data.get("success"))
        if not call_id:
            raise Reject("result_without_id")
        error = as_dict(data.get("error"))
        facts: dict[str, Any] = {"is_error": None if success is None else not success}
        if success is False and error.get("code") in DENIED:
            facts = {"outcome": "vetoed", "reason": "user"}
        text = text_of(data.get("error")) or text_of(data.get("result"))
        shells = as_list(self.state.get("shells"))
        if call_id in shells:
            shells.remove(call_id)
            exited = EXITED.search(text, max(0, len(text) - EXIT_TAIL))
            if exited is not None and "outcome" not in facts:
                facts["exit_code"] = int(exited[1])
                text = text[: exited.start()]
        metrics = as_dict(as_dict(data.get("toolTelemetry")).get("metrics"))
        emit.result(
            session=self._session(record),
            agent=as_str(data.get("parentToolCallId")),
            call_id=call_id,
            ts=ts,
            text=text,
            duration_ms=as_int(metrics.get("durationMs")),
            **facts,
        )

    def _message(self, record: dict[str, Any], data: dict[str, Any], ts: Any, emit: Emit) -> None:
        decision = as_str(data.get("messageId"))
        tokens = as_int(data.get("outputTokens"))
        if decision is None:
            emit.nothing("assistant.message")
            return
        turns = self.state.setdefault("turns", {})
        for call in as_list(data.get("toolRequests")):
            call_id = as_str(as_dict(call).get("toolCallId"))
            if call_id:
                turns[call_id] = decision
            if len(turns) > REMEMBERED:
                turns.pop(next(iter(turns)))
        emit.turn(
            session=self._session(record),
            agent=as_str(data.get("parentToolCallId")),
            decision=decision,
            ts=ts,
            model=as_str(data.get("model")),
            tokens_output=tokens,
        )
