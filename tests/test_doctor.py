"""`doctor`: a sound lake and hook are ok, and each thing that needs a hand is named and gives exit 5."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def call(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and findings by check."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder / "home"), "LOOPSTATS_SPOOL": str(folder / "spool")}
    command = [sys.executable, "-m", "loopstats.cli", "--lake", str(folder / "lake"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env, check=False)
    rows = json.loads(done.stdout)["rows"] if "--json" in arguments and done.stdout else []
    return done.returncode, {row["check"]: row for row in rows if "check" in row}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path


def test_without_a_lake_it_says_how_to_begin(folder: Path) -> None:
    code, found = call(folder, "doctor", "--json")
    assert code == 0
    assert (found["lake"]["state"], found["hook"]["detail"]) == ("look", "not installed")


def test_a_sound_lake_names_what_it_could_not_class(folder: Path) -> None:
    assert call(folder, "ingest", str(ROOT / "data" / "sample" / "native"))[0] == 0
    code, found = call(folder, "doctor", "--json")
    assert code == 0
    assert found["lake"]["state"] == found["lines accounted for"]["state"] == "ok"
    assert "palette_sync" in found["unclassified tools"]["detail"]
    assert found["rejects"]["state"] == "look"


def test_a_lake_of_other_settings_and_a_faulty_hook_need_a_hand(folder: Path) -> None:
    assert call(folder, "ingest", str(ROOT / "data" / "sample" / "codex"))[0] == 0
    (folder / "loopstats.toml").write_text("maturity_hours = 2\n", encoding="utf-8")
    log = folder / "spool" / ".hook" / "log"
    log.parent.mkdir(parents=True)
    log.write_text(
        '{"ts": "2026-11-02T09:00:00Z", "agent": "codex", "fault": "OSError", "where": "write"}\n', encoding="utf-8"
    )
    code, found = call(folder, "doctor", "--json")
    assert code == 5
    assert found["lake"]["state"] == "mend"
    assert found["hook faults"]["state"] == "mend"
    assert "OSError" in found["hook faults"]["detail"]
