"""What further steps cost on Spark, beside the same work in one process: processor time, every row compared.

`python tests/bench/spark_bench.py [detection|line [SMALL LARGE]]`, with the environment of `make scale`. `detection` is
that stage alone over a lake of steps (default 1000000 11000000 steps), `line` is `loopstats spark detect`, from records
to every table (default 200000 1000000 steps). Each contestant is a process of its own with one thread for polars, on
`local[2]` in worker mode or bucket by bucket without Spark. What Spark costs before its first task cancels out:
(spark(large) - spark(small)) / (one(large) - one(small)). Processor time is that of the process and all below it, the
JVM and Python's workers included; each is the best of two.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl

ROOT = Path(__file__).resolve().parents[2]
PATHS = [str(ROOT / "tests" / "bench"), str(ROOT / "tests"), str(ROOT / "pipeline")]
sys.path[:0] = PATHS

import detect_bench  # noqa: E402 - the checkout's own modules, wherever this is run

import scale_lake  # noqa: E402
from loopstats import run, spark, store  # noqa: E402
from loopstats.config import Settings  # noqa: E402
from loopstats.detect import NEEDED, detect  # noqa: E402
from loopstats.store import Lake, Snapshot  # noqa: E402
from loopstats.tables import BUCKETS, SESSIONS, STEPS  # noqa: E402

MOST = 2.5
ROUNDS = 2
MASTER = "local[2]"
SIZES = {"detection": (1_000_000, 11_000_000), "line": (200_000, 1_000_000)}
COLUMNS = (*NEEDED, "actor", "outcome")
COPY_STEPS = 4_300  # of the sample: scale_lake copies it


def make_lake(root: Path, kind: str, total: int) -> None:
    """A lake of `total` steps, or of the records of about so many."""
    if kind == "line":
        scale_lake.fill(root, max(1, total // COPY_STEPS))
        return
    with Lake(root).write() as writer:
        for number, first in enumerate(range(0, total, detect_bench.CHUNK_STEPS)):
            frame = detect_bench.steps(first, min(detect_bench.CHUNK_STEPS, total - first))
            writer.append(STEPS, number % BUCKETS, frame)
        writer.commit([], [], [], {})


def detection(scanned: pl.LazyFrame) -> pl.DataFrame:
    """Stage: steps of whole runs to the keys of their loops."""
    steps = scanned.collect()
    sessions = steps.select(pl.col("session_id").unique(maintain_order=True), pl.lit(False).alias("is_enrolled"))
    absent = [pl.lit(None, dtype=c.dtype).alias(c.name) for c in SESSIONS.columns if c.name not in sessions.columns]
    return detect(steps, sessions.with_columns(absent)).select("run_id", "signature", "rule", "detected_step")


def detected(snapshot: Snapshot, cluster: spark.Cluster | None) -> pl.DataFrame:
    """The loops of a lake, found piece by piece here or on a cluster."""
    if cluster is not None:
        return cluster.over(snapshot, "steps", COLUMNS, detection)
    paths = snapshot.paths("steps")
    return pl.concat([detection(store.scan_files(STEPS, [path]).select(COLUMNS)) for path in paths])


def below(pid: int) -> Iterator[int]:
    """A process and all that it has started, with what these have started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from below(int(child))


def spent_s(pid: int) -> float:
    """Processor time of a process and of those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def contestant(name: str, kind: str, lake: Lake, out: Lake) -> dict[str, float | str]:
    """Do the work; seconds of all processors and by the clock, and a hash of what was made."""
    begun = time.perf_counter()
    cluster = spark.Cluster(spark.open_session(MASTER)) if name == "spark" else None
    if kind == "line":
        run.detect_anew(lake, out, Settings(), cluster or run.Here())
        digest = out.snapshot().digest()
    else:
        digest = hashlib.sha256(detected(lake.snapshot(), cluster).write_csv().encode()).hexdigest()
    # Before the session ends: a JVM that has ended is nobody's child.
    return {"cpu": sum(map(spent_s, below(os.getpid()))), "wall": time.perf_counter() - begun, "digest": digest}


def best(name: str, kind: str, lake: Path) -> dict[str, float | str]:
    """A contestant in fresh interpreters, the round with the least processor time."""
    path = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"POLARS_MAX_THREADS": "1", "PYTHONPATH": path}
    told = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="loopstats-bench-") as out:
            words = [sys.executable, __file__, "--run", name, kind, str(lake), f"{out}/lake"]
            answer = subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE).stdout
        told.append(json.loads(answer))
    assert len({one["digest"] for one in told}) == 1, f"{name}: not the same twice"
    return dict(min(told, key=lambda one: one["cpu"]))


def main(kind: str, sizes: tuple[int, int]) -> int:
    """Race at both sizes; 0 where the rows are equal and the bar holds."""
    rows: dict[str, list[dict[str, float | str]]] = {"one": [], "spark": []}
    with tempfile.TemporaryDirectory(prefix="loopstats-bench-") as folder:
        for size in sizes:
            lake = Path(folder, str(size))
            make_lake(lake, kind, size)
            for name, results in rows.items():
                results.append(best(name, kind, lake))
            one, other = rows["one"][-1], rows["spark"][-1]
            assert one["digest"] == other["digest"], f"{kind}, {size:,} steps: Spark has made other rows"
            print(
                f"{kind:>9} {size:>11,} steps, rows equal   one process {one['cpu']:.1f} cpu-s, {one['wall']:.1f} s   "
                f"Spark {other['cpu']:.1f} cpu-s, {other['wall']:.1f} s"
            )
    further = {name: float(large["cpu"]) - float(small["cpu"]) for name, (small, large) in rows.items()}
    ratio = further["spark"] / further["one"]
    print(
        f"{kind:>9} per further {sizes[1] - sizes[0]:,} steps: {further['spark']:.1f} cpu-s to {further['one']:.1f}: "
        f"{ratio:.2f}x, at most {MOST}: {'holds' if ratio <= MOST else 'MISSES'}"
    )
    return 0 if ratio <= MOST else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        import spark_bench  # what is pickled for a worker has to have a module that it can import

        print(json.dumps(spark_bench.contestant(*sys.argv[2:4], Lake(Path(sys.argv[4])), Lake(Path(sys.argv[5])))))
    else:
        kinds = sys.argv[1:2] or list(SIZES)
        given = tuple(int(word) for word in sys.argv[2:4])
        sys.exit(max(main(kind, given if len(given) == 2 else SIZES[kind]) for kind in kinds))  # type: ignore[arg-type]
