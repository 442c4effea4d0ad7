"""The notebooks run from beginning to end on the packaged sample, their plots are drawn, and they compute nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
PLOTS = {"first_look": 1, "reading_a_lift": 5}
MARKS = re.compile(r"<(?:path|circle|rect|line)\b")


def code_of(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_two() -> None:
    assert NOTEBOOKS.keys() == PLOTS.keys()


@pytest.mark.parametrize("name", PLOTS)
def test_they_are_kept_without_outputs(name: str) -> None:
    text = NOTEBOOKS[name].read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert text == nbformat.writes(notebook) + "\n", "written as nbformat writes it"
    assert [cell.id for cell in notebook.cells] == [f"cell-{n:02d}" for n in range(1, len(notebook.cells) + 1)]
    assert {(cell.execution_count, len(cell.outputs)) for cell in code_of(notebook)} == {(None, 0)}
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


@pytest.mark.parametrize("name", PLOTS)
def test_they_explain_and_never_compute(name: str) -> None:
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    tree = ast.parse("\n".join(cell.source for cell in code_of(notebook)))
    sums = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Div)]
    paths = [ast.unparse(node.right) for node in ast.walk(tree) if isinstance(node, ast.BinOp)]
    assert sums == []
    assert set(paths) <= {"'lake'", "'codex'"}, "a slash joins paths and divides nothing"
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.AugAssign))]
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {module.split(".")[0] for module in modules} == {"loopstats", "IPython", "pathlib", "tempfile"}


@pytest.mark.parametrize("name", PLOTS)
def test_they_run_and_their_plots_are_drawn(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HOME", str(tmp_path))
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in code_of(notebook) for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert all(cell.outputs for cell in code_of(notebook) if not cell.source.startswith("try"))
    drawn = [output.data["image/svg+xml"] for output in outputs if "image/svg+xml" in output.get("data", {})]
    assert len(drawn) == PLOTS[name] == sum("SVG(" in cell.source for cell in code_of(notebook))
    for svg in drawn:
        assert len(MARKS.findall(svg)) > 5, svg[:300]
        assert len(re.findall("<text", svg)) > 3
        assert "<script" not in svg
        assert not re.search(r"(?:href|src)\s*=\s*[\"']https?:", svg)
