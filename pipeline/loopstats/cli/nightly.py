"""`nightly` and `schedule`: the run that nobody watches, and the timetable that starts it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from loopstats.cli.base import AsOf, Globals, Json, Since, app, make_interval, now_us, say
from loopstats.errors import LOCKED, OK, LoopstatsError

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
    """Do a night: ingest, audits, the lift's record, a report, gates; one JSON line to the log.

    Exit codes: 0 all gates passed, 4 too many rejects, 5 a gate failed, 74 I/O error, 75 another night is running.
    """
    given: Globals = context.obj
    interval = make_interval(context, since, None, as_of)
    from loopstats import journal
    from loopstats import nightly as working
    from loopstats.cli.ingest import known_places
    from loopstats.config import Nightly

    try:
        terms = given.settings().nightly
    except LoopstatsError:  # said and logged by the night itself
        terms = Nightly()
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

    signal.signal(signal.SIGTERM, _interrupt)
    line = working.night(given.root, path, prepare, as_of_us=None if as_of is None else interval.as_of_us, clock=now_us)
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
                say(f"gate {gate['gate']}: {gate['value']} over {gate['limit']} {gate['about']}".rstrip())
    if command and code not in SILENT and (fault := working.call_on_fail(command, line, path, os.environ)):
        say(f"--on-fail {fault}")
    raise typer.Exit(code)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
