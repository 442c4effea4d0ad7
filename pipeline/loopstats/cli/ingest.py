"""`ingest`: what was read, folded, rejected and waits, as a table or as JSON."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopstats.cli.base import Answer, Globals, Json, app, now_us, printable, say
from loopstats.cli.waiting import waiting
from loopstats.errors import LoopstatsError, NothingError, UsageError

if TYPE_CHECKING:
    from loopstats.config import Settings
    from loopstats.homes import Home


REJECTS_SHOWN = 20
TYPES_SHOWN = 4
TYPE_LENGTH = 24
FILE_STATES = ("new", "grown", "same", "gone", "skipped")
LINE_STATES = ("read", "used", "nothing", "folded", "rejected", "waiting")
INGEST_COLUMNS = ("format", "files", "steps", "folded", "rejected", "read", "used", "nothing", "waiting", "repaired")


@app.command()
def ingest(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...",
            help="Log files and folders; default the homes of the installed agents and [ingest] paths.",
        ),
    ] = None,
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
    given: Globals = context.obj
    if strict and max_rejects:
        raise UsageError(f"--strict allows no reject, --max-rejects {max_rejects} does: give one of them")
    settings = given.settings()
    paths = paths or [home.path for home in known_places(given, settings)]
    answer = Answer(given, "json" if json else "table", None)
    if not (full or dry_run or json) and _is_answered(given, paths, settings):
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
    finish(answer, summary, settings, paths)


def finish(answer: Answer, summary: dict[str, Any], settings: Settings, paths: list[str]) -> None:
    """Say what an ingest did, on this machine or on a cluster."""
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


def known_places(given: Globals, settings: Settings) -> list[Home]:
    """What is read where no path is named, said on stderr; NothingError where there is nothing."""
    from loopstats import homes

    found = homes.places(settings.paths, settings.has_homes, os.environ)
    for home in found:
        given.note(f"reading {home.name}: {home.path}")
    if not found:
        raise NothingError(homes.missing(settings.has_homes))
    return found


def _is_answered(given: Globals, paths: list[str], settings: Settings) -> bool:
    """Whether nothing is new under `paths`; then that was said."""
    from loopstats import found

    digests = {"rule_digest": settings.rule_digest, "derived_digest": settings.derived_digest}
    summary = found.nothing_new(given.root, paths, digests)
    if summary is None or not summary["files_same"]:
        return False
    sys.stdout.write(_file_line(summary) + _conservation_line(summary))
    _note_lake(given, summary)
    for warning in summary.get("warnings", ()):
        say(f"warning: {warning}")
    return True


def is_answered_unparsed(arguments: list[str]) -> bool:
    """Whether `arguments`, the global options first, are a plain ingest without news; then that was said.

    Most nights nothing is new, and parsing a single option takes longer than finding that out. Whatever is not plain
    is left to the parser, mistakes included.
    """
    lake, config, is_quiet = None, os.environ.get("LOOPSTATS_CONFIG") or None, False
    items = iter(arguments)
    for item in items:
        if item in ("--lake", "--config"):
            if not (value := next(items)):
                return False
            lake, config = (value, config) if item == "--lake" else (lake, value)
        elif item in ("--quiet", "-q"):
            is_quiet = True
        elif item == "ingest":
            break
        elif item != "--no-progress":
            return False
    paths = list(items)
    if not paths or any(path.startswith("-") for path in paths):
        return False
    given = Globals(Path(lake) if lake else None, Path(config) if config else None, is_quiet, False, False, None, None)
    return _is_answered(given, paths, given.settings())


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
    for warning in summary["warnings"]:
        say(f"warning: {warning}")
    frame = pl.DataFrame(summary["formats"], infer_schema_length=None)
    if not answer.is_plain_table:
        head = Envelope("ingest", iso(now_us()), answer.context.tz, settings.rule_digest).head()
        body = {
            **head,
            "files": files,
            "rows": summary["formats"],
            "lines": _lines(summary),
            "nothing_types": summary["nothing_types"],
            "rejects": len(summary["rejects"]),
            "turns_told": summary["turns_told"],
            "turns_priced": summary["turns_priced"],
            "warnings": [*warnings, *summary["warnings"]],
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
    answer.pieces([(_file_line(summary) + _conservation_line(summary)).encode()])
    _note_lake(answer.context, summary)


def _file_line(summary: dict[str, Any]) -> str:
    counts = (f"{summary[f'files_{name}']} {name}" for name in FILE_STATES)
    return f"files: {', '.join(counts)}\n"


def _lines(summary: dict[str, Any]) -> dict[str, int]:
    """All lines of the lake's files, and what became of them."""
    return {name: sum(row[name] for row in summary["formats"]) for name in LINE_STATES}


def _conservation_line(summary: dict[str, Any]) -> str:
    """What was read is the sum of what became of it; what carries nothing by type, the commonest first."""
    lines = _lines(summary)
    types = list(summary.get("nothing_types", {}).items())
    shown = ", ".join(f"{printable(name)[:TYPE_LENGTH]} {count}" for name, count in types[:TYPES_SHOWN])
    more = ", …" if len(types) > TYPES_SHOWN else ""
    parts = [f"{lines[name]} {name}" for name in LINE_STATES[1:]]
    if shown:
        parts[1] += f" ({shown}{more})"
    is_sum = lines["read"] == sum(lines[name] for name in LINE_STATES[1:])
    return f"lines: {lines['read']} read {'=' if is_sum else '≠'} {' + '.join(parts)}\n"


def _note_lake(given: Globals, summary: dict[str, Any]) -> None:
    given.note(
        f"lake {given.root}: {summary['tables']['steps']} steps, {summary['tables']['loops']} loops; "
        f"price known for {summary['turns_priced']} of {summary['turns_told']} turns with tokens"
    )


@contextlib.contextmanager
def _ingest_progress(given: Globals) -> Iterator[Callable[[str, int, int, int, int], None] | None]:
    """Files, bytes, rate and time left, on a terminal only."""
    if not given.is_watched:
        yield None
        return
    waiting.end()
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
