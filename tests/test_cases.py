"""Cases from other detectors' issue trackers, as native logs with the verdict that METHOD gives.

Each fixture is a kind of case, not one sequence; a session in it is one sequence, and messages are raw, so that masks
are exercised and no signature is given. Asserted here: detections of `strategy-loop/1` and `repeat/1` with what they
know, outcomes of loops, outcomes of steps, kinds, targets, classes and fingerprints. Left to the tests of the other
rules (METHOD 12), which are no part of these verdicts: drift of cases 2, 7 (the file that is written three times), 12,
15 and 20; the world state of cases 7, 11, 12 and 18; ghost cycles and plan churn of case 21; overlap of read windows
in case 15; the gap of case 12 (search and fetch with new words, for ever) that no rule sees.

Case 11 asks that a success without a change of state is no reset. Detection counts all failures so far, so there it is
none; the outcome of a loop knows no state (METHOD 9), so a success right after the detection is a break.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from lines import ingest, tables_of
from loopstats.config import Settings

CASES = sorted((Path(__file__).resolve().parent / "cases").glob("[0-9][0-9]-*.jsonl"))
SL, STR = "strategy-loop/1", "repeat/1"


class Loop(NamedTuple):
    """What is asserted of one row of `loops`."""

    rule: str
    count_events: int
    count_targets: int
    count_decisions: int
    outcome: str = "unresolved"
    is_infra: bool = False
    is_interrupted: bool = False
    steps_to_outcome: int | None = None


class Verdict(NamedTuple):
    """What is asserted of one session: its loops, its number of classes, and the kinds of its steps."""

    loops: tuple[Loop, ...] = ()
    classes: int = 0
    kinds: str = ""


def three(rule: str, targets: int, decisions: int = 3, **more: Any) -> tuple[Loop, ...]:
    return (Loop(rule, 3, targets, decisions, **more),)


NONE: tuple[Loop, ...] = ()
TABLE: dict[str, dict[str, Verdict]] = {
    "01-poll-that-progresses": {
        "output-of-a-job": Verdict(NONE, 0, "verify wait"),
        "own-poll-tool": Verdict(NONE, 0, "execute wait"),
        "poll-not-ready-yet": Verdict(NONE, 1, "wait"),
        "sleep-and-look": Verdict(NONE, 0, "wait"),
    },
    "02-waiting": {
        "running-every-five-minutes": Verdict(NONE, 0, "wait"),
        "empty-inputs-while-a-build-runs": Verdict(NONE, 0, "wait"),
        "time-outs-of-a-wait": Verdict(NONE, 1, "wait"),
        "sleep-that-fails": Verdict(NONE, 1, "wait"),
    },
    "04-numbers-that-mean-nothing": {
        "one-target": Verdict(three(STR, 1), 1, "execute"),
        "two-targets": Verdict(three(SL, 2), 1, "execute"),
        "iso-times-and-sizes": Verdict(three(SL, 3), 1, "execute"),
        "ids-addresses-and-paths": Verdict(three(SL, 3), 1, "other"),
    },
    "04-numbers-that-matter": {
        "errno-and-http": Verdict(NONE, 4, "execute"),
        "errno-111-and-113": Verdict(NONE, 2, "execute"),
        "http-401-and-503": Verdict(NONE, 2, "other"),
        "status-codes": Verdict(NONE, 3, "other"),
        "exit-1-and-137": Verdict(NONE, 2, "execute"),
        "three-failed-and-one-failed": Verdict(NONE, 2, "execute"),
        "errors-found": Verdict(NONE, 2, "execute"),
        "compiler-codes": Verdict(NONE, 2, "execute"),
        "sqlstate": Verdict(NONE, 2, "execute"),
    },
    "04-places-in-a-file": {
        "line-and-column": Verdict(three(SL, 3), 1, "other"),
        "line-only": Verdict(three(SL, 3), 1, "other"),
    },
    "04-words-dates-and-versions": {
        "words-are-not-hex": Verdict(NONE, 4, "other"),
        "versions-are-not-addresses": Verdict(NONE, 1, "other"),
        "dates-are-not-hex": Verdict(NONE, 1, "other"),
        "scopes-are-not-addresses": Verdict(NONE, 1, "other"),
        "apostrophes": Verdict(NONE, 2, "other"),
    },
    "06-edit-and-test-with-progress": {
        "pytest": Verdict(NONE, 3, "edit verify"),
        "jest": Verdict(NONE, 3, "edit verify"),
        "cargo": Verdict(NONE, 3, "edit verify"),
        "eslint": Verdict(NONE, 3, "edit verify"),
        "no-progress": Verdict(three(STR, 1), 1, "edit verify"),
    },
    "07-three-edits-one-test": {
        "three-files": Verdict(three(STR, 1), 1, "edit verify"),
        "one-file-written-three-times": Verdict(three(STR, 1), 1, "edit verify"),
        "same-failure-in-three-tests": Verdict(three(SL, 3), 1, "edit verify"),
    },
    "09-get-that-fails": {
        "read-by-its-name": Verdict(NONE, 1, "read"),
        "read-behind-a-server-prefix": Verdict(NONE, 1, "read"),
        "read-as-the-log-says": Verdict(NONE, 1, "read"),
        "acts": Verdict(three(SL, 3), 1, "execute"),
        "acts-as-the-log-says": Verdict(three(SL, 3), 1, "execute"),
        "unclassified": Verdict(three(SL, 3), 1, "other"),
    },
    "11-one-check-again-and-again": {
        "nineteen-failures-six-successes": Verdict(
            three(STR, 1, outcome="recurred", is_interrupted=True, steps_to_outcome=3), 1, "verify"
        ),
        "three-more-before-a-success": Verdict(three(STR, 1, outcome="recurred", steps_to_outcome=3), 1, "verify"),
        "success-at-once": Verdict(three(STR, 1, outcome="broke", steps_to_outcome=1), 1, "verify"),
    },
    "12-other-periods": {
        "read-edit-test": Verdict(three(STR, 1) + three(STR, 1), 2, "edit read verify"),
        "lookup-search": Verdict(NONE, 0, "read research"),
        "search-and-fetch-with-new-words": Verdict(NONE, 2, "research"),
    },
    "13-infrastructure": {
        "deploy-and-push": Verdict(three(SL, 3, is_infra=True), 2, "execute"),
        "connection": Verdict(three(SL, 2, is_infra=True), 1, "execute"),
        "reset": Verdict(three(SL, 2, is_infra=True), 1, "execute"),
        "quota": Verdict(three(SL, 2, is_infra=True), 1, "execute"),
        "time-out": Verdict(three(SL, 2, is_infra=True), 1, "execute"),
        "structured-503": Verdict(three(SL, 2, is_infra=True), 1, "execute"),
        "control": Verdict(three(SL, 2), 1, "execute"),
        "control-404": Verdict(three(SL, 2), 1, "execute"),
    },
    "14-one-turn": {
        "five-reads": Verdict(NONE, 1, "read"),
        "the-same-test-six-times": Verdict(three(STR, 1, 1), 1, "verify"),
        "three-edits": Verdict(three(SL, 3, 1), 1, "edit"),
        "two-turns": Verdict(three(SL, 3, 2), 1, "edit"),
    },
    "15-paged-reads": {
        "next-page": Verdict(NONE, 0, "read"),
        "widening": Verdict(NONE, 0, "read"),
        "sweep-that-wraps": Verdict(NONE, 0, "read"),
        "pages-that-fail": Verdict(NONE, 1, "read"),
        "shell-pages": Verdict(NONE, 1, "read"),
    },
    "20-success-that-repeats": {
        "send-with-fresh-ids": Verdict(NONE, 0, "communicate"),
        "same-text-to-two-files": Verdict(NONE, 0, "edit"),
        "free-text-arguments": Verdict(NONE, 0, "communicate"),
    },
    "22-override": {
        "always-allow": Verdict(three(STR, 1, outcome="recurred", steps_to_outcome=3), 1, "execute"),
        "always-allow-on-two-targets": Verdict(three(SL, 2, outcome="recurred", steps_to_outcome=3), 1, "execute"),
        "blocked-and-on-through-the-other": Verdict(
            three(SL, 2) + three(SL, 2, outcome="recurred", steps_to_outcome=3), 2, "execute"
        ),
        "vetoed-calls-are-no-failures": Verdict(NONE, 0, "execute"),
    },
    "24-exits-claude-code": {"c24": Verdict(NONE, 4, "execute read research verify")},
    "24-exits-codex": {"x24": Verdict(NONE, 3, "execute read research verify")},
    "25-what-is-the-same": {
        "logged-again-after-resume": Verdict(three(SL, 2), 1, "edit"),
        "differ-after-100-characters": Verdict(NONE, 0, "execute"),
        "one-pattern-in-three-folders": Verdict(NONE, 0, "read"),
        "one-check-in-three-folders": Verdict(three(SL, 3), 1, "verify"),
        "same-search-in-other-words": Verdict(NONE, 0, "read"),
        "no-event-for-what-failed": Verdict(NONE, 0, "edit"),
        "unknown-neither-completes-nor-ends": Verdict(three(SL, 2), 1, "edit"),
    },
    "25-hooks-without-an-end": {"h25": Verdict(NONE, 0, "edit")},
}
FINGERPRINTS = {
    "next-page": 4,
    "widening": 3,
    "sweep-that-wraps": 20,
    "pages-that-fail": 4,
    "send-with-fresh-ids": 1,
    "free-text-arguments": 1,
    "same-text-to-two-files": 2,
    "one-file-written-three-times": 2,
    "differ-after-100-characters": 2,
    "one-pattern-in-three-folders": 3,
    "same-search-in-other-words": 1,
    "read-edit-test": 3,
    "search-and-fetch-with-new-words": 200,
    "empty-inputs-while-a-build-runs": 1,
}
TARGETS = {
    "three-files": {"a.py", "b.py", "c.py", "tests/test_a.py"},
    "one-pattern-in-three-folders": {"src", "tests", "docs"},
    "one-check-in-three-folders": {"src", "tests", "docs"},
    "acts": {"41", "42", "43"},
    "next-page": {"big.log"},
    "send-with-fresh-ids": {"ops"},
}
MESSAGES = {
    "one-target": "<time> pid <n> refused, try <n>, <qty>",
    "iso-times-and-sizes": "<time> upload of <qty> stopped after <qty>",
    "ids-addresses-and-paths": "node <hex> at <ip> lost <path> for <str> (<uuid>)",
    "line-and-column": "error at <path>: unexpected token",
    "line-only": "<path>: invalid syntax",
    "versions-are-not-addresses": "needs version <n> of the driver",
    "dates-are-not-hex": "no rows for day <time>",
    "scopes-are-not-addresses": "no member in a::b()",
}
EXITS = {
    "c24": [
        ("Bash:grep", "success"),
        ("Bash:pytest", "failure"),
        ("Bash:find", "success"),
        ("Bash:curl", "success"),
        ("Bash:python", "success"),
        ("Bash:python", "failure"),
        ("Bash:cat", "success"),
        ("Bash:pytest", "failure"),
        ("Bash:pytest", "success"),
        ("Bash:grep", "failure"),
    ],
    "x24": [
        ("shell:grep", "success"),
        ("shell:rg", "success"),
        ("shell:diff", "success"),
        ("shell:test", "success"),
        ("shell:pytest", "failure"),
        ("shell:find", "success"),
        ("shell:curl", "success"),
        ("shell:python", "failure"),
        ("shell:python", "success"),
        ("shell:grep", "failure"),
    ],
}
SESSIONS = [(case, session) for case, sessions in TABLE.items() for session in sessions]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    lake = tmp_path_factory.mktemp("cases") / "lake"
    assert ingest(lake, *CASES, settings=Settings())["rejects"] == []
    return tables_of(lake)


def steps_of(tables: dict[str, pl.DataFrame], session: str) -> pl.DataFrame:
    return tables["steps"].filter(pl.col("session_id") == session).sort("step")


def test_every_fixture_and_session_has_a_verdict(tables: dict[str, pl.DataFrame]) -> None:
    held = {(Path(file).stem, session) for file, session in tables["steps"].select("source_file", "session_id").rows()}
    assert held == set(SESSIONS)
    assert {path.stem for path in CASES} == set(TABLE)


@pytest.mark.parametrize(("case", "session"), SESSIONS)
def test_verdict(tables: dict[str, pl.DataFrame], case: str, session: str) -> None:
    expected = TABLE[case][session]
    steps = steps_of(tables, session)
    assert " ".join(sorted(set(steps["kind"]))) == expected.kinds
    assert steps["signature"].drop_nulls().n_unique() == expected.classes
    rows = tables["loops"].filter(pl.col("session_id") == session).sort("detected_step").select(Loop._fields).rows()
    assert sorted(rows, key=str) == sorted(map(tuple, expected.loops), key=str)
    arms = tables["loops"].filter(pl.col("session_id") == session).select("rule", "arm").rows()
    assert all((arm in ("treated", "holdout")) == (rule == SL) for rule, arm in arms)


@pytest.mark.parametrize(("session", "count"), FINGERPRINTS.items())
def test_fingerprints(tables: dict[str, pl.DataFrame], session: str, count: int) -> None:
    assert steps_of(tables, session)["fingerprint"].n_unique() == count


def test_a_sweep_that_wraps_comes_back_to_its_first_page(tables: dict[str, pl.DataFrame]) -> None:
    prints = steps_of(tables, "sweep-that-wraps")["fingerprint"].to_list()
    assert prints[:20] == prints[20:]


@pytest.mark.parametrize(("session", "targets"), TARGETS.items())
def test_targets(tables: dict[str, pl.DataFrame], session: str, targets: set[str]) -> None:
    assert set(steps_of(tables, session)["target"]) == targets


@pytest.mark.parametrize(("session", "message"), MESSAGES.items())
def test_masks(tables: dict[str, pl.DataFrame], session: str, message: str) -> None:
    assert set(steps_of(tables, session)["message"].drop_nulls()) == {message}


def test_words_stay_as_they_are(tables: dict[str, pl.DataFrame]) -> None:
    messages = steps_of(tables, "words-are-not-hex")["message"].to_list()
    # `facade12` is eight hexadecimal characters with a letter and a digit: METHOD 6 calls that an id.
    assert messages == ["facade is broken", "decade is broken", "<hex> is broken", "effaced is broken"]


@pytest.mark.parametrize("session", EXITS)
def test_exits(tables: dict[str, pl.DataFrame], session: str) -> None:
    assert steps_of(tables, session).select("action", "outcome").rows() == EXITS[session]


def test_what_never_came_back_is_unknown(tables: dict[str, pl.DataFrame]) -> None:
    outcomes = dict(steps_of(tables, "h25").select("outcome", "target").group_by("outcome").len().rows())
    assert outcomes == {"unknown": 4, "success": 1}
    assert set(steps_of(tables, "no-event-for-what-failed")["outcome"]) == {"unknown"}
    (row,) = tables["loops"].filter(pl.col("session_id") == "unknown-neither-completes-nor-ends").to_dicts()
    assert (row["detected_step"], row["outcome"], row["is_sidestepped"]) == (4, "unresolved", False)


def test_calls_that_are_logged_again_are_one_event_each(tables: dict[str, pl.DataFrame]) -> None:
    assert steps_of(tables, "logged-again-after-resume").height == 3
    assert tables["folds"].filter(pl.col("source_file").str.contains("25-what"))["count_lines"].to_list() == [3]


def test_an_override_is_kept_and_the_loop_recurs_at_once(tables: dict[str, pl.DataFrame]) -> None:
    guards = tables["guards"].filter(pl.col("session_id") == "always-allow").sort("guard")
    assert guards.select("event", "by", "step").rows() == [("raise", None, 2), ("override", "user", 2)]
    (row,) = tables["loops"].filter(pl.col("session_id") == "always-allow").to_dicts()
    assert (row["detected_step"], row["outcome_step"]) == (2, 5)
    (vetoed,) = steps_of(tables, "blocked-and-on-through-the-other").filter(pl.col("outcome") == "vetoed").to_dicts()
    assert (vetoed["outcome_reason"], vetoed["signature"]) == ("hook", None)


def test_a_break_that_does_not_hold_is_a_relapse(tables: dict[str, pl.DataFrame]) -> None:
    (row,) = tables["loops"].filter(pl.col("session_id") == "success-at-once").to_dicts()
    assert (row["outcome"], row["outcome_step"], row["is_relapsed"]) == ("broke", 3, True)
