"""A stranger's log format: a package of its own, built and installed into a folder, found by its entry point and used.

What CONTRIBUTING shows is that package word for word, so that the example on the page is code that runs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(__file__).resolve().parent / "foreign"
LINES = [
    {"acme": 1, "kind": "hello"},
    *[
        line
        for number, (file, failed) in enumerate([("a.py", True), ("b.py", True), ("a.py", True), ("a.py", False)])
        for line in (
            {
                "acme": 1,
                "kind": "call",
                "run": "r1",
                "id": f"c{number}",
                "tool": "Edit",
                "args": {"file_path": file},
                "at": f"2026-11-02T09:0{number}:00Z",
            },
            {
                "acme": 1,
                "kind": "result",
                "run": "r1",
                "id": f"c{number}",
                "failed": failed,
                "at": f"2026-11-02T09:0{number}:30Z",
                "text": "String to replace not found in file." if failed else "done",
            },
        )
    ],
]


def block(language: str) -> str:
    """The first code block of that language in the section on formats of CONTRIBUTING."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Add a log format")[1]
    return section.split(f"```{language}\n")[1].split("```")[0]


def test_the_example_of_the_page_is_the_package() -> None:
    assert block("python") == "# acme_format.py\n" + (PACKAGE / "acme_format.py").read_text(encoding="utf-8")
    assert block("toml") in (PACKAGE / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed in it, as `pip install` does it; nothing is fetched."""
    for name in ("pip", "hatchling"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed here: the stranger's package cannot be built")
    folder = tmp_path_factory.mktemp("foreign")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "target"), str(folder / "source")],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder / "target"


def loopstats(folder: Path, target: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, with the package in reach or not."""
    reach = [str(ROOT / "pipeline"), *([str(target)] if target else [])]
    return subprocess.run(
        [sys.executable, "-m", "loopstats.cli", "--lake", str(folder / "lake"), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(reach)},
    )


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with one log of that format."""
    (tmp_path / "logs").mkdir()
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    (tmp_path / "logs" / "run.log").write_text(text, encoding="utf-8")
    return tmp_path


def test_an_installed_adapter_is_found_and_counts(target: Path, logs: Path) -> None:
    done = loopstats(logs, target, "ingest", "logs", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    told = {key: row[key] for key in ("format", "files", "steps", "read", "used", "nothing")}
    assert told == {"format": "acme", "files": 1, "steps": 4, "read": 9, "used": 8, "nothing": 1}
    query = "select run_id, tool, detected_step, outcome from loops where rule = 'strategy-loop/1'"
    answer = loopstats(logs, target, "sql", query, "-f", "csv")
    assert answer.stdout.splitlines()[-1] == '"r1","Edit",2,"broke"', answer.stderr


def test_without_the_package_the_file_is_of_no_known_format(logs: Path) -> None:
    done = loopstats(logs, None, "ingest", "logs", "--json")
    assert "unknown_format" in done.stderr
    assert [row["format"] for row in json.loads(done.stdout)["rows"]] == [""]
    assert "acme" not in done.stdout


def test_a_log_that_grows_after_its_package_went_away(target: Path, logs: Path) -> None:
    assert loopstats(logs, target, "ingest", "logs").returncode == 0
    with (logs / "logs" / "run.log").open("a", encoding="utf-8") as file:
        file.write('{"acme":1,"kind":"bye"}\n')
    done = loopstats(logs, None, "ingest", "logs")
    assert done.returncode != 0
    assert "no format named acme is installed" in done.stderr
