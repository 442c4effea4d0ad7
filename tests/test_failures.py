"""What a failed result says: cleaning, the salient line, the code, the masks and the class.

The vectors in `vectors/failures.json` were reasoned by hand from METHOD 6, row by row. Their signatures can be checked
with any SHA-256 tool: the bytes are `tool`, 0x1F, `code`, 0x1F, `message` in UTF-8, the signature the first 16 hex
digits, for instance `printf '%s\\037%s\\037%s' Bash 1 'error: boom' | sha256sum | cut -c1-16`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopstats import failures, rule
from loopstats.failures import (
    clean,
    error_code,
    has_error_text,
    is_infra,
    mask_secrets,
    masks_used,
    normalise,
    read_failure,
    salient_line,
    signature,
    summary_says_failed,
)

HERE = Path(__file__).resolve().parent
VECTORS = json.loads((HERE / "vectors" / "failures.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["line"][:40] or "nothing said")
def test_vector(row: dict[str, object]) -> None:
    found = read_failure(row["input"], row["exit_code"])
    assert (found.line, found.code, found.message) == (row["line"], row["code"], row["message"])
    assert signature(row["tool"], found.code, found.message) == row["signature"]
    key = f"{row['tool']}\x1f{row['code']}\x1f{row['message']}".encode()
    assert sha256(key).hexdigest()[:16] == row["signature"]
    assert normalise(row["message"]) == row["message"]


def test_there_are_enough_vectors() -> None:
    assert len(VECTORS) >= 120
    assert len({row["tool"] for row in VECTORS}) >= 10


APART = [
    ("errno 111", "errno 113"),
    ("HTTP 401", "HTTP 503"),
    ("status: 401", "status: 503"),
    ("exit 1", "exit 137"),
    ("exited with code 1", "exited with code 3"),
    ("3 failed, 10 passed", "1 failed, 12 passed"),
    ("FAILED (failures=1)", "FAILED (failures=2)"),
    ("Found 3 errors", "Found 2 errors"),
    ("error TS2304: no", "error TS2345: no"),
    ("E501 too long", "F401 too long"),
    ("error decade", "error facade"),
    ("error deadbeef", "error feedface"),
    ("All 3 tests failed", "All 2 tests failed"),
    ("pyright 3 errors", "pyright 2 errors"),
    ("Failed tests: 3", "Failed tests: 2"),
    ("error count: 3", "error count: 2"),
    ("tests:3 failed", "tests:2 failed"),
    ("requests.exceptions.HTTPError: 401", "requests.exceptions.HTTPError: 503"),
    ("responseCode=401", "responseCode=503"),
    ("failed with code 0x80070005", "failed with code 0x80004005"),
    ("E11000 duplicate key", "E11001 duplicate key"),
    ("RET505 unnecessary", "RET506 unnecessary"),
    ("TNS-12541: no", "TNS-12154: no"),
    ("错误：/tmp/a.txt：没有权限", "错误：/tmp/a.txt：不存在"),
]


@pytest.mark.parametrize(("one", "other"), APART)
def test_two_causes_stay_apart(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


TOGETHER = [
    ("app.ts:12:30 bad", "app.ts:120:30 bad"),
    ("at 12:30 bad", "at 120:30 bad"),
    ("No module named 'a'", "No module named 'b'"),
    ("cat: '/Users/a b/c.ts': bad", "cat: '/Users/ab/c.ts': bad"),
    ("cat: /Users/a b/c.ts: bad", "cat: /Users/ab/c.ts: bad"),
    ("iteration 120", "iteration 7"),
    ("attempt 3 failed", "attempt 4 failed"),
    ("at 2024-01-15T12:00:01Z", "at 2025-11-28 09:30:00"),
    ("in 2.1s", "in 950 ms"),
    ("at 0x7ffd01", "at 0x7f3a2b1c4d"),
    ("/tmp/a:", "/var/folders/x/y/T/b:"),
    ("from 10.0.0.1:80", "from 192.168.1.20"),
    ("id 550e8400-e29b-41d4-a716-446655440000", "id 00000000-0000-4000-8000-0000000000ff"),
    ("id 550e8400-e29b-41d4", "id 123e4567-a12b-4bd4"),
    ("connect to localhost:8080 failed", "connect to localhost:9090 failed"),
    ("job abc-123 failed", "job abc-456 failed"),
    ("node_3 failed", "node_4 failed"),
    ("build #1234 failed", "build #1235 failed"),
    ("ETA 00:12 failed", "ETA 01:33 failed"),
    ("Datei „a“ fehlt", "Datei „b c“ fehlt"),
    ("Relation »a« fehlt", "Relation »b c« fehlt"),
    ("ファイル「a」が見つかりません", "ファイル「b c」が見つかりません"),
    ("错误：/tmp/a.txt：不存在", "错误：/srv/b/c：不存在"),
]


@pytest.mark.parametrize(("one", "other"), TOGETHER)
def test_one_cause_falls_together(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("line", "masks"),
    [
        ("error 20240115", ["time"]),
        ("app.ts:12:30", ["path"]),
        ("version 139.0.0.0", ["n"]),
        ("139.0.0.0", ["n"]),
        ("from 10.1.2.3:80", ["ip"]),
        ("::1 and A::b()", ["ip"]),
        ("12:30:45", ["time"]),
        ("can't do what doesn't work", []),
        ("the 'x' of it", ["str"]),
        ("see (/tmp/x), now", ["path"]),
        ("deadbeef decade", []),
        ("deadbee1", ["hex"]),
        ("exit code 137", []),
        ("5 failed", []),
        ("512 MB", ["qty"]),
    ],
)
def test_masks_used(line: str, masks: list[str]) -> None:
    assert masks_used(line) == masks


SECRETS = [
    "sk-ant-api03-AbCdEf123456_-x",
    "ghp_0123456789abcdefABCDEF012345",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefGHIJ",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP",
    "q8Zr2TnX5bLw9KfY3mVd7HsJ1cGp",
    "wJa1rXUt3FEMI/K7MdE5G/bPx9fiCyq2Zr8Tn4Lw",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("frame", ["{}", "x {} y", "run --key={}", '{{"a": "{}"}}', "/srv/{}/x", "http://h/?k={}"])
def test_secret_shapes_are_masked_anywhere(secret: str, frame: str) -> None:
    if "/" in secret and frame.startswith("/srv"):
        frame = "x {} y"  # inside a path such a string cannot be told from one
    for masked in (mask_secrets(frame.format(secret)), normalise(frame.format(secret))):
        assert secret not in masked
        assert secret.lower() not in masked


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("password=hunter two", "hunter"),
        ('{"client_secret": "some plain words"}', "plain"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("Authorization: Bearer abcdef", "abcdef"),
        ("postgres://me:pa55w@db/x", "pa55w"),
        ("Cookie: sid=abc; other=def", "def"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+ghi", "ghi"),
        ("--api-key k3y", "k3y"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    ],
)
def test_values_of_secret_names_are_masked(text: str, hidden: str) -> None:
    masked = mask_secrets(text)
    assert hidden not in masked
    assert "<secret>" in masked
    assert mask_secrets(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "/home/me/src/components/Foo1/TestArchiveExistingSession2ChunkedTranscript.tsx",
        "7a2c1916ef958d89f9ed98a24e853da81712de4b",
        "TestPromptAttribution_CapturesPrePromptEdits",
        "logs-2024-01-15T10-30-00Z-run12",
        "Unexpected token: x",
        "max_tokens: 4096",
        "PWD=/home/me",
        "https://example.org/a/b?page=2",
        "bearer authentication required",
        "===================================",
    ],
)
def test_ordinary_text_is_no_secret(text: str) -> None:
    assert mask_secrets(text) == text


def test_clean_is_blind_to_what_an_arm_adds() -> None:
    plain = "a\nError: boom\nb"
    added = [
        "[loopstats] you have failed three times: error",
        "PostToolUse:Edit hook feedback:\n- [lint]: error",
        "[... Observation truncated due to length ...]",
        "... [12345 characters truncated] ...",
        "(read #3 of this file)",
    ]
    for extra in added:
        assert clean(f"a\n{extra}\nError: boom\nb") == plain
        assert clean(f"{extra}\n{plain}") == plain
    assert clean(f"{plain}<system-reminder>\nerror: stop\n</system-reminder>") == plain
    assert clean(f"<tool_use_error>{plain}</tool_use_error>") == plain


def test_clean_terminal_codes() -> None:
    assert clean("\x1b[1;31mbad\x1b[0m \x1b[2Kthing \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\") == "bad thing link"
    assert clean("10%\r50%\rerror: disk full\r100%") == "error: disk full\n100%"
    assert clean("a\r\nb") == "a\nb"


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("==== 2 failed, 3 passed in 0.1s ====", True),
        ("3 passed in 0.10s", False),
        ("Ran 3 tests in 0.1s\n\nOK", False),
        ("OK", None),
        ("Ran 3 tests in 0.1s\n\nFAILED (errors=1)", True),
        ("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out", False),
        ("test result: ok. 3 passed; 0 failed; 0 ignored\ntest result: FAILED. 1 passed; 1 failed; 0 ignored", True),
        ("ok  \tex.org/a\t0.1s", False),
        ("FAIL\tex.org/a\t0.1s", True),
        ("Tests:       10 passed, 10 total", False),
        ("Tests  1 failed | 2 passed (3)", True),
        ("10 examples, 0 failures", False),
        ("Found 2 errors in 1 file (checked 3 source files)", True),
        ("Success: no issues found in 3 source files", False),
        ("1 file would be reformatted, 2 files would be left unchanged.", True),
        ("2 files would be reformatted, 1 file already formatted", True),
        ("1 file would fail to reformat.", True),
        ("3 files would be left unchanged.", False),
        ("gcc -c a.c\nmake[1]: *** [Makefile:2: a.o] Error 1", True),
        ("make: *** No rule to make target 'x'.  Stop.", True),
        ("ninja: build stopped: subcommand failed.", True),
        ("npm ERR! Test failed.  See above for more details.", True),
        ("\u2009ELIFECYCLE\u2009 Command failed with exit code 1.", True),
        ("error Command failed with exit code 1.", True),
        ("A.java:3: error: ';' expected\n1 error", True),
        ("2 warnings and 1 error generated.", True),
        ("webpack 5.1.0 compiled with 2 errors in 300 ms", True),
        ("3 files inspected, 2 offenses detected", True),
        ("3 files inspected, no offenses detected", False),
        ("3 scenarios (1 failed, 2 passed)", True),
        ("3 scenarios (3 passed)", False),
        ("3 specs, 1 failure", True),
        ("00:01 +1 -1: Some tests failed.", True),
        ("DONE 3 tests, 1 failure in 0.1s", True),
        ("DONE 3 tests in 0.1s", False),
        ("ruff.........................Failed", True),
        ("Build failed with 3 error(s) in 1.2s", True),
        ("the log said: 1 error", None),
        ("assert msg == '2 failed, 3 passed in 0.1s'", None),
        ("# the test said: 3 failed", None),
        ("404 not found, error, FAILED", None),
        ("", None),
    ],
)
def test_summary_says_failed(text: str, failed: bool | None) -> None:
    assert summary_says_failed(text) is failed


@pytest.mark.parametrize(
    ("line", "exit_code", "structured", "code"),
    [
        ("x", 137, None, "137"),
        ("x", 1, 503, "503"),
        ("x", 1, "not_found", "not_found"),
        ("ValueError: x", 1, "1", "ValueError"),
        ("ValueError: x", 2, None, "2"),
        ("connect ECONNREFUSED 1.2.3.4", None, None, "ECONNREFUSED"),
        ("ERROR: EMPTY", None, None, ""),
        ("Exception: boom", 1, None, "Exception"),
        ("Error: boom", 1, None, "1"),
        ("Error [ERR_MODULE_NOT_FOUND]: x", 1, None, "ERR_MODULE_NOT_FOUND"),
        ("ERROR 1064 (42000): bad", 1, None, "42000"),
        ("Flight HAT268 not found", None, None, ""),
        ("boom", 1, None, "1"),
        ("boom", 0, None, "0"),
        ("boom", None, True, ""),
    ],
)
def test_error_code(line: str, exit_code: int | None, structured: str | int | None, code: str) -> None:
    assert error_code(line, exit_code, structured) == code


def test_timeout_has_its_own_code() -> None:
    assert read_failure("command timed out", 124, is_timeout=True).code == "timeout"


@pytest.mark.parametrize(
    ("code", "message", "infra"),
    [
        ("429", "", True),
        ("503", "", True),
        ("timeout", "", True),
        ("ECONNREFUSED", "", True),
        ("", "request failed with status code 502", True),
        ("", "you exceeded your current quota", True),
        ("", "temporary failure in name resolution", True),
        ("", "overloaded", True),
        ("404", "not found", False),
        ("1", "3 failed", False),
        ("", "unexpected keyword argument timeout", False),
        ("ENOENT", "enoent: no such file or directory", False),
        ("", "dial tcp <ip>: <path> timeout", True),
        ("", "net::err_connection_refused", True),
        ("", "throttlingexception: rate exceeded", True),
        ("", "lost connection to mysql server", True),
        ("", "httpsconnectionpool: max retries exceeded with url", True),
        ("", "timeout must be positive", False),
    ],
)
def test_is_infra(code: str, message: str, infra: bool) -> None:
    assert is_infra(code, message) is infra


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("grep: x: No such file or directory", True),
        ("Exit code 1", False),
        ("", False),
        ("< error: bad\n> error: good", False),
        ("rg: ./x: No such file or directory (os error 2)", True),
        ("grep: a.pyc: binary file matches", False),
    ],
)
def test_has_error_text(text: str, told: bool) -> None:
    assert has_error_text(text) is told


def test_a_traceback_after_the_summary_wins_and_before_it_does_not() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: x'
    assert salient_line(f"{trace}\n1 failed in 0.1s") == "1 failed in 0.1s"
    assert salient_line(f"1 failed in 0.1s\n{trace}") == "ValueError: x"


def test_signature_hashes_the_whole_message_and_replaces_surrogates() -> None:
    assert signature("t", "c", "x" * 300 + "a") != signature("t", "c", "x" * 300 + "b")
    assert signature("t", "", "\ud800") == signature("t", "", "\ufffd")
    assert normalise("word " * 500 + "alpha") != normalise("word " * 500 + "beta")


PIECES = st.sampled_from(
    [
        "'",
        '"',
        "`",
        ":",
        ".",
        "/",
        "\\",
        "-",
        "_",
        "(",
        ")",
        "[",
        "]",
        "<",
        ">",
        "=",
        "5",
        "12",
        "0x1f",
        "1e5",
        "3.14",
        "a",
        "e",
        "s",
        "ms",
        "status",
        "code",
        "exit",
        "error",
        "failed",
        "of",
        "tests",
        "attempt",
        "http",
        "503",
        "2024-01-15",
        "12:30:45",
        "10.0.0.1",
        "::1",
        "a::b()",
        "deadbee1",
        "app.ts:12:30",
        "/tmp/x",
        "C:\\x",
        "foo.py",
        "x@y.com",
        "http://a.b/c?x=1",
        "token=",
        "password:",
        "secret=",
        "<n>",
        "<path>",
        "<PATH>",
        "<str>",
        "b",
        "İ",
        "ſ",
        "é",
        "“",
        "”",
        "«",
        "»",
        "TS2304",
        "F401",
        "Bearer",
        "#",
        "12,5",
        "k",
        "GiB",
        "with",
        "and",
        "*",
        "?",
        "…",
        ",",
        ";",
        "{",
        "}",
        "|",
        "@",
        "cookie:",
        "--token",
        "am",
        "5s",
        "v1.2",
        "(12,30)",
        "#L12",
        "..",
        " ",
        " ",
        "\x00",
        "�",
        "\ue000",
        "\ue015",
        "\n",
        "3 failed",
        "jan 5",
        "code 0xdead12",
        ":8080 failed",
        "„",
        "‚",
        "»",
        "「",
        "」",
        "：",
    ]
)


@pytest.mark.parametrize("text", ["exit 0xdead12«»", "hresult ‚“‚12’http 401‘"])
def test_what_stands_beside_a_quotation_is_masked_once(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=80)))
def test_masking_is_idempotent_and_never_raises(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert once == once.lower()
    masked = mask_secrets(text)
    assert mask_secrets(masked) == masked
    found = read_failure(text, 1)
    assert found.message == normalise(found.line)
    signature(text, found.code, found.message).encode("ascii")


HOSTILE = {
    "a": "a", "slash": "a/", "dots": ".", "digits": "1", "numbers": "1 ", "apostrophes": " 'a",
    "backticks": "`a ", "colons": "a:",
    "returns": "a\r", "errors": "error\n", "escapes": "\x1b[", "links": "\x1b]8;;",
    "reminders": "<system-reminder>", "angles": "<",
    "tracebacks": "Traceback (most recent call last):\n", "summaries": "1 failed, 2 passed in 1s\n",
    "tokens": "token=", "dashes": "-",
    "hex": "deadbee1", "units": "1s", "mixed": "Ab1", "base64": "aB1/",
    "pem": "-----BEGIN RSA PRIVATE KEY-----\n", "surrogates": "\ud800",
    "nul": "\0", "stubs": "[... ", "hooks": "PostToolUse:x hook ", "mild": "0 errors\n",
    "places": "a.c:1: warning: x\n", "urls": "a://",
    "groups": "(a)/", "struck": "a\x08", "quoted": "old_str `", "equals": "=",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_megabytes_take_bounded_time(name: str) -> None:
    text = HOSTILE[name] * (1_000_000 // len(HOSTILE[name]))
    for function in (read_failure, normalise, mask_secrets, summary_says_failed, has_error_text):
        function(text[:100])  # compile first
        spent = []
        for _ in range(3):  # the best of three: the machine may be busy with something else
            start = time.process_time()
            function(text)
            spent.append(time.process_time() - start)
            if spent[-1] < 0.5:
                break
        assert min(spent) < 0.5, function.__name__


PASSAGES = (
    *(
        "word",
        "Word",
        " ",
        "  ",
        "\n",
        "\n    ",
        "\t",
        "→",
        "Ä",
        "Σας",
        "İ",
        "ß",
        "\xa0",
        "\u2028",
        "\x85",
        "\x1b[1m",
        "\r",
    ),
    *(
        "5",
        "12:30:01",
        "2026-01-02",
        " 5 ms",
        "0.5 seconds",
        "7s",
        "10 new",
        "1:3",
        "11-2",
        "3 :",
        "\ue001",
        "\ud800",
        "\x1c",
    ),
    *(
        "\n[truncated 5 lines]",
        "\n12 lines omitted]",
        "\n1,234 characters truncated.",
        "\n  [notice] so",
        "\n12 passed",
        "\nresult = 5",
    ),
    *(
        "\nOutput truncated.",
        "\n  result was clipped to 5]",
        "\n… +3 lines",
        "\n(read 3 times)",
        "\n⚠️ Loop detected",
        "\nPreToolUse:Bash hook said",
        "\n- item",
        "\n<warning>x",
    ),
)


def plain_hash(text: str) -> str:
    """The hash of a result as it is defined, character by character."""
    words = " ".join(clean(text).lower().split())
    signs = re.compile(failures.CLOCK_SIGN, re.ASCII)
    if signs.search(words):
        words = re.sub(failures.PATTERNS["clock"], "0", words, flags=re.ASCII)
    return sha256(f"\x1f{words}".encode("utf-8", "replace")).hexdigest()[:16]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PASSAGES), max_size=12).map("".join))
def test_the_hash_by_bytes_is_the_hash_by_characters(text: str) -> None:
    assert rule.result_hash(text) == plain_hash(text)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PASSAGES), max_size=12).map("".join))
def test_the_look_at_beginnings_misses_no_added_line(text: str) -> None:
    lines = [line.strip() for line in text.split("\n")]
    if any(line and failures._added_kind(line) for line in lines):
        assert failures._may_hold_added(text)


def test_added_lines_are_found_by_their_beginnings() -> None:
    found = {piece for piece in PASSAGES[-14:] if failures._may_hold_added(piece)}
    assert set(PASSAGES[-14:]) - found == {"\n12 passed", "\nresult = 5", "\n- item"}


def test_tables_are_whole_and_ascii() -> None:
    text = failures.tables()
    assert text == failures.tables()
    assert text.isascii()
    for name in failures.RULES:
        assert f"\n{name}\t" in "\n" + text


def test_the_module_imports_little() -> None:
    source = "import sys; before = set(sys.modules); import loopstats.failures; print(*(set(sys.modules) - before))"
    package = str(Path(failures.__file__).resolve().parents[1])
    shown = subprocess.run(
        [sys.executable, "-S", "-c", source],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": package},
    ).stdout.split()
    assert "loopstats.failures" in shown
    assert not {"typing", "dataclasses", "enum.Enum", "shlex", "inspect", "logging", "hashlib"} & set(shown)


def test_masking_is_idempotent_on_real_results() -> None:
    corpus = Path(os.environ.get("LOOPSTATS_CORPUS") or HERE.parent.parent / "shared" / "corpus")
    if not corpus.is_dir():
        pytest.skip(f"corpus folder missing: {corpus}")
    lines = 0
    for path in sorted((corpus / "mini-swe-agent").rglob("*.json"))[:4]:
        for line in path.read_text(encoding="utf-8", errors="replace").split("\\n")[:1500]:
            once = normalise(line[:400])
            assert normalise(once) == once
            lines += 1
    assert lines > 100
