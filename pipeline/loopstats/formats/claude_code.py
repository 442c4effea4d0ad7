"""Claude Code transcripts: one JSON object a line, or the same records exported as one JSON array.

A room of its own because this log says the same thing in several places: a subagent's calls stand in files of their
own or inside `progress` records of the main one, a message is split over several records that repeat its usage, and a
resumed session copies its parent's records under a new session id. Which record counts, and under which identity, is
decided here. The meaning of the texts with which the program itself answers instead of the tool (refusals, interrupts,
cancelled siblings) is in `answers.py`, since the hook must read them alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from loopstats.answers import ERROR_TAG, verdict
from loopstats.errors import Reject
from loopstats.formats import (
    EXPORT,
    Emit,
    Format,
    Head,
    Reader,
    Source,
    as_dict,
    as_list,
    as_str,
    is_long_id,
    text_of,
)

MESSAGES = frozenset({"user", "assistant"})
CHAINED = frozenset({"progress", "system", "attachment"})
LONERS = {
    "summary": "leafUuid",
    "file-history-snapshot": "snapshot",
    "queue-operation": "operation",
    "mode": "mode",
    "last-prompt": "leafUuid",
    "pr-link": "prNumber",
    "permission-mode": "permissionMode",
    "ai-title": "aiTitle",
    "custom-title": "customTitle",
    "agent-name": "agentName",
    "tool_use": "input",
    "tool_result": "output",
}
ANSWERED_BY_USER = frozenset({"ExitPlanMode", "exit_plan_mode", "AskUserQuestion"})
WITHOUT_SESSION = frozenset({"summary", "file-history-snapshot"})
UNUSABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)
MOST_OPEN = 512


def read_array(reader: Reader, document: Any, emit: Emit) -> None:
    """Read a JSON array with the reader of single records; a record that cannot be used is a reject of its own."""
    for number, record in enumerate(as_list(document), 1):
        emit.at(number)
        try:
            if not isinstance(record, dict):
                raise Reject("not_an_object")
            reader.read(record, emit)
        except Reject as error:
            emit.reject(error.reason)
        except UNUSABLE:
            emit.reject("wrong_shape")


class _Place(NamedTuple):
    """Where a message stands: whose it is, when, and the id and working directory of its record."""

    session: str
    agent: str | None
    parent_agent: str | None
    ts: Any
    uuid: str | None
    cwd: str | None


def _score(record: dict[str, Any]) -> int:
    kind = as_str(record.get("type")) or ""
    if kind in MESSAGES:
        message = record.get("message")
        if not isinstance(message, dict) or "parts" in message or "hook_event_name" in record:
            return 0
        if isinstance(record.get("sessionId"), str):
            return 95 if "uuid" in record or "parentUuid" in record else 70
        return 80 if isinstance(record.get("session_id"), str) and "parent_tool_use_id" in record else 0
    if kind in CHAINED:
        return 90 if isinstance(record.get("sessionId"), str) and "parentUuid" in record else 0
    own = LONERS.get(kind)
    return 65 if own is not None and own in record and ("sessionId" in record or kind in WITHOUT_SESSION) else 0


class ClaudeCode(Format):
    """JSON Lines of the transcript folder: main sessions, resumed and forked ones, subagent files, single records."""

    name: ClassVar[str] = "claude-code"

    def matches(self, head: Head) -> int:
        """Sure where a message has a session id and a uuid; less where only records without messages are seen."""
        return max((_score(record) for record in head.records), default=0)

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader that keeps what was told of each session and the calls that have no id."""
        return ClaudeCodeReader(source, state)


class ClaudeCodeArray(Format):
    """The same records as one JSON array (`chat.json` of hook collections)."""

    name: ClassVar[str] = "claude-code-array"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """As sure as the records among the first of the array make it."""
        records = head.document if isinstance(head.document, list) else []
        return max((_score(record) for record in records[:40] if isinstance(record, dict)), default=0)

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """The reader of the JSON Lines form."""
        return ClaudeCodeReader(source, state)


class ClaudeCodeBeside(Format):
    """What the agent writes beside its logs: an index of a folder's sessions, and what kind of agent a subagent is."""

    name: ClassVar[str] = "claude-code-beside"
    unit: ClassVar[str] = "container"
    rank: ClassVar[int] = EXPORT

    def matches(self, head: Head) -> int:
        """By the few keys that each of the two has."""
        document = as_dict(head.document)
        entries = as_list(document.get("entries"))
        is_index = bool(entries) and all("sessionId" in as_dict(e) and "fullPath" in as_dict(e) for e in entries)
        is_kind = isinstance(document.get("agentType"), str) and document.keys().isdisjoint(("sessionId", "type"))
        return 80 if is_index or is_kind or document.keys() == {"version", "entries"} else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole file."""
        return _BesideReader(source, state)


class _BesideReader(Reader):
    """Nothing in it is a call, a result or a turn, so that it is counted and left."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """One record an entry of an index, else one."""
        entries = as_list(as_dict(document).get("entries"))
        for number in range(1, max(len(entries), 1) + 1):
            emit.at(number)
            emit.nothing("sessions index" if entries or "entries" in as_dict(document) else "agent meta")


class ClaudeCodeReader(Reader):
    """Calls from assistant records, results from user records, both also from inside `progress` records."""

    def __init__(self, source: Source, state: dict[str, Any] | None = None) -> None:
        super().__init__(source, state)
        self._told: dict[str, list[str | None]] = self.state.setdefault("told", {})
        self._sides: dict[str, str] = self.state.setdefault("sides", {})
        self._nameless: dict[str, list[str]] = self.state.setdefault("nameless", {})
        self._asked: list[str] = self.state.setdefault("asked", [])
        self._by_type: dict[Any, Callable[[dict[str, Any], Emit], None]] = {
            "assistant": self._assistant,
            "user": self._user,
            "progress": self._progress,
            "system": self._other,
            "attachment": self._other,
            "tool_use": self._old_call,
            "tool_result": self._old_result,
        }

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on one record; a message without a session is rejected, records that carry no fact are counted."""
        handler = self._by_type.get(record.get("type"))
        if handler is not None:
            handler(record, emit)
        else:
            emit.nothing(as_str(record.get("type")) or "no type")

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on the records of an array."""
        read_array(self, document, emit)

    def _place(self, record: dict[str, Any]) -> _Place:
        session = as_str(record.get("sessionId")) or as_str(record.get("session_id"))
        if not session:
            raise Reject("no_session")
        uuid = as_str(record.get("uuid"))
        agent = as_str(record.get("agentId")) or as_str(record.get("parent_tool_use_id"))
        if agent is None and record.get("isSidechain") is True:
            agent = self._side(uuid, as_str(record.get("parentUuid")))
        return _Place(session, agent, None, record.get("timestamp"), uuid, as_str(record.get("cwd")))

    def _side(self, uuid: str | None, parent: str | None) -> str:
        """The subagent of a sidechain record that names none: the first record of its chain of parents."""
        root = self._sides.get(parent or "") or parent or uuid or "sidechain"
        if uuid:
            if len(self._sides) >= MOST_OPEN:
                del self._sides[next(iter(self._sides))]
            self._sides[uuid] = root if parent else uuid
            root = self._sides[uuid]
        return root

    def _tell_new(self, record: dict[str, Any], emit: Emit) -> None:
        """The facts of a session that only records without a message have named so far."""
        session = record.get("sessionId")
        if session and session not in self._told:
            self._tell(record, self._place(record), emit)

    def _tell(self, record: dict[str, Any], place: _Place, emit: Emit, model: str | None = None) -> None:
        """Emit the session's facts where they are new; called last, so that a rejected record tells nothing."""
        key = place.session if place.agent is None else f"{place.session}\x1f{place.agent}"
        told = self._told.get(key)
        version = record.get("version")
        if told and _is_same(told[0], place.cwd) and _is_same(told[1], version) and _is_same(told[2], model):
            return
        version = as_str(version)
        if told is None:
            if place.cwd is None and version is None and model is None:
                return
            told = self._told[key] = [None, None, None]
        is_first_cwd = told[0] is None and place.cwd is not None
        told[:] = (place.cwd or told[0], version or told[1], model or told[2])
        emit.session(
            session=place.session,
            agent=place.agent,
            ts=place.ts,
            cwd=place.cwd,
            project=_base_name(place.cwd) if is_first_cwd else None,
            harness=f"claude-code {version}" if version else None,
            version=version,
            model=model,
            parent_session=as_str(as_dict(record.get("forkedFrom")).get("sessionId")),
        )

    def _assistant(self, record: dict[str, Any], emit: Emit) -> None:
        message = as_dict(record.get("message"))
        place = self._place(record)
        model = as_str(message.get("model"))
        if record.get("isApiErrorMessage") is True or model == "<synthetic>":
            self._tell(record, place, emit)
            emit.nothing("assistant/api_error" if record.get("isApiErrorMessage") is True else "assistant/synthetic")
            return
        if not self._ask(message, model, place, as_str(record.get("requestId")), emit):
            emit.nothing("assistant/text")
        self._tell(record, place, emit, model)

    def _ask(self, message: dict[str, Any], model: str | None, place: _Place, request: str | None, emit: Emit) -> bool:
        """Emit the calls and the usage of one assistant message; False where it has neither."""
        message_id = as_str(message.get("id"))
        decision = message_id or request or place.uuid
        is_used = False
        content = message.get("content")
        if isinstance(content, list):
            for index, block in enumerate(content):
                if isinstance(block, dict) and block.get("type") == "tool_use":
                    is_used = self._call(block, index, model, place, decision, emit) or is_used
        usage = message.get("usage")
        if isinstance(usage, dict) and decision:
            emit.turn(
                session=place.session,
                agent=place.agent,
                decision=decision,
                ts=place.ts,
                model=model,
                tokens_input=usage.get("input_tokens"),
                tokens_output=usage.get("output_tokens"),
                tokens_cache_read=usage.get("cache_read_input_tokens"),
                tokens_cache_write=usage.get("cache_creation_input_tokens"),
                identity=message_id if is_long_id(message_id) else place.uuid,
            )
            is_used = True
        return is_used

    def _call(
        self, block: dict[str, Any], index: int, model: str | None, place: _Place, decision: str | None, emit: Emit
    ) -> bool:
        tool = as_str(block.get("name"))
        if not tool:
            return False
        call_id = as_str(block.get("id"))
        spot = f"{place.uuid}#{index}" if place.uuid else None
        if call_id is None:
            call_id = spot or f"{emit.line}#{index}"
            waiting = self._nameless.setdefault(place.agent or "", [])
            waiting.append(call_id)
            del waiting[:-MOST_OPEN]
        if tool in ANSWERED_BY_USER:
            self._asked.append(call_id)
            del self._asked[:-MOST_OPEN]
        emit.call(
            session=place.session,
            agent=place.agent,
            parent_agent=place.parent_agent,
            call_id=call_id,
            tool=tool,
            arguments=block.get("input"),
            ts=place.ts,
            decision=decision,
            cwd=place.cwd,
            model=model,
            identity=call_id if is_long_id(call_id) else spot,
        )
        return True

    def _user(self, record: dict[str, Any], emit: Emit) -> None:
        message = as_dict(record.get("message"))
        place = self._place(record)
        used = record.get("toolUseResult", record.get("tool_use_result"))
        if not self._answer(
            message,
            used,
            as_str(record.get("toolDenialKind")),
            place,
            as_str(record.get("sourceToolAssistantUUID")),
            emit,
        ):
            emit.nothing(
                "user/compact_summary"
                if record.get("isCompactSummary") is True
                else "user/meta"
                if record.get("isMeta") is True
                else "user/prompt"
            )
        self._tell(record, place, emit)

    def _answer(
        self, message: dict[str, Any], used: Any, denial: str | None, place: _Place, source: str | None, emit: Emit
    ) -> bool:
        """Emit the results of one user message; False where it has none."""
        content = message.get("content")
        if not isinstance(content, list):
            return False
        results = [
            (index, block)
            for index, block in enumerate(content)
            if isinstance(block, dict) and block.get("type") == "tool_result"
        ]
        # The structured result beside the message belongs to one block; of several nobody can say which.
        is_single = len(results) == 1
        is_used = False
        for index, block in results:
            is_used = self._result(block, index, used if is_single else None, denial, place, source, emit) or is_used
        return is_used

    def _result(
        self,
        block: dict[str, Any],
        index: int,
        used: Any,
        denial: str | None,
        place: _Place,
        source: str | None,
        emit: Emit,
    ) -> bool:
        call_id = as_str(block.get("tool_use_id")) or self._take_nameless(place.agent, source)
        if call_id is None:
            return False
        is_error = block.get("is_error")
        if not isinstance(is_error, bool):
            is_error = isinstance(used, dict) and used.get("is_error") is True
        raw = text_of(block.get("content"))
        if not raw:
            raw = used if isinstance(used, str) else _images(block.get("content"))
        text, facts = verdict(raw, is_error, used, denial)
        if call_id in self._asked:
            self._asked.remove(call_id)
            if is_error and "outcome" not in facts and not raw.startswith((ERROR_TAG, "InputValidationError")):
                facts["outcome"], facts["reason"] = "vetoed", "user"
        emit.result(
            session=place.session,
            agent=place.agent,
            call_id=call_id,
            text=text,
            ts=place.ts,
            identity=call_id if is_long_id(call_id) else f"{place.uuid}#{index}" if place.uuid else None,
            **facts,
        )
        return True

    def _take_nameless(self, agent: str | None, source: str | None) -> str | None:
        """The call that a result without an id answers: the first open one of the record it names, else the first."""
        waiting = self._nameless.get(agent or "")
        if not waiting:
            return None
        for position, call_id in enumerate(waiting):
            if source and call_id.startswith(f"{source}#"):
                return waiting.pop(position)
        return waiting.pop(0)

    def _progress(self, record: dict[str, Any], emit: Emit) -> None:
        data = as_dict(record.get("data"))
        kind = as_str(data.get("type"))
        if kind != "agent_progress" or not self._nested(record, data, self._place(record), emit):
            emit.nothing(f"progress/{kind}")
        self._tell_new(record, emit)

    def _nested(self, record: dict[str, Any], data: dict[str, Any], outer: _Place, emit: Emit) -> bool:
        """A subagent's message inside a progress record of its parent; the cumulative copy beside it is not read."""
        inner = as_dict(data.get("message"))
        message = as_dict(inner.get("message"))
        agent = as_str(data.get("agentId")) or as_str(record.get("parentToolUseID"))
        if agent is None:
            return False
        place = _Place(
            outer.session, agent, outer.agent, inner.get("timestamp") or outer.ts, as_str(inner.get("uuid")), outer.cwd
        )
        if inner.get("type") == "assistant":
            model = as_str(message.get("model"))
            if inner.get("isApiErrorMessage") is True or model == "<synthetic>":
                return False
            return self._ask(message, model, place, as_str(inner.get("requestId")), emit)
        return self._answer(
            message,
            inner.get("toolUseResult"),
            as_str(inner.get("toolDenialKind")),
            place,
            as_str(inner.get("sourceToolAssistantUUID")),
            emit,
        )

    def _other(self, record: dict[str, Any], emit: Emit) -> None:
        kind = as_str(record.get("type"))
        detail = as_str(record.get("subtype")) or as_str(as_dict(record.get("attachment")).get("type"))
        emit.nothing(f"{kind}/{detail}" if detail else kind or "no type")
        self._tell_new(record, emit)

    def _old_call(self, record: dict[str, Any], emit: Emit) -> None:
        block = {"id": record.get("tool_use_id"), "name": record.get("name"), "input": record.get("input")}
        place = self._place(record)
        if not self._call(block, 0, None, place, place.uuid, emit):
            emit.nothing("tool_use without a name")

    def _old_result(self, record: dict[str, Any], emit: Emit) -> None:
        block = {key: record.get(key) for key in ("tool_use_id", "is_error")} | {"content": record.get("output")}
        if not self._result(block, 0, None, None, self._place(record), None, emit):
            emit.nothing("tool_result without a call")


def _is_same(told: str | None, now: Any) -> bool:
    return now is None or told == now


def _images(content: Any) -> str:
    """A stand-in for a result of pictures only, so that two different pictures are not the same result."""
    pictures = [as_dict(block.get("source")).get("data") for block in as_list(content) if isinstance(block, dict)]
    return "\n".join(
        f"[image {hashlib.sha256(data.encode('utf-8', 'replace')).hexdigest()[:16]}]"
        for data in pictures
        if isinstance(data, str)
    )


def _base_name(cwd: str | None) -> str | None:
    return cwd.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or None if cwd else None
