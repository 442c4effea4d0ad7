"""pi session files: JSON Lines with a `session` line first, then messages, since version 3 as a tree.

A room of its own because abandoned branches of the tree lie in the same file (their calls were made all the same), a
branched session copies lines into a new file, and a shell's exit code stands at the end of the result's text only. The
OpenClaw sessions have the same lines and are read by a reader that is made from this one.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, ClassVar

from loopstats.errors import Reject
from loopstats.formats import Emit, Format, Head, Reader, Source, as_bool, as_dict, as_int, as_list, as_str, text_of

LONG_ID = 20
REMEMBERED_IDS = 2048
SHELLS = frozenset({"bash", "exec", "shell", "shell_exec", "run_terminal"})
# the tool writes these as the last line of a failed command
EXITED = re.compile(r"(?:\A|\n)Command exited with code (-?[0-9]{1,9})\s{0,8}\Z", re.ASCII)
TIMED_OUT = re.compile(r"(?:\A|\n)Command timed out after [0-9.]{1,12} ?(?:s|sec|seconds|ms)?\s{0,8}\Z", re.ASCII)
ABORTED = re.compile(r"(?:\A|\n)Command aborted\s{0,8}\Z", re.ASCII)
TRAILER = 200
SESSION_IN_PATH = re.compile(r"_([0-9a-fA-F]{8}-[0-9a-fA-F-]{27})\.jsonl\Z", re.ASCII)


def score(head: Head) -> int:
    """How surely these are session lines of this family: 90 with a message of its shape, 70 with the header only."""
    best = 0
    for record in head.records:
        message = as_dict(record.get("message"))
        if record.get("type") == "session" and isinstance(record.get("id"), str) and "cwd" in record:
            best = max(best, 70)
        elif record.get("type") == "message" and message.get("role") in (
            "user",
            "assistant",
            "toolResult",
            "bashExecution",
        ):
            best = max(best, 90 if "timestamp" in record else 80)
    return best


class Pi(Format):
    """Session files of pi."""

    name: ClassVar[str] = "pi"

    def matches(self, head: Head) -> int:
        """Likely by lines of the family; another format that knows more of its own marks says so more surely."""
        return score(head)

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader that keeps session, folder, model and the number of the model turn."""
        return PiReader(source, state)


class PiReader(Reader):
    """Calls from assistant messages, results from messages of role `toolResult`.

    `self.state`: `session`, `cwd`, `model`, `turn`, and `ids`: how often each short call id was given, since some
    providers begin anew with every message.
    """

    harness: ClassVar[str] = "pi"

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on one line."""
        kind = record.get("type")
        if kind == "session":
            self._header(record, emit)
        elif kind == "message":
            self._message(record, as_dict(record.get("message")), emit)
        elif kind == "model_change":
            self._model(as_str(record.get("modelId")), record, emit)
        else:
            emit.nothing(as_str(kind) or "no type")

    def _session(self) -> str:
        session = self.state.get("session")
        if not isinstance(session, str):
            raise Reject("no_session")
        return session

    def _header(self, record: dict[str, Any], emit: Emit) -> None:
        session = as_str(record.get("id"))
        if session is None:
            raise Reject("no_session")
        if self.state.get("session") == session:
            emit.fold("repeat")
            return
        # two files that were put together: what follows belongs to the second session
        self.state.clear()
        self.state.update(session=session, cwd=as_str(record.get("cwd")), model=as_str(record.get("modelId")), turn=0)
        emit.session(
            session=session,
            ts=record.get("timestamp"),
            cwd=self.state["cwd"],
            harness=self.harness,
            model=self.state["model"],
            parent_session=_session_of(record.get("parentSession")) or _session_of(record.get("branchedFrom")),
        )

    def _model(self, model: str | None, record: dict[str, Any], emit: Emit) -> None:
        is_first = self.state.get("model") is None and model is not None
        self.state["model"] = model or self.state.get("model")
        if is_first and self.state.get("session"):
            emit.session(session=self._session(), ts=record.get("timestamp"), model=model)
        else:
            emit.nothing("model_change")

    def _message(self, record: dict[str, Any], message: dict[str, Any], emit: Emit) -> None:
        role = message.get("role")
        ts = record.get("timestamp") or message.get("timestamp")
        if role == "assistant":
            self._assistant(record, message, ts, emit)
        elif role == "toolResult":
            self._result(message, ts, emit)
        else:
            emit.nothing(f"message/{as_str(role)}")

    def _assistant(self, record: dict[str, Any], message: dict[str, Any], ts: Any, emit: Emit) -> None:
        session = self._session()
        self.state["turn"] = turn = int(self.state.get("turn", 0)) + 1
        decision, model = f"t{turn}", as_str(message.get("model")) or self.state.get("model")
        calls = [block for block in map(as_dict, as_list(message.get("content"))) if block.get("type") == "toolCall"]
        usage = as_dict(message.get("usage"))
        tokens = [as_int(usage.get(key)) or 0 for key in ("input", "output", "cacheRead", "cacheWrite")]
        if any(tokens):
            cost = as_dict(usage.get("cost")).get("total")
            emit.turn(
                session=session,
                decision=decision,
                ts=ts,
                model=model,
                tokens_input=tokens[0],
                tokens_output=tokens[1],
                tokens_cache_read=tokens[2],
                tokens_cache_write=tokens[3],
                identity=_turn_identity(message, tokens),
                cost_usd=cost or None,  # 0 with tokens is a price that the program does not know
            )
        for place, block in enumerate(calls):
            tool = as_str(block.get("name"))
            if tool is None:
                continue
            call_id = self._given(as_str(block.get("id")) or f"{decision}.{place}")
            arguments = block.get("arguments")
            emit.call(
                session=session,
                call_id=call_id,
                tool=tool,
                arguments=arguments,
                ts=ts,
                decision=decision,
                cwd=_resolve(self.state.get("cwd"), as_dict(arguments)),
                model=model,
                identity=_identity(call_id),
            )
        if not calls and not any(tokens):
            emit.nothing("message/assistant")

    def _given(self, log_id: str) -> str:
        """The id of a new call: the second call of a short log id becomes `id#2`."""
        if len(log_id) >= LONG_ID:
            return log_id
        ids = self.state.setdefault("ids", {})
        ids[log_id] = ids.get(log_id, 0) + 1
        while len(ids) > REMEMBERED_IDS:
            del ids[next(iter(ids))]
        return self._answered(log_id)

    def _answered(self, log_id: str) -> str:
        """The id of the last call of a log id."""
        number = as_dict(self.state.get("ids")).get(log_id, 1)
        return log_id if number == 1 else f"{log_id}#{number}"

    def _result(self, message: dict[str, Any], ts: Any, emit: Emit) -> None:
        call_id = as_str(message.get("toolCallId"))
        if call_id is None:
            raise Reject("result_without_call_id")
        session, identity = self._session(), _identity(call_id)
        emit.result(session=session, call_id=self._answered(call_id), ts=ts, identity=identity, **self.facts(message))

    def facts(self, message: dict[str, Any]) -> dict[str, Any]:
        """What a result message says, as arguments of `Emit.result`."""
        text, details = text_of(message.get("content")), as_dict(message.get("details"))
        is_error = as_bool(message.get("isError"))
        found: dict[str, Any] = {"text": text, "is_error": is_error}
        if is_error and message.get("toolName") in SHELLS:
            found |= _trailer(text)
        if as_dict(details.get("truncation")).get("truncated") is True:
            found |= {"is_truncated": True, "overflow_path": as_str(details.get("fullOutputPath"))}
        return found


def _trailer(text: str) -> dict[str, Any]:
    """The last line of a failed command: exit code, time-out or abort by the user; it is taken off the text."""
    start = max(len(text) - TRAILER, 0)
    tail = text[start:]
    if match := EXITED.search(tail):
        return {"exit_code": int(match.group(1)), "text": text[: start + match.start()]}
    if match := TIMED_OUT.search(tail):
        return {"is_timeout": True, "text": text[: start + match.start()]}
    if ABORTED.search(tail):
        return {"outcome": "unknown", "reason": "interrupt", "source": "text"}
    return {}


def _resolve(cwd: str | None, arguments: dict[str, Any]) -> str | None:
    workdir = as_str(arguments.get("workdir")) or as_str(arguments.get("cwd"))
    if workdir is None or workdir == ".":
        return cwd
    if cwd is None or workdir.startswith(("/", "~", "\\")) or workdir[1:2] == ":":
        return workdir
    return f"{cwd.rstrip('/')}/{workdir}"


def _session_of(value: Any) -> str | None:
    """The session that a parent is named by: an id, or a file of that session."""
    text = as_str(value)
    if text is None or ("/" not in text and "\\" not in text and not text.endswith(".jsonl")):
        return text
    found = SESSION_IN_PATH.search(text[-200:])
    return found.group(1) if found else None


def _identity(call_id: str) -> str | None:
    return call_id if len(call_id) >= LONG_ID else None


def _turn_identity(message: dict[str, Any], tokens: list[int]) -> str | None:
    """An id that a copied line keeps: the provider's, else the message's own time in milliseconds with its usage."""
    response = as_str(message.get("responseId"))
    if response is not None and len(response) >= LONG_ID:
        return response
    if as_int(message.get("timestamp")) is None:
        return None
    text = json.dumps([message["timestamp"], as_str(message.get("model")), tokens])
    return "turn:" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
