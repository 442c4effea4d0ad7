"""Hostile questions and settings: SQL that reaches out, and configuration, policies and settings of the wrong shape.

Every one ends with an exit code and one line, has no effect, and leaves the lake as it was.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import small_lake
from hostile import HARMFUL, files_below, run
from loopstats import cli, query
from loopstats.cli import run_command
from loopstats.errors import UsageError
from loopstats.store import Lake

Call = Callable[..., tuple[int, str, str]]

REACHING = [
    "select * from read_text('{secret}')",
    "select * from read_blob('{secret}')",
    "select * from '{secret}'",
    'select * from "{secret}"',
    "select * from glob('{root}/*')",
    "select * from read_duckdb('{secret}')",
    "select * from parquet_metadata('{secret}')",
    "select * from query('select * from read_text(''{secret}'')')",
    "select * from query('copy loops to ''{root}/x''')",
    "select * from query_table(['loops', '{secret}'])",
    "select * from json_execute_serialized_sql(json_serialize_sql('select * from read_text(''{secret}'')'))",
    "select * from duckdb_extensions()",
    "select * from which_secret('x', 's3')",
    "select * from enable_logging()",
    "select * from enable_profiling()",
    "select getenv('HOME')",
    "select getvariable('HOME') union all select getenv('HOME')",
    "copy (select 1) to '{root}/x.csv'",
    "copy loops from '{secret}'",
    "attach '{root}/x.db' as x",
    "install httpfs",
    "force install httpfs from '{root}'",
    "load '{root}/x.so'",
    "pragma enable_profiling",
    "set enable_external_access = true",
    "set global lock_configuration = false",
    "reset all",
    "export database '{root}/x'",
    "create or replace macro loops() as table select 1",
    "create or replace temp view loops as select 1",
    "create temp table loops as select 1",
    "alter view loops rename to x",
    "comment on view loops is 'x'",
    "select 1; copy loops to '{root}/x'",
    "select 1\n;\n-- x\nattach '{root}/x.db'",
    "explain analyze copy loops to '{root}/x'",
    "with x as (delete from loops returning *) select * from x",
    "pivot loops on arm using count(*)",
    "call checkpoint()",
    "\x00select 1",
    "select '\x1b[31m' from nowhere",
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small lake that is only read."""
    place = tmp_path_factory.mktemp("small") / "lake"
    small_lake.sample(place)
    return str(place)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.setenv(name, str(tmp_path))

    def made(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run_command(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return made


def test_no_question_reaches_beyond_the_lake(tmp_path: Path, call: Call) -> None:
    small_lake.sample(tmp_path / "lake")
    secret = tmp_path / "secret.csv"
    secret.write_text("a\nTOPSECRET\n", encoding="utf-8")
    before = files_below(tmp_path)
    connection = query.open_snapshot(Lake.open(tmp_path / "lake").snapshot(), 1_900_000_000_000_000)
    wrong = {}
    for text in REACHING:
        try:
            wrong[text] = str(query.run(connection, text.format(secret=secret, root=tmp_path)))
        except UsageError as error:
            if "TOPSECRET" in str(error) or "\n" in str(error):
                wrong[text] = str(error)
    assert wrong == {}
    for text in (REACHING[0], REACHING[17], REACHING[-2], REACHING[-1]):
        code, out, err = call("-q", "--lake", "lake", "sql", text.format(secret=secret, root=tmp_path))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert not HARMFUL.search(err.rstrip())
    for option in ("loops", "drift"):
        code, out, err = call(
            "-q", "--lake", "lake", option, "--where", f"1=1) or exists(select * from read_text('{secret}')"
        )
        assert (code, out) == (2, ""), (option, out, err)
        code, out, err = call("-q", "--lake", "lake", option, "--where", f"exists(select * from read_text('{secret}'))")
        assert code == 2, (option, out, err)
        assert "TOPSECRET" not in out + err
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    "value",
    ["'20000-01-01'::date", "'0044-03-15 (BC)'::date", "'infinity'::timestamp", "'20000-01-01 00:00+00'::timestamptz",
     "['20000-01-01'::date]", "'290000-01-01'::timestamp_s"],
)  # fmt: skip
def test_a_time_that_no_calendar_of_ours_has_is_text(value: str, lake: str, tmp_path: Path, call: Call) -> None:
    for format_name in ("json", "csv"):
        code, out, err = call("-q", "--lake", lake, "sql", f"select {value} as d", "-f", format_name, "-o", "answer")
        assert (code, out, err) == (0, "", ""), format_name
        assert (tmp_path / "answer").stat().st_size > 4


ENDLESS = "select count(*) from range(10000000) a, range(10000000) b where a.range = b.range + 1.5 * a.range"
DEAF = "select levenshtein(repeat('ab', 200000), repeat('ba', 200000))"
"""One ends when it is told to, the other's function looks at nothing until it is done."""


@pytest.mark.parametrize("text", [ENDLESS, DEAF])
def test_a_query_without_end_ends_at_its_timeout(text: str, lake: str, tmp_path: Path) -> None:
    started = time.monotonic()
    done = run("-q", "--lake", lake, "sql", text, "--timeout", "0.5", "-o", "answer.json", cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (130, b"")
    assert done.stderr == b"loopstats: sql: the query was ended after 0.5 s (--timeout)\n"
    assert time.monotonic() - started < 40
    assert not (tmp_path / "answer.json").exists()
    assert run("-q", "--lake", lake, "sql", "select 1", "--timeout", "60", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("text", [ENDLESS, DEAF])
def test_ctrl_c_ends_a_query_without_end(text: str, lake: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "loopstats.cli", "--lake", lake, "sql", text]
    with subprocess.Popen(
        program,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # What a shell starts in the background ignores the signal, and so does all below it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as child:
        time.sleep(6)  # nothing is said before a query ends
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=40)
    assert (child.returncode, out, err) == (130, b"", b"loopstats: interrupted\n")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e300", "soon"])
def test_a_timeout_is_a_number_of_seconds(seconds: str, lake: str, call: Call) -> None:
    code, out, err = call("-q", "--lake", lake, "sql", "select 1", "--timeout", seconds)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--timeout" in err


SHAPES = [
    b"", b"\x00", b"\xff\xfe", b"[", b"= 1", b"a", b"[[experiment]]", b"experiment = []", b"[experiment]\nx = 1",
    b"[experiment.x]", b"[experiment.x]\nsalt = 1", b"[experiment.x]\nsalt = 's'\nshare_bp = 'many'",
    b"[experiment.x]\nsalt = 's'\nshare_bp = 1e999", b"[experiment.x]\nsalt = 's'\nn_star = -1",
    b"[experiment.'\\u001b[31m']\nsalt = 1", b'[experiment."\\u001b[31m"]\nsalt = 1', b"maturity_hours = 'x'",
    b"maturity_hours = nan", b"maturity_hours = inf", b"maturity_hours = [1]", b"tools = 1", b"tools = [1]",
    b"[tools]\nx = 1", b"[tools]\nx = ['edit']", b"[tools]\nx = {}", b"prices = 1", b"[prices]\nx = 1",
    b"[prices.x]\ninput = 'a'\noutput = 1", b"[prices.x]\ninput = nan\noutput = 1", b"[prices.x]\ninput = -1\noutput = 1",
    b"[prices.x]\ninput = 1e308\noutput = 1", b"[prices.x]\ninput = 1", b"hook = 1", b"[hook]\nexperiment = 1",
    b"[hook]\nexperiment = []\nsalt = 's'", b"[hook]\nexperiment = 'x'\nsalt = 7", b"segments = 7", b"lake = 7",
    b"a.b.c = 1", b"[a.b]\n[a]\nb = 1", b"x" * 100_000, b"[tools]\n" + b"[" * 5000, b"maturity_hours = " + b"9" * 5000,
    b"x = " + b"[" * 100_000, b"[tools]\nx = 2026-01-01", b'lake = "a\\u0000b"', b'[ingest]\npaths = ["a", "b\\u0000"]',
    b'[nightly]\nlog = "a\\u0000b"', b'[nightly]\non_fail = "a\\u0000b"', b'[hook]\nspool = "\\u0000"', b"#" * (1 << 21), b"'\xf0\x9f' = 1",
]  # fmt: skip
FINE = {b""}
"""The shape that says nothing."""


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_configuration_of_the_wrong_shape_is_one_line(number: int, tmp_path: Path, call: Call) -> None:
    path = tmp_path / "given.toml"
    path.write_bytes(SHAPES[number])
    for arguments in (["--config", str(path), "queries", "-f", "json"],):
        code, out, err = call("-q", *arguments)
        assert HARMFUL.search(err) is None
        assert (code, err.count("\n")) == ((0, 0) if SHAPES[number] in FINE else (2, 1)), (out, err)
        assert "Traceback" not in err


POLICIES = [
    b"", b"\x00\xff", b"[[tiers]]", b"tiers = 1", b"[tiers]\nwarn = 'x'", b"[tiers]\nwarn = 1e9", b"[tiers]\nwarn = -1",
    b"[reset]\nby = []", b"[reset]\nby = {}", b"[special]\nkinds = 1", b"[special]\nkinds = [1]", b"classes = 1",
    b"name = []", b"x = " + b"[" * 100_000, b"tiers = { warn = nan }", b"[ttl_s]\ntier_1 = true",
    b"#" * (1 << 21),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(POLICIES)))
@pytest.mark.parametrize("base", ["", "careful"])
def test_a_policy_of_the_wrong_shape_is_one_line(number: int, base: str, lake: str, tmp_path: Path, call: Call) -> None:
    start = (Path(cli.__file__).parents[1] / "policies" / "careful.toml").read_bytes() + b"\n" if base else b""
    (tmp_path / "p.toml").write_bytes(start + POLICIES[number])
    code, out, err = call("-q", "--lake", lake, "ladder", "p.toml")
    assert (code, out, err.count("\n")) == ((2, "", 1) if base == "" or number else (3, "", 1)), err
    assert HARMFUL.search(err) is None


HOOK_SETTINGS = [
    b"", b"{", b"[]", b"7", b'{"hooks": 7}', b'{"hooks": []}', b'{"hooks": {"PostToolUse": 7}}', b"\xff\xfe", b"\x00",
    b'{"hooks": {"PostToolUse": [7]}}', b'{"hooks": {"PostToolUse": [{"hooks": 7}]}}', b"[" * 100_000,
    b'{"hooks": {"PostToolUse": [{"hooks": [{"command": 7}]}]}}', b'{"hooks": {"\\u001b[31m": 7}}',
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOOK_SETTINGS)))
@pytest.mark.parametrize("agent", ["claude-code", "codex"])
def test_an_agents_settings_of_the_wrong_shape_are_left_alone(
    number: int, agent: str, tmp_path: Path, call: Call
) -> None:
    path = tmp_path / (".claude/settings.json" if agent == "claude-code" else ".codex/hooks.json")
    path.parent.mkdir()
    path.write_bytes(HOOK_SETTINGS[number])
    for arguments in (["install"], ["uninstall"]):
        code, out, err = call("-q", "hook", *arguments, "--agent", agent, "--scope", "project")
        assert code in (0, 2), (arguments, out, err)
        assert "Traceback" not in err
        assert HARMFUL.search(out + err) is None
        if code == 2:
            assert err.count("\n") == 1
            assert path.read_bytes() == HOOK_SETTINGS[number]
        else:
            assert not path.exists() or path.read_bytes() == b"" or isinstance(json.loads(path.read_bytes()), dict)
    code, out, err = call("-q", "hook", "status")
    assert code in (0, 5)
    assert HARMFUL.search(out + err) is None
