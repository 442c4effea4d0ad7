"""What a call of the live hook costs, whole process, beside a minimal Node script: pairs in turn, ratios, a verdict.

Run it as a script (`python tests/bench/hook_bench.py [PAIRS]`). Two questions: is a call at most 0.4 of a Node script
that reads stdin and appends a line, and does a session of 5,000 steps slow a call by no more than a fifth? Both kinds
of call take turns, so that a busy machine is busy for both; quote the ratios, not the times.
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
TOKEN = {"experiment": "bench", "salt": "s", "share_bp": 5000, "n_star": 100}
SCRIPT = """
let data = ''
process.stdin.on('data', (piece) => { data += piece })
process.stdin.on('end', () => { require('fs').appendFileSync(process.argv[2], data.length + '\\n') })
"""


def event(number: int, session: str, is_failed: bool) -> dict[str, Any]:
    """A shell call that succeeded, or one that failed with a message of its own."""
    told: dict[str, Any] = {
        "session_id": session, "cwd": "/project", "tool_name": "Bash", "tool_use_id": f"toolu_01{number:022d}",
        "tool_input": {"command": f"cd /project && pytest tests/test_{number}.py -q | tail -5"},
    }
    if is_failed:
        error = f'Exit code 1\nTraceback (most recent call last):\n  File "x.py", line 3\nValueError: part {number % 97}x'
        return told | {"hook_event_name": "PostToolUseFailure", "error": error}
    return told | {"hook_event_name": "PostToolUse", "tool_response": {"stdout": "1 passed", "stderr": ""}}


def timed(words: list[str], told: dict[str, Any], env: dict[str, str]) -> float:
    """Seconds of one whole process."""
    data = json.dumps(told).encode()
    begun = time.perf_counter()
    subprocess.run(words, input=data, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def ratio(name: str, ours: list[float], theirs: list[float], most: float) -> bool:
    """Print one row: the median of the pairs' ratios, both best times, and whether it holds."""
    found = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(
        f"{name:34} {found:6.3f} (at most {most})   best {min(ours) * 1e3:6.1f} ms : {min(theirs) * 1e3:6.1f} ms   "
        f"{'holds' if found <= most else 'FAILS'}")
    return found <= most


def main(pairs: int) -> int:
    """Run all pairs; 0 where both promises hold, 3 where there is no Node to compare with."""
    node = shutil.which("node")
    hooks.precompile()
    words = [sys.executable, "-I", "-S", hook.__file__, "claude-code"]
    with tempfile.TemporaryDirectory(prefix="loopstats-bench-") as name:
        spool = Path(name) / "spool"
        env = {"PATH": os.environ["PATH"], "HOME": name, "LOOPSTATS_SPOOL": str(spool), hook.TOKEN: json.dumps(TOKEN)}
        terms = collector.read_terms(env, env[hook.TOKEN], [], name)
        assert terms is not None
        for number in range(LONG_SESSION):
            collector.handle(event(number, "long", number % FAILED_SHARE == 0), "claude-code", terms, time.time_ns() // 1000)
        for session in ("short", "node"):
            collector.handle(event(0, session, False), "claude-code", terms, time.time_ns() // 1000)
        times: dict[str, list[float]] = {key: [] for key in ("node", "ok", "failed", "long ok", "long failed", "asleep")}
        (Path(name) / "minimal.js").write_text(SCRIPT)
        script = [node or "", str(Path(name) / "minimal.js"), str(Path(name) / "lines")]
        asleep = {key: value for key, value in env.items() if key != hook.TOKEN}
        for number in range(LONG_SESSION, LONG_SESSION + pairs):
            if node:
                times["node"].append(timed(script, event(number, "node", False), env))
            for key in ("ok", "long ok", "failed", "long failed"):
                session = "long" if key.startswith("long") else "short"
                times[key].append(timed(words, event(number + 100_000 * ("failed" in key), session, "failed" in key), env))
            times["asleep"].append(timed(words, event(number, "short", False), asleep))
    holds = [
        ratio("5,000 steps : new session, ok", times["long ok"], times["ok"], MOST_SLOWDOWN),
        ratio("5,000 steps : new session, failed", times["long failed"], times["failed"], MOST_SLOWDOWN),
    ]
    if not node:
        print("no node on this machine: nothing to compare with")
        return 3
    holds += [
        ratio("hook : minimal Node script, ok", times["ok"], times["node"], MOST_OF_NODE),
        ratio("hook : minimal Node script, failed", times["failed"], times["node"], MOST_OF_NODE),
        ratio("asleep : minimal Node script", times["asleep"], times["node"], MOST_OF_NODE),
    ]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS))
