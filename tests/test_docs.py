"""What the documents say is what the program does: the README's demo output, its commands, its exit codes.

`python tests/test_docs.py --write` puts the demo's output into the README anew.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
AS_OF = "2026-11-20T00:00:00Z"
BLOCK = re.compile(r"<!-- demo -->\n.*?<!-- /demo -->", re.DOTALL)


def loopstats(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loopstats.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "100", "HOME": "/nonexistent"},
    )


def demo_block(lake: Path) -> str:
    """The two commands of `make demo` and what they print to stdout."""
    ingested = loopstats("--lake", str(lake), "ingest", "data/sample").stdout
    lift = loopstats("--lake", str(lake), "lift", "--since", "7d", "--as-of", AS_OF).stdout
    return (
        "<!-- demo -->\n```console\n$ loopstats --lake .demo/lake ingest data/sample\n"
        + ingested
        + f"$ loopstats --lake .demo/lake lift --since 7d --as-of {AS_OF}\n"
        + lift
        + "```\n<!-- /demo -->"
    )


def test_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    found = BLOCK.search(README.read_text(encoding="utf-8"))
    assert found is not None
    assert found[0] == demo_block(tmp_path / "lake")


def test_readme_speaks_of_the_numbers_that_it_shows() -> None:
    text = README.read_text(encoding="utf-8")
    prose = re.search(
        r"How to read it: of (\d+) loops that got the hint, (\d+) broke; of (\d+) that did not, (\d+)\.", text
    )
    assert prose is not None
    n1, x1, n0, x0 = prose.groups()
    assert f"treated {x1}/{n1}" in text
    assert f"{x0}/{n0}" in text.replace("\n", " ")


@pytest.mark.parametrize("name", ["ingest", "lift", "loops", "tools", "sql", "queries", "schema"])
def test_every_command_has_help(name: str) -> None:
    assert "Usage" in loopstats(name, "--help").stdout


def test_every_command_of_the_program_is_in_the_readme() -> None:
    listed = re.findall(r"^  ([a-z]+) {2,}", loopstats("--help").stdout.split("Commands:")[1], re.MULTILINE)
    text = README.read_text(encoding="utf-8")
    assert [name for name in listed if f"`{name}" not in text] == []


def test_documents_that_are_linked_exist() -> None:
    for page in [README, *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links {target}"


def test_no_path_of_a_machine_and_no_registry_in_the_project() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    words = ["/" + "work/", "py" + "pi.org", "python" + "hosted", "registry." + "npmjs", "far" + "m-"]
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".md", ".py", ".toml", ".txt", ".sql", ".yml", ""} and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert [word for word in words if word in text] == [], name


if __name__ == "__main__" and "--write" in sys.argv:
    block = demo_block(Path(tempfile.mkdtemp()) / "lake")
    README.write_text(BLOCK.sub(lambda _: block, README.read_text(encoding="utf-8")), encoding="utf-8")
