"""Cline and Roo Code: a folder per task with the messages of the model and the messages of the screen.

A room of its own because the older form has no tool calls at all: a tool is an XML tag at the start of a line of the
assistant's text, and its result is text in the next user message. `ui_messages.json` repeats every step, so that only
its usage is taken, and only where the conversation lies beside it, since neither file names the task.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from pathlib import Path
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
from loopstats.formats.pairing import Pairing, companion, each, parsed

TOOLS = (
    "execute_command",
    "read_file",
    "write_to_file",
    "apply_diff",
    "insert_content",
    "search_and_replace",
    "replace_in_file",
    "search_files",
    "list_files",
    "list_code_definition_names",
    "browser_action",
    "use_mcp_tool",
    "access_mcp_resource",
    "ask_followup_question",
    "attempt_completion",
    "switch_mode",
    "new_task",
    "fetch_instructions",
    "update_todo_list",
    "codebase_search",
    "run_slash_command",
    "generate_image",
    "plan_mode_respond",
    "load_mcp_documentation",
    "web_fetch",
    "new_rule",
    "condense",
    "edit_file",
    "apply_patch",
    "search_replace",
)
TOOL_TAG = re.compile(rf"^[ \t]{{0,8}}<({'|'.join(TOOLS)})>", re.MULTILINE)
PARAMETER = re.compile(r"<([a-z_]{1,40})>")
PATH_TAG = re.compile(r"<path>([^<\n]{1,1000})</path>")
RESULT_HEAD = re.compile(r"\[([a-z_]{1,40})(?: for [^\n]{0,8000})?\] Result:")
EXIT_CODE = re.compile(
    r"(?:Command executed in terminal|Command execution was not successful)"
    r"[^\n]{0,400}(?:\n[^\n]{0,200})?Exit code: (-?[0-9]{1,9})"
)
CWD = re.compile(r"# Current (?:Workspace|Working) Directory \(([^)\n]{1,400})\)")
PARAMETERS_CAP = 32
ENVIRONMENT = "<environment_details>"
FAILED = ("The tool execution failed with the following error:", "<error>")
DENIED = ("The user denied this operation",)
RUNNING = ("Command is still running in terminal",)
UI_SAYS = frozenset(
    {"api_req_started", "text", "command", "command_output", "tool", "error", "completion_result", "reasoning"}
)
API_FILE = "api_conversation_history.json"


class ClineRoo(Format):
    """`api_conversation_history.json`, with `ui_messages.json` and `task_metadata.json` as companions."""

    name: ClassVar[str] = "cline-roo"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """Sure where messages carry Cline's marks or a companion has its shape; likely for native calls."""
        document = head.document
        if isinstance(document, dict):
            return 70 if isinstance(document.get("files_in_context"), list) else 0
        entries = [entry for entry in as_list(document)[:40] if isinstance(entry, dict)]
        if any(entry.get("say") in UI_SAYS and entry.get("type") == "say" and "ts" in entry for entry in entries):
            return 85
        messages = [entry for entry in entries if entry.get("role") in ("user", "assistant") and "content" in entry]
        if not messages or 2 * len(messages) < len(entries):
            return 0
        texts = [
            text_of(part) for message in messages for part in (as_list(message["content"]) or [message["content"]])
        ]
        if any(ENVIRONMENT in text or RESULT_HEAD.match(text) for text in texts):
            return 85
        is_native = any(
            as_dict(part).get("type") == "tool_use" for message in messages for part in as_list(message["content"])
        )
        return 55 if is_native and any("ts" in message for message in messages) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of one of the task's files."""
        return ClineReader(source, state)


def session_of(messages: list[dict[str, Any]]) -> str | None:
    """The session of a conversation: METHOD 2 over the assistant's first message; None where it has none."""
    first = next((message for message in messages if message.get("role") == "assistant"), None)
    return None if first is None else f"{ClineRoo.name}~{canonical_id(first)}"


def decision_of(message: dict[str, Any], number: int) -> str:
    """The id of a model turn: its time, since a condensed history moves the numbers."""
    return as_str(message.get("ts")) or f"#{number}"


class ClineReader(Reader):
    """One record of the container is one message."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on the steps of a conversation, or the usage of the screen's messages."""
        entries = [entry for entry in as_list(document) if isinstance(entry, dict)]
        if any("say" in entry or "ask" in entry for entry in entries[:40]):
            self._usage(entries, emit)
            return
        session = session_of(entries)
        if session is None:
            emit.at(1)
            emit.nothing("no model turn" if entries else "task_metadata")
            return
        _Conversation(session, emit).read(entries)

    def _usage(self, entries: list[dict[str, Any]], emit: Emit) -> None:
        folder = Path(self.source.path).parent
        messages = [message for message in as_list(companion(folder / API_FILE)) if isinstance(message, dict)]
        session = session_of(messages)
        turns = [
            (as_int(message.get("ts")) or 0, decision_of(message, number))
            for number, message in enumerate(messages)
            if message.get("role") == "assistant"
        ]
        times = [ts for ts, _ in turns]

        def read(entry: Any) -> None:
            usage = as_dict(parsed(entry.get("text"))) if entry.get("say") == "api_req_started" else {}
            place = bisect_left(times, as_int(entry.get("ts")) or 0)
            if session is None or "tokensOut" not in usage or place == len(turns) or not times[place]:
                emit.nothing("ui_message")
                return
            emit.turn(
                session=session,
                decision=turns[place][1],
                ts=entry.get("ts"),
                cost_usd=usage.get("cost"),
                tokens_input=as_int(usage.get("tokensIn")),
                tokens_output=as_int(usage.get("tokensOut")),
                tokens_cache_read=as_int(usage.get("cacheReads")),
                tokens_cache_write=as_int(usage.get("cacheWrites")),
            )

        each(entries, emit, read)


class _Conversation:
    """The walk over the messages of one task."""

    def __init__(self, session: str, emit: Emit) -> None:
        self._session = session
        self._emit = emit
        self._pairing = Pairing()
        self._number = 0
        self._waiting: str | None = None
        self._cwd: str | None = None

    def read(self, messages: list[dict[str, Any]]) -> None:
        """Hand on all messages."""
        for message in messages[:4]:
            found = CWD.search(text_of(message.get("content")))
            self._cwd = self._cwd or (found[1] if found else None)
        each(messages, self._emit, self._message)

    def _message(self, message: Any) -> None:
        self._number += 1
        self._emit.nothing(f"message/{as_str(message.get('role'))}")
        if self._number == 1:
            self._emit.session(session=self._session, ts=message.get("ts"), cwd=self._cwd, harness="cline-roo")
        if message.get("isSummary"):
            self._emit.nothing("summary")
        elif message.get("role") == "assistant":
            self._assistant(message)
        elif message.get("role") == "user":
            self._user(message)

    def _assistant(self, message: dict[str, Any]) -> None:
        self._waiting = None
        decision, ts = decision_of(message, self._number), message.get("ts")
        parts = [as_dict(part) for part in as_list(message.get("content"))]
        native = [part for part in parts if part.get("type") == "tool_use"]
        for part in native:
            tool, log_id = as_str(part.get("name")), as_str(part.get("id"))
            if tool and log_id:
                self._emit.call(
                    session=self._session,
                    call_id=self._pairing.open(log_id),
                    tool=tool,
                    ts=ts,
                    cwd=self._cwd,
                    arguments=part.get("input"),
                    decision=decision,
                )
        said = (
            "" if native else text_of([part for part in parts if part.get("type") == "text"] or message.get("content"))
        )
        found = TOOL_TAG.search(said)
        if found is not None:
            # one tool a message is run, whatever else the text holds
            self._waiting = self._pairing.open(decision)
            self._emit.call(
                session=self._session,
                call_id=self._waiting,
                tool=found[1],
                ts=ts,
                cwd=self._cwd,
                arguments=parameters(said, found.end(), found[1]),
                decision=decision,
            )

    def _user(self, message: dict[str, Any]) -> None:
        ts = message.get("ts")
        content = message.get("content")
        texts: list[str] = [content] if isinstance(content, str) else []
        for part in map(as_dict, as_list(content)):
            if part.get("type") == "tool_result" and as_str(part.get("tool_use_id")):
                self._result(
                    self._pairing.close(str(part["tool_use_id"])),
                    text_of(part.get("content")),
                    ts,
                    as_bool(part.get("is_error")),
                )
            elif part.get("type") == "text":
                texts.append(text_of(part))
        if self._waiting is None:
            return
        answer: list[str] | None = None
        for text in texts:
            head = RESULT_HEAD.match(text.lstrip())
            if answer is None and head is not None:
                answer = [text.lstrip()[head.end() :]]
            elif answer is not None and not text.lstrip().startswith(ENVIRONMENT):
                answer.append(text)
        if answer is not None:
            said = "\n".join(answer).split(ENVIRONMENT, 1)[0].strip()
            self._result(self._pairing.close(self._waiting), said, ts, None)
            self._waiting = None

    def _result(self, call_id: str, text: str, ts: Any, flag: bool | None) -> None:
        exit_code = EXIT_CODE.match(text)
        facts: dict[str, Any] = (
            {"is_error": flag} if flag is not None else {"is_error": text.startswith(FAILED), "source": "text"}
        )
        if text.startswith(DENIED):
            facts = {"outcome": "vetoed", "reason": "user"}
        elif text.startswith(RUNNING):
            facts = {"outcome": "unknown", "source": "text"}
        elif exit_code is not None:
            facts = {"is_error": flag, "exit_code": int(exit_code[1])}
            # the sentence around the exit code says that the command failed, the output says how
            text = text[exit_code.end() :].lstrip().removeprefix("Output:").lstrip()
        self._emit.result(session=self._session, call_id=call_id, text=text, ts=ts, **facts)


def parameters(text: str, begin: int, tool: str) -> dict[str, Any]:
    """The parameters of a tool tag whose content begins at `begin`; a tag that is never closed takes the rest.

    Of a nested `args` the first path becomes `path`, since that is the target.
    """
    end = text.find(f"</{tool}>", begin)
    block = text[begin:] if end < 0 else text[begin:end]
    found: dict[str, Any] = {}
    position = 0
    while len(found) < PARAMETERS_CAP:
        opened = PARAMETER.search(block, position)
        if opened is None:
            break
        closed = block.find(f"</{opened[1]}>", opened.end())
        value = block[opened.end() :] if closed < 0 else block[opened.end() : closed]
        found.setdefault(opened[1], parsed(value.strip()))
        if closed < 0:
            break
        position = closed
    if isinstance(found.get("args"), str) and "path" not in found:
        path = PATH_TAG.search(found["args"])
        if path is not None:
            found["path"] = path[1].strip()
    return found
