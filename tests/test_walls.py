"""The walls of the house: which module may import which, and what the built package holds.

Each wall has its reason in its message. Imports are read from the source, so that a lazy import counts too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pipeline" / "loopstats"
RULER = {"rule", "shell", "actions", "failures"}
STAGES = {"steps", "detect", "assign", "classify", "estimate", "drift", "audits", "runs"}
BELOW_STAGES = RULER | {"waste", "prices", "tables", "errors", "intervals", "config", "when"}
ALLOWED_ABOVE = {
    "errors": set(),
    "shell": set(),
    "failures": set(),
    "actions": {"shell"},
    "rule": {"actions", "failures"},
    "tables": {"rule"},
    "intervals": {"errors"},
    "resources": set(),
    "decode": {"errors"},
    "store": {"tables", "errors", "found", "resources", "__init__"},
    "care": {"store", "tables", "errors", "found", "__init__"},
    "config": {"rule", "errors", "hook"},
    "found": {"errors"},
    "homes": {"errors", "hooks"},
    "journal": {"errors", "found"},
    "schedule": {"homes", "errors", "found"},
    "ingest": {"formats", "decode", "errors", "found", "tables", "rule"},
    "workers": {"ingest", "errors"},
    "charts": {"estimate", "report"},
    "originals": {"ingest", "formats", "failures", "rule", "found", "report", "tables", "errors"},
    "__init__": {"api"},
    "report": {"estimate"},
    "spark": {"derive", "workers", "store", "ingest", "tables", "errors", "__init__"},
}


def imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "loopstats":
            parts = (node.module or "").split(".")
            found.update(
                [parts[1]]
                if len(parts) > 1
                else [
                    alias.name
                    if (PACKAGE / f"{alias.name}.py").exists() or (PACKAGE / alias.name).is_dir()
                    else "__init__"
                    for alias in node.names
                ]
            )
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            found.update([(node.module or "").split(".")[0]] if node.module else [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("loopstats."))
    return found


GRAPH = {path.stem: imports(path) for path in PACKAGE.glob("*.py")}
GRAPH["cli"] = set().union(*(imports(path) for path in (PACKAGE / "cli").glob("*.py"))) - {"cli"}


def test_stages_do_not_know_each_other_nor_the_disk() -> None:
    for stage in STAGES & GRAPH.keys():
        assert GRAPH[stage] <= BELOW_STAGES, (
            f"{stage} must stay a pure function of frames, so that any engine can run it"
        )


@pytest.mark.parametrize("module", sorted(ALLOWED_ABOVE))
def test_imports_run_downhill(module: str) -> None:
    assert GRAPH[module] <= ALLOWED_ABOVE[module]


def test_no_circles() -> None:
    graph = dict(GRAPH)
    graph["__init__"] = set()  # it holds the version, and doors that import only when somebody goes through
    graph["formats"] = set().union(*(imports(path) for path in (PACKAGE / "formats").glob("*.py"))) - {"formats"}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"circle of imports: {' -> '.join((*trail, name))}"
        if name not in done:
            for other in sorted(graph.get(name, ())):
                visit(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_formats_use_the_public_door_only() -> None:
    for path in (PACKAGE / "formats").glob("*.py"):
        assert imports(path) <= {"formats", "errors", "rule", "decode", "answers"}, (
            f"{path.name}: a format hands facts to Emit and knows nothing else"
        )


@pytest.mark.parametrize("module", sorted(RULER))
def test_the_ruler_needs_the_standard_library_only(module: str) -> None:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    outside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            outside.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            outside.add((node.module or "").split(".")[0])
    assert outside - set(sys.stdlib_module_names) <= {"loopstats"}, (
        "the live hook runs these files with nothing installed"
    )


def test_the_ruler_runs_without_any_installed_package() -> None:
    code = (
        f"import sys; sys.path.append({str(PACKAGE.parent)!r})\n"
        "from loopstats import rule\n"
        "print(rule.read_call('Bash', {'command': 'cd x && pytest tests/a.py'}).kind, rule.arm_bp('s', 'r', 'f' * 16))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "verify"


def test_every_module_says_what_it_is() -> None:
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").glob("*.py")]:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path.name} has no docstring"


def test_sql_holds_no_formatted_text() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("execute", "executemany", "sql")
            ):
                first = node.args[0] if node.args else None
                if isinstance(first, ast.JoinedStr):
                    values = [ast.unparse(part.value) for part in first.values if isinstance(part, ast.FormattedValue)]
                    assert set(values) <= {
                        "names",
                        "moment",
                        "relation.name",
                        "relation.sql",
                        "','.join('?' * len(row))",
                    }, f"{path.name}:{node.lineno}: log text must never become SQL"


def test_the_wheel_holds_what_is_tracked(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "pipeline/loopstats", "sql", "data/sample"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    wanted = {
        name.removeprefix("pipeline/") if name.startswith("pipeline/") else f"loopstats/{name}"
        for name in tracked
        if (ROOT / name).exists()
    }
    assert held >= wanted, f"missing in the wheel: {sorted(wanted - held)[:5]}"
    assert not {name for name in held if name.endswith((".pyc", ".parquet"))}
