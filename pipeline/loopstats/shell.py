"""A lexer for shell command lines: which programs a command runs, in which order, and whose exit status comes back.

Why a room of its own: what a command does cannot be told from its first word. `cd x && FOO=1 timeout 60 bash -lc
'pytest -q | tail'` runs pytest, hides its exit status and does so inside another command's quotes. The lexer knows the
bash dialect (lists, pipelines, groups, loops, functions, redirects, heredocs, quoting, wrappers) and is tolerant:
broken quoting ends the word at the end of the text, nothing raises, and the work per command is bounded.

It only reads text. No variable is expanded, no file is looked at, nothing is run.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_TEXT = 131_072
"""Characters of a command that are lexed; the rest is left out and `Parts.is_truncated` says so."""
MAX_TOKENS = 3_000
"""Tokens (and nested scans) per command, over all levels of `bash -c`; bounds the time on hostile text."""
MAX_PARTS = 600
"""Parts per command; function bodies are repeated at each call, so this must be bounded apart from the tokens."""
_MAX_NESTING = 24
_MAX_SCRIPTS = 4
_CACHE_SIZE = 2_048
_CACHE_TEXT = 8_192


class Part:
    """One simple command of a command line, wrappers seen through.

    `words`: the command as written, unquoted, without assignments and redirects. `program`: base name of the program
    that does the work (`python3.11` reads `python`), `path` as it was written. `args`: flags and operands after it.
    `subcommand`: the first operand for programs that have subcommands (`run build` for `npm run build`), else ''.
    `operator_before`: `;`, `&&`, `||`, `|`, `&` or None for the first. `writes`/`reads`: redirect files.
    `heredoc`: body of its heredoc or here-string. `inline_code`: program text given on the command line or by heredoc.
    `cwd_after_cd`: the `cd` path in force, None where there was none. `place`: host or container it runs in, else ''.
    `is_propagated`: a failure of this part makes the whole command fail. `pipe_index`/`pipe_size`: its pipeline.
    """

    __slots__ = (
        "args",
        "assignments",
        "cwd_after_cd",
        "heredoc",
        "inline_code",
        "is_background",
        "is_call",
        "is_propagated",
        "is_xargs",
        "operator_before",
        "path",
        "pipe_index",
        "pipe_size",
        "place",
        "program",
        "reads",
        "subcommand",
        "words",
        "writes",
    )

    words: list[str]
    program: str
    path: str
    args: list[str]
    subcommand: str
    operator_before: str | None
    writes: list[str]
    reads: list[str]
    heredoc: str | None
    inline_code: str | None
    cwd_after_cd: str | None
    pipe_index: int
    pipe_size: int
    assignments: list[str]
    place: str
    is_propagated: bool
    is_background: bool
    is_xargs: bool
    is_call: bool

    def __repr__(self) -> str:
        return f"Part({self.program!r}, {self.args!r})"


class Parts(list):  # type: ignore[type-arg]
    """The parts of one command in the order of the text, with the facts that belong to the whole command.

    `exit_part`: index of the part whose exit status the shell returns, -1 for an empty command. `is_pipefail`,
    `is_errexit`: whether `set -o pipefail` / `set -e` was in force at the end. `is_truncated`: a bound cut the text.
    """

    __slots__ = ("exit_part", "is_errexit", "is_pipefail", "is_truncated")

    exit_part: int
    is_pipefail: bool
    is_errexit: bool
    is_truncated: bool


_RX: dict[str, Any] = {}
_PLAIN = r"[^ \t\r\n'\"\\$`|&;<>()]"
_PATTERNS = {
    "token": (
        r"(?:[ \t\r]+|\\\r?\n)*(?:"
        r"([0-9]{0,4}(?:<<<|<<-|<<|<>|<&|<(?!\()|>>|>&|>\||>(?!\())|&>>|&>)"
        r"|(\|\||&&|;;&|;;|;&|\|&|\||&|;|\n|\(|\))"
        r"|(#[^\n]*)"
        rf"|({_PLAIN}+)(?=[ \t\r\n|&;<>()]|\Z)"
        r"|'([^']*)'(?=[ \t\r\n|&;<>()]|\Z)"
        r"|\"([^\"$`\\]*)\"(?=[ \t\r\n|&;<>()]|\Z)"
        r"|(.))"
    ),
    "piece": rf"({_PLAIN}+)|'([^']*)'|\"([^\"$`\\]*)\"",
    "assign": r"[A-Za-z_][A-Za-z0-9_]{0,99}(?:\[[^\]\n]{0,99}\])?\+?=",
    "special": r"[()'\"`\\<#\n]",
    "dq": r"[\"\\$`]",
    "dq_escape": r"\\(\r?\n|[\"\\$`])",
    "ansi": r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|[0-7]{1,3}|.)",
    "ansi_word": r"\$'((?:[^'\\]|\\.)*)'",
    "heredoc": r"<<(-?)[ \t]*(?:'([^'\n]{0,200})'|\"([^\"\n]{0,200})\"|\\?([A-Za-z0-9_.!+@%-]{1,200}))",
    "variable": r"\$(?:[A-Za-z0-9_]+|[?!#@*$-])?",
    "version": r"(python|pypy|pip|ruby|perl|php|lua|clang|gcc|g\+\+)[0-9]?(?:[.-]?[0-9]{1,2}){0,2}\Z",
    "toolchain": r"\+[A-Za-z0-9._-]+\Z",
    "launcher": r"(?:\A|/)(?:node_modules/(?:\.bin|[^/]+/bin|vitest)|vendor/bin|(?:\.venv|venv|env|usr|usr/local)/bin)"
    r"/([A-Za-z0-9_.-]+?)(?:\.[cm]?js|\.phar|\.py)?\Z",
}


def _rx(name: str) -> Any:
    found = _RX.get(name)
    if found is None:
        found = _RX[name] = re.compile(_PATTERNS[name], re.DOTALL)
    return found


# --- lexing -------------------------------------------------------------------------------------------------------

_WORD, _OP, _REDIR = 0, 1, 2
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}


class _Budget:
    __slots__ = ("is_spent", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.is_spent = False

    def take(self) -> bool:
        if self.left <= 0:
            self.is_spent = True
            return False
        self.left -= 1
        return True


def _ansi(text: str) -> str:
    def one(m: Any) -> str:
        code = m.group(1)
        if code[0] in "xu" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8) & 255)
        return str(_ANSI.get(code, code))

    return str(_rx("ansi").sub(one, text)) if "\\" in text else text


def _heredoc_end(text: str, start: int, delimiter: str, is_tabbed: bool, budget: _Budget) -> tuple[int, int]:
    """End of the body that begins at `start` (a line start), and the index of the line end behind its delimiter."""
    end = len(text)
    mark = delimiter if is_tabbed else "\n" + delimiter
    at = start if is_tabbed else start - 1
    while budget.take():
        at = text.find(mark, at)
        if at < 0:
            break
        line = max(start, text.rfind("\n", start, at) + 1) if is_tabbed else at + 1
        after = at + len(mark)
        is_line_end = after >= end or text[after] == "\n" or text.startswith("\r\n", after)
        found = text[line:after]
        if is_line_end and (found.lstrip("\t") if is_tabbed else found) == delimiter:
            following = text.find("\n", after)
            return line, end if following < 0 else following
        at += 1
    return end, end


def _skip_quoted(text: str, at: int, budget: _Budget, depth: int) -> int:
    """Index behind the closing double quote; `at` is behind the opening one."""
    rx = _rx("dq")
    while budget.take():
        m = rx.search(text, at)
        if m is None:
            break
        at = m.start()
        char = text[at]
        if char == '"':
            return at + 1
        if char == "\\":
            at += 2
        elif char == "`":
            end = text.find("`", at + 1)
            if end < 0:
                break
            at = end + 1
        elif text.startswith("$(", at) and depth < _MAX_NESTING:
            at = _skip_paren(text, at + 2, budget, depth + 1)
        else:
            at += 1
    return len(text)


def _skip_paren(text: str, at: int, budget: _Budget, depth: int = 0) -> int:
    """Index behind the parenthesis that closes a substitution; `at` is behind the opening one."""
    rx = _rx("special")
    level = 1
    waiting: list[tuple[str, bool]] = []
    while budget.take():
        m = rx.search(text, at)
        if m is None:
            break
        at = m.start()
        char = text[at]
        if char == "(":
            level += 1
        elif char == ")":
            level -= 1
            if not level:
                return at + 1
        elif char == "\\":
            at += 1
        elif char in "'`":
            end = text.find(char, at + 1)
            if end < 0:
                break
            at = end
        elif char == '"':
            at = (_skip_quoted(text, at + 1, budget, depth + 1) if depth < _MAX_NESTING else len(text)) - 1
        elif char == "<":
            if text.startswith("<<<", at):
                at += 2
            else:
                m = _rx("heredoc").match(text, at)
                if m is not None:
                    waiting.append((m.group(2) or m.group(3) or m.group(4) or "", bool(m.group(1))))
                    at = m.end() - 1
        elif char == "\n" and waiting:
            start = at + 1
            for delimiter, is_tabbed in waiting:
                at = _heredoc_end(text, start, delimiter, is_tabbed, budget)[1]
                start = at + 1
            waiting = []
            continue
        elif char == "#" and text[at - 1] in " \t\n(;":
            end = text.find("\n", at)
            if end < 0:
                break
            at = end - 1
        at += 1
    return len(text)


def _skip_brace(text: str, at: int, budget: _Budget) -> int:
    """Index behind the brace that closes a parameter expansion; `at` is behind the opening one."""
    level = 1
    end = len(text)
    while at < end and budget.take():
        close = text.find("}", at)
        if close < 0:
            return end
        inner = text.find("${", at, close)
        if inner >= 0:
            level += 1
            at = inner + 2
            continue
        level -= 1
        at = close + 1
        if not level:
            return at
    return end


def _word(text: str, at: int, budget: _Budget) -> tuple[str, int]:
    """The unquoted text of the word that begins at `at`, and the index behind it. Substitutions are kept as text."""
    out: list[str] = []
    end = len(text)
    piece = _rx("piece")
    while at < end:
        m = piece.match(text, at)
        if m is not None:
            out.append(m.group(m.lastindex))
            at = m.end()
            if not budget.take():
                break
            continue
        char = text[at]
        if char in " \t\r\n|&;)" or not budget.take():
            break
        if char in "<>":
            if not text.startswith("(", at + 1):
                break
            stop = _skip_paren(text, at + 2, budget)
        elif char == "(":
            if not out or not out[-1].endswith("="):
                break
            stop = _skip_paren(text, at + 1, budget)
        elif char == "\\":
            following = text[at + 1 : at + 2]
            if following == "\n":
                at += 2
            elif text.startswith("\r\n", at + 1):
                at += 3
            else:
                out.append(following)
                at += 2
            continue
        elif char == "'":
            out.append(text[at + 1 :])
            at = end
            continue
        elif char == '"':
            stop = _skip_quoted(text, at + 1, budget, 0)
            is_closed = text[stop - 1] == '"' and stop - 1 > at
            inner = text[at + 1 : stop - 1 if is_closed else stop]
            out.append(_rx("dq_escape").sub(_dq_unescape, inner) if "\\" in inner else inner)
            at = stop
            continue
        elif char == "`":
            close = text.find("`", at + 1)
            stop = end if close < 0 else close + 1
        else:
            if text.startswith("$'", at):
                m = _rx("ansi_word").match(text, at)
                out.append(_ansi(m.group(1) if m else text[at + 2 :]))
                at = m.end() if m else end
                continue
            if text.startswith("$(", at):
                stop = _skip_paren(text, at + 2, budget)
            elif text.startswith("${", at):
                stop = _skip_brace(text, at + 2, budget)
            elif text.startswith('$"', at):
                at += 1
                continue
            else:
                stop = _rx("variable").match(text, at).end()
        out.append(text[at:stop])
        at = stop
    return "".join(out), at


def _dq_unescape(m: Any) -> str:
    found: str = m.group(1)
    return "" if found[-1] == "\n" else found


def _tokens(text: str, budget: _Budget) -> list[tuple[int, str, bool, int]]:
    """Tokens (kind, value, is quoted or is an assignment start, start); a heredoc's body follows its redirect."""
    out: list[tuple[int, str, bool, int]] = []
    add = out.append
    match = _rx("token").match
    at, end = 0, len(text)
    waiting: list[tuple[int, bool]] = []
    take_delimiter = -1
    while True:
        m = match(text, at)
        if m is None:
            break
        if budget.left <= 0:
            budget.is_spent = True
            break
        budget.left -= 1
        group = m.lastindex
        at = m.end()
        start = m.start(group)
        if group == 4:
            value = m.group(4)
            if value[-1] == "=" and text.startswith("(", at):
                value, at = _word(text, start, budget)
            add((_WORD, value, False, start))
        elif group == 2:
            value = m.group(2)
            add((_OP, value, False, start))
            take_delimiter = -1
            if waiting and value == "\n":
                for index, is_tabbed in waiting:
                    body_end, following = _heredoc_end(text, at, out[index][1], is_tabbed, budget)
                    out[index] = (_WORD, text[at:body_end], True, out[index][3])
                    at = min(end, following + 1)
                waiting = []
            continue
        elif group == 1:
            value = m.group(1)
            op = value.lstrip("0123456789")
            add((_REDIR, op, False, start))
            if op == "<<" or op == "<<-":
                take_delimiter = len(out)
            continue
        elif group == 3:
            continue
        elif group == 5 or group == 6:
            add((_WORD, m.group(group), True, start))
        else:
            value, stop = _word(text, start, budget)
            if stop <= start:
                if budget.is_spent:
                    break
                at = start + 1
                continue
            at = stop
            add((_WORD, value, text[start] in "'\"\\$", start))
        if take_delimiter >= 0:
            waiting.append((take_delimiter, out[take_delimiter - 1][1] == "<<-"))
            take_delimiter = -1
    for index, _ in waiting:
        out[index] = (_WORD, "", True, out[index][3])
    return out


# --- grammar ------------------------------------------------------------------------------------------------------

# A list is [(operator, pipeline)]; a pipeline is [is_negated, nodes, is_background]; a node is a tuple whose first
# entry says which of these it is.
_SIMPLE, _GROUP, _IF, _LOOP, _FUNCTION = 0, 1, 2, 3, 4
_PIPES = ("|", "|&")
_NONE: frozenset[str] = frozenset()
_OPENERS = frozenset({"{", "if", "while", "until", "for", "select", "case", "function", "[["})
_CLOSERS = frozenset({"}", "then", "else", "elif", "fi", "do", "done", "esac"})


class _Parser:
    __slots__ = ("at", "depth", "text", "toks")

    def __init__(self, text: str, budget: _Budget) -> None:
        self.text = text
        self.toks = _tokens(text, budget)
        self.at = 0
        self.depth = 0

    def statements(self, stop: frozenset[str], is_case: bool = False) -> list[Any]:
        toks = self.toks
        out: list[Any] = []
        op: str | None = None
        while self.at < len(toks):
            kind, value, is_quoted, _ = toks[self.at]
            if kind == _OP:
                if value == ")":
                    if ")" in stop:
                        break
                elif value in (";;", ";&", ";;&"):
                    if is_case:
                        break
                    op = ";"
                elif value != "(":
                    if value == "&" and out:
                        out[-1][1][2] = True
                    if value != "\n" or op not in ("&&", "||"):
                        op = ";" if value == "\n" else value
                if value != "(":
                    self.at += 1
                    continue
            elif kind == _WORD and not is_quoted and value in _CLOSERS:
                if value in stop:
                    break
                if value != "}":
                    self.at += 1
                    continue
            before = self.at
            pipeline = self.pipeline()
            if self.at == before:
                self.at += 1
                continue
            out.append((None if not out else op or ";", pipeline))
            op = None
        return out

    def pipeline(self) -> list[Any]:
        toks = self.toks
        count = len(toks)
        is_negated = False
        while self.at < count and toks[self.at][1] == "!" and toks[self.at][0] == _WORD and not toks[self.at][2]:
            is_negated = not is_negated
            self.at += 1
        nodes = [self.command()]
        while self.at < count and toks[self.at][1] in _PIPES and toks[self.at][0] == _OP:
            self.at += 1
            while self.at < count and toks[self.at][1] == "\n" and toks[self.at][0] == _OP:
                self.at += 1
            nodes.append(self.command())
        return [is_negated, nodes, False]

    def command(self) -> tuple[Any, ...]:
        if self.at >= len(self.toks):
            return (_SIMPLE, [], [], [], [], None)
        kind, value, is_quoted, start = self.toks[self.at]
        if (kind == _OP and value == "(") or (kind == _WORD and not is_quoted and value in _OPENERS):
            if self.depth >= _MAX_NESTING:
                self.at += 1
                return (_SIMPLE, [], [], [], [], None)
            self.depth += 1
            node = self.compound(kind, value, start)
            self.depth -= 1
            return node
        return self.simple()

    def word(self, *values: str) -> bool:
        """Step over an expected unquoted word; False where it is not there."""
        if self.at < len(self.toks):
            kind, value, is_quoted, _ = self.toks[self.at]
            if kind != _REDIR and not is_quoted and value in values:
                self.at += 1
                return True
        return False

    def blank(self) -> None:
        while self.word("\n", ";"):
            pass

    def compound(self, kind: int, value: str, start: int) -> tuple[Any, ...]:
        toks = self.toks
        self.at += 1
        if kind == _OP:
            if self.at < len(toks) and toks[self.at][:2] == (_OP, "(") and toks[self.at][3] == start + 1:
                self.flat({"("}, {")"}, 1)
                return (_SIMPLE, ["(("], [], [], [], None)
            body = self.statements(frozenset({")"}))
            self.word(")")
            return self.redirected(_GROUP, body, True)
        if value == "[[":
            words = self.flat(set(), {"]]"}, 1)
            return (_SIMPLE, ["[[", *words], [], [], [], None)
        if value == "{":
            body = self.statements(frozenset({"}"}))
            self.word("}")
            return self.redirected(_GROUP, body, False)
        if value == "if":
            tests: list[Any] = []
            bodies: list[Any] = []
            while True:
                tests.append(self.statements(frozenset({"then", "fi", "else", "elif"})))
                self.word("then")
                bodies.append(self.statements(frozenset({"fi", "else", "elif"})))
                if not self.word("elif"):
                    break
            if self.word("else"):
                bodies.append(self.statements(frozenset({"fi"})))
            self.word("fi")
            return self.redirected(_IF, (tests, bodies), False)
        if value == "function":
            name = toks[self.at][1] if self.at < len(toks) else ""
            self.at += 1
            if self.word("("):
                self.word(")")
            self.blank()
            return (_FUNCTION, name, self.command())
        if value == "case":
            return self.case()
        test: list[Any] = []
        if value in ("while", "until"):
            test = self.statements(frozenset({"do", "done"}))
        else:
            if self.word("("):
                self.flat({"("}, {")"}, 1)
            while self.at < len(toks) and toks[self.at][1] not in ("do", ";", "\n"):
                self.at += 1
        self.blank()
        self.word("do")
        body = self.statements(frozenset({"done"}))
        self.word("done")
        return self.redirected(_LOOP, (test, body), False)

    def case(self) -> tuple[Any, ...]:
        toks = self.toks
        while self.at < len(toks) and toks[self.at][1] not in ("in", "\n", ";"):
            self.at += 1
        self.word("in")
        bodies: list[Any] = []
        while self.at < len(toks):
            self.blank()
            if self.word("esac"):
                break
            self.word("(")
            while self.at < len(toks) and toks[self.at][:2] != (_OP, ")"):
                self.at += 1
            self.at += 1
            bodies.append(self.statements(frozenset({"esac"}), True))
            self.word(";;", ";&", ";;&")
        return self.redirected(_IF, ([], bodies), False)

    def flat(self, openers: set[str], closers: set[str], level: int) -> list[str]:
        """Words up to the closing token, without looking inside: tests and arithmetic are no commands."""
        out: list[str] = []
        openers_seen = level
        while self.at < len(self.toks):
            _, value, is_quoted, _ = self.toks[self.at]
            self.at += 1
            if not is_quoted and value in openers:
                openers_seen += 1
            elif not is_quoted and value in closers:
                openers_seen -= 1
                if not openers_seen:
                    if ")" in closers:
                        self.word(")")
                    break
            out.append(value)
        return out

    def redirected(self, kind: int, body: Any, is_subshell: bool) -> tuple[Any, ...]:
        _, _, writes, reads, heredoc = self.simple(is_tail=True)[1:]
        return (kind, body, is_subshell, writes, reads, heredoc)

    def simple(self, is_tail: bool = False) -> tuple[Any, ...]:
        toks = self.toks
        words: list[str] = []
        assignments: list[str] = []
        writes: list[str] = []
        reads: list[str] = []
        heredoc: str | None = None
        while self.at < len(toks):
            kind, value, is_quoted, start = toks[self.at]
            if kind == _WORD:
                if is_tail:
                    break
                if not words and not is_quoted and "=" in value and _rx("assign").match(self.text, start):
                    assignments.append(value)
                else:
                    words.append(value)
                self.at += 1
            elif kind == _REDIR:
                self.at += 1
                if self.at >= len(toks) or toks[self.at][0] != _WORD:
                    continue
                operand = toks[self.at][1]
                self.at += 1
                if value[:2] == "<<":
                    heredoc = operand
                elif value in (">&", "<&") and (operand.isdigit() or operand == "-"):
                    continue
                elif value[0] == "<":
                    reads.append(operand)
                elif operand != "/dev/null":
                    writes.append(operand)
            elif value == "(" and not is_tail:
                self.at += 1
                if len(words) == 1 and self.at < len(toks) and toks[self.at][:2] == (_OP, ")"):
                    self.at += 1
                    self.blank()
                    if self.depth < _MAX_NESTING:
                        self.depth += 1
                        body = self.command()
                        self.depth -= 1
                        return (_FUNCTION, words[0], body)
            else:
                break
        return (_SIMPLE, words, assignments, writes, reads, heredoc)


def _names(text: str) -> list[str]:
    return text.split()


# --- wrappers -----------------------------------------------------------------------------------------------------

# program | subcommand words that make it a wrapper | its options that take a value | operands before the command
_WRAPPER_TEXT = """
sudo||-u -g -h -p -C -T -U -r -t -D|0
doas||-u -C|0
env||-u --unset -C --chdir|0
timeout||-k -s --signal --kill-after|1
gtimeout||-k -s --signal --kill-after|1
time||-f -o --format --output|0
nice||-n --adjustment|0
ionice||-c -n -p|0
chrt||-T -P -D|1
taskset|||1
nohup|||0
setsid|||0
stdbuf||-i -o -e|0
unbuffer|||0
command|||0
builtin|||0
exec||-a|0
chronic|||0
caffeinate||-t -w|0
xvfb-run||-s -n -e -f -p -w --server-args --server-num --error-file --auth-file|0
dbus-run-session|||0
strace||-e -o -p -s -u|0
ltrace||-e -o -p -s -u|0
valgrind|||0
cross-env|||0
dotenv||-e -f|0
direnv|exec||1
flock||-w -E --timeout|1
fakeroot|||0
chroot|||1
xargs||-n -P -I -L -d -a -s -E -J -R --max-args --max-procs --replace --delimiter|0
uv|run|--with --with-editable --with-requirements -p --python --extra --group --project --directory --package \
--env-file --index --index-url --only-group|0
uv|tool run|--from --with -p --python|0
uvx||--from --with -p --python|0
pipx|run|--spec --python|0
npx||-p --package -w --workspace|0
pnpx||--package|0
bunx||-p --package|0
npm|exec|-p --package -w --workspace|0
npm|x|-p --package -w --workspace|0
pnpm|exec|-C --dir -F --filter|0
pnpm|dlx|--package|0
yarn|exec||0
yarn|dlx|-p --package|0
bun|x||0
poetry|run|-C --directory -P --project|0
pipenv|run||0
pdm|run|-p --project|0
rye|run||0
hatch|run|-e --env|0
conda|run|-n -p --name --prefix --cwd|0
mamba|run|-n -p --name --prefix --cwd|0
micromamba|run|-n -p --name --prefix --cwd|0
mise|exec||0
mise|x||0
asdf|exec||0
rbenv|exec||0
pyenv|exec||0
volta|run|--node --npm --yarn|0
bundle|exec||0
doppler|run|-p -c --project --config|0
op|run|--env-file|0
infisical|run|--env --path|0
nix|develop|--profile|0
nix|shell||0
docker|exec|-e --env -u --user -w --workdir --env-file|1
docker|container exec|-e --env -u --user -w --workdir|1
docker|compose exec|-e --env -u --user -w --workdir --index|1
docker|compose run|-e --env -u --user -w --workdir -v --volume --name -p --publish --entrypoint|1
docker-compose|exec|-e --env -u --user -w --workdir --index|1
docker-compose|run|-e --env -u --user -w --workdir -v --volume --name -p --publish --entrypoint|1
podman|exec|-e --env -u --user -w --workdir|1
kubectl|exec|-c --container -n --namespace|1
rtk|||0
arch|||0
coverage|run|--source --rcfile --include --omit --data-file --context|0
kernprof|||0
"""
_GLOBAL_VALUES = {
    "git": "-C -c --git-dir --work-tree --namespace",
    "kubectl": "-n --namespace --context --kubeconfig -s --cluster",
    "npm": "--prefix -C -w --workspace",
    "pnpm": "-C --dir -F --filter",
    "yarn": "--cwd",
    "gh": "-R --repo",
    "docker": "-H --context -f --file -p --project-name --profile --env-file --project-directory",
    "docker-compose": "-f --file -p --project-name --profile --env-file",
    "cargo": "--manifest-path --config -Z -C",
    "go": "-C",
    "make": "-C -f -j -l -I -o -W --directory --file --jobs",
    "gmake": "-C -f -j -l",
    "aws": "--profile --region --output",
    "systemctl": "-M -H -t -p",
    "mvn": "-f -pl -P -s",
    "helm": "-n --namespace --kube-context",
    "bun": "--cwd",
    "just": "-f -d --justfile --working-directory",
    "task": "-d -t",
    "uv": "--project --directory",
    "mise": "-C --cd",
    "poetry": "-C --directory -P --project",
    "ninja": "-C -f -j -k -l",
    "turbo": "--cwd --filter",
    "gcloud": "--project --zone",
    "bazel": "--output_base",
    "nx": "",
    "terraform": "",
    "gradle": "-p -b",
    "gradlew": "-p -b",
    "jj": "-R",
    "hg": "-R",
    "svn": "",
}
_RUNNERS = frozenset(_names("npm pnpm yarn bun mise deno composer pdm turbo rake nx hatch lerna poetry pipenv rye uv"))
_JS_BINS = frozenset(
    _names(
        """
        tsc vitest jest mocha eslint prettier playwright biome tsx ts-node vite next webpack rollup esbuild cypress tsup
        oxlint stylelint ava tap nyc c8 knip turbo nx prisma drizzle-kit wrangler storybook vue-tsc svelte-check astro
        """
    )
)
_SSH_VALUES = frozenset(_names("-p -i -l -o -F -J -L -R -D -b -c -E -e -I -m -O -Q -S -W -w"))
_SAME_PROGRAM = {"nodejs": "node", "py": "python", "gsed": "sed", "ggrep": "grep"}
_POWERSHELLS = frozenset({"powershell", "pwsh"})
# Where an interpreter is handed the launcher of an installed program (`php vendor/bin/phpunit`).
_INTERPRETERS = frozenset({"python", "node", "php", "ruby"})
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh", "ash"})
_CODE_FLAGS = {
    "python": ("-c",),
    "pypy": ("-c",),
    "ipython": ("-c",),
    "node": ("-e", "-p", "--eval", "--print", "-pe"),
    "bun": ("-e", "--eval"),
    "ruby": ("-e",),
    "perl": ("-e", "-E", "-ne", "-pe", "-lne", "-ane", "-lane", "-0777", "-0pe", "-0ne"),
    "php": ("-r",),
    "Rscript": ("-e",),
    "lua": ("-e",),
    "deno": ("eval",),
    "osascript": ("-e",),
    "tsx": ("-e", "--eval"),
    "ts-node": ("-e",),
    "julia": ("-e",),
    "elixir": ("-e",),
}
_CODE_VALUES = frozenset({"-W", "-X", "-r", "--require", "--import", "-I", "--loader", "--env-file"})
_WRAPPERS: dict[str, list[tuple[tuple[str, ...], frozenset[str], int]]] = {}
_GLOBALS: dict[str, frozenset[str]] = {}


def _wrappers() -> dict[str, list[tuple[tuple[str, ...], frozenset[str], int]]]:
    if not _WRAPPERS:
        for line in _WRAPPER_TEXT.split("\n"):
            if line:
                name, sub, values, count = line.split("|")
                row = (tuple(sub.split()), frozenset(values.split()), int(count))
                _WRAPPERS.setdefault(name, []).append(row)
        for name, values in _GLOBAL_VALUES.items():
            _GLOBALS[name] = frozenset(values.split())
    return _WRAPPERS


def tables() -> dict[str, object]:
    """The tables that decide how a command is read, by name, for the rule digest."""
    bounds = (MAX_TEXT, MAX_TOKENS, MAX_PARTS, _MAX_NESTING, _MAX_SCRIPTS)
    return {
        "wrapper": _WRAPPER_TEXT,
        "global": _GLOBAL_VALUES,
        "runner": _RUNNERS,
        "js": _JS_BINS,
        "shell": _SHELLS | _POWERSHELLS | {"cmd"},
        "same": _SAME_PROGRAM,
        "interpreter": _INTERPRETERS,
        "code": _CODE_FLAGS,
        "code_value": _CODE_VALUES,
        "lexer": _PATTERNS,
        "bound": bounds,
    }


def base_name(word: str) -> str:
    """Program name of a command word: no folder, no `.exe`, no version (`/usr/bin/python3.11` is `python`)."""
    name = word[word.rfind("/") + 1 :] if "/" in word else word
    if "\\" in name:
        name = name[name.rfind("\\") + 1 :]
    if name[-4:].lower() in (".exe", ".cmd", ".bat") and len(name) > 4:
        name = name[:-4]
    if name[-1:].isdigit():
        m = _rx("version").match(name)
        if m is not None:
            return str(m.group(1))
    return _SAME_PROGRAM.get(name, name)


def _skip_options(words: list[str], at: int, values: frozenset[str]) -> int:
    while at < len(words):
        word = words[at]
        if word == "--":
            return at + 1
        if word[:1] != "-" or word == "-":
            return at
        at += 2 if word in values else 1
    return at


def _unwrap(words: list[str], globs: int = 10) -> tuple[list[str], str, bool]:
    """The command behind its wrappers, the host or container it runs in, and whether its operands come from a pipe."""
    table = _wrappers()
    place = ""
    is_fed = False
    for _ in range(globs):
        if not words:
            break
        name = base_name(words[0])
        rows = table.get(name)
        if rows is not None:
            following = None
            for sub, values, count in rows:
                at = 1
                if sub:
                    at = _skip_options(words, 1, _GLOBALS.get(name, frozenset()))
                    if tuple(words[at : at + len(sub)]) != sub:
                        continue
                    at += len(sub)
                if name == "command" and words[at : at + 1] and words[at][:2] in ("-v", "-V"):
                    continue
                at = _skip_options(words, at, values)
                if count:
                    if sub and name in ("docker", "docker-compose", "podman", "kubectl"):
                        place = " ".join([place, *words[at : at + 1]]).strip()
                    at = _skip_options(words, at + count, values)
                while at < len(words) and "=" in words[at] and _rx("assign").match(words[at]):
                    at += 1
                if at < len(words):
                    following = words[at:]
                    if name == "coverage" and following[0].endswith(".py"):
                        following = ["python", *following]
                    elif name == "hatch" and ":" in following[0]:
                        following = [following[0].split(":", 1)[1] or following[0], *following[1:]]
                    elif name == "nix" and "-c" in words[at - 1 : at]:
                        following = words[at:]
                    is_fed = is_fed or name == "xargs"
                break
            if following is not None:
                if following[0] == "test" and rows[0][0] == ("run",):
                    # The name of a task: nobody has the shell's own `test` run in an environment.
                    return [words[0], "run", *following], place, is_fed
                if rows[0][0] == ("run",) and name == "coverage" and "-m" in words[: len(words) - len(following)]:
                    following = [following[0], *following[1:]]
                words = following
                continue
        if name in _INTERPRETERS and len(words) > 1:
            launched = _rx("launcher").search(words[1])
            if launched is not None:
                words = [launched.group(1), *words[2:]]
                continue
        if name in ("python", "pypy"):
            at = 1
            while at < len(words) and words[at][:1] == "-" and len(words[at]) > 1:
                flag = words[at]
                if flag == "-m" or (flag[-1] == "m" and flag[1:2] != "-" and flag.isascii() and flag[1:].isalpha()):
                    break
                if flag == "-c":
                    at = len(words)
                    break
                at += 2 if flag in ("-W", "-X") else 1
            if at + 1 < len(words) and words[at][:1] == "-" and words[at][-1:] == "m":
                words = words[at + 1 :]
                continue
        elif name in ("pnpm", "yarn", "bun", "npm") and len(words) > 1:
            at = _skip_options(words, 1, _GLOBALS.get(name, frozenset()))
            if at < len(words) and words[at] in _JS_BINS and name != "npm":
                words = words[at:]
                continue
        break
    return words, place, is_fed


def _subcommand(program: str, args: list[str]) -> str:
    values = _GLOBALS.get(program)
    if values is None and program not in _RUNNERS:
        for word in args[:4]:
            if word[:1] not in ("-", "+", ""):
                return word
        return ""
    at = 1 if args and program == "cargo" and _rx("toolchain").match(args[0]) else 0
    at = _skip_options(args, at, values or frozenset())
    if at >= len(args):
        return ""
    found = args[at]
    if (found in ("run", "run-script", "compose", "r") and program in _RUNNERS) or (
        found == "compose" and program == "docker"
    ):
        rest = _skip_options(args, at + 1, values or frozenset())
        if rest < len(args):
            return f"{'run' if found in ('run-script', 'r') else found} {args[rest]}"
    return found


def _script_of(program: str, args: list[str], heredoc: str | None) -> tuple[str | None, str, str]:
    """A shell text that the part hands to another shell: the text, the host it runs on, the options of the shell."""
    if program in _SHELLS:
        options = ""
        at = 0
        while at < len(args):
            word = args[at]
            if word[:1] not in "-+" or word == "-":
                break
            if word in ("-o", "+o", "-O", "--rcfile", "--init-file"):
                options += " " + "".join(args[at + 1 : at + 2])
                at += 2
                continue
            at += 1
            if word[:2] != "--" and "c" in word:
                options += word
                if args[at : at + 1] and args[at][:1] == "-" and len(args) > at + 1:
                    at += 1
                return (args[at] if at < len(args) else None), "", options
            options += word
            if word == "-s":
                at = len(args)
        return (heredoc if at >= len(args) else None), "", options
    if program == "eval":
        return " ".join(args), "", ""
    low = program.lower()
    if low in _POWERSHELLS:
        for at, word in enumerate(args):
            if word.lower() in ("-command", "-c"):
                return " ".join(args[at + 1 :]), "", ""
        return None, "", ""
    if low == "cmd":
        for at, word in enumerate(args):
            if word.lower() in ("/c", "/k", "//c", "//k"):
                return " ".join(args[at + 1 :]), "", ""
        return None, "", ""
    if program == "ssh":
        at = _skip_options(args, 0, _SSH_VALUES)
        host = "".join(args[at : at + 1])
        rest = args[at + 1 :]
        return (" ".join(rest) if rest else heredoc), host, ""
    if program == "su" and "-c" in args[:-1]:
        return args[args.index("-c") + 1], "", ""
    if program in ("nix-shell",) and "--run" in args[:-1]:
        return args[args.index("--run") + 1], "", ""
    return None, "", ""


def _code_of(program: str, args: list[str], heredoc: str | None) -> str | None:
    """Program text given on the command line (`python -c`) or through a heredoc to an interpreter."""
    flags = _CODE_FLAGS.get(program)
    if flags is None:
        return None
    at = 0
    while at < len(args):
        word = args[at]
        if word in flags and not (program == "perl" and word == "-0777"):
            return args[at + 1] if at + 1 < len(args) else ""
        if word[:1] != "-":
            return None
        if word == "-":
            break
        if program == "perl" and word[-1:] == "e" and word[1:2] != "-":
            return args[at + 1] if at + 1 < len(args) else ""
        if word[:2] in flags and len(word) > 2 and program in ("python", "ruby", "php"):
            return word[2:]
        at += 2 if word in _CODE_VALUES else 1
    return heredoc


# --- walking ------------------------------------------------------------------------------------------------------


class _State:
    __slots__ = ("calls", "cwd", "functions", "is_errexit", "is_pipefail", "place")

    def __init__(self) -> None:
        self.cwd: str | None = None
        self.is_errexit = False
        self.is_pipefail = False
        self.functions: dict[str, tuple[Any, ...]] = {}
        self.place = ""
        self.calls = 0


def _only(pipeline: list[Any]) -> tuple[Any, ...] | None:
    """The simple command of a pipeline that is nothing else."""
    nodes = pipeline[1]
    return nodes[0] if len(nodes) == 1 and nodes[0][0] == _SIMPLE else None


def _is_failing(pipeline: list[Any]) -> bool:
    """Whether a `||` branch keeps the failure alive: `false`, `exit 1`, `exit $?`, a group that ends so."""
    nodes = pipeline[1]
    if len(nodes) == 1 and nodes[0][0] == _GROUP and nodes[0][1]:
        return _is_failing(nodes[0][1][-1][1])
    node = _only(pipeline)
    if node is None or not node[1]:
        return False
    words = node[1]
    if words[0] == "false":
        return True
    return words[0] in ("exit", "return") and len(words) > 1 and words[1] != "0"


def _tested(test: list[Any], number: int, body: tuple[Any, ...], is_kept: bool) -> tuple[list[Any], bool]:
    """The list of an `if` test, and whether its failure is handed on: `if ! make; then exit 1; fi` hands it on."""
    tests, branches = body
    if len(test) != 1 or not is_kept:
        return test, False
    operator, (is_negated, nodes, is_background) = test[0]
    taken = number if is_negated else len(branches) - 1 if len(branches) > len(tests) else -1
    if taken < 0 or taken >= len(branches) or not branches[taken]:
        return test, False
    return [(operator, [False, nodes, is_background])], _is_failing(branches[taken][-1][1])


def _status_kept(statements: list[Any], at: int) -> int:
    """Whether a later `exit $?` / `rc=$?; … exit $rc` returns the status of the statement before `at`.

    0 = no, 1 = the pipeline's status, 2 = the status of its first member (`PIPESTATUS`).
    """
    node = _only(statements[at][1])
    if node is None:
        return 0
    words, assignments = node[1], node[2]
    if words and words[0] in ("exit", "return"):
        given = words[1] if len(words) > 1 else "$?"
        return 2 if "PIPESTATUS" in given else 1 if given == "$?" else 0
    if words and words[0] in ("export", "local", "declare"):
        assignments = words[1:]
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if value == "$?" or "PIPESTATUS" in value:
            for later in statements[at + 1 :]:
                found = _only(later[1])
                if found is None or len(found[1]) < 2 or found[1][0] not in ("exit", "return"):
                    continue
                if found[1][1] in (f"${name}", f"${{{name}}}"):
                    return 2 if "PIPESTATUS" in value else 1
    return 0


class _Walker:
    __slots__ = ("budget", "out", "scripts")

    def __init__(self, budget: _Budget) -> None:
        self.out: list[Part] = []
        self.budget = budget
        self.scripts = 0

    def statements(
        self, statements: list[Any], is_kept: bool, state: _State, op: str | None, writes: list[str]
    ) -> None:
        count = len(statements)
        at = 0
        while at < count:
            end = at + 1
            while end < count and statements[end][0] in ("&&", "||"):
                end += 1
            kept = is_kept
            first_kept = False
            if end < count:
                follow = _status_kept(statements, end)
                kept = is_kept and follow == 1
                first_kept = is_kept and follow == 2
            for index in range(at, end):
                operator, pipeline = statements[index]
                alive = kept or first_kept
                if not alive and end < count and state.is_errexit and is_kept:
                    alive = kept = index == end - 1
                if alive:
                    for later in range(index + 1, end):
                        if statements[later][0] == "||":
                            alive = _is_failing(statements[later][1])
                            break
                self.pipeline(pipeline, alive, first_kept, state, operator or op, writes)
            at = end

    def pipeline(
        self, pipeline: list[Any], is_kept: bool, is_first_kept: bool, state: _State, op: str | None, writes: list[str]
    ) -> None:
        is_negated, nodes, is_background = pipeline
        is_kept = is_kept and not is_negated and not is_background
        size = len(nodes)
        for index, node in enumerate(nodes):
            kept = is_kept and (index == 0 if is_first_kept else index == size - 1 or state.is_pipefail)
            begin = len(self.out)
            self.node(node, kept, state, op if index == 0 else "|", writes, index, size)
            if is_background:
                for part in self.out[begin:]:
                    part.is_background = True

    def node(
        self,
        node: tuple[Any, ...],
        is_kept: bool,
        state: _State,
        op: str | None,
        writes: list[str],
        index: int,
        size: int,
    ) -> None:
        if len(self.out) >= MAX_PARTS:
            self.budget.is_spent = True
            return
        kind = node[0]
        if kind == _SIMPLE:
            self.simple(node, is_kept, state, op, writes, index, size)
            return
        if kind == _FUNCTION:
            state.functions[node[1]] = node[2]
            return
        body, is_subshell = node[1], node[2]
        inner = [*writes, *node[3]]
        begin = len(self.out)
        saved = (state.cwd, state.is_errexit, state.is_pipefail)
        if kind == _GROUP:
            self.statements(body, is_kept, state, op, inner)
        elif kind == _IF:
            for number, test in enumerate(body[0]):
                self.statements(*_tested(test, number, body, is_kept), state, op, inner)
                self.statements(body[1][number], is_kept, state, op, inner)
            for branch in body[1][len(body[0]) :]:
                self.statements(branch, is_kept, state, op, inner)
        else:
            self.statements(body[0], False, state, op, inner)
            self.statements(body[1], is_kept, state, op, inner)
        if is_subshell:
            state.cwd, state.is_errexit, state.is_pipefail = saved
        if index or size > 1:
            for part in self.out[begin:]:
                if part.pipe_size == 1:
                    part.pipe_index, part.pipe_size = index, size

    def simple(
        self,
        node: tuple[Any, ...],
        is_kept: bool,
        state: _State,
        op: str | None,
        writes: list[str],
        index: int,
        size: int,
    ) -> None:
        _, words, assignments, own_writes, reads, heredoc = node
        if not words and assignments:
            inner = _substituted(assignments[-1], self.budget)
            if inner is not None and self.script(inner, is_kept, state, op, index, size, False):
                return
        if not (words or assignments or own_writes or heredoc):
            return
        part = Part()
        part.words = words
        part.assignments = assignments
        part.operator_before = op if self.out else None
        part.writes = own_writes or writes
        part.reads = reads
        part.heredoc = heredoc
        part.cwd_after_cd = state.cwd
        part.pipe_index, part.pipe_size = index, size
        part.is_propagated, part.is_background = is_kept, False
        part.inline_code = None
        part.subcommand = ""
        part.is_call = False
        command, place, part.is_xargs = _unwrap(words)
        part.place = f"{state.place} {place}".strip() if place or state.place else ""
        if command:
            part.path = command[0]
            part.program = program = base_name(command[0])
            part.args = args = command[1:]
        else:
            part.path = part.program = program = ""
            part.args = args = []
        if program in state.functions and state.calls < 8 and len(self.out) < MAX_PARTS:
            state.calls += 1
            begin = len(self.out)
            self.node(state.functions[program], is_kept, state, op, writes, index, size)
            state.calls -= 1
            if len(self.out) > begin:
                return
            part.is_call = True
        text, host, options = _script_of(program, args, heredoc)
        if text is not None:
            saved = (state.is_errexit, state.is_pipefail, state.place, state.cwd)
            state.is_errexit = (program == "eval" and state.is_errexit) or "e" in options.split(" ")[0]
            state.is_pipefail = (program == "eval" and state.is_pipefail) or "pipefail" in options
            state.place = f"{part.place} {host}".strip()
            if host:
                state.cwd = None
            is_done = self.script(text, is_kept, state, op, index, size, True)
            if program != "eval":
                state.is_errexit, state.is_pipefail, state.place, state.cwd = saved
            if is_done:
                return
        if args:
            part.subcommand = _subcommand(program, args)
        part.inline_code = _code_of(program, args, heredoc)
        if (
            index
            and self.out
            and part.inline_code is None
            and program in _CODE_FLAGS
            and all(a[:1] == "-" for a in args)
        ):
            previous = self.out[-1]
            if previous.program == "cat" and previous.heredoc is not None:
                part.inline_code = previous.heredoc
        self.out.append(part)
        if program == "cd" or program == "pushd":
            state.cwd = _changed(state.cwd, args)
        elif program == "set" and args:
            self.options(args, state)

    def options(self, args: list[str], state: _State) -> None:
        for at, word in enumerate(args):
            if word[:1] in "-+" and len(word) > 1:
                is_on = word[0] == "-"
                if "e" in word[1:] and word[1:2] != "-":
                    state.is_errexit = is_on
                if word[-1] == "o" and args[at + 1 : at + 2] == ["pipefail"]:
                    state.is_pipefail = is_on
                if word[-1] == "o" and args[at + 1 : at + 2] == ["errexit"]:
                    state.is_errexit = is_on

    def script(
        self, text: str, is_kept: bool, state: _State, op: str | None, index: int, size: int, is_shell: bool
    ) -> bool:
        """Parse a nested command text in place; False where it holds no command or is nested too deep."""
        if self.scripts >= _MAX_SCRIPTS or not text or len(self.out) >= MAX_PARTS:
            return False
        self.scripts += 1
        begin = len(self.out)
        saved = state.cwd
        self.statements(_Parser(text, self.budget).statements(_NONE), is_kept, state, op, [])
        if not is_shell:
            state.cwd = saved
        self.scripts -= 1
        for part in self.out[begin:]:
            if part.pipe_size == 1 and size > 1:
                part.pipe_index, part.pipe_size = index, size
        return len(self.out) > begin


def _substituted(assignment: str, budget: _Budget) -> str | None:
    """The command inside `name=$(…)`, where the value is nothing else."""
    value = assignment.partition("=")[2]
    if value[:2] == "$(" and value[:3] != "$((":
        end = _skip_paren(value, 2, budget)
        return value[2 : end - 1] if end == len(value) and value[-1] == ")" else None
    if value[:1] == "`" and value.find("`", 1) == len(value) - 1 and len(value) > 2:
        return value[1:-1]
    return None


def _changed(cwd: str | None, args: list[str]) -> str | None:
    operands = [a for a in args if a[:1] != "-" or a == "-"]
    if not operands:
        return "~"
    to = operands[0]
    if to == "-":
        return None
    if cwd is None or to[:1] in "/~$" or to[1:2] == ":":
        return to
    return f"{cwd}/{to}"


def _exit_part(parts: list[Part]) -> int:
    """Index of the part whose status the shell returns: the last one, `exit $?` and the like seen through."""
    at = len(parts) - 1
    if at > 0 and parts[at].program in ("exit", "return"):
        given = parts[at].args[0] if parts[at].args else "$?"
        if given[:1] == "$" and parts[at].operator_before != "||":
            name = given.strip("${}")
            for index in range(at - 1, -1, -1):
                found = any(a.startswith(f"{name}=") for a in parts[index].assignments)
                if found and index > 0:
                    return index - 1
            return at - 1
    return at


_CACHE: dict[str, Parts] = {}


def parse(command: str) -> Parts:
    """The parts of a command line, in the order of the text. Never raises; equal text gives equal parts.

    The result may be shared through a bounded cache: read it, do not change it.
    """
    found = _CACHE.get(command)
    if found is not None:
        return found
    text = command if len(command) <= MAX_TEXT else command[:MAX_TEXT]
    budget = _Budget(MAX_TOKENS)
    walker = _Walker(budget)
    state = _State()
    parts = Parts()
    try:
        statements = _Parser(text, budget).statements(_NONE)
        walker.statements(statements, True, state, None, [])
    except RecursionError:
        budget.is_spent = True
    parts.extend(walker.out)
    parts.exit_part = _exit_part(walker.out) if walker.out else -1
    parts.is_errexit, parts.is_pipefail = state.is_errexit, state.is_pipefail
    parts.is_truncated = budget.is_spent or len(command) > MAX_TEXT
    if len(command) <= _CACHE_TEXT:
        if len(_CACHE) >= _CACHE_SIZE:
            _CACHE.clear()
        _CACHE[command] = parts
    return parts
