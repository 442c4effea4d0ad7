"""Every file that the program writes is for its owner alone, whatever the umask it is started under.

The commands are run as processes of their own; what they wrote is found by walking their folders, so that a new file
is seen without being named here.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_no_file_is_readable_by_others(umask: int, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    logs = tmp_path / "logs"
    logs.mkdir()
    line = {"v": 1, "type": "step", "session": "s", "id": "a", "tool": "Edit", "outcome": "failure", "message": "boom"}
    (logs / "a.jsonl").write_text(json.dumps(line) + "\n{torn\n", encoding="utf-8")
    lake = ["--lake", str(home / "lake")]
    assert run(umask, home, *lake, "ingest", str(logs)).returncode == 0
    assert run(umask, home, *lake, "lift", "--record", "--as-of", "2026-01-01").returncode in (0, 3)
    for name in ("csv", "parquet"):
        done = run(umask, home, *lake, "tools", "-f", name, "-o", f"tools.{name}")
        assert done.returncode == 0, done.stderr
    run(umask, home, *lake, "report", "-o", "report.html")
    run(umask, home, *lake, "doctor")
    for agent in ("claude-code", "codex"):
        assert run(umask, home, "hook", "install", "--agent", agent).returncode == 0
    run(umask, home, "hook", "run", stdin=json.dumps(PAYLOAD), LOOPSTATS_EXPERIMENT=TERMS)
    run(umask, home, "hook", "run", stdin="{broken", LOOPSTATS_EXPERIMENT=TERMS)
    assert run(umask, home, *lake, "ingest", f"{home}/data/loopstats/spool").returncode == 0
    paths = [path for path in home.rglob("*") if path.is_file()]
    kinds = {path.name for path in paths}
    assert {"ledger.sqlite", "manifest.json", "_lock", "tools.csv", "settings.json"} <= kinds
    assert any("spool" in str(path) for path in paths)
    assert sum(path.suffix == ".parquet" for path in paths) > 5
    open_to_others = {
        str(path.relative_to(home)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in paths
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    }
    assert open_to_others == {}
    folders = {
        str(path.relative_to(home)): path
        for path in (home / "lake", *(home / "lake").rglob("*"), home / "data" / "loopstats")
        if path.is_dir()
    }
    assert {
        name: oct(stat.S_IMODE(path.stat().st_mode))
        for name, path in folders.items()
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    } == {}


def test_an_existing_settings_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o640)
    assert run(0o000, tmp_path, "hook", "install", "--agent", "claude-code").returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
