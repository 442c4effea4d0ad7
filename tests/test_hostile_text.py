"""Naughty strings in every text of a log: every command in every format says what it has to say, and nothing acts.

One lake holds them all. The commands are those that the program has, so that a new one is walked without being named
here; what it needs to find something to say stands in `ARGUMENTS`.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import duckdb
import polars as pl
import pytest
import typer

from hostile import HARMFUL, OWN, claude_log, file_name, files_below, native_log, naughty, run, utf8
from lines import ingest, tables_of
from loopstats import cli, output, query, rule
from loopstats.store import Lake
from loopstats.tables import TABLES

FORMATS = ("table", "md", "json", "jsonl", "csv", "parquet")
# Every table is written in all of them below; here, what a command adds around its table is looked at.
WALKED = ("table", "md", "json")
# All commands are walked over every sixty-fourth string of the list and all of our own; the whole list is read once below.
TEXTS = [*naughty()[::64], *OWN]
OUTPUTS = ("sources", "steps", "sessions", "rejects")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `lake`, in which every naughty string was read in every field, and the `logs` it was made of."""
    folder = tmp_path_factory.mktemp("hostile")
    logs = folder / "logs"
    logs.mkdir()
    (logs / "native.jsonl").write_bytes(native_log(TEXTS))
    (logs / "claude.jsonl").write_bytes(claude_log(TEXTS))
    for number, text in enumerate(TEXTS):
        if name := file_name(text):
            (logs / name).write_bytes(native_log([f"n{number}"], 10_000 + number).split(b"\n")[1] + b"\n{torn\n")
    ingest(folder / "lake", logs)
    return folder


@pytest.fixture(scope="module")
def loop(place: Path) -> str:
    """The id of a loop of the lake."""
    return str(tables_of(place / "lake")["loops"]["loop_id"][0])


def leaves() -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Every command of the program as (names, options that it knows)."""
    command = typer.main.get_command(cli.app)
    todo = [((), command)]
    while todo:
        path, one = todo.pop()
        inner = getattr(one, "commands", None)
        if inner:
            todo += [((*path, name), child) for name, child in inner.items()]
        else:
            yield path, {option for parameter in one.params for option in parameter.opts}


COMMANDS = dict(sorted(leaves()))

# What each command is given to have something to say; a command that is not named here is walked with nothing.
ARGUMENTS: dict[tuple[str, ...], list[list[str]]] = {
    ("lift",): [[], ["--all"], ["--by", "tool,project"], ["--record", "--as-of", "2027-01-01"], ["--history"]],
    ("drift",): [[], ["--all"]],
    ("audit",): [[], ["--all"]],
    ("waste",): [[], ["--by", "tool,project"]],
    ("runs",): [[], ["--by", "model"], ["--by", "bait"]],
    ("ladder",): [["careful"], ["faulty", "--faults"]],
    ("schema",): [[], ["loops"]],
    ("ingest",): [["{logs}"], ["{logs}", "--dry-run"], ["{logs}/\x1b[31m"]],
    ("sql",): [[f"select * from {name} limit 200"] for name in OUTPUTS]
    + [[f'select tool as "{text}" from steps limit 1'] for text in ("\x1b[31m\u202ea|b<b>",)]
    + [["select * from nowhere_\x1b[31m\u202e"], ["\x1b]0;x\x07"]],
    ("simulate", "power"): [["--loops", "100"], []],
    ("simulate", "aa"): [["--salts", "20"]],
    ("simulate", "planted"): [["\x1b[31m\u202e"]],
    ("hook", "status"): [[]],
    ("hook", "test"): [["--agent", "\x1b[31m"]],
    ("hook", "install"): [["--agent", "\x1b[31m"], ["--agent", "claude-code", "--dry-run"]],
    ("hook", "uninstall"): [["--agent", "\u202e"]],
    ("report",): [["-o", "{out}/report.html"]],
    ("explain",): [["{loop}"], ["{loop}", "--raw"], ["\x1b[31m"]],
    ("nightly",): [["{logs}", "--report", "{out}/night.html", "--log", "{out}/nightly.jsonl"], ["{logs}/\x1b[31m"]],
    ("schedule",): [["--status"], ["--print", "cron"], ["--print", "systemd"], ["--print", "cron", "--", "\x1b[31m"]],
    ("config",): [[], ["--path"]],
    ("completion",): [["bash"], ["\x1b[31m"]],
    ("doctor",): [[]],
    ("lake", "info"): [[]],
    ("lake", "verify"): [[]],
    ("lake", "compact"): [[]],
}
REFUSED = {("simulate", "planted"), ("hook", "test"), ("hook", "uninstall")}
"""Commands that are given nothing but a wrong word here."""

Call = Callable[..., tuple[int, bytes, bytes]]


@pytest.fixture
def call(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Call:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("LOOPSTATS_EXPERIMENT", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", [str(Path(sys.executable).with_name("loopstats"))])
    read, write = os.pipe()
    os.close(write)
    stdin = os.dup(0)
    os.dup2(read, 0)
    os.close(read)

    def made(*arguments: str) -> tuple[int, bytes, bytes]:
        capfdbinary.readouterr()
        code = cli.run_command(["--lake", str(place / "lake"), *arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err

    yield made
    os.dup2(stdin, 0)
    os.close(stdin)


def formats_of(names: tuple[str, ...], given: list[str]) -> tuple[str, ...]:
    """Every format for the first way to call a command, what a person reads for the others."""
    if "--format" not in COMMANDS[names]:
        return ("json", "") if "--json" in COMMANDS[names] else ("",)
    if names == ("lake", "rebuild"):  # which takes as long as all others
        return ("table",)
    return WALKED if given == ARGUMENTS.get(names, [[]])[0] else ("table",)


def is_harmless(data: bytes) -> bool:
    return not HARMFUL.search(data.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_no_command_lets_a_control_character_out(
    names: tuple[str, ...], place: Path, loop: str, tmp_path: Path, call: Call
) -> None:
    knows = COMMANDS[names]
    answered = 0
    for given in ARGUMENTS.get(names, [[]]):
        words = [word.format(logs=place / "logs", out=tmp_path, loop=loop) if "{" in word else word for word in given]
        for format_name in formats_of(names, given):
            more = [] if not format_name else ["-f", format_name] if "--format" in knows else ["--json"]
            code, out, err = call(*names, *words, *more)
            assert code != 1, err
            assert is_harmless(err), (words, err)
            found = HARMFUL.search(out.decode())
            assert found is None, (words, more, out[max(0, found.start() - 50) : found.end() + 50])
            if format_name == "json" and code == 0 and out:
                for line in out.splitlines():
                    json.loads(line)
            answered += code in (0, 3, 5)
    assert answered or names not in ARGUMENTS or names in REFUSED
    assert not (tmp_path / "pwned").exists()
    written = [path for path in tmp_path.rglob("*") if path.suffix in (".html", ".jsonl", ".log")]
    assert [path.name for path in written if not is_harmless(path.read_bytes())] == []
    assert names != ("nightly",) or {path.name for path in written} == {"night.html", "nightly.jsonl"}


@pytest.fixture(scope="module")
def connection(place: Path) -> duckdb.DuckDBPyConnection:
    return query.open_snapshot(Lake.open(place / "lake").snapshot(), 1_900_000_000_000_000)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_table_comes_back_from_every_format(name: str, connection: duckdb.DuckDBPyConnection) -> None:
    frame = query.run(connection, f"select * from {name} order by all limit 700")
    envelope = output.Envelope("sql", "2026-03-02T00:00:00Z", "UTC", "d")
    answers = {format_name: b"".join(output.render(frame, format_name, envelope)) for format_name in FORMATS}
    rows = json.loads(answers["json"])["rows"]
    assert rows == [{key: output.plain(value) for key, value in row.items()} for row in frame.to_dicts()]
    assert [json.loads(line) for line in answers["jsonl"].decode().split("\n")[:-1]] == rows
    assert pl.read_parquet(io.BytesIO(answers["parquet"])).equals(frame)
    text = [column for column in frame.columns if frame[column].dtype == pl.String]
    table = list(csv.DictReader(io.StringIO(answers["csv"].decode(), newline="")))
    assert len(table) == len(rows)
    for got, row in zip(table, rows, strict=True):
        assert {key: output.unguard(got[key]) for key in text} == {key: row[key] or "" for key in text}
        assert not [cell for key, cell in got.items() if key in text and re.match("[=+@\t\r\n＝＋－＠-]", cell)]
    lines = answers["md"].decode().split("\n")
    assert {len(re.findall(r"\|", line)) for line in lines[:-1]} <= {frame.width + 1}
    assert not re.search(r"<|https?://|(?<!\\)!\[|(?<!\\)\]\(", "\n".join(lines[2:]))


def test_what_was_written_in_is_what_is_found(place: Path) -> None:
    tables = tables_of(place / "lake")
    texts = {utf8(text) for text in TEXTS if text}
    assert {rule.mask_secrets(text) for text in texts} <= set(tables["steps"]["tool"])
    assert {rule.safe_id(f"{utf8(text)}#{number}") for number, text in enumerate(TEXTS) if text} <= set(
        tables["sessions"]["session_id"]
    )
    names = {utf8(name) for text in TEXTS if (name := file_name(text))}
    found = {Path(file).name for file in tables["sources"]["source_file"]}
    assert names <= found
    assert tables["loops"].height >= len(texts)
    assert all(tables[name].height for name in ("drifts", "guards", "deliveries", "results", "rejects"))


def on_a_terminal(arguments: list[str], tmp_path: Path) -> bytes:
    """What the program writes to a terminal, the terminal's own line ends taken back."""
    master, slave = pty.openpty()
    env = {**os.environ, "HOME": str(tmp_path), "TERM": "xterm-256color", "COLUMNS": "120"}
    done = subprocess.Popen(
        [sys.executable, "-m", "loopstats.cli", "--no-progress", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
    )
    os.close(slave)
    pieces = []
    while True:
        try:
            piece = os.read(master, 1 << 16)
        except OSError:
            break
        if not piece:
            break
        pieces.append(piece)
    done.wait(60)
    os.close(master)
    return b"".join(pieces)


@pytest.mark.parametrize("format_name", ["csv", "table", "json"])
def test_a_terminal_sees_no_control_character_in_any_format(place: Path, tmp_path: Path, format_name: str) -> None:
    query = "select tool, session_id, model, message from steps where step = 0"
    seen = on_a_terminal(["--color", "never", "--lake", str(place / "lake"), "sql", query, "-f", format_name], tmp_path)
    assert seen.count(b"\n") > (len(TEXTS) if format_name != "json" else 0)
    text = re.sub("\r+\n", "\n", seen.decode())
    assert HARMFUL.search(text) is None, repr(HARMFUL.search(text))


class Page(HTMLParser):
    """What in a page could act: scripts, event handlers, and anything that is fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            is_remote = name in ("src", "href", "action", "data", "srcset", "poster") and not (value or "").startswith(
                ("#", "data:image/")
            )
            if name.startswith("on") or is_remote:
                self.acts.append(f"<{tag} {name}={value}>")
        if tag in ("iframe", "object", "embed", "base", "form", "link"):
            self.acts.append(f"<{tag}>")


@pytest.mark.skipif(("report",) not in COMMANDS, reason="this program writes no report")
def test_nothing_in_the_report_acts(place: Path, tmp_path: Path, call: Call) -> None:
    path = tmp_path / "report.html"
    code, _, err = call("report", "-o", str(path))
    assert code in (0, 3, 5), err
    text = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.acts == []
    assert HARMFUL.search(text) is None
    for naughty_text in OWN:
        assert "<" not in naughty_text or naughty_text not in text


def test_all_naughty_strings_are_read_and_come_back(tmp_path: Path) -> None:
    lines = [line for n, text in enumerate(naughty()) for line in native_log([text], n).split(b"\n")[:2]]
    (tmp_path / "native.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "claude.jsonl").write_bytes(claude_log(naughty()))
    assert ingest(tmp_path / "lake", tmp_path)["unbalanced"] == []
    tables = tables_of(tmp_path / "lake")
    texts = {rule.mask_secrets(utf8(text)) for text in naughty() if text}
    assert tables["rejects"].group_by("reason").len().sort("reason").rows() == [("step_without_tool", 1)]
    for harness in ("claude-code", "native"):
        steps = tables["steps"].filter(pl.col("source_file").str.ends_with(f"{harness.partition('-')[0]}.jsonl"))
        assert set(steps["tool"]) >= texts


def test_the_lake_is_as_it_was_after_all_questions(place: Path, call: Call) -> None:
    before = files_below(place / "lake")
    for name in ("loops", "audit", "doctor"):
        call(name)
    assert files_below(place / "lake") == before


def test_progress_and_errors_in_a_process_of_its_own(place: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for text in OWN:
        if name := file_name(text):
            (logs / name).write_bytes(b"{torn\n" + native_log(["x"]).split(b"\n")[1] + b"\n")
    done = run("--lake", str(tmp_path / "lake"), "ingest", str(logs), env={"HOME": str(tmp_path)})
    assert done.returncode == 0
    assert is_harmless(done.stdout)
    assert is_harmless(done.stderr)
    assert b"torn" not in done.stderr
