"""A real Spark cluster on this machine: master, two workers, executors killed in mid-job, and every table compared.

`make scale` sets up what is needed; `make scale-short` leaves out the shuffle and Connect, the dearest. The lake
has more than 200,000 steps, one run with three in ten of them, one run of a single step and a bucket without a record;
what the command line makes of it is what the cluster has to make.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import polars as pl
import pytest

import arm_vectors
import scale_lake
from lines import assert_same, tables_of
from loopstats import run
from loopstats.config import Settings
from loopstats.store import Lake
from test_spark import messy_logs

pytestmark = pytest.mark.scale
ROOT = Path(__file__).resolve().parents[1]
COPIES, GIANT_COPIES = 48, 14
TIMEOUT_S = 900
IS_LONG = os.environ.get("LOOPSTATS_SCALE") == "long"
long = pytest.mark.skipif(not IS_LONG, reason="`make scale` runs it: minutes")
MODES = ("worker", "spark") if IS_LONG else ("worker",)
HOST = ("--host", "127.0.0.1", "--webui-port", "0")
AS_OF = "2026-11-20T00:00:00Z"
LOOPBACK = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
INTERVAL = ("--since", "7d", "--as-of", AS_OF)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def until(is_done: Callable[[], Any], what: str, process: subprocess.Popen[Any] | None = None) -> None:
    """Wait for something of the cluster; a job that has ended meanwhile has ended too early."""
    end = time.monotonic() + TIMEOUT_S
    while not is_done():
        assert time.monotonic() < end, f"waited too long for {what}"
        assert process is None or process.poll() is None, f"the job ended before {what}"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """A process's children and theirs, the nearest first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        mine = parents.get(todo.pop(0), [])
        found += mine
        todo += mine
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        kill([*reversed(children(process.pid)), process.pid])
        process.wait(60)


class Cluster:
    """A master and two workers of one core each, started by the package's `spark-class`."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        self.folder = folder
        self.program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.logs: list[IO[bytes]] = []

    def start(self) -> None:
        self._start("master", "master.Master", *HOST, "--port", str(self.port))
        until(
            lambda: "Bound MasterWebUI" in self.log("master") or "I have been elected" in self.log("master"), "a master"
        )
        for _ in range(2):
            self.add_worker()

    def add_worker(self) -> subprocess.Popen[bytes]:
        count = self.log("master").count("Registering worker")
        process = self._start(
            f"worker{len(self.processes)}", "worker.Worker", *HOST, "--cores", "1", "--memory", "2g", self.master
        )
        until(lambda: self.log("master").count("Registering worker") > count, "a worker")
        return process

    @contextmanager
    def connect(self) -> Iterator[str]:
        """The address of a Connect server on this cluster; it holds all cores until it ends."""
        port = free_port()
        server = self._start(
            "connect",
            "SparkSubmit",
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--master",
            self.master,
            "--conf",
            f"spark.connect.grpc.binding.port={port}",
            "spark-internal",
        )
        try:
            until(lambda: "Spark Connect server started" in self.log("connect"), "a Connect server", server)
            yield f"sc://127.0.0.1:{port}"
        finally:
            end(server)

    def _start(self, name: str, kind: str, *words: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("wb")
        self.logs.append(log)
        command = [str(self.program), f"org.apache.spark.deploy.{kind}", *words]
        env = LOOPBACK | {"SPARK_WORKER_DIR": str(self.folder / "work"), "PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=self.folder)
        self.processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def workers(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.processes[1:] if process.poll() is None]

    def stop(self) -> None:
        for process in reversed(self.processes):
            end(process)
        for log in self.logs:
            log.close()


def started(*words: str, **env: str) -> subprocess.Popen[str]:
    """`loopstats spark …` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "loopstats.cli", *words],
        cwd=ROOT,
        env=LOOPBACK | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code, err[-3000:]
    return out, err


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster. It fails where Java or Spark are missing: a cluster that was not there proves nothing."""
    assert shutil.which("java"), "java is missing: apt-get install openjdk-17-jre-headless"
    pytest.importorskip("pyspark", reason="run `make scale`, which installs it", exc_type=ImportError)
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The large lake, derived on this machine."""
    root = tmp_path_factory.mktemp("lakes") / "lake"
    filled = scale_lake.fill(root, COPIES, giant_of=GIANT_COPIES)
    tables = run.detect_anew(filled, filled, Settings(), run.Here())["tables"]
    assert tables["steps"] >= 200_000
    steps = filled.snapshot().scan("steps").select("run_id").collect()["run_id"].value_counts()
    largest = steps["count"].max()
    assert isinstance(largest, int) and largest >= 0.28 * tables["steps"], "one run holds three steps in ten"
    assert 1 in steps["count"].to_list()
    assert scale_lake.EMPTY_BUCKET not in filled.snapshot().buckets("records")
    return root


@pytest.fixture(scope="module")
def truth(lake: Path) -> dict[str, Any]:
    return tables_of(lake)


def made_buckets(out: Path) -> int:
    return len(list(out.glob("data/runs/bucket=*/*.parquet")))


def test_a_worker_with_its_children_is_killed_in_mid_job(
    cluster: Cluster, lake: Path, truth: dict[str, Any], tmp_path: Path
) -> None:
    out, count = tmp_path / "out", len(scale_lake.FILLED)
    job = started("spark", "detect", "--lake", str(lake), "--out", str(out), "--master", cluster.master)
    until(lambda: made_buckets(out) >= count // 3, "a third of the buckets", job)
    victim = cluster.workers()[0]
    family = children(victim.pid)
    assert family, "the worker runs an executor"
    kill([victim.pid, *family])
    assert made_buckets(out) < count, "the kill came in mid-job"
    victim.wait(60)
    _, err = ended(job)
    assert "Lost executor" in err
    assert_same(tables_of(out), truth)
    cluster.add_worker()


@long
def test_a_python_worker_is_killed_while_spark_shuffles(
    cluster: Cluster, lake: Path, truth: dict[str, Any], tmp_path: Path
) -> None:
    out, port, count = tmp_path / "out", free_port(), len(scale_lake.FILLED)
    conf = {"spark.ui.port": port, "spark.sql.shuffle.partitions": count, "spark.sql.adaptive.enabled": "false"}
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    job = started(
        "spark", "detect", "--mode", "spark", "--lake", str(lake), "--out", str(out), "--master", cluster.master, *words
    )
    until(lambda: done_tasks(port, count) >= count // 3, "a third of the tasks", job)
    pythons: list[int] = []

    def seen() -> list[int]:
        pythons[:] = [pid for worker in cluster.workers() for pid in children(worker.pid) if is_python_worker(pid)]
        return pythons

    until(seen, "a Python worker", job)
    kill(pythons[:1])
    _, err = ended(job)
    assert "Python worker exited unexpectedly" in err
    assert_same(tables_of(out), truth)


def done_tasks(port: int, count: int) -> int:
    """Completed tasks of the running stage that has so many, by the driver's own account."""
    base = f"http://127.0.0.1:{port}/api/v1/applications"
    try:
        with urllib.request.urlopen(base, timeout=5) as answer:
            name = json.load(answer)[0]["id"]
        with urllib.request.urlopen(f"{base}/{name}/stages?status=active", timeout=5) as answer:
            stages = json.load(answer)
    except (OSError, ValueError, LookupError):
        return 0
    return max((stage["numCompleteTasks"] for stage in stages if stage["numTasks"] == count), default=0)


def is_python_worker(pid: int) -> bool:
    """A child of a `pyspark.daemon`: the process in which a task runs."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return all(b"pyspark.daemon" in Path(f"/proc/{one}/cmdline").read_bytes() for one in (pid, parent))
    except (OSError, ValueError):
        return False


@long
def test_connect_makes_the_same(cluster: Cluster, lake: Path, truth: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with cluster.connect() as remote:
        ended(started("spark", "detect", "--lake", str(lake), "--out", str(out), "--remote", remote))
    assert_same(tables_of(out), truth)


ANSWERS = """
import json, sys
from loopstats import cli, spark
master, folder, modes, *words = sys.argv[1:]
for mode in modes.split():
    told = ["--json", "--out", f"{folder}/{mode}.json", "--mode", mode, "--master", master]
    assert cli.run_command(["spark", "lift", *words, *told]) == 0
point = "cast(conv(substr(sha2(k, 256), 1, 13), 16, 10) as bigint) % 10000 as p"
rows = spark.open_session(master).read.parquet(f"{folder}/keys.parquet").selectExpr("n", point).collect()
with open(f"{folder}/arms.json", "w") as file:
    json.dump([row.p for row in sorted(rows)], file)
"""


@pytest.fixture(scope="module")
def answers(cluster: Cluster, lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is asked of the cluster in one session: the lift in both modes, and the arms of the vectors."""
    folder = tmp_path_factory.mktemp("answers")
    keys = [arm_vectors.key_of(*vector[:3]) for vector in arm_vectors.vectors()]
    pl.DataFrame({"n": range(len(keys)), "k": keys}).write_parquet(folder / "keys.parquet")
    words = [
        sys.executable,
        "-c",
        ANSWERS,
        cluster.master,
        str(folder),
        " ".join(MODES),
        "--lake",
        str(lake),
        *INTERVAL,
    ]
    done = subprocess.run(words, cwd=ROOT, env=LOOPBACK, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("mode", MODES)
def test_the_lift_is_that_of_the_command_line(answers: Path, here: str, mode: str) -> None:
    assert (answers / f"{mode}.json").read_text(encoding="utf-8") == here
    assert json.loads(here)["rows"][0]["n_treated"] > 1000


@pytest.fixture(scope="module")
def here(lake: Path) -> str:
    """The lift of this machine."""
    return ended(started("--lake", str(lake), "lift", *INTERVAL, "--json"))[0]


def test_the_arms_are_those_of_the_vectors(answers: Path) -> None:
    there = json.loads((answers / "arms.json").read_text(encoding="utf-8"))
    assert there == [vector.arm_bp for vector in arm_vectors.vectors()]


def test_logs_are_read_on_the_workers(cluster: Cluster, tmp_path: Path) -> None:
    logs = messy_logs(tmp_path / "logs")
    run.ingest(Lake(tmp_path / "here"), [str(logs)], Settings())
    submit = cluster.program.with_name("spark-submit")
    job = ROOT / "pipeline" / "loopstats" / "spark_job.py"
    words = [str(submit), "--master", cluster.master, str(job), "ingest", str(logs), "--lake", str(tmp_path / "there")]
    env = LOOPBACK | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    tables = tables_of(tmp_path / "there")
    assert tables["rejects"].height > 0
    assert_same(tables, tables_of(tmp_path / "here"))


def test_a_wrong_python_on_the_executors_is_said(cluster: Cluster, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    run.ingest(Lake(tmp_path / "lake"), [str(scale_lake.SAMPLE)], Settings())
    bare = str(tmp_path / "bare" / "bin" / "python")
    job = started(
        "spark", "detect", "--lake", str(tmp_path / "lake"), "--out", str(tmp_path / "out"), "--master", cluster.master,
        PYSPARK_PYTHON=bare,
    )  # fmt: skip
    _, err = ended(job, code=1)
    assert "the workers' Python is not that of the driver" in err
    assert "set PYSPARK_PYTHON" in err
    assert Lake.open(tmp_path / "out").snapshot().files == (), "nothing was committed"
