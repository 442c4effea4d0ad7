"""Results to pictures: one function a chart, result objects and frames in, an SVG string out.

A room of its own because a picture decides what a hurried reader concludes: intervals are drawn wherever a lift or rate
is, n stands beside every mark, and the arms differ in shape and line as well as in colour. Nothing is computed here
beyond places on the canvas. Drawn by Vega-Lite inside this process: no network, no script in the result.

Every chart is 400 units wide, so that its text can be read on a phone. Colours are CSS variables with a fallback
(`--treated`, `--holdout`, `--ink`, `--muted`, `--grid`): a page may set them, light and dark. Layout does not depend on
the fonts of the machine: widths of texts are estimated, generously.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from loopstats.estimate import ARMS, Comparison, Estimate, LoopRates, Rate
from loopstats.report import safe_text

if TYPE_CHECKING:
    import altair as alt
    import polars as pl

Align = Literal["left", "center", "right"]
WIDTH = 400
MARGIN = 18
ROWS_SHOWN = 12
NIGHTS_SHOWN = 400
WEEKS_SHOWN = 16
INK = "currentColor"
MUTED = "var(--muted, #5b6672)"
GRID = "var(--grid, #d3d9df)"
COLOURS = {"treated": "var(--treated, #0b6aa2)", "holdout": "var(--holdout, #b4500b)"}
SHAPES = {"treated": "circle", "holdout": "square"}
DASHES = {"treated": [1, 0], "holdout": [5, 3]}

_FONT = 13
_SMALL = 12
_ROW, _HEAD, _AXIS = 40, 28, 40
_SVG = "http://www.w3.org/2000/svg"
# As d3 formats numbers whatever the machine's language is, with the minus of the texts.
_LOCALE: dict[str, Any] = {
    "decimal": ".",
    "thousands": ",",
    "grouping": [3],
    "currency": ["$", ""],
    "minus": "-",
}


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a chart of rows: a text on the left, one on the right, and a mark below them."""

    label: str
    note: str
    value: float | None = None
    inner: tuple[float, float] | None = None
    outer: tuple[float, float] | None = None
    is_head: bool = False

    @property
    def height(self) -> int:
        return _HEAD if self.is_head else _ROW


def forest(blocks: Mapping[str, Sequence[tuple[str, Comparison]]], name: str = "Lift") -> str:
    """Lifts with their intervals under each other, in points; a block of (label, comparison) a heading.

    Thick: the interval for one look. Thin: the nightly one. A comparison without a lift keeps its counts and no mark.
    """
    rows: list[_Row] = []
    for heading, parts in blocks.items():
        rows.append(_Row(heading, "treated v holdout", is_head=True))
        for label, compared in parts[:ROWS_SHOWN]:
            rows.append(
                _Row(
                    label,
                    f"{compared.treated.x}/{compared.treated.n} v {compared.holdout.x}/{compared.holdout.n}",
                    None if compared.lift is None else 100 * compared.lift,
                    _percent(compared.ci_fixed),
                    _percent(compared.ci_anytime),
                )
            )
    ends = [end for row in rows for pair in (row.inner, row.outer) for end in pair or ()]
    ends += [row.value for row in rows if row.value is not None]
    low, high, ticks = _nice([*ends, -10.0, 10.0], -100.0, 100.0)
    return _rows_chart(
        rows,
        (low, high),
        ticks,
        "lift in points; right of 0: treated broke more often",
        name,
        f"{name}: a line each for {sum(not row.is_head for row in rows)} comparisons, with intervals.",
        label_expr="datum.value === 0 ? '0' : format(datum.value, '+.0f')",
        zero=0.0,
    )


def loop_rates(parts: Sequence[tuple[str, LoopRates]], name: str = "Runs with a strategy loop") -> str:
    """Shares of runs with a loop, with their intervals, one (label, rates) a row."""
    rows = []
    for label, rates in parts[:ROWS_SHOWN]:
        ends = None if rates.runs_low is None or rates.runs_high is None else (rates.runs_low, rates.runs_high)
        rows.append(_Row(label, f"{rates.runs} runs", _share(rates.runs), _percent(ends)))
    about = f"{name}: a line each for {len(rows)} groups, with intervals."
    return _rows_chart(rows, (0.0, 100.0), [0, 25, 50, 75, 100], "% of runs with 3 or more attempts", name, about)


def weeks(rows: Sequence[tuple[str, str, float | None]], unit: str, name: str, *, is_share: bool = False) -> str:
    """Bars of (week, words, value), one a week, oldest first; the last `WEEKS_SHOWN` are drawn. None: no bar.

    A share is given in percent.
    """
    shown = [_Row(week, words, value) for week, words, value in rows[-WEEKS_SHOWN:]]
    top = 100.0 if is_share else max([row.value for row in shown if row.value is not None], default=0.0)
    low, high, ticks = (0.0, 100.0, [0.0, 25.0, 50.0, 75.0, 100.0]) if is_share else _nice([0.0, top or 1.0], 0.0, None)
    about = f"{name}: a bar each for {len(shown)} weeks."
    return _rows_chart(
        shown, (low, high), ticks, unit, name, about, is_bar=True, label_expr="format(datum.value, '~s')"
    )


def arms(estimate: Estimate, name: str = "Outcomes by arm") -> str:
    """What became of the loops of each arm: broke (solid), recurred (pale), unresolved (outline), as shares of n.

    An arm whose shares are withheld, or that is too small for them, keeps its counts and has no bar.
    """
    compared = estimate.headline
    counts = {
        arm: (rate.has_percent, rate.x, estimate.recurred[i], estimate.unresolved[i], rate.n)
        for i, (arm, rate) in enumerate(zip(ARMS, (compared.treated, compared.holdout), strict=True))
    }
    bars: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    height = 62
    for i, (arm, (has_shares, *parts, n)) in enumerate(counts.items()):
        top = i * height
        texts.append(_text(0, top + 14, arm, weight="bold"))
        texts.append(_text(100, top + 14, f"n = {n}", align="right"))
        words = f"broke {parts[0]} · recurred {parts[1]} · unresolved {parts[2]}"
        texts.append(_text(0, top + 52, words, size=_SMALL, is_muted=True))
        start = 0.0
        for part, count in zip(("broke", "recurred", "unresolved"), parts, strict=True):
            if count and has_shares:
                end = start + 100 * count / n
                bars.append({"x": start, "x2": end, "y": top + 20, "y2": top + 38, "arm": arm, "part": part})
                start = end
    layers = []
    for arm in ARMS:
        for part, opacity in (("broke", 1.0), ("recurred", 0.4), ("unresolved", 0.0)):
            mine = [bar for bar in bars if bar["arm"] == arm and bar["part"] == part]
            if mine:
                layers.append(_bars(mine, COLOURS[arm], opacity))
    words = "; ".join(
        f"{arm}: {broke} broke, {recurred} recurred, {unresolved} unresolved of {n}"
        for arm, (_, broke, recurred, unresolved, n) in counts.items()
    )
    return _draw(
        [*layers, *_texts(texts)],
        (0.0, 100.0),
        len(counts) * height,
        _quantity([0, 25, 50, 75, 100], "% of the arm's loops"),
        name,
        f"{name}. {words}.",
    )


def nights(history: pl.DataFrame, name: str = "Lift, night by night") -> str:
    """Lift and nightly interval over the recorded nights of one experiment; a row of `nights.lift_history` a night.

    Nights without a lift leave a gap. The last `NIGHTS_SHOWN` are drawn. Time runs by the as-of, to the day.
    """
    found = [row for row in history.sort("as_of", "revision").iter_rows(named=True) if row["lift"] is not None]
    found = found[-NIGHTS_SHOWN:]
    first = found[0]["as_of"] if found else None
    points = []
    for row in found:
        day = (row["as_of"] - first).total_seconds() / 86_400
        point: dict[str, Any] = {"day": day, "lift": 100 * row["lift"], "at": f"{row['as_of']:%Y-%m-%d}"}
        if row["ci_anytime_low"] is not None:
            point |= {"low": 100 * row["ci_anytime_low"], "high": 100 * row["ci_anytime_high"]}
        points.append(point)
    ends = [value for point in points for value in (point["lift"], point.get("low"), point.get("high"))]
    low, high, ticks = _nice([*[end for end in ends if end is not None], -10.0, 10.0], -100.0, 100.0)
    import altair as alt

    height, left = 190, 44
    days = max([point["day"] for point in points], default=0.0) or 1.0
    x = alt.X("day:Q").scale(domain=[-0.04 * days, 1.04 * days], nice=False).axis(None)
    axis = _quantity(ticks, "", label_expr="datum.value === 0 ? '0' : format(datum.value, '+.0f')")
    y = _upright("lift", (low, high), axis)
    zero = alt.Chart(_data([{"lift": 0}])).mark_rule(color=INK, opacity=0.55).encode(y=y)
    layers: list[Any] = [zero]
    with_ends = [point for point in points if "low" in point]
    if with_ends:
        rule = alt.Chart(_data(with_ends)).mark_rule(color=COLOURS["treated"], strokeWidth=2, opacity=0.45)
        layers.append(rule.encode(x=x, y=_upright("low", (low, high), axis), y2="high:Q"))
    if points:
        line = alt.Chart(_data(points)).mark_line(color=COLOURS["treated"], strokeWidth=1.5)
        dot = alt.Chart(_data(points)).mark_point(
            shape="circle", size=30 if len(points) < 60 else 8, filled=True, color=COLOURS["treated"], opacity=1
        )
        layers += [line.encode(x=x, y=y), dot.encode(x=x, y=y)]
        middle = points[len(points) // 2]
        shown = [points[0], middle, points[-1]] if 0.25 < middle["day"] / days < 0.75 else [points[0], points[-1]]
        for i, point in enumerate({point["day"]: point for point in shown}.values()):
            align: Align = "left" if i == 0 else "right" if point is points[-1] else "center"
            mark = alt.Chart(_data([point])).mark_text(
                align=align, baseline="top", fontSize=_SMALL, color=MUTED, clip=False
            )
            layers.append(mark.encode(x=x, y=alt.value(height + 8), text="at:N"))
    about = f"{name}: {len(points)} nights, the lift as points in a line, the nightly interval as a bar through each."
    return _finish(layers, WIDTH - left - MARGIN, height, {"left": left, "top": 8, "bottom": 28}, name, about)


def time_to_break(curves: Mapping[str, Sequence[Mapping[str, Any]]], name: str = "Broken by steps after") -> str:
    """Share of loops broken by a number of steps, by arm: `Estimate.details["time_to_break"]`.

    Recurring and the end of the run compete. Treated: filled circles, solid; holdout: open squares, dashed.
    """
    import altair as alt

    height, left, right = 200, 44, 96
    labels: list[str] = []
    layers: list[Any] = []
    last: list[dict[str, Any]] = []
    axis = _quantity([0, 25, 50, 75, 100], "", label_expr="format(datum.value, 'd') + ' %'")
    for i, arm in enumerate(ARMS):
        curve = curves.get(arm, ())
        labels = labels or ["end" if point["steps"] is None else str(point["steps"]) for point in curve]
        # The arms stand a little apart, so that one interval does not hide the other.
        places = [
            {"x": k + (-0.08, 0.08)[i], "y": 100 * point["rate"]}
            | ({} if point["low"] is None else {"low": 100 * point["low"], "high": 100 * point["high"]})
            for k, point in enumerate(curve)
            if point["rate"] is not None
        ]
        if not places:
            continue
        x = alt.X("x:Q").scale(domain=[-0.35, len(labels) - 0.65], nice=False).axis(None)
        y = _upright("y", (0.0, 100.0), axis)
        rule = alt.Chart(_data(places)).mark_rule(color=COLOURS[arm], strokeWidth=1.5, opacity=0.5)
        line = alt.Chart(_data(places)).mark_line(color=COLOURS[arm], strokeWidth=2, strokeDash=DASHES[arm])
        dot = alt.Chart(_data(places)).mark_point(
            shape=SHAPES[arm],
            size=42,
            color=COLOURS[arm],
            filled=arm == "treated",
            fill=COLOURS[arm] if arm == "treated" else "var(--paper, #ffffff)",
            opacity=1,
        )
        layers += [
            rule.encode(x=x, y=_upright("low", (0.0, 100.0), axis), y2="high:Q"),
            line.encode(x=x, y=y),
            dot.encode(x=x, y=y),
        ]
        end = curve[-1]
        last.append({"arm": arm, "y": places[-1]["y"], "text": f"{end['x']}/{end['n']}"})
    if len(last) == 2 and abs(last[0]["y"] - last[1]["y"]) < 17:
        middle, up = (last[0]["y"] + last[1]["y"]) / 2, last[0]["y"] >= last[1]["y"]
        middle = min(max(middle, 8.5), 91.5)
        last[0]["y"], last[1]["y"] = (middle + 8.5, middle - 8.5) if up else (middle - 8.5, middle + 8.5)
    for row in last:
        for dy, key in ((-3, "arm"), (12, "text")):
            mark = alt.Chart(_data([row])).mark_text(
                align="left", dy=dy, color=COLOURS[row["arm"]], fontSize=_SMALL, fontWeight="bold" if dy < 0 else 400
            )
            y = _upright("y", (0.0, 100.0), axis)
            layers.append(mark.encode(x=alt.value(WIDTH - left - right + 6), y=y, text=f"{key}:N"))
    ticks = [{"x": k, "text": label} for k, label in enumerate(labels)]
    if ticks:
        mark = alt.Chart(_data(ticks)).mark_text(baseline="top", fontSize=_SMALL, color=MUTED)
        x = alt.X("x:Q").scale(domain=[-0.35, len(labels) - 0.65], nice=False).axis(None)
        layers.append(mark.encode(x=x, y=alt.value(height + 8), text="text:N"))
    note = alt.Chart(_data([{"text": "steps after the detection"}])).mark_text(
        align="left", baseline="top", fontSize=_SMALL, color=MUTED
    )
    layers.append(note.encode(x=alt.value(0), y=alt.value(height + 26), text="text:N"))
    about = f"{name}: the share of loops broken rises with the steps after the detection, a line an arm."
    return _finish(
        layers, WIDTH - left - right, height, {"left": left, "right": right, "top": 8, "bottom": 46}, name, about
    )


# --- rows ------------------------------------------------------------------------------------------------------------


def _rows_chart(
    rows: Sequence[_Row],
    domain: tuple[float, float],
    ticks: Sequence[float],
    unit: str,
    name: str,
    about: str,
    *,
    label_expr: str | None = None,
    zero: float | None = None,
    is_bar: bool = False,
) -> str:
    import altair as alt

    texts: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    inner: list[dict[str, Any]] = []
    outer: list[dict[str, Any]] = []
    top = 0
    low, high = domain
    for row in rows:
        note = fit_text(row.note, 0.62 * WIDTH, _SMALL)
        room = WIDTH - 2 * MARGIN - _ems(note) * _SMALL - 12
        label = fit_text(row.label, room, _FONT * (1.12 if row.is_head else 1.0))
        base = top + (20 if row.is_head else 14)
        texts.append(_text(low, base, label, weight="bold" if row.is_head else "normal"))
        texts.append(_text(high, base, note, align="right", size=_SMALL, is_muted=row.is_head))
        at = top + 26
        if row.value is not None:
            points.append(
                {"x": low, "x2": row.value, "y": at - 5, "y2": at + 5} if is_bar else {"x": row.value, "y": at}
            )
        for ends, found in ((row.inner, inner), (row.outer, outer)):
            if ends is not None:
                found.append({"x": ends[0], "x2": ends[1], "y": at})
        top += row.height
    height = max(top, _ROW)
    layers: list[Any] = []
    if zero is not None:
        line = alt.Chart(_data([{"x": zero}])).mark_rule(color=INK, opacity=0.55)
        layers.append(line.encode(x=_x(domain)))
    for lines, width in ((outer, 1.5), (inner, 5)):
        if lines:
            rule = alt.Chart(_data(lines)).mark_rule(color=COLOURS["treated"], strokeWidth=width, opacity=1)
            layers.append(rule.encode(x=_x(domain), x2="x2:Q", y=_y(height)))
    if outer:
        caps = [{"x": line[end], "y": line["y"]} for line in outer for end in ("x", "x2")]
        mark = alt.Chart(_data(caps)).mark_tick(color=COLOURS["treated"], thickness=1.5, size=9, orient="vertical")
        layers.append(mark.encode(x=_x(domain), y=_y(height)))
    if points and is_bar:
        layers.append(_bars(points, COLOURS["treated"], 1.0, domain, height))
    elif points:
        dot = alt.Chart(_data(points)).mark_point(
            shape="diamond", size=56, filled=True, fill="var(--paper, #ffffff)", stroke=INK, strokeWidth=1.5, opacity=1
        )
        layers.append(dot.encode(x=_x(domain), y=_y(height)))
    return _draw(
        [*layers, *_texts(texts, domain, height)],
        domain,
        height,
        _quantity(ticks, unit, label_expr=label_expr or "format(datum.value, 'd')"),
        name,
        about,
    )


def fit_text(text: str, room: float, size: float) -> str:
    """Log text made visible and cut to `room` units at a font of `size`, with `…` where something is missing."""
    shown = safe_text(text[:200])
    if len(text) <= 200 and len(shown) <= 80 and _ems(shown) * size <= room:
        return shown
    kept = ""
    for char in shown[:80]:
        if (_ems(kept + char) + 1.0) * size > room:
            break
        kept += char
    return f"{kept.rstrip()}…"


def _ems(text: str) -> float:
    """Width of a text in ems, on the safe side for the usual sans-serif fonts."""
    return sum(map(_em, text))


def _em(char: str) -> float:
    if unicodedata.combining(char):
        return 0.0
    if char in "WMmw@%…—":
        return 1.0
    if char in "iljtfr.,:;|!'()[] ":
        return 0.4
    if ord(char) < 0x590:
        return 0.75 if char.isupper() else 0.63
    return 1.35


def _text(
    x: float,
    y: float,
    text: str,
    *,
    align: str = "left",
    weight: str = "normal",
    size: int = _FONT,
    is_muted: bool = False,
) -> dict[str, Any]:
    return {"x": x, "y": y, "text": text, "align": align, "weight": weight, "size": size, "is_muted": is_muted}


def _texts(
    rows: Sequence[dict[str, Any]], domain: tuple[float, float] = (0.0, 100.0), height: float | None = None
) -> list[Any]:
    """A layer for each look of text."""
    import altair as alt

    height = 2 * 62 if height is None else height
    looks = sorted({(row["align"], row["weight"], row["size"], row["is_muted"]) for row in rows})
    layers = []
    for align, weight, size, is_muted in looks:
        mine = [
            row
            for row in rows
            if (row["align"], row["weight"], row["size"], row["is_muted"]) == (align, weight, size, is_muted)
        ]
        mark = alt.Chart(_data([{"x": row["x"], "y": row["y"], "text": row["text"]} for row in mine])).mark_text(
            align=align, baseline="alphabetic", fontSize=size, fontWeight=weight, color=MUTED if is_muted else INK
        )
        layers.append(mark.encode(x=_x(domain), y=_y(height), text="text:N"))
    return layers


def _bars(
    bars: Sequence[dict[str, Any]],
    colour: str,
    opacity: float,
    domain: tuple[float, float] = (0.0, 100.0),
    height: float = 2 * 62,
) -> Any:
    import altair as alt

    mark = alt.Chart(_data([{name: bar[name] for name in ("x", "x2", "y", "y2")} for bar in bars])).mark_rect(
        fill=colour, fillOpacity=opacity, stroke=colour, strokeWidth=1
    )
    return mark.encode(x=_x(domain), x2="x2:Q", y=_y(height), y2="y2:Q")


# --- canvas ----------------------------------------------------------------------------------------------------------


def _percent(ends: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if ends is None else (100 * ends[0], 100 * ends[1])


def _share(rate: Rate) -> float | None:
    value = rate.to_json()["rate"]
    return None if value is None else 100 * float(value)


def _nice(values: Sequence[float], floor: float, ceiling: float | None) -> tuple[float, float, list[float]]:
    """Ends and about five ticks that hold the values, within [floor, ceiling]."""
    low, high = min(values), max(values)
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= raw * 0.999)
    start, stop = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    low, high = max(start * step, floor), stop * step
    if ceiling is not None:
        high = min(high, ceiling)
    ticks = [k * step for k in range(start, stop + 1) if low - 1e-9 <= k * step <= high + 1e-9]
    return low, high, ticks


def _data(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    import altair as alt

    return alt.InlineData(values=[{name: _rounded(value) for name, value in row.items()} for row in rows])


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _x(domain: tuple[float, float]) -> alt.X:
    import altair as alt

    return alt.X("x:Q").scale(domain=list(domain), nice=False)


def _y(height: float) -> alt.Y:
    import altair as alt

    return alt.Y("y:Q").scale(domain=[0, height], reverse=True, nice=False).axis(None)


def _upright(name: str, domain: tuple[float, float], axis: alt.Axis) -> alt.Y:
    import altair as alt

    return alt.Y(f"{name}:Q").scale(domain=list(domain), nice=False).axis(axis)


def _quantity(ticks: Sequence[float], title: str, *, label_expr: str = "format(datum.value, 'd')") -> alt.Axis:
    import altair as alt

    return alt.Axis(
        values=list(ticks),
        labelExpr=label_expr,
        title=title or None,
        titleAnchor="start",
        titleAlign="left",
        titleX=0,
        titleY=34,
        titleBaseline="alphabetic",
        labelOverlap=False,
        labelFlush=False,
        labelBound=False,
    )


def _draw(
    layers: Sequence[Any], domain: tuple[float, float], height: float, axis: alt.Axis, name: str, about: str
) -> str:
    """Layers over a horizontal quantity."""
    import altair as alt

    base = alt.Chart(_data([{"x": domain[0]}])).mark_point(opacity=0, size=0)
    ruled = base.encode(x=_x(domain).axis(axis))
    return _finish(
        [ruled, *layers],
        WIDTH - 2 * MARGIN,
        height,
        {"left": MARGIN, "right": MARGIN, "top": 4, "bottom": _AXIS},
        name,
        about,
    )


def _finish(
    layers: Iterable[Any], width: float, height: float, padding: Mapping[str, int], name: str, about: str
) -> str:
    import altair as alt
    import vl_convert

    chart = (
        alt.layer(*layers)
        .properties(
            width=width,
            height=height,
            padding={"left": MARGIN, "right": MARGIN, "top": 4, "bottom": 4, **padding},
            autosize=alt.AutoSizeParams(type="none"),
            background="transparent",
        )
        .configure(font="sans-serif", aria=False)
        .configure_view(stroke=None)
        .configure_axis(
            gridColor=GRID,
            domain=False,
            ticks=False,
            labelColor=MUTED,
            labelFontSize=_SMALL,
            labelPadding=6,
            titleColor=MUTED,
            titleFontSize=_SMALL,
            titleFontWeight="normal",
        )
    )
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    svg = vl_convert.vegalite_to_svg(
        chart.to_dict(validate=False), vl_version=version, allowed_base_urls=[], format_locale=_LOCALE
    )
    return _plain_svg(svg, name, about)


def _plain_svg(svg: str, name: str, about: str) -> str:
    """The drawing as one image with a name: what only Vega's own viewer needs is left out."""
    from xml.etree import ElementTree

    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(svg)
    for parent in root.iter():
        for child in list(parent):
            is_empty = child.tag.endswith("}path") and child.get("class") in ("background", "foreground")
            if is_empty or child.get("opacity") == "0":
                parent.remove(child)
        for key in [k for k in parent.attrib if k.startswith("aria-") or k in ("role", "class", "pointer-events")]:
            del parent.attrib[key]
    for parent in list(root.iter()):
        _unwrap(parent)
    width, height = root.get("width", "0"), root.get("height", "0")
    root.attrib.clear()
    root.attrib.update(
        {
            "viewBox": f"0 0 {width} {height}",
            "width": width,
            "height": height,
            "role": "img",
            "aria-label": safe_text(name),
        }
    )
    for tag, text in (("desc", about), ("title", name)):
        element = ElementTree.Element(f"{{{_SVG}}}{tag}")
        element.text = safe_text(text)
        root.insert(0, element)
    return ElementTree.tostring(root, encoding="unicode")


def _unwrap(parent: Any) -> None:
    """Groups that hold nothing are dropped."""
    for child in list(parent):
        _unwrap(child)
        if child.tag.endswith("}g") and len(child) == 0:
            parent.remove(child)
