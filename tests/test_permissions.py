"""Every file that the program writes and every folder that it makes is for its owner alone, whatever its umask.

The hook is run as a process of its own, the commands in this one under its umask; what they wrote is
found by walking their folders, so that a new file is seen without being named here.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopstats import cli

PAYLOAD = {
    "session_id": "s1", "hook_event_name": "PostToolUseFailure", "tool_name": "Bash", "tool_use_id": "t1", "cwd": "/x",
    "tool_input": {"command": "pytest a.py"}, "error": "Exit code 1\nAssertionError: x", "transcript_path": "/x",
}  # fmt: skip
TERMS = json.dumps({"experiment": "e", "salt": "s", "share_bp": 5000, "n_star": 100})


def run(umask: int, home: Path, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loopstats.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        umask=umask,
        cwd=home,
        env={**os.environ, "HOME": str(home), "XDG_DATA_HOME": f"{home}/data", "XDG_CONFIG_HOME": f"{home}/config"}
        | env,
        check=False,
    )


@pytest.fixture(autouse=True)
def kept_umask() -> Iterator[None]:
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


def within(umask: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as one that was started under the umask, in a home of its own."""
    monkeypatch.chdir(home)
    for name, folder in (("HOME", ""), ("XDG_DATA_HOME", "/data"), ("XDG_CONFIG_HOME", "/config")):
        monkeypatch.setenv(name, f"{home}{folder}")
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", [str(Path(sys.executable).with_name("loopstats"))])
    os.umask(umask)


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_no_file_is_readable_by_others(umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    logs = tmp_path / "logs"
    logs.mkdir()
    line = {"v": 1, "type": "step", "session": "s", "id": "a", "tool": "Edit", "outcome": "failure", "message": "boom"}
    (logs / "a.jsonl").write_text(json.dumps(line) + "\n{torn\n", encoding="utf-8")
    lake = ["--lake", str(home / "my" / "own" / "lake")]
    asked = [
        ["ingest", str(logs)],
        ["lift", "--record"],
        *(["tools", "-f", name, "-o", f"tools.{name}"] for name in ("csv", "parquet", "json", "jsonl", "md", "table")),
        ["report", "-o", "report.html"],
        ["nightly", str(logs), "--log", f"{home}/nights/of/nightly.jsonl", "--report", f"{home}/night.html"],
        ["nightly", str(logs)],
        ["lake", "compact"],
        ["lake", "rebuild"],
        ["schedule", "--install", "systemd"],
        ["hook", "install", "--agent", "claude-code"],
        ["hook", "install", "--agent", "codex"],
    ]
    within(umask, home, monkeypatch)
    for arguments in asked:
        assert cli.run_command(["-q", *lake, *arguments]) in (0, 3, 5), arguments
    for stdin in (json.dumps(PAYLOAD), "{broken"):
        assert run(umask, home, "hook", "run", stdin=stdin, LOOPSTATS_EXPERIMENT=TERMS).returncode == 0
    elsewhere = {"LOOPSTATS_EXPERIMENT": TERMS, "LOOPSTATS_SPOOL": f"{home}/spools/of/mine"}
    assert run(umask, home, "hook", "run", stdin=json.dumps(PAYLOAD), **elsewhere).returncode == 0
    assert cli.run_command(["-q", "simulate", "planted", "-o", "made/up", "--loops", "30"]) == 0
    assert cli.run_command(["-q", *lake, "ingest", f"{home}/data/loopstats/spool"]) == 0
    os.umask(0o077)
    paths = [path for path in home.rglob("*") if path.is_file() and "made" not in path.parts]
    kinds = {path.name for path in paths}
    assert {"ledger.sqlite", "manifest.json", "_lock", "tools.csv", "settings.json", "hooks.json"} <= kinds
    assert {"report.html", "night.html", "nightly.jsonl", "tools.md", "tools.parquet"} <= kinds
    assert sum(path.name == "nightly.jsonl" for path in paths) == 2
    assert any(path.suffix == ".timer" for path in paths)
    assert any("spool" in str(path) for path in paths)
    assert sum(path.suffix == ".parquet" for path in paths) > 5
    open_to_others = {
        str(path.relative_to(home)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in paths
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    }
    assert open_to_others == {}
    folders = [path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_dir()]
    made = {"my/own/lake", "nights/of", "spools/of/mine", "made/up/logs", ".claude", ".codex", "config/systemd/user"}
    assert made | {"data/loopstats"} <= set(folders)
    modes = {name: oct(stat.S_IMODE((home / name).stat().st_mode)) for name in folders}
    assert {name: mode for name, mode in modes.items() if int(mode, 8) & 0o077} == {}


def test_an_existing_settings_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o640)
    assert run(0o000, tmp_path, "hook", "install", "--agent", "claude-code").returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
