"""The ladder of four tiers replayed over logs under a policy, and the faults of the policy itself (METHOD 12).

A room of its own because a safety net is judged here that may never have run: given thresholds, what resets them, how
long each state lives and what may lift what, it is asked when each tier would have fired, what would have cleared it,
and how much of the run was still to come. Tiers: 1 warn, 2 warn harder, 3 block research, 4 hand over.

One run is walked cycle by cycle (the log's own cycles, else model turns), because what a cycle does depends on all the
cycles before it; runs do not know of each other. In each cycle, in this order: a tier or override whose time to live
is over ends; a special cycle starts or renews the override; a cycle of which no step has a class is not seen; a
resetting cycle clears the count and the tier, any other adds one; an override lifts a tier that it may lift.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from loopstats.actions import KINDS
from loopstats.config import MOST_BYTES
from loopstats.errors import UsageError
from loopstats.waste import tokens_of_turn

TIERS = ("warn", "warn_harder", "block_research", "hand_over")
RESETS = ("productive", "success", "reads")
TIER_BLOCK = 3
SPECIAL_SHARE = 0.9
POLICIES = ("careful", "faulty")
_SECTIONS: dict[str, tuple[str, ...]] = {
    "tiers": TIERS,
    "reset": ("by", "count"),
    "ttl_s": ("tier_1", "tier_2", "tier_3", "tier_4", "override"),
    "precedence": ("override_lifts_up_to",),
    "special": ("kinds", "guards"),
}
RESEARCH = "research"


@dataclass(frozen=True)
class Policy:
    """When tiers fire, what resets them, how long states live, what lifts what. `classes` None: by what a step does."""

    name: str
    about: str
    tiers: tuple[int, int, int, int]
    reset_by: str
    reset_count: int
    ttl_us: tuple[int | None, int | None, int | None, int | None]
    override_ttl_us: int | None
    lifts_up_to: int
    special_kinds: frozenset[str]
    special_guards: frozenset[str]
    classes: Mapping[str, str] | None

    def class_of(self, tool: str, kind: str) -> str | None:
        """The class that the policy gives a step; None where it knows none."""
        return kind if self.classes is None else self.classes.get(tool)

    def tier_at(self, count: int) -> int:
        """The highest tier whose threshold is reached."""
        return sum(count >= threshold for threshold in self.tiers)


def load(path: Path) -> Policy:
    """The policy of a TOML file, or of a packaged one by its name; UsageError names the key and the mend."""
    if not path.is_file() and str(path) in POLICIES:
        path = Path(__file__).resolve().parent / "policies" / f"{path}.toml"
    if not path.is_file():
        raise UsageError(f"{path}: no such policy; name a file, or one of {', '.join(POLICIES)}")
    try:
        with path.open("rb") as file:
            written = file.read(MOST_BYTES + 1)
        if len(written) > MOST_BYTES:
            raise UsageError(f"{path}: larger than {MOST_BYTES >> 20} MB, so it is no policy; name another file")
        data = tomllib.loads(written.decode("utf-8-sig"))
    except (ValueError, RecursionError, OSError) as error:
        raise UsageError(f"{path}: not valid TOML ({error})") from error
    try:
        return _policy(data)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _policy(data: dict[str, Any]) -> Policy:
    for key in data:
        if key not in ("name", "about", "classes", *_SECTIONS):
            raise UsageError(f"unknown key {key!r}; known are name, about, classes, {', '.join(_SECTIONS)}")
    sections = {name: _section(data, name, known) for name, known in _SECTIONS.items()}
    tiers = tuple(_whole(sections["tiers"], "tiers", name, 1) for name in TIERS)
    if list(tiers) != sorted(set(tiers)):
        raise UsageError(
            "tiers: each must be greater than the one before: warn, warn_harder, block_research, hand_over"
        )
    reset_by = sections["reset"].get("by")
    if reset_by not in RESETS:
        raise UsageError(f"reset.by: {reset_by!r} is not known; use one of {', '.join(RESETS)}")
    ttl = {
        name: None if name not in sections["ttl_s"] else _whole(sections["ttl_s"], "ttl_s", name, 1) * 1_000_000
        for name in _SECTIONS["ttl_s"]
    }
    special = {name: _texts(sections["special"].get(name, []), f"special.{name}") for name in ("kinds", "guards")}
    if bad := sorted(special["kinds"] - set(KINDS)):
        raise UsageError(f"special.kinds: {bad[0]!r} is no kind; use one of {', '.join(KINDS)}")
    lifts = _whole({"override_lifts_up_to": 0} | sections["precedence"], "precedence", "override_lifts_up_to", 0)
    return Policy(
        str(data.get("name", "policy")),
        str(data.get("about", "")),
        (tiers[0], tiers[1], tiers[2], tiers[3]),
        reset_by,
        _whole({"count": 1} | sections["reset"], "reset", "count", 1),
        (ttl["tier_1"], ttl["tier_2"], ttl["tier_3"], ttl["tier_4"]),
        ttl["override"],
        lifts,
        special["kinds"],
        special["guards"],
        _classes(data.get("classes", {"by": "kind"})),
    )


def _section(data: dict[str, Any], name: str, known: tuple[str, ...]) -> dict[str, Any]:
    section = data.get(name, {})
    if not isinstance(section, dict):
        raise UsageError(f"{name}: write [{name}] with {', '.join(known)}")
    for key in section:
        if key not in known:
            raise UsageError(f"{name}.{key}: unknown key; known are {', '.join(known)}")
    return section


def _whole(section: dict[str, Any], name: str, key: str, least: int) -> int:
    value = section.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 31:
        raise UsageError(f"{name}.{key}: a whole number from {least} on is needed, not {value!r}")
    return value


def _texts(value: Any, name: str) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{name}: a list of texts is needed, not {value!r}")
    return frozenset(value)


def _classes(section: Any) -> dict[str, str] | None:
    by = section.get("by") if isinstance(section, dict) else None
    if by not in ("kind", "tool"):
        raise UsageError('classes: write [classes] with by = "kind", or by = "tool" and a list of tools for each class')
    if by == "kind":
        if len(section) > 1:
            raise UsageError('classes: with by = "kind" no tool is listed; drop the lists, or write by = "tool"')
        return None
    return {tool: name for name, tools in section.items() if name != "by" for tool in _texts(tools, f"classes.{name}")}


# --- the walk -----------------------------------------------------------------------------------------------------


@dataclass
class _Cycle:
    """One cycle: (step, tool, kind, outcome, is_productive) of each step, its last time, guards raised in it."""

    steps: list[tuple[int, str, str, str, bool | None]] = field(default_factory=list)
    at: int | None = None
    guards: set[str] = field(default_factory=set)


@dataclass
class _Tier:
    """What became of one tier in one run."""

    first_step: int | None = None
    first_at: int | None = None
    fired: int = 0
    cleared: int = 0
    cleared_step: int | None = None
    cleared_by: str | None = None
    lifted: int = 0


@dataclass
class Tally:
    """How often something was so, of how many cases, and where first."""

    x: int = 0
    n: int = 0
    run_id: str | None = None
    step: int | None = None

    def add(self, is_so: bool, run_id: str, step: int) -> None:
        """Count one case."""
        self.n += 1
        if is_so:
            self.x += 1
            if self.run_id is None:
                self.run_id, self.step = run_id, step


FAULTS: dict[str, str] = {
    "reset_by_unproductive": "resets of the count over cycles in which nothing was productive",
    "tool_without_class": "steps of tools that belong to no class",
    "cycle_not_seen": "cycles of which no step has a class",
    "block_with_bypass": "research steps that the block of research would not have stopped",
    "override_beats_tier_3": "cycles at tier 3 or higher that an override lifted",
    "override_outlived": "cycles lifted by an override that has no end",
    "every_cycle_special": "cycles marked special",
    "state_without_end": "states without a time to live",
    "repair_failed": "repairs that the log tried",
}


@dataclass
class Replay:
    """The ladder over many runs: `tiers` one row a run and tier that fired, `faults` by name."""

    policy: Policy
    tiers: pl.DataFrame
    faults: dict[str, Tally]
    tools_without_class: dict[str, int]
    count_runs: int
    count_cycles: int
    tiers_in_log: Mapping[int, int]

    def named(self) -> list[str]:
        """The faults that the policy has or the log shows; `every_cycle_special` from nine in ten cycles on."""
        out = []
        for name, tally in self.faults.items():
            if name == "every_cycle_special":
                if tally.n and tally.x >= SPECIAL_SHARE * tally.n:
                    out.append(name)
            elif tally.x:
                out.append(name)
        return out

    def fault_rows(self) -> list[dict[str, Any]]:
        """One row a fault with x of n, whether it is named one, and where it shows first."""
        named = set(self.named())
        rows = []
        for name, tally in self.faults.items():
            detail = ", ".join(sorted(self.tools_without_class)) if name == "tool_without_class" else ""
            rows.append(
                {
                    "fault": name,
                    "is_fault": name in named,
                    "x": tally.x,
                    "n": tally.n,
                    "about": FAULTS[name],
                    "run_id": tally.run_id,
                    "step": tally.step,
                    "detail": detail or None,
                }
            )
        return rows

    def tier_rows(self) -> list[dict[str, Any]]:
        """The counterfactual table, one row a tier: in how many runs it would have fired, been cleared and lifted, how
        many runs' logs show that tier at all, and what was still to come after its first firing, with the coverage of
        tokens and prices."""
        rows = []
        for number, name in enumerate(TIERS, 1):
            part = self.tiers.filter(pl.col("tier") == number)
            cleared = (
                part.filter(pl.col("count_cleared") > 0)
                .group_by("cleared_by")
                .len()
                .sort("len", "cleared_by", descending=[True, False])
            )
            priced = part.filter(pl.col("cost_left_micros").is_not_null())
            rows.append(
                {
                    "tier": number,
                    "name": name,
                    "after_cycles": self.policy.tiers[number - 1],
                    "runs_fired": part.height,
                    "n_runs": self.count_runs,
                    "runs_in_log": self.tiers_in_log.get(number, 0),
                    "count_fired": int(part["count_fired"].sum()),
                    "count_cleared": int(part["count_cleared"].sum()),
                    "cleared_first_by": ", ".join(f"{by} {n}" for by, n in cleared.iter_rows()) or None,
                    "count_lifted": int(part["count_lifted"].sum()),
                    "median_first_step": part["first_step"].median(),
                    "steps_left": int(part["steps_left"].sum()),
                    "tokens_left": int(part["tokens_left"].sum()) if part["tokens_left"].is_not_null().any() else None,
                    "cost_left_micros": int(priced["cost_left_micros"].sum()) if priced.height else None,
                    "n_priced": priced.height,
                }
            )
        return rows


_TIER_SCHEMA = {
    "run_id": pl.String(),
    "session_id": pl.String(),
    "tier": pl.Int64(),
    "first_step": pl.Int64(),
    "first_at": pl.Datetime("us", "UTC"),
    "count_fired": pl.Int64(),
    "count_cleared": pl.Int64(),
    "cleared_step": pl.Int64(),
    "cleared_by": pl.String(),
    "count_lifted": pl.Int64(),
    "steps_left": pl.Int64(),
}


def replay(policy: Policy, steps: pl.DataFrame, guards: pl.DataFrame, turns: pl.DataFrame) -> Replay:
    """Walk every run of `steps` (STEPS) under `policy`; `guards` tell special cycles and failed repairs."""
    faults = {name: Tally() for name in FAULTS}
    unclassed: dict[str, int] = {}
    rows: list[tuple[Any, ...]] = []
    count_runs = count_cycles = 0
    for run_id, session_id, last_step, cycles in _runs(steps, guards):
        count_runs += 1
        count_cycles += len(cycles)
        tiers = _walk(policy, run_id, cycles, faults, unclassed)
        rows.extend(
            (
                run_id,
                session_id,
                number,
                t.first_step,
                t.first_at,
                t.fired,
                t.cleared,
                t.cleared_step,
                t.cleared_by,
                t.lifted,
                last_step - t.first_step,
            )
            for number, t in enumerate(tiers, 1)
            if t.first_step is not None
        )
    for ttl in (*policy.ttl_us, policy.override_ttl_us):
        faults["state_without_end"].add(ttl is None, "", 0)
    for run_id, event, step in (
        guards.filter(pl.col("event").is_in(["heal", "heal_failed"]))
        .select("run_id", "event", pl.col("step").fill_null(0))
        .iter_rows()
    ):
        faults["repair_failed"].add(event == "heal_failed", run_id, step)
    schema = {n: (pl.Int64() if isinstance(t, pl.Datetime) else t) for n, t in _TIER_SCHEMA.items()}
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        pl.from_epoch("first_at", "us").dt.replace_time_zone("UTC")
    )
    shown = guards.filter(pl.col("tier").is_not_null()).select("run_id", "tier").unique().group_by("tier").len()
    return Replay(
        policy, _left(frame, steps, turns), faults, unclassed, count_runs, count_cycles, dict(shown.iter_rows())
    )


def _runs(steps: pl.DataFrame, guards: pl.DataFrame) -> Iterator[tuple[str, str, int, list[_Cycle]]]:
    raised = guards.filter(pl.col("event").is_in(["raise", "override"]) & pl.col("name").is_not_null()).sort(
        "run_id", "guard"
    )
    by_run: dict[str, list[tuple[int, str]]] = {}
    for run_id, step, name in raised.select("run_id", pl.col("step").fill_null(-1), "name").iter_rows():
        by_run.setdefault(run_id, []).append((step, name))
    columns = [
        "run_id",
        "session_id",
        "step",
        "tool",
        "kind",
        "outcome",
        "is_productive",
        "cycle",
        "decision",
        pl.col("ts").dt.epoch("us"),
    ]
    mine = steps.filter(pl.col("actor") == "agent").sort("run_id", "step")
    for part in mine.select(columns).partition_by("run_id", maintain_order=True):
        has_cycles = part["cycle"].is_not_null().any()
        cycles: dict[Any, _Cycle] = {}
        for _, _, step, tool, kind, outcome, is_productive, cycle, decision, at in part.iter_rows():
            key = cycle if has_cycles else decision
            if key is None:
                continue
            one = cycles.setdefault(key, _Cycle())
            one.steps.append((step, tool, kind, outcome, is_productive))
            one.at = at if one.at is None or (at is not None and at > one.at) else one.at
        run_id, session_id = part.row(0)[:2]
        listed = list(cycles.values())
        _place_guards(listed, by_run.get(run_id, []))
        yield run_id, session_id, int(part["step"].max() or 0), listed  # type: ignore[arg-type]


def _place_guards(cycles: list[_Cycle], raised: list[tuple[int, str]]) -> None:
    """A guard's record belongs to the first cycle that has a step after it."""
    at = 0
    for step, name in sorted(raised):
        while at < len(cycles) and cycles[at].steps[-1][0] <= step:
            at += 1
        if at < len(cycles):
            cycles[at].guards.add(name)


def _walk(
    policy: Policy, run_id: str, cycles: list[_Cycle], faults: dict[str, Tally], unclassed: dict[str, int]
) -> list[_Tier]:
    tiers = [_Tier() for _ in TIERS]
    count = tier = 0
    tier_at: int | None = None
    override_at: int | None = None
    is_override = False
    for cycle in cycles:
        first = cycle.steps[0][0]
        classed = [(s, policy.class_of(s[1], s[2])) for s in cycle.steps]
        for (step, tool, kind, _, _), name in classed:
            faults["tool_without_class"].add(name is None, run_id, step)
            if name is None:
                unclassed[tool] = unclassed.get(tool, 0) + 1
            if kind == RESEARCH:
                faults["block_with_bypass"].add(name != RESEARCH, run_id, step)
        if tier and _is_over(policy.ttl_us[tier - 1], tier_at, cycle.at):
            _clear(tiers, tier, first, "expired")
            count = tier = 0
        if is_override and _is_over(policy.override_ttl_us, override_at, cycle.at):
            is_override = False
        is_special = bool(policy.special_guards & cycle.guards) or any(
            s[2] in policy.special_kinds for s in cycle.steps
        )
        faults["every_cycle_special"].add(is_special, run_id, first)
        if is_special:
            is_override, override_at = True, cycle.at
        is_seen = any(name is not None for _, name in classed)
        faults["cycle_not_seen"].add(not is_seen, run_id, first)
        if not is_seen:
            continue
        if by := _reset_by(policy, cycle):
            if count:
                # A step of which nobody knows what it did may have been productive: that is no fault.
                faults["reset_by_unproductive"].add(all(s[4] is False for s in cycle.steps), run_id, first)
                _clear(tiers, tier, first, by)
            count = tier = 0
            continue
        count += 1
        reached = policy.tier_at(count)
        for number in range(tier, reached):
            one = tiers[number]
            one.fired += 1
            if one.first_step is None:
                one.first_step, one.first_at = cycle.steps[-1][0], cycle.at
        if reached > tier:
            tier, tier_at = reached, cycle.at
        is_lifted = is_override and 0 < tier <= policy.lifts_up_to
        if is_lifted:
            tiers[tier - 1].lifted += 1
            faults["override_outlived"].add(policy.override_ttl_us is None, run_id, first)
        if tier >= TIER_BLOCK:
            faults["override_beats_tier_3"].add(is_lifted, run_id, first)
    return tiers


def _is_over(ttl_us: int | None, since: int | None, now: int | None) -> bool:
    return ttl_us is not None and since is not None and now is not None and now - since > ttl_us


def _clear(tiers: list[_Tier], tier: int, step: int, by: str) -> None:
    for one in tiers[:tier]:
        one.cleared += 1
        if one.cleared_by is None:
            one.cleared_by, one.cleared_step = by, step


def _reset_by(policy: Policy, cycle: _Cycle) -> str | None:
    """What resets in this cycle: something productive always does, beside it what the policy allows."""
    if sum(s[4] is True for s in cycle.steps) >= (policy.reset_count if policy.reset_by == "productive" else 1):
        return "productive"
    if policy.reset_by == "success" and sum(s[3] == "success" for s in cycle.steps) >= policy.reset_count:
        return "success"
    if (
        policy.reset_by == "reads"
        and sum(s[2] == "read" and s[3] == "success" for s in cycle.steps) >= policy.reset_count
    ):
        return "reads"
    return None


def _left(tiers: pl.DataFrame, steps: pl.DataFrame, turns: pl.DataFrame) -> pl.DataFrame:
    """Tokens and cost of the turns after the one in which a tier fired, to the end of the run."""
    at = steps.select("run_id", pl.col("step").alias("first_step"), pl.col("decision").alias("fired_decision"))
    placed = tiers.join(at, on=["run_id", "first_step"], how="left", maintain_order="left").with_row_index("tier_row")
    spent = (
        turns.select("run_id", "decision", tokens_of_turn(), "cost_micros")
        .sort("run_id", "decision", descending=[False, True])
        .with_columns(
            pl.col("tokens").fill_null(0).cum_sum().over("run_id").alias("sum_tokens"),
            pl.col("tokens").is_not_null().cum_sum().over("run_id").cast(pl.Int64).alias("sum_told"),
            pl.col("cost_micros").fill_null(0).cum_sum().over("run_id").alias("sum_cost"),
            pl.col("cost_micros").is_null().cum_sum().over("run_id").cast(pl.Int64).alias("sum_unpriced"),
        )
        .sort("decision")
    )
    after = (
        placed.select("tier_row", "run_id", (pl.col("fired_decision") + 1).alias("decision"))
        .filter(pl.col("decision").is_not_null())
        .sort("decision")
        .join_asof(spent, on="decision", by="run_id", strategy="forward", check_sortedness=False)
    )
    left = after.select(
        "tier_row",
        pl.when(pl.col("sum_told") > 0).then(pl.col("sum_tokens")).alias("tokens_left"),
        pl.when(pl.col("sum_unpriced") == 0).then(pl.col("sum_cost")).alias("cost_left_micros"),
    )
    return placed.join(left, on="tier_row", how="left", maintain_order="left").drop("tier_row", "fired_decision")
