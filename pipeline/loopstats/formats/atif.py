"""Agent Trajectory Interchange Format (Harbor), versions 1.0 to 1.8, and the `result.json` of a trial.

A room of its own because the core of the format has no error flag: every exporter puts its own into `extra`, and where
there is none the outcome is unknown, not a success. A result names its call, or stands at its call's place in the step;
one that names its call may stand in a later step, also of the system.
The trial's result names no session: it is found in the trajectory that lies beside it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from loopstats.answers import verdict
from loopstats.errors import Reject
from loopstats.formats import (
    EXPORT,
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
from loopstats.formats.pairing import Pairing, companion, each, first_known, parsed, without_cache

NESTING_CAP = 8
SOLVED = 1 - 1e-6
EXIT_TAIL = 200
EXIT_AT_END = re.compile(
    r"(?:\[exit[ _]code: ?(-?[0-9]{1,9})\]|\[exit_code\] (-?[0-9]{1,9})"
    r"|\nExit Code: (-?[0-9]{1,9})(?:\n[A-Z][^\n]{0,80}){0,4})[ \t\r\n]*\Z"
)
EXIT_AT_START = re.compile(r"(?:<returncode>(-?[0-9]{1,9})</returncode>|Exit code (-?[0-9]{1,9})(?:\n|\Z))")
CAPPED = frozenset({"AgentTimeoutError", "ContextLengthExceededError", "OutputLengthExceededError"})


class Atif(Format):
    """A trajectory with its steps."""

    name: ClassVar[str] = "atif"
    unit: ClassVar[str] = "container"
    rank: ClassVar[int] = EXPORT

    def matches(self, head: Head) -> int:
        """Sure where a document has steps and names the schema; likely where its steps number and name their source."""
        document = as_dict(head.document)
        if not isinstance(document.get("steps"), list):
            return 0
        if str(document.get("schema_version", "")).upper().startswith("ATIF"):
            return 96
        step = as_dict(next(iter(document["steps"]), None))
        return 70 if {"step_id", "source", "message"} <= step.keys() and isinstance(document.get("agent"), dict) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole trajectory."""
        return AtifReader(source, state)


def session_of(document: dict[str, Any]) -> str | None:
    """The trajectory's own session, else its own id, else METHOD 2 over the agent's first step."""
    named = as_str(document.get("session_id")) or as_str(document.get("trajectory_id"))
    if named:
        return named
    for step in as_list(document.get("steps")):
        if as_dict(step).get("source") == "agent":
            return f"{Atif.name}~{canonical_id(step)}"
    return None


class AtifReader(Reader):
    """One record of the container is one step; the steps of embedded subagents follow those of the main agent."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on all steps; a damaged one is rejected, the others stay."""
        session = session_of(document)
        if session is None:
            emit.at(1)
            emit.nothing("trajectory without a model turn")
            return
        runs: list[_Run] = []
        self._collect(document, session, None, None, runs, emit, 0)
        each([(run, step) for run in runs for step in run.steps], emit, lambda pair: pair[0].read(pair[1]))

    def _collect(
        self,
        document: dict[str, Any],
        session: str,
        agent: str | None,
        parent: str | None,
        runs: list[_Run],
        emit: Emit,
        depth: int,
    ) -> None:
        runs.append(_Run(document, session, agent, parent, emit))
        if depth >= NESTING_CAP:
            return
        for number, inner in enumerate(as_list(document.get("subagent_trajectories")), start=1):
            if isinstance(inner, dict):
                name = (
                    as_str(inner.get("trajectory_id"))
                    or as_str(inner.get("session_id"))
                    or f"{agent or 'subagent'}.{number}"
                )
                self._collect(inner, session, name, agent, runs, emit, depth + 1)


class _Run:
    """The steps of one agent, in order."""

    def __init__(
        self, document: dict[str, Any], session: str, agent: str | None, parent: str | None, emit: Emit
    ) -> None:
        self.steps = as_list(document.get("steps"))
        self._session = session
        self._agent = agent
        self._parent = parent
        self._emit = emit
        self._about = as_dict(document.get("agent"))
        self._model = as_str(self._about.get("model_name"))
        self._is_claude_code = (as_str(self._about.get("name")) or "").startswith("claude-code")
        self._pairings: dict[str | None, Pairing] = {}
        self._decision: str | None = None
        self._is_begun = False

    def read(self, step: Any) -> None:
        """Hand on one step: its calls, their results, its usage."""
        step_id = as_str(step.get("step_id")) or ""
        self._emit.nothing(f"step/{as_str(step.get('source'))}")
        if step.get("is_copied_context"):
            self._emit.fold("resume")
            return
        extra = as_dict(step.get("extra"))
        agent = "sidechain" if self._agent is None and extra.get("is_sidechain") is True else self._agent
        ts, model = step.get("timestamp"), as_str(step.get("model_name")) or self._model
        if not self._is_begun:
            self._is_begun = True
            cwd = as_str(extra.get("cwd")) or as_str(
                next(iter(as_list(as_dict(self._about.get("extra")).get("cwds"))), None)
            )
            self._emit.session(
                session=self._session,
                agent=self._agent,
                parent_agent=self._parent,
                ts=ts,
                cwd=cwd,
                harness=as_str(self._about.get("name")),
                version=as_str(self._about.get("version")),
                model=self._model,
            )
        metrics = as_dict(step.get("metrics"))
        pairing = self._pairings.setdefault(agent, Pairing())
        if step.get("source") != "agent":
            self._decision = None
            self._results(step, extra, agent, ts, pairing, [])
            return
        if metrics or step.get("llm_call_count"):
            # exporters that split a model turn into a step for each call leave usage at its first step
            self._decision = step_id
        if metrics:
            self._turn(metrics, agent, step_id, ts, model)
        placed = self._calls(step, extra, agent, ts, model, pairing)
        self._results(step, extra, agent, ts, pairing, placed)

    def _turn(self, metrics: dict[str, Any], agent: str | None, step_id: str, ts: Any, model: str | None) -> None:
        extra = as_dict(metrics.get("extra"))
        read = as_int(metrics.get("cached_tokens"))
        write = as_int(first_known(extra, "cache_creation_input_tokens", "cache_write_tokens"))
        self._emit.turn(
            session=self._session,
            agent=agent,
            decision=step_id,
            ts=ts,
            model=model,
            cost_usd=metrics.get("cost_usd"),
            tokens_input=without_cache(as_int(metrics.get("prompt_tokens")), read, write),
            tokens_cache_read=read,
            tokens_cache_write=write,
            tokens_output=as_int(metrics.get("completion_tokens")),
        )

    def _calls(
        self,
        step: dict[str, Any],
        extra: dict[str, Any],
        agent: str | None,
        ts: Any,
        model: str | None,
        pairing: Pairing,
    ) -> list[str]:
        """Hand on the calls of a step; their log ids, by place."""
        placed: list[str] = []
        for number, call in enumerate(as_list(step.get("tool_calls"))):
            call = as_dict(call)
            tool = as_str(call.get("function_name"))
            if tool:
                log_id = as_str(call.get("tool_call_id")) or f"step:{as_str(step.get('step_id'))}.{number}"
                placed.append(log_id)
                self._emit.call(
                    session=self._session,
                    agent=agent,
                    parent_agent=self._parent,
                    call_id=pairing.open(log_id),
                    tool=tool,
                    arguments=parsed(call.get("arguments")),
                    ts=ts,
                    decision=self._decision,
                    model=model,
                    cwd=as_str(extra.get("cwd")),
                )
        return placed

    def _results(
        self,
        step: dict[str, Any],
        extra: dict[str, Any],
        agent: str | None,
        ts: Any,
        pairing: Pairing,
        placed: list[str],
    ) -> None:
        results = as_list(as_dict(step.get("observation")).get("results"))
        # what the step itself tells is of one result only
        about_step = extra if max(len(placed), len(results) if not placed else 0) <= 1 else {}
        for number, result in enumerate(results):
            result = as_dict(result)
            answered = as_str(result.get("source_call_id")) or (placed[number] if number < len(placed) else None)
            if answered is None:
                continue
            about = as_dict(result.get("extra"))
            # the exporter for Claude Code repeats its streams in the content; the result as it was stands beside it
            raw = as_dict(as_dict(extra.get("tool_result_metadata")).get("raw_tool_result"))
            text = text_of((raw if as_str(raw.get("tool_use_id")) == answered else result).get("content"))
            is_error = flag(about, about_step)
            # Claude Code answers in the tool's place where a call was refused or cut off, and flags that as an error.
            said = verdict(text, True, None)[1] if is_error and self._is_claude_code else {}
            self._emit.result(
                session=self._session,
                agent=agent,
                call_id=pairing.close(answered),
                text=text,
                ts=ts,
                is_error=is_error,
                duration_ms=as_int(about.get("duration_ms")),
                exit_code=exit_code_of(text, is_error),
                outcome=said.get("outcome"),
                reason=said.get("reason"),
                is_timeout=said.get("is_timeout", False),
            )


def flag(about: dict[str, Any], step: dict[str, Any]) -> bool | None:
    """The error flag of a result, from its own `extra`, else of a step with one call; None where there is none."""
    status = about.get("status")
    if status in ("ok", "success", "completed"):
        return False
    if status in ("error", "failed", "failure"):
        return True
    for known in (about.get("tool_result_is_error"), about.get("is_error"), step.get("tool_result_is_error")):
        if as_bool(known) is not None:
            return bool(known)
    metadata = step.get("tool_result_metadata")
    if isinstance(metadata, dict):
        raw = as_dict(metadata.get("raw_tool_result"))
        return metadata.get("is_error") is True or raw.get("is_error") is True
    return None


def exit_code_of(text: str, is_error: bool | None) -> int | None:
    """The exit code that the agent's wrapper wrote at the edge of a result; None where it contradicts the flag."""
    found = EXIT_AT_START.match(text) or EXIT_AT_END.search(text, max(0, len(text) - EXIT_TAIL))
    if found is None:
        return None
    code = int(next(group for group in found.groups() if group is not None))
    return None if is_error is not None and is_error != (code != 0) else code


class AtifResult(Format):
    """The `result.json` of a trial."""

    name: ClassVar[str] = "atif-result"
    unit: ClassVar[str] = "container"
    rank: ClassVar[int] = EXPORT

    def matches(self, head: Head) -> int:
        """Sure where a document names a trial and what came of its agent or verifier."""
        document = as_dict(head.document)
        is_trial = {"trial_name", "task_name"} <= document.keys()
        return 92 if is_trial and {"verifier_result", "agent_result", "exception_info"} & document.keys() else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole result."""
        return AtifResultReader(source, state)


class AtifResultReader(Reader):
    """One file, one fact."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on reward and ending, for the trajectory's session; without a trajectory, for the trial's own id."""
        emit.at(1)
        session = self._session() or as_str(document.get("id")) or as_str(document.get("trial_name"))
        if not session:
            raise Reject("no_session")
        agent = as_dict(document.get("agent_info"))
        emit.session(
            session=session,
            ts=document.get("started_at"),
            task=as_str(document.get("task_name")),
            harness=as_str(agent.get("name")),
            version=as_str(agent.get("version")),
            model=as_str(as_dict(agent.get("model_info")).get("name")),
            group=group_of(document),
        )
        rewards = as_dict(as_dict(document.get("verifier_result")).get("rewards"))
        emit.fact(
            session=session,
            identity="trial",
            ts=document.get("finished_at"),
            solved=solved(rewards),
            ending=ending(as_str(as_dict(document.get("exception_info")).get("exception_type"))),
        )

    def _session(self) -> str | None:
        path = Path(self.source.path)
        beside = (
            path.with_name(path.name.replace("result.json", "trajectory.json")),
            path.parent / "agent" / "trajectory.json",
        )
        for place in beside:
            document = companion(place) if place != path else None
            if isinstance(document, dict) and isinstance(document.get("steps"), list):
                return session_of(document)
        return None


def solved(rewards: dict[str, Any]) -> bool | None:
    """Whether the verifier gave the full reward; None where it gave none."""
    value = rewards.get("reward")
    if value is None and len(rewards) == 1:
        value = next(iter(rewards.values()))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value >= SOLVED


def ending(exception: str | None) -> str | None:
    """How the run ended: `cap` for the agent's time or size limit, `crash` for a program that failed, else None."""
    if exception in CAPPED:
        return "cap"
    return "crash" if exception is not None and exception.startswith("NonZero") else None


def group_of(document: dict[str, Any]) -> str | None:
    """The arm that the trial's configuration names: the label of its job after the random prefix; None without one."""
    config = as_dict(document.get("config"))
    folder = (as_str(config.get("trials_dir")) or "").replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    prefix, _, label = folder.partition("-")
    is_labelled = label[:1].isalpha() and all(letter in "0123456789abcdef" for letter in prefix)
    return label if is_labelled else None
