"""The history of `tests/golden/story`: tokens, calls, failures and folds exactly as its README works them out by hand.

The README's table of runs is read from the page itself, so that page and lake cannot part.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from lines import assert_same, ingest, tables_of
from loopstats.config import Settings

STORY = Path(__file__).resolve().parent / "golden" / "story"
MAIN, FORK = "11111111-aaaa-4bbb-8ccc-000000000001", "22222222-aaaa-4bbb-8ccc-000000000002"
OLD, RESUMED = "44444444-aaaa-4bbb-8ccc-000000000004", "55555555-aaaa-4bbb-8ccc-000000000005"
CODEX, CODEX_FORK = "0199aaaa-0000-7000-8000-00000000000a", "0199bbbb-0000-7000-8000-00000000000b"
FILES = sorted(path for path in STORY.rglob("*.jsonl"))
RUNS = {
    "11111111": MAIN,
    "11111111/a1": f"{MAIN}/a1",
    "22222222": FORK,
    "44444444": OLD,
    "55555555": RESUMED,
    "0199aaaa": CODEX,
    "0199bbbb": CODEX_FORK,
}
ACCOUNTS = {  # file: read, used, nothing, folded, rejected, waiting
    f"claude/{MAIN}.jsonl": (18, 12, 1, 2, 2, 1),
    f"claude/{MAIN}/subagents/agent-a1.jsonl": (5, 5, 0, 0, 0, 0),
    f"claude/{FORK}.jsonl": (11, 4, 0, 7, 0, 0),
    f"claude/{OLD}.jsonl": (3, 3, 0, 0, 0, 0),
    f"claude/{RESUMED}.jsonl": (5, 4, 0, 1, 0, 0),
    "codex/rollout-a.jsonl": (14, 11, 0, 3, 0, 0),
    "codex/rollout-b.jsonl": (11, 5, 0, 6, 0, 0),
}
FOLDS = {
    (f"claude/{MAIN}.jsonl", "partial", 2),
    (f"claude/{FORK}.jsonl", "fork", 7),
    (f"claude/{RESUMED}.jsonl", "resume", 1),
    ("codex/rollout-a.jsonl", "repeat", 3),
    ("codex/rollout-b.jsonl", "fork", 3),
    ("codex/rollout-b.jsonl", "repeat", 3),
}


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, pl.DataFrame]:
    """All tables after one ingest of the story, with file names relative to it; `once` is the lake."""
    shutil.copytree(STORY, tmp_path / "story")
    monkeypatch.chdir(tmp_path)
    ingest(Path("once"), *[Path("story/claude"), Path("story/codex")], settings=Settings())
    return tables_of(Path("once"))


def by_hand() -> dict[str, tuple[int, ...]]:
    """Run -> turns, input, output, cache read, cache write, cost of the priced turns, priced turns, calls, failures."""
    found = {}
    for line in (STORY / "README.md").read_text(encoding="utf-8").split("## Per run")[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in RUNS:
            costs = [int(part) for part in cells[6].split(" + ") if part != "unknown"]
            found[RUNS[cells[0]]] = (*map(int, cells[1:6]), sum(costs), len(costs), int(cells[7]), int(cells[8]))
    return found


def test_tokens_costs_calls_and_failures_of_every_run(tables: dict[str, pl.DataFrame]) -> None:
    sums = (
        tables["turns"]
        .group_by("run_id")
        .agg(
            pl.len(),
            *[pl.col(f"tokens_{name}").sum() for name in ("input", "output", "cache_read", "cache_write")],
            pl.col("cost_micros").sum(),
            pl.col("cost_micros").count().alias("priced"),
        )
    )
    counts = (
        tables["steps"]
        .group_by("run_id")
        .agg(pl.len().alias("calls"), (pl.col("outcome") == "failure").sum().alias("failures"))
    )
    found = {row[0]: row[1:] for row in sums.join(counts, on="run_id", how="full", coalesce=True).iter_rows()}
    assert found == by_hand()
    assert set(found) == set(RUNS.values())


def test_every_turn(tables: dict[str, pl.DataFrame]) -> None:
    columns = ("tokens_input", "tokens_output", "tokens_cache_read", "tokens_cache_write", "cost_micros")
    turns = tables["turns"].sort("run_id", "decision")
    assert [
        row for run in (CODEX, CODEX_FORK, MAIN) for row in turns.filter(pl.col("run_id") == run).select(columns).rows()
    ] == [
        (600, 50, 400, 0, 1300),
        (600, 40, 600, 0, 1225),
        (300, 40, 500, 0, 838),
        (500, 25, 500, 0, 938),
        (10, 120, 1000, 200, 2880),
        (5, 40, 1300, 50, 1193),
        (3, 30, 1400, 0, 879),
        (7, 11, 0, 0, None),
    ]


def test_what_became_of_every_line(tables: dict[str, pl.DataFrame]) -> None:
    sources = tables["sources"].select(
        pl.col("source_file").str.strip_prefix("story/"),
        *[f"count_{name}" for name in ("read", "used", "nothing", "folded", "rejected", "waiting")],
    )
    assert {row[0]: row[1:] for row in sources.iter_rows()} == ACCOUNTS
    assert {(file.removeprefix("story/"), *rest) for file, *rest in tables["folds"].rows()} == FOLDS
    rejects = tables["rejects"].select(pl.col("source_file").str.strip_prefix("story/"), "source_line", "reason").rows()
    assert rejects == [(f"claude/{MAIN}.jsonl", 10, "truncated"), (f"claude/{MAIN}.jsonl", 11, "nul_block")]


def test_one_loop_and_none_in_the_fork(tables: dict[str, pl.DataFrame]) -> None:
    columns = (
        "run_id",
        "rule",
        "tool",
        "detected_step",
        "count_events",
        "count_targets",
        "count_decisions",
        "outcome",
        "outcome_step",
        "tokens_wasted",
    )
    assert tables["loops"].select(columns).rows() == [(MAIN, "strategy-loop/1", "Edit", 3, 3, 2, 3, "broke", 4, 18)]


def test_the_page_says_how_wrong_the_simple_sums_are(tables: dict[str, pl.DataFrame]) -> None:
    text = (STORY / f"claude/{MAIN}.jsonl").read_text(encoding="utf-8")
    outputs = [
        int(n)
        for n in re.findall(r'"output_tokens": ([0-9]+), "cache_read_input_tokens": [0-9]+, "cache_creation', text)
    ]
    true = tables["turns"].filter(pl.col("run_id") == MAIN)["tokens_output"].sum()
    assert (sum(outputs), true) == (233, 201)


@pytest.mark.parametrize("order", [1, -1], ids=["forwards", "backwards"])
def test_file_by_file_in_any_order(tables: dict[str, pl.DataFrame], order: int) -> None:
    for path in FILES[::order]:
        ingest(Path("lake"), Path("story") / path.relative_to(STORY), settings=Settings())
    assert_same(tables_of(Path("lake")), tables)


@pytest.mark.parametrize("share", [0.31, 0.66])
def test_in_two_parts(tables: dict[str, pl.DataFrame], share: float) -> None:
    shutil.rmtree("story")
    for path in FILES:
        part = Path("story") / path.relative_to(STORY)
        part.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        part.write_bytes(data[: int(len(data) * share)])
    ingest(Path("lake"), Path("story"), settings=Settings())
    for path in FILES:
        (Path("story") / path.relative_to(STORY)).write_bytes(path.read_bytes())
    ingest(Path("lake"), Path("story"), settings=Settings())
    assert_same(tables_of(Path("lake")), tables)
