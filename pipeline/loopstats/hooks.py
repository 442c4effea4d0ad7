"""Care of the live hook: put it into an agent's own settings, take it out again, prove that it fires, try it.

A room of its own because these files belong to somebody else: a settings file is parsed, merged and written whole,
its first form is kept beside it, and taking the hook out gives back the very bytes. Whether a hook works is never
concluded from its being installed: agents skip hooks that are not trusted, moved or timed out. What counts is what
stands in the spool.
"""

from __future__ import annotations

import compileall
import difflib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopstats import collector
from loopstats.errors import UsageError
from loopstats.formats import time_us
from loopstats.found import make_folder
from loopstats.hook import SILENCE, TOKEN, config_files, is_dormant, user_folder

SCOPES = ("user", "project")
TIMEOUT_S = 10
RECENT_S = 86_400
BACKUP = ".loopstats-backup"
LOADED = ("__init__", "actions", "answers", "collector", "failures", "hook", "provocations", "rule", "shell")
TAIL_BYTES = 64 << 10
FILES_LOOKED_AT = 8
FAULTS_SHOWN = 20
_OURS = re.compile(r" -I -S .*loopstats[/\\]hook\.py['\"]? (?:claude-code|codex)\Z", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class Agent:
    """What an agent calls its settings and its events; a matcher is given for events that have a tool."""

    name: str
    home_variable: str
    home: str
    file: str
    events: Mapping[str, str | None]


CLAUDE_CODE = Agent(
    "claude-code",
    "CLAUDE_CONFIG_DIR",
    ".claude",
    "settings.json",
    {"SessionStart": None, "PostToolUse": "*", "PostToolUseFailure": "*", "PostToolBatch": None},
)
CODEX = Agent("codex", "CODEX_HOME", ".codex", "hooks.json", {"SessionStart": None, "PostToolUse": "*"})
AGENTS = {agent.name: agent for agent in (CLAUDE_CODE, CODEX)}


@dataclass(frozen=True)
class Change:
    """What install or uninstall did, or with a dry run would do, to one file."""

    path: Path
    diff: str
    notes: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        """Nothing had to be changed."""
        return not self.diff


def agent_named(name: str) -> Agent:
    """The agent of that name; UsageError where there is none."""
    if name not in AGENTS:
        raise UsageError(f"--agent {name!r}: use one of {', '.join(AGENTS)}")
    return AGENTS[name]


def settings_path(agent: Agent, scope: str, folder: Path, env: Mapping[str, str]) -> Path:
    """The file in which `agent` looks for hooks of `scope`; `folder` is the project's."""
    if scope not in SCOPES:
        raise UsageError(f"--scope {scope!r}: use one of {', '.join(SCOPES)}")
    if scope == "project":
        return folder.resolve() / agent.home / agent.file
    own = env.get(agent.home_variable)
    return (Path(own) if own else Path(env.get("HOME") or Path.home()) / agent.home) / agent.file


def command(agent: Agent, python: str = sys.executable) -> str:
    """The command line that the agent's shell runs: absolute interpreter and file, isolated and without site."""
    script = str(Path(__file__).resolve().parent / "hook.py")
    if sys.platform == "win32":
        return f"{subprocess.list2cmdline([python, '-I', '-S', script])} {agent.name}"
    return f"{shlex.quote(python)} -I -S {shlex.quote(script)} {agent.name}"


def is_ours(handler: object) -> bool:
    """Whether a handler of a settings file was put there by `install`."""
    text = handler.get("command") if isinstance(handler, dict) else None
    return isinstance(text, str) and _OURS.search(text) is not None


# --- install, uninstall ------------------------------------------------------------------------------------------


def install(agent: Agent, scope: str, folder: Path, env: Mapping[str, str], is_dry: bool = False) -> Change:
    """Merge the hook into the agent's settings; a second time changes nothing. UsageError where they are not JSON."""
    path = settings_path(agent, scope, folder, env)
    before = _read(path)
    settings = _parse(path, before)
    merged = _merge(path, settings, agent, command(agent))
    after = before if before is not None and merged == settings else _dump(merged, before)
    if not is_dry and after != before:
        made_folder = not path.parent.exists()
        make_folder(path.parent)
        backup = _backup(path)
        if not backup.exists():
            note = json.dumps({"loopstats": "no file before", "made_folder": made_folder}).encode()
            _write(backup, note if before is None else before, path)
        _write(path, after, path)
    if not is_dry:
        precompile()
    return Change(path, _diff(path, before, after), _advice(agent, scope, path))


def uninstall(agent: Agent, scope: str, folder: Path, env: Mapping[str, str], is_dry: bool = False) -> Change:
    """Take the hook out: the bytes from before where nothing else was changed since, else all but the hook's own."""
    path = settings_path(agent, scope, folder, env)
    before = _read(path)
    backup = _backup(path)
    kept = _read(backup)
    if before is None:
        if kept is not None and not is_dry:
            backup.unlink()
        return Change(path, "")
    settings = _parse(path, before)
    was_absent, made_folder = _absent(kept)
    original = {} if was_absent else _parse(backup, kept) if kept is not None else None
    stripped = _strip(settings, original)
    after: bytes | None
    if stripped == settings:
        after = before
    elif was_absent and not stripped:
        after = None
    elif kept is not None and stripped == original:
        after = kept
    else:
        after = _dump(stripped, before)
    if not is_dry:
        if after is None:
            path.unlink()
        elif after != before:
            _write(path, after, path)
        backup.unlink(missing_ok=True)
        if after is None and made_folder and not any(path.parent.iterdir()):
            path.parent.rmdir()
    return Change(path, _diff(path, before, after))


def precompile() -> None:
    """Have byte code for what the hook loads, so that no start of it compiles; a read-only installation is let be."""
    here = Path(__file__).resolve().parent
    for name in LOADED:
        compileall.compile_file(here / f"{name}.py", quiet=2)


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _parse(path: Path, data: bytes | None) -> dict[str, Any]:
    if data is None or not data.strip():
        return {}
    try:
        parsed = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid JSON ({error}); nothing was changed, mend the file first") from error
    if not isinstance(parsed, dict):
        raise UsageError(f"{path}: a JSON object is expected; nothing was changed")
    return parsed


def _merge(path: Path, settings: dict[str, Any], agent: Agent, line: str) -> dict[str, Any]:
    merged: dict[str, Any] = json.loads(json.dumps(settings))
    hooks = merged.setdefault("hooks", {})
    if not isinstance(hooks, dict):
        raise UsageError(f"{path}: 'hooks' is no object; nothing was changed")
    handler = {"type": "command", "command": line, "timeout": TIMEOUT_S}
    for event, matcher in agent.events.items():
        groups = hooks.setdefault(event, [])
        if not isinstance(groups, list):
            raise UsageError(f"{path}: 'hooks.{event}' is no list; nothing was changed")
        mine = [one for group in groups for one in _handlers(group) if is_ours(one)]
        if not mine:
            groups.append({**({} if matcher is None else {"matcher": matcher}), "hooks": [dict(handler)]})
        for one in mine:
            one.update(handler)
    return merged


def _handlers(group: object) -> list[Any]:
    found = group.get("hooks") if isinstance(group, dict) else None
    return found if isinstance(found, list) else []


def _strip(settings: dict[str, Any], original: dict[str, Any] | None) -> dict[str, Any]:
    """Settings without the hook's handlers, and without the lists that held nothing else and were not there before."""
    stripped: dict[str, Any] = json.loads(json.dumps(settings))
    hooks = stripped.get("hooks")
    if not isinstance(hooks, dict):
        return stripped
    hooks_before = original.get("hooks") if original is not None else None
    for event in list(hooks):
        groups = hooks[event]
        if not isinstance(groups, list) or not any(is_ours(one) for group in groups for one in _handlers(group)):
            continue
        hooks[event] = kept = []
        for group in groups:
            others = [one for one in _handlers(group) if not is_ours(one)]
            if len(others) == len(_handlers(group)):
                kept.append(group)
            elif others:
                kept.append(group | {"hooks": others})
        if not hooks[event] and not (isinstance(hooks_before, dict) and event in hooks_before):
            del hooks[event]
    if not hooks and hooks_before is None:
        del stripped["hooks"]
    return stripped


def _absent(kept: bytes | None) -> tuple[bool, bool]:
    """Whether there was no file before `install`, and no folder."""
    try:
        told = json.loads(kept) if kept else None
    except ValueError:
        return False, False
    if isinstance(told, dict) and told.get("loopstats") == "no file before":
        return True, told.get("made_folder") is True
    return False, False


def _dump(settings: dict[str, Any], like: bytes | None) -> bytes:
    text = "" if like is None else like.decode("utf-8-sig")
    indent = re.search(r"\A\s*\{\r?\n([ \t]+)\"", text)
    width: str | int = indent[1] if indent else 2
    dumped = json.dumps(settings, indent=width, ensure_ascii=False)
    return (dumped + ("\n" if like is None or text.endswith("\n") else "")).encode()


def _write(path: Path, data: bytes, like: Path) -> None:
    """Whole or not at all, through a link to where it points, with the mode of `like`."""
    real = path.resolve()
    mode = like.stat().st_mode & 0o777 if like.exists() else 0o600
    file, beside = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
        Path(beside).chmod(mode)
        Path(beside).replace(real)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def _diff(path: Path, before: bytes | None, after: bytes | None) -> str:
    old, new = ((data or b"").decode("utf-8", "replace").splitlines(keepends=True) for data in (before, after))
    old_name, new_name = ("/dev/null" if data is None else str(path) for data in (before, after))
    return "".join(
        line if line.endswith("\n") else line + "\n" for line in difflib.unified_diff(old, new, old_name, new_name)
    )


def _advice(agent: Agent, scope: str, path: Path) -> tuple[str, ...]:
    """What the agent still asks of its user before a hook runs."""
    notes = ["the hook sleeps until the agent's environment has " + TOKEN + " (or [hook] in loopstats.toml)"]
    if agent is not CODEX:
        return tuple(notes)
    notes.append("Codex runs a new or changed hook only after it was reviewed: start codex and open /hooks")
    if scope == "project":
        notes.append("Codex reads hooks of a project only where the project is trusted")
    config = path.with_name("config.toml")
    try:
        told = tomllib.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return tuple(notes)
    except (OSError, ValueError):
        return (*notes, f"{config}: not readable as TOML; Codex may not start with it")
    features = told.get("features", {})
    if isinstance(features, dict) and (features.get("hooks") is False or features.get("codex_hooks") is False):
        notes.append(f"{config}: features.hooks is false, so no hook runs")
    if told.get("hooks"):
        notes.append(f"{config} has [hooks] too; Codex loads both and warns")
    return tuple(notes)


# --- status ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """One agent and scope: how its settings stand, and when a hook of the agent last wrote to the spool.

    `settings`: `absent`, `installed`, `partial` (an event is missing), `moved` (the interpreter or the file that it
    names is gone, or another one is installed), `unreadable`. `firing`: `recent` (within a day), `old`, `never`.
    """

    agent: str
    scope: str
    path: str
    settings: str
    firing: str
    last_fired: str | None
    sessions: int
    notes: tuple[str, ...] = field(default=())


def status(folder: Path, env: Mapping[str, str], now_us: int) -> list[Status]:
    """Every agent in every scope; what fires is read from the spool."""
    rows = []
    spool = spool_folder(env)
    asleep = is_dormant(dict(env))
    for agent in AGENTS.values():
        last, sessions = last_fired(spool, agent.name)
        firing = "never" if last is None else "recent" if now_us - last <= RECENT_S * 1_000_000 else "old"
        for scope in SCOPES:
            path = settings_path(agent, scope, folder, env)
            word = _standing(agent, path)
            notes = list(_advice(agent, scope, path)[1:]) if word != "absent" else []
            if asleep and word != "absent":
                notes.append(f"asleep here: {SILENCE} is set, or there is no {TOKEN} and no [hook] with an experiment")
            stamp = None if last is None else collector.stamp(last)
            rows.append(Status(agent.name, scope, str(path), word, firing, stamp, sessions, tuple(notes)))
    return rows


def _standing(agent: Agent, path: Path) -> str:
    try:
        hooks = _parse(path, _read(path)).get("hooks")
    except (UsageError, OSError):
        return "unreadable"
    groups = hooks if isinstance(hooks, dict) else {}
    found = {
        event: [one for group in groups.get(event) or [] for one in _handlers(group) if is_ours(one)]
        for event in agent.events
        if isinstance(groups.get(event) or [], list)
    }
    lines = [one["command"] for handlers in found.values() for one in handlers]
    if not lines:
        return "absent"
    if any(line != command(agent) and not _names_files(line) for line in lines) or len(set(lines)) > 1:
        return "moved"
    return "installed" if all(found.get(event) for event in agent.events) else "partial"


def _names_files(line: str) -> bool:
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    return len(words) == 5 and Path(words[0]).is_file() and Path(words[3]).is_file()


def spool_folder(env: Mapping[str, str]) -> Path:
    """Where the hook writes: `LOOPSTATS_SPOOL`, the settings' `[hook] spool`, or the user's data folder."""
    around = dict(env)
    folder = user_folder("data", around)
    try:
        terms = collector.read_terms(around, around.get(TOKEN), config_files(around), folder)
    except (OSError, ValueError, collector.Fault):
        terms = None
    return Path(around.get("LOOPSTATS_SPOOL") or (f"{folder}/spool" if terms is None else terms.spool))


def last_fired(spool: Path, agent: str) -> tuple[int | None, int]:
    """The newest time of an agent's events in the spool, in microseconds since 1970, and how many sessions it has."""
    try:
        files = [path for path in spool.iterdir() if path.name.startswith(f"{agent}-") and path.suffix == ".jsonl"]
        newest = sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[:FILES_LOOKED_AT]
        times = [found for path in newest if (found := _last_time(path)) is not None]
    except OSError:
        return None, 0
    return max(times, default=None), len(files)


def _last_time(path: Path) -> int | None:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - TAIL_BYTES, 0))
        lines = file.read().split(b"\n")
    for line in reversed(lines):
        try:
            found = time_us(json.loads(line).get("ts"))
        except (ValueError, AttributeError):
            continue
        if found is not None:
            return found
    return None


def faults(env: Mapping[str, str], limit: int = FAULTS_SHOWN) -> list[dict[str, Any]]:
    """The newest faults that the hook noted (`ts`, `agent`, `fault`, `where`), newest first: what `doctor` shows."""
    found: list[dict[str, Any]] = []
    for folder in collector.fault_folders(str(spool_folder(env)), dict(env)):
        for line in (_read_log(Path(folder) / "log") or b"").splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if isinstance(told, dict):
                found.append({key: told.get(key) for key in ("ts", "agent", "fault", "where")})
    return sorted(found, key=lambda one: str(one["ts"]), reverse=True)[:limit]


def _read_log(path: Path) -> bytes | None:
    try:
        return _read(path)
    except OSError:
        return None


# --- test --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """One thing that the trial of an installed command line found out."""

    name: str
    is_ok: bool
    detail: str = ""


def recorded_session(agent: Agent) -> list[dict[str, Any]]:
    """A short session as the agent's hooks tell it: three failures of one class on three targets, then a success."""
    common = {"session_id": "6f1c0b52-3a44-4f0e-9d52-0d6a51b7a001", "cwd": "/project", "transcript_path": None}
    start = {**common, "hook_event_name": "SessionStart", "source": "startup"}
    events: list[dict[str, Any]] = [start]
    for number, name in enumerate(("alpha", "beta", "gamma"), 1):
        call = {
            **common,
            "tool_name": "Bash",
            "tool_input": {"command": f"pytest tests/test_{name}.py"},
            "tool_use_id": f"call_trial_{number}",
        }
        output = f"FAILED tests/test_{name}.py::test_it - KeyError: 'price'\n1 failed in 0.10s"
        if agent is CODEX:
            events.append({**call, "hook_event_name": "PostToolUse", "turn_id": "t1", "tool_response": output})
        else:
            events.append({**call, "hook_event_name": "PostToolUseFailure", "error": f"Exit code 1\n{output}"})
    events.append(
        {
            **common,
            "hook_event_name": "PostToolUse",
            "tool_name": "Bash",
            "tool_use_id": "call_trial_4",
            "tool_input": {"command": "ls"},
            "tool_response": {"stdout": "a", "stderr": ""},
            **({"turn_id": "t1"} if agent is CODEX else {}),
        }
    )
    return events


def trial(
    agent: Agent,
    scope: str,
    folder: Path,
    env: Mapping[str, str],
    run: Callable[..., subprocess.CompletedProcess[bytes]] = subprocess.run,
) -> list[Check]:
    """Feed a recorded session through the installed command line, once for each arm, into a spool of its own."""
    path = settings_path(agent, scope, folder, env)
    hooks = _parse(path, _read(path)).get("hooks")
    groups = hooks if isinstance(hooks, dict) else {}
    lines = {
        event: [one["command"] for group in groups.get(event) or [] for one in _handlers(group) if is_ours(one)]
        for event in agent.events
    }
    missing = [event for event, found in lines.items() if not found]
    checks = [Check("installed", not missing, f"{path}: no hook for {', '.join(missing)}" if missing else str(path))]
    if missing:
        return checks
    for arm, share in (("treated", 9_999), ("holdout", 1)):
        with tempfile.TemporaryDirectory(prefix="loopstats-trial-") as spool:
            token = json.dumps({"experiment": "trial", "salt": "trial", "share_bp": share, "n_star": 10})
            around = {key: value for key, value in env.items() if not key.startswith("LOOPSTATS_")}
            around |= {TOKEN: token, "LOOPSTATS_SPOOL": spool}
            answers, is_zero = [], True
            for event in recorded_session(agent):
                line = (lines.get(event["hook_event_name"]) or [command(agent)])[0]
                done = run(
                    line,
                    shell=True,
                    input=json.dumps(event).encode(),
                    env=around,
                    capture_output=True,
                    check=False,
                    timeout=60,
                )
                is_zero = is_zero and done.returncode == 0
                answers.append(done.stdout)
            checks += _judge_trial(arm, answers, is_zero, Path(spool))
    return checks


def _judge_trial(arm: str, answers: list[bytes], is_zero: bool, spool: Path) -> list[Check]:
    lines = [json.loads(line) for path in sorted(spool.glob("*.jsonl")) for line in path.read_text().splitlines()]
    types = [line["type"] for line in lines]
    loops = [line for line in lines if line["type"] == "loop"]
    spoken = [number for number, answer in enumerate(answers) if answer]
    noted = (spool / ".hook" / "log").read_text() if (spool / ".hook" / "log").exists() else ""
    return [
        Check(f"{arm}: every call exits with 0", is_zero),
        Check(f"{arm}: enrolled before the first step", types[:1] == ["session"], ", ".join(types)),
        Check(f"{arm}: all steps are recorded", types.count("step") == 4, f"{types.count('step')} of 4"),
        Check(
            f"{arm}: the loop is found at the third failure",
            [line["step"] for line in loops] == ["call_trial_3"] and loops[0]["arm"] == arm,
            ", ".join(f"{line['step']} {line.get('arm')}" for line in loops),
        ),
        Check(
            f"{arm}: the agent is told {'once' if arm == 'treated' else 'nothing'}",
            spoken == ([3] if arm == "treated" else []),
            f"answers to events {spoken}",
        ),
        Check(f"{arm}: no fault is noted", not noted, noted.strip()),
    ]
