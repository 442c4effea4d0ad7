"""The report as a page: its words are those of the readout, nothing in it can run or load, and n stands beside each rate."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest

import small_lake
from loopstats import __version__, charts, page, report
from loopstats.config import Settings
from loopstats.errors import UsageError
from loopstats.estimate import Comparison, Rate
from loopstats.query import Filters
from loopstats.report import safe_text
from loopstats.store import Lake
from loopstats.when import Interval
from report_lakes import AS_OF_US, COUNT, EVIL, EXPERIMENT, SETTINGS, Page, hostile_lake
from small_lake import make_lake

ROOT = Path(__file__).resolve().parents[1]
DAY_US = 86_400_000_000
WHOLE = Interval(AS_OF_US, None, None, "UTC")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SVG = "{http://www.w3.org/2000/svg}"


def content_of(
    lake: Lake, interval: Interval = WHOLE, filters: Filters | None = None, settings: Settings = SETTINGS
) -> page.Content:
    return page.read(lake.snapshot(), settings, interval, filters or Filters())


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return hostile_lake(tmp_path_factory.mktemp("hostile") / "lake")


@pytest.fixture(scope="module")
def hostile(lake: Lake) -> tuple[page.Content, str]:
    content = content_of(lake)
    return content, page.html(content)


@pytest.fixture(scope="module")
def parsed(hostile: tuple[page.Content, str]) -> Page:
    return Page(hostile[1])


def environment(**more: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **more}


def loopstats(*arguments: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "loopstats.cli", *arguments], cwd=ROOT, capture_output=True, env=environment(**more)
    )


# --- nothing runs, nothing loads -------------------------------------------------------------------------------------


def test_nothing_in_the_page_can_run_or_load(parsed: Page) -> None:
    tags = {tag for tag, _ in parsed.tags}
    assert tags <= {
        *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "nav", "section", "figure"),
        *(
            "figcaption",
            "div",
            "details",
            "summary",
            "h1",
            "h2",
            "h3",
            "p",
            "ul",
            "li",
            "a",
            "b",
            "strong",
            "bdi",
            "span",
        ),
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd"),
        *("svg", "g", "path", "line", "rect", "text", "desc"),
    }
    policies = [a["content"] for tag, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [POLICY]
    for tag, attributes in parsed.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} has {name}"
            assert name not in ("src", "srcset", "action", "style", "xlink:href", "data", "ping")
            if name == "href":
                assert value is not None and re.fullmatch("#[a-z]+", value)
            elif name != "xmlns":
                assert "http" not in (value or "") or name in ("data-label", "aria-label"), f"{tag} {name}={value}"
    assert not re.search(r"url\(|@import|expression|http", parsed.style)


def test_log_text_is_shown_and_inert(hostile: tuple[page.Content, str], parsed: Page) -> None:
    source = hostile[1]
    assert [c for c in source if (ord(c) < 32 and c != "\n") or c in "\u202e\u2066\u200b\x7f"] == []
    for evil in EVIL:
        shown = " ".join(safe_text(evil)[:60].split())
        assert shown in parsed.text, f"not shown: {shown}"
    assert "{{7*7}}{% raw %}" in parsed.text
    title = next(data for path, data in parsed.texts if path[-1] == "title" and "svg" not in path)
    assert title == page.TITLE
    assert parsed.text.count(safe_text(EVIL[0])) > 5, "experiment, tool, message and error code"


# --- the words and numbers of the readout ----------------------------------------------------------------------------


def test_the_words_are_those_of_the_readout(hostile: tuple[page.Content, str], parsed: Page) -> None:
    content = hostile[0]
    text = parsed.text
    said = [
        *report.headlines(content.readout),
        report.window_note(content.readout),
        *(report.warning_text(notice) for notice in content.readout.warnings if notice.severity >= 2),
        f"{report.loop_rate_text(content.rates)}.",
        content.waste_text,
        content.drift_text,
        *(line for group in report.groups(content.readout) for line in report.detail_lines(group[-1])),
    ]
    for words in said:
        assert " ".join(safe_text(words).split()) in text, words
    cells = parsed.cells()
    for group in report.groups(content.readout):
        for row in report.result_rows(group):
            assert set(row) <= set(cells)
    for segment in content.readouts["model"].estimates[0].segments:
        assert report.segment_text(segment, "to_date") in cells
    assert "significan" not in text.lower()


def test_no_rate_without_its_n(parsed: Page) -> None:
    allowed = re.compile(
        r"[0-9]+/[0-9]+ \([0-9.]+ %\)|\[[-+0-9., ]+\] %|95 %|80 % power|planned share [0-9.]+ %|0 and 100 %"
    )
    seen = 0
    for path, data in parsed.texts:
        text = data.replace("\u00a0", " ")
        seen += len(re.findall(r"\([0-9.]+ %\)", text))
        rest = allowed.sub("", text)
        is_axis = "svg" in path and re.fullmatch(r"[0-9]+ %", text.strip())
        assert is_axis or not re.search(r"[0-9] ?%", rest), text
    assert seen > 30


def test_every_chart_has_a_name_and_a_table(parsed: Page) -> None:
    svgs = [attributes for tag, attributes in parsed.tags if tag == "svg"]
    assert len(svgs) == len([figure for figure in parsed.figures if figure["svg"]]) >= 8
    for attributes in svgs:
        assert attributes["role"] == "img"
        assert attributes["aria-label"]
    for figure in parsed.figures:
        assert figure["svg"] <= 1
        assert figure["rows"] >= 2, "a head and at least one row"
    for name in ("title", "desc"):
        assert len([path for path, _ in parsed.texts if path[-2:] == ("svg", name)]) == len(svgs)
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    pointed = {a["aria-labelledby"] for _, a in parsed.tags if "aria-labelledby" in a}
    assert pointed | {(a["href"] or "")[1:] for _, a in parsed.tags if "href" in a} <= set(ids)


def test_versions_digest_and_interval_are_told(hostile: tuple[page.Content, str], parsed: Page) -> None:
    for words in (__version__, SETTINGS.rule_digest, "2026-03-09T00:00:00Z", "all time", "altair", "vl-convert-python"):
        assert words in parsed.text
    assert hostile[0].enrolled == Rate(COUNT, COUNT)
    assert f"{COUNT}/{COUNT} (100.0 %)" in parsed.text


def test_weeks_are_those_of_the_end_of_a_run(hostile: tuple[page.Content, str], parsed: Page) -> None:
    rows = hostile[0].weeks.rows()
    assert rows == [("2026-02-23", 60, 60, 15, 40, 20), ("2026-03-02", 60, 60, 15, 40, 20)]
    assert {"20/40 (50.0 %)", "15/60 (25.0 %)", "60/60 (100.0 %)"} <= set(parsed.cells())
    assert hostile[0].drift_text in parsed.text


def test_colours_can_be_read_in_both_schemes(parsed: Page) -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    schemes = [
        dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", parsed.style, re.DOTALL)
    ][:2]
    assert len(schemes) == 2
    for colours in schemes:
        for ground in ("paper", "raised"):
            for name in ("ink", "muted", "treated", "holdout", "doubt"):
                light, dark = sorted((luminance(colours[name]), luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{name} on {ground}"
    assert luminance(schemes[0]["paper"]) > 0.9 > 0.02 > luminance(schemes[1]["paper"])


# --- lakes with little in them ---------------------------------------------------------------------------------------


def test_an_empty_lake(tmp_path: Path) -> None:
    content = content_of(make_lake(tmp_path / "lake", {}))
    assert content.is_nothing
    parsed = Page(page.html(content, EVIL[2]))
    assert safe_text(EVIL[2]) in parsed.text, "a title is escaped like everything else"
    assert "img" not in {tag for tag, _ in parsed.tags}
    assert "Nothing matched" in parsed.text
    assert "No mature strategy loop was found" in parsed.text
    assert "No night is recorded. loopstats lift --record" in parsed.text
    assert "svg" not in {tag for tag, _ in parsed.tags}


def test_a_replay_alone_and_nothing_in_the_window(tmp_path: Path) -> None:
    lake = small_lake.sample(tmp_path / "lake")
    as_of_us = 1_772_755_200_000_000  # 2026-03-06
    content = content_of(lake, Interval(as_of_us, None, None, "UTC"))
    assert not content.is_nothing
    parsed = Page(page.html(content))
    assert "A/A replay: no session in these logs is enrolled" in parsed.text
    assert {"2/2", "0/2"} <= set(parsed.cells())
    later = content_of(lake, Interval(as_of_us, as_of_us - 60_000_000, None, "UTC"))
    assert later.is_nothing
    assert "Nothing matched" in Page(page.html(later)).text


def test_one_arm_only(lake: Lake, tmp_path: Path) -> None:
    whole = lake.snapshot()
    tables: dict[str, Any] = {name: whole.read(name) for name in ("loops", "sessions", "steps")}
    tables["loops"] = tables["loops"].filter(pl.col("arm") == "treated").with_columns(share_bp=9999)
    content = content_of(make_lake(tmp_path / "one", {name: frame.to_dicts() for name, frame in tables.items()}))
    parsed = Page(page.html(content))
    assert "no result yet, an arm has no loops" in parsed.text
    assert "0/0" in parsed.cells()


def test_an_empty_window_beside_the_experiment_to_date(lake: Lake, hostile: tuple[page.Content, str]) -> None:
    content = content_of(lake, Interval(AS_OF_US, AS_OF_US - DAY_US, None, "UTC"))
    assert not content.is_nothing
    text = Page(page.html(content)).text
    assert "No mature loop was detected in the window." in text
    assert report.headlines(content.readout) == report.headlines(hostile[0].readout)


def test_a_selection_is_named_and_has_no_nights(lake: Lake) -> None:
    content = content_of(lake, filters=Filters(models=(EVIL[3],)))
    text = Page(page.html(content)).text
    assert f"Only model {safe_text(EVIL[3])}".strip() in text
    assert "none is shown for a selection" in text
    assert content.rates.runs == Rate(COUNT // 2, COUNT // 2)
    with pytest.raises(UsageError, match="a run has many tools"):
        content_of(lake, filters=Filters(tools=("Bash",)))


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_same_lake_gives_the_same_bytes_anywhere(
    lake: Lake, hostile: tuple[page.Content, str], tmp_path: Path
) -> None:
    config = tmp_path / "x.toml"
    config.write_text(f"[experiment.{json.dumps(EXPERIMENT.name)}]\nsalt = 'pepper'\nshare_bp = 5000\nn_star = 100\n")
    arguments = ["--lake", str(lake.root), "--config", str(config), "report", "--as-of", "2026-03-09"]
    first = loopstats(*arguments, "-o", str(tmp_path / "a.html"), PYTHONHASHSEED="1", TZ="UTC", LC_ALL="C")
    assert (first.returncode, first.stdout) == (0, b"")
    assert b"wrote" in first.stderr
    more = {"TZ": "Asia/Kathmandu", "LC_ALL": "de_DE.UTF-8", "LANG": "tr_TR.UTF-8", "COLUMNS": "40"}
    second = loopstats(*arguments, "-q", "-o", "-", PYTHONHASHSEED="77", **more)
    assert (second.returncode, second.stderr) == (0, b"")
    assert second.stdout == (tmp_path / "a.html").read_bytes()
    assert second.stdout.decode() == hostile[1]


def test_exit_codes_and_default_name(tmp_path: Path) -> None:
    small_lake.sample(tmp_path / "lake")
    command = [sys.executable, "-m", "loopstats.cli", "--lake", "lake", "-q", "report", "--as-of", "2026-03-06"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "loopstats-report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    done = subprocess.run(
        [*command, "--project", "none", "-o", "n.html"], cwd=tmp_path, capture_output=True, env=environment()
    )
    assert done.returncode == 3
    assert b"no steps match" in done.stderr
    assert "Nothing matched" in (tmp_path / "n.html").read_text(encoding="utf-8")


# --- charts ----------------------------------------------------------------------------------------------------------


def compared(lift: float | None, x1: int = 30, x0: int = 20, **more: Any) -> Comparison:
    ends = None if lift is None else (lift - 0.1, lift + 0.1)
    return Comparison(Rate(x1, 50), Rate(x0, 50), 40, 41, lift, ends, **more)


def marks(svg: str, tag: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg).findall(f".//{SVG}{tag}")


def shift(element: ElementTree.Element) -> tuple[float, float]:
    x, y = re.fullmatch(r"translate\(([-0-9.]+),([-0-9.]+)\)", element.get("transform", "")).groups()  # type: ignore[union-attr]
    return float(x), float(y)


def test_a_forest_puts_lifts_where_they_belong() -> None:
    svg = charts.forest({"all": [("a", compared(0.2)), ("b", compared(-0.4)), ("c", compared(None))]})
    dots = [shift(mark) for mark in marks(svg, "path") if mark.get("fill") == "var(--paper, #ffffff)"]
    assert len(dots) == 2, "no mark where there is no lift"
    ticks = {mark.text: shift(mark)[0] for mark in marks(svg, "text") if mark.text in ("0", "+20", "-40")}
    assert dots[0][0] == pytest.approx(ticks["+20"], abs=0.6)
    assert dots[1][0] == pytest.approx(ticks["-40"], abs=0.6)
    bars = [float(mark.get("x2", "0")) for mark in marks(svg, "line") if mark.get("stroke-width") == "5"]
    scale = (ticks["+20"] - ticks["0"]) / 20
    assert [abs(bar) for bar in bars] == pytest.approx([20 * scale, 20 * scale], abs=0.1)
    texts = [mark.text for mark in marks(svg, "text")]
    assert texts.count("30/50 v 20/50") == 3


def test_the_arms_differ_without_colour() -> None:
    point = {"x": 20, "n": 40, "rate": 0.5, "low": 0.4, "high": 0.6}
    curve = [{"steps": 1, **point}, {"steps": None, **point}]
    svg = charts.time_to_break({"treated": curve, "holdout": curve})
    lines = [mark for mark in marks(svg, "path") if mark.get("stroke-dasharray")]
    assert sorted(mark.get("stroke-dasharray", "") for mark in lines) == ["1,0", "5,3"]
    outlines = {mark.get("d") for mark in marks(svg, "path") if mark.get("transform")}
    assert len(outlines) == 2, "circles and squares"
    texts = [mark.text for mark in marks(svg, "text")]
    assert texts.count("20/40") == 2
    assert {"treated", "holdout"} <= set(texts)
    heights = [shift(mark)[1] for mark in marks(svg, "text") if mark.text in ("treated", "holdout")]
    assert abs(heights[0] - heights[1]) > 20, "the labels of equal curves do not lie on each other"


@pytest.mark.parametrize("text", EVIL)
def test_a_label_is_cut_and_visible(text: str) -> None:
    shown = charts.fit_text(text, 200, 13)
    assert shown == safe_text(shown)
    assert len(shown) < 60
    assert shown.removesuffix("…") == safe_text(text)[: len(shown.removesuffix("…"))]
    svg = charts.forest({text: [(text, compared(0.1))]}, text)
    assert shown[:10].rstrip("…") in "".join(ElementTree.fromstring(svg).itertext())


def test_charts_are_drawn_from_inline_data_without_any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    import vl_convert

    asked: list[tuple[dict[str, Any], dict[str, Any]]] = []
    draw = vl_convert.vegalite_to_svg

    def seen(spec: dict[str, Any], **more: Any) -> str:
        asked.append((spec, more))
        return draw(spec, **more)

    monkeypatch.setattr(vl_convert, "vegalite_to_svg", seen)
    charts.forest({"all": [("http://evil.example/a.png", compared(0.1))]})
    ((spec, more),) = asked
    assert more["allowed_base_urls"] == []
    assert '"url"' not in json.dumps(spec)
    assert '"image"' not in json.dumps(spec)


def test_weeks_show_the_latest_and_nothing_for_the_unknown() -> None:
    rows = [(f"week{n:02d}", f"{n} tokens", None if n == 3 else float(n)) for n in range(20)]
    svg = charts.weeks(rows, "tokens", "Waste")
    texts = [mark.text or "" for mark in marks(svg, "text")]
    assert [text for text in texts if text.startswith("week")] == [f"week{n:02d}" for n in range(4, 20)]
    few = charts.weeks(rows[2:5], "tokens", "Waste")
    assert len([mark for mark in marks(few, "path") if mark.get("fill") == charts.COLOURS["treated"]]) == 2


def test_no_chart_without_numbers() -> None:
    assert (
        marks(
            charts.nights(
                pl.DataFrame(schema={"as_of": pl.Datetime("us", "UTC"), "revision": pl.Int64, "lift": pl.Float64})
            ),
            "path",
        )
        == []
    )


def test_withheld_results_draw_no_shares(hostile: tuple[page.Content, str]) -> None:
    estimate = hostile[0].readout.estimates[0]
    hidden = replace(estimate.headline, treated=Rate(5, 60, True), holdout=Rate(6, 60, True))
    svg = charts.arms(replace(estimate, headline=hidden))
    assert [mark for mark in marks(svg, "path") if "var(--" in mark.get("fill", "")] == []
