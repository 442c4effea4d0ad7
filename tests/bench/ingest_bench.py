"""What reading costs, beside DuckDB and a plain json loop, all on the same files in one run: ratios and a verdict.

`python tests/bench/ingest_bench.py [SMALL_MB LARGE_MB]` (default 200 and 800; the promises are about 1024 and 4096);
the logs go to the folder for temporary files (`TMPDIR`), which needs room for both sizes together.
Every contestant runs in a process of its own, they take turns, and each is told by its best time: processor seconds
where one core works, seconds by the clock where two do. DuckDB's raw scan only finds the lines; its typed extraction
and the json loop give the same calls as ours, row by row, or the benchmark fails. Ours does all that the lake needs:
kinds, targets, fingerprints, signatures, hashes, masks, and the records as Arrow columns.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "pipeline"), str(ROOT / "tests" / "bench")]

ROUNDS = 3
PAIRS = 12
MEGABYTE = 1 << 20
MEMORY_MB = 220
LINES = """
    SELECT count(*), sum(length(line)) FROM read_csv(?, columns = {'line': 'VARCHAR'}, delim = chr(1), quote = '',
        escape = '', header = false, auto_detect = false, strict_mode = false, max_line_size = 67108864)"""
CALLS = """
    WITH messages AS (
        SELECT type, sessionId AS session, message.content AS content
        FROM read_json(?, format = 'newline_delimited', maximum_object_size = 67108864, columns = {
            'type': 'VARCHAR', 'sessionId': 'VARCHAR', 'timestamp': 'VARCHAR', 'uuid': 'VARCHAR', 'cwd': 'VARCHAR',
            'message': 'STRUCT(id VARCHAR, model VARCHAR, content JSON, usage STRUCT(input_tokens BIGINT,
                output_tokens BIGINT, cache_read_input_tokens BIGINT, cache_creation_input_tokens BIGINT))'})
        WHERE type IN ('user', 'assistant')),
    blocks AS (
        SELECT session, unnest(from_json(content, '[{"type": "VARCHAR", "id": "VARCHAR", "name": "VARCHAR",
            "tool_use_id": "VARCHAR", "is_error": "BOOLEAN"}]')) AS block
        FROM messages WHERE json_type(content) = 'ARRAY')
    SELECT c.session, c.block.id, c.block.name, coalesce(r.block.is_error, false)
    FROM (SELECT * FROM blocks WHERE block.type = 'tool_use') c
    JOIN (SELECT * FROM blocks WHERE block.type = 'tool_result') r
      ON c.session = r.session AND c.block.id = r.block.tool_use_id"""


def digest(rows: Iterable[tuple[Any, ...]]) -> str:
    """One hash of (session, call id, tool, is error) in a fixed order."""
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()


def by_us(paths: list[str], jobs: int) -> Callable[[], str]:
    """Our workers; the calls that were answered, from the records they give."""
    import polars as pl

    from loopstats import formats, ingest, workers

    formats.formats()
    tasks = [workers.Task(file, None, number) for number, file in enumerate(ingest.discover(paths)[0], 1)]
    frames = []
    for outcome in workers.read_all(tasks, {}, jobs):
        assert not isinstance(outcome, OSError)
        frames.append(outcome[1])

    def rows() -> str:
        records = pl.concat(frames)
        calls = records.filter(pl.col("type") == "call").select("session_id", "call_id", "tool")
        answers = records.filter(pl.col("type") == "result").select("session_id", "call_id", "is_error")
        return digest(calls.join(answers, on=["session_id", "call_id"]).iter_rows())

    return rows


def by_json(paths: list[str]) -> Callable[[], str]:
    """A loop over the lines with the standard library."""
    calls: dict[tuple[str, str], str] = {}
    answers: dict[tuple[str, str], bool] = {}
    for path in paths:
        with Path(path).open("rb") as file:
            for line in file:
                record = json.loads(line)
                content = record.get("message", {}).get("content")
                for block in content if isinstance(content, list) else ():
                    if block["type"] == "tool_use":
                        calls[record["sessionId"], block["id"]] = block["name"]
                    elif block["type"] == "tool_result":
                        answers[record["sessionId"], block["tool_use_id"]] = block.get("is_error", False)
    return lambda: digest((*key, tool, answers[key]) for key, tool in calls.items() if key in answers)


def by_duckdb(paths: list[str], query: str, threads: int) -> Callable[[], str]:
    """DuckDB: the raw lines, or the calls that were answered."""
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads = {threads}")
    rows = connection.execute(query, [paths]).fetchall()
    return lambda: "" if query is LINES else digest(rows)


CONTESTANTS: dict[str, Callable[[list[str]], Callable[[], str]]] = {
    "ours, one worker": lambda paths: by_us(paths, 1),
    "ours, two workers": lambda paths: by_us(paths, 2),
    "DuckDB lines, one thread": lambda paths: by_duckdb(paths, LINES, 1),
    "DuckDB calls, two threads": lambda paths: by_duckdb(paths, CALLS, 2),
    "json loop": by_json,
}


def run_one(name: str, folder: str) -> dict[str, Any]:
    """In a process of its own: seconds without the imports, memory, and the digest of the rows."""
    import duckdb  # noqa: F401 - imported here so that nobody's import is timed
    import polars  # noqa: F401

    import loopstats.workers  # noqa: F401

    paths = sorted(str(path) for path in Path(folder).glob("*.jsonl"))
    clock, used = time.perf_counter(), sum(os.times()[:4])
    rows = CONTESTANTS[name](paths)
    wall = time.perf_counter() - clock
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    rss = (children or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024
    cpu = sum(os.times()[:4]) - used
    return {"wall": wall, "cpu": cpu, "rss": rss, "digest": rows()}


def started(name: str, folder: Path) -> dict[str, Any]:
    """`run_one` in a fresh interpreter."""
    words = [sys.executable, __file__, "--run", name, str(folder)]
    told: dict[str, Any] = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
    return told


def race(folder: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """The best of some rounds in which all take turns; AssertionError where two tell different calls."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for name in CONTESTANTS:
            told = started(name, folder)
            before = best.setdefault(name, told)
            for key in ("wall", "cpu"):
                before[key] = min(before[key], told[key])
            before["rss"] = max(before["rss"], told["rss"])
    told = {name: row["digest"] for name, row in best.items() if row["digest"]}
    assert len(told) == 4 and len(set(told.values())) == 1, f"not the same calls: {told}"
    return best


def nothing_new(folder: Path, lake: Path, pairs: int) -> float:
    """Seconds of a second ingest without news, as a multiple of `--version`: the median of pairs."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "pipeline")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has been compiled once
    words = [sys.executable, "-m", "loopstats.cli"]

    def timed(*more: str) -> float:
        begun = time.perf_counter()
        subprocess.run([*words, *more], env=env, check=True, capture_output=True)
        return time.perf_counter() - begun

    again = ("--lake", str(lake), "ingest", str(folder))
    timed(*again)
    return statistics.median(timed(*again) / timed("--version") for _ in range(pairs))


def row(name: str, found: float, bound: float, is_least: bool, unit: str = "x") -> bool:
    """Print one promise; whether it is kept."""
    is_kept = found >= bound if is_least else found <= bound
    print(
        f"{name:58} {found:8.2f} {unit:3} {'at least' if is_least else 'at most'} {bound:7.2f}   "
        f"{'holds' if is_kept else 'MISSES'}"
    )
    return is_kept


def main(small_mb: int, large_mb: int, rounds: int = ROUNDS) -> int:
    """Run everything and print it; 0 where every promise of DESIGN 6 holds, else 1."""
    import generate

    with tempfile.TemporaryDirectory(prefix="loopstats-bench-") as name:
        small, large = Path(name, "small"), Path(name, "large")
        sizes = {}
        for folder, megabytes in ((small, small_mb), (large, large_mb)):
            sizes[folder] = sum(path.stat().st_size for path in generate.write(folder, megabytes * MEGABYTE))
        best = race(small, rounds)
        print(f"{sizes[small] / MEGABYTE:,.0f} MB, best of {rounds}")
        for contestant, told in best.items():
            print(f"  {contestant:28} {told['cpu']:8.2f} cpu-s {told['wall']:8.2f} s {told['rss']:7.0f} MB resident")
        one, two = best["ours, one worker"], best["ours, two workers"]
        at_large = started("ours, two workers", large)
        assert at_large["digest"] == started("json loop", large)["digest"], "not the same calls in the larger folder"
        loop = best["json loop"]["cpu"]
        kept = [
            row("speed, one worker : DuckDB lines on one thread", best["DuckDB lines, one thread"]["cpu"] / one["cpu"], 0.60, True),
            row("speed, two workers : DuckDB calls on two threads", best["DuckDB calls, two threads"]["wall"] / two["wall"], 1.4, True),
            row("speed, one worker : stdlib json loop", loop / one["cpu"], 2.2, True),
            row("memory of a worker", two["rss"], MEMORY_MB, False, "MB"),
            row(f"memory of a worker, {large_mb} MB : {small_mb} MB", at_large["rss"] / two["rss"], 1.08, False),
            row("second run with nothing new : --version", nothing_new(small, Path(name, "lake"), PAIRS), 1.5, False),
        ]  # fmt: skip
    return 0 if all(kept) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(run_one(sys.argv[2], sys.argv[3])))
    else:
        given = [int(word) for word in sys.argv[1:]] or [200, 800]
        sys.exit(main(*given))
