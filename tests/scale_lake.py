"""A lake of many steps, made in seconds: the sample's sessions again and again, under other names.

A room of its own because parsing hundreds of thousands of lines would cost more than what is tested with them. One
share of the copies becomes a single giant run; beside it stand a run of one step and a bucket without any record.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import polars as pl

from loopstats import run
from loopstats.config import Settings
from loopstats.store import Lake, bucket_of
from loopstats.tables import RECORDS

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "sample"
EMPTY_BUCKET = 7
FILLED = frozenset(
    {1, 4, 9, 14, 18, 23, 29, 34, 40, 47, 52, 61}
)  # few buckets, few files: a file costs more than its rows
COPIES_A_FILE = 24
GIANT, LONELY = "giant", "lonely"


def renamed(session: str, number: int) -> str:
    """Another name of a session, one that lies in a filled bucket."""
    tries = (f"{session}-{number}.{turn}" for turn in itertools.count())
    return next(name for name in tries if bucket_of(name) in FILLED)


def copies(records: pl.DataFrame, number: int, *, is_giant: bool = False) -> pl.DataFrame:
    """The sample's records once more; of a giant run those with their calls alone, each call a call of its own."""
    mark = pl.lit(f"-{number}")
    uid = (pl.col("uid") + mark).alias("uid")
    if not is_giant:
        names = {session: renamed(session, number) for session in records["session_id"].unique()}
        return records.with_columns(pl.col("session_id").replace_strict(names), uid)
    own = pl.col("session_id") + mark
    texts = [(own + pl.col(name)).alias(name) for name in ("call_id", "decision_key")]
    giant = [pl.lit(GIANT).alias("session_id"), pl.lit(None, dtype=pl.String()).alias("agent"), uid]
    chosen = records.filter(pl.col("type").is_in(["call", "result", "turn"])).with_columns(texts)
    return chosen.with_columns(giant).with_columns(pl.lit(None, dtype=pl.String()).alias("parent_agent"))


def fill(root: Path, times: int, *, giant_of: int = 0) -> Lake:
    """A lake of `times` samples of records, of which the first `giant_of` are one run; nothing is derived yet."""
    sample = Lake(root.parent / f"{root.name}-sample")
    run.ingest(sample, [str(SAMPLE)], Settings())
    sources, meta, _ = sample.ledger_rows()
    records = sample.snapshot().scan("records").collect()
    one = records.filter(pl.col("type").is_in(["call", "result"]) & pl.col("agent").is_null())
    first = one.filter(pl.col("call_id") == one["call_id"][0], pl.col("session_id") == one["session_id"][0])
    lonely = first.with_columns(pl.lit(LONELY).alias("session_id"), (pl.col("uid") + "-lonely").alias("uid"))
    lake = Lake(root)
    with lake.write() as writer:
        for start in range(0, times, COPIES_A_FILE):
            numbers = range(start, min(start + COPIES_A_FILE, times))
            frame = pl.concat([copies(records, number, is_giant=number < giant_of) for number in numbers])
            frame = pl.concat([frame, lonely]) if start == 0 else frame
            names = frame["session_id"].unique(maintain_order=True).to_list()
            keys = pl.DataFrame({"session_id": names, "bucket": [bucket_of(name) for name in names]})
            parts = frame.join(keys, on="session_id", maintain_order="left").partition_by("bucket", as_dict=True)
            for (bucket,), part in parts.items():
                if bucket != EMPTY_BUCKET:
                    writer.append(RECORDS, int(bucket), part.drop("bucket"))
        writer.commit(sources, [], [], {"rule_digest": meta["rule_digest"]})
    return lake
