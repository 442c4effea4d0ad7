"""What any command prints comes back as it was, from each of the six formats, hostile texts and nulls included."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from loopstats import output, report
from program import Home, Told
from small_lake import HOSTILE

ENVELOPE = output.Envelope("x", "2026-11-20T00:00:00Z", "UTC", "0" * 16)
TEXTS = [
    HOSTILE,
    "",
    "=1+1",
    "'=1+1",
    "''",
    "-3",
    "+4",
    "@x",
    "null",
    "NULL",
    "None",
    "nan",
    "1e5",
    "007",
    "true",
    "a,b",
    'say "no"',
    '"',
    "'",
    "a\r\nb",
    "\n",
    "\ttab",
    " space ",
    "日本👩",
    "\u202ex",
    "a|b\\|c",
    "\\",
    "<script>alert(1)</script>",
    "[link](http://x)",
    "`code`",
    "*b* _i_ ~~s~~",
    "| a | b |",
    "#1",
    "&amp;",
    "2026-01-01T00:00:00Z",
    "[1, 2]",
    "\x00\x1b[2J\x7f",
    "www.example.com",
]


def bytes_of(frame: pl.DataFrame, name: str) -> bytes:
    return b"".join(output.render(frame, name, ENVELOPE))


def rows_of(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows as JSON has them."""
    return [{key: output.plain(value) for key, value in row.items()} for row in frame.to_dicts()]


# RFC 4180, and what Python's own reader forgets: whether a cell was quoted.
CELL = re.compile(r'(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r\n)')


def from_csv(data: bytes, schema: pl.Schema) -> list[dict[str, Any]]:
    """Rows of a CSV: an empty cell is null, `""` an empty text, and a guard is one `'`."""
    rows: list[list[str | None]] = [[]]
    text, at = data.decode(), 0
    while at < len(text):
        found = CELL.match(text, at)
        assert found is not None, text[at : at + 40]
        rows[-1].append(found[2] or None if found[1] is None else found[1].replace('""', '"'))
        rows += [[]] if found[3] == "\r\n" else []
        at = found.end()
    assert rows.pop() == [] and [output.unguard(name or "") for name in rows[0]] == schema.names()
    return [
        {name: _typed(value, dtype) for (name, dtype), value in zip(schema.items(), row, strict=True)}
        for row in rows[1:]
    ]


def _typed(value: str | None, dtype: Any) -> Any:
    if value is None:
        return None
    if dtype == pl.Boolean:
        return {"true": True, "false": False}[value]
    if dtype.is_integer():
        return int(value)
    if dtype.is_numeric():
        return float(value)
    if dtype.is_temporal():
        return value
    value = output.unguard(value)
    return json.loads(value) if isinstance(dtype, pl.List) else value


def from_markdown(data: bytes) -> list[list[str]]:
    """Cells of the one table of a Markdown text, as a reader sees them, header first."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(data.decode())
    assert {token.type for token in tokens if token.level == 0} <= {"table_open", "table_close"}
    rows: list[list[str]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            kinds = {child.type for child in token.children or []}
            assert kinds <= {"text", "text_special"}, f"markup came through: {token.content!r} {kinds}"
            rows[-1].append("".join(child.content for child in token.children or []))
    return rows


def as_read(value: Any) -> str:
    """What stands in a cell of Markdown for a value; a renderer trims it."""
    return _as_written(value).strip()


def _as_written(value: Any) -> str:
    """Texts made visible and on one line, lists as one text."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(_as_written, value))
    text = value if isinstance(value, str) else output.canonical(value)
    return report.safe_text(re.sub(r"[\r\n]+", " ", text))


def check(frame: pl.DataFrame, what: str) -> None:
    wanted = rows_of(frame)
    assert json.loads(bytes_of(frame, "json"))["rows"] == wanted, what
    assert [json.loads(line) for line in bytes_of(frame, "jsonl").splitlines()] == wanted, what
    back = pl.read_parquet(io.BytesIO(bytes_of(frame, "parquet")))
    assert back.equals(frame, null_equal=True) and back.schema == frame.schema, what
    assert not {pl.Null, pl.UInt64, pl.Duration, pl.Time, pl.Categorical} & set(frame.dtypes), f"{what}: not portable"
    assert from_csv(bytes_of(frame, "csv"), frame.schema) == wanted, what
    cells = from_markdown(bytes_of(frame, "md"))
    assert cells[0] == [as_read(name) for name in frame.columns], what
    shown = [[as_read(value).replace("\xa0", " ") for value in row.values()] for row in wanted]
    assert [[value.replace("\xa0", " ") for value in row] for row in cells[1:]] == shown, what


def test_every_answer_comes_back_from_every_format(answers: list[tuple[str, Told]]) -> None:
    checked = 0
    for line, told in answers:
        for frame, _, _ in told.frames:
            check(frame.head(300), line)
            checked += 1
    assert checked > 20


def test_the_program_itself_prints_them(home: Home) -> None:
    base = ["-q", "loops", "--as-of", "2026-11-20", "--since", "2d"]
    told = home.run([*base, "--json"])
    frame = told.frames[0][0]
    for name in ("jsonl", "csv", "md", "parquet"):
        assert home.run([*base, "-o", f"out.{name}"]).code == 0
        assert (home.folder / f"out.{name}").read_bytes() == bytes_of(frame, name)
    # `lift` prints no frame of its own, and its rows come back all the same.
    rows = home.run(["-q", "lift", "--as-of", "2026-11-20", "--json"]).body["rows"]
    lines = home.run(["-q", "lift", "--as-of", "2026-11-20", "-f", "jsonl"]).out.splitlines()
    assert [json.loads(line) for line in lines] == rows
    cells = list(
        csv.DictReader(io.StringIO(home.run(["-q", "lift", "--as-of", "2026-11-20", "-f", "csv"]).out.decode()))
    )
    for row, cell in zip(rows, cells, strict=True):
        for key, value in row.items():
            text = output.unguard(cell[key])
            assert text == "" if value in (None, "") else text == value or json.loads(text) == value, key


def hostile_frame(texts: Sequence[str | None]) -> pl.DataFrame:
    n = len(texts)
    lists = [None if t is None else [t, "", t] if i % 3 else [] for i, t in enumerate(texts)]
    whole: list[int | None] = [None, 0, -1, 2**63 - 1, -(2**63)]
    broken: list[float | None] = [None, 0.0, -0.5, 1 / 3, 1e300, 1e-300, 123456789012.0]
    moments = [None, datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)]
    return pl.DataFrame(
        {
            "text": pl.Series(texts, dtype=pl.String),
            "=evil,|name": pl.Series(texts, dtype=pl.String),
            "list": pl.Series(lists, dtype=pl.List(pl.String)),
            "whole": pl.Series([whole[i % 5] for i in range(n)], dtype=pl.Int64),
            "broken": pl.Series([output.plain(broken[i % 7]) for i in range(n)], dtype=pl.Float64),
            "is": pl.Series([(None, True, False)[i % 3] for i in range(n)], dtype=pl.Boolean),
            "at": pl.Series([moments[i % 3] for i in range(n)], dtype=pl.Datetime("us", "UTC")),
        }
    )


def test_hostile_texts_come_back_from_every_format() -> None:
    check(hostile_frame([*TEXTS, None]), "hostile")
    # One by one, so that no text hides behind another.
    for text in TEXTS:
        check(hostile_frame([text, None, text]), repr(text))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.none() | st.text(st.characters(blacklist_categories=["Cs"]), max_size=30), min_size=1, max_size=4))
def test_any_text_comes_back_from_every_format(texts: list[str | None]) -> None:
    check(hostile_frame(texts), repr(texts))


def test_a_spreadsheet_runs_nothing() -> None:
    cells = list(csv.reader(io.StringIO(bytes_of(hostile_frame(TEXTS), "csv").decode(), newline="")))
    for row in cells:
        for cell in row[:3]:
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")), cell
