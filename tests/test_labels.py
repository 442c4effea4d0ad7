"""The ruler against hand labels of 416 real calls: agreement by column, and every miss by name.

`labels/steps.csv` was made by reading, not by the ruler; `labels/README.md` says how. A cell is firm unless its row's
note names its column as ambiguous. At least 97 % of the firm cells must agree. `labels/misses.csv` lists every cell in
which label and ruler differ, firm or not, and why; the set of misses must be that of the file, so that a new miss fails
the test and a mended one has to be taken out:

    python tests/test_labels.py --write

Classes are compared by groups: a labelled failure agrees where the labelled failures of its tool that share its
signature are those that share its label's group. That is stricter than the agreement over all pairs, which nearly all
differ anyway.
"""

from __future__ import annotations

import csv
import hashlib
import io
import sys
from collections import defaultdict
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from corpus_lake import CORPUS, corpus_tables

LABELS = Path(__file__).resolve().parent / "labels"
FIRM_AT_LEAST = 0.97
# Label column -> column of `steps`, and the word for it in a note.
CELLS = {
    "kind": ("kind", "kind"),
    "action": ("action", "action"),
    "target": ("target", "target"),
    "outcome": ("outcome", "outcome"),
    "outcome_reason": ("outcome_reason", "outcome"),
    "code": ("error_code", "code"),
}
CLASS = "class_group"
MISS_COLUMNS = ("file", "line", "call_id", "column", "is_firm", "label", "ruler", "why")


class Cell(NamedTuple):
    """One labelled fact beside what the ruler says of it."""

    file: str
    line: str
    call_id: str
    column: str
    is_firm: bool
    label: str
    ruler: str

    @property
    def agrees(self) -> bool:
        return self.label == self.ruler


def labels() -> list[dict[str, str]]:
    with (LABELS / "steps.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ambiguous(note: str) -> set[str]:
    """The columns that a note names as open to another reading."""
    if "ambiguous" not in note or "[" not in note:
        return set()
    return set(note[note.rfind("[") + 1 :].rstrip("] ").split())


@cache
def steps_by_file() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for step in corpus_tables()["steps"].to_dicts():
        found[step["source_file"]].append(step)
    return found


@cache
def steps_by_call() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for step in corpus_tables()["steps"].to_dicts():
        found[step["call_id"]].append(step)
    return found


def step_of(row: dict[str, str]) -> dict[str, Any]:
    """The step of a label: by its call id, in its file or in the file of which its own holds a copy; else by its place.

    The place is a line, or `record:event` with the event's number as its id where the log gives no other.
    """
    same_file = steps_by_file()[row["file"]]
    record, _, event = row["line"].rpartition(":")
    chances = [
        [step for step in same_file if row["call_id"] and step["call_id"] == row["call_id"]],
        [step for step in same_file if str(step["source_line"]) == record and step["call_id"] in (event, f"#{event}")],
        [step for step in same_file if not record and str(step["source_line"]) == event],
        [
            step
            for step in steps_by_call()[row["call_id"]]
            if row["call_id"] and step["source_file"].split("/")[0] == row["file"].split("/")[0]
        ],
    ]
    for found in chances:
        if len(found) == 1:
            return found[0]
    raise AssertionError(f"no step, or several, for {row['file']} {row['line']} {row['call_id']}")


@cache
def cells() -> tuple[Cell, ...]:
    """Every cell of the labels, those of the class by groups among the labelled failures of one tool."""
    out: list[Cell] = []
    rows = [(row, step_of(row)) for row in labels()]
    for row, step in rows:
        open_columns = ambiguous(row["note"])
        for column, (name, word) in CELLS.items():
            out.append(
                Cell(
                    row["file"],
                    row["line"],
                    row["call_id"],
                    column,
                    word not in open_columns,
                    row[column],
                    step[name] or "",
                )
            )
    return (*out, *class_cells(rows))


def is_same_class(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Both are failures to the ruler, and of one signature."""
    return one["signature"] is not None and one["signature"] == other["signature"]


def class_cells(rows: list[tuple[dict[str, str], dict[str, Any]]]) -> list[Cell]:
    """One cell per labelled failure: its group, and how the ruler's differs (`= other` joined, `- other` parted)."""
    failures = [(row, step) for row, step in rows if row[CLASS]]
    out = []
    for row, step in failures:
        if "class" in ambiguous(row["note"]):
            others = failures
        else:
            # A partner of which the class is open does not make a firm class wrong.
            others = [(r, s) for r, s in failures if "class" not in ambiguous(r["note"])]
        others = [(r, s) for r, s in others if s["tool"] == step["tool"] and s is not step]
        joined = {f"= {r[CLASS]}" for r, s in others if is_same_class(s, step) and r[CLASS] != row[CLASS]}
        parted = {
            f"- {r['file'].rsplit('/', 1)[-1]}:{r['line']}"
            for r, s in others
            if not is_same_class(s, step) and r[CLASS] == row[CLASS]
        }
        ruler = "; ".join([row[CLASS], *sorted(joined | parted)])
        is_firm = "class" not in ambiguous(row["note"])
        out.append(Cell(row["file"], row["line"], row["call_id"], CLASS, is_firm, row[CLASS], ruler))
    return out


def misses() -> list[Cell]:
    return sorted(cell for cell in cells() if not cell.agrees)


def shown(text: str) -> str:
    """What the ruler says; of a whole sentence of a log (a query that became a target) only the hash is written."""
    return text if text.count(" ") < 2 or ";" in text else f"#{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def as_row(cell: Cell) -> dict[str, str]:
    return {
        "file": cell.file,
        "line": cell.line,
        "call_id": cell.call_id,
        "column": cell.column,
        "is_firm": "firm" if cell.is_firm else "",
        "label": cell.label,
        "ruler": shown(cell.ruler),
    }


def committed() -> list[dict[str, str]]:
    path = LABELS / "misses.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def without_why(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in MISS_COLUMNS if name != "why")


def share(some: list[Cell]) -> float:
    return sum(cell.agrees for cell in some) / len(some)


def test_every_label_has_its_step(corpus: Path) -> None:
    found = [step_of(row) for row in labels()]
    assert len({(step["run_id"], step["step"]) for step in found}) == len(found) == 416


def test_firm_cells_agree(corpus: Path) -> None:
    facts = [cell for cell in cells() if cell.column != CLASS]
    for column in CELLS:
        mine = [cell for cell in facts if cell.column == column]
        firm = [cell for cell in mine if cell.is_firm]
        print(f"{column}: firm {share(firm):.3f} of {len(firm)}, all {share(mine):.3f} of {len(mine)}")
    firm = [cell for cell in facts if cell.is_firm]
    print(f"all columns: firm {share(firm):.4f} of {len(firm)}, all {share(facts):.4f} of {len(facts)}")
    assert len(firm) > 2_000
    assert share(firm) >= FIRM_AT_LEAST


def test_firm_classes_agree(corpus: Path) -> None:
    classes = [cell for cell in cells() if cell.column == CLASS]
    firm = [cell for cell in classes if cell.is_firm]
    print(f"groups: firm {share(firm):.3f} of {len(firm)}, all {share(classes):.3f} of {len(classes)}")
    assert len(firm) > 100
    assert share(firm) >= FIRM_AT_LEAST


def test_pairs_of_failures_agree(corpus: Path) -> None:
    rows = [(row, step_of(row)) for row in labels()]
    failures = [(row, step) for row, step in rows if row[CLASS]]
    pairs = [(a, b) for a, b in combinations(failures, 2) if a[1]["tool"] == b[1]["tool"]]
    agreeing = [(a, b) for a, b in pairs if (a[0][CLASS] == b[0][CLASS]) == is_same_class(a[1], b[1])]
    print(f"pairs of one tool: {len(agreeing)} of {len(pairs)} agree")
    assert len(pairs) > 1_000
    assert len(agreeing) / len(pairs) >= 0.99


def test_the_misses_are_those_of_the_file(corpus: Path) -> None:
    now = {without_why(as_row(cell)) for cell in misses()}
    listed = {without_why(row) for row in committed()}
    assert sorted(now - listed) == [], "new misses: mend them, or `python tests/test_labels.py --write` and say why"
    assert sorted(listed - now) == [], "mended: take them out with `python tests/test_labels.py --write`"


def test_every_listed_miss_is_of_a_label_and_says_why() -> None:
    places = {(row["file"], row["line"], row["call_id"]): row for row in labels()}
    rows = committed()
    assert len({(row["file"], row["line"], row["call_id"], row["column"]) for row in rows}) == len(rows) > 0
    for row in rows:
        label = places[row["file"], row["line"], row["call_id"]]
        assert (row["label"], row["why"] != "") == (label[row["column"]], True), row


def main() -> None:
    """Write the misses anew, keeping the reasons that are known."""
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_labels.py --write")
    if not CORPUS.is_dir():
        sys.exit(f"corpus folder missing: {CORPUS}")
    reasons = {(row["file"], row["line"], row["call_id"], row["column"]): row["why"] for row in committed()}
    out = io.StringIO()
    writer = csv.DictWriter(out, MISS_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for cell in misses():
        writer.writerow(as_row(cell) | {"why": reasons.get((cell.file, cell.line, cell.call_id, cell.column), "")})
    (LABELS / "misses.csv").write_text(out.getvalue(), encoding="utf-8")


if __name__ == "__main__":
    main()
