"""Records to steps, turns and sessions: pair calls with results, fold copies, put each run in its order.

A room of its own because everything derived must equal a rebuild from nothing, whatever the order in which files came,
grew or were copied: so copies are folded here, where all records of a session are at hand, and never while reading.
A pure stage: one bucket of records (complete sessions), the sources they came from, and the records that belong to
another session's history; no clock, no disk. Outcome, relative target and signature are asked of `rule.py` once for
every distinct combination and joined back, so that batch and hook measure with the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from loopstats import rule
from loopstats.tables import (
    DELIVERIES,
    DETECTIONS,
    GUARDS,
    RECORD_TYPES,
    RESULTS,
    SESSIONS,
    STEPS,
    STR,
    TURNS,
    is_attempt,
)

_OUTCOME_KEYS = (
    "kind",
    "program",
    "is_exit_masked",
    "is_piped",
    "has_result",
    "is_error",
    "exit_code",
    "outcome_log",
    "reason_log",
    "is_timeout",
    "is_summary_failed",
    "has_error_text",
)
_SESSION_FACTS = (
    "cwd",
    "project",
    "harness",
    "version",
    "model",
    "task",
    "group",
    "parent_session",
    "experiment",
    "salt_id",
    "share_bp",
    "epoch",
    "rule_digest",
)


SPOOL_RANK = 1
_SPOT = ("session_id", "order_us", "order_sha256", "source_line", "ordinal")


@dataclass(frozen=True)
class Built:
    """The tables of one bucket, and the lines that were folded as (session_id, source_id, source_line, reason)."""

    steps: pl.DataFrame
    turns: pl.DataFrame
    sessions: pl.DataFrame
    deliveries: pl.DataFrame
    detections: pl.DataFrame
    guards: pl.DataFrame
    results: pl.DataFrame
    folded: pl.DataFrame
    obsolete: pl.DataFrame


def build(records: pl.LazyFrame, sources: pl.DataFrame, shadows: pl.DataFrame) -> Built:
    """Make the tables of complete sessions.

    `records`: `tables.RECORDS`; each type's own columns are read when they are needed, so that records in files are
    never in memory as a whole. `sources`: source_id, source_file, order_us, order_sha256, is_superseded. `shadows`:
    session_id, uid, reason of records that are another session's history (`find_shadows`).
    """
    ordered = _in_order(records, sources)
    enrolment = _enrolment(ordered, shadows)
    kept, folded, obsolete = _fold(ordered, shadows)
    del ordered  # as large as what is made of it
    kept = _name_runs(kept)
    numbered = records.with_row_index("row")

    def of(name: str) -> pl.DataFrame:
        """The kept records of one type, with all of its columns."""
        rows = kept.filter(pl.col("type") == name)
        rest = [column for column in RECORD_TYPES[name].names if column not in rows.columns]
        told = numbered.filter(pl.col("type") == name).select("row", *rest).collect()
        return rows.hstack(told.drop("row")[told["row"].search_sorted(rows["row"])])

    calls, orphans = _pair(of("call"), of("result"))
    facts = _session_facts(of("session"))
    numbers = _number_decisions(kept)
    steps = _steps(calls, facts, numbers)
    turns = _turns(of("turn"), numbers, facts)
    sessions = _sessions(kept, steps, facts, enrolment)
    folded = pl.concat([folded, orphans])
    return Built(
        STEPS.conform(steps),
        TURNS.conform(turns),
        SESSIONS.conform(sessions),
        DELIVERIES.conform(_listed(of("delivery"), "delivery")),
        DETECTIONS.conform(_listed(of("loop"), "detection")),
        GUARDS.conform(_guards(of("guard"), calls, steps)),
        RESULTS.conform(_listed(of("fact"), "result")),
        folded,
        obsolete,
    )


_PLACED = (
    "type", "session_id", "agent", "parent_agent", "uid", "ts", "source_id", "source_line", "ordinal", "rank", "format",
    "model", "call_id", "decision_key", "experiment",
)  # fmt: skip


def _in_order(records: pl.LazyFrame, sources: pl.DataFrame) -> pl.DataFrame:
    """Where each record stands, in a run's order: files by first time, then first line; then lines.

    Only the columns that place and identity need, and the `row` in `records` where all others are: a record has many
    columns, most of them null, and carrying them through sorts and joins is what costs time and memory.
    """
    content = pl.concat_str([pl.col(name).cast(STR).fill_null("\x00") for name in _SESSION_FACTS], separator="\x1f")
    is_told = (
        (pl.col("type") != "result")
        | (pl.col("rank") == SPOOL_RANK)
        | pl.any_horizontal(pl.col("is_error", "exit_code", "outcome_log").is_not_null())
        | pl.col("is_timeout").fill_null(False)
    )
    narrow = records.select(*_PLACED, is_told.alias("is_told")).with_row_index("row").collect()
    told = (
        records.select("type", *_SESSION_FACTS)
        .with_row_index("row")
        .filter(pl.col("type") == "session")
        .select("row", content.alias("content"))
        .collect()
    )
    return (
        narrow.join(sources, on="source_id", how="inner")
        .join(told, on="row", how="left")
        .sort(
            "session_id",
            "order_us",
            "order_sha256",
            "source_line",
            "ordinal",
            "source_file",
            "source_id",
            "type",
            nulls_last=True,
        )
        .with_row_index("position")
        .with_columns(pl.col("position").cast(pl.Int64))
    )


def _fold(ordered: pl.DataFrame, shadows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Records without copies, in order; the folded lines; and the records of rewritten sources that no one needs.

    Of copies the transcript stands before a spool and that before an export. Of results in equal sources one that tells
    an outcome stands before one that tells none. Of equal sources the one that begins first stands, so that overlapping
    pieces cannot disorder a run; a source that was rewritten since stands last, silently.
    In one source a transcript's last record gives the facts at the place of its first, and a spool's first record
    stands (EVENTS: a line seen before is a duplicate). Of a turn's usage the last stands, from the best source that
    tells of turns, at the place of its first.
    """
    key = (
        pl.when(pl.col("type").is_in(["call", "result"]))
        .then(pl.col("call_id"))
        .when(pl.col("type") == "turn")
        .then(pl.col("decision_key"))
        .when(pl.col("type") == "session")
        .then(pl.col("content"))
        .otherwise(pl.col("uid"))
    )
    is_turn = pl.col("type") == "turn"
    # Copies of one line stand at one spot: which of them is the last is no question of their files' names.
    is_new_spot = pl.any_horizontal([pl.col(name).ne_missing(pl.col(name).shift()) for name in _SPOT])
    spotted = ordered.with_columns(is_new_spot.cum_sum().cast(pl.Int64).alias("spot"))
    marked = spotted.join(shadows, on=["session_id", "uid"], how="left", maintain_order="left").with_columns(
        key.alias("copy_key"),
        pl.when(is_turn & pl.col("reason_shadow").is_null())
        .then(pl.col("rank"))
        .min()
        .over("session_id", "agent", "type")
        .alias("best_turn_rank"),
    )
    same = ["type", "session_id", "agent", "copy_key"]
    is_session = pl.col("type") == "session"
    is_last_of_source = pl.col("type").is_in(["call", "result"]) & (pl.col("rank") != SPOOL_RANK)
    # Of a sort only the columns that it needs: each of them is copied, for as many records as a session has.
    ranking = [
        *same,
        "rank",
        "is_superseded",
        "is_told",
        "position",
        "spot",
        "order_us",
        "order_sha256",
        "source_file",
        "source_id",
    ]
    ranked = (
        marked.filter(pl.col("reason_shadow").is_null())
        .select(ranking)
        .sort(
            "rank",
            "is_superseded",
            ~pl.col("is_told"),
            pl.when(is_session).then(pl.col("position")),
            pl.when(is_turn).then(-pl.col("spot")),
            "order_us",
            "order_sha256",
            "source_file",
            "source_id",
            pl.when(is_last_of_source).then(-pl.col("position")).otherwise(pl.col("position")),
            nulls_last=True,
        )
    )
    winners = ranked.unique(same, keep="first", maintain_order=True).select(
        *same,
        pl.col("position").alias("winner"),
        pl.col("source_id").alias("winner_source"),
        pl.col("rank").alias("winner_rank"),
    )
    judged = marked.join(winners, on=same, how="left", nulls_equal=True, maintain_order="left").with_columns(
        pl.when(pl.col("reason_shadow").is_not_null())
        .then(pl.col("reason_shadow"))
        .when(is_turn & (pl.col("rank") > pl.col("best_turn_rank")))
        .then(pl.lit("re-export"))
        .when(pl.col("position") == pl.col("winner"))
        .then(None)
        .when(pl.col("source_id") == pl.col("winner_source"))
        .then(pl.when(is_turn).then(pl.lit("partial")).otherwise(pl.lit("repeat")))
        .when(pl.col("rank") != pl.col("winner_rank"))
        .then(pl.lit("re-export"))
        .otherwise(pl.lit("snapshot"))
        .alias("fold"),
        pl.when(
            pl.when(is_turn)
            .then(
                pl.col("reason_shadow").is_null() & ~pl.col("is_superseded") & (pl.col("rank") == pl.col("winner_rank"))
            )
            .otherwise(pl.col("type").is_in(["call", "result"]) & (pl.col("source_id") == pl.col("winner_source")))
        )
        .then(pl.col("position"))
        .min()
        .over(same)
        .alias("first_position"),
    )
    lines = (
        judged.filter(~pl.col("is_superseded"))
        .select("position", "session_id", "source_id", "source_line", "fold")
        .sort("position")
        .group_by("session_id", "source_id", "source_line", maintain_order=True)
        .agg(pl.col("fold").is_not_null().all().alias("is_folded"), pl.col("fold").drop_nulls().first().alias("reason"))
        .filter("is_folded")
        .select("session_id", "source_id", "source_line", "reason")
    )
    obsolete = judged.filter(
        pl.col("is_superseded")
        & pl.col("fold").is_not_null()
        & pl.col("reason_shadow").is_null()
        & pl.col("experiment").is_null()
    ).select("session_id", "source_id", "source_line", "ordinal")
    kept = (
        judged.filter(pl.col("fold").is_null())
        .with_columns(pl.coalesce("first_position", "position").alias("position"))
        .select(ordered.columns)
        .sort("position", "ordinal")
    )
    return kept, lines, obsolete


def _run_id(agent: str) -> pl.Expr:
    return (
        pl.when(pl.col(agent).is_null())
        .then(pl.col("session_id"))
        .otherwise(pl.col("session_id") + "/" + pl.col(agent))
    )


def _name_runs(kept: pl.DataFrame) -> pl.DataFrame:
    """METHOD 2: the session for the main agent, `session/agent` for a subagent.

    Where a session's own id reads like another's subagent (both lie in one bucket), its slash is written `%2F`.
    """
    named = kept.with_columns(_run_id("agent").alias("run_id"), _parent_run_id().alias("parent_run_id"))
    clash = (
        named.select("run_id", "session_id")
        .unique()
        .group_by("run_id")
        .agg(pl.len().alias("n"))
        .filter(pl.col("n") > 1)
    )
    if not clash.height:
        return named
    escaped = pl.col("run_id").is_in(clash["run_id"].to_list()) & pl.col("agent").is_null()
    return named.with_columns(
        pl.when(escaped)
        .then(pl.col("run_id").str.replace_all("/", "%2F", literal=True))
        .otherwise(pl.col("run_id"))
        .alias("run_id")
    )


def _parent_run_id() -> pl.Expr:
    parent = (
        pl.when(pl.col("parent_agent").is_null())
        .then(pl.col("session_id"))
        .otherwise(pl.col("session_id") + "/" + pl.col("parent_agent"))
    )
    return pl.when(pl.col("agent").is_not_null()).then(parent)


_RESULT_COLUMNS = (
    "is_error",
    "exit_code",
    "outcome_log",
    "reason_log",
    "outcome_source",
    "is_timeout",
    "is_summary_failed",
    "has_error_text",
    "error_code",
    "message",
    "signature",
    "is_signature_log",
    "result_hash",
    "is_truncated",
    "overflow_path",
    "duration_ms",
)


def _pair(calls: pl.DataFrame, results: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Calls with what came back, and the lines of results whose call is nowhere."""
    keys = ["run_id", "call_id"]
    answers = results.select(
        *keys,
        *_RESULT_COLUMNS,
        pl.col("state_hash").alias("state_hash_result"),
        pl.col("ts").alias("ts_result"),
        pl.col("position").alias("position_result"),
        pl.col("rank").alias("rank_result"),
        pl.lit(True).alias("has_result"),
    )
    paired = (
        calls.drop(*_RESULT_COLUMNS, strict=False)
        .join(answers, on=keys, how="left")
        .with_columns(pl.col("has_result").fill_null(False), pl.col("is_timeout").fill_null(False))
    )
    orphans = (
        results.join(calls.select(keys), on=keys, how="anti")
        .filter(~pl.col("is_superseded"))
        .select("session_id", "source_id", "source_line", pl.lit("orphan").alias("reason"))
        .unique(maintain_order=True)
    )
    return paired, orphans


def _ask(
    frame: pl.DataFrame, keys: tuple[str, ...], dtypes: Mapping[str, Any], question: Callable[..., tuple[Any, ...]]
) -> pl.DataFrame:
    """Ask the ruler once for every distinct combination of `keys` and join its answers."""
    distinct = frame.select(keys).unique(maintain_order=True)
    answers = [question(*row) for row in distinct.iter_rows()]
    columns = [
        pl.Series(name, [answer[i] for answer in answers], dtype=dtype)
        for i, (name, dtype) in enumerate(dtypes.items())
    ]
    return frame.join(
        distinct.with_columns(columns), on=list(keys), how="left", nulls_equal=True, maintain_order="left"
    )


def _session_facts(records: pl.DataFrame) -> pl.DataFrame:
    """First value of each key of a session, in the order of its records; the format's name where no harness is told."""
    aggregated = (
        records.sort("is_superseded", "position")
        .group_by("session_id", maintain_order=True)
        .agg([pl.col(name).drop_nulls().first() for name in _SESSION_FACTS])
    )
    return aggregated


def _number_decisions(kept: pl.DataFrame) -> pl.DataFrame:
    """run_id, turn_key -> decision: turns of a run numbered in order of their first record."""
    return (
        kept.filter(pl.col("type").is_in(["call", "turn"]))
        .select("run_id", _turn_key(), "position")
        .group_by("run_id", "turn_key")
        .agg(pl.col("position").min())
        .sort("run_id", "position", "turn_key")
        .with_columns(pl.int_range(pl.len()).over("run_id").cast(pl.Int64).alias("decision"))
        .select("run_id", "turn_key", "decision")
    )


def _turn_key() -> pl.Expr:
    return (
        pl.when(pl.col("decision_key").is_not_null())
        .then("t:" + pl.col("decision_key"))
        .otherwise("c:" + pl.col("call_id"))
        .alias("turn_key")
    )


def _steps(calls: pl.DataFrame, facts: pl.DataFrame, numbers: pl.DataFrame) -> pl.DataFrame:
    frame = calls.with_columns(_turn_key()).join(numbers, on=["run_id", "turn_key"], how="left")
    known = facts.select(
        "session_id",
        pl.col("cwd").alias("base"),
        pl.col("harness").alias("harness_known"),
        pl.col("project").alias("project_known"),
        pl.col("group").alias("group_known"),
        pl.col("model").alias("model_known"),
    )
    frame = frame.join(known, on="session_id", how="left").sort("position")
    frame = _ask(frame, _OUTCOME_KEYS, {"outcome": STR, "outcome_reason": STR, "source_asked": STR}, rule.outcome)
    frame = _ask(frame, ("target", "base"), {"target_placed": STR}, lambda target, base: (rule.place(target, base),))
    frame = _place_targets(frame)
    is_failure = pl.col("outcome") == "failure"
    frame = frame.with_columns(
        pl.when(is_failure & (pl.col("outcome_reason") == "timeout") & pl.col("error_code").is_null())
        .then(pl.lit("timeout"))
        .otherwise(pl.when(is_failure).then(pl.col("error_code")))
        .alias("error_code"),
        pl.when(is_failure).then(pl.col("message").fill_null("")).alias("message"),
        pl.when(is_failure).then(pl.col("signature")).alias("signature"),
        pl.coalesce("source_asked", "outcome_source", pl.lit("none")).alias("outcome_source"),
        pl.coalesce("ts_result", "ts").alias("ts"),
        pl.coalesce("state_hash_result", "state_hash").alias("state_hash"),
        pl.coalesce("harness_known", "format").alias("harness"),
        pl.coalesce("model", "model_known").alias("model"),
        pl.col("project_known").alias("project"),
        pl.col("group_known").alias("group"),
        pl.col("target_placed").alias("target"),
        pl.col("targets_placed").alias("targets"),
    )
    frame = _sign(frame)
    return _in_run_order(frame.select([name for name in frame.columns if name in (*STEPS.names, *_ORDERING)]))


def _place_targets(frame: pl.DataFrame) -> pl.DataFrame:
    many = (
        frame.select("position", "targets", "base")
        .explode("targets", empty_as_null=True)
        .filter(pl.col("targets").is_not_null())
    )
    placed = _ask(many, ("targets", "base"), {"placed": STR}, lambda target, base: (rule.place(target, base),))
    grouped = placed.group_by("position", maintain_order=True).agg(pl.col("placed").alias("targets_placed"))
    return frame.join(grouped, on="position", how="left", maintain_order="left")


def _sign(frame: pl.DataFrame) -> pl.DataFrame:
    """Signatures for failures whose call was not known while reading; shorten messages for show."""
    lacks = (pl.col("outcome") == "failure") & pl.col("signature").is_null()
    asked = _ask(
        frame.with_columns(pl.when(lacks).then(pl.col("message")).alias("unsigned")),
        ("tool", "error_code", "unsigned"),
        {"signature_asked": STR},
        lambda tool, code, message: (None if message is None else rule.signature(tool, code or "", message),),
    )
    return asked.with_columns(
        pl.coalesce("signature", "signature_asked").alias("signature"),
        pl.col("message").str.slice(0, rule.MESSAGE_SHOWN).alias("message"),
    )


_ORDERING = ("position", "position_result", "has_result", "rank", "rank_result")


def _in_run_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Number the steps of each run by the record of their result; those without a result come last, by their call.

    A step that only a lower source knows (a hook's spool beside a transcript) is put behind the last step of the run's
    own source that is not later; without times to compare it comes after them, since nothing may be known too early.
    """
    frame = frame.with_columns(
        pl.coalesce("position_result", "position").alias("place"),
        pl.when(pl.col("has_result")).then(pl.col("rank_result")).otherwise(pl.col("rank")).alias("place_rank"),
        pl.col("rank").min().over("run_id").alias("best_rank"),
    ).with_columns((pl.col("place_rank") > pl.col("best_rank")).alias("is_guest"))
    is_timed_host = ~pl.col("is_guest") & pl.col("has_result") & pl.col("ts").is_not_null()
    frame = frame.with_columns(is_timed_host.any().over("run_id").alias("has_timed_host"))
    hosts = (
        frame.filter(is_timed_host).select("run_id", pl.col("ts"), pl.col("place").alias("anchor")).sort("ts", "anchor")
    )
    guests = frame.filter("is_guest")
    last = frame.select(pl.col("place").max()).item() if frame.height else 0
    if guests.height:
        anchored = (
            guests.sort("ts", "place", nulls_last=True)
            .join_asof(hosts, on="ts", by="run_id", strategy="backward", check_sortedness=False)
            .select("position", "anchor")
        )
        frame = frame.join(anchored, on="position", how="left")
    else:
        frame = frame.with_columns(pl.lit(None, dtype=pl.Int64).alias("anchor"))
    return (
        frame.with_columns(
            pl.when(~pl.col("is_guest"))
            .then(pl.col("place"))
            .when(pl.col("anchor").is_not_null())
            .then(pl.col("anchor"))
            .when(pl.col("ts").is_null() | ~pl.col("has_timed_host"))
            .then(pl.lit(last))
            .otherwise(-1)
            .alias("host_place")
        )
        .sort("run_id", ~pl.col("has_result"), "host_place", "is_guest", "place", "position")
        .with_columns(pl.int_range(pl.len()).over("run_id").cast(pl.Int64).alias("step"))
    )


def _turns(turns: pl.DataFrame, numbers: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    known = facts.select("session_id", pl.col("model").alias("model_known"))
    numbered = turns.with_columns(_turn_key()).join(numbers, on=["run_id", "turn_key"], how="inner")
    return numbered.join(known, on="session_id", how="left").with_columns(
        pl.coalesce("model", "model_known").alias("model")
    )


def _enrolment(ordered: pl.DataFrame, shadows: pl.DataFrame) -> pl.DataFrame:
    """The first record of each session that names an experiment, in the order of its files and lines.

    A record of a file that was rewritten since counts too: what named the session first stays true.
    """
    return (
        ordered.filter(pl.col("type").is_in(["session", "loop", "delivery"]) & pl.col("experiment").is_not_null())
        .join(shadows, on=["session_id", "uid"], how="anti")
        .sort("position")
        .unique("session_id", keep="first", maintain_order=True)
        .select(
            "session_id",
            pl.col("ts").alias("enrolled_at"),
            pl.col("source_file").alias("enrolled_file"),
            pl.col("source_line").alias("enrolled_line"),
            (pl.col("type") == "session").alias("is_enrolled"),
        )
    )


def _sessions(kept: pl.DataFrame, steps: pl.DataFrame, facts: pl.DataFrame, enrolment: pl.DataFrame) -> pl.DataFrame:
    spans = (
        kept.sort("position")
        .group_by("session_id", maintain_order=True)
        .agg(
            pl.col("ts").min().alias("first_at"),
            pl.col("ts").max().alias("last_at"),
            pl.col("format").sort_by("rank", "position").first().alias("format"),
            (pl.col("rank").min()).alias("best_rank"),
            pl.col("model").filter(pl.col("type").is_in(["call", "turn"])).drop_nulls().first().alias("model_used"),
            pl.col("run_id").filter(pl.col("type").is_in(["call", "result", "turn"])).n_unique().alias("count_runs"),
        )
    )
    counts = steps.group_by("session_id").agg(
        pl.len().alias("count_steps"),
        is_attempt().sum().alias("count_attempts"),
        (is_attempt() & (pl.col("outcome") == "failure")).sum().alias("count_failures"),
        (pl.col("outcome") == "unknown").sum().alias("count_unknown"),
        (~pl.col("has_result")).any().alias("has_waiting"),
    )
    bases = _ask(facts, ("cwd",), {"cwd_placed": STR}, lambda cwd: (None if cwd is None else rule.place(cwd, None),))
    frame = (
        spans.join(bases, on="session_id", how="left")
        .join(counts, on="session_id", how="left")
        .join(enrolment, on="session_id", how="left")
    )
    return frame.with_columns(
        pl.coalesce("harness", "format").alias("harness"),
        pl.coalesce("model", "model_used").alias("model"),
        pl.col("cwd_placed").fill_null("").alias("cwd"),
        pl.col("parent_session").alias("parent_session_id"),
        pl.col("has_waiting").fill_null(False).alias("is_open"),
        pl.col("is_enrolled").fill_null(False),
        (pl.col("enrolled_line").is_not_null() & ~pl.col("is_enrolled")).alias("is_late_enrolment"),
        *[
            pl.col(name).fill_null(0)
            for name in ("count_runs", "count_steps", "count_attempts", "count_failures", "count_unknown")
        ],
    )


def _listed(records: pl.DataFrame, number: str) -> pl.DataFrame:
    """Records numbered in the order of their session."""
    return records.sort("position").with_columns(pl.int_range(pl.len()).over("session_id").alias(number))


def _guards(guards: pl.DataFrame, calls: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Guard records with the step of the run that came before them."""
    listed = _listed(guards, "guard")
    if not listed.height:
        return listed.with_columns(pl.lit(None, dtype=pl.Int64).alias("step"))
    places = steps.select("run_id", pl.col("place").alias("position"), pl.col("step").alias("step")).sort("position")
    return (
        listed.drop("step", strict=False)
        .sort("position")
        .join_asof(places, on="position", by="run_id", strategy="backward", check_sortedness=False)
    )


def find_shadows(index: pl.DataFrame) -> pl.DataFrame:
    """Records that a session holds only because it copied another's history.

    `index`: session_id, uid, ts, parent_session of the records with a global identity. Gives session_id, uid, reason
    (`reason_shadow`: `resume` where the other session ended at the copy, else `fork`). Of two sessions that share
    records the parent is the one that the log names; else the one whose first record not shared is earlier; else the
    smaller id (METHOD 2). A session without any record of its own counts as earliest: all of it was copied.
    """
    shared = index.group_by("uid").agg(pl.col("session_id").n_unique().alias("n")).filter(pl.col("n") > 1).select("uid")
    empty = pl.DataFrame(schema={"session_id": STR, "uid": STR, "reason_shadow": STR})
    if not shared.height:
        return empty
    holders = (
        index.join(shared, on="uid", how="semi")
        .group_by("uid")
        .agg(pl.col("session_id").unique().sort().alias("holders"))
    )
    involved = holders.select(pl.col("holders").explode(empty_as_null=True).unique())["holders"].to_list()
    mine: dict[str, dict[str, Any]] = {session: {} for session in involved}
    parents: dict[str, set[str]] = {session: set() for session in involved}
    for session, uid, ts, parent in (
        index.filter(pl.col("session_id").is_in(involved))
        .select("session_id", "uid", "ts", "parent_session")
        .iter_rows()
    ):
        if uid is not None and (
            uid not in mine[session] or (ts is not None and (mine[session][uid] is None or ts < mine[session][uid]))
        ):
            mine[session][uid] = ts
        if parent:
            parents[session].add(parent)
    first_own: dict[tuple[str, str], tuple[bool, Any, bool]] = {}

    def own(session: str, other: str) -> tuple[bool, Any, bool]:
        key = (session, other)
        if key not in first_own:
            rest = [ts for uid, ts in mine[session].items() if uid not in mine[other]]
            times = [ts for ts in rest if ts is not None]
            first_own[key] = (bool(rest), min(times) if times else None, not rest)
        return first_own[key]

    def is_parent(a: str, b: str) -> bool:
        if (a in parents[b]) != (b in parents[a]):
            return a in parents[b]
        (has_a, first_a, _), (has_b, first_b, _) = own(a, b), own(b, a)
        if has_a != has_b:
            return not has_a
        if first_a != first_b and first_a is not None and first_b is not None:
            return bool(first_a < first_b)
        return a < b

    owners: dict[tuple[str, ...], str] = {}
    out: list[tuple[str, str, str]] = []
    for uid, sessions in holders.sort("uid").iter_rows():
        group = tuple(sessions)
        if group not in owners:
            wins = {s: sum(is_parent(s, t) for t in group if t != s) for s in group}
            owners[group] = min(group, key=lambda s: (-wins[s], s))
        owner = owners[group]
        for session in group:
            if session != owner:
                out.append((session, uid, "fork" if own(owner, session)[0] else "resume"))
    return pl.DataFrame(out, schema=empty.schema, orient="row") if out else empty


def record_index(records: pl.LazyFrame) -> pl.DataFrame:
    """What `find_shadows` needs of the lake's records; sessions' named parents ride along."""
    marks = records.filter(
        (pl.col("is_global") & (pl.col("type") != "session")) | pl.col("parent_session").is_not_null()
    ).select(
        "session_id", pl.when(pl.col("type") != "session").then(pl.col("uid")).alias("uid"), "ts", "parent_session"
    )
    return marks.collect()
