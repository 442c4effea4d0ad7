"""What the documents say is what the program does: the README's demo output, its commands, its exit codes.

`python tests/test_docs.py --write` puts everything that comes from the program into README and docs anew.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

import make_docs
from loopstats import config, rule
from loopstats.cli.complete import commands
from loopstats.errors import UsageError
from loopstats.tables import TABLES
from program import COMMANDS, TREE, Home, options

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


def test_every_command_of_the_program_is_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    assert [name for name in TREE.commands if not re.search(rf"`{name}[ `]", text)] == []


@pytest.mark.parametrize("page", make_docs.pages(), ids=lambda page: page.name)
def test_what_a_page_takes_from_the_program_is_what_the_program_says(page: Path, home: Home) -> None:
    text = page.read_text(encoding="utf-8")
    assert make_docs.made(text, home) == text, "python tests/test_docs.py --write"


def test_a_page_that_is_out_of_date_is_found(home: Home) -> None:
    for name, was in (("configuration", "`maturity_hours`"), ("method", "[----"), ("quickstart", "0.344691")):
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        changed = text.replace(was, "something else", 1)
        assert changed != text and make_docs.made(changed, home) == text, name


def test_pages_speak_of_the_numbers_of_the_sample(home: Home) -> None:
    (row,) = (r for r in home.run(["lift", "--as-of", AS_OF, "--json"]).body["rows"] if r["scope"] == "to_date")
    counts = [row[f"{name}_{arm}"] for arm in ("treated", "holdout") for name in ("broke", "n")]
    for name, form in (
        ("method", r"broke +(\d+) +broke +(\d+)\s+of +(\d+) +of +(\d+)"),
        ("reading-a-lift", r"broke in (\d+) of (\d+) cases, the others in (\d+) of (\d+): ([0-9.]+) points"),
    ):
        found = re.search(form, (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))
        assert found is not None
        assert sorted(map(int, found.groups()[:4])) == sorted(counts), name
    assert found[5] == f"{100 * row['lift']:.1f}"
    power = home.run(["simulate", "power", "--n", "100", "--json"]).body["rows"][0]
    for name in ("quickstart", "faq"):
        text = " ".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").split())
        assert f"about {power['n_needed_fixed']} loops" in text and f"about {power['n_needed_anytime']} " in text


def test_pages_name_every_command_option_table_column_and_key() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for path, command in commands(TREE):
        part = page.split(f"## `loopstats {' '.join(path)}`\n")[1].split("\n## ")[0]
        assert [name for name in options(command) if f"`{name}`" not in part and f"`{name} " not in part] == []
    named = set(re.findall(r"^## `loopstats (.*)`$", page, re.MULTILINE))
    assert named == set(COMMANDS)
    page = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    for table in TABLES.values():
        part = page.split(f"## `{table.name}`\n")[1].split("\n## ")[0]
        assert re.findall(r"^\| `(.*?)` \|", part, re.MULTILINE) == list(table.names)
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z][A-Za-z_.]*)` \|", page, re.MULTILINE) == [key.name for key in config.KEYS]


def test_the_findings_in_real_logs_were_made_by_the_rule_of_today() -> None:
    """Where this fails, run `python tests/findings_table.py` and put its tables and the digest into the page."""
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert re.findall(r"rule digest\n`([0-9a-f]{16})`", text) == [rule.digest()]


def test_the_files_of_settings_that_are_shown_are_right(tmp_path: Path) -> None:
    found = 0
    for page in [README, *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for text in re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            if tomllib.loads(text).keys() & {key.parts[0] for key in config.KEYS}:
                (tmp_path / "c.toml").write_text(text)
                assert config.gather(tmp_path / "c.toml").values
                (tmp_path / "c.toml").write_text(text.replace("_", "-"))
                with pytest.raises(UsageError):
                    config.gather(tmp_path / "c.toml")
                found += 1
    assert found > 0


def shown_lines() -> list[tuple[str, str]]:
    """Page and line of every call of the program in a block of shell or console."""
    found = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            lines = re.findall(r"^(?:\$ )?(loopstats [^#\n]*)", block, re.MULTILINE)
            found += [
                (page.name, part) for line in lines for part in line.split(" && ") if part.startswith("loopstats ")
            ]
    return found


def test_every_line_that_is_shown_can_be_typed(home: Home) -> None:
    lines = shown_lines()
    assert len(lines) > 60
    for page, line in lines:
        words = shlex.split(line)[1:]
        command, known = TREE, options(TREE)
        for word in words:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
        names = {name for param in [*TREE.params, *command.params] for name in param.opts} | {
            "--help",
            "-h",
            "--version",
        }
        if "--" in words:  # what stands behind it is for `nightly`
            names |= {name for param in TREE.commands["nightly"].params for name in param.opts}
        wrong = [
            word
            for word in words
            if word not in ("-", "--") and word.startswith("-") and word.partition("=")[0] not in names
        ]
        assert wrong == [] and (command is not TREE or "[OPTIONS]" in line or set(words) <= set(known)), (
            f"{page}: {line}"
        )
        # Those of a run block have been run already.
        if words[:1] == ["sql"] and len(words) > 1 and page not in ("sql-cookbook.md", "quickstart.md", "commands.md"):
            assert home.run(["-q", *words, "-f", "csv"]).code == 0, f"{page}: {line}"


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
    make_docs.write(Home(Path(tempfile.mkdtemp())))
