"""The Python door: typed, lazy, and the same answers as the command line."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import polars as pl
import pytest

import loopstats
from loopstats.cli import run_command
from loopstats.errors import NothingError, UsageError
from loopstats.tables import TABLES

ROOT = Path(__file__).resolve().parents[1]
AS_OF = "2026-11-20T00:00:00Z"
BLOCKS = re.compile(r"<!-- run -->\n```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def lake(sample_lake: Path) -> loopstats.OpenLake:
    return loopstats.open(sample_lake, as_of=AS_OF)


def printed(lake: Path, *arguments: str) -> str:
    """What a command prints, run in this process."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with redirect_stdout(out), mock.patch.dict(os.environ, COLUMNS="100"):
        assert run_command(["--lake", str(lake), "-q", *arguments, "--as-of", AS_OF]) == 0
        out.flush()
    return bytes(out.buffer.getvalue()).decode()  # type: ignore[attr-defined]


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, loopstats; assert not {'polars', 'duckdb', 'scipy', 'typer', 'loopstats.api'} & set(sys.modules);"
        "loopstats.open; assert 'loopstats.api' in sys.modules; print(sorted(dir(loopstats))[0])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "Ingested\n"
    with pytest.raises(AttributeError, match="no attribute 'opened'"):
        loopstats.opened  # type: ignore[attr-defined]  # noqa: B018


def test_the_page_runs(sample_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = BLOCKS.findall((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sample").symlink_to(ROOT / "data" / "sample")
    shutil.copytree(sample_lake, tmp_path / "lake")  # what the page ingests is there already, so it takes no time
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(block[0], "docs/api.md", "exec"), {})
    assert out.getvalue() == block[1]


def test_every_method_is_on_the_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    doors = [loopstats.OpenLake, loopstats.Lift, loopstats.Ingested]
    names = {name for door in doors for name in [*vars(door), *door.__annotations__] if not name.startswith("_")}
    hidden = {"readout", "tz", "path", "settings", "generation"}
    assert {name for name in names - hidden if not re.search(rf"`[^`]*\b{name}\b[^`]*`", page)} == set()


def test_frames_have_the_columns_of_the_contract(lake: loopstats.OpenLake) -> None:
    for name in ("steps", "turns", "sessions", "loops", "runs", "drifts", "deliveries", "detections", "guards",
                 "results", "rejects", "sources"):  # fmt: skip
        assert getattr(lake, name)().schema == TABLES[name].schema, name


def test_the_commands_say_the_same(lake: loopstats.OpenLake) -> None:
    body = json.loads(printed(lake.path, "lift", "--since", "7d", "--by", "tool", "-f", "json"))
    lift = lake.lift(since="7d", by="tool")
    assert lift.to_json() == body
    assert lift.text(100) == printed(lake.path, "lift", "--since", "7d", "--by", "tool")
    chosen = ("--since", "7d", "--tool", "Bash", "--where", "count_events > 3")
    rows = [json.loads(line) for line in printed(lake.path, "loops", *chosen, "-f", "jsonl").splitlines()]
    loops = lake.loops(since="7d", tool="Bash", where="count_events > 3")
    assert [row["loop_id"] for row in rows] == loops["loop_id"].to_list() != []
    rows = [json.loads(line) for line in printed(lake.path, "runs", "--since", "2d", "-f", "jsonl").splitlines()]
    assert [row["run_id"] for row in rows] == lake.runs(since="2d")["run_id"].to_list() != []
    assert lake.sql("conservation").rows() == [
        tuple(json.loads(line).values())
        for line in printed(lake.path, "sql", "conservation", "-f", "jsonl").splitlines()
    ]


def test_lift_by_attribute(lake: loopstats.OpenLake) -> None:
    lift = lake.lift(since="7d", by=["tool"])
    body = lift.to_json()
    row = next(r for r in body["rows"] if r["scope"] == "to_date")
    assert lift.lift == pytest.approx(row["lift"])
    assert lift.interval == pytest.approx((row["ci_fixed_low"], row["ci_fixed_high"]))
    assert lift.interval_nightly == pytest.approx((row["ci_anytime_low"], row["ci_anytime_high"]))
    assert (lift.treated.n, lift.holdout.n, lift.n) == (212, 210, 422)
    assert (lift.verdict, lift.reasons, lift.experiments, lift.is_replay) == ("helps", (), ("sample",), False)
    assert lift.headline.startswith("sample helps: treated loops broke 24.6 points more often")
    assert lift.rows()["scope"].to_list() == ["window", "to_date", "replay"]
    parts = lift.segments()
    assert parts["n_treated"].sum() + parts["n_holdout"].sum() == 422
    assert lift.segments("window")["n_treated"].sum() == lift.scope("window").headline.treated.n
    with pytest.raises(TypeError, match="no numeric format"):
        f"{lift.treated:.2f}"
    with pytest.raises(UsageError, match="there are: to_date, replay"):
        lake.lift().scope("window")
    with pytest.raises(AttributeError):
        lift.tz = "Z"  # type: ignore[misc]


def test_without_an_experiment_there_is_no_lift(tmp_path: Path) -> None:
    lake = loopstats.open(tmp_path / "lake", create=True, as_of=AS_OF)
    done = lake.ingest([ROOT / "data" / "sample" / "codex"])
    assert (done.new, done.rejects.height, done.formats["format"].to_list()) == (6, 0, ["codex"])
    lift = lake.lift()
    assert (lift.is_replay, lift.lift, lift.interval, lift.interval_nightly, lift.verdict) == (True, *[None] * 4)
    assert lift.n == lake.loops().filter(pl.col("rule") == "strategy-loop/1").height > 0
    assert lake.ingest(str(ROOT / "data" / "sample" / "codex")).same == 6


def test_an_open_lake_stays_at_its_generation(tmp_path: Path) -> None:
    first = loopstats.open(tmp_path / "lake", create=True)
    assert first.generation == 0
    with pytest.raises(UsageError, match="no lake at"):
        first.loops()
    with pytest.raises(UsageError, match="no lake at"):
        loopstats.open(tmp_path / "lake")
    first.ingest(next((ROOT / "data" / "sample" / "codex").rglob("*.jsonl")))
    second = loopstats.open(tmp_path / "lake")
    second.ingest(ROOT / "data" / "sample" / "codex")
    assert first.sessions().height == 1 < second.sessions().height == first.refresh().sessions().height


def test_where_a_lake_is_looked_for(sample_lake: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOOPSTATS_LAKE", str(sample_lake))
    assert loopstats.open().path == sample_lake
    bad = tmp_path / "bad.toml"
    bad.write_text("maturity_hours = 'x'\n", encoding="utf-8")
    with pytest.raises(UsageError, match="maturity_hours"):
        loopstats.open(config_file=bad)


def test_times_and_names(lake: loopstats.OpenLake) -> None:
    since = datetime(2026, 11, 18, tzinfo=UTC)
    assert lake.loops(since=since).equals(lake.loops(since="2d"))
    assert lake.loops(project=["harbor-shop"], tool="Bash").height == lake.loops(tool=["Bash"]).height
    assert lake.steps(until=since).filter(pl.col("ts") >= since).is_empty()
    early = lake.steps(as_of=since)
    assert early.height + lake.steps(since=since).height == lake.steps().height
    with pytest.raises(UsageError, match="a time needs its zone"):
        lake.loops(since=datetime(2026, 11, 18))  # noqa: DTZ001
    with pytest.raises(UsageError, match="7m"):
        lake.loops(since="7m")
    with pytest.raises(UsageError, match="known only after the detection"):
        lake.lift(where="outcome = 'broke'")
    with pytest.raises(UsageError, match="read-only"):
        lake.sql("drop table loops")
    with pytest.raises(NothingError, match="there are: sample"):
        lake.lift(experiment="other")


USER = """
import loopstats
from loopstats import Lift, OpenLake
from loopstats.errors import LoopstatsError


def share(lake: OpenLake, days: int) -> float | None:
    lift: Lift = lake.lift(since=f"{days}d", by="tool")
    for notice in lift.warnings:
        print(notice.text)
    return lift.interval[0] if lift.interval is not None else lift.lift


lake = loopstats.open("lake", as_of="2026-11-20")
names: list[str] = lake.loops(tool=["Bash"], where="count_events > 3").columns
told: str = lake.explain("6b10", raw=True).text()
try:
    print(share(lake, 7), lake.sql("select 1").item(), lake.ingest("logs").rejects.height)
except LoopstatsError as error:
    print(error.exit_code)
"""
WRONG = """
reveal_type(loopstats.open("lake").loops())
loopstats.open("lake").loops(sincee="7d")
loopstats.open("lake").lift().lift + 1
"""


def test_a_users_code_is_checked(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(USER, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(USER + WRONG, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(tmp_path / "right.py"), str(tmp_path / "wrong.py")],
        cwd=ROOT,  # its cache of the packages that both read is that of `make lint`
        capture_output=True,
        text=True,
    )
    said = [line.split("py:", 1)[1].split(": ", 1)[1] for line in done.stdout.splitlines() if "wrong.py:" in line]
    assert [line for line in done.stdout.splitlines() if "right.py:" in line] == []
    assert [line.split("  ")[0] for line in said if not line.startswith(("note: Left", 'note: "loops"'))] == [
        'note: Revealed type is "polars.dataframe.frame.DataFrame"',
        'error: Unexpected keyword argument "sincee" for "loops" of "OpenLake"; did you mean "since"?',
        'error: Unsupported operand types for + ("None" and "int")',
    ], done.stdout + done.stderr


def test_the_sdist_holds_what_a_reader_needs(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        held = {name.split("/", 1)[1] for name in packed.getnames() if "/" in name}
    tracked = subprocess.run(
        ["git", "ls-files", "notebooks", "docs", "pipeline"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert {"notebooks/first_look.ipynb", "notebooks/reading_a_lift.ipynb", "pipeline/loopstats/py.typed"} <= held
    assert set(tracked) - held == set()
    assert {name for name in held if name.startswith("notebooks/")} == {
        n for n in tracked if n.startswith("notebooks/")
    }


def test_settings_are_those_of_the_commands(
    sample_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A project's file, then the environment over it; what the program lists as settings is what `open` took."""
    for name in [name for name in os.environ if name.startswith("LOOPSTATS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    shutil.copytree(sample_lake, tmp_path / "mine")
    (tmp_path / "loopstats.toml").write_text('lake = "mine"\nmaturity_hours = 48\ntz = "Asia/Tokyo"\n')
    opened = loopstats.open()
    assert opened.path == tmp_path / "mine"
    assert opened.settings.maturity_us == 48 * 3_600_000_000
    assert opened.loops(since="2026-11-19").height != loopstats.open(tz="UTC").loops(since="2026-11-19").height
    monkeypatch.setenv("LOOPSTATS_MATURITY_HOURS", "12")
    monkeypatch.setenv("LOOPSTATS_LAKE", str(sample_lake))
    monkeypatch.setenv("LOOPSTATS_EXPERIMENT", '{"experiment": "b", "salt": "s", "n_star": 300}')
    opened = loopstats.open()
    assert opened.path == sample_lake and opened.settings.maturity_us == 12 * 3_600_000_000
    assert opened.settings.experiments["b"].n_star == 300
    assert run_command(["config", "--json"]) == 0
    told = {row["key"]: row["value"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert (told["lake"], told["maturity_hours"], told["tz"]) == (str(sample_lake), "12.0", "Asia/Tokyo")
    monkeypatch.setenv("LOOPSTATS_TZ", "Nowhere/Land")
    with pytest.raises(UsageError):
        loopstats.open().loops(since="2026-11-19")
