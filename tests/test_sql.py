"""Every relation and question of `sql/` on folders of rows: `tests/sql/<name>/<case>/` holds inputs and `expect.csv`.

An input is `<table>.csv` with the columns that matter (others are null, empty, 0 or false); `as_of.txt` holds the
instant, where it is not the usual one. Rows are compared as canonical CSV text, in order.
"""

from __future__ import annotations

import csv
import io
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from loopstats import query
from loopstats.output import Envelope, render
from loopstats.tables import BOOL, INT, TABLES, TIME, Table
from small_lake import frame_of

FOLDER = Path(__file__).parent / "sql"
AS_OF = "2026-03-04T00:00:00Z"
CASES = sorted(path.parent for path in FOLDER.glob("*/*/expect.csv"))
RELATIONS = {r.name: r for folder in (*query.VIEW_FOLDERS, "queries") for r in query.relations(folder)}


def value(text: str, dtype: Any) -> Any:
    if text == "":
        return None
    if dtype == INT:
        return int(text)
    if dtype == BOOL:
        return {"true": True, "false": False}[text]
    return datetime.fromisoformat(text) if dtype == TIME else text


def read(path: Path, table: Table) -> pl.DataFrame:
    with path.open(newline="") as file:
        rows = [{name: value(text, table.schema[name]) for name, text in row.items()} for row in csv.DictReader(file)]
    return frame_of(table, [{name: cell for name, cell in row.items() if cell is not None} for row in rows])


def cells(data: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data)))


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_case(case: Path) -> None:
    inputs = [path for path in sorted(case.glob("*.csv")) if path.name != "expect.csv"]
    tables = {path.stem: read(path, TABLES[path.stem]).to_arrow() for path in inputs}
    moment = (case / "as_of.txt").read_text().strip() if (case / "as_of.txt").exists() else AS_OF
    opened = query.open_tables(tables, round(datetime.fromisoformat(moment).timestamp() * 1_000_000))
    frame = query.run(opened, RELATIONS[case.parent.name].sql)
    actual = b"".join(render(frame, "csv", Envelope("sql", moment, "UTC", ""))).decode()
    assert cells(actual) == cells((case / "expect.csv").read_text())


def test_every_relation_has_a_case() -> None:
    assert {path.parent.name for path in CASES} == set(RELATIONS)
