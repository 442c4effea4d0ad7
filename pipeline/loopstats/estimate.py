"""Loops to lift: the two arms compared, with the checks without which the number is not a result.

A room of its own because this is where a number could be made to look better than it is: which loops are counted, when
a value is withheld, and what may be called a verdict are decided here and nowhere else. A pure stage: frames, settings
and an as-of in, a `Readout` out; no clock, no disk. Rows are counted into four integers per session first; all
mathematics on these counts is in `intervals.py`.

Times are integer microseconds since 1970-01-01 UTC. The treated arm always comes first. A rate is a `Rate`, which has
no form without its n. Everything that is withheld is None and has a machine-readable reason beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from loopstats import intervals as iv
from loopstats import rule
from loopstats.config import DEFAULT_N_STAR, Settings
from loopstats.errors import UsageError
from loopstats.tables import LOOPS, OVERSIZE_STEPS, TIME

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

SCHEMA = "loopstats.lift/1"
ALPHA = 0.05
POWER = 0.8
MIN_PERCENT = 5
MIN_VERDICT = 10
MIN_SESSIONS = 10
MIN_RELATIVE = 0.05
ATTRITION_P = 0.01
SRM_WARN_P = 0.001
SRM_FAIL_E = 1000.0
NAMED_MAX = 1000
BREAK_STEPS = (1, 2, 5, 10, 20, 50, 100)
DAY_US = 86_400_000_000
ARMS = ("treated", "holdout")
WITHHOLDS_ALL = ("hash_audit_failed", "srm_failed", "salt_unknown", "share_invalid")
KEY = ["run_id", "signature"]
_COLUMNS = (
    "loop_id",
    "run_id",
    "session_id",
    "signature",
    "rule",
    "detected_at",
    "detected_step",
    "count_decisions",
    "is_interrupted",
    "is_infra",
    "experiment",
    "salt_id",
    "epoch",
    "share_bp",
    "is_enrolled",
    "arm",
    "arm_bp",
    "is_delivered",
    "outcome",
    "mature_at",
    "steps_to_outcome",
    "is_relapsed",
    "is_sidestepped",
)
_PLACE = ("session_id", *KEY, "ts", "experiment", "arm", "source_file", "source_line")
# What `lift` reads of each table beside the columns of a split or filter: a scan needs no others. Sessions are read
# whole, because of rows that repeat a session the smallest in all columns stays.
COLUMNS = {
    "loops": _COLUMNS,
    "detections": (*_PLACE, "rule", "arm_bp"),
    "deliveries": (*_PLACE, "is_delivered"),
}
_OUTCOMES = ("session_id", "is_delivered", "steps_to_outcome", "is_relapsed", "is_sidestepped")

_Z = NormalDist().inv_cdf(1.0 - ALPHA / 2.0)
_Z_POWER = NormalDist().inv_cdf(POWER)
_NO_TIME = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IS_THE_ARM = frozenset({"arm", "arm_bp"})


# --- what a readout is made of ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rate:
    """`x` of `n`. Shows itself as `x/n (p %)` and never as a bare number: a float of it cannot be taken or formatted.

    The percentage is left out for fewer than five units (STATISTICS a10), and where `is_withheld`.
    """

    x: int
    n: int
    is_withheld: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.x <= self.n:
            raise ValueError(f"a rate needs 0 <= x <= n, got {self.x}/{self.n}")

    @property
    def has_percent(self) -> bool:
        """Whether the share itself is shown."""
        return self.n >= MIN_PERCENT and not self.is_withheld

    def __str__(self) -> str:
        return f"{self.x}/{self.n} ({100 * self.x / self.n:.1f} %)" if self.has_percent else f"{self.x}/{self.n}"

    def __format__(self, spec: str) -> str:
        if spec and spec[-1] not in "<>^s0123456789":
            raise TypeError("a rate is shown with its n; it has no numeric format")
        return format(str(self), spec)

    def to_json(self) -> dict[str, Any]:
        """`{"x", "n", "rate"}`; `rate` is None where no percentage may be shown."""
        return {"x": self.x, "n": self.n, "rate": _rounded(self.x / self.n) if self.has_percent else None}


@dataclass(frozen=True, slots=True)
class PerThousand:
    """Events per 1,000 units of exposure, with both counts and an exact Poisson interval of the rate per 1,000."""

    events: int
    exposure: int
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.exposure == 0:
            return "0 per 0"
        return f"{1000 * self.events / self.exposure:.1f} per 1,000 ({self.events}/{self.exposure})"

    def to_json(self) -> dict[str, Any]:
        """Counts, rate per 1,000 and its interval."""
        value = 1000 * self.events / self.exposure if self.exposure else None
        ends = {"low": self.low, "high": self.high}
        return _object({"events": self.events, "exposure": self.exposure, "per_1000": value} | ends)


@dataclass(frozen=True, slots=True)
class LoopRates:
    """METHOD 10: how often agents loop at all."""

    runs: Rate
    runs_low: float | None
    runs_high: float | None
    loops: PerThousand

    def to_json(self) -> dict[str, Any]:
        """Plain dict, floats at 12 significant digits."""
        return {
            "runs_with_loop": self.runs.to_json() | _object({"low": self.runs_low, "high": self.runs_high}),
            "loops_per_1000_attempts": self.loops.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of two arms. What is withheld is None, and `reasons` says why."""

    treated: Rate
    holdout: Rate
    sessions_treated: int
    sessions_holdout: int
    lift: float | None = None
    ci_fixed: tuple[float, float] | None = None
    ci_anytime: tuple[float, float] | None = None
    deff: float | None = None
    df: float | None = None
    n_effective: float | None = None
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain dict; the anytime interval only where there is one."""
        low, high = self.ci_fixed or (None, None)
        out = {
            "treated": self.treated.to_json(),
            "holdout": self.holdout.to_json(),
            "sessions_treated": self.sessions_treated,
            "sessions_holdout": self.sessions_holdout,
            "lift": self.lift,
            "ci_low": low,
            "ci_high": high,
            "reasons": list(self.reasons),
        }
        if self.ci_anytime is not None:
            out |= {"ci_anytime_low": self.ci_anytime[0], "ci_anytime_high": self.ci_anytime[1]}
        return _object(out)


@dataclass(frozen=True, slots=True)
class Segment:
    """One value of the split. `ci_selected` is the anytime interval at the level that allows for the selection."""

    values: tuple[tuple[str, Any], ...]
    comparison: Comparison
    log_e: float | None = None
    is_selected: bool = False
    ci_selected: tuple[float, float] | None = None

    @property
    def label(self) -> str:
        """The values in words, as logged: escape before showing."""
        return ", ".join("(none)" if value is None else str(value) for _, value in self.values)

    def to_json(self) -> dict[str, Any]:
        """Plain dict."""
        low, high = self.ci_selected or (None, None)
        return self.comparison.to_json() | _object(
            {
                "values": dict(self.values),
                "is_tested": self.log_e is not None,
                "log_e_value": self.log_e,
                "is_selected": self.is_selected,
                "ci_selected_low": low,
                "ci_selected_high": high,
            }
        )


@dataclass(frozen=True, slots=True)
class Named:
    """How many, and the first `NAMED_MAX` of them by name."""

    n: int
    names: tuple[tuple[tuple[str, Any], ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """`{"n", "named"}`."""
        return {"n": self.n, "named": [dict(name) for name in self.names]}


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """Sample ratio of one epoch. `p` and `log_e` are None where the share is not known or impossible."""

    epoch: str | None
    share_bp: int | None
    n_treated: int
    n_holdout: int
    p: float | None
    log_e: float | None


@dataclass(frozen=True)
class ExperimentAudit:
    """METHOD 11 for one experiment; the replay's has only a sample ratio."""

    experiment: str
    n_checked: int = 0
    n_unchecked: int = 0
    hash_failures: Named = Named(0)
    only_log: tuple[tuple[str, Rate], ...] = ()
    only_replay: tuple[tuple[str, Rate], ...] = ()
    only_log_named: Named = Named(0)
    only_replay_named: Named = Named(0)
    has_records: bool = False
    has_deliveries: bool = False
    treated_not_delivered: Rate = Rate(0, 0)
    treated_not_delivered_named: Named = Named(0)
    holdout_delivered: Rate = Rate(0, 0)
    holdout_delivered_named: Named = Named(0)
    delivered_without_loop: Named = Named(0)
    splits: tuple[SplitCheck, ...] = ()

    @property
    def srm_log_e(self) -> float:
        """Evidence over all epochs: their e-values multiply."""
        return math.fsum(split.log_e for split in self.splits if split.log_e is not None)

    @property
    def failures(self) -> tuple[str, ...]:
        """Reasons that withhold the lift."""
        return tuple(
            reason
            for reason, is_failed in (
                ("hash_audit_failed", self.hash_failures.n > 0),
                ("srm_failed", self.srm_log_e >= math.log(SRM_FAIL_E)),
                ("share_invalid", any(split.log_e is None for split in self.splits)),
            )
            if is_failed
        )

    @property
    def is_srm_warning(self) -> bool:
        """The exact test of an epoch warns."""
        return any(split.p is not None and split.p < SRM_WARN_P for split in self.splits)

    def to_json(self) -> dict[str, Any]:
        """Plain dict."""
        return _object(
            {
                "result": "fail" if self.failures else "warn" if self.is_srm_warning else "ok",
                "failures": list(self.failures),
                "n_checked": self.n_checked,
                "n_unchecked": self.n_unchecked,
                "hash_failures": self.hash_failures.to_json(),
                "only_log": {arm: rate.to_json() for arm, rate in self.only_log}
                | {"loops": self.only_log_named.to_json()},
                "only_replay": {arm: rate.to_json() for arm, rate in self.only_replay}
                | {"loops": self.only_replay_named.to_json()},
                "treated_not_delivered": self.treated_not_delivered.to_json()
                | {"loops": self.treated_not_delivered_named.to_json()},
                "holdout_delivered": self.holdout_delivered.to_json()
                | {"loops": self.holdout_delivered_named.to_json()},
                "delivered_without_loop": self.delivered_without_loop.to_json(),
                "srm": [
                    {
                        "epoch": split.epoch,
                        "share_bp": split.share_bp,
                        "n_treated": split.n_treated,
                        "n_holdout": split.n_holdout,
                        "p_exact": split.p,
                        "log_e_value": split.log_e,
                    }
                    for split in self.splits
                ],
                "srm_log_e_value": self.srm_log_e,
            }
        )


@dataclass(frozen=True)
class Audit:
    """The audit of every experiment in the logs by name, of the replay, and of records outside any experiment."""

    experiments: Mapping[str, ExperimentAudit]
    replay: ExperimentAudit
    outside: ExperimentAudit

    def of(self, experiment: str) -> ExperimentAudit:
        """The audit of one experiment; an empty one where nothing is known of it."""
        return self.experiments.get(experiment, ExperimentAudit(experiment))

    @property
    def is_failed(self) -> bool:
        """Whether any experiment fails."""
        return any(part.failures for part in (*self.experiments.values(), self.replay, self.outside))


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a reader must know. `severity`: 3 no result, 2 doubt, 1 good to know. Log text in it is as logged."""

    code: str
    severity: int
    experiment: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Plain dict."""
        return {"code": self.code, "severity": self.severity, "experiment": self.experiment, "text": self.text}


@dataclass(frozen=True)
class Estimate:
    """One scope of one experiment. `headline` is the comparison by intention to treat."""

    scope: str
    experiment: str
    headline: Comparison
    recurred: tuple[int, int]
    unresolved: tuple[int, int]
    verdict: str | None
    reasons: tuple[str, ...]
    pending: tuple[int, int]
    count_untimed: int
    n_star: int
    sensitivities: Mapping[str, Comparison] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    known_now: Mapping[str, Any] = field(default_factory=dict)

    def to_row(self, *, with_known_now: bool = True) -> dict[str, Any]:
        """The row of the JSON envelope: the keys of the contract, and `details`.

        `with_known_now=False` leaves out what events after the maturity may still change, so that a later run for the
        same as-of gives the same bytes.
        """
        row: dict[str, Any] = {"scope": self.scope, "experiment": self.experiment}
        compared = self.headline
        rates = (compared.treated, compared.holdout)
        sessions = (compared.sessions_treated, compared.sessions_holdout)
        for i, arm in enumerate(ARMS):
            row |= {
                f"n_{arm}": rates[i].n,
                f"broke_{arm}": rates[i].x,
                f"recurred_{arm}": self.recurred[i],
                f"unresolved_{arm}": self.unresolved[i],
                f"sessions_{arm}": sessions[i],
                f"rate_{arm}": rates[i].to_json()["rate"],
            }
        fixed, anytime = compared.ci_fixed or (None, None), compared.ci_anytime or (None, None)
        row |= {
            "lift": compared.lift,
            "ci_fixed_low": fixed[0],
            "ci_fixed_high": fixed[1],
            "ci_anytime_low": anytime[0],
            "ci_anytime_high": anytime[1],
            "verdict": self.verdict,
            "reasons": list(self.reasons),
        }
        details = {
            "n_star": self.n_star,
            "pending": dict(zip(ARMS, self.pending, strict=True)),
            "count_untimed": self.count_untimed,
            "deff": compared.deff,
            "df": compared.df,
            "ci_fixed_is": "valid for one pre-planned look",
            "ci_anytime_is": "valid when read every night",
            **{name: part.to_json() for name, part in self.sensitivities.items()},
            **self.details,
            "segments": [segment.to_json() for segment in self.segments],
        }
        if with_known_now:
            details["known_now"] = dict(self.known_now)
        return _object(row | {"details": details})


@dataclass(frozen=True)
class Readout:
    """All scopes, in order: each experiment's window (where asked) and experiment to date, then the A/A replay."""

    as_of_us: int
    since_us: int | None
    until_us: int | None
    maturity_us: int
    rule_digest: str
    by: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    audit: Audit
    warnings: tuple[Notice, ...]

    @property
    def is_replay_only(self) -> bool:
        """No session is enrolled in any experiment."""
        return all(estimate.scope == "replay" for estimate in self.estimates)

    def scope(self, name: str, experiment: str | None = None) -> Estimate | None:
        """The first estimate of a scope, of one experiment where it is named."""
        for estimate in self.estimates:
            if estimate.scope == name and experiment in (None, estimate.experiment):
                return estimate
        return None

    def to_json(self, tz: str = "UTC", *, with_known_now: bool = True) -> dict[str, Any]:
        """The envelope of the JSON output; times are ISO 8601 in UTC whatever `tz` names."""
        return {
            "schema": SCHEMA,
            "as_of": iso(self.as_of_us),
            "interval": {
                "since": _iso_or_none(self.since_us),
                "until": _iso_or_none(self.until_us),
                "mature_until": iso(self.as_of_us - self.maturity_us),
            },
            "tz": tz,
            "rule_digest": self.rule_digest,
            "rows": [estimate.to_row(with_known_now=with_known_now) for estimate in self.estimates],
            "warnings": [warning.to_json() for warning in self.warnings],
        }


def iso(time_us: int) -> str:
    """ISO 8601 in UTC, whole seconds where nothing is lost."""
    try:
        text = (_EPOCH + timedelta(microseconds=time_us)).isoformat()
    except OverflowError:
        raise UsageError(f"{time_us}: not a time of the years 1 to 9999") from None
    return text.replace("+00:00", "Z")


def _iso_or_none(time_us: int | None) -> str | None:
    return None if time_us is None else iso(time_us)


def _rounded(value: float) -> float | None:
    return float(f"{value:.12g}") if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Plain JSON: floats at 12 significant digits, no nan and no infinity, tuples as lists."""
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value


def _object(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain(part) for key, part in value.items()}


def early_columns() -> list[str]:
    """Columns of `tables.LOOPS` that the lift may be split or filtered by: known at the instant of detection."""
    return sorted(column.name for column in LOOPS.columns if column.is_early and column.name not in _IS_THE_ARM)


def check_early(names: Sequence[str], use: str = "split") -> None:
    """Raise UsageError unless every column is one of `tables.LOOPS` and known at the instant of detection."""
    early = {column.name: column.is_early for column in LOOPS.columns}
    for name in names:
        if name not in early:
            allowed = ", ".join(early_columns())
            raise UsageError(f"{name}: no column of loops to {use} the lift by; use one of {allowed}")
        if name in _IS_THE_ARM:
            raise UsageError(f"{name}: the lift compares the arms, so it cannot be used to {use} by it")
        if not early[name]:
            raise UsageError(
                f"{name}: known only after the detection, where the intervention may have changed it; to {use} the "
                "lift by it would compare different loops in the two arms"
            )


# --- units: one row per loop, as arrays ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Units:
    """Strategy loops as parallel arrays. `session` and `stratum` are codes."""

    session: Ints
    stratum: Ints
    treated: Bools
    broke: Bools
    recurred: Bools
    detected: Ints
    is_first: Bools
    is_after_treated: Bools
    is_interrupted: Bools
    is_infra: Bools
    is_one_turn: Bools

    def __len__(self) -> int:
        return int(self.session.shape[0])

    def take(self, chosen: Any) -> _Units:
        """The units that a mask or an index array chooses."""
        return _Units(**{name: getattr(self, name)[chosen] for name in self.__dataclass_fields__})


def _strategy_loops(loops: pl.DataFrame, as_of_us: int) -> pl.DataFrame:
    """Strategy loops detected by the as-of, one row per unit."""
    at = pl.col("detected_at").cast(TIME).to_physical()
    known = _only(loops, (pl.col("rule") == rule.STRATEGY_LOOP) & (at.is_null() | (at <= as_of_us)))
    return _once(known, *KEY, "is_enrolled")


def _only(frame: pl.DataFrame, chosen: pl.Expr) -> pl.DataFrame:
    """`frame.filter(chosen)`, without the copy where every row is chosen, as is usual with an experiment's lake."""
    mask = frame.select(chosen.fill_null(False)).to_series()
    return frame if mask.all() else frame.filter(mask)


def _once(frame: pl.DataFrame, *key: str) -> pl.DataFrame:
    """One row per key. Of rows that repeat a key the smallest stays, so that their order changes nothing."""
    # Only rows whose hash is not alone can repeat a key.
    import numpy as np

    prints = _prints(frame, key)
    in_order = np.sort(prints.to_numpy())
    if not (in_order[1:] == in_order[:-1]).any():
        return frame
    is_shared = prints.is_duplicated()
    shared = frame.filter(is_shared).sort(frame.columns, nulls_last=True)
    return pl.concat([frame.filter(~is_shared), shared.unique(key, keep="first", maintain_order=True)])


def _codes(values: pl.DataFrame) -> Ints:
    """Equal rows to equal small integers."""
    import numpy as np

    # Neighbours are often equal (a session's loops): only where a row differs from the one before is it looked at.
    changes = values.select(pl.any_horizontal(pl.all().ne_missing(pl.all().shift())))
    is_head = changes.to_series().to_numpy(writable=True)
    is_head[:1] = True
    codes: Ints = _codes_of_heads(values.filter(is_head))[np.cumsum(is_head) - 1]
    return codes


def _codes_of_heads(values: pl.DataFrame) -> Ints:
    import numpy as np

    hashes = _prints(values, values.columns).to_numpy()
    order = np.argsort(hashes)
    in_order = hashes[order]
    is_new = np.ones(order.size, dtype=bool)
    is_new[1:] = in_order[1:] != in_order[:-1]
    codes = np.empty(order.size, dtype=np.int64)
    codes[order] = np.cumsum(is_new) - 1
    # Two rows of one hash would be one code: then, and only then, the rows themselves are compared.
    heads = order[is_new][codes]
    if not all(bool(column.gather(heads).eq_missing(column).all()) for column in values):
        distinct = values.unique().with_row_index("code")
        coded = values.join(distinct, on=values.columns, how="left", nulls_equal=True, maintain_order="left")
        codes = coded["code"].cast(pl.Int64()).to_numpy()
    return codes


def _prints(frame: pl.DataFrame, key: Sequence[str]) -> pl.Series:
    """A hash per row: equal keys have equal hashes."""
    return frame.select(pl.reduce(lambda a, b: a ^ b, [pl.col(name).hash(i) for i, name in enumerate(key)])).to_series()


def _bools(frame: pl.DataFrame, expr: pl.Expr) -> Bools:
    return frame.select(expr.fill_null(False)).to_series().to_numpy()


def _units(frame: pl.DataFrame, strata: Ints) -> _Units:
    """Arrays of a frame of strategy loops that all have an arm."""
    import numpy as np

    session = _codes(frame.select("session_id")) if frame.height else np.zeros(0, dtype=np.int64)
    detected = frame["detected_at"].cast(TIME).to_physical().fill_null(_NO_TIME).to_numpy()
    treated = _bools(frame, pl.col("arm") == "treated")
    is_first, is_after = _order_flags(frame, session, detected, treated)
    outcome = pl.col("outcome")
    return _Units(
        session,
        strata,
        treated,
        _bools(frame, outcome == "broke"),
        _bools(frame, outcome == "recurred"),
        detected,
        is_first,
        is_after,
        _bools(frame, pl.col("is_interrupted")),
        _bools(frame, pl.col("is_infra")),
        _bools(frame, pl.col("count_decisions") == 1),
    )


def _order_flags(frame: pl.DataFrame, session: Ints, detected: Ints, treated: Bools) -> tuple[Bools, Bools]:
    """Whether a loop is its session's first, and whether a treated loop of its session came before it.

    The order is time, then run, step and class; loops without a time come last.
    """
    import numpy as np

    n = session.shape[0]
    if n == 0:
        return np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)
    order = np.argsort(detected)
    in_order = detected[order]
    is_same = in_order[1:] == in_order[:-1]
    is_tied = np.zeros(n, dtype=bool)
    is_tied[1:] |= is_same
    is_tied[:-1] |= is_same
    slots = np.flatnonzero(is_tied)
    if slots.size:
        # Tied loops stand side by side; sorting them among themselves puts each back into a place of its own group.
        rows = order[slots]
        tied = frame.select(*KEY, "detected_step")[rows].with_columns(
            pl.Series("at", detected[rows]), pl.Series("row", rows)
        )
        order[slots] = tied.sort("at", "run_id", "detected_step", "signature")["row"].to_numpy()
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    first = np.full(int(session.max()) + 1, n, dtype=np.int64)
    first_treated = first.copy()
    # Written backwards: of several ranks of one session the smallest is written last and stays.
    first[session[order[::-1]]] = rank[order[::-1]]
    backwards = order[::-1][treated[order[::-1]]]
    first_treated[session[backwards]] = rank[backwards]
    return rank == first[session], rank > first_treated[session]


class _Table(NamedTuple):
    """Sessions as distinct rows (n1, y1, n0, y0), and how many sessions have each: most share the same few rows."""

    rows: Ints
    counts: Ints

    @property
    def totals(self) -> tuple[int, int, int, int]:
        """Successes and units of the treated arm, then of the holdout."""
        n1, y1, n0, y0 = (int(total) for total in self.counts @ self.rows)
        return y1, n1, y0, n0

    @property
    def sessions(self) -> tuple[int, int]:
        """Sessions with a unit in the arm: treated, holdout."""
        return int(self.counts[self.rows[:, 0] > 0].sum()), int(self.counts[self.rows[:, 2] > 0].sum())


def _table(units: _Units, chosen: Bools | None = None, success: Bools | None = None) -> _Table:
    """The sessions of the chosen units; success is "broke" unless given."""
    import numpy as np

    success = units.broke if success is None else success
    session, treated = units.session, units.treated
    if chosen is not None and not chosen.all():
        session, treated, success = session[chosen], treated[chosen], success[chosen]
    if session.size == 0:
        return _Table(np.zeros((0, 4), dtype=np.int64), np.zeros(0, dtype=np.int64))
    # Codes are of the whole lake; a small part of it gets small codes of its own.
    if 4 * session.size < int(session.max()):
        session = np.unique(session, return_inverse=True)[1]
    cell = 2 * treated + success
    base = 1 + int(np.bincount(session).max())
    if base < 2**13:
        # The four counts of a session as the digits of one number: a sum of floats is exact up to 2**53.
        digits = np.array([base**2, base**2 + base**3, 1, 1 + base], dtype=np.float64)
        packed = np.bincount(session, weights=digits[cell]).astype(np.int64)
        keys, counts = np.unique(packed[packed > 0], return_counts=True)
        rows = keys[:, None] // np.array([1, base, base**2, base**3]) % base
        return _Table(rows, counts)
    n0, n1 = (np.bincount(session[treated == arm], minlength=int(session.max()) + 1) for arm in (False, True))
    y0, y1 = (
        np.bincount(session[success & (treated == arm)], minlength=int(session.max()) + 1) for arm in (False, True)
    )
    table = np.stack([n1, y1, n0, y0], axis=1)[(n0 > 0) | (n1 > 0)]
    return _Table(*np.unique(table, axis=0, return_counts=True))


# --- one comparison --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stratum:
    """One epoch: its counts, its weight in the pooled lift, and what clustering does to it."""

    code: int
    weight: float
    counts: tuple[int, int, int, int]
    design: iv.ClusterDesign | None

    @property
    def lift(self) -> float:
        x1, n1, x0, n0 = self.counts
        return x1 / n1 - x0 / n0


def _size_reason(n1: int, n0: int) -> str | None:
    smaller = min(n1, n0)
    return "empty_arm" if smaller == 0 else "n_lt_5" if smaller < MIN_PERCENT else None


def _compare(
    units: _Units,
    chosen: Bools | None = None,
    success: Bools | None = None,
    *,
    n_star: int | None = None,
    is_clustered: bool = True,
    alpha_anytime: float = ALPHA,
) -> tuple[Comparison, list[_Stratum]]:
    """Lift of the chosen units with its fixed interval, and the anytime one where `n_star` is given.

    Several epochs are pooled with Mantel-Haenszel weights n1*n0/(n1+n0). The interval is Newcombe's joined over epochs:
    the squared distances of each epoch's limits from its lift, times the squared weight, are added (the same step that
    joins two Wilson intervals; Zou and Donner 2008). With one epoch it is NewcD-t itself. Clusters: each epoch's counts
    are divided by its own design effect; the t quantile has Satterthwaite's df of the weighted CR2 variances. An epoch
    too small for a design effect of its own takes the largest of the others.
    """
    table = _table(units, chosen, success)
    (x1, n1, x0, n0), sessions = table.totals, table.sessions
    reason = _size_reason(n1, n0)
    plain = Comparison(Rate(x1, n1), Rate(x0, n0), *sessions)
    if reason is not None:
        return replace(plain, treated=Rate(x1, n1, True), holdout=Rate(x0, n0, True), reasons=(reason,)), []
    strata = _strata(units, chosen, success, table, is_clustered)
    if not strata:
        return replace(plain, reasons=("no_shared_epoch",)), []
    wide = ("wide",) if min(n1, n0) < MIN_VERDICT or min(sessions) < MIN_SESSIONS else ()
    lift = math.fsum(stratum.weight * stratum.lift for stratum in strata)
    plain = replace(plain, lift=lift, reasons=wide)
    if not is_clustered:
        return replace(plain, ci_fixed=_pooled(strata, [1.0] * len(strata), _Z), deff=1.0), strata
    designs = [stratum.design for stratum in strata if stratum.design is not None]
    if not designs:
        return replace(plain, reasons=(*wide, "clusters_lt_2")), strata
    largest = max(design.deff for design in designs)
    deffs = [largest if stratum.design is None else stratum.design.deff for stratum in strata]
    df = _degrees(strata)
    t = _t_quantile(df)
    effective = math.fsum((s.counts[1] + s.counts[3]) / deff for s, deff in zip(strata, deffs, strict=True))
    anytime = None
    if n_star is not None:
        t_any, z_any = _t_quantile(df, alpha_anytime), NormalDist().inv_cdf(1.0 - alpha_anytime / 2.0)
        anytime = _pooled(strata, deffs, iv.anytime_multiplier(effective, n_star, alpha_anytime) * (t_any / z_any))
    used = sum(stratum.counts[1] + stratum.counts[3] for stratum in strata)
    deff = deffs[0] if len(strata) == 1 else used / effective
    fixed = _pooled(strata, deffs, t)
    return replace(plain, ci_fixed=fixed, ci_anytime=anytime, deff=deff, df=df, n_effective=effective), strata


def _strata(
    units: _Units, chosen: Bools | None, success: Bools | None, table: _Table, is_clustered: bool
) -> list[_Stratum]:
    """Epochs with units in both arms."""
    import numpy as np

    codes = units.stratum if chosen is None else units.stratum[chosen]
    first = int(codes[0])
    if bool((codes == first).all()):
        tables = {first: table}
    else:
        everyone = np.ones(len(units), dtype=bool) if chosen is None else chosen
        tables = {
            code: _table(units, everyone & (units.stratum == code), success) for code in np.unique(codes).tolist()
        }
    found = []
    for code, part in tables.items():
        counts = part.totals
        if counts[1] == 0 or counts[3] == 0:
            continue
        found.append((code, counts, _design(part) if is_clustered else None))
    weights = [1.0 if len(found) == 1 else n1 * n0 / (n1 + n0) for _, (_, n1, _, n0), _ in found]
    total = math.fsum(weights)
    return [
        _Stratum(code, weight / total, counts, design)
        for weight, (code, counts, design) in zip(weights, found, strict=True)
    ]


def _design(table: _Table) -> iv.ClusterDesign | None:
    try:
        return iv.cluster_design(*table)
    except iv.Undefined:
        return None


def _degrees(strata: Sequence[_Stratum]) -> float:
    parts = [(s.weight * s.weight * s.design.variance, s.design.df) for s in strata if s.design is not None]
    total = math.fsum(part for part, _ in parts)
    if len(parts) == 1 or total == 0.0:
        return min(df for _, df in parts)
    return total * total / math.fsum(part * part / df for part, df in parts)


def _t_quantile(df: float, alpha: float = ALPHA) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, 1.0 - alpha / 2.0))


def _pooled(strata: Sequence[_Stratum], deffs: Sequence[float], z: float) -> tuple[float, float]:
    limits = []
    for stratum, deff in zip(strata, deffs, strict=True):
        x1, n1, x0, n0 = (count / deff for count in stratum.counts)
        limits.append(iv.newcombe(x1, n1, x0, n0, z=z))
    if len(strata) == 1:
        return limits[0]
    lift = math.fsum(stratum.weight * stratum.lift for stratum in strata)
    below, above = (
        math.sqrt(math.fsum((s.weight * (limit[side] - s.lift)) ** 2 for s, limit in zip(strata, limits, strict=True)))
        for side in (0, 1)
    )
    return max(-1.0, lift - below), min(1.0, lift + above)


def _hidden(units: _Units, reasons: tuple[str, ...]) -> Comparison:
    """Counts only."""
    table = _table(units)
    x1, n1, x0, n0 = table.totals
    return Comparison(Rate(x1, n1, True), Rate(x0, n0, True), *table.sessions, reasons=reasons)


# --- the readout -----------------------------------------------------------------------------------------------------


def lift(
    loops: pl.DataFrame,
    sessions: pl.DataFrame,
    detections: pl.DataFrame,
    deliveries: pl.DataFrame,
    settings: Settings,
    *,
    as_of_us: int,
    since_us: int | None = None,
    until_us: int | None = None,
    by: Sequence[str] = (),
    where: pl.Expr | None = None,
) -> Readout:
    """The lift of every experiment in the logs, with the A/A replay (METHOD 10).

    Frames are those of `tables` (LOOPS, SESSIONS, DETECTIONS, DELIVERIES), whole: `where` filters the loops here, so
    that the audit still sees all of them. Times in microseconds. With `since_us` or `until_us` each experiment also has
    a `window`: loops detected in [since, until) and at or before as-of minus maturity. `by` and the columns of `where`
    must be known at detection; others raise UsageError. Repeated rows and the order of rows change nothing.
    """
    by = tuple(dict.fromkeys(by))
    check_early(by, "split")
    if where is not None:
        _check_filter(where)
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise UsageError(f"the window from {iso(since_us)} to {iso(until_us)} is empty")
    sessions = _once(sessions, "session_id")
    asked = [*by, *([] if where is None else where.meta.root_names())]
    known = _strategy_loops(loops.select(sorted({*_COLUMNS, *asked})), as_of_us)
    checks = _audit(known, sessions, detections, deliveries, settings, as_of_us)
    question = _Question(as_of_us, since_us, until_us, by, where, settings, checks)
    facts = _session_facts(sessions, detections, deliveries, as_of_us)
    live = _only(known, pl.col("is_enrolled"))
    estimates: list[Estimate] = []
    names = sorted(
        set(live["experiment"].fill_null("").unique().to_list()) | set(facts["experiment"].unique().to_list())
    )
    for name in names:
        part = live if len(names) == 1 else live.filter(pl.col("experiment").fill_null("") == name)
        estimates.extend(_experiment(question, name, part, facts.filter(pl.col("experiment") == name)))
    estimates.extend(_experiment(question, "", _only(known, ~pl.col("is_enrolled")), None))
    codes = list(_WARNINGS)
    found = set(_warnings(question, estimates, facts))
    warnings = sorted(found, key=lambda w: (-w.severity, codes.index(w.code), w.experiment, w.text))
    return Readout(
        as_of_us,
        since_us,
        until_us,
        settings.maturity_us,
        settings.rule_digest,
        by,
        tuple(estimates),
        checks,
        tuple(warnings),
    )


def _check_filter(where: pl.Expr) -> None:
    check_early(sorted(where.meta.root_names()), "filter")
    try:
        answer = LOOPS.empty().select(where).dtypes
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"the filter cannot be applied to loops: {error}") from None
    if answer != [pl.Boolean()]:
        raise UsageError("the filter must answer yes or no for each loop")


@dataclass(frozen=True)
class _Question:
    """What was asked, and the audit."""

    as_of_us: int
    since_us: int | None
    until_us: int | None
    by: tuple[str, ...]
    where: pl.Expr | None
    settings: Settings
    audit: Audit

    @property
    def is_windowed(self) -> bool:
        return self.since_us is not None or self.until_us is not None


def _session_facts(
    sessions: pl.DataFrame, detections: pl.DataFrame, deliveries: pl.DataFrame, as_of_us: int
) -> pl.DataFrame:
    """Sessions that an experiment names by the as-of, with the writer's digest and how they were enrolled."""
    at = pl.col("enrolled_at").cast(TIME).to_physical()
    touched = sessions.filter(
        (pl.col("is_enrolled") | pl.col("is_late_enrolment")) & (at.is_null() | (at <= as_of_us))
    ).select("session_id", "experiment", "rule_digest", "is_enrolled", "is_late_enrolment", "is_open")
    if touched["experiment"].null_count():
        # A session that only a detection or delivery names has the name nowhere else.
        records = pl.concat([frame.select("session_id", "ts", "experiment") for frame in (detections, deliveries)])
        named = (
            records.filter(pl.col("experiment").is_not_null())
            .sort("session_id", "ts", "experiment", nulls_last=True)
            .unique("session_id", keep="first", maintain_order=True)
            .select("session_id", pl.col("experiment").alias("experiment_logged"))
        )
        touched = (
            touched.join(named, on="session_id", how="left")
            .with_columns(pl.coalesce("experiment", "experiment_logged").fill_null(""))
            .drop("experiment_logged")
        )
    return touched


def _strata_codes(frame: pl.DataFrame, facts: pl.DataFrame | None) -> tuple[Ints, list[dict[str, Any]]]:
    """A code per loop, and by code the stratum: epoch, share, salt, and the rule digest that the log's writer told."""
    import numpy as np

    names = ["epoch", "share_bp", "salt_id"]
    frame = frame.select("session_id", *names)
    digests = [] if facts is None else facts["rule_digest"].drop_nulls().unique().to_list()
    if facts is not None and len(digests) > 1:
        told = facts.select("session_id", pl.col("rule_digest").alias("digest_told"))
        frame = frame.join(told, on="session_id", how="left", maintain_order="left")
    else:
        digest = digests[0] if digests else None
        frame = frame.with_columns(pl.lit(digest, dtype=pl.String()).alias("digest_told"))
    names.append("digest_told")
    counts = frame.select(pl.col(names).n_unique()).row(0) if frame.height else (0,)
    if max(counts) <= 1:
        return np.zeros(frame.height, dtype=np.int64), frame.select(names).head(1).to_dicts()
    strata = frame.select(names).unique().sort(names, nulls_last=True).with_row_index("stratum")
    coded = frame.join(strata, on=names, how="left", nulls_equal=True, maintain_order="left")
    return coded["stratum"].cast(pl.Int64()).to_numpy(), strata.drop("stratum").to_dicts()


def _experiment(question: _Question, name: str, frame: pl.DataFrame, facts: pl.DataFrame | None) -> Iterator[Estimate]:
    """The scopes of one experiment, or the replay where `facts` is None."""
    import numpy as np

    codes, strata = _strata_codes(frame, facts)
    detected = frame["detected_at"].cast(TIME).to_physical().fill_null(_NO_TIME).to_numpy()
    is_untimed = detected == _NO_TIME
    maturity = pl.duration(microseconds=question.settings.maturity_us)
    mature_at = pl.coalesce(pl.col("mature_at").cast(TIME), pl.col("detected_at").cast(TIME) + maturity)
    is_pending = _bools(frame, mature_at.to_physical() > question.as_of_us)
    is_wanted = np.ones(frame.height, dtype=bool) if question.where is None else _bools(frame, question.where)
    within = ~is_untimed
    if question.since_us is not None:
        within &= detected >= question.since_us
    if question.until_us is not None:
        within &= detected < question.until_us
    is_armed = pl.col("arm").is_in(list(ARMS))
    has_arm = _bools(frame, is_armed)
    is_unchecked = _bools(frame, pl.col("arm_bp").is_null() | ~is_armed)
    frame = _only(frame, is_armed)
    units = _units(frame, codes[has_arm])
    rows = frame.select(*_OUTCOMES, *[name for name in question.by if name not in _OUTCOMES])
    scopes = [("replay", within if question.is_windowed else None)]
    if facts is not None:
        scopes = [("window", within)] * question.is_windowed + [("to_date", None)]
    for scope, inside in scopes:
        asked = is_wanted if inside is None else is_wanted & inside
        analysed, pending = asked & ~is_pending, (asked & is_pending)[has_arm]
        chosen = analysed[has_arm]
        is_whole = bool(chosen.all())
        yield _estimate(
            _Part(
                question,
                scope,
                name,
                units if is_whole else units.take(chosen),
                rows if is_whole else rows.filter(chosen),
                tuple(strata),
                _by_arm(units, pending),
                int(np.count_nonzero(analysed & is_untimed)),
                int(np.count_nonzero(analysed & is_unchecked)),
                facts,
            )
        )


@dataclass(frozen=True)
class _Part:
    """One scope's loops in the analysis, and what is counted beside them."""

    question: _Question
    scope: str
    experiment: str
    units: _Units
    rows: pl.DataFrame
    strata: tuple[dict[str, Any], ...]
    pending: tuple[int, int]
    count_untimed: int
    count_unchecked: int
    facts: pl.DataFrame | None

    @property
    def audit(self) -> ExperimentAudit:
        checks = self.question.audit
        return checks.replay if self.facts is None else checks.of(self.experiment)

    @property
    def n_star(self) -> int:
        """Planned total of the experiment: by name, else by the salt that its loops carry."""
        known = self.question.settings.experiments
        if self.experiment in known:
            return known[self.experiment].n_star
        salts = {stratum.get("salt_id") for stratum in self.strata}
        return next((known[n].n_star for n in sorted(known) if known[n].salt_id in salts), DEFAULT_N_STAR)


def _estimate(part: _Part) -> Estimate:
    import numpy as np

    units = part.units
    is_to_date = part.scope == "to_date"
    failures = part.audit.failures
    if part.count_unchecked:
        failures = (*failures, "salt_unknown")
    sensitivities: dict[str, Comparison] = {}
    segments: tuple[Segment, ...] = ()
    n_star = part.n_star
    unresolved = ~(units.broke | units.recurred)
    if failures:
        headline, details = _hidden(units, failures), {}
        if part.question.by:
            segments = tuple(_segments(part, n_star, failures))
    else:
        headline, strata = _compare(units, n_star=n_star if is_to_date else None)
        sensitivities = _sensitivities(part)
        if "clusters_lt_2" in headline.reasons:
            headline = replace(headline, ci_fixed=sensitivities["first_loop_only"].ci_fixed)
        details = _details(part, headline, strata, n_star)
        p = details["attrition"]["fisher_p"]
        if part.facts is not None and p is not None and p < ATTRITION_P:
            sensitivities["resolved_only"] = _hidden(units.take(~unresolved), ("attrition_differs",))
        if part.question.by:
            segments = tuple(_segments(part, n_star, ()))
    verdict, reason = _verdict(part.scope, headline, failures)
    reasons = (*headline.reasons, *(() if reason is None else (reason,)))
    return Estimate(
        part.scope,
        part.experiment,
        headline,
        _by_arm(units, units.recurred),
        _by_arm(units, unresolved),
        verdict,
        reasons,
        part.pending,
        part.count_untimed,
        n_star,
        sensitivities,
        segments,
        _plan(part)
        | details
        | {
            "count_salt_unknown": part.count_unchecked,
            "count_late_enrolment": 0 if part.facts is None else int(part.facts["is_late_enrolment"].sum()),
            "interrupted": Rate(int(np.count_nonzero(units.is_interrupted)), len(units)).to_json(),
            "infra": Rate(int(np.count_nonzero(units.is_infra)), len(units)).to_json(),
            "one_turn": Rate(int(np.count_nonzero(units.is_one_turn)), len(units)).to_json(),
            "delivery": _delivery(part),
            "audit": part.audit.to_json(),
        },
        _known_now(part) if not failures else {},
    )


def _by_arm(units: _Units, chosen: Bools) -> tuple[int, int]:
    import numpy as np

    return int(np.count_nonzero(chosen & units.treated)), int(np.count_nonzero(chosen & ~units.treated))


def _verdict(scope: str, headline: Comparison, failures: tuple[str, ...]) -> tuple[str | None, str | None]:
    """The word, from the anytime interval only, and the reason where there can be none."""
    if failures:
        return "withheld", None
    if scope == "window":
        return None, "window_has_no_nightly_verdict"
    if scope == "replay":
        return None, "replay_has_no_verdict"
    if headline.ci_anytime is None or "wide" in headline.reasons:
        return "no verdict yet", None
    low, high = headline.ci_anytime
    return ("helps", None) if low > 0 else ("harms", None) if high < 0 else ("no verdict yet", None)


def _sensitivities(part: _Part) -> dict[str, Comparison]:
    """The lift on other sets of loops. A replay has no effect to doubt, so only what its interval may fall back on."""
    units = part.units
    parts: dict[str, Bools] = {
        "resolved_only": units.broke | units.recurred,
        "without_interrupted": ~units.is_interrupted,
        "without_infra": ~units.is_infra,
        "without_one_turn": ~units.is_one_turn,
    }
    out = {} if part.facts is None else {name: _compare(units, chosen)[0] for name, chosen in parts.items()}
    # One loop per session: nothing is clustered and no treated loop came before, so the plain interval holds.
    out["first_loop_only"] = _compare(units, units.is_first, is_clustered=False)[0]
    return out


def _plan(part: _Part) -> dict[str, Any]:
    timed = part.units.detected[part.units.detected != _NO_TIME]
    return {
        "maturity_hours": part.question.settings.maturity_us / 3_600_000_000,
        "first_detected_at": iso(int(timed.min())) if timed.size else None,
        "last_detected_at": iso(int(timed.max())) if timed.size else None,
        "strata": [dict(stratum) for stratum in part.strata],
    }


def _details(part: _Part, headline: Comparison, strata: Sequence[_Stratum], n_star: int) -> dict[str, Any]:
    units = part.units
    n1, x0, n0 = headline.treated.n, headline.holdout.x, headline.holdout.n
    unresolved = ~(units.broke | units.recurred)
    u1, u0 = _by_arm(units, unresolved)
    is_sidestepped = _bools(part.rows, pl.col("is_sidestepped"))
    s1, s0 = _by_arm(units, is_sidestepped)
    return {
        "pooling": _pooling(part, strata),
        "log_e_value": _log_e(strata, n_star) if part.scope == "to_date" and headline.df is not None else None,
        "bounds": _bounds(units, unresolved, headline, strata),
        "attrition": _attrition(u1, n1, u0, n0),
        "holdout_after_treated": _after_treated(units),
        "sidestepped": {"treated": Rate(s1, n1).to_json(), "holdout": Rate(s0, n0).to_json()},
        "time_to_break": _time_to_break(part),
        "relative_lift": _relative(headline, x0, n0),
        "cace": _cace(part, strata),
        "planning": _planning(part, headline, n_star),
    }


def _pooling(part: _Part, strata: Sequence[_Stratum]) -> dict[str, Any]:
    """How epochs were put together; the plain Mantel-Haenszel interval (no clusters, one look) as a cross-check."""
    out: dict[str, Any] = {
        "is_stratified": len(strata) > 1,
        "count_strata": len(strata),
        "parts": [
            part.strata[stratum.code]
            | {"treated": Rate(x1, n1).to_json(), "holdout": Rate(x0, n0).to_json(), "weight": stratum.weight}
            for stratum in strata
            for x1, n1, x0, n0 in (stratum.counts,)
        ],
        "mantel_haenszel": None,
    }
    if len(strata) > 1:
        try:
            pooled = iv.mantel_haenszel([stratum.counts for stratum in strata])
            ends = {"ci_low": pooled.low, "ci_high": pooled.high}
            out["mantel_haenszel"] = {"lift": pooled.lift, "se": pooled.se} | ends
        except iv.Undefined as undefined:
            out["mantel_haenszel"] = {"reason": undefined.reason}
    return out


def _log_e(strata: Sequence[_Stratum], n_star: int) -> float | None:
    """ln of the e-value against no lift; epochs hold different sessions, so their e-values multiply."""
    designs = [stratum.design.deff for stratum in strata if stratum.design is not None]
    if not designs:
        return None
    return math.fsum(
        iv.log_e_value(*stratum.counts, n_star, ALPHA, max(designs) if stratum.design is None else stratum.design.deff)
        for stratum in strata
    )


def _bounds(units: _Units, unresolved: Bools, headline: Comparison, strata: Sequence[_Stratum]) -> dict[str, Any]:
    """Worst-case bounds, whatever the unresolved loops would have become, and Imbens and Manski's interval."""
    empty: dict[str, Any] = {
        "low": None,
        "high": None,
        "ci_low": None,
        "ci_high": None,
        "ci_clustered_low": None,
        "ci_clustered_high": None,
        "is_sign_open": None,
        "reason": None,
    }
    if headline.lift is None:
        return empty | {"reason": headline.reasons[0]}
    if len(strata) > 1:
        low = high = 0.0
        for stratum in strata:
            ends = iv.manski_bounds(*_lost(units.take(units.stratum == stratum.code)))
            low, high = low + stratum.weight * ends[0], high + stratum.weight * ends[1]
        return empty | {"low": low, "high": high, "is_sign_open": low < 0 < high, "reason": "stratified"}
    counts = _lost(units)
    low, high = iv.manski_bounds(*counts)
    out = empty | {"low": low, "high": high, "is_sign_open": low < 0 < high}
    try:
        out["ci_low"], out["ci_high"] = iv.imbens_manski(*counts)
        if headline.deff is not None:
            scaled = [count / headline.deff for count in counts]
            out["ci_clustered_low"], out["ci_clustered_high"] = iv.imbens_manski(*scaled)
    except iv.Undefined as undefined:
        out["reason"] = undefined.reason
    return out


def _lost(units: _Units) -> tuple[int, int, int, int, int, int]:
    """Per arm broke, unresolved, assigned."""
    import numpy as np

    broke, lost = _by_arm(units, units.broke), _by_arm(units, ~(units.broke | units.recurred))
    n1 = int(np.count_nonzero(units.treated))
    return broke[0], lost[0], n1, broke[1], lost[1], len(units) - n1


def _difference(x1: int, n1: int, x0: int, n0: int) -> dict[str, Any]:
    """Two rates and their difference with Newcombe's interval; None for arms under five."""
    out: dict[str, Any] = {"difference": None, "ci_low": None, "ci_high": None, "reason": _size_reason(n1, n0)}
    if out["reason"] is None:
        out["difference"] = x1 / n1 - x0 / n0
        out["ci_low"], out["ci_high"] = iv.newcombe(x1, n1, x0, n0)
    return out


def _attrition(u1: int, n1: int, u0: int, n0: int) -> dict[str, Any]:
    return (
        {"treated": Rate(u1, n1).to_json(), "holdout": Rate(u0, n0).to_json()}
        | _difference(u1, n1, u0, n0)
        | {"fisher_p": iv.fisher_attrition(u1, n1, u0, n0) if n1 and n0 else None}
    )


def _after_treated(units: _Units) -> dict[str, Any]:
    """Holdout loops with and without an earlier treated loop in their session: do interventions reach the holdout?"""
    import numpy as np

    held = ~units.treated
    after, alone = held & units.is_after_treated, held & ~units.is_after_treated
    x1, n1, x0, n0 = (int(np.count_nonzero(m)) for m in (after & units.broke, after, alone & units.broke, alone))
    return {"after": Rate(x1, n1).to_json(), "not_after": Rate(x0, n0).to_json()} | _difference(x1, n1, x0, n0)


def _time_to_break(part: _Part) -> dict[str, Any]:
    """Cumulative incidence of "broke" by steps after the detection, with "recurred" and the end of the run competing.

    Outcomes are frozen at maturity, so no loop in the analysis is cut off by the data. Then the Aalen-Johansen
    estimate is the plain share of loops that broke by a step and its delta-method variance is F(1-F)/n (a test holds
    both against `intervals.aalen_johansen`): each value stays a rate with its n, and the last one is the headline's.
    """
    import numpy as np

    steps = part.rows["steps_to_outcome"].fill_null(0).to_numpy()
    out: dict[str, Any] = {}
    for i, arm in enumerate(ARMS):
        mine = part.units.treated if i == 0 else ~part.units.treated
        n = int(np.count_nonzero(mine))
        curve = []
        broke_at = steps[mine & part.units.broke]
        for limit in (*BREAK_STEPS, None):
            x = int(broke_at.size if limit is None else np.count_nonzero(broke_at <= limit))
            low, high = iv.wilson(x, n) if n >= MIN_PERCENT else (None, None)
            se = math.sqrt(x * (n - x) / n**3) if n >= MIN_PERCENT else None
            curve.append({"steps": limit} | Rate(x, n).to_json() | {"se": se, "low": low, "high": high})
        out[arm] = curve
    return out


def _relative(headline: Comparison, x0: int, n0: int) -> dict[str, Any]:
    if headline.lift is None or n0 < MIN_PERCENT:
        return {"value": None, "reason": headline.reasons[0] if headline.reasons else "n_lt_5"}
    if iv.wilson(x0, n0)[0] < MIN_RELATIVE:
        return {"value": None, "reason": "holdout_rate_low"}
    return {"value": headline.lift / (x0 / n0), "reason": None}


def _delivery(part: _Part) -> dict[str, Any]:
    """Delivered share per arm with Wilson's interval. No record of a delivery is no delivery."""
    import numpy as np

    delivered = _bools(part.rows, pl.col("is_delivered"))
    out: dict[str, Any] = {"is_any_logged": bool(part.rows["is_delivered"].is_not_null().any())}
    for i, arm in enumerate(ARMS):
        mine = part.units.treated if i == 0 else ~part.units.treated
        x, n = int(np.count_nonzero(delivered & mine)), int(np.count_nonzero(mine))
        low, high = iv.wilson(x, n) if n >= MIN_PERCENT else (None, None)
        out[arm] = Rate(x, n).to_json() | {"low": low, "high": high}
    return out


def _cace(part: _Part, strata: Sequence[_Stratum]) -> dict[str, Any]:
    """Effect among those whose delivery follows the arm. Loops count as independent here."""
    import numpy as np

    empty: dict[str, Any] = {"value": None, "first_stage": None, "ci_low": None, "ci_high": None}
    if part.facts is None:
        return empty | {"reason": "replay_delivers_nothing"}
    if len(strata) > 1:
        return empty | {"reason": "stratified"}
    treated = part.units.treated
    n1 = int(np.count_nonzero(treated))
    if (reason := _size_reason(n1, len(treated) - n1)) is not None:
        return empty | {"reason": reason}
    delivered = _bools(part.rows, pl.col("is_delivered"))
    if not bool(delivered.any()):
        return empty | {"reason": "nothing_delivered"}
    index = 4 * treated.astype(np.int64) + 2 * delivered + part.units.broke
    counts = np.bincount(index, minlength=8).tolist()
    effect = iv.cace_fieller({(z, d, y): counts[4 * z + 2 * d + y] for z in (0, 1) for d in (0, 1) for y in (0, 1)})
    return {
        "value": effect.cace,
        "first_stage": effect.first_stage,
        "ci_low": effect.low,
        "ci_high": effect.high,
        "reason": effect.reason,
    }


def _planning(part: _Part, headline: Comparison, n_star: int) -> dict[str, Any]:
    """Smallest lift found with power 0.8, now and at n*, and nights to n*. n* counts loops divided by deff."""
    out: dict[str, Any] = dict.fromkeys(("mde_now", "mde_at_n_star", "n_effective", "nights_to_n_star", "reason"))
    effective = headline.n_effective
    if headline.lift is None or headline.deff is None or headline.df is None or effective is None:
        return out | {"reason": headline.reasons[0] if headline.reasons else "no_shared_epoch"}
    n1, n0 = headline.treated.n, headline.holdout.n
    p0 = headline.holdout.x / n0
    t = _t_quantile(headline.df)
    multiplier = iv.anytime_multiplier(effective, n_star) * t / _Z if part.scope == "to_date" else t
    out |= {
        "n_effective": effective,
        "mde_now": iv.mde(n1, n0, p0, POWER, ALPHA, headline.deff, _inflation(multiplier)),
        "mde_at_n_star": iv.mde(
            n_star * n1 / (n1 + n0), n_star * n0 / (n1 + n0), p0, POWER, ALPHA, 1.0, iv.anytime_inflation(ALPHA, POWER)
        ),
    }
    timed = part.units.detected[part.units.detected != _NO_TIME]
    if part.scope == "to_date" and timed.size:
        nights = (part.question.as_of_us - part.question.settings.maturity_us - int(timed.min())) / DAY_US
        out["nights_to_n_star"] = iv.nights_to_n_star(effective, n_star, max(0.0, nights))
    return out


def _inflation(multiplier: float) -> float:
    ratio = (multiplier + _Z_POWER) / (_Z + _Z_POWER)
    return max(1.0, ratio * ratio)


def _known_now(part: _Part) -> dict[str, Any]:
    """What events after the maturity may still change; no part of a nightly record."""
    units = part.units
    relapsed = _bools(part.rows, pl.col("is_relapsed")) & units.broke
    r1, r0 = _by_arm(units, relapsed)
    b1, b0 = _by_arm(units, units.broke)
    out: dict[str, Any] = {"relapsed": {"treated": Rate(r1, b1).to_json(), "holdout": Rate(r0, b0).to_json()}}
    if part.facts is not None:
        waiting = part.facts.filter(pl.col("is_open"))["session_id"]
        unresolved = part.rows["session_id"].filter(~(units.broke | units.recurred)) if waiting.len() else waiting
        out["unresolved_in_open_sessions"] = int(unresolved.is_in(waiting.implode()).sum())
    return out


# --- segments --------------------------------------------------------------------------------------------------------


def _segments(part: _Part, n_star: int, failures: tuple[str, ...]) -> Iterator[Segment]:
    """Every value of the split. Tested with an e-value where both arms have 10 loops and 10 sessions (by n alone)."""
    import numpy as np

    by = list(part.question.by)
    if not len(part.units):
        return
    values = part.rows.select(by)
    groups = values.unique().sort(by, nulls_last=True).with_row_index("segment")
    code = values.join(groups, on=by, how="left", nulls_equal=True, maintain_order="left")["segment"].to_numpy()
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=groups.height))
    is_nightly = part.scope == "to_date" and not failures
    found: list[tuple[Segment, _Units]] = []
    for i, row in enumerate(groups.drop("segment").iter_rows(named=True)):
        units = part.units.take(order[(ends[i - 1] if i else 0) : ends[i]])
        keys = tuple(row.items())
        shown = _hidden(units, failures)
        if failures:
            found.append((Segment(keys, shown), units))
            continue
        if min(shown.treated.n, shown.holdout.n) < MIN_VERDICT:
            reason = _size_reason(shown.treated.n, shown.holdout.n)
            reasons = ("segment_n_lt_10",) if reason is None else (reason, "segment_n_lt_10")
            found.append((Segment(keys, replace(shown, reasons=reasons)), units))
            continue
        compared, strata = _compare(units, n_star=n_star if is_nightly else None)
        log_e = _log_e(strata, n_star) if is_nightly and "wide" not in compared.reasons else None
        found.append((Segment(keys, compared, log_e), units))
    tested = [i for i, (segment, _) in enumerate(found) if segment.log_e is not None]
    chosen = [tested[k] for k in iv.e_bh([_exp(found[i][0].log_e) for i in tested])] if tested else []
    for i, (segment, units) in enumerate(found):
        if i in chosen:
            alpha = 1.0 - iv.fcr_level(len(chosen), len(tested), ALPHA)
            interval = _compare(units, n_star=n_star, alpha_anytime=alpha)[0].ci_anytime
            segment = replace(segment, is_selected=True, ci_selected=interval)
        yield segment


def _exp(log_value: float | None) -> float:
    try:
        return math.exp(log_value or 0.0)
    except OverflowError:
        return math.inf


# --- audit -----------------------------------------------------------------------------------------------------------


def audit(
    loops: pl.DataFrame,
    sessions: pl.DataFrame,
    detections: pl.DataFrame,
    deliveries: pl.DataFrame,
    settings: Settings,
    *,
    as_of_us: int | None = None,
) -> Audit:
    """METHOD 11: the logged arms recomputed, the log's loops against the replay's, delivery against arm, the split.

    The arm is recomputed from the run and class *as the record has them*, with the salt that the session names and the
    share that the assignment uses; records of a session whose salt is not configured are counted as unchecked.
    """
    limit = _NO_TIME if as_of_us is None else as_of_us
    return _audit(_strategy_loops(loops, limit), _once(sessions, "session_id"), detections, deliveries, settings, limit)


def _audit(
    known: pl.DataFrame,
    sessions: pl.DataFrame,
    detections: pl.DataFrame,
    deliveries: pl.DataFrame,
    settings: Settings,
    limit: int,
) -> Audit:
    known, records = _keyed(known, _records(detections, deliveries, sessions, limit))
    records = _recompute(records, settings)
    live = _only(known, pl.col("is_enrolled"))
    named = pl.concat([live["experiment"].fill_null("").unique(), records["experiment"].drop_nulls().unique()])
    names = named.unique().sort().to_list()
    experiments = {}
    for name in names:
        part = live if len(names) == 1 else live.filter(pl.col("experiment").fill_null("") == name)
        experiments[name] = _audit_one(name, part, known, _only(records, pl.col("experiment") == name))
    outside = _audit_one("", live.clear(), known, records.filter(pl.col("experiment").is_null()))
    replay = ExperimentAudit("", splits=_splits(_only(known, ~pl.col("is_enrolled"))))
    return Audit(experiments, replay, outside)


def _records(detections: pl.DataFrame, deliveries: pl.DataFrame, sessions: pl.DataFrame, limit: int) -> pl.DataFrame:
    """Detection and delivery records known by the limit, with what their session says of the experiment."""
    nothing, no_points = pl.lit(None, dtype=pl.Boolean()), pl.lit(None, dtype=pl.Int64())
    both = pl.concat(
        [
            _only(detections, pl.col("rule").is_null() | (pl.col("rule") == rule.STRATEGY_LOOP)).select(
                *_PLACE, "arm_bp", nothing.alias("is_delivered"), pl.lit(False).alias("is_delivery")
            ),
            deliveries.select(*_PLACE, no_points.alias("arm_bp"), "is_delivered", pl.lit(True).alias("is_delivery")),
        ]
    )
    at = pl.col("ts").cast(TIME).to_physical()
    both = _only(both, at.is_null() | (at <= limit))
    both = _once(both, *both.columns)
    terms = sessions.select(
        "session_id",
        pl.col("experiment").alias("experiment_session"),
        "salt_id",
        pl.col("share_bp").alias("share_session"),
        "is_enrolled",
    )
    return both.join(terms, on="session_id", how="left").with_columns(
        pl.coalesce("experiment_session", "experiment").alias("experiment"), pl.col("is_enrolled").fill_null(False)
    )


def _keyed(known: pl.DataFrame, records: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both frames with `key`, one small integer per run and class: comparing texts takes much longer."""
    if not records.height:
        return known.with_row_index("key").with_columns(pl.col("key").cast(pl.Int64())), records.with_columns(
            pl.lit(0, dtype=pl.Int64()).alias("key")
        )
    codes = pl.Series("key", _codes(pl.concat([known.select(KEY), records.select(KEY)])))
    return known.with_columns(codes[: known.height]), records.with_columns(codes[known.height :])


def _recompute(records: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """Records with `arm_true` and `arm_bp_true`; null where the salt is not configured or no class is logged.

    Every logged run and class is hashed here, once: an audit that took an arm from the lake would trust what it audits.
    """
    import numpy as np

    salts = settings.salts
    points = np.full(records.height, -1, dtype=np.int64)
    key = records["key"].to_numpy()
    for name, (salt, _) in salts.items():
        rows = np.flatnonzero(_bools(records, pl.col("signature").is_not_null() & (pl.col("salt_id") == name)))
        distinct, where, code = np.unique(key[rows], return_index=True, return_inverse=True)
        asked = records.select(KEY)[rows[where]] if distinct.size else records.select(KEY).clear()
        hashes = [rule.arm_bp(salt, *row) for row in asked.iter_rows()]
        points[rows] = np.array(hashes, dtype=np.int64)[code]
    shares = [pl.when(pl.col("salt_id") == name).then(share) for name, (_, share) in salts.items()]
    told = records.with_columns(
        pl.when(pl.Series(points) >= 0).then(pl.Series(points)).alias("arm_bp_true"),
        pl.coalesce("share_session", *shares).alias("share_true"),
    )
    is_treated = pl.col("arm_bp_true") < pl.col("share_true")
    arm_true = pl.when(is_treated).then(pl.lit("treated")).when(~is_treated).then(pl.lit("holdout")).alias("arm_true")
    return told.with_columns(arm_true)


def _count_keys(*frames: pl.DataFrame) -> int:
    return 1 + max((int(frame["key"].to_numpy().max()) for frame in frames if frame.height), default=-1)


def _apart(frame: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Rows whose key no row of the others has."""
    import numpy as np

    is_there = np.zeros(_count_keys(frame, others), dtype=bool)
    is_there[others["key"].to_numpy()] = True
    return frame.filter(~is_there[frame["key"].to_numpy()])


def _logged(enrolled: pl.DataFrame) -> pl.DataFrame:
    """One row per key, with the first arm that its records give in the order of the log."""
    import numpy as np

    told = enrolled.with_columns(pl.coalesce("arm_true", "arm").alias("arm"))

    def first_rows() -> Ints:
        is_armed = told["arm"].is_not_null().to_numpy()
        # Of several rows of one key the one that is written last stays.
        backwards = np.concatenate([np.flatnonzero(~is_armed), np.flatnonzero(is_armed)[::-1]])
        first = np.full(_count_keys(told), -1, dtype=np.int64)
        first[told["key"].to_numpy()[backwards]] = backwards
        return first

    first = first_rows()
    if bool((told["arm"] != told["arm"].gather(first[told["key"].to_numpy()])).any()):
        # Only where the records of one key differ does their order matter.
        told = told.sort("source_file", "source_line", "is_delivery", "arm", nulls_last=True)
        first = first_rows()
    return told.select("key", *KEY, "arm")[first[first >= 0]]


def _audit_one(name: str, live: pl.DataFrame, known: pl.DataFrame, records: pl.DataFrame) -> ExperimentAudit:
    is_checked = pl.col("arm_true").is_not_null() & (pl.col("arm").is_not_null() | pl.col("arm_bp").is_not_null())
    is_other = [(pl.col(told) != pl.col(f"{told}_true")).fill_null(False) for told in ("arm", "arm_bp")]
    wrong = records.filter(is_checked & pl.any_horizontal(is_other))
    units = live.select("key", "loop_id", *KEY, "arm", "is_delivered")
    logged = _logged(_only(records, pl.col("is_enrolled") & pl.col("signature").is_not_null()))
    only_log, only_replay = _apart(logged, units), _apart(units, logged)
    is_delivered = pl.col("is_delivered").fill_null(False)
    n_treated, n_held, _ = _arm_counts(units)
    missed = units.filter((pl.col("arm") == "treated") & ~is_delivered)
    leaked = units.filter((pl.col("arm") == "holdout") & is_delivered)
    delivered = records.filter(pl.col("is_delivery") & is_delivered)
    strays = _apart(delivered, known)
    has_deliveries = bool(records["is_delivery"].any() or units["is_delivered"].is_not_null().any())
    count_checked = records.filter(is_checked).height
    names = ["loop_id", *KEY]
    return ExperimentAudit(
        experiment=name,
        n_checked=count_checked,
        n_unchecked=records.height - count_checked,
        hash_failures=_named(wrong, [*KEY, "arm", "arm_true", "arm_bp", "arm_bp_true", "source_file", "source_line"]),
        only_log=_rates(only_log, logged),
        only_log_named=_named(only_log, [*KEY, "arm"]),
        only_replay=_rates(only_replay, units),
        # Where nothing is logged every loop is missing and every treated one was missed: a count says it all.
        only_replay_named=_named(only_replay, [*names, "arm"]) if logged.height else Named(only_replay.height),
        has_records=records.height > 0,
        has_deliveries=has_deliveries,
        treated_not_delivered=Rate(missed.height, n_treated),
        treated_not_delivered_named=_named(missed, names) if has_deliveries else Named(missed.height),
        holdout_delivered=Rate(leaked.height, n_held),
        holdout_delivered_named=_named(leaked, names),
        delivered_without_loop=_named(strays, [*KEY, "source_file", "source_line"]),
        splits=_splits(live),
    )


def _rates(part: pl.DataFrame, whole: pl.DataFrame) -> tuple[tuple[str, Rate], ...]:
    """Share of `part` in `whole` by arm; loops whose arm nobody knows stand under `unknown`."""
    counts = [_arm_counts(frame) for frame in (part, whole)]
    names = [*ARMS, *(["unknown"] if counts[1][2] else [])]
    return tuple((name, Rate(counts[0][i], counts[1][i])) for i, name in enumerate(names))


def _arm_counts(frame: pl.DataFrame) -> tuple[int, int, int]:
    """Treated, holdout, neither."""
    treated, held = (int((frame["arm"] == arm).sum()) for arm in ARMS)
    return treated, held, frame.height - treated - held


def _named(frame: pl.DataFrame, columns: list[str]) -> Named:
    shown = frame.select(columns)
    if shown.height > NAMED_MAX:
        shown = shown.bottom_k(NAMED_MAX, by=columns)
    shown = shown.sort(columns, nulls_last=True)
    return Named(frame.height, tuple(tuple(row.items()) for row in shown.iter_rows(named=True)))


def _splits(units: pl.DataFrame) -> tuple[SplitCheck, ...]:
    """Sample ratio per epoch and share, on all assigned units, pending ones too: assignment waits for no outcome."""
    keys = ["epoch", "share_bp"]
    sizes = [(pl.col("arm") == arm).sum().alias(f"n_{arm}") for arm in ARMS]
    # One epoch and share is the rule, and then there is nothing to group.
    is_one = units.height > 0 and max(units.select(pl.col(keys).n_unique()).row(0)) == 1
    grouped = units.select(pl.col(keys).first(), *sizes) if is_one else units.group_by(keys).agg(sizes)
    counted = grouped.filter(pl.sum_horizontal(r"^n_.*$") > 0).sort(keys, nulls_last=True)
    out = []
    for epoch, share_bp, n1, n0 in counted.iter_rows():
        if share_bp is None or not 0 < share_bp < 10_000:
            out.append(SplitCheck(epoch, share_bp, n1, n0, None, None))
            continue
        share = share_bp / 10_000
        p, log_e = iv.srm_exact(n1, n1 + n0, share), iv.srm_log_e_value(n1, n0, share)
        out.append(SplitCheck(epoch, share_bp, n1, n0, p, log_e))
    return tuple(out)


# --- warnings --------------------------------------------------------------------------------------------------------

# In the order in which they matter; severity 3 takes the result away, 2 puts it in doubt, 1 is good to know.
_WARNINGS: dict[str, tuple[int, str]] = {
    "hash_audit_failed": (3, "records with another arm than their salt, run and class give: {}; no lift is shown"),
    "srm_failed": (3, "the split of the arms is not the planned one: no lift is shown"),
    "share_invalid": (3, "loops carry no treated share between 0 and 100 %: no lift is shown"),
    "salt_unknown": (3, "loops whose salt is not configured, so that their arm is not checked: {}; no lift is shown"),
    "attrition_differs": (2, "the share of unresolved loops differs between the arms: no resolved-only lift is shown"),
    "srm_warning": (2, "the split of the arms is unlikely under the planned share (exact p < 0.001)"),
    "no_delivery_logged": (
        2,
        "no delivery is logged: as far as the logs tell this is an A/A replay, in which a "
        "difference can only be chance or a broken instrument",
    ),
    "holdout_delivered": (2, "holdout loops that got the intervention: {}"),
    "treated_not_delivered": (2, "treated loops that did not get the intervention: {}"),
    "delivered_without_loop": (2, "deliveries without a loop: {}"),
    "loops_only_in_log": (2, "loops that the log detected and the replay did not: {}"),
    "loops_only_in_replay": (2, "loops that the replay detected and the log did not: {}"),
    "unclassified": (1, "steps of a tool in no class (`loopstats tools` names it): {}"),
    "unknown_outcomes": (1, "steps of unknown outcome: {}"),
    "untimed_steps": (1, "steps without a time: {}"),
    "rejects": (1, "lines or records that could not be read: {}"),
    "late_enrolment": (2, "sessions named by the experiment only at or after a detection, left out: {}"),
    "sign_depends_on_unresolved": (2, "the sign of the lift depends on what the unresolved loops would have become"),
    "interference": (
        2,
        "holdout loops break at another rate after a treated loop of their session: interventions may "
        "reach the holdout",
    ),
    "first_loop_differs": (
        2,
        "the lift of each session's first loop lies outside the interval: think of assigning whole sessions",
    ),
    "rule_digest_differs": (1, "the logs were written under rule digest {}, this replay uses {}"),
    "epochs_stratified": (
        2,
        "share, salt, epoch or rule changed: the lift is pooled over {} epochs and is not the "
        "plain difference of the rates",
    ),
    "oversize": (2, f"runs of more than {OVERSIZE_STEPS:,} steps, made whole in memory (docs/scale.md): {{}}"),
    "filtered": (1, "a part of the experiment, chosen by a filter: a verdict found by looking for it is no evidence"),
    "no_loops": (1, "no strategy loop is known at the as-of"),
    "no_enrolled_session": (1, "no session is enrolled in an experiment: this is an A/A replay"),
    "untimed": (1, "loops without a time, counted all the same: {}"),
    "pending": (1, "loops younger than the maturity time, not counted yet: {}"),
}


def quality(steps: pl.LazyFrame, sources: pl.DataFrame, as_of_us: int) -> tuple[Notice, ...]:
    """METHOD 11, what the numbers rest on: unclassified tools, unknown outcomes, untimed steps, rejected records.

    `steps`: tables.STEPS, those known at the as-of and those without a time. `sources`: tables.SOURCES as it is now.
    """
    return quality_of(quality_counts(steps, as_of_us), sources)


QUALITY = ("ts", "kind", "outcome", "step")


def quality_counts(steps: pl.LazyFrame, as_of_us: int) -> pl.DataFrame:
    """Steps known at the as-of, and of them those of no class, of unknown outcome, without a time: one row.

    Oversize runs and all runs are counted too, by the one step that has a number.

    `steps`: the columns `QUALITY`, of all steps or of any part of them: rows of parts may be added.
    """
    at = pl.col("ts").dt.epoch("us")
    counts = {
        "total": pl.len(),
        "other": (pl.col("kind") == "other").sum(),
        "unknown": (pl.col("outcome") == "unknown").sum(),
        "untimed": pl.col("ts").is_null().sum(),
        "oversize": (pl.col("step") == OVERSIZE_STEPS).sum(),
        "runs": (pl.col("step") == 0).sum(),
    }
    known = steps.filter(at.is_null() | (at <= as_of_us))
    return known.select([count.cast(pl.Int64).alias(name) for name, count in counts.items()]).collect()


def quality_of(counts: pl.DataFrame, sources: pl.DataFrame) -> tuple[Notice, ...]:
    """`quality` of counted parts."""
    total, other, unknown, untimed, oversize, runs = counts.sum().row(0)
    rejected = int(sources["count_rejected"].sum())
    read = int(sources["count_read"].sum())
    shares = (
        ("unclassified", other, total),
        ("unknown_outcomes", unknown, total),
        ("untimed_steps", untimed, total),
        ("rejects", rejected, read),
    )
    return (*(_notice(code, "", Rate(x, n)) for code, x, n in shares), *oversize_of(oversize, runs))


def oversize_of(count: int, runs: int) -> tuple[Notice, ...]:
    """The notice of `count` runs, of all, that are beyond `OVERSIZE_STEPS`; none where there is none."""
    return (_notice("oversize", "", Rate(count, runs)),) if count else ()


def oversize(runs: pl.LazyFrame) -> tuple[Notice, ...]:
    """The same of `runs` (tables.RUNS): for answers that look at no steps."""
    sizes = runs.select("count_steps").collect()["count_steps"]
    return oversize_of(int((sizes > OVERSIZE_STEPS).sum()), sizes.len())


def _notice(code: str, experiment: str, *values: object) -> Notice:
    severity, text = _WARNINGS[code]
    return Notice(code, severity, experiment, text.format(*values))


def _warnings(question: _Question, estimates: Sequence[Estimate], facts: pl.DataFrame) -> Iterator[Notice]:
    full = [estimate for estimate in estimates if estimate.scope != "window"]
    if not any(e.headline.treated.n + e.headline.holdout.n + sum(e.pending) for e in full):
        yield _notice("no_loops", "")
    if not bool(facts["is_enrolled"].any()):
        yield _notice("no_enrolled_session", "")
    for estimate in full:
        yield from _doubts(estimate)
        if estimate.scope == "to_date":
            mine = facts.filter(pl.col("experiment") == estimate.experiment)
            yield from _integrity(question, question.audit.of(estimate.experiment), mine)
        elif "srm_failed" in question.audit.replay.failures:
            yield _notice("srm_failed", "")
    outside = question.audit.outside
    if outside.hash_failures.n:
        yield _notice("hash_audit_failed", "", outside.hash_failures.n)
    if outside.delivered_without_loop.n:
        yield _notice("delivered_without_loop", "", outside.delivered_without_loop.n)


def _doubts(estimate: Estimate) -> Iterator[Notice]:
    """What the numbers themselves say against the headline."""
    name, details = estimate.experiment, estimate.details
    is_live = estimate.scope == "to_date"
    if details["count_salt_unknown"]:
        yield _notice("salt_unknown", name, details["count_salt_unknown"])
    if is_live and any(estimate.pending):
        yield _notice("pending", name, estimate.pending[0] + estimate.pending[1])
    if is_live and estimate.count_untimed:
        yield _notice("untimed", name, estimate.count_untimed)
    resolved = estimate.sensitivities.get("resolved_only")
    if is_live and resolved is not None and "attrition_differs" in resolved.reasons:
        yield _notice("attrition_differs", name)
    if estimate.verdict in ("helps", "harms") and details["bounds"]["is_sign_open"]:
        yield _notice("sign_depends_on_unresolved", name)
    if is_live and details.get("pooling", {}).get("is_stratified"):
        yield _notice("epochs_stratified", name, details["pooling"]["count_strata"])
    after = details.get("holdout_after_treated", {})
    if is_live and after.get("ci_low") is not None and not after["ci_low"] <= 0 <= after["ci_high"]:
        yield _notice("interference", name)
    first, fixed = estimate.sensitivities.get("first_loop_only"), estimate.headline.ci_fixed
    is_known = is_live and first is not None and first.lift is not None and fixed is not None
    if is_known and first is not None and fixed is not None and not fixed[0] <= (first.lift or 0.0) <= fixed[1]:
        yield _notice("first_loop_differs", name)


def _integrity(question: _Question, checks: ExperimentAudit, facts: pl.DataFrame) -> Iterator[Notice]:
    """What the audit says."""
    name = checks.experiment
    if checks.hash_failures.n:
        yield _notice("hash_audit_failed", name, checks.hash_failures.n)
    if "srm_failed" in checks.failures:
        yield _notice("srm_failed", name)
    elif checks.is_srm_warning:
        yield _notice("srm_warning", name)
    if "share_invalid" in checks.failures:
        yield _notice("share_invalid", name)
    if checks.holdout_delivered.x:
        yield _notice("holdout_delivered", name, checks.holdout_delivered)
    if checks.treated_not_delivered.n and not checks.has_deliveries:
        yield _notice("no_delivery_logged", name)
    elif checks.treated_not_delivered.x:
        yield _notice("treated_not_delivered", name, checks.treated_not_delivered)
    if checks.delivered_without_loop.n:
        yield _notice("delivered_without_loop", name, checks.delivered_without_loop.n)
    for code, rates in (("loops_only_in_log", checks.only_log), ("loops_only_in_replay", checks.only_replay)):
        if checks.has_records and any(rate.x for _, rate in rates):
            yield _notice(code, name, ", ".join(f"{arm} {rate}" for arm, rate in rates if rate.x))
    if late := int(facts["is_late_enrolment"].sum()):
        yield _notice("late_enrolment", name, Rate(late, facts.height))
    told = facts["rule_digest"].drop_nulls().unique().sort().to_list()
    if told and told != [question.settings.rule_digest]:
        yield _notice("rule_digest_differs", name, ", ".join(told[:5]), question.settings.rule_digest)
    if question.where is not None:
        yield _notice("filtered", name)


# --- loop rates ------------------------------------------------------------------------------------------------------


def loop_rates(
    loops: pl.DataFrame, steps: pl.DataFrame, *, as_of_us: int, since_us: int | None = None, until_us: int | None = None
) -> LoopRates:
    """METHOD 10: runs with a strategy loop of those with at least 3 attempts, and loops per 1,000 attempts.

    `steps` needs run_id, kind, actor, outcome, ts. Attempts and loops are those of [since, until) up to the as-of; rows
    without a time only where no window is asked. Wilson for the runs; for the loops the exact Poisson interval from
    gamma quantiles (Garwood 1936), which takes loops as independent.
    """
    from scipy.special import gammaincinv

    def within(name: str) -> pl.Expr:
        at = pl.col(name).cast(TIME).to_physical()
        inside = at <= as_of_us
        if since_us is not None:
            inside &= at >= since_us
        if until_us is not None:
            inside &= at < until_us
        return inside.fill_null(since_us is None and until_us is None)

    is_attempt = pl.col("kind").is_in(sorted(rule.ATTEMPTS)) & (pl.col("actor") == "agent")
    tried = steps.filter(is_attempt & (pl.col("outcome") != "vetoed") & within("ts"))
    counts = tried.group_by("run_id").agg(pl.len().alias("attempts"))
    found = _strategy_loops(loops, as_of_us).filter(within("detected_at"))
    runs = counts.filter(pl.col("attempts") >= rule.EVENTS_TO_DETECT)
    looping = runs.join(found.select("run_id"), on="run_id", how="semi").height
    events, exposure = found.height, int(counts["attempts"].sum())
    low, high = iv.wilson(looping, runs.height) if runs.height >= MIN_PERCENT else (None, None)
    ends: tuple[float | None, float | None] = (None, None)
    if exposure:
        ends = (
            1000 * float(gammaincinv(events, ALPHA / 2)) / exposure if events else 0.0,
            1000 * float(gammaincinv(events + 1, 1 - ALPHA / 2)) / exposure,
        )
    return LoopRates(Rate(looping, runs.height), low, high, PerThousand(events, exposure, *ends))
