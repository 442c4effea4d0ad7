"""Put the nightly run into the user's crontab or into systemd user units, and take it out to the byte.

A room of its own because these places belong to somebody else: every other line stays as it is, the block is marked and
knows what was there before, and what a shell, cron and systemd each take for special is quoted by their own rules.
Nothing is started here: cron reads a new crontab by itself, systemd has to be told by the user, in words that are said.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loopstats import homes
from loopstats.errors import StorageError, UsageError
from loopstats.found import make_folder

KINDS = ("cron", "systemd")
MARK = "# loopstats nightly of lake"
NEW_CRONTAB = ", no crontab before"
NEW_NEWLINE = ", no newline before"
STANDARD_PATH = "/usr/local/bin:/usr/bin:/bin"
CRON_LONGEST = 990  # Vixie cron cuts a command at 1000 bytes


@dataclass(frozen=True)
class Job:
    """What is run when: arguments (the first is the program, absolute), environment, and the folder it starts in."""

    lake: str
    hour: int
    minute: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None

    @property
    def key(self) -> str:
        """Eight digits that are the same for the same lake."""
        return hashlib.sha256(self.lake.encode("utf-8", "surrogateescape")).hexdigest()[:8]


@dataclass(frozen=True)
class Change:
    """One file (or the crontab) before and after; None is no file."""

    name: str
    before: str | None
    after: str | None

    @property
    def diff(self) -> str:
        """As `diff -u` shows it; empty where nothing changes."""
        old, new = ((text or "").splitlines(keepends=True) for text in (self.before, self.after))
        old_name, new_name = ("/dev/null" if text is None else self.name for text in (self.before, self.after))
        lines = difflib.unified_diff(old, new, old_name, new_name)
        return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def make_job(
    lake: Path,
    program: Path,
    at: str,
    options: Sequence[str],
    config: Path | None,
    env: Mapping[str, str],
    folder: Path | None = None,
) -> Job:
    """The job of a lake. `at` is HH:MM of the machine's own clock; `folder`: where a project's settings are found.

    UsageError where a part cannot be written down.
    """
    told = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", at)
    if told is None:
        raise UsageError(f"--at {at!r}: write HH:MM, e.g. 03:30 (the machine's own time)")
    around = {"LOOPSTATS_LAKE": str(lake.absolute()), "PATH": f"{program.parent}:{STANDARD_PATH}"}
    # The job's environment is almost empty: what moves a home has to go with it.
    around |= {name: env[name] for name in homes.VARIABLES if env.get(name)}
    chosen = ("--config", str(config.absolute())) if config is not None else ()
    arguments = (str(program), *chosen, "nightly", "--quiet", *options)
    started_in = "" if folder is None else str(folder.absolute())
    for text in (*arguments, *around.values(), started_in):
        if not text.isprintable() and text:
            raise UsageError(f"{text!r}: a timetable cannot hold control characters; rename it")
    return Job(str(lake.absolute()), int(told[1]), int(told[2]), arguments, around, started_in or None)


def program_of(argv0: str, path: str) -> Path:
    """The absolute path of the running program; UsageError where it cannot be told."""
    found = shutil.which(argv0, path=path)
    given = Path(found or argv0).absolute()
    if not given.is_file() or given.suffix == ".py":
        named = shutil.which("loopstats", path=path)
        if named is None:
            raise UsageError(
                f"{argv0}: no program that a timetable can start; install loopstats and call it by its name"
            )
        given = Path(named).absolute()
    return given


# --- cron ------------------------------------------------------------------------------------------------------------


def cron_command(job: Job) -> str:
    """The line's command: variables and words quoted for the shell, `%` for cron, which would make newlines of it."""
    assigned = [f"{name}={shlex.quote(value)}" for name, value in job.environment.items()]
    start = f"cd {shlex.quote(job.folder)} && " if job.folder else ""
    words = start + " ".join([*assigned, *(shlex.quote(word) for word in job.arguments)])
    # To cron a backslash before a backslash is an escape too: two quotes keep it away from the percent sign.
    command = words.replace("\\%", "\\''%").replace("%", "\\%")
    if len(command.encode("utf-8", "surrogateescape")) > CRON_LONGEST:
        raise UsageError(
            f"the crontab line would be longer than the {CRON_LONGEST} bytes that cron takes: put options into "
            "[nightly] of loopstats.toml, or use systemd"
        )
    return command


def cron_block(job: Job, note: str = "") -> str:
    """The two lines that go into the crontab."""
    return f"{MARK} {job.key}{note}\n{job.minute} {job.hour} * * * {cron_command(job)}\n"


def read_crontab() -> str | None:
    """The user's crontab as bytes in text; None where there is none. UsageError where there is no `crontab`."""
    done = _crontab("-l")
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "surrogateescape")
    if b"no crontab" in done.stderr.lower():
        return None
    raise StorageError(f"crontab -l: {_said(done)}")


def write_crontab(text: str | None) -> None:
    """Make `text` the user's crontab; None takes it away."""
    done = _crontab("-r") if text is None else _crontab("-", stdin=text.encode("utf-8", "surrogateescape"))
    if done.returncode != 0:
        raise StorageError(f"crontab: {_said(done)}; nothing was changed")


def _crontab(argument: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("crontab")
    if program is None:
        raise UsageError("no `crontab` on this machine: install cron, or use `loopstats schedule ... systemd`")
    return subprocess.run([program, argument], input=stdin, capture_output=True, check=False, timeout=60)


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"


def with_block(before: str | None, job: Job) -> str:
    """The crontab with the job's block: in its old place where it is there already, else at the end."""
    lines = (before or "").splitlines(keepends=True)
    place = _place(lines, job.key)
    if place is not None:
        mark = lines[place].rstrip("\n")
        note = mark[len(f"{MARK} {job.key}") :]
        return "".join([*lines[:place], cron_block(job, note), *lines[place + 2 :]])
    if before is None:
        return cron_block(job, NEW_CRONTAB)
    if before and not before.endswith("\n"):
        return f"{before}\n{cron_block(job, NEW_NEWLINE)}"
    return before + cron_block(job)


def without_block(before: str | None, key: str) -> str | None:
    """The crontab without the block of a lake, byte for byte as it was; None where there was none."""
    lines = (before or "").splitlines(keepends=True)
    place = _place(lines, key)
    if place is None:
        return before
    note = lines[place].rstrip("\n")[len(f"{MARK} {key}") :]
    left = "".join(lines[:place] + lines[place + 2 :])
    if note == NEW_NEWLINE and place == len(lines) - 2:
        return left.removesuffix("\n")
    return None if note == NEW_CRONTAB and not left else left


def _place(lines: Sequence[str], key: str) -> int | None:
    """Where the block begins. A mark whose next line is no job of ours is somebody's comment."""
    for number, line in enumerate(lines[:-1]):
        if line.startswith(f"{MARK} {key}") and "LOOPSTATS_LAKE=" in lines[number + 1]:
            return number
    return None


def cron_line(crontab: str | None, key: str) -> str | None:
    """The installed command line of a lake."""
    lines = (crontab or "").splitlines(keepends=True)
    place = _place(lines, key)
    return None if place is None else lines[place + 1].rstrip("\n")


# --- systemd ---------------------------------------------------------------------------------------------------------


def unit_name(key: str) -> str:
    """Both units of a lake are called this, with `.service` and `.timer`."""
    return f"loopstats-nightly-{key}"


def unit_folder(env: Mapping[str, str]) -> Path:
    """Where systemd looks for units of the user."""
    return Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or Path.home()) / ".config") / "systemd" / "user"


def units(job: Job) -> dict[str, str]:
    """The service and the timer by file name. UsageError where systemd would refuse the program's name."""
    if re.search(r"[\"'\\]", job.arguments[0]):
        raise UsageError(
            f"{job.arguments[0]}: systemd starts no program with a quote or backslash in its path; move it"
        )
    name = unit_name(job.key)
    around = "".join(f"Environment={_quoted(f'{key}={value}')}\n" for key, value in job.environment.items())
    # The program itself is not searched for variables, its arguments are.
    words = [_quoted(job.arguments[0]), *(_quoted(word).replace("$", "$$") for word in job.arguments[1:])]
    head = "# Put here by `loopstats schedule`; `loopstats schedule --uninstall systemd` takes it away.\n"
    place = f"WorkingDirectory={job.folder.replace('%', '%%')}\n" if job.folder else ""  # taken whole, unquoted
    service = (
        f"{head}[Unit]\nDescription=loopstats nightly of lake {job.key}\n\n"
        f"[Service]\nType=oneshot\n{place}{around}ExecStart={' '.join(words)}\nNice=10\n"
    )
    timer = (
        f"{head}[Unit]\nDescription=loopstats nightly of lake {job.key}\n\n"
        f"[Timer]\nOnCalendar=*-*-* {job.hour:02d}:{job.minute:02d}:00\nPersistent=true\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )
    return {f"{name}.service": service, f"{name}.timer": timer}


def _quoted(text: str) -> str:
    """One word of a unit file: C escapes in double quotes, and `%`, which would be a specifier, doubled."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def unit_changes(job: Job | None, key: str, env: Mapping[str, str]) -> list[Change]:
    """What install (with a job) or uninstall (without) does to the units of a lake."""
    folder = unit_folder(env)
    wanted = units(job) if job is not None else {}
    names = [f"{unit_name(key)}.service", f"{unit_name(key)}.timer"]
    return [Change(str(folder / name), _read(folder / name), wanted.get(name)) for name in names]


def write_units(changes: Sequence[Change], key: str, env: Mapping[str, str]) -> None:
    """Write or remove the units; the link with which the timer was enabled goes with it."""
    folder = unit_folder(env)
    for change in changes:
        path = Path(change.name)
        if change.after is None:
            path.unlink(missing_ok=True)
        elif change.after != change.before:
            make_folder(folder)
            beside = path.with_name(f".{path.name}.new")
            beside.touch(mode=0o600)
            beside.write_text(change.after, encoding="utf-8")
            beside.replace(path)
    if all(change.after is None for change in changes):
        enabled_link(key, env).unlink(missing_ok=True)


def enabled_link(key: str, env: Mapping[str, str]) -> Path:
    """What `systemctl --user enable` makes."""
    return unit_folder(env) / "timers.target.wants" / f"{unit_name(key)}.timer"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def verified(paths: Sequence[Path]) -> str | None:
    """What `systemd-analyze verify` says against the units; None where it is content, or not on this machine."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return None
    command = [program, "verify", "--user", *map(str, paths)]
    with tempfile.TemporaryDirectory(prefix="loopstats-") as scratch:
        around = {"XDG_RUNTIME_DIR": scratch} | dict(os.environ)  # without one it looks at nothing
        done = subprocess.run(command, capture_output=True, text=True, env=around, check=False, timeout=60)
    told = done.stderr.splitlines()
    ours = [line for line in told if any(path.name in line for path in paths)]
    return "; ".join(ours or (told[-1:] if done.returncode else [])) or None


# --- status ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """One kind of timetable: `state` is `installed`, `off` (units that are not enabled), `partial` or `absent`."""

    kind: str
    state: str
    at: str | None
    command: str | None
    place: str


def status(lake: Path, env: Mapping[str, str]) -> list[Standing]:
    """How the lake's timetable stands in cron and in systemd, by their files."""
    key = Job(str(lake.absolute()), 0, 0, ()).key
    try:
        line = cron_line(read_crontab(), key)
    except (UsageError, StorageError, OSError, subprocess.TimeoutExpired):
        line = None
    minute, hour, _, _, _, command = line.split(" ", 5) if line else (None, None, "", "", "", None)
    at = f"{int(hour):02d}:{int(minute):02d}" if hour and minute and hour.isdigit() and minute.isdigit() else None
    found = [Standing("cron", "installed" if line else "absent", at, command, "crontab")]
    folder = unit_folder(env)
    service, timer = (_read(folder / f"{unit_name(key)}.{kind}") for kind in ("service", "timer"))
    state = "absent"
    if service is not None or timer is not None:
        is_whole = service is not None and timer is not None
        state = "partial" if not is_whole else "installed" if enabled_link(key, env).is_symlink() else "off"
    told_at = re.search(r"^OnCalendar=\*-\*-\* ([0-9:]{5})", timer or "", re.MULTILINE)
    told = re.search(r"^ExecStart=(.*)$", service or "", re.MULTILINE)
    found.append(Standing("systemd", state, told_at[1] if told_at else None, told[1] if told else None, str(folder)))
    return found
