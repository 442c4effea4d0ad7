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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopstats import __version__
from loopstats.errors import FINDING, INTERNAL, INTERRUPT, IO, OK, USAGE, LoopstatsError, NothingError, UsageError

if TYPE_CHECKING:
    import polars as pl

    from loopstats.config import Settings
    from loopstats.estimate import Readout
    from loopstats.hooks import Change
    from loopstats.output import Envelope, Layout
    from loopstats.query import Filters
    from loopstats.store import Snapshot
    from loopstats.when import Interval

REJECTS_SHOWN = 20
FILE_STATES = ("new", "grown", "same", "gone", "skipped")
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
HISTORY_COLUMNS = (
    "as_of",
    "scope",
    "lift",
    "nightly",
    "verdict",
    "revision",
    "experiment",
    "treated",
    "holdout",
    "since",
    "reasons",
)
POWER_COLUMNS = (
    "n",
    "power_fixed",
    "power_anytime",
    "mde_fixed",
    "mde_anytime",
    "n_needed_fixed",
    "n_needed_anytime",
    "nights_to_n_star",
    "nights",
    "method",
    "n_treated",
    "n_holdout",
)
HOOK_COLUMNS = ("agent", "scope", "settings", "firing", "last_fired", "sessions", "path")
INGEST_COLUMNS = ("format", "files", "steps", "folded", "rejected", "read", "used", "nothing", "waiting", "repaired")

DRIFT_COLUMNS = (
    "run",
    "reason",
    "first_step",
    "detected_step",
    "length",
    "lead_steps",
    "tokens",
    "cost_micros",
    "tool",
    "detected_at",
    "rule",
    "harness",
    "model",
    "project",
)
AUDIT_COLUMNS = ("finding", "rate", "unit", "about", "count_rows")
AUDIT_ROW_COLUMNS = ("finding", "run", "step", "detail", "at")
GROUP_COLUMNS = (
    "n",
    "solved",
    "n_judged",
    "steps_p50",
    "steps_p90",
    "tokens_p50",
    "runs_with_drifts",
    "runs_with_loops",
    "runs_with_echoes",
    "unverified",
    "n_edited",
    "right_endings",
    "n_endings",
    "false_claims",
    "n_claims",
)
RUN_COLUMNS = (
    "run",
    "count_steps",
    "solved",
    "tokens",
    "distinct_ratio",
    "count_state_changes",
    "longest_frozen",
    "count_loops",
    "count_drifts",
    "count_echoes",
    "is_unverified",
    "last_verify",
    "ending",
    "claimed",
    "model",
    "project",
    "harness",
    "last_at",
)
TIER_COLUMNS = (
    "tier",
    "name",
    "after_cycles",
    "runs_fired",
    "n_runs",
    "runs_in_log",
    "count_cleared",
    "cleared_first_by",
    "count_lifted",
    "steps_left",
    "tokens_left",
    "cost_left_micros",
    "n_priced",
)
FAULT_COLUMNS = ("fault", "is_fault", "x", "n", "about", "detail", "run_id", "step")

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
    strict: Annotated[bool, typer.Option("--strict", help="Write nothing and exit 4 with any reject.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be read; write nothing.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            help="Processes that read; default 1 below 100 MB of new data, else a core each.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Read new and grown log files into the lake."""
    from loopstats import found

    given: Globals = context.obj
    if not paths:
        raise UsageError("ingest: name at least one file or folder, e.g. `loopstats ingest ~/.claude/projects`")
    if strict and max_rejects:
        raise UsageError(f"--strict allows no reject, --max-rejects {max_rejects} does: give one of them")
    settings = given.settings()
    answer = Answer(given, "json" if json else "table", None)
    if not (full or dry_run or json):
        digests = {"rule_digest": settings.rule_digest, "derived_digest": settings.derived_digest}
        summary = found.nothing_new(given.root, paths, digests)
        if summary is not None and summary["files_same"]:
            sys.stdout.write(_file_line(summary))
            _note_lake(given, summary)
            return
    # Only here: where nothing is new, nothing heavy is imported.
    from loopstats import run
    from loopstats.store import Lake

    if dry_run:
        _print_preview(answer, run.preview(Lake(given.root), paths, settings, is_full=full), settings)
        return
    with _ingest_progress(given) as progress:
        summary = run.ingest(
            Lake(given.root),
            paths,
            settings,
            is_full=full,
            max_rejects=0 if strict else max_rejects,
            jobs=jobs,
            progress=progress,
        )
    _say_rejects(summary["rejects"])
    _print_ingest(answer, summary, settings)
    if summary["unbalanced"]:
        names = ", ".join(summary["unbalanced"][:3])
        raise LoopstatsError(
            f"{len(summary['unbalanced'])} files have lines that are not accounted for ({names}); "
            "see `loopstats sql conservation`"
        )
    if not summary["rejects"] and not any(summary[f"files_{name}"] for name in ("new", "grown", "same", "gone")):
        raise NothingError(f"no log file under {', '.join(paths)}")


def _print_preview(answer: Answer, rows: list[dict[str, Any]], settings: Settings) -> None:
    import polars as pl

    from loopstats.output import Envelope
    from loopstats.when import iso

    if not rows:
        raise NothingError("no file there")
    schema = {"state": pl.String, "bytes_to_read": pl.Int64, "size_bytes": pl.Int64, "source_file": pl.String}
    frame = pl.DataFrame(rows, schema=schema)
    answer.rows(
        frame,
        Envelope("ingest-dry-run", iso(now_us()), answer.context.tz, settings.rule_digest),
        answer.layout(tuple(schema)),
    )
    counts = ", ".join(f"{n} {state}" for state, n in frame.group_by("state").len().sort("state").iter_rows())
    answer.context.note(f"{counts}; {frame['bytes_to_read'].sum():,} bytes to read; nothing was written")


def _say_rejects(rejects: list[tuple[str, int, str]]) -> None:
    for file, line, reason in rejects[:REJECTS_SHOWN]:
        say(f"rejected {file}:{line}: {reason}" if line else f"rejected {file}: {reason}")
    if len(rejects) > REJECTS_SHOWN:
        say(f'… and {len(rejects) - REJECTS_SHOWN} more (loopstats sql "select * from rejects")')


def _print_ingest(answer: Answer, summary: dict[str, Any], settings: Settings) -> None:
    import polars as pl

    from loopstats.output import Envelope, canonical
    from loopstats.when import iso

    files = {name: summary[f"files_{name}"] for name in FILE_STATES}
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
            "turns_told": summary["turns_told"],
            "turns_priced": summary["turns_priced"],
            "warnings": list(warnings),
        }
        answer.pieces([canonical(body).encode() + b"\n"])
        return
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
    answer.pieces([_file_line(summary).encode()])
    _note_lake(answer.context, summary)


def _file_line(summary: dict[str, Any]) -> str:
    counts = (f"{summary[f'files_{name}']} {name}" for name in FILE_STATES)
    return f"files: {', '.join(counts)}\n"


def _note_lake(given: Globals, summary: dict[str, Any]) -> None:
    given.note(
        f"lake {given.root}: {summary['tables']['steps']} steps, {summary['tables']['loops']} loops; "
        f"price known for {summary['turns_priced']} of {summary['turns_told']} turns with tokens"
    )


@contextlib.contextmanager
def _ingest_progress(given: Globals) -> Iterator[Callable[[str, int, int, int, int], None] | None]:
    """Files, bytes, rate and time left, on a terminal only."""
    if given.is_quiet or not given.has_progress or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        BarColumn(bar_width=24),
        TextColumn("{task.fields[files]}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, files="")

        def tell(name: str, number: int, count: int, done_bytes: int, total_bytes: int) -> None:
            printable = "".join(c if c.isprintable() else "?" for c in name)
            if total_bytes:
                bar.update(task, completed=done_bytes, total=total_bytes)
            unit = "files" if total_bytes else "buckets"
            bar.update(task, files=f"{number}/{count} {unit}", description=escape(printable[-40:]))

        yield tell


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
    record: Annotated[
        bool, typer.Option("--record", help="Also write every scope's estimate to the lake, for the nightly history.")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="List the recorded nights; --since and --until choose them by as-of.")
    ] = False,
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
    if record or history:
        if by or project or model or harness or tool or where or (record and history):
            raise UsageError("--record and --history take no split, no filter and not each other: a night is whole")
        interval = _interval(context, since, until, as_of)
        _history(answer, interval, experiment) if history else _record(answer, interval, experiment, all_)
        return
    interval = _interval(context, since, until, as_of)
    given: Globals = context.obj
    snapshot = given.snapshot()
    settings = given.settings()
    from loopstats import estimate, query

    columns = tuple(name.strip() for item in by or () for name in item.split(",") if name.strip())
    estimate.check_early(columns, "split")
    # Unsorted: the order of rows changes nothing here, and sorting a million loops takes longer than comparing them.
    read = dict(estimate.COLUMNS)
    # A filter may name any column that is known at detection.
    is_filtered = any((project, model, harness, tool, where))
    read["loops"] = ("*",) if is_filtered else tuple({*read["loops"], *columns})
    frame, sessions, detections, deliveries = (
        snapshot.scan(name).select(read.get(name, "*")).collect()
        for name in ("loops", "sessions", "detections", "deliveries")
    )
    chosen = query.early_filter(frame, interval, _filters(project, model, harness, tool, where))
    readout = estimate.lift(
        frame,
        sessions,
        detections,
        deliveries,
        settings,
        as_of_us=interval.as_of_us,
        since_us=interval.since_us,
        until_us=interval.until_us,
        by=columns,
        where=chosen,
    )
    known = estimate.quality(snapshot.scan("steps"), snapshot.read("sources"), interval.as_of_us)
    readout = replace(readout, warnings=(*readout.warnings, *known))
    _finish_lift(answer, readout, interval, settings, experiment, all_)


def _finish_lift(
    answer: Answer,
    readout: Readout,
    interval: Interval,
    settings: Settings,
    experiment: str | None,
    is_all: bool,
    is_record: bool = False,
) -> None:
    if experiment is not None:
        readout = _only(readout, experiment)
    _print_lift(answer, readout, interval, settings, is_all, is_record)
    if not any(e.headline.treated.n + e.headline.holdout.n + sum(e.pending) for e in readout.estimates):
        raise NothingError("no loops match")


def _record(answer: Answer, interval: Interval, experiment: str | None, is_all: bool) -> None:
    """`lift --record`: what it prints in a data format leaves out what later events may still change."""
    given = answer.context
    if interval.as_of_us > now_us():
        raise UsageError("--record: the as-of lies in the future, where outcomes are not known yet")
    given.snapshot()
    settings = given.settings()
    from loopstats import estimate, run
    from loopstats.store import Lake

    readout, fresh = run.record_lift(
        Lake(given.root),
        settings,
        as_of_us=interval.as_of_us,
        since_us=interval.since_us,
        until_us=interval.until_us,
    )
    restated = int((fresh["revision"] > 0).sum())
    given.note(f"recorded {fresh.height - restated} new and {restated} restated of {len(readout.estimates)} estimates")
    if answer.is_plain_table:
        snapshot = given.snapshot()
        known = estimate.quality(snapshot.scan("steps"), snapshot.read("sources"), interval.as_of_us)
        readout = replace(readout, warnings=(*readout.warnings, *known))
    _finish_lift(answer, readout, interval, settings, experiment, is_all, is_record=True)


def _history(answer: Answer, interval: Interval, experiment: str | None) -> None:
    from loopstats import run

    frame = run.lift_history(
        answer.context.snapshot(),
        as_of_us=interval.as_of_us,
        since_us=interval.since_us,
        until_us=interval.until_us,
        experiment=experiment,
    )
    envelope = _envelope(answer, "lift_history", interval, answer.context.settings())
    shown = run.shown_history(frame) if answer.is_plain_table else frame
    _write_or_nothing(answer, shown, envelope, HISTORY_COLUMNS, "recorded nights")


def _only(readout: Readout, experiment: str) -> Readout:
    """The readout of one experiment, beside the replay."""

    known = sorted({e.experiment for e in readout.estimates if e.experiment})
    if experiment not in known:
        raise NothingError(f"no experiment {experiment!r} in the logs; there are: {', '.join(known) or 'none'}")
    names = ("", experiment)
    return replace(
        readout,
        estimates=tuple(e for e in readout.estimates if e.experiment in names),
        warnings=tuple(w for w in readout.warnings if w.experiment in names),
    )


def _print_lift(
    answer: Answer, readout: Readout, interval: Interval, settings: Settings, is_all: bool, is_record: bool
) -> None:
    from loopstats import output, report

    if answer.is_plain_table:
        answer.pieces([report.lift_text(readout, answer.layout().width, all=is_all).rstrip("\n").encode() + b"\n"])
        return
    body = readout.to_json(interval.tz, with_known_now=not is_record)
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


simulate_app = typer.Typer(
    help="Simulate: the lake's loops under other salts, logs with a planted lift, power.",
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(simulate_app, name="simulate")

Seed = Annotated[int, typer.Option("--seed", metavar="S", help="Same seed, same bytes.")]
ShareBp = Annotated[int, typer.Option("--share-bp", metavar="BP", help="Treated share in basis points.")]
NStar = Annotated[int, typer.Option("--n-star", metavar="N", help="Planned total of the experiment.")]
Base = Annotated[float, typer.Option("--base", metavar="P", help="Break rate of the holdout.")]
Effect = Annotated[float, typer.Option("--lift", metavar="D", help="What the intervention adds to it.")]


@simulate_app.command("aa")
def simulate_aa(
    context: typer.Context,
    salts: Annotated[int, typer.Option("--salts", metavar="N", min=1, help="How many salts.")] = 1000,
    seed: Seed = 1,
    share_bp: Annotated[
        int, typer.Option("--share-bp", metavar="BP", min=1, max=9999, help="Treated share in basis points.")
    ] = 5000,
    n_star: Annotated[int, typer.Option("--n-star", metavar="N", min=10, help="Planned total.")] = 200,
    as_of: AsOf = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Assign the lake's own loops anew by other salts: every verdict is a false one."""
    answer = _answer(context, format_, json, output)
    interval = _interval(context, None, None, as_of)
    given: Globals = context.obj
    snapshot = given.snapshot()
    from loopstats import simulate

    with _progress(given) as progress:
        frame = simulate.aa(
            snapshot.read("loops"),
            salts=salts,
            seed=seed,
            as_of_us=interval.as_of_us,
            share_bp=share_bp,
            n_star=n_star,
            progress=progress,
        )
    answer.rows(frame, _envelope(answer, "simulate_aa", interval, given.settings()), answer.layout())


@simulate_app.command("planted")
def simulate_planted(
    context: typer.Context,
    lift: Effect = 0.15,
    base: Base = 0.4,
    loops: Annotated[int, typer.Option("--loops", metavar="N", help="How many loops.")] = 400,
    loops_per_session: Annotated[int, typer.Option("--loops-per-session", metavar="N", help="Of one session.")] = 3,
    seed: Seed = 1,
    share_bp: ShareBp = 5000,
    icc: Annotated[float, typer.Option("--icc", metavar="R", help="Correlation of loops of one session.")] = 0.0,
    attrition: Annotated[
        float, typer.Option("--attrition", metavar="P", help="Share of recurring loops whose session ends instead.")
    ] = 0.0,
    attrition_treated: Annotated[
        float | None, typer.Option("--attrition-treated", metavar="P", help="The same for treated loops, if different.")
    ] = None,
    noncompliance: Annotated[
        float, typer.Option("--noncompliance", metavar="P", help="Share of treated loops without a delivery.")
    ] = 0.0,
    interference: Annotated[
        float, typer.Option("--interference", metavar="P", help="Share of the lift that reaches later loops.")
    ] = 0.0,
    late: Annotated[float, typer.Option("--late", metavar="P", help="Share of breaks that come after maturity.")] = 0.0,
    maturity: Annotated[float, typer.Option("--maturity", metavar="HOURS", help="Maturity time.")] = 24.0,
    nights: Annotated[int, typer.Option("--nights", metavar="N", help="Over how many nights.")] = 30,
    n_star: NStar = 200,
    folder: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Keep logs, truth.json and settings here.")
    ] = None,
    format_: Format = None,
    json: Json = False,
) -> None:
    """Write logs with a known lift, run the whole line on them, and hold the estimate against the truth."""
    from loopstats import simulate
    from loopstats.when import Interval

    answer = _answer(context, format_, json, None)
    world = simulate.World(
        seed=seed,
        lift=lift,
        base=base,
        loops=loops,
        loops_per_session=loops_per_session,
        share_bp=share_bp,
        icc=icc,
        attrition=attrition,
        attrition_treated=attrition if attrition_treated is None else attrition_treated,
        noncompliance=noncompliance,
        interference=interference,
        late=late,
        maturity_hours=maturity,
        nights=nights,
        n_star=n_star,
    )
    frame = simulate.planted(world, folder)[1]
    interval = Interval(world.as_of_us, None, None, "UTC")
    answer.rows(frame, _envelope(answer, "simulate_planted", interval, world.settings), answer.layout())
    if folder is not None:
        answer.context.note(f"logs in {folder / simulate.LOGS}, truth in {folder / simulate.TRUTH}")


@simulate_app.command("power")
def simulate_power(
    context: typer.Context,
    sizes: Annotated[
        list[int] | None, typer.Option("--n", metavar="N", min=2, help="Loops of both arms together (repeatable).")
    ] = None,
    base: Base = 0.4,
    lift: Effect = 0.15,
    share_bp: ShareBp = 5000,
    n_star: NStar = 200,
    deff: Annotated[float, typer.Option("--deff", metavar="X", help="Design effect of the sessions.")] = 1.0,
    loops_per_night: Annotated[
        float | None, typer.Option("--loops-per-night", metavar="X", help="Pace, for the nights it takes.")
    ] = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Say what a number of loops can show: power, smallest lift found, loops and nights needed."""
    answer = _answer(context, format_, json, output)
    from loopstats import simulate

    frame = simulate.power(
        sizes or [100, 200, 400, 800],
        base=base,
        lift=lift,
        share_bp=share_bp,
        n_star=n_star,
        deff=deff,
        loops_per_night=loops_per_night,
    )
    _write_static(answer, "simulate_power", frame, POWER_COLUMNS)


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


@app.command(name="drift")
def drift_(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also the rows of drift/0, the rule kept for comparison.")
    ] = False,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    tool: Tool = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List where runs turned in circles, newest first: reason, onset, length, cost and lead time."""
    answer = _answer(context, format_, json, output)
    interval = _interval(context, since, until, as_of)
    snapshot = answer.context.snapshot()
    from loopstats import findings, query

    tables = findings.tables_as_of(snapshot, interval.as_of_us)
    frame, text = findings.drifts(tables, interval, _filters(project, model, harness, tool, where), all_)
    envelope = _envelope(answer, "drift", interval, answer.context.settings(), (text,))
    shown = query.shortened_run(frame, SHORT_ID) if answer.is_plain_table else frame
    answer.context.note(text)
    _write_or_nothing(answer, shown, envelope, DRIFT_COLUMNS, "drifts")


@app.command()
def audit(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    all_: Annotated[bool, typer.Option("--all", help="One row a finding instead of one line a kind.")] = False,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Audit agents and their safety net: one line a kind of finding with its n; runs that ended in the interval."""
    answer = _answer(context, format_, json, output)
    interval = _interval(context, since, until, as_of)
    snapshot = answer.context.snapshot()
    from loopstats import findings, query

    tables = findings.chosen(
        findings.tables_as_of(snapshot, interval.as_of_us), interval, _filters(project, model, harness, None, where)
    )
    if not tables["runs"].height:
        raise NothingError("no runs match")
    frame = findings.audit(tables, all_)
    shown = query.shortened_run(frame, SHORT_ID) if all_ and answer.is_plain_table else frame
    envelope = _envelope(answer, "audit", interval, answer.context.settings())
    _write_or_nothing(answer, shown, envelope, AUDIT_ROW_COLUMNS if all_ else AUDIT_COLUMNS, "findings")


@app.command()
def waste(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", metavar="COLUMN,...", help="week, tool, project, model, harness, group or rule."),
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
    """Sum tokens and cost from detection or onset to outcome or end, each turn once, with the coverage of prices."""
    answer = _answer(context, format_, json, output)
    interval = _interval(context, since, until, as_of)
    snapshot = answer.context.snapshot()
    from loopstats import findings

    tables = findings.tables_as_of(snapshot, interval.as_of_us)
    frame, text = findings.wasted(tables, interval, _filters(project, model, harness, tool, where), _names(by))
    answer.context.note(text)
    envelope = _envelope(answer, "waste", interval, answer.context.settings(), (text,))
    _write_or_nothing(answer, frame, envelope, (), "turns")


@app.command()
def runs(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="COLUMN,...",
            help="Distributions per version, model, group, harness, project, format, task or bait.",
        ),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="A B",
            help="Compare two values of the one column of --by (or period: START..END); exit 5 where runs of B are "
            "longer and are not shown to solve more.",
        ),
    ] = None,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Evaluate the runs that ended in the interval: each, per group, or one group against another."""
    answer = _answer(context, format_, json, output)
    interval = _interval(context, since, until, as_of)
    snapshot = answer.context.snapshot()
    from loopstats import compare as comparing
    from loopstats import findings, query, when

    names = _names(by)
    tables = findings.tables_as_of(snapshot, interval.as_of_us)
    frame = findings.chosen(tables, interval, _filters(project, model, harness, None, where))["runs"]
    settings = answer.context.settings()
    text = f"false claims of success {comparing.false_claims(frame)}" + "".join(
        f"; right endings of {bait} {rate}" for bait, rate in comparing.endings(frame)
    )
    answer.context.note(text)
    envelope = _envelope(answer, "runs", interval, settings, (text,))
    if compare is not None:
        if len(names) > 1:
            raise UsageError("runs --compare: give one column with --by, e.g. --by model")
        done = findings.compared(frame, *compare, names[0] if names else "group", interval, when.zone_of(interval.tz))
        from loopstats import output as writing

        answer.rows(writing.frame_of_objects([done.to_row()]), envelope, answer.layout())
        if done.is_failed:
            answer.context.note(f"gate failed: {', '.join(done.reasons)}")
            raise typer.Exit(FINDING)
        return
    if names:
        _write_or_nothing(answer, comparing.distributions(frame, names), envelope, (*names, *GROUP_COLUMNS), "runs")
        return
    frame = frame.sort("last_at", "run_id", descending=[True, False], nulls_last=True)
    shown = query.shortened_run(frame, SHORT_ID) if answer.is_plain_table else frame
    _write_or_nothing(answer, shown, envelope, RUN_COLUMNS, "runs")


@app.command()
def ladder(
    context: typer.Context,
    policy: Annotated[
        Path, typer.Argument(metavar="POLICY.toml", help="A policy, or the name of a packaged one: careful or faulty.")
    ],
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    faults: Annotated[bool, typer.Option("--faults", help="Only the faults of the policy, as rows.")] = False,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Replay the four tiers of a policy on the runs that ended in the interval, and name the faults of the policy."""
    answer = _answer(context, format_, json, output)
    interval = _interval(context, since, until, as_of)
    from loopstats import findings
    from loopstats import ladder as climbing

    given = climbing.load(policy)
    snapshot = answer.context.snapshot()
    tables = findings.chosen(
        findings.tables_as_of(snapshot, interval.as_of_us), interval, _filters(project, model, harness, None, where)
    )
    if not tables["steps"].height:
        raise NothingError("no runs match")
    tiers, faults_found, text = findings.climbed(given, tables)
    answer.context.note(text)
    envelope = _envelope(answer, "ladder", interval, answer.context.settings(), (text,))
    if not faults:
        answer.rows(tiers, envelope, answer.layout(TIER_COLUMNS))
    if faults or (answer.is_plain_table and answer.path is None):
        answer.rows(faults_found, envelope, answer.layout(FAULT_COLUMNS))


@app.command()
def doctor(context: typer.Context, format_: Format = None, json: Json = False, output: Output = None) -> None:
    """Say what needs a hand: the lake, what it could not read or class, and the live hook; exit 5 where one does."""
    answer = _answer(context, format_, json, output)
    import polars as pl

    from loopstats import doctor as health
    from loopstats import hooks
    from loopstats.store import Lake

    given: Globals = context.obj
    store = Lake(given.root)
    _, meta = store.peek()
    found = [health.Finding("lake", "look", f"none at {given.root}: run `loopstats ingest PATH`")]
    if meta:
        snapshot = store.snapshot()
        found = health.lake(
            meta,
            given.settings().derived_digest,
            snapshot.read("sources"),
            snapshot.scan("steps").select("tool", "kind", "outcome").collect(),
            snapshot.scan("turns").select("model", "tokens_output", "cost_micros").collect(),
        )
    found += health.hook(hooks.status(Path.cwd(), os.environ, now_us()), hooks.faults(os.environ))
    _write_static(answer, "doctor", pl.DataFrame([vars(one) for one in found]))
    if any(one.state == "mend" for one in found):
        raise typer.Exit(FINDING)


hook_app = typer.Typer(
    help="The live hook of coding agents: put it in, take it out, prove that it fires, try it.",
    no_args_is_help=True,
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
    """Merge the hook into an agent's settings; what was there stays, a copy is kept beside it."""
    from loopstats import hooks

    change = hooks.install(hooks.agent_named(agent), scope, Path.cwd(), os.environ, dry_run)
    _tell_change(context.obj, change, "installed in", dry_run)


@hook_app.command("uninstall")
def hook_uninstall(context: typer.Context, agent: HookAgent, scope: Scope = "user", dry_run: DryRun = False) -> None:
    """Take the hook out again; settings that were not touched since come back byte for byte."""
    from loopstats import hooks

    change = hooks.uninstall(hooks.agent_named(agent), scope, Path.cwd(), os.environ, dry_run)
    _tell_change(context.obj, change, "taken out of", dry_run)


@hook_app.command("status")
def hook_status(context: typer.Context, format_: Format = None, json: Json = False, output: Output = None) -> None:
    """Tell per agent how its settings stand, and from the spool when its hook last fired."""
    answer = _answer(context, format_, json, output)
    import polars as pl

    from loopstats import hooks

    found = hooks.status(Path.cwd(), os.environ, now_us())
    rows = [vars(row) | {"notes": "; ".join(row.notes)} for row in found]
    _write_static(answer, "hook_status", pl.DataFrame(rows), HOOK_COLUMNS)
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
    """Feed a recorded session through the installed command line, once for each arm, into a spool of its own."""
    answer = _answer(context, format_, json, output)
    import polars as pl

    from loopstats import hooks

    checks = hooks.trial(hooks.agent_named(agent), scope, Path.cwd(), os.environ)
    _write_static(answer, "hook_test", pl.DataFrame([vars(check) for check in checks]))
    if not all(check.is_ok for check in checks):
        raise typer.Exit(FINDING)


@hook_app.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def hook_run(context: typer.Context) -> None:
    """Answer one event on stdin, as the agent would start it but slower: for trying out."""
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


def _names(given: list[str] | None) -> tuple[str, ...]:
    return tuple(name.strip() for item in given or () for name in item.split(",") if name.strip())


def _write_static(answer: Answer, command: str, frame: pl.DataFrame, columns: tuple[str, ...] = ()) -> None:
    from loopstats.output import Envelope
    from loopstats.when import iso

    envelope = Envelope(command, iso(now_us()), answer.context.tz, answer.context.settings().rule_digest)
    answer.rows(frame, envelope, answer.layout(columns))


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
