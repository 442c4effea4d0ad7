"""The contract: every table of the lake, its columns, types, units, key and grain, and what is known at detection.

A room of its own because people, scripts and SQL depend on these names; stages, store, `sql/` and the docs all take
them from here, and a test compares each of them. Nullable columns may be added; nothing is renamed or retyped without
a new `found.SCHEMA_VERSION`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from loopstats.rule import ATTEMPTS

BUCKETS = 64

STR = pl.String()
INT = pl.Int64()
BOOL = pl.Boolean()
FLOAT = pl.Float64()
TIME = pl.Datetime("us", "UTC")
LIST = pl.List(pl.String())


@dataclass(frozen=True)
class Column:
    """One column: `dtype` is a portable polars type; `is_early` says it is known at the instant of detection."""

    name: str
    dtype: Any
    is_required: bool
    doc: str
    is_early: bool = False


@dataclass(frozen=True)
class Table:
    """One relation: `grain` in words, `key` unique and never null, `order` the canonical sort of its rows."""

    name: str
    grain: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    is_bucketed: bool = True

    @cached_property
    def schema(self) -> pl.Schema:
        """Column name to polars type, in order."""
        return pl.Schema({column.name: column.dtype for column in self.columns})

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names in order."""
        return tuple(column.name for column in self.columns)

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Give `frame` this table's columns, types and row order; columns it lacks become null.

        Raises ValueError when a required column holds a null or the key is not unique: that is a fault of the
        program, never of the input.
        """
        have = frame.schema
        if have != self.schema:
            frame = frame.select(
                pl.lit(None, dtype=c.dtype).alias(c.name)
                if c.name not in have
                else pl.col(c.name)
                if have[c.name] == c.dtype
                else pl.col(c.name).cast(c.dtype)
                for c in self.columns
            )
        out = frame
        if out.height:
            if bad := [c.name for c in self.columns if c.is_required and out.get_column(c.name).null_count()]:
                raise ValueError(f"table {self.name}: null in required column {', '.join(bad)}")
            if not self.key:
                return out
            out = out.sort(self.key, nulls_last=False, maintain_order=True)
            if out.select(pl.struct(self.key).is_duplicated().any()).item():
                raise ValueError(f"table {self.name}: key {self.key} is not unique")
        return out

    def empty(self) -> pl.DataFrame:
        """No rows, all columns."""
        return pl.DataFrame(schema=self.schema)


def is_attempt() -> pl.Expr:
    """METHOD 3 and 5, over STEPS: the agent's own steps of a kind that is an attempt, unless they were vetoed."""
    return pl.col("kind").is_in(sorted(ATTEMPTS)) & (pl.col("actor") == "agent") & (pl.col("outcome") != "vetoed")


def _columns(text: str) -> tuple[Column, ...]:
    """Read a compact declaration: `name type[!][*] doc`; `!` is required, `*` is known at detection."""
    types = {"str": STR, "int": INT, "bool": BOOL, "float": FLOAT, "time": TIME, "list": LIST}
    out = []
    for line in text.strip().splitlines():
        name, kind, doc = line.split(maxsplit=2)
        out.append(Column(name, types[kind.strip("!*")], "!" in kind, doc, "*" in kind))
    return tuple(out)


STEPS = Table(
    "steps",
    "one row per tool call",
    ("run_id", "step"),
    _columns("""
session_id str! session as the agent's log names it; the cluster of the statistics
run_id str! session id, or session/agent for a subagent
parent_run_id str run that started this one
step int! 0-based order in the run, by the record of the result
decision int model turn in the run; parallel calls share it
cycle str the log's own cycle, where it has any
ts time time of the result's record; without a result, of the call
tool str! tool name as logged
action str! the tool, for a shell step with the program that did the work
kind str! edit, verify, execute, communicate, operate, research, read, plan, wait, other
kind_source str! table, command, name, log or none
target str! what the step acts on, relative to the session's first working directory; empty if nothing
targets list all targets of the step
outcome str! success, failure, unknown or vetoed
outcome_reason str user, permission, hook, sibling, interrupt, missing or timeout
outcome_source str! flag, exit, text, log or none
exit_code int exit code as logged
error_code str error code of a failure
message str normalised message of a failure, at most 200 characters
signature str class of a failure, 16 hex digits
fingerprint str! tool and canonical arguments, 16 hex digits
state_hash str world state after the step, the log's own or derived; null is unknown
is_productive bool the step moved the world state, or verified something new; null is unknown
result_hash str hash of the normalised result
is_truncated bool the log says the result was cut
overflow_path str where the rest of a cut result was written
model str model that asked for the step
duration_ms int milliseconds as logged
actor str! agent or user
harness str! agent program and version
project str project of the session
group str version, prompt or configuration under test
call_id str the log's own id of the call
source_file str! file that holds the call
source_line int! 1-based line, or record in a container file, of the call
"""),
)

TURNS = Table(
    "turns",
    "one row per model turn of a run",
    ("run_id", "decision"),
    _columns("""
session_id str! session of the turn
run_id str! run of the turn
decision int! 0-based turn in the run
ts time time of the turn's last record
model str model as logged
tokens_input int input tokens without cache reads and writes
tokens_output int output tokens
tokens_cache_read int input tokens read from the cache
tokens_cache_write int input tokens written to the cache
cost_micros int list price or logged cost in millionths of a dollar; null is unknown
"""),
)

SESSIONS = Table(
    "sessions",
    "one row per session",
    ("session_id",),
    _columns("""
session_id str! session as the agent's log names it
format str! log format of the first record
first_at time earliest time in the session
last_at time latest time in the session
harness str! agent program and version
version str version of the agent program
model str first model named
project str project
group str version, prompt or configuration under test
task str task id
cwd str! first working directory with known roots mapped; empty if unknown
parent_session_id str session that this one continues or forks
count_runs int! runs
count_steps int! tool calls
count_attempts int! steps that are attempts
count_failures int! failed attempts
count_unknown int! steps of unknown outcome
is_open bool! the last turn still waits for a result
experiment str experiment, where enrolled
salt_id str first 16 hex digits of SHA-256 of the salt
share_bp int treated share in basis points
epoch str allocation epoch
rule_digest str rule digest the writer recorded
enrolled_at time time of the first record that names an experiment
enrolled_file str file of that record
enrolled_line int line of that record
is_enrolled bool! enrolled before any detection
is_late_enrolment bool! named by an experiment only at or after a detection
"""),
)

DELIVERIES = Table(
    "deliveries",
    "one row per record of a delivery decision",
    ("session_id", "delivery"),
    _columns("""
session_id str! session
run_id str! run
delivery int! 0-based order in the session
ts time time of the record
experiment str experiment
signature str class as logged
arm str arm as logged
is_delivered bool the intervention reached the agent
tier int tier 1 to 4
reason str why not
text_sha256 str hash of the text
source_file str! file
source_line int! line
"""),
)

DETECTIONS = Table(
    "detections",
    "one row per detection that the log itself recorded",
    ("session_id", "detection"),
    _columns("""
session_id str! session
run_id str! run
detection int! 0-based order in the session
ts time time of the record
experiment str experiment
signature str class as logged
rule str rule as logged
rule_digest str rule digest as logged
arm str arm as logged
arm_bp int basis points as logged
share_bp int treated share as logged
epoch str epoch as logged
call_id str step that the writer names
source_file str! file
source_line int! line
"""),
)

GUARDS = Table(
    "guards",
    "one row per record of the log's own safety system",
    ("session_id", "guard"),
    _columns("""
session_id str! session
run_id str! run
guard int! 0-based order in the session
ts time time of the record
step int step of the run that came before it; null if none
name str guard
event str raise, reset, override, block, heal, heal_failed or expire
tier int tier 1 to 4
counter int value of the guard's counter
by str who or what caused it
ttl_s int time to live in seconds
source_file str! file
source_line int! line
"""),
)

RESULTS = Table(
    "results",
    "one row per external fact about a run's task",
    ("session_id", "result"),
    _columns("""
session_id str! session
run_id str! run
result int! 0-based order in the session
ts time time of the record
solved bool solved, by an external fact
ending str commit, ask, give-up, cap or crash
bait str already-fixed, underspecified or impossible
expected_ending str the right ending
claimed bool what the agent said
source_file str! file
source_line int! line
"""),
)

REJECTS = Table(
    "rejects",
    "one row per line or file that could not be used",
    ("source_file", "source_line", "byte_offset", "reason"),
    _columns("""
source_file str! file
source_line int! 1-based line; 0 for the whole file
byte_offset int! offset of the line in the file, before compression
reason str! machine-readable reason
bytes_sha256 str hash of the bytes
"""),
    is_bucketed=False,
)

FOLDS = Table(
    "folds",
    "one row per file and reason: lines folded away as copies",
    ("source_file", "reason"),
    _columns("""
source_file str! file
reason str! fork, resume, partial, snapshot, re-export, repeat
count_lines int! lines, or records of a container file
"""),
    is_bucketed=False,
)

SOURCES = Table(
    "sources",
    "one row per file: what became of each of its lines",
    ("source_file",),
    _columns("""
source_file str! file
format str! log format; empty if none fits
is_experimental bool! no real file stands behind this format's reader
is_gone bool! the file is no longer on disk
size_bytes int! bytes read so far, before decompression
count_read int! lines, or records of a container file
count_used int! of them in a table
count_nothing int! of them carrying nothing
count_folded int! of them copies
count_rejected int! of them rejected
count_waiting int! of them not complete yet
count_repaired int! of the used ones read after a repair
nothing_types str! JSON object: record type to count
repair_kinds str! JSON object: kind of repair to count
"""),
    is_bucketed=False,
)

LOOPS = Table(
    "loops",
    "one row per run, signature, rule and whether it was detected under enrolment",
    ("run_id", "signature", "rule", "is_enrolled"),
    _columns("""
loop_id str! first 16 hex digits of SHA-256 of run, signature, rule and is_enrolled
run_id str!* run
session_id str!* session
signature str!* class
rule str!* strategy-loop/1 or repeat/1
rule_version str!* version of the rule that found the loop
tool str!* tool of the class
kind str!* kind of the detecting step
error_code str* error code of the class
message str* normalised message of the class, at most 200 characters
detected_step int!* step of the detection
detected_at time* time of the detecting step
detected_call_id str* call of the detecting step
count_events int!* failures of the class up to the detection
count_targets int!* distinct targets among them
count_decisions int!* distinct model turns among them
span_steps int!* steps from the first to the third event
is_interrupted bool!* the action succeeded in between
is_infra bool!* rate limit, server error, connection, quota or time-out
failures_before int!* failed attempts of the run before the detection
experiment str* experiment
salt_id str* salt
epoch str* allocation epoch
share_bp int* treated share in basis points
rule_digest str!* digest of the rule that found the loop
is_enrolled bool!* the count began at an enrolment record
arm str* treated or holdout
arm_bp int* basis points of the assignment; null when the salt is not known
arm_logged str arm as logged
is_delivered bool the log says that the intervention was delivered
outcome str! broke, recurred or unresolved, by the events up to mature_at; readers see pending before that
mature_at time end of the maturity time; null for a loop without a time
outcome_step int step that decided
outcome_at time time of that step
steps_to_outcome int steps from the detection to the outcome
decisions_to_outcome int model turns from the detection to the outcome
outcome_final str! the outcome by all events known now
is_relapsed bool broke, and later failed three more times
is_sidestepped bool unresolved, and another action succeeded on a failing target
outcome_10 str! outcome within 10 attempts
outcome_20 str! outcome within 20 attempts
outcome_50 str! outcome within 50 attempts
last_step int! last step of the run
tokens_wasted int tokens from the detection to the outcome or the end
cost_wasted_micros int cost of these tokens; null where a price is not known
harness str!* agent program and version
model str* model of the detecting step
project str* project
group str* version, prompt or configuration under test
"""),
)

LIFT = Table(
    "lift",
    "one row per estimate written at a night",
    ("experiment", "scope", "as_of", "since", "until", "settings_sha256", "revision"),
    _columns("""
experiment str! experiment; empty for the replay
scope str! window, to_date or replay
as_of time! what was known
since str! start of the window, ISO 8601, or empty
until str! end of the window, ISO 8601, or empty
settings_sha256 str! hash of salt ids, shares, n*, maturity and rule digest
revision int! 0 for the first estimate of this key, then one more for each restatement
estimate str! canonical JSON of the whole estimate
estimate_sha256 str! hash of it
version str! version of loopstats
"""),
    is_bucketed=False,
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (STEPS, TURNS, SESSIONS, LOOPS, DELIVERIES, DETECTIONS, GUARDS, RESULTS, REJECTS, FOLDS, SOURCES, LIFT)
}

_COMMON = """
type str! call, result, turn, session, delivery, loop, guard or fact
session_id str! session
agent str subagent; null for the main agent
parent_agent str agent that started the subagent
uid str! identity of the record, 32 hex digits
is_global bool! the identity holds across sessions, so that a copied history is seen
ts time time of the record
source_id int! number of the source in the ledger
source_line int! 1-based line, or record in a container file
ordinal int! order within the line
rank int! 0 the agent's own transcript, 1 a hook's log, 2 an export
format str! format
"""
_BY_TYPE = {
    "call": """
call_id str the log's own id of the call
tool str tool
action str action
kind str kind
kind_source str where the kind comes from
is_kind_differing bool the log's kind differs from the table's
target str target, resolved and masked, not yet relative
targets list all targets
fingerprint str fingerprint
program str program whose exit status the call returns
is_exit_masked bool the exit status is not that of the part that counts
is_piped bool that program stands in a pipe
decision_key str the log's own id of the model turn
cycle str cycle
state_hash str the log's own world state
model str model
actor str agent or user
""",
    "result": """
call_id str the log's own id of the call
is_error bool error flag; null if the log has none
exit_code int exit code
outcome_log str outcome that the log or the format states
reason_log str reason that the log or the format states
outcome_source str where the flag or the stated outcome comes from
is_timeout bool the call ran out of time
is_summary_failed bool the runner's own summary says failed
has_error_text bool the text holds an error message of the program
error_code str error code, were it a failure
message str normalised message, were it a failure; whole only where the tool was not known yet
signature str signature, were it a failure; null where the tool was not known yet
is_signature_log bool the log states the signature itself
result_hash str hash of the normalised result
is_truncated bool the result was cut
overflow_path str where the rest is
duration_ms int milliseconds
state_hash str the log's own world state
""",
    "turn": """
decision_key str the log's own id of the model turn
model str model
tokens_input int input tokens without cache
tokens_output int output tokens
tokens_cache_read int read from the cache
tokens_cache_write int written to the cache
cost_micros int cost in millionths of a dollar
""",
    "session": """
cwd str working directory
project str project
harness str agent program and version
version str version
model str model
task str task id
group str group
parent_session str session that the log names as parent
experiment str experiment
salt_id str salt
share_bp int share
epoch str epoch
rule_digest str digest
""",
    "delivery": """
experiment str experiment
signature str signature
arm str arm
is_delivered bool delivered
tier int tier
reason str why not
text_sha256 str hash of the text
call_id str step
""",
    "loop": """
experiment str experiment
signature str signature
rule str rule
rule_digest str digest
arm str arm
arm_bp int basis points
share_bp int share
epoch str epoch
call_id str step
""",
    "guard": """
name str guard
event str event
tier int tier
counter int counter
by str by
ttl_s int seconds
""",
    "fact": """
solved bool solved
ending str ending
bait str bait
expected_ending str expected
claimed bool claimed
""",
}
RECORD_TYPES: dict[str, Table] = {
    name: Table(name, f"records of type {name}", (), _columns(_COMMON) + _columns(text))
    for name, text in _BY_TYPE.items()
}
RECORDS = Table(
    "records",
    "one row per fact as read, contents left out; append-only, internal",
    (),
    tuple({column.name: column for table in RECORD_TYPES.values() for column in table.columns}.values()),
)

# --- what the hard rule does not see (METHOD 12 and 13) ---------------------------------------------------------------

_FINDING = """
run_id str! run
session_id str! session
rule str! rule
rule_version str! version of the rule that found it
first_step int! step with which it begins
last_step int! last step of it
reason str! why the rule fired
length int! how long it is, in the unit of the table
first_at time time of the first step
last_at time time of the last step
tokens int tokens of its turns
cost_micros int cost of its turns in millionths of a dollar; null where a price is not known"""
_SEEN = """tool str! tool of the detecting step
kind str! kind of the detecting step
harness str! agent program and version
model str model of the detecting step
project str project
group str version, prompt or configuration under test
"""

DRIFTS = Table(
    "drifts",
    "one row per run, rule and stretch of steps in which the rule keeps firing; length in steps that count",
    ("run_id", "rule", "first_step"),
    _columns(
        _FINDING
        + """
detected_step int! step at which the rule fired first
detected_at time time of that step
lead_steps int! steps from the detection to the end of the run
lead_ms int milliseconds from the detection to the last time of the run
"""
        + _SEEN
    ),
)

ECHOES = Table(
    "echoes",
    "one row per run, fingerprint and result that came back with nothing productive between; length in repeats",
    ("run_id", "fingerprint", "result_hash", "first_step"),
    _columns(
        _FINDING
        + """
fingerprint str! tool and canonical arguments, 16 hex digits
result_hash str! hash of the normalised result
outcome str! outcome of the first of them
target str! target
detected_step int! step at which the rule fired
detected_at time time of that step
"""
        + _SEEN
    ),
)

GHOSTS = Table(
    "ghosts",
    "one row per run and row of cycles that no budget, loop counter or productivity score sees; length in cycles",
    ("run_id", "first_step"),
    _columns(
        _FINDING
        + """
count_steps int! steps in these cycles
"""
        + _SEEN
    ),
)

CHASES = Table(
    "chases",
    "one row per truncated result whose overflow was read and truncated again; length in such reads",
    ("run_id", "first_step"),
    _columns(
        _FINDING
        + """
depth int! longest chain of reads, each of the overflow of the one before
target str! what the last read acted on
"""
        + _SEEN
    ),
)

BYPASSES = Table(
    "bypasses",
    "one row per way around a refusal or a block; length in steps between",
    ("run_id", "last_step", "first_step", "reason"),
    _columns(
        _FINDING
        + """
refused_tool str what was refused; null for a guard's block
refused_by str user, permission, hook or the guard's name
target str! target
"""
        + _SEEN
    ),
)

RESETS = Table(
    "resets",
    "one row per reset of a guard's counter to zero; a finding where the reason is unproductive",
    ("session_id", "guard"),
    _columns("""
run_id str! run
session_id str! session
guard int! number of the guard's record in the session
name str guard
by str who or what caused it
rule str! rule
rule_version str! version of the rule that judged it
first_step int first step after the guard's record before; null if none
last_step int last step before the reset; null if none
reason str! unproductive (the finding), productive, or unknown
length int! steps between
counter_before int value that the counter had
last_at time time of the reset
tokens int tokens of the turns between
cost_micros int cost of these turns in millionths of a dollar; null where a price is not known
"""),
)

OVERSIZE_STEPS = 300_000  # of a run: above, what is made of it no longer fits into a few GB (docs/scale.md)

RUNS = Table(
    "runs",
    "one row per run: METHOD 13",
    ("run_id",),
    _columns("""
run_id str! run
session_id str! session
parent_run_id str run that started this one
format str! log format
harness str! agent program and version
version str version of the agent program
model str first model of the run
project str project
group str version, prompt or configuration under test
task str task id
first_at time earliest time
last_at time latest time
count_steps int! the agent's tool calls
count_attempts int! of them attempts
count_failures int! failed attempts
count_fingerprints int! distinct fingerprints
distinct_ratio float distinct fingerprints per step; null without steps
count_state_known int! steps after which the world state is known
count_state_changes int changes from one known state to another; null where none is known
longest_frozen int most steps in a row with one known state, waiting left out; null where none is known
count_turns int! model turns
count_turns_told int! of them with tokens
tokens int tokens of all turns; null where none is told
count_turns_priced int! turns with a price
cost_micros int cost of the priced turns in millionths of a dollar; null where none has a price
solved bool solved, by an external fact
ending str how the run ended, by an external fact
bait str already-fixed, underspecified or impossible
expected_ending str the right ending
claimed bool what the agent said
last_verify str outcome of the run's last verification; null without one
last_edit_step int last successful edit
is_unverified bool unverified/1: no verification after the last successful edit; null without such an edit
count_loops int! strategy loops
count_repeats int! repeats on one target
count_drifts int! drift/1
count_echoes int! echoes
count_ghosts int! rows of ghost cycles
count_chases int! chases
count_bypasses int! bypasses
count_clean_resets int! resets of a guard's counter over unproductive steps
first_detected_step int first step at which a strategy loop, a drift/1 or an echo was detected
rule_version str! version of the evaluation
"""),
)

TABLES.update({table.name: table for table in (DRIFTS, ECHOES, GHOSTS, CHASES, BYPASSES, RESETS, RUNS)})
