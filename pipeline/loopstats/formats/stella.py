"""stella's event stream: one JSON object per event, nearly all of them pieces of text.

A room of its own because the pieces (up to 98 % of the lines) are dropped before anything is looked at, and because the
stream names no session: the run is named by its first step, call or usage record (METHOD 2).
"""

from __future__ import annotations

from typing import Any, ClassVar

from loopstats.errors import Reject
from loopstats.formats import Emit, Format, Head, Reader, Source, as_dict, as_int, as_str, canonical_id, text_of

LONG_ID = 20
PIECES = frozenset({"text_delta", "reasoning", "budget_tick", "block_registered", "text"})
TURNS = frozenset({"step_manifest", "step_usage", "tool_start"})


class StellaEvents(Format):
    """Event streams of stella."""

    name: ClassVar[str] = "stella-events"

    def matches(self, head: Head) -> int:
        """Sure by a call or its usage, likely by pieces of text with their time."""
        best = 0
        for record in head.records:
            kind = record.get("type")
            if not isinstance(record.get("ts"), int):
                continue
            if kind == "tool_start" and isinstance(as_dict(record.get("call")).get("call_id"), str):
                best = max(best, 95)
            elif (kind in ("text_delta", "reasoning") and isinstance(record.get("delta"), str)) or (
                kind in ("block_registered", "step_manifest", "step_usage", "budget_tick")
            ):
                best = max(best, 85)
        return best

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader that keeps the session's id, the number of the model turn and its model."""
        return StellaReader(source, state)


class StellaReader(Reader):
    """`self.state`: `session`, `turn` (usage records seen; the calls of a step follow its usage), `model`."""

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on one event."""
        kind = record.get("type")
        if kind in PIECES:
            emit.nothing(str(kind))
            return
        if kind in TURNS and "session" not in self.state:
            self.state.update(session=f"{StellaEvents.name}~{canonical_id(record)}", turn=0)
            emit.session(
                session=self.state["session"], ts=record.get("ts"), harness="stella", model=as_str(record.get("model"))
            )
            if kind == "step_manifest":
                return
        if kind == "tool_start":
            self._start(record, emit)
        elif kind == "tool_result":
            self._result(record, emit)
        elif kind == "step_usage":
            self._usage(record, emit)
        else:
            emit.nothing(as_str(kind) or "no type")

    def _session(self) -> str:
        session = self.state.get("session")
        if not isinstance(session, str):
            raise Reject("no_session")
        return session

    def _start(self, record: dict[str, Any], emit: Emit) -> None:
        call = as_dict(record.get("call"))
        call_id, tool = as_str(call.get("call_id")), as_str(call.get("name"))
        if call_id is None:
            raise Reject("step_without_id")
        if tool is None:
            raise Reject("step_without_tool")
        turn = int(self.state.get("turn", 0))
        emit.call(
            session=self._session(),
            call_id=call_id,
            tool=tool,
            arguments=call.get("input"),
            ts=record.get("ts"),
            decision=f"r{turn}" if turn else None,
            model=self.state.get("model"),
            identity=_identity(call_id),
        )

    def _result(self, record: dict[str, Any], emit: Emit) -> None:
        call_id, output = as_str(record.get("call_id")), record.get("output")
        if call_id is None:
            raise Reject("result_without_call_id")
        if not isinstance(output, dict):
            raise Reject("result_without_output")
        is_error = "ok" not in output
        duration = as_int(record.get("duration_ms"))
        emit.result(
            session=self._session(),
            call_id=call_id,
            text=text_of(output.get("err", output) if is_error else output["ok"]),
            ts=record.get("ts"),
            is_error=is_error,
            duration_ms=duration if duration is not None and duration >= 0 else None,
            identity=_identity(call_id),
        )

    def _usage(self, record: dict[str, Any], emit: Emit) -> None:
        turn = int(self.state.get("turn", 0)) + 1
        model = as_str(record.get("model"))
        self.state.update(turn=turn, model=model or self.state.get("model"))
        total = as_int(record.get("input_tokens"))
        cached, written = (
            max(as_int(record.get(key)) or 0, 0) for key in ("cached_input_tokens", "cache_write_tokens")
        )
        emit.turn(
            session=self._session(),
            decision=f"r{turn}",
            ts=record.get("ts"),
            model=model,
            cost_usd=record.get("cost_usd"),
            tokens_input=None if total is None else max(total - cached - written, 0),
            tokens_cache_read=cached,
            tokens_cache_write=written,
            tokens_output=as_int(record.get("output_tokens")),
        )


def _identity(call_id: str) -> str | None:
    return call_id if len(call_id) >= LONG_ID else None
