"""Cursor agent transcripts: JSON Lines of roles and content blocks, without ids and times and often without results.

A room of its own because a call can only be named by its place in the file, and a result only be matched by order.
Experimental: only samples written by a tool author stand behind it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from loopstats.formats import (
    Emit,
    Format,
    Head,
    Reader,
    Source,
    as_bool,
    as_dict,
    as_list,
    as_str,
    canonical_id,
    text_of,
)
from loopstats.formats.pairing import parsed

CALLS, RESULTS = frozenset({"tool_use", "tool_call", "tool-call"}), frozenset({"tool_result", "tool-result"})
WAITING_CAP = 64


class Cursor(Format):
    """Lines with `role` and `message.content`, and none of the ids that other agents write."""

    name: ClassVar[str] = "cursor"
    is_experimental: ClassVar[bool] = True
    needs_chain: ClassVar[bool] = True

    def matches(self, head: Head) -> int:
        """Likely where a line has a role and content blocks but no id, type or time."""
        likely = [
            r
            for r in head.records
            if r.get("role") in ("user", "assistant")
            and isinstance(r.get("message"), dict)
            and isinstance(r["message"].get("content"), list)
            and not {"type", "uuid", "id", "timestamp", "sessionId"} & r.keys()
        ]
        return 50 if likely and 2 * len(likely) >= len(head.records) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader that keeps the session and the calls that wait."""
        return CursorReader(source, state)


class CursorReader(Reader):
    """One line, one message."""

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on calls, and results in the order of the calls; a result says nothing of failure, so it is unknown."""
        role = record.get("role")
        blocks = [as_dict(block) for block in as_list(as_dict(record.get("message")).get("content"))]
        if role == "assistant":
            if "session" not in self.state:
                self.state["session"] = f"{Cursor.name}~{canonical_id(record)}"
            self._calls(blocks, as_str(record.get("model")), emit)
        elif role == "user" and any(block.get("type") in RESULTS for block in blocks):
            self._results(blocks, emit)
        else:
            emit.nothing(as_str(record.get("type")) or as_str(role) or "no type")

    def _calls(self, blocks: list[dict[str, Any]], model: str | None, emit: Emit) -> None:
        place = emit.chain or str(emit.line)
        waiting: list[str] = []
        emit.session(session=self.state["session"], harness="cursor", model=model)
        for number, block in enumerate(blocks):
            tool = as_str(block.get("name"))
            if block.get("type") in CALLS and tool:
                call_id = as_str(block.get("id")) or f"{place}.{number}"
                waiting.append(call_id)
                emit.call(
                    session=self.state["session"],
                    call_id=call_id,
                    tool=tool,
                    decision=place,
                    model=model,
                    arguments=parsed(block.get("input")),
                )
        self.state["waiting"] = waiting[:WAITING_CAP]

    def _results(self, blocks: list[dict[str, Any]], emit: Emit) -> None:
        waiting = as_list(self.state.get("waiting"))
        for block in blocks:
            if block.get("type") not in RESULTS or not waiting:
                continue
            named = as_str(block.get("tool_use_id"))
            call_id = named if named in waiting else waiting[0]
            waiting.remove(call_id)
            emit.result(
                session=self.state["session"],
                call_id=str(call_id),
                text=text_of(block.get("content")),
                is_error=as_bool(block.get("is_error")),
            )
