"""One session in six forms: transcript, hook log (new and of 2025), the project's own spool, and ATIF with and without flags.

Each form that carries the outcomes gives the same (run, signature, rule, detecting call). Where a form cannot know an
outcome the step is `unknown` or not there at all: `UNKNOWN` lists every such step by form, and why.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from lines import ingest, tables_of
from loopstats import collector, rule
from loopstats.config import Settings

SESSION = "5ca1ab1e-0000-4000-8000-000000000007"
CWD = "/home/ann/shop"
MODEL = "claude-opus-4-5"
MISS = "<tool_use_error>String to replace not found in file.\nString: {}</tool_use_error>"
DENIED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the "
    "new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed."
)
TOKEN = json.dumps({"experiment": "replay", "salt": "", "share_bp": rule.SHARE_BP_DEFAULT, "n_star": 100})


class Call(NamedTuple):
    """A call as it happened: `how` is ok, failed, refused (before it ran, by the program), denied (by the user), lost."""

    id: str
    tool: str
    input: dict[str, Any]
    how: str
    text: str


def edit(number: int, file: str, how: str = "refused") -> Call:
    old = f"value = {number}"
    text = MISS.format(old) if how == "refused" else f"The file {CWD}/{file} has been updated."
    call_input = {"file_path": f"{CWD}/{file}", "old_string": old, "new_string": "value = 0"}
    return Call(f"toolu_01SameSession{number:011d}", "Edit", call_input, how, text)


def bash(number: int, command: str, how: str, text: str) -> Call:
    return Call(f"toolu_01SameSession{number:011d}", "Bash", {"command": command}, how, text)


BROKEN = "Exit code 1\nE   ImportError: cannot import name 'total' from 'shop.cart'\n1 error in 0.11s"
CALLS = [
    edit(1, "cart.py"),
    bash(2, "pytest tests/test_cart.py", "failed", BROKEN),
    edit(3, "tax.py"),
    bash(4, "pytest tests/test_tax.py", "failed", BROKEN),
    edit(5, "cart.py"),  # the third edit of its class, on two files: detection
    bash(6, "ls", "ok", "cart.py\ntax.py"),
    bash(7, "rm -r build", "denied", DENIED),
    bash(
        8, "pytest tests/test_cart.py", "failed", BROKEN
    ),  # the third failed run of its class, on two files: detection
    edit(9, "cart.py", "ok"),
    bash(10, "pytest tests", "ok", "4 passed in 0.20s"),
    bash(11, "make all", "lost", ""),
]
DENIED_CALL, LOST_CALL = CALLS[6].id, CALLS[10].id
EDITS = {CALLS[number].id for number in (0, 2, 4)}
FAILED_RUNS = {CALLS[number].id for number in (1, 3, 7)}


def clock(number: int, is_result: bool = False) -> str:
    return f"2026-11-02T10:{number:02d}:{30 if is_result else 0:02d}Z"


def transcript() -> bytes:
    """The agent's own log: a message and a result record for each call."""
    lines = []
    for number, call in enumerate(CALLS):
        common = {"sessionId": SESSION, "cwd": CWD, "version": "2.1.40", "isSidechain": False}
        block = {"type": "tool_use", "id": call.id, "name": call.tool, "input": call.input}
        usage = {
            "input_tokens": 10,
            "output_tokens": 5,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 0,
        }
        message = {
            "id": f"msg_01SameSession{number:011d}",
            "role": "assistant",
            "model": MODEL,
            "content": [block],
            "usage": usage,
        }
        lines.append(
            common | {"type": "assistant", "uuid": f"a-{number}", "timestamp": clock(number), "message": message}
        )
        if call.how != "lost":
            answer = {"type": "tool_result", "tool_use_id": call.id, "content": call.text}
            if call.how != "ok":
                answer["is_error"] = True
            lines.append(
                common
                | {
                    "type": "user",
                    "uuid": f"u-{number}",
                    "timestamp": clock(number, True),
                    "message": {"role": "user", "content": [answer]},
                }
            )
    return joined(lines)


def hook_inputs() -> list[tuple[str, dict[str, Any]]]:
    """What Claude Code tells its hooks, with the times: a refused call is told with its batch only, a denied one never."""
    common = {"session_id": SESSION, "cwd": CWD}
    inputs: list[tuple[str, dict[str, Any]]] = [
        (clock(0), common | {"hook_event_name": "SessionStart", "source": "startup"})
    ]
    for number, call in enumerate(CALLS):
        told = {"tool_name": call.tool, "tool_input": call.input, "tool_use_id": call.id}
        if call.how != "refused":
            inputs.append((clock(number), common | told | {"hook_event_name": "PreToolUse"}))
        after = {
            "ok": told | {"hook_event_name": "PostToolUse", "tool_response": {"stdout": call.text, "stderr": ""}},
            "failed": told | {"hook_event_name": "PostToolUseFailure", "error": call.text, "is_interrupt": False},
            "refused": {"hook_event_name": "PostToolBatch", "tool_calls": [told | {"tool_response": call.text}]},
        }.get(call.how)
        if after is not None:
            inputs.append((clock(number, True), common | after))
    return inputs


def hook_log() -> bytes:
    """The inputs as a hook of one line collects them, one a line with the time."""
    return joined([record | {"timestamp": ts} for ts, record in hook_inputs()])


def hook_log_2025() -> bytes:
    """The older hooks: neither failures nor batches are told, nor times; an array."""
    # In those days the hook before a call ran ahead of the program's own checks.
    before = [
        {
            "session_id": SESSION,
            "cwd": CWD,
            "hook_event_name": "PreToolUse",
            "tool_name": call.tool,
            "tool_input": call.input,
            "tool_use_id": call.id,
        }
        for call in CALLS
    ]
    after = [record for _, record in hook_inputs() if record["hook_event_name"] == "PostToolUse"]
    return json.dumps(before + after).encode()


def spool() -> bytes:
    """What the project's own hook writes when it is told those inputs."""
    folder = Path("spool")
    terms = collector.read_terms({"LOOPSTATS_SPOOL": str(folder)}, TOKEN, [], str(folder))
    assert terms is not None
    for ts, record in hook_inputs():
        collector.handle(record, "claude-code", terms, int(datetime.fromisoformat(ts).timestamp() * 1_000_000))
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.jsonl")))


def atif(has_flags: bool = True) -> bytes:
    """The trajectory that an exporter writes; the format's core has no flag, the exporter's is beside the result."""
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": "go on", "timestamp": clock(0)}]
    for number, call in enumerate(CALLS):
        step: dict[str, Any] = {
            "step_id": number + 2,
            "timestamp": clock(number),
            "source": "agent",
            "model_name": MODEL,
            "message": "",
            "tool_calls": [{"tool_call_id": call.id, "function_name": call.tool, "arguments": call.input}],
            "metrics": {"prompt_tokens": 110, "cached_tokens": 100, "completion_tokens": 5},
            "extra": {"cwd": CWD},
        }
        if call.how != "lost":
            result: dict[str, Any] = {"source_call_id": call.id, "content": call.text}
            if has_flags:
                result["extra"] = {"tool_result_is_error": call.how != "ok"}
            step["observation"] = {"results": [result]}
        steps.append(step)
    agent = {"name": "claude-code", "version": "2.1.40", "model_name": MODEL}
    return json.dumps({"schema_version": "ATIF-v1.7", "session_id": SESSION, "agent": agent, "steps": steps}).encode()


def joined(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


FORMS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "transcript": ("session.jsonl", transcript),
    "hook log": ("hooks.jsonl", hook_log),
    "hook log of 2025": ("hooks.json", hook_log_2025),
    "spool": ("spool.jsonl", spool),
    "ATIF": ("trajectory.json", atif),
    "ATIF without flags": ("core.json", lambda: atif(has_flags=False)),
}
COMPLETE = ("transcript", "hook log", "spool", "ATIF")

UNKNOWN: dict[str, set[str]] = {
    "transcript": {LOST_CALL},
    # A call that the user denied fires no event after the one before it.
    "hook log": {LOST_CALL, DENIED_CALL},
    # Only a success fires an event.
    "hook log of 2025": {LOST_CALL, DENIED_CALL} | EDITS | FAILED_RUNS,
    "spool": set(),
    "ATIF": {LOST_CALL},
    # Without a flag only the exit code that the agent's shell tool writes first and a test runner's summary are facts.
    "ATIF without flags": {LOST_CALL, DENIED_CALL} | EDITS | {CALLS[5].id, CALLS[8].id},
}
ABSENT = {form: set() for form in FORMS} | {
    # The spool holds results: of these two calls nothing came back to a hook.
    "spool": {LOST_CALL, DENIED_CALL},
}


def lake_of(*forms: str) -> dict[str, pl.DataFrame]:
    """The tables of these forms of the session, ingested together."""
    folder = Path("-".join(forms).replace(" ", "_"))
    (folder / "logs").mkdir(parents=True)
    for form in forms:
        name, write = FORMS[form]
        (folder / "logs" / name).write_bytes(write())
    ingest(folder / "lake", folder / "logs", settings=Settings())
    return tables_of(folder / "lake")


def keys(tables: dict[str, pl.DataFrame]) -> list[tuple[Any, ...]]:
    return sorted(tables["loops"].select("run_id", "signature", "rule", "detected_call_id").rows())


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_session_holds_loops_of_both_tools() -> None:
    found = lake_of("transcript")["loops"].select("run_id", "rule", "tool", "detected_call_id").rows()
    assert sorted(found, key=lambda row: row[3]) == [
        (SESSION, rule.STRATEGY_LOOP, "Edit", CALLS[4].id),
        (SESSION, rule.STRATEGY_LOOP, "Bash", CALLS[7].id),
    ]


@pytest.mark.parametrize("form", COMPLETE[1:])
def test_each_form_with_outcomes_gives_the_same_loops(form: str) -> None:
    assert keys(lake_of(form)) == keys(lake_of("transcript"))


@pytest.mark.parametrize("form", FORMS)
def test_what_a_form_does_not_carry_is_unknown(form: str) -> None:
    steps = lake_of(form)["steps"]
    outcomes = dict(steps.select("call_id", "outcome").iter_rows())
    assert {call.id for call in CALLS} - outcomes.keys() == ABSENT[form]
    assert {call_id for call_id, outcome in outcomes.items() if outcome == "unknown"} == UNKNOWN[form]
    true = {"ok": "success", "failed": "failure", "refused": "failure", "denied": "vetoed"}
    for call in CALLS:
        if call.id in outcomes and call.id not in UNKNOWN[form]:
            assert outcomes[call.id] == true[call.how], call.id


@pytest.mark.parametrize("form", ["hook log of 2025", "ATIF without flags"])
def test_unknown_steps_make_no_loops(form: str) -> None:
    found = set(keys(lake_of(form)))
    assert found <= set(keys(lake_of("transcript")))
    assert {key[3] for key in found} == {"hook log of 2025": set(), "ATIF without flags": {CALLS[7].id}}[form]


@pytest.mark.parametrize("others", [("spool",), ("hook log",), ("ATIF",), ("spool", "hook log", "ATIF")])
def test_together_they_are_one_session(others: tuple[str, ...]) -> None:
    """The transcript alone and the transcript with any of the others: equal loops, equal steps, nothing twice."""
    alone, both = lake_of("transcript"), lake_of("transcript", *others)
    enrolment = (
        "experiment",
        "salt_id",
        "epoch",
        "share_bp",
        "is_enrolled",
        "arm",
        "arm_bp",
        "arm_logged",
        "loop_id",
        "is_delivered",
    )
    assert both["loops"].drop(enrolment).equals(alone["loops"].drop(enrolment))
    facts = (
        "run_id",
        "step",
        "decision",
        "call_id",
        "tool",
        "kind",
        "target",
        "outcome",
        "outcome_reason",
        "signature",
        "ts",
    )
    assert both["steps"].select(facts).equals(alone["steps"].select(facts))
    assert both["turns"].equals(alone["turns"])
    if "spool" in others:
        assert both["sessions"]["is_enrolled"].to_list() == [True]
        assert both["loops"]["is_enrolled"].all() and both["detections"].height == 2
