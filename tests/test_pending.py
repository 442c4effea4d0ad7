"""What becomes of a pending loop is told to no reader: a lake in which it ends otherwise gives the same answers.

A column that follows from the outcome tells it as well as the outcome itself, so every reader is asked for everything.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from lines import ingest
from loopstats import api, cli, query
from loopstats.config import Settings
from loopstats.store import Lake
from loopstats.tables import LOOPS, TABLES

BEHIND = LOOPS.columns[LOOPS.names.index("outcome") + 1 :]
FOLLOWING = [c.name for c in BEHIND if not c.is_early and c.name not in ("mature_at", "last_step", "group")]
"""Every column behind the outcome, but for those that do not follow from it."""
START, HOUR = 1_793_000_000, 3600
AS_OF = "2026-10-28T12:00:00Z"


def log() -> bytes:
    """Two loops that are decided and mature at `AS_OF`, and two decided within it whose maturity is later."""
    lines = []
    for number, (start, is_broken) in enumerate([(0, True), (HOUR, False), (40 * HOUR, True), (41 * HOUR, False)]):
        for step in range(7):  # too few for a drift
            is_success = is_broken and step == 5
            lines.append(
                {"v": 1, "type": "step", "session": f"s{number}", "id": f"c{step}", "decision": f"d{step}"}
                | {"ts": START + start + step * 60, "tool": "Edit", "target": "ab"[step % 2], "message": "boom"}
                | {"outcome": "success" if is_success else "failure", "tokens": {"input": 100, "output": 1}}
                | {"model": "m"}
            )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A lake, and one in which all that follows from the outcome of a pending loop is another."""
    folder = tmp_path_factory.mktemp("pending")
    (folder / "log.jsonl").write_bytes(log())
    ingest(folder / "one" / "lake", folder / "log.jsonl", settings=Settings())
    shutil.copytree(folder / "one", folder / "other")
    is_pending = pl.col("session_id").is_in(["s2", "s3"])
    changed = 0
    for path in Lake.open(folder / "other" / "lake").snapshot().paths("loops"):
        frame = pl.read_parquet(path, glob=False)
        changed += frame.filter(is_pending).height
        frame.with_columns(
            pl.when(~is_pending).then(pl.col(name)).otherwise(other(name)).alias(name)
            for name in ("outcome", *FOLLOWING)
        ).write_parquet(path)
    assert changed == 2
    return folder / "one" / "lake", folder / "other" / "lake"


def other(name: str) -> pl.Expr:
    column = pl.col(name)
    if LOOPS.schema[name] == pl.Boolean:
        return ~column.fill_null(False)
    if LOOPS.schema[name] == pl.String:
        return pl.when(column == "broke").then(pl.lit("recurred")).otherwise(pl.lit("broke"))
    return pl.when(column.is_null()).then(pl.lit(7)).cast(LOOPS.schema[name])


def test_the_lake_itself_knows_how_they_ended(lakes: tuple[Path, Path]) -> None:
    one, two = (Lake.open(lake).snapshot().read("loops").sort("session_id") for lake in lakes)
    assert one["outcome"].to_list() == ["broke", "recurred", "broke", "recurred"]
    assert two["outcome"].to_list() == ["broke", "recurred", "recurred", "broke"]
    for name in ("outcome", *FOLLOWING):
        assert not one[name].equals(two[name]), name


def test_every_column_that_follows_from_the_outcome_is_hidden() -> None:
    assert set(query.DECIDED) == set(FOLLOWING)


def asked(lake: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = cli.run_command(["--lake", str(lake), "--no-progress", *arguments, "--as-of", AS_OF])
    assert code in (0, 3, 5), capfd.readouterr().err
    out, err = capfd.readouterr()
    return f"{code}\n{out}\n{err}".replace(str(lake), "LAKE")


def test_no_command_tells_it(
    lakes: tuple[Path, Path], capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loop = Lake.open(lakes[0]).snapshot().read("loops").filter(session_id="s2")["loop_id"].item()
    relations = [relation.name for folder in (*query.VIEW_FOLDERS, "queries") for relation in query.relations(folder)]
    commands = [["sql", name] for name in relations if query.named(name)]
    commands += [
        ["sql", f'select * from "{name}" order by all'] for name in (*TABLES, *relations) if not query.named(name)
    ]
    commands += [["loops"], ["loops", "--where", "outcome_final = 'broke' or tokens_wasted > 100"], ["lift", "--all"]]
    commands += [["waste"], ["waste", "--by", "tool"], ["waste", "--since", "30d"], ["runs"], ["audit"]]
    commands += [["explain", loop]]
    for command in commands:
        one, two = (asked(lake, capfd, *command, "-f", "json") for lake in lakes)
        assert one == two, command
        assert "pending" in one or command[0] not in ("loops", "explain") or "--where" in command
    pages = []
    for lake in lakes:
        asked(lake, capfd, "report", "-o", "report.html")
        pages.append(Path("report.html").read_text(encoding="utf-8").replace(str(lake), "LAKE"))
    assert pages[0] == pages[1]


def test_no_method_of_the_api_tells_it(lakes: tuple[Path, Path]) -> None:
    one, two = (api.open(lake, as_of=AS_OF) for lake in lakes)
    frame = one.loops()
    assert frame.equals(two.loops())
    pending = frame.filter(pl.col("outcome") == "pending")
    assert pending["session_id"].sort().to_list() == ["s2", "s3"]
    assert [name for name in FOLLOWING if pending[name].null_count() < 2] == []
    decided = frame.filter(pl.col("outcome") != "pending")
    assert decided["outcome_final"].to_list() == decided["outcome"].to_list() == ["recurred", "broke"]
    for text in (
        "select * from loops order by all",
        "select outcome_20, count(*) as n from loops group by 1 order by 1",
    ):
        assert one.sql(text).equals(two.sql(text))
    assert one.waste().equals(two.waste())
    assert str(one.lift()) == str(two.lift())


def test_the_waste_of_a_pending_loop_is_unknown_until_it_is_mature(
    lakes: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    body = json.loads(asked(lakes[0], capfd, "waste", "-f", "json").split("\n", 2)[1])
    # Of the two decided loops: detected at the third step, decided at the sixth.
    assert (body["rows"][0]["count_turns"], body["rows"][0]["tokens"]) == (6, 606)
    assert body["warnings"][0].endswith("not known yet for 2 pending loops")
    later = api.open(lakes[0], as_of="2026-12-01T00:00:00Z").waste().row(0, named=True)
    assert (later["count_turns"], later["tokens"]) == (12, 1212)
