"""Results to text: what a person reads, in plain strings that can be tested byte for byte.

A room of its own because the words decide what a tired reader concludes: a headline in words first, then the arms with
their n, then the warnings that matter most first. Nothing is computed here, and nothing is printed: `cli.py` owns the
terminal. Every text from a log passes `safe_text` before it stands in a line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from loopstats.estimate import WITHHOLDS_ALL, Comparison, Estimate, LoopRates, Notice, Rate, Readout, Segment, iso

MIN_WIDTH = 40
NAMED_SHOWN = 5
GAP = "  "
_NONE = "-"
_SCOPES = {"window": "window", "to_date": "to date", "replay": "A/A replay"}

# Printable for Python, invisible or confusing on a screen: fillers, joiners, variation selectors, a blank Braille cell.
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_KEEP = re.compile(r"(?<=[0-9]) (?=%|\([0-9])|(?<=[0-9],) (?=[+-]?[0-9.]{1,9}\])|(?<=[0-9]) (?=points)|(?<=\]) (?=%)")
# A character that `safe_text` lets through nowhere.
_JOIN = "\ue000"
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_WHY = {
    "hash_audit_failed": "the logged arms are not those that the salt gives",
    "srm_failed": "the split of the arms is not the planned one",
    "share_invalid": "the logs carry no usable treated share",
    "salt_unknown": "the salt of the experiment is not configured",
    "empty_arm": "an arm has no loops",
    "n_lt_5": "an arm has fewer than 5 loops",
    "no_shared_epoch": "no epoch has loops in both arms",
    "clusters_lt_2": "one session holds a whole arm",
    "attrition_differs": "the unresolved shares differ",
    "segment_n_lt_10": "fewer than 10 loops in an arm",
    "wide": "fewer than 10 loops or 10 sessions in an arm",
}
_NO_DELIVERY = " But no delivery is logged: as far as the logs tell, an A/A replay."
_PARTS = {
    "first_loop_only": "first loop of each session",
    "resolved_only": "resolved loops only",
    "without_interrupted": "without interrupted loops",
    "without_infra": "without infrastructure errors",
    "without_one_turn": "without one-turn loops",
}


def safe_text(text: str) -> str:
    """`text` with everything visible: control, bidirectional, zero-width and surrogate characters become escapes.

    Line breaks and tabs are written as two characters too, so that the result is one line.
    """
    if text.isprintable() and _UNSEEN.search(text) is None:
        return text
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    # Wide and no-break spaces are not "printable" and do no harm.
    is_plain = char.isprintable() or unicodedata.category(char) == "Zs"
    if is_plain and _UNSEEN.match(char) is None:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cell_width(text: str) -> int:
    """Columns that a line takes on a terminal: wide characters take two, combining marks none."""
    return cell_len(text)


def points(lift: float | None) -> str:
    """A lift as `+24.8 points`."""
    return _NONE if lift is None else f"{_signed(lift)} points"


def interval(ends: tuple[float, float] | None) -> str:
    """An interval of a lift as `[+5.2, +33.4]`, in points."""
    return _NONE if ends is None else f"[{_signed(ends[0])}, {_signed(ends[1])}]"


def _signed(value: float) -> str:
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def lift_text(readout: Readout, width: int, all: bool = False) -> str:
    """The whole readout as lines of at most `width` columns: headline, table, warnings; the rest with `all`.

    Ends with a line break. Widths below 40 are taken as 40; a single value that is longer stands out.
    """
    width = max(MIN_WIDTH, width)
    blocks = [wrap(line, width) for line in headlines(readout)]
    for group in groups(readout):
        header, rows = lift_rows(group)
        blocks.append("\n".join([wrap(title_of(group[0]), width), table(header, rows, width)]))
    blocks.append(wrap(window_note(readout), width))
    severe = [notice for notice in readout.warnings if all or notice.severity >= 2]
    shown = [wrap(f"! {warning_text(notice)}", width, "  ") for notice in severe]
    if shown:
        blocks.append("Warnings\n" + "\n".join(shown))
    blocks.extend(_wrong_arms(readout, width, all))
    hidden = len(readout.warnings) - len(severe)
    if all:
        blocks.extend(_sections(readout, width))
    else:
        for estimate in readout.estimates:
            if estimate.segments and estimate.scope != "replay":
                blocks.append(_segment_block(estimate, width))
        rest = f" and {hidden} more remark{'s' if hidden != 1 else ''}" if hidden else ""
        blocks.append(wrap(f"Sensitivities, integrity{rest}: --all. Every number: -f json.", width))
    return "\n\n".join(block for block in blocks if block) + "\n"


def headlines(readout: Readout) -> list[str]:
    """One line in words for each experiment; for logs without any, one for the A/A replay."""
    live = [estimate for estimate in readout.estimates if estimate.scope == "to_date"]
    if not live:
        return [_replay_headline(estimate) for estimate in readout.estimates]
    silent = {notice.experiment for notice in readout.warnings if notice.code == "no_delivery_logged"}
    return [_headline(e) + (_NO_DELIVERY if e.experiment in silent else "") for e in live]


def _headline(estimate: Estimate) -> str:
    name, compared = safe_text(estimate.experiment) or "(unnamed)", estimate.headline
    counts = f"treated {compared.treated} against holdout {compared.holdout}"
    if estimate.verdict == "withheld":
        sizes = f"{compared.treated.n} treated, {compared.holdout.n} holdout"
        return f"{name}: no result, because {_reasons(compared)}. Loops: {sizes}."
    if compared.lift is None:
        return f"{name}: no result yet, {_reasons(compared)}. Loops broken: {counts}."
    direction = "more" if compared.lift >= 0 else "less"
    moved = f"treated loops broke {abs(100 * compared.lift):.1f} points {direction} often"
    if estimate.verdict in ("helps", "harms"):
        return (
            f"{name} {estimate.verdict}: {moved}, {counts}. A verdict: the nightly interval "
            f"{interval(compared.ci_anytime)} leaves out 0."
        )
    if compared.ci_anytime is None or "wide" in compared.reasons:
        return f"{name}: no verdict yet, {_reasons(compared)}. So far {moved}, {counts}."
    return (
        f"{name}: no verdict yet. So far {moved}, {counts}; the nightly interval {interval(compared.ci_anytime)} "
        "still holds 0."
    )


def _replay_headline(estimate: Estimate) -> str:
    compared = estimate.headline
    start = "A/A replay: no session in these logs is enrolled in an experiment, the arms are drawn after the fact."
    if compared.treated.n + compared.holdout.n == 0:
        return f"{start} No mature strategy loop was found, so there is nothing to compare."
    if not set(WITHHOLDS_ALL).isdisjoint(compared.reasons):
        sizes = f"{compared.treated.n} treated, {compared.holdout.n} holdout"
        return f"{start} No result, because {_reasons(compared)}. Loops: {sizes}."
    return (
        f"{start} Loops broken in the replayed arms: {compared.treated} and {compared.holdout}; "
        "a difference can only be chance or a broken instrument."
    )


def groups(readout: Readout) -> list[list[Estimate]]:
    """Estimates that stand side by side: the scopes of one experiment; the replay alone, where it has loops."""
    groups: dict[tuple[str, bool], list[Estimate]] = {}
    for estimate in readout.estimates:
        if _is_empty_replay(estimate):
            continue
        groups.setdefault((estimate.experiment, estimate.scope == "replay"), []).append(estimate)
    return list(groups.values())


def _is_empty_replay(estimate: Estimate) -> bool:
    count = estimate.headline.treated.n + estimate.headline.holdout.n + sum(estimate.pending)
    return estimate.scope == "replay" and count == 0


def title_of(estimate: Estimate) -> str:
    if estimate.scope == "replay":
        return "A/A replay of loops outside any experiment: chance, no effect"
    return f"Experiment {safe_text(estimate.experiment) or '(unnamed)'}"


def lift_rows(estimates: Sequence[Estimate]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table: a scope a column."""
    header = ["", *[_SCOPES[estimate.scope] for estimate in estimates]]
    return header, [*result_rows(estimates), *_count_rows(estimates)]


def result_rows(estimates: Sequence[Estimate]) -> list[list[str]]:
    """Rates, lift, intervals and verdict: a row each, a scope a column after the label."""
    rows = [
        ["treated broke", *[str(e.headline.treated) for e in estimates]],
        ["holdout broke", *[str(e.headline.holdout) for e in estimates]],
        [
            "lift, by epoch" if any(map(_is_stratified, estimates)) else "lift",
            *[points(e.headline.lift) for e in estimates],
        ],
        ["95 %, one look", *[interval(e.headline.ci_fixed) for e in estimates]],
    ]
    if any(e.scope == "to_date" for e in estimates):
        rows += [
            ["95 %, nightly", *[interval(e.headline.ci_anytime) for e in estimates]],
            ["verdict", *[e.verdict or _NONE for e in estimates]],
        ]
    return rows


def _count_rows(estimates: Sequence[Estimate]) -> list[list[str]]:
    return [
        ["recurred, t v h", *[_pair(e.recurred) for e in estimates]],
        ["unresolved, t v h", *[_pair(e.unresolved) for e in estimates]],
        ["sessions, t v h", *[_pair((e.headline.sessions_treated, e.headline.sessions_holdout)) for e in estimates]],
        ["pending, t v h", *[_pair(e.pending) for e in estimates]],
        ["interrupted loops", *[_rate(e.details.get("interrupted")) for e in estimates]],
        ["lift without them", *[_lift_of(e.sensitivities.get("without_interrupted")) for e in estimates]],
    ]


def _is_stratified(estimate: Estimate) -> bool:
    return bool(estimate.details.get("pooling", {}).get("is_stratified"))


def _pair(counts: tuple[int, int]) -> str:
    return f"{counts[0]} v {counts[1]}"


def _lift_of(compared: Comparison | None) -> str:
    return _NONE if compared is None else points(compared.lift)


def _rate(value: object) -> str:
    """A rate that is already in its JSON form."""
    if not isinstance(value, dict) or "n" not in value:
        return _NONE
    return str(Rate(value["x"], value["n"], value["rate"] is None))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Aligned columns; where they do not fit, one column under the other, each with the labels."""
    widths = [max(cell_width(row[i]) for row in [header, *rows]) for i in range(len(header))]
    if len(header) > 2 and sum(widths) + len(GAP) * (len(header) - 1) > width:
        parts = [
            table([header[0], header[i]], [[row[0], row[i]] for row in rows], width) for i in range(1, len(header))
        ]
        return "\n\n".join(parts)
    lines = []
    for row in [header, *rows]:
        cells = [cell + " " * (size - cell_width(cell)) for cell, size in zip(row, widths, strict=True)]
        lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines)


def wrap(text: str, width: int, indent: str = "") -> str:
    """`text` on lines of at most `width` columns; what follows the first is indented. Log text is made visible.

    A rate with its n and the two ends of an interval stay on one line.
    """
    lines = [""]
    for word in unbroken(safe_text(text), _JOIN).split(" "):
        if lines[-1].strip() and cell_width(lines[-1]) + 1 + cell_width(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1].strip():
            lines.append(indent)
        for char in word:
            if cell_width(lines[-1]) + cell_width(char) > width:
                lines.append(indent)
            lines[-1] += char
    return "\n".join(lines).replace(_JOIN, " ")


def unbroken(text: str, joint: str = "\u00a0") -> str:
    """`text` with `joint` for the spaces inside a rate with its n and between the two ends of an interval."""
    return _KEEP.sub(joint, text)


def warning_text(notice: Notice) -> str:
    """A warning with the name of its experiment, as logged: escape before showing."""
    return f"{notice.experiment}: {notice.text}" if notice.experiment else notice.text


def window_note(readout: Readout) -> str:
    mature = iso(readout.as_of_us - readout.maturity_us)
    hours = readout.maturity_us / 3_600_000_000
    text = f"As of {iso(readout.as_of_us)}; loops detected by {mature} are counted ({hours:g} h to mature)"
    if readout.since_us is not None or readout.until_us is not None:
        since = "the beginning" if readout.since_us is None else iso(readout.since_us)
        mature_us = readout.as_of_us - readout.maturity_us
        until_us = mature_us if readout.until_us is None else min(readout.until_us, mature_us)
        text += f"; window: detected from {since} to {iso(until_us)}"
    return text + "."


# --- everything else -------------------------------------------------------------------------------------------------


def _sections(readout: Readout, width: int) -> Iterable[str]:
    for estimate in readout.estimates:
        if _is_empty_replay(estimate):
            continue
        title = f"{_SCOPES[estimate.scope]}{': ' if estimate.experiment else ''}{safe_text(estimate.experiment)}"
        body = [*sensitivity_lines(estimate), *detail_lines(estimate)]
        if estimate.scope != "window":
            body.extend(audit_lines(readout, estimate))
        if body:
            yield "\n".join(wrap(line, width, "    ") for line in [f"More on {title}", *body])
        if estimate.segments:
            yield _segment_block(estimate, width)


def sensitivity_lines(estimate: Estimate) -> Iterable[str]:
    for name, label in _PARTS.items():
        compared = estimate.sensitivities.get(name)
        if compared is not None:
            yield f"{label}: {compared_text(compared)}"


def compared_text(compared: Comparison) -> str:
    text = f"{compared.treated} v {compared.holdout}"
    if compared.lift is None:
        return f"{text} (no lift: {_WHY.get(compared.reasons[0], compared.reasons[0])})"
    ends = "" if compared.ci_fixed is None else f" {interval(compared.ci_fixed)}"
    return f"{points(compared.lift)}{ends}, {text}"


def _reasons(compared: Comparison) -> str:
    return ", ".join(_WHY.get(reason, reason) for reason in compared.reasons) or "withheld"


def detail_lines(estimate: Estimate) -> Iterable[str]:
    details = estimate.details
    bounds = details.get("bounds")
    if bounds and bounds["low"] is not None and bounds["low"] < bounds["high"]:
        ends = "" if bounds["ci_low"] is None else f", 95 % {interval((bounds['ci_low'], bounds['ci_high']))}"
        yield f"whatever the unresolved loops would have become: {interval((bounds['low'], bounds['high']))}{ends}"
    attrition = details.get("attrition")
    if attrition:
        p = attrition["fisher_p"]
        test = "" if p is None else f", exact p {p:.3f}"
        yield f"unresolved: {_rate(attrition['treated'])} v {_rate(attrition['holdout'])}{test}"
    delivery = details.get("delivery")
    if delivery and delivery["is_any_logged"]:
        yield f"delivered: treated {_rate(delivery['treated'])}, holdout {_rate(delivery['holdout'])}"
    cace = details.get("cace")
    if cace and cace["value"] is not None:
        ends = (
            " (no interval: too few deliveries differ)"
            if cace["ci_low"] is None
            else f" {interval((cace['ci_low'], cace['ci_high']))}"
        )
        yield f"effect of delivery itself: {points(cace['value'])}{ends}"
    after = details.get("holdout_after_treated")
    if after and after["after"]["n"]:
        yield (
            f"holdout loops after a treated loop of their session: {_rate(after['after'])}, "
            f"others {_rate(after['not_after'])}"
        )
    sidestepped = details.get("sidestepped")
    if sidestepped:
        yield f"sidestepped: {_rate(sidestepped['treated'])} v {_rate(sidestepped['holdout'])}"
    relapsed = estimate.known_now.get("relapsed")
    if relapsed:
        yield f"relapsed after breaking, as known now: {_rate(relapsed['treated'])} v {_rate(relapsed['holdout'])}"
    curve = details.get("time_to_break")
    if curve:
        for arm in ("treated", "holdout"):
            steps = [point for point in curve[arm] if point["steps"] in (5, 20, None)]
            shown = ", ".join(
                f"{_rate(point)} {'in the end' if point['steps'] is None else 'in ' + str(point['steps']) + ' steps'}"
                for point in steps
            )
            yield f"{arm} broken: {shown}"
    planning = details.get("planning")
    if planning and planning["mde_now"] is not None:
        later = planning["mde_at_n_star"]
        text = f"smallest lift found with 80 % power: {points(planning['mde_now'])} now"
        nights = planning["nights_to_n_star"]
        if estimate.scope == "to_date" and later is not None and nights != 0:
            text += f", {points(later)} at n* {estimate.n_star}"
            text += "" if nights is None else f", in about {nights} nights"
        yield text


def audit_lines(readout: Readout, estimate: Estimate) -> Iterable[str]:
    checks = readout.audit.replay if estimate.scope == "replay" else readout.audit.of(estimate.experiment)
    if checks.n_checked + checks.n_unchecked:
        yield (
            f"audit: {checks.n_checked} logged arms recomputed, {checks.hash_failures.n} differ, "
            f"{checks.n_unchecked} could not be checked"
        )
    for split in checks.splits:
        share = "unknown" if split.share_bp is None else f"{split.share_bp / 100:g} %"
        p = "" if split.p is None else f", exact p {split.p:.3f}"
        epoch = "" if split.epoch is None else f" in epoch {split.epoch}"
        yield f"split{epoch}: {split.n_treated} v {split.n_holdout}, planned share {share}{p}"
    for name, rates in (("the log", checks.only_log), ("the replay", checks.only_replay)):
        if checks.has_records and any(rate.n for _, rate in rates):
            yield f"loops that only {name} has: {', '.join(f'{arm} {rate}' for arm, rate in rates)}"
    if checks.has_deliveries:
        yield f"treated not delivered: {checks.treated_not_delivered}; holdout delivered: {checks.holdout_delivered}"


def _wrong_arms(readout: Readout, width: int, is_all: bool) -> Iterable[str]:
    """The records whose arm is not the one that their salt gives, by name."""
    for checks in (*readout.audit.experiments.values(), readout.audit.outside):
        names = [dict(name) for name in checks.hash_failures.names]
        if not names:
            continue
        lines = ["Records with another arm"]
        for name in names if is_all else names[:NAMED_SHOWN]:
            place = f"{name['source_file']}:{name['source_line']}"
            lines.append(
                f"{name['run_id']} {name['signature']}: logged {name['arm']} {_bp(name['arm_bp'])}, "
                f"recomputed {name['arm_true']} {_bp(name['arm_bp_true'])} ({place})"
            )
        if len(lines) - 1 < checks.hash_failures.n:
            lines.append(f"and {checks.hash_failures.n - len(lines) + 1} more")
        yield "\n".join(wrap(line, width, "    ") for line in lines)


def _bp(basis_points: int | None) -> str:
    return "(no bp)" if basis_points is None else f"({basis_points} bp)"


def _segment_block(estimate: Estimate, width: int) -> str:
    lines = [f"Segments, {_SCOPES[estimate.scope]}"]
    for segment in estimate.segments:
        lines.append(wrap(f"{segment.label}: {segment_text(segment, estimate.scope)}", width, "    "))
    return "\n".join(lines)


def segment_text(segment: Segment, scope: str) -> str:
    text = compared_text(segment.comparison)
    if segment.is_selected and segment.comparison.lift is not None:
        word = "helps" if segment.comparison.lift > 0 else "harms"
        return f"{text}; {word}, nightly and among all segments {interval(segment.ci_selected)}"
    if scope == "to_date":
        return f"{text}; {'no verdict yet' if segment.log_e is not None else 'not tested'}"
    return text


def share_interval(low: float | None, high: float | None) -> str:
    """An interval of a share as `[12.1, 14.0] %`."""
    return _NONE if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}] %"


def loop_rate_text(rates: LoopRates) -> str:
    """METHOD 10's loop rates in one line."""
    ends = "" if rates.runs_low is None else f" {share_interval(rates.runs_low, rates.runs_high)}"
    text = f"Runs with a strategy loop: {rates.runs}{ends} of those with 3 or more attempts; loops: {rates.loops}"
    if rates.loops.low is not None and rates.loops.high is not None:
        text += f" [{rates.loops.low:.1f}, {rates.loops.high:.1f}]"
    return text
