"""`spark`: ingest, detect and lift on a cluster; the stages, the commit and the answer are those of one machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopstats.cli import reading
from loopstats.cli.base import (
    Answer,
    AsOf,
    Format,
    Globals,
    Json,
    Since,
    Until,
    app,
    make_answer,
    make_interval,
    write_static,
)
from loopstats.errors import UsageError

if TYPE_CHECKING:
    from loopstats.spark import Cluster

spark_app = typer.Typer(
    help="The same stages on a Spark cluster.\n\nNeeds pip install 'loopstats[spark]'.",
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(spark_app, name="spark")

BUCKET_BYTES = 256 << 20  # of compressed records: about 5 GB while it is worked on in `spark` mode

Mode = Annotated[
    str,
    typer.Option(
        "--mode", metavar="worker|spark", help="Who reads Parquet: the workers themselves, or Spark with a shuffle."
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark is: spark://HOST:7077, or local[2] for this machine."),
]
Remote = Annotated[str | None, typer.Option("--remote", metavar="URL", help="A Spark Connect server, sc://HOST.")]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Spark setting (repeatable).")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Lake to write; default that of --lake.")]


@spark_app.command("ingest")
def spark_ingest(
    context: typer.Context,
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH...", help="Log files and folders.")] = None,
    out: Out = None,
    mode: Mode = "worker",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Read new and grown log files on the workers.

    All tables are made there too.
    """
    given: Globals = context.obj
    if not paths:
        raise UsageError("spark ingest: name at least one file or folder that driver and workers see alike")
    from loopstats import run
    from loopstats.cli.ingest import finish
    from loopstats.store import Lake

    settings = given.settings()
    engine = _engine(mode, master, remote, conf)
    into = replace(given, lake=out or given.root)
    finish(
        Answer(into, "json" if json else "table", None),
        run.ingest(Lake(into.root), paths, settings, engine=engine),
        settings,
        paths,
    )


@spark_app.command("detect")
def spark_detect(
    context: typer.Context,
    out: Out = None,
    mode: Mode = "worker",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Make every table of the lake anew from its records.

    From steps to loops with their arm and outcome.
    """
    given: Globals = context.obj
    given.snapshot()
    from loopstats import run
    from loopstats.store import Lake

    engine = _engine(mode, master, remote, conf)
    _warn_of_size(given)
    settings, into = given.settings(), Lake(out or given.root)
    told = run.detect_anew(Lake(given.root), into, settings, engine)
    columns = (*run.ARMS, "tokens_wasted", "cost_wasted_micros")
    arms = run.count_arms(engine.over(into.snapshot(), "loops", columns, run.count_arms).lazy())
    write_static(Answer(given, "json" if json else "table", None), "spark-detect", arms)
    given.note(f"lake {into.root}: {told['tables']['steps']} steps, {told['tables']['loops']} loops")


@spark_app.command("lift")
def spark_lift(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where the answer goes.")] = None,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    format_: Format = None,
    json: Json = False,
    mode: Mode = "worker",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Compare the break rates of the arms, as `loopstats lift`.

    The rows and counts are gathered by the cluster.
    """
    answer = make_answer(context, format_, json, out)
    interval = make_interval(context, since, until, as_of)
    given: Globals = context.obj
    snapshot, settings = given.snapshot(), given.settings()
    engine = _engine(mode, master, remote, conf)
    from loopstats import query

    readout = query.lift(snapshot, settings, interval, query.Filters(), over=engine.over)
    reading.finish_lift(answer, readout, interval, settings, False)


@spark_app.command("job")
def spark_job() -> None:
    """Print the path of the job file for spark-submit."""
    from importlib.util import find_spec

    found = find_spec("loopstats.spark_job")
    typer.echo(found.origin if found else "")


def _warn_of_size(given: Globals) -> None:
    size = given.snapshot().max_bucket_bytes
    if size > BUCKET_BYTES:
        given.note(
            f"the largest bucket holds {size >> 20} MB of records: give an executor memory for it (docs/scale.md)"
        )


def _engine(mode: str, master: str | None, remote: str | None, conf: list[str] | None) -> Cluster:
    from loopstats import spark

    if mode not in spark.MODES:
        raise UsageError(f"--mode {mode}: use {' or '.join(spark.MODES)}")
    if master is not None and remote is not None:
        raise UsageError("--master and --remote: choose one")
    return spark.Cluster(spark.open_session(master, remote, conf or ()), mode)
