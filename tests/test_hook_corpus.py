"""Live equals batch on real logs: every Claude Code and Codex run of the corpus, told to the hook event by event.

The events are those that the agents would fire: nothing for a call that was vetoed or got no result, and for a call
that Claude Code turned down before it ran, its batch only. What the hook then wrote into its own log is compared with
the loops that the batch finds in the agents' logs: run, signature, rule, arm, and the call of the detecting step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from corpus_lake import CORPUS, corpus_tables
from loopstats import collector, hook, rule
from loopstats.answers import ERROR_TAG, text_of

TOKEN = {"experiment": "replay", "salt": "", "share_bp": rule.SHARE_BP_DEFAULT, "n_star": 100}
"""The empty salt and the even split: what the batch takes for loops of sessions that no experiment names."""
AGENT_OF = {"claude-code": "claude-code", "codex": "codex"}
NOW_US = 1_793_000_000_000_000
PROCESS_RUNS = 4
PROCESS_EVENTS = 60
Key = tuple[str, str, str, str, str | None, int | None]


@pytest.fixture(scope="module", autouse=True)
def _needs_corpus() -> None:
    if not (CORPUS / "claude-code").is_dir():
        pytest.skip(f"corpus folder missing: {CORPUS / 'claude-code'}")


def records(folder: str) -> list[dict[str, Any]]:
    """All records of the JSON Lines files of a folder that parse."""
    found = []
    for path in sorted((CORPUS / folder).rglob("*.jsonl")):
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                found.append(record)
    return found


class Heard:
    """What the logs say, before anything of the project read it: calls and results by call id, sessions' folders."""

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.folders: dict[str, str] = {}


@cache
def claude_code() -> Heard:
    heard = Heard()
    for record in records("claude-code"):
        if record.get("cwd") and record.get("sessionId"):
            heard.folders.setdefault(record["sessionId"], record["cwd"])
        nested = (record.get("data") or {}).get("message") if isinstance(record.get("data"), dict) else None
        said = nested if isinstance(nested, dict) else record
        content = (said.get("message") or {}).get("content") if isinstance(said.get("message"), dict) else None
        blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        answers = [block for block in blocks if block.get("type") == "tool_result"]
        for block in blocks:
            if block.get("type") == "tool_use":
                heard.calls.setdefault(
                    block["id"],
                    {"cwd": record.get("cwd"), "tool_name": block["name"], "tool_input": block.get("input")},
                )
        for block in answers:
            used = said.get("toolUseResult") if len(answers) == 1 else None
            heard.results[block["tool_use_id"]] = {**block, "used": used}
    return heard


@cache
def codex() -> Heard:
    heard = Heard()
    folder = None
    for record in records("codex"):
        item = record.get("payload") if isinstance(record.get("payload"), dict) else record
        if record.get("type") == "session_meta":
            folder = item["cwd"]
            heard.folders.setdefault(item["id"], folder)
        elif record.get("type") == "turn_context":
            folder = item.get("cwd") or folder
        elif item.get("type") in ("function_call", "custom_tool_call"):
            asked = item.get("arguments", item.get("input"))
            try:
                told = json.loads(asked)
            except ValueError:
                told = {"input": asked}
            heard.calls.setdefault(item["call_id"], {"cwd": folder, "tool_name": item["name"], "tool_input": told})
        elif item.get("type") in ("function_call_output", "custom_tool_call_output"):
            heard.results[item["call_id"]] = item
    return heard


def fired(steps: list[dict[str, Any]], heard: Heard, agent: str) -> list[dict[str, Any]]:
    """The events of one run, in the order of its results."""
    session, run_id = steps[0]["session_id"], steps[0]["run_id"]
    common: dict[str, Any] = {"session_id": session, "transcript_path": None}
    if run_id != session:
        common["agent_id"] = run_id.removeprefix(f"{session}/")
    if agent == "codex":
        common["turn_id"] = "t"
    events = [{**common, "hook_event_name": "SessionStart", "source": "startup", "cwd": heard.folders.get(session)}]
    rejected: list[dict[str, Any]] = []
    for position, step in enumerate(steps):
        if step["outcome"] != "vetoed" and step["outcome_reason"] != "missing":
            call = {**common, **heard.calls[step["call_id"]], "tool_use_id": step["call_id"]}
            result = heard.results[step["call_id"]]
            if agent == "codex":
                events.append({**call, "hook_event_name": "PostToolUse", "tool_response": result["output"]})
            elif text_of(result.get("content")).startswith(ERROR_TAG) and result.get("is_error"):
                rejected.append(
                    {key: call[key] for key in ("tool_name", "tool_input", "tool_use_id")}
                    | {"tool_response": result["content"]}
                )
            elif result.get("is_error"):
                failed = {"hook_event_name": "PostToolUseFailure", "error": text_of(result["content"])}
                events.append({**call, **failed, "is_interrupt": False})
            else:
                used = result["used"] if isinstance(result["used"], dict) else result.get("content")
                events.append({**call, "hook_event_name": "PostToolUse", "tool_response": used})
        is_turn_over = position + 1 == len(steps) or steps[position + 1]["decision"] != step["decision"]
        if rejected and is_turn_over:
            where = heard.calls[step["call_id"]]["cwd"]
            events.append({**common, "hook_event_name": "PostToolBatch", "cwd": where, "tool_calls": rejected})
            rejected = []
    return events


@cache
def runs() -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """run_id to agent and the events of the run."""
    steps = corpus_tables()["steps"].sort("run_id", "step")
    found = {}
    for folder, agent in AGENT_OF.items():
        heard = claude_code() if agent == "claude-code" else codex()
        mine = steps.filter(pl.col("source_file").str.starts_with(f"{folder}/"))
        for (run_id,), frame in mine.partition_by("run_id", as_dict=True, maintain_order=True).items():
            found[str(run_id)] = (agent, fired(frame.to_dicts(), heard, agent))
    return found


def batch_loops() -> set[Key]:
    loops = corpus_tables()["loops"].filter(pl.col("run_id").is_in(list(runs())))
    columns = ("run_id", "signature", "rule", "detected_call_id", "arm", "arm_bp")
    return {tuple(row) for row in loops.select(columns).iter_rows()}


def live_loops(spool: Path) -> set[Key]:
    found = set()
    for path in spool.glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            told = json.loads(line)
            if told["type"] == "loop":
                run_id = f"{told['session']}/{told['agent']}" if "agent" in told else told["session"]
                found.add((run_id, told["signature"], told["rule"], told["step"], told.get("arm"), told.get("arm_bp")))
    return found


def terms(spool: Path) -> collector.Terms:
    env = {"LOOPSTATS_SPOOL": str(spool)}
    found = collector.read_terms(env, json.dumps(TOKEN), [], str(spool))
    assert found is not None
    return found


def test_live_equals_batch_on_every_run(tmp_path: Path) -> None:
    told = terms(tmp_path)
    answers: dict[tuple[str, str], list[bool]] = {}
    for run_id, (agent, events) in runs().items():
        for number, event in enumerate(events):
            for _, is_treated in collector.handle(event, agent, told, NOW_US + number * 1_000_000):
                answers.setdefault((run_id, agent), []).append(is_treated)
    expected = batch_loops()
    assert live_loops(tmp_path) == expected
    assert len(expected) >= 4 and {key[2] for key in expected} == {rule.STRATEGY_LOOP, rule.REPEAT}
    assert {agent for agent, _ in runs().values()} == {"claude-code", "codex"}
    strategy = [key for key in expected if key[2] == rule.STRATEGY_LOOP]
    assert sum(map(len, answers.values())) == len(strategy)
    assert sum(sum(said) for said in answers.values()) == sum(key[4] == "treated" for key in strategy)


def test_the_steps_equal_the_batch_in_what_a_loop_is_made_of(tmp_path: Path) -> None:
    told = terms(tmp_path)
    for agent, events in runs().values():
        for event in events:
            collector.handle(event, agent, told, NOW_US)
    live = {}
    for path in tmp_path.glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            step = json.loads(line)
            if step["type"] == "step":
                run_id = f"{step['session']}/{step['agent']}" if "agent" in step else step["session"]
                live[run_id, step["id"]] = (
                    step["kind"],
                    step["action"],
                    step["outcome"],
                    step["target"],
                    step.get("signature"),
                    step.get("message"),
                )
    names = ("kind", "action", "outcome", "target", "signature", "message")
    steps = corpus_tables()["steps"].filter(
        pl.col("run_id").is_in(list(runs()))
        & (pl.col("outcome") != "vetoed")
        & (pl.col("outcome_reason").is_null() | (pl.col("outcome_reason") != "missing"))
    )
    batch = {(row[0], row[1]): tuple(row[2:]) for row in steps.select("run_id", "call_id", *names).iter_rows()}
    assert len(batch) > 1_000
    assert {key: (live.get(key), value) for key, value in batch.items() if live.get(key) != value} == {}


def test_recorded_hook_inputs_are_the_steps_that_the_batch_reads(tmp_path: Path) -> None:
    """Inputs of 2025: no call id, no time; the ids are made in the same way here and there."""
    told = terms(tmp_path)
    files = [CORPUS / "claude-code-hooks" / f"quantstats-{name}_tool_use.json" for name in ("pre", "post")]
    inputs = [one for path in files for one in json.loads(path.read_text("utf-8"))]
    for event in inputs:
        collector.handle(event, "", told, NOW_US)
    found = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    live = {
        (step["session"], step["id"]): (step["tool"], step["kind"], step["outcome"], step["target"])
        for step in found
        if step["type"] == "step"
    }
    steps = corpus_tables()["steps"].filter(
        pl.col("source_file").str.starts_with("claude-code-hooks/quantstats") & (pl.col("outcome") != "unknown")
    )
    columns = ("session_id", "call_id", "tool", "kind", "outcome", "target")
    batch = {(row[0], row[1]): tuple(row[2:]) for row in steps.select(columns).iter_rows()}
    assert live == batch and len(batch) == 14


def through_processes(chosen: list[tuple[str, list[dict[str, Any]]]], folder: Path) -> None:
    """Each event through a process of its own, in order."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LOOPSTATS_SPOOL": str(folder / "spool"),
        hook.TOKEN: json.dumps(TOKEN),
    }
    for agent, events in chosen:
        for event in events:
            done = subprocess.run(
                [sys.executable, "-I", "-S", hook.__file__, agent],
                input=json.dumps(event).encode(),
                env=env,
                capture_output=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, b"")


def call_ids(event: dict[str, Any]) -> set[str]:
    return {one["tool_use_id"] for one in (event, *(event.get("tool_calls") or ())) if "tool_use_id" in one}


def test_live_equals_batch_through_the_real_process_for_a_few_runs(tmp_path: Path) -> None:
    wanted = batch_loops()
    detecting = {key[3] for key in wanted}

    def last_detection(events: list[dict[str, Any]]) -> int:
        return max((number for number, event in enumerate(events, 1) if call_ids(event) & detecting), default=0)

    chosen = []
    for agent, most in (("codex", 1), ("claude-code", PROCESS_RUNS - 1)):
        found = sorted(
            (last_detection(events), run_id)
            for run_id, (name, events) in runs().items()
            if name == agent and last_detection(events)
        )
        chosen += [(run_id, agent, runs()[run_id][1][: min(count, PROCESS_EVENTS)]) for count, run_id in found[:most]]
    through_processes([(agent, events) for _, agent, events in chosen], tmp_path)
    sent = {(run_id, call_id) for run_id, _, events in chosen for event in events for call_id in call_ids(event)}
    expected = {key for key in wanted if (key[0], key[3]) in sent}
    assert expected and live_loops(tmp_path / "spool") == expected


@pytest.mark.bench
def test_live_equals_batch_through_the_real_process_for_every_run(tmp_path: Path) -> None:
    through_processes(list(runs().values()), tmp_path)
    assert live_loops(tmp_path / "spool") == batch_loops()
