"""The nights: what `lift` said on a day, kept in the lake so that nobody can say later that it said something else.

A room of its own because a record of the past has rules that no estimate knows: nothing is overwritten, the same as-of
gives the same bytes, and what comes out otherwise later stands beside it as a revision.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import polars as pl

from loopstats import __version__
from loopstats.config import Settings
from loopstats.errors import UsageError
from loopstats.store import Lake, Snapshot
from loopstats.tables import LIFT, STR, TIME

if TYPE_CHECKING:
    from loopstats.estimate import Estimate, Readout

_RECORD_KEY = ["experiment", "scope", "as_of", "since", "until", "settings_sha256"]
_HISTORY = {
    "as_of": TIME,
    "experiment": STR,
    "scope": STR,
    "since": STR,
    "until": STR,
    "revision": pl.Int64(),
    "is_latest": pl.Boolean(),
    "n_treated": pl.Int64(),
    "broke_treated": pl.Int64(),
    "rate_treated": pl.Float64(),
    "n_holdout": pl.Int64(),
    "broke_holdout": pl.Int64(),
    "rate_holdout": pl.Float64(),
    "lift": pl.Float64(),
    "ci_fixed_low": pl.Float64(),
    "ci_fixed_high": pl.Float64(),
    "ci_anytime_low": pl.Float64(),
    "ci_anytime_high": pl.Float64(),
    "verdict": STR,
    "reasons": pl.List(STR),
    "settings_sha256": STR,
    "estimate_sha256": STR,
    "version": STR,
}


def read_lift(
    snapshot: Snapshot, settings: Settings, *, as_of_us: int, since_us: int | None = None, until_us: int | None = None
) -> Readout:
    """The readout of a generation, unfiltered."""
    from loopstats import estimate

    loops, sessions, detections, deliveries = (
        snapshot.scan(name).collect() for name in ("loops", "sessions", "detections", "deliveries")
    )
    return estimate.lift(
        loops, sessions, detections, deliveries, settings, as_of_us=as_of_us, since_us=since_us, until_us=until_us
    )


def record_lift(
    lake: Lake, settings: Settings, *, as_of_us: int, since_us: int | None = None, until_us: int | None = None
) -> tuple[Readout, pl.DataFrame]:
    """Write every scope's estimate of this as-of to the lake's `lift` table; the readout, and the rows that were new.

    Nothing is written where the last revision says the same, and nothing is ever overwritten: an estimate that differs
    (late data, another version) stands beside the first one as the next revision. UsageError where the lake's tables
    were derived under other settings than these, so that the record would name settings that did not make it.
    """
    with lake.write() as writer:
        if writer.meta("derived_digest") not in (None, settings.derived_digest):
            raise UsageError(
                "the lake was derived under another rule, maturity or salt than these settings: run `loopstats ingest` "
                "with them first"
            )
        snapshot = writer.snapshot()
        readout = read_lift(snapshot, settings, as_of_us=as_of_us, since_us=since_us, until_us=until_us)
        before = snapshot.read(LIFT.name)
        fresh = _new_revisions(_records(readout, settings), before)
        if fresh.height:
            writer.replace(LIFT, 0, LIFT.conform(pl.concat([before, fresh])))
            writer.commit([], [], [], {})
    return readout, fresh


def _records(readout: Readout, settings: Settings) -> pl.DataFrame:
    """Rows of LIFT for every scope, all of revision 0. Only a window's row names the window."""
    body = readout.to_json(with_known_now=False)
    rows = []
    for estimate, row in zip(readout.estimates, body["rows"], strict=True):
        window = body["interval"] if estimate.scope != "to_date" else {}
        used = _settings_of(estimate, settings)
        text = _canonical(row | {"settings": used})
        rows.append(
            {
                "experiment": estimate.experiment,
                "scope": estimate.scope,
                "as_of": readout.as_of_us,
                "since": window.get("since") or "",
                "until": window.get("until") or "",
                "settings_sha256": _sha256(_canonical(used)),
                "revision": 0,
                "estimate": text,
                "estimate_sha256": _sha256(text),
                "version": __version__,
            }
        )
    frame = pl.DataFrame(rows, schema={**LIFT.schema, "as_of": pl.Int64()})
    return LIFT.conform(frame.with_columns(pl.col("as_of").cast(pl.Datetime("us", "UTC"))))


def _settings_of(estimate: Estimate, settings: Settings) -> dict[str, Any]:
    """The settings that an estimate depends on: another experiment's salt is none of them."""
    salts = {stratum["salt_id"] for stratum in estimate.details["strata"]}
    used = [e for e in settings.experiments.values() if e.name == estimate.experiment or e.salt_id in salts]
    return {
        "experiments": [
            {"name": e.name, "salt_id": e.salt_id, "share_bp": e.share_bp, "n_star": e.n_star}
            for e in sorted(used, key=lambda e: e.name)
        ],
        "maturity_us": settings.maturity_us,
        "rule_digest": settings.rule_digest,
    }


def _new_revisions(rows: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """Rows that no last revision says already, with the number of their revision."""
    last = (
        before.sort("revision")
        .group_by(_RECORD_KEY, maintain_order=True)
        .agg(pl.col("revision").last().alias("last"), pl.col("estimate_sha256").last().alias("said"))
    )
    return (
        rows.join(last, on=_RECORD_KEY, how="left", maintain_order="left")
        .filter(pl.col("said").is_null() | (pl.col("said") != pl.col("estimate_sha256")))
        .with_columns((pl.col("last").fill_null(-1) + 1).alias("revision"))
        .select(LIFT.names)
    )


def _canonical(value: Any) -> str:
    from loopstats.output import canonical

    return canonical(value)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def lift_history(
    snapshot: Snapshot,
    *,
    as_of_us: int,
    since_us: int | None = None,
    until_us: int | None = None,
    experiment: str | None = None,
) -> pl.DataFrame:
    """The recorded nights by as-of, every revision a row; the interval chooses nights by their as-of."""
    at = pl.col("as_of").cast(TIME).to_physical()
    chosen = at <= as_of_us
    if since_us is not None:
        chosen &= at >= since_us
    if until_us is not None:
        chosen &= at < until_us
    if experiment is not None:
        chosen &= pl.col("experiment") == experiment
    found = snapshot.read(LIFT.name).filter(chosen).sort("as_of", *LIFT.key, maintain_order=True)
    found = found.with_columns((pl.col("revision") == pl.col("revision").max().over(_RECORD_KEY)).alias("is_latest"))
    rows = [json.loads(row.pop("estimate")) | row for row in found.iter_rows(named=True)]
    return pl.DataFrame([{name: row[name] for name in _HISTORY} for row in rows], schema=_HISTORY)


def shown_history(frame: pl.DataFrame) -> pl.DataFrame:
    """`lift_history` for a person: rates with their n, lifts and intervals in points."""
    from loopstats import report
    from loopstats.estimate import Rate

    def told(row: dict[str, Any]) -> dict[str, Any]:
        rates = {
            arm: str(Rate(row[f"broke_{arm}"], row[f"n_{arm}"], row[f"rate_{arm}"] is None))
            for arm in ("treated", "holdout")
        }
        low, high = row["ci_anytime_low"], row["ci_anytime_high"]
        nightly = report.interval(None if low is None or high is None else (low, high))
        return rates | {"lift_points": report.points(row["lift"]), "nightly": nightly}

    texts = [told(row) for row in frame.iter_rows(named=True)]
    schema = dict.fromkeys(("treated", "holdout", "lift_points", "nightly"), STR)
    return frame.hstack(pl.DataFrame(texts, schema=schema)).drop("lift").rename({"lift_points": "lift"})
