"""The health of everything in a few lines: the lake, what it could not read or class, and the live hook.

A room of its own because nobody looks at a nightly job that works: one command says whether a hand is needed, and
where. Pure functions of what the store and the hook tell; `cli.py` gathers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from loopstats.estimate import Rate

SHOWN = 3
MANY_FILES = 16  # more of them make reading slow


@dataclass(frozen=True)
class Finding:
    """One line: `state` is `ok`, `look` (worth knowing) or `mend` (a hand is needed), `detail` what and how."""

    check: str
    state: str
    detail: str


def lake(
    meta: Mapping[str, str],
    derived_digest: str,
    most_files: int,
    sources: pl.DataFrame,
    steps: pl.DataFrame,
    turns: pl.DataFrame,
) -> list[Finding]:
    """Health of a lake.

    `most_files`: of one table in one bucket. `sources`: tables.SOURCES; `steps`: tool, kind, outcome; `turns`: model,
    tokens, cost.
    """
    settled = meta.get("derived_digest") == derived_digest
    read = int(sources["count_read"].sum())
    accounted = pl.sum_horizontal("count_used", "count_nothing", "count_folded", "count_rejected", "count_waiting")
    unbalanced = sources.filter(pl.col("count_read") != accounted)["source_file"].to_list()
    gone = sources.filter("is_gone")["source_file"].to_list()
    unknown = sources.filter(pl.col("format") == "")["source_file"].to_list()
    rejected = int(sources["count_rejected"].sum())
    other = steps.filter(pl.col("kind") == "other")
    tools = other.group_by("tool").len().sort("len", "tool", descending=[True, False])["tool"].to_list()
    told = turns.filter(pl.col("tokens_output").is_not_null())
    unpriced = told.filter(pl.col("cost_micros").is_null())
    models = unpriced["model"].drop_nulls().unique().sort().to_list()
    return [
        Finding(
            "lake",
            "ok" if settled else "mend",
            f"generation {meta.get('generation', '0')}, {sources.height} files, {steps.height} steps"
            + ("" if settled else "; made under other settings or rules: run `loopstats ingest` again"),
        ),
        Finding(
            "files of the lake",
            "look" if most_files > MANY_FILES else "ok",
            f"at most {most_files} a table and bucket"
            + ("; run `loopstats lake compact`" if most_files > MANY_FILES else ""),
        ),
        Finding("lines accounted for", "mend" if unbalanced else "ok", _some(unbalanced) or f"{read} lines"),
        Finding("files gone", "look" if gone else "ok", _some(gone) or "none"),
        Finding("files of no format", "look" if unknown else "ok", _some(unknown) or "none"),
        Finding("rejects", "look" if rejected else "ok", f"{Rate(rejected, read)}" if read else "nothing read"),
        Finding("unclassified tools", "look" if tools else "ok", _some(tools) or "none"),
        Finding("unknown outcomes", "ok", f"{Rate(int((steps['outcome'] == 'unknown').sum()), steps.height)}"),
        Finding(
            "unpriced models",
            "look" if models else "ok",
            _some(models) or f"{Rate(told.height - unpriced.height, told.height)} turns priced",
        ),
    ]


def hook(statuses: Sequence[Any], faults: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Health of the live hook: `hooks.status` and `hooks.faults`."""
    found = []
    for row in statuses:
        if row.settings == "absent":
            continue
        is_broken = row.settings != "installed"
        is_silent = row.firing != "recent"
        detail = f"{row.path}: {row.settings}, last fired {row.last_fired or 'never'}"
        found.append(
            Finding(f"hook {row.agent} ({row.scope})", "mend" if is_broken else "look" if is_silent else "ok", detail)
        )
    if faults:
        newest = faults[0]
        found.append(
            Finding(
                "hook faults",
                "mend",
                f"{len(faults)} noted, the newest at {newest['ts']}: {newest['fault']} in {newest['where']}",
            )
        )
    elif found:
        found.append(Finding("hook faults", "ok", "none noted"))
    return found or [Finding("hook", "ok", "not installed")]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
