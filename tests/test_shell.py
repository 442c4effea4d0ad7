"""Tests of the shell lexer: what a command line runs, in which order, and whose exit status comes back.

A room of its own because the lexer is used by every reader and by the live hook, on text nobody has checked.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopstats import shell
from loopstats.shell import Parts, parse


def programs(command: str) -> list[str]:
    return [part.program for part in parse(command)]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ls", ["ls"]),
        ("a && b || c; d\ne & f", ["a", "b", "c", "d", "e", "f"]),
        ("a | b |& c", ["a", "b", "c"]),
        ("(a; b) && { c; d; }", ["a", "b", "c", "d"]),
        ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
        ("for x in 1 2 3; do a $x; b; done; c", ["a", "b", "c"]),
        ("for ((i=0;i<3;i++)); do a; done", ["a"]),
        ("while a; do b; done | c", ["a", "b", "c"]),
        ("until a\ndo\nb\ndone", ["a", "b"]),
        ("case $x in a|b) c;; (d) e ;; *) f; esac; g", ["c", "e", "f", "g"]),
        ("[[ -f x && $y == z ]] && a", ["[[", "a"]),
        ("((i++)); a", ["((", "a"]),
        ("f() { a; b; }; f && c", ["a", "b", "c"]),
        ("function f { a; }; f; f", ["a", "a"]),
        ("f() { a; }", []),
        ("A=1 B=2 a c", ["a"]),
        ("A=1", [""]),
        ("a=(1 2 3); b", ["", "b"]),
        ("a # b; c\nd", ["a", "d"]),
        ("a \\\n  b", ["a"]),
        ("x=$(a b | c); d", ["a", "c", "d"]),
        ("x=`a b`", ["a"]),
        ('echo "$(a; b)" && c', ["echo", "c"]),
        ("git commit -m \"$(cat <<'EOF'\nDon't stop (here; or \"there\nEOF\n)\" && git push", ["git", "git"]),
        ("cat <<A <<'B'; x\n1\nA\n2\nB\ny", ["cat", "x", "y"]),
        ("cat <<-EOF\n\ta; b\n\tEOF\nc", ["cat", "c"]),
        ("cat <<< 'a; b' | c", ["cat", "c"]),
        ("a &&\n\n b |\n c", ["a", "b", "c"]),
        ("! a && b", ["a", "b"]),
        ("a; # c'est\nb", ["a", "b"]),
        ("diff <(a) <(b) && c", ["diff", "c"]),
        ("echo ${x:-a;b} && c", ["echo", "c"]),
        ("echo a\\;b; c", ["echo", "c"]),
        ("", []),
        ("   \n# only words\n", []),
        ("done; fi; ) a", ["a"]),
    ],
)
def test_programs_in_order(command: str, expected: list[str]) -> None:
    assert programs(command) == expected


@pytest.mark.parametrize(
    ("command", "program", "args"),
    [
        ("sudo -u bob pytest -q", "pytest", ["-q"]),
        ("env -u X A=1 pytest", "pytest", []),
        ("timeout -k 5 60s pytest a", "pytest", ["a"]),
        ("time -p make all", "make", ["all"]),
        ("nice -n 10 ionice -c 3 make", "make", []),
        ("nohup stdbuf -oL python a.py", "python", ["a.py"]),
        ("command ls -l", "ls", ["-l"]),
        ("command -v git", "command", ["-v", "git"]),
        ("exec make", "make", []),
        ("xvfb-run -a npm test", "npm", ["test"]),
        ("bash -lc 'pytest -q'", "pytest", ["-q"]),
        ('/bin/sh -c "make test"', "make", ["test"]),
        ("uv run --with x pytest -q", "pytest", ["-q"]),
        ("uv tool run ruff check", "ruff", ["check"]),
        ("uvx ruff check", "ruff", ["check"]),
        ("npx --yes eslint src", "eslint", ["src"]),
        ("pnpm exec vitest run", "vitest", ["run"]),
        ("pnpm dlx tsx a.ts", "tsx", ["a.ts"]),
        ("yarn jest", "jest", []),
        ("bunx tsc", "tsc", []),
        ("poetry run pytest", "pytest", []),
        ("pipenv run python -m pytest", "pytest", []),
        ("hatch run test:pytest", "pytest", []),
        ("conda run -n env pytest", "pytest", []),
        ("mise exec -- go test", "go", ["test"]),
        ("docker exec -it -w /app web pytest", "pytest", []),
        ("docker compose exec -T web python -m pytest x", "pytest", ["x"]),
        ("docker-compose run --rm web make", "make", []),
        ("kubectl -n x exec pod -- ls", "ls", []),
        ("python -m pytest x", "pytest", ["x"]),
        ("python3.11 -W ignore -m mypy .", "mypy", ["."]),
        ("coverage run -m pytest", "pytest", []),
        ("coverage run a.py", "python", ["a.py"]),
        ("python -m coverage run -m unittest", "unittest", []),
        ("rtk git status", "git", ["status"]),
        ("ssh -p 22 me@host 'cd /x && make'", "make", []),
        ("eval 'make test'", "make", ["test"]),
        ("find . | xargs -n 1 rm -f", "rm", ["-f"]),
        ("/usr/bin/python3 a.py", "python", ["a.py"]),
        ("bash <<'EOF'\nmake\nEOF", "make", []),
        ("sudo bash -c \"timeout 5 bash -lc 'uv run pytest'\"", "pytest", []),
        ("python a.py -m pytest", "python", ["a.py", "-m", "pytest"]),
        ("python -c 'import x' -m y", "python", ["-c", "import x", "-m", "y"]),
        ("bundle exec rspec", "rspec", []),
        ("sudo", "sudo", []),
    ],
)
def test_wrappers_are_seen_through(command: str, program: str, args: list[str]) -> None:
    part = parse(command)[-1]
    assert (part.program, part.args) == (program, args)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("a 'b c' \"d e\" f\\ g", ["a", "b c", "d e", "f g"]),
        ("a b'c'\"d\"e", ["a", "bcde"]),
        (r'a "x\"y\\z\$q\n"', ["a", r'x"y\z$q\n']),
        (r"a $'x\ty\x41\u0042\''", ["a", "x\tyAB'"]),
        ("a ''", ["a", ""]),
        ('a "$(b "c d")e"', ["a", '$(b "c d")e']),
        ("a ${x}y $z $1", ["a", "${x}y", "$z", "$1"]),
        ("a 'never closed; b", ["a", "never closed; b"]),
        ('a "never closed; b', ["a", "never closed; b"]),
        ("a $(never closed; b", ["a", "$(never closed; b"]),
        ("a b#c #d", ["a", "b#c"]),
        ("a 2>&1 >b 2>/dev/null 3<c &>d", ["a"]),
        ("a 12 3x", ["a", "12", "3x"]),
        ("a {b,c} }", ["a", "{b,c}", "}"]),
    ],
)
def test_words(command: str, words: list[str]) -> None:
    assert parse(command)[0].words == words


def test_redirects_heredocs_and_code() -> None:
    part = parse("cat > a.txt <<'EOF' 2>/dev/null\nx; y\n  EOF\nEOF\nls")[0]
    assert (part.writes, part.heredoc) == (["a.txt"], "x; y\n  EOF\n")
    part = parse("a < in.txt > out.txt 2>> err.txt >&2")[0]
    assert (part.reads, part.writes) == (["in.txt"], ["out.txt", "err.txt"])
    assert parse("{ a; b; } > f")[1].writes == ["f"]
    assert parse("python -c 'print(1)'")[0].inline_code == "print(1)"
    assert parse("python3 - <<EOF\nprint(2)\nEOF")[0].inline_code == "print(2)\n"
    assert parse("node -e 'x()'")[0].inline_code == "x()"
    assert parse("cat <<EOF | python\nprint(3)\nEOF")[1].inline_code == "print(3)\n"
    assert parse("python a.py")[0].inline_code is None
    assert parse("cat <<EOF\nnever closed")[0].heredoc == "never closed"
    assert parse("python a.py <<< 'x y'")[0].heredoc == "x y"


@pytest.mark.parametrize(
    ("command", "cwd"),
    [
        ("ls", None),
        ("cd a && ls", "a"),
        ("cd a; cd b && ls", "a/b"),
        ("cd a && cd /b && ls", "/b"),
        ("cd && ls", "~"),
        ("(cd a && make); ls", None),
        ("cd a && cd - && ls", None),
        ("pushd a; ls", "a"),
        ("bash -c 'cd a; make'; ls", None),
        ("bash -c 'cd a; ls'", "a"),
        ("ssh host 'cd /x; ls'", "/x"),
    ],
)
def test_cd_is_accumulated(command: str, cwd: str | None) -> None:
    assert parse(command)[-1].cwd_after_cd == cwd


@pytest.mark.parametrize(
    ("command", "subcommand"),
    [
        ("git -C x --no-pager log", "log"),
        ("npm run build", "run build"),
        ("npm --prefix x test", "test"),
        ("docker compose -f x up", "compose up"),
        ("cargo +nightly test", "test"),
        ("mise run test:ci", "run test:ci"),
        ("kubectl -n a get pods", "get"),
        ("git", ""),
    ],
)
def test_subcommands(command: str, subcommand: str) -> None:
    assert parse(command)[0].subcommand == subcommand


# For each command: does a failure of the part `t` fail the whole command?
@pytest.mark.parametrize(
    ("command", "is_propagated"),
    [
        ("t", True),
        ("cd x && t", True),
        ("t && echo ok", True),
        ("t | tail", False),
        ("t |& tail", False),
        ("set -o pipefail; t | tail", True),
        ("set -euo pipefail\nt | tail\necho", True),
        ("t || true", False),
        ("t || echo failed", False),
        ("t || exit 1", True),
        ("t || { echo no; exit 2; }", True),
        ("t || { echo no; exit 0; }", False),
        ("t && echo ok || echo no", False),
        ("t; echo $?", False),
        ("t; exit 0", False),
        ("t; exit $?", True),
        ("t; exit", True),
        ("t; rc=$?; echo done; exit $rc", True),
        ("t; rc=$?; echo done; exit ${rc}", True),
        ("t; rc=$?; echo done", False),
        ("t | tail; exit ${PIPESTATUS[0]}", True),
        ("set -e; t; echo", True),
        ("set -e; set +e; t; echo", False),
        ("set -e; t && a; echo", False),
        ("t &", False),
        ("! t", False),
        ("if t; then a; fi", False),
        ("if t; then a; else exit 1; fi", True),
        ("if ! t; then exit 1; fi", True),
        ("if ! t; then echo no; fi", False),
        ("for x in 1; do t; done", True),
        ("for x in 1; do t; echo; done", False),
        ("while t; do a; done", False),
        ("(t)", True),
        ("(t); echo", False),
        ("bash -c 't'", True),
        ("bash -c 't; echo'", False),
        ("bash -ec 't; echo'", True),
        ("bash -o pipefail -c 't | tail'", True),
        ("x=$(t)", True),
        ("x=$(t); echo $x", False),
    ],
)
def test_exit_status(command: str, is_propagated: bool) -> None:
    found = [part.is_propagated for part in parse(command) if part.program == "t"]
    assert found == [is_propagated]


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("a", "a"),
        ("a; b", "b"),
        ("a | b", "b"),
        ("a || b", "b"),
        ("a; exit $?", "a"),
        ("a; rc=$?; echo; exit $rc", "a"),
        ("a; exit 3", "exit"),
        ("if a; then b; fi", "b"),
    ],
)
def test_exit_part(command: str, program: str) -> None:
    parts = parse(command)
    assert parts[parts.exit_part].program == program


def test_list_facts() -> None:
    assert parse("set -euo pipefail; a").is_pipefail and parse("set -euo pipefail; a").is_errexit
    assert not parse("a").is_pipefail and not parse("a").is_errexit
    assert parse("").exit_part == -1
    parts = parse("a | b & c")
    assert [(p.pipe_index, p.pipe_size, p.is_background) for p in parts] == [(0, 2, True), (1, 2, True), (0, 1, False)]
    assert [p.operator_before for p in parse("a && b || c; d | e & f")] == [None, "&&", "||", ";", "|", "&"]


HOSTILE = {
    "lists": "a;" * 500_000,
    "parens": "(" * 1_000_000,
    "single quotes": "'" * 1_000_001,
    "double quotes and substitutions": '"$(' * 330_000,
    "backticks": "`" * 999_999,
    "braces": "${" * 500_000,
    "heredocs": "<<a\n" * 250_000,
    "heredoc that is never closed": "cat <<EOF\n" + "x EOF\n" * 160_000,
    "one word": "a" * 1_000_000,
    "backslashes": "\\" * 999_999,
    "pipes": "|" * 1_000_000,
    "if": "if " * 330_000,
    "functions": "f(){ " * 200_000,
    "functions that call each other": "a(){ b;b;b;b; }; b(){ c;c;c;c; }; c(){ d;d;d;d; }; d(){ a;a;a;a;e; }; "
    + "a;" * 5_000,
    "case": "case x in " * 100_000,
    "nested shells": "bash -c 'a;b' " * 70_000,
    "wrappers": "sudo " * 200_000,
    "ansi": "$'\\" * 300_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_bounded(name: str) -> None:
    text = HOSTILE[name]
    best = 9.0
    for _ in range(3):
        shell._CACHE.clear()
        start = time.process_time()
        parts = parse(text)
        best = min(best, time.process_time() - start)
    assert (
        best < 0.25
    )  # far above what is needed, so that a busy machine does not fail it; a quadratic scan takes minutes
    assert len(parts) <= shell.MAX_TOKENS
    assert parts.is_truncated


PIECES = [
    "a",
    "b c",
    "'",
    '"',
    "\\",
    "$(",
    ")",
    "`",
    "${",
    "}",
    "$((",
    "<<EOF\n",
    "\nEOF\n",
    "<<<",
    ";",
    "&&",
    "||",
    "|",
    "&",
    "\n",
    "if ",
    "then ",
    "fi",
    "for x in y; do ",
    "done",
    "case x in ",
    "esac",
    "{ ",
    "(",
    "[[ ",
    "]]",
    "f() ",
    "bash -c ",
    "sudo ",
    "python -m ",
    "-",
    "--",
    "=",
    "A=1 ",
    "#",
    "2>&1",
    "> f",
    "< g",
    "\x00",
    "\ud800",
    "é",
    " ",
    "\t",
    "\r\n",
    "$'",
    "exit $?",
    "ssh h ",
    "xargs ",
    "cd x ",
    "timeout 5 ",
    "set -e ",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_nothing_raises_and_equal_text_gives_equal_parts(command: str) -> None:
    def facts(parts: Parts) -> list[object]:
        return [[getattr(part, name) for name in part.__slots__] for part in parts] + [
            parts.exit_part,
            parts.is_truncated,
        ]

    first = facts(parse(command))
    shell._CACHE.clear()
    assert facts(parse(command)) == first
    assert -1 <= parse(command).exit_part < max(1, len(parse(command)))


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_any_text(command: str) -> None:
    for part in parse(command):
        assert isinstance(part.program, str) and all(isinstance(word, str) for word in part.words)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.text(st.characters(blacklist_characters="'\x00", blacklist_categories=("Cs",)), max_size=12),
        min_size=1,
        max_size=6,
    )
)
def test_quoted_words_come_back(words: list[str]) -> None:
    command = "xyz " + " ".join(f"'{word}'" for word in words)
    assert parse(command)[0].words == ["xyz", *words]


def test_cache_is_bounded() -> None:
    for number in range(shell._CACHE_SIZE + 10):
        parse(f"a {number}")
    assert len(shell._CACHE) <= shell._CACHE_SIZE
    assert parse("a 1")[0].args == ["1"]
