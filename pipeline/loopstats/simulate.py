"""Does the instrument find what is there, and nothing where nothing is? Three simulations through the product itself.

A room of its own because it works on known truth: `aa` draws the arms of real loops anew, so that every verdict is a
false one; `planted` writes native logs with a chosen effect and runs the whole line on them; `power` says beforehand
what a number of loops can show. No formula stands here: arms come from `rule`, intervals and power from `intervals`,
the readout from `estimate`. Seeds are arguments, draws are `random.Random` over a text key (the same in every Python),
and no clock is read: equal arguments give equal bytes.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import polars as pl

from loopstats import intervals as iv
from loopstats import rule
from loopstats.config import DEFAULT_N_STAR, HOUR_US, Experiment, Settings
from loopstats.errors import FINDING, LoopstatsError, NothingError, UsageError
from loopstats.estimate import ALPHA, MIN_PERCENT, MIN_SESSIONS, MIN_VERDICT, POWER, iso
from loopstats.found import make_folder
from loopstats.tables import TIME

if TYPE_CHECKING:
    from loopstats.estimate import Comparison, Estimate, Readout

EXPERIMENT = "planted"
FIRST_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z, the first planted session."""
STEP_S = 10
SESSIONS_PER_FILE = 200
MIN_MATURITY_HOURS = 0.1
EXACT_MAX_N = 500
MAX_Z = 7.0
TRUTH = "truth.json"
LOGS = "logs"
CONFIG = "loopstats.toml"
ARMS = ("treated", "holdout")
WORDS = ("broke", "recurred", "unresolved")

_AA_SCHEMA = {
    "measure": pl.String(),
    "count": pl.Int64(),
    "n": pl.Int64(),
    "share": pl.Float64(),
    "low": pl.Float64(),
    "high": pl.Float64(),
    "count_loops": pl.Int64(),
    "count_sessions": pl.Int64(),
    "broke": pl.Int64(),
    "share_bp": pl.Int64(),
    "n_star": pl.Int64(),
    "seed": pl.Int64(),
}
_PLANTED_SCHEMA = {
    "quantity": pl.String(),
    "truth": pl.Float64(),
    "estimate": pl.Float64(),
    "low": pl.Float64(),
    "high": pl.Float64(),
    "is_inside": pl.Boolean(),
    "n_treated": pl.Int64(),
    "n_holdout": pl.Int64(),
    "note": pl.String(),
    "seed": pl.Int64(),
}
_POWER_SCHEMA = {
    "n": pl.Int64(),
    "n_treated": pl.Int64(),
    "n_holdout": pl.Int64(),
    "base": pl.Float64(),
    "lift": pl.Float64(),
    "deff": pl.Float64(),
    "n_star": pl.Int64(),
    "power_fixed": pl.Float64(),
    "power_anytime": pl.Float64(),
    "method": pl.String(),
    "mde_fixed": pl.Float64(),
    "mde_anytime": pl.Float64(),
    "n_needed_fixed": pl.Int64(),
    "n_needed_anytime": pl.Int64(),
    "nights": pl.Int64(),
    "nights_to_n_star": pl.Int64(),
}


class MismatchError(LoopstatsError):
    """What was planted is not what the line read back."""

    exit_code = FINDING


# --- A/A: the lake's own loops under other salts ---------------------------------------------------------------------


def aa(
    loops: pl.DataFrame,
    *,
    salts: int,
    seed: int,
    as_of_us: int,
    share_bp: int = rule.SHARE_BP_DEFAULT,
    n_star: int = DEFAULT_N_STAR,
    progress: Callable[[str, int, int], None] | None = None,
) -> pl.DataFrame:
    """Every mature strategy loop of `loops` assigned anew by each of `salts` salts `aa-<seed>-<i>`; one row a measure.

    The outcomes stay, only the arms are drawn, so that the true lift is 0 whatever happened in the real arms. Per salt:
    the fixed interval (`newcombe_clustered`) and the nightly one (`newcombe_anytime` with the same rows), a verdict
    under the rules of the readout. Measures: `fixed_covers_0` and `anytime_covers_0` of the salts that have intervals;
    `helps`, `harms` and `withheld` of all salts. Each with Wilson's 95 % interval of the Monte-Carlo error.
    NothingError where no loop is mature.
    """
    import numpy as np

    if salts < 1:
        raise UsageError("--salts: at least 1 is needed")
    units = _mature(loops, as_of_us)
    if not units.height:
        raise NothingError("no mature strategy loop to assign anew")
    keys = list(units.select("run_id", "signature").iter_rows())
    broke = units["is_broke"].to_numpy()
    starts = np.flatnonzero((units["session_id"] != units["session_id"].shift(1)).fill_null(True).to_numpy())
    counts: Counter[str] = Counter()
    for number in range(salts):
        if progress is not None and number % 10 == 0:
            progress("salts", number, salts)
        salt = f"aa-{seed}-{number}"
        points = np.fromiter((rule.arm_bp(salt, *key) for key in keys), np.int64, len(keys))
        treated = points < share_bp
        cells = np.stack([treated, treated & broke, ~treated, ~treated & broke], axis=1).astype(np.int64)
        counts.update(_looks(np.add.reduceat(cells, starts, axis=0), n_star))
    common = (units.height, int(starts.size), int(broke.sum()), share_bp, n_star, seed)
    rows = [
        (measure, counts[measure], n, counts[measure] / n if n else None, *_monte_carlo(counts[measure], n), *common)
        for measure, n in (
            ("fixed_covers_0", counts["intervals"]),
            ("anytime_covers_0", counts["intervals"]),
            ("helps", salts),
            ("harms", salts),
            ("withheld", salts),
        )
    ]
    return pl.DataFrame(rows, schema=_AA_SCHEMA, orient="row")


def _mature(loops: pl.DataFrame, as_of_us: int) -> pl.DataFrame:
    """Strategy loops that are decided at the as-of, one row per (run, class), in the order of their sessions."""
    known = pl.col("detected_at").cast(TIME).to_physical() <= as_of_us
    decided = pl.col("mature_at").cast(TIME).to_physical() <= as_of_us
    return (
        loops.filter((pl.col("rule") == rule.STRATEGY_LOOP) & known.fill_null(True) & decided.fill_null(True))
        .sort("session_id", "run_id", "signature", pl.col("is_enrolled").not_())
        .unique(["run_id", "signature"], keep="first", maintain_order=True)
        .select("session_id", "run_id", "signature", (pl.col("outcome") == "broke").alias("is_broke"))
    )


def _looks(table: Any, n_star: int) -> Iterator[str]:
    """What one assignment shows: names of the measures that count it, from rows (n1, y1, n0, y0)."""
    n1, y1, n0, y0 = (int(total) for total in table.sum(axis=0))
    sessions = (int((table[:, 0] > 0).sum()), int((table[:, 2] > 0).sum()))
    if min(n1, n0) < MIN_PERCENT:
        yield "withheld"
        return
    try:
        fixed = iv.newcombe_clustered(table)
        low, high = iv.newcombe_anytime(y1, n1, y0, n0, n_star, rows=table)
    except iv.Undefined:
        yield "withheld"
        return
    yield "intervals"
    if fixed[0] <= 0 <= fixed[1]:
        yield "fixed_covers_0"
    if low <= 0 <= high:
        yield "anytime_covers_0"
    elif min(n1, n0) >= MIN_VERDICT and min(sessions) >= MIN_SESSIONS:
        yield "helps" if low > 0 else "harms"


def _monte_carlo(x: int, n: int) -> tuple[float | None, float | None]:
    return iv.wilson(x, n) if n else (None, None)


# --- planted: logs with a known truth --------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """What is planted. All shares lie in [0, 1].

    `lift`: what a delivered intervention adds to the chance `base` that a loop breaks. `icc`: correlation of two loops
    of one session. `attrition`, `attrition_treated`: share of the loops that would recur whose session ends instead
    (holdout, treated). `noncompliance`: share of treated loops that get no intervention. `interference`: share of the
    lift that reaches an undelivered loop after a delivered one in its session. `late`: share of the breaks that come
    only after the maturity time.
    """

    seed: int
    lift: float = 0.15
    base: float = 0.4
    loops: int = 400
    loops_per_session: int = 3
    share_bp: int = rule.SHARE_BP_DEFAULT
    icc: float = 0.0
    attrition: float = 0.0
    attrition_treated: float = 0.0
    noncompliance: float = 0.0
    interference: float = 0.0
    late: float = 0.0
    maturity_hours: float = 24.0
    nights: int = 30
    n_star: int = DEFAULT_N_STAR

    def __post_init__(self) -> None:
        for name in ("base", "icc", "attrition", "attrition_treated", "noncompliance", "interference", "late"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise UsageError(f"--{name.replace('_', '-')}: a share from 0 to 1 is needed, not {value}")
        if not 0 <= self.base + self.lift <= 1:
            raise UsageError(f"--base {self.base} and --lift {self.lift}: their sum must lie from 0 to 1")
        if self.loops < 1 or not 1 <= self.loops_per_session <= len(_CLASSES) or self.nights < 1:
            raise UsageError(f"--loops and --nights: at least 1; --loops-per-session: from 1 to {len(_CLASSES)}")
        if not 0 < self.share_bp < 10_000:
            raise UsageError(f"--share-bp: a whole number from 1 to 9999 is needed, not {self.share_bp}")
        if self.n_star < 10:
            raise UsageError(f"--n-star: a whole number from 10 on is needed, not {self.n_star}")
        if not MIN_MATURITY_HOURS <= self.maturity_hours <= 24 * 365:
            raise UsageError(
                f"--maturity: hours from {MIN_MATURITY_HOURS} to 8760 are needed, not {self.maturity_hours}: a planted "
                "outcome takes some minutes"
            )

    @property
    def salt(self) -> str:
        """The experiment's salt, one for each seed."""
        return f"planted-{self.seed}"

    @property
    def settings(self) -> Settings:
        """The settings under which the planted logs are read."""
        experiment = Experiment(EXPERIMENT, self.salt, self.share_bp, self.n_star)
        return Settings({EXPERIMENT: experiment}, round(self.maturity_hours * HOUR_US))

    @property
    def sizes(self) -> list[int]:
        """Loops of each session."""
        full, rest = divmod(self.loops, self.loops_per_session)
        return [self.loops_per_session] * full + ([rest] if rest else [])

    @property
    def as_of_us(self) -> int:
        """When every planted loop is mature."""
        return FIRST_US + (self.nights + 1) * 24 * HOUR_US + round(self.maturity_hours * HOUR_US)

    def chances(self, position: int) -> tuple[float, float]:
        """Chance to break, in time or late, of a treated and a holdout loop at a position (0 first) of its session."""
        delivered = self.share_bp / 10_000 * (1 - self.noncompliance)
        reached = self.base + self.interference * self.lift * (1 - (1 - delivered) ** position)
        return (1 - self.noncompliance) * (self.base + self.lift) + self.noncompliance * reached, reached

    def expected(self) -> dict[str, float | None]:
        """What the readout's numbers should be on average; None where the number has no single truth.

        `lift` is the expected average effect of the assignment at this share (Sävje, Aronow and Hudgens 2021): the mean
        over positions of the chance in either arm, less what comes too late.
        """
        sizes = self.sizes
        weights = [sum(size > position for size in sizes) for position in range(self.loops_per_session)]
        p1, p0 = (
            math.fsum(weight * self.chances(position)[arm] for position, weight in enumerate(weights)) / self.loops
            for arm in (0, 1)
        )
        broke1, broke0 = p1 * (1 - self.late), p0 * (1 - self.late)
        lost1 = p1 * self.late + (1 - p1) * self.attrition_treated
        lost0 = p0 * self.late + (1 - p0) * self.attrition
        first1, first0 = self.chances(0)
        has_resolved = lost1 < 1 and lost0 < 1
        found = {
            "rate_treated": broke1,
            "rate_holdout": broke0,
            "lift": broke1 - broke0,
            "first_loop_only": (first1 - first0) * (1 - self.late),
            "resolved_only": broke1 / (1 - lost1) - broke0 / (1 - lost0) if has_resolved else None,
            "unresolved_treated": lost1,
            "unresolved_holdout": lost0,
            "delivered_treated": 1 - self.noncompliance,
            "effect_of_delivery": None if self.interference else self.lift * (1 - self.late),
        }
        return {name: None if value is None else float(f"{value:.12g}") for name, value in found.items()}


_CLASSES = (
    "amber",
    "basalt",
    "cedar",
    "dahlia",
    "ember",
    "fjord",
    "garnet",
    "hazel",
    "indigo",
    "jasper",
    "kelp",
    "linden",
    "maple",
    "nectar",
    "opal",
    "pumice",
    "quartz",
    "russet",
    "saffron",
    "topaz",
)
_TOOL = "Edit"
_TEXT = "lookup refused by {name} registry"
_HINT = "The same failure keeps coming back. Try another way."


@dataclass(frozen=True)
class Planted:
    """The written logs: where they are, and what truly happened in them by arm and word."""

    folder: Path
    counts: dict[str, dict[str, int]]

    @property
    def logs(self) -> Path:
        """The folder to ingest."""
        return self.folder / LOGS


def plant(world: World, folder: Path) -> Planted:
    """Write `logs/*.jsonl`, `loopstats.toml` and `truth.json` into `folder`, which must be new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"-o {folder}: is there and not empty; name a new folder")
    make_folder(folder / LOGS)
    counts = {arm: dict.fromkeys(WORDS, 0) for arm in ARMS}
    sizes, digest = world.sizes, world.settings.rule_digest
    for start in range(0, len(sizes), SESSIONS_PER_FILE):
        path = folder / LOGS / f"planted-{start // SESSIONS_PER_FILE:05d}.jsonl"
        numbers = range(start, min(start + SESSIONS_PER_FILE, len(sizes)))
        text = "".join(_session(world, digest, number, sizes[number], counts) for number in numbers)
        path.write_text(text, encoding="utf-8", newline="\n")
    experiment = world.settings.experiments[EXPERIMENT]
    (folder / CONFIG).write_text(
        f"maturity_hours = {world.maturity_hours!r}\n\n[experiment.{EXPERIMENT}]\n"
        f"salt = {json.dumps(experiment.salt)}\nshare_bp = {experiment.share_bp}\n"
        f"n_star = {experiment.n_star}\n",
        encoding="utf-8",
        newline="\n",
    )
    truth = {
        "schema": "loopstats.planted/1",
        "world": asdict(world),
        "as_of": iso(world.as_of_us),
        "expected": world.expected(),
        "planted": counts,
    }
    (folder / TRUTH).write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8", newline="\n")
    return Planted(folder, counts)


class _Log:
    """Lines of one session, one step every `STEP_S` seconds."""

    def __init__(self, name: str, start_us: int) -> None:
        self.name = name
        self.now_us = start_us
        self.lines: list[str] = []
        self._steps = 0

    def write(self, kind: str, **keys: Any) -> None:
        """One record."""
        record = {"v": 1, "type": kind, "session": self.name, "ts": iso(self.now_us), **keys}
        self.lines.append(json.dumps(record, separators=(",", ":")) + "\n")

    def step(self, target: str, name: str | None) -> str:
        """One call on `target`: a failure of the class `name`, or a success. Gives its id."""
        self.now_us += STEP_S * 1_000_000
        self._steps += 1
        call = f"c{self._steps}"
        told = (
            {"outcome": "success"}
            if name is None
            else {"outcome": "failure", "error_code": f"planted_{name}", "message": _TEXT.format(name=name)}
        )
        self.write("step", id=call, decision=f"d{self._steps}", tool=_TOOL, target=target, **told)
        return call


@cache
def class_of(name: str) -> str:
    """The signature of a planted class, by the ruler."""
    failure = rule.read_failure(_TEXT.format(name=name), None, f"planted_{name}", False)
    return rule.signature(_TOOL, failure.code, failure.message)


def _session(world: World, digest: str, number: int, size: int, counts: dict[str, dict[str, int]]) -> str:
    dice = Random(f"{world.seed}|{number}")
    count_sessions = math.ceil(world.loops / world.loops_per_session)
    start = FIRST_US + number * world.nights * 24 * HOUR_US // count_sessions // 1_000_000 * 1_000_000
    log = _Log(f"planted-{number:07d}", start)
    terms = {"experiment": EXPERIMENT, "share_bp": world.share_bp, "epoch": "1"}
    log.write("session", **terms, salt_id=rule.salt_id(world.salt), rule_digest=digest, harness="planted 1")
    shared = dice.random()
    is_reached = False
    overdue: list[str] = []
    for index, name in enumerate(dice.sample(_CLASSES, size)):
        own, copies, leaves, arrives, comes_late = (dice.random() for _ in range(5))
        signature = class_of(name)
        points = rule.arm_bp(world.salt, log.name, signature)
        arm = rule.arm_of(points, world.share_bp)
        targets = [f"src/{index}-{letter}.py" for letter in "ab"]
        for target in (targets[0], targets[1], targets[0]):
            call = log.step(target, name)
        is_delivered = arm == "treated" and arrives >= world.noncompliance
        log.write(
            "loop",
            id=f"l{index}",
            **terms,
            signature=signature,
            rule=rule.STRATEGY_LOOP,
            rule_digest=digest,
            arm=arm,
            arm_bp=points,
            step=call,
        )
        told = (
            {"tier": 1, "text_sha256": rule.result_hash(_HINT)}
            if is_delivered
            else {"reason": "holdout" if arm == "holdout" else "not_delivered"}
        )
        log.write(
            "delivery",
            id=f"v{index}",
            experiment=EXPERIMENT,
            signature=signature,
            arm=arm,
            delivered=is_delivered,
            **told,
        )
        chance = world.base + world.lift * (1 if is_delivered else world.interference if is_reached else 0)
        # A loop follows its session's own draw with chance sqrt(icc), so that two of them do with chance icc.
        is_broken = (shared if copies < math.sqrt(world.icc) else own) < chance
        is_late = is_broken and comes_late < world.late
        is_lost = not is_broken and leaves < (world.attrition_treated if arm == "treated" else world.attrition)
        word = "unresolved" if is_late or is_lost else "broke" if is_broken else "recurred"
        counts[arm][word] += 1
        if is_late:
            overdue.append(targets[0])
        elif word == "broke":
            log.step(targets[1], name)
            log.step(targets[0], None)
        elif word == "recurred":
            for target in (targets[0], targets[1], targets[0]):
                log.step(target, name)
        is_reached = is_reached or is_delivered
    log.now_us += round(world.maturity_hours * HOUR_US) + HOUR_US
    for target in overdue:
        log.step(target, None)
    return "".join(log.lines)


def planted(world: World, folder: Path | None = None) -> tuple[Readout, pl.DataFrame]:
    """Plant `world` (into `folder`, else a temporary one), ingest it into a temporary lake, and read the lift.

    One row a quantity: its truth, its estimate with the 95 % interval, whether the truth lies inside, the n of both
    arms. The counts by arm and outcome must come back exactly: MismatchError where they do not.
    """
    from loopstats import nights, run
    from loopstats.store import Lake

    with tempfile.TemporaryDirectory(prefix="loopstats-") as scratch:
        made = plant(world, Path(scratch) / "planted" if folder is None else folder)
        lake = Lake(Path(scratch) / "lake")
        run.ingest(lake, [str(made.logs)], world.settings)
        readout = nights.read_lift(lake.snapshot(), world.settings, as_of_us=world.as_of_us)
    found = readout.scope("to_date", EXPERIMENT)
    if found is None:
        raise MismatchError("no enrolled loop came back from the planted logs")
    read = {
        arm: {"broke": rate.x, "recurred": found.recurred[i], "unresolved": found.unresolved[i]}
        for i, (arm, rate) in enumerate(zip(ARMS, (found.headline.treated, found.headline.holdout), strict=True))
    }
    if read != made.counts:
        raise MismatchError(f"planted {made.counts}, but the line read {read}")
    rows = [(*row, world.seed) for row in _quantities(world, found)]
    return readout, pl.DataFrame(rows, schema=_PLANTED_SCHEMA, orient="row")


_Row = tuple[str, float | None, float | None, float | None, float | None, bool | None, int, int, str | None]


def _quantities(world: World, found: Estimate) -> Iterator[_Row]:
    truth, details, headline = world.expected(), found.details, found.headline
    n1, n0 = headline.treated.n, headline.holdout.n

    def row(
        name: str,
        key: str,
        value: float | None,
        ends: Sequence[float | None] | None,
        sizes: tuple[int, int],
        note: str | None = None,
    ) -> _Row:
        wanted = truth[key]
        low, high = ends or (None, None)
        is_inside = None if None in (wanted, low, high) else low <= wanted <= high  # type: ignore[operator]
        return name, wanted, value, low, high, is_inside, *sizes, note

    def share(name: str, x: int, n: int, sizes: tuple[int, int]) -> _Row:
        return row(name, name, x / n if n else None, iv.wilson(x, n) if n else None, sizes)

    def compared(name: str, part: Comparison) -> _Row:
        note = ", ".join(part.reasons) or None
        return row(name, name, part.lift, part.ci_fixed, (part.treated.n, part.holdout.n), note)

    yield share("rate_treated", headline.treated.x, n1, (n1, 0))
    yield share("rate_holdout", headline.holdout.x, n0, (0, n0))
    reasons = ", ".join(found.reasons) or None
    yield row("lift, one look", "lift", headline.lift, headline.ci_fixed, (n1, n0), reasons)
    yield row("lift, nightly", "lift", headline.lift, headline.ci_anytime, (n1, n0), found.verdict)
    for name in ("first_loop_only", "resolved_only"):
        if name in found.sensitivities:
            yield compared(name, found.sensitivities[name])
    yield share("unresolved_treated", found.unresolved[0], n1, (n1, 0))
    yield share("unresolved_holdout", found.unresolved[1], n0, (0, n0))
    delivery = details["delivery"]["treated"]
    yield share("delivered_treated", delivery["x"], delivery["n"], (delivery["n"], 0))
    cace = details.get("cace")
    if cace is not None:
        ends = (cace["ci_low"], cace["ci_high"])
        yield row("effect_of_delivery", "effect_of_delivery", cace["value"], ends, (n1, n0), cace["reason"])


# --- power -----------------------------------------------------------------------------------------------------------


def power(
    sizes: Sequence[int],
    *,
    base: float,
    lift: float,
    share_bp: int = rule.SHARE_BP_DEFAULT,
    n_star: int = DEFAULT_N_STAR,
    deff: float = 1.0,
    loops_per_night: float | None = None,
) -> pl.DataFrame:
    """What `n` loops can show, a row for each of `sizes`, for a holdout rate `base` and a true `lift`.

    `power_fixed`: chance that the interval for one look leaves out 0; `power_anytime`: the same for one look at this n
    with the nightly interval (looking every night finds it at least as often). Both by exact enumeration where n <= 500
    and deff is 1 (`method` says `exact`), else by the normal formula. `mde_*`: smallest lift found with power 0.8, null
    where there is none. Both nightly values are null at an n so far below n* that the nightly multiplier exceeds 7.
    `n_needed_*`: loops of both arms for power 0.8, the nightly one at n = n*. Nights where `loops_per_night` is given.
    """
    if not 0 <= base <= 1 or not 0 <= base + lift <= 1:
        raise UsageError(f"--base {base} and --lift {lift}: base and their sum must lie from 0 to 1")
    if not 0 < share_bp < 10_000:
        raise UsageError(f"--share-bp: a whole number from 1 to 9999 is needed, not {share_bp}")
    if deff < 1 or n_star < 10 or (loops_per_night is not None and loops_per_night <= 0):
        raise UsageError("--deff: from 1 on; --n-star: from 10 on; --loops-per-night: above 0")
    needed = [_needed(base, lift, share_bp, deff, inflate) for inflate in (1.0, iv.anytime_inflation(ALPHA, POWER))]
    rows = []
    for n in sizes:
        n1 = round(n * share_bp / 10_000)
        n0 = n - n1
        if min(n1, n0) < 1:
            raise UsageError(f"--n {n}: both arms need a loop at a treated share of {share_bp} basis points")
        nightly = _alpha_of(iv.anytime_multiplier(n / deff, n_star, ALPHA))
        is_exact = n <= EXACT_MAX_N and deff == 1
        found = [
            None
            if alpha is None
            else iv.power_exact(n1, n0, base + lift, base, alpha)
            if is_exact
            else iv.power(n1, n0, base + lift, base, alpha, deff)
            for alpha in (ALPHA, nightly)
        ]
        least = [None if alpha is None else iv.mde(n1, n0, base, POWER, alpha, deff) for alpha in (ALPHA, nightly)]
        nights = (
            (None, None)
            if loops_per_night is None
            else (math.ceil(n / loops_per_night), iv.nights_to_n_star(n / deff, n_star, n / loops_per_night))
        )
        rows.append(
            (n, n1, n0, base, lift, deff, n_star, *found, "exact" if is_exact else "normal", *least, *needed, *nights)
        )
    return pl.DataFrame(rows, schema=_POWER_SCHEMA, orient="row")


def _needed(base: float, lift: float, share_bp: int, deff: float, inflate: float) -> int | None:
    """Loops of both arms for power 0.8; None where the lift is 0."""
    if lift == 0:
        return None
    ratio = (10_000 - share_bp) / share_bp
    return math.ceil(iv.sample_size(base + lift, base, ratio, POWER, ALPHA, deff, inflate) * (1 + ratio))


def _alpha_of(z: float) -> float | None:
    """The two-sided error whose normal quantile is `z`; None where floats near 1 are too coarse for its level."""
    return 2.0 * NormalDist().cdf(-z) if z <= MAX_Z else None
