"""Chat messages with tool calls in JSON Lines, as any program that speaks to a model may write them: the general case.

A room of its own because this is no agent's log but a shape: a message a line, or a conversation a line under
`messages`. It has no session id, no time, no error flag and often no unique call id, so this page says what stands in
for each: the run id of METHOD 2, the position of the turn, and an outcome that stays unknown unless the message of the
tool carries a flag or an exit code. Every format that knows more is surer than this one.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

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

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
SCORE = 5
SESSIONS = ("session_id", "sessionId", "conversation_id", "thread_id")
INSTANCES = ("instance_id", "task_id", "id")
TIMES = ("timestamp", "ts", "created_at", "time", "created")
EXITS = ("exit_code", "exitCode", "returncode", "return_code")
EXIT_LINE = re.compile(
    r"(?:\[?exit[ _]code:? ?|process exited with code |command exited with code |<returncode>)(-?[0-9]{1,10})"
    r"(?:\]|</returncode>|\.)?[ \t\r]*\Z",
    re.ASCII | re.IGNORECASE,
)
STATUS = {"error": True, "failed": True, "success": False, "ok": False}
EDGE_LINES = 2
MOST_OPEN = 512
MOST_RUNS = 64


def _is_message(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and isinstance(record.get("role"), str)
        and record["role"] in ROLES
        and any(key in record for key in ("content", "tool_calls", "function_call"))
    )


class Chat(Format):
    """A message a line, or an object with `messages` a line."""

    name: ClassVar[str] = "chat"

    def matches(self, head: Head) -> int:
        """A little where all of the first records are messages, or hold them under `messages`."""
        likely = [
            record
            for record in head.records
            if _is_message(record) or any(map(_is_message, as_list(record.get("messages"))[:8]))
        ]
        return SCORE if likely and len(likely) == len(head.records) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader that keeps the run, its number of turns and its open calls."""
        return ChatReader(source, state)


def exit_code_in(text: str) -> int | None:
    """The exit code that one of the first or last two lines of `text` consists of; None where none does."""
    lines = text[:400].split("\n")[:EDGE_LINES] + text[-400:].rstrip().split("\n")[-EDGE_LINES:]
    for line in lines:
        found = EXIT_LINE.match(line.strip())
        if found:
            return as_int(found.group(1))
    return None


class ChatReader(Reader):
    """Walks messages in order; a conversation that stands in one line is a run of its own."""

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on one message, or all messages of one conversation."""
        messages = record.get("messages")
        if not isinstance(messages, list):
            self._message(record, self._run(record), record, emit)
            return
        run: dict[str, Any] = {}
        for message in messages:
            if isinstance(message, dict):
                self._message(message, run, record, emit)
        emit.nothing("messages")

    def _run(self, message: dict[str, Any]) -> dict[str, Any]:
        """What is kept of the run that a message names: several may stand in one file, with equal ids of calls."""
        named = _first(message, SESSIONS)
        if named is None:
            return self.state
        runs: dict[str, dict[str, Any]] = self.state.setdefault("runs", {})
        run = runs[named] = runs.pop(named, {})
        if len(runs) > MOST_RUNS:
            del runs[next(iter(runs))]
        return run

    def _message(self, message: dict[str, Any], run: dict[str, Any], holder: dict[str, Any], emit: Emit) -> None:
        role = as_str(message.get("role")) or "no role"
        if role in ("assistant", "user"):
            if role == "assistant":
                self._turn(message, run, holder, emit)
            self._calls(message, role, run, holder, emit)
        elif role in ("tool", "function"):
            self._result(message, run, holder, emit)
        emit.nothing(role)

    def _common(self, message: dict[str, Any], run: dict[str, Any], holder: dict[str, Any]) -> dict[str, Any]:
        named = _first(message, SESSIONS) or _first(holder, SESSIONS)
        if named is None:
            if "session" not in run:
                instance = "chat"
                if holder is not message:
                    instance = _first(holder, INSTANCES) or instance
                    trial = as_str(holder.get("trial"))
                    instance = f"{instance}-{trial}" if trial else instance
                run["session"] = f"{instance}~{canonical_id(message)}"
            named = run["session"]
        ts = next((message[key] for key in TIMES if message.get(key) is not None), None)
        return {"session": named, "ts": ts}

    def _turn(self, message: dict[str, Any], run: dict[str, Any], holder: dict[str, Any], emit: Emit) -> None:
        run["turn"] = run.get("turn", 0) + 1
        common = self._common(message, run, holder)
        if common["session"] != run.get("told"):
            run["told"] = common["session"]
            task = _first(holder, INSTANCES[:2])
            model = as_str(message.get("model")) or as_str(holder.get("model"))
            if model or task:
                emit.session(**common, model=model, task=task)
        usage = as_dict(message.get("usage"))
        if usage:
            cached = as_int(as_dict(usage.get("prompt_tokens_details")).get("cached_tokens"))
            sent = as_int(usage.get("prompt_tokens"))
            emit.turn(
                **common,
                decision=f"turn {run['turn']}",
                model=as_str(message.get("model")),
                tokens_input=sent if sent is None or cached is None else max(0, sent - cached),
                tokens_output=as_int(usage.get("completion_tokens")),
                tokens_cache_read=cached,
            )

    def _calls(
        self, message: dict[str, Any], role: str, run: dict[str, Any], holder: dict[str, Any], emit: Emit
    ) -> None:
        asked = [block for block in as_list(message.get("tool_calls")) if isinstance(block, dict)]
        if isinstance(message.get("function_call"), dict):
            asked.append({"function": message["function_call"]})
        if not asked:
            return
        common = self._common(message, run, holder)
        waiting: list[list[str]] = run.setdefault("open", [])
        for block in asked:
            function = as_dict(block.get("function")) or block
            tool = as_str(function.get("name"))
            if not tool:
                continue
            # Ids such as call_0 come again in every turn: the number of the call in the run keeps them apart.
            run["calls"] = run.get("calls", 0) + 1
            logged = as_str(block.get("id")) or ""
            call_id = f"{logged}@{run['calls']}"
            waiting.append([logged, call_id, tool])
            del waiting[:-MOST_OPEN]
            emit.call(
                **common,
                call_id=call_id,
                tool=tool,
                arguments=_arguments(function.get("arguments")),
                decision=f"turn {run.get('turn', 0)}" if role == "assistant" else None,
                model=as_str(message.get("model")),
                actor="user" if role == "user" else "agent",
            )

    def _result(self, message: dict[str, Any], run: dict[str, Any], holder: dict[str, Any], emit: Emit) -> None:
        call_id = _take(run.get("open", []), as_str(message.get("tool_call_id")), as_str(message.get("name")))
        if call_id is None:
            return
        text = text_of(message.get("content"))
        is_error, code, source = _flag(message), _exit_code(message), None
        if code is None:
            code = exit_code_in(text)
            source = "text" if code is not None and is_error is None else None
        emit.result(
            **self._common(message, run, holder),
            call_id=call_id,
            text=text,
            is_error=is_error,
            exit_code=code,
            source=source,
        )


def _first(record: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((text for key in keys if (text := as_str(record.get(key)))), None)


def _take(waiting: list[list[str]], logged: str | None, tool: str | None) -> str | None:
    """The first open call of that id; without an id, of that tool, else the first; None where nothing fits."""
    for position, (call_logged, call_id, call_tool) in enumerate(waiting):
        if call_logged == logged if logged else tool is None or tool == call_tool:
            del waiting[position]
            return call_id
    return None


def _exit_code(message: dict[str, Any]) -> int | None:
    for part in (message, as_dict(message.get("extra")), as_dict(message.get("metadata"))):
        for key in EXITS:
            code = as_int(part.get(key))
            if code is not None:
                return code
    return None


def _flag(message: dict[str, Any]) -> bool | None:
    """The error flag of a tool's message, in any of its usual names; None where it has none."""
    for key in ("is_error", "isError", "error"):
        value = message.get(key)
        if isinstance(value, bool):
            return value
        if key == "error" and value:
            return True
    is_success = as_bool(message.get("success"))
    if is_success is not None:
        return not is_success
    return STATUS.get(as_str(message.get("status")) or "")


def _arguments(value: Any) -> Any:
    """The arguments as an object where they are JSON text, else as they stand."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
