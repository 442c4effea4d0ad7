"""`nightly`: one whole line whatever happens, each gate by what it is for, and nights that overlap, are killed or sleep."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import jsonschema
import pytest

from loopstats import cli, homes, journal, nightly, nights, page, run, simulate
from loopstats.config import Settings
from loopstats.errors import StorageError
from loopstats.nightly import Place, Plan
from loopstats.simulate import World
from loopstats.store import Lake

ROOT = Path(__file__).resolve().parents[1]
CODEX = ROOT / "data" / "sample" / "codex"
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((ROOT / "pipeline" / "loopstats" / "schemas" / "nightly.json").read_text())
)
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
START_US = 1_795_000_000_000_000  # 2026-11-18


def ticking(*times_us: int) -> Callable[[], int]:
    """A clock that tells these times, the last one for ever."""
    told = iter(times_us)
    last = [times_us[-1]]
    return lambda: next(told, last[0])


def do(root: Path, plan: Plan, as_of_us: int, started_us: int = START_US) -> dict[str, Any]:
    line = nightly.night(
        root, root / journal.NAME, lambda: plan, as_of_us=as_of_us, clock=ticking(started_us, started_us + 1_000_000)
    )
    SCHEMA.validate(line)
    return line


def states(line: dict[str, Any]) -> dict[str, str]:
    return {gate["gate"]: gate["state"] for gate in line["gates"]}


def plan_of(world: World, logs: Path, **terms: Any) -> Plan:
    return Plan(world.settings, [Place("argument", str(logs))], **terms)


@pytest.fixture(scope="module")
def helping(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Path]:
    """An experiment that helps, with one loop a session."""
    world = World(7, lift=0.9, base=0.05, loops=40, loops_per_session=1, nights=10)
    return world, simulate.plant(world, tmp_path_factory.mktemp("world") / "w").logs


@pytest.fixture(scope="module")
def first(helping: tuple[World, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    world, logs = helping
    root = tmp_path_factory.mktemp("lake") / "lake"
    return root, do(root, plan_of(world, logs), world.as_of_us)


# --- a night that went well ------------------------------------------------------------------------------------------


def test_a_sound_night_passes_every_gate_and_writes_one_line(first: tuple[Path, dict[str, Any]]) -> None:
    root, line = first
    assert line["exit_code"] == 0, line
    assert states(line) == {
        "conservation": "ok",
        "rejects": "off",
        "stale": "ok",
        "audit": "ok",
        "sample_ratio": "ok",
        "regression": "ok",
        "runs": "off",
    }
    assert [one["verdict"] for one in line["verdicts"] if one["scope"] == "to_date"] == ["helps"]
    assert line["steps"]["derive"]["loops"] == 40
    assert line["steps"]["lift"]["recorded"] == len(line["verdicts"])
    text = (root / journal.NAME).read_text(encoding="utf-8")
    assert text.count("\n") == 1
    assert json.loads(text) == line
    assert not (root / nightly.RUNNING).exists()


def test_the_schema_refuses_a_line_with_one_thing_wrong(first: tuple[Path, dict[str, Any]]) -> None:
    line = first[1]
    SCHEMA.validate(line)
    wrong = [{key: value for key, value in line.items() if key != name} for name in line]
    wrong += [line | {"colour": "red"}, line | {"exit_code": 6}, line | {"started": "yesterday"}]
    wrong += [line | {"gates": [gate | {"state": "good"}]} for gate in line["gates"]]
    wrong += [line | {"steps": line["steps"] | {name: {"state": "ok", "prompt": "x"}}} for name in line["steps"]]
    assert [one for one in wrong if SCHEMA.is_valid(one)] == []


def test_the_lift_of_the_night_stands_in_the_lake(
    first: tuple[Path, dict[str, Any]], helping: tuple[World, Path]
) -> None:
    history = nights.lift_history(Lake(first[0]).snapshot(), as_of_us=helping[0].as_of_us)
    told = {one["scope"]: one["lift"] for one in first[1]["verdicts"]}
    assert dict(history.select("scope", "lift").iter_rows()) == told


# --- gates -----------------------------------------------------------------------------------------------------------


def test_old_input_is_stale_by_the_time_of_events(
    first: tuple[Path, dict[str, Any]], helping: tuple[World, Path]
) -> None:
    world, logs = helping
    line = do(first[0], plan_of(world, logs, stale_days=5), world.as_of_us + 6 * DAY_US)
    gate = next(gate for gate in line["gates"] if gate["gate"] == "stale")
    assert (line["exit_code"], gate["state"], gate["limit"]) == (5, "failed", 5)
    assert 6 < gate["value"] < 9
    assert do(first[0], plan_of(world, logs, stale_days=0), world.as_of_us + 6 * DAY_US)["exit_code"] == 0


def test_a_lake_without_a_step_is_stale(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    line = do(tmp_path / "lake", Plan(Settings(), [Place("argument", str(tmp_path / "logs"))]), START_US)
    assert (line["exit_code"], states(line)["stale"]) == (5, "failed")


def test_an_arm_that_the_hash_does_not_give_fails_the_audit(helping: tuple[World, Path], tmp_path: Path) -> None:
    world, logs = helping
    (tmp_path / "logs").mkdir()
    other = {"treated": "holdout", "holdout": "treated"}
    is_done = False
    for path in sorted(logs.iterdir()):
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        for line in lines:
            if line["type"] == "loop" and not is_done:
                line["arm"], is_done = other[line["arm"]], True
        (tmp_path / "logs" / path.name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    line = do(tmp_path / "lake", plan_of(world, tmp_path / "logs"), world.as_of_us)
    gate = next(gate for gate in line["gates"] if gate["gate"] == "audit")
    assert (line["exit_code"], gate["state"], gate["value"], gate["about"]) == (5, "failed", 1, simulate.EXPERIMENT)
    assert {one["verdict"] for one in line["verdicts"] if one["scope"] == "to_date"} == {"withheld"}
    assert states(line)["regression"] == "unknown"


def test_a_split_that_the_share_cannot_give_fails_the_sample_ratio(tmp_path: Path) -> None:
    world = World(3, lift=0.0, loops=160, loops_per_session=1, nights=10)
    logs = simulate.plant(world, tmp_path / "w").logs
    for path in logs.iterdir():
        lines = path.read_text().splitlines(keepends=True)
        held = {json.loads(text)["session"] for text in lines if '"arm":"holdout"' in text}
        path.write_text("".join(text for text in lines if json.loads(text)["session"] not in held))
    line = do(tmp_path / "lake", plan_of(world, logs), world.as_of_us)
    gate = next(gate for gate in line["gates"] if gate["gate"] == "sample_ratio")
    assert (line["exit_code"], gate["state"], gate["limit"]) == (5, "failed", 1000)
    assert gate["value"] >= 1000


def test_an_experiment_that_harms_is_a_regression(tmp_path: Path) -> None:
    world = World(5, lift=-0.9, base=0.95, loops=48, loops_per_session=1, nights=10)
    line = do(tmp_path / "lake", plan_of(world, simulate.plant(world, tmp_path / "w").logs), world.as_of_us)
    gate = next(gate for gate in line["gates"] if gate["gate"] == "regression")
    assert (line["exit_code"], gate["state"], gate["about"]) == (5, "failed", f"{simulate.EXPERIMENT} harms")


def test_a_lift_that_leaves_its_earlier_intervals_fell(tmp_path: Path) -> None:
    """The first half of the sessions helps, the second harms: the whole is no harm, but far from what it was."""
    good = World(9, lift=0.95, base=0.02, loops=100, loops_per_session=1, nights=20, n_star=100)
    bad = World(9, lift=-0.9, base=0.95, loops=100, loops_per_session=1, nights=20, n_star=100)
    (tmp_path / "logs").mkdir()

    def part(world: World, low: int, high: int) -> str:
        made = simulate.plant(world, tmp_path / f"w{low}").logs
        texts = [text for path in sorted(made.iterdir()) for text in path.read_text().splitlines(keepends=True)]
        return "".join(text for text in texts if low <= int(json.loads(text)["session"].split("-")[1]) < high)

    plan = plan_of(good, tmp_path / "logs")
    (tmp_path / "logs" / "a.jsonl").write_text(part(good, 0, 50))
    half_us = good.as_of_us - 10 * DAY_US
    before = do(tmp_path / "lake", plan, half_us)
    assert states(before)["regression"] == "ok", before
    (tmp_path / "logs" / "b.jsonl").write_text(part(bad, 50, 100))
    after = do(tmp_path / "lake", plan, good.as_of_us, START_US + DAY_US)
    to_date = next(one for one in after["verdicts"] if one["scope"] == "to_date")
    gate = next(gate for gate in after["gates"] if gate["gate"] == "regression")
    assert to_date["verdict"] == "no verdict yet", to_date
    assert (after["exit_code"], gate["state"]) == (5, "failed")
    assert "fell below" in gate["about"]


def test_more_rejects_than_allowed_write_nothing_and_exit_4(helping: tuple[World, Path], tmp_path: Path) -> None:
    world, logs = helping
    (tmp_path / "logs").mkdir()
    for path in logs.iterdir():
        (tmp_path / "logs" / path.name).write_text(path.read_text() + "{broken\n{broken too\n")
    line = do(tmp_path / "lake", plan_of(world, tmp_path / "logs", max_rejects=1), world.as_of_us)
    gate = next(gate for gate in line["gates"] if gate["gate"] == "rejects")
    assert (line["exit_code"], gate["value"], gate["limit"], gate["state"]) == (4, 2, 1, "failed")
    assert line["steps"]["ingest"]["state"] == "failed"
    assert line["steps"]["lift"]["state"] == "skipped"
    assert Lake(tmp_path / "lake").snapshot().files == ()
    allowed = do(tmp_path / "lake", plan_of(world, tmp_path / "logs", max_rejects=2), world.as_of_us)
    assert (allowed["exit_code"], states(allowed)["rejects"]) == (0, "ok")


def test_a_line_that_is_not_accounted_for_fails_conservation(
    first: tuple[Path, dict[str, Any]], helping: tuple[World, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = run.ingest
    monkeypatch.setattr(run, "ingest", lambda *a, **k: ingest(*a, **k) | {"unbalanced": ["a.jsonl"]})
    world, logs = helping
    line = do(first[0], plan_of(world, logs), world.as_of_us)
    gate = next(gate for gate in line["gates"] if gate["gate"] == "conservation")
    assert (line["exit_code"], gate) == (
        5,
        {"gate": "conservation", "value": 1, "limit": 0, "state": "failed", "about": "a.jsonl"},
    )


# --- clock -----------------------------------------------------------------------------------------------------------


def test_nights_that_never_began_are_named_and_done_as_one(
    first: tuple[Path, dict[str, Any]], helping: tuple[World, Path], tmp_path: Path
) -> None:
    world, logs = helping
    log = tmp_path / "log.jsonl"

    def at(started_us: int) -> dict[str, Any]:
        clock = ticking(started_us, started_us)
        return nightly.night(first[0], log, lambda: plan_of(world, logs), as_of_us=world.as_of_us, clock=clock)

    at(START_US)
    assert at(START_US + DAY_US + HOUR_US)["missed"] == []  # an hour of summer time is no night
    late = at(START_US + 4 * DAY_US)
    assert late["missed"] == ["2026-11-20", "2026-11-21"]
    assert late["count_missed"] == 2
    assert at(START_US + 104 * DAY_US)["count_missed"] == 99


def test_the_as_of_is_the_clock_at_the_start_and_durations_are_not(tmp_path: Path) -> None:
    """A machine that slept for eight hours in the middle of a night."""
    plan = Plan(Settings(), [Place("argument", str(CODEX))], stale_days=0)
    clock = ticking(START_US, START_US + 8 * HOUR_US)
    seconds = iter(range(1000))
    line = nightly.night(
        tmp_path / "lake", tmp_path / "log", lambda: plan, clock=clock, monotonic=lambda: float(next(seconds))
    )
    assert line["as_of"] == line["started"]
    assert line["ended"][11:13] != line["started"][11:13]
    assert line["duration_ms"] < 60_000


# --- report ----------------------------------------------------------------------------------------------------------


def test_the_report_is_the_page_as_of_the_night(
    first: tuple[Path, dict[str, Any]], helping: tuple[World, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, logs = helping
    monkeypatch.setattr(
        page, "read", lambda snapshot, settings, interval, filters: (snapshot.generation, interval.as_of_us)
    )
    monkeypatch.setattr(page, "html", str)
    line = do(first[0], plan_of(world, logs, report=tmp_path / "r.html"), world.as_of_us)
    assert (line["steps"]["report"]["state"], line["exit_code"]) == ("ok", 0)
    assert (tmp_path / "r.html").read_text() == str((line["generation"], world.as_of_us))
    lost = do(first[0], plan_of(world, logs, report=tmp_path / "no" / "folder" / "r.html"), world.as_of_us)
    assert (lost["steps"]["report"]["state"], lost["exit_code"]) == ("failed", 2)
    assert states(lost)["audit"] == "ok"


# --- the log ---------------------------------------------------------------------------------------------------------

NIGHT = json.dumps({"schema": journal.SCHEMA, "started": "2026-11-01T00:00:00Z", "exit_code": 0}).encode()


@pytest.mark.parametrize("cut", range(1, len(NIGHT), 7))
def test_a_torn_last_line_is_taken_away(tmp_path: Path, cut: int) -> None:
    log = tmp_path / "log"
    log.write_bytes(NIGHT + b"\n" + NIGHT[:cut])
    journal.append(log, NIGHT)
    assert log.read_bytes() == (NIGHT + b"\n") * 2


def test_a_whole_last_line_gets_its_newline(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(NIGHT)
    journal.append(log, NIGHT)
    assert log.read_bytes() == (NIGHT + b"\n") * 2


def test_the_log_is_turned_over_and_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CAP_BYTES", 3 * len(NIGHT))
    log = tmp_path / "log"
    for _ in range(3):
        journal.append(log, NIGHT)
    assert log.read_bytes() == NIGHT + b"\n"
    assert journal.older(log).read_bytes() == (NIGHT + b"\n") * 2
    assert len(journal.read(log)) == 3
    log.write_bytes(b"somebody's note\n[1]\n" + NIGHT + b"\n")
    assert len(journal.read(log)) == 3


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(NIGHT + b"\n")
    script = (
        "import resource, sys\nfrom pathlib import Path\nfrom loopstats import journal\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(NIGHT) + 20}, {len(NIGHT) + 20}))\n"
        "try:\n    journal.append(Path(sys.argv[1]), sys.argv[2].encode())\n"
        "except journal.StorageError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(log), NIGHT.decode()], capture_output=True, text=True, check=True
    )
    assert "was not written" in done.stdout, done.stderr
    assert log.read_bytes() == NIGHT + b"\n"


def test_a_log_that_cannot_be_written_is_an_error_of_the_night(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(StorageError, match="log"):
        journal.append(tmp_path / "log", NIGHT)
    plan = Plan(Settings(), [Place("argument", str(CODEX))], stale_days=0)
    line = nightly.night(tmp_path / "lake", tmp_path / "log", lambda: plan, clock=lambda: START_US)
    assert line["exit_code"] == 74
    assert "log" in line["error"]


# --- real processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "POLARS_MAX_THREADS": "2"}

    def begin(*arguments: str, **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "loopstats.cli", "--lake", str(tmp_path / "lake"), "nightly", *arguments]
        child = subprocess.Popen(
            command, cwd=tmp_path, env=env | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        running.append(child)
        return child

    yield begin
    for child in running:
        if child.poll() is None:
            child.kill()
        child.communicate()


def wait_for(path: Path, child: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not path.exists() and child.poll() is None and time.monotonic() < end:
        time.sleep(0.002)


def test_a_second_night_ends_at_once_with_75_and_a_stopped_one_goes_on(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    one = start(str(CODEX), "--as-of", "2026-11-20T00:00:00Z", "--stale-days", "0")
    wait_for(tmp_path / "lake" / nightly.RUNNING, one)
    one.send_signal(signal.SIGSTOP)
    two = start(str(CODEX), "--json", "--on-fail", "touch told")
    out, err = two.communicate()
    assert two.returncode == 75, err
    assert "another nightly is running" in err
    assert json.loads(out)["exit_code"] == 75
    assert not (tmp_path / "told").exists()
    one.send_signal(signal.SIGCONT)
    assert one.communicate()[0] == ""
    assert one.returncode == 0
    lines = [json.loads(text) for text in (tmp_path / "lake" / journal.NAME).read_text().splitlines()]
    for line in lines:
        SCHEMA.validate(line)
    assert [line["exit_code"] for line in lines] == [75, 0]


def test_killed_at_any_moment_the_next_night_makes_it_whole(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """What the log and the lake hold after kills is what they hold after one quiet night."""
    logs = tmp_path / "logs"
    logs.mkdir()
    files = sorted(CODEX.rglob("*.jsonl"))
    seed = int(os.environ.get("LOOPSTATS_SEED", "4711"))
    wanted = int(os.environ.get("LOOPSTATS_KILLS", "3"))
    dice = random.Random(seed)
    limit_s = 0.0  # the first night is quiet and tells how long one takes here
    count_killed = number = 0
    while count_killed < wanted and number < 3 * wanted:
        (logs / f"{number}.jsonl").write_bytes(files[number % len(files)].read_bytes())
        child = start(str(logs), "--stale-days", "0", "--json")
        if limit_s:
            wait_for(tmp_path / "lake" / nightly.RUNNING, child)
            time.sleep(dice.uniform(0, limit_s))
            child.kill()
        out, err = child.communicate()
        assert child.returncode in (0, -signal.SIGKILL), err
        limit_s = limit_s or json.loads(out)["duration_ms"] / 1000
        count_killed += child.returncode == -signal.SIGKILL
        number += 1
    print(f"seed {seed}: {count_killed} of {number} nights killed within {limit_s:.2f} s of their beginning")
    assert count_killed == wanted
    last = start(str(logs), "--stale-days", "0")
    assert last.communicate()[0] == ""
    assert last.returncode == 0
    lines = [json.loads(text) for text in (tmp_path / "lake" / journal.NAME).read_bytes().splitlines()]
    for line in lines:
        SCHEMA.validate(line)
    # The kill before was the last thing that happened, unless that night had written its line already.
    assert lines[-1]["killed"] is not None or len(lines) > number - count_killed + 1
    settings = Settings()
    quiet = Lake(tmp_path / "quiet")
    run.ingest(quiet, [str(logs)], settings)
    for name in ("steps", "loops", "sources", "runs", "rejects"):
        assert Lake(tmp_path / "lake").snapshot().read(name).equals(quiet.snapshot().read(name)), name


def test_a_killed_night_is_named_by_the_next(first: tuple[Path, dict[str, Any]], helping: tuple[World, Path]) -> None:
    root, (world, logs) = first[0], helping
    mark = root / nightly.RUNNING
    mark.write_text(json.dumps({"started": "2026-11-17T02:00:00Z", "pid": 1}))
    line = do(root, plan_of(world, logs), world.as_of_us)
    assert line["killed"] == "2026-11-17T02:00:00Z"
    assert not mark.exists()
    assert do(root, plan_of(world, logs), world.as_of_us)["killed"] is None


def test_on_fail_gets_the_line_and_the_facts_and_no_shell(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    script = tmp_path / "tell me.py"
    script.write_text(
        "import json, os, sys\n"
        "facts = {k: v for k, v in os.environ.items() if k.startswith('LOOPSTATS')}\n"
        "json.dump({'argv': sys.argv[1:], 'line': json.load(sys.stdin), 'facts': facts}, open('told.json', 'w'))\n"
        "print('noise')\n"
    )
    command = f"'{sys.executable}' '{script}' '$(touch broken)' ';' '*'"
    child = start(str(CODEX), "--on-fail", command, "--quiet", "--stale-days", "0.5")
    out, err = child.communicate()
    assert child.returncode == 5, err
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["argv"] == ["$(touch broken)", ";", "*"]
    assert told["line"] == json.loads((tmp_path / "lake" / journal.NAME).read_text())
    assert told["facts"]["LOOPSTATS_NIGHTLY_EXIT_CODE"] == "5"
    assert told["facts"]["LOOPSTATS_NIGHTLY_GATES"] == "stale"
    assert told["facts"]["LOOPSTATS_LAKE"] == str(tmp_path / "lake")
    assert out == ""
    assert "noise" in err
    assert "gate stale" in err


def test_on_fail_has_a_limit_and_its_failure_is_said(first: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    line = first[1]
    began = time.monotonic()
    fault = nightly.call_on_fail(["sh", "-c", "sleep 50 & sleep 60"], line, tmp_path / "log", dict(os.environ), 0.3)
    assert fault is not None
    assert "longer than 0.3 s" in fault
    assert time.monotonic() - began < 20
    assert nightly.call_on_fail(["/no/such/program"], line, tmp_path / "log", {}) == (
        "/no/such/program: No such file or directory"
    )
    assert nightly.call_on_fail(["sh", "-c", "exit 3"], line, tmp_path / "log", dict(os.environ)) == "sh: exit code 3"


@pytest.mark.parametrize(
    ("arguments", "toml", "code", "word"),
    [
        (["nowhere"], "", 2, "nowhere"),
        ([], "[nightly]\nstale_days = -1\n", 2, "stale_days"),
        ([], "", 3, "no logs of an installed agent"),
    ],
)
def test_a_night_that_cannot_begin_is_in_the_log_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    toml: str,
    code: int,
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in homes.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "loopstats.toml").write_text(toml)
    assert cli.run_command(["--lake", "lake", "nightly", *arguments]) == code
    line = json.loads((tmp_path / "lake" / journal.NAME).read_text())
    SCHEMA.validate(line)
    assert (line["exit_code"], word in line["error"], word in capsys.readouterr().err) == (code, True, True)


def test_the_night_holds_its_lock_only_while_it_works(first: tuple[Path, dict[str, Any]]) -> None:
    with filelock.FileLock(first[0] / nightly.LOCK, timeout=0):
        pass
