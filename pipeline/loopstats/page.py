"""The report as one HTML file: what is read for it, in which order it is shown, and the page itself.

A room of its own because this page is what people hand on: it must say no more than the readout in the terminal says.
The words are those of `report.py`, the numbers those of `estimate.py`, `findings.py` and `waste.py`; here they are only
put in order. Log text is hostile: every value passes `safe_text` and is escaped by the template, the page holds no
script and its policy lets nothing be loaded. `read` is the one place that reads; `html` is a pure function of its
result, so that the same lake, as-of and version give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from loopstats import __version__, charts, estimate, findings, nights, query, report, rule
from loopstats.estimate import ARMS, Estimate, LoopRates, Notice, Rate, Readout
from loopstats.report import safe_text
from loopstats.tables import TIME
from loopstats.when import Interval

if TYPE_CHECKING:
    from markupsafe import Markup

    from loopstats.config import Settings
    from loopstats.query import Filters
    from loopstats.store import Snapshot

TITLE = "Does it help against stuck agents?"
SPLITS = ("tool", "model", "project")
EXPERIMENTS_SHOWN = 8
SEGMENTS_SHOWN = 40
RATES_SHOWN = 24
CLASSES_SHOWN = 10
NIGHTS_LISTED = 60
WEEKS_LISTED = 60
_LONGEST = 120
_DASH = "-"
_SCOPES = {"window": "window", "to_date": "to date", "replay": "A/A replay"}


@dataclass(frozen=True)
class Content:
    """Everything the page shows, read once. `readouts` holds the lift split by each of `SPLITS`."""

    interval: Interval
    filters: Filters
    settings: Settings
    readouts: Mapping[str, Readout]
    quality: tuple[Notice, ...]
    history: pl.DataFrame
    is_any_night: bool
    rates: LoopRates
    rates_by: Mapping[str, tuple[tuple[str, LoopRates], ...]]
    count_values: Mapping[str, int]
    weeks: pl.DataFrame
    waste: pl.DataFrame
    drift_text: str
    waste_text: str
    classes: pl.DataFrame
    audit: pl.DataFrame
    lines: Mapping[str, int]
    count_uneven: int
    count_files: int
    enrolled: Rate
    count_steps: int

    @property
    def readout(self) -> Readout:
        """The lift, whatever the split."""
        return self.readouts[SPLITS[0]]

    @property
    def is_filtered(self) -> bool:
        """A part of the lake was chosen."""
        return bool(self.filters.projects or self.filters.models or self.filters.harnesses)

    @property
    def is_nothing(self) -> bool:
        """Neither steps in the interval nor loops in any scope."""
        counts = (e.headline.treated.n + e.headline.holdout.n + sum(e.pending) for e in self.readout.estimates)
        return self.count_steps == 0 and not any(counts)


def read(snapshot: Snapshot, settings: Settings, interval: Interval, filters: Filters) -> Content:
    """What the page shows of a generation. A filter by tool raises UsageError: a run has many."""
    tables = findings.tables_as_of(snapshot, interval.as_of_us)
    chosen = findings.chosen(tables, interval, filters)
    loops, sessions, detections, deliveries = (
        snapshot.scan(name).collect() for name in ("loops", "sessions", "detections", "deliveries")
    )
    where = query.early_filter(loops, interval, filters)
    since_us, until_us = interval.since_us, interval.until_us
    lift = partial(estimate.lift, as_of_us=interval.as_of_us, since_us=since_us, until_us=until_us, where=where)
    rate = partial(estimate.loop_rates, as_of_us=interval.as_of_us, since_us=since_us, until_us=until_us)
    readouts = {split: lift(loops, sessions, detections, deliveries, settings, by=(split,)) for split in SPLITS}
    whole = Interval(interval.as_of_us, None, None, interval.tz)
    mine = {
        "loops": query.choose(loops, whole, filters, "detected_at"),
        "steps": query.choose(tables["steps"], interval, filters, "ts"),
    }
    rates_by, count_values = {}, {}
    for split in SPLITS:
        rates_by[split], count_values[split] = _rates_by(mine["loops"], mine["steps"], split, rate)
    connection = query.open_snapshot(snapshot, interval.as_of_us)
    seen = query.loops(connection, interval, filters)
    uneven = query.named("conservation")
    sources = snapshot.read("sources")
    waste, waste_text = findings.wasted(tables, interval, filters, ("week",))
    return Content(
        interval=interval,
        filters=filters,
        settings=settings,
        readouts=readouts,
        quality=estimate.quality(snapshot.scan("steps"), sources, interval.as_of_us),
        history=nights.lift_history(snapshot, as_of_us=interval.as_of_us).filter(
            (pl.col("scope") == "to_date") & pl.col("is_latest")
        ),
        is_any_night=bool(nights.lift_history(snapshot, as_of_us=interval.as_of_us).height),
        rates=rate(mine["loops"], mine["steps"]),
        rates_by=rates_by,
        count_values=count_values,
        weeks=findings.by_week(tables, interval, filters),
        waste=waste,
        drift_text=findings.drifts(tables, interval, filters, False)[1],
        waste_text=waste_text,
        classes=_classes(seen),
        audit=findings.audit(chosen, False),
        lines={name: int(sources[f"count_{name}"].sum()) for name in _FATES},
        count_uneven=0 if uneven is None else query.run(connection, uneven.sql).height,
        count_files=sources.height,
        enrolled=_enrolled(sessions, interval.as_of_us),
        count_steps=mine["steps"].height,
    )


_FATES = ("read", "used", "nothing", "folded", "rejected", "waiting")


def _rates_by(
    loops: pl.DataFrame, steps: pl.DataFrame, split: str, rate: Callable[[pl.DataFrame, pl.DataFrame], LoopRates]
) -> tuple[tuple[tuple[str, LoopRates], ...], int]:
    """Loop rates for each value of a column, most attempts first, and how many values there are."""
    is_attempt = pl.col("kind").is_in(sorted(rule.ATTEMPTS)) & (pl.col("actor") == "agent")
    busiest = (
        steps.filter(is_attempt).group_by(split).len().sort(["len", split], descending=[True, False], nulls_last=True)
    )
    found = []
    for value in busiest[split].head(RATES_SHOWN):
        is_mine = pl.col(split).eq_missing(pl.lit(value, dtype=pl.String))
        rates = rate(loops.filter(is_mine), steps.filter(is_mine))
        if rates.loops.exposure or rates.loops.events:
            found.append((_label(value), rates))
    return tuple(found), busiest.height


def _classes(loops: pl.DataFrame) -> pl.DataFrame:
    """The classes with the most strategy loops: tool, error_code, message, count_loops, count_runs."""
    keys = ["tool", "error_code", "message"]
    return (
        loops.filter(pl.col("rule") == rule.STRATEGY_LOOP)
        .group_by([*keys, "signature"])
        .agg(pl.len().alias("count_loops"), pl.col("run_id").n_unique().alias("count_runs"))
        .sort(["count_loops", *keys, "signature"], descending=[True, False, False, False, False], nulls_last=True)
        .drop("signature")
        .head(CLASSES_SHOWN)
    )


def _enrolled(sessions: pl.DataFrame, as_of_us: int) -> Rate:
    """Sessions that an experiment enrolled, of those known at the as-of."""
    begun = pl.coalesce("first_at", "enrolled_at").cast(TIME).to_physical()
    known = sessions.filter((begun <= as_of_us).fill_null(True))
    return Rate(known.filter("is_enrolled").height, known.height)


# --- what is shown ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """A table: cells are words; the columns named in `words` stand left, the others are numbers and stand right."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart with its words and its text alternative: a table, folded away where it is long."""

    name: str
    svg: Markup | None
    about: str
    grid: Grid
    is_folded: bool = False


@dataclass(frozen=True)
class Part:
    """One experiment, or the replay."""

    title: str
    result: Grid
    figures: tuple[Figure, ...] = ()
    lines: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A heading with words, figures and tables."""

    key: str
    title: str
    words: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    grids: tuple[Grid, ...] = ()
    lines: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    folded: tuple[Grid, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()


def html(content: Content, title: str | None = None) -> str:
    """The page. Ends with a line break."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    warnings = [n for n in content.readout.warnings if n.severity >= 2]
    return environment.get_template("report.html.j2").render(
        title=title or TITLE,
        headlines=_few(report.headlines(content.readout), EXPERIMENTS_SHOWN, "experiments"),
        verdicts=sorted({e.verdict or "" for e in content.readout.estimates}),
        note=report.window_note(content.readout),
        filters=_filters(content.filters),
        warnings=[report.warning_text(notice) for notice in warnings],
        is_nothing=content.is_nothing,
        sections=[
            _lift(content),
            _nights(content),
            _loop_rates(content),
            _weeks(content),
            _integrity(content),
            _method(content),
        ],
    )


def _shown(value: Any) -> Any:
    """What the template writes: log text with everything in it visible; the escaping comes after."""
    from markupsafe import Markup

    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return report.unbroken(safe_text(value)) if is_text else value


def _label(value: object) -> str:
    """A name from a log as one short line."""
    text = "(none)" if value is None else safe_text(str(value)[: 2 * _LONGEST])
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _few(lines: Sequence[str], count: int, what: str) -> list[str]:
    rest = len(lines) - count
    return [*lines[:count], *([f"And {rest} more {what}: loopstats lift."] if rest > 0 else [])]


def _filters(filters: Filters) -> list[tuple[str, str]]:
    named = (("project", filters.projects), ("model", filters.models), ("harness", filters.harnesses))
    return [(name, ", ".join(map(_label, values))) for name, values in named if values]


def _figure(name: str, draw: Callable[[], str] | None, about: str, grid: Grid, *, is_folded: bool = False) -> Figure:
    from markupsafe import Markup

    # The drawing is our own: every text in it went through an XML writer.
    return Figure(name, None if draw is None else Markup(draw()), about, grid, is_folded)


# --- lift ------------------------------------------------------------------------------------------------------------


def _lift(content: Content) -> Section:
    groups = report.groups(content.readout)
    live = [group for group in groups if group[0].scope != "replay"]
    shown = [group for group in groups if group[0].scope == "replay" or group in live[:EXPERIMENTS_SHOWN]]
    words = () if groups else ("No strategy loop is known here, so there is nothing to compare.",)
    return Section("lift", "Lift", words, parts=tuple(_part(content, group, not live) for group in shown))


def _part(content: Content, group: Sequence[Estimate], is_main: bool) -> Part:
    header, _ = report.lift_rows(group)
    result = Grid("Break rates and lift", tuple(header), tuple(map(tuple, report.result_rows(group))))
    whole = group[-1]
    lines = (*report.sensitivity_lines(whole), *report.detail_lines(whole))
    note = ""
    if whole.scope != "replay" and group[0].scope == "window" and _is_empty(group[0]):
        note = "No mature loop was detected in the window."
    if whole.scope == "replay" and not is_main:
        return Part(report.title_of(whole), result, lines=lines)
    figures = [_forest(content, group), _arms(whole)]
    if (curves := whole.details.get("time_to_break")) is not None:
        figures.append(_time_to_break(curves))
    return Part(report.title_of(whole), result, tuple(figures), lines, note)


def _is_empty(part: Estimate) -> bool:
    return part.headline.treated.n + part.headline.holdout.n == 0


def _forest(content: Content, group: Sequence[Estimate]) -> Figure:
    whole = group[-1]
    blocks = {
        report.title_of(whole) if whole.scope != "replay" else "A/A replay": [
            (_SCOPES[e.scope], e.headline) for e in reversed(group)
        ]
    }
    rows = []
    hidden = 0
    for split in SPLITS:
        mine = next(
            e for e in content.readouts[split].estimates if (e.scope, e.experiment) == (whole.scope, whole.experiment)
        )
        segments = sorted(mine.segments, key=lambda s: (-s.comparison.treated.n - s.comparison.holdout.n, s.label))
        if segments:
            blocks[f"by {split}"] = [(_label(s.label), s.comparison) for s in segments]
        hidden += max(0, len(segments) - SEGMENTS_SHOWN)
        for segment in segments[:SEGMENTS_SHOWN]:
            rows.append((split, _label(segment.label), report.segment_text(segment, whole.scope)))
    total = [("all", _SCOPES[e.scope], report.compared_text(e.headline)) for e in reversed(group)]
    note = f"And {hidden} more: loopstats lift --by {','.join(SPLITS)}." if hidden else ""
    has_lift = any(compared.lift is not None for parts in blocks.values() for _, compared in parts)
    about = (
        "The mark is the lift, the thick line its 95 % interval for one look"
        + (", the thin line the nightly interval, which alone makes a verdict" if whole.headline.ci_anytime else "")
        + ". Segments are known at detection. Among many segments some differ by chance."
        if has_lift
        else "No lift can be shown yet; the table says why."
    )
    grid = Grid(
        "Lift by segment",
        ("split", "segment", "lift, interval for one look, treated v holdout"),
        (*total, *rows),
        (0, 1, 2),
        note,
    )
    draw = (lambda: charts.forest(blocks)) if has_lift else None
    return _figure("Lift by segment", draw, about, grid, is_folded=True)


def _arms(part: Estimate) -> Figure:
    compared = part.headline
    rates = (compared.treated, compared.holdout)

    def of_arm(counts: tuple[int, int]) -> tuple[str, ...]:
        return tuple(str(Rate(x, rate.n, rate.is_withheld)) for x, rate in zip(counts, rates, strict=True))

    rows = (
        ("loops", *(str(rate.n) for rate in rates)),
        ("in sessions", str(compared.sessions_treated), str(compared.sessions_holdout)),
        ("broke", *map(str, rates)),
        ("recurred", *of_arm(part.recurred)),
        ("unresolved", *of_arm(part.unresolved)),
        ("pending, not counted yet", *map(str, part.pending)),
    )
    draw = (lambda: charts.arms(part)) if any(rate.has_percent for rate in rates) else None
    about = (
        "Broke: what failed works again. Recurred: the same failure three more times. Unresolved: neither. "
        "Both arms are judged by one ruler, by assigned arm."
    )
    return _figure("Outcomes by arm", draw, about, Grid("Outcomes by arm", ("", *ARMS), rows))


def _time_to_break(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    rows = []
    for points in zip(*(curves[arm] for arm in ARMS), strict=True):
        steps = points[0]["steps"]
        cells = [
            _with_ends(str(Rate(point["x"], point["n"], point["rate"] is None)), point["low"], point["high"])
            for point in points
        ]
        rows.append(("in the end" if steps is None else f"{steps}", *cells))
    has_points = any(point["rate"] is not None for arm in ARMS for point in curves[arm])
    grid = Grid("Loops broken within so many steps", ("steps", "treated, 95 %", "holdout, 95 %"), tuple(rows))
    about = (
        "Share of all loops of the arm that broke within so many steps after the detection; recurring and the end of "
        "the run compete. Lines through the marks: 95 % intervals for one look."
    )
    draw = (lambda: charts.time_to_break(curves, "Time to break")) if has_points else None
    return _figure("Time to break", draw, about, grid, is_folded=True)


# --- nights ----------------------------------------------------------------------------------------------------------

_HOW_TO_RECORD = (
    "loopstats lift --record writes the estimate of an as-of to the lake; run every night after ingest, this place "
    "shows the interval that may be read every time."
)


def _nights(content: Content) -> Section:
    title = "Night by night"
    if content.is_filtered:
        return Section("nights", title, ("A recorded night is of everything, so none is shown for a selection.",))
    names = sorted({e.experiment for e in content.readout.estimates if e.scope == "to_date"})
    names = [name for name in names if content.history.filter(pl.col("experiment") == name).height]
    if not names:
        missing = (
            "Only nights without an experiment are recorded: an A/A replay has no verdict to follow."
            if content.is_any_night
            else f"No night is recorded. {_HOW_TO_RECORD}"
        )
        return Section("nights", title, (missing,))
    figures = []
    for name in names[:EXPERIMENTS_SHOWN]:
        mine = content.history.filter(pl.col("experiment") == name)
        listed = nights.shown_history(mine.tail(NIGHTS_LISTED))
        rows = tuple(
            (
                row["as_of"].strftime("%Y-%m-%d %H:%M").removesuffix(" 00:00"),
                row["lift"] if row["nightly"] == _DASH else f"{row['lift']} {row['nightly']}",
                row["verdict"] or _DASH,
                f"{row['treated']} v {row['holdout']}",
            )
            for row in listed.iter_rows(named=True)
        )
        header = ("as of (UTC)", "lift, 95 % nightly", "verdict", "broke, treated v holdout")
        label = report.title_of(next(e for e in content.readout.estimates if e.experiment == name))
        about = (
            f"{label}: the lift to date as it was known each night, with the interval that stays valid although "
            "somebody looks every night."
        )
        hidden = mine.height - listed.height
        note = f"And {hidden} earlier: loopstats lift --history." if hidden else ""
        has_lift = mine["lift"].drop_nulls().len() > 0
        draw = (partial(charts.nights, mine, f"{label}, night by night")) if has_lift else None
        figures.append(
            _figure(label, draw, about, Grid(f"{label}, recorded nights", header, rows, (0, 2), note), is_folded=True)
        )
    return Section("nights", title, (), tuple(figures))


# --- loops, drift, waste ---------------------------------------------------------------------------------------------


def _loop_rates(content: Content) -> Section:
    figures = []
    for split in SPLITS:
        parts = content.rates_by[split]
        if not parts:
            continue
        rows = tuple(
            (
                label,
                _with_ends(str(rates.runs), rates.runs_low, rates.runs_high),
                f"{rates.loops}{_ends(rates.loops.low, rates.loops.high)}",
            )
            for label, rates in parts
        )
        header = (split, "runs with a loop, 95 %", "loops per 1,000 attempts, 95 %")
        hidden = content.count_values[split] - RATES_SHOWN
        note = f'And {hidden} more: loopstats sql "select * from loop_rates_by_{split}".' if hidden > 0 else ""
        drawn = [(label, rates) for label, rates in parts if rates.runs.has_percent]
        draw = (
            (lambda drawn=drawn, split=split: charts.loop_rates(drawn, f"Runs with a strategy loop, by {split}"))
            if drawn
            else None
        )
        about = f"Of the runs with 3 or more attempts by {split}, those in which a strategy loop was detected."
        figures.append(
            _figure(
                f"By {split}", draw, about, Grid(f"Loop rates by {split}", header, rows, (0,), note), is_folded=True
            )
        )
    grids: tuple[Grid, ...] = ()
    if content.classes.height:
        cells = tuple(
            (
                _label(row["tool"]),
                _label(row["error_code"]) if row["error_code"] else _DASH,
                _label(row["message"]),
                f"{row['count_loops']} in {row['count_runs']}",
            )
            for row in content.classes.iter_rows(named=True)
        )
        grids = (
            Grid("What they loop on most", ("tool", "error", "message, masked", "loops in runs"), cells, (0, 1, 2)),
        )
    return Section(
        "loops", "How often agents loop", (f"{report.loop_rate_text(content.rates)}.",), tuple(figures), grids
    )


def _with_ends(rate: str, low: float | None, high: float | None) -> str:
    return rate if low is None else f"{rate} {report.share_interval(low, high)}"


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.1f}, {high:.1f}]"


def _weeks(content: Content) -> Section:
    title = "Drift and waste by week"
    drifting: list[tuple[str, str, float | None]] = []
    ended: list[tuple[str, ...]] = []
    for row in content.weeks.iter_rows(named=True):
        rate = Rate(row["count_drifting"], row["count_long"])
        others = [str(Rate(row[f"count_{name}"], row["count_runs"])) for name in ("echoing", "looping")]
        ended.append((_week(row), str(rate), *others))
        drifting.append((_week(row), f"{rate} runs", 100 * rate.x / rate.n if rate.has_percent else None))
    wasted: list[tuple[str, str, float | None]] = []
    spent: list[tuple[str, ...]] = []
    for row in content.waste.sort("week", nulls_last=True).iter_rows(named=True):
        tokens, cost = row["tokens"], row["cost_micros"]
        told = _DASH if tokens is None else f"{tokens:,} ({_of(row, 'told')} turns)"
        price = _DASH if cost is None else f"${cost / 1e6:,.2f} ({_of(row, 'priced')} turns)"
        spent.append((_week(row), f"{row['count_turns']:,}", f"{row['count_runs']:,}", told, price))
        words = f"{0 if tokens is None else tokens:,} tokens, {row['count_turns']:,} turns"
        wasted.append((_week(row), words, None if tokens is None else float(tokens)))
    figures = []
    if ended:
        header = ("week from (UTC)", "with drift, of 8 steps or more", "with an echo", "with a strategy loop")
        about = "Runs by the week of their end. Drift: turned in circles while the world stayed as it was."
        name = "Runs with drift, by week"
        is_drawn = any(value for _, _, value in drifting)
        draw = (
            partial(charts.weeks, drifting, "% of runs with 8 steps or more", name, is_share=True) if is_drawn else None
        )
        figures.append(_figure(name, draw, about, _latest(name, header, ended, "runs --by"), is_folded=True))
    if spent:
        columns = ("week from (UTC)", "wasted turns", "in runs", "tokens (told for)", "list price (known for)")
        about = "Turns from a detection or onset to the outcome or the end of the run, each turn once."
        name = "Tokens in wasted turns, by week"
        is_drawn = any(value for _, _, value in wasted)
        draw = partial(charts.weeks, wasted, "tokens", name) if is_drawn else None
        figures.append(_figure(name, draw, about, _latest(name, columns, spent, "waste --by week"), is_folded=True))
    if not figures:
        return Section("weeks", title, ("No run ended here and no turn was wasted, so there is nothing to sum.",))
    return Section("weeks", title, (f"{content.drift_text}. Wasted: {content.waste_text}.",), tuple(figures))


def _latest(caption: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], command: str) -> Grid:
    hidden = len(rows) - WEEKS_LISTED
    note = f"And {hidden} earlier weeks: loopstats {command}." if hidden > 0 else ""
    return Grid(caption, header, tuple(rows[-WEEKS_LISTED:]), (0,), note)


def _week(row: Mapping[str, Any]) -> str:
    return "no time" if row["week"] is None else str(row["week"])


def _of(spent: Mapping[str, Any], what: str) -> str:
    return f"{spent[f'count_turns_{what}']:,}/{spent['count_turns']:,}"


# --- integrity and method --------------------------------------------------------------------------------------------


def _integrity(content: Content) -> Section:
    readout, read = content.readout, content.lines
    grids = []
    for group in report.groups(readout)[: EXPERIMENTS_SHOWN + 1]:
        name = "A/A replay" if group[-1].scope == "replay" else report.title_of(group[-1])
        if checks := list(report.audit_lines(readout, group[-1])):
            grids.append(_checks(name, checks))
    fates = ", ".join(f"{name} {read[name]:,}" for name in _FATES[1:])
    lines = [
        f"sessions enrolled in an experiment: {content.enrolled}",
        f"lines and records read: {read['read']:,} = {fates}",
        f"files whose lines do not add up: {Rate(content.count_uneven, content.count_files)}",
        f"wasted turns: {content.waste_text}",
        *(notice.text for notice in content.quality),
    ]
    remarks = tuple(report.warning_text(notice) for notice in readout.warnings if notice.severity < 2)
    grids.append(_checks("What the numbers rest on", lines))
    rows = tuple(
        (row["finding"], row["rate"], row["unit"], row["about"]) for row in content.audit.iter_rows(named=True)
    )
    header = ("finding", "rate", "of", "what it means")
    audit = Grid("Audit of the agents and their safety net", header, rows, (0, 2, 3))
    return Section("integrity", "Integrity", grids=tuple(grids), lines=remarks, folded=(audit,))


def _checks(name: str, lines: Sequence[str]) -> Grid:
    """Lines `what: how it stands` as a table."""
    pairs = (line.rpartition(": ") if line.startswith("steps") else line.partition(": ") for line in lines)
    return Grid(name, ("check", "result"), tuple((what, result or _DASH) for what, _, result in pairs), (0, 1))


def _method(content: Content) -> Section:
    hours = content.settings.maturity_us / 3_600_000_000
    words = (
        "An agent is in a strategy loop when it keeps failing in one way on different targets. At the instant of "
        "detection a hash of run and class puts the loop into treated (the intervention is delivered) or holdout "
        "(detected, measured, silent). Both arms are judged by one ruler, read from the event stream.",
        "The lift is the break rate of the treated loops minus that of the holdout loops, by assigned arm and over all "
        f"mature loops ({hours:g} hours after the detection); unresolved loops count as not broken. Intervals know "
        "that loops of one session are alike. The interval for one look holds for a single reading that was planned; "
        "the nightly interval stays valid when it is read every night, and it alone makes a verdict. A rolling window "
        "has none.",
        "Without an experiment the arms are drawn after the fact (A/A replay): a difference can only be chance.",
    )
    facts = (
        ("loopstats", __version__),
        ("rule digest", content.settings.rule_digest),
        ("interval", str(content.interval)),
        ("charts", f"altair {version('altair')}, vl-convert-python {version('vl-convert-python')}"),
        ("prices", f"genai-prices {version('genai-prices')}"),
    )
    return Section("method", "Method", words, facts=facts)
