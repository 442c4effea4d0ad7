"""The door for log formats: what a format is given, and the one way in which it may hand facts on.

A format is one file: a `Format` that recognises a file by its content and a `Reader` that walks its records. A reader
never sees the lake and never keeps text: it calls `Emit`, and `Emit` asks the ruler (`rule.py`) for kind, target and
class and lets only those go on, so that privacy and the meaning of a step are decided in one place for all formats.
Formats are found by the entry-point group `loopstats.formats`; a stranger's package can add one without touching
another.

Times may be given as ISO text (with or without zone: without is UTC), epoch seconds, milliseconds, microseconds or
nanoseconds (told apart by size) or None; they are never invented.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.metadata import entry_points
from typing import Any, ClassVar

from loopstats import rule
from loopstats.answers import as_bool as as_bool
from loopstats.answers import as_dict as as_dict
from loopstats.answers import as_int as as_int
from loopstats.answers import as_list as as_list
from loopstats.answers import as_str as as_str
from loopstats.answers import canonical_id as canonical_id
from loopstats.answers import read_answer
from loopstats.answers import text_of as text_of
from loopstats.errors import Reject, UsageError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
EPOCH_WITH_FRACTION = re.compile(r"[0-9]{1,24}\.[0-9]{1,24}", re.ASCII)
MEMO_SIZE = 4096
MEMO_TEXT = 256
FARTHEST_US = 250_000_000_000_000_000  # so far that a maturity can still be added to it

TRANSCRIPT, SPOOL, EXPORT = 0, 1, 2


class Head:
    """What a format may look at to recognise a file: the name, the first bytes and the first records.

    `text` is the start of the (decompressed) content; `records` the JSON objects among the first 20 lines; `document`
    the whole file parsed as one JSON value, or None where it is not one or the file is JSON Lines.
    """

    def __init__(
        self, name: str, text: str, records: list[dict[str, Any]], document: Any = None, is_zip: bool = False
    ) -> None:
        self.name = name
        self.text = text
        self.records = records
        self.document = document
        self.is_zip = is_zip


class Source:
    """The file being read: `path` to look up companions (never for an identity), `name` its last part."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = path.replace("\\", "/").rsplit("/", 1)[-1]


class Reader:
    """Walks the records of one source. State that later lines need lives in `self.state`, plain JSON, and is small."""

    def __init__(self, source: Source, state: dict[str, Any] | None = None) -> None:
        self.source = source
        self.state: dict[str, Any] = state or {}

    def read(self, record: dict[str, Any], emit: Emit) -> None:
        """Hand on the facts of one JSON Lines record; raise `Reject` where it cannot be used."""
        raise NotImplementedError

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on the facts of a whole container; call `emit.at(n)` before each of its records, from 1."""
        raise NotImplementedError


class Format:
    """One agent's log format. Subclass, set the class variables, and name it in the entry-point group.

    `unit`: `line` (JSON Lines, read on from where the last run stopped) or `container` (read whole when it changed).
    `rank`: TRANSCRIPT, SPOOL or EXPORT; of two sources of one call the lower wins.
    `needs_chain`: the records have no ids of their own, so that `emit.chain` (position-aware) must stand in.
    """

    name: ClassVar[str]
    unit: ClassVar[str] = "line"
    rank: ClassVar[int] = TRANSCRIPT
    is_experimental: ClassVar[bool] = False
    needs_chain: ClassVar[bool] = False

    def matches(self, head: Head) -> int:
        """How surely this is the format: 0 not at all, 100 without doubt. Decide by content, not by name."""
        raise NotImplementedError

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of `source`, going on from `state`."""
        raise NotImplementedError

    def load(self, data: bytes) -> Any:
        """Container formats that are not one JSON value (archives, Markdown) parse the bytes here."""
        raise Reject("not_json")


def time_us(value: Any) -> int | None:
    """Microseconds since 1970 in UTC, or None: ISO text, epoch numbers of any unit, `[seconds, nanoseconds]`."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _text_us(value) if len(value) < MEMO_TEXT else None
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, int) for part in value):
        return _in_range(value[0] * 1_000_000 + value[1] // 1000)
    if isinstance(value, (int, float)):
        if value != value or value in (float("inf"), float("-inf")) or value <= 0:
            return None
        for limit, factor in ((1e11, 1_000_000), (1e14, 1_000), (1e17, 1)):
            if value < limit:
                return _in_range(round(value * factor))
        return _in_range(int(value) // 1000)
    return None


@lru_cache(MEMO_SIZE)
def _text_us(text: str) -> int | None:
    """Several records of a line have one time."""
    stripped = text.strip()
    is_date = stripped[4:5] == "-" and stripped[:4].isdecimal()
    if not is_date and stripped.removeprefix("-").isdecimal() and stripped.isascii():
        return time_us(int(stripped)) if len(stripped) < 25 else None
    if EPOCH_WITH_FRACTION.fullmatch(stripped):
        return time_us(float(stripped))
    try:
        parsed = datetime.fromisoformat(stripped)
    except ValueError:
        return None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    try:
        return _in_range((parsed - EPOCH) // MICROSECOND)
    except OverflowError:
        return None


def _in_range(us: int) -> int | None:
    return us if 0 < us < FARTHEST_US else None


@lru_cache(MEMO_SIZE)
def is_long_id(value: str | None) -> bool:
    """The id is long and random enough to be the same record in another session, not a counter that starts anew.

    At least 20 characters, without `:` or `.`, and between `_` and `-` one part of at least 12 that holds a digit. A
    tool's name with a counter is refused: taking two such calls for one would lose a step.
    """
    if not value or len(value) < 20 or ":" in value or "." in value:
        return False
    for part in value.replace("-", "_").split("_"):
        if len(part) >= 12 and not part.isalpha() and any(map(str.isdigit, part)):
            return True
    return False


def _uid(parts: Iterable[str | None]) -> str:
    joined = "\x1f".join(["\x00" if part is None else part for part in parts])
    return hashlib.sha256(joined.encode("utf-8", "replace")).hexdigest()[:32]


class Emit:
    """Collects the facts of a source. All texts that come in are read by the ruler and dropped here.

    Rows are tuples in the order of `tables.RECORD_TYPES[type]`. `pending` (tool and kind of the calls that wait for a
    result) goes on with the reader's state when a file grows.
    """

    def __init__(
        self,
        fmt: Format,
        source_id: int,
        pending: dict[str, list[Any]] | None = None,
        tool_rows: dict[str, str] | None = None,
    ) -> None:
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        self.nothing_types: dict[str, int] = {}
        self.fold_reasons: dict[str, int] = {}
        self.pending: dict[str, list[Any]] = pending or {}
        self.line = 0
        self.chain = ""
        self._format = fmt
        self._source_id = source_id
        self._tool_rows = tool_rows or {}
        self._ordinal = 0
        self._journal: list[str] = []
        self._labels: dict[str, str] = {}
        self._noted: tuple[str, str] | None = None
        self._whose: tuple[str, str | None, str, str | None] = ("", None, "", None)
        self.lines_used = 0
        self.rejects: list[tuple[int, str]] = []
        self.first_ts: int | None = None
        self.place = ""

    def stand(self, number: int) -> None:
        """This container is file `number` of its session, for a log that numbers its files: no time moves it."""
        self.place = f"{number:020d}:"

    def at(self, line: int) -> None:
        """Begin record number `line` (1-based); what was emitted for the one before is kept."""
        self._settle()
        self.line = line

    def _settle(self) -> None:
        if self._journal:
            self.lines_used += 1
        elif self._noted:
            counts = self.fold_reasons if self._noted[0] == "fold" else self.nothing_types
            counts[self._noted[1]] = counts.get(self._noted[1], 0) + 1
        elif self.line:
            self.nothing_types["-"] = self.nothing_types.get("-", 0) + 1
        self._journal = []
        self._noted = None
        self._ordinal = 0
        self.line = 0

    def close(self) -> None:
        """End the last record."""
        self._settle()

    def undo(self) -> None:
        """Take back what the current record has emitted so far, because it is rejected."""
        for kind in reversed(self._journal):
            self.rows[kind].pop()
        self._journal = []
        self._noted = None
        self._ordinal = 0
        self.line = 0

    def reject(self, reason: str) -> None:
        """The current record of a container cannot be used (for lines: raise `Reject`)."""
        line = self.line
        self.undo()
        self.rejects.append((line, reason))

    def nothing(self, record_type: str) -> None:
        """The current record carries no fact; count it under its type (at most 80 characters are kept)."""
        label = self._labels.get(record_type)
        if label is None:
            if len(self._labels) > 1024:
                self._labels.clear()
            label = self._labels[record_type] = rule.safe_label(record_type)
        self._noted = ("nothing", label)

    def fold(self, reason: str = "repeat") -> None:
        """The current record is a copy that the reader itself recognises (a count that is sent again)."""
        self._noted = ("fold", reason)

    def _add(
        self,
        kind: str,
        session: str,
        agent: str | None,
        ts: Any,
        identity: str | None,
        key: tuple[str | None, ...],
        values: tuple[Any, ...],
        parent_agent: str | None = None,
    ) -> None:
        if not session:
            raise Reject("no_session")
        session, agent = self._safe(session, agent)
        parent_agent = None if parent_agent is None else rule.safe_id(parent_agent)
        us = _text_us(ts) if ts.__class__ is str and len(ts) < MEMO_TEXT else time_us(ts)
        if us is not None and self.first_ts is None:
            self.first_ts = us
        uid = _uid((kind, identity) if identity is not None else (kind, session, agent, *key))
        row = (
            kind,
            session,
            agent,
            parent_agent,
            uid,
            identity is not None,
            us,
            self._source_id,
            self.line,
            self._ordinal,
            self._format.rank,
            self._format.name,
            *values,
        )
        for value in row:
            if value.__class__ is str and not value.isascii():
                row = tuple(_storable(value) for value in row)
                break
        rows = self.rows.get(kind)
        if rows is None:
            rows = self.rows[kind] = []
        rows.append(row)
        self._journal.append(kind)
        self._ordinal += 1

    def _safe(self, session: str, agent: str | None) -> tuple[str, str | None]:
        """Both ids as the lake keeps them; record after record is of the same."""
        if (session, agent) != self._whose[:2]:
            self._whose = (session, agent, rule.safe_id(session), None if agent is None else rule.safe_id(agent))
        return self._whose[2:]

    def _pending_key(self, session: str, agent: str | None, call_id: str) -> str:
        session, agent = self._safe(session, agent)
        return f"{session}\x1f{agent or ''}\x1f{call_id}"

    def call(
        self,
        *,
        session: str,
        call_id: str,
        tool: str,
        arguments: Any,
        ts: Any = None,
        agent: str | None = None,
        parent_agent: str | None = None,
        decision: str | None = None,
        cwd: str | None = None,
        model: str | None = None,
        actor: str = "agent",
        identity: str | None = None,
        kind: str | None = None,
        action: str | None = None,
        target: str | None = None,
        targets: list[str] | None = None,
        fingerprint: str | None = None,
        cycle: str | None = None,
        state_hash: str | None = None,
    ) -> None:
        """A tool call as the agent asked for it.

        `call_id` is unique in (session, agent). `decision` is the log's id of the model turn (None: a turn of its
        own). `identity` is an id of this record that holds across sessions (a long random call id, a record uuid), so
        that a history copied by a fork is recognised; None where the log has none. `kind`, `action`, `target`,
        `targets`, `fingerprint`, `cycle` and `state_hash` are given only where the log itself states them.
        """
        tool, call_id = rule.mask_secrets(tool), rule.safe_id(call_id)
        facts = rule.read_call(tool, arguments, cwd, kind=kind, action=action, target=target, rows=self._tool_rows)
        if len(self.pending) > 4096:
            self.pending.clear()
        self.pending[self._pending_key(session, agent, call_id)] = [tool, facts.kind, facts.is_exit_masked]
        masked = [_storable(rule.mask_secrets(text)) for text in (targets or facts.targets)]
        self._add(
            "call",
            session,
            agent,
            ts,
            identity,
            (call_id,),
            (
                call_id,
                tool,
                rule.mask_secrets(facts.action),
                facts.kind,
                facts.kind_source,
                facts.kind_differs,
                rule.mask_secrets(facts.target),
                masked,
                rule.safe_hash(fingerprint) or facts.fingerprint,
                rule.mask_secrets(facts.program).lower(),
                facts.is_exit_masked,
                facts.is_piped,
                _id(decision),
                _label(cycle),
                rule.safe_hash(state_hash),
                _label(model),
                actor,
            ),
            parent_agent,
        )

    def result(
        self,
        *,
        session: str,
        call_id: str,
        text: str | None,
        ts: Any = None,
        agent: str | None = None,
        is_error: bool | None = None,
        exit_code: int | None = None,
        outcome: str | None = None,
        reason: str | None = None,
        source: str | None = None,
        is_timeout: bool = False,
        structured_code: str | None = None,
        signature: str | None = None,
        error_code: str | None = None,
        identity: str | None = None,
        is_truncated: bool | None = None,
        overflow_path: str | None = None,
        duration_ms: int | None = None,
        state_hash: str | None = None,
    ) -> None:
        """What came back for a call.

        `is_error` and `exit_code` are the log's own facts (None: it has none). `outcome` (`vetoed`, `unknown`, or any
        where the log states it) with `reason` (`user`, `permission`, `hook`, `sibling`, `interrupt`, `missing`,
        `timeout`) overrides them. `source` says where flag or outcome come from (`flag`, `exit`, `text`, `log`);
        by default it follows from what is given. `structured_code` is an HTTP status or errno beside the text.
        """
        text, call_id, signature = text or "", rule.safe_id(call_id), rule.safe_hash(signature)
        reason = reason if reason in rule.REASONS else None
        known = self.pending.pop(self._pending_key(session, agent, call_id), None)
        reading = read_answer(
            text,
            None if known is None else known[1],
            known is not None and bool(known[2]),
            is_error=is_error,
            exit_code=exit_code,
            outcome=outcome,
            is_timeout=is_timeout,
            structured_code=structured_code,
            error_code=None if error_code is None else rule.safe_label(error_code),
        )
        code, message = reading.code, reading.message
        is_signature_log = signature is not None
        if message is not None and known is not None:
            signature = signature or rule.signature(known[0], code or "", message)
            message = message[: rule.MESSAGE_SHOWN]
        if source is None:
            source = (
                "log" if outcome else "flag" if is_error is not None else "exit" if exit_code is not None else "none"
            )
        self._add(
            "result",
            session,
            agent,
            ts,
            identity,
            (call_id,),
            (
                call_id,
                is_error,
                exit_code,
                outcome,
                reason,
                source,
                is_timeout,
                reading.is_summary_failed,
                reading.has_error_text,
                code,
                message,
                signature,
                is_signature_log,
                rule.result_hash(text),
                is_truncated,
                rule.mask_secrets(overflow_path) if overflow_path else None,
                duration_ms,
                rule.safe_hash(state_hash),
            ),
        )

    def turn(
        self,
        *,
        session: str,
        decision: str,
        ts: Any = None,
        agent: str | None = None,
        model: str | None = None,
        tokens_input: int | None = None,
        tokens_output: int | None = None,
        tokens_cache_read: int | None = None,
        tokens_cache_write: int | None = None,
        cost_usd: float | None = None,
        identity: str | None = None,
    ) -> None:
        """The usage of one model turn; of several records of one (session, agent, decision) the last wins.

        `tokens_input` excludes cache reads and writes. `cost_usd` only where the log states it.
        """
        micros = None
        if isinstance(cost_usd, (int, float)) and not isinstance(cost_usd, bool) and 0 <= cost_usd < 1e9:
            micros = round(cost_usd * 1_000_000)
        self._add(
            "turn",
            session,
            agent,
            ts,
            identity,
            (decision,),
            (
                _id(decision),
                _label(model),
                _count(tokens_input),
                _count(tokens_output),
                _count(tokens_cache_read),
                _count(tokens_cache_write),
                micros,
            ),
        )

    def session(
        self,
        *,
        session: str,
        ts: Any = None,
        agent: str | None = None,
        parent_agent: str | None = None,
        cwd: str | None = None,
        project: str | None = None,
        harness: str | None = None,
        version: str | None = None,
        model: str | None = None,
        task: str | None = None,
        group: str | None = None,
        parent_session: str | None = None,
        experiment: str | None = None,
        salt_id: str | None = None,
        share_bp: int | None = None,
        epoch: str | None = None,
        rule_digest: str | None = None,
        identity: str | None = None,
    ) -> None:
        """Facts of the session; the first value of each key stands, the first `experiment` enrols."""
        if task is not None and len(task) > 80:
            task = hashlib.sha256(task.encode("utf-8", "replace")).hexdigest()[:16]
        labels = [_label(value) for value in (project, harness, version, model, task, group)]
        self._add(
            "session",
            session,
            agent,
            ts,
            identity,
            (str(self._source_id), str(self.line), str(self._ordinal)),
            (
                rule.mask_secrets(cwd) if cwd else None,
                *labels,
                _id(parent_session),
                _label(experiment),
                rule.safe_hash(salt_id),
                _share(share_bp),
                _label(epoch),
                rule.safe_hash(rule_digest),
            ),
            parent_agent,
        )

    def delivery(
        self,
        *,
        session: str,
        agent: str | None = None,
        ts: Any = None,
        identity: str | None = None,
        experiment: str | None = None,
        signature: str | None = None,
        arm: str | None = None,
        is_delivered: bool | None = None,
        tier: int | None = None,
        reason: str | None = None,
        text_sha256: str | None = None,
        call_id: str | None = None,
    ) -> None:
        """The log's record that an intervention was delivered or withheld."""
        self._told(
            "delivery",
            session,
            agent,
            ts,
            identity,
            (
                _label(experiment),
                rule.safe_hash(signature),
                _arm(arm),
                is_delivered,
                as_int(tier),
                _label(reason),
                rule.safe_hash(text_sha256),
                _id(call_id),
            ),
        )

    def loop(
        self,
        *,
        session: str,
        agent: str | None = None,
        ts: Any = None,
        identity: str | None = None,
        experiment: str | None = None,
        signature: str | None = None,
        rule_name: str | None = None,
        rule_digest: str | None = None,
        arm: str | None = None,
        arm_bp: int | None = None,
        share_bp: int | None = None,
        epoch: str | None = None,
        call_id: str | None = None,
    ) -> None:
        """The log's own detection of a loop."""
        self._told(
            "loop",
            session,
            agent,
            ts,
            identity,
            (
                _label(experiment),
                rule.safe_hash(signature),
                _label(rule_name),
                rule.safe_hash(rule_digest),
                _arm(arm),
                as_int(arm_bp),
                _share(share_bp),
                _label(epoch),
                _id(call_id),
            ),
        )

    def guard(
        self,
        *,
        session: str,
        name: str | None,
        event: str | None,
        agent: str | None = None,
        ts: Any = None,
        identity: str | None = None,
        tier: int | None = None,
        counter: int | None = None,
        by: str | None = None,
        ttl_s: int | None = None,
    ) -> None:
        """An event of the log's own safety system."""
        self._told(
            "guard",
            session,
            agent,
            ts,
            identity,
            (_label(name), _label(event), as_int(tier), as_int(counter), _label(by), as_int(ttl_s)),
        )

    def fact(
        self,
        *,
        session: str,
        agent: str | None = None,
        ts: Any = None,
        identity: str | None = None,
        solved: bool | None = None,
        ending: str | None = None,
        bait: str | None = None,
        expected_ending: str | None = None,
        claimed: bool | None = None,
    ) -> None:
        """An external fact about the task: a grader's verdict, the way the run ended."""
        self._told(
            "fact",
            session,
            agent,
            ts,
            identity,
            (solved, _label(ending), _label(bait), _label(expected_ending), claimed),
        )

    def _told(
        self, kind: str, session: str, agent: str | None, ts: Any, identity: str | None, values: tuple[Any, ...]
    ) -> None:
        """A record of the log about itself; without an id its place (and, without a chain, what it says) stands in."""
        place = f"{self.chain}#{self._ordinal}" if self.chain else f"{self.line}:{self._ordinal}:{values!r}"
        self._add(kind, session, agent, ts, None, (identity or place,), values)


def _storable(value: Any) -> Any:
    """Text without lone surrogates, which have no UTF-8 form (a format may have parsed JSON inside a string)."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "replace").decode()
    return value


def kept_state(value: Any) -> Any:
    """A reader's state as the ledger keeps it: a text with a known key in it is hashed, as `Emit` does with ids."""
    if isinstance(value, str):
        return rule.safe_id(value) if rule.is_known_secret(value) else value
    if isinstance(value, dict):
        return {kept_state(key): kept_state(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [kept_state(item) for item in value]
    return value


_labels: dict[str, str] = {}


def _label(value: str | None) -> str | None:
    """Few models, projects and reasons are told again and again."""
    if value is None:
        return None
    found = _labels.get(value)
    if found is None:
        found = rule.safe_label(value)
        if len(value) < MEMO_TEXT:
            if len(_labels) >= MEMO_SIZE:
                _labels.clear()
            _labels[value] = found
    return found


def _id(value: str | None) -> str | None:
    return None if value is None else rule.safe_id(value)


def _arm(value: str | None) -> str | None:
    return value if value in rule.ARMS else None


def _share(value: Any) -> int | None:
    share = as_int(value)
    return share if share is not None and 0 < share < 10_000 else None


def _count(value: Any) -> int | None:
    count = value if value.__class__ is int else as_int(value)
    return count if count is not None and 0 <= count < 10**12 else None


@cache
def formats() -> tuple[Format, ...]:
    """All installed formats, by name; the built-in ones first where two have one name."""
    found: dict[str, Format] = {}
    for point in sorted(
        entry_points(group="loopstats.formats"), key=lambda p: (not p.value.startswith("loopstats."), p.name)
    ):
        loaded = point.load()()
        if not isinstance(loaded, Format):
            raise UsageError(f"entry point {point.name} ({point.value}) is not a loopstats format; see CONTRIBUTING")
        found.setdefault(loaded.name, loaded)
    return tuple(found[name] for name in sorted(found))


def by_name(name: str) -> Format:
    """The installed format of that name; UsageError where there is none (its package was removed)."""
    for fmt in formats():
        if fmt.name == name:
            return fmt
    raise UsageError(f"no format named {name} is installed; install its package again, or rebuild the lake without it")


def recognise(head: Head, candidates: Iterable[Format] | None = None) -> Format | None:
    """The format that is surest about `head`; None where none is. Ties go to the first by name."""
    best, best_score = None, 0
    for fmt in candidates if candidates is not None else formats():
        try:
            score = int(fmt.matches(head))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
            score = 0
        if score > best_score:
            best, best_score = fmt, score
    return best


def objects(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects written one after another in `text`, pretty-printed or not; stops at the first that is none."""
    decoder = json.JSONDecoder()
    position = 0
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text):
            return
        value, position = decoder.raw_decode(text, position)
        if isinstance(value, dict):
            yield value
