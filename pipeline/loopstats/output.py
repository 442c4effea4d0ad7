"""Frames to what leaves the program: table, JSON, JSON lines, CSV, Parquet and Markdown, on stdout or in a file.

A room of its own because every command speaks the same six formats, each with its own way to be broken by hostile log
text (terminal escapes, formulas, markup), and because equal frames must give equal bytes: columns keep their order,
floats have 12 significant digits, times are ISO 8601 UTC with Z, and there is no NaN.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from loopstats.errors import StorageError, UsageError
from loopstats.report import safe_text

FORMATS = ("table", "json", "jsonl", "csv", "parquet", "md")
BATCH_ROWS = 2_000
CELL_SHOWN = 200
TEXTS = ("verdict",)
NARROW = 24
GAP = 2

# The same JSON value, but nothing in it that a terminal would act on.
_HIDDEN = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
# Spreadsheets take a cell as a formula by its first character, full-width forms included. Quotes before it
# count too, so that taking one quote away gives back the text as it was.
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
# Tables, HTML and references by entity, markup by backslash, links that some renderers make of bare text broken up.
_MARKDOWN = re.compile(
    r"([|<>&@])|([\\`*\[\]~#$!])|((?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))|(:(?=//))|((?<=www)\.)", re.ASCII | re.IGNORECASE
)
_ISO_FRACTION = re.compile(r"\.([0-9]*[1-9])?0*(?=Z|$)")


@dataclass(frozen=True)
class Envelope:
    """What a JSON answer says beside its rows; `interval` is null where no window was asked for."""

    command: str
    as_of: str
    tz: str
    rule_digest: str
    interval: dict[str, str | None] | None = None
    warnings: tuple[str, ...] = ()

    def head(self) -> dict[str, Any]:
        """Everything before `rows`, in the order of the contract."""
        return {
            "schema": f"loopstats.{self.command}/1",
            "as_of": self.as_of,
            "interval": self.interval,
            "tz": self.tz,
            "rule_digest": self.rule_digest,
        }


@dataclass(frozen=True)
class Layout:
    """How a table is laid out: `width` in terminal cells, and the columns in order of importance (empty: all)."""

    width: int = 80
    is_coloured: bool = False
    columns: tuple[str, ...] = ()


def render(frame: pl.DataFrame, format_name: str, envelope: Envelope, layout: Layout | None = None) -> Iterator[bytes]:
    """The frame as bytes of one of `FORMATS`, in pieces; UsageError for another format."""
    if format_name == "table":
        return _table(frame, layout or Layout())
    if format_name == "json":
        return _json(frame, envelope)
    if format_name == "jsonl":
        return _jsonl(frame)
    if format_name == "csv":
        return _csv(frame)
    if format_name == "parquet":
        return _parquet(frame)
    if format_name == "md":
        return _markdown(frame)
    raise UsageError(f"-f {format_name}: use one of {', '.join(FORMATS)}")


def format_of(format_name: str | None, path: Path | None) -> str:
    """The format asked for; without one, what the name of the file says; else a table."""
    if format_name is not None:
        if format_name not in FORMATS:
            raise UsageError(f"-f {format_name}: use one of {', '.join(FORMATS)}")
        return format_name
    suffix = path.suffix[1:].lower() if path is not None else ""
    return {"ndjson": "jsonl", "markdown": "md"}.get(suffix, suffix if suffix in FORMATS else "table")


def write_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Write `path` whole or not at all, readable by its owner only.

    UsageError where the folder is missing or the path is a folder; StorageError where the disk refuses.
    """
    target = path.resolve()
    if target.is_dir():
        raise UsageError(f"{path}: is a folder; name a file")
    if not target.parent.is_dir():
        raise UsageError(f"{path}: the folder {target.parent} does not exist")
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_stream(stream: BinaryIO, pieces: Iterable[bytes]) -> None:
    """Write the pieces as they come, so that a reader such as `head` may leave early."""
    for piece in pieces:
        stream.write(piece)
        stream.flush()


def visible(piece: bytes) -> bytes:
    """Text for a terminal: what would act there becomes escapes, line ends stay.

    For CSV, which elsewhere holds log text as it is. A piece ends with a line.
    """
    text = piece.decode().replace("\r\n", "\n")
    return "\n".join(safe_text(line) for line in text.split("\n")).encode()


def plain(value: Any) -> Any:
    """A cell as a JSON value: floats at 12 significant digits or null, times ISO 8601 UTC, decimals as numbers."""
    if isinstance(value, float):
        return float(f"{value:.12g}") + 0.0 if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, datetime):
        utc = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        return utc.isoformat().replace("+00:00", "Z")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else plain(float(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, pl.Series)):
        return [plain(item) for item in value]
    return str(value)


def canonical(value: Any) -> str:
    """One line of JSON: no spaces, keys in their order, no NaN; control and bidirectional characters as escapes."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def frame_of_objects(rows: Sequence[dict[str, Any]], has_nested: bool = True) -> pl.DataFrame:
    """Objects with equal keys as a frame: objects become JSON text or are left out, lists become lists of text.

    A key that is null in every object is a number, or a text where `TEXTS` names it: the type of a column must not
    depend on what happened to be known.
    """
    names = [
        name for name in (rows[0] if rows else {}) if has_nested or not any(isinstance(r[name], dict) for r in rows)
    ]
    columns = {}
    for name in names:
        values = [plain(row[name]) for row in rows]
        if any(isinstance(value, dict) for value in values):
            columns[name] = pl.Series(name, [None if v is None else canonical(v) for v in values], dtype=pl.String)
        elif any(isinstance(value, list) for value in values):
            texts = [None if v is None else [i if isinstance(i, str) else canonical(i) for i in v] for v in values]
            columns[name] = pl.Series(name, texts, dtype=pl.List(pl.String))
        elif all(value is None for value in values):
            columns[name] = pl.Series(name, values, dtype=pl.String if name in TEXTS else pl.Float64)
        else:
            columns[name] = pl.Series(name, values, strict=False)
    return pl.DataFrame(columns)


def unguard(cell: str) -> str:
    """The text behind a CSV cell that was guarded against being taken for a formula."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell[1:]) else cell


def _rows(frame: pl.DataFrame) -> Iterator[list[tuple[Any, ...]]]:
    for part in frame.iter_slices(BATCH_ROWS):
        columns = [
            column.to_list()
            if column.dtype in (pl.String, pl.Int64, pl.Boolean)
            else [plain(v) for v in column.to_list()]
            for column in part.get_columns()
        ]
        yield list(zip(*columns, strict=True))


def _json(frame: pl.DataFrame, envelope: Envelope) -> Iterator[bytes]:
    yield canonical(envelope.head())[:-1].encode() + b',"rows":['
    is_first = True
    for batch in _rows(frame):
        rows = ",".join(canonical(dict(zip(frame.columns, row, strict=True))) for row in batch)
        yield (rows if is_first else "," + rows).encode()
        is_first = False
    yield b'],"warnings":' + canonical(list(envelope.warnings)).encode() + b"}\n"


def _jsonl(frame: pl.DataFrame) -> Iterator[bytes]:
    for batch in _rows(frame):
        yield "".join(canonical(dict(zip(frame.columns, row, strict=True))) + "\n" for row in batch).encode()


def _csv(frame: pl.DataFrame) -> Iterator[bytes]:
    is_text = [not (t.is_numeric() or t.is_temporal() or t == pl.Boolean) for t in frame.dtypes]
    yield (",".join(_quoted(name) for name in frame.columns) + "\r\n").encode()
    for batch in _rows(frame):
        lines = (",".join(map(_csv_cell, row, is_text)) + "\r\n" for row in batch)
        yield "".join(lines).encode()


def _csv_cell(value: Any, is_text: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _quoted(value) if is_text else value
    return _quoted(canonical(value)) if is_text else canonical(value)


def _quoted(text: str) -> str:
    guarded = "'" + text if _FORMULA.match(text) else text
    return '"' + guarded.replace('"', '""') + '"'


def _parquet(frame: pl.DataFrame) -> Iterator[bytes]:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", row_group_size=65_536, statistics=False)
    yield buffer.getvalue()


def _markdown(frame: pl.DataFrame) -> Iterator[bytes]:
    marks = ["---:" if dtype.is_numeric() else "---" for dtype in frame.dtypes]
    names = [_markdown_cell(name) for name in frame.columns]
    yield f"| {' | '.join(names)} |\n| {' | '.join(marks)} |\n".encode()
    for batch in _rows(frame):
        yield "".join(f"| {' | '.join(map(_markdown_cell, row))} |\n" for row in batch).encode()


def _markdown_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (bool, int, float)):
        return canonical(value)
    if isinstance(value, list):
        return ", ".join(map(_markdown_cell, value))
    text = value if isinstance(value, str) else canonical(value)
    return markdown_text(text)


def markdown_text(text: str) -> str:
    """Log text as one line of Markdown in which nothing is markup."""
    # Line ends first: a row of a Markdown table is one line, whatever the log says.
    return _MARKDOWN.sub(_markdown_escape, safe_text(re.sub(r"[\r\n]+", " ", text)))


def _markdown_escape(found: re.Match[str]) -> str:
    return "\\" + found[0] if found[2] or found[3] else f"&#{ord(found[0])};"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else "-"
    if isinstance(value, datetime):
        text = plain(value).replace("T", " ")
        return _ISO_FRACTION.sub(lambda found: "." + found[1] if found[1] else "", text)
    if isinstance(value, (list, tuple, pl.Series)):
        return ", ".join(_shown(item) for item in value)
    text = value if isinstance(value, str) else str(plain(value))
    return safe_text(text if len(text) <= CELL_SHOWN else text[: CELL_SHOWN - 1] + "…")


def fit(naturals: Sequence[int], is_rigid: Sequence[bool], width: int) -> list[int]:
    """Widths of the columns that fit in `width` cells; 0 for a column that is left out.

    `naturals` are the widths that no cell needs to wrap at, in order of importance. Rigid columns (numbers, times) are
    never wrapped, the others go down to `NARROW`. The first column always stays.
    """
    least = [n if rigid else min(n, NARROW) for n, rigid in zip(naturals, is_rigid, strict=True)]
    widths, used = [0] * len(least), -GAP
    for index, need in enumerate(least):
        if index == 0 or used + GAP + need <= width:
            widths[index] = min(need, width) if index == 0 else need
            used += GAP + widths[index]
    spare = width - used
    for index, natural in enumerate(naturals):
        if widths[index] and spare > 0:
            more = min(spare, natural - widths[index])
            widths[index] += more
            spare -= more
    return widths


def left_out(frame: pl.DataFrame, layout: Layout) -> list[str]:
    """Columns that the layout asks for and its width has no room for."""
    shown = _plan(frame, layout)[1]
    return [name for name in layout.columns or frame.columns if name in frame.columns and name not in shown]


def _plan(frame: pl.DataFrame, layout: Layout) -> tuple[list[list[str]], dict[str, int]]:
    from rich.cells import cell_len

    names = [name for name in layout.columns or frame.columns if name in frame.columns]
    cells = [[_shown(value) for value in frame[name].to_list()] for name in names]
    naturals = [
        max([cell_len(safe_text(name)), *map(cell_len, column)]) for name, column in zip(names, cells, strict=True)
    ]
    rigid = [frame[name].dtype.is_numeric() or frame[name].dtype.is_temporal() for name in names]
    widths = fit(naturals, rigid, layout.width)
    kept = [column for column, width in zip(cells, widths, strict=True) if width]
    return kept, {name: width for name, width in zip(names, widths, strict=True) if width}


def _table(frame: pl.DataFrame, layout: Layout) -> Iterator[bytes]:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not frame.width:
        return
    cells, widths = _plan(frame, layout)
    for start in range(0, max(frame.height, 1), BATCH_ROWS):
        table = Table(
            box=SIMPLE_HEAD if start == 0 else None,
            show_edge=False,
            show_header=start == 0,
            pad_edge=False,
            padding=(0, GAP - 1 if start == 0 else GAP, 0, 0),
            header_style="bold",
        )
        for name, width in widths.items():
            is_number = frame[name].dtype.is_numeric()
            table.add_column(
                Text(safe_text(name)), width=width, overflow="fold", justify="right" if is_number else "left"
            )
        for row in zip(*(column[start : start + BATCH_ROWS] for column in cells), strict=True):
            table.add_row(*map(Text, row))
        buffer = io.StringIO()
        console = Console(
            file=buffer,
            width=layout.width,
            force_terminal=layout.is_coloured,
            legacy_windows=False,
            highlight=False,
            color_system="standard" if layout.is_coloured else None,
            emoji=False,
            markup=False,
            _environ={},
        )
        console.print(table)
        yield "".join(line.rstrip() + "\n" for line in buffer.getvalue().split("\n")[:-1]).encode()
