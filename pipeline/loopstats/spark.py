"""The same line on a cluster: Spark carries tasks to the workers and answers back, and decides nothing.

A room of its own because an engine must not become a second implementation: what runs in a partition is
`workers.read_packed` for a file and `derive.make` for a bucket, the very functions of the command line, and
`run.ingest` keeps the ledger and commits once. Two ways lead to a bucket's records. `worker`: the driver sends paths,
the workers read and write Parquet themselves. `spark`: Spark reads and shuffles, for where only Spark has the
credentials, and the answers come back as the bytes of files. Nothing here touches `sparkContext`, so that Spark Connect
works too. An answer names its files; what a task that failed, or was run twice, has written is named by nobody and is
swept.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from loopstats import __version__, store, workers
from loopstats.derive import Batch, Terms, batches, in_groups, make, make_batch
from loopstats.errors import LoopstatsError, UsageError
from loopstats.ingest import Found
from loopstats.store import DataFile, Snapshot, Writer
from loopstats.tables import RECORDS, TABLES, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MODES = ("worker", "spark")
INSTALL = "Spark is not installed: pip install 'loopstats[spark]'"
WAVE_BYTES = 4 << 30  # of raw logs a job: the records, about a hundredth, come back to the driver at once
FILE_BYTES = 1 << 20  # that a file counts at least, so that a job has no more than 4096
PARTITION_ROWS = 1_000_000  # of a table, file by file: a partition's fixed costs are a tenth of what they take
TASK_ROWS = 50_000  # records that are worth a task: below, its fixed costs are most of it
ANSWER = "number long, answer binary"
# What has to be equal on driver and workers: else rows could differ, and nobody would see it.
VERSIONS = (__version__, pl.__version__, "{}.{}".format(*sys.version_info))
Part = tuple[DataFile, bytes | None]  # a file of a table; its bytes where it is not written yet


@dataclass(frozen=True)
class Cluster:
    """`run.Engine` on Spark. `mode`: `worker` or `spark`."""

    session: SparkSession
    mode: str = "worker"

    def read_all(
        self, tasks: Sequence[workers.Task], tool_rows: dict[str, str], tell: Callable[[Found], None]
    ) -> Iterator[workers.Outcome]:
        """Files are read where they lie on the workers, in either mode: some formats look at a file's neighbours."""
        for wave in in_groups([(task, max(task.found.size_bytes, FILE_BYTES)) for task in tasks], WAVE_BYTES):
            for task, packed in zip(wave, self._asked(partial(_read, tool_rows), wave), strict=True):
                tell(task.found)
                yield workers.unpacked(packed)

    def derive_all(self, writer: Writer, source: Snapshot, buckets: Sequence[int], terms: Terms) -> Iterator[int]:
        yield 0
        tasks = batches(source, buckets, TASK_ROWS)
        if self.mode == "worker":
            parts = self._asked(partial(_made, terms, writer.generation, writer.root.resolve()), tasks)
        else:
            parts = self._shuffled(partial(_made, terms, writer.generation, None), tasks, source)
        for file, data in parts:
            writer.adopt(file, data)

    def over(
        self, snapshot: Snapshot, name: str, columns: Sequence[str], stage: Callable[[pl.LazyFrame], pl.DataFrame]
    ) -> pl.DataFrame:
        """A stage on every piece of a table, its frames as one; where a piece ends must not matter to it."""
        table, paths = TABLES[name], snapshot.paths(name)
        told = partial(_told, table, tuple(columns), stage)
        pieces: list[pl.DataFrame] = list(told(table.empty()))
        if self.mode == "worker":
            partitions = min(len(paths), snapshot.count_rows(name) // PARTITION_ROWS + 1)
            pieces.extend(self._asked(told, paths, partitions))
        elif paths:
            pieces.extend(_collected(self._parquet(table, paths).select(*columns).mapInArrow(Run(told).rows, ANSWER)))
        return pl.concat(pieces)

    def _asked(
        self, stage: Callable[[Any], Iterable[Any]], tasks: Sequence[Any], partitions: int | None = None
    ) -> Iterator[Any]:
        """Answers of a stage in the order of its tasks, each task a partition of its own or several to a partition."""
        if not tasks:
            return
        numbers = self.session.range(0, len(tasks), 1, partitions or len(tasks))
        yield from _collected(numbers.mapInArrow(Run(stage, [pickle.dumps(task) for task in tasks]).tasks, ANSWER))

    def _parquet(self, table: Table, paths: Sequence[Path]) -> DataFrame:
        """Files of a table as Spark reads them; with the schema, since of a column that is new it would see nothing."""
        # The paths are known: without this, Spark lists each of them in a task of its own.
        self.session.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", str(1 << 20))
        schema = self.session.createDataFrame(table.empty().to_arrow()).schema.add("bucket", "integer")
        names = [str(path.resolve()) for path in paths]
        return self.session.read.schema(schema).option("basePath", str(Path(names[0]).parents[1])).parquet(*names)

    def _shuffled(
        self, stage: Callable[[Any], Iterable[Part]], tasks: Sequence[Batch], source: Snapshot
    ) -> Iterator[Part]:
        # Spark sends no group for a bucket without records; its tables of before have to go all the same.
        filled = set(source.buckets(RECORDS.name))
        if empty := [bucket for task in tasks for bucket in task.buckets if bucket not in filled]:
            yield from stage(Batch(empty, []))
        paths = [path for task in tasks for path in task.paths]
        if not paths:
            return
        from pyspark.sql import functions as f

        work = Run(stage)
        # As many buckets at once as the largest batch has. A lambda, since Spark counts a `self` among the arguments.
        group = f.floor(f.col("bucket") / max(len(task.buckets) for task in tasks))
        grouped = self._parquet(RECORDS, paths).groupBy(group)
        yield from _collected(grouped.applyInArrow(lambda rows: work.group(rows), ANSWER))


def _read(tool_rows: dict[str, str], task: workers.Task) -> Iterator[Any]:
    """Stage: a file to its packed outcome."""
    yield workers.read_packed(task, tool_rows)


def _made(terms: Terms, generation: int, root: Path | None, task: Batch | pl.DataFrame) -> Iterator[Part]:
    """Stage: a batch, or records that Spark has read, to the files of its tables, written here or sent as bytes."""
    if isinstance(task, Batch):
        made = make_batch(task, terms)
    else:
        made = make(RECORDS.conform(task).lazy(), sorted(task["bucket"].unique().to_list()), terms)
    for table, bucket, part in made:
        file, data = store.encode(generation, table, bucket, part)
        if root is not None and part.height:
            os.umask(0o077)
            store.write_file(root, file, data, is_synced=True)
        yield file, bytes(data) if root is None and part.height else None


def _told(
    table: Table, columns: Sequence[str], stage: Callable[[pl.LazyFrame], pl.DataFrame], piece: Path | pl.DataFrame
) -> Iterator[pl.DataFrame]:
    """Stage: a file of a table, or rows that Spark has read, to what a function makes of them."""
    rows = store.scan_files(table, [piece]) if isinstance(piece, Path) else piece.lazy()
    yield stage(rows.select([pl.col(name).cast(table.schema[name]) for name in columns]))


@dataclass(frozen=True)
class Run:
    """What a worker runs: a stage on tasks by their numbers, or on rows that Spark has read. It goes there pickled."""

    stage: Callable[[Any], Iterable[Any]]
    packed: Sequence[bytes] = ()
    versions: tuple[str, ...] = VERSIONS

    def tasks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Numbers to answers. A partition may come in several batches."""
        self._check()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for answer in self.stage(pickle.loads(self.packed[number])):
                    yield from _answers(number, [answer]).to_batches()

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows to answers, a batch at a time."""
        for batch in batches:
            yield from self.group(pa.Table.from_batches([batch])).to_batches()

    def group(self, rows: pa.Table) -> pa.Table:
        """Rows that belong together, in any order, to answers."""
        self._check()
        return _answers(0, list(self.stage(pl.from_arrow(rows))))

    def _check(self) -> None:
        if self.versions != VERSIONS:
            raise LoopstatsError(f"driver and worker differ: loopstats, polars, Python {self.versions} and {VERSIONS}")


def _answers(number: int, answers: Sequence[Any]) -> pa.Table:
    packed = pa.array([pickle.dumps(answer) for answer in answers], pa.binary())
    return pa.table({"number": pa.array([number] * len(answers), pa.int64()), "answer": packed})


def _collected(frame: DataFrame) -> Iterator[Any]:
    """Answers in the order of their numbers, and of each number in the order in which they were given."""
    table = _explained(frame.toArrow)
    numbers = table.column("number").to_numpy()
    for row in numbers.argsort(kind="stable"):
        yield pickle.loads(table.column("answer")[int(row)].as_py())


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
