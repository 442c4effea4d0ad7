"""What docs/nightly.md says is what the program does: commands, options, gates, exit codes, keys, variables, schema."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import typer.main

from loopstats import config, nightly
from loopstats.cli import app

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "nightly.md").read_text(encoding="utf-8")
SCHEMA = json.loads((ROOT / "pipeline" / "loopstats" / "schemas" / "nightly.json").read_text(encoding="utf-8"))
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def first_cells(heading: str) -> list[str]:
    """The first cell of each row of the table below a heading."""
    part = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [row.split("|")[1].strip() for row in part.splitlines() if row.startswith("| ")][2:]


def options(name: str) -> set[str]:
    return {option for parameter in COMMANDS[name].params for option in parameter.opts if option.startswith("--")}


def test_every_command_line_can_be_parsed() -> None:
    lines = [line.split("  #")[0].strip() for line in TEXT.splitlines() if line.startswith("loopstats ")]
    assert len(lines) >= 9
    for line in lines:
        _, name, *rest = shlex.split(line)
        with COMMANDS[name].make_context(name, rest):
            pass


def test_every_option_is_named_and_none_that_is_not() -> None:
    told = set(re.findall(r"--[a-z][a-z-]+", TEXT.replace("systemctl --user", "").replace("enable --now", "")))
    known = options("nightly") | options("schedule")
    assert options("nightly") - told == set()
    assert options("schedule") - told - {"--format"} == set()
    assert told - known - {"--config", "--quiet", "--compare", "--json-schema"} == set()


def test_gates_and_codes_are_those_of_the_program() -> None:
    assert [cell.strip("`") for cell in first_cells("Gates")] == list(nightly.GATES)
    assert SCHEMA["properties"]["gates"]["items"]["properties"]["gate"]["enum"] == list(nightly.GATES)
    assert [int(cell) for cell in first_cells("Exit codes")] == SCHEMA["properties"]["exit_code"]["enum"]


def test_every_key_of_the_line_is_described() -> None:
    told = [name for cell in first_cells("The log") for name in re.findall(r"`([a-z_]+)`", cell)]
    assert sorted(told) == sorted(SCHEMA["properties"])
    assert list(SCHEMA["properties"]["steps"]["properties"]) == list(nightly.STEPS)


def test_the_settings_are_all_there_and_valid(tmp_path: Path) -> None:
    block = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    (tmp_path / "c.toml").write_text(block[1])
    told = tomllib.loads(block[1])
    assert set(told["nightly"]) == set(config.Nightly.__dataclass_fields__)
    settings = config.load(tmp_path / "c.toml")
    assert settings.nightly.max_rejects == 100
    assert nightly.split_command(settings.nightly.on_fail or "") == ["mail", "-s", "loopstats", "me"]
    assert settings.nightly.stale_days == config.Nightly().stale_days


def test_variables_for_the_command_are_those_that_it_gets(tmp_path: Path) -> None:
    line = {"lake": "/l", "exit_code": 5, "started": "2026-11-01T00:00:00Z", "gates": []}
    out = tmp_path / "env"
    assert nightly.call_on_fail(["/usr/bin/env", "sh", "-c", f"env > '{out}'"], line, tmp_path / "log", {}) is None
    got = set(re.findall(r"^(LOOPSTATS_[A-Z_]+)=", out.read_text(), re.MULTILINE))
    part = TEXT.split("## When something fails")[1].split("\n## ")[0]
    assert got == set(re.findall(r"`(LOOPSTATS_[A-Z_]+)`", part))
