"""What every command shares: the global options, where an answer goes, and the options of reading commands.

A room of its own because each file beside it adds commands to the one `app` that stands here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from loopstats import __version__
from loopstats.cli.waiting import waiting
from loopstats.errors import EndedError, NothingError, UsageError

if TYPE_CHECKING:
    import polars as pl

    from loopstats.config import Given, Settings
    from loopstats.output import Envelope, Layout
    from loopstats.query import Filters
    from loopstats.store import Snapshot
    from loopstats.when import Interval


SCHEMAS = Path(__file__).resolve().parents[1] / "schemas"


class Commands(TyperGroup):
    """The commands; an interrupt is told like every other end."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise EndedError("interrupted") from None


app = typer.Typer(
    name="loopstats",
    cls=Commands,
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
    color_flag: str | None
    tz_flag: str | None
    held: list[str] = field(default_factory=list)

    @property
    def user_file(self) -> Path:
        """The user's own configuration, which need not be there."""
        import platformdirs

        return Path(platformdirs.user_config_path("loopstats")) / "loopstats.toml"

    def config_places(self) -> list[tuple[Path, str]]:
        """Every file that is or could be a configuration, in the order in which they override, and whose it is."""
        from loopstats import config

        cwd = Path.cwd()
        found = [Path(name) for name in config.project_files(str(cwd))]
        folder = found[0].parent if found else cwd
        places = [(self.user_file, "user"), (folder / config.PROJECT_FILE, "project")]
        places.append((folder / config.LOCAL_FILE, "local"))
        return places + ([(self.config, "--config")] if self.config else [])

    @cached_property
    def given(self) -> Given:
        """What configuration files, environment and these options say."""
        from loopstats import config

        flags = {"--lake": self.lake and str(self.lake), "--color": self.color_flag, "--tz": self.tz_flag}
        return config.gather(
            self.config,
            self.user_file,
            Path.cwd(),
            os.environ,
            {name: value for name, value in flags.items() if value},
        )

    @property
    def root(self) -> Path:
        """The folder of the lake."""
        if (told := self.lake or self.given.get("lake")) is not None:
            return Path(told)
        import platformdirs

        return Path(platformdirs.user_data_path("loopstats")) / "lake"

    @property
    def tz(self) -> str:
        """Zone in which dates of the command line are read."""
        return str(self.tz_flag or self.given.get("tz"))

    def settings(self) -> Settings:
        """The settings of all configuration files and of the environment."""
        return self.given.settings()

    def snapshot(self) -> Snapshot:
        """The newest generation of the lake."""
        from loopstats.store import Lake

        return Lake.open(self.root).snapshot()

    def note(self, text: str) -> None:
        """Talk, unless `--quiet`."""
        self.release()
        if not self.is_quiet:
            say(text)

    def hold(self, text: str) -> None:
        """Talk once there is an answer, or other talk of it: what heads an answer is not said before an error."""
        self.held.append(text)

    def release(self) -> None:
        """Say what was held."""
        held, self.held[:] = list(self.held), []
        for text in held:
            self.note(text)

    @property
    def is_watched(self) -> bool:
        """Somebody sits before stderr and wants to see progress."""
        return not self.is_quiet and self.has_progress and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def is_coloured(self, path: Path | None) -> bool:
        """Whether stdout gets colours."""
        color = self.color_flag or self.given.get("color")
        if color != "auto":
            return bool(color == "always")
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

        self.context.release()
        waiting.end()

        if self.path is not None:
            output.write_file(self.path, pieces)
            return
        if self.format_name == "parquet" and sys.stdout.isatty():
            raise UsageError("-f parquet is binary; name a file with -o FILE, or pipe it")
        if self.format_name == "csv" and sys.stdout.isatty():
            pieces = map(output.visible, pieces)
        try:
            sys.stdout.flush()
            output.write_stream(sys.stdout.buffer, pieces)
        except BrokenPipeError:
            drop_stdout()


def now_us() -> int:
    """The clock, in whole seconds, so that what is printed can be typed again as `--as-of`."""
    return time.time_ns() // 1_000_000_000 * 1_000_000


def printable(text: str) -> str:
    """`text` as one line in which nothing reaches the terminal as a command."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text.replace("\n", " "))


def say(text: str) -> None:
    """One line on stderr; nothing in it reaches the terminal as a command."""
    waiting.clear()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"loopstats: {printable(text)}\n")
        sys.stderr.flush()


def _version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"loopstats {__version__}\n")
        raise typer.Exit


@app.callback()
def _globals(
    context: typer.Context,
    lake: Annotated[
        Path | None, typer.Option("--lake", metavar="DIR", help="Folder of the lake (or LOOPSTATS_LAKE).")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="LOOPSTATS_CONFIG",
            show_envvar=False,
            help="One more configuration file, over the user's and the project's (or LOOPSTATS_CONFIG).",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only data and errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False,
    color: Annotated[
        str | None,
        typer.Option("--color", metavar="auto|always|never", help="Colours on stdout; auto obeys NO_COLOR."),
    ] = None,
    tz: Annotated[
        str | None,
        typer.Option("--tz", metavar="ZONE", help="Zone of dates in --since, --until and --as-of; default UTC."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if color not in (None, "auto", "always", "never"):
        raise UsageError(f"--color {color}: use auto, always or never")
    given = Globals(lake, config, quiet, verbose and not quiet, not no_progress, color, tz)
    context.obj = given
    if given.is_watched:
        waiting.begin(context.invoked_subcommand or "loopstats")


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


@contextlib.contextmanager
def progress_bar(given: Globals) -> Iterator[Callable[[str, int, int], None] | None]:
    if not given.is_watched:
        yield None
        return
    waiting.end()
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


def split_names(given: list[str] | None) -> tuple[str, ...]:
    return tuple(name.strip() for item in given or () for name in item.split(",") if name.strip())


def write_static(answer: Answer, command: str, frame: pl.DataFrame, columns: tuple[str, ...] = ()) -> None:
    from loopstats.output import Envelope
    from loopstats.when import iso

    envelope = Envelope(command, iso(now_us()), answer.context.tz, answer.context.settings().rule_digest)
    answer.rows(frame, envelope, answer.layout(columns))


def write_or_nothing(
    answer: Answer, frame: pl.DataFrame, envelope: Envelope, columns: tuple[str, ...], what: str
) -> None:
    if frame.height or not answer.is_plain_table:
        answer.rows(frame, envelope, answer.layout(columns))
    if not frame.height:
        raise NothingError(f"no {what} match")


def make_answer(context: typer.Context, format_name: str | None, is_json: bool, path: Path | None) -> Answer:
    from loopstats.output import format_of

    if is_json and format_name not in (None, "json"):
        raise UsageError(f"--json and -f {format_name}: choose one")
    return Answer(context.obj, format_of("json" if is_json else format_name, path), path)


def make_interval(context: typer.Context, since: str | None, until: str | None, as_of: str | None) -> Interval:
    from loopstats import when

    given: Globals = context.obj
    interval = when.resolve(since, until, as_of, given.tz, now_us())
    given.hold(str(interval))
    if given.is_verbose:
        given.hold(f"lake {given.root}")
    return interval


def make_filters(
    project: list[str] | None,
    model: list[str] | None,
    harness: list[str] | None,
    tool: list[str] | None,
    where: str | None,
) -> Filters:
    from loopstats.query import Filters

    return Filters(tuple(project or ()), tuple(model or ()), tuple(harness or ()), tuple(tool or ()), where)


def make_envelope(
    answer: Answer,
    command: str,
    interval: Interval,
    settings: Settings,
    warnings: tuple[str, ...] = (),
    snapshot: Snapshot | None = None,
) -> Envelope:
    """`snapshot`: what the answer's runs are of; if some are oversize, stderr and the warnings say so."""
    from loopstats.output import Envelope
    from loopstats.when import iso

    if snapshot is not None:
        from loopstats import estimate

        for notice in estimate.oversize(snapshot.scan("runs")):
            answer.context.note(f"warning: {notice.text}")
            warnings = (*warnings, notice.text)
    return Envelope(command, iso(interval.as_of_us), interval.tz, settings.rule_digest, interval.to_json(), warnings)


def json_schema_of(command: str) -> bytes:
    """The published JSON Schema of a command's `--json`; UsageError names those that there are."""
    known = sorted(path.stem for path in SCHEMAS.glob("*.json"))
    name = command.replace(" ", "_").replace("-", "_")
    if name not in known:
        raise UsageError(f"--json-schema {command!r}: use one of {', '.join(known)}")
    return (SCHEMAS / f"{name}.json").read_bytes()


def drop_stdout() -> None:
    """The reader has gone: nothing more is written, and nothing is said at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
