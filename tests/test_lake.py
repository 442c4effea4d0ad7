"""`lake verify`, `rebuild`, `compact`, `info`: every damage is named with its mend, and the mend mends.

Lakes of earlier versions lie under `golden/lakes`: they are read, taken further and made anew without loss.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lines import assert_same, tables_of
from loopstats import care, run, store
from loopstats.cli import run_command
from loopstats.config import Settings
from loopstats.errors import FINDING, OK, LakeError
from loopstats.store import Lake
from test_growth import put, step

GOLDEN = Path(__file__).parent / "golden" / "lakes"
GONE = [step(number, "gone") for number in range(20, 24)]
X = [*(step(number) for number in range(6)), '{"v": 1, "type": "st', *(step(number) for number in (6, 7))]


def ingest(lake: Path, *paths: Path) -> None:
    """As the command line does it."""
    assert run.ingest(Lake(lake), [str(path) for path in paths], Settings())["unbalanced"] == []


@pytest.fixture(scope="module")
def two_nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of two nights: `logs/x.jsonl` grew and holds a bad line, `logs/gone.jsonl` was read and deleted."""
    folder = tmp_path_factory.mktemp("nights")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        put("logs/gone.jsonl", GONE)
        put("logs/x.jsonl", X[:7])
        ingest(Path("lake"), Path("logs"))
        Path("logs/gone.jsonl").unlink()
        put("logs/x.jsonl", X)
        ingest(Path("lake"), Path("logs"))
    return folder


@pytest.fixture
def folder(two_nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `two_nights` to work in."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(two_nights, tmp_path, dirs_exist_ok=True)
    ledger("UPDATE sources SET path = replace(path, ?, ?)", str(two_nights.resolve()), str(tmp_path.resolve()))
    status = Path("logs/x.jsonl").stat()
    ledger("UPDATE sources SET inode = ?, mtime_ns = ? WHERE is_gone = 0", status.st_ino, status.st_mtime_ns)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON answer and what was said."""
    capsys.readouterr()
    code = run_command(["--lake", "lake", *arguments, "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else {}, said.err


def file_of(name: str) -> Path:
    return Lake(Path("lake")).snapshot().paths(name)[0]


def ledger(statement: str, *values: Any) -> None:
    with closing(sqlite3.connect("lake/ledger.sqlite")) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


def unlist(name: str) -> None:
    manifest = json.loads(Path("lake/manifest.json").read_bytes())
    manifest["files"] = [entry for entry in manifest["files"] if entry["name"] != name]
    Path("lake/manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def move_to_another_bucket() -> None:
    """The ledger says another bucket than the one that the sessions belong to, and so does the manifest."""
    path = file_of("steps").relative_to("lake").as_posix()
    ledger("UPDATE files SET bucket = (bucket + 1) % 64 WHERE path = ?", path)
    with Lake(Path("lake")).write():
        pass


DAMAGES: dict[str, tuple[Callable[[], Any], str, str, str]] = {
    "derived file flipped": (lambda: flip(file_of("steps")), "files", "data/steps/", "lake rebuild"),
    "derived file missing": (lambda: file_of("loops").unlink(), "files", "data/loops/", "lake rebuild"),
    "derived file cut": (lambda: file_of("runs").write_bytes(b"PAR1"), "files", "data/runs/", "lake rebuild"),
    "records flipped": (lambda: flip(file_of("records")), "files", "data/records/", "--from-sources"),
    "records missing": (lambda: file_of("records").unlink(), "files", "data/records/", "--from-sources"),
    "stray": (
        lambda: file_of("steps").with_name("x.parquet").write_bytes(b"x"),
        "strays",
        "data/steps/bucket=",
        "sweeps it",
    ),
    "rows elsewhere": (move_to_another_bucket, "files", "data/steps/", "lake rebuild"),
    "manifest missing": (lambda: Path("lake/manifest.json").unlink(), "manifest", "manifest.json", "lake compact"),
    "manifest cut": (lambda: Path("lake/manifest.json").write_text("{"), "manifest", "manifest.json", "lake compact"),
    "manifest differs": (lambda: unlist("steps"), "manifest", "manifest.json", "lake compact"),
    "ledger missing": (lambda: Path("lake/ledger.sqlite").unlink(), "ledger", "ledger.sqlite", "ingest again"),
    "ledger torn": (lambda: Path("lake/ledger.sqlite").write_bytes(b"x" * 5000), "ledger", "ledger.sqlite", "backup"),
    "ledger counts": (
        lambda: ledger("UPDATE sources SET count_carrying = count_carrying + 1 WHERE is_gone = 0"),
        "records",
        "logs/x.jsonl",
        "--from-sources",
    ),
    "a reject forgotten": (lambda: ledger("DELETE FROM rejects"), "conservation", "logs/x.jsonl", "rebuild"),
}
MENDED_BY_A_WRITER = {"stray", "manifest missing", "manifest cut", "manifest differs"}


def test_a_sound_lake_is_told_to_be_sound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer, said = call(capsys, "lake", "verify")
    assert code == OK, said
    assert [row["check"] for row in answer["rows"]] == [
        "ledger",
        "manifest",
        "files",
        "strays",
        "records",
        "conservation",
    ]
    assert {row["state"] for row in answer["rows"]} == {"ok"}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named_with_its_mend(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, check, where, mend = DAMAGES[name]
    before = tables_of(Path("lake"))
    damage()
    code, answer, said = call(capsys, "lake", "verify")
    assert code == FINDING
    faults = [row for row in answer["rows"] if row["state"] != "ok"]
    assert [(row["check"], row["where"].startswith(where)) for row in faults] == [(check, True)]
    assert mend in faults[0]["mend"]
    assert faults[0]["where"] in said
    if check == "ledger":
        return
    if name in MENDED_BY_A_WRITER:
        assert call(capsys, "lake", "compact")[0] == OK
    elif "--from-sources" not in mend and name != "a reject forgotten":
        assert call(capsys, "lake", "rebuild")[0] == OK
    else:
        assert call(capsys, "lake", "rebuild", "--from-sources")[0] == OK
    code, _, said = call(capsys, "lake", "verify")
    assert code == OK, said
    assert_same(tables_of(Path("lake")), before)


@pytest.mark.parametrize("name", ["missing", "spoilt"])
@pytest.mark.parametrize("command", [["runs"], ["sql", "select * from steps"], ["ingest", "logs"]], ids=" ".join)
def test_whoever_meets_a_damaged_file_is_sent_to_verify(
    name: str, command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put("logs/x.jsonl", [*X, step(8)])
    for path in Lake(Path("lake")).snapshot().paths("records" if command[0] == "ingest" else "steps"):
        if name == "missing":
            path.unlink()
        else:
            path.write_bytes(b"x" * path.stat().st_size)
    assert run_command(["--lake", "lake", *command]) == FINDING
    assert "`loopstats lake verify`" in capsys.readouterr().err


def test_a_ledger_that_is_missing_or_damaged_is_never_a_first_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Path("lake/ledger.sqlite").read_bytes()
    for data in (None, b"", b"x" * 5000, whole[:4096], whole[: len(whole) // 2]):
        Path("lake/ledger.sqlite").unlink(missing_ok=True)
        if data is not None:
            Path("lake/ledger.sqlite").write_bytes(data)
        capsys.readouterr()
        for command in (["ingest", "logs"], ["lake", "rebuild"], ["lake", "compact"]):
            assert run_command(["--lake", "lake", *command]) == FINDING
            assert "restore it" in capsys.readouterr().err
    Path("lake/ledger.sqlite").write_bytes(whole)
    assert call(capsys, "lake", "verify")[0] == OK


# --- rebuild ----------------------------------------------------------------------------------------------------------


def test_rebuild_gives_the_tables_that_were_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tables_of(Path("lake"))
    for arguments in (["rebuild"], ["rebuild", "--from-sources"]):
        code, answer, said = call(capsys, "lake", *arguments)
        assert code == OK, said
        (row,) = answer["rows"]
        assert row["is_same"] is True
        assert row["digest"] == row["digest_before"] == Lake(Path("lake")).snapshot().digest()
        assert_same(tables_of(Path("lake")), before)
    assert row["files_read"] == row["files_gone"] == 1


def test_rebuild_mends_tables_that_say_something_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tables_of(Path("lake"))
    with Lake(Path("lake")).write() as writer:
        steps = writer.snapshot().read("steps")
        for bucket in writer.snapshot().buckets("steps"):
            writer.replace(store.TABLES["steps"], bucket, steps.clear())
        writer.replace(store.TABLES["steps"], 7, steps.with_columns(pl.lit("wrong").alias("tool")))
        writer.commit([], [], [], {})
    assert tables_of(Path("lake"))["steps"]["tool"].unique().to_list() == ["wrong"]
    code, answer, _ = call(capsys, "lake", "rebuild")
    assert (code, answer["rows"][0]["is_same"]) == (OK, False)
    assert_same(tables_of(Path("lake")), before)


def test_damaged_records_are_left_out_only_when_asked_to(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is still on disk is read again; what was only in the damaged file is told as lost, once."""
    lake = Lake(Path("lake"))
    damaged = [p for p in lake.snapshot().paths("records") if "gone" in pl.read_parquet(p, glob=False)["session_id"]]
    flip(damaged[0])
    code, _, said = call(capsys, "lake", "rebuild")
    assert code == FINDING
    assert damaged[0].name in said and "--from-sources" in said
    code, answer, said = call(capsys, "lake", "rebuild", "--from-sources")
    assert code == FINDING
    assert f"{damaged[0].relative_to('lake')}: missing or damaged, left out" in said
    assert "logs/gone.jsonl: 4 lines that were read are lost" in said
    tables = tables_of(Path("lake"))
    assert tables["steps"]["session_id"].unique().to_list() == ["s"]
    assert tables["steps"].height == 8
    assert answer["rows"][0]["is_same"] is False
    assert call(capsys, "lake", "verify")[0] == OK
    assert call(capsys, "lake", "rebuild", "--from-sources")[0] == OK


def test_recorded_nights_outlive_a_rebuild(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--lake", "lake", "ingest", "logs"]) == OK  # under the settings of the command line
    assert run_command(["--lake", "lake", "lift", "--record", "--since", "all", "--as-of", "2026-11-10"]) == OK
    before = tables_of(Path("lake"))["lift"]
    assert before.height > 0
    assert call(capsys, "lake", "rebuild", "--from-sources")[0] == OK
    assert tables_of(Path("lake"))["lift"].equals(before)
    file_of("lift").unlink()
    code, answer, _ = call(capsys, "lake", "verify")
    assert code == FINDING
    assert "leaves it out" in next(row["mend"] for row in answer["rows"] if row["state"] != "ok")
    code, _, said = call(capsys, "lake", "rebuild")
    assert code == OK
    assert "left out" in said
    assert tables_of(Path("lake"))["lift"].height == 0


# --- compaction -------------------------------------------------------------------------------------------------------


def nights(count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        put("logs/n.jsonl", [step(n, "n") for n in range(number + 1)])
        ingest(Path("lake"), Path("logs"))


def test_compaction_changes_no_row_and_disturbs_no_reader(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights(3)
    lake = Lake(Path("lake"))
    reader = lake.snapshot()
    before, digest = tables_of(Path("lake")), reader.digest()
    assert care.most_files(reader) == 3
    code, answer, _ = call(capsys, "lake", "compact")
    assert code == OK
    (row,) = answer["rows"]
    assert row["generation"] == reader.generation + 1
    assert row["count_files_before"] - row["count_files"] == 3  # 3 to 1, and 2 of session s to 1
    assert care.most_files(lake.snapshot()) == 1
    assert lake.snapshot().digest() == digest
    assert_same(tables_of(Path("lake")), before)
    assert reader.scan("records").collect().height == lake.snapshot().scan("records").collect().height
    for _ in range(2):
        assert all(path.exists() for path in reader.paths("records"))
        nights(1, 3 + _)
    assert not any(path.exists() for path in reader.paths("records", bucket=store.bucket_of("n")))
    assert call(capsys, "lake", "verify")[0] == OK
    assert call(capsys, "lake", "compact")[1]["rows"][0]["generation"] == row["generation"] + 3
    again = call(capsys, "lake", "compact")[1]["rows"][0]
    assert again["generation"] == row["generation"] + 3  # nothing to merge, nothing committed


def test_an_ingest_merges_what_many_nights_appended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MERGE_FILES", 2)
    most = []
    for number in range(5):
        nights(1, number)
        most.append(len(Lake(Path("lake")).snapshot().paths("records", store.bucket_of("n"))))
    assert most == [1, 2, 1, 2, 1]
    ingest(Path("once"), Path("logs"))
    session_n = {name: frame for name, frame in tables_of(Path("lake")).items() if "session_id" in frame.columns}
    once = tables_of(Path("once"))
    for name, frame in session_n.items():
        is_n = pl.col("session_id") == "n"
        assert frame.filter(is_n).equals(once[name].filter(is_n)), name


# --- info -------------------------------------------------------------------------------------------------------------


def test_info_says_what_is_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer, _ = call(capsys, "lake", "info")
    assert code == OK
    snapshot = Lake(Path("lake")).snapshot()
    rows = {row["name"]: row for row in answer["rows"]}
    assert (answer["generation"], answer["schema_version"], answer["digest"]) == (2, 1, snapshot.digest())
    assert (answer["sources"], answer["sources_same"], answer["sources_gone"]) == (2, 1, 1)
    assert (answer["first_event_at"], answer["last_event_at"]) == ("2026-11-02T09:00:00Z", "2026-11-02T09:23:00Z")
    assert (rows["steps"]["count_rows"], rows["records"]["count_files"]) == (12, len(snapshot.paths("records")))
    assert rows["steps"]["size_bytes"] == sum(path.stat().st_size for path in snapshot.paths("steps"))
    put("logs/x.jsonl", [step(0)])
    assert call(capsys, "lake", "info")[1]["sources_changed"] == 1
    run_command(["--lake", "lake", "lake", "info"])
    assert "generation: 2\n" in capsys.readouterr().out


def test_doctor_says_when_files_are_many(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--lake", "lake", "ingest", "logs"]) == OK
    found = {row["check"]: row for row in call(capsys, "doctor")[1]["rows"]}
    assert found["files a bucket"]["state"] == "ok"
    with Lake(Path("lake")).write() as writer:
        frame = writer.snapshot().scan("records").collect()
        for _ in range(20):
            writer.append(store.RECORDS, 0, frame[:1])
        writer.commit([], [], [], {})
    found = {row["check"]: row for row in call(capsys, "doctor")[1]["rows"]}
    assert found["files a bucket"]["state"] == "look"
    assert "lake compact" in found["files a bucket"]["advice"]


# --- schemas ----------------------------------------------------------------------------------------------------------


def newer() -> None:
    ledger("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    manifest = json.loads(Path("lake/manifest.json").read_bytes())
    Path("lake/manifest.json").write_text(json.dumps(manifest | {"schema_version": 99}), encoding="utf-8")


@pytest.mark.parametrize(
    "command",
    [["ingest", "logs"], ["lift"], ["sql", "select 1"], ["doctor"]]
    + [["lake", name] for name in ("verify", "info", "compact", "rebuild")],
    ids=" ".join,
)
def test_a_lake_of_a_newer_schema_is_refused(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer()
    before = {path: path.read_bytes() for path in Path("lake").rglob("*") if path.is_file()}
    assert run_command(["--lake", "lake", *command]) == FINDING
    # `doctor` goes on to its other checks: to it a lake that it cannot read is a finding like any other.
    told = capsys.readouterr()
    assert "upgrade loopstats" in (told.out if command == ["doctor"] else told.err)
    assert {path: path.read_bytes() for path in Path("lake").rglob("*") if path.is_file()} == before


def test_an_older_ledger_is_migrated_in_one_step_or_not_at_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tables_of(Path("lake"))
    grown = ("ALTER TABLE sources ADD COLUMN note TEXT NOT NULL DEFAULT ''",)
    for module in (store, care):
        monkeypatch.setattr(module, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(store, "_MIGRATIONS", (grown, ("ALTER TABLE nowhere ADD COLUMN x TEXT",)))
    assert run_command(["--lake", "lake", "lake", "compact"]) != OK
    with Lake(Path("lake")).reading() as connection:
        assert connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone() == ("1",)
        assert "note" not in store.source_rows(connection)[0]
    monkeypatch.setattr(store, "_MIGRATIONS", (grown, ("CREATE TABLE more(x TEXT) STRICT",)))
    assert call(capsys, "lake", "compact")[0] == OK
    with Lake(Path("lake")).reading() as connection:
        assert connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone() == ("3",)
        assert store.source_rows(connection)[0]["note"] == ""
    assert json.loads(Path("lake/manifest.json").read_bytes())["schema_version"] == 3
    assert_same(tables_of(Path("lake")), before)


def test_there_is_a_golden_lake_for_every_schema() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == [f"schema-{n + 1}" for n in range(store.SCHEMA_VERSION)]
    assert len(store._MIGRATIONS) == store.SCHEMA_VERSION - 1


@pytest.mark.parametrize("golden", sorted(GOLDEN.iterdir()), ids=lambda path: path.name)
def test_a_lake_of_an_earlier_version_goes_on_without_loss(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read as it is, made anew, and grown: the steps of a deleted log, its rejects and its nights are still there."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(golden, "lake")
    said = json.loads((golden.parent.parent / f"{golden.name}.json").read_bytes())
    assert Lake(Path("lake")).snapshot().digest() == said["digest"]
    assert {name: frame.height for name, frame in tables_of(Path("lake")).items()} == said["rows"]
    assert call(capsys, "lake", "verify")[0] == OK
    nights_before = tables_of(Path("lake"))["lift"]
    # The logs lay elsewhere when it was made.
    log = [*(step(n, "a") for n in range(6)), '{"v": 1, "type": "st']
    log += [step(6, "a"), step(7, "a", "success"), step(8, "a", "success"), step(9, "a", "success")]
    put("logs/a.jsonl", log)
    ledger("UPDATE sources SET path = replace(path, '/tmp/golden', ?)", str(tmp_path.resolve()))
    assert run_command(["--lake", "lake", "ingest", "logs"]) == OK
    tables = tables_of(Path("lake"))
    assert tables["steps"].height == said["rows"]["steps"] + 1
    assert tables["steps"].filter(pl.col("run_id") == "a/helper").height == 4
    assert tables["rejects"].height == 1
    assert tables["lift"].equals(nights_before)
    assert tables["sources"].select("source_file", "is_gone", "count_read", "count_waiting").rows() == [
        ("logs/a.jsonl", False, 11, 0),
        ("logs/gone.jsonl", True, 4, 0),
    ]
    assert call(capsys, "lake", "rebuild")[0] == OK
    assert_same(tables_of(Path("lake")), tables)
    assert call(capsys, "lake", "verify")[0] == OK


def test_verify_beside_a_writer_sees_no_strays(folder: Path) -> None:
    lake = Lake(Path("lake"))
    with lake.write() as writer:
        writer.append(store.RECORDS, 0, writer.snapshot().scan("records").collect())
        assert {check.state for check in care.verify(lake)} == {"ok"}
    assert [check.check for check in care.verify(lake) if check.state != "ok"] == ["strays"]


def test_a_lake_that_is_none_is_no_finding(tmp_path: Path) -> None:
    for work in (care.verify, care.info, care.compact):
        with pytest.raises(Exception, match="no lake at"):
            work(Lake(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(LakeError):
        (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
        care.info(Lake(tmp_path))
