"""What can go wrong, and the exit code that says so.

A room of its own because every layer raises these and only `cli.py` turns them into an exit code. Bad *input* is not
an error: it becomes a row in `rejects`. What stands here is a broken machine, a wrong call or a damaged lake, and each
message names the file or value and the mend. An error that nobody foresaw may quote what it was working on, and that
may be a log: of such a one only type and place are told.
"""

from __future__ import annotations

from types import TracebackType

OK = 0
INTERNAL = 1
USAGE = 2
NOTHING = 3
TOO_MANY_REJECTS = 4
FINDING = 5
IO = 74
LOCKED = 75
INTERRUPT = 130


class LoopstatsError(Exception):
    """Base of all errors that have a documented exit code; `str()` is one line for a person."""

    exit_code = INTERNAL


class UsageError(LoopstatsError):
    """A wrong argument, a missing path, a configuration of the wrong shape."""

    exit_code = USAGE


class NothingError(LoopstatsError):
    """The question was right, and nothing in the lake matches it."""

    exit_code = NOTHING


class RejectsError(LoopstatsError):
    """More records were rejected than `--max-rejects` allows; `count` says how many."""

    exit_code = TOO_MANY_REJECTS

    def __init__(self, message: str, count: int | None = None) -> None:
        super().__init__(message)
        self.count = count


class LakeError(LoopstatsError):
    """The lake is damaged or of another version; the message says how to mend it."""

    exit_code = FINDING


class StorageError(LoopstatsError):
    """Disk full, read-only, or another I/O error of the lake."""

    exit_code = IO


class LockedError(LoopstatsError):
    """Another writer holds the lake; trying again later is safe."""

    exit_code = LOCKED


class EndedError(LoopstatsError):
    """The work was ended before it was done, by who asked for it or by the time that it was given."""

    exit_code = INTERRUPT


class Reject(Exception):
    """Raised by a format for one record that it cannot use; becomes a row of `rejects`, never a crash.

    `reason` is a short machine-readable word such as `not_an_object`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def unforeseen(error: BaseException) -> str:
    """One line about an error that is not of this module: its type and where in this program it came from.

    Nothing of its text, which may be a log's.
    """
    place = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith("loopstats."):
            place = f" at {module}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"internal error: {type(error).__name__}{place} (LOOPSTATS_DEBUG=1 tells all of it; please report it)"
