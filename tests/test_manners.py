"""Manners, over the whole program: help, tables at any width, pipes that break, a terminal, and what a shell completes."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import polars as pl
import pytest
from rich.cells import cell_len

from hostile import files_below
from loopstats import errors, output, report
from loopstats.cli.complete import SCRIPTS, VALUES, complete
from loopstats.cli.manual import ENTRIES, USUAL
from program import COMMANDS, EXAMPLES, ROOT, TABLE_EXAMPLES, TREE, Home, Told, command_of, options

WIDTHS = (60, 80, 120, 200)
# Words of another dialect, and what is said here instead.
MISFITS = {
    r"\bcontrol group\b": "holdout",
    r"\btreatment\b": "treated",
    r"\bprovider\b": "harness",
    r"\butili[sz]e\b": "use",
    r"\bcolours? scheme\b": "colours",
    r"\buplift\b": "lift",
    r"\bsuccess rate\b": "break rate",
}


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def helps(home: Home) -> dict[str, str]:
    """What `--help` prints at 80 columns, by command."""
    told = {name: home.run([*name.split(), "--help"], 80) for name in ["", *COMMANDS]}
    assert {name for name, one in told.items() if one.code} == set()
    return {name: one.out.decode() for name, one in told.items()}


def test_every_command_says_what_it_does_and_shows_an_example(helps: dict[str, str]) -> None:
    assert len(COMMANDS) > 20
    missing = [name for name in COMMANDS if name not in ENTRIES or not ENTRIES[name].examples]
    assert missing == [], "an entry in cli/manual.py is needed"
    for name, text in helps.items():
        assert text.startswith(f"Usage: loopstats {name}".rstrip())
        about = (COMMANDS[name] if name else TREE).help or ""
        assert about[:1].isupper() and ". " in about.replace("\n", " ") + " ", name
        if name:
            assert "\n  Examples:\n    loopstats " in text
            assert all(line.startswith("loopstats ") and command_of(line) for line in ENTRIES[name].examples)
        for code, says in ENTRIES[name].exits.items() if name else ():
            assert code in USUAL and f"{code} {says}"[:30] in " ".join(text.split())


def test_every_option_and_argument_says_what_it_is() -> None:
    silent = []
    for name, command in {"": TREE, **COMMANDS}.items():
        for param in command.params:
            if not (param.help or "").strip() and param.name != "help":
                silent.append(f"{name} {param.name}")
            elif param.name != "help":
                assert param.help.rstrip().endswith((".", ")")), f"{name} {param.name}: {param.help}"
    assert silent == []


def test_help_fits_a_terminal_and_cuts_nothing(helps: dict[str, str]) -> None:
    for name, text in helps.items():
        for line in text.splitlines():
            assert cell_len(line) <= 80, f"{name}: {line}"
            assert "..." not in re.sub(r"COLUMN,\.\.\.|(?:PATH|OPTION)\.\.\.|\]\.\.\.", "", line), (
                f"{name}: the first sentence is longer than its line: {line}"
            )


def test_exit_codes_of_the_manual_are_those_of_the_program(helps: dict[str, str]) -> None:
    named = {getattr(errors, name) for name in vars(errors) if name.isupper()}
    assert named == set(USUAL)
    told = " ".join(helps[""].split())
    for code, says in USUAL.items():
        assert f"{code} {says}" in told


def test_one_word_for_one_thing(helps: dict[str, str]) -> None:
    pages = {
        page.name: page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    }
    sql = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "sql").rglob("*.sql")}
    for where, text in {**helps, **pages, **sql}.items():
        prose = re.sub(r"`[^`]*`|```.*?```", "", text, flags=re.DOTALL)
        found = {f"{bad} (say {good})" for bad, good in MISFITS.items() if re.search(bad, prose, re.IGNORECASE)}
        assert found == set(), where or "loopstats --help"


# --- the examples of the manual ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def examples(home: Home) -> dict[str, Told]:
    """Every example of the manual, as it stands there; the lake that they share stays as it was."""
    before = files_below(home.folder / "lake")
    told = {line: home.example(line) for line in EXAMPLES}
    assert files_below(home.folder / "lake") == before
    return told


def test_every_example_runs(examples: dict[str, Told]) -> None:
    for line, told in examples.items():
        entry = ENTRIES[command_of(line)]
        assert told.code == 0 or told.code in entry.exits, f"{line}: {told.code} {told.err}"
        assert "Traceback" not in told.err


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(examples: dict[str, Told]) -> dict[str, Told]:
    """Examples that print a table for a person."""
    return {line: told for line, told in examples.items() if line in TABLE_EXAMPLES and is_table(line) and told.out}


def is_table(line: str) -> bool:
    return not {"-f", "--json", "-o"} & set(shlex.split(line))


def test_no_table_is_wider_than_the_terminal(home: Home, tables: dict[str, Told]) -> None:
    assert len(tables) >= 14
    for line, told in tables.items():
        text = told.out.decode()
        assert text.strip() and max(map(cell_len, text.splitlines())) <= 100, line
        for width in WIDTHS:
            for frame, _, layout in told.frames:
                assert layout is not None
                check_table(frame, output.Layout(width, False, layout.columns), line)
            if not told.frames:
                text = home.example(line, "-f", "table", width=width).out.decode()
                assert max(map(cell_len, text.splitlines())) <= width, line


def check_table(frame: pl.DataFrame, layout: output.Layout, what: str) -> None:
    """Header over its column, rule as wide as the table, no line too wide, every value whole, what is hidden told."""
    envelope = output.Envelope("x", "", "UTC", "")
    lines = b"".join(output.render(frame, "table", envelope, layout)).decode().splitlines()
    assert max(map(cell_len, lines)) <= layout.width, f"{what} at {layout.width}"
    asked = [name for name in layout.columns or frame.columns if name in frame.columns]
    hidden = output.left_out(frame, layout)
    shown = [name for name in asked if name not in hidden]
    assert shown and sorted(shown + hidden) == sorted(asked)
    rule = next(n for n, text in enumerate(lines) if set(text) == {"─"})
    header, body = lines[:rule], lines[rule + 1 :]
    assert "".join("".join(header).split()) == "".join("".join(report.safe_text(name).split()) for name in shown) or (
        len(header) > 1
    ), what
    # Values are folded, never cut without a mark: nothing printable is lost.
    seen = sorted("".join("".join(body).split()))
    wanted = sorted("".join("".join(output._shown(value) for name in shown for value in frame[name].to_list()).split()))
    assert seen == wanted, f"{what} at {layout.width}"


HARD = [
    "plain",
    "",
    None,
    "日本語のメッセージ" * 4,
    "👩🚀 emoji " * 9,
    "e\u0301a\u0308" * 30,
    "\u202eright to left",
    "a\x1b[31mred\x07",
    "tab\tand\nline",
    "x" * 300,
    "no spaces but/slashes/" * 7,
    "=1+1",
    "| pipe | `tick` |",
    "ส\u0e31ว\u0e31สด\u0e35",
]


@pytest.mark.parametrize("width", [20, 40, *WIDTHS])
def test_hostile_and_wide_text_keeps_the_table_straight(width: int) -> None:
    frame = pl.DataFrame(
        {
            "message": HARD,
            "日本": list(range(len(HARD))),
            "other": HARD[::-1],
            "targets": [[text or "", "b"] for text in HARD],
            "rate": [1 / 3] * len(HARD),
        }
    )
    check_table(frame, output.Layout(width, False, ()), "hostile")
    lines = b"".join(output.render(frame, "table", output.Envelope("x", "", "UTC", ""), output.Layout(width))).decode()
    assert not set("\x1b\x07\u202e\t") & set(lines)


def test_columns_stand_under_their_names() -> None:
    frame = pl.DataFrame({"a": ["日本", "x"], "n": [5, 12345], "text": ["e\u0301", "yy"]})
    lines = b"".join(output.render(frame, "table", output.Envelope("x", "", "UTC", ""), output.Layout(60))).decode()
    assert lines.splitlines() == ["a         n  text", "─────────────────", "日本      5  e\u0301", "x     12345  yy"]


def test_both_rulers_of_width_agree() -> None:
    for text in [*filter(None, HARD), "한국", "ｆｕｌｌ", "½", "—", "\u00ad"]:
        safe = report.safe_text(text)
        assert report.cell_width(safe) == cell_len(safe), safe


def test_what_is_hidden_is_told_on_stderr(home: Home) -> None:
    narrow, wide = home.run(["runs"], 60), home.run(["runs"], 400)
    assert "not shown at width 60: " in narrow.err and "last_verify" in narrow.err
    assert "not shown" not in wide.err


# --- colours and pipes -----------------------------------------------------------------------------------------------


def test_colours_are_for_a_terminal_or_for_who_asks(home: Home, tables: dict[str, Told]) -> None:
    for line, told in tables.items():
        assert b"\x1b" not in told.out and "\x1b" not in told.err, line
    assert re.findall(rb"\x1b\[[0-9;]*m", home.run(["--color", "always", "queries"]).out)[:1] == [b"\x1b[1m"]
    assert b"\x1b" not in home.run(["--color", "always", "queries", "--json"]).out


def test_a_reader_that_leaves_early_is_no_error(home: Home) -> None:
    chosen = {command_of(line): line for line in TABLE_EXAMPLES}
    for number, line in enumerate(chosen.values()):
        told = home.example(line, "-f", output.FORMATS[number % len(output.FORMATS)], is_left=True)
        assert told.code in {0, *ENTRIES[command_of(line)].exits}, f"{line}: {told.err}"
        assert "Error" not in told.err and "Traceback" not in told.err


@pytest.mark.parametrize("arguments", ["loops --json", "--help"])
def test_head_is_quiet_in_a_real_shell(arguments: str, home: Home) -> None:
    line = f"set -o pipefail; loopstats -q {arguments} | head -1 | wc -l; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=home.process(), cwd=home.folder, check=False
    )
    assert done.stdout.split() == ["1", "0"] and done.stderr == ""


def on_terminal(home: Home, *arguments: str, **environment: str) -> bytes:
    """What a program writes to a terminal that is both its stdout and its stderr."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "loopstats.cli", *arguments],
        stdout=follower,
        stderr=follower,
        env=home.process(TERM="xterm", **environment),
        cwd=home.folder,
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 65_536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    assert child.wait() == 0, seen
    return seen


def test_a_terminal_sees_colours_and_a_sign_of_life(home: Home) -> None:
    seen = on_terminal(home, "simulate", "planted", "--loops", "250")
    assert b"simulate 1 s" in seen and b"\x1b[1m" in seen
    # What is drawn is taken away before the table, and nothing of it stays.
    assert b"simulate" not in seen.rpartition(b"\r\x1b[K")[2].split(b"\r\n")[0]
    seen = on_terminal(home, "-q", "queries", NO_COLOR="1")
    assert b"\x1b" not in seen


def test_the_sign_of_life_stays_away_from_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    from loopstats.cli.waiting import CLEAR, PATIENCE_S, Waiting

    waiting = Waiting()
    waiting.begin("lift")
    deadline = time.monotonic() + 20 * PATIENCE_S
    seen = ""
    while "lift" not in seen and time.monotonic() < deadline:
        time.sleep(0.05)
        seen += capsys.readouterr().err
    waiting.end()
    seen += capsys.readouterr().err
    assert seen.startswith(f"{CLEAR}- lift 1 s") and seen.endswith(CLEAR)
    waiting.begin("quick")
    waiting.end()
    time.sleep(PATIENCE_S * 1.2)
    assert capsys.readouterr().err == ""


# --- completion ------------------------------------------------------------------------------------------------------


def words(line: str) -> list[str]:
    return [word for word, _ in complete(TREE, line.split(" "))]


def test_every_command_and_option_is_completed() -> None:
    for name, command in {"": TREE, **COMMANDS}.items():
        found = words(f"{name} ".lstrip())
        if hasattr(command, "commands"):
            assert set(found) == set(command.commands), name
        told = set(words(f"{name} --".lstrip()))
        assert set(options(command)) | set(options(TREE)) == told, name


def test_every_value_that_has_names_is_completed() -> None:
    assert words("loops -f ") == words("loops --format ") == list(output.FORMATS)
    assert words("loops --format=js") == ["--format=json", "--format=jsonl"]
    assert [word for word, _ in complete(TREE, ["loops", "--format", "=", "js"], is_split=True)] == ["json", "jsonl"]
    assert "worst_classes" in words("sql wor") and words("sql select") == []
    assert words("lift --by to") == ["tool"] and "tool,model" in words("lift --by tool,")
    assert "outcome" not in words("lift --by ") and "tool" not in words("lift --by tool,")
    assert words("lift --tz UTC --col") == ["--color"] and words("--color ") == ["auto", "always", "never"]
    assert words("hook install --scope ") == ["user", "project"]
    assert words("ingest ") == words("loops -o ") == words("--lake ") == []
    for key in VALUES:
        assert VALUES[key](), key


def in_bash(home: Home, typed: str) -> list[str]:
    """What bash itself proposes for a line, with the script that the program prints."""
    script = SCRIPTS["bash"] + (
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _loopstats loopstats; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    return ask(home, "bash", "-c", script, "bash", *shlex.split(typed), *([""] if typed.endswith(" ") else []))


def ask(home: Home, *command: str) -> list[str]:
    done = subprocess.run(
        command, capture_output=True, text=True, env=home.process(), cwd=home.folder, check=True, timeout=100
    )
    return done.stdout.split("\n")[:-1]


def test_a_real_bash_completes(home: Home) -> None:
    assert in_bash(home, "loopstats li") == ["lift"]
    assert "worst_classes" in in_bash(home, "loopstats sql ")
    # With the key itself, in a shell that somebody sits before.
    setup = "PS1='> '; source <(loopstats completion bash)"
    assert "arm_check" in type_into(home, ["bash", "--norc", "--noprofile", "-i"], setup, "loopstats que\t")


def shell_named(name: str) -> str:
    """A shell that is not on every machine."""
    found = os.environ.get(f"LOOPSTATS_TEST_{name.upper()}") or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} missing")
    return found


def test_a_real_zsh_completes(home: Home) -> None:
    setup = "PS1='> '; autoload -Uz compinit; compinit -u -d zcompdump; source <(loopstats completion zsh)"
    shell = [shell_named("zsh"), "-f", "-i"]
    assert "arm_check" in type_into(home, shell, setup, "loopstats que\t")
    # From a folder of functions too, as a package would install it, and the value of an option.
    (home.folder / "functions").mkdir()
    (home.folder / "functions" / "_loopstats").write_text(SCRIPTS["zsh"])
    setup = f"PS1='> '; fpath=({home.folder}/functions $fpath); autoload -Uz compinit; compinit -u -d zcompdump2"
    assert '"loop_id"' in type_into(home, shell, setup, "loopstats loops -f c\t")


def test_a_real_fish_completes(home: Home) -> None:
    script = f"{SCRIPTS['fish']}\ncomplete -C "
    fish = shell_named("fish")
    assert ask(home, fish, "--no-config", "-c", script + "'loopstats li'") == [
        "lift\tCompare the break rates of the arms: does it help?"
    ]
    assert ask(home, fish, "--no-config", "-c", script + "'loopstats loops --format=js'") == [
        "--format=json",
        "--format=jsonl",
    ]
    assert ".claude/" in "".join(ask(home, fish, "--no-config", "-c", script + "'loopstats ingest .cl'"))


def type_into(home: Home, shell: list[str], setup: str, keys: str) -> str:
    """Type into a shell on a terminal, press Return after the completion, and read what is shown until it is done."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        shell, stdin=follower, stdout=follower, stderr=follower, env=home.process(TERM="xterm"), cwd=home.folder,
        start_new_session=True,
    )  # fmt: skip
    os.close(follower)
    os.set_blocking(leader, False)
    seen = ""

    def read(seconds: float, until: Callable[[str], bool]) -> bool:
        nonlocal seen
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                seen += os.read(leader, 65_536).decode("utf-8", "replace")
            except OSError:
                time.sleep(0.05)
            if until(seen):
                return True
        return False

    try:
        os.write(leader, f'{setup}; echo re""ady\n'.encode())
        assert read(60, lambda text: "ready" in text), seen
        read(1, lambda text: False)
        before = len(seen)
        os.write(leader, keys.encode())
        # The word is completed by a process that has to start first.
        read(5, lambda text: len(text) > before + len(keys))
        os.write(leader, b'; echo do""ne\n')
        assert read(60, lambda text: "done" in text[before:]), seen
        return seen[before:]
    finally:
        os.close(leader)
        child.kill()
        child.wait()


def test_completion_loads_nothing_heavy() -> None:
    code = (
        "import sys, os\nos.environ['_LOOPSTATS_COMPLETE'] = 'bash'\nsys.argv = ['loopstats', 'lift', '--']\n"
        "from loopstats import cli\ntry:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('polars', 'duckdb', 'pyarrow', 'scipy', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "pipeline")},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]" and "--since\t" in done.stdout


def test_completion_is_for_known_shells(home: Home) -> None:
    assert home.run(["completion", "bash"]).out.decode() == SCRIPTS["bash"]
    told = home.run(["completion", "tcsh"])
    assert told.code == 2 and "bash, zsh, fish" in told.err
