"""The whole line on random native logs: against the plain walk, cut into files, grown in parts, in any order."""

from __future__ import annotations

import json
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lines import assert_same, events, expected_loops, ingest, log_of, tables_of
from oracle import COMPARED

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="loopstats-test-"))


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@QUICK
@given(events)
def test_loops_equal_the_plain_walk(values: list[Any]) -> None:
    folder = scratch()
    lines, runs, naming = log_of(values)
    write(folder / "logs" / "log.jsonl", lines)
    ingest(folder / "lake", folder / "logs")
    tables = tables_of(folder / "lake")
    assert tables["steps"].height == sum(map(len, runs.values()))
    loops = tables["loops"].select(COMPARED).sort("run_id", "signature", "rule", "is_enrolled").to_dicts()
    assert loops == [{k: row[k] for k in COMPARED} for row in expected_loops(runs, naming)]
    shutil.rmtree(folder)


@QUICK
@given(events, st.lists(st.integers(0, 5_000), max_size=4), st.integers(0, 3))
def test_growing_byte_by_byte_equals_the_whole(values: list[Any], cuts: list[int], copies: int) -> None:
    folder = scratch()
    lines, _, _ = log_of(values)
    whole = "".join(line + "\n" for line in lines).encode()
    grown = folder / "grown" / "log.jsonl"
    grown.parent.mkdir()
    for end in [*sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]:
        grown.write_bytes(whole[:end])
        ingest(folder / "lake-grown", folder / "grown")
    (folder / "once").mkdir()
    (folder / "once" / "log.jsonl").write_bytes(whole)
    ingest(folder / "lake-once", folder / "once")
    assert_same(tables_of(folder / "lake-grown", is_placeless=True), tables_of(folder / "lake-once", is_placeless=True))
    for number in range(copies):
        shutil.copy(grown, folder / "grown" / f"z-copy-{number}.jsonl")
    if copies:
        ingest(folder / "lake-grown", folder / "grown")
        assert_same(
            tables_of(folder / "lake-grown", is_placeless=True), tables_of(folder / "lake-once", is_placeless=True)
        )
        folds = tables_of(folder / "lake-grown")["folds"]
        assert set(folds.filter(folds["source_file"].str.contains("z-copy"))["reason"]) <= {"snapshot", "partial"}
    shutil.rmtree(folder)


@QUICK
@given(events, st.lists(st.integers(1, 59), max_size=3), st.permutations(range(4)))
def test_split_into_files_in_any_order_equals_the_whole(values: list[Any], cuts: list[int], names: list[int]) -> None:
    folder = scratch()
    # Files are ordered by their first time, so a part must not begin at the second in which the one before began.
    lines, _, _ = log_of([(*value[:-1], value[-1] + 1) for value in values])
    write(folder / "once" / "log.jsonl", lines)
    ingest(folder / "lake-once", folder / "once")
    bounds = [0, *sorted({cut % len(lines) for cut in cuts} - {0}), len(lines)]
    parts = [lines[a:b] for a, b in pairwise(bounds)]
    for number, part in enumerate(parts):
        write(folder / "split" / f"{names[number]}.jsonl", part)
        if number % 2 == 0:
            ingest(folder / "lake-split", folder / "split")
    ingest(folder / "lake-split", folder / "split")
    assert_same(tables_of(folder / "lake-split", is_placeless=True), tables_of(folder / "lake-once", is_placeless=True))
    shutil.rmtree(folder)


def test_second_ingest_changes_nothing(tmp_path: Path) -> None:
    lines, _, _ = log_of([("step", 0, "Edit", t, "failure", "a" * 16, 1, 1) for t in ("a", "b", "a")])
    write(tmp_path / "logs" / "log.jsonl", lines)
    ingest(tmp_path / "lake", tmp_path / "logs")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "lake").rglob("*") if p.is_file() and p.name != "_lock"}
    summary = ingest(tmp_path / "lake", tmp_path / "logs")
    after = {p: p.stat().st_mtime_ns for p in (tmp_path / "lake").rglob("*") if p.is_file() and p.name != "_lock"}
    assert before == after
    assert (summary["files_same"], summary["files_new"], summary["files_grown"]) == (1, 0, 0)


def test_the_source_of_an_outcome_is_the_fact_that_decided_it(tmp_path: Path) -> None:
    def asked(name: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": name, "arguments": "{}"}}]}

    def answered(text: str, **more: Any) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": "c", "content": text, **more}

    by_text = [asked("get_a"), answered("Error: no a"), asked("get_b"), answered("fine")]
    by_fact = [asked("flag"), answered("x", is_error=True), asked("exit"), answered("x", is_error=False, exit_code=2)]
    (tmp_path / "tau.json").write_text(json.dumps([{"task_id": 1, "trial": 0, "reward": 0.0, "traj": by_text}]))
    (tmp_path / "chat.jsonl").write_text(json.dumps({"id": "1", "messages": by_fact}) + "\n")
    ingest(tmp_path / "lake", tmp_path / "tau.json", tmp_path / "chat.jsonl")
    steps = tables_of(tmp_path / "lake")["steps"]
    told = {tool: (outcome, source) for tool, outcome, source in steps["tool", "outcome", "outcome_source"].iter_rows()}
    assert told == {
        "get_a": ("failure", "text"),
        "get_b": ("success", "text"),
        "flag": ("failure", "flag"),
        "exit": ("failure", "exit"),
    }


def test_overlapping_pieces_of_a_transcript_number_its_turns_as_the_whole_does(tmp_path: Path) -> None:
    def said(number: int, message: str, block: dict[str, Any]) -> str:
        record = {
            "type": "assistant",
            "uuid": f"u{number}",
            "sessionId": "s",
            "timestamp": f"2026-01-02T03:04:{number:02d}Z",
            "message": {"id": message, "content": [block], "usage": {"input_tokens": 1, "output_tokens": number}},
        }
        return json.dumps(record) + "\n"

    text, call = {"type": "text", "text": "x"}, {"type": "tool_use", "name": "Edit", "input": {"file_path": "a"}}
    lines = [said(0, "m0", text), said(1, "m1", text), said(2, "m1", text)]
    lines += [said(3, "m2", call | {"id": "c2"}), said(4, "m3", text), said(5, "m4", call | {"id": "c4"})]
    (tmp_path / "whole.jsonl").write_text("".join(lines))
    ingest(tmp_path / "lake", tmp_path / "whole.jsonl")
    whole = tables_of(tmp_path / "lake", is_placeless=True)
    assert whole["turns"]["tokens_output"].to_list() == [0, 2, 3, 4, 5]
    for begin in range(1, len(lines)):
        for end in range(begin, len(lines) + 1):
            folder = tmp_path / f"{begin} {end}"
            folder.mkdir()
            (folder / "a.jsonl").write_text("".join(lines[:end]))
            (folder / "b.jsonl").write_text("".join(lines[begin:]))
            ingest(folder / "lake", folder / "a.jsonl", folder / "b.jsonl")
            assert_same(whole, tables_of(folder / "lake", is_placeless=True))
