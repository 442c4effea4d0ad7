"""Every case of the JSON test suite as a line of a log: its verdict stands in a table, and its neighbours always live.

Each case is planted four times between two good lines: as the line itself and as the value of a key that no reader
knows, in a native log and in a Claude Code transcript. `python tests/test_hostile_json.py --write` writes the table.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from hostile import DATA, json_cases
from lines import ingest, tables_of

TABLE = DATA / "json_test_suite" / "verdicts.csv"
PLANTINGS = ("line_native", "line_claude", "value_native", "value_claude")
GOOD = ("before", "after")


def native(session: str, call: str) -> bytes:
    return json.dumps(
        {"v": 1, "type": "step", "session": session, "id": call, "tool": "Edit", "outcome": "success"}
    ).encode()


def claude(session: str, call: str) -> bytes:
    block = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "make check"}}
    message = {"id": f"m-{call}", "role": "assistant", "model": "m", "content": [block]}
    record = {"type": "assistant", "uuid": f"u-{session}-{call}", "sessionId": session, "cwd": "/x", "message": message}
    return json.dumps(record | {"version": "2.1.30", "timestamp": "2026-02-03T10:00:00.000Z"}).encode()


def planted(planting: str, session: str, case: bytes) -> bytes:
    """A file in which the case stands between two good lines."""
    place, _, agent = planting.partition("_")
    line = {"native": native, "claude": claude}[agent]
    middle = case if place == "line" else line(session, "bad")[:-1] + b', "extra":' + case + b"}"
    return b"\n".join([line(session, "before"), middle, line(session, "after")]) + b"\n"


class Read(NamedTuple):
    """What the one ingest of all files made of them."""

    verdicts: dict[str, dict[str, str]]
    tables: dict[str, pl.DataFrame]
    seconds: float


def read_all(folder: Path) -> Read:
    cases = json_cases()
    (folder / "logs").mkdir()
    names = {}
    for number, (name, case) in enumerate(sorted(cases.items())):
        for planting in PLANTINGS:
            session = f"{planting}-{number:03d}"
            path = folder / "logs" / f"{session}.jsonl"
            path.write_bytes(planted(planting, session, case))
            names[path.as_posix()] = (name, planting)
    started = time.process_time()
    ingest(folder / "lake", folder / "logs")
    seconds = time.process_time() - started
    tables = tables_of(folder / "lake")
    calls: dict[str, list[str]] = {}
    for file, call in tables["steps"].sort("source_line").select("source_file", "call_id").iter_rows():
        calls.setdefault(file, []).append(call)
    rejects: dict[str, list[str]] = {}
    for file, line, reason in (
        tables["rejects"].select("source_file", "source_line", "reason").sort(pl.all()).iter_rows()
    ):
        rejects.setdefault(file, []).append(f"{reason}@{line - 1}")
    verdicts: dict[str, dict[str, str]] = {name: {} for name in cases}
    for row in tables["sources"].to_dicts():
        file = row["source_file"]
        name, planting = names[file]
        found = calls[file]
        assert (found[0], found[-1], row["count_waiting"]) == (*GOOD, 0), file
        parts = ["kept"] if len(found) > len(GOOD) else []
        parts = [f"repaired:{kind}" for kind in json.loads(row["repair_kinds"])] or parts
        parts += [f"rejected:{reason}" for reason in rejects.get(file, [])]
        parts += [f"nothing:{kind}" for kind in json.loads(row["nothing_types"])]
        verdicts[name][planting] = " ".join(parts)
    return Read(verdicts, tables, seconds)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    return read_all(tmp_path_factory.mktemp("json-suite"))


def as_csv(verdicts: dict[str, dict[str, str]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["case", *PLANTINGS])
    writer.writerows([name, *(verdicts[name][planting] for planting in PLANTINGS)] for name in sorted(verdicts))
    return buffer.getvalue()


def test_the_suite_is_whole() -> None:
    names = list(json_cases())
    assert [sum(name.startswith(kind) for name in names) for kind in ("y_", "n_", "i_")] == [95, 188, 35]
    assert len(names) == 318 + 22


def test_every_case_has_the_verdict_of_the_table(read: Read) -> None:
    expected = {row["case"]: row for row in csv.DictReader(io.StringIO(TABLE.read_text(encoding="utf-8")))}
    found = {row["case"]: row for row in csv.DictReader(io.StringIO(as_csv(read.verdicts)))}
    assert {name: row for name, row in found.items() if expected.get(name) != row} == {}
    assert expected.keys() == found.keys()


def test_every_line_of_every_file_is_accounted_for(read: Read) -> None:
    sources = read.tables["sources"]
    assert sources.height == len(json_cases()) * len(PLANTINGS)
    parts = pl.sum_horizontal("count_used", "count_nothing", "count_folded", "count_rejected", "count_waiting")
    assert sources.filter(pl.col("count_read") != parts).height == 0


@pytest.mark.parametrize("planting", ["value_native", "value_claude"])
def test_what_json_allows_is_kept_and_what_it_forbids_is_not_taken_as_it_stands(read: Read, planting: str) -> None:
    cases = json_cases()
    verdicts = {name: row[planting] for name, row in read.verdicts.items() if b"\n" not in cases[name]}
    valid = {name: word for name, word in verdicts.items() if name.startswith("y_")}
    assert {name: word for name, word in valid.items() if word not in ("kept", "repaired:duplicate_key")} == {}
    invalid = {name: word for name, word in verdicts.items() if name.startswith("n_")}
    assert {name: word for name, word in invalid.items() if not word.startswith(("rejected:", "repaired:"))} == {}
    assert len(valid) > 85
    assert len(invalid) > 175


def test_both_agents_logs_are_read_by_one_decoder(read: Read) -> None:
    rows = read.verdicts.values()
    assert [row for row in rows if row["value_native"] != row["value_claude"]] == []


def test_no_case_takes_long(read: Read) -> None:
    assert read.seconds < 60


if __name__ == "__main__" and "--write" in sys.argv:
    with tempfile.TemporaryDirectory() as name:
        TABLE.write_text(as_csv(read_all(Path(name)).verdicts), encoding="utf-8")
