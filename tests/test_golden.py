"""The whole line on `data/sample`, byte for byte, however the files come: at once, in another order, in two halves, in parts.

`tests/golden/sample.json` holds rows and SHA-256 of every table as canonical CSV, `tests/golden/lift.txt` and `lift.json`
what a person and a program see. After a change of meaning: `python tests/test_golden.py --write`, read the diff, and say
in the changelog which number moved and why.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lines import PLACES, assert_same, ingest, tables_of
from loopstats.config import Settings
from loopstats.store import Lake

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).resolve().parent / "golden"
TRUTH = json.loads((GOLDEN / "sample-truth.json").read_text(encoding="utf-8"))
AS_OF = "2026-11-20T00:00:00Z"
SAMPLE = Path("data/sample")


def canonical(frame: pl.DataFrame) -> bytes:
    """A table as CSV in its canonical order: lists as JSON, floats at 12 significant digits, times in UTC."""
    lists = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
    flat = frame.with_columns(
        [
            pl.col(name).map_elements(
                lambda values: json.dumps(list(values), ensure_ascii=False), return_dtype=pl.String
            )
            for name in lists
        ]
    )
    return flat.write_csv(datetime_format="%Y-%m-%dT%H:%M:%S%.6fZ").encode()


def digests(tables: dict[str, pl.DataFrame]) -> dict[str, Any]:
    """Rows and digest of each table."""
    return {
        name: {"rows": frame.height, "sha256": hashlib.sha256(canonical(frame)).hexdigest()}
        for name, frame in tables.items()
    }


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sample, reached by the same relative path as in the checkout."""
    shutil.copytree(ROOT / SAMPLE, tmp_path / SAMPLE)
    monkeypatch.chdir(tmp_path)
    return SAMPLE


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sample and, in `lake`, one ingest of it."""
    folder = tmp_path_factory.mktemp("whole")
    run_whole(folder)
    return folder


@pytest.fixture(scope="module")
def whole(whole_folder: Path) -> dict[str, pl.DataFrame]:
    """All tables after one ingest of the sample."""
    return tables_of(whole_folder / "lake")


def run_whole(folder: Path) -> dict[str, pl.DataFrame]:
    before = Path.cwd()
    shutil.copytree(ROOT / SAMPLE, folder / SAMPLE)
    os.chdir(folder)
    try:
        ingest(folder / "lake", SAMPLE, settings=Settings())
        return tables_of(folder / "lake")
    finally:
        os.chdir(before)


def test_tables_byte_for_byte(whole: dict[str, pl.DataFrame]) -> None:
    assert digests(whole) == json.loads((GOLDEN / "sample.json").read_text(encoding="utf-8"))


def lift_as(folder: Path, *arguments: str) -> bytes:
    """What `loopstats lift` prints for the sample at the fixed as-of."""
    command = [
        sys.executable,
        "-m",
        "loopstats.cli",
        "--lake",
        str(folder / "lake"),
        "lift",
        "--since",
        "7d",
        "--as-of",
        AS_OF,
    ]
    return subprocess.run(
        [*command, *arguments], capture_output=True, check=True, env={"PATH": "/usr/bin:/bin", "COLUMNS": "100"}
    ).stdout


@pytest.mark.parametrize(("name", "arguments"), [("lift.txt", ("--all",)), ("lift.json", ("-f", "json"))])
def test_lift_byte_for_byte(name: str, arguments: tuple[str, ...], whole_folder: Path) -> None:
    printed, golden = lift_as(whole_folder, *arguments), (GOLDEN / name).read_bytes()
    if name == "lift.json" and not is_pinned("numpy", "scipy"):
        # Other versions of the mathematics may differ in the last of the 12 digits that are printed.
        assert_near(json.loads(printed), json.loads(golden))
    else:
        assert printed == golden


def is_pinned(*names: str) -> bool:
    """These libraries are installed in the versions that the tests are pinned to."""
    pins = (ROOT / "requirements" / "test.txt").read_text(encoding="utf-8").splitlines()
    return all(f"{name}=={version(name)}" in pins for name in names)


def assert_near(one: Any, other: Any) -> None:
    """Equal but for the rounding of numbers."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_near(value, other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_near(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-10, abs=1e-12)
    else:
        assert one == other


def test_files_in_another_order(sample: Path, tmp_path: Path, whole: dict[str, pl.DataFrame]) -> None:
    files = sorted((path for path in sample.rglob("*.jsonl")), reverse=True)
    for start in range(0, len(files), 20):
        ingest(tmp_path / "lake", *files[start : start + 20], settings=Settings())
    assert_same(tables_of(tmp_path / "lake"), whole)


def test_in_two_halves(sample: Path, tmp_path: Path, whole: dict[str, pl.DataFrame]) -> None:
    full = {path: path.read_bytes() for path in sample.rglob("*.jsonl")}
    for number, (path, data) in enumerate(full.items()):
        path.write_bytes(data[: len(data) * (3 + number % 5) // 10])
    ingest(tmp_path / "lake", sample, settings=Settings())
    for path, data in full.items():
        path.write_bytes(data)
    ingest(tmp_path / "lake", sample, settings=Settings())
    assert_same(tables_of(tmp_path / "lake"), whole)


def test_native_and_claude_files_in_several_parts(sample: Path, tmp_path: Path, whole: dict[str, pl.DataFrame]) -> None:
    for path in [*sample.glob("native/*.jsonl"), *sample.glob("spool/*.jsonl"), *sample.glob("claude-code/*/*.jsonl")]:
        lines = path.read_bytes().splitlines(keepends=True)
        cuts = cut_points(lines)
        if len(cuts) > 2:
            for number, (a, b) in enumerate(pairwise(cuts)):
                path.with_name(f"{9 - number}-{path.name}").write_bytes(b"".join(lines[a:b]))
            path.unlink()
    ingest(tmp_path / "lake", sample, settings=Settings())
    assert_same(without_places(tables_of(tmp_path / "lake")), without_places(whole))


def cut_points(lines: list[bytes]) -> list[int]:
    """Cuts into at most three parts, each beginning at a later time than the one before; files without times stay whole."""
    times = [time_of(line) for line in lines]
    if not any(times):
        return [0, len(lines)]
    cuts = [0]
    first = next(time for time in times if time)
    for wanted in (len(lines) // 3, 2 * len(lines) // 3):
        for at in range(max(wanted, cuts[-1] + 1), len(lines)):
            if times[at] and times[at] > first and all(t <= times[at] for t in times[:at] if t):
                cuts.append(at)
                first = times[at]
                break
    return [*cuts, len(lines)]


def time_of(line: bytes) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        return ""
    value = record.get("ts") or record.get("timestamp") if isinstance(record, dict) else None
    return value if isinstance(value, str) else ""


def without_places(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    return {
        name: frame.drop(PLACES, strict=False)
        for name, frame in tables.items()
        if name not in ("rejects", "folds", "sources")
    }


def test_loops_are_those_that_were_planted(whole: dict[str, pl.DataFrame]) -> None:
    keys = ["run_id", "signature", "rule", "is_enrolled"]
    loops = {tuple(row[k] for k in keys): row for row in whole["loops"].to_dicts()}
    planted = {tuple(row[k] for k in keys): row for row in TRUTH["loops"]}
    assert loops.keys() == planted.keys()
    for key, row in planted.items():
        found = loops[key]
        assert found["detected_call_id"] == row["detecting_call_id"]
        for name in ("arm", "outcome"):
            if name in row and row.get("state") != "pending":
                assert found[name] == row[name], (key, name)


def test_rejects_and_waiting_lines_are_those_that_were_planted(whole: dict[str, pl.DataFrame]) -> None:
    for row in whole["sources"].to_dicts():
        planted = TRUTH["files"][row["source_file"].removeprefix("data/sample/")]
        assert (row["count_read"], row["count_rejected"], row["count_waiting"]) == (
            planted["lines"] + planted["waiting"],
            len(planted["rejected"]),
            planted["waiting"],
        )


def test_lake_files_are_private(sample: Path, tmp_path: Path) -> None:
    ingest(tmp_path / "lake", sample / "codex", settings=Settings())
    modes = {path: path.stat().st_mode & 0o077 for path in (tmp_path / "lake").rglob("*")}
    assert {path for path, mode in modes.items() if mode} == set()
    assert Lake.open(tmp_path / "lake").snapshot().generation == 1


if __name__ == "__main__" and "--write" in sys.argv:
    import tempfile

    scratch = Path(tempfile.mkdtemp())
    (GOLDEN / "sample.json").write_text(json.dumps(digests(run_whole(scratch)), indent=1) + "\n", encoding="utf-8")
    (GOLDEN / "lift.txt").write_bytes(lift_as(scratch, "--all"))
    (GOLDEN / "lift.json").write_bytes(lift_as(scratch, "-f", "json"))
