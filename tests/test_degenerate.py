"""Lakes with little or nothing to compare, through the command line: each its reason, its exit code, no nan.

The logs are native ones with the class written into them, so that a session's loop can be put into either arm by the
choice of its class. Warnings are errors here, as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from loopstats import cli, rule

Lines = list[dict[str, Any]]
Lift = Callable[..., "Found"]
START = datetime(2026, 11, 2, 9, tzinfo=UTC)
AS_OF = "2026-11-20"
SALT, OTHER = "pepper", "paprika"
CONFIG = f'[experiment.hint]\nsalt = "{SALT}"\nn_star = 100\n'
OTHER_FORMATS = ("table", "csv")


class Found(NamedTuple):
    """What `lift -f json` said."""

    code: int
    scopes: dict[str, dict[str, Any]]
    warnings: dict[str, str]

    @property
    def row(self) -> dict[str, Any]:
        """The experiment to date."""
        return self.scopes["to_date"]


def no_number(text: str) -> float:
    raise AssertionError(f"{text} is no JSON")


@pytest.fixture
def lift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Lift:
    """Ingest lines, read the lift in every format, and give what the JSON said."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))

    def run(lines: Iterable[dict[str, Any]], *arguments: str, config: str = CONFIG) -> Found:
        (tmp_path / "loopstats.toml").write_text(config)
        (tmp_path / "log.jsonl").write_text("".join(json.dumps({"v": 1, **line}) + "\n" for line in lines))
        assert cli.run_command(["--lake", "lake", "-q", "ingest", "log.jsonl", "--max-rejects", "0"]) == 0
        asked = ["--lake", "lake", "-q", "lift", "--as-of", AS_OF, *arguments]
        capfdbinary.readouterr()
        code = cli.run_command([*asked, "-f", "json"])
        out, err = capfdbinary.readouterr()
        assert (err == b"") is (code == 0) and b"Warning" not in err
        body = json.loads(out, parse_constant=no_number)
        for form in OTHER_FORMATS:
            assert cli.run_command([*asked, "--all", "-f", form]) == code
            text = capfdbinary.readouterr().out.decode().lower()
            assert "nan" not in text.replace("unnamed", "") and "inf," not in text and "infinity" not in text
        return Found(
            code,
            {row["scope"]: row for row in body["rows"]},
            {warning["code"]: warning["text"] for warning in body["warnings"]},
        )

    return run


def session_of(
    session: str,
    arms: Sequence[str],
    outcomes: Sequence[str],
    *,
    salt: str | None = SALT,
    at: int = 0,
    told: Sequence[str] = ("loop", "delivery"),
    lie: bool = False,
) -> Lines:
    """A session with a loop for each arm and outcome. `salt` None: in no experiment. `lie`: another arm is told."""
    clock = [START + timedelta(hours=at)]
    out: Lines = []

    def write(kind: str, **keys: Any) -> None:
        clock[0] += timedelta(seconds=10)
        out.append({"type": kind, "session": session, "ts": clock[0].isoformat(), "id": f"i{len(out)}", **keys})

    def step(target: str, signature: str | None) -> None:
        told = {"outcome": "failure", "signature": signature, "message": "no"} if signature else {"outcome": "success"}
        write("step", tool="Edit", target=target, decision=f"d{len(out)}", **told)

    terms: dict[str, Any] = {}
    if salt is not None:
        terms = {"experiment": "hint", "salt_id": rule.salt_id(salt), "share_bp": 5000, "epoch": "1"}
    write("session", harness="acme 1", **terms)
    seen: set[str] = set()
    for number, (arm, outcome) in enumerate(zip(arms, outcomes, strict=True)):
        signature = next(
            text
            for text in (f"{number:04x}{serial:012x}" for serial in count(1))
            if text not in seen and (salt is None or rule.arm_of(rule.arm_bp(salt, session, text)) == arm)
        )
        seen.add(signature)
        for letter in "aba":
            step(f"{number}{letter}.py", signature)
        if salt is not None:
            points = rule.arm_bp(salt, session, signature)
            said = {"treated": "holdout", "holdout": "treated"}[arm] if lie else arm
            if "loop" in told:
                write("loop", **terms, signature=signature, rule=rule.STRATEGY_LOOP, arm=said, arm_bp=points)
            if "delivery" in told:
                write("delivery", experiment="hint", signature=signature, arm=said, delivered=arm == "treated")
        if outcome == "broke":
            step(f"{number}a.py", None)
        elif outcome == "recurred":
            for letter in "aba":
                step(f"{number}{letter}.py", signature)
    return out


def singles(arm: str, broke: int, recurred: int = 0, unresolved: int = 0, start: int = 0, **other: Any) -> Lines:
    """Sessions of one loop each."""
    words = ["broke"] * broke + ["recurred"] * recurred + ["unresolved"] * unresolved
    return [
        line
        for number, word in enumerate(words, start)
        for line in session_of(f"{arm}-{number:03d}", [arm], [word], at=number % 200, **other)
    ]


def counts(row: dict[str, Any]) -> tuple[int, int, int, int]:
    return row["broke_treated"], row["n_treated"], row["broke_holdout"], row["n_holdout"]


def is_hidden(row: dict[str, Any]) -> bool:
    names = ("lift", "ci_fixed_low", "ci_fixed_high", "ci_anytime_low", "ci_anytime_high")
    return all(row[name] is None for name in names)


def test_no_loops(lift: Lift) -> None:
    found = lift(
        [
            {"type": "session", "session": "s", "ts": START.isoformat(), "id": "i"},
            {
                "type": "step",
                "session": "s",
                "ts": START.isoformat(),
                "id": "c",
                "tool": "Edit",
                "target": "a.py",
                "outcome": "success",
            },
        ]
    )
    assert (found.code, found.scopes.keys()) == (3, {"replay"})
    row = found.scopes["replay"]
    assert (counts(row), row["reasons"], row["verdict"]) == ((0, 0, 0, 0), ["empty_arm", "replay_has_no_verdict"], None)
    assert {"no_loops", "no_enrolled_session"} <= found.warnings.keys() and is_hidden(row)


def test_enrolled_sessions_without_a_loop(lift: Lift) -> None:
    found = lift(session_of("s", [], []))
    assert found.code == 3
    assert (counts(found.row), found.row["reasons"]) == ((0, 0, 0, 0), ["empty_arm"])
    assert found.row["verdict"] == "no verdict yet" and "no_loops" in found.warnings and is_hidden(found.row)


def test_no_enrolled_session(lift: Lift) -> None:
    lines = [line for i in range(30) for line in session_of(f"s{i}", ["treated"], ["broke"], salt=None, at=i)]
    found = lift(lines)
    assert (found.code, found.scopes.keys()) == (0, {"replay"})
    row = found.scopes["replay"]
    assert row["n_treated"] + row["n_holdout"] == 30
    assert (row["verdict"], row["reasons"][-1]) == (None, "replay_has_no_verdict")
    assert row["ci_anytime_low"] is None and "no_enrolled_session" in found.warnings


def test_no_loop_at_that_time(lift: Lift) -> None:
    found = lift(singles("treated", 6), "--until", "2026-11-01")
    assert found.code == 0 and found.scopes["window"]["n_treated"] == 0
    assert found.scopes["window"]["reasons"] == ["empty_arm", "window_has_no_nightly_verdict"]


def test_records_of_one_arm_only(lift: Lift) -> None:
    lines = singles("treated", 12, 3) + singles("holdout", 5, 10, told=())
    found = lift(lines)
    assert (found.code, counts(found.row), found.row["reasons"]) == (0, (12, 15, 5, 15), [])
    assert found.row["details"]["audit"]["only_replay"]["holdout"] == {"x": 15, "n": 15, "rate": 1.0}
    assert found.row["details"]["audit"]["only_replay"]["treated"]["x"] == 0
    assert "holdout 15/15 (100.0 %)" in found.warnings["loops_only_in_replay"]


@pytest.mark.parametrize(("arm", "wanted"), [("treated", (4, 8, 0, 0)), ("holdout", (0, 0, 4, 8))])
def test_one_arm_empty(lift: Lift, arm: str, wanted: tuple[int, int, int, int]) -> None:
    found = lift(singles(arm, 4, 4))
    assert (found.code, counts(found.row), found.row["reasons"]) == (0, wanted, ["empty_arm"])
    assert found.row["verdict"] == "no verdict yet" and is_hidden(found.row)
    assert found.row["rate_treated"] is None and found.row["rate_holdout"] is None


def test_one_against_nothing_and_one_against_one(lift: Lift) -> None:
    alone = lift(singles("treated", 1))
    assert (alone.code, counts(alone.row), alone.row["reasons"]) == (0, (1, 1, 0, 0), ["empty_arm"])
    pair = lift(singles("treated", 1) + singles("holdout", 0, 1))
    assert (pair.code, counts(pair.row), pair.row["reasons"]) == (0, (1, 1, 0, 1), ["n_lt_5"])
    assert pair.row["rate_treated"] is None and is_hidden(pair.row)


def test_one_broken_against_none(lift: Lift) -> None:
    found = lift(singles("treated", 1, 11) + singles("holdout", 0, 12))
    assert (found.code, counts(found.row), found.row["reasons"]) == (0, (1, 12, 0, 12), [])
    assert found.row["ci_fixed_low"] < 0 < found.row["lift"] < found.row["ci_fixed_high"]
    assert found.row["verdict"] == "no verdict yet"
    assert found.row["details"]["relative_lift"] == {"value": None, "reason": "holdout_rate_low"}


def test_few_loops_are_wide(lift: Lift) -> None:
    found = lift(singles("treated", 7) + singles("holdout", 0, 7))
    assert (found.row["reasons"], found.row["verdict"]) == (["wide"], "no verdict yet")
    assert found.row["ci_fixed_low"] > 0


def test_all_broke(lift: Lift) -> None:
    found = lift(singles("treated", 15) + singles("holdout", 15))
    row = found.row
    assert (found.code, counts(row), row["lift"], row["reasons"]) == (0, (15, 15, 15, 15), 0.0, [])
    assert row["ci_anytime_low"] < row["ci_fixed_low"] < 0 < row["ci_fixed_high"] < row["ci_anytime_high"]
    assert row["details"]["cace"]["reason"] == "no_variance" and row["details"]["cace"]["ci_low"] is None


def test_all_unresolved(lift: Lift) -> None:
    found = lift(singles("treated", 0, 0, 15) + singles("holdout", 0, 0, 15))
    row = found.row
    assert (found.code, row["unresolved_treated"], row["unresolved_holdout"], row["lift"]) == (0, 15, 15, 0.0)
    assert row["details"]["resolved_only"]["reasons"] == ["empty_arm"]
    assert (row["details"]["bounds"]["low"], row["details"]["bounds"]["high"]) == (-1.0, 1.0)
    assert row["details"]["bounds"]["reason"] == "no_variance"


def test_one_session_holds_an_arm(lift: Lift) -> None:
    lines = singles("treated", 12) + session_of("crowd", ["holdout"] * 12, ["recurred"] * 12, at=210)
    found = lift(lines)
    row = found.row
    assert (found.code, counts(row), row["sessions_holdout"]) == (0, (12, 12, 0, 12), 1)
    assert row["reasons"] == ["wide", "clusters_lt_2"] and row["verdict"] == "no verdict yet"
    # Only the first loop of each session has independent units, and one loop is no arm.
    assert row["lift"] == 1.0 and row["ci_fixed_low"] is None and row["ci_anytime_low"] is None


def two_salts() -> Lines:
    early = singles("treated", 9, 3) + singles("holdout", 3, 9)
    late = singles("treated", 8, 4, start=100, salt=OTHER) + singles("holdout", 4, 8, start=100, salt=OTHER)
    return early + late


def test_a_salt_that_changed_midway(lift: Lift) -> None:
    found = lift(two_salts(), config=CONFIG + f'[experiment.hint_two]\nsalt = "{OTHER}"\n')
    row = found.row
    assert (found.code, counts(row), row["reasons"]) == (0, (17, 24, 7, 24), [])
    assert row["details"]["pooling"]["count_strata"] == 2 and "2 epochs" in found.warnings["epochs_stratified"]
    assert {part["salt_id"] for part in row["details"]["pooling"]["parts"]} == {rule.salt_id(SALT), rule.salt_id(OTHER)}
    assert row["details"]["audit"]["result"] == "ok"


def test_a_new_salt_that_is_not_configured_withholds(lift: Lift) -> None:
    found = lift(two_salts())
    assert (found.code, found.row["verdict"], found.row["reasons"]) == (0, "withheld", ["salt_unknown"])
    assert found.row["details"]["count_salt_unknown"] == 24 and "24" in found.warnings["salt_unknown"]
    assert is_hidden(found.row) and counts(found.row) == (17, 24, 7, 24)


def test_an_unknown_salt(lift: Lift) -> None:
    found = lift(singles("treated", 12) + singles("holdout", 0, 12), config="")
    assert (found.code, found.row["verdict"], found.row["reasons"]) == (0, "withheld", ["salt_unknown"])
    assert counts(found.row) == (12, 12, 0, 12) and found.row["rate_treated"] is None and is_hidden(found.row)


def test_a_failing_audit(lift: Lift) -> None:
    lines = singles("treated", 12) + singles("holdout", 0, 12) + session_of("liar", ["treated"], ["broke"], lie=True)
    found = lift(lines)
    row = found.row
    assert (found.code, row["verdict"], row["reasons"]) == (0, "withheld", ["hash_audit_failed"])
    assert counts(row) == (13, 13, 0, 12), "counts are shown, by the arm that the salt gives"
    assert is_hidden(row) and row["rate_treated"] is None
    failures = row["details"]["audit"]["hash_failures"]
    assert failures["n"] == 2 and {name["run_id"] for name in failures["named"]} == {"liar"}
    assert row["details"]["audit"]["result"] == "fail" and "give: 2;" in found.warnings["hash_audit_failed"]


def test_a_split_that_is_not_the_planned_one(lift: Lift) -> None:
    found = lift(singles("treated", 10, 10) + singles("holdout", 1))
    assert found.row["details"]["audit"]["srm"][0]["n_treated"] == 20
    assert (found.row["reasons"], "srm_warning" in found.warnings) == (["n_lt_5"], True)
    grown = lift(singles("treated", 30, 30))
    assert (grown.row["verdict"], grown.row["reasons"]) == ("withheld", ["srm_failed"])


def test_segments_of_nearly_nothing(lift: Lift) -> None:
    found = lift(singles("treated", 12) + singles("holdout", 0, 3), "--by", "session_id,error_code")
    assert found.code == 0 and len(found.row["details"]["segments"]) == 15
    assert {tuple(part["reasons"]) for part in found.row["details"]["segments"]} == {("empty_arm", "segment_n_lt_10")}


def test_nothing_is_recorded_as_a_number_either(lift: Lift, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lift(singles("treated", 3))
    assert cli.run_command(["--lake", "lake", "-q", "lift", "--record", "--as-of", AS_OF]) == 0
    capfdbinary.readouterr()
    assert cli.run_command(["--lake", "lake", "-q", "lift", "--history", "-f", "json"]) == 0
    rows = json.loads(capfdbinary.readouterr().out, parse_constant=no_number)["rows"]
    assert [(row["scope"], row["reasons"], row["lift"]) for row in rows] == [
        ("replay", ["empty_arm", "replay_has_no_verdict"], None),
        ("to_date", ["empty_arm"], None),
    ]
