"""Calls and failures of the real logs against the table that was counted without this program.

A room of its own because it needs the corpus folder, and because where the two differ the reason must stand here. The
table counts what the log itself says (a flag, an exit code), before the rule of METHOD 5 makes a success of a `grep`
that found nothing; the rows are counted the same way.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from emitting import Fed, feed, feed_document, head_of
from loopstats.formats import Format, recognise
from loopstats.formats.codex import Codex
from loopstats.formats.gemini_cli import GeminiCli
from loopstats.formats.gemini_telemetry import GeminiTelemetry
from loopstats.formats.mini_swe import MiniSwe
from loopstats.formats.openclaw import OpenClaw, OpenClawIndex
from loopstats.formats.pi import Pi
from loopstats.formats.stella import StellaEvents
from loopstats.formats.swe_agent import SweAgent

CORPUS = Path(os.environ.get("LOOPSTATS_CORPUS") or Path(__file__).resolve().parents[1].parent / "shared" / "corpus")
FORMATS: tuple[Format, ...] = (
    Codex(),
    MiniSwe(),
    SweAgent(),
    GeminiCli(),
    GeminiTelemetry(),
    Pi(),
    OpenClaw(),
    OpenClawIndex(),
    StellaEvents(),
)
SECTIONS = (
    "codex",
    "mini-swe-agent",
    "swe-agent",
    "gemini-cli",
    "gemini-cli-telemetry",
    "pi",
    "openclaw",
    "stella-events",
)
TEXT_ONLY = "swe-agent"
AUTOSUBMIT = "the last record is the harness's own `exit_cost`, which no model asked for"
CALLS_THAT_DIFFER = {
    f"claude35-verified/{name}.traj": (-1, AUTOSUBMIT)
    for name in (
        "django__django-14122",
        "django__django-15128",
        "matplotlib__matplotlib-25960",
        "psf__requests-1921",
        "pylint-dev__pylint-8898",
        "sphinx-doc__sphinx-8265",
        "sympy__sympy-13757",
        "sympy__sympy-14531",
        "sympy__sympy-19783",
    )
} | {
    "demos/function_calling_simple.traj": (
        5,
        "a history without a trajectory: the table leaves it out, its five calls are real",
    ),
}
ROW = re.compile(r"^\| `([^`]+)`([^|]*)\|([^|]*)\|[^|]*\|[^|]*\| *([0-9]+) *\| *([0-9]+) *\| *([0-9]+) *\|", re.ASCII)


@cache
def table() -> dict[str, list[tuple[str, int, int]]]:
    """Section to rows of file, calls and failed."""
    if not (CORPUS / "README.md").is_file():
        pytest.skip(f"corpus folder missing: {CORPUS}")
    found: dict[str, list[tuple[str, int, int]]] = {}
    section = ""
    for text in (CORPUS / "README.md").read_text(encoding="utf-8").splitlines():
        if text.startswith("## "):
            section = text[3:].strip()
        elif match := ROW.match(text):
            found.setdefault(section, []).append((match.group(1), int(match.group(5)), int(match.group(6))))
    return found


@cache
def read(path: Path) -> tuple[str | None, Fed | None]:
    """Format and facts of one file of the corpus."""
    text = path.read_text(encoding="utf-8")
    head = head_of(text, path.name)
    fmt = recognise(head, FORMATS)
    if fmt is None:
        return None, None
    if fmt.unit == "line":
        return fmt.name, feed(fmt, [line for line in text.split("\n") if line.strip()], path.name)
    return fmt.name, feed_document(fmt, head.document if head.document is not None else text.encode(), path.name)


def files_of(section: str, name: str) -> list[Path]:
    path = CORPUS / section / name
    return sorted(path.iterdir()) if path.is_dir() else [path]


@pytest.mark.parametrize("section", SECTIONS)
def test_calls_and_failures_are_those_of_the_table(section: str) -> None:
    rows = table()[section]
    assert rows
    for name, calls, failed in rows:
        parts = [read(path) for path in files_of(section, name)]
        assert {fmt for fmt, _ in parts} <= {section, f"{section}-sessions"}, name
        count_calls = sum(len({row["call_id"] for row in fed.calls}) for _, fed in parts if fed)
        count_failed = sum(fed.count_failed() for _, fed in parts if fed)
        assert count_calls == calls + CALLS_THAT_DIFFER.get(name, (0, ""))[0], name
        if section == TEXT_ONLY:
            # anchored sentences find fewer than a list of phrases: never a call more
            print(f"{name}: {count_failed} by anchored sentences, {failed} by the phrase list")
            assert count_failed <= max(failed, 0), name
        else:
            assert count_failed == failed, name


def test_only_torn_lines_and_the_file_that_is_no_json_are_rejected() -> None:
    rejected = {
        (path.name, number, reason)
        for section in SECTIONS
        for name, _, _ in table()[section]
        for path in files_of(section, name)
        for number, reason in (read(path)[1].rejects if read(path)[1] else [])  # type: ignore[union-attr]
    }
    assert rejected == {
        ("compact.jsonl", 1013, "JSONDecodeError"),
        ("session.jsonl", 440, "JSONDecodeError"),
        ("ctf-BabyEncryption-invalid-json.traj", 0, "not_json"),
    }


def test_usage_of_codex_adds_up_to_the_last_total() -> None:
    name = max(table()["codex"], key=lambda row: row[1])[0]
    fed = read(CORPUS / "codex" / name)[1]
    assert fed is not None
    assert sum(row["tokens_input"] + row["tokens_cache_read"] for row in fed.rows["turn"]) == fed.state["total"][0]
    assert sum(row["tokens_output"] for row in fed.rows["turn"]) == fed.state["total"][3]
    assert {row["decision_key"] for row in fed.calls} <= {row["decision_key"] for row in fed.rows["turn"]}


def test_snapshots_of_one_gemini_session_repeat_its_identities() -> None:
    table()
    small, large = (
        read(CORPUS / "gemini-cli" / name)[1] for name in ("entire-45f262e88d-0.json", "entire-2b9748b105-0.json")
    )
    assert small is not None and large is not None
    for kind in ("call", "result", "turn"):
        assert {row["uid"] for row in small.rows[kind]} < {row["uid"] for row in large.rows[kind]}


def test_index_links_the_sub_agents_that_lie_beside_it() -> None:
    table()
    fed = read(CORPUS / "openclaw" / "lru_demo" / "sessions.json")[1]
    assert fed is not None
    present = {path.stem for path in (CORPUS / "openclaw" / "lru_demo").glob("*.jsonl")}
    links = {row["session_id"]: row["parent_session"] for row in fed.rows["session"]}
    assert len(links) == 19 and set(links) | set(links.values()) <= present
