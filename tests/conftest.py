"""The folder of real logs where it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real logs; tests that need it are skipped, saying so, where it is missing."""
    folder = Path(os.environ.get("LOOPSTATS_CORPUS", ROOT.parent / "shared" / "corpus"))
    if not folder.is_dir():
        pytest.skip(f"corpus folder missing: {folder}")
    return folder
