"""Ghosts, chases, bypasses, resets and the audit of guards: against the plain walk, and at the edges of each rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle_drift as oracle
from lines import ingest, tables_of
from loopstats import audits, drift
from loopstats.config import Settings
from loopstats.tables import GUARDS, RESETS, TABLES, TURNS
from make_drift_cases import CASES
from test_drift import by_key, checked, edit, frame_of, look, make, run

NO_TURNS, NO_GUARDS = TURNS.empty(), GUARDS.empty()
GHOST_COLUMNS = ["run_id", "first_step", "last_step", "reason", "length", "count_steps"]
CHASE_COLUMNS = ["run_id", "first_step", "last_step", "length", "depth"]

step_values = st.tuples(
    st.sampled_from(["read"] * 6 + ["plan"] * 3 + ["edit", "research", "wait", "execute", "verify"]),
    st.sampled_from(["success"] * 8 + ["failure", "unknown", "vetoed", "vetoed"]),
    st.sampled_from(["f1"] * 8 + ["f2", "f3", "f4"]),
    st.sampled_from(["a"] * 4 + ["b", "https://x.test/y", ""]),
    st.sampled_from(["T", "U"]),
    st.sampled_from([0, 1, 1, 1]),
    st.sampled_from([None, True, True, False]),
    st.sampled_from([None, None, "a", "b"]),
    st.sampled_from(["agent"] * 12 + ["user"]),
    st.one_of(st.none(), st.integers(0, 30)),
    st.sampled_from(["table", "command", "none"]),
)
guard_values = st.tuples(
    st.sampled_from(["g", "h", None]),
    st.sampled_from(["raise", "reset", "override", "block", "block", "expire"]),
    st.sampled_from([None, 0, 0, 1, 3]),
    st.sampled_from([None, 2, 3, 4]),
    st.integers(-1, 40),
    st.sampled_from([None, None, 5]),
    st.one_of(st.none(), st.integers(0, 1000)),
)
run_values = st.tuples(
    st.one_of(st.lists(step_values, max_size=8), st.lists(step_values, min_size=10, max_size=45)),
    st.booleans(),
    st.lists(guard_values, max_size=6),
)


def build(
    values: list[Any],
) -> tuple[list[tuple[list[dict[str, Any]], list[dict[str, Any]]]], pl.DataFrame, pl.DataFrame]:
    """Runs with their guards as plain rows, and as frames."""
    plain: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = []
    for number, (steps, has_cycles, records) in enumerate(values):
        decision, clock, rows = 0, 0, []
        for place, (kind, outcome, fingerprint, target, tool, turn, cut, overflow, actor, gap, source) in enumerate(
            steps
        ):
            decision += turn
            clock += (gap or 0) * 1_000_000
            rows.append(
                make(
                    f"run-{number}",
                    place,
                    kind,
                    outcome,
                    fingerprint,
                    target,
                    "r",
                    actor,
                    tool=tool,
                    decision=decision,
                    is_truncated=cut,
                    overflow_path=overflow,
                    ts=None if gap is None else clock,
                    kind_source=source,
                    cycle=str(decision // 2) if has_cycles and place % 7 else None,
                )
            )
        guards = []
        for place, (name, event, counter, tier, step, ttl_s, at) in enumerate(sorted(records, key=lambda r: r[4])):
            guards.append(
                {
                    "session_id": f"run-{number}",
                    "run_id": f"run-{number}",
                    "guard": place,
                    "name": name,
                    "event": event,
                    "counter": counter,
                    "tier": tier,
                    "step": None if step < 0 else min(step, len(rows) - 1) if rows else None,
                    "ttl_s": ttl_s,
                    "ts": None if at is None else at * 1_000_000,
                    "source_file": "f",
                    "source_line": place,
                }
            )
        plain.append((rows, guards))
    return (
        plain,
        frame_of([row for rows, _ in plain for row in rows]),
        guard_frame([g for _, guards in plain for g in guards]),
    )


def guard_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = {name: (pl.Int64() if isinstance(dtype, pl.Datetime) else dtype) for name, dtype in GUARDS.schema.items()}
    return GUARDS.conform(
        pl.DataFrame(rows, schema=schema).with_columns(pl.from_epoch("ts", "us").dt.replace_time_zone("UTC"))
    )


def check(plain: list[Any], steps: pl.DataFrame, guards: pl.DataFrame) -> None:
    expected = [row for rows, mine in plain for row in oracle.ghosts(rows, bool(mine))]
    assert by_key(audits.ghosts(steps, guards, NO_TURNS), GHOST_COLUMNS) == by_key(expected, GHOST_COLUMNS)
    expected = [row for rows, _ in plain for row in oracle.chases(rows)]
    assert by_key(audits.chases(steps, NO_TURNS), CHASE_COLUMNS) == by_key(expected, CHASE_COLUMNS)
    found = audits.bypasses(steps, guards, NO_TURNS).select("run_id", "first_step", "last_step", "reason").rows()
    assert sorted(found) == sorted(
        (rows[0]["run_id"], *way) for rows, mine in plain if rows for way in oracle.bypasses(rows, mine)
    )
    found = (
        audits.resets(drift.world(steps), guards, NO_TURNS)
        .select("run_id", "guard", "reason", "length", "counter_before")
        .rows()
    )
    assert sorted(found) == sorted(
        (mine[0]["run_id"], r["guard"], r["reason"], r["length"], r["counter_before"])
        for rows, mine in plain
        if mine
        for r in oracle.resets(rows, mine)
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(run_values, min_size=1, max_size=5))
def test_stages_equal_the_plain_walk(values: list[Any]) -> None:
    check(*build(values))


def test_stages_equal_the_plain_walk_on_all_real_logs(corpus: Any) -> None:
    from corpus_lake import corpus_tables

    tables = corpus_tables()
    steps = tables["steps"]
    assert corpus.is_dir()
    plain = [(part.sort("step").to_dicts(), []) for part in steps.partition_by("run_id")]
    check(plain, steps, tables["guards"])


# --- ghosts -----------------------------------------------------------------------------------------------------------


def ghosts(steps: list[dict[str, Any]], guards: pl.DataFrame = NO_GUARDS) -> list[tuple[int, int, int, str]]:
    rows = audits.ghosts(frame_of(steps), guards, NO_TURNS).to_dicts()
    return [(r["first_step"], r["last_step"], r["length"], r["reason"]) for r in rows]


def guard(event: str, number: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "session_id": "r",
        "run_id": "r",
        "guard": number,
        "name": "loop-guard",
        "event": event,
        "counter": None,
        "tier": None,
        "by": None,
        "ttl_s": None,
        "step": None,
        "ts": None,
        "source_file": "f",
        "source_line": number,
    } | more


def test_eight_turns_with_two_new_prints_are_ghosts_and_seven_or_three_new_prints_are_not() -> None:
    churn = [{"kind": "plan", "fingerprint": "todo" if n % 2 else "done"} for n in range(8)]
    assert ghosts(run(*churn)) == [(0, 7, 8, "streak")]
    assert ghosts(run(*churn[:7])) == []
    assert ghosts(run({"kind": "plan", "fingerprint": "third"}, *churn[:7])) == []
    assert ghosts(run(*churn[:4], {"kind": "execute", "fingerprint": "x"}, *churn[:4])) == [], (
        "an attempt stands between"
    )
    assert ghosts(run(*[{"kind": "wait", "fingerprint": "poll"}] * 50)) == [], "waiting is no ghost"


def test_case_21_plans_and_compactions_for_hundreds_of_turns() -> None:
    rows = run(*[{"kind": "plan", "fingerprint": ("plan", "compact")[n % 2]} for n in range(217)])
    assert ghosts(rows) == [(0, 216, 217, "streak")]


def test_where_a_log_has_cycles_every_cycle_without_an_attempt_or_research_is_one() -> None:
    rows = run(
        look("a", cycle="1"),
        look("b", cycle="1"),
        look("c", cycle="2"),
        {"kind": "research", "fingerprint": "s", "cycle": "2"},
        look("d", cycle="3"),
    )
    assert ghosts(rows) == [(0, 1, 1, "cycle"), (4, 4, 1, "cycle")]
    assert ghosts(run(look("a"), edit("e"), look("b")), guard_frame([guard("raise")])) == [
        (0, 0, 1, "guard"),
        (2, 2, 1, "guard"),
    ]


# --- chases -----------------------------------------------------------------------------------------------------------


def test_a_chase_needs_an_overflow_read_and_truncated_again() -> None:
    first = {"kind": "execute", "is_truncated": True, "overflow_path": "/tmp/out-1.txt"}
    second = look("cat 1", target="<tmp>/out-1.txt", is_truncated=True, overflow_path="/tmp/out-2.txt")
    third = look("cat 2", target="<tmp>/out-2.txt", is_truncated=True)
    rows = audits.chases(frame_of(run(first, look("x"), second, third)), NO_TURNS).to_dicts()
    assert [(r["first_step"], r["last_step"], r["length"], r["depth"]) for r in rows] == [(0, 3, 2, 2)]
    whole = second | {"is_truncated": False}
    assert audits.chases(frame_of(run(first, whole)), NO_TURNS).height == 0, "the rest was read whole"
    assert audits.chases(frame_of(run(second, first)), NO_TURNS).height == 0, "not written yet"
    relative = first | {"overflow_path": "/home/ada/shop/logs/out.txt"}
    here = look("cat", target="logs/out.txt", is_truncated=True)
    assert audits.chases(frame_of(run(relative, here)), NO_TURNS).height == 1
    assert audits.chases(frame_of(run(relative, here | {"target": "gs/out.txt"})), NO_TURNS).height == 0, (
        "whole names only"
    )


# --- bypasses ---------------------------------------------------------------------------------------------------------


def ways(steps: list[dict[str, Any]], *records: dict[str, Any]) -> list[tuple[int, int, str]]:
    rows = audits.bypasses(frame_of(steps), guard_frame(list(records)), NO_TURNS)
    return sorted(rows.select("first_step", "last_step", "reason").rows())


def test_a_refused_step_done_by_another_tool() -> None:
    refused = edit("e", "a.py", outcome="vetoed", reason="user", tool="Edit")
    assert ways(run(refused, edit("sed", "a.py", tool="Bash"))) == [(0, 1, "done")]
    assert ways(run(refused, edit("e", "a.py", tool="Edit"))) == [], "the same tool asked again"
    assert ways(run(refused, edit("sed", "b.py", tool="Bash"))) == []
    assert ways(run(refused, edit("sed", "a.py", tool="Bash", outcome="failure"))) == []
    assert ways(run(edit("sed", "a.py", tool="Bash"), refused)) == []
    assert ways(run(refused, look("r", target="a.py", tool="Read"))) == [(0, 1, "looked")]
    assert ways(run(refused | {"target": ""}, {"kind": "execute", "target": "", "tool": "Bash"})) == [], (
        "no target is no common target"
    )


def test_research_in_other_clothes_while_a_block_is_active() -> None:
    curl = {"kind": "research", "kind_source": "command", "target": "https://a.test", "tool": "exec"}
    block = guard("block", tier=3, step=0)
    assert ways(run(look("a"), curl), block) == [(1, 1, "clothes")]
    assert ways(run(curl, look("a")), block) == [], "before the block"
    assert ways(run(look("a"), curl | {"outcome": "failure"}), block) == []
    assert ways(run(look("a"), curl | {"kind_source": "table", "tool": "WebFetch"}), block) == [(1, 1, "open")]
    assert ways(run(look("a"), {"kind": "execute", "target": "https://a.test"}), block) == [(1, 1, "clothes")]
    assert ways(run(look("a"), curl), block | {"tier": 2}) == [], "a lower tier blocks no research"
    assert ways(run(look("a"), look("b"), curl), block, guard("expire", 1, step=1)) == []
    late = [make("r", n, **step) | {"ts": at} for n, (step, at) in enumerate([(look("a"), 0), (curl, 61_000_000)])]
    assert ways(late, block | {"ts": 0, "ttl_s": 60}) == [], "its time to live is over"
    assert ways(late, block | {"ts": 0, "ttl_s": 61}) == [(1, 1, "clothes")]
    assert ways(late, block | {"ts": 0, "ttl_s": 2**63 - 1}) == [(1, 1, "clothes")]
    assert ways(late, block | {"ts": 0, "ttl_s": -(2**63)}) == []


# --- resets -----------------------------------------------------------------------------------------------------------


def test_a_reset_over_unproductive_steps() -> None:
    raised = guard("raise", 0, counter=3, step=0)

    def reasons(*steps: dict[str, Any], **more: Any) -> list[str]:
        rows = run(checked("m"), *steps)
        back = guard("reset", 1, counter=0, step=len(rows) - 1) | more
        return audits.resets(drift.world(frame_of(rows)), guard_frame([raised, back]), NO_TURNS)["reason"].to_list()

    assert reasons(look("a"), look("b")) == ["unproductive"]
    assert reasons(look("a"), edit("e")) == ["productive"]
    assert reasons(checked("other")) == ["productive"]
    assert reasons(checked("m")) == ["unproductive"]
    assert reasons({"kind": "execute", "fingerprint": "x"}) == ["unknown"], "what it did is not seen in a derived state"
    assert reasons(edit("e", outcome="failure")) == ["unproductive"]
    assert reasons(look("a"), counter=2) == [], "not back to zero"
    assert reasons(look("a"), event="raise") == ["unproductive"], "the counter fell, whatever the record is called"


# --- the audit --------------------------------------------------------------------------------------------------------


def audit_of(steps: list[dict[str, Any]], *records: dict[str, Any], **more: pl.DataFrame) -> dict[str, tuple[int, int]]:
    frame, guards = drift.world(frame_of(steps)), guard_frame(list(records))
    tables = (
        {name: table.empty() for name, table in TABLES.items()}
        | {
            "steps": frame,
            "guards": guards,
            "resets": audits.resets(frame, guards, NO_TURNS),
            "bypasses": audits.bypasses(frame, guards, NO_TURNS),
        }
        | more
    )
    lines = audits.audit(tables).lines()
    assert lines["finding"].to_list() == [f.name for f in audits.FINDINGS]
    return {name: (x, n) for name, x, n in lines.select("finding", "x", "n").iter_rows()}


def test_overrides_of_tier_3_and_by_a_state_that_is_over() -> None:
    block = guard("block", 1, name="research", tier=3, ts=1_000_000, ttl_s=600)
    chance = guard("raise", 0, name="opportunity", tier=1, ts=0, ttl_s=60)
    lifted = guard("override", 2, name="research", by="opportunity", ts=50_000_000, ttl_s=60)
    lines = audit_of(run(look("a")), chance, block, lifted)
    assert (
        lines["override tier 3"] == (1, 1)
        and lines["override stale"] == (0, 1)
        and lines["state without end"] == (0, 3)
    )
    lines = audit_of(run(look("a")), chance, block | {"tier": 2}, lifted | {"ts": 61_000_000, "ttl_s": None})
    assert (
        lines["override tier 3"] == (0, 1)
        and lines["override stale"] == (1, 1)
        and lines["state without end"] == (1, 3)
    )
    gone = audit_of(run(look("a")), block | {"ttl_s": 10}, lifted)
    assert gone["override tier 3"] == (0, 1), "the block had ended by itself"


def test_case_22_an_override_is_named_with_who_did_it(tmp_path: Path) -> None:
    ingest(tmp_path / "lake", CASES / "22-override.jsonl", settings=Settings())
    tables = tables_of(tmp_path / "lake")
    done = audits.audit(tables)
    rows = done.rows.filter(pl.col("finding") == "override").select("session_id", "detail").rows()
    assert rows == [
        ("always-allow", "loop-guard by user"),
        ("always-allow-on-two-targets", "loop-guard by model"),
    ]
    assert done.cases["override"] == (2, 3)
    again = tables["loops"].filter(pl.col("run_id") == "always-allow-on-two-targets")
    assert again["outcome"].to_list() == ["recurred"] and again["steps_to_outcome"].to_list() == [3]


def test_repairs_that_fail_and_guards_that_fall_silent() -> None:
    heals = [guard("heal_failed", n, name="self-repair", by="bad key", ts=n * 3_600_000_000) for n in range(5)]
    rows = [make("r", 0, **look("a")) | {"ts": 0}, make("r", 1, **look("b")) | {"ts": 30 * 3_600_000_000}]
    lines = audit_of(rows, *heals)
    assert lines["heal failed"] == (5, 5)
    assert lines["guard fell silent"] == (1, 1), "26 hours after the last of its hourly records"
    assert audit_of(rows[:1], *heals)["guard fell silent"] == (0, 1)
    assert audit_of(rows, *heals[:2])["guard fell silent"] == (0, 0), "one gap is no interval"


def test_a_counter_reset_is_counted_with_all_resets() -> None:
    records = [
        guard("raise", 0, counter=2, step=0),
        guard("reset", 1, counter=0, step=1),
        guard("raise", 2, counter=2, step=2),
        guard("reset", 3, counter=0, step=3),
    ]
    lines = audit_of(run(checked("m"), look("a"), look("b"), edit("e")), *records)
    assert lines["clean-reset/1"] == (1, 2)
    assert RESETS.key == ("session_id", "guard")
