"""The live side: `hook` puts the collector into an agent, `doctor` says what needs a hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopstats.cli.base import Format, Globals, Json, Output, app, make_answer, now_us, write_static
from loopstats.errors import FINDING, LoopstatsError, UsageError

if TYPE_CHECKING:
    from loopstats.doctor import Finding
    from loopstats.hooks import Change


HOOK_COLUMNS = ("agent", "scope", "settings", "firing", "last_fired", "sessions", "path")


@app.command()
def doctor(context: typer.Context, format_: Format = None, json: Json = False, output: Output = None) -> None:
    """Say what needs a hand, and what to do.

    Looks at log homes, the lake, what it could not read or class, the live hook and the nightly run.
    """
    answer = make_answer(context, format_, json, output)
    import polars as pl

    from loopstats import doctor as health
    from loopstats import hooks, journal, schedule

    given: Globals = context.obj
    now = now_us()
    found: list[health.Finding] = []
    rows: list[dict[str, Any]] = []
    try:
        rows, lake_found = _doctor_lake(given)
    except LoopstatsError as error:
        lake_found = [health.Finding("lake", "mend", str(error), "nothing else can be said of it")]
    found += _doctor_homes(given, rows, now)
    found += lake_found
    found += health.hook(hooks.status(Path.cwd(), os.environ, now), hooks.faults(os.environ))
    terms = given.settings().nightly
    log = Path(terms.log or given.root / journal.NAME)
    found += health.nightly(journal.read(log), schedule.status(given.root, os.environ), now, log)
    write_static(answer, "doctor", pl.DataFrame([vars(one) for one in found]))
    if any(one.state == "mend" for one in found):
        raise typer.Exit(FINDING)


def _doctor_homes(given: Globals, rows: list[dict[str, Any]], now: int) -> list[Finding]:
    from loopstats import doctor as health
    from loopstats import homes
    from loopstats.store import MANIFEST

    settings = given.settings()
    manifest = given.root / MANIFEST
    published_ns = manifest.stat().st_mtime_ns if manifest.exists() else None
    try:
        places = homes.places(settings.paths, settings.has_homes, os.environ)
    except UsageError as error:
        return [health.Finding("log homes", "mend", str(error), "mend [ingest] paths")]
    return health.homes(places, rows, published_ns, now)


def _doctor_lake(given: Globals) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Rows of the ledger, and the health of the lake."""
    from loopstats import doctor as health
    from loopstats.store import Lake

    store = Lake(given.root)
    rows, meta = store.peek()
    if not meta:
        return rows, [health.Finding("lake", "look", f"none at {given.root}", "run `loopstats ingest`")]
    snapshot = store.snapshot()
    return rows, health.lake(
        meta,
        given.settings().derived_digest,
        snapshot.read("sources"),
        snapshot.scan("steps").select("tool", "kind", "outcome").collect(),
        snapshot.scan("turns").select("model", "tokens_output", "cost_micros").collect(),
        snapshot.read("rejects"),
        snapshot,
    )


hook_app = typer.Typer(
    help="Put the live hook into a coding agent, or take it out.\n\n"
    "Its answers decide who is treated; `test` and `status` prove that it fires.",
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(hook_app, name="hook")

HookAgent = Annotated[str, typer.Option("--agent", metavar="NAME", help="claude-code or codex.")]
Scope = Annotated[
    str, typer.Option("--scope", metavar="user|project", help="Whose settings; a project is this folder.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the difference, change nothing.")]


@hook_app.command("install")
def hook_install(context: typer.Context, agent: HookAgent, scope: Scope = "user", dry_run: DryRun = False) -> None:
    """Merge the hook into an agent's settings.

    What was there stays, and a copy is kept beside it.
    """
    from loopstats import hooks

    change = hooks.install(hooks.agent_named(agent), scope, Path.cwd(), os.environ, dry_run)
    _tell_change(context.obj, change, "installed in", dry_run)


@hook_app.command("uninstall")
def hook_uninstall(context: typer.Context, agent: HookAgent, scope: Scope = "user", dry_run: DryRun = False) -> None:
    """Take the hook out again.

    Settings that were not touched since come back byte for byte.
    """
    from loopstats import hooks

    change = hooks.uninstall(hooks.agent_named(agent), scope, Path.cwd(), os.environ, dry_run)
    _tell_change(context.obj, change, "taken out of", dry_run)


@hook_app.command("status")
def hook_status(context: typer.Context, format_: Format = None, json: Json = False, output: Output = None) -> None:
    """Tell per agent how its settings stand and when its hook fired.

    The latter is read from the spool, by event time.
    """
    answer = make_answer(context, format_, json, output)
    import polars as pl

    from loopstats import hooks

    found = hooks.status(Path.cwd(), os.environ, now_us())
    rows = [vars(row) | {"notes": "; ".join(row.notes)} for row in found]
    write_static(answer, "hook_status", pl.DataFrame(rows, schema_overrides={"last_fired": pl.String}), HOOK_COLUMNS)
    for row in found:
        for note in row.notes:
            answer.context.note(f"{row.agent} ({row.scope}): {note}")
    noted = hooks.faults(os.environ)
    if noted:
        answer.context.note(f"the hook noted faults, the last: {noted[0]['fault']} at {noted[0]['ts']}")
    if any(row.settings in ("partial", "moved", "unreadable") for row in found):
        raise typer.Exit(FINDING)


@hook_app.command("test")
def hook_test(
    context: typer.Context,
    agent: HookAgent,
    scope: Scope = "user",
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Feed a recorded session through the installed command line.

    Once for each arm, into a spool of its own, so that nothing reaches a lake.
    """
    answer = make_answer(context, format_, json, output)
    import polars as pl

    from loopstats import hooks

    checks = hooks.trial(hooks.agent_named(agent), scope, Path.cwd(), os.environ)
    write_static(answer, "hook_test", pl.DataFrame([vars(check) for check in checks]))
    if not all(check.is_ok for check in checks):
        raise typer.Exit(FINDING)


@hook_app.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def hook_run(context: typer.Context) -> None:
    """Answer one event on stdin, for trying out.

    As the agent would start it, but slower.
    """
    from loopstats import hook

    hook.main(context.args)


def _tell_change(given: Globals, change: Change, words: str, is_dry: bool) -> None:
    if is_dry:
        sys.stdout.write(change.diff)
    given.note(
        f"{change.path}: nothing to change" if change.is_none else f"{'would be ' * is_dry}{words} {change.path}"
    )
    for note in change.notes:
        given.note(note)
