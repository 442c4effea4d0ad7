"""Random damage to valid records of every format, and random text for masks, lexer, times and the hook.

Seeded and short here; `make fuzz` runs as many examples as `LOOPSTATS_FUZZ` says. What it finds is written down as a case of the module that was mended.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emitting import Fed
from harvest import Input, fed, inputs, replaced
from hostile import OWN, hook_in_process
from loopstats import failures, rule, when
from loopstats.errors import Reject, UsageError
from loopstats.tables import RECORD_TYPES

MORE = int(os.environ.get("LOOPSTATS_FUZZ", "0"))


def fuzz(examples: int) -> settings:
    return settings(
        max_examples=MORE or examples,
        derandomize=not MORE,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


BY_NAME = {name: [one for one in inputs() if one.fmt.name == name] for name in sorted({i.fmt.name for i in inputs()})}
ODD = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 7.5, 1e300, 1 << 62, -(1 << 63), "", " ", [], {}, [[]], {"": {}}, [None], "\x00"]),
    st.sampled_from(OWN),
    st.text(max_size=12),
    st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6),
)  # fmt: skip


def ways(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [way] if way else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += ways(item, (*way, key))
    return found


def at(value: Any, way: tuple[Any, ...]) -> Any:
    for part in way:
        value = value[part]
    return value


@st.composite
def damaged(draw: st.DrawFn, name: str) -> tuple[Input, Any]:
    """An input of the format with one to three places dropped, retyped, nested, doubled or swapped."""
    one = draw(st.sampled_from(BY_NAME[name]))
    value = one.value
    for _ in range(draw(st.integers(1, 3))):
        places = [way for way in ways(value) if not one.is_lines or len(way) > 1]
        if not places:
            break
        way = draw(st.sampled_from(places))
        match draw(st.integers(0, 4)):
            case 0:
                value = replaced(value, way, draw(ODD))
            case 1:
                value = replaced(value, way, [at(value, way)])
            case 2:
                value = replaced(value, way, {"type": at(value, way)})
            case 3:
                value = replaced(value, way, at(value, draw(st.sampled_from(places))))
            case _:
                parent = at(value, way[:-1])
                kept = (
                    {k: v for k, v in parent.items() if k != way[-1]}
                    if isinstance(parent, dict)
                    else [v for n, v in enumerate(parent) if n != way[-1]]
                )
                value = replaced(value, way[:-1], kept) if way[:-1] else kept
    return one, value


def rows_fit(found: Fed) -> None:
    """Every row has the types of its table."""
    for kind, table in RECORD_TYPES.items():
        rows = [tuple(row.values()) for row in found.rows[kind]]
        schema = pl.Schema({c.name: pl.Int64() if c.name == "ts" else c.dtype for c in table.columns})
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        for column in table.columns:
            assert not column.is_required or frame[column.name].null_count() == 0, column.name


def whole(one: Input, value: Any) -> Fed:
    count = len(value) if one.is_lines else None
    found = fed(one, value)
    rows_fit(found)
    if count is not None:
        told = found.lines_used + sum(found.nothing.values()) + sum(found.folds.values()) + len(found.rejects)
        assert told == count
    return found


@pytest.mark.parametrize("name", BY_NAME)
def test_a_damaged_record_is_a_fact_a_nothing_or_a_reject(name: str) -> None:
    @fuzz(8)
    @given(damaged(name), st.integers(0, 40))
    def check(case: tuple[Input, Any], cut: int) -> None:
        one, value = case
        found = whole(one, value)
        again = fed(one, value)
        assert (found.rows, found.rejects, found.nothing, found.folds) == (
            again.rows,
            again.rejects,
            again.nothing,
            again.folds,
        )
        if not one.is_lines or one.fmt.needs_chain:
            return
        cut = cut % (len(value) + 1)
        first = grown(one, value[:cut], None, 1)
        second = grown(one, value[cut:], first, cut + 1)
        assert {kind: first.rows[kind] + second.rows[kind] for kind in first.rows} == found.rows
        assert first.rejects + second.rejects == found.rejects

    check()


def grown(one: Input, lines: list[Any], before: Fed | None, first_line: int) -> Fed:
    """The lines as a later part of a file, with what the ledger keeps of the part before."""
    from emitting import feed

    kept = (None, None) if before is None else json.loads(json.dumps((before.state, before.pending)))
    return feed(one.fmt, lines, state=kept[0], pending=kept[1], first_line=first_line)


# --- masks ------------------------------------------------------------------------------------------------------------

PIECES = sorted(
    {piece for pattern in failures.PATTERNS.values() for piece in re.findall(r"[A-Za-z_:/@.=-]{2,}", pattern) if len(piece) < 20}
)[::3] + list("aZ9 -_.:/@'\"`<>()[]{}=,;\\|+#\t\x1b%&\u2018\ue000") + ["://", "bearer ", "--api-key ", "a.b.", "1:2:", "é"]  # fmt: skip
CPU_SECONDS = 1.5


def timed(text: str) -> float:
    started = time.process_time()
    failure = failures.read_failure(text)
    rule.mask_secrets(text)
    rule.result_hash(text)
    failures.has_error_text(text)
    failures.summary_says_failed(text)
    rule.is_infra(failure.code, failure.message)
    return time.process_time() - started


@fuzz(60)
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=4),
    st.sampled_from(PIECES),
    st.sampled_from([300, 5000, 60_000]),
)
def test_no_message_takes_long(piece: list[str], end: str, size: int) -> None:
    """The attack on a backtracking pattern: one piece again and again, and then something that does not fit."""
    text = "".join(piece)
    assert timed("Error: " + text * (size // len(text)) + end) < CPU_SECONDS


@pytest.mark.parametrize("name", sorted(failures.PATTERNS))
def test_no_pattern_has_a_repeat_of_a_repeat_of_the_same(name: str) -> None:
    """A static look: `(x+)+` and its like, the form whose time doubles with every character."""
    pattern = failures.PATTERNS[name]
    assert not re.search(r"\((?:\?:)?(?:\[[^\]]*\]|\\?.)[+*]\)[+*]", pattern)
    assert not re.search(r"\((?:\?:)?\.[+*][^()]*\)[+*]", pattern)


@fuzz(60)
@given(st.text(max_size=200) | st.sampled_from(OWN) | st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_masks_are_idempotent_and_never_raise(text: str) -> None:
    once = failures.normalise(text)
    assert failures.normalise(once) == once
    masked = rule.mask_secrets(text)
    assert rule.mask_secrets(masked) == masked
    assert rule.safe_id(rule.safe_id(text)) == rule.safe_id(text)


# --- lexer, times, hook, lines ----------------------------------------------------------------------------------------

SHELL = ["a", " ", "\n", "'", '"', "\\", "$(", ")", "`", "<<E", "E\n", "|", "&&", ";", ">", "2>&1", "{", "}", "sudo ", "bash -c ", "cd ", "\x00", "é", "${x:-", "((", "if ", "for x in ", "done", "#"]  # fmt: skip


@fuzz(100)
@given(st.lists(st.sampled_from(SHELL), max_size=40).map("".join))
def test_any_command_line_is_a_call(command: str) -> None:
    one = rule.read_call("Bash", {"command": command}, "/x")
    assert one.kind
    assert vars_of(one) == vars_of(rule.read_call("Bash", {"command": command}, "/x"))


def vars_of(value: Any) -> list[Any]:
    return [getattr(value, name) for name in ("kind", "action", "target", "targets", "fingerprint", "program")]


@fuzz(100)
@given(
    st.text(max_size=20)
    | st.lists(
        st.sampled_from(["1", "9" * 30, "d", "mo", "y", "-", "T", ":", "Z", "+", ".", "today", "2026", "\u0661", " "]),
        max_size=8,
    ).map("".join)
)
def test_any_since_is_an_instant_or_a_usage_error(text: str) -> None:
    try:
        interval = when.resolve(text, None, None, "UTC", 1_793_000_000_000_000)
    except UsageError as error:
        assert "\n" not in str(error)
        return
    assert interval.since_us is None or isinstance(interval.since_us, int)


EVENT = {
    "session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "Bash", "tool_use_id": "t", "cwd": "/x",
    "tool_input": {"command": "make"}, "tool_response": {"stdout": "", "stderr": ""}, "error": "Exit code 1",
}  # fmt: skip


@fuzz(60)
@given(st.sampled_from(sorted(EVENT)), ODD, st.integers(0, 400), st.binary(max_size=6))
def test_the_hook_answers_nothing_to_any_bytes(key: str, value: Any, cut: int, junk: bytes) -> None:
    import tempfile

    data = json.dumps(EVENT | {key: value}).encode()
    data = data[:cut] + junk + (data[cut:] if cut % 2 else b"")
    with tempfile.TemporaryDirectory() as spool:
        terms = json.dumps({"experiment": "e", "salt": "s", "share_bp": 5000, "n_star": 100})
        environment = {"LOOPSTATS_SPOOL": spool, "LOOPSTATS_EXPERIMENT": terms, "HOME": spool}
        hook_in_process(data, environment)


@fuzz(150)
@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                b"{",
                b"}",
                b'"a"',
                b":",
                b",",
                b"[",
                b"]",
                b"1",
                b"-",
                b"\\u",
                b"d800",
                b"\x00",
                b"NaN",
                b" ",
                b"\xff",
                b"1e999",
            ]
        ),
        max_size=25,
    ).map(b"".join)
)
def test_any_line_is_decoded_or_rejected(line: bytes) -> None:
    from loopstats.decode import decode_line

    try:
        objects, _ = decode_line(line)
    except Reject:
        return
    assert all(isinstance(one, dict) for one in objects)
    json.dumps(objects, ensure_ascii=False).encode("utf-8")
