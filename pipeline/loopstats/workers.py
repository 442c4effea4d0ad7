"""Files read by one process or by several, and handed on in the same order whatever their number.

A room of its own because processes are a matter of their own: what crosses a border must be picklable and small, the
largest files go first so that no worker is left alone at the end, and yet the lake may not depend on who was faster.
A worker gets a file, its ledger row and its number, and gives back the row as it is now and the records as Arrow bytes;
the ledger itself, copies and order stay with the one who asked. A file goes to a worker whole, however large it is.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import polars as pl

from loopstats.errors import LoopstatsError
from loopstats.ingest import Found, Reading, frame_of, frames_of, read_source

BATCH_ROWS = 4096  # of several files; one frame for them all is made at once
WORTH_BYTES = 100_000_000  # of new bytes; below, starting another interpreter costs more than it saves


class Task(NamedTuple):
    """A file to read: `before` is its ledger row (None: read it anew), `source_id` its number if it starts anew."""

    found: Found
    before: dict[str, Any] | None
    source_id: int


Outcome = tuple[Reading, pl.DataFrame] | OSError


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_jobs(new_bytes: int, jobs: int | None = None) -> int:
    """The number of workers: as asked for, else one for little and a core each for much."""
    return jobs if jobs is not None else 1 if new_bytes < WORTH_BYTES else count_cores()


def read_all(
    tasks: Sequence[Task], tool_rows: dict[str, str], jobs: int, tell: Callable[[Found], None] | None = None
) -> Iterator[Outcome]:
    """What came of each task, in their order: a reading with its records, or the error of a file that does not open.

    `tell` hears of every file that is done, in the order in which they are. What is done before its turn is kept:
    records are about a hundredth of what was read.
    """
    if jobs < 2 or len(tasks) < 2:
        yield from _read_by_one(tasks, tool_rows, tell)
        return
    yield from _read_by_many(tasks, tool_rows, jobs, tell)


def _read_by_one(
    tasks: Sequence[Task], tool_rows: dict[str, str], tell: Callable[[Found], None] | None
) -> Iterator[Outcome]:
    waiting: list[Reading | OSError] = []
    count_rows = 0
    for task in tasks:
        reading = _read(task, tool_rows)
        if tell is not None:
            tell(task.found)
        waiting.append(reading)
        count_rows += 0 if isinstance(reading, OSError) else sum(map(len, reading.rows.values()))
        if count_rows >= BATCH_ROWS:
            yield from _framed(waiting)
            waiting, count_rows = [], 0
    yield from _framed(waiting)


def _framed(waiting: Sequence[Reading | OSError]) -> Iterator[Outcome]:
    readings = [reading for reading in waiting if not isinstance(reading, OSError)]
    frames = iter(frames_of(readings))
    for reading in readings:
        reading.rows = {}
    for outcome in waiting:
        yield outcome if isinstance(outcome, OSError) else (outcome, next(frames))


def _read_by_many(
    tasks: Sequence[Task], tool_rows: dict[str, str], jobs: int, tell: Callable[[Found], None] | None
) -> Iterator[Outcome]:
    from concurrent.futures import Future, ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # `spawn`: a fork would copy the locks of polars' threads in whatever state they are.
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn"))
    try:
        numbers: dict[Future[Any], int] = {}
        for number in sorted(range(len(tasks)), key=lambda n: -tasks[n].found.size_bytes):
            numbers[pool.submit(read_packed, tasks[number], tool_rows)] = number
        done: dict[int, Any] = {}
        turn = 0
        for future in as_completed(list(numbers)):
            number = numbers.pop(future)
            done[number] = future.result()
            if tell is not None:
                tell(tasks[number].found)
            while turn in done:
                yield unpacked(done.pop(turn))
                turn += 1
    except BrokenProcessPool:
        raise LoopstatsError("a worker was ended from outside (out of memory?); try again with --jobs 1") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _read(task: Task, tool_rows: dict[str, str]) -> Reading | OSError:
    try:
        return read_source(task.found, task.before, task.source_id, tool_rows)
    except OSError as error:
        return error


def read_packed(task: Task, tool_rows: dict[str, str]) -> tuple[Reading, bytes] | OSError:
    """An outcome in a form that crosses a border: the records as Arrow bytes."""
    reading = _read(task, tool_rows)
    if isinstance(reading, OSError):
        return reading
    buffer = io.BytesIO()
    frame_of(reading.rows).write_ipc(buffer)
    reading.rows = {}
    return reading, buffer.getvalue()


def unpacked(packed: tuple[Reading, bytes] | OSError) -> Outcome:
    """The outcome that `read_packed` packed."""
    return packed if isinstance(packed, OSError) else (packed[0], pl.read_ipc(io.BytesIO(packed[1])))
