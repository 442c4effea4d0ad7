"""The native event log, version 1: what the hook writes and what any other agent can export to.

The reference for whoever writes another format: every kind of fact that the door takes is handed on here. The log has
no prompt or code to drop; unknown keys are ignored, unknown types counted.
"""

from __future__ import annotations

from typing import Any, ClassVar

from loopstats.errors import Reject
from loopstats.formats import (
    SPOOL,
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
)

OUTCOMES = frozenset({"success", "failure", "unknown", "vetoed"})
TYPES = frozenset({"session", "step", "loop", "delivery", "guard", "result"})


class Native(Format):
    """JSON Lines with `v`, `type` and `session` on every line."""

    name: ClassVar[str] = "native"
    rank: ClassVar[int] = SPOOL
    needs_chain: ClassVar[bool] = True

    def matches(self, head: Head) -> int:
        """Sure where a line has version 1, a session and a known type; likely where only the type is new."""
        likely = [r for r in head.records if r.get("v") == 1 and isinstance(r.get("session"), str) and "type" in r]
        if not likely:
            return 0
        return 95 if any(record["type"] in TYPES for record in likely) else 60

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader that keeps nothing between lines."""
        return NativeReader(source, state)


class NativeReader(Reader):
    """One line, one record of the same type."""

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on one line; a line without a session, or a step without id, tool or outcome, is rejected."""
        kind = record.get("type")
        if record.get("v", 1) != 1:
            raise Reject("unknown_version")
        session = as_str(record.get("session"))
        if not session:
            raise Reject("no_session")
        common: dict[str, Any] = {"session": session, "agent": as_str(record.get("agent")), "ts": record.get("ts")}
        identity = as_str(record.get("id"))
        if kind == "step":
            self._step(record, common, identity, emit)
        elif kind == "session":
            emit.session(
                **common,
                **_texts(
                    record,
                    (
                        "cwd",
                        "project",
                        "harness",
                        "model",
                        "task",
                        "group",
                        "experiment",
                        "salt_id",
                        "epoch",
                        "rule_digest",
                    ),
                ),
                share_bp=as_int(record.get("share_bp")),
            )
        elif kind == "loop":
            emit.loop(
                **common,
                identity=identity,
                rule_name=as_str(record.get("rule")),
                call_id=as_str(record.get("step")),
                **_texts(record, ("experiment", "signature", "rule_digest", "arm", "epoch")),
                arm_bp=as_int(record.get("arm_bp")),
                share_bp=as_int(record.get("share_bp")),
            )
        elif kind == "delivery":
            emit.delivery(
                **common,
                identity=identity,
                is_delivered=as_bool(record.get("delivered")),
                tier=as_int(record.get("tier")),
                call_id=as_str(record.get("step")),
                **_texts(record, ("experiment", "signature", "arm", "reason", "text_sha256")),
            )
        elif kind == "guard":
            emit.guard(
                **common,
                identity=identity,
                name=as_str(record.get("name")),
                event=as_str(record.get("event")),
                tier=as_int(record.get("tier")),
                counter=as_int(record.get("counter")),
                by=as_str(record.get("by")),
                ttl_s=as_int(record.get("ttl_s")),
            )
        elif kind == "result":
            emit.fact(
                **common,
                identity=identity,
                solved=as_bool(record.get("solved")),
                claimed=as_bool(record.get("claimed")),
                **_texts(record, ("ending", "bait", "expected_ending")),
            )
        else:
            emit.nothing(as_str(kind) or "no type")

    def _step(self, record: dict[str, Any], common: dict[str, Any], call_id: str | None, emit: Emit) -> None:
        tool, outcome = as_str(record.get("tool")), record.get("outcome")
        if not call_id:
            raise Reject("step_without_id")
        if not tool:
            raise Reject("step_without_tool")
        if outcome not in OUTCOMES:
            raise Reject("step_without_outcome")
        decision, model = as_str(record.get("decision")) or f"step:{call_id}", as_str(record.get("model"))
        targets = [text for text in map(as_str, as_list(record.get("targets"))) if text is not None]
        target = record.get("target")
        emit.call(
            **common,
            call_id=call_id,
            tool=tool,
            arguments=record.get("input"),
            decision=decision,
            model=model,
            cwd=as_str(record.get("cwd")),
            actor="user" if record.get("actor") == "user" else "agent",
            target=target if isinstance(target, str) else None,
            targets=targets or None,
            **_texts(record, ("kind", "action", "fingerprint", "cycle", "state_hash")),
        )
        emit.result(
            **common,
            call_id=call_id,
            text=record.get("message") if isinstance(record.get("message"), str) else None,
            exit_code=as_int(record.get("exit_code")),
            outcome=outcome,
            reason=as_str(record.get("outcome_reason")),
            is_timeout=record.get("outcome_reason") == "timeout",
            signature=as_str(record.get("signature")),
            error_code=as_str(record.get("error_code")),
            is_truncated=as_bool(record.get("truncated")),
            overflow_path=as_str(record.get("overflow")),
            duration_ms=as_int(record.get("duration_ms")),
            state_hash=as_str(record.get("state_hash")),
        )
        tokens = as_dict(record.get("tokens"))
        if tokens or record.get("cost_usd") is not None:
            emit.turn(
                **common,
                decision=decision,
                model=model,
                cost_usd=record.get("cost_usd"),
                tokens_input=as_int(tokens.get("input")),
                tokens_output=as_int(tokens.get("output")),
                tokens_cache_read=as_int(tokens.get("cache_read")),
                tokens_cache_write=as_int(tokens.get("cache_write")),
            )


def _texts(record: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Those keys of a line that are passed on as text under their own name."""
    return {key: as_str(record.get(key)) for key in keys}
