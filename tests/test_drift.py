"""World state, drift and echoes: the vectorised stages against the plain walk, on random runs and on all real logs.

Each rule has the smallest log that must fire it and the largest that must not; the kinds of case that detection leaves
to these rules (CASES 2, 7, 11, 12, 15, 18 and 20) give their verdicts.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle_drift as oracle
from loopstats import drift, rule
from loopstats.tables import STEPS, TURNS

NO_TURNS = TURNS.empty()
DRIFT_COLUMNS = ["run_id", "rule", "first_step", "detected_step", "last_step", "reason", "length", "lead_steps"]
ECHO_COLUMNS = ["run_id", "fingerprint", "result_hash", "first_step", "detected_step", "last_step", "length"]

step_values = st.tuples(
    st.sampled_from(["edit"] * 4 + ["verify"] * 4 + ["read"] * 5 + ["execute", "wait", "plan", "other", "operate"]),
    st.sampled_from(["success"] * 12 + ["failure"] * 5 + ["unknown", "vetoed"]),
    st.sampled_from(["f1"] * 6 + ["f2"] * 3 + ["f3", "f4"]),
    st.sampled_from(["a"] * 3 + ["b"]),
    st.sampled_from(["r1"] * 5 + ["r2", None]),
    st.sampled_from(["agent"] * 14 + ["user"]),
    st.sampled_from([None] * 5 + ["missing"]),
)
run_values = st.tuples(
    st.one_of(st.lists(step_values, max_size=12), st.lists(step_values, min_size=12, max_size=40)),
    st.sampled_from([None, None, None, ["w1"], ["w1", "w1", "w1", "w2", None]]),
)


def make(
    run_id: str,
    number: int,
    kind: str,
    outcome: str = "success",
    fingerprint: str = "f",
    target: str = "a",
    result: str | None = "r",
    actor: str = "agent",
    reason: str | None = None,
    state: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A row of the steps table as far as these rules look at it."""
    return {
        "session_id": run_id.split("/")[0],
        "run_id": run_id,
        "step": number,
        "decision": number,
        "tool": "T",
        "action": "T",
        "kind": kind,
        "kind_source": "table",
        "target": target,
        "outcome": outcome,
        "outcome_source": "log",
        "outcome_reason": reason,
        "signature": result if outcome == "failure" else None,
        "fingerprint": fingerprint,
        "result_hash": result,
        "state_hash": state,
        "actor": actor,
        "harness": "h",
        "source_file": "f",
        "source_line": number,
        "ts": None,
        "cycle": None,
        "is_truncated": None,
        "overflow_path": None,
    } | more


def frame_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = {name: (pl.Int64() if isinstance(dtype, pl.Datetime) else dtype) for name, dtype in STEPS.schema.items()}
    frame = pl.DataFrame([{k: v for k, v in row.items() if k in schema} for row in rows], schema=schema)
    return STEPS.conform(frame.with_columns(pl.from_epoch("ts", "us").dt.replace_time_zone("UTC")))


def runs_of(values: list[Any]) -> list[list[dict[str, Any]]]:
    runs = []
    for number, (steps, own) in enumerate(values):
        states = itertools.cycle(own or [None])
        runs.append(
            [
                make(f"run-{number}", place, kind, outcome, fingerprint, target, result, actor, reason, next(states))
                for place, (kind, outcome, fingerprint, target, result, actor, reason) in enumerate(steps)
            ]
        )
    return runs


def check(runs: list[list[dict[str, Any]]], frame: pl.DataFrame) -> None:
    """The stages over all runs at once against the walk of each."""
    marked = drift.world(frame)
    found = {run_id[0]: part for run_id, part in marked.partition_by("run_id", as_dict=True).items()}
    for steps in filter(None, runs):
        part = found[steps[0]["run_id"]]
        expected = oracle.states(steps)
        pairs = set(zip(part["state_hash"].to_list(), expected, strict=True))
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs), (
            "states must be equal where the walk's are"
        )
        assert all((a is None) == (b is None) for a, b in pairs)
        assert part["is_productive"].to_list() == oracle.productive(steps)
    rows = [row for steps in runs if steps for name in ("drift/0", "drift/1") for row in oracle.drifts(steps, name)]
    assert by_key(drift.drifts(marked, NO_TURNS), DRIFT_COLUMNS) == by_key(rows, DRIFT_COLUMNS)
    rows = [row for steps in runs if steps for row in oracle.echoes(steps)]
    assert by_key(drift.echoes(marked, NO_TURNS), ECHO_COLUMNS) == by_key(rows, ECHO_COLUMNS)
    frozen = dict(drift.frozen_stretches(marked).select("run_id", "longest_frozen").iter_rows())
    assert frozen == {s[0]["run_id"]: n for s in runs if s and (n := oracle.longest_frozen(s)) is not None}


def by_key(rows: pl.DataFrame | list[dict[str, Any]], columns: list[str]) -> list[tuple[Any, ...]]:
    listed = rows.to_dicts() if isinstance(rows, pl.DataFrame) else rows
    return sorted(tuple(row[name] for name in columns) for row in listed)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(run_values, min_size=1, max_size=6))
def test_stages_equal_the_plain_walk(values: list[Any]) -> None:
    runs = runs_of(values)
    check(runs, frame_of([step for steps in runs for step in steps]))


def test_stages_equal_the_plain_walk_on_all_real_logs(corpus: Any) -> None:
    from corpus_lake import corpus_tables

    tables = corpus_tables()
    steps = tables["steps"].drop("state_hash").with_columns(pl.lit(None, dtype=pl.String).alias("state_hash"))
    assert corpus.is_dir() and steps.height > 5_000
    runs = [part.sort("step").to_dicts() for part in steps.partition_by("run_id")]
    check(runs, STEPS.conform(steps))
    kept = tables["drifts"].select(DRIFT_COLUMNS)
    assert by_key(kept, DRIFT_COLUMNS) == by_key(
        [r for s in runs for n in ("drift/0", "drift/1") for r in oracle.drifts(s, n)], DRIFT_COLUMNS
    )
    assert tables["steps"]["state_hash"].drop_nulls().str.contains("^[0-9a-f]{16}$").all()


# --- smallest that must, largest that must not ------------------------------------------------------------------------


def found(steps: list[dict[str, Any]], name: str = "drift/1") -> list[tuple[int, int, str]]:
    """(detected step, last step, reason) of one run."""
    rows = drift.drifts(drift.world(frame_of(steps)), NO_TURNS).filter(pl.col("rule") == name)
    return [(r["detected_step"], r["last_step"], r["reason"]) for r in rows.to_dicts()]


def run(*kinds: tuple[Any, ...] | dict[str, Any]) -> list[dict[str, Any]]:
    return [make("r", n, **k) if isinstance(k, dict) else make("r", n, *k) for n, k in enumerate(kinds)]


def look(word: str, **more: Any) -> dict[str, Any]:
    return {"kind": "read", "fingerprint": word} | more


def test_novelty_fires_with_eight_steps_of_two_prints_and_not_with_seven_or_three_prints() -> None:
    assert found(run(*[look("ab"[n % 2]) for n in range(8)])) == [(7, 7, "novelty")]
    assert found(run(*[look("ab"[n % 2]) for n in range(7)])) == []
    assert found(run(*[look("abc"[n % 3]) for n in range(200)])) == [], "three prints in eight, and no state is known"


def test_state_fires_with_eight_equal_known_states_and_two_first_prints() -> None:
    rows = run(*[look("abc"[n % 3], state="w") for n in range(9)])
    assert found(rows) == [(8, 8, "state")], "the first window holds three first prints, the second two"
    assert found(rows[:8]) == []
    assert found(rows[:8], "drift/0") == [(7, 7, "state")], "the field report's rule does not ask for first prints"
    read_on = run(*[look(f"new{n}", state="w") for n in range(30)], *[look("abc"[n % 3], state="w") for n in range(9)])
    assert found(read_on) == [(38, 38, "state")], "three first prints in the window before"


def test_one_other_state_or_one_unknown_one_in_the_window_is_no_frozen_state() -> None:
    for odd in ("x", None):
        rows = run(*[look("abc"[n % 3], state=odd if n % 8 == 4 else "w") for n in range(60)])
        assert found(rows) == [] and found(rows, "drift/0") == []
    assert found(run(*[look("abc"[n % 3]) for n in range(60)]), "drift/0") == [], "missing is unknown, never unchanged"


def test_reading_on_is_no_drift_and_reading_again_is() -> None:
    check_run = {"kind": "verify", "outcome": "failure", "fingerprint": "t", "result": "m"}
    pages = [look(f"page{n}") for n in range(164)]
    assert found(run(check_run, *pages)) == []
    assert len(found(run(check_run, *pages), "drift/0")) == 1
    wrapped = found(run(check_run, *pages, *pages))
    assert [(step, reason) for step, _, reason in wrapped] == [(1 + 164 + 5, "state")], (
        "from the wrap on, with six pages read again"
    )


def test_case_15_windows_that_overlap_are_a_gap() -> None:
    check_run = {"kind": "verify", "outcome": "failure", "fingerprint": "t", "result": "m"}
    widening = [look(f"lines 1 to {220 + 40 * n}") for n in range(20)]
    assert found(run(check_run, *widening)) == [], "each window is another print; METHOD 12 compares no intervals"
    assert len(found(run(check_run, *widening), "drift/0")) == 1


def test_onset_length_lead_and_cost() -> None:
    rows = run(
        look("x"), look("y"), look("z"), *[look("ab"[n % 2]) for n in range(10)], look("q"), look("s"), look("t")
    )
    turns = TURNS.conform(
        pl.DataFrame(
            {
                "session_id": ["r"] * 16,
                "run_id": ["r"] * 16,
                "decision": range(16),
                "tokens_output": [10] * 16,
                "cost_micros": [1] * 15 + [None],
            }
        )
    )
    row = drift.drifts(drift.world(frame_of(rows)), turns).filter(pl.col("rule") == "drift/1").row(0, named=True)
    assert (row["first_step"], row["detected_step"], row["last_step"], row["length"]) == (3, 10, 12, 10)
    assert (row["lead_steps"], row["tokens"], row["cost_micros"]) == (5, 100, 10)


def test_waiting_is_left_out() -> None:
    polls = [{"kind": "wait", "fingerprint": "poll", "result": "running"}] * 100
    assert found(run(*polls)) == [] and drift.echoes(drift.world(frame_of(run(*polls))), NO_TURNS).height == 0
    assert len(found(run(*polls), "drift/0")) == 1, "the field report's rule counts it"
    mixed = itertools.chain.from_iterable((look("ab"[n % 2]), *polls[:3]) for n in range(8))
    assert [reason for *_, reason in found(run(*mixed))] == ["novelty"]


def edit(content: str, target: str = "f", **more: Any) -> dict[str, Any]:
    return {"kind": "edit", "fingerprint": content, "target": target} | more


def checked(result: str | None, outcome: str = "failure", **more: Any) -> dict[str, Any]:
    return {"kind": "verify", "fingerprint": "t", "outcome": outcome, "result": result} | more


def test_healthy_cycles_are_no_drift() -> None:
    cycle = list(itertools.chain.from_iterable((look("f"), edit(f"e{n}"), checked("m")) for n in range(40)))
    assert found(run(*cycle)) == [], "the error stays, but the edits differ"
    assert found(run(*cycle), "drift/0") == []
    moving = list(itertools.chain.from_iterable((look("f"), look("g"), checked(f"m{n}")) for n in range(40)))
    assert found(run(*moving)) == [], "the masked error changes"
    assert len(found(run(*(step for n in range(40) for step in (look("f"), look("g"), checked("m")))))) == 1


def test_case_7_one_file_written_again_and_again_with_the_same_bytes() -> None:
    rows = run(*(step for _ in range(5) for step in (edit("e"), checked("m"))))
    assert found(rows) == [(7, 9, "novelty")]
    known = drift.world(frame_of(rows))
    assert known["state_hash"].drop_nulls().n_unique() == 1 and known["state_hash"].null_count() == 1
    assert known["is_productive"].to_list() == [True, None, False, False, False, False, False, False, False, False]
    three_files = run(*(step for n in range(5) for step in (edit(f"e{n}", f"f{n}"), checked("m"))))
    assert found(three_files) == []


def test_case_12_period_three_where_nothing_changes() -> None:
    cycle = (look("f"), edit("e", outcome="failure", result="nomatch"), checked("m"))
    own = [dict(step, state="w") for step in cycle]
    assert found(run(*own * 3)) == [(8, 8, "state")]
    assert found(run(*cycle * 3)) == [], (
        "derived, the state is known from the first test on: seven states are no window"
    )
    assert found(run(*cycle * 4)) == [(9, 11, "state")]
    gap = run(*(step for n in range(100) for step in (look(f"search {n}"), look(f"fetch {n}"))))
    assert found(gap) == [], "new words each time: a gap that no rule of METHOD 12 sees"


def test_case_18_edits_of_equal_length_and_folders_without_git_move_the_state() -> None:
    rows = run(
        *(
            step
            for n in range(6)
            for step in (edit(f"bytes-{n % 2}"), {"kind": "execute", "fingerprint": "commit"}, checked("m"))
        )
    )
    assert found(rows) == [] and found(rows, "drift/0") == []
    states = drift.world(frame_of(rows))["state_hash"].drop_nulls()
    assert states.n_unique() == 2, "two contents, whatever their length"
    without = run(*[{"kind": "execute", "fingerprint": f"commit {n}"} for n in range(30)])
    assert drift.world(frame_of(without))["state_hash"].null_count() == 30 and found(without) == []


def test_case_20_fresh_ids_and_path_flips_are_no_progress() -> None:
    sends = run(*[{"kind": "communicate", "fingerprint": "send x", "result": f"ok id={n}"} for n in range(8)])
    assert found(sends) == [(7, 7, "novelty")]
    flips = run(*[edit("same text", "pq"[n % 2]) | {"fingerprint": "pq"[n % 2]} for n in range(8)])
    assert found(flips) == [(7, 7, "novelty")]


def test_unknown_edits_and_silent_verifications_make_the_state_unknown_until_the_next_one() -> None:
    rows = run(
        checked("m"),
        edit("e", outcome="unknown"),
        look("a"),
        checked("m"),
        checked(None, "unknown"),
        look("a"),
        checked("m"),
    )
    states = drift.world(frame_of(rows))["state_hash"].to_list()
    assert [state is None for state in states] == [False, True, True, False, True, True, False]
    assert states[0] != states[3] == states[6], "what an unknown edit left is not what was there before"


def test_the_derived_state_is_one_value_on_every_machine() -> None:
    (state,) = drift.world(frame_of(run(edit("e", "f"), checked("m"))))["state_hash"].tail(1).to_list()
    verdict, content = (int(hashlib.sha256(text).hexdigest()[:16], 16) for text in (b"failure m", b"f\x1fe"))
    word = (verdict * 0x9E3779B97F4A7C15 + content) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    assert state == f"{word ^ word >> 31:016x}"


# --- echoes -----------------------------------------------------------------------------------------------------------


def echoed(steps: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    rows = drift.echoes(drift.world(frame_of(steps)), NO_TURNS)
    return [(r["first_step"], r["detected_step"], r["length"]) for r in rows.to_dicts()]


def test_echo_fires_at_the_fourth_and_not_at_the_third() -> None:
    spread = [step for _ in range(4) for step in (look("a"), look("b", result="other"), look("c", result=None))]
    assert echoed(run(*spread)) == [(0, 9, 4), (1, 10, 4)], (
        "also when other calls stand between, and not without a result"
    )
    assert echoed(run(*spread[:9])) == []
    assert echoed(run(*[look("a", result=f"r{n}") for n in range(50)])) == [], "another result each time"


def test_a_productive_step_between_begins_an_echo_anew() -> None:
    rows = run(look("a"), look("a"), look("a"), edit("e"), look("a"), look("a"), look("a"))
    assert echoed(rows) == []
    assert echoed([*rows, make("r", 7, **look("a"))]) == [(4, 7, 4)]
    unknown = run(look("a"), look("a"), edit("e", outcome="unknown"), look("a"), look("a"))
    assert echoed(unknown) == [], "what an edit of unknown outcome did is not known"
    assert echoed(run(look("a"), look("a"), edit("e", outcome="failure"), look("a"), look("a"))) == [(0, 4, 4)]


@pytest.mark.parametrize(
    "other", ["grep -i discount", 'grep "discount"', "grep -rn discount", "cd src && grep discount"]
)
def test_a_grep_is_one_fingerprint_whatever_its_flags(other: str) -> None:
    assert (
        rule.read_call("Bash", {"command": other}).fingerprint
        == rule.read_call("Bash", {"command": "grep discount"}).fingerprint
    )
    pages = {
        rule.read_call("Read", {"file_path": "a.py", "offset": n, "limit": 40}).fingerprint for n in range(1, 200, 40)
    }
    assert len(pages) == 5
