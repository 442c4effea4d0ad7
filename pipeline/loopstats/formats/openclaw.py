"""OpenClaw: session files, the telemetry plug-in's log, and the index of sessions.

A room of its own because a session's lines are those of pi with one more witness (`details` with status and exit code,
where a command that goes on in the background has neither failed nor succeeded), and because the telemetry has no call
ids: start and end are paired in order by session and tool.
"""

from __future__ import annotations

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
    as_list,
    as_str,
    text_of,
)
from loopstats.formats.pi import PiReader, score

OWN_TOOLS = frozenset(
    {
        "exec",
        "process",
        "sessions_spawn",
        "sessions_yield",
        "sessions_send",
        "sessions_list",
        "sessions_history",
        "session_status",
        "subagents",
    }
)
TELEMETRY = frozenset(
    {"tool.start", "tool.end", "agent.start", "agent.end", "message.in", "message.out", "message.sending", "llm.usage"}
)
BACKGROUND = frozenset({"exec"})
BAD_STATUS = frozenset({"error", "failed"})
OPEN_CALLS = 1024


class OpenClaw(Format):
    """Session files and telemetry of OpenClaw."""

    name: ClassVar[str] = "openclaw"
    needs_chain: ClassVar[bool] = True

    def matches(self, head: Head) -> int:
        """Sure by telemetry events; for session lines only with a mark of its own, since pi writes the same lines."""
        kinds = [r.get("type") for r in head.records]
        if any(kind in ("tool.start", "tool.end") for kind in kinds) and any("sessionKey" in r for r in head.records):
            return 92
        if sum(1 for r in head.records if r.get("type") == "agent.start" and "sessionKey" in r and "agentId" in r):
            return 88
        base = score(head)
        return base + 5 if base and any(_is_marked(record) for record in head.records) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of either kind of line."""
        return OpenClawReader(source, state)


def _is_marked(record: dict[str, Any]) -> bool:
    kind = record.get("type")
    if kind == "session":
        return ".openclaw" in (as_str(record.get("cwd")) or "") or (as_str(record.get("id")) or "").startswith(
            "openclaw"
        )
    if kind in ("custom", "custom_message"):
        custom = as_str(record.get("customType")) or ""
        return custom.startswith("openclaw") or custom == "model-snapshot"
    blocks = map(as_dict, as_list(as_dict(record.get("message")).get("content")))
    return any(block.get("type") == "toolCall" and block.get("name") in OWN_TOOLS for block in blocks)


class OpenClawReader(PiReader):
    """State as for pi; for telemetry `open`: session and tool to the ids of calls that wait for their end."""

    harness: ClassVar[str] = "openclaw"

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on one line of a session or of the telemetry."""
        kind = record.get("type")
        if kind == "tool.start":
            self._start(record, emit)
        elif kind == "tool.end":
            self._end(record, emit)
        elif kind in TELEMETRY:
            emit.nothing(str(kind))
        else:
            super().read(record, emit)

    def facts(self, message: dict[str, Any]) -> dict[str, Any]:
        """As for pi, with what `details` say beside it."""
        found = super().facts(message)
        details = as_dict(message.get("details"))
        status, exit_code = as_str(details.get("status")), as_int(details.get("exitCode"))
        if exit_code is not None:
            found["exit_code"] = exit_code
        if details.get("timedOut") is True:
            found["is_timeout"] = True
        if status in BAD_STATUS:
            found["is_error"] = True
        elif status == "running" and message.get("toolName") in BACKGROUND:
            found |= {"outcome": "unknown", "source": "log"}
        duration = as_int(details.get("durationMs"))
        return found if duration is None or duration < 0 else found | {"duration_ms": duration}

    def _start(self, record: dict[str, Any], emit: Emit) -> None:
        session, tool = _place(record)
        waiting = self.state.setdefault("open", {})
        if sum(map(len, waiting.values())) >= OPEN_CALLS:
            waiting.clear()
        # the chain stands for the position: a later file of the same session must not meet these ids again
        call_id = f"{tool}~{emit.chain[:16] or emit.line}"
        waiting.setdefault(f"{session}\x1f{tool}", []).append(call_id)
        if session not in self.state.setdefault("sessions", {}):
            self.state["sessions"][session] = 1
            emit.session(session=session, ts=_time(record), harness=self.harness)
        emit.call(session=session, call_id=call_id, tool=tool, arguments=record.get("params"), ts=_time(record))

    def _end(self, record: dict[str, Any], emit: Emit) -> None:
        session, tool = _place(record)
        key = f"{session}\x1f{tool}"
        waiting = as_dict(self.state.get("open")).get(key)
        if not waiting:
            raise Reject("end_without_start")
        call_id = waiting.pop(0)
        if not waiting:
            del self.state["open"][key]
        success, duration = as_bool(record.get("success")), as_int(record.get("durationMs"))
        emit.result(
            session=session,
            call_id=call_id,
            text=text_of(record.get("error") or record.get("result")),
            ts=_time(record),
            is_error=None if success is None else not success,
            duration_ms=duration if duration is not None and duration >= 0 else None,
        )


class OpenClawIndex(Format):
    """`sessions.json`: key to session, with the session that spawned it."""

    name: ClassVar[str] = "openclaw-sessions"
    unit: ClassVar[str] = "container"
    rank: ClassVar[int] = EXPORT

    def matches(self, head: Head) -> int:
        """Sure where every value is a session with its id and at least one key names an agent."""
        document = head.document
        if not isinstance(document, dict) or not document:
            return 0
        entries = [as_dict(entry) for entry in document.values()]
        is_index = all(isinstance(entry.get("sessionId"), str) and "updatedAt" in entry for entry in entries)
        return 92 if is_index and any(key.startswith("agent:") for key in document) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole index."""
        return OpenClawIndexReader(source, state)

    def load(self, data: bytes) -> Any:
        """Only JSON is read; what is none is rejected."""
        raise Reject("not_json")


class OpenClawIndexReader(Reader):
    """One record per session: the parent link, nothing else."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on the links whose two ends the index knows."""
        entries = as_dict(document)
        ids = {key: as_str(as_dict(entry).get("sessionId")) for key, entry in entries.items()}
        for number, (key, raw) in enumerate(entries.items(), start=1):
            emit.at(number)
            entry = as_dict(raw)
            parent = ids.get(as_str(entry.get("spawnedBy")) or "") or ids.get(
                as_str(entry.get("parentSessionKey")) or ""
            )
            session = ids[key]
            if session and parent and parent != session:
                emit.session(
                    session=session,
                    ts=entry.get("startedAt"),
                    parent_session=parent,
                    identity=f"openclaw:{session}:{parent}",
                )
            else:
                emit.nothing("session without parent")


def _place(record: dict[str, Any]) -> tuple[str, str]:
    session, tool = as_str(record.get("sessionKey")), as_str(record.get("toolName"))
    if session is None:
        raise Reject("no_session")
    if tool is None:
        raise Reject("step_without_tool")
    return session, tool


def _time(record: dict[str, Any]) -> Any:
    return record.get("ts") or record.get("timestamp")
