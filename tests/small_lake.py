"""Small lakes and tables for tests that ask questions: a few columns are given, the others are plain defaults.

A room of its own because the readers are tested without the stages that fill a lake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from loopstats.store import Lake
from loopstats.tables import LOOPS, STEPS, TABLES, TURNS, Table

DAY = datetime(2026, 3, 2, tzinfo=UTC)
HOSTILE = "=cmd|'/c calc'!A1 \x1b]0;title\x07 \u202e|x| [red]é\n<b>`*_"


def frame_of(table: Table, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows in the form of `table`; a required column that is not given is empty, 0 or false."""
    empty = {pl.String(): "", pl.Int64(): 0, pl.Boolean(): False}
    base = {column.name: empty.get(column.dtype) if column.is_required else None for column in table.columns}
    return table.conform(pl.DataFrame([base | dict(row) for row in rows], schema=table.schema, orient="row"))


def make_lake(root: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Lake:
    """A lake of one generation that holds these rows."""
    lake = Lake(root)
    with lake.write() as writer:
        for name, rows in tables.items():
            frame = frame_of(TABLES[name], rows)
            for bucket, part in enumerate((frame[: frame.height // 2], frame[frame.height // 2 :])):
                writer.append(TABLES[name], bucket, part)
        writer.commit([], [], [], {})
    return lake


def hour(count: float) -> datetime:
    """So many hours after the first day's beginning."""
    return DAY + timedelta(hours=count)


def sample(root: Path) -> Lake:
    """Four strategy loops (one pending at hour 48, one detected after it), one repeat, and the steps of their runs."""
    loops = [
        {
            "loop_id": f"{n:016x}",
            "run_id": f"run{n}",
            "session_id": f"session{n}",
            "signature": f"sig{n}",
            "rule": "strategy-loop/1",
            "tool": "Bash" if n < 3 else "Edit",
            "kind": "verify",
            "message": HOSTILE if n == 1 else "boom",
            "detected_at": hour(at),
            "mature_at": hour(at + 24),
            "outcome": outcome,
            "outcome_step": 9,
            "outcome_at": hour(at + 1),
            "steps_to_outcome": 4,
            "outcome_final": outcome,
            "arm": arm,
            "count_events": n + 2,
            "harness": "agent 1.2",
            "project": "shop",
            "model": "m-1",
        }
        for n, at, outcome, arm in (
            (1, 1, "broke", "treated"),
            (2, 2, "recurred", "holdout"),
            (3, 30, "broke", "treated"),
            (4, 72, "unresolved", "holdout"),
        )
    ]
    loops.append({**loops[0], "loop_id": "f" * 16, "rule": "repeat/1", "arm": None})
    steps = [
        {
            "session_id": f"session{n}",
            "run_id": f"run{n}",
            "step": step,
            "decision": step,
            "ts": hour(n + step / 60),
            "tool": tool,
            "action": tool,
            "kind": kind,
            "kind_source": source,
            "outcome": outcome,
            "outcome_source": "flag",
            "actor": "agent",
            "harness": "agent 1.2",
            "project": "shop",
            "model": "m-1",
            "fingerprint": "f",
            "source_file": "a.jsonl",
            "source_line": step + 1,
        }
        for n in (1, 2)
        for step, (tool, kind, source, outcome) in enumerate(
            [
                ("Bash", "verify", "command", "failure"),
                ("Bash", "verify", "command", "failure"),
                ("Bash", "verify", "command", "failure"),
                ("Read", "read", "table", "success"),
                ("frob", "other", "none", "unknown"),
            ]
        )
    ]
    turns = [{"session_id": "session1", "run_id": "run1", "decision": 0, "tokens_input": 100, "tokens_output": 20}]
    return make_lake(root, {LOOPS.name: loops, STEPS.name: steps, TURNS.name: turns})
