"""All real logs through the whole line: counts by format against a committed table, loops against the plain walk.

`golden/corpus.csv` holds what the ruler of one rule digest makes of the corpus. It is compared in full where the corpus
folder is there. Where it is missing those tests are skipped, and still a change cannot hide: the digest in the table
must be that of the rule in the tree, so whoever changes the rule has to write the table anew, with the corpus:

    python tests/test_corpus.py --write
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import polars as pl

import oracle
from corpus_lake import CORPUS, corpus_tables
from loopstats import rule
from loopstats.config import Settings
from oracle import COMPARED

GOLDEN = Path(__file__).resolve().parent / "golden" / "corpus.csv"
COLUMNS = (
    "format",
    "files",
    "runs",
    "calls",
    "failed_as_logged",
    "success",
    "failure",
    "unknown",
    "vetoed",
    "strategy_loops",
    "strategy_broke",
    "strategy_recurred",
    "strategy_unresolved",
    "repeats",
    "repeats_broke",
    "repeats_recurred",
    "repeats_unresolved",
)
OUTCOMES = ("success", "failure", "unknown", "vetoed")
VERDICTS = ("broke", "recurred", "unresolved")

# The formats that may claim a file, by folder; the longest folder that fits decides.
FORMATS = {
    "aider": {"aider"},
    "atif": {"atif", "atif-result"},
    "claude-code": {"claude-code"},
    "claude-code-hooks": {"claude-code-hooks"},
    "cline-roo": {"cline-roo"},
    "codex": {"codex"},
    "gemini-cli": {"gemini-cli"},
    "gemini-cli-telemetry": {"gemini-cli-telemetry"},
    "inspect": {"inspect"},
    "mini-swe-agent": {"mini-swe-agent"},
    "openclaw": {"openclaw", "openclaw-sessions"},
    "openhands": {"openhands"},
    "openhands/llm_completions-all": {"openhands-completions"},
    "openhands/llm_completions-last": {"openhands-completions"},
    "openhands/v1-sdk": {"openhands-v1"},
    "otel-genai": {"otel-genai"},
    "pi": {"pi"},
    "stella-events": {"stella-events"},
    "swe-agent": {"swe-agent"},
    "tau-bench": {"tau-bench"},
    "tau2-bench": {"tau2-bench"},
    "schema-fixtures/agent-sessions/claude": {"claude-code"},
    "schema-fixtures/agent-sessions/codex": {"codex"},
    "schema-fixtures/agent-sessions/copilot": {"copilot"},
    "schema-fixtures/agent-sessions/cursor": {"cursor"},
    "schema-fixtures/agent-sessions/gemini": {"gemini-cli"},
    "schema-fixtures/agent-sessions/openclaw": {"openclaw"},
    "schema-fixtures/agent-sessions/opencode": {"opencode"},
    "schema-fixtures/agent-sessions/pi": {"pi"},
}
_FIXTURES = "schema-fixtures/agent-sessions"
# What another format claims, or none, and why that is right.
EXCEPTIONS: dict[str, tuple[str, str]] = {
    "openhands/traj-basic_gui_mode.json": ("openhands-events", "a list of events without the record around it"),
    "openhands/swe_bench-example_model_output.json": ("", "patches only, no events"),
    "inspect/long_log-lfs-pointer.eval": ("", "a pointer to the log, not the log"),
    "otel-genai/versions.json": ("", "a list of versions"),
    f"{_FIXTURES}/antigravity/cli_schema_drift.jsonl": ("", "an agent without a reader"),
    f"{_FIXTURES}/antigravity/cli_small.jsonl": ("", "an agent without a reader"),
    f"{_FIXTURES}/claude/subagent/0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f/subagents/agent-a0ad4f44468bdf20d.meta.json": (
        "claude-code-beside",
        "facts about a subagent beside its log, which holds them too",
    ),
    f"{_FIXTURES}/codex/schema_drift.jsonl": ("", "made up by its author: no record has the shape of a rollout"),
    f"{_FIXTURES}/gemini/schema_drift.json": ("", "the same: a history without messages, sessions or ids"),
}
# Every file and record of the corpus that is rejected: line (0: the whole file) and reason.
REJECTED: dict[str, tuple[int, str]] = {
    **{file: (0, "unknown_format") for file, (fmt, _) in EXCEPTIONS.items() if not fmt},
    "inspect/long_log-lfs-pointer.eval": (0, "git_lfs_pointer"),
    "swe-agent/demos/ctf-BabyEncryption-invalid-json.traj": (0, "not_json"),
    f"{_FIXTURES}/opencode/storage_legacy/part/prt_0001.json": (1, "no_session"),
}


def failed_as_logged(results: pl.DataFrame) -> pl.DataFrame:
    """run and call ids of which any record tells a failure: a flag, an exit code, a time-out, a stated outcome."""
    is_failed = (
        pl.col("is_error").fill_null(False)
        | (pl.col("exit_code").fill_null(0) != 0)
        | pl.col("is_timeout").fill_null(False)
        | pl.col("outcome_log").is_in(["failure", "vetoed"]).fill_null(False)
    )
    run_id = (
        pl.when(pl.col("agent").is_null())
        .then(pl.col("session_id"))
        .otherwise(pl.col("session_id") + "/" + pl.col("agent"))
    )
    return results.filter((pl.col("type") == "result") & is_failed).select(run_id.alias("run_id"), "call_id").unique()


def measured() -> list[dict[str, Any]]:
    """The rows of the table as they are now, one per format, and `all`."""
    tables = corpus_tables()
    files = tables["sources"].select("source_file", "format")
    steps = tables["steps"].filter(pl.col("actor") == "agent").join(files, on="source_file", how="left")
    failed = steps.join(failed_as_logged(tables["records"]), on=["run_id", "call_id"], how="semi")
    place = tables["steps"].join(files, on="source_file").rename({"step": "detected_step"})
    place = place.select("run_id", "detected_step", "format")
    loops = tables["loops"].join(place, on=["run_id", "detected_step"], how="left")
    rows = []
    for name in [*sorted(files["format"].unique()), "all"]:

        def of(frame: pl.DataFrame, name: str = name) -> pl.DataFrame:
            return frame if name == "all" else frame.filter(pl.col("format") == name)

        mine, found = of(steps), of(loops)
        row: dict[str, Any] = {
            "format": name or "(none)",
            "files": of(files).height,
            "runs": mine["run_id"].n_unique(),
            "calls": mine.height,
            "failed_as_logged": of(failed).height,
        }
        row |= {outcome: mine.filter(pl.col("outcome") == outcome).height for outcome in OUTCOMES}
        for label, loop_rule in (("strategy", rule.STRATEGY_LOOP), ("repeats", rule.REPEAT)):
            some = found.filter(pl.col("rule") == loop_rule)
            row["strategy_loops" if label == "strategy" else "repeats"] = some.height
            row |= {f"{label}_{word}": some.filter(pl.col("outcome") == word).height for word in VERDICTS}
        rows.append(row)
    return rows


def as_text(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    out.write(f"# rule digest {rule.digest()}\n")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def committed() -> tuple[str, list[dict[str, str]]]:
    """The digest and the rows of the table in the tree."""
    first, rest = GOLDEN.read_text(encoding="utf-8").split("\n", 1)
    return first.removeprefix("# rule digest "), list(csv.DictReader(io.StringIO(rest)))


def test_the_table_is_of_this_rule() -> None:
    assert committed()[0] == rule.digest(), "the rule has changed: `python tests/test_corpus.py --write`, read the diff"


def test_the_table_adds_up() -> None:
    _, rows = committed()
    by_name = {row["format"]: {key: int(value) for key, value in row.items() if key != "format"} for row in rows}
    total = by_name.pop("all")
    for column in COLUMNS[1:]:
        assert sum(row[column] for row in by_name.values()) == total[column], column
    for name, row in (by_name | {"all": total}).items():
        assert row["calls"] == sum(row[outcome] for outcome in OUTCOMES), name
        assert row["strategy_loops"] == sum(row[f"strategy_{word}"] for word in VERDICTS), name
        assert row["repeats"] == sum(row[f"repeats_{word}"] for word in VERDICTS), name
    assert total["calls"] > 9_000 and total["strategy_loops"] > 0 and total["repeats"] > 0


def test_counts_by_format(corpus: Path) -> None:
    now = [{key: str(value) for key, value in row.items()} for row in measured()]
    differing = [(old, new) for old, new in zip(committed()[1], now, strict=False) if old != new]
    assert differing == []
    assert [row["format"] for row in now] == [row["format"] for row in committed()[1]]


def expected_format(file: str) -> set[str]:
    if file in EXCEPTIONS:
        return {EXCEPTIONS[file][0]}
    folders = [folder for folder in FORMATS if file.startswith(f"{folder}/")]
    return FORMATS[max(folders, key=len)] if folders else {"no folder of the table"}


def test_no_format_claims_the_files_of_another(corpus: Path) -> None:
    claimed = dict(corpus_tables()["sources"].select("source_file", "format").rows())
    wrong = {file: fmt for file, fmt in claimed.items() if fmt not in expected_format(file)}
    assert wrong == {}
    assert set(EXCEPTIONS) <= set(claimed)


def test_only_known_files_and_lines_are_rejected(corpus: Path) -> None:
    found = {(file, line, reason) for file, line, _, reason, _ in corpus_tables()["rejects"].rows()}
    assert found == {(file, *place) for file, place in REJECTED.items()}


def test_the_plain_walk_finds_the_same_loops_in_every_run(corpus: Path) -> None:
    tables = corpus_tables()
    assert tables["sessions"].filter(pl.col("is_enrolled") | pl.col("enrolled_line").is_not_null()).height == 0
    sessions: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for step in tables["steps"].with_columns(pl.col("ts").dt.epoch("us")).sort("run_id", "step").to_dicts():
        sessions.setdefault(step["session_id"], {}).setdefault(step["run_id"], []).append(step)
    options = (None, "", rule.SHARE_BP_DEFAULT, Settings().maturity_us)
    walked = [
        {key: row[key] for key in COMPARED}
        for runs in sessions.values()
        for row in oracle.loops_of_session(runs, *options)
    ]
    found = tables["loops"].select(COMPARED).to_dicts()

    def key(row: dict[str, Any]) -> tuple[str, str, str]:
        return row["run_id"], row["signature"], row["rule"]

    assert sorted(found, key=key) == sorted(walked, key=key)
    assert len(found) == int(committed()[1][-1]["strategy_loops"]) + int(committed()[1][-1]["repeats"])


def main() -> None:
    """Write the table anew."""
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_corpus.py --write")
    if not CORPUS.is_dir():
        sys.exit(f"corpus folder missing: {CORPUS}")
    GOLDEN.write_text(as_text(measured()), encoding="utf-8")


if __name__ == "__main__":
    main()
