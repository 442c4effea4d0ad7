"""The hook in the agents' own settings: merged, proved, tried, and taken out again without a trace."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopstats import collector, hook, hooks
from loopstats.errors import UsageError

NOW_US = 1_793_000_000_000_000
AGENTS = [hooks.CLAUDE_CODE, hooks.CODEX]
CLAUDE_CODE_EVENTS = {"SessionStart", "PostToolUse", "PostToolUseFailure", "PostToolBatch"}
CODEX_EVENTS = {"SessionStart", "PostToolUse"}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LOOPSTATS_SPOOL": str(tmp_path / "spool")}


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def handlers(data: bytes) -> dict[str, list[dict[str, Any]]]:
    return {
        event: [one for group in groups for one in group["hooks"]]
        for event, groups in json.loads(data)["hooks"].items()
    }


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
@pytest.mark.parametrize("scope", hooks.SCOPES)
def test_installed_in_the_agents_own_words_and_gone_without_a_trace(
    agent: hooks.Agent, scope: str, tmp_path: Path, env: dict[str, str]
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    before = snapshot(tmp_path)
    change = hooks.install(agent, scope, project, env)
    root = project if scope == "project" else tmp_path / "home"
    name = {"claude-code": ".claude/settings.json", "codex": ".codex/hooks.json"}[agent.name]
    assert change.path == root / name and change.diff.startswith("--- /dev/null")
    found = handlers(change.path.read_bytes())
    assert set(found) == (CLAUDE_CODE_EVENTS if agent is hooks.CLAUDE_CODE else CODEX_EVENTS)
    groups = json.loads(change.path.read_bytes())["hooks"]
    assert {event for event, (group,) in groups.items() if group.get("matcher") == "*"} == {
        event for event in found if event in ("PostToolUse", "PostToolUseFailure")
    }
    for (handler,) in found.values():
        assert (handler["type"], handler["timeout"]) == ("command", 10)
        words = shlex.split(handler["command"])
        assert words[1:3] == ["-I", "-S"] and words[4] == agent.name
        assert Path(words[0]).is_absolute() and Path(words[3]) == Path(hook.__file__).resolve()
    assert hooks.uninstall(agent, scope, project, env).diff.endswith("-}\n")
    assert snapshot(tmp_path) == before


def test_a_second_time_changes_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    first = hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env)
    before = snapshot(tmp_path)
    assert not first.is_none and hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env).is_none
    assert snapshot(tmp_path) == before
    hooks.uninstall(hooks.CLAUDE_CODE, "user", tmp_path, env)
    assert hooks.uninstall(hooks.CLAUDE_CODE, "user", tmp_path, env).is_none


def test_a_dry_run_tells_the_difference_and_does_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    before = snapshot(tmp_path)
    dry = hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env, is_dry=True)
    assert snapshot(tmp_path) == before and '+            "command": ' in dry.diff
    assert dry.diff == hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env).diff
    after = snapshot(tmp_path)
    assert hooks.uninstall(hooks.CLAUDE_CODE, "user", tmp_path, env, is_dry=True).diff and snapshot(tmp_path) == after


FOREIGN = {
    "permissions": {"allow": ["Bash(ls:*)"]},
    "hooks": {
        "PostToolUse": [{"matcher": "Edit", "hooks": [{"type": "command", "command": "prettier --write \u00e9"}]}],
        "Stop": [{"hooks": [{"type": "command", "command": "say done"}]}],
        "SessionStart": [],
    },
    "model": "opus",
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(FOREIGN, indent=2) + "\n",
        json.dumps(FOREIGN, indent="\t", ensure_ascii=False),
        json.dumps(FOREIGN),
        "\ufeff" + json.dumps(FOREIGN, indent=4).replace("\n", "\r\n"),
        "",
        "{}",
        '{"hooks": {}}',
        "  {\n}\n",
    ],
    ids=range(8),
)
def test_what_was_there_stays_and_comes_back_byte_for_byte(text: str, tmp_path: Path, env: dict[str, str]) -> None:
    path = tmp_path / "home" / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_bytes(text.encode())
    path.chmod(0o640)
    hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env)
    after = json.loads(path.read_text("utf-8-sig"))
    before = json.loads(text.removeprefix("\ufeff") or "{}")
    for key in before:
        if key != "hooks":
            assert after[key] == before[key]
    for event, groups in before.get("hooks", {}).items():
        assert after["hooks"][event][: len(groups)] == groups
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    backup = path.with_name("settings.json.loopstats-backup")
    assert backup.read_bytes() == text.encode()
    hooks.uninstall(hooks.CLAUDE_CODE, "user", tmp_path, env)
    assert path.read_bytes() == text.encode() and not backup.exists() and stat.S_IMODE(path.stat().st_mode) == 0o640


def test_changes_made_since_are_kept(tmp_path: Path, env: dict[str, str]) -> None:
    path = tmp_path / "home" / ".claude" / "settings.json"
    hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env)
    grown = json.loads(path.read_text()) | {"model": "opus"}
    grown["hooks"]["PostToolUse"][0]["hooks"].append({"type": "command", "command": "true"})
    path.write_text(json.dumps(grown, indent=2))
    hooks.uninstall(hooks.CLAUDE_CODE, "user", tmp_path, env)
    assert json.loads(path.read_text()) == {
        "model": "opus",
        "hooks": {"PostToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": "true"}]}]},
    }


names = st.sampled_from(["PostToolUse", "SessionStart", "Stop", "PostToolBatch"])
groups = st.lists(
    st.fixed_dictionaries(
        {
            "hooks": st.lists(
                st.fixed_dictionaries({"type": st.just("command"), "command": st.text(max_size=8)}), max_size=2
            )
        },
        optional={"matcher": st.text(max_size=4)},
    ),
    max_size=2,
)
documents = st.dictionaries(
    st.text(max_size=5), st.integers() | st.text(max_size=5) | st.lists(st.booleans(), max_size=2), max_size=3
)


@settings(max_examples=60, deadline=None)
@given(documents, st.none() | st.dictionaries(names, groups, max_size=3), st.sampled_from([None, 2, "\t"]))
def test_uninstall_is_the_inverse_of_install(
    document: dict[str, Any], told: dict[str, Any] | None, indent: Any
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / ".claude" / "settings.json"
        path.parent.mkdir()
        data = json.dumps(document | ({} if told is None else {"hooks": told}), indent=indent).encode()
        path.write_bytes(data)
        hooks.install(hooks.CLAUDE_CODE, "project", folder, {})
        once = path.read_bytes()
        hooks.install(hooks.CLAUDE_CODE, "project", folder, {})
        assert path.read_bytes() == once
        hooks.uninstall(hooks.CLAUDE_CODE, "project", folder, {})
        assert snapshot(folder) == {str(path.parent): None, str(path): data}


@pytest.mark.parametrize(
    "text", ["{ // a comment\n}", "[1]", '{"hooks": []}', '{"hooks": {"PostToolUse": {}}}', "\xff"]
)
def test_settings_that_are_not_understood_are_left_alone(text: str, tmp_path: Path, env: dict[str, str]) -> None:
    path = tmp_path / "home" / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"settings\.json"):
        hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env)
    assert path.read_bytes() == text.encode("latin-1")


def test_a_linked_settings_file_stays_a_link(tmp_path: Path, env: dict[str, str]) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    path = tmp_path / "home" / ".claude" / "settings.json"
    path.parent.mkdir()
    path.symlink_to(real)
    hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env)
    assert path.is_symlink() and "PostToolUse" in real.read_text()
    hooks.uninstall(hooks.CLAUDE_CODE, "user", tmp_path, env)
    assert path.is_symlink() and real.read_text() == "{}"


def test_an_older_command_line_of_ours_is_renewed_in_place(tmp_path: Path, env: dict[str, str]) -> None:
    path = tmp_path / "home" / ".claude" / "settings.json"
    hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env)
    path.write_text(path.read_text().replace(sys.executable, "/gone/python"))
    rows = {row.scope: row.settings for row in hooks.status(tmp_path, env, NOW_US) if row.agent == "claude-code"}
    assert rows == {"user": "moved", "project": "absent"}
    hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env)
    found = handlers(path.read_bytes())
    assert {len(mine) for mine in found.values()} == {1} and "/gone/python" not in path.read_text()


def test_the_agents_own_variables_name_the_folder(tmp_path: Path, env: dict[str, str]) -> None:
    env |= {"CLAUDE_CONFIG_DIR": str(tmp_path / "c"), "CODEX_HOME": str(tmp_path / "x")}
    assert hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env).path == tmp_path / "c" / "settings.json"
    assert hooks.install(hooks.CODEX, "user", tmp_path, env).path == tmp_path / "x" / "hooks.json"


def test_what_codex_asks_for_beside_is_told(tmp_path: Path, env: dict[str, str]) -> None:
    config = tmp_path / "home" / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text("[features]\nhooks = false\n[[hooks.PreToolUse]]\nmatcher = 'x'\n")
    notes = " | ".join(hooks.install(hooks.CODEX, "user", tmp_path, env).notes)
    assert "/hooks" in notes and "features.hooks is false" in notes and "loads both" in notes
    assert config.read_text().startswith("[features]")


def test_unknown_words_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--agent 'emacs'"):
        hooks.agent_named("emacs")
    with pytest.raises(UsageError, match="--scope 'all'"):
        hooks.settings_path(hooks.CODEX, "all", tmp_path, {})


# --- status ------------------------------------------------------------------------------------------------------


def row(
    folder: Path, env: dict[str, str], now_us: int, agent: str = "claude-code", scope: str = "user"
) -> hooks.Status:
    (found,) = (one for one in hooks.status(folder, env, now_us) if (one.agent, one.scope) == (agent, scope))
    return found


def test_status_tells_firing_from_the_spool_not_from_the_settings(tmp_path: Path, env: dict[str, str]) -> None:
    hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env)
    assert (row(tmp_path, env, NOW_US).settings, row(tmp_path, env, NOW_US).firing) == ("installed", "never")
    token = json.dumps({"experiment": "x", "salt": "s"})
    terms = collector.read_terms(env, token, [], "")
    assert terms is not None
    collector.handle(hooks.recorded_session(hooks.CLAUDE_CODE)[1], "claude-code", terms, NOW_US)
    now = row(tmp_path, env, NOW_US + 1_000_000)
    assert (now.firing, now.last_fired, now.sessions) == ("recent", collector.stamp(NOW_US), 1)
    assert row(tmp_path, env, NOW_US + 3 * 86_400_000_000).firing == "old"
    assert row(tmp_path, env, NOW_US, "codex").firing == "never"
    hooks.uninstall(hooks.CLAUDE_CODE, "user", tmp_path, env)
    gone = row(tmp_path, env, NOW_US)
    assert (gone.settings, gone.firing) == ("absent", "recent")


def test_status_says_that_it_sleeps_and_what_is_missing(tmp_path: Path, env: dict[str, str]) -> None:
    hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env)
    assert any("asleep" in note for note in row(tmp_path, env, NOW_US).notes)
    awake = env | {hook.TOKEN: json.dumps({"experiment": "x", "salt": "s"})}
    assert row(tmp_path, awake, NOW_US).notes == ()
    path = tmp_path / "home" / ".claude" / "settings.json"
    told = json.loads(path.read_text())
    del told["hooks"]["PostToolUseFailure"]
    path.write_text(json.dumps(told))
    assert row(tmp_path, awake, NOW_US).settings == "partial"
    path.write_text("{")
    assert row(tmp_path, awake, NOW_US).settings == "unreadable"


def test_faults_are_told_newest_first(tmp_path: Path, env: dict[str, str]) -> None:
    assert hooks.faults(env) == []
    for name in ("one", "two"):
        collector.note(env["LOOPSTATS_SPOOL"], "codex", collector.Fault(name), {})
    assert [(fault["fault"], fault["agent"]) for fault in hooks.faults(env)] == [("two", "codex"), ("one", "codex")]


# --- trial -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_a_trial_runs_the_installed_command_line_for_both_arms(
    agent: hooks.Agent, tmp_path: Path, env: dict[str, str]
) -> None:
    assert [(check.name, check.is_ok) for check in hooks.trial(agent, "user", tmp_path, env)] == [("installed", False)]
    hooks.install(agent, "user", tmp_path, env)
    checks = hooks.trial(agent, "user", tmp_path, env)
    assert [check for check in checks if not check.is_ok] == [] and len(checks) == 13
    assert not Path(env["LOOPSTATS_SPOOL"]).exists()


def test_a_trial_finds_a_command_line_that_does_not_work(tmp_path: Path, env: dict[str, str]) -> None:
    hooks.install(hooks.CLAUDE_CODE, "user", tmp_path, env)
    path = tmp_path / "home" / ".claude" / "settings.json"
    path.write_text(path.read_text().replace(sys.executable, "/gone/python"))
    failed = {check.name for check in hooks.trial(hooks.CLAUDE_CODE, "user", tmp_path, env) if not check.is_ok}
    assert {
        "treated: every call exits with 0",
        "treated: the agent is told once",
        "holdout: all steps are recorded",
    } <= failed


def test_paths_with_blanks_work(tmp_path: Path, env: dict[str, str]) -> None:
    package = tmp_path / "a folder" / "loopstats"
    shutil.copytree(Path(hook.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "formats"))
    line = hooks.command(hooks.CLAUDE_CODE).replace(
        shlex.quote(str(Path(hook.__file__).resolve())), shlex.quote(str(package / "hook.py"))
    )
    events = hooks.recorded_session(hooks.CLAUDE_CODE)
    around = env | {hook.TOKEN: json.dumps({"experiment": "x", "salt": "s", "share_bp": 9_999})}
    done = [
        subprocess.run(line, shell=True, input=json.dumps(event).encode(), env=around, capture_output=True, check=True)
        for event in events
    ]
    assert hooks.is_ours({"command": line}) and [bool(one.stdout) for one in done] == [False, False, False, True, False]


# --- the command line --------------------------------------------------------------------------------------------


def loopstats(folder: Path, env: dict[str, str], *words: str, data: bytes = b"") -> tuple[int, str, str]:
    root = str(Path(hook.__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "loopstats.cli", "hook", *words],
        cwd=folder,
        env=env | {"PYTHONPATH": root},
        input=data,
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_commands_do_what_they_say(tmp_path: Path, env: dict[str, str]) -> None:
    code, out, talk = loopstats(tmp_path, env, "install", "--agent", "claude-code", "--scope", "project", "--dry-run")
    assert (code, out[:14]) == (0, "--- /dev/null\n") and "would be installed" in talk
    assert not (tmp_path / ".claude").exists()
    assert loopstats(tmp_path, env, "install", "--agent", "claude-code", "--scope", "project")[0] == 0
    code, out, _ = loopstats(tmp_path, env, "status", "-f", "json")
    rows = {(row["agent"], row["scope"]): row["settings"] for row in json.loads(out)["rows"]}
    assert code == 0 and rows == {
        ("claude-code", "user"): "absent",
        ("claude-code", "project"): "installed",
        ("codex", "user"): "absent",
        ("codex", "project"): "absent",
    }
    code, out, _ = loopstats(tmp_path, env, "test", "--agent", "claude-code", "--scope", "project", "--json")
    assert code == 0 and all(row["is_ok"] for row in json.loads(out)["rows"])
    assert loopstats(tmp_path, env, "test", "--agent", "codex")[0] == 5
    path = tmp_path / ".claude" / "settings.json"
    path.write_text(path.read_text().replace(sys.executable, "/gone/python"))
    assert loopstats(tmp_path, env, "status")[0] == 5
    assert loopstats(tmp_path, env, "uninstall", "--agent", "claude-code", "--scope", "project")[0] == 0
    assert not (tmp_path / ".claude").exists()
    code, _, talk = loopstats(tmp_path, env, "install", "--agent", "emacs")
    assert code == 2 and "use one of claude-code, codex" in talk


def test_run_answers_one_event_and_never_fails(tmp_path: Path, env: dict[str, str]) -> None:
    awake = env | {hook.TOKEN: json.dumps({"experiment": "x", "salt": "s", "share_bp": 9_999})}
    events = hooks.recorded_session(hooks.CLAUDE_CODE)
    answers = [loopstats(tmp_path, awake, "run", "claude-code", data=json.dumps(event).encode())[1] for event in events]
    assert [bool(answer) for answer in answers] == [False, False, False, True, False]
    assert loopstats(tmp_path, awake, "run", "--no-such-option", data=b"garbage")[:2] == (0, "")
