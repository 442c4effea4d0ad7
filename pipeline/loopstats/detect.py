"""Steps to loops: `strategy-loop/1` and `repeat/1` found after the fact, with what was known at that instant.

A room of its own because detection must be replayable by anybody: a pure stage over complete runs that looks at no
other run and at no later step. Only failed attempts are sorted and shifted; no window over many small groups. The
live twin is `rule.Detector`, and tests hold both against a third, plain walk.
"""

from __future__ import annotations

import polars as pl

from loopstats import rule
from loopstats.tables import is_attempt

EVENT = ["run_id", "is_enrolled", "signature"]
NEEDED = [
    "run_id",
    "session_id",
    "signature",
    "step",
    "ts",
    "call_id",
    "decision",
    "source_file",
    "source_line",
    "tool",
    "kind",
    "action",
    "target",
    "error_code",
    "message",
    "model",
]
FOUND = [
    "run_id",
    "session_id",
    "signature",
    "rule",
    "is_enrolled",
    "tool",
    "kind",
    "error_code",
    "message",
    "detected_step",
    "detected_at",
    "detected_call_id",
    "count_events",
    "count_targets",
    "count_decisions",
    "span_steps",
    "is_interrupted",
    "is_infra",
    "failures_before",
    "model",
]


def enrol(steps: pl.DataFrame, sessions: pl.DataFrame) -> pl.DataFrame:
    """Sessions with `is_enrolled` and `is_late_enrolment` decided (METHOD 8).

    A session whose first naming record is no `session` record, or comes at or after a detection, is not enrolled: it
    would have been selected by what was delivered.
    """
    named = sessions.filter(pl.col("enrolled_line").is_not_null()).select(
        "session_id", "enrolled_at", "enrolled_file", "enrolled_line"
    )
    if not named.height:
        return sessions
    events = _events(
        _failed(steps)
        .join(named.select("session_id"), on="session_id", how="semi")
        .with_columns(pl.lit(False).alias("is_enrolled"))
    )
    found = _first_detections(events).filter(pl.col("rule") == rule.STRATEGY_LOOP)
    both_timed = pl.col("ts").is_not_null() & pl.col("enrolled_at").is_not_null()
    same_file = pl.col("source_file") == pl.col("enrolled_file")
    is_at_or_before = (
        pl.when(both_timed & (pl.col("ts") != pl.col("enrolled_at")))
        .then(pl.col("ts") < pl.col("enrolled_at"))
        .when(same_file)
        .then(pl.col("source_line") < pl.col("enrolled_line"))
        .otherwise(both_timed)
    )
    late = (
        found.join(named, on="session_id")
        .filter(is_at_or_before)
        .select("session_id", pl.lit(True).alias("is_late"))
        .unique()
    )
    return (
        sessions.join(late, on="session_id", how="left")
        .with_columns(
            (pl.col("is_late_enrolment") | pl.col("is_late").fill_null(False)).alias("is_late_enrolment"),
            (pl.col("is_enrolled") & ~pl.col("is_late").fill_null(False)).alias("is_enrolled"),
        )
        .drop("is_late")
    )


def detect(steps: pl.DataFrame, sessions: pl.DataFrame) -> pl.DataFrame:
    """The loops of complete runs: key, the detecting step and the facts of `tables.LOOPS` known at that instant.

    In an enrolled session the count begins at the enrolment record; the steps before it are a count of their own.
    """
    events = counted_events(steps, sessions)
    return _facts(_first_detections(events), events, steps)


def counted_events(steps: pl.DataFrame, sessions: pl.DataFrame) -> pl.DataFrame:
    """Failed attempts by run, count (`is_enrolled`) and class, in order, numbered as `count_events` from 1."""
    enrolment = sessions.select(
        "session_id",
        pl.col("is_enrolled").alias("is_session_enrolled"),
        "enrolled_at",
        "enrolled_file",
        "enrolled_line",
    )
    is_timed = pl.col("ts").is_not_null() & pl.col("enrolled_at").is_not_null()
    is_earlier = (
        pl.when(is_timed)
        .then(pl.col("ts") < pl.col("enrolled_at"))
        .when(pl.col("source_file") == pl.col("enrolled_file"))
        .then(pl.col("source_line") < pl.col("enrolled_line"))
        .otherwise(False)
    )
    counted = (
        _failed(steps)
        .join(enrolment, on="session_id", how="left")
        .with_columns(
            (pl.col("is_session_enrolled").fill_null(False) & ~is_earlier.fill_null(False)).alias("is_enrolled")
        )
    )
    return _events(counted)


def _failed(steps: pl.DataFrame) -> pl.DataFrame:
    """Failed attempts with the columns that detection needs: few rows and few columns, before anything is joined."""
    is_failed = is_attempt() & (pl.col("outcome") == "failure") & pl.col("signature").is_not_null()
    return steps.lazy().filter(is_failed).select(NEEDED).collect()


def _events(steps: pl.DataFrame) -> pl.DataFrame:
    """`_failed` steps sorted by class and step, numbered within their class, with "another target was seen so far"."""
    events = steps.sort(*EVENT, "step").with_row_index("row")
    is_first = pl.any_horizontal([pl.col(name) != pl.col(name).shift(1) for name in EVENT]).fill_null(True)
    events = events.with_columns(
        pl.when(is_first).then(pl.col("row")).forward_fill().alias("row_first"),
        pl.when(is_first).then(pl.col("target")).forward_fill().alias("target_first"),
    )
    differs = pl.when(pl.col("target") != pl.col("target_first")).then(pl.col("row")).forward_fill()
    return events.with_columns(
        (pl.col("row") - pl.col("row_first") + 1).cast(pl.Int64).alias("count_events"),
        (differs >= pl.col("row_first")).fill_null(False).alias("is_spread"),
    )


def _first_detections(events: pl.DataFrame) -> pl.DataFrame:
    """One row per class and rule: its first step with enough events."""
    enough = events.filter(pl.col("count_events") >= rule.EVENTS_TO_DETECT)
    spread = enough.filter("is_spread").unique(EVENT, keep="first", maintain_order=True)
    single = enough.filter((pl.col("count_events") == rule.EVENTS_TO_DETECT) & ~pl.col("is_spread"))
    return pl.concat(
        [
            spread.with_columns(pl.lit(rule.STRATEGY_LOOP).alias("rule")),
            single.with_columns(pl.lit(rule.REPEAT).alias("rule")),
        ]
    )


def _facts(loops: pl.DataFrame, events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    attempts = steps.lazy().filter(is_attempt()).select("run_id", "step", "action", "outcome").collect()
    frame = (
        loops.rename({"step": "detected_step", "ts": "detected_at", "call_id": "detected_call_id"})
        .join(_counts(loops, events), on="row", how="left", maintain_order="left")
        .join(_failures(loops, attempts), on=["run_id", "detected_step"], how="left", maintain_order="left")
    )
    pairs = frame.select("run_id", "action").unique().with_row_index("pair")
    successes = (
        attempts.filter(pl.col("outcome") == "success")
        .select("run_id", "action", pl.col("step").alias("success_step"))
        .join(pairs, on=["run_id", "action"])
        .select("pair", "success_step")
        .sort("success_step")
    )
    frame = (
        frame.join(pairs, on=["run_id", "action"], how="left")
        .sort("detected_step")
        .join_asof(
            successes,
            left_on="detected_step",
            right_on="success_step",
            by="pair",
            strategy="backward",
            check_sortedness=False,
        )
    )
    said = list(frame.select("error_code", "message").iter_rows())
    is_infra = {row: rule.is_infra(row[0] or "", row[1] or "") for row in set(said)}
    infra = [is_infra[row] for row in said]
    return (
        frame.with_columns(
            (pl.col("third_step") - pl.col("first_step")).alias("span_steps"),
            (pl.col("failures_so_far") - 1).alias("failures_before"),
            (pl.col("success_step") > pl.col("first_step")).fill_null(False).alias("is_interrupted"),
            pl.Series("is_infra", infra, dtype=pl.Boolean()),
        )
        .select(FOUND)
        .sort("run_id", "signature", "rule", "is_enrolled")
    )


def _counts(loops: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """By the loop's `row`: distinct targets and decisions of its events, and the steps of the first and the third.

    Most loops are found at their third event: those are compared one with another, and only the others are counted.
    """
    told = events.select("target", "decision", "step")
    three = pl.concat(
        [
            told[loops["row_first"] + number].rename({name: f"{name}{number}" for name in told.columns})
            for number in range(3)
        ],
        how="horizontal",
    )

    def distinct(name: str) -> pl.Expr:
        a, b, c = (pl.col(f"{name}{number}") for number in range(3))
        return 1 + a.ne_missing(b).cast(pl.Int64) + (c.ne_missing(a) & c.ne_missing(b)).cast(pl.Int64)

    short = three.select(
        loops["row"],
        distinct("target").alias("count_targets"),
        distinct("decision").alias("count_decisions"),
        pl.col("step0").alias("first_step"),
        pl.col("step2").alias("third_step"),
    )
    long = loops.filter(pl.col("count_events") > rule.EVENTS_TO_DETECT).select("row_first", pl.col("row").alias("end"))
    if not long.height:
        return short
    members = events.join(long, on="row_first").filter(pl.col("row") <= pl.col("end"))
    counted = [
        members.select("end", name).unique().group_by("end").agg(pl.len().cast(pl.Int64).alias(f"{name}s"))
        for name in ("target", "decision")
    ]
    return (
        short.join(counted[0], left_on="row", right_on="end", how="left")
        .join(counted[1], left_on="row", right_on="end", how="left")
        .with_columns(
            pl.coalesce("targets", "count_targets").alias("count_targets"),
            pl.coalesce("decisions", "count_decisions").alias("count_decisions"),
        )
        .drop("targets", "decisions")
    )


def _failures(loops: pl.DataFrame, attempts: pl.DataFrame) -> pl.DataFrame:
    """The failed attempts of the loops' runs, numbered in their run."""
    failures = (
        attempts.filter(pl.col("outcome") == "failure")
        .select("run_id", pl.col("step").alias("detected_step"))
        .join(loops.select("run_id").unique(), on="run_id", how="semi", maintain_order="left")
        .sort("run_id", "detected_step")
        .with_row_index("place")
    )
    is_first = (pl.col("run_id") != pl.col("run_id").shift(1)).fill_null(True)
    before = pl.when(is_first).then(pl.col("place")).forward_fill()
    return failures.select(
        "run_id", "detected_step", (pl.col("place") - before + 1).cast(pl.Int64).alias("failures_so_far")
    )
