"""Writes pipeline/loopstats/schemas: one JSON Schema for the `--json` of each command, from what the program prints.

    python tests/make_schemas.py

Rows that are a table take types and words from `tables.py` and from the very frame that is printed; bodies of another
shape (`lift`, `ingest`) are read off many answers, with every number allowed to be null. `tests/test_schemas.py` holds
the files against the program.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from loopstats import explain
from loopstats.compare import GROUPS
from loopstats.query import DECIDED
from loopstats.tables import TABLES
from loopstats.waste import WASTE_BY
from program import EXAMPLES, LEAVES, Home, Told, command_of, options

FOLDER = Path(__file__).resolve().parents[1] / "pipeline" / "loopstats" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Which table the rows of a command are.
ROWS = {"loops": "loops", "drift": "drifts", "runs": "runs"}
# Rows that no frame is handed to the printer for, and what their columns are.
TYPED = {"explain": explain.ROWS}
# Whose rows a person's own words decide.
FREE = {"sql"}
# Written by hand beside the others, because it says more than can be read off answers; test_nightly holds it.
BY_HAND = {"nightly"}
# Keys below which the data names the keys.
NAMED_BY_DATA = {"values", "settings", "files", "nothing_types"}
# Options that change the columns.
SHAPES = {"--all", "--by", "--compare", "--dry-run", "--faults", "--history", "--path", "--print", "--record"}
# Answers of other shapes than the manual's examples give.
MORE = (
    "loopstats lift --as-of 2026-11-20 --since 7d --by tool,model",
    "loopstats lift --as-of 2026-11-20 --config other.toml",
    "loopstats lift --as-of 2026-10-22",
    "loopstats lift --as-of 2026-11-20 --harness codex",
    "loopstats lift --as-of 2026-11-20 --where 'count_events >= 4' --by tool",
    "loopstats lift --as-of 2026-10-21 --by tool --since 2d",
    f"loopstats waste --by {','.join(WASTE_BY)}",
    *(f"loopstats waste --by {name}" for name in WASTE_BY[:2]),
    f"loopstats runs --by {','.join(GROUPS)}",
    *(f"loopstats runs --by {name}" for name in GROUPS[:2]),
    "loopstats runs --by period --compare 2026-11-01..2026-11-08 2026-11-08..2026-11-15",
    "loopstats ingest --full ~/.claude/projects",
    "loopstats ladder faulty",
    "loopstats config --config other.toml",
)
WHEN = {"type": "string", "format": "date-time", "pattern": "^[0-9-]{10}T[0-9:.]{8,15}Z$"}
ENVELOPE = {
    "as_of": WHEN,
    "interval": {
        "type": ["object", "null"],
        "properties": {"since": {"type": ["string", "null"]}, "until": {"type": ["string", "null"]}},
        "required": ["since", "until"],
        "additionalProperties": False,
    },
    "tz": {"type": "string"},
    "rule_digest": {"type": "string"},
}
OTHER = """\
[experiment.sample]
salt = "another"
[tools]
mine = "read"
[prices.m]
input = 1
output = 2
"""


def lines() -> list[str]:
    """Calls whose JSON the schemas are made of: each command with each set of its options that may change the shape."""
    chosen: dict[tuple[str, ...], str] = {}
    for line in EXAMPLES:
        words = shlex.split(line)
        command = command_of(line)
        flags = sorted({word for word in words if word.startswith("--")} & SHAPES)
        flags += ["argument"] if command in ("schema",) and len(words) > 2 else []
        if command not in BY_HAND and "--json" in options(LEAVES.get(command)) and "--json-schema" not in words:
            chosen.setdefault((command, *flags), line)
    return [*chosen.values(), *MORE]


def answers(home: Home) -> list[tuple[str, Told]]:
    """Every call with its JSON answer."""
    (home.folder / "other.toml").write_text(OTHER, encoding="utf-8")
    told = [(line, home.example(line, "--json")) for line in lines()]
    for line, one in told:
        assert one.out.startswith(b"{"), f"{line}: {one.code} {one.err}"
    return told


def schemas(told: Iterable[tuple[str, Told]]) -> dict[str, dict[str, Any]]:
    """Schema by the name in the answers' own `schema` key."""
    found: dict[str, list[Told]] = {}
    for _, one in told:
        found.setdefault(one.body["schema"].removeprefix("loopstats.").removesuffix("/1").replace("-", "_"), []).append(
            one
        )
    return {name: _schema(name, ones) for name, ones in sorted(found.items())}


def _schema(name: str, told: list[Told]) -> dict[str, Any]:
    bodies = [one.body for one in told]
    frames = [frame for one in told for frame, _, _ in one.frames[:1]]
    schema = _inferred([body | ({"rows": []} if frames else {}) for body in bodies])
    schema["properties"]["schema"] = {"const": bodies[0]["schema"]}
    schema["properties"] |= {
        key: ENVELOPE[key] for key in ENVELOPE if key != "interval" or frames or not schema["properties"][key]
    }
    if schema["properties"]["warnings"]["items"] == {}:
        schema["properties"]["warnings"]["items"] = {"type": "string"}
    if name in FREE:
        schema["properties"]["rows"] = {"type": "array", "items": {"type": "object"}}
    elif frames:
        shapes = [_row(name, frame.schema) for frame in frames]
        schema["properties"]["rows"] = {"type": "array", "items": _either(shapes)}
    elif name in TYPED:
        row = schema["properties"]["rows"]["items"]["properties"]
        row |= _row("", pl.Schema({column: TYPED[name][column] for column in row}))["properties"]
    about = LEAVES[name.replace("_", " ")].help if name.replace("_", " ") in LEAVES else None
    head = {
        "$schema": DIALECT,
        "$id": f"urn:loopstats:{name}:1",
        "title": f"loopstats {name.replace('_', ' ')} --json",
        "description": (about or "").split("\n\n")[0] or f"Answer of {name}",
    }
    return head | schema


def _row(name: str, columns: pl.Schema) -> dict[str, Any]:
    table = TABLES.get(ROWS.get(name, ""))
    told = {column.name: column for column in table.columns} if table is not None else {}
    properties = {}
    for column, dtype in columns.items():
        known = told.get(column)
        one = _type(dtype)
        # What follows from an outcome is null while it is pending, whatever the lake holds.
        if not (known and known.is_required) or column in DECIDED:
            one["type"] = [one["type"], "null"]
        if known:
            one["description"] = known.doc
        properties[column] = one
    return {"type": "object", "properties": properties, "required": list(columns), "additionalProperties": False}


def _type(dtype: Any) -> dict[str, Any]:
    if dtype == pl.Boolean:
        return {"type": "boolean"}
    if dtype.is_integer():
        return {"type": "integer"}
    if dtype.is_numeric():
        return {"type": "number"}
    if dtype.is_temporal():
        return dict(WHEN)
    if isinstance(dtype, pl.List):
        return {"type": "array", "items": {"type": "string"}}
    assert dtype == pl.String, dtype
    return {"type": "string"}


def _either(shapes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One shape, or any of several: a shape whose columns another has all is the other with fewer required."""
    merged: list[dict[str, Any]] = []
    for shape in sorted(shapes, key=lambda s: -len(s["properties"])):
        wider = next((m for m in merged if shape["properties"].keys() <= m["properties"].keys()), None)
        if wider is None:
            merged.append(json.loads(json.dumps(shape)))
        else:
            wider["required"] = [key for key in wider["required"] if key in shape["required"]]
    return merged[0] if len(merged) == 1 else {"anyOf": merged}


def _inferred(values: Sequence[Any], key: str = "") -> dict[str, Any]:
    """What all of these values are."""
    present = [value for value in values if value is not None]
    if not present:
        return {}
    first = present[0]
    if isinstance(first, dict):
        if key in NAMED_BY_DATA:
            return {"type": ["object", "null"]}
        names = list(dict.fromkeys(name for value in present for name in value))
        properties = {name: _inferred([value[name] for value in present if name in value], name) for name in names}
        required = [name for name in names if all(name in value for value in present)]
        kind = "object" if key == "" else ["object", "null"]
        return {"type": kind, "properties": properties, "required": required, "additionalProperties": False}
    if isinstance(first, list):
        items = [item for value in present for item in value]
        # Inside a list nothing is null.
        return {"type": ["array", "null"] if key not in ("rows", "warnings") else "array", "items": _inferred(items)}
    kinds = {type(value) for value in present}
    if kinds <= {int, float}:
        return {"type": ["number" if float in kinds else "integer", "null"]}
    assert len(kinds) == 1, (key, kinds)
    return {"type": [{str: "string", bool: "boolean"}[kinds.pop()], "null"]}


def text(schema: dict[str, Any]) -> str:
    """The file of a schema."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the folder anew."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = schemas(answers(Home(Path(folder))))
    for path in FOLDER.glob("*.json"):
        if path.stem not in BY_HAND:
            path.unlink()
    for name, schema in made.items():
        (FOLDER / f"{name}.json").write_text(text(schema), encoding="utf-8")
        (FOLDER / f"{name}.json").chmod(0o644)


if __name__ == "__main__":
    main()
