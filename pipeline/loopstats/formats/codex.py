"""Codex CLI rollouts: one JSON object per line, old (fields on the line) and new (`type` and `payload`).

A room of its own because of three habits of this log. Failures come back as plain text with a fixed beginning. Events
repeat what the response items already say, so that a call is taken from its item and an event only adds what the item
lacks. And usage is a running total that is sent more than once, and is copied together with the history by a fork.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar

from loopstats.answers import Outcome, in_folder, json_object, read_output
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
    text_of,
)

LONG_ID = 20
REMEMBERED_CALLS = 128
WRAPPED = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state"})
CALL_ITEMS = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "web_search_call",
        "tool_search_call",
        "image_generation_call",
    }
)
OUTPUT_ITEMS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
MODEL_ITEMS = frozenset({"reasoning", "agent_message"})
END_EVENTS = frozenset({"exec_command_end", "patch_apply_end", "mcp_tool_call_end", "dynamic_tool_call_response"})
USAGE = ("input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens")


class Codex(Format):
    """Rollout files of Codex CLI."""

    name: ClassVar[str] = "codex"

    def matches(self, head: Head) -> int:
        """Sure with a wrapper type and its payload; likely with response items that stand on the line itself."""
        best = 0
        for record in head.records:
            kind, payload = record.get("type"), record.get("payload")
            if kind in WRAPPED and isinstance(payload, dict):
                is_known = kind in ("session_meta", "turn_context", "compacted") or isinstance(payload.get("type"), str)
                best = max(best, 95 if is_known else 0)
            elif (
                kind == "function_call"
                and isinstance(record.get("call_id"), str)
                and isinstance(record.get("arguments"), str)
            ):
                best = max(best, 80)
            elif (
                kind is None
                and isinstance(record.get("id"), str)
                and "instructions" in record
                and "timestamp" in record
            ):
                best = max(best, 75)
            elif record.get("record_type") == "state" and len(record) == 1:
                best = max(best, 60)
        return best

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader that keeps session, folder, model, running usage and the place in the model turns."""
        return CodexReader(source, state)


class CodexReader(Reader):
    """Calls from response items, usage from token counts.

    `self.state`: `session`, `cwd`, `model`, `root` (session that the history began in), `anchor` (first long call id:
    the same in a session and all its forks), `total` (usage so far), `turn` (number of the model turn), `order`
    (`before` where a token count precedes the items of its response, as until 0.3x, else `after`), `is_busy` (items of
    the model since the last boundary), `is_answered` (a result since the last call), `calls` (recent ids), `ends`
    (facts of end events that wait for their item), `undecided` (calls whose output tells no outcome, which an end event
    may still tell), `count` (calls without an id).
    """

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on one line, wrapped or not."""
        kind, payload = record.get("type"), record.get("payload")
        if isinstance(payload, dict) and isinstance(kind, str):
            item, ts = payload, record.get("timestamp")
        else:
            item, ts = record, record.get("timestamp")
            kind = "session_meta" if kind is None and "id" in record and "timestamp" in record else "response_item"
        label = f"{kind}/{as_str(item.get('type'))}" if kind in ("response_item", "event_msg") else kind
        if kind == "session_meta":
            self._meta(item, ts, emit)
        elif kind == "turn_context":
            self._context(item, ts, emit)
        elif kind == "response_item":
            self._item(item, ts, label, emit)
        elif kind == "event_msg":
            self._event(item, ts, label, emit)
        else:
            emit.nothing(label)

    def _session(self) -> str:
        session = self.state.get("session")
        if not isinstance(session, str):
            raise Reject("no_session")
        return session

    def _meta(self, item: dict[str, Any], ts: Any, emit: Emit) -> None:
        own = as_str(item.get("id"))
        if own is None:
            raise Reject("no_session")
        spawn = as_dict(as_dict(as_dict(item.get("source")).get("subagent")).get("thread_spawn"))
        named = (
            item.get("forked_from_id"),
            item.get("parent_thread_id"),
            spawn.get("parent_thread_id"),
            item.get("session_id"),
        )
        parent = next((text for text in map(as_str, named) if text and text != own), None)
        known = self.state.get("session")
        if known not in (None, own) and self.state.get("calls") and self.state.get("root") == known:
            # no fork, whose metadata stands together before its history: two files that were put together
            self.state.clear()
        if self.state.get("session") is not None:
            # the copied history of a fork brings the metadata of its forebears along
            if own != self.state["session"]:
                self.state["root"] = parent or own
            emit.fold("repeat")
            return
        self.state.update(session=own, root=parent or own, cwd=as_str(item.get("cwd")))
        version = as_str(item.get("cli_version"))
        emit.session(
            session=own,
            ts=ts or item.get("timestamp"),
            cwd=self.state["cwd"],
            version=version,
            parent_session=parent,
            harness=f"codex {version}" if version else "codex",
            model=as_str(item.get("model")),
        )

    def _context(self, item: dict[str, Any], ts: Any, emit: Emit) -> None:
        self._boundary()
        self.state["cwd"] = as_str(item.get("cwd")) or self.state.get("cwd")
        model = as_str(item.get("model"))
        is_new = model is not None and self.state.get("model") is None
        self.state["model"] = model or self.state.get("model")
        if is_new and self.state.get("session"):
            emit.session(session=self._session(), ts=ts, model=model, cwd=self.state["cwd"])
        else:
            emit.nothing("turn_context")

    def _item(self, item: dict[str, Any], ts: Any, label: str, emit: Emit) -> None:
        kind = item.get("type")
        if kind in CALL_ITEMS:
            self._call(item, ts, emit)
        elif kind in OUTPUT_ITEMS:
            self._output(item, ts, emit)
        else:
            if kind in MODEL_ITEMS or (kind == "message" and item.get("role") == "assistant"):
                self.state["is_busy"] = True
            elif kind == "message":
                self._boundary()
            emit.nothing(label)

    def _boundary(self) -> None:
        """A new model turn begins with the next item of the model, whatever the token counts say."""
        if self.state.get("is_busy"):
            self.state["turn"] = self._turn() + 1
        self.state["is_busy"] = False
        self.state["is_answered"] = False

    def _turn(self) -> int:
        return int(self.state.get("turn", 0))

    def _decision(self) -> str:
        """The turn of a call.

        Between two token counts lies one response. Before the first count of a log, and in logs without any, only calls
        that stand next to each other without a result between them are known to be one response.
        """
        if self.state.get("order") is None and self.state.get("is_answered"):
            self.state["turn"] = self._turn() + 1
        self.state["is_busy"] = True
        self.state["is_answered"] = False
        return f"r{self._turn()}"

    def _call(self, item: dict[str, Any], ts: Any, emit: Emit) -> None:
        session = self._session()
        kind = item["type"]
        call_id = as_str(item.get("call_id")) or as_str(item.get("id"))
        if call_id is None:
            self.state["count"] = int(self.state.get("count", 0)) + 1
            call_id = f"{kind}~{self.state['count']}"
        tool, arguments, workdir = _tool_of(item)
        self._emit_call(session, call_id, tool, arguments, workdir, ts, emit)
        status = item.get("status")
        # these two have no output of their own; the status is all there is
        if kind in ("web_search_call", "image_generation_call") and status in ("completed", "failed", "incomplete"):
            emit.result(
                session=session,
                call_id=call_id,
                text=None,
                ts=ts,
                identity=_identity(call_id),
                is_error=status != "completed",
            )

    def _emit_call(
        self, session: str, call_id: str, tool: str, arguments: Any, workdir: str | None, ts: Any, emit: Emit
    ) -> None:
        calls = self.state.setdefault("calls", [])
        calls.append(call_id)
        del calls[:-REMEMBERED_CALLS]
        if len(call_id) >= LONG_ID:
            self.state.setdefault("anchor", call_id)
        emit.call(
            session=session,
            call_id=call_id,
            tool=tool,
            arguments=arguments,
            ts=ts,
            decision=self._decision(),
            cwd=in_folder(self.state.get("cwd"), workdir),
            model=self.state.get("model"),
            identity=_identity(call_id),
        )

    def _output(self, item: dict[str, Any], ts: Any, emit: Emit) -> None:
        session, call_id = self._session(), as_str(item.get("call_id"))
        if call_id is None:
            raise Reject("result_without_call_id")
        self.state["is_answered"] = True
        if item["type"] == "tool_search_output":
            outcome = Outcome()
            outcome.is_error = item.get("status") != "completed"
        else:
            outcome = read_output(item.get("output"), as_bool(item.get("success")))
        self._emit_result(session, call_id, outcome, ts, emit)

    def _emit_result(self, session: str, call_id: str, outcome: Outcome, ts: Any, emit: Emit) -> None:
        extra = as_dict(self.state.get("ends")).pop(call_id, None)
        if extra is not None and not outcome.has_fact:
            outcome.exit_code, outcome.is_error = extra[0], extra[1]
        if not outcome.has_fact:
            undecided = self.state.setdefault("undecided", [])
            undecided.append(call_id)
            del undecided[:-REMEMBERED_CALLS]
        emit.result(
            session=session,
            call_id=call_id,
            text=outcome.text,
            ts=ts,
            is_error=outcome.is_error,
            exit_code=outcome.exit_code,
            outcome=outcome.outcome,
            reason=outcome.reason,
            source=outcome.source,
            is_timeout=outcome.is_timeout,
            is_truncated=outcome.is_truncated,
            identity=_identity(call_id),
            duration_ms=outcome.duration_ms if outcome.duration_ms is not None or extra is None else extra[2],
        )

    def _event(self, item: dict[str, Any], ts: Any, label: str, emit: Emit) -> None:
        kind = item.get("type")
        if kind == "token_count":
            self._count(item, ts, label, emit)
        elif kind in END_EVENTS:
            self._end(item, ts, label, emit)
        else:
            if kind == "task_started":
                self._boundary()
            emit.nothing(label)

    def _end(self, item: dict[str, Any], ts: Any, label: str, emit: Emit) -> None:
        call_id = as_str(item.get("call_id")) or as_str(item.get("callId"))
        is_users = item.get("source") in ("user", "userShell", "user_shell")
        if call_id is None or is_users:
            emit.nothing(label)
            return
        exit_code, is_error = _end_facts(item)
        duration = _milliseconds(item.get("duration"))
        outcome = Outcome()
        outcome.exit_code, outcome.is_error, outcome.duration_ms = exit_code, is_error, duration
        result = as_dict(item.get("result"))
        outcome.text = text_of(
            item.get("aggregated_output") or [item.get("stdout"), item.get("stderr")]
            if item["type"] in ("exec_command_end", "patch_apply_end")
            else result.get("Ok")
            or result.get("Err")
            or item.get("result")
            or item.get("error")
            or item.get("content_items")
        )
        undecided = as_list(self.state.get("undecided"))
        if call_id in undecided and outcome.has_fact:
            # the last record of a result gives its facts
            undecided.remove(call_id)
            self._emit_result(self._session(), call_id, outcome, ts, emit)
            return
        if call_id in as_list(self.state.get("calls")):
            ends = self.state.setdefault("ends", {})
            ends[call_id] = [exit_code, is_error, duration]
            while len(ends) > REMEMBERED_CALLS:
                del ends[next(iter(ends))]
            emit.nothing(label)
            return
        # a call made inside another tool (code mode): only the event tells of it
        session = self._session()
        tool, arguments, workdir = _tool_of_end(item)
        self._emit_call(session, call_id, tool, arguments, workdir, ts, emit)
        self._emit_result(session, call_id, outcome, ts, emit)

    def _count(self, item: dict[str, Any], ts: Any, label: str, emit: Emit) -> None:
        info = as_dict(item.get("info"))
        total = _usage(info.get("total_token_usage"))
        if total is None:
            emit.nothing(label)
            return
        known = self.state.get("total")
        if total == known:
            emit.fold("repeat")
            return
        session = self._session()
        last = _usage(info.get("last_token_usage"))
        if known is not None and all(new >= old for new, old in zip(total, known, strict=True)):
            used = [new - old for new, old in zip(total, known, strict=True)]
        else:
            used = last or total
        self.state["total"] = total
        is_busy = bool(self.state.get("is_busy"))
        if self.state.get("order") is None:
            self.state["order"] = "after" if is_busy else "before"
        is_before = self.state["order"] == "before"
        if is_before:
            self.state["turn"] = self._turn() + 1
        anchor = self.state.get("anchor") or self.state.get("root") or session
        emit.turn(
            session=session,
            decision=f"r{self._turn()}",
            ts=ts,
            model=self.state.get("model"),
            tokens_input=max(used[0] - used[1] - used[2], 0),
            tokens_cache_read=used[1],
            tokens_cache_write=used[2],
            tokens_output=used[3],
            identity=_digest([anchor, total, last]),
        )
        if not is_before:
            self.state["turn"] = self._turn() + 1
        self.state["is_busy"] = False
        self.state["is_answered"] = False


def _tool_of(item: dict[str, Any]) -> tuple[str, Any, str | None]:
    """Tool, arguments and working directory of a call item."""
    kind = item["type"]
    if kind == "local_shell_call":
        action = as_dict(item.get("action"))
        return "local_shell", action, as_str(action.get("working_directory"))
    if kind == "web_search_call":
        return "web_search", as_dict(item.get("action")), None
    if kind == "image_generation_call":
        return "image_generation", {}, None
    if kind == "tool_search_call":
        return "tool_search", item.get("arguments"), None
    tool = as_str(item.get("name"))
    if tool is None:
        raise Reject("call_without_tool")
    namespace = as_str(item.get("namespace"))
    raw = item.get("arguments") if kind == "function_call" else item.get("input")
    arguments = (json_object(raw) or {"input": raw}) if isinstance(raw, str) else raw
    named = as_dict(arguments)
    return (
        f"{namespace}{tool}" if namespace else tool,
        arguments,
        as_str(named.get("workdir")) or as_str(named.get("cwd")),
    )


def _tool_of_end(item: dict[str, Any]) -> tuple[str, Any, str | None]:
    """Tool, arguments and working directory of an event that stands for a call of its own."""
    kind = item["type"]
    if kind == "exec_command_end":
        return "shell", {"command": item.get("command")}, as_str(item.get("cwd"))
    if kind == "patch_apply_end":
        # the paths of the patch are all that is needed, in the patch language that names its targets
        paths = [text for text in map(as_str, as_dict(item.get("changes"))) if text]
        return "apply_patch", {"input": "\n".join(f"*** Update File: {path}" for path in paths)}, None
    call = as_dict(item.get("invocation")) or item
    tool = as_str(call.get("tool"))
    if tool is None:
        raise Reject("call_without_tool")
    server = as_str(call.get("server")) or as_str(call.get("namespace"))
    return f"mcp__{server}__{tool}" if server else tool, call.get("arguments"), None


def _end_facts(item: dict[str, Any]) -> tuple[int | None, bool | None]:
    """Exit code and error flag of an end event."""
    if item["type"] == "exec_command_end":
        return as_int(item.get("exit_code")), None
    if item["type"] == "mcp_tool_call_end":
        result = as_dict(item.get("result"))
        if "Err" in result:
            return None, True
        return None, bool(as_dict(result["Ok"]).get("isError")) if "Ok" in result else None
    success = as_bool(item.get("success"))
    return None, None if success is None else not success


def _usage(value: Any) -> list[int] | None:
    """Input (cached included), cached, written to the cache, output; None where it is no usage."""
    if not isinstance(value, dict) or as_int(value.get("input_tokens")) is None:
        return None
    return [max(as_int(value.get(key)) or 0, 0) for key in USAGE]


def _identity(call_id: str) -> str | None:
    return call_id if len(call_id) >= LONG_ID else None


def _digest(value: Any) -> str:
    return "usage:" + hashlib.sha256(json.dumps(value).encode("utf-8", "replace")).hexdigest()[:32]


def _milliseconds(value: Any) -> int | None:
    """A duration as `{secs, nanos}`."""
    parts = as_dict(value)
    seconds, nanos = as_int(parts.get("secs")), as_int(parts.get("nanos"))
    if seconds is None or not 0 <= seconds < 10**9:
        return None
    return seconds * 1000 + max(nanos or 0, 0) // 1_000_000
