"""The program as its own list: every command of the tree, and every example of the manual run on the packaged sample.

A room of its own because help, schemas, documents, tables and formats are all tested by walking the program, so that a
new command is tested from the day it is there.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
from typer.main import get_command

from loopstats import cli
from loopstats.cli.complete import commands
from loopstats.cli.manual import ENTRIES
from loopstats.output import Envelope, Layout

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "data" / "sample"
NOW = datetime(2026, 11, 20, tzinfo=UTC)
TREE = get_command(cli.app)
COMMANDS: dict[str, Any] = {" ".join(path): command for path, command in commands(TREE)}
LEAVES = {name: command for name, command in COMMANDS.items() if not hasattr(command, "commands")}
# Not run as they stand: they wait for stdin, take long, or belong to a test of their own.
NOT_RUN = {
    "hook run": "reads stdin",
    "hook test": "test_hook_install runs it",
    "spark ingest": "needs pyspark and Java; test_spark runs it",
    "spark detect": "needs pyspark and Java; test_spark runs it",
    "spark lift": "needs pyspark and Java; test_spark runs it",
}
# They would change what the others read: each has a lake of its own, those that need one a copy.
WRITE = ("ingest", "nightly", "lake compact", "lake rebuild", "lift --record")
# Of a command that prints a table: what prints something else.
NO_TABLE = {"--json-schema", "--print", "--install", "--uninstall"}


def options(command: Any) -> dict[str, Any]:
    """Options of a command by their long name."""
    return {max(p.opts, key=len): p for p in command.params if hasattr(p, "is_flag")}


TABLES = [name for name, command in LEAVES.items() if "--format" in options(command) and name not in NOT_RUN]
EXAMPLES = [line for name in LEAVES if name in ENTRIES and name not in NOT_RUN for line in ENTRIES[name].examples]


@dataclass
class Told:
    """What one call did: exit code, streams, and the frames that it handed to the printer, with envelope and layout."""

    code: int
    out: bytes
    err: str
    frames: list[tuple[pl.DataFrame, Envelope, Layout | None]] = field(default_factory=list)

    @property
    def body(self) -> dict[str, Any]:
        """The answer as JSON."""
        found: dict[str, Any] = json.loads(self.out)
        return found


class Home:
    """A home with the sample's logs where agents put theirs, a lake of them, and a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(SAMPLE / "claude-code", folder / ".claude" / "projects")
        shutil.copytree(SAMPLE / "codex", folder / ".codex" / "sessions")
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LOOPSTATS_LAKE": str(folder / "lake"),
            "TERM": "dumb",
        }
        program = folder / "bin" / "loopstats"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT / "pipeline"))} exec {shlex.quote(sys.executable)} -m loopstats.cli "$@"\n'
        )
        program.chmod(0o755)
        for arguments in (["ingest", str(SAMPLE)], ["lift", "--record"]):
            told = self.run(["-q", *arguments])
            assert told.code == 0, told.err

    def run(self, arguments: list[str], width: int = 100, is_left: bool = False) -> Told:
        """Call the program in this process; `is_left`: the reader of stdout has gone."""
        told = Told(0, b"", "")

        def rows(answer: Any, frame: pl.DataFrame, envelope: Envelope, layout: Layout | None = None) -> None:
            told.frames.append((frame, envelope, layout))
            print_rows(answer, frame, envelope, layout)

        from loopstats.cli.base import Answer

        print_rows = Answer.rows
        raw, err = io.BytesIO(), io.StringIO()
        if is_left:
            reader, writer = os.pipe()
            os.close(reader)
        out = io.TextIOWrapper(os.fdopen(writer, "wb", 0) if is_left else raw, encoding="utf-8", write_through=True)
        clock = mock.Mock(wraps=__import__("time"), time_ns=lambda: int(NOW.timestamp()) * 10**9)
        before = Path.cwd()
        with (
            mock.patch.dict(os.environ, {**self.environment, "COLUMNS": str(width)}, clear=True),
            mock.patch.object(Answer, "rows", rows),
            mock.patch("loopstats.cli.base.time", clock),
            mock.patch.object(sys, "stdout", out),
            mock.patch.object(sys, "argv", [str(self.folder / "bin" / "loopstats")]),
            redirect_stderr(err),
        ):
            os.chdir(self.folder)
            try:
                told.code = cli.run_command(arguments)
                out.flush()
            finally:
                os.chdir(before)
        told.out, told.err = raw.getvalue(), err.getvalue()
        out.close()
        return told

    def process(self, **more: str) -> dict[str, str]:
        """The environment of a process of its own, in which `loopstats` is this program."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**self.environment, "PATH": path, "COLUMNS": "80", **more}

    def example(self, line: str, *more: str, width: int = 100, is_left: bool = False) -> Told:
        """Run a line of the manual; `~` is this home, and `-o FILE` is left out where a format is asked for."""
        words = [str(self.folder) + word[1:] if word.startswith("~/") else word for word in shlex.split(line)[1:]]
        writer = command_of(line) + " --record" * ("--record" in words)
        if writer in WRITE:
            lake = self.folder / f"lake of {writer}"
            if writer != "ingest" and not lake.exists():
                shutil.copytree(self.folder / "lake", lake)
            words = ["--lake", str(lake), *words]
        if more:
            words = without(words, ("-f", "--format", "-o", "--output"), ("--json",))
            end = words.index("--") if "--" in words else len(words)
            words[end:end] = more
        return self.run(words, width, is_left)


def without(words: list[str], valued: tuple[str, ...], flags: tuple[str, ...]) -> list[str]:
    """The words without some options."""
    kept: list[str] = []
    items = iter(words)
    for word in items:
        if word in valued:
            next(items)
        elif word not in flags:
            kept.append(word)
    return kept


def command_of(line: str) -> str:
    """Which command an example calls."""
    words = shlex.split(line)[1:]
    return max((name for name in COMMANDS if name.split() in _runs(words)), key=len)


def _runs(words: list[str]) -> Iterator[list[str]]:
    for start in range(len(words)):
        for end in range(start + 1, min(start + 3, len(words)) + 1):
            yield words[start:end]


TABLE_EXAMPLES = [line for line in EXAMPLES if command_of(line) in TABLES and not NO_TABLE & set(line.split())]
