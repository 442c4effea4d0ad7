"""Steps to what the hard rule does not see: world state, productive steps, drift and echoes (METHOD 12).

A room of its own because a run can go nowhere without one failure: here it is asked what the world was after each step,
and whether steps repeat themselves while it stays. A pure stage over complete runs, no window over many small groups:
rows are sorted once, and everything else is a shift, a running sum or a running maximum. `tests/oracle_drift.py` walks
the same rules by hand.

World state after a step: the log's own where the run has any (then missing is unknown); else a hash of the last
verification's result and of the content of the files edited so far, which the fingerprint of the last edit of each
target stands for. Unknown before the first verification, after one whose result is not known, and from an edit of
unknown outcome to the next verification. A verification's result is its class where it failed (masked, so that times
and numbers of processes do not count), "success" where it succeeded, else the hash of its text.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopstats.tables import DRIFTS, ECHOES
from loopstats.waste import spend, tokens_of_turn

DRIFT_0 = "drift/0"
DRIFT_1 = "drift/1"
ECHO_1 = "echo/1"
WINDOW = 8
FEW = 3
ECHOES_TO_DETECT = 4
CHANGING = ("execute", "communicate", "operate")

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]


# --- world state --------------------------------------------------------------------------------------------------


def world(steps: pl.DataFrame) -> pl.DataFrame:
    """STEPS with `state_hash` filled where a run's log has none, and `is_productive`; sorted by run and step.

    `is_productive` (METHOD 12): true or false where it is known, else null. Where the state is derived, a successful
    edit that leaves other content has moved it, known or not as a whole; what an execute, communicate or operate step
    did is seen by a log's own state only.
    """
    if not steps.height:
        return steps.with_columns(pl.lit(None, dtype=pl.Boolean).alias("is_productive"))
    is_agent = pl.col("actor") == "agent"
    is_verify = is_agent & (pl.col("kind") == "verify") & (pl.col("outcome") != "vetoed")
    is_edit = is_agent & (pl.col("kind") == "edit") & pl.col("outcome").is_in(["success", "unknown"])
    frame = (
        steps.sort("run_id", "step")
        .with_columns(
            is_verify.alias("is_verify"),
            is_edit.alias("is_edit"),
            _verdict(is_verify).alias("verdict"),
            (pl.col("run_id") != pl.col("run_id").shift(1)).fill_null(True).alias("is_first"),
        )
        .with_row_index("row")
    )
    rows = np.arange(frame.height, dtype=np.int64)
    start = np.maximum.accumulate(np.where(frame["is_first"].to_numpy(), rows, 0))
    changes = _content_changes(frame)
    total = np.cumsum(changes, dtype=np.uint64)
    content = total - total[start] + changes[start]
    last_verify = _last(frame["is_verify"].to_numpy(), rows, start)
    last_blind = _last(
        frame.select(pl.col("is_edit") & (pl.col("outcome") == "unknown")).to_series().to_numpy(), rows, start
    )
    verdicts = _words(frame["verdict"])
    is_known = (last_verify >= 0) & frame["verdict"].is_not_null().to_numpy()[last_verify] & (last_blind <= last_verify)
    derived = pl.Series("derived", _hex(_mixed(verdicts[last_verify], content)), dtype=pl.String)
    is_own = pl.col("state_hash").count().over("run_id") > 0
    frame = frame.with_columns(
        derived,
        pl.Series("is_known", is_known),
        pl.Series("is_content_new", changes != 0),
        is_own.alias("is_own"),
    ).with_columns(
        pl.when("is_own")
        .then(pl.col("state_hash"))
        .otherwise(pl.when("is_known").then(pl.col("derived")))
        .alias("state_hash")
    )
    return frame.with_columns(_productive(is_agent).alias("is_productive")).drop(
        "row",
        "is_verify",
        "is_edit",
        "verdict",
        "is_first",
        "derived",
        "is_known",
        "is_content_new",
        "is_own",
        strict=False,
    )


def _verdict(is_verify: pl.Expr) -> pl.Expr:
    """What a verification said; null where that is not known."""
    outcome = pl.col("outcome")
    is_silent = pl.col("result_hash").is_null() | pl.col("outcome_reason").is_in(["missing", "interrupt", "sibling"])
    return (
        pl.when(~is_verify)
        .then(None)
        .when(outcome == "success")
        .then(pl.lit("success"))
        .when(outcome == "failure")
        .then("failure " + pl.coalesce("signature", "result_hash", pl.lit("")))
        .when(~is_silent.fill_null(False))
        .then("text " + pl.col("result_hash"))
    )


def _content_changes(frame: pl.DataFrame) -> Words:
    """Per row, by how much the hash of all edited content moves: new content of a target minus the old, modulo 2^64.

    An edit of unknown outcome leaves content that nobody knows: its own, equal to no other.
    """
    edits = (
        frame.filter("is_edit")
        .select(
            "row",
            "run_id",
            "target",
            pl.when(pl.col("outcome") == "success")
            .then(pl.concat_str("target", pl.lit("\x1f"), "fingerprint"))
            .otherwise(
                pl.concat_str(
                    "target", pl.lit("\x1f?"), pl.col("run_id"), pl.lit("\x1f"), pl.col("step").cast(pl.String)
                )
            )
            .alias("content"),
        )
        .sort("run_id", "target", "row")
    )
    changes = np.zeros(frame.height, dtype=np.uint64)
    if not edits.height:
        return changes
    new = _words(edits["content"])
    is_same_file = (
        edits.select(
            (
                (pl.col("run_id") == pl.col("run_id").shift(1)) & (pl.col("target") == pl.col("target").shift(1))
            ).fill_null(False)
        )
        .to_series()
        .to_numpy()
    )
    old = np.where(is_same_file, np.roll(new, 1), np.uint64(0))
    changes[edits["row"].to_numpy()] = new - old
    return changes


def _last(is_marked: Bools, rows: Ints, start: Ints) -> Ints:
    """Row of the last marked row of the same run up to each row; -1 where there is none."""
    last = np.maximum.accumulate(np.where(is_marked, rows, -1))
    return np.where(last >= start, last, -1)


def _words(texts: pl.Series) -> Words:
    """64 bits of SHA-256 for each text, asked once for each distinct one; 0 for null."""
    distinct = texts.unique(maintain_order=True).drop_nulls()
    words = np.fromiter(
        (int.from_bytes(sha256(text.encode("utf-8", "replace")).digest()[:8], "big") for text in distinct.to_list()),
        dtype=np.uint64,
        count=distinct.len(),
    )
    codes = (
        pl.DataFrame({"text": texts})
        .join(
            pl.DataFrame({"text": distinct, "code": np.arange(1, distinct.len() + 1)}),
            on="text",
            how="left",
            maintain_order="left",
        )["code"]
        .fill_null(0)
        .to_numpy()
    )
    by_code: Words = np.concatenate([np.zeros(1, dtype=np.uint64), words])[codes]
    return by_code


def _mixed(one: Words, other: Words) -> Words:
    """Both words in one, every bit depending on all (the finaliser of SplitMix64)."""
    word = one * np.uint64(0x9E3779B97F4A7C15) + other
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def _hex(words: Words) -> NDArray[np.str_]:
    """16 hexadecimal digits a word."""
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    octets = words.astype(">u8").view(np.uint8)
    pairs = np.empty((octets.size, 2), dtype=np.uint8)
    pairs[:, 0], pairs[:, 1] = digits[octets >> 4], digits[octets & 15]
    return pairs.reshape(-1).view("S16").astype(str)


def _productive(is_agent: pl.Expr) -> pl.Expr:
    before = pl.when(~pl.col("is_first")).then(pl.col("state_hash").shift(1))
    is_changed = before != pl.col("state_hash")
    is_success, is_unknown = pl.col("outcome") == "success", pl.col("outcome") == "unknown"
    last_verdict = pl.when("is_verify").then(pl.col("verdict"))
    # Among the verifications of a run each is set against the one before it, known or not.
    place = pl.when("is_verify").then(pl.col("row"))
    earlier = place.forward_fill().shift(1).over("run_id")
    verdict_before = last_verdict.gather(earlier.fill_null(0)).alias("verdict_before")
    is_result_new = pl.when(earlier.is_not_null()).then(verdict_before != pl.col("verdict"))
    return (
        pl.when(~is_agent)
        .then(False)
        .when("is_verify")
        .then(is_result_new)
        .when((pl.col("kind") == "edit") & is_success)
        .then(pl.when("is_own").then(is_changed).otherwise(pl.col("is_content_new")))
        .when(pl.col("kind").is_in(CHANGING) & is_success)
        .then(pl.when("is_own").then(is_changed))
        .when(pl.col("kind").is_in(["edit", *CHANGING]) & is_unknown)
        .then(None)
        .otherwise(False)
    )


# --- drift --------------------------------------------------------------------------------------------------------


def drifts(steps: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """DRIFTS of complete runs, from STEPS with the world's state: one row per stretch in which a rule keeps firing."""
    mine = steps.filter(pl.col("actor") == "agent").sort("run_id", "step")
    found = pl.concat([_drifts(mine, DRIFT_0), _drifts(mine.filter(pl.col("kind") != "wait"), DRIFT_1)])
    ends = steps.group_by("run_id").agg(pl.col("step").max().alias("end_step"), pl.col("ts").max().alias("end_at"))
    found = found.join(ends, on="run_id", how="left").with_columns(
        (pl.col("end_step") - pl.col("detected_step")).alias("lead_steps"),
        (pl.col("end_at") - pl.col("detected_at")).dt.total_milliseconds().alias("lead_ms"),
        pl.col("rule").alias("rule_version"),
    )
    return DRIFTS.conform(spend(found, steps, turns))


def _drifts(steps: pl.DataFrame, rule: str) -> pl.DataFrame:
    window = _windows(steps)
    is_novelty = window["distinct"] < FEW
    is_state = window["frozen"] >= WINDOW
    if rule == DRIFT_1:
        is_state &= window["firsts"] < FEW
    fires = window["is_full"] & (is_novelty | is_state)
    begins = fires & ~(np.roll(fires, 1) & ~window["is_first"])
    reason = np.where(is_novelty & is_state, "both", np.where(is_novelty, "novelty", "state"))
    frame = steps.with_columns(
        pl.Series("fires", fires),
        pl.Series("episode", np.cumsum(begins)),
        pl.Series("reason", reason, dtype=pl.String),
        pl.lit(rule).alias("rule"),
        *[pl.col(name).shift(WINDOW - 1).alias(f"{name}_onset") for name in ("step", "ts")],
    ).filter("fires")
    return (
        frame.group_by("episode", maintain_order=True)
        .agg(
            pl.col(
                "run_id", "session_id", "rule", "reason", "tool", "kind", "harness", "model", "project", "group"
            ).first(),
            pl.col("step_onset").first().alias("first_step"),
            pl.col("ts_onset").first().alias("first_at"),
            pl.col("step").first().alias("detected_step"),
            pl.col("ts").first().alias("detected_at"),
            pl.col("step").last().alias("last_step"),
            pl.col("ts").last().alias("last_at"),
            (pl.len() + WINDOW - 1).cast(pl.Int64).alias("length"),
        )
        .drop("episode")
    )


def _windows(steps: pl.DataFrame) -> dict[str, Any]:
    """What the window of the last `WINDOW` rows up to each row holds; rows are sorted by run and step.

    `distinct` fingerprints, `firsts`: rows that are the first of their fingerprint in the run, `frozen`: rows up to
    here with one known state, `is_full`: the run has that many rows.
    """
    n = steps.height
    rows = np.arange(n, dtype=np.int64)
    is_first = steps.select((pl.col("run_id") != pl.col("run_id").shift(1)).fill_null(True)).to_series().to_numpy()
    start = np.maximum.accumulate(np.where(is_first, rows, 0)) if n else rows
    end = np.append(start[1:] == rows[1:], True) if n else is_first
    run_end = np.minimum.accumulate(np.where(end, rows, n)[::-1])[::-1]
    same = steps.select("run_id", "fingerprint").with_row_index("row").sort("run_id", "fingerprint", "row")
    is_again = (
        same.select(
            (
                (pl.col("run_id") == pl.col("run_id").shift(1))
                & (pl.col("fingerprint") == pl.col("fingerprint").shift(1))
            ).fill_null(False)
        )
        .to_series()
        .to_numpy()
    )
    order = same["row"].to_numpy().astype(np.int64)
    is_new = np.ones(n, dtype=bool)
    is_new[order] = ~is_again
    following = np.full(n, 2 * n + WINDOW, dtype=np.int64)
    following[order[:-1][is_again[1:]]] = order[1:][is_again[1:]]
    # A row is the last of its fingerprint in the windows that end from itself up to the row before `stop`.
    stop = np.minimum(np.minimum(following, rows + WINDOW), run_end + 1)
    distinct = np.cumsum(1 - np.bincount(stop, minlength=n + 1)[:n])
    seen = np.concatenate([[0], np.cumsum(is_new)])
    firsts = seen[1:] - seen[np.maximum(rows + 1 - WINDOW, 0)]
    is_moved = (
        steps.select((pl.col("state_hash") != pl.col("state_hash").shift(1)).fill_null(True)).to_series().to_numpy()
        | is_first
    )
    since = np.maximum.accumulate(np.where(is_moved, rows, 0)) if n else rows
    frozen = np.where(steps["state_hash"].is_not_null().to_numpy(), rows - since + 1, 0)
    return {
        "distinct": distinct,
        "firsts": firsts,
        "frozen": frozen,
        "is_full": rows - start + 1 >= WINDOW,
        "is_first": is_first,
    }


def frozen_stretches(steps: pl.DataFrame) -> pl.DataFrame:
    """run_id and `longest_frozen`: most steps in a row with one known state, waiting and the user's steps left out.

    Null where no state is known. `count_state_changes`: how often a known state followed another known one.
    """
    mine = steps.filter((pl.col("actor") == "agent") & (pl.col("kind") != "wait")).sort("run_id", "step")
    window = _windows(mine)
    known = (
        mine.select("run_id", "step", "state_hash")
        .with_columns(pl.Series("frozen", window["frozen"]))
        .filter(pl.col("state_hash").is_not_null())
    )
    before = pl.col("state_hash").shift(1).over("run_id")
    return (
        known.with_columns((before != pl.col("state_hash")).fill_null(False).alias("is_change"))
        .group_by("run_id")
        .agg(
            pl.col("frozen").max().cast(pl.Int64).alias("longest_frozen"),
            pl.col("is_change").sum().cast(pl.Int64).alias("count_state_changes"),
        )
        .sort("run_id")
    )


# --- echoes -------------------------------------------------------------------------------------------------------


def echoes(steps: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """ECHOES of complete runs: one fingerprint with one result again and again, and nothing productive between.

    A productive step begins anew, itself included, and so does an edit of which nobody knows what it did. Steps that
    wait or whose result is missing are no echo.
    """
    begins_anew = pl.col("is_productive").fill_null(pl.col("kind") == "edit")
    mine = (
        steps.filter(pl.col("actor") == "agent")
        .sort("run_id", "step")
        .with_columns(begins_anew.cum_sum().over("run_id").alias("epoch"))
        .filter((pl.col("kind") != "wait") & pl.col("result_hash").is_not_null())
    )
    keys = ["run_id", "fingerprint", "result_hash", "epoch"]
    many = mine.join(mine.group_by(keys).len().filter(pl.col("len") >= ECHOES_TO_DETECT), on=keys, how="semi")
    fourth = ECHOES_TO_DETECT - 1
    facts = ("session_id", "tool", "kind", "target", "outcome", "harness", "model", "project", "group")
    found = (
        many.sort("run_id", "step")
        .group_by(keys, maintain_order=True)
        .agg(
            pl.col(facts).first(),
            pl.col("step").first().alias("first_step"),
            pl.col("ts").first().alias("first_at"),
            pl.col("step").gather(fourth).first().alias("detected_step"),
            pl.col("ts").gather(fourth).first().alias("detected_at"),
            pl.col("step").last().alias("last_step"),
            pl.col("ts").last().alias("last_at"),
            pl.len().cast(pl.Int64).alias("length"),
            pl.col("decision").alias("decisions"),
        )
        .with_columns(
            pl.lit(ECHO_1).alias("rule"), pl.lit(ECHO_1).alias("rule_version"), pl.col("outcome").alias("reason")
        )
    )
    return ECHOES.conform(_spend_on_turns(found, turns))


def _spend_on_turns(found: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """Tokens and cost of the turns that asked for the repeats, the first one left out: what the echo itself cost."""
    listed = found.with_row_index("found_row")
    asked = (
        listed.select("found_row", "run_id", pl.col("decisions").list.unique().list.sort().list.slice(1))
        .explode("decisions", empty_as_null=True)
        .filter(pl.col("decisions").is_not_null())
    )
    cost = (
        asked.join(
            turns.select("run_id", pl.col("decision").alias("decisions"), tokens_of_turn(), "cost_micros"),
            on=["run_id", "decisions"],
        )
        .group_by("found_row")
        .agg(
            pl.when(pl.col("tokens").count() > 0).then(pl.col("tokens").sum()).alias("tokens"),
            pl.when(pl.col("cost_micros").is_not_null().all()).then(pl.col("cost_micros").sum()).alias("cost_micros"),
        )
    )
    return listed.join(cost, on="found_row", how="left", maintain_order="left").drop("found_row", "decisions")
