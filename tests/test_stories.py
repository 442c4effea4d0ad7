"""Both field reports behind METHOD 12, finding by finding, on native logs in our own words."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from lines import ingest, tables_of
from loopstats import audits, compare, waste
from loopstats.config import Settings
from make_drift_cases import CASES, STORIES


def tables_of_story(name: str, folder: Path) -> dict[str, pl.DataFrame]:
    ingest(folder / "lake", CASES / name, settings=Settings())
    return tables_of(folder / "lake")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    return tables_of_story("drift-41-steps.jsonl", tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    return tables_of_story("drift-272-cycles.jsonl", tmp_path_factory.mktemp("watch"))


def of(tables: dict[str, pl.DataFrame], name: str, run_id: str) -> pl.DataFrame:
    return tables[name].filter(pl.col("run_id") == run_id)


def lines(tables: dict[str, pl.DataFrame]) -> dict[str, tuple[int, int]]:
    return {name: (x, n) for name, x, n in audits.audit(tables).lines().select("finding", "x", "n").iter_rows()}


@pytest.mark.parametrize("name", STORIES)
def test_the_files_are_what_the_writer_writes(name: str) -> None:
    assert (CASES / name).read_text(encoding="utf-8") == "\n".join(STORIES[name]()) + "\n"


def test_41_steps_that_no_hard_rule_sees(shop: dict[str, pl.DataFrame]) -> None:
    assert shop["loops"].height == 0, "one failure only"
    run = of(shop, "runs", "shop-41").row(0, named=True)
    assert (run["count_steps"], run["count_fingerprints"], run["count_failures"]) == (41, 6, 1)
    assert run["count_state_changes"] == 1 and run["longest_frozen"] == 36
    healthy = of(shop, "runs", "shop-7").row(0, named=True)
    assert run["tokens"] == pytest.approx(15 * healthy["tokens"], rel=0.01)


def test_41_steps_drift_from_the_first_fix_on(shop: dict[str, pl.DataFrame]) -> None:
    row = of(shop, "drifts", "shop-41").filter(pl.col("rule") == "drift/1").row(0, named=True)
    assert (row["first_step"], row["detected_step"], row["last_step"], row["reason"]) == (5, 12, 40, "state")
    assert row["lead_steps"] == 28 and row["lead_ms"] == (28 * 20 + 5 - 5) * 1000
    assert row["tokens"] == 36 * 5_150 and row["cost_micros"] == 36 * 20_000
    assert of(shop, "drifts", "shop-7").height == 0


def test_41_steps_one_search_in_five_spellings_and_three_files_echo(shop: dict[str, pl.DataFrame]) -> None:
    echoes = of(shop, "echoes", "shop-41")
    assert sorted(echoes.select("tool", "length").rows()) == [("Bash", 8), ("Read", 8), ("Read", 8), ("Read", 9)]
    searches = of(shop, "steps", "shop-41").filter(pl.col("action") == "Bash:grep")
    assert searches.height == 9 and searches["fingerprint"].n_unique() == 1


def test_41_steps_one_fix_three_times_and_only_the_first_did_anything(shop: dict[str, pl.DataFrame]) -> None:
    edits = of(shop, "steps", "shop-41").filter(pl.col("kind") == "edit")
    assert edits["is_productive"].to_list() == [True, False, False]


def test_41_steps_checked_by_reading_and_claimed(shop: dict[str, pl.DataFrame]) -> None:
    run = of(shop, "runs", "shop-41").row(0, named=True)
    assert run["is_unverified"] and run["last_verify"] == "failure" and run["solved"] is False and run["claimed"]
    assert str(compare.false_claims(shop["runs"])) == "1/2"
    assert lines(shop)["unverified/1"] == (1, 2)


def test_41_steps_waste_is_counted_once(shop: dict[str, pl.DataFrame]) -> None:
    stretches = waste.stretches_of(shop["loops"], shop["drifts"])
    wasted = waste.wasted_turns(pl.concat([stretches, stretches]), shop["steps"], shop["turns"])
    total = waste.waste(wasted, shop["turns"]).row(0, named=True)
    assert (total["count_turns"], total["tokens"], total["count_turns_priced"]) == (36, 36 * 5_150, 36)
    assert total["tokens_all"] == shop["runs"]["tokens"].sum()
    by_week = waste.waste(wasted, shop["turns"], ["week", "tool", "project", "model"])
    assert by_week.select("week", "tool", "project", "model", "tokens").rows() == [
        ("2026-09-07", "Read", "shop", "m-large", 36 * 5_150)
    ]


def test_272_cycles_changed_nothing(watch: dict[str, pl.DataFrame]) -> None:
    run = watch["runs"].row(0, named=True)
    assert watch["steps"]["cycle"].n_unique() == 272 and run["count_state_changes"] == 0
    assert run["longest_frozen"] == run["count_steps"] and run["ending"] == "cap" and run["solved"] is False
    assert watch["loops"].height == 0 and run["count_failures"] == 0


def test_272_cycles_drift_and_echo(watch: dict[str, pl.DataFrame]) -> None:
    assert watch["drifts"].filter(pl.col("rule") == "drift/1")["reason"].unique().to_list() == ["state"]
    (whole,) = watch["drifts"].filter(pl.col("rule") == "drift/0").to_dicts()
    assert (whole["first_step"], whole["detected_step"], whole["lead_steps"]) == (0, 7, whole["length"] - 8)
    read = watch["echoes"].filter(pl.col("tool") == "read_file").row(0, named=True)
    assert (read["length"], read["detected_step"]) == (272, 14)


def test_272_cycles_the_counter_went_back_over_two_reads(watch: dict[str, pl.DataFrame]) -> None:
    assert watch["resets"]["reason"].unique().to_list() == ["unproductive"]
    assert watch["resets"].select("by", "length", "counter_before").unique().rows() == [("two reads", 2, 2)]
    assert lines(watch)["clean-reset/1"] == (242, 242)


def test_272_cycles_a_stale_chance_beat_the_hardest_block(watch: dict[str, pl.DataFrame]) -> None:
    found = lines(watch)
    assert found["override tier 3"] == (4, 4) and found["override stale"] == (4, 4)
    count_states = watch["guards"].filter(pl.col("event").is_in(["raise", "block", "override"])).height
    assert found["state without end"] == (count_states - 3, count_states), "only the chance had an end"


def test_272_cycles_truncated_results_were_read_into_truncated_results(watch: dict[str, pl.DataFrame]) -> None:
    assert watch["chases"].height >= 30 and watch["chases"].select("length", "depth").unique().rows() == [(3, 3)]


def test_272_cycles_exec_fetched_what_was_blocked(watch: dict[str, pl.DataFrame]) -> None:
    ways = watch["bypasses"]
    assert ways["reason"].unique().to_list() == ["clothes"] and ways["tool"].unique().to_list() == ["exec"]
    assert lines(watch)["bypass/1 clothes"] == (7, 7)
    first_block = watch["guards"].filter(pl.col("event") == "block")["step"].min()
    assert ways["last_step"].min() > first_block


def test_272_cycles_two_tools_belong_to_no_class(watch: dict[str, pl.DataFrame]) -> None:
    unclassified = watch["steps"].filter(pl.col("kind") == "other")["tool"].unique().sort().to_list()
    assert unclassified == ["pulse_note", "radar_sweep"]
    assert watch["ghosts"]["reason"].unique().to_list() == ["cycle"] and watch["ghosts"]["length"].sum() == 68


def test_272_cycles_the_repair_failed_for_weeks(watch: dict[str, pl.DataFrame]) -> None:
    assert lines(watch)["heal failed"] == (23, 23)
    rows = audits.audit(watch).rows.filter(pl.col("finding") == "heal failed")
    assert (rows["at"].max() - rows["at"].min()).days >= 20 and rows["detail"].unique().to_list() == [
        "self-repair by key refused"
    ]
