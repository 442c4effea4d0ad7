"""Canaries: secret-shaped strings in every text of every format, plain words in every content; none may be found.

One text at a time is planted in the records that the formats' own tests feed, and everything that the reader hands on
is searched: rows, counted types, and the state that goes into the ledger. Then whole files with all of them planted go
through the program, and every byte that it writes or says is searched.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from emitting import Fed
from harvest import Input, fed, inputs, leaves, replaced
from hostile import run
from lines import ingest, tables_of
from loopstats.formats import kept_state

# By what METHOD 14 calls secret-shaped. What stands in braces is the canary that is searched for.
SECRETS = {
    "github": "ghp_{}",
    "anthropic": "sk-ant-api03-{}",
    "openai": "sk-proj-{}",
    "aws": "AKIA{}",
    "slack": "xoxb-123456789012-123456789012-{}",
    "stripe": "sk_live_{}",
    "google": "AIza{}x9",
    "npm": "npm_{}",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.{}.c2lnbmF0dXJl",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    "password in a URL": "https://user:{}@host.example/x",
    "bearer": "Authorization: Bearer {}",
    "env": "AWS_SECRET_ACCESS_KEY={}",
    "password": 'password: "{}"',
    "flag": "--api-key {}",
}
KNOWN = ("github", "anthropic", "openai", "aws", "slack", "stripe", "google", "npm", "jwt")
"""Keys of known providers: hidden even in an id, which is otherwise kept as it is."""

MADE_IDS = {("openclaw", "toolName"), ("openhands", "owner"), ("openhands", "repo")}
"""Texts of which a format makes an id."""


def core(number: int) -> str:
    """A canary of its own: capital letters and digits, so that it fits into each shape."""
    return f"Q7X9ZK4W8V3{number:08d}T5R2M6L1P0N9B3C7D4"


def everything(found: Fed) -> str:
    return repr((found.rows, found.rejects, found.folds, found.nothing, kept_state(found.state), found.pending))


ALL = inputs()
NAMES = sorted({one.fmt.name for one in ALL})


def places(name: str) -> list[tuple[Input, tuple[Any, ...], str]]:
    """One place for each way into a format's records, whatever the place in lists."""
    seen: dict[tuple[Any, ...], tuple[Input, tuple[Any, ...], str]] = {}
    for one in ALL:
        if one.fmt.name != name:
            continue
        for way, text in leaves(one.value):
            # A call's arguments mean what its tool makes of them, so the same key may stand for different things.
            shape = tuple("*" if isinstance(part, int) else part for part in way)
            seen.setdefault(shape, (one, way, text))
    return list(seen.values())


def test_the_formats_are_there() -> None:
    assert len(NAMES) >= 22
    assert sum(len(places(name)) for name in NAMES) > 500


@pytest.mark.parametrize("name", NAMES)
def test_no_secret_of_any_text_of_a_record_goes_on(name: str) -> None:
    leaked = []
    kinds = list(SECRETS)
    for number, (one, way, text) in enumerate(places(name)):
        known = KNOWN[number % len(KNOWN)]
        for kind in (known, kinds[number % len(kinds)]):
            if kind not in KNOWN and (name, way[-1]) in MADE_IDS:
                continue
            if kind not in KNOWN and str(way[-1]).lower().endswith(("id", "uuid", "key", "run", "session")):
                continue
            secret = SECRETS[kind].format(core(number))
            for planted in (f"{text} {secret}", secret):
                if core(number) in everything(fed(one, replaced(one.value, way, planted))):
                    leaked.append((way, kind, planted[:60]))
    assert leaked == []


CONTENT = frozenset(
    [
        "content",
        "text",
        "thinking",
        "old_string",
        "new_string",
        "prompt",
        "old_str",
        "new_str",
        "file_text",
        "code",
        "patch",
        "diff",
        "description",
        "summary",
        "reasoning",
        "signature",
        "stdout",
        "stderr",
        "output",
        "input_text",
        "originalFile",
        "newString",
        "oldString",
        "thought",
        "response",
        "message",
        "reasoning_content",
        "instructions",
        "aggregated_output",
        "formatted_output",
        "problem_statement",
        "system_prompt",
    ]
)
WORD = "marzipanturtle"


@pytest.mark.parametrize("name", NAMES)
def test_no_word_of_a_content_goes_on(name: str) -> None:
    """A line behind what the text says: a failed step's own line may go on, masked, and nothing else may."""
    leaked = []
    for one, way, text in places(name):
        keys = [part for part in way if isinstance(part, str)]
        if keys[-2:] == ["input", "description"] and name.startswith("claude-code"):
            continue  # what a subagent was started for is the target of its call
        if keys and keys[-1] in CONTENT and not text.lstrip().startswith(("{", "[")):
            planted = f"{text or 'x'}\nand then {WORD} came along"
            if WORD in everything(fed(one, replaced(one.value, way, planted))):
                leaked.append((way, text[:60]))
    assert leaked == []


def same(before: Fed, after: Fed) -> bool:
    return [len(before.rows[kind]) for kind in ("call", "result", "turn")] == [
        len(after.rows[kind]) for kind in ("call", "result", "turn")
    ] and not after.rejects


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of files of every format in which every text was planted that does not change what the record is."""
    folder = tmp_path_factory.mktemp("canaries")
    (folder / "logs").mkdir()
    number = 0
    for index, one in enumerate(ALL):
        value = one.value
        before = fed(one, value)
        for way, text in leaves(one.value):
            kind = KNOWN[number % len(KNOWN)]
            number += 1
            planted = replaced(value, way, f"{text} {SECRETS[kind].format(core(number))}")
            if same(before, fed(one, planted)):
                value = planted
        data = "\n".join(map(json.dumps, value)) + "\n" if one.is_lines else json.dumps(value)
        torn = f'{{"torn": "{SECRETS["github"].format(core(index))} {WORD}\n' if one.is_lines else ""
        (folder / "logs" / f"{index:03d}.{'jsonl' if one.is_lines else 'json'}").write_text(
            data + torn, encoding="utf-8"
        )
    ingest(folder / "lake", folder / "logs")
    return folder


CANARY = "Q7X9ZK4W8V3"


def test_no_byte_of_the_lake_holds_a_secret(place: Path) -> None:
    raw = {path.name: path.read_bytes() for path in (place / "lake").rglob("*") if path.is_file()}
    assert [name for name, data in raw.items() if CANARY.encode() in data or WORD.encode() in data] == []
    decoded = [str(pl.read_parquet(path).to_dicts()) for path in (place / "lake").rglob("*.parquet")]
    assert [text for text in decoded if CANARY.lower() in text.lower() or WORD in text] == []
    ledger = sqlite3.connect(place / "lake" / "ledger.sqlite")
    rows = str(
        [ledger.execute(f"select * from {table}").fetchall() for table in ("sources", "rejects", "meta", "files")]
    )
    ledger.close()
    assert CANARY.lower() not in rows.lower()
    assert WORD not in rows
    tables = tables_of(place / "lake")
    assert tables["steps"].height > 100
    assert tables["sources"].filter(pl.col("format") != "")["format"].n_unique() > 15


def test_no_command_says_a_secret(place: Path, tmp_path: Path) -> None:
    lake = ["--lake", str(place / "lake")]
    said = b""
    for arguments in (
        ["ingest", str(place / "logs"), "--full", "-v"],
        ["ingest", str(place / "logs"), "--dry-run"],
        ["loops", "-f", "json"],
        ["runs", "-f", "json"],
        ["tools", "-f", "csv"],
        ["doctor"],
        ["report", "-o", "report.html"],
        ["sql", "select * from steps", "-f", "json"],
        ["sql", "select * from nowhere"],
    ):
        done = run(*lake, *arguments, env={"HOME": str(tmp_path), "LOOPSTATS_DEBUG": "1"}, cwd=tmp_path)
        said += done.stdout + done.stderr
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert len(said) > 10_000
    assert CANARY.lower().encode() not in said.lower() + written.lower()
    assert WORD.encode() not in said + written


def test_an_unexpected_error_tells_its_place_and_no_text_of_a_log(place: Path, tmp_path: Path) -> None:
    secret, log = SECRETS["github"].format(core(1)), next((place / "logs").glob("*.jsonl"))
    code = (
        "import sys\n"
        "from loopstats import cli, ingest\n"
        f"def broken(*_):\n    raise RuntimeError('about {secret} \\x1b[31m')\n"
        "ingest._read_lines = broken\n"
        "sys.exit(cli.run_command(sys.argv[1:]))"
    )
    for debug in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code, "--lake", str(tmp_path / "lake"), "ingest", str(log)],
            capture_output=True,
            text=True,
            env={**os.environ, "LOOPSTATS_DEBUG": debug},
            check=False,
        )
        assert done.returncode == 1
        assert CANARY not in done.stdout + done.stderr
        assert "\x1b" not in done.stderr
        assert "RuntimeError" in done.stderr
        assert ("Traceback" in done.stderr) == (debug == "1")
