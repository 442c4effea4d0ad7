"""The inputs that the tests of the formats feed to their readers: real shapes of every format, without copying them.

A room of its own because privacy and fuzzing need valid records of each format to plant into and to break. Each test
module's `feed` and `feed_document` are listened to while its tests run.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import emitting
from loopstats.formats import Format


class Input(NamedTuple):
    """One input of a format: a list of records, or a document."""

    fmt: Format
    is_lines: bool
    value: Any


MOST = 12


@cache
def inputs() -> tuple[Input, ...]:
    """Up to `MOST` different inputs of each format, the ones with most text first; bytes and torn text left out."""
    found: dict[str, dict[str, Input]] = {}
    for path in sorted(Path(__file__).parent.glob("test_format_*.py")):
        module = importlib.import_module(path.stem)
        _listen(module, found)
    chosen: list[Input] = []
    for name in sorted(found):
        longest = sorted(found[name].items(), key=lambda item: (-len(item[0]), item[0]))
        chosen += [one for _, one in longest[:MOST]]
    return tuple(chosen)


def _listen(module: Any, found: dict[str, dict[str, Input]]) -> None:
    kept = {name: getattr(module, name) for name in ("feed", "feed_document") if hasattr(module, name)}

    def note(fmt: Format, value: Any, is_lines: bool) -> None:
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            if is_lines:
                value = [json.loads(line) if isinstance(line, str) else line for line in value]
                if not all(isinstance(line, dict) for line in value):
                    return
            elif not isinstance(value, (dict, list)):
                return
            text = json.dumps(value)
            if 2 < len(text) < 50_000:
                found.setdefault(fmt.name, {})[text] = Input(fmt, is_lines, copy.deepcopy(value))

    def feed(fmt: Format, lines: list[Any], *rest: Any, **more: Any) -> emitting.Fed:
        note(fmt, lines, True)
        return emitting.feed(fmt, lines, *rest, **more)

    def feed_document(fmt: Format, document: Any, *rest: Any, **more: Any) -> emitting.Fed:
        note(fmt, document, False)
        return emitting.feed_document(fmt, document, *rest, **more)

    for name, function in (("feed", feed), ("feed_document", feed_document)):
        if name in kept:
            setattr(module, name, function)
    try:
        for name, test in sorted(vars(module).items()):
            if name.startswith("test_") and inspect.isfunction(test) and not inspect.signature(test).parameters:
                with contextlib.suppress(Exception):
                    test()
    finally:
        for name, function in kept.items():
            setattr(module, name, function)


def fed(one: Input, value: Any) -> emitting.Fed:
    """What the format makes of `value` in the place of the input's own."""
    return emitting.feed(one.fmt, value) if one.is_lines else emitting.feed_document(one.fmt, value)


Way = tuple[Any, ...]


def leaves(value: Any, way: Way = ()) -> Iterator[tuple[Way, str]]:
    """Every text in `value` with the way to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*way, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from leaves(item, (*way, number))
    elif isinstance(value, str):
        yield way, value


def replaced(value: Any, way: Way, text: Any) -> Any:
    """A copy of `value` with `text` at the end of the way."""
    if not way:
        return text
    changed = value.copy()
    changed[way[0]] = replaced(value[way[0]], way[1:], text)
    return changed
