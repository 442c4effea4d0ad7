"""A process that has imported loopstats and done nothing, and forks one real run of the command line for each request.

Starting an interpreter takes longer than a small ingest: so two hundred runs that are killed take minutes, not an hour,
and a kill falls into the work, not into the imports. A fork is safe here because the engine's
own threads start with its first query.

Requests are JSON lines: `arguments`, `mutant` (a name or null), `folder` (where it runs), `go` (a FIFO that it waits at,
or null), `limit` (bytes that a file may have, or null), `zone` (TZ), `clock` (seconds, at which time stands still),
`is_serial` (all system calls in one thread).
Answers: `{"pid": N}` when it is about to run, and `{"code": N}` at its end (negative: the signal that ended it).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import loopstats.cli
import loopstats.run
from faults.mutants import MUTANTS

HARMLESS = {
    "python",
    "python3",
    "jemalloc_bg_thd",
    "polars-ooc-clea",
}  # the allocator's, which forks well, and an idle one
ANY_TRACER = 0x59616D61, -1  # PR_SET_PTRACER: where the kernel asks, any process of this user may trace


def work(request: dict[str, Any]) -> int:
    """Run the command line as a process of its own would; its exit code."""
    os.chdir(request["folder"])
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.environ["LOOPSTATS_DEBUG"] = "1"
    if request.get("zone"):
        os.environ["TZ"] = request["zone"]
        time.tzset()
    if request.get("clock") is not None:
        time.time = lambda: float(request["clock"])
        time.time_ns = lambda: request["clock"] * 1_000_000_000
    if request.get("limit") is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], request["limit"]))
    if request.get("mutant"):
        MUTANTS[request["mutant"]]()
    if request.get("is_serial"):
        from loopstats import store

        # strace counts the calls of each thread by itself.
        store._sync_each = lambda sync, paths: [sync(path) for path in paths]
    if request.get("go"):
        ctypes.CDLL(None).prctl(*ANY_TRACER, 0, 0, 0)
        with Path(request["go"]).open("rb") as gate:
            gate.read()
    return loopstats.cli.run_command(request["arguments"])


def import_what_runs_import() -> None:
    """Let a child run everything once and import what it had to, so that no kill falls into the imports."""
    with tempfile.TemporaryDirectory(prefix="loopstats-warm-") as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        step = {
            "v": 1,
            "type": "step",
            "session": "s",
            "id": "e",
            "tool": "Edit",
            "outcome": "failure",
            "tokens": {"input": 1},
        }
        (folder / "logs" / "a.jsonl").write_text(json.dumps(step) + "\n", encoding="utf-8")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.chdir(folder)
                os.dup2(1, 2)
                for command in (["ingest", "logs"], ["lake", "compact"], ["lake", "rebuild"]):
                    code = loopstats.cli.run_command(["--lake", "lake", *command])
                    assert code == 0
                (folder / "modules").write_text("\n".join(sys.modules), encoding="utf-8")
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0, "the first run failed"
        for module in (folder / "modules").read_text(encoding="utf-8").split():
            with contextlib.suppress(ImportError):
                importlib.import_module(module)


def main() -> None:
    """Serve requests until stdin ends."""
    threads = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    assert threads <= HARMLESS, f"{threads - HARMLESS}: a fork would not be safe"
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import_what_runs_import()
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        gate = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(gate[1])
            os.read(gate[0], 1)  # not before the harness knows the pid
            code = 1
            try:
                code = work(request)
            finally:
                os._exit(code)
        os.close(gate[0])
        answers.write(json.dumps({"pid": pid}) + "\n")
        os.close(gate[1])
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        answers.write(json.dumps({"ended": True}) + "\n")
        # Not reaped before the harness says so, or its kill could hit another process of the same number.
        sys.stdin.readline()
        _, status = os.waitpid(pid, 0)
        answers.write(json.dumps({"code": os.waitstatus_to_exitcode(status)}) + "\n")


if __name__ == "__main__":
    main()
