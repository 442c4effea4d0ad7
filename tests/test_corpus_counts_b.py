"""Calls and failures of every real file against the table in the corpus README, or the difference with its reason.

A room of its own because the numbers were counted by somebody else's script: where a reader disagrees, one of the two
is wrong or they mean different things, and that has to be written down rather than tuned away.
"""

from __future__ import annotations

import os
import pkgutil
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import loopstats.formats
from emitting import Fed, feed, feed_document, is_failed_as_logged
from loopstats.formats import Format, recognise
from loopstats.ingest import HEAD_BYTES, head_of

CORPUS = Path(os.environ.get("LOOPSTATS_CORPUS") or Path(__file__).resolve().parents[1].parent / "shared" / "corpus")
SECTIONS = ("openhands", "tau-bench", "tau2-bench", "inspect", "otel-genai", "cline-roo", "atif", "aider")
ROW = re.compile(r"^\| `(?P<path>[^`]+)`(?P<more>[^|]*)\|")

NO_LOG = {
    "openhands/swe_bench-example_model_output.json": "patches only, no events",
    "inspect/long_log-lfs-pointer.eval": "a pointer to the log, not the log",
    "otel-genai/versions.json": "a list of versions",
}
DIFFERENT = {
    "openhands/multi_swe_bench-output.jsonl": (
        105,
        43,
        "two error observations answer no action: there is no call to fail",
    ),
    "openhands/resolver-output.jsonl": (26, 11, "failed edits inside IPython cells begin with the tool's own refusal"),
    "cline-roo/heavy-uncondensed/ui_messages.json": (
        0,
        0,
        "the error on the screen repeats a step of the conversation file",
    ),
    "cline-roo/natural-mini-uncondensed/api_conversation_history.json": (
        9,
        1,
        "the second error answers a message without a tool: there is no call to fail",
    ),
    "atif/derived/mini-swe-astropy-6938.trajectory.json": (
        76,
        11,
        "the wrapper's return code stands at the start of the text, as in the session it was made from",
    ),
}


def _table() -> list[tuple[str, int | None, int | None]]:
    readme = CORPUS / "README.md"
    if not readme.is_file():
        return []
    rows, section = [], ""
    for line in readme.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        found = ROW.match(line)
        if section not in SECTIONS or not found:
            continue
        cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
        numbers = [int(cell) if cell.strip().isdigit() else None for cell in cells[5:7]]
        rows.append((f"{section}/{found['path']}", numbers[0], numbers[1]))
    return rows


@cache
def _formats() -> tuple[Format, ...]:
    for module in pkgutil.iter_modules(loopstats.formats.__path__):
        import_module(f"loopstats.formats.{module.name}")
    return tuple(
        sorted(
            (kind() for kind in Format.__subclasses__() if kind.__module__.startswith("loopstats.formats.")),
            key=lambda fmt: fmt.name,
        )
    )


def _read(path: Path) -> tuple[str, Fed | None]:
    data = path.read_bytes()
    head, _ = head_of(path.name, data[:HEAD_BYTES], lambda: data)
    fmt = recognise(head, _formats())
    if fmt is None:
        return "", None
    if fmt.unit == "line":
        return fmt.name, feed(fmt, [line for line in data.decode().split("\n") if line.strip()], name=str(path))
    return fmt.name, feed_document(fmt, head.document if head.document is not None else data, name=str(path))


def _files(path: str) -> list[Path]:
    if "{trajectory,result}" in path:
        return [CORPUS / path.replace("{trajectory,result}", kind) for kind in ("trajectory", "result")]
    found = CORPUS / path
    return sorted(file for file in found.rglob("*") if file.is_file()) if found.is_dir() else [found]


TABLE = _table()


@pytest.mark.skipif(not TABLE, reason=f"corpus folder missing: {CORPUS}")
@pytest.mark.parametrize(("path", "calls", "failed"), TABLE, ids=[row[0] for row in TABLE])
def test_calls_and_failures_equal_the_readme(path: str, calls: int | None, failed: int | None) -> None:
    found_calls, found_failed = set(), set()
    for file in _files(path):
        name, fed = _read(file)
        if path in NO_LOG:
            assert fed is None, f"{name} took {path}: {NO_LOG[path]}"
            continue
        assert fed is not None, f"no format takes {file.name}"
        assert name.split("-")[0] == path.split("-")[0].split("/")[0], f"{name} took {path}"
        assert fed.rejects == []
        found_calls |= {(row["session_id"], row["agent"], row["call_id"]) for row in fed.rows["call"]}
        found_failed |= {
            (row["session_id"], row["agent"], row["call_id"]) for row in fed.rows["result"] if is_failed_as_logged(row)
        }
    expected = DIFFERENT[path][:2] if path in DIFFERENT else (calls, failed)
    if expected[0] is not None:
        assert len(found_calls) == expected[0]
    if expected[1] is not None:
        assert len(found_failed) == expected[1]


@pytest.mark.skipif(not TABLE, reason=f"corpus folder missing: {CORPUS}")
def test_differences_are_still_differences() -> None:
    known = {path: (calls, failed) for path, calls, failed in TABLE}
    assert {path for path, (calls, failed, _) in DIFFERENT.items() if known[path] == (calls, failed)} == set()


@pytest.mark.skipif(not TABLE, reason=f"corpus folder missing: {CORPUS}")
def test_logged_model_calls_of_one_run_are_one_session() -> None:
    sessions = set()
    for file in sorted((CORPUS / "openhands" / "llm_completions-all").rglob("*.json")):
        fed = _read(file)[1]
        assert fed is not None
        sessions |= {row["session_id"] for rows in fed.rows.values() for row in rows}
    assert len(sessions) == 1


@pytest.mark.skipif(not TABLE, reason=f"corpus folder missing: {CORPUS}")
def test_a_trial_s_result_belongs_to_the_session_of_its_trajectory() -> None:
    pairs = 0
    for result in sorted((CORPUS / "atif").rglob("*.result.json")):
        trajectory = result.with_name(result.name.replace(".result.", ".trajectory."))
        if trajectory.is_file():
            facts, steps = _read(result)[1], _read(trajectory)[1]
            assert facts is not None and steps is not None
            assert {row["session_id"] for row in facts.rows["fact"]} == {
                row["session_id"] for row in steps.rows["session"]
            }
            pairs += 1
    assert pairs == 38


@pytest.mark.skipif(not TABLE, reason=f"corpus folder missing: {CORPUS}")
def test_an_evaluation_saved_twice_has_the_same_records() -> None:
    first, second = (_read(CORPUS / "inspect" / f"guess_number-dedup-{version}.eval")[1] for version in ("v2", "v3"))
    assert first is not None and second is not None
    for kind in ("call", "result", "turn", "fact"):
        assert [row["uid"] for row in first.rows[kind]] == [row["uid"] for row in second.rows[kind]]
    assert [row["ts"] for row in first.calls] == [row["ts"] for row in second.calls]


@pytest.mark.skipif(not TABLE, reason=f"corpus folder missing: {CORPUS}")
def test_the_simulated_user_s_calls_are_kept_apart() -> None:
    fed = _read(CORPUS / "tau2-bench" / "gpt-4o-telecom.json")[1]
    assert fed is not None
    assert sum(row["actor"] == "user" for row in fed.calls) == 125


@pytest.mark.skipif(not TABLE, reason=f"corpus folder missing: {CORPUS}")
@pytest.mark.parametrize("trial", ["kv-store-grpc__nGgzfFc", "pypi-server__CA8wgcZ"])
def test_a_transcript_and_its_export_agree_step_by_step(trial: str) -> None:
    transcript = _read(CORPUS / "claude-code" / "arenabench" / f"ccglm-bar-A-{trial}.jsonl")[1]
    export = _read(CORPUS / "atif" / "arenabench" / "ccglm-bar-A" / "claude-code-glm-5-2" / f"{trial}.trajectory.json")[
        1
    ]
    assert transcript is not None and export is not None
    for kind, columns in (
        ("call", ("session_id", "agent", "call_id", "action", "kind", "target", "fingerprint")),
        ("result", ("session_id", "agent", "call_id", "is_error", "exit_code", "signature", "result_hash")),
    ):
        first, second = (
            sorted(tuple(str(row[name]) for name in columns) for row in fed.rows[kind]) for fed in (transcript, export)
        )
        assert first == second
