"""mini-swe-agent trajectories: one JSON document with the messages of one run.

A room of its own because there is one tool, a shell, and four ways in which its use was written down over time: native
tool calls with the return code beside the result, items of the responses interface, a fenced block in the assistant's
text answered by the next user message, and a bare list of such messages. The log has no session id; the run is named
by its instance and its first model turn (METHOD 2).
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from loopstats.errors import Reject
from loopstats.formats import (
    Emit,
    Format,
    Head,
    Reader,
    Source,
    as_dict,
    as_int,
    as_list,
    as_str,
    canonical_id,
    text_of,
)
from loopstats.formats.pairing import SHAPE_ERRORS, Pairing

TOOL = "bash"
TIMED_OUT = -1
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
ENDINGS = {"Submitted": "commit", "LimitsExceeded": "cap", "TimeExceeded": "cap", "Timeout": "cap"}
FORMAT_ERRORS = (
    "please always provide exactly one action",
    "tool call error:",
    "format error",
    "no tool calls found",
    "no action found",
)
FENCES = ("```mswea_bash_command", "```bash")
RETURNCODE = re.compile(r"<returncode>[ \t]*(-?[0-9]{1,9})[ \t]*</returncode>", re.ASCII)
OUTPUT = re.compile(r"<(output|output_head)>\r?\n?", re.ASCII)
TIMEOUT_TEXT = re.compile(r"The last command <command>.{0,20000}?</command> timed out", re.ASCII | re.DOTALL)


class MiniSwe(Format):
    """`.traj.json` files of mini-swe-agent."""

    name: ClassVar[str] = "mini-swe-agent"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """Sure by the format's name or version; likely for a bare list in which fenced commands meet return codes."""
        document = head.document
        if isinstance(document, dict):
            named = document.get("trajectory_format")
            if isinstance(named, str) and named.startswith("mini-swe-agent"):
                return 98
            return (
                95
                if isinstance(document.get("messages"), list) and "mini_version" in as_dict(document.get("info"))
                else 0
            )
        messages = [as_dict(message) for message in as_list(document)[:12]]
        is_asking = any(
            m.get("role") == "assistant" and isinstance(m.get("content"), str) and fenced(m["content"])
            for m in messages
        )
        is_answering = any(
            m.get("role") in ("user", "tool") and isinstance(m.get("content"), str) and RETURNCODE.match(m["content"])
            for m in messages
        )
        return 85 if is_asking and is_answering else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of whole documents."""
        return MiniSweReader(source, state)

    def load(self, data: bytes) -> Any:
        """Only JSON is read; what is none is rejected."""
        raise Reject("not_json")


class MiniSweReader(Reader):
    """Walks the messages; record n is message n."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on one trajectory; a document without messages is rejected."""
        body = as_dict(document)
        messages = document if isinstance(document, list) else body.get("messages")
        if not isinstance(messages, list):
            raise Reject("no_messages")
        info = as_dict(body.get("info"))
        walk = _Walk(body, info, messages, emit)
        for number, message in enumerate(messages, start=1):
            emit.at(number)
            if not isinstance(message, dict):
                emit.reject("not_an_object")
                continue
            try:
                walk.step(number, message)
            except SHAPE_ERRORS:
                emit.reject("wrong_shape")


class _Walk:
    def __init__(self, body: dict[str, Any], info: dict[str, Any], messages: list[Any], emit: Emit) -> None:
        self._emit = emit
        self._messages = messages
        self._status = as_str(info.get("exit_status")) or _exit_status(messages)
        self._instance = as_str(body.get("instance_id")) or as_str(info.get("instance_id"))
        self._session = _session_id(self._instance, messages)
        config = as_dict(info.get("config"))
        version = as_str(info.get("mini_version"))
        self._cwd = as_str(as_dict(config.get("environment")).get("cwd"))
        self._facts: dict[str, Any] = {
            "cwd": self._cwd,
            "task": self._instance,
            "version": version,
            "harness": f"mini-swe-agent {version}" if version else "mini-swe-agent",
            "model": as_str(as_dict(config.get("model")).get("model_name")),
        }
        self._turn = 0
        self._waiting: list[str] = []
        self._pairing = Pairing()
        self._is_text_call = False
        self._command = ""

    def step(self, number: int, message: dict[str, Any]) -> None:
        """One message; everything that it says is emitted at its own record."""
        emit, is_first, is_last = self._emit, number == 1, number == len(self._messages)
        if not self._session:
            emit.nothing(_label(message))
            return
        if is_first:
            emit.session(session=self._session, **self._facts)
        role = message.get("role")
        if role == "assistant" or message.get("object") == "response":
            self._assistant(number, message)
        elif role == "tool" or message.get("type") == "function_call_output":
            self._tool(message)
        elif _is_format_error(message):
            self._format_error(number, message)
        elif role == "exit":
            self._submitted(_time(message))
        elif role == "user" and self._waiting and self._is_text_call:
            self._text_result(message, is_last)
        elif not is_first:
            emit.nothing(_label(message))
        if is_last and self._status:
            emit.fact(
                session=self._session, ts=_time(message), identity="ending", ending=ENDINGS.get(self._status, "crash")
            )

    def _assistant(self, number: int, message: dict[str, Any]) -> None:
        self._turn += 1
        self._waiting = []
        extra = as_dict(message.get("extra"))
        response = message if message.get("object") == "response" else as_dict(extra.get("response"))
        model = as_str(response.get("model")) or self._facts["model"]
        ts = _time(message)
        usage = _usage(as_dict(response.get("usage")))
        cost = extra.get("cost")
        if usage or isinstance(cost, (int, float)):
            self._emit.turn(
                session=self._session, decision=self._decision(), ts=ts, model=model, cost_usd=cost, **usage
            )
        calls = _tool_calls(message, f"t{self._turn}")
        following = as_dict(self._messages[number]) if number < len(self._messages) else {}
        self._is_text_call = False
        if not calls and not _is_format_error(following):
            commands = fenced(text_of(message.get("content")))
            if len(commands) == 1:
                calls = [(f"t{self._turn}", TOOL, {"command": commands[0]})]
                self._is_text_call = True
        for log_id, tool, arguments in calls:
            call_id = self._pairing.open(log_id)
            self._waiting.append(call_id)
            self._command = text_of(as_dict(arguments).get("command"))
            self._emit.call(
                session=self._session,
                call_id=call_id,
                tool=tool,
                arguments=arguments,
                ts=ts,
                decision=self._decision(),
                cwd=self._cwd,
                model=model,
            )
        if not calls and not usage:
            self._emit.nothing(_label(message))

    def _decision(self) -> str:
        return f"t{self._turn}"

    def _tool(self, message: dict[str, Any]) -> None:
        call_id = as_str(message.get("tool_call_id")) or as_str(message.get("call_id"))
        if call_id is None:
            # converters drop the id; the oldest open call is the one that is answered
            if not self._waiting:
                self._emit.nothing(_label(message))
                return
            call_id = self._waiting[0]
        else:
            call_id = self._pairing.close(call_id)
        if call_id in self._waiting:
            self._waiting.remove(call_id)
        self._result(call_id, message, message.get("content") if "content" in message else message.get("output"))

    def _text_result(self, message: dict[str, Any], is_last: bool) -> None:
        call_id = self._waiting.pop(0)
        content = text_of(message.get("content"))
        if is_last and RETURNCODE.match(content) is None and SUBMIT in self._command:
            self._success(call_id, _time(message))
        else:
            self._result(call_id, message, content)

    def _result(self, call_id: str, message: dict[str, Any], content: Any) -> None:
        extra = as_dict(message.get("extra"))
        text = text_of(content)
        found = RETURNCODE.search(text[:4096])
        code = as_int(extra.get("returncode"))
        if code is None and found:
            code = int(found.group(1))
        timed_out = TIMEOUT_TEXT.match(text) if code is None else None
        if timed_out:  # the sentence quotes the command, which is no part of what went wrong
            text = f"The last command timed out{text[timed_out.end() :]}"
        raw = extra.get("raw_output")
        error = text_of(extra.get("exception_info"))
        body = raw if isinstance(raw, str) else _inner(text)
        self._emit.result(
            session=self._session,
            call_id=call_id,
            text="\n".join(part for part in (body, error) if part),
            ts=_time(message),
            exit_code=code,
            is_timeout=code == TIMED_OUT or timed_out is not None,
            source="text" if timed_out else None,
            is_truncated=True if "<output_head>" in text else None,
        )

    def _format_error(self, number: int, message: dict[str, Any]) -> None:
        """A turn whose answer was no usable call: kept as a failed call of the only tool there is."""
        if self._waiting or number < 2 or as_dict(self._messages[number - 2]).get("role") != "assistant":
            self._turn += 1
        self._waiting = []
        call_id, ts = f"format_error~{number}", _time(message)
        self._emit.call(
            session=self._session,
            call_id=call_id,
            tool=TOOL,
            arguments={},
            ts=ts,
            decision=self._decision(),
            cwd=self._cwd,
            model=self._facts["model"],
        )
        self._emit.result(
            session=self._session,
            call_id=call_id,
            text=text_of(message.get("content")),
            ts=ts,
            is_error=True,
            structured_code="format_error",
            error_code="format_error",
            source="log",
        )

    def _submitted(self, ts: Any) -> None:
        """The run's end stands for the result of the call that submitted."""
        if self._status == "Submitted" and self._waiting:
            self._success(self._waiting.pop(), ts)
        else:
            self._emit.nothing("exit")

    def _success(self, call_id: str, ts: Any) -> None:
        self._emit.result(session=self._session, call_id=call_id, text=None, ts=ts, outcome="success", source="log")


def fenced(text: str) -> list[str]:
    """The commands in fenced blocks of `text`; a fence that is never closed holds none."""
    commands: list[str] = []
    block: list[str] | None = None
    for line in text.split("\n"):
        bare = line.rstrip()
        if block is None:
            block = [] if bare in FENCES else None
        elif bare == "```":
            commands.append("\n".join(block))
            block = None
        else:
            block.append(line)
    return commands


def _session_id(instance: str | None, messages: list[Any]) -> str:
    """METHOD 2: instance and the first model turn; a run that ended before any has its ending in place of it.

    Empty where there is neither yet.
    """
    first = next((m for m in messages if _is_model_turn(m)), None)
    if first is None:
        first = next((m for m in reversed(messages) if isinstance(m, dict) and m.get("role") == "exit"), None)
    return "" if first is None else f"{instance or MiniSwe.name}~{canonical_id(first)}"


def _is_model_turn(message: Any) -> bool:
    return isinstance(message, dict) and (message.get("role") == "assistant" or message.get("object") == "response")


def _exit_status(messages: list[Any]) -> str | None:
    last = as_dict(messages[-1]) if messages else {}
    return as_str(as_dict(last.get("extra")).get("exit_status")) if last.get("role") == "exit" else None


def _is_format_error(message: dict[str, Any]) -> bool:
    if message.get("role") not in ("user", "tool"):
        return False
    if as_dict(message.get("extra")).get("interrupt_type") == "FormatError":
        return True
    return text_of(message.get("content"))[:80].lstrip().lower().startswith(FORMAT_ERRORS)


def _tool_calls(message: dict[str, Any], turn: str) -> list[tuple[str, str, Any]]:
    """Id, tool and arguments of the calls of a model turn; a call without an id is named by its place."""
    found = []
    for call in as_list(message.get("tool_calls")):
        function = as_dict(as_dict(call).get("function"))
        found.append((as_str(as_dict(call).get("id")), as_str(function.get("name")), function.get("arguments")))
    for item in as_list(message.get("output")):
        if as_dict(item).get("type") == "function_call":
            found.append((as_str(item.get("call_id")), as_str(item.get("name")), item.get("arguments")))
    return [
        (call_id or f"{turn}.{place}", tool or TOOL, _arguments(arguments))
        for place, (call_id, tool, arguments) in enumerate(found)
    ]


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return {"input": value}


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Tokens of a turn in either interface; the input counts of both include what came from the cache."""
    total = as_int(usage.get("prompt_tokens")) if "prompt_tokens" in usage else as_int(usage.get("input_tokens"))
    if total is None:
        return {}
    details = as_dict(usage.get("prompt_tokens_details")) or as_dict(usage.get("input_tokens_details"))
    cached = as_int(details.get("cached_tokens")) or as_int(usage.get("prompt_cache_hit_tokens")) or 0
    written = as_int(usage.get("cache_creation_input_tokens")) or 0
    output = (
        as_int(usage.get("completion_tokens")) if "completion_tokens" in usage else as_int(usage.get("output_tokens"))
    )
    return {
        "tokens_input": max(total - cached - written, 0),
        "tokens_output": output,
        "tokens_cache_read": cached,
        "tokens_cache_write": written,
    }


def _inner(text: str) -> str:
    """The output inside its tags."""
    found = OUTPUT.search(text[:4096])
    if not found:
        return RETURNCODE.sub("", text, count=1)
    inner = text[found.end() :]
    end = inner.rfind("</output")
    return inner[:end] if end >= 0 else inner


def _time(message: dict[str, Any]) -> Any:
    extra = as_dict(message.get("extra"))
    return extra.get("timestamp") or as_dict(extra.get("response")).get("created") or message.get("created_at")


def _label(message: dict[str, Any]) -> str:
    return as_str(message.get("role")) or as_str(message.get("type")) or "message"
