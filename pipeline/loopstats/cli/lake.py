"""`lake`: look into the lake, prove that it is whole, make its files few, make its tables anew."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from loopstats.cli.base import (
    Answer,
    Format,
    Globals,
    Json,
    Output,
    app,
    make_answer,
    now_us,
    progress_bar,
    say,
    write_static,
)
from loopstats.errors import FINDING

TABLE_COLUMNS = ("name", "count_rows", "size_bytes", "count_files", "most_files_in_a_bucket", "largest_bucket_bytes")
CHECK_COLUMNS = ("check", "state", "where", "detail", "mend")

lake_app = typer.Typer(
    help="Take care of the lake.\n\nLook into it, prove that it is whole, make its files few, make its tables anew.",
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(lake_app, name="lake")


@lake_app.command()
def info(context: typer.Context, format_: Format = None, json: Json = False, output: Output = None) -> None:
    """Say what is in the lake.

    Generation, versions, sources, first and last event, and each table's rows, bytes and files.
    """
    answer = make_answer(context, format_, json, output)
    from loopstats import care
    from loopstats.doctor import MANY_FILES
    from loopstats.store import Lake

    facts, tables = care.info(Lake(answer.context.root))
    if answer.is_plain_table and answer.path is None:
        from loopstats.report import wrap
        from loopstats.when import iso

        width = answer.layout().width
        for name, value in facts.items():
            shown = "-" if value is None else iso(int(value.timestamp() * 1_000_000)) if name.endswith("_at") else value
            sys.stdout.write(wrap(f"{name.replace('_', ' ')}: {shown}", width) + "\n")
        sys.stdout.write("\n")
    _write(answer, "lake-info", tables, TABLE_COLUMNS, facts)
    if facts["most_files_in_a_bucket"] > MANY_FILES:
        answer.context.note("many small files: `loopstats lake compact` makes reading faster")


@lake_app.command()
def verify(context: typer.Context, format_: Format = None, json: Json = False, output: Output = None) -> None:
    """Prove that the lake is whole.

    Every byte is compared with the ledger, and ledger, manifest and tables with each other.
    """
    answer = make_answer(context, format_, json, output)
    import polars as pl

    from loopstats import care
    from loopstats.store import Lake

    checks = care.verify(Lake(answer.context.root))
    faults = [check for check in checks if check.state != "ok"]
    write_static(answer, "lake-verify", pl.DataFrame([vars(check) for check in checks]), CHECK_COLUMNS)
    for check in faults:
        say(f"{check.where}: {check.detail}; {check.mend}")
    if faults:
        raise typer.Exit(FINDING)


@lake_app.command()
def compact(context: typer.Context, format_: Format = None, json: Json = False, output: Output = None) -> None:
    """Make few files of many.

    One for each table and bucket; readers are not disturbed.
    """
    answer = make_answer(context, format_, json, output)
    import polars as pl

    from loopstats import care
    from loopstats.store import KEEP_GENERATIONS, Lake

    done = care.compact(Lake(answer.context.root))
    write_static(answer, "lake-compact", pl.DataFrame([done]))
    if done["count_files_before"] > done["count_files"]:
        answer.context.note(f"the files of before go away {KEEP_GENERATIONS} commits later, for readers still at them")


@lake_app.command()
def rebuild(
    context: typer.Context,
    from_sources: Annotated[
        bool,
        typer.Option("--from-sources", help="Read the logs that are still on disk anew; leave damaged records out."),
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", min=1, help="Processes that read, as for `ingest`.")
    ] = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Make every derived table anew of what was read.

    What was read of logs that are gone stays.
    """
    answer = make_answer(context, format_, json, output)
    import polars as pl

    from loopstats import run
    from loopstats.store import Lake

    given: Globals = answer.context
    Lake.open(given.root)
    with progress_bar(given) as tell:

        def progress(name: str, number: int, count: int, _done: int, _total: int) -> None:
            if tell is not None:
                tell(name, number, count)

        done = run.rebuild(
            Lake(given.root), given.settings(), is_from_sources=from_sources, jobs=jobs, progress=progress
        )
    is_same = done["digest_before"] == done["digest"]
    row = {name: done[name] for name in ("generation", "files_read", "files_gone", "digest_before", "digest")}
    write_static(answer, "lake-rebuild", pl.DataFrame([row | {"is_same": is_same}]))
    given.note("the tables are as they were" if is_same else "the tables differ from those of before")
    for path in done["dropped"]:
        say(f"{path}: missing or damaged, left out")
    for name, count in sorted(done["lost"].items()):
        say(f"{name}: {count} lines that were read are lost, the file is gone and their records were damaged")
    if done["lost"]:
        raise typer.Exit(FINDING)


def _write(answer: Answer, command: str, frame: Any, columns: tuple[str, ...], facts: dict[str, Any]) -> None:
    """As `write_static`; JSON has the facts beside the rows."""
    if answer.format_name != "json":
        write_static(answer, command, frame, columns)
        return
    from loopstats.output import Envelope, canonical, plain
    from loopstats.when import iso

    head = Envelope(command, iso(now_us()), answer.context.tz, answer.context.settings().rule_digest).head()
    body = {**head, **{name: plain(value) for name, value in facts.items()}, "rows": frame.to_dicts(), "warnings": []}
    answer.pieces([canonical(body).encode() + b"\n"])
