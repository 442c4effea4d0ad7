"""The live side's work: read one event of an agent, keep the run's state, record, and provoke the treated.

A room of its own because it measures with `rule.py` exactly as the batch does, from what an agent tells its hooks
instead of from its log, and loads nothing but the standard library. Order is everything here: enrolment is written
before the first step, arm and exposure before the answer. Both arms do the same work and take the same time; they
differ in where the answer goes. Nothing in here may harm the agent: a fault is noted in the hook's own log and the
event is let go.

Files, all below the spool and readable for the user alone: `<agent>-<16 hex>.jsonl` is the native event log of one
session. `.hook/` is the hook's own: `log` (faults), `sessions/<16 hex>/` with `lock`, `session.json` (enrolment,
first working directory), `seen` (8 bytes an event), `ids.json` (calls that came without an id) and one
`run-<16 hex>.json` a run (the detector's counts). State that is lost, torn or out of date is read again from the
session's event log.
"""

# pathlib takes longer to load than everything that is done here
# ruff: noqa: PTH102, PTH105, PTH106, PTH108, PTH110, PTH112, PTH116, PTH117, PTH120, PTH123, PTH208

from __future__ import annotations

import json
import os
import sys
import time
from hashlib import sha256

from loopstats import answers, rule
from loopstats.answers import AFTER_BATCH, AFTER_CALL, as_dict, as_int, as_str, is_codex
from loopstats.provocations import provocation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AGENTS = ("claude-code", "codex")
MOST_BYTES = 32 << 20
PIECE = 1 << 20
PATIENCE_S = 3.0
DEADLINE_S = 9
STATE_DAYS = 30
MOST_SESSIONS = 1024
PRUNED_AT_ONCE = 64
MOST_SIGNATURES = 4096
MOST_IDS = 4096
MOST_SEEN_BYTES = 1 << 20
MOST_REREAD_BYTES = 64 << 20
TARGETS_NAMED = 4
TARGETS_TOLD = 16
LOG_BYTES = 256 << 10
SEEN = 8
CALL_ID_HEADS = ("toolu", "srvtoolu", "toolu_vrtx", "toolu_bdrk", "call", "fc")
META = {"enrolled_us": int, "experiment": str, "salt_id": str, "share_bp": int, "epoch": str}
BINARY = getattr(os, "O_BINARY", 0)
APPEND = os.O_APPEND | os.O_CREAT | BINARY | getattr(os, "O_NOFOLLOW", 0)
# An agent stamps a result before its hooks run: where no session start was seen, the enrolment must not be later.
LEAD_US = 1_000_000
DAY_S = 86_400


class Fault(Exception):
    """A fault that this program names itself; the word goes into its log, so it never holds anything of an event."""


class Terms:
    """What the hook goes by: the experiment (token or `[hook]`), the user's tool rows, the spool and its ways."""

    __slots__ = ("epoch", "experiment", "has_fsync", "rows", "salt", "salt_id", "share_bp", "spool", "texts")

    experiment: str
    salt: str
    salt_id: str
    share_bp: int
    epoch: str | None
    spool: str
    texts: str | None
    has_fsync: bool
    rows: dict[str, str]


def read_terms(env: dict[str, str], token: str | None, files: list[str], folder: str) -> Terms | None:
    """The terms in force; None without an experiment. Raises Fault or ValueError where they are of the wrong shape.

    `token`: the experiment as JSON, before `files`, the configuration files with the user's first. `folder`: the
    user's data folder.

    A project's files (relative paths) may name the experiment and tool rows; where files go and which texts are shown
    is taken from the user's own settings only, since a checked-out folder is not to be trusted with that.
    """
    hook: dict[str, Any] = {}
    rows: dict[str, str] = {}
    for path in files:
        section, tools = _read_config(path)
        if not os.path.isabs(path):
            section = {key: value for key, value in section.items() if key not in ("spool", "texts", "fsync")}
        hook.update(section)
        rows.update({tool: kind for tool, kind in tools.items() if isinstance(kind, str)})
    if token:
        told = json.loads(token)
        if not isinstance(told, dict):
            raise Fault("token")
        hook.update(told)
    experiment, salt, share = hook.get("experiment"), hook.get("salt"), hook.get("share_bp", rule.SHARE_BP_DEFAULT)
    if experiment is None and salt is None:
        return None
    if not isinstance(experiment, str) or not experiment or not isinstance(salt, str) or "|" in salt:
        raise Fault("experiment")
    if not isinstance(share, int) or isinstance(share, bool) or not 0 < share < 10_000:
        raise Fault("share_bp")
    terms = Terms()
    terms.experiment, terms.salt, terms.share_bp, terms.rows = experiment, salt, share, rows
    terms.salt_id = rule.salt_id(salt)
    terms.epoch = as_str(hook.get("epoch"))
    terms.spool = env.get("LOOPSTATS_SPOOL") or as_str(hook.get("spool")) or f"{folder}/spool"
    terms.texts = env.get("LOOPSTATS_TEXTS") or as_str(hook.get("texts"))
    terms.has_fsync = env.get("LOOPSTATS_FSYNC", "") not in ("", "0") or hook.get("fsync") is True
    return terms


def _read_config(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    with open(path, "rb") as file:
        data = file.read(PIECE)
    if b"hook" not in data and b"tools" not in data:
        return {}, {}
    import tomllib

    parsed = tomllib.loads(data.decode("utf-8-sig"))
    return as_dict(parsed.get("hook")), as_dict(parsed.get("tools"))


# --- one event ---------------------------------------------------------------------------------------------------


def serve(arguments: list[str], env: dict[str, str], token: str | None, files: list[str], folder: str) -> None:
    """Read one event from stdin and answer it on stdout; returns whatever happens.

    `arguments` may name the agent; the rest is what `read_terms` takes.
    """
    agent = next((name for name in AGENTS if name in arguments), "")
    spool = env.get("LOOPSTATS_SPOOL") or f"{folder}/spool"
    try:
        _mind_signals(spool)
        data = _read_all()
        terms = read_terms(env, token, files, folder)
        if terms is None:
            return
        spool = terms.spool
        if data is None:
            raise Fault("payload_too_large")
        record = json.loads(data.decode("utf-8-sig", "replace"))
        if not isinstance(record, dict):
            raise Fault("not_an_object")
        _hold_signals()
        for answer, is_treated in handle(record, agent, terms, time.time_ns() // 1000):
            _say(answer, is_treated)
    except Exception as error:
        note(spool, agent, error, env)


def _signals() -> Any:
    """The interpreter's own signal module: `signal` wraps it in enumerations, which take longer than the event."""
    try:
        return __import__("_signal")
    except ImportError:
        return __import__("signal")


def _mind_signals(spool: str) -> None:
    """Leave in good order when told to, and at the latest when an agent would lose its patience."""
    signals = _signals()

    def leave(number: int, _frame: object) -> None:
        note(spool, "", Fault(f"signal {number}"), {})
        os._exit(0)

    heard = [getattr(signals, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGALRM") if hasattr(signals, name)]
    for number in heard:
        signals.signal(number, leave)
    if hasattr(signals, "pthread_sigmask"):  # an agent may have started us with some of them blocked
        signals.pthread_sigmask(signals.SIG_UNBLOCK, heard)
    if hasattr(signals, "alarm"):
        signals.alarm(DEADLINE_S)


def _hold_signals() -> None:
    """From here on the event is finished before a signal is heard: what is recorded as delivered must be delivered."""
    signals = _signals()
    if hasattr(signals, "pthread_sigmask"):
        signals.pthread_sigmask(signals.SIG_BLOCK, {signals.SIGTERM, signals.SIGINT, signals.SIGHUP})


def _read_all() -> bytes | None:
    """All of stdin; None where it is more than a hook should hold (it is read to its end all the same)."""
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(0, PIECE):
        size += len(piece)
        if size <= MOST_BYTES:
            pieces.append(piece)
    return b"".join(pieces) if size <= MOST_BYTES else None


def _say(answer: bytes, is_treated: bool) -> None:
    """Write the answer, for the holdout into nothing: the same work, the same time."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    out = 1 if is_treated else nothing
    while answer:
        answer = answer[os.write(out, answer) :]
    os.close(nothing)


def handle(record: dict[str, Any], agent: str, terms: Terms, now_us: int) -> list[tuple[bytes, bool]]:
    """Take in one event; the answer with whether its arm is treated, at most one.

    `now_us`: microseconds since 1970, UTC. Raises OSError and Fault; what was recorded until then stands.
    """
    session = as_str(record.get("session_id"))
    if not session:
        raise Fault("no_session")
    event = as_str(record.get("hook_event_name")) or ""
    agent = agent or ("codex" if is_codex(record) else "claude-code")
    calls = answers.rejections(record) if event == AFTER_BATCH else [record] if event in AFTER_CALL else []
    if event == AFTER_BATCH and not calls:
        return []
    with Session(terms, agent, session, now_us) as state:
        state.enrol(record, is_before=event not in AFTER_CALL and event != AFTER_BATCH)
        texts: dict[bool, list[str]] = {}
        for call in calls:
            found = state.step(call)
            if found is not None:
                texts.setdefault(found[1], []).append(found[0])
        # Several loops at once are rare: then what is said is what the treated ones ask for.
        is_treated = bool(texts.get(True))
        shown = texts.get(is_treated, [])
        if not shown:
            return []
        answer = {"hookSpecificOutput": {"hookEventName": event, "additionalContext": "\n\n".join(shown)}}
        return [(json.dumps(answer).encode(), is_treated)]


class Step:
    """One step as the batch would see it; `target` and `targets` placed and masked, `message` whole."""

    __slots__ = (
        "action",
        "call_id",
        "code",
        "exit_code",
        "fingerprint",
        "kind",
        "message",
        "outcome",
        "reason",
        "signature",
        "target",
        "targets",
        "tool",
    )

    call_id: str
    tool: str
    action: str
    kind: str
    target: str
    targets: list[str]
    fingerprint: str
    outcome: str
    reason: str | None
    exit_code: int | None
    code: str | None
    message: str | None
    signature: str | None


def judge(record: dict[str, Any], call_id: str, base: str | None, rows: dict[str, str]) -> Step:
    """What one call was and came to: `formats.Emit` and `steps.build` in one, for one input after a call.

    `base`: the session's first working directory, masked. Raises Fault where no tool is named.
    """
    tool = as_str(record.get("tool_name"))
    if not tool:
        raise Fault("no_tool")
    arguments, cwd = answers.asked(record)
    call = rule.read_call(tool, arguments, cwd, rows=rows)
    text, facts = answers.after_call(as_str(record.get("hook_event_name")) or "", record)
    is_error, exit_code, stated = facts.get("is_error"), facts.get("exit_code"), facts.get("outcome")
    is_timeout = bool(facts.get("is_timeout"))
    reading = answers.read_answer(
        text,
        call.kind,
        call.is_exit_masked,
        is_error=is_error,
        exit_code=exit_code,
        outcome=stated,
        is_timeout=is_timeout,
        structured_code=facts.get("structured_code"),
    )
    step = Step()
    step.outcome, step.reason, _ = rule.outcome(
        call.kind,
        call.program.lower(),
        call.is_exit_masked,
        call.is_piped,
        True,
        is_error,
        exit_code,
        stated,
        facts.get("reason"),
        is_timeout,
        reading.is_summary_failed,
        reading.has_error_text,
    )
    step.call_id, step.kind, step.exit_code, step.fingerprint = call_id, call.kind, exit_code, call.fingerprint
    step.tool, step.action = _plain(rule.mask_secrets(tool)), _plain(rule.mask_secrets(call.action))
    step.target = rule.place(_plain(rule.mask_secrets(call.target)), base)
    step.targets = [rule.place(_plain(rule.mask_secrets(target)), base) for target in call.targets[:TARGETS_TOLD]]
    step.code = step.message = step.signature = None
    if step.outcome == "failure":
        step.code, step.message = reading.code or "", reading.message or ""
        step.signature = rule.signature(tool, step.code, step.message)
    return step


def _plain(text: str) -> str:
    """Without lone surrogates, as the lake keeps it."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _identifier(text: str) -> str:
    """An id as it may be written: ids pass, anything of a secret's shape becomes a hash of itself."""
    if len(text) <= 128 and (rule.mask_secrets(text) == text or _is_call_id(text)):
        return text
    return "h-" + sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _is_call_id(text: str) -> bool:
    """An id of the agents' own shape; it looks as random as a secret."""
    head, _, rest = text.rpartition("_")
    return head in CALL_ID_HEADS and 16 <= len(rest) <= 32 and rest.isascii() and rest.isalnum()


# --- one session -------------------------------------------------------------------------------------------------


class Session:
    """A session's state under its lock: a context manager, so that parallel hooks take their turns."""

    def __init__(self, terms: Terms, agent: str, session: str, now_us: int) -> None:
        name = sha256(f"{agent}\x1f{session}".encode("utf-8", "replace")).hexdigest()[:16]
        self._terms = terms
        self._harness = agent
        self._session = _identifier(session)
        self._now_us = now_us
        self._log = f"{terms.spool}/{agent}-{name}.jsonl"
        self._folder = f"{terms.spool}/.hook/sessions/{name}"
        self._lock = -1
        self._meta: dict[str, Any] = {}

    def __enter__(self) -> Session:
        is_new = not os.path.isdir(self._folder)
        if is_new:
            _make_folder(self._terms.spool)
            _make_folder(f"{self._terms.spool}/.hook")
            _make_folder(f"{self._terms.spool}/.hook/sessions")
            _make_folder(self._folder)
        self._lock = os.open(f"{self._folder}/lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _wait_for(self._lock)
            if is_new:
                _prune(f"{self._terms.spool}/.hook/sessions", self._folder, self._now_us)
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def enrol(self, record: dict[str, Any], is_before: bool) -> None:
        """Read the session's state; where it is new, write its enrolment before anything else.

        `is_before`: the event comes before any call. Else the call that it tells of is already in the agent's own
        log, with a time that is a little earlier, and it counts.
        """
        meta = _read_json(f"{self._folder}/session.json")
        if not all(isinstance(meta.get(key), kind) for key, kind in META.items()):
            meta = self._reread()
        cwd = as_str(record.get("cwd"))
        masked = None if cwd is None else _plain(rule.mask_secrets(cwd))
        if meta:
            self._meta = meta
            if meta.get("base") is None and masked is not None:
                meta["base"] = masked
                self._keep("session.json", meta)
            return
        terms = self._terms
        digest = rule.digest(terms.rows)
        self._meta = {
            "base": masked,
            "enrolled_us": self._now_us - (0 if is_before else LEAD_US),
            "experiment": terms.experiment,
            "salt_id": terms.salt_id,
            "share_bp": terms.share_bp,
            "epoch": terms.epoch or digest,
        }
        self._append(
            [
                {
                    "type": "session",
                    "ts": stamp(self._meta["enrolled_us"]),
                    "harness": self._harness,
                    **{key: self._meta[key] for key in ("experiment", "salt_id", "share_bp", "epoch")},
                    "rule_digest": digest,
                }
            ]
        )
        self._keep("session.json", self._meta)

    def step(self, record: dict[str, Any]) -> tuple[str, bool] | None:
        """Count one call; a text and whether its arm is treated where it completes a strategy loop, else None."""
        agent = as_str(record.get("agent_id"))
        agent = None if agent is None else _identifier(agent)
        call_id = as_str(record.get("tool_use_id"))
        call_id = self._ordinal_id(record, agent) if call_id is None else _identifier(call_id)
        mark = sha256(f"{agent or ''}\x1f{call_id}".encode("utf-8", "replace")).digest()[:SEEN]
        if self._was_seen(mark):
            return None
        step = judge(record, call_id, self._meta.get("base"), self._terms.rows)
        # A clock that was set back must not put a step before the enrolment.
        ts = stamp(max(self._now_us, self._meta["enrolled_us"]))
        lines = [_step_line(step, ts, agent)]
        if step.kind not in rule.ATTEMPTS or step.outcome != "failure" or not step.signature:
            self._append(lines)
            self._see(mark)
            return None
        name = f"run-{sha256((agent or '').encode('utf-8', 'replace')).hexdigest()[:16]}.json"
        run = _Run(f"{self._folder}/{name}")
        if run.is_torn or (run.is_new and self._meta.get("is_reread")):
            run.reread(self._records(), agent)
        found = run.feed(step.kind, step.outcome, step.signature, step.target)
        answer = None
        if found == rule.REPEAT:
            lines.append(self._loop_line(step, found, ts, agent, {}))
        elif found is not None:
            answer = self._assign(step, run, ts, agent, lines)
        self._append(lines)
        run.keep()
        self._see(mark)
        return answer

    def _assign(
        self, step: Step, run: _Run, ts: str, agent: str | None, lines: list[dict[str, Any]]
    ) -> tuple[str, bool] | None:
        """Arm, exposure and text of a strategy loop; None where the session is in another experiment by now."""
        meta, terms, signature = self._meta, self._terms, step.signature or ""
        if (meta["experiment"], meta["salt_id"]) != (terms.experiment, terms.salt_id):
            note(terms.spool, self._harness, Fault("experiment_changed"), {})
            return None
        run_id = self._session if agent is None else f"{self._session}/{agent}"
        points = rule.arm_bp(terms.salt, run_id, signature)
        arm = rule.arm_of(points, meta["share_bp"])
        text, version = provocation(
            step.kind,
            step.tool,
            step.code or "",
            step.message or "",
            run.named(signature),
            run.count(signature),
            terms.texts,
        )
        terms_told = {"experiment": meta["experiment"], "arm": arm}
        lines.append(
            self._loop_line(
                step,
                rule.STRATEGY_LOOP,
                ts,
                agent,
                {
                    **terms_told,
                    "arm_bp": points,
                    **{key: meta[key] for key in ("salt_id", "share_bp", "epoch")},
                },
            )
        )
        lines.append(
            {
                "type": "delivery",
                "agent": agent,
                "id": f"delivery:{signature}",
                "ts": ts,
                "signature": signature,
                **terms_told,
                "delivered": arm == "treated",
                "tier": 1,
                "reason": None if arm == "treated" else "holdout",
                "step": step.call_id,
                "text": version,
                "text_sha256": sha256(text.encode("utf-8", "replace")).hexdigest(),
            }
        )
        return text, arm == "treated"

    def _loop_line(self, step: Step, name: str, ts: str, agent: str | None, told: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "loop",
            "agent": agent,
            "id": f"loop:{name}:{step.signature}",
            "ts": ts,
            "signature": step.signature,
            "rule": name,
            "rule_digest": rule.digest(self._terms.rows),
            "step": step.call_id,
            **told,
        }

    def _append(self, lines: list[dict[str, Any]]) -> None:
        """One write for all lines of an event, whole or not at all."""
        told = [{"v": 1, "session": self._session, **line} for line in lines]
        data = b"".join(
            json.dumps({key: value for key, value in line.items() if value is not None}, separators=(",", ":")).encode()
            + b"\n"
            for line in told
        )
        file = os.open(self._log, os.O_RDWR | APPEND, 0o600)
        try:
            size = os.fstat(file).st_size
            if size:
                os.lseek(file, size - 1, os.SEEK_SET)
                if os.read(file, 1) != b"\n":
                    data = b"\n" + data
            if os.write(file, data) != len(data):
                os.ftruncate(file, size)
                raise OSError(28, "short write")
            if self._terms.has_fsync:
                os.fsync(file)
        finally:
            os.close(file)

    def _keep(self, name: str, value: object) -> None:
        _write_json(f"{self._folder}/{name}", value)

    def _was_seen(self, mark: bytes) -> bool:
        data = _read_bytes(f"{self._folder}/seen")
        at = data.find(mark)
        while at >= 0 and at % SEEN:
            at = data.find(mark, at + 1)
        return at >= 0

    def _see(self, mark: bytes) -> None:
        path = f"{self._folder}/seen"
        file = os.open(path, os.O_WRONLY | APPEND, 0o600)
        try:
            size = os.fstat(file).st_size
            os.write(file, mark)
        finally:
            os.close(file)
        os.utime(self._folder)
        if size > MOST_SEEN_BYTES:
            _write_bytes(path, _read_bytes(path)[-(MOST_SEEN_BYTES // 2) :])

    def _ordinal_id(self, record: dict[str, Any], agent: str | None) -> str:
        """An id for a call without one, as the batch has it: tool, input, and how many equal ones came before."""
        digest = answers.canonical_id([as_str(record.get("tool_name")), record.get("tool_input")])
        counts = _read_json(f"{self._folder}/ids.json")
        key = f"{agent or ''}\x1f{digest}"
        number = as_int(counts.get(key)) or 0
        counts[key] = number + 1
        while len(counts) > MOST_IDS:
            del counts[next(iter(counts))]
        self._keep("ids.json", counts)
        return f"{digest}#{number}"

    def _records(self) -> list[dict[str, Any]]:
        """What the session's event log holds, for a state that was lost."""
        return [record for line in _read_bytes(self._log).split(b"\n") if (record := _object(line))]

    def _reread(self) -> dict[str, Any]:
        """The session's enrolment and seen calls, from its event log; empty where it has none."""
        records = self._records()
        first = next((one for one in records if one.get("type") == "session" and as_str(one.get("experiment"))), None)
        if first is None:
            return {}
        marks = [
            sha256(f"{one.get('agent') or ''}\x1f{one.get('id')}".encode("utf-8", "replace")).digest()[:SEEN]
            for one in records
            if one.get("type") == "step"
        ]
        _write_bytes(f"{self._folder}/seen", b"".join(marks))
        meta: dict[str, Any] = {key: first.get(key) for key in META}
        meta.update(base=None, enrolled_us=_microseconds(as_str(first.get("ts")) or "") or self._now_us, is_reread=True)
        self._keep("session.json", meta)
        return meta


class _Run:
    """The detector of one run and the targets that a text would name; kept as one small file.

    `is_new`: there is no file yet. `is_torn`: there is one, and it is of no use.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        data = _read_bytes(path) if os.path.exists(path) else None
        kept = {} if data is None else _object(data)
        self.is_new = data is None
        self.is_torn = data is not None and not _is_run(kept)
        self._detector = rule.Detector({} if self.is_new or self.is_torn else kept["counts"])
        self._named: dict[str, list[str]] = {} if self.is_new or self.is_torn else kept["named"]

    def reread(self, records: list[dict[str, Any]], agent: str | None) -> None:
        """Count the run's steps again, from what the session's event log holds."""
        for one in records:
            if one.get("type") == "step" and one.get("agent") == agent:
                kind, outcome, signature, target = (
                    as_str(one.get(key)) or "" for key in ("kind", "outcome", "signature", "target")
                )
                self.feed(kind, outcome, signature, target)

    def feed(self, kind: str, outcome: str, signature: str, target: str) -> str | None:
        """The rule that this step completes, else None."""
        brief = sha256(target.encode("utf-8", "replace")).hexdigest()[:16]
        found = self._detector.feed(kind, "agent", outcome, signature, brief)
        if signature in self._detector.state:
            named = self._named.setdefault(signature, [])
            short = target if len(target) <= 120 else f"{target[:119]}…"
            if len(named) < TARGETS_NAMED and short not in named:
                named.append(short)
        while len(self._detector.state) > MOST_SIGNATURES:
            oldest = next(iter(self._detector.state))
            del self._detector.state[oldest]
            self._named.pop(oldest, None)
        return found

    def named(self, signature: str) -> list[str]:
        """The first targets on which a class failed."""
        return self._named.get(signature, [])

    def count(self, signature: str) -> int:
        """How often a class failed so far."""
        return int(self._detector.state[signature][0])

    def keep(self) -> None:
        """Write the state; where that fails, leave a torn one, so that the next event reads the event log again."""
        try:
            _write_json(self._path, {"counts": self._detector.state, "named": self._named})
        except OSError:
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            raise


def _is_run(kept: dict[str, Any]) -> bool:
    counts, named = kept.get("counts"), kept.get("named")
    return (
        isinstance(counts, dict)
        and isinstance(named, dict)
        and all(isinstance(row, list) and len(row) == 4 and isinstance(row[0], int) for row in counts.values())
        and all(isinstance(row, list) for row in named.values())
    )


def _step_line(step: Step, ts: str, agent: str | None) -> dict[str, Any]:
    return {
        "type": "step",
        "agent": agent,
        "id": step.call_id,
        "ts": ts,
        "tool": step.tool,
        "action": step.action,
        "kind": step.kind,
        "target": step.target,
        "targets": step.targets if len(step.targets) > 1 else None,
        "outcome": step.outcome,
        "outcome_reason": step.reason,
        "exit_code": step.exit_code,
        "error_code": None if step.code is None else rule.mask_secrets(step.code),
        "message": None if step.message is None else step.message[: rule.MESSAGE_SHOWN],
        "signature": step.signature,
        "fingerprint": step.fingerprint,
    }


# --- time --------------------------------------------------------------------------------------------------------


def stamp(us: int) -> str:
    """Microseconds since 1970 as RFC 3339 in UTC."""
    us = min(max(us, 0), 253_402_300_799_000_000)
    parts = time.gmtime(us // 1_000_000)
    return f"{parts[0]:04}-{parts[1]:02}-{parts[2]:02}T{parts[3]:02}:{parts[4]:02}:{parts[5]:02}.{us % 1_000_000:06}Z"


def _microseconds(text: str) -> int | None:
    """The other way, for a time that this program wrote."""
    import calendar

    try:
        seconds = calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
        return seconds * 1_000_000 + int(text[20:26])
    except ValueError:
        return None


# --- files -------------------------------------------------------------------------------------------------------


def _make_folder(path: str) -> None:
    """Make it and those above it that are not there, each for its owner alone."""
    if os.path.isdir(path):
        return
    _make_folder(os.path.dirname(path) or ".")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return


def _wait_for(file: int) -> None:
    """Take the lock, or raise a Fault when others hold it for too long."""
    until = time.monotonic() + PATIENCE_S
    pause = 0.001
    while not _is_locked(file):
        if time.monotonic() > until:
            raise Fault("lock_timeout")
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


if sys.platform == "win32":
    import msvcrt

    def _is_locked(file: int) -> bool:
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _is_locked(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _read_bytes(path: str, most: int = MOST_REREAD_BYTES) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | BINARY)
    except FileNotFoundError:
        return b""
    try:
        pieces = []
        while most > 0 and (piece := os.read(file, min(most, PIECE))):
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(file)


def _read_json(path: str) -> dict[str, Any]:
    """The object in a file; empty where there is none or it is torn."""
    return _object(_read_bytes(path))


def _object(data: bytes) -> dict[str, Any]:
    try:
        return as_dict(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def _write_json(path: str, value: object) -> None:
    _write_bytes(path, json.dumps(value, separators=(",", ":")).encode())


def _write_bytes(path: str, data: bytes) -> None:
    """Whole or not at all: beside it, then over it."""
    beside = f"{path}.{os.getpid()}"
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, 0o600)
    try:
        try:
            if os.write(file, data) != len(data):
                raise OSError(28, "short write")
        finally:
            os.close(file)
        os.replace(beside, path)
    except OSError:
        os.unlink(beside)
        raise


def _prune(folder: str, kept: str, now_us: int) -> None:
    """Forget sessions that had no event for long, and the oldest where they are too many; a few at a time."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and entry.path != kept:
                found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    found.sort()
    too_many = len(found) + 1 - MOST_SESSIONS
    oldest = now_us / 1_000_000 - STATE_DAYS * DAY_S
    for position, (changed, path) in enumerate(found[:PRUNED_AT_ONCE]):
        if changed >= oldest and position >= too_many:
            return
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")
        os.rmdir(path)


# --- faults ------------------------------------------------------------------------------------------------------


def note(spool: str, agent: str, error: BaseException, env: dict[str, str]) -> None:
    """Add a fault to the hook's own log: when, which kind, where in this program; never what was in the event.

    Where the spool cannot be written, the log is one in the folder for temporary files; where that fails too, there
    is nowhere to say it.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and "loopstats" in trace.tb_next.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    where = "" if trace is None else f"{trace.tb_frame.f_globals['__name__']}:{trace.tb_lineno}"
    line = (
        json.dumps(
            {
                "ts": stamp(time.time_ns() // 1000),
                "agent": agent,
                "fault": _fault(error),
                "where": where,
            }
        ).encode()
        + b"\n"
    )
    for folder in fault_folders(spool, env):
        try:
            _make_folder(folder)
            if hasattr(os, "geteuid") and os.stat(folder).st_uid != os.geteuid():
                continue
            path = f"{folder}/log"
            file = os.open(path, os.O_WRONLY | APPEND, 0o600)
            try:
                size = os.fstat(file).st_size
                os.write(file, line)
            finally:
                os.close(file)
            if size > LOG_BYTES:
                os.replace(path, f"{path}.1")
            return
        except OSError:
            continue


def _fault(error: BaseException) -> str:
    """A fault by name: the errno's, one of this program's own words, else the exception's class."""
    if isinstance(error, OSError) and error.errno is not None:
        import errno

        return errno.errorcode.get(error.errno, "OSError")
    return str(error) if isinstance(error, Fault) else type(error).__name__


def fault_folders(spool: str, env: dict[str, str]) -> tuple[str, str]:
    """Where faults are noted: below the spool, else in a folder of the user's own among the temporary files."""
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    return f"{spool}/.hook", f"{env.get('TMPDIR') or '/tmp'}/loopstats-hook-{user}"
