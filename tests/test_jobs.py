"""Several processes read; the lake must not know it. And what the options around an ingest promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import generate
from loopstats import cli, found, run, workers
from loopstats import ingest as ingest_files
from loopstats.config import Settings
from loopstats.store import Lake

SEED, FILES, FILE_BYTES = 11, 5, 250_000


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five small sessions of different lengths, one of them with a torn line, and a file that is no log."""
    monkeypatch.setattr(generate, "FILE_BYTES", FILE_BYTES)
    folder = tmp_path / "logs"
    paths = generate.write(folder, FILES * FILE_BYTES, SEED)
    assert len(paths) == FILES
    lines = paths[1].read_bytes().splitlines(keepends=True)
    paths[1].write_bytes(b"".join([*lines[:20], b'{"type":"user","mess\n', *lines[20:]]))
    paths[2].write_bytes(b"".join(paths[2].read_bytes().splitlines(keepends=True)[:30]))
    (folder / "notes.json").write_text('{"no": "log"}')
    return folder


def files_of(lake: Path) -> list[tuple[str, int, str]]:
    """Table, bucket and hash of every file of a lake: equal lists are equal bytes."""
    return sorted((file.name, file.bucket, file.sha256) for file in Lake.open(lake).snapshot().files)


def ingest(lake: Path, folder: Path, jobs: int | None) -> None:
    run.ingest(Lake(lake), [str(folder)], Settings(), jobs=jobs)


def test_the_tables_do_not_depend_on_the_number_of_jobs(logs: Path, tmp_path: Path) -> None:
    for jobs in (1, 2, 3):
        ingest(tmp_path / f"lake{jobs}", logs, jobs)
    one = files_of(tmp_path / "lake1")
    assert {name for name, _, _ in one} >= {"records", "steps", "turns", "sessions", "rejects", "sources"}
    assert files_of(tmp_path / "lake2") == one
    assert files_of(tmp_path / "lake3") == one


def test_growth_read_by_several_is_growth_read_by_one(logs: Path, tmp_path: Path) -> None:
    whole = {path: path.read_bytes() for path in sorted(logs.glob("*.jsonl"))}
    for path, data in whole.items():
        path.write_bytes(data[: len(data) // 2])
    lakes = {jobs: tmp_path / f"lake{jobs}" for jobs in (1, 2)}
    for jobs, lake in lakes.items():
        ingest(lake, logs, jobs)
    for path, data in whole.items():
        path.write_bytes(data)
    for jobs, lake in lakes.items():
        ingest(lake, logs, jobs)
    assert files_of(lakes[1]) == files_of(lakes[2])


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_that_does_not_open_is_told_in_its_turn(logs: Path, jobs: int) -> None:
    files, _ = ingest_files.discover([str(logs)])
    (logs / "session-00003.jsonl").unlink()
    tasks = [workers.Task(file, None, number) for number, file in enumerate(files, 1)]
    outcomes = list(workers.read_all(tasks, {}, jobs))
    errors = [Path(task.found.path).name for task, out in zip(tasks, outcomes, strict=True) if isinstance(out, OSError)]
    assert errors == ["session-00003.jsonl"]
    numbers = [out[0].row["source_id"] for out in outcomes if not isinstance(out, OSError)]
    assert numbers == [task.source_id for task in tasks if "00003" not in task.found.path]


def test_the_records_of_a_file_do_not_depend_on_the_files_beside_it(logs: Path) -> None:
    tasks = [workers.Task(file, None, number) for number, file in enumerate(ingest_files.discover([str(logs)])[0], 1)]
    together = [out[1] for out in workers.read_all(tasks, {}, 1) if not isinstance(out, OSError)]
    alone = [out[1] for task in tasks for out in workers.read_all([task], {}, 1) if not isinstance(out, OSError)]
    assert len(together) == len(tasks) and sum(frame.height for frame in alone) > 0
    assert all(one.equals(other) for one, other in zip(together, alone, strict=True))


def test_one_worker_for_little_and_a_core_each_for_much() -> None:
    assert workers.choose_jobs(workers.WORTH_BYTES - 1) == 1
    assert workers.choose_jobs(workers.WORTH_BYTES) == workers.count_cores()
    assert workers.choose_jobs(1, 3) == 3


def test_progress_tells_of_every_file_and_byte(logs: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int, int, int]] = []
    run.ingest(Lake(tmp_path / "lake"), [str(logs)], Settings(), jobs=2, progress=lambda *step: told.append(step))
    read = [step for step in told if step[4]]
    size = sum(path.stat().st_size for path in logs.iterdir())
    assert [step[1] for step in read] == list(range(1, FILES + 2))
    assert read[-1][3] == read[-1][4] == size
    assert [step[0] for step in told[len(read) :]] == ["deriving"]


def invoke(lake: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["--lake", str(lake), "ingest", *words])
    return (result.exception.exit_code if hasattr(result.exception, "exit_code") else result.exit_code), result.stdout


def test_a_dry_run_tells_each_file_and_leaves_no_trace(logs: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"

    def rows() -> dict[str, dict[str, object]]:
        code, out = invoke(lake, str(logs), "--dry-run", "--json")
        assert code == 0
        return {Path(row["source_file"]).name: row for row in json.loads(out)["rows"]}

    assert {row["state"] for row in rows().values()} == {"new"}
    assert not lake.exists()
    ingest(lake, logs, 1)
    before = {path: path.stat().st_mtime_ns for path in lake.rglob("*")}
    with (logs / "session-00000.jsonl").open("ab") as file:
        file.write(b'{"type":"summary"}\n')
    (logs / "session-00001.jsonl").write_bytes((logs / "session-00002.jsonl").read_bytes())
    (logs / "session-00003.jsonl").unlink()
    seen = rows()
    assert {name: row["state"] for name, row in seen.items()} == {
        "notes.json": "same",
        "session-00000.jsonl": "grown",
        "session-00001.jsonl": "changed",
        "session-00002.jsonl": "same",
        "session-00003.jsonl": "gone",
        "session-00004.jsonl": "same",
    }
    assert seen["session-00000.jsonl"]["bytes_to_read"] == 19
    assert seen["session-00001.jsonl"]["bytes_to_read"] == (logs / "session-00001.jsonl").stat().st_size
    assert {path: path.stat().st_mtime_ns for path in lake.rglob("*")} == before


def test_strict_writes_nothing_where_a_line_is_rejected(logs: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert invoke(lake, str(logs), "--strict")[0] == 4
    assert Lake.open(lake).snapshot().files == ()
    (logs / "session-00001.jsonl").unlink()
    (logs / "notes.json").unlink()
    assert invoke(lake, str(logs), "--strict")[0] == 0
    assert Lake.open(lake).snapshot().files != ()


def test_strict_and_a_number_of_rejects_contradict_each_other(logs: Path, tmp_path: Path) -> None:
    assert invoke(tmp_path / "lake", str(logs), "--strict", "--max-rejects", "2")[0] == 2


LIGHT = """
import sys
from loopstats import cli
code = cli.run_command(sys.argv[1:])
print("heavy:", sorted({"polars", "pyarrow", "duckdb", "scipy", "pydantic"} & set(sys.modules)))
sys.exit(code)
"""


def second_run(lake: Path, folder: Path) -> list[str]:
    words = [sys.executable, "-c", LIGHT, "--lake", str(lake), "ingest", str(folder)]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    return done.stdout.splitlines()


def test_a_run_without_news_is_answered_before_anything_heavy_is_loaded(logs: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    ingest(lake, logs, 1)
    same = "files: 0 new, 0 grown, 6 same, 0 gone, 0 skipped"
    told = second_run(lake, logs)
    assert (told[0], told[1].split()[0], told[2:]) == (same, "lines:", ["heavy: []"])
    (logs / "session-00004.jsonl").unlink()
    told = second_run(lake, logs)
    assert told[-3] == "files: 0 new, 0 grown, 5 same, 1 gone, 0 skipped"
    assert told[-1] == "heavy: ['polars', 'pydantic']"
    told = second_run(lake, logs)
    assert (told[0], told[-1]) == ("files: 0 new, 0 grown, 5 same, 0 gone, 0 skipped", "heavy: []")


def test_no_shortcut_past_other_settings_or_a_commit_that_was_not_published(logs: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    ingest(lake, logs, 1)
    digests = {"rule_digest": Settings().rule_digest, "derived_digest": Settings().derived_digest}
    assert found.nothing_new(lake, [str(logs)], digests) is not None
    assert found.nothing_new(lake, [str(logs)], digests | {"rule_digest": "another"}) is None
    manifest = json.loads((lake / found.MANIFEST).read_text())
    (lake / found.MANIFEST).write_text(json.dumps(manifest | {"generation": manifest["generation"] - 1}))
    assert found.nothing_new(lake, [str(logs)], digests) is None
    assert found.nothing_new(tmp_path / "nowhere", [str(logs)], digests) is None


def test_the_shortcut_past_the_parser_answers_as_the_parser_would(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    ingest(lake, logs, 1)
    capsys.readouterr()
    spellings = (["--lake", str(lake), "ingest", str(logs)], ["ingest", str(logs), "-q", "--lake", str(lake)])
    plain = [(cli.run_command(words), *capsys.readouterr()) for words in spellings]
    first, second = plain[0][1].splitlines()
    assert first == "files: 0 new, 0 grown, 6 same, 0 gone, 0 skipped" and second.startswith("lines: 212 read = ")
    assert plain[1][1] == plain[0][1]
    assert plain[0][2] and not plain[1][2], "--quiet is heard"
    monkeypatch.setattr(cli.ingest, "is_answered_unparsed", lambda _: False)
    assert [(cli.run_command(words), *capsys.readouterr()) for words in spellings] == plain
    monkeypatch.undo()
    for words in (
        ["ingest"],
        ["ingest", "--full", str(logs)],
        ["--tz", "UTC", "ingest", str(logs)],
        ["--lake", "", "ingest", str(logs)],
    ):
        assert not cli.ingest.is_answered_unparsed(words), words
    monkeypatch.setenv("LOOPSTATS_LAKE", str(lake))
    assert cli.ingest.is_answered_unparsed(["ingest", str(logs)])


def test_files_beside_the_logs_are_looked_at_once(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home holds notes and pictures too; they must not cost the short way. A new format may know them, so then again."""
    lake = tmp_path / "lake"
    (logs / "MEMORY.md").write_text("# notes\n")
    (logs / "other.jsonl").write_text('{"a": 1}\n')
    count = sum(1 for _ in logs.iterdir())
    first = run.ingest(Lake(lake), [str(logs)], Settings())
    assert (first["files_new"], first["files_skipped"], len(first["rejects"])) == (count - 1, 1, 3)
    told = second_run(lake, logs)
    assert (told[0], told[-1]) == (f"files: 0 new, 0 grown, {count - 1} same, 0 gone, 1 skipped", "heavy: []")
    (logs / "MEMORY.md").write_text("# more notes\n")
    told = second_run(lake, logs)
    assert f"files: 0 new, 0 grown, {count - 1} same, 0 gone, 1 skipped" in told and told[-1] != "heavy: []"
    assert second_run(lake, logs)[-1] == "heavy: []"
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.md").write_text("# elsewhere\n")
    assert run.ingest(Lake(lake), [str(other)], Settings())["files_skipped"] == 1
    generation = Lake.open(lake).snapshot().generation
    for folder in (logs, other, logs):
        assert run.ingest(Lake(lake), [str(folder)], Settings())["files_skipped"] == 1
    assert Lake.open(lake).snapshot().generation == generation
    monkeypatch.setattr(found, "installed", lambda: [1])
    monkeypatch.setattr(run, "installed", lambda: [1])
    again = run.ingest(Lake(lake), [str(logs)], Settings())
    assert (again["files_same"], again["files_grown"], again["files_skipped"]) == (count - 3, 2, 1)
