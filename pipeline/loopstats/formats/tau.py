"""tau-bench results and tau2-bench simulations: customer service agents whose user is simulated.

A room of its own because of three habits. A model may send one call id again and again within a run, so ids are
numbered. In tau2 a result may have an empty id: it answers the next open call of the message before it. And there the
simulated user has tools too: those calls are kept with the actor `user`, never as the agent's.
"""

from __future__ import annotations

from collections import deque
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
    as_list,
    as_str,
    canonical_id,
    text_of,
)
from loopstats.formats.pairing import Pairing, each, openai_usage, parsed

SOLVED = 1 - 1e-6
ENDINGS = {
    "max_steps": "cap",
    "too_many_errors": "cap",
    "timeout": "cap",
    "agent_error": "crash",
    "user_error": "crash",
}


class TauBench(Format):
    """A JSON array of runs with `task_id`, `trial`, `reward` and `traj`."""

    name: ClassVar[str] = "tau-bench"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """Sure where the array's runs have a trajectory and a task."""
        runs = [run for run in as_list(head.document)[:20] if isinstance(run, dict)]
        return 95 if any(isinstance(run.get("traj"), list) and "task_id" in run for run in runs) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole array."""
        return TauReader(source, state)


class TauReader(Reader):
    """One record of the container is one run."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on all runs; a run without a trajectory is rejected, the others stay."""
        each(as_list(document), emit, lambda run: self._run(run, emit))

    def _run(self, run: Any, emit: Emit) -> None:
        messages = [message for message in run["traj"] if isinstance(message, dict)]
        task = as_str(run.get("task_id"))
        first = next((message for message in messages if message.get("role") == "assistant"), None)
        if task is None:
            raise Reject("run_without_task")
        if first is None:
            emit.nothing("run without a model turn")
            return
        trial = as_str(run.get("trial"))
        instance = task if trial is None else f"{task}/{trial}"
        session = f"{instance}~{canonical_id(first)}"
        emit.session(session=session, task=task, harness="tau-bench")
        pairing = Pairing()
        for number, message in enumerate(messages):
            if message.get("role") == "assistant":
                for call in as_list(message.get("tool_calls")):
                    function = as_dict(as_dict(call).get("function"))
                    tool = as_str(function.get("name"))
                    if tool:
                        emit.call(
                            session=session,
                            call_id=pairing.open(as_str(call.get("id")) or f"{number}"),
                            tool=tool,
                            arguments=parsed(function.get("arguments")),
                            decision=str(number),
                        )
            elif message.get("role") == "tool" and as_str(message.get("tool_call_id")):
                text = text_of(message.get("content"))
                emit.result(
                    session=session,
                    call_id=pairing.close(as_str(message["tool_call_id"]) or ""),
                    text=text,
                    is_error=text.startswith("Error"),
                    source="text",
                )
        emit.fact(session=session, identity="reward", solved=solved(run.get("reward")))


class Tau2Bench(Format):
    """A JSON object with `simulations`, each with its messages."""

    name: ClassVar[str] = "tau2-bench"
    unit: ClassVar[str] = "container"

    def matches(self, head: Head) -> int:
        """Sure where the simulations have messages."""
        runs = [run for run in as_list(as_dict(head.document).get("simulations"))[:20] if isinstance(run, dict)]
        return 95 if any(isinstance(run.get("messages"), list) for run in runs) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole document."""
        return Tau2Reader(source, state)


class Tau2Reader(Reader):
    """One record of the container is one simulation."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on all simulations; one without id or messages is rejected, the others stay."""
        info = as_dict(document["info"]) if "info" in document else {}
        each(as_list(document["simulations"]), emit, lambda run: self._run(run, info, emit))

    def _run(self, run: Any, info: dict[str, Any], emit: Emit) -> None:
        session = as_str(run.get("id"))
        if not session:
            raise Reject("no_session")
        model = as_str(as_dict(info.get("agent_info")).get("llm"))
        emit.session(
            session=session,
            ts=run.get("start_time"),
            task=as_str(run.get("task_id")),
            model=model,
            harness="tau2-bench",
            version=as_str(info.get("git_commit")),
            project=as_str(as_dict(info.get("environment_info")).get("domain_name")),
        )
        pairing = Pairing()
        asked: deque[str] = deque()
        for number, message in enumerate(run["messages"]):
            if not isinstance(message, dict):
                continue
            role = message.get("role")
            if role == "tool":
                for answer in as_list(message.get("tool_messages")) or [message]:
                    self._result(as_dict(answer), session, pairing, asked, emit)
                continue
            asked.clear()
            decision = as_str(message.get("turn_idx")) or str(number)
            ts = message.get("timestamp")
            for call in as_list(message.get("tool_calls")):
                call = as_dict(call)
                tool = as_str(call.get("name"))
                if tool:
                    requestor = call.get("requestor") or role
                    asked.append(pairing.open(as_str(call.get("id")) or f"{number}"))
                    emit.call(
                        session=session,
                        call_id=asked[-1],
                        tool=tool,
                        arguments=parsed(call.get("arguments")),
                        ts=ts,
                        decision=decision,
                        model=model,
                        actor="user" if requestor == "user" else "agent",
                    )
            if role == "assistant" and (message.get("usage") or message.get("cost")):
                emit.turn(
                    session=session,
                    decision=decision,
                    ts=ts,
                    model=model,
                    cost_usd=message.get("cost"),
                    **openai_usage(message.get("usage")),
                )
        emit.fact(
            session=session,
            identity="reward",
            ts=run.get("end_time"),
            solved=solved(as_dict(run.get("reward_info")).get("reward")),
            ending=ENDINGS.get(as_str(run.get("termination_reason")) or ""),
        )

    def _result(self, answer: dict[str, Any], session: str, pairing: Pairing, asked: deque[str], emit: Emit) -> None:
        log_id = as_str(answer.get("id"))
        call_id = pairing.close(log_id) if log_id else next(iter(asked), None)
        if call_id:
            if call_id in asked:
                asked.remove(call_id)
            emit.result(
                session=session,
                call_id=call_id,
                ts=answer.get("timestamp"),
                text=text_of(answer.get("content")),
                is_error=as_bool(answer.get("error")),
            )


def solved(reward: Any) -> bool | None:
    """Whether a reward is the full one; None where there is none."""
    if isinstance(reward, bool) or not isinstance(reward, (int, float)):
        return None
    return reward >= SOLVED
