"""OpenCode's storage: a JSON file for every session, message and part.

A room of its own because one step lies in one small file that names session and message. Experimental: only samples
written by a tool author stand behind it. Parts of the oldest layout name no session and are rejected.
"""

from __future__ import annotations

from typing import Any, ClassVar

from loopstats.errors import Reject
from loopstats.formats import Emit, Format, Head, Reader, Source, as_dict, as_int, as_str, text_of
from loopstats.formats.pairing import first_known

PART_TYPES = frozenset(
    {
        "text",
        "reasoning",
        "tool",
        "file",
        "step-start",
        "step-finish",
        "compaction",
        "patch",
        "snapshot",
        "agent",
        "subtask",
        "retry",
    }
)
DONE, FAILED = frozenset({"completed", "success"}), frozenset({"error", "failed"})
DENIED = ("The user rejected permission", "The user has specified a rule which prevents")


class OpenCode(Format):
    """One object: a session, a message or a part."""

    name: ClassVar[str] = "opencode"
    unit: ClassVar[str] = "container"
    is_experimental: ClassVar[bool] = True

    def matches(self, head: Head) -> int:
        """Sure for a tool part, likely for the others by their keys."""
        document = as_dict(head.document)
        if document.get("type") == "tool" and "callID" in document and isinstance(document.get("state"), dict):
            return 90
        if document.get("type") in PART_TYPES and "id" in document and ({"messageID", "time"} & document.keys()):
            return 60
        if (
            "sessionID" in document
            and document.get("role") in ("user", "assistant")
            and isinstance(document.get("time"), dict)
        ):
            return 80
        return 80 if {"id", "projectID", "directory", "time"} <= document.keys() else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of one object."""
        return OpenCodeReader(source, state)


class OpenCodeReader(Reader):
    """One file, one record."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on a session's facts, a message's usage or a tool part; other parts carry nothing."""
        emit.at(1)
        if "projectID" in document:
            self._session(document, emit)
        elif document.get("role") == "assistant":
            self._message(document, emit)
        elif document.get("type") == "tool":
            self._tool(document, emit)
        else:
            emit.nothing(as_str(document.get("type")) or as_str(document.get("role")) or "no type")

    def _session(self, document: dict[str, Any], emit: Emit) -> None:
        session = as_str(document.get("id"))
        if not session:
            raise Reject("no_session")
        emit.session(
            session=session,
            ts=as_dict(document.get("time")).get("created"),
            cwd=as_str(document.get("directory")),
            harness="opencode",
            version=as_str(document.get("version")),
            parent_session=as_str(document.get("parentID")),
        )

    def _message(self, document: dict[str, Any], emit: Emit) -> None:
        session, decision = as_str(document.get("sessionID")), as_str(document.get("id"))
        tokens = as_dict(document.get("tokens"))
        if not session or not decision:
            raise Reject("no_session")
        if not tokens:
            emit.nothing("assistant")
            return
        cache = as_dict(tokens.get("cache"))
        emit.turn(
            session=session,
            decision=decision,
            ts=as_dict(document.get("time")).get("created"),
            model=as_str(document.get("modelID")) or as_str(as_dict(document.get("model")).get("modelID")),
            tokens_input=as_int(tokens.get("input")),
            tokens_output=as_int(tokens.get("output")),
            tokens_cache_read=as_int(cache.get("read")),
            tokens_cache_write=as_int(cache.get("write")),
            cost_usd=document.get("cost") or None,  # 0 with tokens is a price that the program does not know
        )

    def _tool(self, document: dict[str, Any], emit: Emit) -> None:
        session, call_id, tool = (as_str(document.get(key)) for key in ("sessionID", "callID", "tool"))
        if not session:
            raise Reject("no_session")
        if not call_id or not tool:
            raise Reject("call_without_id")
        state = as_dict(document.get("state"))
        time, status = as_dict(state.get("time")), state.get("status")
        arguments = state.get("input")
        emit.call(
            session=session,
            call_id=call_id,
            tool=tool,
            arguments=arguments,
            ts=time.get("start"),
            decision=as_str(document.get("messageID")),
            cwd=as_str(as_dict(arguments).get("cwd")),
        )
        if status not in DONE and status not in FAILED:
            return
        text = text_of(first_known(state, "error", "output"))
        start, end = as_int(time.get("start")), as_int(time.get("end"))
        facts: dict[str, Any] = {
            "is_error": status in FAILED,
            "exit_code": as_int(as_dict(state.get("metadata")).get("exit")),
        }
        if status in FAILED and text.startswith(DENIED):
            facts = {"outcome": "vetoed", "reason": "user" if text.startswith(DENIED[0]) else "permission"}
        emit.result(
            session=session,
            call_id=call_id,
            text=text,
            ts=time.get("end"),
            duration_ms=end - start if start is not None and end is not None and end >= start else None,
            **facts,
        )
