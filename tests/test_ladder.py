"""The ladder of four tiers: each rule of a policy by itself, both packaged policies on 272 cycles, bad policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from loopstats import drift, ladder
from loopstats.errors import UsageError
from loopstats.tables import TURNS
from test_audits import guard, guard_frame
from test_drift import edit, frame_of, look, make

BASE = """
[tiers]
warn = 1
warn_harder = 2
block_research = 3
hand_over = 5
[reset]
by = "productive"
[ttl_s]
tier_1 = 100
tier_2 = 100
tier_3 = 100
tier_4 = 100
override = 100
[precedence]
override_lifts_up_to = 2
[special]
guards = ["chance"]
[classes]
by = "kind"
"""


def policy(tmp_path: Path, text: str = BASE) -> ladder.Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return ladder.load(path)


def replay(
    one: ladder.Policy, *steps: dict[str, Any], guards: tuple[dict[str, Any], ...] = (), gap_s: int = 10
) -> ladder.Replay:
    rows = [make("r", n, **step) | {"ts": n * gap_s * 1_000_000} for n, step in enumerate(steps)]
    turns = TURNS.conform(
        pl.DataFrame(
            {
                "session_id": ["r"] * len(rows),
                "run_id": ["r"] * len(rows),
                "decision": range(len(rows)),
                "tokens_output": [10] * len(rows),
                "cost_micros": [7] * len(rows),
            }
        )
    )
    return ladder.replay(one, drift.world(frame_of(rows)), guard_frame(list(guards)), turns)


def fired(done: ladder.Replay) -> dict[int, int]:
    """Tier to the step at which it fired first."""
    return dict(done.tiers.select("tier", "first_step").iter_rows())


def test_tiers_fire_at_their_thresholds_and_tell_what_was_still_to_come(tmp_path: Path) -> None:
    done = replay(policy(tmp_path), *[look("a")] * 6)
    assert fired(done) == {1: 0, 2: 1, 3: 2, 4: 4}
    block = done.tier_rows()[2]
    assert (block["runs_fired"], block["n_runs"], block["count_cleared"], block["runs_in_log"]) == (1, 1, 0, 0)
    assert (block["steps_left"], block["tokens_left"], block["cost_left_micros"], block["n_priced"]) == (3, 30, 21, 1)
    assert fired(replay(policy(tmp_path), *[look("a")] * 4)) == {1: 0, 2: 1, 3: 2}
    assert done.named() == []


def test_only_a_productive_cycle_resets_unless_the_policy_says_otherwise(tmp_path: Path) -> None:
    steps = [look("a"), look("b"), edit("e"), look("c"), look("d")]
    done = replay(policy(tmp_path), *steps)
    assert fired(done) == {1: 0, 2: 1} and done.tier_rows()[1]["cleared_first_by"] == "productive 1"
    assert done.faults["reset_by_unproductive"].n == 1 and done.named() == []
    loose = policy(tmp_path, BASE.replace('by = "productive"', 'by = "success"'))
    done = replay(loose, look("a", outcome="failure"), *steps)
    assert fired(done) == {1: 0} and done.named() == ["reset_by_unproductive"]
    done = replay(loose, {"kind": "execute", "outcome": "failure"}, {"kind": "execute"})
    assert done.named() == [], "what it did is not known: no proof of a fault"


def test_states_end_with_their_time_to_live(tmp_path: Path) -> None:
    done = replay(policy(tmp_path), *[look("a")] * 8, gap_s=101)
    assert fired(done) == {1: 0} and done.tier_rows()[0]["cleared_first_by"] == "expired 1"
    endless = policy(tmp_path, BASE.replace("tier_1 = 100\n", ""))
    assert fired(replay(endless, *[look("a")] * 3, gap_s=90)) == {1: 0, 2: 1, 3: 2}
    assert replay(endless, look("a")).named() == ["state_without_end"]


def test_a_lower_rule_lifts_no_tier_3_unless_the_policy_is_wrong(tmp_path: Path) -> None:
    chance = guard("raise", name="chance", step=None)
    done = replay(policy(tmp_path), *[look("a")] * 4, guards=(chance,))
    assert [row["count_lifted"] for row in done.tier_rows()] == [1, 1, 0, 0] and done.named() == []
    wrong = policy(tmp_path, BASE.replace("up_to = 2", "up_to = 4"))
    done = replay(wrong, *[look("a")] * 4, guards=(chance,))
    assert done.named() == ["override_beats_tier_3"] and done.tier_rows()[2]["count_lifted"] == 2
    done = replay(wrong, *[look("a")] * 4, guards=(chance,), gap_s=60)
    assert done.named() == [], "the override had ended before tier 3"


def test_what_the_policy_does_not_see(tmp_path: Path) -> None:
    blind = policy(tmp_path, BASE.replace('by = "kind"', 'by = "tool"\nresearch = ["WebFetch"]\nwork = ["exec"]'))
    curl = {"kind": "research", "kind_source": "command", "tool": "exec"}
    done = replay(blind, curl, curl | {"tool": "WebFetch"}, look("a", tool="radar"))
    assert done.named() == ["tool_without_class", "cycle_not_seen", "block_with_bypass"]
    assert (done.faults["block_with_bypass"].x, done.faults["block_with_bypass"].n) == (1, 2)
    assert done.tools_without_class == {"radar": 1}
    assert fired(done) == {1: 0, 2: 1}, "the third cycle was not seen"


def test_every_cycle_special_from_nine_in_ten_on(tmp_path: Path) -> None:
    always = policy(tmp_path, BASE.replace('guards = ["chance"]', 'kinds = ["read"]'))
    edits = [edit(f"e{n}") for n in range(3)]
    assert "every_cycle_special" in replay(always, *[look("a")] * 18, *edits[:2]).named()
    assert "every_cycle_special" not in replay(always, *[look("a")] * 18, *edits).named()


def test_the_replay_of_272_cycles_names_each_fault(story: dict[str, pl.DataFrame]) -> None:
    done = ladder.replay(ladder.load(Path("faulty")), story["steps"], story["guards"], story["turns"])
    assert done.count_cycles == 272
    assert done.named() == [
        "reset_by_unproductive",
        "tool_without_class",
        "block_with_bypass",
        "override_beats_tier_3",
        "override_outlived",
        "every_cycle_special",
        "state_without_end",
        "repair_failed",
    ]
    assert sorted(done.tools_without_class) == ["pulse_note", "radar_sweep"]
    repairs = done.faults["repair_failed"]
    assert repairs.x == repairs.n == 23
    assert fired(done)[1] > 300, "two reads a cycle kept even the first tier away until the cycles that read once"


def test_the_careful_policy_has_none_of_them_and_hands_over_on_the_second_day(story: dict[str, pl.DataFrame]) -> None:
    done = ladder.replay(ladder.load(Path("careful")), story["steps"], story["guards"], story["turns"])
    assert done.named() == ["repair_failed"], "that one is the log's, not the policy's"
    first = done.tiers.filter(pl.col("tier") == 4).row(0, named=True)
    steps = story["steps"].filter(pl.col("step") == first["first_step"])
    assert steps["cycle"].to_list() == ["c12"]
    last = done.tier_rows()[3]
    assert last["steps_left"] > 1_000 and last["tokens_left"] > 0.9 * story["runs"]["tokens"][0]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    from test_stories import tables_of_story

    return tables_of_story("drift-272-cycles.jsonl", tmp_path_factory.mktemp("story"))


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ("warn = 1", "tiers.warn"),
        ("hand_over = 5", "hand_over"),
        ('by = "productive"', "reset.by"),
        ("tier_1 = 100", "ttl_s.tier_1"),
        ('guards = ["chance"]', "special.guards"),
        ('by = "kind"', "classes"),
        ("[precedence]", "precedence"),
    ],
)
def test_a_wrong_policy_is_named_with_the_mend(tmp_path: Path, wrong: str, names: str) -> None:
    mends = {
        "warn = 1": "warn = true",
        "hand_over = 5": "hand_over = 3",
        'by = "productive"': 'by = "magic"',
        "tier_1 = 100": "tier_1 = -1",
        'guards = ["chance"]': "guards = 7",
        'by = "kind"': 'by = "luck"',
        "[precedence]": "[precedences]",
    }
    with pytest.raises(UsageError, match=names):
        policy(tmp_path, BASE.replace(wrong, mends[wrong], 1))


def test_no_such_policy_and_no_toml(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="careful, faulty"):
        ladder.load(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="not valid TOML"):
        policy(tmp_path, "= 3")
