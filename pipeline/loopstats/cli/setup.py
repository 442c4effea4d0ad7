"""How the program is set up: `config` shows every value and where it came from, `completion` is for shells."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from loopstats.cli.base import Format, Globals, Json, Output, app, make_answer, write_static
from loopstats.errors import UsageError


@app.command()
def config(
    context: typer.Context,
    path: Annotated[
        bool, typer.Option("--path", help="Only the files, also those that could be: which there are, in order.")
    ] = False,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Show every setting with its value and where it came from.

    Later places override earlier ones: built in, the user's loopstats.toml, the project's, loopstats.local.toml beside
    it, --config FILE, environment, options. A salt is shown by its id only.
    """
    answer = make_answer(context, format_, json, output)
    import polars as pl

    from loopstats import config as settings

    given: Globals = context.obj
    if path:
        places = [(str(file), kind, os.path.lexists(file)) for file, kind in given.config_places()]
        frame = pl.DataFrame(
            places, schema={"file": pl.String, "whose": pl.String, "is_there": pl.Boolean}, orient="row"
        )
        write_static(answer, "config_path", frame)
        return
    rows = [(name, str(given.root) if name == "lake" else value, source) for name, value, source in given.given.rows()]
    frame = pl.DataFrame(rows, schema=dict.fromkeys(("key", "value", "source"), pl.String), orient="row")
    write_static(answer, "config", frame)
    for line in settings.unknown_variables(os.environ):
        given.note(line)


@app.command()
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script with which a shell completes loopstats.

    It completes commands, options and values that have names.
    """
    from loopstats.cli.complete import SCRIPTS

    if shell not in SCRIPTS:
        raise UsageError(f"completion {shell}: use one of {', '.join(SCRIPTS)}")
    sys.stdout.write(SCRIPTS[shell])
