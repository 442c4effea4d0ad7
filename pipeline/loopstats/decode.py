"""One line of bytes to JSON objects: strict and fast first, forgiving second, rejected last.

A room of its own because bad lines are data: what carries something is repaired and counted by kind, what does not is
rejected with a reason, and neither ever costs the line before or after it. No whole-file reader can promise that.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from loopstats.errors import Reject

MAX_DEPTH = 200
MAX_DIGITS = 40
_INT64 = 1 << 63
_DECODER = msgspec.json.Decoder()
_BOM = b"\xef\xbb\xbf"
_BETWEEN = " \t\r\n\x00"
_CUT_LITERAL = re.compile(r"(?:tr?u?|fa?l?s?|nu?l?|Na?|-?I[a-z]{0,6}|[-+.eE0-9]+|\\|\\?u[0-9A-Fa-f]{0,3})\Z")


def decode_line(raw: bytes) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The objects on one line (without its newline; none for a blank one) and the kinds of repair that it took.

    Raises `Reject` with `not_an_object`, `nul_block`, `too_deep`, `invalid_json` or `truncated`.
    """
    repairs: list[str] = []
    if raw.endswith(b"\r"):
        raw = raw[:-1]
        repairs.append("crlf")
    if raw.startswith(_BOM):
        raw = raw[3:]
        repairs.append("bom")
    if not raw.strip():
        return [], ()
    try:
        value = _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_slowly(raw, repairs)
    except RecursionError:
        raise Reject("too_deep") from None
    if not isinstance(value, dict):
        raise Reject("not_an_object")
    count_keys, is_in_range = _survey(value)
    # A quote before a colon closes a key, unless it is an escaped one or opens a text that begins with a colon: where
    # there are more of them than keys, a slower look tells whether one came twice. A key with a space before its colon
    # is not seen: what is counted is so, though not all.
    count_quotes = raw.count(b'":')
    if count_quotes > count_keys and count_quotes - raw.count(b'\\":') > count_keys and _has_duplicates(raw):
        repairs.append("duplicate_key")
    if not is_in_range:
        repairs.append("number")
    return [value], tuple(repairs)


def may_hold_object(raw: bytes) -> bool:
    """Whether `decode_line` may find an object: cheap where a document is printed over many lines that are none."""
    return b"}" in raw and raw.removeprefix(_BOM).lstrip(_BETWEEN.encode())[:1] == b"{"


def _survey(value: dict[str, Any]) -> tuple[int, bool]:
    """How many keys the objects in `value` have together, and whether all its integers have 64 bits."""
    count, is_in_range = 0, True
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if item.__class__ is dict:
                count += len(item)
                item = item.values()
            for child in item:
                kind = child.__class__
                if kind is str:
                    continue
                if kind is dict or kind is list:
                    below.append(child)
                elif kind is int and not -_INT64 <= child < _INT64:
                    is_in_range = False
        if not below:
            return count, is_in_range
        level = below
    raise Reject("too_deep")


def _has_duplicates(raw: bytes) -> bool:
    repairs: list[str] = []
    _Lenient(repairs).decode(raw.decode("utf-8").strip(_BETWEEN), 0)
    return "duplicate_key" in repairs


class _Lenient:
    """A decoder that takes what the grammar forbids and writes down what it took."""

    def __init__(self, repairs: list[str]) -> None:
        self._repairs = repairs
        hooks: dict[str, Any] = {
            "object_pairs_hook": self._object,
            "parse_int": self._int,
            "parse_float": self._float,
            "parse_constant": self._constant,
        }
        self._hooks = hooks
        self._strict = json.JSONDecoder(strict=True, **hooks)

    def decode(self, text: str, position: int) -> tuple[Any, int]:
        """The value at `position` and where it ends; ValueError where there is none, RecursionError if too deep."""
        try:
            return self._strict.raw_decode(text, position)
        except ValueError as error:
            if not str(error).startswith("Invalid control character"):
                raise
        self._repairs.append("control")
        return json.JSONDecoder(strict=False, **self._hooks).raw_decode(text, position)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) < len(pairs):
            self._repairs.append("duplicate_key")
        return built

    def _int(self, digits: str) -> int | None:
        value = int(digits) if len(digits) <= MAX_DIGITS else None
        if value is None or not -_INT64 <= value < _INT64:
            self._repairs.append("number")
        return value

    def _float(self, digits: str) -> float | None:
        value = float(digits)
        if math.isfinite(value):
            return value
        self._repairs.append("number")
        return None

    def _constant(self, _: str) -> None:
        self._repairs.append("not_a_number")


def _decode_slowly(raw: bytes, repairs: list[str]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    if not raw.strip(b"\x00 \t\r"):
        raise Reject("nul_block")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        repairs.append("utf8")
    lenient = _Lenient(repairs)
    objects: list[dict[str, Any]] = []
    position, end = 0, len(text)
    while position < end:
        start = position
        while position < end and text[position] in _BETWEEN:
            position += 1
        if "\x00" in text[start:position]:
            repairs.append("control")
        if position >= end:
            break
        kept = len(repairs)
        try:
            value, position = lenient.decode(text, position)
        except RecursionError:
            raise Reject("too_deep") from None
        except ValueError as error:
            # With its traceback it would hold this frame, and this frame it: the line would stay in memory.
            value = error.with_traceback(None)
        if not isinstance(value, dict):
            if objects:
                repairs[kept:] = ["trailing_garbage"]
                break
            if isinstance(value, ValueError):
                raise Reject("truncated" if _is_truncated(text, value) else "invalid_json") from None
            raise Reject("not_an_object")
        objects.append(value)
    if len(objects) > 1:
        repairs.append("two_objects")
    scrubbed = [_scrub(item, repairs, 0) for item in objects]
    return scrubbed, tuple(dict.fromkeys(repairs))


def _is_truncated(text: str, error: ValueError) -> bool:
    """The text stops in the middle of a value: the parser came to its end, or a string or a word is never closed."""
    position = getattr(error, "pos", 0)
    rest = text[position:].rstrip()
    if not rest or "Unterminated string" in str(error):
        return True
    return len(rest) <= MAX_DIGITS and _CUT_LITERAL.match(rest) is not None


def _scrub(value: Any, repairs: list[str], depth: int) -> Any:
    """Replace lone surrogates, which have no UTF-8 form."""
    if depth > MAX_DEPTH:
        raise Reject("too_deep")
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            repairs.append("surrogate")
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, list):
        return [_scrub(item, repairs, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_scrub(key, repairs, depth + 1): _scrub(item, repairs, depth + 1) for key, item in value.items()}
    return value


def decode_document(data: bytes) -> Any:
    """A whole file as one JSON value, repaired like a line; raises `Reject` where it is none."""
    text = data[3:] if data.startswith(_BOM) else data
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise Reject("too_deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    loose = text.decode("utf-8", "replace").strip(_BETWEEN)
    repairs: list[str] = []
    try:
        value, end = _Lenient(repairs).decode(loose, 0)
        if end < len(loose):
            raise Reject("invalid_json")
        return _scrub(value, repairs, 0)
    except RecursionError:
        raise Reject("too_deep") from None
    except ValueError:
        raise Reject("invalid_json") from None
