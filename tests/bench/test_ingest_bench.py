"""What reading costs and what detecting costs, told beside DuckDB by `make bench`; every row is compared.

The bars for time are printed, not asserted, where docs/speed.md says that they are missed: what must hold here is that
all contestants tell the same rows, and the bars that are met.
"""

from __future__ import annotations

from pathlib import Path

import detect_bench
import generate
import ingest_bench
import pytest

MEGABYTES = 64


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of generated logs."""
    folder = tmp_path_factory.mktemp("bench") / "logs"
    generate.write(folder, MEGABYTES << 20)
    return folder


@pytest.mark.bench
def test_all_contestants_tell_the_same_calls(logs: Path) -> None:
    best = ingest_bench.race(logs, rounds=1)
    assert best["ours, two workers"]["rss"] <= ingest_bench.MEMORY_MB


@pytest.mark.bench
def test_detection_is_that_of_window_sql() -> None:
    assert detect_bench.main([200_000]) == 0
