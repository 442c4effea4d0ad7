"""One assignment in every language: 5,016 nasty texts give the same basis points in Python, polars, DuckDB and Node.

Spark's turn is in `test_scale.py`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import duckdb
import polars as pl
import pytest

from arm_vectors import COUNT, Vector, key_of, vectors
from loopstats import rule

GOLDEN = "4bd267b3b75f8de2f93e90c383f0d11339aff948b3346eec27d0c128214de02f"
NODE = """
const {createHash} = require('crypto');
const keys = JSON.parse(require('fs').readFileSync(process.argv[1], 'utf8'));
const points = keys.map(key => parseInt(createHash('sha256').update(key, 'utf8').digest('hex').slice(0, 13), 16) % 10000);
console.log(JSON.stringify(points));
"""


@pytest.fixture(scope="module")
def made() -> list[Vector]:
    return vectors()


def test_the_vectors_are_those_that_were_published(made: list[Vector]) -> None:
    assert len(made) == COUNT
    told = "".join(json.dumps(vector) + "\n" for vector in made)
    assert hashlib.sha256(told.encode()).hexdigest() == GOLDEN
    assert len({(v.salt, v.run_id, v.signature) for v in made}) > 4_900
    shares = sum(v.arm_bp < 5_000 for v in made) / COUNT
    assert 0.47 < shares < 0.53


def test_the_rule_gives_them(made: list[Vector]) -> None:
    assert [rule.arm_bp(v.salt, v.run_id, v.signature) for v in made] == [v.arm_bp for v in made]


def test_a_salt_with_a_bar_and_a_lone_surrogate_are_refused() -> None:
    with pytest.raises(ValueError, match="salt"):
        rule.arm_bp("a|b", "r", "s")
    with pytest.raises(ValueError):
        rule.arm_bp("s", "\ud800", "s")


def keys(made: list[Vector]) -> pl.DataFrame:
    return pl.DataFrame({"n": range(len(made)), "k": [key_of(*v[:3]) for v in made], "want": [v.arm_bp for v in made]})


def test_polars_gives_them_from_hexadecimal_digits(made: list[Vector]) -> None:
    digests = keys(made).with_columns(
        pl.Series("hex", [hashlib.sha256(key_of(*v[:3]).encode()).hexdigest() for v in made])
    )
    points = digests.select(pl.col("hex").str.slice(0, 13).str.to_integer(base=16) % 10_000)
    assert points["hex"].to_list() == [v.arm_bp for v in made]


def test_duckdb_gives_them(made: list[Vector]) -> None:
    frame = keys(made)
    sql = "SELECT n, ('0x' || substr(sha256(k), 1, 13))::BIGINT % 10000 FROM frame ORDER BY n"
    connection = duckdb.connect()
    connection.register("frame", frame.to_arrow())
    assert [row[1] for row in connection.execute(sql).fetchall()] == frame["want"].to_list()


@pytest.mark.skipif(shutil.which("node") is None, reason="node is missing")
def test_node_gives_them(made: list[Vector], tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(keys(made)["k"].to_list()), encoding="utf-8")
    done = subprocess.run(["node", "-e", NODE, str(path)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [v.arm_bp for v in made]
