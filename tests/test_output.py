"""The six formats: values come back as they went in, equal frames give equal bytes, hostile text does nothing."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import stat
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from loopstats import output
from loopstats.errors import StorageError, UsageError
from loopstats.output import Envelope, Layout

ENVELOPE = Envelope(
    "loops", "2026-03-02T00:00:00Z", "UTC", "abc", {"since": None, "until": "2026-03-01T00:00:00Z"}, ("careful",)
)
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f]")
NAUGHTY = [
    "",
    " ",
    "plain",
    'say "hi", ok',
    "a\r\nb",
    "=1+1",
    "'=1",
    "''",
    "+x",
    "-x",
    "@x",
    "\tx",
    "\rx",
    "\nx",
    "＝x",
    "＠x",
    "\x1b[31mred",
    "\x9b31m",
    "\u202eevil",
    "\x00nul",
    "[bold]x[/bold]",
    "<script>",
    "a|b",
    "`code`",
    "*b* _i_ snake_case",
    "日本語",
    "é",
    "🙂",
    "\u2028",
    "a,b",
    "null",
    "1e5",
    "NaN",
    "&#124;",
    "http://evil.example",
    "\\",
]
FRAME = pl.DataFrame(
    {
        "text": NAUGHTY,
        "count": [*range(len(NAUGHTY) - 1), None],
        "flag": [n % 2 == 0 if n % 3 else None for n in range(len(NAUGHTY))],
        "rate": [n / 7 if n else None for n in range(len(NAUGHTY))],
        "at": [datetime(2026, 3, 2, 10, 0, 0, n, tzinfo=UTC) for n in range(len(NAUGHTY))],
        "names": [["=a", "b|c"] if n % 2 else None for n in range(len(NAUGHTY))],
    },
    schema={
        "text": pl.String,
        "count": pl.Int64,
        "flag": pl.Boolean,
        "rate": pl.Float64,
        "at": pl.Datetime("us", "UTC"),
        "names": pl.List(pl.String),
    },
)


def text_of(frame: pl.DataFrame, name: str, layout: Layout | None = None) -> str:
    return b"".join(output.render(frame, name, ENVELOPE, layout)).decode()


def test_json_round_trips() -> None:
    body = json.loads(text_of(FRAME, "json"))
    assert list(body) == ["schema", "as_of", "interval", "tz", "rule_digest", "rows", "warnings"]
    assert body["schema"] == "loopstats.loops/1"
    assert body["warnings"] == ["careful"]
    assert [row["text"] for row in body["rows"]] == NAUGHTY
    assert [list(row) for row in body["rows"]] == [FRAME.columns] * FRAME.height
    assert [row["count"] for row in body["rows"]] == FRAME["count"].to_list()
    assert [row["names"] for row in body["rows"]] == FRAME["names"].to_list()
    assert body["rows"][3]["at"] == "2026-03-02T10:00:00.000003Z"
    assert body["rows"][1]["rate"] == 0.142857142857


def test_jsonl_is_the_rows_of_json() -> None:
    lines = text_of(FRAME, "jsonl").split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == json.loads(text_of(FRAME, "json"))["rows"]


def test_csv_round_trips_behind_its_guard() -> None:
    text = text_of(FRAME, "csv")
    assert text.count("\r\n") >= FRAME.height + 1
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[0] == FRAME.columns
    assert [output.unguard(row[0]) for row in rows[1:]] == NAUGHTY
    assert [row[1] for row in rows[1:]] == ["" if c is None else str(c) for c in FRAME["count"]]
    assert [row[2] for row in rows[1:]] == [{None: "", True: "true", False: "false"}[f] for f in FRAME["flag"]]
    assert [None if row[3] == "" else float(row[3]) for row in rows[1:]] == [output.plain(v) for v in FRAME["rate"]]
    assert [datetime.fromisoformat(row[4]) for row in rows[1:]] == FRAME["at"].to_list()
    assert [None if row[5] == "" else json.loads(row[5]) for row in rows[1:]] == FRAME["names"].to_list()
    assert not [row[0] for row in rows if row[0][:1] in ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")]


def test_csv_tells_null_from_empty() -> None:
    frame = pl.DataFrame({"a": ["", None], "n": [-1, None]})
    assert text_of(frame, "csv") == '"a","n"\r\n"",-1\r\n,\r\n'


def test_csv_is_read_by_polars() -> None:
    frame = FRAME.select("count", "rate", "flag").with_columns(pl.lit("x").alias("text"))
    read = pl.read_csv(io.StringIO(text_of(frame, "csv")))
    assert read["count"].to_list() == frame["count"].to_list()
    assert read["rate"].to_list() == [output.plain(v) for v in frame["rate"]]
    assert read["flag"].to_list() == frame["flag"].to_list()


def test_parquet_round_trips() -> None:
    data = b"".join(output.render(FRAME, "parquet", ENVELOPE))
    assert pl.read_parquet(io.BytesIO(data)).equals(FRAME)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=5))
def test_any_text_comes_back(texts: list[str]) -> None:
    frame = pl.DataFrame({"text": texts}, schema={"text": pl.String})
    assert [row["text"] for row in json.loads(text_of(frame, "json"))["rows"]] == texts
    rows = list(csv.reader(io.StringIO(text_of(frame, "csv"), newline="")))
    assert [output.unguard(row[0]) for row in rows[1:]] == texts
    table = text_of(frame, "md").split("\n")
    assert len(table) == len(texts) + 3
    assert {len(re.findall(r"\|", line)) for line in table[:-1]} == {2}


@pytest.mark.parametrize("name", ["table", "md", "json", "jsonl"])
@pytest.mark.parametrize("width", [60, 120])
def test_nothing_reaches_a_terminal_unseen(name: str, width: int) -> None:
    assert not UNSEEN.search(text_of(FRAME, name, Layout(width)))


def test_markdown_is_escaped() -> None:
    lines = text_of(FRAME, "md").split("\n")
    assert lines[0] == "| text | count | flag | rate | at | names |"
    assert lines[1] == "| --- | ---: | --- | ---: | --- | --- |"
    body = "\n".join(lines[2:])
    assert {line.count("|") for line in lines[:-1]} == {7}
    assert "<" not in body
    assert "http://" not in body
    assert "[bold]" not in body
    assert "snake_case" in body
    assert "\\*b\\* \\_i\\_" in body


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_that_json_lacks(value: float) -> None:
    frame = pl.DataFrame({"x": [value], "l": [[value, 1.0]]})
    assert json.loads(text_of(frame, "jsonl")) == {"x": None, "l": [None, 1.0]}
    assert text_of(frame.select("x"), "csv") == '"x"\r\n\r\n'
    assert "nan" not in text_of(frame, "table", Layout(80)).lower()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1 + 0.2, 0.3),
        (1 / 3, 0.333333333333),
        (-0.0, 0.0),
        (1e300, 1e300),
        (Decimal("5"), 5),
        (Decimal("1.5"), 1.5),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (timedelta(seconds=2), 2_000_000),
        (b"\xff", "ff"),
        ({"a": (1, None)}, {"a": [1, None]}),
        (True, True),
        (2**62, 2**62),
    ],
)
def test_plain(value: object, expected: object) -> None:
    found = output.plain(value)
    assert found == expected
    assert type(found) is type(expected)
    assert output.canonical(found) == output.canonical(expected)


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_a_table_keeps_to_its_width(width: int) -> None:
    lines = text_of(FRAME, "table", Layout(width)).split("\n")
    assert max(cell_len(line) for line in lines) <= width
    assert lines[0].startswith("text")


def test_a_narrow_table_drops_the_last_columns_and_says_which() -> None:
    wide = pl.DataFrame({"id": ["abcdefgh"], "message": ["word " * 20], "count": [1234567], "extra": ["x" * 40]})
    assert output.left_out(wide, Layout(45)) == ["extra"]
    assert output.left_out(wide, Layout(200)) == []
    text = text_of(wide, "table", Layout(45))
    assert "1234567" in text
    assert text.replace("\n", " ").split().count("word") == 20
    assert "extra" not in text
    assert output.left_out(wide, Layout(45, columns=("id", "count"))) == []


def test_a_long_table_is_laid_out_alike_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"a": ["x", "yyyy", "z"], "n": [1, 22, 333], "b": ["p", "q", "r"]})
    whole = text_of(frame, "table", Layout(60))
    monkeypatch.setattr(output, "BATCH_ROWS", 1)
    assert text_of(frame, "table", Layout(60)) == whole


def test_colours_only_where_asked() -> None:
    frame = pl.DataFrame({"a": [1]})
    assert "\x1b" not in text_of(frame, "table", Layout(80))
    assert "\x1b[1m" in text_of(frame, "table", Layout(80, is_coloured=True))


@pytest.mark.parametrize("name", output.FORMATS)
def test_no_rows(name: str) -> None:
    data = b"".join(output.render(FRAME.clear(), name, ENVELOPE, Layout(80)))
    expected = {"jsonl": b"", "csv": b'"text","count","flag","rate","at","names"\r\n'}
    if name in expected:
        assert data == expected[name]
    elif name == "json":
        assert json.loads(data)["rows"] == []
    elif name == "parquet":
        assert pl.read_parquet(io.BytesIO(data)).schema == FRAME.schema
    else:
        assert b"text" in data


def test_formats_by_name_and_by_file() -> None:
    assert output.format_of(None, None) == "table"
    assert output.format_of(None, Path("a.CSV")) == "csv"
    assert output.format_of(None, Path("a.ndjson")) == "jsonl"
    assert output.format_of("md", Path("a.csv")) == "md"
    assert output.format_of(None, Path("a.txt")) == "table"
    for call in (lambda: output.format_of("xml", None), lambda: output.render(FRAME, "xml", ENVELOPE)):
        with pytest.raises(UsageError, match="xml"):
            call()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")

    def failing() -> object:
        yield b"half"
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        output.write_file(target, failing())  # type: ignore[arg-type]
    assert target.read_text() == "old"
    output.write_file(target, [b"new", b"er"])
    assert target.read_bytes() == b"newer"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(tmp_path.iterdir()) == [target]


def test_where_a_file_cannot_be_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "a.json"):
        with pytest.raises(UsageError, match=re.escape(str(path))):
            output.write_file(path, [b""])
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(StorageError):
            output.write_file(tmp_path / "a.json", [b""])


def test_objects_as_a_frame() -> None:
    rows = [{"n": 1, "x": None, "why": ["a"], "more": {"k": 1.5}}, {"n": 2, "x": 0.5, "why": [], "more": {}}]
    frame = output.frame_of_objects(rows)
    assert frame.to_dicts() == [
        {"n": 1, "x": None, "why": ["a"], "more": '{"k":1.5}'},
        {"n": 2, "x": 0.5, "why": [], "more": "{}"},
    ]
    assert output.frame_of_objects(rows, has_nested=False).columns == ["n", "x", "why"]
    assert output.frame_of_objects([]).width == 0
