"""Loops to arms: the deterministic assignment replayed, beside what the log says was assigned and delivered.

A room of its own because the blind arm is what makes the comparison fair, and a sceptic must be able to check it with
any SHA-256 tool. A pure stage: loops, the sessions' enrolment, the log's own records, and the salts of the
configuration. Loops that are not enrolled take part in an A/A replay with the empty salt and an even split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import polars as pl

from loopstats import rule

KEY = ["run_id", "signature"]


def assign(
    loops: pl.DataFrame,
    sessions: pl.DataFrame,
    detections: pl.DataFrame,
    deliveries: pl.DataFrame,
    salts: Mapping[str, tuple[str, int]],
) -> pl.DataFrame:
    """Loops with experiment, salt, share, arm and basis points, `arm_logged` and `is_delivered`.

    `salts`: salt_id -> (salt, share_bp) of the configuration. A salt that is not there gives the arm as logged and no
    basis points. A `repeat/1` row has null in all of these.
    """
    terms = sessions.select(
        "session_id",
        "experiment",
        "salt_id",
        pl.col("share_bp").alias("share_bp_session"),
        "epoch",
        "harness",
        "project",
        "group",
    )
    logged = (
        pl.concat(
            [
                detections.select(*KEY, "arm", pl.lit(None, dtype=pl.Boolean()).alias("is_delivered")),
                deliveries.select(*KEY, "arm", "is_delivered"),
            ]
        )
        .filter(pl.col("signature").is_not_null())
        .group_by(KEY, maintain_order=True)
        .agg(
            pl.col("arm").drop_nulls().first().alias("arm_logged"),
            pl.col("is_delivered").drop_nulls().max().alias("is_delivered"),
        )
    )
    frame = loops.join(terms, on="session_id", how="left").join(logged, on=KEY, how="left")
    arms: list[tuple[Any, ...]] = [
        _arm(salts, *row)
        for row in frame.select(
            "rule", "is_enrolled", "run_id", "signature", "salt_id", "share_bp_session", "arm_logged"
        ).iter_rows()
    ]
    names = ("share_bp", "arm_bp", "arm")
    types = (pl.Int64(), pl.Int64(), pl.String())
    frame = frame.with_columns(
        [pl.Series(name, [row[i] for row in arms], dtype=types[i]) for i, name in enumerate(names)]
    )
    is_assigned = pl.col("rule") == rule.STRATEGY_LOOP
    is_live = is_assigned & pl.col("is_enrolled")
    return (
        frame.with_columns(
            [pl.when(is_live).then(pl.col(name)).alias(name) for name in ("experiment", "salt_id", "epoch")]
        )
        .with_columns([pl.when(is_assigned).then(pl.col(name)).alias(name) for name in ("arm_logged", "is_delivered")])
        .with_columns(
            pl.Series(
                "loop_id",
                [loop_id(*row) for row in frame.select("run_id", "signature", "rule", "is_enrolled").iter_rows()],
                dtype=pl.String(),
            ),
        )
    )


def _arm(
    salts: Mapping[str, tuple[str, int]],
    rule_name: str,
    is_enrolled: bool,
    run_id: str,
    signature: str,
    salt_id: str | None,
    share_bp: int | None,
    arm_logged: str | None,
) -> tuple[int | None, int | None, str | None]:
    if rule_name != rule.STRATEGY_LOOP:
        return None, None, None
    if not is_enrolled:
        points = rule.arm_bp("", run_id, signature)
        return rule.SHARE_BP_DEFAULT, points, rule.arm_of(points)
    known = salts.get(salt_id or "")
    if known is None:
        return share_bp, None, arm_logged
    share = share_bp if share_bp is not None else known[1]
    points = rule.arm_bp(known[0], run_id, signature)
    return share, points, rule.arm_of(points, share)


def loop_id(run_id: str, signature: str, rule_name: str, is_enrolled: bool) -> str:
    """Name of a loop row: 16 hex digits of SHA-256 of its key."""
    key = f"{run_id}\x1f{signature}\x1f{rule_name}\x1f{int(is_enrolled)}"
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:16]
