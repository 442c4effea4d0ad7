"""`schedule`: other people's lines stay as they are, what was before comes back to the byte, and quoting is right."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopstats import cli, schedule
from loopstats.errors import UsageError
from loopstats.schedule import Job

OTHERS = "# mine\nMAILTO=me\n*/5 * * * * echo 100\\% \\\n@daily x\n# loopstats nightly of lake 00000000\n"
PROGRAM = Path(sys.executable).parent / "loopstats"


@pytest.fixture
def crontab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's crontab in a file, behind a program of cron's manners; the file is what `crontab -l` gives."""
    kept = tmp_path / "spool" / "me"
    kept.parent.mkdir()
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "crontab"
    fake.write_text(
        f"#!/bin/sh\nif [ ! -e '{kept}' ] && [ \"$1\" != - ]; then echo 'no crontab for me' >&2; exit 1; fi\n"
        f"case \"$1\" in -l) cat '{kept}';; -r) rm '{kept}';; -) cat > '{kept}';; *) exit 2;; esac\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return kept


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("LOOPSTATS_LAKE", "LOOPSTATS_SPOOL", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "argv", [str(PROGRAM)])


def call(*arguments: str) -> int:
    return cli.run_command(["--quiet", "--lake", "lake", "schedule", *arguments])


def rows(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capfd.readouterr()
    assert call(*arguments, "--json") == 0
    found: list[dict[str, Any]] = json.loads(capfd.readouterr().out)["rows"]
    return found


@pytest.mark.parametrize("kind", ["cron", "systemd"])
def test_with_json_what_is_printed_and_what_is_changed_are_rows(
    kind: str, crontab: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("--print", kind) == 0
    text = capfd.readouterr().out
    printed = rows(capfd, "--print", kind)
    assert all(row["kind"] == kind and row["text"] in text and row["text"] for row in printed)
    assert len(printed) == (1 if kind == "cron" else 2)
    assert call("--install", kind, "--dry-run") == 0
    diff = capfd.readouterr().out
    dry = rows(capfd, "--install", kind, "--dry-run")
    assert "".join(row["diff"] for row in dry) == diff != ""
    made = rows(capfd, "--install", kind)
    assert [row | {"is_dry_run": True} for row in made] == dry
    assert [row["place"] for row in made] == [row["place"] for row in printed]
    again = rows(capfd, "--install", kind)
    assert [(row["is_changed"], row["is_dry_run"], row["diff"]) for row in again] == [(False, False, "")] * len(made)
    assert all(row["is_changed"] for row in rows(capfd, "--uninstall", kind))


# --- cron ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, "", OTHERS, OTHERS + "5 4 * * * no newline at the end"])
def test_out_again_every_byte_is_as_it_was(crontab: Path, before: str | None) -> None:
    if before is not None:
        crontab.write_text(before)
    assert call("--install", "cron", "--at", "4:05") == 0
    installed = crontab.read_text()
    assert installed.startswith(before or "")
    assert installed.count("LOOPSTATS_LAKE=") == 1
    assert call("--install", "cron", "--at", "04:05") == 0
    assert crontab.read_text() == installed
    assert call("--install", "cron", "--at", "23:59") == 0
    assert crontab.read_text() == installed.replace("\n5 4 * * * LOOP", "\n59 23 * * * LOOP")
    assert call("--uninstall", "cron") == 0
    assert (crontab.read_text() if crontab.exists() else None) == before


def test_lines_that_were_added_meanwhile_stay(crontab: Path) -> None:
    crontab.write_text(OTHERS)
    assert call("--install", "cron") == 0
    crontab.write_text("# first\n" + crontab.read_text() + "# last\n")
    assert call("--install", "cron", "--at", "05:00") == 0
    assert call("--uninstall", "cron") == 0
    assert crontab.read_text() == "# first\n" + OTHERS + "# last\n"


def test_two_lakes_have_a_block_each(crontab: Path) -> None:
    assert call("--install", "cron") == 0
    one = crontab.read_text()
    assert cli.run_command(["-q", "--lake", "other", "schedule", "--install", "cron"]) == 0
    assert crontab.read_text().count("LOOPSTATS_LAKE=") == 2
    assert cli.run_command(["-q", "--lake", "other", "schedule", "--uninstall", "cron"]) == 0
    assert crontab.read_text() == one


def test_dry_run_and_print_change_nothing_and_show_what_would_be_written(
    crontab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crontab.write_text(OTHERS)
    assert call("--install", "cron", "--dry-run") == 0
    diff = capsys.readouterr().out
    assert call("--print", "cron") == 0
    printed = capsys.readouterr().out
    assert crontab.read_text() == OTHERS
    assert call("--install", "cron") == 0
    assert crontab.read_text() == OTHERS + printed
    assert "".join(line[1:] for line in diff.splitlines(keepends=True) if re.match(r"\+[^+]", line)) == printed


def test_a_line_holds_the_program_the_lake_the_path_and_what_moves_a_home(
    crontab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "50% co'dex"))
    (tmp_path / "loopstats.toml").write_text("")
    assert call("--install", "cron", "--", "/logs", "--max-rejects", "3", "--on-fail", "echo '100 %' $HOME") == 0
    line = crontab.read_text().splitlines()[1]
    assert shlex.split(line.replace("\\%", "%"))[5:] == [
        "cd",
        str(tmp_path),
        "&&",
        f"LOOPSTATS_LAKE={tmp_path / 'lake'}",
        f"PATH={PROGRAM.parent}:/usr/local/bin:/usr/bin:/bin",
        f"CODEX_HOME={tmp_path}/50% co'dex",
        f"XDG_DATA_HOME={tmp_path / 'data'}",
        str(PROGRAM),
        "nightly",
        "--quiet",
        "/logs",
        "--max-rejects",
        "3",
        "--on-fail",
        "echo '100 %' $HOME",
    ]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "--print"),
        (("--print", "--install", "cron"), "--print"),
        (("--print",), "cron, systemd"),
        (("--print", "launchd"), "cron, systemd"),
        (("--print", "cron", "--at", "24:00"), "--at"),
        (("--print", "cron", "--", "--nonsense"), "nonsense"),
        (("--print", "cron", "--", "logs"), "logs"),
        (("--print", "cron", "--", "--report", "r.html"), "r.html"),
        (("--print", "cron", "--", "--on-fail", "no-such-program x"), "no-such-program"),
        (("--print", "cron", "--", "--on-fail", "'open"), "--on-fail"),
        (("--print", "cron", "--", "/a\nb"), "control"),
        (("--print", "cron", "--", "/" + "x" * 990), "990"),
    ],
)
def test_what_would_fail_every_night_fails_now(
    crontab: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], word: str
) -> None:
    assert call(*arguments) == 2
    assert word in capsys.readouterr().err
    assert not crontab.exists()


def test_without_cron_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert call("--install", "cron") == 2
    assert "systemd" in capsys.readouterr().err


def test_a_folder_s_settings_cannot_make_a_job_run_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loopstats.toml").write_text('[nightly]\non_fail = "rm -rf x"\n')
    assert call("--print", "cron") == 2
    assert "nightly.on_fail" in capsys.readouterr().err


def as_cron_has_it(command: str) -> str:
    """The command as cron hands it to the shell: what do_command.c of Vixie cron does with backslash and percent."""
    out: list[str] = []
    is_escaped = False
    for char in command:
        if is_escaped:
            is_escaped = False
            if char == "%":
                out[-1] = char
                continue
        elif char == "\\":
            is_escaped = True
        elif char == "%":
            break
        out.append(char)
    return "".join(out)


WORDS = st.text(st.sampled_from("a%\\'\" $`é*~;&|#"), min_size=1, max_size=12)


@given(st.lists(WORDS, min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_every_word_comes_through_cron_and_the_shell(words: list[str]) -> None:
    command = schedule.cron_command(Job("/l", 1, 2, ("printf", *words), {"LOOPSTATS_LAKE": words[0]}))
    assert shlex.split(as_cron_has_it(command)) == [f"LOOPSTATS_LAKE={words[0]}", "printf", *words]


# --- systemd ---------------------------------------------------------------------------------------------------------


def unquoted(text: str) -> list[str]:
    """Words of a unit file by systemd.syntax(7) and systemd.service(5): quotes, C escapes, specifiers, variables."""
    words = re.findall(r'"((?:\\.|[^"\\])*)"', text)
    plain = [re.sub(r"\\(.)", r"\1", word) for word in words]
    assert all(re.fullmatch(r"(?:%%|[^%])*", word) for word in plain)
    return [word.replace("%%", "%") for word in plain]


@given(st.lists(WORDS, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_every_word_comes_through_systemd(words: list[str]) -> None:
    service = schedule.units(Job("/l", 1, 2, ("/bin/x%y", *words), {"LOOPSTATS_LAKE": words[0]}))
    text = next(text for name, text in service.items() if name.endswith(".service"))
    started = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    around = re.search(r"^Environment=(.*)$", text, re.MULTILINE)
    assert started is not None
    assert around is not None
    assert [word.replace("$$", "$") for word in unquoted(started[1])] == ["/bin/x%y", *words]
    assert unquoted(around[1]) == [f"LOOPSTATS_LAKE={words[0]}"]


def test_a_program_that_systemd_would_refuse_is_refused_here() -> None:
    with pytest.raises(UsageError, match="quote"):
        schedule.units(Job("/l", 1, 2, ("/a'b/loopstats", "nightly")))


def test_units_come_and_go_and_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("systemctl", "systemd-run"):
        fake = tmp_path / "bin" / name
        fake.write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\n")
        fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    folder = tmp_path / "home" / ".config" / "systemd" / "user"
    assert call("--install", "systemd", "--at", "3:07") == 0
    service, timer = sorted(folder.iterdir())
    assert "OnCalendar=*-*-* 03:07:00\nPersistent=true\n" in timer.read_text()
    first = service.read_text()
    assert call("--install", "systemd", "--at", "3:07") == 0
    assert service.read_text() == first
    wants = folder / "timers.target.wants"
    wants.mkdir()
    (wants / timer.name).symlink_to(timer)
    (folder / "other.timer").write_text("mine")
    assert call("--uninstall", "systemd", "--dry-run") == 0
    assert timer.exists()
    assert call("--uninstall", "systemd") == 0
    assert sorted(path.name for path in folder.rglob("*")) == ["other.timer", "timers.target.wants"]
    assert not (tmp_path / "started").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_analyze_finds_nothing_to_say(tmp_path: Path) -> None:
    program = tmp_path / "a b 50%" / "loop $stats"
    program.parent.mkdir()
    shutil.copy("/bin/true", program)
    job = schedule.make_job(
        tmp_path / 'la"ke $x 5%',
        program,
        "3:30",
        ("/lo gs", "--on-fail", "x '%' \"$HOME\""),
        None,
        os.environ,
        tmp_path / "in 5% of it's",
    )
    (tmp_path / "in 5% of it's").mkdir()
    for name, text in schedule.units(job).items():
        (tmp_path / name).write_text(text)
    paths = sorted(path for path in tmp_path.iterdir() if path.suffix in (".service", ".timer"))
    assert len(paths) == 2
    assert schedule.verified(paths) is None
    broken = paths[0]
    broken.write_text(re.sub('ExecStart="[^"]*"', 'ExecStart="/no/such/program"', broken.read_text()))
    assert "no/such/program" in (schedule.verified(paths) or "")


def test_status_tells_both(crontab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told() -> dict[str, tuple[str, str | None]]:
        assert call("--status", "--json") == 0
        return {row["kind"]: (row["state"], row["at"]) for row in json.loads(capsys.readouterr().out)["rows"]}

    assert told() == {"cron": ("absent", None), "systemd": ("absent", None)}
    assert call("--install", "cron", "--at", "02:05") == 0
    assert call("--install", "systemd", "--at", "02:06") == 0
    assert told() == {"cron": ("installed", "02:05"), "systemd": ("off", "02:06")}


def test_the_program_is_found_where_it_was_started(tmp_path: Path) -> None:
    assert schedule.program_of(str(PROGRAM), "/bin") == PROGRAM
    assert schedule.program_of("loopstats", f"/bin:{PROGRAM.parent}") == PROGRAM
    assert schedule.program_of("/x/loopstats/cli/__main__.py", str(PROGRAM.parent)) == PROGRAM
    with pytest.raises(UsageError, match="install loopstats"):
        schedule.program_of("/x/loopstats/cli/__main__.py", str(tmp_path))


def test_the_printed_line_runs_as_it_stands(crontab: Path, tmp_path: Path) -> None:
    """What cron would hand to the shell, handed to the shell with cron's almost empty environment."""
    assert call("--install", "cron", "--", str(tmp_path), "--stale-days", "0") == 0
    command = as_cron_has_it(crontab.read_text().splitlines()[1].split(" ", 5)[5])
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={"HOME": str(tmp_path), "PATH": "/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "lake" / "nightly.jsonl").read_text())["exit_code"] == 0
