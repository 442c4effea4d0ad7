"""The published JSON Schemas are what the program prints: made anew they are the same, and they refuse a changed body.

`python tests/make_schemas.py` writes them.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

import make_schemas
from loopstats.query import DECIDED
from loopstats.tables import LOOPS
from program import TABLES, Home, Told

Answers = list[tuple[str, Told]]


@functools.cache
def validator(name: str) -> Draft202012Validator:
    schema = json.loads((make_schemas.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def name_of(body: dict[str, Any]) -> str:
    return str(body["schema"]).removeprefix("loopstats.").removesuffix("/1").replace("-", "_")


def test_the_files_are_those_that_the_program_gives(answers: Answers) -> None:
    made = {f"{name}.json": make_schemas.text(schema) for name, schema in make_schemas.schemas(answers).items()}
    files = [path for path in make_schemas.FOLDER.iterdir() if path.stem not in make_schemas.BY_HAND]
    found = {path.name: path.read_text(encoding="utf-8") for path in files}
    assert found == made, "python tests/make_schemas.py writes them anew"


def test_every_command_with_a_table_has_one() -> None:
    missing = [name for name in TABLES if not (make_schemas.FOLDER / f"{name.replace(' ', '_')}.json").is_file()]
    assert missing == []


def test_every_answer_is_valid(answers: Answers) -> None:
    for line, told in answers:
        check = validator(name_of(told.body))
        assert [f"{error.json_path}: {error.message}" for error in check.iter_errors(told.body)] == [], line


def mutations(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The body with one thing wrong, at the top and in a row."""
    for key in body:
        yield f"without {key}", {k: v for k, v in body.items() if k != key}
    yield "another key", body | {"colour": "red"}
    yield "another schema", body | {"schema": "loopstats.other/1"}
    yield "rows as a text", body | {"rows": "none"}
    if not body["rows"] or name_of(body) in make_schemas.FREE:
        return
    for key, value in body["rows"][0].items():
        other = copy.deepcopy(body)
        other["rows"][0][key] = {"not": "this"} if not isinstance(value, dict) else "a text"
        yield f"{key} of another type", other
    other = copy.deepcopy(body)
    del other["rows"][0][list(other["rows"][0])[-1]]
    yield "a row without its last column", other
    other = copy.deepcopy(body)
    other["rows"][0]["colour"] = "red"
    yield "a row with another column", other


def test_a_changed_body_is_refused(answers: Answers) -> None:
    tried = 0
    for told in {name_of(told.body): told for _, told in answers}.values():
        check = validator(name_of(told.body))
        for what, changed in mutations(told.body):
            assert not check.is_valid(changed), f"{name_of(told.body)}: {what}"
            tried += 1
    assert tried > 300


def test_the_program_prints_them(home: Home) -> None:
    for asked in ("hook_status", "hook status", "hook-status"):
        told = home.run(["schema", "--json-schema", asked])
        assert told.out == (make_schemas.FOLDER / "hook_status.json").read_bytes()
    told = home.run(["schema", "--json-schema", "nope"])
    assert told.code == 2 and "hook_status" in told.err
    assert home.run(["schema", "loops", "--json-schema", "loops"]).code == 2


def test_the_loops_are_those_of_the_contract() -> None:
    row = validator("loops").schema["properties"]["rows"]["items"]
    assert list(row["properties"]) == list(LOOPS.names) == row["required"]
    for column in LOOPS.columns:
        told = row["properties"][column.name]
        assert told["description"] == column.doc
        assert ("null" in told["type"]) == (not column.is_required or column.name in DECIDED)
    assert Path(make_schemas.FOLDER).parent.name == "loopstats"
