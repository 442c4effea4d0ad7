"""Canaries: secret-shaped strings in every text of every format, plain words in every content; none may be found.

One text at a time is planted in the records that the formats' own tests feed, and everything that the reader hands on
is searched: rows, counted types, and the state that goes into the ledger. Then whole files with all of them planted go
through the program, and every byte that it writes or says is searched.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow
import pytest

from emitting import Fed, feed
from harvest import Input, fed, inputs, leaves, replaced
from hostile import files_below, hook_in_process, native_log, run
from lines import ingest, tables_of
from loopstats import cli, collector, failures, output, query, store
from loopstats.formats import kept_state
from loopstats.formats.codex import Codex
from loopstats.store import Lake
from loopstats.tables import TABLES

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


@pytest.mark.parametrize("before", ["", "ssh: refused\n", "Error: bad key\n"])
@pytest.mark.parametrize("after", ["", "\n-----END RSA PRIVATE KEY-----", "\n-----END RSA PRIVATE KEY-----\nError: no"])
def test_no_line_of_a_key_is_the_line_that_tells_what_went_wrong(before: str, after: str) -> None:
    line = failures.salient_line(f"{before}-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n{CANARY}{after}")
    assert line and CANARY not in line


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


TRIES = 3
"""Times that a text of one shape is planted anew where it changed what its record is."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of files of every format in which every text was planted that does not change what the record is."""
    folder = tmp_path_factory.mktemp("canaries")
    (folder / "logs").mkdir()
    number, tried = 0, Counter[tuple[Any, ...]]()
    for index, one in enumerate(ALL):
        value = one.value
        before = fed(one, value)
        for way, text in leaves(one.value):
            shape = (one.fmt.name, *("*" if isinstance(part, int) else part for part in way))
            if tried[shape] >= TRIES:
                continue
            tried[shape] += 1
            kind = KNOWN[number % len(KNOWN)]
            number += 1
            planted = replaced(value, way, f"{text} {SECRETS[kind].format(core(number))}")
            if same(before, fed(one, planted)):
                value = planted
                tried[shape] = TRIES
        data = "\n".join(map(json.dumps, value)) + "\n" if one.is_lines else json.dumps(value)
        torn = f'{{"torn": "{SECRETS["github"].format(core(index))} {WORD}\n' if one.is_lines else ""
        (folder / "logs" / f"{index:03d}.{'jsonl' if one.is_lines else 'json'}").write_text(
            data + torn, encoding="utf-8"
        )
    keys = [SECRETS[kind].format(core(90_000 + number)) for number, kind in enumerate(KNOWN)]
    (folder / "logs" / "native.jsonl").write_bytes(native_log(keys))
    for session, kinds in (("known keys", KNOWN), ("other keys", tuple(SECRETS))):
        log = looping(session, [SECRETS[kind].format(core(91_000 + n)) for n, kind in enumerate(kinds)])
        (folder / "logs" / f"{session}.jsonl").write_text(log, encoding="utf-8")
    ingest(folder / "lake", folder / "logs")
    return folder


def looping(session: str, secrets: list[str]) -> str:
    """A transcript with a loop: calls that all fail alike, a secret in the command, the target and what was said."""
    lines: list[dict[str, Any]] = []
    for step, secret in enumerate(secrets):
        common = {"sessionId": session, "timestamp": f"2026-02-03T10:00:{step:02d}.000Z", "cwd": "/x"}
        block: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{session[:5]}{step:012d}", "name": "Edit"}
        block["input"] = {"file_path": f"/x/{step}/{secret}", "old_string": secret, "new_string": f"x {secret}"}
        message: dict[str, Any] = {"id": f"m{step}", "role": "assistant", "model": "m", "content": [block]}
        lines.append(common | {"type": "assistant", "uuid": f"{session}a{step}", "message": message})
        said = f"Error: string not found\nand {secret}"
        result = {"type": "tool_result", "tool_use_id": block["id"], "is_error": True, "content": said}
        message = {"role": "user", "content": [result]}
        lines.append(common | {"type": "user", "uuid": f"{session}u{step}", "message": message})
    return "".join(json.dumps(line) + "\n" for line in lines)


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


def test_a_program_that_is_named_like_a_key_is_masked_and_its_exit_code_still_means_what_it_means() -> None:
    def rows(command: list[str], exit_code: int) -> tuple[str, str]:
        action = {"type": "exec", "command": command}
        call = {"type": "local_shell_call", "call_id": "c" * 24, "action": action}
        result = {"type": "function_call_output", "call_id": "c" * 24}
        output = json.dumps({"output": "", "metadata": {"exit_code": exit_code}})
        records = [{"type": "session_meta", "payload": {"id": "s"}}, {"type": "response_item", "payload": call}]
        found = feed(Codex(), [*records, {"type": "response_item", "payload": result | {"output": output}}])
        return found.calls[0]["program"], found.outcomes()[0][1]

    assert rows([f"pytest {SECRETS['github'].format(core(1))}"], 1) == ("pytest <secret>", "failure")
    assert rows([f"./{SECRETS['aws'].format(core(2))}"], 1) == ("<secret>", "failure")
    assert rows(["GREP", "x", "a.py"], 1) == ("grep", "success")


def test_no_command_says_a_secret(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOOPSTATS_DEBUG", "1")
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    logs = str(place / "logs")
    loops = tables_of(place / "lake")["loops"].unique("session_id", keep="first").select("session_id", "loop_id")
    assert {"known keys", "other keys"} < set(loops["session_id"])
    ours = sorted(loops.filter(pl.col("session_id").str.ends_with(" keys"))["loop_id"])
    explained = [[loop, *more] for loop in ours for more in ([], ["-f", "json"], ["--raw"])]
    explained += [[loop, "--raw", "-f", "json"] for loop in sorted(loops["loop_id"])]
    commands = [
        ["ingest", logs, "--full"],
        ["ingest", logs, "--dry-run"],
        *(["explain", *arguments] for arguments in explained),
        ["nightly", logs, "--json", "--log", "nightly.jsonl", "--report", "night.html"],
        ["lift", "--record"],
        ["lift", "--all", "--by", "tool,project", "-f", "json"],
        ["report", "-o", "report.html"],
        ["audit", "--all", "-f", "json"],
        ["drift", "--all", "-f", "json"],
        ["waste", "--by", "tool,project", "-f", "json"],
        ["ladder", "careful", "--faults"],
        ["lake", "info"],
        ["lake", "verify"],
        ["config"],
        ["doctor"],
        ["sql", "select * from nowhere"],
        *(["sql", f"select * from {name}", "-f", "json"] for name in ("steps", "rejects")),
    ]
    connection = query.open_snapshot(Lake.open(place / "lake").snapshot(), 1_900_000_000_000_000)
    envelope = output.Envelope("sql", "2026-03-02T00:00:00Z", "UTC", "d")
    said = {
        name: b"".join(output.render(query.run(connection, f"select * from {name}"), "json", envelope))
        for name in TABLES
    }
    for arguments in commands:
        capfdbinary.readouterr()
        code = cli.run_command(["--verbose", "--lake", str(place / "lake"), *arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        assert code in (0, 3, 5) or arguments[-1].endswith("nowhere"), (arguments, err)
        said[" ".join(arguments)] = out + err
    assert b"<secret>" in b"".join(said[name] for name in said if "--raw" in name)
    assert b"exit_code" in (tmp_path / "nightly.jsonl").read_bytes()
    said |= {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {Path(name).name for name in said} > {"nightly.jsonl", "night.html", "report.html"}
    assert [name for name, data in said.items() if CANARY.lower().encode() in data.lower()] == []
    assert [name for name, data in said.items() if WORD.encode() in data] == []


@pytest.mark.parametrize("is_failure", [True, False])
def test_the_hook_writes_no_secret_and_no_content(is_failure: bool, tmp_path: Path) -> None:
    """Keys of every kind in all that stdin holds of a call, words in what is content; three calls, so that a loop fires."""
    terms = json.dumps({"experiment": "e", "salt": "s", "share_bp": 9999, "n_star": 100})
    number, written = 0, b""
    for kind in SECRETS:
        for step in range(3):
            secret = SECRETS[kind].format(core(number))
            event: dict[str, Any] = {"session_id": "s", "cwd": f"/x/{secret}", "transcript_path": f"/x/{secret}"}
            event |= {
                "tool_name": ("Bash", "Edit")[step % 2],
                "tool_use_id": f"t{number}",
                "prompt": f"{WORD} {secret}",
            }
            event["tool_input"] = {"command": f"make {secret}", "description": f"{WORD} {secret}"}
            event["tool_input"] |= {"file_path": f"/x/{secret}/{step}.py", "old_string": WORD, "new_string": secret}
            said = f"Exit code 1\nAssertionError: no {secret}\n{WORD}"
            event["hook_event_name"] = "PostToolUseFailure" if is_failure else "PostToolUse"
            event |= (
                {"error": said} if is_failure else {"tool_response": {"stdout": f"{WORD} {secret}", "stderr": said}}
            )
            number += 1
            environment = {"HOME": str(tmp_path), "LOOPSTATS_EXPERIMENT": terms, "LOOPSTATS_SPOOL": f"{tmp_path}/spool"}
            written += hook_in_process(json.dumps(event).encode(), environment)
    spool = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert sum(path.read_bytes().count(b'"step"') for path in spool) >= number
    written += b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert CANARY.lower().encode() not in written.lower()
    assert WORD.encode() not in written


def test_the_hook_in_a_process_of_its_own_says_no_secret(tmp_path: Path) -> None:
    secret = SECRETS["github"].format(core(1))
    event = {"session_id": "s", "tool_name": "Bash", "tool_use_id": "t", "tool_input": {"command": f"make {secret}"}}
    event |= {"cwd": "/x", "hook_event_name": "PostToolUseFailure", "error": f"Error: {secret}\n{WORD}"}
    terms = json.dumps({"experiment": "e", "salt": "s", "share_bp": 5000, "n_star": 100})
    environment = {"HOME": str(tmp_path), "LOOPSTATS_EXPERIMENT": terms, "LOOPSTATS_SPOOL": f"{tmp_path}/spool"}
    for data in (json.dumps(event), json.dumps(event)[:-9]):
        done = run("hook", "run", env=environment, stdin=data.encode(), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b"")
        assert CANARY.encode() not in done.stdout
    written = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(b"<secret>" in data for data in written.values())
    assert [name for name, data in written.items() if CANARY.encode() in data or WORD.encode() in data] == []


SAID = f"{WORD} {SECRETS['github'].format(core(1))} \x1b[31m"


@pytest.mark.parametrize("command", ["ingest", "nightly"])
@pytest.mark.parametrize("error", [KeyError, pl.exceptions.ComputeError, pyarrow.ArrowSerializationError, OSError])
def test_an_unexpected_error_tells_its_type_and_place_and_no_text_of_a_log(
    command: str,
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The text of an error may quote what was read: it is told where it was asked for, without secrets, and nowhere else."""

    def broken(*_: object) -> None:
        raise error(SAID)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(store.Writer, "commit", broken)
    (tmp_path / "a.jsonl").write_text(looping("s", ["x"]), encoding="utf-8")
    arguments = ["a.jsonl", "--json", "--log", "night"] if command == "nightly" else ["a.jsonl"]
    for debug in ("0", "1"):
        monkeypatch.setenv("LOOPSTATS_DEBUG", debug)
        assert cli.run_command(["--lake", "lake", command, *arguments]) == (74 if error is OSError else 1)
        sys.stdout.flush()
        out, err = capfd.readouterr()
        told = rf"internal error: {error.__name__} at loopstats\.run:\d+ \("
        assert re.search(told, err)
        assert ("Traceback" in err, WORD in err) == (debug == "1", debug == "1")
        assert (CANARY in out + err, "\x1b" in err) == (False, False)
        written = out + "".join(map(str, files_below(tmp_path / "lake").values()))
        if command == "nightly":
            written += (tmp_path / "night").read_text(encoding="utf-8")
            assert re.search(told, written)
        assert (CANARY in written, WORD in written) == (False, False)


def test_a_fault_of_the_hook_tells_its_type_and_place_and_no_text_of_the_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError(SAID)

    monkeypatch.setattr(collector.answers, "asked", broken)
    terms = json.dumps({"experiment": "e", "salt": "s", "share_bp": 5000, "n_star": 100})
    event = {"session_id": "s", "tool_name": "Bash", "tool_use_id": "t", "hook_event_name": "PostToolUse"}
    environment = {"HOME": str(tmp_path), "LOOPSTATS_EXPERIMENT": terms, "LOOPSTATS_SPOOL": f"{tmp_path}/spool"}
    assert hook_in_process(json.dumps(event).encode(), environment) == b""
    written = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    fault = json.loads(written["log"])
    assert fault["fault"] == "KeyError"
    assert re.fullmatch(r"loopstats\.collector:\d+", fault["where"])
    assert [name for name, data in written.items() if CANARY.encode() in data or WORD.encode() in data] == []
