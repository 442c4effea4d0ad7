"""SWE-agent trajectories (`.traj`), 0.x and 1.x: one JSON document with the steps of one run.

A room of its own because an action is one line of text: its first word is a tool of the agent's own interface, or else
the line belongs to the shell. There is no exit code, so that an outcome is only told by the sentences with which the
interface itself begins an observation (`outcome_source` text); all other output is of unknown outcome, because printed
source code speaks of errors too. The log has no session id and no times.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from loopstats.errors import Reject
from loopstats.formats import Emit, Format, Head, Reader, Source, as_dict, as_list, as_str, canonical_id, text_of
from loopstats.formats.pairing import SHAPE_ERRORS

SHELL = "bash"
WORDS = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'|([^ \t\n]+)", re.ASCII)
NO_FILE = frozenset({"", "n/a"})
# tool of the interface: the names of its words in order; `path` falls back to the open file where it is marked with *
INTERFACE: dict[str, tuple[str, ...]] = {
    "open": ("path", "line"),
    "create": ("path",),
    "goto": ("line", "*path"),
    "scroll_up": ("*path",),
    "scroll_down": ("*path",),
    "find_file": ("file_name", "path"),
    "search_file": ("search_term", "*path"),
    "search_dir": ("search_term", "path"),
    "edit": ("lines", "*path"),
    "insert": ("line", "*path"),
    "append": ("*path",),
    "str_replace_editor": ("command", "path"),
    "view_image": ("path",),
    "undo_edit": ("path",),
    "submit": (),
    "exit_forfeit": (),
    "filemap": ("path",),
}
HARNESS_ACTIONS = ("exit_cost", "exit_context", "exit_format", "exit_error", "exit_early", "exit_api")
ENDINGS = {
    "submitted": "commit",
    "exit_cost": "cap",
    "exit_context": "cap",
    "exit_total_execution_time": "cap",
    "exit_forfeit": "give-up",
}
TIMED_OUT = ("EXECUTION TIMED OUT", "The command timed out")
CANCELLED = re.compile(
    r"The command '.{0,2000}?' was cancelled because it took more than [0-9]{1,9} seconds", re.ASCII | re.DOTALL
)
FAILED = (
    "Your proposed edit has introduced",
    "Your edit was not applied",
    "No replacement was performed",
    "Traceback (most recent call last):",
    "EXECUTION FAILED OR COMMAND MALFORMED",
    "Usage: ",
)
FAILED_LINE = re.compile(
    r"(?:File|Directory) [^\n]{1,400} not found|[^\n]{0,400}: command not found"
    r"|[^\n]{0,400}did not appear verbatim[^\n]{0,400}",
    re.ASCII,
)
LAST_LINE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,80}(?:Error|Exception)(?:: [^\n]{0,2000})?", re.ASCII)
SUCCEEDED = ("Found ", "No matches found for", "[File: ", "Your command ran successfully", "The file ")


class SweAgent(Format):
    """`.traj` files of SWE-agent."""

    name: ClassVar[str] = "swe-agent"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """Sure by steps with action and observation, likely by its history; a file that is no JSON by its keys."""
        document = head.document
        if isinstance(document, dict):
            steps = [as_dict(step) for step in as_list(document.get("trajectory"))[:3]]
            if any("action" in step and "observation" in step for step in steps):
                return 95
            history = [as_dict(entry) for entry in as_list(document.get("history"))[:6]]
            if any(
                "agent" in entry and ("message_type" in entry or "is_demo" in entry or "thought" in entry)
                for entry in history
            ):
                return 85
            return 0
        start = head.text[:65_536]
        if document is None and start.lstrip()[:1] == "{" and '"trajectory": [' in start:
            return 60 if '"observation":' in start and '"thought":' in start else 0
        return 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of whole documents."""
        return SweAgentReader(source, state)

    def load(self, data: bytes) -> Any:
        """Only JSON is read; what is none is rejected."""
        raise Reject("not_json")


class SweAgentReader(Reader):
    """Walks the trajectory; the history repeats it behind a demonstration and is read only in its absence."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on one run; record n is step n, or entry n of the history."""
        body = as_dict(document)
        steps = as_list(body.get("trajectory"))
        if steps:
            self._trajectory(steps, as_dict(body.get("info")), emit)
        elif isinstance(body.get("history"), list):
            self._history(body["history"], emit)
        elif not isinstance(body.get("trajectory"), list):
            raise Reject("no_trajectory")

    def _trajectory(self, steps: list[Any], info: dict[str, Any], emit: Emit) -> None:
        session = f"{SweAgent.name}~{canonical_id(steps[0])}"
        before: dict[str, Any] = {}
        ending = _ending(as_str(info.get("exit_status")))
        for number, raw in enumerate(steps, start=1):
            emit.at(number)
            step = as_dict(raw)
            own = _state(step.get("state"))
            # 0.x writes the state (as text) before it acts, 1.x (as an object) after
            state = own if isinstance(step.get("state"), str) else before
            before = own
            if number == 1:
                cwd = as_str(state.get("working_dir")) or as_str(own.get("working_dir"))
                emit.session(session=session, cwd=cwd, harness=SweAgent.name)
            action = step.get("action")
            if not isinstance(raw, dict) or not isinstance(action, str | None):
                emit.reject("wrong_shape")
                continue
            word = (action or "").strip()
            try:
                if word and not word.startswith(HARNESS_ACTIONS):
                    self._step(session, number, word, step, state, emit)
                elif number > 1:
                    emit.nothing("exit" if word else "step without action")
                if number == len(steps) and ending:
                    emit.fact(session=session, identity="ending", ending=ending)
            except SHAPE_ERRORS:
                emit.reject("wrong_shape")

    def _step(
        self, session: str, number: int, action: str, step: dict[str, Any], state: dict[str, Any], emit: Emit
    ) -> None:
        call_id = f"t{number}"
        tool, arguments = tool_of(action, as_str(state.get("open_file")))
        emit.call(
            session=session,
            call_id=call_id,
            tool=tool,
            arguments=arguments,
            decision=call_id,
            cwd=as_str(state.get("working_dir")),
        )
        observation = step.get("observation")
        if observation is None:
            return
        text = text_of(observation)
        seconds = step.get("execution_time")
        duration_ms = None
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < 1e9:
            duration_ms = round(seconds * 1000)
        self._result(session, call_id, tool, text, emit, duration_ms)

    def _result(
        self, session: str, call_id: str, tool: str, text: str, emit: Emit, duration_ms: int | None = None
    ) -> None:
        is_error, is_timeout = read_observation(text, tool == SHELL)
        emit.result(
            session=session,
            call_id=call_id,
            text=text,
            is_error=is_error,
            is_timeout=is_timeout,
            source=None if is_error is None and not is_timeout else "text",
            duration_ms=duration_ms,
        )

    def _history(self, history: list[Any], emit: Emit) -> None:
        entries = [as_dict(entry) for entry in history]
        has_own = any(entry.get("role") == "assistant" and not entry.get("is_demo") for entry in entries)
        first = next((e for e in entries if e.get("role") == "assistant" and not (has_own and e.get("is_demo"))), None)
        if first is None:
            for number, entry in enumerate(entries, start=1):
                emit.at(number)
                emit.nothing(_label(entry))
            return
        session = f"{SweAgent.name}~{canonical_id(first)}"
        waiting: list[tuple[str, str]] = []
        for number, entry in enumerate(entries, start=1):
            emit.at(number)
            role = entry.get("role")
            if has_own and entry.get("is_demo"):
                emit.nothing("demonstration")
            elif role == "assistant":
                if entry is first:
                    emit.session(session=session, harness=SweAgent.name)
                waiting = self._asked(session, number, entry, emit)
                if not waiting:
                    emit.nothing(_label(entry))
            elif waiting and role in ("tool", "user"):
                named = [text for text in map(as_str, as_list(entry.get("tool_call_ids"))) if text]
                place = next((i for i, (call_id, _) in enumerate(waiting) if call_id in named), 0)
                call_id, tool = waiting.pop(place)
                self._result(session, call_id, tool, _without_footer(text_of(entry.get("content"))), emit)
            else:
                emit.nothing(_label(entry))

    def _asked(self, session: str, number: int, entry: dict[str, Any], emit: Emit) -> list[tuple[str, str]]:
        """The calls of one entry of the history, emitted; id and tool of each."""
        asked: list[tuple[str, str]] = []
        for place, call in enumerate(as_list(entry.get("tool_calls"))):
            function = as_dict(as_dict(call).get("function"))
            call_id, tool = as_str(as_dict(call).get("id")) or f"t{number}.{place}", as_str(function.get("name"))
            if tool is None:
                continue
            emit.call(
                session=session,
                call_id=call_id,
                tool=tool,
                arguments=_arguments(function.get("arguments")),
                decision=f"t{number}",
            )
            asked.append((call_id, tool))
        action = entry.get("action")
        if not asked and isinstance(action, str) and action.strip():
            tool, arguments = tool_of(action, None)
            emit.call(session=session, call_id=f"t{number}", tool=tool, arguments=arguments, decision=f"t{number}")
            asked.append((f"t{number}", tool))
        return asked


def tool_of(action: str, open_file: str | None) -> tuple[str, dict[str, Any]]:
    """Tool and named arguments of a text action; what is no word of the interface is a command for the shell."""
    line, _, rest = action.strip().partition("\n")
    words = [next((part for part in found if part), "") for found in WORDS.findall(line[:4096])]
    tool = words[0] if words else ""
    if tool not in INTERFACE:
        return SHELL, {"command": action.strip()}
    arguments: dict[str, Any] = {}
    given = words[1:]
    is_open = open_file is not None and open_file not in NO_FILE
    for name in INTERFACE[tool]:
        if name.startswith("*"):
            # only the search names a file here; all others work on what is open
            named = given.pop(0) if tool == "search_file" and given else None
            if named or is_open:
                arguments["path"] = named or open_file
        elif given:
            arguments[name] = given.pop(0)
    if given:
        arguments["rest"] = " ".join(given)
    if rest:
        arguments["text"] = rest
    return tool, arguments


def read_observation(text: str, is_shell: bool) -> tuple[bool | None, bool]:
    """Error flag and time-out by the interface's own sentences; None where nothing is said."""
    stripped = text.strip()
    if not stripped:
        return False, False
    first, last = stripped.partition("\n")[0].rstrip(), stripped.rpartition("\n")[2].strip()
    if stripped.startswith(TIMED_OUT) or CANCELLED.match(stripped):
        return None, True
    if stripped.startswith(FAILED) or FAILED_LINE.fullmatch(first):
        return True, False
    if stripped.startswith(SUCCEEDED):
        return False, False
    if is_shell and LAST_LINE.fullmatch(last):
        return True, False
    return None, False


def _state(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return as_dict(value)


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return {"input": value}


def _ending(status: str | None) -> str | None:
    """`submitted (exit_cost)` ended by the cap: the harness submitted, not the agent."""
    if not status:
        return None
    inner = status.partition("(")[2].rstrip(")") or status
    return ENDINGS.get(inner.strip(), "crash")


def _without_footer(text: str) -> str:
    """An observation of the history without the two lines of state that the interface adds."""
    return text.partition("\n(Open file: ")[0]


def _label(entry: dict[str, Any]) -> str:
    return as_str(entry.get("role")) or "entry"
