"""The lift as a person reads it: byte for byte where it matters, and what must hold for every text.

Hand-made readouts come from the builders of `test_estimate`. Warnings are errors here.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from loopstats import estimate, report
from loopstats.config import Experiment, Settings
from loopstats.tables import STEPS
from test_estimate import (
    AS_OF,
    START,
    checked,
    clustered,
    epochs,
    hashed,
    lakes,
    loop,
    record,
    sessions_of,
    single,
    step,
    table_of,
    two_arms,
    us,
)

pytestmark = pytest.mark.filterwarnings("error")
SLOW = hypothesis_settings(max_examples=15, deadline=None, derandomize=True)
BARE_PERCENT = re.compile(r"(?<![(0-9.])[0-9.]+ %")
# Levels and planned shares are no measured rates.
ALLOWED = re.compile(r"\b95 %|\b80 % power|planned share [0-9.]+ %|between 0 and 100 %")


def text(readout: estimate.Readout, width: int = 60, **asked: Any) -> str:
    """The text, after what holds for every text."""
    out = report.lift_text(readout, width, **asked)
    assert out.endswith("\n") and not out.endswith("\n\n")
    assert "significant" not in out
    assert all(char == "\n" or char.isprintable() or unicodedata.category(char) == "Zs" for char in out)
    assert BARE_PERCENT.findall(ALLOWED.sub("", out.replace("\n", " "))) == []
    return out


def away(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same loops outside any experiment."""
    return [row | {"is_enrolled": False, "experiment": None, "salt_id": None} for row in rows]


def quiet(rows: list[dict[str, Any]], **asked: Any) -> estimate.Readout:
    """A readout without remarks about digests: the logs were written under the rule in use."""
    settings = asked.pop("settings", Settings(experiments={"hint": Experiment("hint", "pepper", 5000, 500)}))
    sessions = sessions_of(rows).with_columns(
        pl.when(pl.col("is_enrolled")).then(pl.lit(settings.rule_digest)).alias("rule_digest")
    )
    return checked(rows, settings=settings, sessions=sessions, **asked)


def test_a_verdict_at_the_width_of_a_phone_byte_for_byte() -> None:
    rows = [hashed(i, f"s{i}") for i in range(200)]
    for row in rows:
        row["outcome"] = "broke" if (row["arm"] == "treated") == (row["detected_step"] % 5 > 0) else "recurred"
    records = [record(row) for row in rows]
    assert (
        text(quiet(rows, detections=records, deliveries=records, since_us=us(START)))
        == """\
hint helps: treated loops broke 59.8 points more often,
treated 74/95 (77.9 %) against holdout 19/105 (18.1 %). A
verdict: the nightly interval [+38.4, +73.5] leaves out 0.

Experiment hint
                   window           to date
treated broke      74/95 (77.9 %)   74/95 (77.9 %)
holdout broke      19/105 (18.1 %)  19/105 (18.1 %)
lift               +59.8 points     +59.8 points
95 %, one look     [+47.1, +69.4]   [+47.1, +69.4]
95 %, nightly      -                [+38.4, +73.5]
verdict            -                helps
recurred, t v h    21 v 86          21 v 86
unresolved, t v h  0 v 0            0 v 0
sessions, t v h    95 v 105         95 v 105
pending, t v h     0 v 0            0 v 0
interrupted loops  0/200 (0.0 %)    0/200 (0.0 %)
lift without them  +59.8 points     +59.8 points

As of 2026-11-20T00:00:00Z; loops detected by
2026-11-19T00:00:00Z are counted (24 h to mature); window:
detected from 2026-11-02T09:00:00Z to 2026-11-19T00:00:00Z.

Sensitivities, integrity: --all. Every number: -f json.
"""
    )


def test_a_failed_audit_byte_for_byte() -> None:
    rows = [hashed(i, f"s{i}") for i in range(40)]
    records = [record(row) for row in rows]
    other = "holdout" if records[3]["arm"] == "treated" else "treated"
    records[3]["arm"] = other
    out = text(quiet(rows, detections=records, deliveries=[record(row) for row in rows]))
    true = rows[3]["arm"]
    assert out.startswith("hint: no result, because the logged arms are not those that\nthe salt gives. Loops: ")
    assert "verdict            withheld\n" in out and "lift               -\n" in out
    assert "! hint: records with another arm than their salt, run and\n  class give: 1; no lift is shown\n" in out
    block = out[out.index("Records with another arm") :].split("\n\n")[0]
    assert " ".join(block.split()) == (
        f"Records with another arm s3 {rows[3]['signature']}: logged {other} ({rows[3]['arm_bp']} bp), "
        f"recomputed {true} ({rows[3]['arm_bp']} bp) (a.jsonl:7)"
    )


def test_logs_without_enrolment_say_that_they_are_an_aa_replay() -> None:
    out = text(checked(away(two_arms(56, 70, 48, 80))))
    assert " ".join(out.split("\n\n")[0].split()) == (
        "A/A replay: no session in these logs is enrolled in an experiment, the arms are drawn after the fact. Loops "
        "broken in the replayed arms: 56/70 (80.0 %) and 48/80 (60.0 %); a difference can only be chance or a broken "
        "instrument."
    )
    assert "verdict" not in out and "nightly" not in out and "helps" not in out


def test_a_replay_that_is_withheld_says_why_and_compares_nothing() -> None:
    rows = [row | {"share_bp": None} for row in away(two_arms(56, 70, 48, 80))]
    out = " ".join(text(checked(rows)).split())
    assert "drawn after the fact. No result, because" in out and "Loops: 70 treated, 80 holdout." in out
    assert "can only be chance" not in out.split("Warnings")[0].split("A/A replay of loops")[0]


def test_an_experiment_without_any_delivery_is_said_to_be_an_aa_replay() -> None:
    out = " ".join(text(quiet(two_arms(90, 100, 30, 100, is_delivered=None))).split())
    assert "leaves out 0. But no delivery is logged: as far as the logs tell, an A/A replay." in out
    assert "A/A replay" not in text(quiet(two_arms(90, 100, 30, 100)))


def test_an_empty_lake_says_that_there_is_nothing_to_compare() -> None:
    out = text(checked([]))
    assert "A/A replay" in out and "nothing to compare" in " ".join(out.split())
    assert "0/0" not in out


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (two_arms(30, 100, 90, 100), "hint harms: treated loops broke 60.0 points less often"),
        (
            two_arms(56, 70, 48, 80),
            "hint: no verdict yet. So far treated loops broke 20.0 points more often, treated "
            "56/70 (80.0 %) against holdout 48/80 (60.0 %); the nightly interval [-4.6, +41.1] still holds 0.",
        ),
        (
            two_arms(1, 1, 0, 0),
            "hint: no result yet, an arm has no loops. Loops broken: treated 1/1 against holdout 0/0.",
        ),
        (two_arms(3, 4, 9, 9), "hint: no result yet, an arm has fewer than 5 loops"),
        (two_arms(9, 9, 2, 9), "hint: no verdict yet, fewer than 10 loops or 10 sessions in an arm"),
        (clustered([(9, 9, 0, 0), (0, 0, 3, 1), (0, 0, 6, 2)]), "one session holds a whole arm"),
        (
            two_arms(90, 200, 30, 80),
            "hint: no result, because the split of the arms is not the planned one. Loops: 200 treated, 80 holdout.",
        ),
        ([*two_arms(30, 50, 20, 50), loop(900, "x", None, arm_bp=None)], "because the salt of the experiment is not"),
    ],
)
def test_the_headline_says_what_the_numbers_allow(rows: list[dict[str, Any]], words: str) -> None:
    assert words in " ".join(text(quiet(rows)).split())


def test_a_stratified_lift_says_that_it_is_not_the_plain_difference() -> None:
    out = text(quiet(epochs()))
    assert "lift, by epoch     +15.0 points\n" in out
    assert "pooled over 2 epochs and is not the plain difference" in " ".join(out.split())


def test_the_share_of_interrupted_loops_and_the_lift_without_them_always_stand() -> None:
    rows = two_arms(30, 50, 20, 50) + two_arms(10, 10, 0, 10, 500, is_interrupted=True)
    out = text(quiet(rows))
    assert "interrupted loops  20/120 (16.7 %)\n" in out and "lift without them  +20.0 points\n" in out


def test_columns_stand_under_each_other_where_they_do_not_fit() -> None:
    rows = two_arms(30, 50, 20, 50)
    wide, narrow = (text(quiet(rows, since_us=us(START)), width) for width in (60, 45))
    assert wide.count("treated broke") == 1 and narrow.count("treated broke") == 2
    assert max(map(report.cell_width, narrow.splitlines())) <= 45


def test_severe_warnings_come_first_and_remarks_only_with_all() -> None:
    rows = single("treated", 30, 10, 40, 0) + single("holdout", 30, 40, 10, 200)
    rows.append(loop(900, "t", "holdout", "unresolved", detected_at=None))
    short, whole = text(quiet(rows)), text(quiet(rows), all=True)
    assert "the share of unresolved loops differs" in short and "without a time" not in short
    assert "and 1 more remark:" in short
    assert whole.index("the share of unresolved loops differs") < whole.index("without a time")
    assert "resolved loops only: 30/40 v 30/70 (no lift: the unresolved" in whole


def test_all_shows_every_sensitivity_with_its_counts() -> None:
    rows = [hashed(i, f"s{i}", ("broke", "recurred", "unresolved")[i % 3], epoch="e1") for i in range(120)]
    records = [record(row) for row in rows]
    out = " ".join(text(quiet(rows, detections=records, deliveries=records), all=True).split())
    for words in (
        "first loop of each session: ",
        "resolved loops only: ",
        "without interrupted loops: ",
        "without infrastructure errors: ",
        "without one-turn loops: ",
        "whatever the unresolved loops would have become: [",
        "delivered: treated ",
        "effect of delivery itself: ",
        "sidestepped: ",
        "relapsed after breaking, as known now: ",
        "treated broken: ",
        "smallest lift found with 80 % power: ",
        "audit: 240 logged arms recomputed, 0 differ, 0 could",
        "split in epoch e1: ",
        "loops that only the log has: treated 0/",
        "treated not delivered: 0/",
    ):
        assert words in out


def test_segments_are_named_with_counts_and_only_selected_ones_get_a_word() -> None:
    rows = two_arms(95, 100, 10, 100, 0, tool="Edit") + two_arms(50, 100, 50, 100, 500, tool="Bash")
    rows += two_arms(2, 9, 3, 9, 900, tool="Write")
    out = " ".join(text(quiet(rows, by=("tool",)), 100).split())
    assert "Edit: +85.0 points [" in out and "helps, nightly and among all segments [" in out
    assert re.search(r"Bash: 0\.0 points \[[^;]*50/100 \(50\.0 %\) v 50/100 \(50\.0 %\); no verdict yet", out)
    assert "Write: 2/9 v 3/9 (no lift: fewer than 10 loops in an arm); not tested" in out


def test_nights_to_the_planned_number_are_told_until_it_is_reached() -> None:
    rows = two_arms(56, 70, 48, 80)
    near, far = (Settings(experiments={"hint": Experiment("hint", "pepper", 5000, n)}) for n in (100, 500))
    assert " at n* 500, in about " in " ".join(text(quiet(rows, settings=far), all=True).split())
    assert "n*" not in text(quiet(rows, settings=near), all=True)


HOSTILE = "\x1b[2J\u202eevil\u200b\x9b31m\r\nname\x00"


def test_log_text_reaches_no_terminal_as_it_is() -> None:
    settings = Settings(experiments={HOSTILE: Experiment(HOSTILE, "pepper", 5000, 500)})
    rows = two_arms(30, 50, 20, 50, experiment=HOSTILE, tool=HOSTILE)
    for width in (60, 200):
        out = text(quiet(rows, settings=settings, by=("tool",)), width, all=True)
        assert "\\x1b[2J\\u202eevil\\u200b\\x9b31m\\r\\nname\\x00" in out.replace("\n", "").replace("    ", "")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain text, é ü 漢字 😀", "plain text, é ü 漢字 😀"),
        ("", ""),
        ("a\tb\nc\rd", "a\\tb\\nc\\rd"),
        ("\x1b]0;t\x07", "\\x1b]0;t\\x07"),
        ("\x7f\x85\x9b", "\\x7f\\x85\\x9b"),
        ("\u202e\u2066\u061c", "\\u202e\\u2066\\u061c"),
        ("\u200b\u200d\ufeff\u2060", "\\u200b\\u200d\\ufeff\\u2060"),
        ("\ud800x\udfff", "\\ud800x\\udfff"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\U000e0041", "\\U000e0041"),
        ("a\u00a0b\u3000c", "a\u00a0b\u3000c"),
        ("\u3164\ufe0f\u2800", "\\u3164\\ufe0f\\u2800"),
    ],
)
def test_safe_text_makes_the_unseen_visible(raw: str, shown: str) -> None:
    assert report.safe_text(raw) == shown


@given(st.text(st.characters()))
def test_safe_text_is_one_printable_line_and_changes_no_safe_text(raw: str) -> None:
    shown = report.safe_text(raw)
    assert report.safe_text(shown) == shown
    assert all(char.isprintable() or unicodedata.category(char) == "Zs" for char in shown)
    shown.encode("utf-8")


@given(st.text(st.characters(codec="utf-8"), max_size=80), st.integers(10, 80))
def test_wrap_keeps_to_the_width_and_loses_nothing(raw: str, width: int) -> None:
    shown = report.wrap(raw, width, "  ")
    assert max(map(report.cell_width, shown.splitlines() or [""])) <= width
    assert re.sub(r"[ \n]", "", shown) == report.safe_text(raw).replace(" ", "")


def test_rates_and_intervals_are_not_broken_over_lines() -> None:
    line = "word " * 9 + "56/70 (80.0 %) and [-4.6, +41.1] and +20.0 points"
    for width in range(40, 80):
        for row in report.wrap(line, width).splitlines():
            assert row.count("(") == row.count(")") == row.count("%") and row.count("[") == row.count("]")
            assert row.count("+20.0") == row.count("points")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.2479, "+24.8 points"), (-0.1, "-10.0 points"), (0.0, "0.0 points"), (-0.0001, "0.0 points"), (None, "-")],
)
def test_points_have_a_sign(value: float | None, shown: str) -> None:
    assert report.points(value) == shown


@SLOW
@given(lakes(), st.sampled_from([60, 80, 120]), st.booleans())
def test_every_lake_has_a_text_that_fits(rows: list[dict[str, Any]], width: int, is_all: bool) -> None:
    out = text(checked(rows, by=("tool",), since_us=us(START)), width, all=is_all)
    assert max(map(report.cell_width, out.splitlines())) <= width


def test_loop_rates_in_one_line() -> None:
    steps = [step(f"s{i}", j) for i in range(10) for j in range(5)]
    rates = estimate.loop_rates(table_of([loop(0, "s0", "treated")]), table_of(steps, STEPS), as_of_us=us(AS_OF))
    assert report.loop_rate_text(rates) == (
        "Runs with a strategy loop: 1/10 (10.0 %) [1.8, 40.4] % of those with 3 or more attempts; loops: 20.0 per "
        "1,000 (1/50) [0.5, 111.4]"
    )
