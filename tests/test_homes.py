"""Homes of agents: the known folder, the variable that moves it, nothing beside the logs, and the deleting setting."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopstats import cli, homes
from loopstats.errors import UsageError

Ingest = Callable[[], tuple[int, str, str]]
ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "data" / "sample"


def found(env: dict[str, str]) -> list[tuple[str, str]]:
    return [(home.name, home.path) for home in homes.find(env)]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("claude-code", ".claude/projects"),
        ("claude-code", ".config/claude/projects"),
        ("codex", ".codex/sessions"),
        ("codex", ".codex/archived_sessions"),
        ("gemini-cli", ".gemini/tmp"),
        ("pi", ".pi/agent/sessions"),
        ("openclaw", ".openclaw/agents"),
        ("opencode", ".local/share/opencode/storage"),
        ("copilot", ".copilot/session-state"),
        ("openhands", ".openhands/conversations"),
        ("mini-swe-agent", ".config/mini-swe-agent/last_mini_run.traj.json"),
        ("cursor", ".cursor/projects"),
    ],
)
def test_each_agent_is_found_where_it_keeps_its_logs(tmp_path: Path, name: str, place: str) -> None:
    env = {"HOME": str(tmp_path)}
    assert found(env) == []
    (tmp_path / place).mkdir(parents=True)
    assert found(env) == [(name, str(tmp_path / place))]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="editors keep their folders elsewhere")
def test_extensions_of_editors_are_found(tmp_path: Path) -> None:
    cline = tmp_path / ".config/Code/User/globalStorage/saoudrizwan.claude-dev/tasks"
    roo = tmp_path / ".config/VSCodium/User/globalStorage/rooveterinaryinc.roo-cline/tasks"
    for folder in (cline, roo):
        folder.mkdir(parents=True)
    assert found({"HOME": str(tmp_path)}) == [("cline", str(cline)), ("roo-code", str(roo))]


@pytest.mark.parametrize(
    ("variable", "name", "below", "default"),
    [
        ("CLAUDE_CONFIG_DIR", "claude-code", "projects", ".claude/projects"),
        ("CODEX_HOME", "codex", "sessions", ".codex/sessions"),
        ("GEMINI_CLI_HOME", "gemini-cli", ".gemini/tmp", ".gemini/tmp"),
        ("PI_CODING_AGENT_DIR", "pi", "sessions", ".pi/agent/sessions"),
        ("OPENCLAW_STATE_DIR", "openclaw", "agents", ".openclaw/agents"),
        ("COPILOT_HOME", "copilot", "session-state", ".copilot/session-state"),
        ("MSWEA_GLOBAL_CONFIG_DIR", "mini-swe-agent", "last_mini_run.traj.json", ".config/mini-swe-agent"),
        ("XDG_DATA_HOME", "opencode", "opencode/storage", ".local/share/opencode/storage"),
        ("XDG_CONFIG_HOME", "claude-code", "claude/projects", ".config/claude/projects"),
    ],
)
def test_a_variable_moves_the_home(tmp_path: Path, variable: str, name: str, below: str, default: str) -> None:
    for place in (tmp_path / "home" / default, tmp_path / "moved" / below):
        place.mkdir(parents=True, exist_ok=True)
    env = {"HOME": str(tmp_path / "home"), variable: str(tmp_path / "moved")}
    assert found(env) == [(name, str(tmp_path / "moved" / below))]
    assert variable in homes.VARIABLES


def test_the_hook_s_spool_is_a_home(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    env = {"HOME": str(tmp_path), "LOOPSTATS_SPOOL": str(tmp_path / "spool")}
    assert found(env) == [(homes.HOOK, str(tmp_path / "spool"))]


def test_every_agent_and_variable_is_in_the_document() -> None:
    text = (ROOT / "docs" / "nightly.md").read_text(encoding="utf-8")
    assert [agent.name for agent in homes.AGENTS if f"| {agent.name} |" not in text] == []
    assert [name for name in homes.VARIABLES if name not in text] == []
    settings = [".".join(agent.retention.key) for agent in homes.AGENTS if agent.retention]
    assert [key for key in settings if key not in text] == []


# --- retention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "file", "settings", "days"),
    [
        (".claude/projects", ".claude/settings.json", None, 30),
        (".claude/projects", ".claude/settings.json", {}, 30),
        (".claude/projects", ".claude/settings.json", {"cleanupPeriodDays": 7}, 7),
        (".claude/projects", ".claude/settings.json", {"cleanupPeriodDays": "soon"}, 30),
        (".claude/projects", ".claude/settings.json", {"cleanupPeriodDays": True}, 30),
        (".gemini/tmp", ".gemini/settings.json", {"general": {"sessionRetention": {"maxAge": "2w"}}}, 14),
        (".gemini/tmp", ".gemini/settings.json", {"general": {"sessionRetention": {"enabled": False}}}, None),
        (".gemini/tmp", ".gemini/settings.json", {"general": 3}, 30),
        (".openclaw/agents", ".openclaw/openclaw.json", {"session": {"maintenance": {"pruneAfter": "12h"}}}, 0.5),
        (".codex/sessions", ".codex/config.toml", None, None),
    ],
)
def test_days_until_an_agent_deletes(
    tmp_path: Path, place: str, file: str, settings: dict[str, object] | None, days: float | None
) -> None:
    (tmp_path / place).mkdir(parents=True)
    if settings is not None:
        (tmp_path / file).write_text(json.dumps(settings))
    (home,) = homes.find({"HOME": str(tmp_path)})
    told, where = homes.days_kept(home)
    assert told == days
    assert days is None or file in where


# --- ingest without a path -------------------------------------------------------------------------------------------


@pytest.fixture
def ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ingest:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in homes.VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def run() -> tuple[int, str, str]:
        code = cli.run_command(["--lake", "lake", "ingest"])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_ingest_without_a_path_reads_the_homes_and_says_which(tmp_path: Path, ingest: Ingest) -> None:
    code, _, err = ingest()
    assert code == 3
    assert "claude-code" in err
    assert "[ingest] paths" in err
    sessions = tmp_path / "home" / ".codex" / "sessions"
    sessions.mkdir(parents=True)
    (tmp_path / "home" / ".codex" / "auth.json").write_text('{"key": "secret"}\n')
    for path in (SAMPLE / "codex").rglob("*.jsonl"):
        (sessions / path.name).write_bytes(path.read_bytes())
    code, out, err = ingest()
    assert (code, "6 new" in out) == (0, True), err
    assert f"reading codex: {sessions}" in err
    assert "auth.json" not in err
    assert "6 same" in ingest()[1]


def test_paths_of_the_configuration_are_read_too(tmp_path: Path, ingest: Ingest) -> None:
    (tmp_path / "logs").mkdir()
    for path in (SAMPLE / "codex").rglob("*.jsonl"):
        (tmp_path / "logs" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "loopstats.toml").write_text('[ingest]\npaths = ["logs"]\nhomes = false\n')
    code, out, err = ingest()
    assert (code, "6 new" in out) == (0, True), err
    assert f"reading configured: {tmp_path / 'logs'}" in err


def test_a_configured_path_that_is_not_there_names_the_key() -> None:
    with pytest.raises(UsageError, match=r"\[ingest\] paths: /no/where"):
        homes.places(("/no/where",), True, {"HOME": "/nonexistent"})
