"""The nightly record: what a night said stays, what changed stands beside it, the same night gives the same bytes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock
import polars as pl
import pytest

from loopstats import cli, output, simulate
from loopstats.simulate import World
from loopstats.store import MANIFEST, Lake

Call = Callable[..., tuple[int, str, str]]
WORLD = World(seed=11, loops=60, loops_per_session=3, attrition=0.2)
NIGHT = "2026-01-20"
LATER = "2026-02-02"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with planted logs, their settings, and a lake of them."""
    folder = tmp_path_factory.mktemp("nights") / "planted"
    simulate.plant(WORLD, folder)
    lake = ["--lake", str(folder / "lake"), "--config", str(folder / "loopstats.toml"), "-q"]
    assert cli.run_command([*lake, "ingest", str(folder / "logs")]) == 0
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of that folder for one test."""
    return Path(shutil.copytree(made, tmp_path / "place"))


@pytest.fixture
def call(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Call:
    """One quiet command on the copied lake under its settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str, config: Path | None = None) -> tuple[int, str, str]:
        given = ["--lake", str(place / "lake"), "--config", str(config or place / "loopstats.toml"), "-q"]
        code = cli.run_command([*given, *arguments])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return command


def recorded(place: Path) -> list[dict[str, Any]]:
    return Lake.open(place / "lake").snapshot().read("lift").to_dicts()


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def append(place: Path, *records: dict[str, Any]) -> None:
    """More lines at the end of the planted log."""
    path = place / "logs" / "planted-00000.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"v": 1, **record}) + "\n" for record in records)


def step(session: str, number: int, target: str, name: str | None, at: str) -> dict[str, Any]:
    """A step as the planted logs have them."""
    told = (
        {"outcome": "success"}
        if name is None
        else {"outcome": "failure", "error_code": f"planted_{name}", "message": f"lookup refused by {name} registry"}
    )
    return {
        "type": "step",
        "session": session,
        "ts": at,
        "id": f"late{number}",
        "decision": f"late{number}",
        "tool": "Edit",
        "target": target,
        **told,
    }


def loops_of(place: Path, **wanted: Any) -> list[dict[str, Any]]:
    """Planted loops, earliest first, with these values."""
    loops = Lake.open(place / "lake").snapshot().read("loops").sort("detected_at")
    return [row for row in loops.to_dicts() if all(row[name] == value for name, value in wanted.items())]


def test_a_record_has_what_reproduces_it(call: Call, place: Path) -> None:
    code, out, _ = call("lift", "--record", "--as-of", NIGHT, "--since", "7d", "-f", "json")
    assert code == 0
    body = json.loads(out)
    rows = recorded(place)
    assert [(row["experiment"], row["scope"]) for row in rows] == [
        ("", "replay"),
        ("planted", "to_date"),
        ("planted", "window"),
    ]
    for row in rows:
        assert row["as_of"] == datetime(2026, 1, 20, tzinfo=UTC)
        assert (row["revision"], row["estimate_sha256"]) == (0, sha256(row["estimate"]))
        # The experiment to date knows no window; a window says which it is.
        assert (row["since"], row["until"]) == ("" if row["scope"] == "to_date" else "2026-01-13T00:00:00Z", "")
        estimate = json.loads(row["estimate"])
        assert output.canonical(estimate) == row["estimate"]
        used = estimate.pop("settings")
        assert row["settings_sha256"] == sha256(output.canonical(used))
        assert used["maturity_us"] == WORLD.settings.maturity_us and used["rule_digest"] == body["rule_digest"]
        if row["scope"] != "replay":
            experiment = WORLD.settings.experiments["planted"]
            assert used["experiments"] == [
                {"name": "planted", "salt_id": experiment.salt_id, "share_bp": 5000, "n_star": 200}
            ]
            assert WORLD.salt not in row["estimate"]
        assert "known_now" not in estimate["details"]
        assert [estimate] == [e for e in body["rows"] if e["scope"] == row["scope"]]


def test_the_same_night_again_gives_the_same_bytes_and_writes_nothing(call: Call, place: Path) -> None:
    first = call("lift", "--record", "--as-of", NIGHT, "-f", "json")
    files = {path: path.read_bytes() for path in (place / "lake").rglob("*") if path.is_file()}
    assert call("lift", "--record", "--as-of", NIGHT, "-f", "json") == first
    assert {path: path.read_bytes() for path in (place / "lake").rglob("*") if path.is_file()} == files
    call("lift", "--record", "--as-of", LATER)
    assert call("lift", "--record", "--as-of", NIGHT, "-f", "json") == first
    assert [row["revision"] for row in recorded(place)] == [0] * 4


def test_a_rebuilt_lake_gives_the_same_record(call: Call, place: Path) -> None:
    call("lift", "--record", "--as-of", NIGHT)
    before = recorded(place)
    assert call("ingest", str(place / "logs"), "--full")[0] == 0
    assert recorded(place) == before, "a rebuild keeps the history"
    call("lift", "--record", "--as-of", NIGHT)
    assert recorded(place) == before
    shutil.rmtree(place / "lake")
    assert call("ingest", str(place / "logs"))[0] == 0
    call("lift", "--record", "--as-of", NIGHT)
    assert recorded(place) == before, "nothing of the record depends on where and when it is made"


def test_what_happens_after_the_maturity_changes_no_record(call: Call, place: Path) -> None:
    call("lift", "--record", "--as-of", NIGHT)
    before = recorded(place)
    shown = call("lift", "--as-of", NIGHT, "-f", "json")[1]
    broken = loops_of(place, outcome="broke")[0]
    name = broken["error_code"].removeprefix("planted_")
    append(place, *(step(broken["session_id"], i, "src/0-a.py", name, f"2026-01-18T00:00:{i:02d}Z") for i in range(4)))
    assert call("ingest", str(place / "logs"))[0] == 0
    assert loops_of(place, loop_id=broken["loop_id"])[0]["is_relapsed"] is True
    assert call("lift", "--as-of", NIGHT, "-f", "json")[1] != shown, "what is known now has changed"
    call("lift", "--record", "--as-of", NIGHT)
    assert recorded(place) == before


def test_late_data_is_restated_beside_the_first_estimate(call: Call, place: Path) -> None:
    call("lift", "--record", "--as-of", NIGHT)
    before = recorded(place)
    # A line that was written in time and came late: the last loop of its session broke within its maturity time.
    late = next(loop for loop in loops_of(place, outcome="unresolved") if loop["detected_step"] == loop["last_step"])
    steps = Lake.open(place / "lake").snapshot().read("steps")
    is_last = (pl.col("run_id") == late["run_id"]) & (pl.col("step") == late["detected_step"])
    failing = steps.filter(is_last)["target"][0]
    at = output.plain(late["detected_at"]).replace("Z", ".500000Z")
    append(place, step(late["session_id"], 1, failing, None, at))
    assert call("ingest", str(place / "logs"))[0] == 0
    call("lift", "--record", "--as-of", NIGHT)
    rows = recorded(place)
    assert [row for row in rows if row["revision"] == 0] == before
    restated = [row for row in rows if row["revision"] == 1]
    assert [(row["experiment"], row["scope"]) for row in restated] == [("planted", "to_date")]
    first = next(json.loads(row["estimate"]) for row in before if row["scope"] == "to_date")
    second = json.loads(restated[0]["estimate"])
    changed = first["broke_treated"] + first["broke_holdout"] + 1
    assert second["broke_treated"] + second["broke_holdout"] == changed
    call("lift", "--record", "--as-of", NIGHT)
    assert recorded(place) == rows
    history = json.loads(call("lift", "--history", "--experiment", "planted", "-f", "json")[1])["rows"]
    assert [(row["revision"], row["is_latest"]) for row in history] == [(0, False), (1, True)]


def test_another_experiment_of_the_settings_is_no_restatement(call: Call, place: Path, tmp_path: Path) -> None:
    call("lift", "--record", "--as-of", NIGHT)
    before = recorded(place)
    more = tmp_path / "more.toml"
    more.write_text((place / "loopstats.toml").read_text() + '\n[experiment.next]\nsalt = "s"\n')
    refused = call("lift", "--record", "--as-of", NIGHT, config=more)
    assert refused[0] == 2 and "loopstats ingest" in refused[2]
    assert call("ingest", str(place / "logs"), config=more)[0] == 0
    assert call("lift", "--record", "--as-of", NIGHT, config=more)[0] == 0
    assert recorded(place) == before
    planned = tmp_path / "planned.toml"
    planned.write_text((place / "loopstats.toml").read_text().replace("n_star = 200", "n_star = 300"))
    assert call("ingest", str(place / "logs"), config=planned)[0] == 0
    assert call("lift", "--record", "--as-of", NIGHT, config=planned)[0] == 0
    rows = recorded(place)
    assert [row["revision"] for row in rows] == [0] * 3, "another n* is another experiment, no restatement"
    assert len({row["settings_sha256"] for row in rows if row["scope"] == "to_date"}) == 2


def test_history_in_every_format(call: Call) -> None:
    for night in (NIGHT, LATER):
        call("lift", "--record", "--as-of", night)
    code, out, err = call("lift", "--history", "-f", "json")
    body = json.loads(out)
    assert (code, err, body["schema"]) == (0, "", "loopstats.lift_history/1")
    assert [(row["as_of"], row["scope"]) for row in body["rows"]] == [
        (f"{night}T00:00:00Z", scope) for night in (NIGHT, LATER) for scope in ("replay", "to_date")
    ]
    whole = body["rows"][1]
    shown = json.loads(call("lift", "--as-of", NIGHT, "-f", "json")[1])["rows"][0]
    same = ("n_treated", "broke_treated", "rate_holdout", "lift", "ci_fixed_low", "ci_anytime_high", "verdict")
    assert {name: whole[name] for name in same} == {name: shown[name] for name in same}
    lines = [json.loads(line) for line in call("lift", "--history", "-f", "jsonl")[1].splitlines()]
    assert lines == body["rows"]
    cells = list(csv.DictReader(io.StringIO(call("lift", "--history", "-f", "csv")[1], newline="")))
    assert [float(row["lift"]) if row["lift"] else None for row in cells] == [row["lift"] for row in body["rows"]]
    table = call("lift", "--history")[1].splitlines()
    assert table[0].split() == [
        "as_of",
        "scope",
        "lift",
        "nightly",
        "verdict",
        "revision",
        "experiment",
        "treated",
        "holdout",
        "since",
        "reasons",
    ]
    assert f"{shown['broke_treated']}/{shown['n_treated']} (" in table[3]
    assert call("lift", "--history", "-f", "md")[1].count("\n") == 6
    since = json.loads(call("lift", "--history", "--since", LATER, "-f", "json")[1])["rows"]
    known = json.loads(call("lift", "--history", "--as-of", NIGHT, "-f", "json")[1])["rows"]
    assert since + known == body["rows"][2:] + body["rows"][:2]


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--record", "--by", "tool"], 2, "no split"),
        (["--record", "--where", "count_events > 3"], 2, "no filter"),
        (["--record", "--tool", "Edit"], 2, "no filter"),
        (["--history", "--model", "m"], 2, "no filter"),
        (["--record", "--history"], 2, "not each other"),
        (["--record", "--as-of", "2999-01-01"], 2, "future"),
        (["--history"], 3, "no recorded nights"),
        (["--record", "--as-of", NIGHT, "--experiment", "nope"], 3, "nope"),
    ],
)
def test_errors_are_one_line_with_their_code(call: Call, arguments: list[str], code: int, word: str) -> None:
    found, _, err = call("lift", *arguments)
    assert (found, err.count("\n")) == (code, 1), err
    assert word in err


def test_a_lake_in_use_is_not_waited_for_and_none_is_made(call: Call, place: Path, tmp_path: Path) -> None:
    manifest = (place / "lake" / MANIFEST).read_bytes()
    with filelock.FileLock(place / "lake" / "_lock"):
        assert call("lift", "--record", "--as-of", NIGHT)[0] == 75
    assert (place / "lake" / MANIFEST).read_bytes() == manifest
    assert cli.run_command(["--lake", str(tmp_path / "none"), "lift", "--record", "-q"]) == 2
    assert not (tmp_path / "none").exists()


def test_a_night_before_any_loop_is_a_record_too(call: Call, place: Path) -> None:
    code, _, err = call("lift", "--record", "--as-of", "2025-12-31")
    assert (code, "no loops match" in err) == (3, True)
    rows = recorded(place)
    assert {row["scope"] for row in rows} == {"replay"}
    assert [json.loads(row["estimate"])["reasons"] for row in rows] == [["empty_arm", "replay_has_no_verdict"]]
