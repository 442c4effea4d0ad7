"""What a call of the live hook costs, whole process, beside a minimal Node script: pairs in turn, ratios, a verdict.

Run it as a script (`python tests/bench/hook_bench.py [PAIRS]`). Two questions: is a call at most 0.4 of a Node script
that reads stdin and appends a line, and does a session of 5,000 steps slow a call by no more than a fifth? Both kinds
of call take turns, so that a busy machine is busy for both; quote the ratios, not the times. Both get the environment
that they are started from, as from an agent. Node's own start depends on it: NODE_EXTRA_CA_CERTS makes it read
certificates first, so where that is set the same pairs are shown without it too, for information.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "pipeline"))

from loopstats import collector, hook, hooks  # noqa: E402 - the checkout's own package, wherever this is run

PAIRS = 40
MOST_OF_NODE = 0.4
MOST_SLOWDOWN = 1.2
LONG_SESSION = 5_000
FAILED_SHARE = 5
CERTIFICATES = "NODE_EXTRA_CA_CERTS"
TOKEN = {"experiment": "bench", "salt": "s", "share_bp": 5000, "n_star": 100}
SCRIPT = """
let data = ''
process.stdin.on('data', (piece) => { data += piece })
process.stdin.on('end', () => { require('fs').appendFileSync(process.argv[2], data.length + '\\n') })
"""


def event(number: int, session: str, is_failed: bool) -> dict[str, Any]:
    """A shell call that succeeded, or one that failed with a message of its own."""
    told: dict[str, Any] = {
        "session_id": session,
        "cwd": "/project",
        "tool_name": "Bash",
        "tool_use_id": f"toolu_01{number:022d}",
        "tool_input": {"command": f"cd /project && pytest tests/test_{number}.py -q | tail -5"},
    }
    if is_failed:
        error = f'Exit code 1\nTraceback (most recent call last):\n  File "x.py"\nValueError: part {number % 97}x'
        return told | {"hook_event_name": "PostToolUseFailure", "error": error}
    return told | {"hook_event_name": "PostToolUse", "tool_response": {"stdout": "1 passed", "stderr": ""}}


def timed(words: list[str], told: dict[str, Any], env: dict[str, str]) -> float:
    """Seconds of one whole process."""
    data = json.dumps(told).encode()
    begun = time.perf_counter()
    subprocess.run(words, input=data, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def ratio(name: str, ours: list[float], theirs: list[float], most: float | None) -> bool:
    """Print one row: the median of the pairs' ratios, both best times, the verdict (`most` None: no promise)."""
    found = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    is_kept = most is None or found <= most
    verdict = "for information" if most is None else f"at most {most}: {'holds' if is_kept else 'FAILS'}"
    print(f"{name:48} {found:6.3f}   best {min(ours) * 1e3:6.1f} ms : {min(theirs) * 1e3:6.1f} ms   {verdict}")
    return is_kept


def measure(folder: Path, node: str | None, pairs: int) -> dict[str, list[float]]:
    """Seconds of every kind of call, in pairs."""
    around = {key: value for key, value in os.environ.items() if not key.startswith("LOOPSTATS_")}
    env = around | {"HOME": str(folder), "LOOPSTATS_SPOOL": str(folder / "spool"), hook.TOKEN: json.dumps(TOKEN)}
    terms = collector.read_terms(env, env[hook.TOKEN], [], str(folder))
    assert terms is not None
    for number in range(LONG_SESSION):
        told = event(number, "long", number % FAILED_SHARE == 0)
        collector.handle(told, "claude-code", terms, time.time_ns() // 1000)
    collector.handle(event(0, "short", False), "claude-code", terms, time.time_ns() // 1000)
    (folder / "minimal.js").write_text(SCRIPT)
    words = [sys.executable, "-I", "-S", hook.__file__, "claude-code"]
    script = [node or "", str(folder / "minimal.js"), str(folder / "lines")]
    asleep = {key: value for key, value in env.items() if key != hook.TOKEN}
    bare = {key: value for key, value in env.items() if key != CERTIFICATES}
    times: dict[str, list[float]] = {}
    for number in range(LONG_SESSION, LONG_SESSION + pairs):
        if node:
            times.setdefault("node", []).append(timed(script, event(number, "node", False), env))
            times.setdefault("bare node", []).append(timed(script, event(number, "node", False), bare))
        for kind in ("ok", "long ok", "failed", "long failed"):
            is_failed = kind.endswith("failed")
            told = event(number + 100_000 * is_failed, "long" if kind.startswith("long") else "short", is_failed)
            times.setdefault(kind, []).append(timed(words, told, env))
        times.setdefault("asleep", []).append(timed(words, event(number, "short", False), asleep))
    return times


def main(pairs: int) -> int:
    """Run all pairs; 0 where every promise holds, 3 where there is no Node to compare with."""
    node = shutil.which("node")
    hooks.precompile()
    with tempfile.TemporaryDirectory(prefix="loopstats-bench-") as name:
        times = measure(Path(name), node, pairs)
    holds = [
        ratio(f"after 5,000 steps : in a new session, {kind}", times[f"long {kind}"], times[kind], MOST_SLOWDOWN)
        for kind in ("ok", "failed")
    ]
    if not node:
        print("no node on this machine: nothing to compare with")
        return 3
    for kind in ("ok", "failed", "asleep"):
        holds.append(ratio(f"hook, {kind} : minimal Node script", times[kind], times["node"], MOST_OF_NODE))
        if CERTIFICATES in os.environ:
            ratio(f"hook, {kind} : Node without {CERTIFICATES}", times[kind], times["bare node"], None)
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS))
