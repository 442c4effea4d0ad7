"""OpenHands: evaluation output and saved trajectories (V0), logged model calls, and event files of the SDK (V1).

A room of its own because one agent has four ways of writing a run. V0 events pair by `cause`, the oldest by position;
a failed edit is an ordinary observation whose text begins with ERROR; exit code -1 means that the command still runs.
The logged model calls repeat the whole history in every file, so their calls carry the ids of the model as identity.
V1 writes a file per event without any id of the conversation: see `conversation`. The files' numbers are its order,
since events may have one time or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

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
    canonical_id,
    text_of,
)
from loopstats.formats.pairing import Pairing, companion, openai_usage, parsed

NO_CALL = frozenset(
    {"message", "system", "recall", "change_agent_state", "null", "condensation", "condensation_request"}
)
NO_ANSWER = frozenset({"null", "agent_state_changed", "recall", "system", "user_message", "condense"})
NO_ARGUMENT = frozenset(
    {
        "thought",
        "confirmation_state",
        "is_confirmed",
        "security_risk",
        "hidden",
        "keep_prompt",
        "kernel_init_code",
        "action",
        "observation",
        "id",
        "timestamp",
        "source",
        "message",
        "tool_call_metadata",
        "llm_metrics",
        "kind",
        "summary",
    }
)
STILL_RUNNING = -1
LONG_ID = 16
FIRST_TURN_WITHIN = 64
EVENT_FILE = re.compile(r"event-([0-9]{1,18})[-.]", re.ASCII)
EVENT_KINDS = frozenset(
    {
        "SystemPromptEvent",
        "MessageEvent",
        "ActionEvent",
        "ObservationEvent",
        "AgentErrorEvent",
        "UserRejectObservation",
        "Condensation",
        "CondensationRequest",
        "CondensationSummaryEvent",
        "PauseEvent",
        "InterruptEvent",
        "TokenEvent",
        "ConversationStateUpdateEvent",
        "ConversationErrorEvent",
        "LLMCompletionLogEvent",
    }
)
EXIT_IN_TEXT = re.compile(r"\[[^\[\]\n]{1,60} exit code:? (-?[0-9]{1,9})\.?\]", re.ASCII)
EXIT_TAIL = 600
IPYTHON_FAILED = re.compile(
    r"(?:ERROR|\[Your proposed edit has introduced new syntax error|\[No exact match found in"
    r"|Traceback \(most recent call last\)"
    r"|-{20,200}\r?\n[A-Za-z_.]{1,80}(?:Error|Exception|Interrupt)[ \t]{1,80}Traceback)"
)


def exit_code_in(text: str) -> int | None:
    """The exit code that the runtime wrote in brackets at the end of a command's output; None where there is none."""
    codes = EXIT_IN_TEXT.findall(text, max(0, len(text) - EXIT_TAIL))
    return int(codes[-1]) if codes else None


def first_turn(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The record of the first model turn of a V0 history: the agent's first action; None where it has none."""
    for event in events:
        action = as_str(event.get("action"))
        if (
            action
            and action not in ("system", "recall", "change_agent_state")
            and event.get("source", "agent") == "agent"
        ):
            return event
    return None


def flat(history: Any) -> list[dict[str, Any]]:
    """The events of a history in order, whether it is a list of events or of [action, observation] pairs."""
    events: list[dict[str, Any]] = []
    for entry in as_list(history):
        events.extend(event for event in (entry if isinstance(entry, list) else [entry]) if isinstance(event, dict))
    return events


class OpenHands(Format):
    """V0 `output.jsonl`: a line is a run, with its `history`."""

    name: ClassVar[str] = "openhands"

    def matches(self, head: Head) -> int:
        """Sure where a line has a history of events, and a task or an issue."""
        return 92 if any(_is_run(record) for record in head.records) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader that keeps nothing between lines."""
        return OpenHandsReader(source, state)


def _is_run(record: dict[str, Any]) -> bool:
    if not isinstance(record.get("history"), list) or not ({"instance_id", "id", "issue", "instance"} & record.keys()):
        return False
    if not ({"metadata", "metrics", "test_result", "git_patch"} & record.keys()):
        return False
    events = flat(record["history"][:20])
    return not record["history"] or any("action" in event or "observation" in event for event in events)


class OpenHandsReader(Reader):
    """One line is one whole run."""

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on a run; one without a model turn carries only how it ended, which no session can hold."""
        events = flat(record["history"])
        first = first_turn(events)
        if first is None:
            emit.nothing("run without a model turn")
            return
        instance = _instance(record)
        session = f"{instance or OpenHands.name}~{canonical_id(first)}"
        metadata = as_dict(record.get("metadata"))
        model = as_str(as_dict(metadata.get("llm_config")).get("model")) or as_str(metadata.get("model_name"))
        run = _V0(session, model, emit)
        run.begin(events, instance)
        run.walk(events)
        run.turns(as_dict(record.get("metrics")))
        self._end(record, session, emit)

    def _end(self, record: dict[str, Any], session: str, emit: Emit) -> None:
        error = as_str(record.get("error")) or ""
        test = as_dict(record.get("test_result"))
        solved = as_bool(test.get("result"))
        if solved is None:
            solved = as_bool(as_dict(test.get("report")).get("resolved"))
        if "AgentStuckInLoopError" in error[:400]:
            emit.guard(session=session, identity="stuck", name="stuck-in-loop", event="raise")
        ending = None
        if error:
            ending = "cap" if "reached maximum" in error[:400] else "crash"
        emit.fact(session=session, identity="end", solved=solved, ending=ending, claimed=as_bool(record.get("success")))


def _instance(record: dict[str, Any]) -> str | None:
    named = as_str(record.get("instance_id")) or as_str(record.get("id"))
    issue = as_dict(record.get("issue"))
    if not named and issue:
        named = (
            f"{as_str(issue.get('owner')) or ''}/{as_str(issue.get('repo')) or ''}#{as_str(issue.get('number')) or ''}"
        )
    if not named:
        instance = as_dict(record.get("instance"))
        named = as_str(instance.get("instance_id")) or as_str(instance.get("id"))
    return named


class OpenHandsEvents(Format):
    """A saved V0 trajectory: one JSON list of events."""

    name: ClassVar[str] = "openhands-events"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """Sure where the list holds events with a source and an action or an observation."""
        events = flat(as_list(head.document)[:50])
        likely = [event for event in events if "source" in event and ("action" in event or "observation" in event)]
        return 90 if likely and 2 * len(likely) > len(events) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole list."""
        return OpenHandsEventsReader(source, state)


class OpenHandsEventsReader(Reader):
    """One record of the container is one event."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on the trajectory as one run."""
        events = flat(document)
        first = first_turn(events)
        if first is None:
            emit.at(1)
            emit.nothing("run without a model turn")
            return
        run = _V0(f"{OpenHands.name}~{canonical_id(first)}", None, emit)
        emit.at(1)
        run.begin(events, None)
        run.walk(events, is_numbered=True)
        run.turns({})


class _V0:
    """The walk over the events of one run."""

    def __init__(self, session: str, model: str | None, emit: Emit) -> None:
        self._session = session
        self._model = model
        self._emit = emit
        self._cwd: str | None = None
        self._open: dict[str, None] = {}
        self._usages: dict[str, tuple[Any, Any, str | None]] = {}
        self._costs: dict[str, float] = {}
        self._cost_so_far = 0.0

    def begin(self, events: list[dict[str, Any]], task: str | None) -> None:
        """Hand on what is known of the session."""
        version = next(
            (
                as_str(as_dict(event.get("args")).get("openhands_version"))
                for event in events[:5]
                if event.get("action") == "system"
            ),
            None,
        )
        cwd = next((found for found in map(_working_dir, events) if found), None)
        ts = next((event["timestamp"] for event in events if event.get("timestamp")), None)
        self._emit.session(
            session=self._session, ts=ts, cwd=cwd, harness="openhands", version=version, model=self._model, task=task
        )

    def walk(self, events: list[dict[str, Any]], is_numbered: bool = False) -> None:
        """Hand on calls and results in the order of the log."""
        for number, event in enumerate(events, start=1):
            if is_numbered and number > 1:
                self._emit.at(number)
            action, observation = as_str(event.get("action")), as_str(event.get("observation"))
            if action and action not in NO_CALL and event.get("source", "agent") == "agent":
                self._call(event, action, number)
            elif observation and observation not in NO_ANSWER and self._is_answer(event, observation):
                continue
            elif is_numbered and number > 1:
                self._emit.nothing(action or observation or "no type")

    def _call(self, event: dict[str, Any], action: str, number: int) -> None:
        call_id = as_str(event.get("id")) or f"#{number}"
        arguments = event["args"] if isinstance(event.get("args"), dict) else event
        kept = {key: value for key, value in arguments.items() if key not in NO_ARGUMENT}
        meta = as_dict(event.get("tool_call_metadata"))
        response = as_dict(meta.get("model_response"))
        decision = as_str(response.get("id"))
        model = as_str(response.get("model")) or self._model
        if decision:
            self._usages.setdefault(decision, (response.get("usage"), event.get("timestamp"), model))
            self._note_cost(decision, event)
        self._open[call_id] = None
        self._emit.call(
            session=self._session,
            call_id=call_id,
            tool=action,
            arguments=kept,
            ts=event.get("timestamp"),
            decision=decision,
            model=model,
            cwd=as_str(arguments.get("cwd")) or self._cwd,
        )

    def _note_cost(self, decision: str, event: dict[str, Any]) -> None:
        total = as_dict(event.get("llm_metrics")).get("accumulated_cost")
        if isinstance(total, float) and total > self._cost_so_far:
            self._costs[decision] = total - self._cost_so_far
            self._cost_so_far = total

    def _is_answer(self, event: dict[str, Any], observation: str) -> bool:
        """Hand on the result of an open call; False where the event answers none (the error of a malformed call)."""
        cause = as_str(event.get("cause"))
        if cause is None and "id" not in event:
            cause = next(reversed(self._open), None)
        if cause is None or cause not in self._open:
            return False
        del self._open[cause]
        extras = as_dict(event.get("extras"))
        text = text_of(event.get("content"))
        exit_code = next(
            (
                code
                for code in (
                    as_int(as_dict(extras.get("metadata")).get("exit_code")),
                    as_int(extras.get("exit_code")),
                    as_int(event.get("exit_code")),
                )
                if code is not None
            ),
            None,
        )
        if exit_code is None and observation == "run":
            exit_code = exit_code_in(text)
        is_error = observation == "error" or (exit_code is None and event.get("success") is False)
        facts: dict[str, Any] = {"is_error": is_error, "exit_code": exit_code}
        if observation == "user_rejected":
            facts = {"outcome": "vetoed", "reason": "user"}
        elif exit_code == STILL_RUNNING:
            facts = {"outcome": "unknown", "reason": "timeout", "source": "exit"}
        elif observation in ("edit", "read", "write") and text.startswith("ERROR"):
            facts = {"is_error": True, "source": "text"}
        elif observation == "run_ipython" and exit_code is None:
            facts = {"is_error": IPYTHON_FAILED.match(text.lstrip()) is not None, "source": "text"}
        elif observation == "mcp":
            answer = as_dict(parsed(text))
            facts["is_error"] = answer.get("isError") is True
            text = text_of(answer) or text
        self._emit.result(session=self._session, call_id=cause, text=text, ts=event.get("timestamp"), **facts)
        self._cwd = _working_dir(event) or self._cwd
        return True

    def turns(self, metrics: dict[str, Any]) -> None:
        """Hand on usage, once for each model response: from the run's metrics, else from its events."""
        for usage in as_list(metrics.get("token_usages")):
            decision = as_str(as_dict(usage).get("response_id"))
            if decision:
                _, ts, model = self._usages.get(decision, (None, None, self._model))
                self._usages[decision] = (usage, ts, model)
        for decision, (usage, ts, model) in self._usages.items():
            self._emit.turn(
                session=self._session,
                decision=decision,
                ts=ts,
                model=model,
                cost_usd=self._costs.get(decision),
                **openai_usage(usage),
            )


def _working_dir(event: dict[str, Any]) -> str | None:
    return as_str(as_dict(as_dict(event.get("extras")).get("metadata")).get("working_dir"))


class OpenHandsCompletions(Format):
    """One logged model call: the messages sent and the response."""

    name: ClassVar[str] = "openhands-completions"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """Sure where messages, a response with choices and a time stand side by side."""
        document = as_dict(head.document)
        is_call = isinstance(document.get("messages"), list) and isinstance(
            as_dict(document.get("response")).get("choices"), list
        )
        return 88 if is_call and {"kwargs", "args", "timestamp", "cost"} & document.keys() else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole file."""
        return OpenHandsCompletionsReader(source, state)


class OpenHandsCompletionsReader(Reader):
    """One file, one record: the history so far and what the model answered."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on the calls of history and response; what other files of the run hold too has the same ids there."""
        emit.at(1)
        response = as_dict(document["response"])
        choice = as_dict(as_dict(next(iter(as_list(response.get("choices"))), None)).get("message"))
        history = [message for message in as_list(document["messages"]) if isinstance(message, dict)]
        first = next((message for message in [*history, choice] if message.get("role") == "assistant"), None)
        if first is None:
            emit.nothing("call without a model turn")
            return
        session = f"{OpenHandsCompletions.name}~{canonical_id(_turn_record(first))}"
        ts, model = document.get("timestamp"), as_str(response.get("model"))
        emit.session(session=session, ts=ts, harness="openhands", model=model)
        pairing = Pairing()
        for number, message in enumerate(history):
            if message.get("role") == "assistant":
                self._calls(message, session, f"message:{number}", None, model, pairing, emit)
            elif message.get("role") == "tool":
                self._result(message, session, pairing, emit)
        decision = self._calls(choice, session, as_str(response.get("id")) or "response", ts, model, pairing, emit)
        emit.turn(
            session=session,
            decision=decision,
            ts=ts,
            model=model,
            cost_usd=document.get("cost"),
            **openai_usage(response.get("usage")),
        )

    def _calls(
        self,
        message: dict[str, Any],
        session: str,
        fallback: str,
        ts: Any,
        model: str | None,
        pairing: Pairing,
        emit: Emit,
    ) -> str:
        calls = [as_dict(call) for call in as_list(message.get("tool_calls"))]
        decision = next((found for found in (as_str(call.get("id")) for call in calls) if found), fallback)
        for number, call in enumerate(calls):
            function = as_dict(call.get("function"))
            tool = as_str(function.get("name"))
            if tool:
                call_id = pairing.open(as_str(call.get("id")) or f"{fallback}.{number}")
                emit.call(
                    session=session,
                    call_id=call_id,
                    tool=tool,
                    arguments=parsed(function.get("arguments")),
                    ts=ts,
                    decision=decision,
                    model=model,
                    identity=call_id if len(call_id) >= LONG_ID else None,
                )
        return decision

    def _result(self, message: dict[str, Any], session: str, pairing: Pairing, emit: Emit) -> None:
        log_id = as_str(message.get("tool_call_id"))
        if not log_id:
            return
        call_id = pairing.close(log_id)
        text = text_of(message.get("content"))
        exit_code = exit_code_in(text)
        facts: dict[str, Any] = {"is_error": text.startswith("ERROR"), "source": "text"}
        if exit_code is not None:
            facts = {"exit_code": exit_code}
            if exit_code == STILL_RUNNING:
                facts = {"outcome": "unknown", "reason": "timeout", "source": "exit"}
        emit.result(
            session=session, call_id=call_id, text=text, identity=call_id if len(call_id) >= LONG_ID else None, **facts
        )


def _turn_record(message: dict[str, Any]) -> dict[str, Any]:
    """A model turn in one form, since the response and the history write the same turn differently."""
    return {
        "content": text_of(message.get("content")),
        "tool_calls": [
            {
                "id": as_dict(call).get("id"),
                "name": as_dict(as_dict(call).get("function")).get("name"),
                "arguments": as_dict(as_dict(call).get("function")).get("arguments"),
            }
            for call in as_list(message.get("tool_calls"))
        ],
    }


class OpenHandsV1(Format):
    """SDK conversations: one JSON file per event, and `base_state.json`."""

    name: ClassVar[str] = "openhands-v1"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """Sure where the object is an event of a known kind, or the state of a conversation."""
        document = as_dict(head.document)
        if document.get("kind") in EVENT_KINDS and "id" in document and "source" in document:
            return 92
        return 80 if _is_state(document) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of one event."""
        return OpenHandsV1Reader(source, state)


def _is_state(document: dict[str, Any]) -> bool:
    return {"id", "agent"} <= document.keys() and bool(
        {"persistence_dir", "execution_status", "agent_status"} & document.keys()
    )


@lru_cache(maxsize=256)
def conversation(folder: str) -> str:
    """The session of the event files in `folder`, by content alone: the folder's name is a path and never the id.

    The id in `base_state.json` beside or above them where there is one, else METHOD 2 over the agent's first event.
    Raises `Reject` while there is none yet.
    """
    root = Path(folder)
    for place in (root, root.parent):
        state = as_dict(companion(place / "base_state.json"))
        if _is_state(state) and as_str(state["id"]):
            return str(state["id"])
    for event in _first_events(root):
        if _is_model_turn(event):
            return f"{OpenHandsV1.name}~{canonical_id(event)}"
    raise Reject("no_session")


def _first_events(folder: Path) -> Iterator[dict[str, Any]]:
    try:
        names = sorted(path.name for path in folder.glob("event-*.json"))
    except OSError:
        return
    for name in names[:FIRST_TURN_WITHIN]:
        yield as_dict(companion(folder / name))


def _is_model_turn(event: dict[str, Any]) -> bool:
    return event.get("source") == "agent" and event.get("kind") in ("ActionEvent", "MessageEvent")


class OpenHandsV1Reader(Reader):
    """One file, one event."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on one event; everything but actions and their answers carries nothing."""
        emit.at(1)
        kind = as_str(document.get("kind"))
        if kind not in ("ActionEvent", "ObservationEvent", "AgentErrorEvent", "UserRejectObservation"):
            emit.nothing(kind or "base_state")
            return
        numbered = EVENT_FILE.match(self.source.name)
        if numbered is not None:
            emit.stand(int(numbered[1]))
        try:
            session = conversation(str(Path(self.source.path).parent))
        except Reject:
            if not _is_model_turn(document):
                raise
            session = f"{OpenHandsV1.name}~{canonical_id(document)}"
        call_id = (
            as_str(document.get("tool_call_id")) or as_str(document.get("action_id")) or as_str(document.get("id"))
        )
        if not call_id:
            raise Reject("event_without_id")
        common = {"session": session, "call_id": call_id, "ts": document.get("timestamp")}
        if kind == "ActionEvent":
            self._call(document, common, emit)
        elif kind == "ObservationEvent":
            self._result(document, common, emit)
        elif kind == "AgentErrorEvent":
            emit.result(**common, text=text_of(document.get("error")), is_error=True)
        else:
            reason = "hook" if document.get("rejection_source") == "hook" else "user"
            emit.result(**common, text=text_of(document.get("rejection_reason")), outcome="vetoed", reason=reason)

    def _call(self, document: dict[str, Any], common: dict[str, Any], emit: Emit) -> None:
        tool = as_str(document.get("tool_name"))
        if not tool:
            raise Reject("call_without_tool")
        arguments = document.get("action")
        if not isinstance(arguments, dict):
            arguments = parsed(as_dict(document.get("tool_call")).get("arguments"))
        if isinstance(arguments, dict):
            arguments = {key: value for key, value in arguments.items() if key not in NO_ARGUMENT}
        emit.session(session=common["session"], ts=common["ts"], harness="openhands")
        emit.call(**common, tool=tool, arguments=arguments, decision=as_str(document.get("llm_response_id")))

    def _result(self, document: dict[str, Any], common: dict[str, Any], emit: Emit) -> None:
        observation = as_dict(document.get("observation"))
        exit_code = as_int(observation.get("exit_code"))
        if exit_code is None:
            exit_code = as_int(as_dict(observation.get("metadata")).get("exit_code"))
        is_error = observation.get("is_error") is True or observation.get("error") is True
        facts: dict[str, Any] = {"is_error": is_error, "exit_code": exit_code}
        if exit_code == STILL_RUNNING:
            facts = {"outcome": "unknown", "reason": "timeout", "source": "exit"}
        emit.result(**common, text=text_of(observation.get("content")), **facts)
        cwd = as_str(as_dict(observation.get("metadata")).get("working_dir"))
        if cwd:
            emit.session(session=common["session"], ts=common["ts"], cwd=cwd, harness="openhands")
