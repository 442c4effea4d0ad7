"""Real transcripts and hook logs: the counts that their collectors found with a small script of their own."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from emitting import Fed, feed, feed_document, head_of
from loopstats.formats.claude_code import ClaudeCode
from loopstats.formats.claude_hooks import ClaudeHooks

CORPUS = Path(os.environ.get("LOOPSTATS_CORPUS") or Path(__file__).resolve().parents[1].parent / "shared" / "corpus")
FOLDER = CORPUS / "claude-code"
ROW = re.compile(r"\| `([^`]+\.jsonl)` \|.*\| ([0-9]+) \| ([0-9]+) \| ([0-9]+) \| ([0-9]+) \| [^|]*\|\Z")
EXPLAINED: dict[str, tuple[str, int, int]] = {}
"""Files that differ from the collectors' count: reason, and by how many calls and failed results."""
BAD_LINES = {"entire-77a6f39913-0.jsonl": 1}
SUBAGENT_CALLS = {
    "entire-0c20f08988-0.jsonl": 31,
    "entire-c9e2351016-2.jsonl": 21,
    "entire-d4051c8a85-0.jsonl": 5,
    "fork/entire-59bf8d9e0b-0.jsonl": 13,
    "fork/entire-59bf8d9e0b-2.jsonl": 13,
}
COPIED_BY_FORK = 1
"""The fork pair shares one call, which the collectors' total counts in both files."""


@pytest.fixture(scope="module", autouse=True)
def _needs_corpus() -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"corpus folder missing: {FOLDER}")


@cache
def counted() -> dict[str, tuple[int, int, int]]:
    """File to (records, calls, failed) as the corpus README says."""
    section = (CORPUS / "README.md").read_text("utf-8").split("\n## claude-code\n")[1].split("\n## ")[0]
    found = {
        match[1]: (int(match[3]), int(match[4]), int(match[5]))
        for match in map(ROW.match, section.split("\n"))
        if match
    }
    return found


@cache
def read(name: str) -> Fed:
    text = (FOLDER / name).read_text("utf-8", "replace")
    return feed(ClaudeCode(), text.removesuffix("\n").split("\n"), name)


def main_calls(fed: Fed) -> dict[str, str]:
    return {row["call_id"]: row["uid"] for row in fed.calls if row["agent"] is None}


def main_errors(fed: Fed) -> dict[str, str]:
    return {row["call_id"]: row["uid"] for row in fed.rows["result"] if row["agent"] is None and row["is_error"]}


def test_counts_of_every_file() -> None:
    assert len(counted()) == 27
    differing = {}
    for name, (count_records, count_calls, count_failed) in counted().items():
        fed = read(name)
        _, more_calls, more_failed = EXPLAINED.get(name, ("", 0, 0))
        wanted = (count_records, count_calls + more_calls, count_failed + more_failed, BAD_LINES.get(name, 0))
        count_seen = fed.lines_used + sum(fed.nothing.values()) + sum(fed.folds.values())
        got = (count_seen, len(main_calls(fed)), len(main_errors(fed)), len(fed.rejects))
        if got != wanted:
            differing[name] = (got, wanted)
    assert differing == {}


def test_every_file_is_recognised() -> None:
    for path in sorted(FOLDER.glob("**/*.jsonl")):
        score = ClaudeCode().matches(head_of(path.read_text("utf-8", "replace"), path.name))
        assert score >= (60 if path.parent.name == "message-samples" else 90), path.name


def test_distinct_identities_over_all_files_are_the_total() -> None:
    row = re.search(
        r"\n\| claude-code \|[^|]*\|[^|]*\|[^|]*\| ([0-9]+) \| ([0-9]+) \|", (CORPUS / "README.md").read_text("utf-8")
    )
    assert row is not None
    calls = {uid for name in counted() for uid in main_calls(read(name)).values()}
    errors = {uid for name in counted() for uid in main_errors(read(name)).values()}
    assert (len(calls), len(errors)) == (int(row[1]) - COPIED_BY_FORK, int(row[2]))


def test_subagents_are_runs_of_their_own() -> None:
    found = {name: len({row["call_id"] for row in read(name).calls if row["agent"]}) for name in counted()}
    assert {name: count for name, count in found.items() if count} == SUBAGENT_CALLS


def test_calls_have_a_decision_a_time_and_a_global_identity() -> None:
    for name in counted():
        for row in read(name).calls:
            assert row["is_global"] and row["decision_key"] and row["ts"] and row["model"], (name, row["source_line"])


def test_refusals_siblings_and_interrupts_are_no_failures() -> None:
    own = [name for name in counted() if not name.startswith(("fork/", "snapshots/"))]
    reasons = [row["reason_log"] for name in own for row in read(name).results.values() if row["agent"] is None]
    assert {word: reasons.count(word) for word in ("user", "sibling", "hook", "permission")} == {
        "user": 17,
        "sibling": 16,
        "hook": 0,
        "permission": 0,
    }


def test_later_snapshots_only_add() -> None:
    names = ("entire-6462b9a8e7-0", "entire-1b4494d570-0", "entire-5f53d0e8e2-1")
    small, middle, large = (set(main_calls(read(f"snapshots/{name}.jsonl")).values()) for name in names)
    assert small < middle < large


def test_fork_keeps_the_identity_of_what_it_copied() -> None:
    first, second = (read(f"fork/entire-59bf8d9e0b-{number}.jsonl") for number in (0, 2))
    assert {row["session_id"] for row in first.calls}.isdisjoint(row["session_id"] for row in second.calls)
    assert {row["uid"] for row in first.calls} <= {row["uid"] for row in second.calls}


def test_single_records_are_read() -> None:
    fed = {
        path.name: read(f"message-samples/{path.name}") for path in sorted((FOLDER / "message-samples").glob("*.jsonl"))
    }
    assert len(fed) == 58
    assert all(sample.rejects == [] for sample in fed.values())
    assert all(sample.calls for name, sample in fed.items() if name.endswith("-tool_use.jsonl"))
    assert all(sample.results for name, sample in fed.items() if "-tool_result" in name)


def test_hook_logs_of_one_run_meet() -> None:
    folder = CORPUS / "claude-code-hooks"
    heads = [head_of((folder / f"quantstats-{half}_tool_use.json").read_text("utf-8")) for half in ("pre", "post")]
    assert [ClaudeHooks().matches(head) for head in heads] == [95, 95]
    before, after = (feed_document(ClaudeHooks(), head.document) for head in heads)
    assert (len({row["uid"] for row in before.calls}), len({row["uid"] for row in after.calls})) == (20, 14)
    assert {row["uid"] for row in after.calls} <= {row["uid"] for row in before.calls}
    assert len(after.results) == 14
    assert not any(row["is_error"] for row in after.results.values())
