"""The commands on top of the findings: an earlier as-of equals a log that ends there; rows, rates, gates, exits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lines import ingest
from loopstats import cli, findings, when
from loopstats.config import Settings
from loopstats.errors import FINDING, NOTHING, OK, USAGE
from loopstats.store import Lake
from make_drift_cases import CASES

PLACES = ["source_file", "source_line"]


def lake_of(folder: Path, lines: list[str]) -> Lake:
    folder.mkdir(exist_ok=True)
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    ingest(folder / "lake", folder / "log.jsonl", settings=Settings())
    return Lake.open(folder / "lake")


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("drift-41-steps.jsonl", 15),
        ("drift-41-steps.jsonl", 47),
        ("drift-272-cycles.jsonl", 300),
        ("drift-272-cycles.jsonl", 1300),
    ],
)
def test_an_earlier_as_of_equals_a_log_that_ends_there(tmp_path: Path, name: str, cut: int) -> None:
    lines = (CASES / name).read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[cut])["ts"]
    us = when.moment(last, 0, when.zone_of("UTC"))
    assert us is not None
    known = [line for line in lines if json.loads(line)["ts"] <= last]
    whole = findings.tables_as_of(lake_of(tmp_path / "whole", lines).snapshot(), us)
    short = findings.tables_as_of(lake_of(tmp_path / "short", known).snapshot(), us + 10**12)
    for table in ("drifts", "echoes", "ghosts", "chases", "bypasses", "resets", "runs", "steps", "guards"):
        one, other = (tables[table].drop(PLACES, strict=False) for tables in (whole, short))
        assert one.equals(other), table


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both")
    ingest(folder / "lake", *sorted(CASES.glob("drift-*.jsonl")), settings=Settings())
    return folder / "lake"


def ask(lake: Path, capfd: Any, *arguments: str) -> tuple[int, str]:
    code = cli.run_command(["--lake", str(lake), "-q", *arguments])
    return code, capfd.readouterr().out


def rows(lake: Path, capfd: Any, *arguments: str) -> list[dict[str, Any]]:
    code, text = ask(lake, capfd, *arguments, "-f", "json")
    body = json.loads(text)
    assert code == OK and body["schema"] == f"loopstats.{arguments[0]}/1"
    return list(body["rows"])


def test_drift_lists_the_rule_in_use_and_with_all_the_other(lake: Path, capfd: Any) -> None:
    found = rows(lake, capfd, "drift", "--project", "shop")
    assert [(r["run_id"], r["rule"], r["detected_step"]) for r in found] == [("shop-41", "drift/1", 12)]
    assert [r["rule"] for r in rows(lake, capfd, "drift", "--project", "shop", "--all")] == ["drift/0", "drift/1"]
    assert ask(lake, capfd, "drift", "--project", "nobody")[0] == NOTHING


def test_audit_has_one_line_a_kind_and_one_row_a_finding(lake: Path, capfd: Any) -> None:
    lines = {r["finding"]: r for r in rows(lake, capfd, "audit")}
    assert (lines["clean-reset/1"]["x"], lines["clean-reset/1"]["n"], lines["clean-reset/1"]["rate"]) == (
        242,
        242,
        "242/242 (100.0 %)",
    )
    assert lines["unverified/1"]["rate"] == "1/2"
    assert all("/" in line["rate"] for line in lines.values())
    every = rows(lake, capfd, "audit", "--all")
    assert len(every) == sum(line["count_rows"] for line in lines.values())
    assert {r["run_id"] for r in every if r["finding"] == "heal failed"} == {"watch-272"}
    assert ask(lake, capfd, "audit", "--until", "2026-01-01")[0] == NOTHING


def test_waste_by_week_with_the_coverage_of_prices(lake: Path, capfd: Any) -> None:
    (total,) = rows(lake, capfd, "waste", "--project", "shop")
    assert (total["tokens"], total["count_turns"], total["count_turns_priced"]) == (36 * 5_150, 36, 36)
    weeks = rows(lake, capfd, "waste", "--by", "week,model")
    assert {r["week"] for r in weeks} == {"2026-09-07", "2026-09-14", "2026-09-21", "2026-09-28"}
    code, _ = ask(lake, capfd, "waste", "--by", "colour")
    assert code == USAGE


def test_runs_one_by_one_per_group_and_against_each_other(lake: Path, capfd: Any) -> None:
    assert [r["run_id"] for r in rows(lake, capfd, "runs")] == ["watch-272", "shop-7", "shop-41"]
    groups = {r["group"]: r for r in rows(lake, capfd, "runs", "--by", "group")}
    assert (groups["prompt-8"]["steps_p50"], groups["prompt-8"]["false_claims"], groups["prompt-8"]["n_claims"]) == (
        41,
        1,
        1,
    )
    (row,) = rows(lake, capfd, "runs", "--compare", "prompt-7", "prompt-8")
    assert (row["shift_p50"], row["gate"], row["reasons"]) == (34, "unknown", ["few_clusters"])
    (row,) = rows(
        lake, capfd, "runs", "--by", "period", "--compare", "2026-09-08..2026-09-09", "2026-09-07..2026-09-08"
    )
    assert (row["n_a"], row["n_b"], row["shift_p50"]) == (1, 1, 34)
    assert ask(lake, capfd, "runs", "--compare", "prompt-7", "nothing")[0] == NOTHING
    assert ask(lake, capfd, "runs", "--by", "period", "--compare", "yesterday", "today")[0] == USAGE
    assert ask(lake, capfd, "runs", "--by", "outcome")[0] == USAGE


def test_the_gate_exits_5(tmp_path: Path, capfd: Any) -> None:
    lines = []
    for number in range(24):
        group, length = ("new", 9) if number % 2 else ("old", 4)
        common = {"v": 1, "session": f"s{number}", "ts": "2026-09-07T08:00:00Z"}
        lines.append(common | {"type": "session", "task": f"t{number // 2}", "group": group, "harness": "h"})
        lines += [
            common
            | {"type": "step", "id": f"{n}", "tool": "Read", "input": {"file_path": f"{n}"}, "outcome": "success"}
            for n in range(length)
        ]
        lines.append(common | {"type": "result", "solved": number % 3 == 0})
    lake = lake_of(tmp_path, [json.dumps(line) for line in lines]).root
    code, text = ask(lake, capfd, "runs", "--compare", "old", "new", "-f", "json")
    (row,) = json.loads(text)["rows"]
    assert code == FINDING and row["gate"] == "fail" and row["reasons"] == ["longer_at_flat_pass_rate"]
    assert (row["shift_p50_low"], row["shift_p90_high"], row["solved_a"], row["n_judged_a"]) == (5, 5, 4, 12)
    assert ask(lake, capfd, "runs", "--compare", "new", "old")[0] == OK


def test_ladder_names_each_fault(lake: Path, capfd: Any) -> None:
    faults = {r["fault"]: r for r in rows(lake, capfd, "ladder", "faulty", "--faults", "--project", "night-watch")}
    assert [name for name, row in faults.items() if not row["is_fault"]] == ["cycle_not_seen"]
    tiers = rows(lake, capfd, "ladder", "careful", "--project", "night-watch")
    assert [r["runs_fired"] for r in tiers] == [1, 1, 1, 1] and tiers[2]["steps_left"] > 1_000
    code, text = ask(lake, capfd, "ladder", "careful")
    assert code == OK and "block_research" in text and "repair_failed" in text
    assert ask(lake, capfd, "ladder", "no-such-policy.toml")[0] == USAGE


def test_tables_can_be_asked_in_sql(lake: Path, capfd: Any) -> None:
    code, text = ask(lake, capfd, "sql", "SELECT count(*) AS n FROM resets WHERE reason = 'unproductive'", "-f", "json")
    assert code == OK and json.loads(text)["rows"] == [{"n": 242}]
    assert pl.DataFrame(rows(lake, capfd, "schema", "drifts"))["column"].to_list()[:3] == [
        "run_id",
        "session_id",
        "rule",
    ]
