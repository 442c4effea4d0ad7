"""One loop told from its first event to its outcome: why it fired, which arm it is in, what ended it, where it stands.

A room of its own because a number is believed when one case of it can be checked by hand. Nothing is decided here: the
lake's row is shown beside the events that made it, the live detector and classifier of the ruler walk these events
again, and a difference between them and the lake is said aloud. What a pending loop will be is not told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from loopstats import failures, originals, query, rule
from loopstats.detect import counted_events
from loopstats.errors import NothingError, UsageError
from loopstats.output import markdown_text, plain
from loopstats.report import safe_text, wrap
from loopstats.store import Lake, bucket_of
from loopstats.tables import BOOL, INT, LIST, STR, TIME, is_attempt
from loopstats.when import iso

if TYPE_CHECKING:
    from loopstats.config import Settings
    from loopstats.store import Snapshot

SCHEMA = "loopstats.explain/1"
CANDIDATES_SHOWN = 10
LINES_SHOWN = 12
SPOOL_RANK = 1

ROLES = {
    "event": "a failure of the class that counts for the detection",
    "between": "the action succeeded between the first event and the detection",
    "failure": "a failure of the class after the detection",
    "success": "a success where the class was failing: what failed there now works there",
    "own_turn": "asked for in the detection's own turn: it only says which pairs of action and target fail",
    "sidestep": "another action succeeded on a target where the class was failing",
    "other": "another attempt of the same tool",
    "relapse": "a failure of the class after the loop broke",
}
ROWS = pl.Schema(
    {
        "role": STR,
        "count": INT,
        "count_targets": INT,
        "step": INT,
        "decision": INT,
        "ts": TIME,
        "tool": STR,
        "action": STR,
        "kind": STR,
        "target": STR,
        "outcome": STR,
        "outcome_reason": STR,
        "error_code": STR,
        "message": STR,
        "is_late": BOOL,
        "is_deciding": BOOL,
        "call_id": STR,
        "source_file": STR,
        "source_line": INT,
        "result_file": STR,
        "result_line": INT,
        "source_state": STR,
        "source_text": STR,
        "result_state": STR,
        "result_text": STR,
        "salient_line": STR,
        "masks": LIST,
    }
)
_RAW = ("source_state", "source_text", "result_state", "result_text", "salient_line", "masks")
_LOOP = (
    "loop_id",
    "rule",
    "run_id",
    "session_id",
    "is_enrolled",
    "tool",
    "kind",
    "detected_step",
    "detected_at",
    "detected_call_id",
    "last_step",
    "harness",
    "model",
    "project",
    "group",
    "rule_digest",
)
_WHEN = ("outcome_step", "outcome_at", "steps_to_outcome", "decisions_to_outcome")


@dataclass(frozen=True)
class Explanation:
    """One loop. The mappings hold plain values, times as datetimes; `rows` has the columns of `ROWS`, a step a row."""

    as_of_us: int
    loop: Mapping[str, Any]
    failure: Mapping[str, Any]
    why: Mapping[str, Any]
    arm: Mapping[str, Any]
    delivery: Mapping[str, Any]
    outcome: Mapping[str, Any]
    rows: pl.DataFrame
    is_raw: bool
    warnings: tuple[str, ...]

    def to_json(self, tz: str = "UTC") -> dict[str, Any]:
        """The body of `-f json`: the parts by name, then a row for each step; docs/explain.md names every key."""
        return {
            "schema": SCHEMA,
            "as_of": iso(self.as_of_us),
            "interval": None,
            "tz": tz,
            "rule_digest": self.loop["rule_digest"],
            "loop": plain(self.loop),
            "class": plain(self.failure),
            "why": plain(self.why),
            "arm": plain(self.arm),
            "delivery": plain(self.delivery),
            "outcome": plain(self.outcome),
            "rows": [plain(row) for row in self.rows.iter_rows(named=True)],
            "warnings": list(self.warnings),
        }

    def text(self, width: int = 100) -> str:
        """For a terminal, lines of at most `width` columns; log text is made visible. Ends with a line break."""
        title, *parts = _parts(self)
        blocks = [wrap(title[0], width, "  "), *("\n".join([wrap(n, width), *_indented(b, width)]) for n, b in parts)]
        return "\n\n".join(blocks) + "\n"

    def markdown(self) -> str:
        """The same as Markdown: a heading a part, a list item a line."""
        title, *parts = _parts(self)
        blocks = [f"# {markdown_text(title[0])}"]
        for name, body in parts:
            blocks.append(f"## {markdown_text(name)}\n\n" + "\n".join(f"- {markdown_text(line)}" for line in body))
        return "\n\n".join(blocks) + "\n"

    def __str__(self) -> str:
        return self.text()


def explain(
    snapshot: Snapshot, settings: Settings, loop_id: str, *, as_of_us: int, is_raw: bool = False
) -> Explanation:
    """The loop whose id begins with `loop_id`, as known at the as-of.

    UsageError names the candidates where several begin so, NothingError where none does. `is_raw` reads the sources
    again, where they are still there, for the lines themselves.
    """
    loop = find(snapshot, loop_id, as_of_us)
    session_id, run_id = loop["session_id"], loop["run_id"]
    bucket = bucket_of(session_id)

    def read(name: str) -> pl.DataFrame:
        return snapshot.scan(name, bucket).filter(pl.col("session_id") == session_id).collect()

    steps = read("steps").filter(pl.col("run_id") == run_id).sort("step")
    session = read("sessions")
    if session.height != 1 or loop["detected_step"] not in steps["step"]:
        raise NothingError(f"loop {loop['loop_id']}: its steps are not in this lake")
    told = {name: _told(read(name), loop, as_of_us, name[:-1]) for name in ("detections", "deliveries")}
    rows = story(loop, steps, session)
    is_reproduced = _is_reproduced(loop, steps, rows)
    rows = rows.filter((pl.col("ts").dt.epoch("us") <= as_of_us).fill_null(True))
    sources = Lake(snapshot.root).peek()[0]
    rows, records = _placed(rows, read("records"), sources, _agent(loop))
    if is_raw:
        rows = _with_originals(rows, records, originals.read(records, sources, settings.tool_rows))
    warnings = () if is_reproduced else (_DIFFERENT,)
    return Explanation(
        as_of_us,
        {name: loop[name] for name in _LOOP},
        _failure(loop, rows, records),
        _why(loop, rows, session.row(0, named=True)),
        _arm(loop, settings, session.row(0, named=True), told["detections"]),
        {"is_delivered": loop["is_delivered"], "records": told["deliveries"]},
        _outcome(loop, rows, steps, is_reproduced),
        rows,
        is_raw,
        warnings,
    )


_DIFFERENT = (
    "walking the events again gives another detection or outcome than the lake has: it was derived by another version; "
    "run `loopstats ingest` again"
)


def find(snapshot: Snapshot, loop_id: str, as_of_us: int) -> dict[str, Any]:
    """The row of `tables.LOOPS` whose id begins with `loop_id`, as every reader sees it at the as-of."""
    connection = query.open_snapshot(snapshot, as_of_us)
    wanted = loop_id.strip().lower()
    found = query.run(
        connection,
        "SELECT * FROM loops WHERE starts_with(loop_id, $wanted) ORDER BY detected_at DESC NULLS LAST, loop_id",
        {"wanted": wanted},
    )
    if not found.height:
        later = snapshot.scan("loops").filter(pl.col("loop_id").str.starts_with(wanted)).collect()
        if wanted and later.height:
            raise NothingError(f"loop {loop_id!r} was detected after the as-of {iso(as_of_us)}")
        raise NothingError(f"no loop begins with {loop_id!r}; `loopstats loops` lists them")
    if found.height > 1:
        names = [
            f"{row['loop_id']} ({row['rule']}, {row['tool']}, {_time(row['detected_at'])})"
            for row in found.head(CANDIDATES_SHOWN).iter_rows(named=True)
        ]
        more = f" and {found.height - CANDIDATES_SHOWN} more" if found.height > CANDIDATES_SHOWN else ""
        raise UsageError(f"loop {loop_id!r}: {found.height} loops begin so, write more of it: {', '.join(names)}{more}")
    return found.row(0, named=True)


# --- the walk --------------------------------------------------------------------------------------------------------


def story(loop: Mapping[str, Any], steps: pl.DataFrame, sessions: pl.DataFrame) -> pl.DataFrame:
    """The steps of a run that have to do with one of its loops, in order, with the part that each plays (`ROLES`).

    `loop`: a row of `tables.LOOPS`, `steps` and `sessions` in the form of the lake. Places of results and lines are
    null here.
    """
    events = counted_events(steps, sessions).filter(
        (pl.col("run_id") == loop["run_id"])
        & (pl.col("signature") == loop["signature"])
        & (pl.col("is_enrolled") == loop["is_enrolled"])
        & (pl.col("step") <= loop["detected_step"])
    )
    run = steps.filter(pl.col("run_id") == loop["run_id"]).sort("step")
    rows = [*_before(loop, run, events), *_after(loop, run)]
    return pl.DataFrame([{name: row.get(name) for name in ROWS} for row in rows], schema=ROWS, orient="row")


def _before(loop: Mapping[str, Any], run: pl.DataFrame, events: pl.DataFrame) -> Iterator[dict[str, Any]]:
    counted = {step: number for number, step in enumerate(events.sort("step")["step"].to_list(), 1)}
    first = min(counted, default=0)
    targets: set[str] = set()
    own = run.filter(pl.col("step") == loop["detected_step"])["action"].first()
    for step in run.filter((pl.col("step") >= first) & (pl.col("step") <= loop["detected_step"])).iter_rows(named=True):
        if step["step"] in counted:
            targets.add(step["target"])
            yield step | {"role": "event", "count": counted[step["step"]], "count_targets": len(targets)}
        elif _is_attempt(step) and step["outcome"] == "success" and step["action"] == own:
            yield step | {"role": "between"}


def _after(loop: Mapping[str, Any], run: pl.DataFrame) -> list[dict[str, Any]]:
    judge = _judge(loop, run)
    at = run.filter(pl.col("step") == loop["detected_step"]).row(0, named=True)
    is_late, count, rows = False, 0, []
    for step in run.iter_rows(named=True):
        fails_here = any(target == step["target"] and action != step["action"] for action, target in judge.failing)
        before = judge.outcome_final
        effect = judge.feed(*_fed(step))
        if step["step"] <= loop["detected_step"]:
            continue
        late = loop["mature_at"] is not None and step["ts"] is not None and step["ts"] > loop["mature_at"]
        is_late = is_late or late
        is_own = step["decision"] == at["decision"]
        if effect is not None:
            role = "own_turn" if is_own else effect
        elif _is_attempt(step) and step["outcome"] == "success" and fails_here and not is_own:
            role = "sidestep"
        elif _is_attempt(step) and step["tool"] == loop["tool"]:
            role = "other"
        else:
            continue
        count += role == "failure"
        is_deciding = judge.outcome_final != before and not is_late
        rows.append(
            step
            | {
                "role": role,
                "count": count if role == "failure" else None,
                "is_late": is_late,
                "is_deciding": None if loop["outcome"] == "pending" else is_deciding,
            }
        )
    if loop["outcome"] == "pending":
        return rows
    # What comes after the last decision says nothing about this loop, but for failures after a break.
    ends = [row["step"] for row in rows if row["is_deciding"]]
    if not ends:
        return rows
    relapses = (
        [row for row in rows if row["step"] > ends[0] and row["role"] == "failure"] if loop["is_relapsed"] else []
    )
    return [row for row in rows if row["step"] <= ends[0]] + [
        row | {"role": "relapse", "count": number} for number, row in enumerate(relapses[: rule.FAILURES_TO_RECUR], 1)
    ]


def _is_attempt(step: Mapping[str, Any]) -> bool:
    return step["kind"] in rule.ATTEMPTS and step["actor"] == "agent" and step["outcome"] != "vetoed"


def _judge(loop: Mapping[str, Any], run: pl.DataFrame) -> rule.Classifier:
    """The ruler's own classifier for a loop, with the maturity that the loop was judged by."""
    decision = run.filter(pl.col("step") == loop["detected_step"])["decision"].first()
    at, mature = _us(loop["detected_at"]), _us(loop["mature_at"])
    maturity = 0 if at is None or mature is None else mature - at
    return rule.Classifier(loop["signature"], loop["detected_step"], decision, at, maturity)


def _fed(step: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("kind", "actor", "action", "target", "outcome", "signature")
    return (step["step"], step["decision"], _us(step["ts"]), *(step[name] for name in names))


def _is_reproduced(loop: Mapping[str, Any], run: pl.DataFrame, rows: pl.DataFrame) -> bool:
    """The ruler's detector and classifier, fed with these steps, say what the lake says."""
    detector, fired = rule.Detector(), None
    events = rows.filter(pl.col("role") == "event").select("step", "kind", "target")
    for step, kind, target in events.iter_rows():
        if detector.feed(kind, "agent", "failure", loop["signature"], target) == loop["rule"]:
            fired = step
    judge = _judge(loop, run)
    for row in run.iter_rows(named=True):
        judge.feed(*_fed(row))
    said, found = [fired], [loop["detected_step"]]
    if loop["outcome"] != "pending":
        said += [judge.outcome, judge.outcome_step, judge.outcome_final]
        found += [loop["outcome"], loop["outcome_step"], loop["outcome_final"]]
    return said == found


# --- places and lines ------------------------------------------------------------------------------------------------


def _agent(loop: Mapping[str, Any]) -> str | None:
    name = loop["run_id"].removeprefix(loop["session_id"])
    return name[1:] if name != loop["run_id"] and name.startswith("/") else None


def _placed(
    rows: pl.DataFrame, records: pl.DataFrame, sources: list[dict[str, Any]], agent: str | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows with the places of their results, and the records of their calls and results.

    Of copies of a result the one is taken that `steps.py` takes: from the best source, and in it the last, of a spool
    the first.
    """
    files = {row["source_id"]: row for row in sources}
    mine = records.filter(
        pl.col("type").is_in(["call", "result"])
        & pl.col("agent").eq_missing(pl.lit(agent, dtype=STR))
        & pl.col("call_id").is_in(rows["call_id"].drop_nulls().implode())
        & pl.col("source_id").is_in(list(files))
    )
    by_call: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in mine.iter_rows(named=True):
        by_call.setdefault((record["type"], record["call_id"]), []).append(record)
    kept: list[dict[str, Any]] = []
    places: list[tuple[str | None, int | None]] = []
    for row in rows.iter_rows(named=True):
        calls = [
            record
            for record in by_call.get(("call", row["call_id"]), [])
            if (files[record["source_id"]]["source_file"], record["source_line"])
            == (row["source_file"], row["source_line"])
        ]
        results = sorted(by_call.get(("result", row["call_id"]), []), key=lambda record: _standing(record, files))
        kept += calls[:1] + results[:1]
        best = results[0] if results else None
        places.append((files[best["source_id"]]["source_file"], best["source_line"]) if best else (None, None))
    placed = rows.with_columns(
        pl.Series("result_file", [place[0] for place in places], dtype=STR),
        pl.Series("result_line", [place[1] for place in places], dtype=INT),
    )
    return placed, pl.DataFrame(kept, schema=records.schema, orient="row")


def _standing(record: Mapping[str, Any], files: Mapping[int, Mapping[str, Any]]) -> tuple[Any, ...]:
    file = files[record["source_id"]]
    line, ordinal = record["source_line"], record["ordinal"]
    place = (line, ordinal) if record["rank"] == SPOOL_RANK else (-line, -ordinal)
    order = (file["order_us"] is None, file["order_us"] or 0, file["order_sha256"], file["source_file"])
    return (record["rank"], file["is_superseded"], *order, record["source_id"], *place)


def _with_originals(rows: pl.DataFrame, records: pl.DataFrame, found: list[originals.Original]) -> pl.DataFrame:
    by_call = dict(zip(records.select("type", "call_id").iter_rows(), found, strict=True))
    columns: dict[str, list[Any]] = {name: [] for name in _RAW}
    for call_id in rows["call_id"].to_list():
        call, result = by_call.get(("call", call_id)), by_call.get(("result", call_id))
        columns["source_state"].append(call and call.state)
        columns["source_text"].append(call and call.text)
        columns["result_state"].append(result and result.state)
        columns["result_text"].append(result and result.text)
        columns["salient_line"].append(result and result.salient)
        columns["masks"].append(None if result is None or result.masks is None else list(result.masks))
    return rows.with_columns([pl.Series(name, values, dtype=ROWS[name]) for name, values in columns.items()])


# --- the parts -------------------------------------------------------------------------------------------------------


def _told(frame: pl.DataFrame, loop: Mapping[str, Any], as_of_us: int, order: str) -> list[dict[str, Any]]:
    """What the log itself recorded about this loop up to the as-of."""
    if loop["rule"] != rule.STRATEGY_LOOP:
        return []
    known = frame.filter(
        (pl.col("run_id") == loop["run_id"])
        & (pl.col("signature") == loop["signature"])
        & (pl.col("ts").dt.epoch("us") <= as_of_us).fill_null(True)
    )
    order = {"detection": "detection", "deliverie": "delivery"}[order]
    return known.sort(order).drop("session_id", "run_id", "signature", order).to_dicts()


def _failure(loop: Mapping[str, Any], rows: pl.DataFrame, records: pl.DataFrame) -> dict[str, Any]:
    message, code = loop["message"] or "", loop["error_code"]
    events = rows.filter(pl.col("role") == "event")
    stated = records.filter(pl.col("is_signature_log").fill_null(False) & (pl.col("signature") == loop["signature"]))
    is_whole = len(message) < rule.MESSAGE_SHOWN
    said_by = "unknown"
    if stated.height:
        said_by = "log"
    elif is_whole and rule.signature(loop["tool"], code or "", message) == loop["signature"]:
        said_by = "class"
    read = [masks for masks in events["masks"].to_list() if masks is not None]
    seen = [name for name in failures.MASKS if f"<{name}>" in message]
    return {
        "signature": loop["signature"],
        "tool": loop["tool"],
        "error_code": code,
        "message": loop["message"],
        "is_message_whole": is_whole,
        "signature_from": said_by,
        "masks": [n for n in failures.MASKS if any(n in masks for masks in read)] if read else seen,
        "masks_from": "line" if read else "message",
        "is_infra": loop["is_infra"],
    }


def _why(loop: Mapping[str, Any], rows: pl.DataFrame, session: Mapping[str, Any]) -> dict[str, Any]:
    events = rows.filter(pl.col("role") == "event")
    earlier = events.filter(pl.col("step") < loop["detected_step"]).tail(1)
    is_repeat = loop["rule"] == rule.REPEAT
    start = "enrolment" if loop["is_enrolled"] else "before_enrolment" if session["is_enrolled"] else "run"
    return {
        "events_needed": rule.EVENTS_TO_DETECT,
        "targets_needed": 1 if is_repeat else rule.TARGETS_TO_DETECT,
        "count_events": loop["count_events"],
        "count_targets": loop["count_targets"],
        "targets": events["target"].unique(maintain_order=True).to_list(),
        "count_decisions": loop["count_decisions"],
        "span_steps": loop["span_steps"],
        "is_interrupted": loop["is_interrupted"],
        "failures_before": loop["failures_before"],
        "step_before": earlier["step"].first(),
        "count_events_before": earlier["count"].first() or 0,
        "count_targets_before": earlier["count_targets"].first() or 0,
        "counted_from": start,
        "enrolled_at": session["enrolled_at"] if session["is_enrolled"] else None,
        "enrolled_file": session["enrolled_file"] if session["is_enrolled"] else None,
        "enrolled_line": session["enrolled_line"] if session["is_enrolled"] else None,
        "is_late_enrolment": session["is_late_enrolment"],
    }


def _arm(
    loop: Mapping[str, Any], settings: Settings, session: Mapping[str, Any], detections: list[dict[str, Any]]
) -> dict[str, Any]:
    has_arm = loop["rule"] == rule.STRATEGY_LOOP
    known = settings.salts.get(loop["salt_id"] or "")
    salt = ("" if not loop["is_enrolled"] else known[0] if known else None) if has_arm else None
    digits = None if salt is None else rule.arm_digits(salt, loop["run_id"], loop["signature"])
    # The salt is a secret while the experiment runs, so the key is shown without it.
    key = f"{loop['run_id']}|{loop['signature']}" if salt == "" else f"<salt>|{loop['run_id']}|{loop['signature']}"
    logged = loop["arm_logged"]
    return {
        "arm": loop["arm"],
        "arm_bp": loop["arm_bp"],
        "share_bp": loop["share_bp"],
        "key": key if has_arm else None,
        "digits": digits,
        "is_salt_known": None if not has_arm else salt is not None,
        "salt_id": loop["salt_id"],
        "experiment": loop["experiment"],
        "epoch": loop["epoch"],
        "is_enrolled": loop["is_enrolled"],
        "arm_logged": logged,
        "is_as_logged": None if logged is None or loop["arm_bp"] is None else logged == loop["arm"],
        "records": detections,
    }


def _outcome(loop: Mapping[str, Any], rows: pl.DataFrame, steps: pl.DataFrame, is_reproduced: bool) -> dict[str, Any]:
    word = loop["outcome"]
    decided = {"broke": "success", "recurred": "third_failure"}.get(word)
    deciding = rows.filter(pl.col("is_deciding").fill_null(False)).head(1)
    since = None
    if word == "broke" and deciding.height:
        since = _failing_since(loop, steps, deciding.row(0, named=True))
    after = rows.filter(pl.col("role").is_in(["failure", "success"]))
    return {
        "outcome": word,
        "decided_by": decided,
        **{name: loop[name] for name in _WHEN},
        "action": deciding["action"].first(),
        "target": deciding["target"].first(),
        "failing_since_step": since,
        "count_failures_after": after.filter((pl.col("role") == "failure") & ~pl.col("is_late")).height,
        "failures_to_recur": rule.FAILURES_TO_RECUR,
        "mature_at": loop["mature_at"],
        "last_step": loop["last_step"],
        **{name: loop[name] for name in query.DECIDED if name not in _WHEN},
        "is_reproduced": is_reproduced,
    }


def _failing_since(loop: Mapping[str, Any], steps: pl.DataFrame, deciding: Mapping[str, Any]) -> int | None:
    """The first failure of the deciding pair since it last succeeded."""
    pair = steps.filter(
        is_attempt()
        & (pl.col("action") == deciding["action"])
        & (pl.col("target") == deciding["target"])
        & (pl.col("step") < deciding["step"])
    )
    healed = pair.filter(pl.col("outcome") == "success")["step"].max()
    failed = pair.filter((pl.col("outcome") == "failure") & (pl.col("signature") == loop["signature"]))
    since = failed.filter(pl.col("step") > (-1 if healed is None else healed))["step"].min()
    return since if isinstance(since, int) else None


def _us(time: datetime | None) -> int | None:
    return None if time is None else pl.Series([time]).dt.epoch("us").item()


# --- words -----------------------------------------------------------------------------------------------------------


def _parts(told: Explanation) -> list[tuple[str, list[str]]]:
    """Title, then the parts as (name, lines); plain text, log text as it stands."""
    loop, outcome = told.loop, told.outcome
    who = ", ".join(
        f"{name} {loop[name]}" for name in ("harness", "model", "project", "group") if loop[name] is not None
    )
    title = (
        f"Loop {loop['loop_id']}: {loop['rule']}, {loop['tool']}, {outcome['outcome']}. Detected at step "
        f"{loop['detected_step']} of run {loop['run_id']}, {_time(loop['detected_at'])}"
    )
    parts: list[tuple[str, list[str]]] = [(f"{title} ({who})." if who else f"{title}.", [])]
    early = told.rows.filter(pl.col("role").is_in(["event", "between"]))
    late = told.rows.filter(~pl.col("role").is_in(["event", "between"]))
    parts.append(("Class", _class_lines(told)))
    parts.append(("Events up to the detection", _row_lines(early, told)))
    parts.append((f"Why it fired at step {loop['detected_step']}", _why_lines(told)))
    parts.append(("Arm", _arm_lines(told)))
    if told.loop["rule"] == rule.STRATEGY_LOOP:
        parts.append(("Delivery", _delivery_lines(told)))
    parts.append(("After the detection", _row_lines(late, told) or ["Nothing of this class or tool came after."]))
    parts.append(("Outcome", _outcome_lines(told)))
    if told.warnings:
        parts.append(("Warnings", [f"! {warning}" for warning in told.warnings]))
    return parts


def _indented(lines: Iterable[str], width: int) -> list[str]:
    return ["  " + part for line in lines for part in wrap(line, max(width - 2, 38), "    ").split("\n")]


def _class_lines(told: Explanation) -> list[str]:
    seen = told.failure
    code = f", error code {seen['error_code']}" if seen["error_code"] else ""
    cut = "" if seen["is_message_whole"] else f" (its first {rule.MESSAGE_SHOWN} characters)"
    origin = {
        "class": "the first 16 hex digits of SHA-256 over tool, code and message",
        "log": "stated by the log itself",
        "unknown": "hashes the whole message, of which the lake keeps a part",
    }[seen["signature_from"]]
    masks = ", ".join(seen["masks"]) or "none"
    how = (
        "read off the lines themselves, in the rule's order"
        if seen["masks_from"] == "line"
        else "as they stand in the message; the lines were not read, see --raw"
    )
    lines = [
        f"tool {seen['tool']}{code}, message{cut}: {seen['message'] or '(empty)'}",
        f"signature {seen['signature']}: {origin}",
        f"masks that made it: {masks} ({how})",
    ]
    if seen["is_infra"]:
        lines.append("an infrastructure failure: rate limit, server error, connection, quota or time-out")
    return lines


def _row_lines(rows: pl.DataFrame, told: Explanation) -> list[str]:
    lines: list[str] = []
    shown = rows
    skipped = 0
    if rows.height > 2 * LINES_SHOWN:
        skipped = rows.height - 2 * LINES_SHOWN
        shown = pl.concat([rows.head(LINES_SHOWN), rows.tail(LINES_SHOWN)])
    for number, row in enumerate(shown.iter_rows(named=True)):
        if skipped and number == LINES_SHOWN:
            lines.append(f"… {skipped} more (-f json has every row) …")
        lines.append(_row_line(row))
        if told.is_raw:
            lines += _raw_lines(row)
    return lines


_LABELS = {
    "event": "event {count}",
    "between": "success between",
    "failure": "failure {count}",
    "success": "success on a failing target",
    "own_turn": "same turn",
    "sidestep": "another action succeeded there",
    "other": "another attempt",
    "relapse": "relapse {count}",
}


def _row_line(row: Mapping[str, Any]) -> str:
    label = _LABELS[row["role"]].format(count=row["count"])
    reason = f" ({row['outcome_reason']})" if row["outcome_reason"] else ""
    target = f"on {row['target']}" if row["target"] else "on no target"
    turn = "" if row["decision"] is None else f", turn {row['decision']}"
    place = _place(row["source_file"], row["source_line"])
    result = _place(row["result_file"], row["result_line"])
    if row["result_line"] is not None and result != place:
        is_near = row["result_file"] == row["source_file"]
        place += f", result {'at line ' + str(row['result_line']) if is_near else result}"
    late = ", after the maturity" if row["is_late"] else ""
    decides = " <- decides" if row["is_deciding"] else ""
    return (
        f"{label}: step {row['step']}{turn}, {_time(row['ts'])}{late}: {row['action']} ({row['kind']}) {target}, "
        f"{row['outcome']}{reason} [{place}]{decides}"
    )


def _raw_lines(row: Mapping[str, Any]) -> list[str]:
    told = [
        ("call", row["source_state"], row["source_text"], (row["source_file"], row["source_line"])),
        ("result", row["result_state"], row["result_text"], (row["result_file"], row["result_line"])),
    ]
    if told[0][1:] == told[1][1:]:
        told = [("line", *told[0][1:])]
    lines = [
        f"{name}: {text if state == 'shown' else '(' + originals.STATES[state] + ')'}"
        for name, state, text, _ in told
        if state is not None
    ]
    if row["salient_line"] is not None:
        masks = ", ".join(row["masks"] or ()) or "none"
        lines.append(f"line of the class: {row['salient_line']} (masks: {masks})")
    return lines


def _why_lines(told: Explanation) -> list[str]:
    why, loop = told.why, told.loop
    named = ", ".join(target or "(no target)" for target in why["targets"][:CANDIDATES_SHOWN])
    turns = "1 turn" if why["count_decisions"] == 1 else f"{why['count_decisions']} turns"
    if loop["rule"] == rule.REPEAT:
        lines = [
            f"{why['count_events']} events of {why['events_needed']}, all on one target ({named}), from {turns}: a "
            "retry that does not help."
        ]
    else:
        lines = [
            f"{why['count_events']} events (at least {why['events_needed']}) on {why['count_targets']} distinct "
            f"targets (at least {why['targets_needed']}): {named}; from {turns}, the first to the third over "
            f"{why['span_steps']} steps."
        ]
    if why["step_before"] is not None:
        lines.append(
            f"One event earlier, at step {why['step_before']}, there were {why['count_events_before']} on "
            f"{why['count_targets_before']}: not enough."
        )
    start = {
        "run": "the run's beginning",
        "enrolment": f"the enrolment record at {_time(why['enrolled_at'])} "
        f"[{_place(why['enrolled_file'], why['enrolled_line'])}]",
        "before_enrolment": "the run's beginning, up to the enrolment record: it is replayed only",
    }[why["counted_from"]]
    lines.append(f"Counted from {start}; there is no window, and what came later plays no part.")
    if why["is_late_enrolment"]:
        lines.append("The session was named by an experiment only at or after a detection, so it is not enrolled.")
    between = "succeeded in between: an interrupted loop" if why["is_interrupted"] else "never succeeded in between"
    lines.append(f"The action {between}. Failed attempts of the run before: {why['failures_before']}.")
    return lines


def _arm_lines(told: Explanation) -> list[str]:
    arm = told.arm
    if arm["key"] is None:
        return ["A repeat on one target has no arm: nothing is delivered for it, and it enters no lift."]
    if arm["is_enrolled"]:
        lines = [f"experiment {arm['experiment'] or '(unnamed)'}, salt {arm['salt_id']}, epoch {arm['epoch'] or '-'}"]
    else:
        lines = ["in no experiment: an A/A replay with the empty salt and an even split"]
    if arm["digits"] is None:
        lines.append(f"arm as logged: {arm['arm'] or 'none'}. The salt is not configured, so no one can recompute it.")
    else:
        side = "below" if arm["arm"] == "treated" else "not below"
        lines.append(
            f'SHA-256 of "{arm["key"]}" begins with {arm["digits"]}; that number modulo 10,000 is {arm["arm_bp"]}, '
            f"{side} the treated share of {arm['share_bp']}: {arm['arm']}"
        )
    if arm["arm_logged"] is None:
        lines.append("no arm is logged")
    elif arm["is_as_logged"] is not None:
        lines.append(f"logged arm: {arm['arm_logged']}, {'the same' if arm['is_as_logged'] else 'ANOTHER ONE'}")
    for record in arm["records"]:
        points = "" if record["arm_bp"] is None else f" at {record['arm_bp']} bp"
        lines.append(
            f"the log's own detection: {record['arm'] or 'no arm'}{points}, {_time(record['ts'])} "
            f"[{_place(record['source_file'], record['source_line'])}]"
        )
    return lines


def _delivery_lines(told: Explanation) -> list[str]:
    lines = []
    for record in told.delivery["records"]:
        word = {True: "delivered", False: "not delivered", None: "not said whether delivered"}[record["is_delivered"]]
        tier = "" if record["tier"] is None else f", tier {record['tier']}"
        reason = "" if record["reason"] is None else f", reason {record['reason']}"
        lines.append(
            f"{word}, arm {record['arm'] or '-'}{tier}{reason}, {_time(record['ts'])} "
            f"[{_place(record['source_file'], record['source_line'])}]"
        )
    return lines or ["no record of a delivery"]


def _outcome_lines(told: Explanation) -> list[str]:
    outcome = told.outcome
    mature = outcome["mature_at"]
    until = "to the end of the run, as the detection has no time" if mature is None else f"up to {_time(mature)}"
    if outcome["outcome"] == "pending":
        return [f"pending: as of {iso(told.as_of_us)} the time {until} is not over, and nothing is decided before."]
    lines = []
    if outcome["decided_by"] is None:
        lines.append(
            f"unresolved: {until} there was neither a success where the class was failing nor a third failure "
            f"({outcome['count_failures_after']} of {outcome['failures_to_recur']})."
        )
    else:
        what = (
            f"{outcome['action']} succeeded on {outcome['target'] or '(no target)'}, where it was failing since step "
            f"{outcome['failing_since_step']}"
            if outcome["outcome"] == "broke"
            else f"the {_ordinal(outcome['failures_to_recur'])} failure of the class after the detection"
        )
        turns = outcome["decisions_to_outcome"]
        lines.append(
            f"{outcome['outcome']} at step {outcome['outcome_step']}, {_time(outcome['outcome_at'])}: {what}; "
            f"{outcome['steps_to_outcome']} steps{'' if turns is None else f' and {turns} turns'} after the detection. "
            f"Events count {until}."
        )
    within = ", ".join(f"{outcome[f'outcome_{n}']} in {n}" for n in rule.HORIZONS)
    lines.append(f"By attempts, whatever the time: {within}; by all events known now: {outcome['outcome_final']}.")
    if outcome["is_relapsed"]:
        lines.append("Relapsed: the class failed three more times after the break.")
    if outcome["is_sidestepped"]:
        lines.append("Sidestepped: another action succeeded on a target that was failing.")
    if outcome["tokens_wasted"] is not None:
        micros = outcome["cost_wasted_micros"]
        cost = "no price known" if micros is None else f"{micros / 1_000_000:.4f} dollars"
        lines.append(f"From the detection on it took {outcome['tokens_wasted']} tokens, {cost}.")
    return lines


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def _time(time: datetime | None) -> str:
    return "no time" if time is None else str(plain(time))


def _place(file: str | None, line: int | None) -> str:
    return f"{safe_text(file or '?')}:{line}"
