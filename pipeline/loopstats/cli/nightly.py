"""`nightly` and `schedule`: the run that nobody watches, and the timetable that starts it."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from loopstats.cli.base import (
    Answer,
    AsOf,
    Format,
    Globals,
    Json,
    Since,
    app,
    make_answer,
    make_interval,
    now_us,
    say,
    write_static,
)
from loopstats.errors import LOCKED, OK, LoopstatsError, UsageError

if TYPE_CHECKING:
    from loopstats.nightly import Plan

# Codes after which nobody has to be told: all went well, another night is at it, a person stopped it.
SILENT = (OK, LOCKED, 130)


@app.command()
def nightly(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH...", help="Log files and folders; default as for `ingest`."),
    ] = None,
    max_rejects: Annotated[
        int | None,
        typer.Option(
            "--max-rejects", metavar="N", min=0, help="Write nothing and exit 4 with more rejects in a night."
        ),
    ] = None,
    stale_days: Annotated[
        float | None,
        typer.Option(
            "--stale-days", metavar="N", min=0, help="Fail where the newest event is older; default 7, 0 off."
        ),
    ] = None,
    runs_days: Annotated[
        float | None,
        typer.Option(
            "--runs-days",
            metavar="N",
            min=0,
            help="Fail where runs of the last N days are longer than those of the N days before and are not shown to "
            "solve more; default off.",
        ),
    ] = None,
    since: Since = None,
    as_of: AsOf = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Also write the report there.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="The log of nights; default nightly.jsonl in the lake.")
    ] = None,
    on_fail: Annotated[
        str | None,
        typer.Option(
            "--on-fail", metavar="COMMAND", help="Run this, without a shell, when the night fails; 60 s are its limit."
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help="Processes that read.")] = None,
    json: Json = False,
) -> None:
    """Do everything that a night needs, and hold gates against it.

    Ingest, audits, the lift's record, a report if one is asked for; one JSON line goes to the log.
    """
    given: Globals = context.obj
    from loopstats import journal
    from loopstats import nightly as working
    from loopstats.cli.ingest import known_places
    from loopstats.config import Nightly

    try:
        terms = given.settings().nightly
    except LoopstatsError:  # said and logged by the night itself
        terms = Nightly()
        context.obj = replace(given, tz_flag=given.tz_flag or "UTC")
    interval = make_interval(context, since, None, as_of)
    context.obj.release()
    command = working.split_command(told) if (told := on_fail or terms.on_fail) else None
    path = (log or Path(terms.log or given.root / journal.NAME)).absolute()

    def prepare() -> Plan:
        settings = given.settings()
        terms = settings.nightly
        if paths:
            places = [working.Place("argument", str(Path(one).absolute())) for one in paths]
        else:
            places = [working.Place(home.name, home.path) for home in known_places(given, settings)]
        target = report or (Path(terms.report) if terms.report else None)
        return working.Plan(
            settings,
            places,
            terms.max_rejects if max_rejects is None else max_rejects,
            terms.stale_days if stale_days is None else stale_days,
            terms.runs_days if runs_days is None else runs_days,
            target.absolute() if target else None,
            interval.since_us,
            jobs,
        )

    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        line = working.night(given.root, path, prepare, as_of_us=interval.as_of_us, clock=now_us)
    finally:
        signal.signal(signal.SIGTERM, before)
    code = int(line["exit_code"])
    if json:
        from loopstats.output import canonical

        sys.stdout.write(canonical(line) + "\n")
    if code == OK:
        given.note(working.in_words(line))
    else:
        say(working.in_words(line))
        for gate in line["gates"]:
            if gate["state"] == "failed":
                told = "" if gate["value"] is None else f" {gate['value']:g}, the limit is {gate['limit']:g}"
                say(f"gate {gate['gate']}:{told}" + (f" ({gate['about']})" if gate["about"] else ""))
    if command and code not in SILENT and (fault := working.call_on_fail(command, line, path, os.environ)):
        say(f"--on-fail {fault}")
    raise typer.Exit(code)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


SCHEDULE_COLUMNS = ("kind", "state", "at", "command", "place")
CHANGE_COLUMNS = ("kind", "place", "is_changed", "is_dry_run", "diff")


@app.command()
def schedule(
    context: typer.Context,
    kind: Annotated[str | None, typer.Argument(metavar="cron|systemd", help="Whose timetable.")] = None,
    options: Annotated[
        list[str] | None, typer.Argument(metavar="-- OPTION...", help="Paths and options for `nightly`.")
    ] = None,
    print_: Annotated[bool, typer.Option("--print", help="Print what would be put there; change nothing.")] = False,
    install: Annotated[bool, typer.Option("--install", help="Put it there; a second time changes nothing.")] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Take it out; what was there before comes back.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Tell how cron and systemd stand.")] = False,
    at: Annotated[str, typer.Option("--at", metavar="HH:MM", help="When, by the machine's own clock.")] = "03:30",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the difference, change nothing.")] = False,
    format_: Format = None,
    json: Json = False,
) -> None:
    """Let cron or a systemd user timer start `nightly`.

    Nothing is started now. What else stands in the crontab stays as it is.
    """
    if [print_, install, uninstall, status].count(True) != 1:
        raise UsageError("schedule: give one of --print, --install, --uninstall and --status")
    given: Globals = context.obj
    answer = make_answer(context, format_, json, None)
    is_text = format_ is None and not json  # as it will stand there; else rows of it
    import polars as pl

    from loopstats import schedule as timetable

    if status:
        _schedule_status(answer)
        return
    if kind not in timetable.KINDS:
        raise UsageError(f"schedule: name one of {', '.join(timetable.KINDS)}, e.g. `loopstats schedule --print cron`")
    key = timetable.Job(str(given.root.absolute()), 0, 0, ()).key
    job = None
    if not uninstall:
        program = timetable.program_of(sys.argv[0], os.environ.get("PATH", os.defpath))
        given.settings()
        folder = Path.cwd() if Path("loopstats.toml").is_file() else None
        check_options(tuple(options or ()), f"{program.parent}:{timetable.STANDARD_PATH}")
        job = timetable.make_job(given.root, program, at, tuple(options or ()), given.config, os.environ, folder)
    if print_ and job is not None:
        texts = timetable.units(job) if kind == "systemd" else {"": timetable.cron_block(job)}
        folder = timetable.unit_folder(os.environ)
        if is_text:
            sys.stdout.write("\n".join(f"# {folder / name}\n{text}" if name else text for name, text in texts.items()))
            return
        rows = [
            {"kind": kind, "place": str(folder / name) if name else "crontab", "text": text}
            for name, text in texts.items()
        ]
        write_static(answer, "schedule_print", pl.DataFrame(rows))
        return
    if kind == "cron":
        before = timetable.read_crontab()
        after = timetable.without_block(before, key) if job is None else timetable.with_block(before, job)
        changes = [timetable.Change("crontab", before, after)]
    else:
        changes = timetable.unit_changes(job, key, os.environ)
    is_same = all(change.before == change.after for change in changes)
    if dry_run:
        if is_text:
            sys.stdout.write("".join(change.diff for change in changes))
    elif kind == "cron" and not is_same:
        timetable.write_crontab(changes[0].after)
    elif kind == "systemd":
        timetable.write_units(changes, key, os.environ)
    words = "nothing to change" if is_same else "would be changed" if dry_run else "changed"
    given.note(f"{', '.join(change.name for change in changes)}: {words}")
    if not is_text:
        told = [(kind, one.name, one.before != one.after, dry_run, one.diff) for one in changes]
        write_static(answer, "schedule_change", pl.DataFrame(told, schema=CHANGE_COLUMNS, orient="row"))
    if kind == "systemd" and not dry_run:
        _tell_systemd(given, [Path(change.name) for change in changes], is_out=job is None)


def check_options(options: tuple[str, ...], path: str) -> None:
    """What would fail every night fails now: an unknown option, a path that is none elsewhere, a missing command."""
    import shutil

    import typer.main

    from loopstats.nightly import split_command

    command = typer.main.get_command(app).commands["nightly"]  # type: ignore[attr-defined]
    with command.make_context("nightly", list(options), resilient_parsing=False) as parsed:
        told = parsed.params
    for name in (*(told["paths"] or ()), *(str(told[key]) for key in ("report", "log") if told[key])):
        if not Path(name).is_absolute():
            raise UsageError(f"{name}: a job starts in another folder; name {Path(name).absolute()}")
    if told["on_fail"] and shutil.which(first := split_command(told["on_fail"])[0], path=path) is None:
        raise UsageError(f"--on-fail {first}: not found in {path}; name its absolute path")


def _tell_systemd(given: Globals, paths: list[Path], *, is_out: bool) -> None:
    from loopstats import schedule as timetable

    if is_out:
        given.note("a running systemd forgets it with: systemctl --user daemon-reload")
        return
    if fault := timetable.verified(paths):
        say(f"systemd-analyze verify: {fault}")
    timer = paths[1].name
    given.note(
        f"nothing was started; begin with: systemctl --user daemon-reload && systemctl --user enable --now {timer}"
    )
    given.note("it runs while you are logged in; `loginctl enable-linger` lets it run without")


def _schedule_status(answer: Answer) -> None:
    import polars as pl

    from loopstats import schedule as timetable

    rows = [vars(one) for one in timetable.status(answer.context.root, os.environ)]
    write_static(
        answer, "schedule", pl.DataFrame(rows, schema=dict.fromkeys(SCHEDULE_COLUMNS, pl.String)), SCHEDULE_COLUMNS
    )
