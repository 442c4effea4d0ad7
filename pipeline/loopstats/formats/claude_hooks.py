"""Inputs of Claude Code's hooks as people collect them: a JSON array per hook, or one input a line.

A room of its own because a hook's log is half a log: the input before a call and the one after it may stand in two
files, older versions have neither ids nor times, and before `PostToolUseFailure` a call that failed left only its
first half. Both halves get one call id here, so that they meet wherever they stand, and a half without the other stays
unknown. Events of failure and denial, and the ids, follow the published hook reference; no real file had them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from loopstats.answers import AFTER_BATCH, AFTER_CALL, after_call, asked, is_codex, rejections
from loopstats.errors import Reject
from loopstats.formats import (
    SPOOL,
    Emit,
    Format,
    Head,
    Reader,
    Source,
    as_int,
    as_str,
    canonical_id,
    is_long_id,
)
from loopstats.formats.claude_code import read_array

NEEDED = ("hook_event_name", "session_id")
BEFORE = "PreToolUse"
MOST_OPEN = 4096


def _is_hook_input(record: Any) -> bool:
    return isinstance(record, dict) and all(isinstance(record.get(key), str) for key in NEEDED)


class ClaudeHooks(Format):
    """A JSON array of hook inputs."""

    name: ClassVar[str] = "claude-code-hooks"
    unit: ClassVar[str] = "container"
    rank: ClassVar[int] = SPOOL

    def matches(self, head: Head) -> int:
        """Sure where one of the first records of the array names its hook event and its session."""
        records = head.document if isinstance(head.document, list) else []
        return 95 if any(_is_hook_input(record) for record in records[:40]) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader that counts equal calls, for inputs without an id."""
        return ClaudeHooksReader(source, state)


class ClaudeHooksLines(Format):
    """The same inputs, one a line."""

    name: ClassVar[str] = "claude-code-hooks-lines"
    rank: ClassVar[int] = SPOOL

    def matches(self, head: Head) -> int:
        """Sure where one of the first lines names its hook event and its session."""
        return 95 if any(_is_hook_input(record) for record in head.records) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """The reader of the array form."""
        return ClaudeHooksReader(source, state)


class ClaudeHooksReader(Reader):
    """The input before a call is the call; the one after it is the call again, where that is new, and its result.

    An input without `tool_use_id` gets an id from its tool, its input and how many equal ones of the same half came
    before it in the session, so the n-th result belongs to the n-th equal call, in one file or in two.
    """

    def __init__(self, source: Source, state: dict[str, Any] | None = None) -> None:
        super().__init__(source, state)
        self._counts: dict[str, list[int]] = self.state.setdefault("counts", {})
        self._open: dict[str, int] = self.state.setdefault("open", {})
        self._told: dict[str, str | None] = self.state.setdefault("told", {})

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on one hook input; one without session is rejected, and so is one of a tool that names no tool."""
        session = as_str(record.get("session_id"))
        if not session:
            raise Reject("no_session")
        event = as_str(record.get("hook_event_name")) or "no event"
        ts = record.get("timestamp", record.get("ts"))
        common: dict[str, Any] = {"session": session, "agent": as_str(record.get("agent_id")), "ts": ts}
        if event == BEFORE or event in AFTER_CALL:
            self._tool(record, event, common, emit)
        elif event == AFTER_BATCH and (rejected := rejections(record)):
            for one in rejected:
                self._tool(one, "PostToolUseFailure", common, emit)
        else:
            # The hook of a subagent's end runs in its parent: no run of its own may come from it.
            common["agent"] = None
            emit.nothing(event)
        self._tell(record, common, emit)

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on the inputs of an array."""
        read_array(self, document, emit)

    def _tell(self, record: dict[str, Any], common: dict[str, Any], emit: Emit) -> None:
        cwd, model = as_str(record.get("cwd")), as_str(record.get("model"))
        known = f"{cwd or ''}\x1f{model or ''}"
        if common["agent"] is not None and cwd is not None and common["session"] not in self._told:
            # The session's first working directory, whoever it was that was heard first.
            self._told[common["session"]] = ""
            emit.session(**common, cwd=cwd)
        if common["agent"] is not None or (cwd is None and model is None) or self._told.get(common["session"]) == known:
            return
        is_first = not self._told.get(common["session"])
        self._told[common["session"]] = known
        project = cwd.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] if cwd and is_first else None
        # Codex sends inputs of the same shape and adds its turn.
        harness = "codex" if is_codex(record) else "claude-code"
        emit.session(**common, cwd=cwd, project=project or None, harness=harness, model=model)

    def _tool(self, record: dict[str, Any], event: str, common: dict[str, Any], emit: Emit) -> None:
        tool = as_str(record.get("tool_name"))
        if not tool:
            raise Reject("no_tool")
        arguments, cwd = asked(record)
        call_id = as_str(record.get("tool_use_id"))
        identity = call_id if is_long_id(call_id) else None
        if call_id is None:
            call_id = self._ordinal_id(common, tool, record.get("tool_input"), event != BEFORE)
        key = f"{common['session']}\x1f{common['agent'] or ''}\x1f{call_id}"
        if event == BEFORE or self._open.pop(key, None) is None:
            emit.call(
                **common,
                call_id=call_id,
                tool=tool,
                arguments=arguments,
                cwd=cwd,
                model=as_str(record.get("model")),
                identity=identity,
            )
        if event == BEFORE:
            if len(self._open) >= MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[key] = 1
            return
        text, facts = after_call(event, record)
        duration = as_int(record.get("duration_ms"))
        if duration is not None:
            facts["duration_ms"] = duration
        emit.result(**common, call_id=call_id, text=text, identity=identity, **facts)

    def _ordinal_id(self, common: dict[str, Any], tool: str, arguments: Any, is_after: bool) -> str:
        digest = canonical_id([tool, arguments])
        counts = self._counts.setdefault(f"{common['session']}\x1f{common['agent'] or ''}\x1f{digest}", [0, 0])
        number = counts[is_after]
        counts[is_after] += 1
        return f"{digest}#{number}"
