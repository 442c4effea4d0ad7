"""The command line: parses, calls, prints; owns stderr and the exit codes, and works on no data.

A room of its own because manners live here: stdout is data and stderr is talk, every error is one line with its
documented exit code, a closed pipe is no error, and what a command does not need is not imported.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopstats import __version__
from loopstats.errors import INTERNAL, INTERRUPT, IO, OK, USAGE, LoopstatsError, NothingError, UsageError

if TYPE_CHECKING:
    import polars as pl

    from loopstats.config import Settings
    from loopstats.estimate import Readout
    from loopstats.output import Envelope, Layout
    from loopstats.query import Filters
    from loopstats.store import Snapshot
    from loopstats.when import Interval

REJECTS_SHOWN = 20
SHORT_ID = 8
GLOBAL_VALUES = ("--lake", "--config", "--color", "--tz")
GLOBAL_FLAGS = ("--quiet", "-q", "--verbose", "-v", "--no-progress")

LOOP_COLUMNS = (
    "loop",
    "outcome",
    "tool",
    "message",
    "detected_at",
    "arm",
    "error_code",
    "count_events",
    "steps_to_outcome",
    "rule",
    "is_enrolled",
    "model",
    "project",
    "run",
    "harness",
)
TOOL_COLUMNS = (
    "tool",
    "kind",
    "kind_source",
    "count_steps",
    "count_failures",
    "count_unknown",
    "count_vetoed",
    "count_runs",
    "is_attempt",
)
INGEST_COLUMNS = ("format", "files", "steps", "folded", "rejected", "read", "used", "nothing", "waiting", "repaired")

app = typer.Typer(
    name="loopstats",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Does what you do against stuck agents help? Break-rate lift against a blind control arm, from agent logs.",
    epilog="Exit codes: 0 ok, 1 internal error, 2 usage, 3 nothing matched, 4 too many rejects, "
    "5 a check found something, 74 I/O error, 75 lake locked, 130 interrupt.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True)
class Globals:
    """The global options, as given."""

    lake: Path | None
    config: Path | None
    is_quiet: bool
    is_verbose: bool
    has_progress: bool
    color: str
    tz: str

    @property
    def root(self) -> Path:
        """The folder of the lake."""
        if self.lake is not None:
            return self.lake
        import platformdirs

        return Path(platformdirs.user_data_path("loopstats")) / "lake"

    def settings(self) -> Settings:
        """The settings of all configuration files."""
        import platformdirs

        from loopstats import config

        return config.load(self.config, Path(platformdirs.user_config_path("loopstats")) / "loopstats.toml", Path.cwd())

    def snapshot(self) -> Snapshot:
        """The newest generation of the lake."""
        from loopstats.store import Lake

        return Lake.open(self.root).snapshot()

    def note(self, text: str) -> None:
        """Talk, unless `--quiet`."""
        if not self.is_quiet:
            say(text)

    def is_coloured(self, path: Path | None) -> bool:
        """Whether stdout gets colours."""
        if self.color != "auto":
            return self.color == "always"
        return (
            path is None and sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )


@dataclass(frozen=True)
class Answer:
    """Where and how a command answers."""

    context: Globals
    format_name: str
    path: Path | None

    @property
    def is_plain_table(self) -> bool:
        """A person reads it."""
        return self.format_name == "table"

    def layout(self, columns: tuple[str, ...] = ()) -> Layout:
        """The table's layout on this terminal."""
        import shutil

        from loopstats.output import Layout

        return Layout(
            max(shutil.get_terminal_size((100, 24)).columns, 20), self.context.is_coloured(self.path), columns
        )

    def rows(self, frame: pl.DataFrame, envelope: Envelope, layout: Layout | None = None) -> None:
        """Write a frame."""
        from loopstats import output

        self.pieces(output.render(frame, self.format_name, envelope, layout))
        if self.is_plain_table and layout is not None and frame.height and (hidden := output.left_out(frame, layout)):
            self.context.note(f"not shown at width {layout.width}: {', '.join(hidden)} (-f json has every column)")

    def pieces(self, pieces: Iterable[bytes]) -> None:
        """Write bytes to the file or to stdout."""
        from loopstats import output

        if self.path is not None:
            output.write_file(self.path, pieces)
            return
        if self.format_name == "parquet" and sys.stdout.isatty():
            raise UsageError("-f parquet is binary; name a file with -o FILE, or pipe it")
        try:
            sys.stdout.flush()
            output.write_stream(sys.stdout.buffer, pieces)
        except BrokenPipeError:
            _drop_stdout()


def now_us() -> int:
    """The clock, in whole seconds, so that what is printed can be typed again as `--as-of`."""
    return time.time_ns() // 1_000_000_000 * 1_000_000


def say(text: str) -> None:
    """One line on stderr; nothing in it reaches the terminal as a command."""
    line = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text.replace("\n", " "))
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"loopstats: {line}\n")
        sys.stderr.flush()


def _version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"loopstats {__version__}\n")
        raise typer.Exit


@app.callback()
def _globals(
    context: typer.Context,
    lake: Annotated[
        Path | None, typer.Option("--lake", metavar="DIR", envvar="LOOPSTATS_LAKE", help="Folder of the lake.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Configuration file, over the user's and ./loopstats.toml."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only data and errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False,
    color: Annotated[
        str, typer.Option("--color", metavar="auto|always|never", help="Colours on stdout; NO_COLOR is respected.")
    ] = "auto",
    tz: Annotated[
        str, typer.Option("--tz", metavar="ZONE", help="Zone of dates in --since, --until and --as-of.")
    ] = "UTC",
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if color not in ("auto", "always", "never"):
        raise UsageError(f"--color {color}: use auto, always or never")
    context.obj = Globals(lake, config, quiet, verbose and not quiet, not no_progress, color, tz)


Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="WHEN", help="From: 90min 24h 7d 4w 6mo 1y, YYYY-MM-DD, ISO 8601, today, yesterday, all."
    ),
]
Until = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Up to, this instant not included.")]
AsOf = Annotated[str | None, typer.Option("--as-of", metavar="WHEN", help="What was known then; default now.")]
Project = Annotated[list[str] | None, typer.Option("--project", metavar="NAME", help="Only this project (repeatable).")]
Model = Annotated[list[str] | None, typer.Option("--model", metavar="NAME", help="Only this model (repeatable).")]
Harness = Annotated[
    list[str] | None,
    typer.Option(
        "--harness", metavar="NAME", help="Only this agent program, with or without its version (repeatable)."
    ),
]
Tool = Annotated[list[str] | None, typer.Option("--tool", metavar="NAME", help="Only this tool (repeatable).")]
Where = Annotated[str | None, typer.Option("--where", metavar="SQL", help="Only rows that meet this SQL condition.")]
Format = Annotated[
    str | None, typer.Option("--format", "-f", metavar="FORMAT", help="table, json, jsonl, csv, parquet or md.")
]
Json = Annotated[bool, typer.Option("--json", help="Short for -f json.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file, whole or not at all.")
]


@app.command()
def ingest(
    context: typer.Context,
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH...", help="Log files and folders.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Read every file anew.")] = False,
    max_rejects: Annotated[
        int | None,
        typer.Option("--max-rejects", metavar="N", min=0, help="Write nothing and exit 4 with more rejects."),
    ] = None,
    json: Json = False,
) -> None:
    """Read new and grown log files into the lake."""
    from loopstats import run
    from loopstats.store import Lake

    given: Globals = context.obj
    if not paths:
        raise UsageError("ingest: name at least one file or folder, e.g. `loopstats ingest ~/.claude/projects`")
    settings = given.settings()
    with _progress(given) as progress:
        summary = run.ingest(
            Lake(given.root), paths, settings, is_full=full, max_rejects=max_rejects, progress=progress
        )
    _say_rejects(summary["rejects"])
    _print_ingest(Answer(given, "json" if json else "table", None), summary, settings)
    if summary["unbalanced"]:
        names = ", ".join(summary["unbalanced"][:3])
        raise LoopstatsError(
            f"{len(summary['unbalanced'])} files have lines that are not accounted for ({names}); "
            "see `loopstats sql conservation`"
        )
    if not summary["rejects"] and not any(summary[f"files_{name}"] for name in ("new", "grown", "same", "gone")):
        raise NothingError(f"no log file under {', '.join(paths)}")


def _say_rejects(rejects: list[tuple[str, int, str]]) -> None:
    for file, line, reason in rejects[:REJECTS_SHOWN]:
        say(f"rejected {file}:{line}: {reason}" if line else f"rejected {file}: {reason}")
    if len(rejects) > REJECTS_SHOWN:
        say(f'… and {len(rejects) - REJECTS_SHOWN} more (loopstats sql "select * from rejects")')


def _print_ingest(answer: Answer, summary: dict[str, Any], settings: Settings) -> None:
    import polars as pl

    from loopstats.output import Envelope, canonical
    from loopstats.when import iso

    files = {name: summary[f"files_{name}"] for name in ("new", "grown", "same", "gone", "skipped")}
    experimental = sorted(row["format"] for row in summary["formats"] if row["is_experimental"])
    warnings = tuple(f"format {name} is experimental: no real file stands behind its reader" for name in experimental)
    frame = pl.DataFrame(summary["formats"], infer_schema_length=None)
    if not answer.is_plain_table:
        head = Envelope("ingest", iso(now_us()), answer.context.tz, settings.rule_digest).head()
        body = {
            **head,
            "files": files,
            "rows": summary["formats"],
            "rejects": len(summary["rejects"]),
            "warnings": list(warnings),
        }
        answer.pieces([canonical(body).encode() + b"\n"])
        return
    lines = "files: " + ", ".join(f"{count} {name}" for name, count in files.items())
    if frame.height:
        label = pl.when(pl.col("format") == "").then(pl.lit("(unknown)")).otherwise(pl.col("format"))
        shown = frame.with_columns(
            pl.when("is_experimental").then(label + " (experimental)").otherwise(label).alias("format")
        )
        answer.rows(
            shown,
            Envelope("ingest", iso(now_us()), answer.context.tz, settings.rule_digest),
            answer.layout(INGEST_COLUMNS),
        )
    answer.pieces([lines.encode() + b"\n"])
    answer.context.note(
        f"lake {answer.context.root}: {summary['tables']['steps']} steps, {summary['tables']['loops']} loops"
    )


@contextlib.contextmanager
def _progress(given: Globals) -> Iterator[Callable[[str, int, int], None] | None]:
    if given.is_quiet or not given.has_progress or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(name: str, number: int, total: int) -> None:
            printable = "".join(c if c.isprintable() else "?" for c in name)
            bar.update(task, completed=number, total=total, description=escape(printable[-60:]))

        yield tell


@app.command()
def lift(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    by: Annotated[
        list[str] | None, typer.Option("--by", metavar="COLUMN,...", help="Split by facts known at detection.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Show every check and sensitivity.")] = False,
    experiment: Annotated[
        str | None, typer.Option("--experiment", metavar="NAME", help="Only this experiment, beside the replay.")
    ] = None,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    tool: Tool = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Compare the break rates of the arms, with intervals and sample sizes."""
    answer = _answer(context, format_, json, output)
    interval = _interval(context, since, until, as_of)
    given: Globals = context.obj
    snapshot = given.snapshot()
    settings = given.settings()
    from loopstats import estimate, query

    columns = tuple(name.strip() for item in by or () for name in item.split(",") if name.strip())
    estimate.check_early(columns, "split")
    frame = snapshot.read("loops")
    chosen = query.early_filter(frame, interval, _filters(project, model, harness, tool, where))
    readout = estimate.lift(
        frame,
        snapshot.read("sessions"),
        snapshot.read("detections"),
        snapshot.read("deliveries"),
        settings,
        as_of_us=interval.as_of_us,
        since_us=interval.since_us,
        until_us=interval.until_us,
        by=columns,
        where=chosen,
    )
    if experiment is not None:
        readout = _only(readout, experiment)
    _print_lift(answer, readout, interval, settings, all_)
    if not any(e.headline.treated.n + e.headline.holdout.n + sum(e.pending) for e in readout.estimates):
        raise NothingError("no loops match")


def _only(readout: Readout, experiment: str) -> Readout:
    """The readout of one experiment, beside the replay."""
    from dataclasses import replace

    known = sorted({e.experiment for e in readout.estimates if e.experiment})
    if experiment not in known:
        raise NothingError(f"no experiment {experiment!r} in the logs; there are: {', '.join(known) or 'none'}")
    names = ("", experiment)
    return replace(
        readout,
        estimates=tuple(e for e in readout.estimates if e.experiment in names),
        warnings=tuple(w for w in readout.warnings if w.experiment in names),
    )


def _print_lift(answer: Answer, readout: Readout, interval: Interval, settings: Settings, is_all: bool) -> None:
    from loopstats import output, report

    if answer.is_plain_table:
        answer.pieces([report.lift_text(readout, answer.layout().width, all=is_all).rstrip("\n").encode() + b"\n"])
        return
    body = readout.to_json(interval.tz)
    if answer.format_name == "json":
        answer.pieces([output.canonical(body).encode() + b"\n"])
    elif answer.format_name == "jsonl":
        answer.pieces(output.canonical(row).encode() + b"\n" for row in body["rows"])
    else:
        frame = output.frame_of_objects(body["rows"], has_nested=answer.format_name != "md")
        answer.rows(frame, _envelope(answer, "lift", interval, settings))


@app.command()
def loops(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    tool: Tool = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List the loops, newest first."""
    answer = _answer(context, format_, json, output)
    interval = _interval(context, since, until, as_of)
    given: Globals = context.obj
    snapshot = given.snapshot()
    from loopstats import query

    connection = query.open_snapshot(snapshot, interval.as_of_us)
    frame = query.loops(connection, interval, _filters(project, model, harness, tool, where))
    envelope = _envelope(answer, "loops", interval, given.settings())
    _write_or_nothing(
        answer, query.shortened(frame, SHORT_ID) if answer.is_plain_table else frame, envelope, LOOP_COLUMNS, "loops"
    )


@app.command()
def tools(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    tool: Tool = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List every tool with its kind; unclassified ones first."""
    answer = _answer(context, format_, json, output)
    interval = _interval(context, since, until, as_of)
    given: Globals = context.obj
    snapshot = given.snapshot()
    from loopstats import query

    connection = query.open_snapshot(snapshot, interval.as_of_us)
    frame = query.tools(connection, interval, _filters(project, model, harness, tool, where))
    unclassified = query.unclassified(frame)
    warnings = (unclassified,) if unclassified else ()
    envelope = _envelope(answer, "tools", interval, given.settings(), warnings)
    _write_or_nothing(answer, frame, envelope, TOOL_COLUMNS, "steps")
    for warning in warnings:
        given.note(warning)


@app.command()
def sql(
    context: typer.Context,
    query_text: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="A SELECT, or the name of a question; without it, from stdin."),
    ] = None,
    as_of: AsOf = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Ask the lake in SQL, read-only."""
    answer = _answer(context, format_, json, output)
    interval = _interval(context, None, None, as_of)
    given: Globals = context.obj
    if query_text is None:
        if sys.stdin.isatty():
            raise UsageError(
                'sql: give a query, e.g. `loopstats sql "select * from outcomes_by_arm"`, or see `loopstats queries`'
            )
        query_text = sys.stdin.read()
    snapshot = given.snapshot()
    from loopstats import query

    question = query.named(query_text.strip())
    frame = query.run(
        query.open_snapshot(snapshot, interval.as_of_us), query_text if question is None else question.sql
    )
    answer.rows(frame, _envelope(answer, "sql", interval, given.settings()), answer.layout())


@app.command()
def queries(context: typer.Context, format_: Format = None, json: Json = False, output: Output = None) -> None:
    """List the named questions that `sql` knows."""
    answer = _answer(context, format_, json, output)
    from loopstats import query

    _write_static(answer, "queries", query.queries())


@app.command()
def schema(
    context: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="A table or view.")] = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List the tables and views, or the columns of one."""
    answer = _answer(context, format_, json, output)
    from loopstats import query

    _write_static(answer, "schema", query.schema_tables() if table is None else query.schema_columns(table))


def _write_static(answer: Answer, command: str, frame: pl.DataFrame) -> None:
    from loopstats.output import Envelope
    from loopstats.when import iso

    envelope = Envelope(command, iso(now_us()), answer.context.tz, answer.context.settings().rule_digest)
    answer.rows(frame, envelope, answer.layout())


def _write_or_nothing(
    answer: Answer, frame: pl.DataFrame, envelope: Envelope, columns: tuple[str, ...], what: str
) -> None:
    if frame.height or not answer.is_plain_table:
        answer.rows(frame, envelope, answer.layout(columns))
    if not frame.height:
        raise NothingError(f"no {what} match")


def _answer(context: typer.Context, format_name: str | None, is_json: bool, path: Path | None) -> Answer:
    from loopstats.output import format_of

    if is_json and format_name not in (None, "json"):
        raise UsageError(f"--json and -f {format_name}: choose one")
    return Answer(context.obj, format_of("json" if is_json else format_name, path), path)


def _interval(context: typer.Context, since: str | None, until: str | None, as_of: str | None) -> Interval:
    from loopstats import when

    given: Globals = context.obj
    interval = when.resolve(since, until, as_of, given.tz, now_us())
    given.note(str(interval))
    if given.is_verbose:
        given.note(f"lake {given.root}")
    return interval


def _filters(
    project: list[str] | None,
    model: list[str] | None,
    harness: list[str] | None,
    tool: list[str] | None,
    where: str | None,
) -> Filters:
    from loopstats.query import Filters

    return Filters(tuple(project or ()), tuple(model or ()), tuple(harness or ()), tuple(tool or ()), where)


def _envelope(
    answer: Answer, command: str, interval: Interval, settings: Settings, warnings: tuple[str, ...] = ()
) -> Envelope:
    from loopstats.output import Envelope
    from loopstats.when import iso

    return Envelope(command, iso(interval.as_of_us), interval.tz, settings.rule_digest, interval.to_json(), warnings)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: runs the command and exits with its code."""
    code = run_command(arguments)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()
    sys.exit(code)


def hoisted(arguments: list[str]) -> list[str]:
    """The arguments with the global options first, wherever they stood; UsageError where one lacks its value."""
    front: list[str] = []
    rest: list[str] = []
    items = iter(arguments)
    for item in items:
        if item == "--":
            rest += [item, *items]
        elif item in GLOBAL_FLAGS or item.startswith(tuple(f"{name}=" for name in GLOBAL_VALUES)):
            front.append(item)
        elif item in GLOBAL_VALUES:
            value = next(items, None)
            if value is None:
                raise UsageError(f"{item}: a value is needed (see loopstats --help)")
            front += [item, value]
        else:
            rest.append(item)
    return front + rest


def run_command(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code. Errors have been said."""
    try:
        result = app(
            args=hoisted(sys.argv[1:] if arguments is None else arguments), standalone_mode=False, prog_name="loopstats"
        )
        return result if isinstance(result, int) else OK
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPT
    except Exception as error:
        if os.environ.get("LOOPSTATS_DEBUG") == "1":
            import traceback

            traceback.print_exc()
        return _explain(error)


def _explain(error: Exception) -> int:
    """Say what went wrong in one line; the exit code for it."""
    if isinstance(error, LoopstatsError):
        say(str(error))
        return error.exit_code
    if type(error).__name__ == "Abort":
        say("interrupted")
        return INTERRUPT
    if callable(message := getattr(error, "format_message", None)):
        say(f"{message()} (see loopstats --help)")
        return USAGE
    if isinstance(error, OSError):
        say(f"{error.filename or 'I/O error'}: {error.strerror or error}")
        return IO
    say(f"internal error: {type(error).__name__}: {error} (LOOPSTATS_DEBUG=1 shows where; please report it)")
    return INTERNAL


def _drop_stdout() -> None:
    """The reader has gone: nothing more is written, and nothing is said at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
