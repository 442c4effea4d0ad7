"""The simulations: what is planted comes back, arms under other salts are the readout's, power is the reference's.

Names R25 and R26 are reference values of the statistical specification. Chance enters by seed alone; where a share of a
simulation is held against a truth, the room is more than four standard errors.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from loopstats import cli, estimate, rule, run, simulate
from loopstats import intervals as iv
from loopstats.config import Experiment, Settings
from loopstats.errors import NothingError, UsageError
from loopstats.simulate import World
from loopstats.store import Lake
from loopstats.tables import DELIVERIES, DETECTIONS, LOOPS
from test_estimate import AS_OF, START, loop, sessions_of, table_of, us

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Call:
    """One command in a folder and a home of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str) -> tuple[int, str, str]:
        code = cli.run_command(list(arguments))
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return command


def plain_loops(sessions: int, each: int) -> list[dict[str, Any]]:
    """`each` loops in every session; in a third of the sessions all of them broke, elsewhere every other one."""
    return [
        loop(n := session * each + i, f"s{session:04d}", None, "broke" if n % 2 or session % 3 == 0 else "recurred")
        for session in range(sessions)
        for i in range(each)
    ]


def aa_of(rows: list[dict[str, Any]], **asked: Any) -> dict[str, dict[str, Any]]:
    """The measures of an A/A simulation by name."""
    frame = simulate.aa(table_of(rows), **{"salts": 50, "seed": 7, "as_of_us": us(AS_OF)} | asked)
    return {row["measure"]: row for row in frame.iter_rows(named=True)}


# --- A/A -------------------------------------------------------------------------------------------------------------


def test_every_other_salt_gives_the_intervals_of_the_readout() -> None:
    rows = plain_loops(40, 2)
    wanted: Counter[str] = Counter()
    for number in range(12):
        salt = f"aa-7-{number}"
        points = [rule.arm_bp(salt, row["run_id"], row["signature"]) for row in rows]
        drawn = [
            row | {"arm": rule.arm_of(bp), "arm_bp": bp, "salt_id": rule.salt_id(salt)}
            for row, bp in zip(rows, points, strict=True)
        ]
        settings = Settings({"hint": Experiment("hint", salt, 5000, 100)})
        found = estimate.lift(
            table_of(drawn), sessions_of(drawn), DETECTIONS.empty(), DELIVERIES.empty(), settings, as_of_us=us(AS_OF)
        ).scope("to_date")
        assert found is not None
        fixed, anytime = found.headline.ci_fixed, found.headline.ci_anytime
        assert fixed is not None and anytime is not None
        wanted["fixed_covers_0"] += fixed[0] <= 0 <= fixed[1]
        wanted["anytime_covers_0"] += anytime[0] <= 0 <= anytime[1]
        wanted["helps"] += found.verdict == "helps"
        wanted["harms"] += found.verdict == "harms"
    got = aa_of(rows, salts=12, n_star=100)
    assert {name: got[name]["count"] for name in wanted} == dict(wanted)
    assert [got[name]["n"] for name in wanted] == [12] * 4


def test_zero_is_covered_and_a_share_has_its_n_and_interval() -> None:
    got = aa_of(plain_loops(60, 3), salts=300)
    assert got["fixed_covers_0"]["high"] >= 0.95, "the fixed interval misses 0 too often over the salts"
    assert got["helps"]["count"] + got["harms"]["count"] <= got["anytime_covers_0"]["n"] * 0.05
    for row in got.values():
        assert row["share"] == row["count"] / row["n"]
        assert (row["low"], row["high"]) == iv.wilson(row["count"], row["n"])
        assert (row["count_loops"], row["count_sessions"]) == (180, 60)
    assert got["withheld"]["count"] == 0


def test_a_broken_instrument_is_seen() -> None:
    # Control: sessions that are all-or-nothing, with the interval that knows no clusters, would cover 0 too rarely.
    rows = [loop(i, f"s{i // 12:04d}", None, "broke" if i // 12 % 2 else "recurred") for i in range(240)]
    misses = 0
    for number in range(200):
        arms = [rule.arm_bp(f"run-{number}", row["session_id"], "") < 5000 for row in rows]
        x1 = sum(arm and row["outcome"] == "broke" for arm, row in zip(arms, rows, strict=True))
        x0 = sum(not arm and row["outcome"] == "broke" for arm, row in zip(arms, rows, strict=True))
        if 0 < sum(arms) < 240:
            low, high = iv.newcombe(x1, sum(arms), x0, 240 - sum(arms))
            misses += not low <= 0 <= high
    assert misses > 60
    # The loops' own assignment is drawn loop by loop, within sessions too, and keeps its level.
    assert aa_of(rows, salts=200)["fixed_covers_0"]["share"] >= 0.9


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    rows = plain_loops(30, 2)
    assert aa_of(rows) == aa_of(list(reversed(rows)))
    shares = [aa_of(rows, seed=seed)["fixed_covers_0"]["count"] for seed in range(8)]
    assert len(set(shares)) > 1


def test_pending_repeat_and_doubled_loops_are_left_out() -> None:
    rows = plain_loops(10, 2)
    young = loop(900, "young", None, detected_at=AS_OF - timedelta(hours=1))
    later = loop(901, "later", None, detected_at=AS_OF + timedelta(hours=1))
    doubled = rows[0] | {"is_enrolled": False, "outcome": "recurred"}
    repeat = rows[1] | {"rule": "repeat/1"}
    got = aa_of([*rows, young, later, doubled, repeat])
    assert got["helps"]["count_loops"] == 20
    assert got == aa_of(rows)


def test_few_loops_are_withheld_and_none_is_nothing() -> None:
    got = aa_of(plain_loops(4, 1), salts=20)
    assert got["withheld"]["count"] == 20
    assert (got["fixed_covers_0"]["n"], got["fixed_covers_0"]["share"], got["fixed_covers_0"]["low"]) == (0, None, None)
    with pytest.raises(NothingError):
        simulate.aa(LOOPS.empty(), salts=3, seed=1, as_of_us=us(START))
    with pytest.raises(UsageError, match="--salts"):
        simulate.aa(LOOPS.empty(), salts=0, seed=1, as_of_us=us(START))


# --- planted ---------------------------------------------------------------------------------------------------------

EVERYTHING = World(
    seed=5,
    lift=0.2,
    base=0.35,
    loops=301,
    loops_per_session=4,
    share_bp=6000,
    icc=0.3,
    attrition=0.1,
    attrition_treated=0.2,
    noncompliance=0.15,
    interference=0.5,
    late=0.1,
    maturity_hours=3.0,
)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_world_gives_the_same_bytes(tmp_path: Path) -> None:
    simulate.plant(EVERYTHING, tmp_path / "a")
    simulate.plant(EVERYTHING, tmp_path / "b")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    simulate.plant(World(seed=6), tmp_path / "c")
    simulate.plant(World(seed=7), tmp_path / "d")
    assert files_of(tmp_path / "c")["logs/planted-00000.jsonl"] != files_of(tmp_path / "d")["logs/planted-00000.jsonl"]
    assert files_of(tmp_path / "a").keys() == {"logs/planted-00000.jsonl", "truth.json", "loopstats.toml"}
    with pytest.raises(UsageError, match="not empty"):
        simulate.plant(EVERYTHING, tmp_path / "a")


@pytest.mark.parametrize("world", [World(seed=2, loops=90), EVERYTHING], ids=["plain", "everything"])
def test_the_whole_line_reads_what_was_planted(world: World, tmp_path: Path) -> None:
    readout, frame = simulate.planted(world, tmp_path / "kept")
    truth = json.loads((tmp_path / "kept" / "truth.json").read_text(encoding="utf-8"))
    found = readout.scope("to_date", "planted")
    assert found is not None
    for i, (arm, rate) in enumerate((("treated", found.headline.treated), ("holdout", found.headline.holdout))):
        told = truth["planted"][arm]
        assert (rate.x, rate.n) == (told["broke"], sum(told.values()))
        assert (found.recurred[i], found.unresolved[i]) == (told["recurred"], told["unresolved"])
    assert found.headline.treated.n + found.headline.holdout.n == world.loops
    checks = readout.audit.of("planted")
    assert checks.failures == () and checks.n_checked > 0 and checks.n_unchecked == 0
    assert [rate.x for _, rate in (*checks.only_log, *checks.only_replay)] == [0, 0, 0, 0]
    rows = {row["quantity"]: row for row in frame.iter_rows(named=True)}
    assert rows["lift, one look"]["truth"] == truth["expected"]["lift"]
    assert rows["lift, one look"]["estimate"] == found.headline.lift
    assert abs(rows["lift, one look"]["estimate"] - rows["lift, one look"]["truth"]) < 0.3
    assert rows["delivered_treated"]["n_treated"] == found.headline.treated.n
    assert rows["lift, nightly"]["note"] == found.verdict


def test_a_line_that_reads_something_else_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = simulate.plant

    def with_other_counts(world: World, folder: Path) -> simulate.Planted:
        made = plant(world, folder)
        made.counts["treated"]["broke"] += 1
        return made

    monkeypatch.setattr(simulate, "plant", with_other_counts)
    with pytest.raises(simulate.MismatchError) as caught:
        simulate.planted(World(seed=1, loops=20))
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"icc": 0.5},
        {"noncompliance": 0.4},
        {"interference": 0.7, "loops_per_session": 5},
        {"late": 0.3},
        {"attrition": 0.2, "attrition_treated": 0.5},
        {"share_bp": 9000, "lift": -0.3},
    ],
    ids=str,
)
def test_the_written_truth_is_the_mean_over_many_seeds(options: dict[str, Any], tmp_path: Path) -> None:
    total = {arm: Counter[str]() for arm in simulate.ARMS}
    for seed in range(12):
        world = World(seed=seed, **options)
        for arm, told in simulate.plant(world, tmp_path / str(seed)).counts.items():
            total[arm].update(told)
    expected = World(seed=0, **options).expected()
    for arm, told in total.items():
        n = sum(told.values())
        deff = 1 + 4 * options.get("icc", 0)
        for word, key in (("broke", f"rate_{arm}"), ("unresolved", f"unresolved_{arm}")):
            p = expected[key]
            assert p is not None
            room = 4.5 * math.sqrt(deff * max(p * (1 - p), 1e-9) / n) + 1e-9
            assert abs(told[word] / n - p) <= room, f"{arm} {word}: {told[word]}/{n} against {p}"


def test_expected_values_by_hand() -> None:
    # Two loops a session, half treated: only the second can come after a treated one, with chance one half.
    reached = World(seed=1, lift=0.2, base=0.4, loops=4, loops_per_session=2, interference=0.5).expected()
    assert reached["rate_holdout"] == pytest.approx(0.4 + 0.5 * 0.2 * 0.5 / 2)
    assert reached["rate_treated"] == pytest.approx(0.6)
    assert reached["first_loop_only"] == pytest.approx(0.2)
    assert reached["effect_of_delivery"] is None
    # The example of the specification: nothing helps, but a fifth of the treated loops that would recur end early.
    lost = World(seed=1, lift=0.0, base=0.5, attrition_treated=0.2).expected()
    assert lost["lift"] == 0
    assert lost["resolved_only"] == pytest.approx(0.5 / 0.9 - 0.5)


def test_sessions_are_correlated_as_told(tmp_path: Path) -> None:
    settings = World(seed=3, lift=0.0, base=0.5, loops=500, loops_per_session=2, icc=0.6)
    made = simulate.plant(settings, tmp_path / "logs")
    lake = Lake(tmp_path / "lake")
    run.ingest(lake, [str(made.logs)], settings.settings)
    loops = lake.snapshot().read("loops").filter(pl.col("rule") == rule.STRATEGY_LOOP)
    pairs = loops.group_by("session_id").agg(pl.len().alias("n"), (pl.col("outcome") == "broke").sum().alias("broke"))
    alike = pairs.filter((pl.col("n") == 2) & (pl.col("broke") != 1)).height
    count = pairs.filter(pl.col("n") == 2).height
    # Two loops agree with chance 1/2 + icc/2 where half of all break.
    assert abs(alike / count - 0.8) < 4.5 * math.sqrt(0.8 * 0.2 / count)


@pytest.mark.parametrize(
    "options",
    [
        {"base": 1.2},
        {"base": 0.9, "lift": 0.2},
        {"loops": 0},
        {"loops_per_session": 0},
        {"loops_per_session": 99},
        {"nights": 0},
        {"share_bp": 0},
        {"share_bp": 10_000},
        {"n_star": 3},
        {"maturity_hours": 0.01},
        {"icc": -0.1},
        {"late": math.nan},
    ],
    ids=str,
)
def test_impossible_worlds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--"):
        World(seed=1, **options)


# --- power -----------------------------------------------------------------------------------------------------------


def power_row(n: int, **asked: Any) -> dict[str, Any]:
    return simulate.power([n], **{"base": 0.3, "lift": 0.2} | asked).row(0, named=True)


def test_power_has_the_reference_values() -> None:
    row = power_row(186)
    assert row["power_fixed"] == pytest.approx(0.799098, abs=1e-6), "R25, exact, 93 v 93"
    assert (row["method"], row["n_treated"], row["n_holdout"]) == ("exact", 93, 93)
    assert row["mde_fixed"] == pytest.approx(0.199999, abs=1e-6), "R26"
    assert row["n_needed_fixed"] == math.ceil(2 * 92.998845), "R25, sample size"
    assert row["n_needed_anytime"] == math.ceil(2 * 92.998845 * 1.914899), "R25, inflated for the nightly interval"
    uneven = power_row(250, share_bp=8000)
    assert uneven["power_fixed"] == pytest.approx(0.742210, abs=1e-6), "R25, exact, 200 v 50"
    large = power_row(500, base=0.5, lift=0.1, share_bp=9000, deff=1.0000001)
    assert (large["method"], large["n_treated"]) == ("normal", 450)
    assert large["power_fixed"] == pytest.approx(0.278965, abs=1e-5), "R25, 450 v 50"


def test_the_nightly_interval_costs_power_and_larger_n_brings_it_back() -> None:
    rows = [power_row(n) for n in (100, 200, 400, 600, 1200)]
    assert all(row["power_anytime"] < row["power_fixed"] and row["mde_anytime"] > row["mde_fixed"] for row in rows)
    assert [row["power_anytime"] for row in rows] == sorted(row["power_anytime"] for row in rows)
    assert [row["method"] for row in rows] == ["exact"] * 3 + ["normal"] * 2
    assert power_row(200, lift=0.0)["power_fixed"] < 0.07 and power_row(200, lift=0.0)["n_needed_fixed"] is None
    assert power_row(20, n_star=1_000_000)["power_anytime"] is None, "no level stands for so wide a multiplier"


def test_nights_need_a_pace() -> None:
    assert (power_row(100)["nights"], power_row(100)["nights_to_n_star"]) == (None, None)
    row = power_row(100, loops_per_night=7.0, n_star=200)
    assert (row["nights"], row["nights_to_n_star"]) == (15, 15)
    assert power_row(100, deff=2.0, loops_per_night=10.0, n_star=200)["nights_to_n_star"] == 30
    assert power_row(300, loops_per_night=10.0, n_star=200)["nights_to_n_star"] == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"base": 1.5},
        {"base": 0.9},
        {"share_bp": 0},
        {"deff": 0.5},
        {"n_star": 1},
        {"loops_per_night": 0.0},
        {"share_bp": 9999},
    ],
    ids=str,
)
def test_impossible_questions_of_power_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--"):
        power_row(100, **asked)


# --- the commands ----------------------------------------------------------------------------------------------------


def test_the_commands_give_every_format_and_the_same_bytes(call: Call, tmp_path: Path) -> None:
    planted = ("simulate", "planted", "--loops", "60", "--seed", "3", "-q")
    code, out, err = call(*planted, "-f", "json")
    assert (code, err) == (0, "")
    assert call(*planted, "-f", "json", "-o", "kept")[1] == out
    body = json.loads(out)
    assert body["schema"] == "loopstats.simulate_planted/1"
    assert {row["seed"] for row in body["rows"]} == {3}
    assert call("--lake", "lake", "--config", "kept/loopstats.toml", "ingest", "kept/logs", "-q")[0] == 0
    truth = json.loads((tmp_path / "kept" / "truth.json").read_text(encoding="utf-8"))
    lift = call("--lake", "lake", "--config", "kept/loopstats.toml", "lift", "--as-of", truth["as_of"], "--json", "-q")
    row = json.loads(lift[1])["rows"][0]
    assert [row[f"broke_{arm}"] for arm in simulate.ARMS] == [truth["planted"][arm]["broke"] for arm in simulate.ARMS]
    aa = ("--lake", "lake", "simulate", "aa", "--salts", "20", "--as-of", truth["as_of"], "-q")
    for form in ("json", "jsonl", "csv", "md", "table"):
        first = call(*aa, "-f", form)
        assert (first[0], first[2]) == (0, "") and first == call(*aa, "-f", form)
    code, out, _ = call("simulate", "power", "--n", "100", "--n", "50", "-f", "csv", "-q")
    assert code == 0 and len(out.splitlines()) == 3
    assert call("simulate", "power", "--n", "100", "-q")[1].startswith("  n  power_fixed")


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["simulate"], 2, "command"),
        (["simulate", "nope"], 2, "nope"),
        (["simulate", "aa"], 2, "no lake"),
        (["simulate", "planted", "--base", "2"], 2, "--base"),
        (["simulate", "power", "--n", "1"], 2, "--n"),
        (["simulate", "power", "--n", "2", "--share-bp", "9000"], 2, "both arms"),
    ],
)
def test_errors_are_one_line_with_their_code(call: Call, arguments: list[str], code: int, word: str) -> None:
    found, out, err = call(*arguments, "-q")
    assert (found, out, err.count("\n")) == (code, "", 1), err
    assert word in err.lower()
