"""The report in a real browser: it loads nothing, says nothing in the console, every chart is drawn whole, wide and narrow.

Needs chromium and chromedriver (`make browser`); both are driven through selenium.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopstats import page
from loopstats.query import Filters
from loopstats.report import safe_text
from loopstats.when import Interval
from report_lakes import AS_OF_US, EVIL, SETTINGS, hostile_lake

pytestmark = pytest.mark.browser

WIDTHS = (360, 768, 1280)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# What stands outside its chart or on another text of it, in pixels of the screen.
FAULTS = """
return [...document.querySelectorAll('figure svg')].map(svg => {
  const box = svg.getBoundingClientRect(), faults = [];
  const marks = [...svg.querySelectorAll('path, line, rect, text')];
  const out = r => r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1;
  for (const m of marks) {
    const r = m.getBoundingClientRect();
    if (out(r)) faults.push(['outside', m.tagName, m.textContent, r.left - box.left, r.right - box.right]);
  }
  const texts = marks.filter(m => m.tagName === 'text');
  texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
    const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
    const w = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const h = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (w > 1 && h > 4) faults.push(['on each other', a.textContent, b.textContent]);
  }));
  return {name: svg.getAttribute('aria-label'), width: box.width, height: box.height, count: marks.length,
          small: Math.min(...texts.map(t => t.getBoundingClientRect().height)), faults};
});
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a lake whose names are all hostile."""
    folder = tmp_path_factory.mktemp("page")
    lake = hostile_lake(folder / "lake")
    content = page.read(
        lake.snapshot(), SETTINGS, Interval(AS_OF_US, AS_OF_US - 4 * 86_400_000_000, None, "UTC"), Filters()
    )
    (folder / "report.html").write_bytes(page.html(content).encode())
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.fail("chromium and chromedriver are needed: apt-get install chromium chromium-driver", pytrace=False)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(programs[1])))
    yield driver
    driver.quit()


def show(browser: Any, report: Path, width: int, scheme: str = "light") -> None:
    """Load the page at a width, with nothing left of what was logged before."""
    for name in ("browser", "performance"):
        browser.get_log(name)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(report.as_uri())


@pytest.mark.parametrize("width", WIDTHS)
def test_charts_are_drawn_whole_and_nothing_scrolls_sideways(browser: Any, report: Path, width: int) -> None:
    show(browser, report, width)
    drawn = browser.execute_script(FAULTS)
    assert len(drawn) >= 8
    for chart in drawn:
        assert chart["faults"] == [], chart["name"]
        assert 200 < chart["width"] <= width
        assert chart["height"] > 40
        assert chart["count"] > 5
        assert chart["small"] >= 10, f"text too small: {chart['name']}"
    sizes = (
        "return [document.documentElement.scrollWidth, document.body.scrollWidth, document.documentElement.clientWidth]"
    )
    whole, body, seen = browser.execute_script(sizes)
    assert max(whole, body) <= seen <= width
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    wide = "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
    assert browser.execute_script(wide) == [], "a table that has to be scrolled"
    whole, body, seen = browser.execute_script(sizes)
    assert max(whole, body) <= seen, "with every table unfolded"


def test_no_console_message_and_no_request_but_the_file(browser: Any, report: Path) -> None:
    show(browser, report, 1280)
    assert browser.get_log("browser") == []
    messages = [json.loads(row["message"])["message"] for row in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked == [report.as_uri()]


def test_the_policy_would_stop_a_script(browser: Any, report: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    source = report.read_text(encoding="utf-8")
    broken.write_text(source.replace("</body>", "<script>document.title='ran'</script></body>"), encoding="utf-8")
    show(browser, broken, 768)
    assert browser.title == page.TITLE
    assert "Content Security Policy" in browser.get_log("browser")[0]["message"]


def test_hostile_names_are_text(browser: Any, report: Path) -> None:
    show(browser, report, 768)
    assert browser.title == page.TITLE
    count = "return document.querySelectorAll('script, img, iframe, object, [onload], [onerror]').length"
    assert browser.execute_script(count) == 0
    text = browser.execute_script("return document.body.textContent")
    for evil in EVIL[:7]:
        assert safe_text(evil)[:40] in text
    assert not set(text) & set("\u202e\u2066\u200b\x1b\x00")


def test_dark_is_dark_and_light_is_light(browser: Any, report: Path) -> None:
    colours = """
    const rgb = c => c.match(/[0-9.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) / 3;
    const of = (e, p) => rgb(getComputedStyle(document.querySelector(e))[p]);
    return [of('body', 'backgroundColor'), of('body', 'color'), of('figure svg text', 'fill'), of('td', 'color')];
    """
    show(browser, report, 768, "dark")
    paper, *inks = browser.execute_script(colours)
    assert paper < 40 < 140 < min(inks)
    show(browser, report, 768, "light")
    paper, *inks = browser.execute_script(colours)
    assert paper > 240 > 120 > max(inks)


def test_it_prints_with_every_table_unfolded(browser: Any, report: Path) -> None:
    show(browser, report, 1280, "dark")
    sheet = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", sheet)["data"])
    assert pdf.startswith(b"%PDF-")
    assert pdf.count(b"/Type /Page\n") >= 4
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    seen = "return [...document.querySelectorAll('details table')].map(t => t.checkVisibility())"
    shown = browser.execute_script(seen)
    assert len(shown) > 5
    assert all(shown)
    paper = "return getComputedStyle(document.body).backgroundColor"
    assert browser.execute_script(paper) == "rgb(255, 255, 255)"
