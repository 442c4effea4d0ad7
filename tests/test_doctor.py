"""`doctor`: a sound lake and hook are ok, and each thing that needs a hand is named and gives exit 5."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from loopstats import cli, homes, journal

Call = Callable[..., tuple[int, dict[str, Any]]]
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in `folder` with a home of its own; exit code and findings by check."""
    monkeypatch.chdir(folder)
    for name in (*homes.VARIABLES, "LOOPSTATS_EXPERIMENT", "LOOPSTATS_LAKE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": folder / "home", "LOOPSTATS_SPOOL": folder / "spool"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = cli.run_command(["--lake", str(folder / "lake"), *arguments])
        out = capsys.readouterr().out
        rows = json.loads(out)["rows"] if "--json" in arguments and out else []
        return code, {row["check"]: row for row in rows if "check" in row}

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path


def test_without_a_lake_it_says_how_to_begin(folder: Path, call: Call) -> None:
    code, found = call("doctor", "--json")
    assert code == 0
    assert (found["lake"]["state"], found["hook"]["detail"]) == ("look", "not installed")


def test_a_sound_lake_names_what_it_could_not_class(folder: Path, call: Call) -> None:
    assert call("ingest", str(ROOT / "data" / "sample" / "native"))[0] == 0
    code, found = call("doctor", "--json")
    assert code == 0
    assert found["lake"]["state"] == found["lines accounted for"]["state"] == "ok"
    assert "palette_sync (24 steps)" in found["unclassified tools"]["detail"]
    assert "m-large (2677 turns)" in found["unpriced models"]["detail"]
    assert found["rejects"]["state"] == "look"


def test_a_lake_of_other_settings_and_a_faulty_hook_need_a_hand(folder: Path, call: Call) -> None:
    assert call("ingest", str(ROOT / "data" / "sample" / "codex"))[0] == 0
    (folder / "loopstats.toml").write_text("maturity_hours = 2\n", encoding="utf-8")
    log = folder / "spool" / ".hook" / "log"
    log.parent.mkdir(parents=True)
    log.write_text(
        '{"ts": "2026-11-02T09:00:00Z", "agent": "codex", "fault": "OSError", "where": "write"}\n', encoding="utf-8"
    )
    code, found = call("doctor", "--json")
    assert code == 5
    assert found["lake"]["state"] == "mend"
    assert found["hook faults"]["state"] == "mend"
    assert "OSError" in found["hook faults"]["detail"]


# --- homes -----------------------------------------------------------------------------------------------------------


def transcripts(folder: Path, days_old: float) -> Path:
    """A home of Claude Code with the sample's first transcript."""
    projects = folder / "home" / ".claude" / "projects" / "shop"
    projects.mkdir(parents=True, exist_ok=True)
    path = projects / "a.jsonl"
    path.write_bytes(sorted((ROOT / "data" / "sample" / "claude-code").rglob("*.jsonl"))[0].read_bytes())
    age(path, days_old)
    return path


def age(path: Path, days_old: float) -> None:
    then = time.time() - days_old * 86_400
    os.utime(path, (then, then))


def test_files_of_a_home_are_told_apart_by_what_the_lake_knows(folder: Path, call: Call) -> None:
    path = transcripts(folder, 3)
    (path.parent / "notes.md").write_text("no log\n")
    age(path.parent / "notes.md", 3)
    (path.parent / "b.jsonl").write_bytes(path.read_bytes())
    age(path.parent / "b.jsonl", 3)
    found = call("doctor", "--json")[1]["home claude-code"]
    assert "3 files: 3 new, 0 changed since they were read, 0 gone" in found["detail"]
    assert (found["state"], "loopstats ingest" in found["advice"]) == ("look", True)
    assert call("ingest")[0] == 0
    found = call("doctor", "--json")[1]["home claude-code"]
    assert "3 files: 0 new, 0 changed since they were read, 0 gone, 1 no log" in found["detail"]
    assert found["state"] == "ok"
    path.write_bytes(path.read_bytes() + b"\n")
    (path.parent / "b.jsonl").unlink()
    (path.parent / "c.jsonl").write_bytes(path.read_bytes())
    age(path.parent / "c.jsonl", -0.01)
    found = call("doctor", "--json")[1]["home claude-code"]
    assert "1 new, 1 changed since they were read, 1 gone, 1 no log" in found["detail"]


def test_logs_that_will_be_deleted_unread_need_a_hand(folder: Path, call: Call) -> None:
    path = transcripts(folder, 25)
    code, found = call("doctor", "--json")
    told = found["kept by claude-code"]
    assert (code, told["state"]) == (5, "mend")
    assert "the oldest log has 5 days left" in told["detail"]
    assert "cleanupPeriodDays" in told["advice"]
    settings = folder / "home" / ".claude" / "settings.json"
    settings.write_text('{"cleanupPeriodDays": 365}')
    told = call("doctor", "--json")[1]["kept by claude-code"]
    assert (told["state"], "has 340 days left" in told["detail"]) == ("ok", True)
    settings.write_text('{"cleanupPeriodDays": 0}')
    assert call("doctor", "--json")[1]["kept by claude-code"]["state"] == "mend"
    settings.unlink()
    assert call("ingest")[0] == 0
    code, found = call("doctor", "--json")
    assert (code, found["kept by claude-code"]["state"]) == (0, "ok")
    assert path.exists()


# --- lake, nightly, schedule -----------------------------------------------------------------------------------------


def test_what_could_not_be_read_is_told_with_its_n(folder: Path, call: Call) -> None:
    projects = transcripts(folder, 1).parent
    text = (projects / "a.jsonl").read_text()
    record = json.loads(text.splitlines()[0])
    strange = {"type": "telepathy", "sessionId": record.get("sessionId", "s"), "uuid": "u"}
    (projects / "a.jsonl").write_text(text + f"{json.dumps(strange)}\n" * 2 + "{broken\n")
    assert call("ingest")[0] == 0
    found = call("doctor", "--json")[1]
    assert found["unknown record types"]["state"] == "look"
    assert "claude-code: telepathy (2)" in found["unknown record types"]["detail"]
    assert "1/" in found["rejects"]["detail"]
    assert "rejects" in found["rejects"]["advice"]


def test_a_missing_file_of_the_lake_and_a_damaged_manifest_need_a_hand(folder: Path, call: Call) -> None:
    assert call("ingest", str(ROOT / "data" / "sample" / "codex"))[0] == 0
    missing = next((folder / "lake" / "data" / "ghosts").parent.glob("records/*/*.parquet"))
    missing.unlink()
    code, found = call("doctor", "--json")
    assert (code, found["lake files"]["state"]) == (5, "mend")
    assert missing.name in found["lake files"]["detail"]
    (folder / "lake" / "manifest.json").write_text("{")
    code, found = call("doctor", "--json")
    assert (code, found["lake"]["state"]) == (5, "mend")
    assert "manifest" in found["lake"]["detail"]


def night(folder: Path, hours_ago: float, exit_code: int, gates: tuple[str, ...] = ()) -> None:
    line = {
        "schema": journal.SCHEMA,
        "started": (datetime.now(UTC) - timedelta(hours=hours_ago))
        .isoformat(timespec="seconds")
        .replace("+00:00", "Z"),
        "exit_code": exit_code,
        "gates": [{"gate": name, "state": "failed"} for name in gates],
    }
    journal.append(folder / "lake" / journal.NAME, json.dumps(line).encode())


def test_the_last_night_and_its_timetable(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> tuple[str, str, str]:
        found = call("doctor", "--json")[1]
        return found["last night"]["state"], found["last night"]["detail"], found["schedule"]["state"]

    assert told() == ("look", "never ran", "look")
    night(folder, 50, 0)
    assert told() == ("ok", "50 hours ago, exit code 0", "look")
    monkeypatch.setattr(sys, "argv", [str(Path(sys.executable).parent / "loopstats")])
    assert call("schedule", "--install", "systemd")[0] == 0
    assert told()[2] == "look"
    units = folder / "home" / ".config" / "systemd" / "user"
    (units / "timers.target.wants").mkdir()
    timer = next(units.glob("*.timer"))
    (units / "timers.target.wants" / timer.name).symlink_to(timer)
    assert told() == ("mend", "50 hours ago, exit code 0, though scheduled", "ok")
    night(folder, 2, 5, ("stale", "audit"))
    night(folder, 1, 75)
    assert told() == ("mend", "2 hours ago, exit code 5, gates failed: stale, audit", "ok")
    night(folder, 1, 0)
    assert told() == ("ok", "1 hours ago, exit code 0", "ok")


def test_every_line_that_needs_a_hand_says_what_to_do(folder: Path, call: Call) -> None:
    transcripts(folder, 25)
    night(folder, 1, 5, ("stale",))
    for row in call("doctor", "--json")[1].values():
        assert row["state"] == "ok" or row["advice"], row
