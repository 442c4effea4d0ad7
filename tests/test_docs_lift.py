"""docs/lift.md is the schema of `lift`: every key, reason, warning and verdict that comes out has its line there."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopstats import cli, estimate, intervals, report
from loopstats.tables import LIFT

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "lift.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([a-z][a-z0-9_]*)`", re.ASCII)


def section(title: str) -> str:
    """The text under one heading."""
    start = PAGE.index(f"## {title}\n")
    end = PAGE.find("\n## ", start)
    return PAGE[start : end if end > 0 else len(PAGE)]


def keys(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a JSON value with the path to it. What stands under `values` is named by the data."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield key, f"{path}.{key}"
            if key != "values":
                yield from keys(part, f"{path}.{key}")
    elif isinstance(value, list):
        for part in value:
            yield from keys(part, f"{path}[]")


@pytest.fixture(scope="module")
def bodies(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `lift -f json` says of the sample: with a window and a split, and with its salt unknown."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "none.toml").write_text("[experiment.sample]\nsalt = 'another'\n")
    lake = ["--lake", str(folder / "lake"), "-q"]
    assert cli.run_command([*lake, "ingest", str(ROOT / "data" / "sample")]) == 0
    found = []
    for number, config in enumerate(([], ["--config", str(folder / "none.toml")])):
        asked = [*lake, *config, "lift", "--as-of", "2026-11-20", "--since", "7d", "--by", "tool", "-o"]
        assert cli.run_command([*asked, str(folder / f"{number}.json")]) == 0
        found.append(json.loads((folder / f"{number}.json").read_text(encoding="utf-8")))
    return found


def test_every_key_is_documented(bodies: list[dict[str, Any]]) -> None:
    parts = {
        "": section("The envelope"),
        ".rows[]": section("A row"),
        ".rows[].details": section("`details`"),
        ".warnings[]": section("The envelope"),
        ".interval": section("The envelope"),
    }
    missing = set()
    for body in bodies:
        for key, path in keys(body):
            above = path.rpartition(".")[0]
            place = parts.get(above, parts[".rows[].details"])
            if key not in CODE.findall(place):
                missing.add(path)
    assert sorted(missing) == []
    assert len({path for body in bodies for _, path in keys(body)}) > 150


def test_every_reason_warning_and_verdict_is_documented(bodies: list[dict[str, Any]]) -> None:
    reasons, warnings = set(CODE.findall(section("Reasons"))), set(CODE.findall(section("Warnings")))
    assert set(report._WHY) <= reasons
    assert set(estimate._WARNINGS) == warnings
    literals = set()
    for module in (estimate, intervals):
        assert module.__file__ is not None
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                literals |= {
                    value.value
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant) and key.value == "reason" and isinstance(value, ast.Constant)
                } - {None}
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Undefined":
                literals |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    assert len(literals) >= 6 and literals <= reasons
    for body in bodies:
        for row in body["rows"]:
            assert set(row["reasons"]) <= reasons
            assert row["verdict"] is None or f"| `{row['verdict']}` |" in PAGE
        assert {warning["code"] for warning in body["warnings"]} <= warnings


def test_the_table_of_nights_is_documented() -> None:
    assert set(LIFT.names) <= set(CODE.findall(section("Every night")))
