"""The command line as a person and a script meet it: exit codes, one-line errors, streams, and what is not imported."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import small_lake
from loopstats import __version__, cli
from loopstats.tables import LOOPS

Call = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).resolve().parents[1]
AS_OF = "2026-03-04"
HEAVY = ("polars", "duckdb", "pyarrow", "scipy", "numpy", "rich.table", "zstandard", "msgspec", "altair", "jinja2")
NATIVE = ROOT / "data" / "sample" / "native"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_lake.sample(tmp_path_factory.mktemp("cli") / "lake").root


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration or lake of the person who runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in ("LOOPSTATS_LAKE", "LOOPSTATS_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def call(lake: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Call:
    def run(*arguments: str, at: Path | None = None) -> tuple[int, str, str]:
        code = cli.run_command(["--lake", str(at or lake), *arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out.decode("utf-8", "surrogateescape"), err.decode()

    return run


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "pipeline"), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["lift", "--help"], ["loops", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom loopstats.cli import run_command\n"
        f"code = run_command({arguments!r})\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else code)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment(), check=False)
    assert result.returncode == 0, result.stderr
    assert b"loopstats" in result.stdout
    assert result.stderr == b""


def test_help_names_every_command_and_exit_code(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    for word in ("ingest", "lift", "loops", "tools", "sql", "queries", "schema", "--lake", "--color", "75 lake locked"):
        assert word in out
    assert call("--version")[:2] == (0, f"loopstats {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ([], 2, "command"),
        (["nope"], 2, "nope"),
        (["loops", "--bogus"], 2, "--bogus"),
        (["loops", "--since", "3x"], 2, "90min"),
        (["loops", "--since", "3m"], 2, "3min or 3mo"),
        (["loops", "--as-of", "all"], 2, "--as-of"),
        (["loops", "--since", "2030-01-01", "--as-of", AS_OF], 2, "not before"),
        (["loops", "-f", "xml"], 2, "parquet"),
        (["loops", "--json", "-f", "csv"], 2, "choose one"),
        (["loops", "--where", "nope = 1"], 2, "nope"),
        (["loops", "-o", "missing/a.json"], 2, "missing"),
        (["loops", "--tool", "nope"], 3, "no loops match"),
        (["loops", "--as-of", "2020-01-01"], 3, "no loops match"),
        (["tools", "--project", "nope"], 3, "no steps match"),
        (["loops", "--tz", "Mars/Base"], 2, "Europe/Berlin"),
        (["loops", "--color", "pink"], 2, "never"),
        (["loops", "--config", "nope.toml"], 2, "nope.toml"),
        (["ingest"], 3, "name a file or folder"),
        (["ingest", "nope"], 2, "nope"),
        (["ingest", ".", "--max-rejects", "-1"], 2, "max-rejects"),
        (["sql", "drop view loops"], 2, "DROP is refused"),
        (["sql", "copy loops to 'x.csv'"], 2, "COPY is refused"),
        (["sql", "selec 1"], 2, "Parser Error"),
        (["schema", "nope"], 2, "nope"),
        (["lift", "--by", "outcome"], 2, "outcome"),
        (["lift", "--by", "nope"], 2, "nope"),
        (["lift", "--where", "outcome = 'broke'"], 2, "outcome"),
        (["lift", "--where", "arm = 'treated'"], 2, "arm"),
        (["lift", "--tool", "nope"], 3, "no loops match"),
        (["lift", "--experiment", "nope"], 3, "nope"),
    ],
)
def test_errors_are_one_line_with_their_code(call: Call, arguments: list[str], code: int, word: str) -> None:
    found, out, err = call(*arguments, "-q")
    assert (found, err.count("\n")) == (code, 1), err
    assert err.startswith("loopstats: ")
    assert word in err
    assert "Traceback" not in err
    assert arguments[:1] == ["lift"] or out == ""


def test_no_lake(call: Call, tmp_path: Path) -> None:
    code, out, err = call("loops", "-q", at=tmp_path / "none")
    assert (code, out) == (2, "")
    assert "loopstats ingest" in err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["loops", "lift", "drift", "waste", "runs", "tools"])
def test_an_error_stands_alone(call: Call, tmp_path: Path, command: str) -> None:
    code, out, err = call(command, at=tmp_path / "none")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("loopstats: no lake at ")


@pytest.mark.parametrize("command", [["loops"], ["lift"], ["tools"], ["nightly", "."], ["sql", "select 1"]])
def test_an_answer_says_once_what_it_is_of_and_before_all_else(call: Call, tmp_path: Path, command: list[str]) -> None:
    own = small_lake.sample(tmp_path / "lake").root if command[0] == "nightly" else None
    _, _, err = call(*command, "-v", "--as-of", AS_OF, at=own)
    head = f"loopstats: as of {AS_OF}"
    assert err.startswith(head) and err.count(head) == 1, err
    assert err.splitlines()[1].startswith("loopstats: lake ")


def test_without_a_command_the_help_is_shown_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["--help"]) == 0
    text = capsys.readouterr().out
    assert cli.run_command([]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", text)
    assert cli.run_command(["-q"]) == 2
    assert capsys.readouterr().err == "loopstats: Missing command. (see loopstats --help)\n"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_facts_of_the_lake_are_folded_to_the_terminal(call: Call, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    facts = call("lake", "info", "--json")[1]
    digest = json.loads(facts)["digest"]
    out = call("lake", "info")[1]
    assert max(map(len, out.splitlines())) <= width
    assert digest in out.replace("\n", "")


def test_a_damaged_lake_is_a_finding(call: Call, tmp_path: Path) -> None:
    root = small_lake.sample(tmp_path / "lake").root
    (root / "manifest.json").write_text("{")
    code, _, err = call("loops", "-q", at=root)
    assert code == 5
    assert err.count("\n") == 1


def test_an_internal_error_is_one_line_without_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("two\nlines \x1b[31m")

    monkeypatch.setattr("loopstats.query.queries", broken)
    code, _, err = call("queries")
    assert code == 1
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert "ZeroDivisionError" in err
    monkeypatch.setenv("LOOPSTATS_DEBUG", "1")
    assert "Traceback" in call("queries")[2]


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (OSError(28, "No space left on device", "lake"), 74)]
)
def test_interrupt_and_full_disk(call: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr("loopstats.query.queries", broken)
    found, _, err = call("queries")
    assert found == code
    assert err.count("\n") == 1
    assert ("interrupted" if code == 130 else "lake: No space left on device") in err


def test_a_locked_lake_can_be_tried_again(call: Call, tmp_path: Path) -> None:
    from loopstats.store import Lake

    (tmp_path / "logs").mkdir()
    with Lake(tmp_path / "lake").write():
        code, _, err = call("ingest", "logs", at=tmp_path / "lake")
    assert code == 75
    assert "try again" in err


def test_loops_for_a_person(call: Call) -> None:
    code, out, err = call("loops", "--as-of", AS_OF)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["loop", "outcome", "tool"]
    assert lines[2].split()[:2] == ["00000000", "pending"]
    assert max(map(len, lines)) <= 100
    assert "as of 2026-03-04T00:00:00Z, all time" in err
    assert "\x1b" not in out + err
    assert "\x07" not in out


def test_loops_for_a_script(call: Call) -> None:
    code, out, err = call("loops", "--json", "--as-of", AS_OF, "--since", "2d", "-q")
    assert (code, err) == (0, "")
    body = json.loads(out)
    assert body["schema"] == "loopstats.loops/1"
    assert body["as_of"] == "2026-03-04T00:00:00Z"
    assert body["interval"] == {"since": "2026-03-02T00:00:00Z", "until": None}
    assert body["tz"] == "UTC"
    assert [row["outcome"] for row in body["rows"]] == ["pending", "recurred", "broke", "broke"]
    assert list(body["rows"][0]) == list(LOOPS.names)
    assert body["rows"][2]["message"] == small_lake.HOSTILE
    assert call("loops", "-f", "json", "--as-of", AS_OF, "--since", "2d", "-q")[1] == out


def test_every_format_holds_the_same_rows(call: Call, tmp_path: Path) -> None:
    base = ("loops", "--as-of", AS_OF, "-q")
    rows = json.loads(call(*base, "--json")[1])["rows"]
    assert [json.loads(line) for line in call(*base, "-f", "jsonl")[1].splitlines()] == rows
    cells = list(csv.DictReader(io.StringIO(call(*base, "-f", "csv")[1], newline="")))
    assert [row["loop_id"] for row in cells] == [row["loop_id"] for row in rows]
    assert cells[2]["message"] == "'" + small_lake.HOSTILE
    target = tmp_path / "loops.parquet"
    assert call(*base, "-o", str(target))[:2] == (0, "")
    frame = pl.read_parquet(target)
    assert frame["message"].to_list() == [row["message"] for row in rows]
    assert frame.schema == LOOPS.schema
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert call(*base, "-f", "md")[1].count("\n") == len(rows) + 2


def test_nothing_matched_is_still_a_document(call: Call) -> None:
    code, out, _ = call("loops", "--tool", "nope", "--json", "-q")
    assert code == 3
    assert json.loads(out)["rows"] == []


def test_days_begin_in_the_zone(call: Call) -> None:
    out = call("loops", "--tz", "Asia/Tokyo", "--since", "2026-03-02", "--as-of", AS_OF, "--json", "-q")[1]
    body = json.loads(out)
    assert body["interval"]["since"] == "2026-03-01T15:00:00Z"
    assert body["as_of"] == "2026-03-03T15:00:00Z"


def test_global_options_stand_anywhere() -> None:
    assert cli.hoisted(["loops", "--tz", "UTC", "-q", "--lake=x", "--where", "a"]) == [
        "--tz",
        "UTC",
        "-q",
        "--lake=x",
        "loops",
        "--where",
        "a",
    ]
    assert cli.hoisted(["sql", "--", "-q"]) == ["sql", "--", "-q"]


def test_a_global_option_without_its_value(call: Call) -> None:
    code, _, err = call("loops", "--tz")
    assert (code, err) == (2, "loopstats: --tz: a value is needed (see loopstats --help)\n")


@pytest.mark.parametrize("command", ["lake", "hook", "spark", "simulate", "ladder", "completion"])
def test_a_command_that_lacks_a_word_says_where_its_help_is(call: Call, command: str) -> None:
    code, out, err = call(command)
    assert (code, out) == (2, "")
    assert re.fullmatch(
        rf"loopstats: Missing (command|argument '[A-Za-z.]+')\. \(see loopstats {command} --help\)\n", err
    )


def test_colours(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1m" in call("--color", "always", "queries")[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert cli.Globals(None, None, False, False, True, "auto", "UTC").is_coloured(None)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not cli.Globals(None, None, False, False, True, "auto", "UTC").is_coloured(None)


def test_the_lake_of_the_environment(
    call: Call, lake: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("LOOPSTATS_LAKE", str(lake))
    assert cli.run_command(["sql", "select count(*) as n from steps", "-f", "csv"]) == 0
    assert capfdbinary.readouterr().out == b'"n"\r\n10\r\n'


def test_tools_count_the_unclassified(call: Call) -> None:
    code, out, err = call("tools", "--as-of", AS_OF)
    assert code == 0
    assert out.splitlines()[2].startswith("frob")
    assert "1 of 3 tools are unclassified, 2 of 10 steps" in err
    assert json.loads(call("tools", "--json")[1])["warnings"] == ["1 of 3 tools are unclassified, 2 of 10 steps"]


def test_sql_by_text_name_and_stdin(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    by_text = call("sql", "select arm, n from outcomes_by_arm", "--as-of", AS_OF, "-f", "csv")[1]
    assert by_text == '"arm","n"\r\n"holdout",1\r\n"treated",1\r\n'
    monkeypatch.setattr(sys, "stdin", io.StringIO("select arm, n from outcomes_by_arm"))
    assert call("sql", "--as-of", AS_OF, "-f", "csv")[1] == by_text
    code, out, _ = call("sql", "worst_classes", "--json")
    assert code == 0
    assert json.loads(out)["schema"] == "loopstats.sql/1"
    code, out, _ = call("sql", "select * from rejects", "-f", "jsonl")
    assert (code, out) == (0, "")


def test_queries_and_schema(call: Call, tmp_path: Path) -> None:
    named = json.loads(call("queries", "--json", at=tmp_path / "none")[1])["rows"]
    assert {"name", "question"} == set(named[0])
    assert "arm_check" in [row["name"] for row in named]
    tables = json.loads(call("schema", "--json", at=tmp_path / "none")[1])["rows"]
    assert {"steps", "loops", "lift_by_week", "stg_steps"} <= {row["name"] for row in tables}
    columns = json.loads(call("schema", "loops", "--json")[1])["rows"]
    assert [row["column"] for row in columns] == list(LOOPS.names)


def test_a_reader_that_leaves_is_no_error(lake: Path) -> None:
    query = "select a.* from steps a, range(50000)"
    command = [sys.executable, "-m", "loopstats.cli", "--lake", str(lake), "sql", query, "-f", "jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["run_id"].startswith("run")
        process.stdout.close()
        assert process.stderr.read().count(b"\n") == 1
        assert process.wait() == 0


def test_lift_in_every_format(call: Call) -> None:
    code, out, _ = call("lift", "--as-of", AS_OF)
    assert code == 0
    assert "A/A replay" in out
    body = json.loads(call("lift", "--as-of", AS_OF, "--json", "-q")[1])
    assert body["schema"] == "loopstats.lift/1"
    row = body["rows"][-1]
    assert (row["scope"], row["n_treated"], row["broke_treated"], row["n_holdout"]) == ("replay", 1, 1, 1)
    assert json.loads(call("lift", "--as-of", AS_OF, "-f", "jsonl", "-q")[1].splitlines()[-1]) == row
    cells = list(csv.DictReader(io.StringIO(call("lift", "--as-of", AS_OF, "-f", "csv", "-q")[1], newline="")))
    assert cells[-1]["n_treated"] == "1"
    assert json.loads(cells[-1]["details"]) == row["details"]


def test_lift_has_a_window_only_where_asked(call: Call) -> None:
    plain = json.loads(call("lift", "--as-of", AS_OF, "--json", "-q")[1])
    assert plain["interval"]["since"] is None
    since = json.loads(call("lift", "--as-of", AS_OF, "--since", "7d", "--json", "-q")[1])
    assert since["interval"]["since"] == "2026-02-25T00:00:00Z"


def test_ingest_tells_what_became_of_every_file(call: Call, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    code, out, err = call("ingest", str(NATIVE), at=lake)
    assert code == 0, err
    assert out.splitlines()[0].split()[:5] == ["format", "files", "steps", "folded", "rejected"]
    count = len(list(NATIVE.glob("*.jsonl")))
    assert f"files: {count} new, 0 grown, 0 same, 0 gone" in out
    assert "rejected " in err
    code, out, err = call("ingest", str(NATIVE), "--json", at=lake)
    body = json.loads(out)
    assert body["schema"] == "loopstats.ingest/1"
    assert body["files"]["same"] == count
    for row in body["rows"]:
        assert row["read"] == row["used"] + row["nothing"] + row["folded"] + row["rejected"] + row["waiting"]
    assert body["lines"] == {name: sum(row[name] for row in body["rows"]) for name in body["lines"]}
    assert body["lines"]["read"] == sum(n for name, n in body["lines"].items() if name != "read") > 0
    assert sum(body["nothing_types"].values()) == body["lines"]["nothing"]
    code, out, _ = call("sql", "conservation", "-f", "jsonl", at=lake)
    rows = [json.loads(line) for line in out.splitlines()]
    assert {row["source_file"] for row in rows} >= {str(path) for path in NATIVE.glob("acme*.jsonl")}
    assert {row["count_unexplained"] for row in rows} == {0}
    assert sum(row["count_read"] for row in rows) == body["lines"]["read"]


def test_ingest_shows_the_sum_with_what_carries_nothing_by_type(call: Call, tmp_path: Path) -> None:
    step = {"v": 1, "type": "step", "session": "s", "id": "1", "tool": "Edit", "outcome": "failure"}
    odd = [{"v": 1, "type": f"\x1b[31mtype{4 - n % 5}", "session": "s"} for n in range(9)]
    (tmp_path / "logs").mkdir()
    text = "".join(json.dumps(record) + "\n" for record in [step, step, *odd]) + '{"v": 1, "ty'
    (tmp_path / "logs" / "a.jsonl").write_text("not json\n" + text, encoding="utf-8")
    for _ in range(2):  # the second run finds nothing new and says the same
        code, out, _ = call("ingest", str(tmp_path / "logs"), "-q", at=tmp_path / "lake")
        assert code == 0
        assert "lines: 13 read = 1 used + 9 nothing (" in out
        assert "[31mtype1 2, " in out and "type0" not in out
        assert ", …) + 1 folded + 1 rejected + 1 waiting\n" in out
        assert "\x1b" not in out


def test_ingest_stops_at_too_many_rejects(call: Call, tmp_path: Path) -> None:
    code, _, err = call("ingest", str(NATIVE), "--max-rejects", "0", at=tmp_path / "lake")
    assert code == 4
    assert "--max-rejects 0" in err
    assert call("loops", "-q", at=tmp_path / "lake")[0] == 3


def test_ingest_of_an_empty_folder(call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = call("ingest", "empty", "-q", at=tmp_path / "lake")
    assert code == 3
    assert "no log file" in err


def test_many_rejects_are_cut_short(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = {
        **{f"files_{name}": 1 for name in ("new", "grown", "same", "gone", "skipped")},
        "records": 0,
        "turns_priced": 0,
        "turns_told": 0,
        "stale": [],
        "unbalanced": ["a\x1b.jsonl"],
        "nothing_types": {},
        "warnings": [],
        "rejects": [(f"a\x1b{n}.jsonl", n, "truncated") for n in range(25)],
        "tables": {"steps": 0, "loops": 0},
        "formats": [
            {
                "format": "pi",
                "files": 1,
                "is_experimental": True,
                "steps": 0,
                "folded": 0,
                "rejected": 25,
                "read": 25,
                "used": 0,
                "nothing": 0,
                "waiting": 0,
                "repaired": 0,
            }
        ],
    }
    monkeypatch.setattr("loopstats.run.ingest", lambda *_, **__: summary)
    code, out, err = call("ingest", ".", at=tmp_path / "lake")
    assert code == 1
    assert "pi (experimental)" in out
    assert err.count("truncated") == 20
    assert '… and 5 more (loopstats sql "select * from rejects")' in err
    assert "not accounted for" in err
    assert "lines: 25 read = 0 used + 0 nothing + 0 folded + 25 rejected + 0 waiting" in out
    assert "\x1b" not in out + err
