"""Random native event logs, ways to cut them into files, and the lake they give: shared by the tests of the whole line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import strategies as st

import oracle
from loopstats import run
from loopstats.config import Experiment, Settings
from loopstats.store import Lake
from loopstats.tables import TABLES

SALT = "pepper"
EXPERIMENT = Experiment("x", SALT, 4000, 100)
SETTINGS = Settings(experiments={"x": EXPERIMENT}, maturity_us=60_000_000)
EPOCH_S = 1_793_000_000
PLACES = ("source_file", "source_line", "enrolled_file", "enrolled_line")

TOOLS = {"Edit": "edit", "Task": "execute", "Read": "read", "TodoWrite": "plan", "acme_frob": "other"}

events = st.lists(
    st.tuples(
        st.sampled_from(["step"] * 18 + ["session", "enrol", "delivery"]),
        st.sampled_from([0, 0, 0, 1, 2]),
        st.sampled_from(["Edit"] * 9 + ["Task", "acme_frob", "Read", "TodoWrite"]),
        st.sampled_from(["a.py"] * 4 + ["b.py"] * 3 + ["c.py", ""]),
        st.sampled_from(["failure"] * 9 + ["success"] * 4 + ["unknown", "vetoed"]),
        st.sampled_from(["a" * 16] * 5 + ["b" * 16]),
        st.integers(0, 2),
        st.integers(0, 20),
    ),
    min_size=20,
    max_size=70,
)


def stamp(seconds: int) -> str:
    """Seconds after the epoch of the tests as RFC 3339."""
    return f"2026-11-02T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}Z"


def log_of(values: list[Any]) -> tuple[list[str], dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    """Lines of one log in time order, the steps of each run in plain form, and each session's first naming record."""
    lines: list[str] = []
    runs: dict[str, list[dict[str, Any]]] = {}
    naming: dict[str, dict[str, Any]] = {}
    clock = decision = 0
    for number, (kind, who, tool, target, outcome, signature, turn, gap) in enumerate(values):
        clock += gap
        session = f"s{who // 2}"
        agent = "sub" if who % 2 else None
        run_id = session if agent is None else f"{session}/{agent}"
        common: dict[str, Any] = {"v": 1, "session": session, "ts": stamp(clock)}
        if agent:
            common["agent"] = agent
        if kind == "step":
            decision += 1 if turn else 0
            lines.append(
                json.dumps(
                    common
                    | {
                        "type": "step",
                        "id": f"e{number}",
                        "tool": tool,
                        "target": target,
                        "outcome": outcome,
                        "message": "boom",
                        "decision": f"d{decision}",
                        "signature": signature,
                        "tokens": {"input": number, "output": 1},
                    }
                )
            )
            runs.setdefault(run_id, []).append(
                {
                    "kind": TOOLS[tool],
                    "actor": "agent",
                    "action": tool,
                    "target": target,
                    "outcome": outcome,
                    "signature": signature if outcome == "failure" else None,
                    "decision": decision,
                    "ts": clock * 1_000_000,
                    "source_file": "log",
                    "source_line": len(lines),
                    "call_id": f"e{number}",
                }
            )
        elif kind == "delivery":
            lines.append(
                json.dumps(common | {"type": "delivery", "signature": signature, "arm": "treated", "delivered": True})
            )
        else:
            record = common | {"type": "session", "project": "p"}
            if kind == "enrol":
                record |= {"experiment": "x", "salt_id": EXPERIMENT.salt_id, "share_bp": EXPERIMENT.share_bp}
            lines.append(json.dumps(record))
            if kind == "enrol":
                naming.setdefault(
                    session, {"ts": clock * 1_000_000, "file": "log", "line": len(lines), "is_session": True}
                )
    for steps in runs.values():
        for number, step in enumerate(steps):
            step["step"] = number
    return lines, runs, naming


def expected_loops(runs: dict[str, list[dict[str, Any]]], naming: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What the oracle says of a log."""
    by_session: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run_id, steps in runs.items():
        by_session.setdefault(run_id.split("/")[0], {})[run_id] = steps
    rows = [
        row
        for session, mine in by_session.items()
        for row in oracle.loops_of_session(mine, naming.get(session), SALT, EXPERIMENT.share_bp, SETTINGS.maturity_us)
    ]
    return sorted(rows, key=lambda r: (r["run_id"], r["signature"], r["rule"], r["is_enrolled"]))


def ingest(lake: Path, *paths: Path, settings: Settings = SETTINGS, **options: Any) -> dict[str, Any]:
    """Ingest into the lake at `lake`, and check that every line was accounted for."""
    summary = run.ingest(Lake(lake), [str(path) for path in paths], settings, **options)
    assert summary["unbalanced"] == []
    return summary


def tables_of(lake: Path, *, is_placeless: bool = False) -> dict[str, pl.DataFrame]:
    """All tables of the lake; without places for comparing logs that were cut differently."""
    snapshot = Lake.open(lake).snapshot()
    tables = {name: snapshot.read(name) for name in TABLES}
    if not is_placeless:
        return tables
    for name in ("rejects", "folds", "sources"):
        del tables[name]
    return {name: frame.drop(PLACES, strict=False) for name, frame in tables.items()}


def assert_same(one: dict[str, pl.DataFrame], other: dict[str, pl.DataFrame]) -> None:
    """Table by table, with the differing rows in the message."""
    assert one.keys() == other.keys()
    for name, frame in one.items():
        assert frame.equals(other[name]), (
            f"{name} differs:\n{frame.join(other[name], on=frame.columns, how='anti', nulls_equal=True)}"
            f"\n{other[name].join(frame, on=frame.columns, how='anti', nulls_equal=True)}"
        )
