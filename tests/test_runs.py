"""Runs as evaluations, what stretches cost, two groups of runs compared: against plain sums and a plain bootstrap."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lines import ingest, tables_of
from loopstats import compare, drift, runs, waste
from loopstats.config import Settings
from loopstats.errors import UsageError
from loopstats.tables import RESULTS, RUNS, SESSIONS, TABLES, TURNS
from test_drift import checked, edit, frame_of, look, make

# --- what a stretch costs ---------------------------------------------------------------------------------------------

turn_values = st.lists(st.tuples(st.sampled_from([None, 0, 5, 70]), st.sampled_from([None, 3, 11])), max_size=14)
stretch_values = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.booleans()), max_size=8)


def turns_of(values: list[Any], run_id: str = "r") -> pl.DataFrame:
    return TURNS.conform(
        pl.DataFrame(
            [(run_id, run_id, n, tokens, cost) for n, (tokens, cost) in enumerate(values)],
            orient="row",
            schema={
                "session_id": pl.String,
                "run_id": pl.String,
                "decision": pl.Int64,
                "tokens_output": pl.Int64,
                "cost_micros": pl.Int64,
            },
        )
    )


def stretch(first: int, last: int, is_after: bool = False, name: str = "drift/1") -> dict[str, Any]:
    return {
        "run_id": "r",
        "session_id": "r",
        "rule": name,
        "tool": "T",
        "project": "p",
        "harness": "h",
        "group": None,
        "model": "m",
        "first_step": first,
        "last_step": last,
        "is_after": is_after,
    }


STRETCH_SCHEMA = dict.fromkeys(
    ("run_id", "session_id", "rule", "tool", "project", "harness", "group", "model"), pl.String
) | {"first_step": pl.Int64, "last_step": pl.Int64, "is_after": pl.Boolean}


@settings(max_examples=150, deadline=None)
@given(turn_values, stretch_values)
def test_a_stretch_costs_its_turns_and_each_turn_is_wasted_once(values: list[Any], spans: list[Any]) -> None:
    steps = frame_of([make("r", n, "read") for n in range(16)])
    turns = turns_of(values)
    rows = [stretch(min(a, b), max(a, b), is_after) for a, b, is_after in spans]
    frame = pl.DataFrame(rows, schema=STRETCH_SCHEMA)
    spent = waste.spend(frame, steps, turns).select("tokens", "cost_micros").rows()
    for row, (tokens, cost) in zip(rows, spent, strict=True):
        mine = values[row["first_step"] : row["last_step"] + 1]
        told, priced = [t for t, _ in mine if t is not None], [c for _, c in mine if c is not None]
        assert tokens == (sum(told) if told else None)
        assert cost == (sum(priced) if priced and len(priced) == len(mine) else None)
    wasted = waste.wasted_turns(frame, steps, turns)
    expected = {
        n for row in rows for n in range(row["first_step"] + row["is_after"], row["last_step"] + 1) if n < len(values)
    }
    assert wasted["decision"].to_list() == sorted(expected)
    total = waste.waste(wasted, turns).row(0, named=True)
    costs = [values[n][1] for n in expected if values[n][1] is not None]
    assert (total["count_turns_priced"], total["cost_micros"]) == (len(costs), sum(costs) if costs else None)
    assert waste.waste(wasted, turns, ["rule"])["count_turns"].sum() == len(expected)


def test_waste_of_a_loop_begins_after_its_detection_and_a_price_that_is_not_known_is_not_zero() -> None:
    steps = frame_of([make("r", n, "edit") for n in range(6)])
    loop = {
        "run_id": "r",
        "session_id": "r",
        "rule": "strategy-loop/1",
        "tool": "Edit",
        "project": None,
        "harness": "h",
        "group": None,
        "model": "m",
        "detected_step": 1,
        "outcome_step": 3,
        "last_step": 5,
    }
    loops = pl.DataFrame([loop, loop | {"outcome_step": None, "detected_step": 4}]).cast(
        {"project": pl.String, "group": pl.String}
    )
    drifts = TABLES["drifts"].empty()
    wasted = waste.wasted_turns(waste.stretches_of(loops, drifts), steps, turns_of([(10, None)] * 6))
    assert wasted["decision"].to_list() == [2, 3, 5]
    total = waste.waste(wasted, turns_of([(10, None)] * 6)).row(0, named=True)
    assert (total["tokens"], total["count_turns"], total["count_turns_priced"], total["cost_micros"]) == (
        30,
        3,
        0,
        None,
    )
    with pytest.raises(UsageError, match="week, tool, project, model"):
        waste.waste(wasted, turns_of([]), ["colour"])


# --- the stage --------------------------------------------------------------------------------------------------------


def evaluate(steps: list[dict[str, Any]], results: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    frame = drift.world(frame_of(steps))
    facts = RESULTS.conform(
        pl.DataFrame(
            [
                {"session_id": "r", "run_id": "r", "result": n, "source_file": "f", "source_line": n} | r
                for n, r in enumerate(results or [])
            ],
            schema={n: t for n, t in RESULTS.schema.items() if n != "ts"},
        )
    )
    counts = {f"count_{name}": 0 for name in ("runs", "steps", "attempts", "failures", "unknown")}
    session = SESSIONS.conform(
        pl.DataFrame(
            [
                {
                    "session_id": "r",
                    "format": "native",
                    "harness": "h",
                    "cwd": "",
                    "is_open": False,
                    "is_enrolled": False,
                    "is_late_enrolment": False,
                    **counts,
                }
            ]
        )
    )
    findings = {
        name: TABLES[name].empty() for name in ("loops", "drifts", "echoes", "ghosts", "chases", "bypasses", "resets")
    }
    turns = turns_of([(5, 1), (None, None), (7, None)])
    rows = runs.evaluate(frame, turns, session, facts, drift.frozen_stretches(frame), findings)
    return rows.row(0, named=True)


def test_solved_comes_from_results_and_the_last_check_is_not_it() -> None:
    steps = [
        make("r", 0, **edit("e")),
        make("r", 1, **checked("ok", "success")),
        make("r", 2, **look("a")),
        make("r", 3, **look("a")),
    ]
    row = evaluate(steps)
    assert row["solved"] is None and row["last_verify"] == "success" and row["is_unverified"] is False
    assert (row["count_steps"], row["count_fingerprints"], row["distinct_ratio"]) == (4, 3, 0.75)
    assert (
        row["count_turns"],
        row["count_turns_told"],
        row["tokens"],
        row["count_turns_priced"],
        row["cost_micros"],
    ) == (3, 2, 12, 1, 1)
    row = evaluate(steps, [{"solved": True, "claimed": True}, {"solved": False}, {"ending": "cap"}])
    assert (row["solved"], row["claimed"], row["ending"]) == (False, True, "cap"), "the last that tells a fact stands"


@pytest.mark.parametrize(
    ("after", "is_unverified"),
    [
        ([], True),
        ([look("a")], True),
        ([checked("m")], False),
        ([checked("m", "vetoed")], True),
        ([checked("m"), edit("e2")], True),
        ([checked("m"), edit("e2", outcome="failure")], False),
    ],
)
def test_unverified_is_an_edit_without_a_later_verification(after: list[dict[str, Any]], is_unverified: bool) -> None:
    steps = [make("r", n, **step) for n, step in enumerate([edit("e"), *after])]
    assert evaluate(steps)["is_unverified"] is is_unverified
    assert evaluate([make("r", 0, **look("a"))])["is_unverified"] is None


def test_every_run_of_a_native_log_is_evaluated_with_its_external_facts(tmp_path: Any) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(
        "\n".join(
            [
                '{"v":1,"type":"session","session":"s","harness":"acme 2.0","model":"m","task":"t-1","group":"g"}',
                '{"v":1,"type":"step","session":"s","id":"1","tool":"Read","input":{"file_path":"a"},"outcome":"success","decision":"d","tokens":{"input":3}}',
                '{"v":1,"type":"step","session":"s","agent":"sub","id":"2","tool":"Read","input":{"file_path":"a"},"outcome":"success"}',
                '{"v":1,"type":"result","session":"s","solved":true,"ending":"commit","bait":"impossible","expected_ending":"give-up","claimed":true}',
                '{"v":1,"type":"result","session":"empty","solved":false,"ending":"give-up","bait":"impossible","expected_ending":"give-up"}',
            ]
        )
        + "\n",
        encoding="utf-8",
    )
    ingest(tmp_path / "lake", log, settings=Settings())
    tables = tables_of(tmp_path / "lake")
    rows = {row["run_id"]: row for row in tables["runs"].to_dicts()}
    assert set(rows) == {"s", "s/sub", "empty"}
    assert (rows["s"]["task"], rows["s"]["group"], rows["s"]["harness"], rows["s"]["tokens"], rows["s"]["solved"]) == (
        "t-1",
        "g",
        "acme 2.0",
        3,
        True,
    )
    assert rows["s/sub"]["solved"] is None and rows["empty"]["count_steps"] == 0
    assert [(bait, str(rate)) for bait, rate in compare.endings(tables["runs"])] == [("impossible", "1/2")]
    assert str(compare.false_claims(tables["runs"])) == "0/1"


def test_runs_add_up_to_the_lake_on_all_real_logs(corpus: Any) -> None:
    from corpus_lake import corpus_tables

    tables = corpus_tables()
    table, steps, turns = tables["runs"], tables["steps"], tables["turns"]
    assert corpus.is_dir() and table["run_id"].to_list() == sorted(
        set(steps["run_id"]) | set(turns["run_id"]) | set(tables["results"]["run_id"])
    )
    assert table["count_steps"].sum() == steps.filter(pl.col("actor") == "agent").height
    assert table["count_turns"].sum() == turns.height and table["cost_micros"].sum() == turns["cost_micros"].sum()
    for name, column in (("echoes", "count_echoes"), ("ghosts", "count_ghosts"), ("bypasses", "count_bypasses")):
        assert table[column].sum() == tables[name].height
    judged = table.filter(pl.col("solved").is_not_null())
    assert {"tau-bench", "tau2-bench", "inspect", "atif-result"} <= set(judged["format"].to_list())


# --- two groups -------------------------------------------------------------------------------------------------------


def group(values: list[tuple[str | None, int, bool | None]], name: str = "a") -> pl.DataFrame:
    """RUNS of (task, steps, solved)."""
    zeros = {c.name: 0 for c in RUNS.columns if c.is_required and c.name.startswith("count_")}
    return RUNS.conform(
        pl.DataFrame(
            [
                zeros
                | {
                    "run_id": f"{name}-{n}",
                    "session_id": f"{name}-{n}",
                    "harness": "h",
                    "format": "native",
                    "rule_version": "x",
                    "task": task,
                    "count_steps": steps,
                    "solved": solved,
                }
                for n, (task, steps, solved) in enumerate(values)
            ],
            infer_schema_length=None,
        )
    )


def plain_bootstrap(
    a: list[tuple[str, int, bool]], b: list[tuple[str, int, bool]], draws: int
) -> list[tuple[float, float]]:
    """Whole tasks drawn with replacement, every run of a drawn task written out."""
    random = np.random.default_rng(compare.SEED)
    tasks = sorted({task for task, *_ in a + b})
    out: list[list[float]] = [[], [], []]
    for _ in range(draws):
        drawn = [tasks[i] for i in random.integers(0, len(tasks), len(tasks))]
        one, two = ([(s, ok) for task in drawn for t, s, ok in side if t == task] for side in (a, b))
        if not one or not two:
            continue
        for n, q in enumerate((0.5, 0.9)):
            out[n].append(float(np.quantile([s for s, _ in two], q) - np.quantile([s for s, _ in one], q)))
        out[2].append(float(np.mean([ok for _, ok in two]) - np.mean([ok for _, ok in one])))
    return [(float(np.quantile(v, 0.025)), float(np.quantile(v, 0.975))) for v in out]


def test_intervals_equal_a_plain_bootstrap_over_tasks() -> None:
    random = np.random.default_rng(3)
    a = [(f"t{n % 12:02d}", int(random.integers(5, 60)), bool(random.integers(0, 2))) for n in range(40)]
    b = [(f"t{n % 15:02d}", int(random.integers(9, 90)), bool(random.integers(0, 2))) for n in range(37)]
    done = compare.compare(group(a), group(b, "b"), "old", "new", draws=300)
    expected = plain_bootstrap(a, b, 300)
    found = [(s.low, s.high) for s in done.shifts] + [(done.pass_low, done.pass_high)]
    assert np.allclose(np.array(found, dtype=float), np.array(expected), atol=1e-12)
    assert (done.n_a, done.n_b, done.count_clusters, done.count_tasks_shared) == (40, 37, 15, 12)
    again = compare.compare(group(a).sample(fraction=1.0, shuffle=True, seed=5), group(b, "b"), "old", "new", draws=300)
    assert again == done, "whatever the order of the rows"


def test_longer_at_a_flat_pass_rate_fails_and_longer_with_more_solved_does_not() -> None:
    old = [(f"t{n}", 10 + n % 7, n % 2 == 0) for n in range(60)]
    longer = [(task, steps + 5, solved) for task, steps, solved in old]
    done = compare.compare(group(old), group(longer, "b"), "old", "new")
    assert done.is_failed and "longer_at_flat_pass_rate" in done.reasons
    assert [(s.shift, s.low, s.high) for s in done.shifts] == [(5.0, 5.0, 5.0)] * 2, (
        "every task by five: the tasks are drawn together"
    )
    better = [(task, steps, True) for task, steps, _ in longer]
    done = compare.compare(group(old), group(better, "b"), "old", "new")
    assert done.gate == "pass" and done.reasons == ("longer_and_solves_more",)
    assert compare.compare(group(longer), group(old, "b"), "new", "old").gate == "pass"
    assert compare.compare(group(old), group(old, "b"), "old", "same").gate == "pass"
    unknown = [(task, steps, None) for task, steps, _ in longer]
    assert compare.compare(group(old), group(unknown, "b"), "old", "new").is_failed, (
        "it is not shown that more is solved"
    )


def test_the_tail_alone_fails_the_gate() -> None:
    old = [(f"t{n}", 10, True) for n in range(100)]
    tail = [(task, 100 if n % 4 == 0 else 10, True) for n, (task, _, _) in enumerate(old)]
    done = compare.compare(group(old), group(tail, "b"), "old", "new")
    assert done.shifts[0].shift == 0 and done.shifts[1].low > 0 and done.is_failed


def test_repeats_of_a_task_are_no_new_evidence() -> None:
    random = np.random.default_rng(8)
    levels = [int(v) for v in random.integers(5, 200, 12)]
    a = [(f"a{t}", levels[t] + int(random.integers(0, 3)), True) for t in range(12) for _ in range(20)]
    b = [(f"b{t}", levels[(t + 5) % 12] + 9 + int(random.integers(0, 3)), True) for t in range(12) for _ in range(20)]
    by_task = compare.compare(group(a), group(b, "b"), "a", "b").shifts[0]
    by_run = compare.compare(
        group([(None, s, ok) for _, s, ok in a]), group([(None, s, ok) for _, s, ok in b], "b"), "a", "b"
    ).shifts[0]
    assert by_task.high - by_task.low > 1.5 * (by_run.high - by_run.low)


def test_few_clusters_give_no_interval_and_no_verdict() -> None:
    few = [(f"t{n % 9}", 10 + n, True) for n in range(90)]
    done = compare.compare(group(few), group(few, "b"), "a", "b")
    assert done.gate == "unknown" and done.shifts[0].low is None and done.shifts[0].reason == "few_clusters"
    row = done.to_row()
    assert row["shift_p50"] == 0.0 and row["shift_p50_low"] is None and row["n_judged_a"] == 90
    empty = compare.compare(group(few).clear(), group(few, "b"), "a", "b")
    assert empty.gate == "unknown" and empty.shifts[0].shift is None and (empty.n_a, empty.n_b) == (0, 90)


def test_distributions_have_an_n_beside_every_rate() -> None:
    frame = group([("t1", 10, True), ("t2", 20, None), ("t3", 30, False), ("t4", 0, True)])
    row = compare.distributions(frame).row(0, named=True)
    assert (row["n"], row["solved"], row["n_judged"], row["steps_p50"], row["steps_p90"]) == (3, 1, 2, 20.0, 28.0)
    assert compare.distributions(frame, ["task"])["task"].to_list() == ["t1", "t2", "t3"]
    with pytest.raises(UsageError, match="version, model, group"):
        compare.distributions(frame, ["outcome"])
