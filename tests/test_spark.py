"""The adapter without Spark: a stand-in that carries tasks as Spark does, pickled, in several batches, and some twice.

What is proved here needs no cluster: that workers run the very functions of the command line, that the lake is the
same whoever works, and that a task that ran twice leaves nothing behind. `test_scale.py` does it with a real one.
"""

from __future__ import annotations

import ast
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from lines import assert_same, tables_of
from loopstats import cli, derive, doctor, estimate, nightly, nights, query, run, spark, store, tables, when, workers
from loopstats.config import Settings
from loopstats.errors import LoopstatsError, UsageError
from loopstats.store import Lake

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "data" / "sample"
AS_OF_US = 1_795_132_800_000_000


def messy_logs(folder: Path) -> Path:
    """The sample with a copy of a file, a resumed session, a torn line, and a file that is no log."""
    folder.mkdir()
    for path in sorted(SAMPLE.rglob("*.jsonl"))[:4]:
        shutil.copy(path, folder)
    first = sorted(folder.glob("*.jsonl"))[0]
    lines = first.read_bytes().splitlines(keepends=True)
    (folder / "again").mkdir()
    (folder / "again" / first.name).write_bytes(b"".join(lines))
    (folder / "again" / "half.jsonl").write_bytes(
        b"".join([*lines[: len(lines) // 2], b'{"v":1,"type":"st\n', b"\xff\n"])
    )
    renamed = b"".join(line.replace(b'"session":"', b'"session":"fork-') for line in lines[: len(lines) // 3])
    (folder / "again" / "fork.jsonl").write_bytes(renamed)
    (folder / "notes.json").write_text('{"no": "log"}')
    (folder / "link.jsonl").symlink_to(first)
    return folder


class Frame:
    """Rows as Spark holds them: every function crosses a border by pickle, and what it gives comes back as Arrow."""

    def __init__(self, rows: pa.Table, is_twice: bool = False) -> None:
        self.rows, self.is_twice = rows, is_twice

    def mapInArrow(self, function: Callable[..., Any], schema: str) -> Frame:
        assert schema == spark.ANSWER
        owner = pickle.dumps(getattr(function, "__self__", function))
        name = getattr(function, "__name__", "__call__") if hasattr(function, "__self__") else "__call__"
        batches = self.rows.to_batches(max_chunksize=3)

        def once() -> list[pa.RecordBatch]:
            return list(getattr(pickle.loads(owner), name)(iter(batches)))

        if self.is_twice:
            once()
        return Frame(pa.Table.from_batches(list(reversed(once())), ANSWER))

    def select(self, *names: str) -> Frame:
        return Frame(self.rows.select(names))

    def toArrow(self) -> pa.Table:
        return self.rows


ANSWER = pa.schema([("number", pa.int64()), ("answer", pa.binary())])


class Schema(list[str]):
    """Columns by name."""

    def add(self, name: str, kind: str) -> Schema:
        return Schema([*self, name])


class Conf(dict[str, str]):
    """Settings of a session."""

    def set(self, name: str, value: str) -> None:
        self[name] = value


class Session:
    """What the adapter uses of a SparkSession. `is_twice`: every task runs twice, as after a lost executor."""

    def __init__(self, is_twice: bool = False) -> None:
        self.is_twice = is_twice

    @property
    def read(self) -> Session:
        return self

    def range(self, start: int, end: int, step: int, count: int) -> Frame:
        assert 0 < count <= end - start, "no partition without a task"
        return Frame(pa.table({"id": pa.array(range(start, end, step), pa.int64())}), self.is_twice)

    @property
    def conf(self) -> dict[str, str]:
        return Conf()

    def createDataFrame(self, rows: pa.Table) -> Any:
        return SimpleNamespace(schema=Schema(rows.schema.names))

    def schema(self, columns: Schema) -> Session:
        assert {"session_id", "bucket"} <= set(columns)
        return self

    def option(self, name: str, value: str) -> Session:
        return self

    def parquet(self, *paths: str) -> Frame:
        return Frame(pa.concat_tables([pl.read_parquet(path, glob=False).to_arrow() for path in paths]))


def ingested(lake: Path, logs: Path, engine: run.Engine | None = None) -> dict[str, Any]:
    return run.ingest(Lake(lake), [str(logs)], Settings(), engine=engine)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return messy_logs(tmp_path_factory.mktemp("spark") / "logs")


@pytest.fixture(scope="module")
def here(logs: Path) -> Path:
    lake = logs.parent / "here"
    assert ingested(lake, logs)["rejects"]
    return lake


def test_the_same_lake_whoever_works_and_however_often(
    logs: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, written = tmp_path / "there", []
    true = store.write_file

    def write_file(root: Path, file: store.DataFile, data: bytes, *, is_synced: bool = False) -> None:
        written.append(file.path)
        true(root, file, data, is_synced=is_synced)

    monkeypatch.setattr(store, "write_file", write_file)
    ingested(lake, logs, spark.Cluster(Session(is_twice=True)))  # type: ignore[arg-type]
    assert_same(tables_of(lake), tables_of(here))
    listed = {file.path for file in Lake.open(lake).snapshot().files}
    assert sum(path.startswith("data/steps/") for path in written) == 2 * sum("data/steps/" in path for path in listed)
    assert {path.relative_to(lake).as_posix() for path in lake.glob("data/*/*/*.parquet")} == listed


def test_detect_fills_another_lake_that_goes_on_by_itself(logs: Path, here: Path, tmp_path: Path) -> None:
    there = Lake(tmp_path / "there")
    told = run.detect_anew(Lake(here), there, Settings(), spark.Cluster(Session()))  # type: ignore[arg-type]
    assert told["tables"]["loops"] > 0
    assert_same(tables_of(there.root), tables_of(here))
    assert ingested(there.root, logs)["files_new"] == 0
    with pytest.raises(UsageError, match="there is a lake already"):
        run.detect_anew(Lake(here), there, Settings(), run.Here())


def test_detect_refuses_records_of_another_rule(here: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="another rule"):
        run.detect_anew(Lake(here), Lake(tmp_path / "there"), Settings(tool_rows={"frob": "edit"}), run.Here())


@pytest.mark.parametrize("mode", spark.MODES)
def test_the_lift_is_gathered_by_pieces(here: Path, mode: str) -> None:
    snapshot, settings = Lake.open(here).snapshot(), Settings()
    interval = when.resolve("30d", None, None, "UTC", AS_OF_US)
    cluster = spark.Cluster(Session(), mode)  # type: ignore[arg-type]
    there = query.lift(snapshot, settings, interval, query.Filters(), over=cluster.over)
    whole = nights.read_lift(
        snapshot, settings, as_of_us=AS_OF_US, since_us=interval.since_us, until_us=interval.until_us
    )
    known = estimate.quality(snapshot.scan("steps"), snapshot.read("sources"), AS_OF_US)
    assert there.to_json()["rows"] == whole.to_json()["rows"]
    assert there.warnings == (*whole.warnings, *known)


def test_counts_of_parts_are_counts_of_the_whole(here: Path) -> None:
    loops = Lake.open(here).snapshot().read("loops")
    whole = run.count_arms(loops.lazy())
    parts = [run.count_arms(loops[start::3].lazy()) for start in range(3)]
    assert run.count_arms(pl.concat(parts).lazy()).equals(whole)
    assert whole["count_loops"].sum() == loops.height
    assert not any(dtype.is_float() for dtype in whole.dtypes)


def test_workers_run_the_functions_of_the_command_line(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def watched(module: Any, name: str) -> None:
        true = getattr(module, name)

        def watch(*given: Any, **named: Any) -> Any:
            called.append(name)
            return true(*given, **named)

        monkeypatch.setattr(module, name, watch)

    for module, name in ((workers, "read_source"), (derive, "derive"), (derive, "detect"), (derive, "classify")):
        watched(module, name)
    ingested(tmp_path / "here", logs)
    by_us = {name: called.count(name) for name in called}
    called.clear()
    ingested(tmp_path / "there", logs, spark.Cluster(Session()))  # type: ignore[arg-type]
    assert {name: called.count(name) for name in called} == by_us
    assert by_us.keys() == {"read_source", "derive", "detect", "classify"}


def test_the_adapter_holds_no_stage_and_no_driver_only_door() -> None:
    tree = ast.parse((ROOT / "pipeline" / "loopstats" / "spark.py").read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"sparkContext", "rdd", "_jvm", "_jsc"}, "Spark Connect has none of these"
    assert not names & {"group_by", "sort", "when", "join_asof"}, "rows are judged by the stages alone"


def test_driver_and_workers_have_to_be_of_one_version(here: Path) -> None:
    stale = spark.Run(list, versions=("0.0.1", "1.0", "3.9"))
    batch = pa.record_batch({"id": pa.array([0], pa.int64())})
    for work in (stale.tasks, stale.rows):
        with pytest.raises(LoopstatsError, match="driver and worker differ"):
            list(work(iter([batch])))


def test_files_go_in_jobs_of_bounded_size(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, jobs = Session(), []
    true = session.range

    def counted(start: int, end: int, step: int, count: int) -> Frame:
        jobs.append(count)
        return true(start, end, step, count)

    monkeypatch.setattr(session, "range", counted)
    monkeypatch.setattr(spark, "WAVE_BYTES", 1000)
    monkeypatch.setattr(spark, "FILE_BYTES", 300)
    sizes = [400, 700, 300, 1, 1, 1, 5000, 2]
    paths = [tmp_path / f"f{n}" for n in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(b"x" * size)
    tasks = [
        workers.Task(spark.Found(str(path), path.name, size, 0, n, False), None, n)
        for n, (path, size) in enumerate(zip(paths, sizes, strict=True))
    ]
    told: list[str] = []
    cluster = spark.Cluster(session)  # type: ignore[arg-type]
    outcomes = list(cluster.read_all(tasks, {}, lambda found: told.append(found.source_file)))
    assert jobs == [1, 2, 3, 1, 1]
    assert len(outcomes) == len(sizes) and told == [path.name for path in paths]


def test_a_bucket_without_records_loses_its_tables(here: Path, tmp_path: Path) -> None:
    with Lake(tmp_path / "lake").write() as writer:
        terms = derive.Terms(*empty_terms(), Settings())
        answers = list(spark._made(terms, writer.generation, None, derive.Batch([5], [])))
        assert {file.name for file, _ in answers} >= {"steps", "loops", "runs"}
        assert all(file.count_rows == 0 and file.bucket == 5 and data is None for file, data in answers)


def empty_terms() -> tuple[pl.DataFrame, pl.DataFrame]:
    shadows = run.find_shadows(run.record_index(run.RECORDS.empty().lazy()))
    with_sources = {"source_id": pl.Int64, "source_file": pl.String, "order_us": pl.Int64, "order_sha256": pl.String}
    return pl.DataFrame(schema=with_sources | {"is_superseded": pl.Boolean}), shadows


def test_adopted_files_are_those_of_the_bytes(tmp_path: Path, here: Path) -> None:
    loops = Lake.open(here).snapshot().read("loops")
    with Lake(tmp_path / "lake").write() as writer:
        for _ in range(2):  # as all of the table in its bucket: the second stands for the first
            file, data = store.encode(0, tables.LOOPS, 3, loops)
            writer.adopt(file, bytes(data))
        writer.commit([], [], [], {})
    assert Lake.open(tmp_path / "lake").snapshot().read("loops").equals(loops)


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    yield


def test_without_the_extra_the_mend_is_said(
    here: Path, without_spark: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run_command(["--lake", str(here), "spark", "detect"]) == 2
    assert "pip install 'loopstats[spark]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["spark", "detect", "--mode", "both"],
        ["spark", "detect", "--master", "local", "--remote", "sc://x"],
        ["spark", "ingest"],
    ],
)
def test_wrong_calls_are_usage_errors(here: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["--lake", str(here), *words]) == 2
    assert capsys.readouterr().err.startswith("loopstats: ")


def test_the_job_file_is_the_command_line() -> None:
    told = CliRunner().invoke(cli.app, ["spark", "job"])
    path = Path(told.stdout.strip())
    assert path.name == "spark_job.py"
    done = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True, check=True)
    assert "detect" in done.stdout and "ingest" in done.stdout and "lift" in done.stdout


def test_a_large_batch_is_made_by_groups_of_sessions(here: Path) -> None:
    """Every table is that of the whole, and a session `s/a` stays beside the subagent `a` of `s`."""
    snapshot = Lake.open(here).snapshot()
    sources, _, _ = Lake(here).ledger_rows()
    frame = pl.DataFrame(sources, infer_schema_length=None).select(
        "source_id", "source_file", "order_us", "order_sha256", pl.col("is_superseded").cast(pl.Boolean)
    )
    shadows = run.find_shadows(run.record_index(snapshot.scan("records")))
    terms = derive.Terms(frame, shadows, Settings(), is_copied=True)
    (batch,) = derive.batches(snapshot, snapshot.buckets("records"), 10**9)
    order = ["session_id", "source_id", "source_line", "ordinal"]
    whole = {(t.name, b): part for t, b, part in derive.make_batch(batch, terms)}
    pieces = {(t.name, b): part for t, b, part in derive.make_batch(batch, terms, rows=500)}
    assert pieces.keys() == whole.keys()
    for key, part in whole.items():
        keys = [name for name in order if name in part.columns] if key[0] in ("records", "folded") else []
        assert pieces[key].sort(keys).equals(part.sort(keys)) if keys else pieces[key].equals(part), key
    groups = derive._session_groups({"s": 5, "s/a": 5, "t": 5, "u": 90}, 10)
    assert groups == [["s", "s/a"], ["t"], ["u"]]


def test_a_run_beyond_the_size_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Lake.open(here).snapshot()
    told = estimate.quality(snapshot.scan("steps"), snapshot.read("sources"), AS_OF_US)
    assert "oversize" not in {notice.code for notice in told}
    sizes = snapshot.read("runs")["count_steps"]
    monkeypatch.setattr(estimate, "OVERSIZE_STEPS", int(sizes.max()) - 1)  # type: ignore[arg-type]
    told = estimate.quality(snapshot.scan("steps"), snapshot.read("sources"), AS_OF_US)
    (notice,) = [notice for notice in told if notice.code == "oversize"]
    assert f"{(sizes == sizes.max()).sum()}/" in notice.text


def test_every_command_tells_an_oversize_run(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in (run, doctor, estimate):
        monkeypatch.setattr(module, "OVERSIZE_STEPS", 5)
    monkeypatch.setenv("LOOPSTATS_HOMES", "")
    lake = ["--lake", str(tmp_path / "lake")]

    def asked(*words: str) -> tuple[str, str]:
        cli.run_command([*lake, *words])
        told = capfd.readouterr()
        return told.out, told.err

    for _ in range(2):  # with news, and without
        assert "made whole in memory" in asked("ingest", str(logs))[1]
    assert any("made whole" in text for text in json.loads(asked("ingest", str(logs), "--json")[0])["warnings"])
    for words in ("loops", "tools", "drift", "waste", "runs", "runs --by harness", "audit", "ladder careful"):
        out, err = asked(*words.split(), "--json")
        assert "made whole" in json.loads(out)["warnings"][-1] and "made whole" in err, words
    (finding,) = [row for row in json.loads(asked("doctor", "--json")[0])["rows"] if row["check"] == "oversize runs"]
    assert finding["state"] == "look" and "steps)" in finding["detail"]
    line = json.loads(asked("nightly", str(logs), "--json")[0])
    count = line["steps"]["derive"]["runs_oversize"]
    assert count == Lake.open(tmp_path / "lake").snapshot().read("runs").filter(pl.col("count_steps") > 5).height > 0
    assert f"{count} runs are oversize" in nightly.in_words(line)


def test_the_manifest_tells_the_largest_bucket(here: Path) -> None:
    sizes: dict[int, int] = {}
    for file in Lake.open(here).snapshot().files:
        if file.name == "records":
            sizes[file.bucket] = sizes.get(file.bucket, 0) + file.size_bytes
    manifest = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["max_bucket_bytes"] == max(sizes.values()) > 0
