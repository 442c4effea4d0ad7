"""The log of nights: one JSON object a line, whole or not there.

A room of its own because people point readers at this file that know nothing of us (`jq`, DuckDB, a log shipper), and
one torn line would break them. A line is appended with one write in append mode, under a lock that is held for that
moment only; what a crash or a full disk left of a line is taken away by the next writer. Beyond `CAP_BYTES` the file is
renamed to `<name>.1`, over the one before, so that the log never takes more than twice that.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from loopstats.errors import FINDING, OK, TOO_MANY_REJECTS, StorageError
from loopstats.found import make_folder

SCHEMA = "loopstats.nightly/1"
NAME = "nightly.jsonl"
CAP_BYTES = 4 << 20
TAIL_BYTES = 1 << 20
LOCK_S = 10
# A night of these codes did its work, whatever it found.
DONE = (OK, TOO_MANY_REJECTS, FINDING)


def append(path: Path, line: bytes) -> None:
    """Add one line (without its newline) and make it last; StorageError where it cannot be written whole."""
    try:
        make_folder(path.parent)
        with _held(path):
            _rotate(path, len(line))
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = _mend(file)
                if os.write(file, line + b"\n") != len(line) + 1:
                    os.ftruncate(file, size)
                    raise StorageError(f"{path}: disk full; the night's line was not written")
                os.fsync(file)
            finally:
                os.close(file)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}; the night's line was not written") from error


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """The log's own lock. Where it is not free in time the line is added all the same: appending is safe without."""
    lock = filelock.FileLock(path.with_name(f".{path.name}.lock"), mode=0o600)
    is_held = True
    try:
        lock.acquire(timeout=LOCK_S)
    except filelock.Timeout:
        is_held = False
    try:
        yield
    finally:
        if is_held:
            lock.release()


def _rotate(path: Path, count_bytes: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size + count_bytes > CAP_BYTES:
            path.replace(older(path))


def older(path: Path) -> Path:
    """Where the lines before the newest are kept."""
    return path.with_name(f"{path.name}.1")


def _mend(file: int) -> int:
    """Take away a torn last line, or give a whole one its newline; the size of the file after it."""
    size = os.fstat(file).st_size
    if not size or os.pread(file, 1, size - 1) == b"\n":
        return size
    start = max(0, size - TAIL_BYTES)
    head, newline, last = os.pread(file, size - start, start).rpartition(b"\n")
    if _parsed(last) is not None:
        os.write(file, b"\n")
        return size + 1
    kept = start + len(head) + len(newline)
    os.ftruncate(file, kept)
    return kept


def read(path: Path) -> list[dict[str, Any]]:
    """The nights, oldest first, of the newest `TAIL_BYTES` of the log and of the older one; no log: none.

    A line that is no object of the log's schema is left out: the file may be another's, or somebody edited it.
    """
    nights: list[dict[str, Any]] = []
    for place in (older(path), path):
        try:
            with place.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(0, size - TAIL_BYTES)
                file.seek(start)
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"{place}: {error.strerror or error}") from error
        found = [_parsed(line) for line in (lines[1:] if start else lines)]
        nights += [night for night in found if night is not None]
    return nights


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    is_night = isinstance(told, dict) and told.get("schema") == SCHEMA and isinstance(told.get("started"), str)
    return told if is_night else None
