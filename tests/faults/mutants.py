"""Four ways to write this program wrongly, put over the right one in a child process: the harness must catch each.

Nothing in the product knows of them. Each breaks one promise of the storage protocol and leaves everything else alone.
"""

from __future__ import annotations

import contextlib
import io
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl

from loopstats import ingest, steps, store


def no_anti_join() -> None:
    """Copies are not folded: what is read twice is counted twice."""
    folded = pl.DataFrame(
        schema={"session_id": pl.String, "source_id": pl.Int64, "source_line": pl.Int64, "reason": pl.String}
    )
    obsolete = pl.DataFrame(
        schema={"session_id": pl.String, "source_id": pl.Int64, "source_line": pl.Int64, "ordinal": pl.Int64}
    )
    steps._fold = lambda ordered, shadows: (ordered, folded, obsolete)

    def pair(calls: pl.DataFrame, results: pl.DataFrame) -> Any:
        # One answer a call, or the join would multiply and not merely double.
        return _pair(calls, results.unique(["run_id", "call_id"], keep="first", maintain_order=True))

    _pair = steps._pair
    steps._pair = pair


def no_tail_check() -> None:
    """A file that is longer than before is taken for one that grew, whatever stands in it."""
    ingest._is_grown = lambda file, before: ingest.os.fstat(file.fileno()).st_size >= before["offset"]


def no_roll_forward() -> None:
    """A commit that was not published is left as it is."""
    store.Writer.recover = lambda self: self._sweep()


def naive_writer() -> None:
    """One file a table under one name, written over; then the state; then the list of files: nothing is atomic."""

    def write(self: store.Writer, table: Any, bucket: int, frame: pl.DataFrame) -> store.DataFile:
        folder = Path(store.DATA) / table.name / f"bucket={bucket:02d}"
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        path = folder / f"{table.name}.parquet"
        if table.name == "records" and (self.root / path).exists():
            frame = pl.concat([pl.read_parquet(self.root / path, glob=False), frame], how="diagonal")
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        data = buffer.getvalue()
        (self.root / path).write_bytes(data)
        self.ledger.execute("DELETE FROM files WHERE path=?", (path.as_posix(),))
        self._removed = [p for p in self._removed if p != path.as_posix()]
        self._added[:] = [f for f in self._added if f.path != path.as_posix()]
        self._live = None
        return store.DataFile(path.as_posix(), table.name, bucket, frame.height, len(data), sha256(data).hexdigest())

    def publish(self: store.Writer) -> None:
        (self.root / store.MANIFEST).write_bytes(self._manifest())

    commit = store.Writer.commit

    def commit_in_pieces(self: store.Writer, sources: Any, rejects: Any, cleared: Any, meta: Any) -> None:
        for row in sources:
            names = ",".join(row)
            with contextlib.suppress(sqlite3.Error):
                self.ledger.execute(
                    f"INSERT OR REPLACE INTO sources({names}) VALUES({','.join('?' * len(row))})", tuple(row.values())
                )
        commit(self, [], rejects, cleared, meta)

    store.Writer._write = write
    store.Writer._publish = publish
    store.Writer.commit = commit_in_pieces


MUTANTS: dict[str, Callable[[], None]] = {
    "no anti-join": no_anti_join,
    "no tail check": no_tail_check,
    "no roll-forward": no_roll_forward,
    "naive writer": naive_writer,
}
