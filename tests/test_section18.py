"""Where the loops are in the real logs: every row of the table of patterns, and the rule that is expected to see it.

A room of its own because the patterns were counted by eye and by a simple script: what our rules do not see of them has
to be written down as a gap with its reason, or as right because the pattern is healthy.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl
import pytest

SL, STR, DRIFT, ECHO, GHOST = "strategy-loop/1", "repeat/1", "drift/1", "echo/1", "ghost/1"


class Row(NamedTuple):
    """One run of a row: where it is, what was seen by eye, what is expected, and why where nothing (or little) is."""

    file: str
    task: str | None
    pattern: str
    rules: frozenset[str] = frozenset()
    reason: str = ""


def rules(*names: str) -> frozenset[str]:
    return frozenset(names)


GPT = "tau2-bench/gpt-oss-120b-airline.json"
QWEN = "tau2-bench/qwen2.5-7b-retries-airline.json"
SWE = "swe-agent/claude35-verified/"
EDITS_BETWEEN = "an edit with other content stands between two runs of the command, so the world moved"

TABLE = (
    Row(GPT, "28", "one call a hundred times in a row, all successful", rules(DRIFT, ECHO)),
    Row(GPT, "27", "one call a hundred times in a row, all successful", rules(DRIFT, ECHO)),
    Row(GPT, "47", "one call a hundred times in a row, all successful", rules(DRIFT, ECHO)),
    Row(GPT, "10", "one call 94 times in a row, all successful", rules(DRIFT, ECHO)),
    Row(GPT, "15", "one call a hundred times in a row, all successful", rules(DRIFT, ECHO)),
    Row(QWEN, "40", "one failing call ten times", rules(STR, DRIFT, ECHO)),
    Row(QWEN, "37", "one failing call again and again", rules(STR, ECHO)),
    Row(QWEN, "27", "one failing call again and again", rules(ECHO), "of six failures no three have one message"),
    Row(QWEN, "29", "two calls in turn, period 2", rules(STR, DRIFT, ECHO)),
    Row(f"{SWE}django__django-15128.traj", None, "one command 27 times, an edit between each", rules(STR)),
    Row(f"{SWE}pylint-dev__pylint-8898.traj", None, "one command 22 times, an edit between each", rules(SL, STR)),
    Row(
        f"{SWE}sympy__sympy-13757.traj",
        None,
        "one command 33 times, an edit between each; period 4, ten times",
        rules(),
        "a gap: four edits undo each other in turn and the command's outcome is not known, so no step fails, no result "
        "repeats without an edit between, and five fingerprints stand in each window of eight",
    ),
    Row(f"{SWE}django__django-14122.traj", None, "one test 16 times", rules(STR)),
    Row(f"{SWE}sympy__sympy-14531.traj", None, "failing edits 15 times", rules(SL)),
    Row(
        f"{SWE}matplotlib__matplotlib-25960.traj",
        None,
        "one search 8 times",
        rules(ECHO, GHOST),
        "not drift: nothing was verified, so no state is known, and the circle is longer than two calls",
    ),
    Row("openhands/multi_swe_bench-output.jsonl", "ponylang__ponyc-4588", "13 failed edits of one file", rules(STR)),
    Row(
        "openhands/multi_swe_bench-output.jsonl",
        "ponylang__ponyc-4593",
        "10 failed edits of one file, 6 in a row",
        rules(STR, ECHO),
    ),
    Row("claude-code/entire-7eb280e769-17.jsonl", None, "7 failed edits of one file", rules(STR)),
    Row(
        "claude-code/entire-aad03dd419-0.jsonl",
        None,
        "failed edits of one file",
        rules(),
        "none: most of the refusals were the user's own (vetoed), two failures are left",
    ),
    Row(
        "claude-code/entire-c9e2351016-2.jsonl",
        None,
        "one test command 5 times, with failures and edits between",
        rules(),
        f"healthy: {EDITS_BETWEEN}",
    ),
    Row(
        "claude-code/entire-d2fc39aa5f-0.jsonl",
        None,
        "one lint command 6 times, with failures and edits between",
        rules(),
        f"healthy: {EDITS_BETWEEN}",
    ),
    Row(
        "claude-code/entire-b1f888e8b8-0.jsonl",
        None,
        "one test command 3 times, with failures and edits between",
        rules(),
        f"healthy: {EDITS_BETWEEN}",
    ),
    Row(
        "mini-swe-agent/deepseek_chat_dev_rerun-pvlib__pvlib-python-1854.traj.json",
        None,
        "one script fails 5 times",
        rules(STR),
    ),
    Row(
        "mini-swe-agent/deepseek_chat_dev_rerun-sqlfluff__sqlfluff-1517.traj.json",
        None,
        "one script fails 6 times",
        rules(STR),
    ),
    Row(
        "mini-swe-agent/deepseek_chat_dev-pvlib__pvlib-python-1707.traj.json",
        None,
        "one script fails 5 times",
        rules(STR),
    ),
    Row(
        "atif/arenabench/f89p3/stella-glm-5-2-pipeline-plan-deepseek-chat/dna-insert__7StPwVA.trajectory.json",
        None,
        "one check fails 4 times",
        rules(STR),
    ),
    Row(
        "atif/arenabench/gate-ab/stella-glm-5-2-bare-loop-prove-it-gate/pypi-server__HRUntZQ.trajectory.json",
        None,
        "one check fails 5 times",
        rules(SL, STR),
    ),
    Row(
        "atif/arenabench/mp2-bare-A/stella-glm-5-2-bare-loop/cobol-modernization__YdW7TAu.trajectory.json",
        None,
        "11 calls in a row on one target",
        rules(STR),
    ),
    Row(
        "pi/compact.jsonl",
        None,
        "one check 36 times, mostly a healthy cycle: a negative example",
        rules(STR),
        "one class failed three times on one target; neither drift nor echo in 432 steps",
    ),
    Row(
        "openclaw/lru_demo/b2e732c1-5f16-4ebe-ba84-0a11adc45c66.jsonl",
        None,
        "small parallel sub-agents: a negative example",
        rules(),
        "no loop",
    ),
)


@pytest.fixture(scope="module")
def seen(corpus: object) -> pl.DataFrame:
    """Per run: its file, its task and the names of the rules that saw something."""
    from corpus_lake import corpus_tables

    tables = corpus_tables()
    findings = (
        pl.concat(
            [
                tables[name].filter(pl.col("rule") != "drift/0").select("run_id", "rule")
                for name in ("loops", "drifts", "echoes", "ghosts")
            ]
        )
        .group_by("run_id")
        .agg(pl.col("rule").unique().alias("rules"))
    )
    files = tables["steps"].group_by("run_id").agg(pl.col("source_file").first(), pl.col("session_id").first())
    tasks = tables["sessions"].select("session_id", "task")
    return files.join(tasks, on="session_id", how="left").join(findings, on="run_id", how="left")


@pytest.mark.parametrize(
    "row", TABLE, ids=[f"{n}-{row.task or row.file.rpartition('/')[2][:40]}" for n, row in enumerate(TABLE)]
)
def test_row(seen: pl.DataFrame, row: Row) -> None:
    runs = seen.filter(pl.col("source_file") == row.file)
    if row.task is not None:
        runs = runs.filter(pl.col("task") == row.task)
    assert runs.height, f"{row.file} {row.task}: no such run"
    found = {rule for rules in runs["rules"].to_list() for rule in rules or ()}
    assert found == row.rules, row.pattern


def test_what_is_not_seen_has_a_reason() -> None:
    assert all(row.reason for row in TABLE if not row.rules)
    assert sum("a gap" in row.reason for row in TABLE) == 1
