"""The lake of all real logs, read once for every test that looks at it."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import polars as pl

from lines import ingest
from loopstats.config import Settings
from loopstats.store import Lake
from loopstats.tables import TABLES

CORPUS = Path(os.environ.get("LOOPSTATS_CORPUS") or Path(__file__).resolve().parents[1].parent / "shared" / "corpus")


@cache
def corpus_tables() -> dict[str, pl.DataFrame]:
    """All tables of a lake of the corpus, and `records`; `source_file` is relative to the corpus folder.

    Every line of every file is accounted for, or this fails.
    """
    with tempfile.TemporaryDirectory(prefix="loopstats-corpus-") as name:
        lake = Path(name) / "lake"
        ingest(lake, CORPUS, settings=Settings())
        snapshot = Lake.open(lake).snapshot()
        tables = {table: snapshot.read(table) for table in TABLES}
        tables["records"] = snapshot.scan("records").collect()
    root = f"{CORPUS.as_posix().rstrip('/')}/"
    in_folder = pl.col("source_file").str.strip_prefix(root)
    return {
        table: frame.with_columns(in_folder) if "source_file" in frame.columns else frame
        for table, frame in tables.items()
    }
