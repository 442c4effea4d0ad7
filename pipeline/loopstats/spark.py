"""The same line on a cluster: Spark carries tasks to the workers and answers back, and decides nothing.

A room of its own because an engine must not become a second implementation: what runs in a partition is
`workers.read_packed` for a file and `run.make` for a bucket, the very functions of the command line, and `run.ingest`
keeps the ledger and commits once. Two ways lead to a bucket's records. `worker`: the driver sends paths, the workers
read and write Parquet themselves. `spark`: Spark reads and shuffles, for where only Spark has the credentials, and the
answers come back as the bytes of files. Nothing here touches `sparkContext`, so that Spark Connect works too. An
answer names its files; what a task that failed, or was run twice, has written is named by nobody and is swept.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from loopstats import __version__, estimate, run, store, workers
from loopstats.errors import LoopstatsError, UsageError
from loopstats.ingest import Found
from loopstats.store import DataFile, Snapshot, Writer
from loopstats.tables import RECORDS, TABLES, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from loopstats.config import Settings
    from loopstats.when import Interval

MODES = ("worker", "spark")
INSTALL = "Spark is not installed: pip install 'loopstats[spark]'"
WAVE_BYTES = 4 << 30  # of raw logs a job: the records, about a hundredth, come back to the driver at once
WAVE_FILES = 4096
TASK_ROWS = 50_000  # records that are worth a task: below, its fixed costs are most of it
ANSWER = "number long, answer binary"
SPARK_TYPES = {
    "String": "STRING",
    "Int64": "BIGINT",
    "Float64": "DOUBLE",
    "Boolean": "BOOLEAN",
    "Datetime(time_unit='us', time_zone='UTC')": "TIMESTAMP",
    "List(String)": "ARRAY<STRING>",
}
Stage = Callable[[Any], Iterable[Any]]  # a task to its answers; both are pickled


@dataclass(frozen=True)
class Parts:
    """Stage: a batch to the files of its tables (`run.make`), written here (`root`) or sent as bytes."""

    terms: run.Terms
    generation: int
    root: Path | None

    def __call__(self, batch: run.Batch) -> Iterator[tuple[DataFile, bytes | None]]:
        return self._files(run.make_batch(batch, self.terms))

    def of(self, records: pl.DataFrame, buckets: Sequence[int]) -> Iterator[tuple[DataFile, bytes | None]]:
        """The same of records that somebody else has read."""
        return self._files(run.make(records, buckets, self.terms))

    def _files(self, made: Iterable[tuple[Table, int, pl.DataFrame]]) -> Iterator[tuple[DataFile, bytes | None]]:
        for table, bucket, part in made:
            file, data = store.encode(self.generation, table, bucket, part)
            if self.root is not None and part.height:
                os.umask(0o077)
                store.write_file(self.root, file, data, is_synced=True)
            yield file, bytes(data) if self.root is None and part.height else None


@dataclass(frozen=True)
class Cluster:
    """`run.Engine` on Spark. `mode`: `worker` or `spark`."""

    session: SparkSession
    mode: str = "worker"

    def read_all(
        self, tasks: Sequence[workers.Task], tool_rows: dict[str, str], tell: Callable[[Found], None]
    ) -> Iterator[workers.Outcome]:
        """Files are read where they lie on the workers, in either mode: some formats look at a file's neighbours."""
        for wave in _waves(tasks):
            for task, packed in zip(wave, self.run_all(Read(tool_rows), wave), strict=True):
                tell(task.found)
                yield workers.unpacked(packed)

    def derive_all(self, writer: Writer, source: Snapshot, buckets: Sequence[int], terms: run.Terms) -> Iterator[int]:
        yield 0
        is_worker = self.mode == "worker"
        parts = Parts(terms, writer.generation, writer.root.resolve() if is_worker else None)
        batches = run.batches(source, buckets, TASK_ROWS)
        # Spark sends no group for a bucket without records; its tables of before have to go all the same.
        empty = [bucket for bucket in buckets if not source.paths(RECORDS.name, bucket)]
        for file, data in self.run_all(parts, batches) if is_worker else self._shuffled(parts, batches, empty):
            writer.adopt(file, data)

    def over(
        self, snapshot: Snapshot, name: str, columns: Sequence[str], stage: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> pl.DataFrame:
        """A stage on every piece of a table, its frames as one; where a piece ends must not matter to it."""
        table = TABLES[name]
        pieces: list[pl.DataFrame] = [stage(table.empty().select(columns))]
        paths = snapshot.paths(name)
        piece = Piece(table, tuple(columns), stage)
        if self.mode == "worker":
            pieces.extend(self.run_all(piece, paths))
        elif paths:
            frame = self._parquet(table, [str(path.resolve()) for path in paths]).select(*columns)
            pieces.extend(_collected(frame.mapInArrow(piece.of_batches, ANSWER)))
        return pl.concat(pieces)

    def run_all(self, stage: Stage, tasks: Sequence[Any]) -> Iterator[Any]:
        """Answers of a stage in the order of its tasks, each task a partition of its own."""
        if not tasks:
            return
        packed = [pickle.dumps(task) for task in tasks]
        rows = self.session.range(0, len(tasks), 1, len(tasks))
        yield from _collected(rows.mapInArrow(Run(stage, packed, _versions()), ANSWER))

    def _parquet(self, table: Table, paths: Sequence[str], *more: str) -> DataFrame:
        """Files of a table as Spark reads them; with the schema, since of a column that is new it would see nothing."""
        # The paths are known: without this, Spark lists each of them in a task of its own.
        self.session.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", str(1 << 20))
        columns = [f"`{name}` {SPARK_TYPES[str(dtype)]}" for name, dtype in table.schema.items()]
        reader = self.session.read.schema(", ".join([*columns, *more]))
        return reader.option("basePath", str(Path(paths[0]).parents[1])).parquet(*paths)

    def _shuffled(
        self, parts: Parts, batches: Sequence[run.Batch], empty: list[int]
    ) -> Iterator[tuple[DataFile, bytes | None]]:
        if empty:
            yield from parts(run.Batch(empty, []))
        paths = [str(path.resolve()) for batch in batches for path in batch.paths]
        if not paths:
            return
        from pyspark.sql import functions as f

        frame = self._parquet(RECORDS, paths, "bucket INT")
        shuffled = Shuffled(parts, _versions())
        # As many buckets at once as the largest batch has. A lambda, since Spark counts a `self` among the arguments.
        group = f.floor(f.col("bucket") / max(len(batch.buckets) for batch in batches))
        yield from _collected(frame.groupBy(group).applyInArrow(lambda rows: shuffled(rows), ANSWER))


@dataclass(frozen=True)
class Read:
    """Stage: a file to its packed outcome (`workers.read_packed`)."""

    tool_rows: dict[str, str]

    def __call__(self, task: workers.Task) -> Iterator[Any]:
        yield workers.read_packed(task, self.tool_rows)


@dataclass(frozen=True)
class Piece:
    """Stage: a file, or rows that Spark has read, to what a function makes of them."""

    table: Table
    columns: tuple[str, ...]
    stage: Callable[[pl.DataFrame], pl.DataFrame]

    def __call__(self, path: Path) -> Iterator[pl.DataFrame]:
        yield self.stage(store.scan_files(self.table, [path]).select(self.columns).collect())

    def of_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same of rows that come from Spark."""
        for batch in batches:
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            typed = frame.select([pl.col(name).cast(self.table.schema[name]) for name in self.columns])
            yield from _answers(0, [self.stage(typed)]).to_batches()


@dataclass(frozen=True)
class Run:
    """What a partition of numbers runs: the stage on its tasks. A partition may come in several batches."""

    stage: Stage
    packed: list[bytes]
    versions: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _check(self.versions)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for answer in self.stage(pickle.loads(self.packed[number])):
                    yield _answers(number, [answer]).to_batches()[0]


@dataclass(frozen=True)
class Shuffled:
    """What a group of records runs that Spark has read: rows in any order, the partition column at their end."""

    parts: Parts
    versions: tuple[str, ...]

    def __call__(self, rows: pa.Table) -> pa.Table:
        _check(self.versions)
        frame = pl.from_arrow(rows)
        assert isinstance(frame, pl.DataFrame)
        buckets = sorted(frame["bucket"].unique().to_list())
        return _answers(buckets[0], list(self.parts.of(RECORDS.conform(frame), buckets)))


def _answers(number: int, answers: Sequence[Any]) -> pa.Table:
    packed = pa.array([pickle.dumps(answer) for answer in answers], pa.binary())
    return pa.table({"number": pa.array([number] * len(answers), pa.int64()), "answer": packed})


def _collected(frame: DataFrame) -> Iterator[Any]:
    """Answers in the order of their numbers, and of each number in the order in which they were given."""
    table = _explained(frame.toArrow)
    numbers = table.column("number").to_numpy()
    for row in numbers.argsort(kind="stable"):
        yield pickle.loads(table.column("answer")[int(row)].as_py())


def _waves(tasks: Sequence[workers.Task]) -> Iterator[list[workers.Task]]:
    """Files in jobs of bounded size, in order."""
    wave: list[workers.Task] = []
    size = 0
    for task in tasks:
        if wave and (size + task.found.size_bytes > WAVE_BYTES or len(wave) == WAVE_FILES):
            yield wave
            wave, size = [], 0
        wave.append(task)
        size += task.found.size_bytes
    if wave:
        yield wave


def _versions() -> tuple[str, ...]:
    """What has to be equal on driver and workers: else rows could differ, and nobody would see it."""
    return (__version__, pl.__version__, "{}.{}".format(*sys.version_info))


def _check(versions: tuple[str, ...]) -> None:
    if versions != _versions():
        raise LoopstatsError(f"driver and worker differ: loopstats, polars, Python {versions} and {_versions()}")


def _explained(job: Callable[[], Any]) -> Any:
    """Run a job; an error that has its cause in the workers' Python says so, and how to mend it."""
    try:
        return job()
    except Exception as error:
        if {kind.__module__.partition(".")[0] for kind in type(error).__mro__}.isdisjoint(("pyspark", "py4j")):
            raise
        text = str(error)
        signs = ("No module named", "PYTHON_VERSION_MISMATCH", "driver and worker differ", "Cannot run program")
        for line in text.splitlines():
            if any(sign in line for sign in signs):
                raise LoopstatsError(
                    f"the workers' Python is not that of the driver ({line.strip()[:200]}): set PYSPARK_PYTHON, or "
                    "spark.pyspark.python, to a Python with the same loopstats (docs/scale.md)"
                ) from error
        raise LoopstatsError(f"the Spark job failed: {text.strip().splitlines()[0][:300]}") from error


def read_lift(cluster: Cluster, snapshot: Snapshot, settings: Settings, interval: Interval) -> estimate.Readout:
    """The readout of `loopstats lift`, from columns and counts that the cluster gathered."""
    names = ("loops", "sessions", "detections", "deliveries")
    loops, sessions, detections, deliveries = (
        cluster.over(snapshot, name, estimate.COLUMNS.get(name, TABLES[name].names), _as_is) for name in names
    )
    readout = estimate.lift(
        loops,
        sessions,
        detections,
        deliveries,
        settings,
        as_of_us=interval.as_of_us,
        since_us=interval.since_us,
        until_us=interval.until_us,
    )
    counts = cluster.over(snapshot, "steps", estimate.QUALITY, Quality(interval.as_of_us))
    return replace(readout, warnings=(*readout.warnings, *estimate.quality_of(counts, snapshot.read("sources"))))


def _as_is(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


@dataclass(frozen=True)
class Quality:
    """Stage: steps to their counts (`estimate.quality_counts`)."""

    as_of_us: int

    def __call__(self, steps: pl.DataFrame) -> pl.DataFrame:
        return estimate.quality_counts(steps.lazy(), self.as_of_us)


def open_session(master: str | None = None, remote: str | None = None, conf: Sequence[str] = ()) -> SparkSession:
    """A session on a master, a Connect server, or what `spark-submit` and the environment say (else this machine)."""
    for name, value in {"PYSPARK_PYTHON": sys.executable, "POLARS_MAX_THREADS": "1"}.items():
        os.environ.setdefault(name, value)
    if master is None or master.startswith("local") or "//127.0.0.1" in master:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError(INSTALL) from None
    builder = SparkSession.builder.appName("loopstats")
    if remote is not None:
        builder = builder.remote(remote)
    elif master is not None:
        builder = builder.master(master)
    builder = builder.config("spark.executorEnv.POLARS_MAX_THREADS", "1").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.driver.maxResultSize", "0")
    for item in conf:
        name, sign, value = item.partition("=")
        if not sign:
            raise UsageError(f"--conf {item}: write NAME=VALUE")
        builder = builder.config(name, value)
    return builder.getOrCreate()
