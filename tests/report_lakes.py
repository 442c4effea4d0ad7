"""Lakes for the tests of the report: one full of hostile names, and the parts that a page is looked at by.

A room of its own because the structure of the page and its look in a browser are tested on the same lakes.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from loopstats import nights
from loopstats.config import Experiment, Settings
from loopstats.store import Lake
from small_lake import hour, make_lake

EVIL = (
    "<script>document.title='pwned'</script>",
    '"onload="document.title=1" x="',
    "]]></style><img src=x onerror=alert(1)>",
    "\u202egnitrats\u2066 \u200b",
    "\x1b]0;title\x07\x00 tab\there",
    "{{7*7}}{% raw %}",
    "'><svg/onload=alert(2)>&amp;&lt;",
    "W" * 300,
    "javascript:alert(3) http://evil.example/x.png",
    "資料" * 60,
)
EXPERIMENT = Experiment(EVIL[0], "pepper", 5000, 100)
SETTINGS = Settings(experiments={EXPERIMENT.name: EXPERIMENT})
AS_OF_US = 1_773_014_400_000_000  # 2026-03-09, a Monday
COUNT = 120


def hostile_lake(root: Path) -> Lake:
    """120 loops of one experiment with nights recorded; tool, model, project, message, group and experiment are hostile."""
    loops: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    sessions: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for n in range(COUNT):
        arm = "treated" if n % 2 else "holdout"
        outcome = "broke" if n % 3 == 0 or (n % 2 and n % 5) else "unresolved" if n % 7 == 0 else "recurred"
        names = {
            "tool": EVIL[n % 3] if n % 4 else EVIL[4 + n // 4 % 6],
            "model": EVIL[3 + n % 2],
            "project": EVIL[5 + n % 4],
            "group": EVIL[n % 10],
        }
        place = {"session_id": f"session{n}", "run_id": f"run{n}", "harness": "agent 1.2", **names}
        enrolled = {
            "experiment": EXPERIMENT.name,
            "salt_id": EXPERIMENT.salt_id,
            "share_bp": 5000,
            "epoch": EVIL[3],
            "is_enrolled": True,
        }
        at = 1 + n
        sessions.append(
            {"session_id": place["session_id"], "first_at": hour(at), "enrolled_at": hour(at), "cwd": "/", **enrolled}
        )
        loops.append(
            {
                **place,
                **enrolled,
                "loop_id": f"{n:016x}",
                "signature": f"sig{n % 4}",
                "rule": "strategy-loop/1",
                "kind": "verify",
                "error_code": EVIL[n % 4],
                "message": EVIL[n % 10],
                "detected_at": hour(at),
                "detected_step": 3,
                "mature_at": hour(at + 24),
                "last_step": 8,
                "outcome": outcome,
                "outcome_step": 6,
                "outcome_at": hour(at + 0.5),
                "steps_to_outcome": 1 + n % 30,
                "outcome_final": outcome,
                "arm": arm,
                "arm_bp": 10 if n % 2 else 9000,
                "is_delivered": bool(n % 2),
                "count_events": 3,
            }
        )
        found = {"count_loops": 1, "count_drifts": n % 2, "count_echoes": int(n % 4 == 0)}
        ended = at if n < 60 else at - 168
        runs.append({**place, **found, "count_steps": 9 if n % 3 else 7, "last_at": hour(ended)})
        for step in range(9):
            steps.append(
                {
                    **place,
                    "step": step,
                    "decision": step,
                    "ts": hour(at + step / 20),
                    "action": "x",
                    "kind": "verify",
                    "kind_source": "command",
                    "outcome": "failure",
                    "outcome_source": "flag",
                    "actor": "agent",
                    "fingerprint": f"f{step % 2}",
                    "source_file": EVIL[0],
                    "source_line": step,
                }
            )
            turns.append(
                {
                    "session_id": place["session_id"],
                    "run_id": place["run_id"],
                    "decision": step,
                    "ts": hour(at + step / 20),
                    "tokens_input": 100 + n,
                }
            )
    lake = make_lake(root, {"loops": loops, "steps": steps, "turns": turns, "sessions": sessions, "runs": runs})
    for day in (3, 4, 5):
        nights.record_lift(lake, SETTINGS, as_of_us=AS_OF_US - (8 - day) * 86_400_000_000)
    return lake


class Page(HTMLParser):
    """A parsed page: its tags with attributes in order, its text, and what stands in each figure and table cell."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.figures: list[dict[str, int]] = []
        self.style = ""
        self.open: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice in {tag}"
        if tag == "figure":
            self.figures.append({"svg": 0, "rows": 0})
        if "figure" in self.open and tag in ("svg", "tr"):
            key = {"svg": "svg", "tr": "rows"}[tag]
            self.figures[-1][key] += 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        elif data.strip():
            self.texts.append((tuple(self.open), data))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data!r}")

    @property
    def text(self) -> str:
        """All text, blanks as single plain spaces."""
        return " ".join(" ".join(data for _, data in self.texts).replace("\u00a0", " ").split())

    def cells(self) -> list[str]:
        """Texts of table cells."""
        return [data.replace("\u00a0", " ") for path, data in self.texts if "td" in path or "th" in path]
