"""What several formats need: ids for calls whose log ids repeat, arguments as JSON text, OpenAI usage, companion files.

A room of its own because tau-bench, OpenHands' model calls, ATIF and Inspect all nest the same shapes, and each of
them has been seen to use one call id twice in a run, which would fold two steps into one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict

from loopstats.decode import decode_document
from loopstats.errors import Reject
from loopstats.formats import Emit, as_dict, as_int

SHAPE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)
ARGUMENTS_CAP = 16 << 20
COMPANION_CAP = 256 << 20


class Pairing:
    """Gives every call of one (session, agent) an id of its own and finds the call that a result belongs to.

    The first call of a log id keeps it, the second becomes `id#2` and so on; results go to the oldest call of their
    log id that still waits.
    """

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._waiting: dict[str, deque[str]] = {}

    def open(self, log_id: str) -> str:
        """The id for a new call."""
        number = self._count.get(log_id, 0) + 1
        self._count[log_id] = number
        call_id = log_id if number == 1 else f"{log_id}#{number}"
        self._waiting.setdefault(log_id, deque()).append(call_id)
        return call_id

    def close(self, log_id: str) -> str:
        """The id of the call that a result answers; the log id itself where no call of it waits."""
        waiting = self._waiting.get(log_id)
        return waiting.popleft() if waiting else log_id


def parsed(value: Any) -> Any:
    """`value`, where it is JSON text of an object or a list, as that; else unchanged."""
    if not isinstance(value, str) or len(value) > ARGUMENTS_CAP or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return decode_document(value.encode("utf-8", "replace"))
    except Reject:
        return value


class Tokens(TypedDict):
    """The token counts that `Emit.turn` takes."""

    tokens_input: int | None
    tokens_output: int | None
    tokens_cache_read: int | None
    tokens_cache_write: int | None


def openai_usage(usage: Any) -> Tokens:
    """Token counts for `Emit.turn` from a usage object whose `prompt_tokens` include what came from the cache."""
    usage = as_dict(usage)
    details = as_dict(usage.get("prompt_tokens_details"))
    read = as_int(first_known(usage, "cache_read_input_tokens", "cache_read_tokens", "cached_tokens"))
    if read is None:
        read = as_int(details.get("cached_tokens"))
    write = as_int(first_known(usage, "cache_creation_input_tokens", "cache_write_tokens"))
    return {
        "tokens_input": without_cache(as_int(usage.get("prompt_tokens")), read, write),
        "tokens_output": as_int(usage.get("completion_tokens")),
        "tokens_cache_read": read,
        "tokens_cache_write": write,
    }


def without_cache(total: int | None, read: int | None, write: int | None) -> int | None:
    """Input tokens that neither came from the cache nor were written to it, from a total that includes both."""
    return None if total is None else max(total - (read or 0) - (write or 0), 0)


def first_known(record: dict[str, Any], *keys: str) -> Any:
    """The value of the first of `keys` that is there and not null."""
    return next((record[key] for key in keys if record.get(key) is not None), None)


def each(records: Iterable[Any], emit: Emit, read: Callable[[Any], None]) -> None:
    """Read the records of a container one by one, so that a bad one is rejected and costs no other."""
    for number, record in enumerate(records, start=1):
        emit.at(number)
        try:
            read(record)
        except Reject as error:
            emit.reject(error.reason)
        except SHAPE_ERRORS as error:
            emit.reject("too_deep" if isinstance(error, RecursionError) else "wrong_shape")


def companion(path: Path) -> Any:
    """The JSON value in a file that belongs to the one being read; None where there is none that can be read."""
    try:
        if not path.is_file() or path.is_symlink() or path.stat().st_size > COMPANION_CAP:
            return None
        return decode_document(path.read_bytes())
    except (OSError, ValueError, Reject):
        return None
