"""The folder of real logs where it is there, a lake of the packaged sample, and a home in which every command can be called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from program import Home, Told

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real logs; tests that need it are skipped, saying so, where it is missing."""
    folder = Path(os.environ.get("LOOPSTATS_CORPUS", ROOT.parent / "shared" / "corpus"))
    if not folder.is_dir():
        pytest.skip(f"corpus folder missing: {folder}")
    return folder


@pytest.fixture(scope="session")
def sample_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of `data/sample`, ingested once by the real program from the checkout's root; read it, never write."""
    lake = tmp_path_factory.mktemp("sample") / "lake"
    subprocess.run(
        [sys.executable, "-m", "loopstats.cli", "--lake", str(lake), "-q", "ingest", "data/sample"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return lake


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home of its own with a lake of the packaged sample; the tests that share it only read."""
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def answers(home: Home) -> list[tuple[str, Told]]:
    """Every command that answers in JSON, with every shape of its answer: the line that was typed and what it told."""
    import make_schemas

    return make_schemas.answers(home)
