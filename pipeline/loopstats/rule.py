"""The one ruler: what counts as an attempt, a failure, a loop, a break, and which arm a loop is in.

A room of its own because the live hook and the batch must measure with the very same code: this module and the three
it stands on (`shell.py` reads a command, `actions.py` says what a call does, `failures.py` says what a failed result
means) use the standard library only, read no file and no clock. The constants are no options: whoever could loosen
the rule could improve the number. METHOD sections are named beside what follows them.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from loopstats import actions, failures
from loopstats.actions import ATTEMPTS, place, read_call
from loopstats.failures import (
    MESSAGE_SHOWN,
    has_error_text,
    is_infra,
    is_known_secret,
    mask_secrets,
    read_failure,
    signature,
    summary_says_failed,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "ATTEMPTS",
    "MESSAGE_SHOWN",
    "Classifier",
    "Detector",
    "arm_bp",
    "arm_digits",
    "arm_of",
    "digest",
    "has_error_text",
    "is_infra",
    "is_known_secret",
    "mask_secrets",
    "outcome",
    "place",
    "read_call",
    "read_failure",
    "result_hash",
    "safe_hash",
    "safe_id",
    "safe_label",
    "salt_id",
    "signature",
    "summary_says_failed",
]

STRATEGY_LOOP = "strategy-loop/1"
REPEAT = "repeat/1"
EVENTS_TO_DETECT = 3
TARGETS_TO_DETECT = 2
FAILURES_TO_RECUR = 3
SHARE_BP_DEFAULT = 5000
HORIZONS = (10, 20, 50)
LABEL_LENGTH = 80
HEXADECIMAL = frozenset("0123456789abcdef")
ARMS = frozenset({"treated", "holdout"})
REASONS = frozenset({"user", "permission", "hook", "sibling", "interrupt", "missing", "timeout"})

EXITS_WITHOUT_ERROR = {
    "grep": 1,
    "egrep": 1,
    "fgrep": 1,
    "zgrep": 1,
    "rg": 1,
    "ag": 1,
    "ack": 1,
    "diff": 1,
    "cmp": 1,
    "git grep": 1,
    "git diff": 1,
    "test": 1,
    "[": 1,
    "[[": 1,
}
CONDITIONS = frozenset({"test", "[", "[["})
SIGPIPE = 141


def outcome(
    kind: str,
    program: str,
    is_exit_masked: bool,
    is_piped: bool,
    has_result: bool,
    is_error: bool | None,
    exit_code: int | None,
    outcome_log: str | None,
    reason_log: str | None,
    is_timeout: bool,
    is_summary_failed: bool | None,
    has_error_words: bool | None,
) -> tuple[str, str | None, str | None]:
    """METHOD 5: outcome, its reason, and its source (None: as the record says) from facts, structure before text."""
    if outcome_log is not None:
        return outcome_log, reason_log or ("missing" if outcome_log == "unknown" and not has_result else None), None
    if not has_result:
        return "unknown", "missing", "none"
    if is_timeout:
        return "failure", "timeout", None
    is_bad_exit = exit_code is not None and exit_code != 0
    if is_bad_exit and _means_no_error(program, exit_code, is_piped, has_error_words):
        return "success", None, "exit"
    if is_error or is_bad_exit:
        return "failure", None, "exit" if is_error is False else None
    is_untold = is_error is None and exit_code is None
    if (
        kind == "verify"
        and (is_exit_masked or is_untold)
        and is_summary_failed is not None
        and (is_summary_failed or is_untold)
    ):
        return "failure" if is_summary_failed else "success", None, "text"
    if is_untold:
        return "unknown", reason_log, "none"
    return "success", None, None


def _means_no_error(program: str, exit_code: int | None, is_piped: bool, has_error_words: bool | None) -> bool:
    if exit_code == SIGPIPE and is_piped:
        return True
    return EXITS_WITHOUT_ERROR.get(program) == exit_code and (program in CONDITIONS or not has_error_words)


def arm_digits(salt: str, run_id: str, loop_signature: str) -> str:
    """The first 13 hex digits of SHA-256 of `salt|run|signature`, of `run|signature` where the salt is empty.

    Raises ValueError for a salt with `|` and for a lone surrogate, which has no UTF-8 form.
    """
    if "|" in salt:
        raise ValueError("a salt may not hold '|'")
    key = f"{salt}|{run_id}|{loop_signature}" if salt else f"{run_id}|{loop_signature}"
    return hashlib.sha256(key.encode("utf-8")).hexdigest()[:13]


def arm_bp(salt: str, run_id: str, loop_signature: str) -> int:
    """METHOD 8: basis points of a loop, 0 to 9999: its `arm_digits` as an integer, modulo 10,000."""
    return int(arm_digits(salt, run_id, loop_signature), 16) % 10_000


def arm_of(basis_points: int, share_bp: int = SHARE_BP_DEFAULT) -> str:
    """Treated below the treated share, holdout from it on; both in basis points."""
    return "treated" if basis_points < share_bp else "holdout"


def salt_id(salt: str) -> str:
    """First 16 hex digits of SHA-256 of the salt: names a salt without telling it."""
    return hashlib.sha256(salt.encode("utf-8")).hexdigest()[:16]


def result_hash(text: str) -> str:
    """16 hex digits for "the same result again": harness additions, white space, case and clock readings aside."""
    return _result_hash_again(text) if len(text) <= failures.MEMO_RESULT else _result_hash(text)


@lru_cache(failures.MEMO_SIZE)
def _result_hash_again(text: str) -> str:
    return _result_hash(text)


def _result_hash(text: str) -> str:
    length = str(len(text)) if len(text) > 65_536 else ""
    normal = failures.without_looks(failures.clean(text[:65_536]))
    return hashlib.sha256(length.encode() + b"\x1f" + normal).hexdigest()[:16]


def safe_label(text: str) -> str:
    """A short text from a log (a project, a model, a reason) as the lake keeps it: masked, one line, bounded."""
    cleaned = mask_secrets(text)[: 4 * LABEL_LENGTH]
    if not cleaned.isprintable():
        cleaned = "".join(ch if ch.isprintable() else "\ufffd" for ch in cleaned)
    return cleaned[: LABEL_LENGTH - 1] + "…" if len(cleaned) > LABEL_LENGTH else cleaned


_safe_ids: dict[str, str] = {}


def safe_id(text: str) -> str:
    """An id from a log as the lake keeps it: as it is, unless it carries a known key or is longer than 256 characters.

    Ids are kept whole because the arm and every join depend on them; a secret in one is replaced by a hash of it.
    """
    if len(text) > 256:
        return _hidden_id(text)
    found = _safe_ids.get(text)
    if found is None:
        found = _hidden_id(text) if is_known_secret(text) else text
        if len(_safe_ids) >= failures.MEMO_SIZE:
            _safe_ids.clear()
        _safe_ids[text] = found
    return found


def _hidden_id(text: str) -> str:
    return "sha256-" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def safe_hash(text: str | None) -> str | None:
    """A hash that a log states: lower-case hexadecimal of 8 to 128 digits as it is, anything else hashed to 16."""
    if not text:
        return None
    if 8 <= len(text) <= 128 and HEXADECIMAL.issuperset(text):
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def digest(tool_rows: dict[str, str] | None = None) -> str:
    """16 hex digits over everything that decides what a loop is: constants, tables, masks, the user's tool rows."""
    return _digest(tuple(sorted((tool_rows or {}).items())))


@lru_cache(8)
def _digest(tool_rows: tuple[tuple[str, str], ...]) -> str:
    constants = (
        STRATEGY_LOOP,
        REPEAT,
        EVENTS_TO_DETECT,
        TARGETS_TO_DETECT,
        FAILURES_TO_RECUR,
        HORIZONS,
        sorted(EXITS_WITHOUT_ERROR.items()),
        SIGPIPE,
        sorted(ATTEMPTS),
        list(tool_rows),
    )
    text = "\x1e".join((repr(constants), actions.tables(), failures.tables()))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


class Detector:
    """METHOD 7, one run, step by step: what a live hook asks after every step.

    `state` is plain JSON: signature to [failures, first target, another target was seen, a strategy loop was found].
    """

    def __init__(self, state: dict[str, list[Any]] | None = None) -> None:
        self.state: dict[str, list[Any]] = {} if state is None else state

    def feed(self, kind: str, actor: str, outcome_word: str, loop_signature: str | None, target: str) -> str | None:
        """The rule that this step completes for the first time, else None."""
        if kind not in ATTEMPTS or actor != "agent" or outcome_word != "failure" or not loop_signature:
            return None
        seen = self.state.setdefault(loop_signature, [0, target, False, False])
        seen[0] += 1
        seen[2] = seen[2] or target != seen[1]
        if seen[0] < EVENTS_TO_DETECT or seen[3]:
            return None
        if seen[2]:
            seen[3] = True
            return STRATEGY_LOOP
        return REPEAT if seen[0] == EVENTS_TO_DETECT else None


class Classifier:
    """METHOD 9, one loop, step by step: which comes first after the detection, the third failure or a break.

    Feed every step of the run from its first one in order; steps up to the detection only tell which pairs fail.
    Times are microseconds or None. `failing` are the pairs (action, target) that fail now.
    """

    def __init__(
        self,
        loop_signature: str,
        detected_step: int,
        detected_decision: object,
        detected_us: int | None,
        maturity_us: int,
    ) -> None:
        self._signature = loop_signature
        self._detected_step = detected_step
        self._decision = detected_decision
        self._limit = None if detected_us is None else detected_us + maturity_us
        self.failing: set[tuple[str, str]] = set()
        self._count_failures = 0
        self._is_over = False
        self.outcome = "unresolved"
        self.outcome_final = "unresolved"
        self.outcome_step: int | None = None

    def feed(
        self,
        step: int,
        decision: object,
        ts_us: int | None,
        kind: str,
        actor: str,
        action: str,
        target: str,
        outcome_word: str,
        loop_signature: str | None,
    ) -> str | None:
        """Judge one step; `failure` or `success` where it makes its pair fail or heals it, else None."""
        is_after = step > self._detected_step
        if is_after and self._limit is not None and ts_us is not None and ts_us > self._limit:
            self._is_over = True
        if kind not in ATTEMPTS or actor != "agent":
            return None
        counts = is_after and decision != self._decision
        pair = (action, target)
        if outcome_word == "failure" and loop_signature == self._signature:
            self.failing.add(pair)
            if counts:
                self._count_failures += 1
                if self._count_failures == FAILURES_TO_RECUR:
                    self._decide("recurred", step)
        elif outcome_word == "success" and pair in self.failing:
            self.failing.discard(pair)
            if counts:
                self._decide("broke", step)
        else:
            return None
        return outcome_word

    def _decide(self, word: str, step: int) -> None:
        if self.outcome_final == "unresolved":
            self.outcome_final = word
            if not self._is_over:
                self.outcome = word
                self.outcome_step = step
