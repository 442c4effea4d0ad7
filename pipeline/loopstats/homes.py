"""Where installed agents keep their logs, the variable that moves them, and the setting that deletes them.

A room of its own because three commands ask it: `ingest` and `nightly` read these folders when no path is named,
`doctor` says how long the agents still keep what is in them. Only the folder of the logs is named, never the agent's
whole home, in which keys lie too. Nothing here reads a log; the environment is an argument.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopstats.errors import UsageError

DAY_S = 86_400
VS_CODE_FOLDERS = ("Code", "Code - Insiders", "VSCodium", "Cursor", "Windsurf")


@dataclass(frozen=True)
class Retention:
    """An agent's setting that deletes old logs: `key` in `file` below its home, and the days where it is not set.

    `days` None: the agent deletes only where the setting says so. `advice` is the setting that keeps logs for longer.
    """

    file: str
    key: tuple[str, ...]
    days: float | None
    advice: str
    switch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Agent:
    """An agent: its home is `variable` (and `below` it), else the first of `bases` that is there; `logs` lie in it.

    A base begins with `~` (the user's home), `config` or `data` (the XDG folders).
    """

    name: str
    variable: str | None
    bases: tuple[str, ...]
    logs: tuple[str, ...]
    retention: Retention | None = None
    below: str = ""


AGENTS: tuple[Agent, ...] = (
    Agent(
        "claude-code",
        "CLAUDE_CONFIG_DIR",
        ("~/.claude", "config/claude"),
        ("projects",),
        Retention("settings.json", ("cleanupPeriodDays",), 30, '"cleanupPeriodDays": 3650'),
    ),
    Agent("codex", "CODEX_HOME", ("~/.codex",), ("sessions", "archived_sessions")),
    Agent(
        "gemini-cli",
        "GEMINI_CLI_HOME",
        ("~/.gemini",),
        ("tmp",),
        Retention(
            "settings.json",
            ("general", "sessionRetention", "maxAge"),
            30,
            '"general": {"sessionRetention": {"maxAge": "3650d"}}',
            ("general", "sessionRetention", "enabled"),
        ),
        ".gemini",
    ),
    Agent("pi", "PI_CODING_AGENT_DIR", ("~/.pi/agent",), ("sessions",)),
    Agent(
        "openclaw",
        "OPENCLAW_STATE_DIR",
        ("~/.openclaw",),
        ("agents",),
        Retention(
            "openclaw.json",
            ("session", "maintenance", "pruneAfter"),
            30,
            '"session": {"maintenance": {"pruneAfter": "3650d"}}',
        ),
    ),
    Agent("opencode", None, ("data/opencode",), ("storage",)),
    Agent("copilot", "COPILOT_HOME", ("~/.copilot",), ("session-state", "history-session-state")),
    Agent("openhands", None, ("~/.openhands",), ("conversations", "sessions")),
    Agent("mini-swe-agent", "MSWEA_GLOBAL_CONFIG_DIR", ("config/mini-swe-agent",), ("last_mini_run.traj.json",)),
    Agent("cursor", None, ("~/.cursor",), ("projects",)),
    Agent(
        "cline",
        None,
        tuple(f"code/{name}/User/globalStorage/saoudrizwan.claude-dev" for name in VS_CODE_FOLDERS),
        ("tasks",),
    ),
    Agent(
        "roo-code",
        None,
        tuple(f"code/{name}/User/globalStorage/rooveterinaryinc.roo-cline" for name in VS_CODE_FOLDERS),
        ("tasks",),
    ),
)
HOOK = "loopstats-hook"
# What a job needs from the environment to find the same places without it.
VARIABLES = (
    *sorted(agent.variable for agent in AGENTS if agent.variable),
    "LOOPSTATS_SPOOL",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
)


@dataclass(frozen=True)
class Home:
    """A folder (or file) with an agent's logs that is there; `base` is the agent's own folder around it."""

    name: str
    path: str
    base: str
    variable: str | None
    retention: Retention | None


def find(env: Mapping[str, str]) -> list[Home]:
    """The log folders of the installed agents and the hook's spool, in a fixed order; only what is there."""
    from loopstats import hooks

    found = []
    for agent in AGENTS:
        for base in _bases(agent, env):
            paths = [base / name for name in agent.logs if (base / name).exists()]
            found += [Home(agent.name, str(path), str(base), agent.variable, agent.retention) for path in paths]
    spool = hooks.spool_folder(env)
    if spool.is_dir():
        found.append(Home(HOOK, str(spool), str(spool), "LOOPSTATS_SPOOL", None))
    return found


def _bases(agent: Agent, env: Mapping[str, str]) -> list[Path]:
    """Where the agent's home may be: one place where its variable names it, else all that it is known to use."""
    if agent.variable and (told := env.get(agent.variable)):
        return [Path(told).expanduser() / agent.below]
    return [_base(text, env) for text in agent.bases]


def _base(text: str, env: Mapping[str, str]) -> Path:
    home = Path(env.get("HOME") or Path.home())
    root, _, rest = text.partition("/")
    if root == "~":
        return home / rest
    if root == "data":
        return Path(env.get("XDG_DATA_HOME") or home / ".local" / "share") / rest
    if root == "config":
        return Path(env.get("XDG_CONFIG_HOME") or home / ".config") / rest
    import platformdirs

    name, _, below = rest.partition("/")  # an editor keeps its folder where the platform wants it
    if sys.platform.startswith("linux"):
        return Path(env.get("XDG_CONFIG_HOME") or home / ".config") / name / below
    return platformdirs.user_config_path(name, appauthor=False, roaming=True) / below


def places(paths: tuple[str, ...], has_homes: bool, env: Mapping[str, str]) -> list[Home]:
    """What is read when no path is named: the configured `paths`, then the homes. UsageError for a missing path."""
    for path in paths:
        if not Path(path).exists():
            raise UsageError(f"[ingest] paths: {path}: no such file or folder; mend loopstats.toml")
    named = [Home("configured", path, path, None, None) for path in paths]
    return named + (find(env) if has_homes else [])


def missing(has_homes: bool) -> str:
    """What to name where nothing was found."""
    names = ", ".join(agent.name for agent in AGENTS)
    looked = (
        f"no logs of an installed agent found (looked for {names} and the hook's spool)" if has_homes else "no path"
    )
    return f"{looked}: name a file or folder, e.g. `loopstats ingest ~/logs`, or set [ingest] paths in loopstats.toml"


# --- retention -------------------------------------------------------------------------------------------------------


def days_kept(home: Home) -> tuple[float | None, str]:
    """Days after which the agent deletes a log that is not written any more (None: never), and where that is said."""
    retention = home.retention
    if retention is None:
        return None, "this agent is not known to delete logs"
    file = Path(home.base) / retention.file
    settings = _settings(file)
    name = f"{'.'.join(retention.key)} in {file}"
    if settings is None:
        return retention.days, f"{name} (the file cannot be read; the agent's own default is assumed)"
    if retention.switch and _at(settings, retention.switch) is False:
        return None, f"{'.'.join(retention.switch)} in {file} is off"
    value = _at(settings, retention.key)
    if value is None:
        return retention.days, f"{name} (not set: the agent's default)"
    days = _days(value)
    return (retention.days, f"{name} (not understood; the default is assumed)") if days is None else (days, name)


def _settings(file: Path) -> dict[str, Any] | None:
    try:
        told = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _at(settings: Mapping[str, Any], key: tuple[str, ...]) -> Any:
    value: Any = settings
    for name in key:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _days(value: object) -> float | None:
    """A number of days, or a text such as `30d`, `24h`, `4w`, `6m`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    told = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(h|d|w|m)?\s*", value) if isinstance(value, str) else None
    return None if told is None else float(told[1]) * {"h": 1 / 24, "d": 1, "w": 7, "m": 30}[told[2] or "d"]
