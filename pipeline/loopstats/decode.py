"""One line of bytes to JSON objects: strict and fast first, forgiving second, rejected last.

A room of its own because bad lines are data: what carries something is repaired and counted by kind, what does not is
rejected with a reason, and neither ever costs the line before or after it. No whole-file reader can promise that.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from loopstats.errors import Reject

_DECODER = msgspec.json.Decoder()
_BOM = b"\xef\xbb\xbf"
_LENIENT = json.JSONDecoder(strict=False, parse_int=lambda digits: int(digits) if len(digits) <= 40 else None)
_RAW_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\t]")
_NOT_NUMBERS = re.compile(r"(?<![\w\"])-?(?:NaN|Infinity)(?![\w\"])")
MAX_DEPTH = 200


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
    return [value], tuple(repairs)


def _decode_slowly(raw: bytes, repairs: list[str]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    if not raw.strip(b"\x00 \t\r"):
        raise Reject("nul_block")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        repairs.append("utf8")
    objects: list[dict[str, Any]] = []
    position, end = 0, len(text)
    while position < end:
        while position < end and text[position] in " \t\r\n\x00":
            position += 1
        if position >= end:
            break
        try:
            value, position = _LENIENT.raw_decode(text, position)
        except RecursionError:
            raise Reject("too_deep") from None
        except ValueError as error:
            if objects:
                repairs.append("trailing_garbage")
                break
            raise Reject("truncated" if _is_truncated(text, error) else "invalid_json") from None
        if not isinstance(value, dict):
            if objects:
                repairs.append("trailing_garbage")
                break
            raise Reject("not_an_object")
        objects.append(value)
    if len(objects) > 1:
        repairs.append("two_objects")
    scrubbed = [_scrub(item, repairs, 0) for item in objects]
    if _RAW_CONTROL.search(text.strip()):
        repairs.append("control")
    if _NOT_NUMBERS.search(text):
        repairs.append("not_a_number")
    return scrubbed, tuple(dict.fromkeys(repairs or ["number"]))


def _is_truncated(text: str, error: ValueError) -> bool:
    """The text stops in the middle of a value: the parser came to its end, or a string is never closed."""
    position = getattr(error, "pos", 0)
    return position >= len(text.rstrip()) or "Unterminated string" in str(error)


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
    try:
        return _scrub(_LENIENT.decode(text.decode("utf-8", "replace")), [], 0)
    except RecursionError:
        raise Reject("too_deep") from None
    except ValueError:
        raise Reject("invalid_json") from None
