"""Writes what the documents take from the program: commands, columns, keys of the configuration, and outputs of runs.

    python tests/test_docs.py --write

A page is plain text with marked parts: `<!-- made: NAME -->` ... `<!-- /made -->` is one of `PARTS`, and a console block
after `<!-- run -->` holds lines that begin with `$ loopstats`, each followed by what it prints on the packaged sample.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopstats import config, output
from loopstats.cli.manual import ENTRIES, USUAL
from loopstats.query import VIEW_FOLDERS, queries, relations, schema_columns
from loopstats.tables import LOOPS, TABLES, Table
from program import COMMANDS, ROOT, TREE, Home

MADE = re.compile(r"(<!-- made: ([a-z]+) -->\n).*?(<!-- /made -->)", re.DOTALL)
RUN = re.compile(r"(<!-- run -->\n```console\n)(.*?)(```\n)", re.DOTALL)
WIDTH = 100


def pages() -> list[Path]:
    """The pages that may hold made parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def cell(text: Any) -> str:
    """A text as a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def commands_part(_: Home) -> str:
    """Every command with its options, arguments, examples and exit codes."""
    parts = ["## Global options\n\nThey may stand anywhere on the line.\n", _options(TREE)]
    parts.append("## Exit codes\n\n| code | means |\n| --- | --- |")
    parts.append("\n".join(f"| {code} | {says} |" for code, says in USUAL.items()) + "\n")
    for name, command in COMMANDS.items():
        words = " ".join(_usage(command))
        parts.append(f"## `loopstats {name}`\n\n{_prose(command.help)}\n")
        if hasattr(command, "commands"):
            parts.append("Its commands: " + ", ".join(f"`{name} {sub}`" for sub in command.commands) + ".\n")
        parts.append(f"```sh\nloopstats {name} {words}".rstrip() + "\n```\n")
        arguments = [param for param in command.params if not hasattr(param, "is_flag")]
        if arguments or command.params:
            parts.append(_options(command))
        entry = ENTRIES.get(name)
        if entry is not None:
            parts.append("```sh\n" + "\n".join(entry.examples) + "\n```\n")
            if entry.exits:
                parts.append("Exit codes: " + "; ".join(f"{code} {says}" for code, says in entry.exits.items()) + ".\n")
    return "\n".join(parts)


def _prose(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _usage(command: Any) -> list[str]:
    words = ["[OPTIONS]"] if any(hasattr(param, "is_flag") for param in command.params) else []
    words += [param.metavar or param.name.upper() for param in command.params if not hasattr(param, "is_flag")]
    return [*words, "COMMAND"] if hasattr(command, "commands") else words


def _options(command: Any) -> str:
    rows = []
    for param in command.params:
        if hasattr(param, "is_flag"):
            value = "" if param.is_flag else f" {param.metavar or 'VALUE'}"
            names = ", ".join(f"`{name}{value}`" for name in sorted(param.opts, key=len))
            default = param.default
            told = "" if param.is_flag or default in (None, "") or callable(default) else f" Default {default}."
        else:
            names, told = f"`{param.metavar or param.name.upper()}`", ""
        rows.append(f"| {names.replace('|', chr(92) + '|')} | {cell(param.help or '')}{told} |")
    return "| option | means |\n| --- | --- |\n" + "\n".join(rows) + "\n" if rows else ""


def unit(name: str, kind: str) -> str:
    """The unit that a column's name tells."""
    if kind.startswith("Datetime"):
        return "UTC, microseconds"
    for end, says in (
        ("_ms", "milliseconds"),
        ("_s", "seconds"),
        ("_micros", "millionths of a dollar"),
        ("_bp", "basis points"),
        ("_bytes", "bytes"),
        ("_offset", "bytes"),
        ("_ratio", "share of 1"),
    ):
        if name.endswith(end):
            return says
    if name.startswith("tokens"):
        return "tokens"
    if "step" in name and kind == "Int64":
        return "steps" if name.startswith(("steps", "span", "lead", "count")) else "step, from 0"
    return "count" if name.startswith(("count_", "failures_")) else ""


def columns_part(_: Home) -> str:
    """Every table and view with its grain, key and columns."""
    parts = [_table(table) for table in TABLES.values()]
    for folder, kind in VIEW_FOLDERS.items():
        for relation in relations(folder):
            found = schema_columns(relation.name)
            rows = "\n".join(f"| `{name}` | {kind_} |" for name, kind_ in found.select("column", "type").iter_rows())
            parts.append(
                f"## `{relation.name}`\n\nA {kind}. {relation.about}\n\n| column | type |\n| --- | --- |\n{rows}\n"
            )
    return "\n".join(parts)


def _table(table: Table) -> str:
    is_loops = table.name == LOOPS.name
    rows = []
    for column in table.columns:
        kind = (
            re.sub(r"\(.*", "", str(column.dtype).removeprefix("List")) if "List" not in str(column.dtype) else "list"
        )
        names = {
            "String": "text",
            "Int64": "whole number",
            "Boolean": "yes or no",
            "Float64": "number",
            "Datetime": "time",
        }
        marks = [names.get(kind, kind), unit(column.name, str(column.dtype)), "yes" if column.is_required else ""]
        marks += ["yes" if column.is_early else ""] if is_loops else []
        rows.append(f"| `{column.name}` | {' | '.join(marks)} | {cell(column.doc)} |")
    head = ["column", "type", "unit", "always there", *(["known at detection"] if is_loops else []), "what it is"]
    line = f"| {' | '.join(head)} |\n| {' | '.join('---' for _ in head)} |"
    key = ", ".join(f"`{name}`" for name in table.key)
    return f"## `{table.name}`\n\nGrain: {table.grain}. Key: {key}.\n\n{line}\n" + "\n".join(rows) + "\n"


def keys_part(_: Home) -> str:
    """Every key of the configuration."""
    lines = ["| key | takes | default | elsewhere | what it is |", "| --- | --- | --- | --- | --- |"]
    for key in config.KEYS:
        default = "" if key.default is None else f"`{json.dumps(key.default)}`"
        elsewhere = ", ".join(f"`{place}`" for place in (key.environment, key.flag) if place)
        about = key.about + (". The user's own file only" if key.is_own else "")
        lines.append(
            f"| `{key.name}` | {cell(key.kind.needs.rstrip(','))} | {default} | {elsewhere} | {cell(about)}. |"
        )
    return "\n".join(lines) + "\n"


def variables_part(_: Home) -> str:
    """Environment variables that are no keys."""
    rows = "\n".join(f"| `{name}` | {says} |" for name, says in config.OTHER_VARIABLES.items())
    return f"| variable | means |\n| --- | --- |\n{rows}\n"


def questions_part(_: Home) -> str:
    """The named questions of `sql/queries`."""
    rows = "\n".join(f"| `{name}` | {cell(about)} |" for name, about in queries().iter_rows())
    return f"| question | asks |\n| --- | --- |\n{rows}\n"


def schemas_part(_: Home) -> str:
    """The published schemas."""
    names = sorted(path.stem for path in (ROOT / "pipeline" / "loopstats" / "schemas").glob("*.json"))
    return ", ".join(f"`{name}`" for name in names) + ".\n"


def formats_part(_: Home) -> str:
    """The output formats."""
    return ", ".join(f"`{name}`" for name in output.FORMATS) + ".\n"


def intervals_part(home: Home) -> str:
    """Both intervals of the sample's lift on a line, one character a point."""
    (row,) = (r for r in home.run(["lift", "--as-of", "2026-11-20", "--json"]).body["rows"] if r["scope"] == "to_date")
    low, high, left = -10, 45, 16
    scale = [" "] * (left + high - low + 8)
    ticks = [" "] * len(scale)
    for point in range(low, high, 10):
        at = left + point - low
        ticks[at] = "|"
        for offset, char in enumerate(f"{point:+d}" if point else "0"):
            scale[at - 1 + offset] = char
    lines = ["".join(scale).rstrip() + "   points", "".join(ticks).rstrip()]
    for name, kind in (("one look", "fixed"), ("every night", "anytime")):
        ends = [left + round(100 * row[f"ci_{kind}_{end}"]) - low for end in ("low", "high")]
        middle = left + round(100 * row["lift"]) - low
        bar = {ends[0]: "[", ends[1]: "]", middle: "|"}
        line = "".join(bar.get(at, "-" if ends[0] < at < ends[1] else " ") for at in range(left, ends[1] + 1))
        lines.append(f"{name:<{left}}{line}")
    return "```\n" + "\n".join(lines) + "\n```\n"


PARTS: dict[str, Callable[[Home], str]] = {
    "commands": commands_part,
    "columns": columns_part,
    "keys": keys_part,
    "variables": variables_part,
    "questions": questions_part,
    "schemas": schemas_part,
    "formats": formats_part,
    "intervals": intervals_part,
}


def made(text: str, home: Home) -> str:
    """The page with all its parts made anew; a page that reads logs has a lake of its own."""
    text = MADE.sub(lambda found: found[1] + "\n" + PARTS[found[2]](home) + "\n" + found[3], text)
    own = (
        ["--lake", tempfile.mkdtemp(dir=home.folder)] if any("ingest" in line.split() for line in runs_of(text)) else []
    )
    return RUN.sub(lambda found: found[1] + _runs(found[2], own, home) + found[3], text)


def _runs(block: str, own: list[str], home: Home) -> str:
    out = []
    for line in re.findall(r"^\$ (loopstats .*)", block, re.MULTILINE):
        words = [str(home.folder) + word[1:] if word.startswith("~/") else word for word in shlex.split(line)[1:]]
        told = home.run([*own, *words], WIDTH)
        assert told.code in (0, 5), f"{line}: {told.code} {told.err}"
        out.append(f"$ {line}\n{told.out.decode()}")
    assert out, block
    return "".join(out)


def runs_of(text: str) -> list[str]:
    """The lines of all run blocks."""
    return [line for found in RUN.finditer(text) for line in re.findall(r"^\$ (.*)", found[2], re.MULTILINE)]


def write(home: Home) -> None:
    """Write all pages anew."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := made(text, home)) != text:
            page.write_text(new, encoding="utf-8")
