"""Prints the tables of `docs/findings.md` from the folder of real logs: `python tests/findings_table.py`.

Per format: runs, steps, and in how many of them each rule found something. Per rule: which share of the steps of
healthy runs (solved, by an external fact) lies in a finding. Every share stands beside its n.
"""

from __future__ import annotations

import polars as pl

from corpus_lake import corpus_tables

FINDINGS = {
    "strategy-loop/1": ("loops", "strategy-loop/1"),
    "repeat/1": ("loops", "repeat/1"),
    "drift/0": ("drifts", "drift/0"),
    "drift/1": ("drifts", "drift/1"),
    "echo/1": ("echoes", "echo/1"),
    "ghost/1": ("ghosts", "ghost/1"),
    "chase/1": ("chases", "chase/1"),
    "bypass/1": ("bypasses", "bypass/1"),
}


def per_format(tables: dict[str, pl.DataFrame]) -> list[str]:
    """Lines of the table of runs by format."""
    runs = tables["runs"].filter(pl.col("count_steps") > 0)
    head = ["format", "runs", "steps", "state known", *FINDINGS, "unverified/1"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    parts = [(key[0], part) for key, part in sorted(runs.partition_by("format", as_dict=True).items())]
    for name, part in [*parts, ("all", runs)]:
        ids = part["run_id"].implode()
        counts = [
            tables[table].filter((pl.col("rule") == rule) & pl.col("run_id").is_in(ids))["run_id"].n_unique()
            for table, rule in FINDINGS.values()
        ]
        edited = part["is_unverified"].drop_nulls()
        cells = [
            name,
            part.height,
            part["count_steps"].sum(),
            part["count_state_known"].sum(),
            *counts,
            f"{int(edited.sum())}/{edited.len()}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def healthy_share(tables: dict[str, pl.DataFrame]) -> list[str]:
    """Lines of the table of flagged steps of healthy runs; a loop flags its events up to the detection."""
    healthy = tables["runs"].filter(pl.col("solved").fill_null(False) & (pl.col("count_steps") > 0)).select("run_id")
    steps = tables["steps"].join(healthy, on="run_id", how="semi").filter(pl.col("actor") == "agent")
    lines = ["| rule | flagged steps | of steps | runs with one | of runs |", "| --- | --- | --- | --- | --- |"]
    for name, (table, rule) in FINDINGS.items():
        found = tables[table].filter(pl.col("rule") == rule).join(healthy, on="run_id", how="semi")
        first, last = ("first_step", "last_step") if table != "loops" else ("first", "detected_step")
        if table == "loops":
            found = found.with_columns((pl.col("detected_step") - pl.col("span_steps")).alias("first"))
        flagged = (
            found.select(
                "run_id",
                pl.col(first).alias("a"),
                pl.col(last).alias("b"),
                *([] if table != "echoes" else ["fingerprint"]),
            )
            .join(steps.select("run_id", "step", pl.col("fingerprint").alias("print")), on="run_id")
            .filter((pl.col("step") >= pl.col("a")) & (pl.col("step") <= pl.col("b")))
        )
        if table == "echoes":
            flagged = flagged.filter(pl.col("print") == pl.col("fingerprint"))
        count = flagged.select("run_id", "step").unique().height
        lines.append(f"| {name} | {count} | {steps.height} | {found['run_id'].n_unique()} | {healthy.height} |")
    return lines


if __name__ == "__main__":
    lake = corpus_tables()
    print("\n".join([*per_format(lake), "", *healthy_share(lake)]))
