"""Writes the two field reports of METHOD 12 as native logs: `python tests/make_drift_cases.py`.

The stories are told in our own words; every name in them is made up. A test compares the files with what this writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

CASES = Path(__file__).resolve().parent / "cases"
START = datetime(2026, 9, 7, 8, 0, tzinfo=UTC)


class Log:
    """Lines of one session, with a clock."""

    def __init__(self, session: str, start: datetime) -> None:
        self.session, self.at, self.number = session, start, 0
        self.lines: list[str] = []

    def add(self, kind: str, seconds: int = 0, **facts: Any) -> None:
        self.at += timedelta(seconds=seconds)
        stamp = self.at.isoformat().replace("+00:00", "Z")
        self.lines.append(
            json.dumps({"v": 1, "type": kind, "session": self.session, "ts": stamp} | facts, separators=(",", ":"))
        )

    def step(
        self,
        tool: str,
        arguments: dict[str, Any],
        message: str,
        outcome: str = "success",
        seconds: int = 20,
        **facts: Any,
    ) -> None:
        self.number += 1
        self.add(
            "step",
            seconds,
            id=f"{self.session}-{self.number}",
            tool=tool,
            input=arguments,
            outcome=outcome,
            message=message,
            **facts,
        )


FILES = {
    "src/cart.py": "class Cart: holds lines and asks pricing for the total",
    "src/pricing.py": "def total(lines, code): sums the lines, then applies the code to each line and to the sum",
    "tests/test_total.py": "a code of ten percent on two lines of fifty must give ninety",
}
GREPS = (
    "grep discount src",
    "grep -i discount src",
    'grep "discount" src',
    "grep -rn discount src",
    "grep -n 'discount' src",
)
FIX = {"file_path": "src/pricing.py", "old_string": "apply(code, line)", "new_string": "apply(code, line, once=True)"}
FAILED = "FAILED tests/test_total.py::test_code_once - assert 81 == 90\n1 failed, 3 passed in 0.4"


def forty_one_steps() -> list[str]:
    """41 steps over three files, one search and one fix, checked by reading; and the same task done in seven."""
    log = Log("shop-41", START)
    spent = {"input": 5_000, "output": 150}
    log.add(
        "session",
        project="shop",
        harness="acme-agent 3.0",
        model="m-large",
        group="prompt-8",
        task="discount-once",
        cwd="/srv/shop",
    )

    def step(tool: str, arguments: dict[str, Any], message: str, outcome: str = "success") -> None:
        log.step(tool, arguments, message, outcome, decision=f"d{log.number + 1}", tokens=spent, cost_usd=0.02)

    def read(name: str) -> None:
        step("Read", {"file_path": name}, FILES[name])

    def search() -> None:
        step("Bash", {"command": GREPS[searches.pop()]}, "src/pricing.py: discount applied per line")

    searches = [n % len(GREPS) for n in range(10)]
    step("Bash", {"command": "pytest tests/test_total.py"}, FAILED, "failure")
    for name in FILES:
        read(name)
    for _ in range(3):
        search()
        step("Edit", FIX, "The file src/pricing.py has been updated.")
        for _ in range(2):
            for name in FILES:
                read(name)
            search()
    for name in (*FILES, *FILES, *FILES):
        if log.number < 41:
            read(name)
    log.add("result", 5, solved=False, ending="commit", claimed=True)
    lines = log.lines
    log = Log("shop-7", START + timedelta(days=1))
    spent = {"input": 2_000, "output": 8}
    log.add(
        "session",
        project="shop",
        harness="acme-agent 3.0",
        model="m-large",
        group="prompt-7",
        task="discount-once",
        cwd="/srv/shop",
    )
    step("Bash", {"command": "pytest tests/test_total.py"}, FAILED, "failure")
    for name in FILES:
        read(name)
    step("Edit", FIX, "The file src/pricing.py has been updated.")
    step("Bash", {"command": "pytest tests/test_total.py"}, "4 passed in 0.3")
    step("Bash", {"command": "git commit -am 'apply a code once'"}, "1 file changed")
    log.add("result", 5, solved=True, ending="commit", claimed=True)
    return lines + log.lines


def many_cycles() -> list[str]:
    """272 cycles of an agent that watches for chances and never does anything, and a safety net that never holds it."""
    log = Log("watch-272", START)
    log.add(
        "session",
        project="night-watch",
        harness="acme-auto 1.4",
        model="m-small",
        group="policy-1",
        task="find-work",
        cwd="/srv/watch",
    )
    overflow = None
    for cycle in range(1, 273):
        facts: dict[str, Any] = {"cycle": f"c{cycle}", "decision": f"d{cycle}", "state_hash": "ledger-0"}

        def step(
            tool: str, arguments: dict[str, Any], message: str, outcome: str = "success", seconds: int = 15, **more: Any
        ) -> None:
            log.step(tool, arguments, message, outcome, seconds, **(facts | more))  # noqa: B023

        log.add("guard", 7_000, name="loop-counter", event="raise", tier=1, counter=2)
        is_bare = 100 <= cycle < 130
        step(
            "read_file",
            {"path": "state/ledger.md"},
            "nothing owed, nothing earned",
            tokens={"input": 3_000, "output": 60},
            cost_usd=0.001,
        )
        if not is_bare:
            step("list_files", {"path": "inbox"}, "empty")
            log.add("guard", 1, name="loop-counter", event="reset", counter=0, by="two reads")
        if cycle in (20, 60, 140):
            log.add("guard", 1, name="opportunity", event="raise", tier=1, ttl_s=1_800)
        if cycle in (40, 100, 180):
            log.add("guard", 1, name="research-block", event="block", tier=3)
        if cycle % 4 == 0:
            step("todo_write", {"todos": f"look again ({'waiting' if cycle % 8 else 'open'})"}, "saved")
            continue
        step("exec", {"command": f"curl -s https://feed.example.org/page/{cycle}"}, f"no new offers on page {cycle}")
        step("radar_sweep", {"band": cycle % 3}, "quiet")
        if cycle % 5 == 1:
            step("pulse_note", {"text": "still watching"}, "ok")
        if is_bare:
            overflow = None
        elif cycle % 8 == 3:
            overflow = f"/tmp/watch/out-{cycle}.txt"
            step(
                "exec",
                {"command": "ls -R /srv/archive"},
                "archive listing, first part",
                truncated=True,
                overflow=overflow,
            )
        elif overflow is not None and cycle % 8 in (5, 6, 7):
            read, overflow = overflow, f"/tmp/watch/out-{cycle}.txt"
            step(
                "exec",
                {"command": f"cat {read}"},
                f"archive listing, part of {cycle}",
                truncated=True,
                overflow=overflow,
            )
        if cycle in (45, 105, 150, 185):
            log.add("guard", 1, name="research-block", event="override", by="opportunity")
            log.add("guard", 1, name="research-block", event="block", tier=3)
        if cycle % 12 == 1:
            log.add("guard", 1, name="self-repair", event="heal_failed", by="key refused")
    log.add("result", 60, solved=False, ending="cap", claimed=False)
    return log.lines


STORIES: dict[str, Callable[[], list[str]]] = {
    "drift-41-steps.jsonl": forty_one_steps,
    "drift-272-cycles.jsonl": many_cycles,
}

if __name__ == "__main__":
    for name, story in STORIES.items():
        (CASES / name).write_text("\n".join(story()) + "\n", encoding="utf-8")
