"""The locked DuckDB: what every reader sees at an as-of, what SQL cannot reach, and what filters a lift takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pytest

import small_lake
from loopstats import query, rule, when
from loopstats.errors import LakeError, UsageError
from loopstats.query import Filters
from loopstats.tables import LOOPS, STEPS, TABLES
from loopstats.when import Interval
from small_lake import frame_of, hour

AS_OF = round(hour(48).timestamp() * 1_000_000)
EVER = Interval(AS_OF, None, None, "UTC")


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    opened = query.open_snapshot(small_lake.sample(tmp_path_factory.mktemp("query") / "lake").snapshot(), AS_OF)
    yield opened
    opened.close()


def test_every_table_and_view_can_be_read(connection: duckdb.DuckDBPyConnection) -> None:
    names = query.schema_tables()["name"].to_list()
    assert set(TABLES) < set(names)
    for name in names:
        query.run(connection, f'SELECT * FROM "{name}"')
    for name, table in TABLES.items():
        frame = query.run(connection, f'SELECT * FROM "{name}"')
        assert frame.schema == table.schema


def test_every_named_question_runs(connection: duckdb.DuckDBPyConnection) -> None:
    for relation in query.relations("queries"):
        assert query.run(connection, relation.sql).width > 1
        assert relation.about.endswith((".", "?")), relation.name


def test_an_empty_lake_has_every_table() -> None:
    opened = query.open_tables({}, AS_OF)
    assert query.run(opened, "SELECT count(*) AS n FROM loop_rates_by_tool").item() == 0


def test_loops_are_seen_as_of(connection: duckdb.DuckDBPyConnection) -> None:
    frame = query.run(connection, "SELECT * FROM loops WHERE rule = 'strategy-loop/1' ORDER BY loop_id")
    assert frame["outcome"].to_list() == ["broke", "recurred", "pending"]
    assert frame["outcome_step"].to_list() == [9, 9, None]
    assert frame["outcome_at"].to_list() == [hour(2), hour(3), None]


def test_nobody_looks_behind_the_as_of(connection: duckdb.DuckDBPyConnection) -> None:
    names = query.run(connection, "SHOW TABLES").get_column("name").to_list()
    assert set(TABLES) < set(names)
    for name in names:
        frame = query.run(connection, f'SELECT * FROM "{name}"')
        if "outcome_final" in frame.columns:
            assert "pending" in frame["outcome"].to_list()
            assert "run4" not in frame["run_id"].to_list()


def test_an_outcome_is_mature_at_the_very_instant(tmp_path: Path) -> None:
    snapshot = small_lake.sample(tmp_path / "lake").snapshot()
    mature = round(hour(54).timestamp() * 1_000_000)
    for as_of, expected in ((mature - 1, "pending"), (mature, "broke")):
        opened = query.open_snapshot(snapshot, as_of)
        assert query.run(opened, "SELECT outcome FROM loops WHERE run_id = 'run3'").item() == expected


def test_an_untimed_loop_is_never_pending() -> None:
    row = {"loop_id": "a", "run_id": "r", "rule": "strategy-loop/1", "outcome": "unresolved"}
    opened = query.open_tables({"loops": frame_of(LOOPS, [row]).to_arrow()}, AS_OF)
    assert query.run(opened, "SELECT outcome FROM loops").item() == "unresolved"


def test_a_column_that_older_files_lack_is_null(tmp_path: Path) -> None:
    lake = small_lake.sample(tmp_path / "lake")
    for path in lake.snapshot().paths("loops"):
        pl.read_parquet(path, glob=False).drop("group", "cost_wasted_micros").write_parquet(path)
    opened = query.open_snapshot(lake.snapshot(), AS_OF)
    frame = query.run(opened, 'SELECT "group", cost_wasted_micros, loop_id FROM loops')
    assert frame["group"].null_count() == frame.height == 4
    assert frame["cost_wasted_micros"].dtype == pl.Int64


def test_a_broken_file_of_another_table_is_met_when_read(tmp_path: Path) -> None:
    snapshot = small_lake.sample(tmp_path / "lake").snapshot()
    snapshot.paths("steps")[0].write_bytes(b"garbage")
    opened = query.open_snapshot(snapshot, AS_OF)
    assert query.run(opened, "SELECT count(*) AS n FROM loops").item() == 4
    with pytest.raises(LakeError, match="cannot be read"):
        query.run(opened, "SELECT * FROM steps")


def test_a_missing_or_broken_file_is_a_lake_error(tmp_path: Path) -> None:
    snapshot = small_lake.sample(tmp_path / "lake").snapshot()
    path = snapshot.paths("loops")[0]
    path.write_bytes(b"garbage")
    with pytest.raises(LakeError, match="cannot be read"):
        query.open_snapshot(snapshot, AS_OF)
    path.unlink()
    with pytest.raises(LakeError, match="gone"):
        query.open_snapshot(snapshot, AS_OF)


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO '{0}/out.csv'",
        "COPY loops TO '{0}/out.parquet'",
        "ATTACH '{0}/other.db'",
        "INSTALL httpfs",
        "LOAD json",
        "SET threads = 1",
        "RESET threads",
        "PRAGMA threads = 1",
        "SET enable_external_access = true",
        "SET VARIABLE a = 1",
        "USE memory",
        "CREATE TABLE t (a INT)",
        "CREATE MACRO f() AS 1",
        "CREATE SECRET (TYPE s3)",
        "DROP VIEW loops",
        "INSERT INTO loops VALUES (1)",
        "DELETE FROM loops",
        "UPDATE loops SET arm = 'treated'",
        "EXPORT DATABASE '{0}/x'",
        "IMPORT DATABASE '{0}/x'",
        "CALL duckdb_tables()",
        "BEGIN",
        "CHECKPOINT",
        "VACUUM",
        "PREPARE p AS SELECT 1",
        "DETACH memory",
        "SELECT * FROM read_csv('{0}/secret.csv')",
        "SELECT * FROM read_text('{0}/secret.csv')",
        "SELECT * FROM read_blob('{0}/secret.csv')",
        "SELECT * FROM read_json('{0}/secret.csv')",
        "SELECT * FROM read_parquet('{0}/secret.csv')",
        "SELECT * FROM sniff_csv('{0}/secret.csv')",
        "SELECT * FROM '{0}/secret.csv'",
        "SELECT * FROM glob('{0}/*')",
        "SELECT getenv('HOME')",
        "EXPLAIN ANALYZE COPY loops TO '{0}/out.csv'",
        "WITH x AS (INSERT INTO loops VALUES (1) RETURNING *) SELECT * FROM x",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW loops",
        "",
        "-- nothing",
        "SELEC 1",
        "SELECT nope FROM loops",
    ],
)
def test_refused(connection: duckdb.DuckDBPyConnection, tmp_path: Path, statement: str) -> None:
    (tmp_path / "secret.csv").write_text("a\nTOPSECRET\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError) as error:
        query.run(connection, statement.format(tmp_path))
    assert "\n" not in str(error.value)
    assert "TOPSECRET" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert query.run(connection, "SELECT count(*) AS n FROM loops").item() == 4


def test_python_variables_are_out_of_reach(connection: duckdb.DuckDBPyConnection) -> None:
    hidden = pl.DataFrame({"a": [1]})
    with pytest.raises(UsageError, match="hidden"):
        query.run(connection, "SELECT * FROM hidden")
    assert hidden.height == 1


def test_the_connection_is_locked(connection: duckdb.DuckDBPyConnection) -> None:
    names = (
        "enable_external_access",
        "autoinstall_known_extensions",
        "autoload_known_extensions",
        "lock_configuration",
        "TimeZone",
    )
    values = query.run(connection, "SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in names)).row(
        0
    )
    assert values == (False, False, False, True, "UTC")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 AS a",
        "FROM loops",
        "select 1 as a;",
        "SELECT 1 AS a; -- done",
        "WITH x AS (SELECT 1 AS a) SELECT * FROM x",
        "SHOW TABLES",
        "DESCRIBE loops",
        "SUMMARIZE loops",
        "EXPLAIN SELECT 1",
        "VALUES (1)",
    ],
)
def test_allowed(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    assert query.run(connection, statement).height >= 1


def test_types_of_duckdb_become_portable(connection: duckdb.DuckDBPyConnection) -> None:
    row = query.run(
        connection,
        (
            "SELECT sum(step) AS total, 170141183460469231731687303715884105727::HUGEINT AS huge, "
            "1.25::DECIMAL(5, 2) AS decimal, "
            "INTERVAL 3 DAY AS span, TIME '10:00' AS clock, {'a': 1} AS struct, "
            "MAP {'a': 1} AS map, 'x'::BLOB AS blob, "
            "7::UBIGINT AS u, "
            "NULL AS nothing, 1 AS total, [1, 2] AS list, DATE '2026-01-01' AS day FROM steps"
        ),
    )
    assert row.columns[-3] == "total_2"
    values = row.row(0, named=True)
    assert values["total"] == 20
    assert values["huge"] == pytest.approx(1.7014118346046923e38)
    assert (values["decimal"], values["blob"], values["u"], values["nothing"], values["list"]) == (
        1.25,
        "78",
        7,
        None,
        [1, 2],
    )
    assert (values["struct"], values["map"], values["clock"]) == ('{"a":1}', '[["a",1]]', "10:00:00")
    assert values["span"] == "0 months 3 days 0 seconds"


def test_staging_knows_the_attempts_of_the_rule() -> None:
    kinds = sorted({*rule.ATTEMPTS, "read", "plan", "research", "wait"})
    rows = [
        {"run_id": actor, "step": number, "kind": kind, "actor": actor, "outcome": "failure"}
        for actor in ("agent", "user")
        for number, kind in enumerate(kinds)
    ]
    opened = query.open_tables({"steps": frame_of(STEPS, rows).to_arrow()}, AS_OF)
    found = query.run(opened, "SELECT kind, actor FROM stg_steps WHERE is_attempt AND is_failed_attempt")
    assert set(found.iter_rows()) == {(kind, "agent") for kind in rule.ATTEMPTS}


def test_arms_are_the_same_in_sql() -> None:
    rows = []
    for number in range(300):
        run_id, signature = f"run-{number}-é", f"{number:016x}"
        points = rule.arm_bp("", run_id, signature)
        rows.append(
            {
                "loop_id": str(number),
                "run_id": run_id,
                "signature": signature,
                "rule": "strategy-loop/1",
                "outcome": "broke",
                "arm_bp": points,
                "share_bp": 5000,
                "arm": rule.arm_of(points),
            }
        )
    relation = query.named("arm_check")
    assert relation is not None
    right = query.open_tables({"loops": frame_of(LOOPS, rows).to_arrow()}, AS_OF)
    assert query.run(right, relation.sql).row(0) == (300, 0)
    rows[0]["arm_bp"] = (int(rows[0]["arm_bp"]) + 1) % 10_000
    wrong = query.open_tables({"loops": frame_of(LOOPS, rows).to_arrow()}, AS_OF)
    assert query.run(wrong, relation.sql).row(0) == (300, 1)


def test_loops_come_newest_first_within_the_interval(connection: duckdb.DuckDBPyConnection) -> None:
    assert query.loops(connection, EVER, Filters())["run_id"].to_list() == ["run3", "run2", "run1", "run1"]
    window = Interval(AS_OF, round(hour(2).timestamp() * 1e6), round(hour(30).timestamp() * 1e6), "UTC")
    assert query.loops(connection, window, Filters())["run_id"].to_list() == ["run2"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(tools=("Edit",)), ["run3"]),
        (Filters(tools=("Edit", "Bash"), where="count_events >= 4"), ["run3", "run2"]),
        (Filters(where="count_events = 3 OR count_events = 4 -- a comment"), ["run2", "run1", "run1"]),
        (Filters(projects=("other",)), []),
        (Filters(projects=("'; DROP VIEW loops; --",)), []),
        (Filters(harnesses=("agent",), models=("m-1",), where="outcome = 'pending'"), ["run3"]),
        (Filters(harnesses=("agent 1.2",), projects=("shop",), where="rule = 'repeat/1'"), ["run1"]),
        (Filters(harnesses=("agent 1",)), []),
    ],
)
def test_filters(connection: duckdb.DuckDBPyConnection, filters: Filters, expected: list[str]) -> None:
    assert query.loops(connection, EVER, filters)["run_id"].to_list() == expected


@pytest.mark.parametrize(
    "where", ["", "a) OR (1 = 1", "1; SELECT 2", "nope = 1", "tool", "1 = 1, 2 = 2", "count_events >"]
)
def test_bad_conditions(connection: duckdb.DuckDBPyConnection, where: str) -> None:
    with pytest.raises(UsageError) as error:
        query.loops(connection, EVER, Filters(where=where))
    assert str(error.value).startswith(f"--where {where!r}: ") and "\n" not in str(error.value)


def test_tools_show_what_nothing_classified_first(connection: duckdb.DuckDBPyConnection) -> None:
    frame = query.tools(connection, EVER, Filters())
    shown = frame.select(
        "tool", "kind", "kind_source", "count_steps", "count_failures", "count_unknown", "count_runs"
    ).rows()
    assert shown == [
        ("frob", "other", "none", 2, 0, 2, 2),
        ("Bash", "verify", "command", 6, 6, 0, 2),
        ("Read", "read", "table", 2, 0, 0, 2),
    ]
    assert query.unclassified(frame) == "1 of 3 tools are unclassified, 2 of 10 steps"
    assert query.unclassified(frame.filter(pl.col("tool") == "Bash")) is None


def test_a_lift_is_filtered_by_what_was_known(tmp_path: Path) -> None:
    frame = small_lake.sample(tmp_path / "lake").snapshot().read("loops")
    assert query.early_filter(frame, EVER, Filters()) is None
    chosen = query.early_filter(frame, EVER, Filters(where="count_events >= 4", tools=("Edit",)))
    assert chosen is not None
    assert frame.filter(chosen)["run_id"].to_list() == ["run3", "run4"]


@pytest.mark.parametrize(
    "column", ["outcome", "outcome_final", "is_delivered", "steps_to_outcome", "arm", "arm_bp", "is_relapsed"]
)
def test_a_lift_is_not_filtered_by_outcome_or_arm(tmp_path: Path, column: str) -> None:
    frame = small_lake.sample(tmp_path / "lake").snapshot().read("loops")
    for where in (f"{column} IS NULL", f"run_id IN (SELECT run_id FROM early_loops WHERE {column} IS NOT NULL)"):
        with pytest.raises(UsageError, match=column):
            query.early_filter(frame, EVER, Filters(where=where))


def test_schema_says_what_each_column_is() -> None:
    frame = query.schema_columns("loops")
    assert tuple(frame["column"].to_list()) == LOOPS.names
    row = frame.row(by_predicate=pl.col("column") == "outcome", named=True)
    assert row["is_known_at_detection"] is False
    assert "pending" in row["about"]
    assert frame.row(by_predicate=pl.col("column") == "run_id", named=True)["is_key"] is True
    assert "rate_runs" in query.schema_columns("loop_rates_by_tool")["column"].to_list()
    with pytest.raises(UsageError, match="no such table"):
        query.schema_columns('loops"; DROP VIEW loops; --')


def test_relations_say_what_they_answer() -> None:
    for folder in (*query.VIEW_FOLDERS, "queries"):
        found = query.relations(folder)
        assert found
        for relation in found:
            assert relation.sql.startswith("-- "), relation.name
            assert len(relation.about) > 20


def test_the_clock_of_the_reading_is_the_as_of(connection: duckdb.DuckDBPyConnection) -> None:
    assert query.run(connection, "SELECT as_of FROM reading").item() == hour(48)
    assert when.iso(AS_OF) == "2026-03-04T00:00:00Z"


def test_stdout_holds_the_data_alone_where_main_is_no_file() -> None:
    """In `python -c` and in notebooks DuckDB would draw a progress bar into the data; here it would at once."""
    code = """
import duckdb
from loopstats import query
connect = duckdb.connect
def impatient(*args, **more):
    connection = connect(*args, **more)
    connection.execute("SET progress_bar_time = 1")  # which also turns it on
    return connection
duckdb.connect = impatient
long = "SELECT sum(hash(a.range * b.range) % 7) AS n FROM range(30000) a, range(3000) b"
query._loops_as_of = lambda moment, asked=query._loops_as_of: f"{asked(moment)} AND 0 < ({long})"
opened = query.open_tables({}, 0)
query.run(opened, long)
query.choose(query.run(opened, "SELECT 1 AS a"), query.Interval(0, None, None, "UTC"), query.Filters(where=f"0 < ({long})"), "")
print("data")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("data\n", 0), done.stderr
