"""Questions to a lake: a locked DuckDB over one generation's files, and the selections behind the reading commands.

A room of its own because whatever SQL a person types runs here over hostile data: the connection sees the tables of
one snapshot, the views of `sql/` and nothing else, neither files nor network nor settings. Every reader sees `loops` as
they were at the as-of: later detections are left out, and an outcome not yet mature is `pending`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from loopstats import estimate, rule
from loopstats.errors import LakeError, NothingError, UsageError
from loopstats.estimate import check_early
from loopstats.output import canonical, plain
from loopstats.resources import resource
from loopstats.tables import LOOPS, TABLES, Table
from loopstats.when import Interval, iso

if TYPE_CHECKING:
    from loopstats.config import Settings
    from loopstats.estimate import Readout
    from loopstats.store import Snapshot

VIEW_FOLDERS = {"staging": "staging view", "marts": "mart"}
# The time by which rows are in an interval: of the detection, the last one, or the record's.
_TIMES = ("detected_at", "last_at", "as_of", "ts")
DECIDED = (
    "outcome_step",
    "outcome_at",
    "steps_to_outcome",
    "decisions_to_outcome",
    "outcome_final",
    *(f"outcome_{n}" for n in rule.HORIZONS),
    "is_relapsed",
    "is_sidestepped",
    "tokens_wasted",
    "cost_wasted_micros",
)
"""Columns of `loops` that follow from the outcome: null for every reader while it is pending."""
_LOCKS = (
    "SET enable_external_access = false",
    "SET python_enable_replacements = false",
    "SET TimeZone = 'UTC'",
    "SET lock_configuration = true",
)
_START: dict[str, str | int | float | list[str]] = {
    "temp_directory": "",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_ALLOWED = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # of the years 1 and 9999, counted from 1970
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_UNKNOWN_COLUMN = re.compile(r'column "?([A-Za-z0-9_]+)"? ')


@dataclass(frozen=True)
class Filters:
    """What the reading commands share beside the interval; an empty tuple is no filter, `where` is a SQL condition."""

    projects: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    harnesses: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    where: str | None = None


@dataclass(frozen=True)
class Relation:
    """One file of `sql/`: its name, what its first comment says, and the SQL."""

    name: str
    folder: str
    about: str
    sql: str


def relations(folder: str) -> list[Relation]:
    """Files of `sql/<folder>` by name."""
    return [_read_relation(path, folder) for path in sorted((resource("sql") / folder).glob("*.sql"))]


def named(name: str) -> Relation | None:
    """The question of `sql/queries` with that name."""
    return next((r for r in relations("queries") if r.name == name), None) if _NAME.fullmatch(name) else None


def _read_relation(path: Path, folder: str) -> Relation:
    sql = path.read_text(encoding="utf-8")
    return Relation(path.stem, folder, sql.split("\n", 1)[0].removeprefix("--").strip(), sql)


def open_snapshot(snapshot: Snapshot, as_of_us: int) -> duckdb.DuckDBPyConnection:
    """A locked connection in which every table of `tables.py` and every view of `sql/` can be read."""
    return open_tables({table.name: _dataset(snapshot, table) for table in TABLES.values()}, as_of_us)


def open_tables(sources: Mapping[str, Any], as_of_us: int) -> duckdb.DuckDBPyConnection:
    """As `open_snapshot`, over Arrow tables or datasets by name; a table that is not given is empty."""
    connection = _connect()
    moment = f"TIMESTAMPTZ '{iso(as_of_us)}'"
    connection.execute(f"CREATE VIEW reading AS SELECT {moment} AS as_of")
    for table in TABLES.values():
        source = sources.get(table.name)
        connection.register(table.name, _arrow_schema(table).empty_table() if source is None else source)
    # Kept as rows, not as a view, so that nobody can look behind it for what was not known at the as-of.
    seen = _fetch(connection, _loops_as_of(moment))
    connection.unregister(LOOPS.name)
    connection.register(LOOPS.name, seen)
    for folder in VIEW_FOLDERS:
        for relation in relations(folder):
            connection.execute(f'CREATE VIEW "{relation.name}" AS {relation.sql}')
    _lock(connection)
    return connection


def _loops_as_of(moment: str) -> str:
    is_pending = f"mature_at > {moment}"
    hidden = ", ".join(f"CASE WHEN {is_pending} THEN NULL ELSE {name} END AS {name}" for name in DECIDED)
    return (
        f"SELECT * REPLACE (CASE WHEN {is_pending} THEN 'pending' ELSE outcome END AS outcome, {hidden}) "
        f"FROM loops WHERE detected_at IS NULL OR detected_at <= {moment}"
    )


def _connect() -> duckdb.DuckDBPyConnection:
    """An empty database that is silent from its first query on.

    Where `__main__` is no file (`python -c`, a notebook) the client of DuckDB turns a progress bar on after it has read
    the configuration, and draws it on stdout, into the data.
    """
    connection = duckdb.connect(":memory:", config=dict(_START))
    # In a notebook the bar needs a package, and where that is missing there is neither a bar nor a way to turn it off.
    with contextlib.suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = false")
    return connection


def _lock(connection: duckdb.DuckDBPyConnection) -> None:
    for statement in _LOCKS:
        connection.execute(statement)


def _dataset(snapshot: Snapshot, table: Table) -> Any:
    import pyarrow.dataset as ds

    paths = [str(path) for path in snapshot.paths(table.name)]
    schema = _arrow_schema(table)
    try:
        return ds.dataset(paths, schema=schema, format="parquet") if paths else schema.empty_table()
    except OSError as error:
        raise LakeError(
            f"table {table.name}: a file of this generation is gone ({error}); run the command again, and if it stays, "
            "`loopstats lake verify`"
        ) from error


def _arrow_schema(table: Table) -> pa.Schema:
    return table.empty().to_arrow().schema


def ask(connection: duckdb.DuckDBPyConnection, text: str) -> pl.DataFrame:
    """The rows of a SELECT, or of the question of that name (`queries`)."""
    question = named(text.strip())
    return run(connection, text if question is None else question.sql)


def run(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None = None, asked: str = "sql"
) -> pl.DataFrame:
    """The rows of one SELECT (or EXPLAIN); UsageError for anything else and for SQL that does not run.

    `asked` is what the error names: where the text came from. Types that only DuckDB has become portable ones: huge
    integers int64 or float, intervals and nested values text.
    """
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise UsageError(f"{asked}: {_first_line(error)}") from error
    if len(statements) != 1:
        raise UsageError(f"{asked}: one statement is needed, not {len(statements)}")
    if statements[0].type not in _ALLOWED:
        kind = str(statements[0].type).rpartition(".")[2]
        raise UsageError(f"{asked}: {kind} is refused; the lake is read-only here, use SELECT")
    return _portable(_fetch(connection, statements[0].query, parameters, asked))


def _fetch(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None = None, asked: str = "sql"
) -> pa.Table:
    """The rows of a query; UsageError where the query is at fault, LakeError where a file of the lake is."""
    try:
        return connection.sql(sql, params=dict(parameters) if parameters else None).to_arrow_table()
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except duckdb.Error as error:
        if "reading the stream registered as" in str(error):
            raise LakeError(
                f"the lake cannot be read: {_first_line(error)}; `loopstats lake verify` names the mend"
            ) from error
        raise UsageError(f"{asked}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    hint = next((line for line in lines[1:] if line.startswith(("Candidate", "Did you mean"))), "")
    return f"{lines[0]} {hint}".strip() if lines else type(error).__name__


def _portable(result: pa.Table) -> pl.DataFrame:
    columns: dict[str, pl.Series] = {}
    for name, column in zip(result.column_names, result.columns, strict=True):
        label, number = name, 2
        while label in columns:
            label, number = f"{name}_{number}", number + 1
        columns[label] = _portable_column(label, column)
    return pl.DataFrame(columns)


def _portable_column(name: str, column: pa.ChunkedArray) -> pl.Series:
    kind = column.type
    if pa.types.is_decimal(kind):
        values = [None if v is None else plain(v) for v in column.to_pylist()]
        is_whole = all(v is None or (isinstance(v, int) and -(1 << 63) <= v < 1 << 63) for v in values)
        return pl.Series(
            name,
            values if is_whole else [None if v is None else float(v) for v in values],
            dtype=pl.Int64 if is_whole else pl.Float64,
        )
    if pa.types.is_interval(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        return pl.Series(name, [None if v is None else _span(v) for v in column.to_pylist()], dtype=pl.String)
    if (pa.types.is_date(kind) or pa.types.is_timestamp(kind)) and _is_beyond_years(column):
        return pl.Series(name, column.cast(pa.string()).to_pylist(), dtype=pl.String)
    if pa.types.is_list(kind) and pa.types.is_temporal(kind.value_type):
        return pl.Series(name, column.cast(pa.list_(pa.string())).to_pylist(), dtype=pl.List(pl.String))
    if pa.types.is_map(kind) or pa.types.is_struct(kind) or pa.types.is_binary(kind) or pa.types.is_union(kind):
        texts = [
            None if v is None else v.hex() if isinstance(v, bytes) else canonical(plain(v)) for v in column.to_pylist()
        ]
        return pl.Series(name, texts, dtype=pl.String)
    if pa.types.is_null(kind):
        return pl.Series(name, [None] * len(column), dtype=pl.String)
    if pa.types.is_unsigned_integer(kind) or pa.types.is_integer(kind):
        return pl.Series(name, pl.from_arrow(column)).cast(pl.Int64, strict=False)
    return pl.Series(name, pl.from_arrow(column))


def _is_beyond_years(column: pa.ChunkedArray) -> bool:
    """A date or time before year 1 or after 9999, of which there is no value in Python and none in ISO 8601."""
    kind = column.type
    count = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
    a_day = count[kind.unit] if pa.types.is_timestamp(kind) else 1
    numbers = column.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
    ends = pc.min_max(numbers).as_py()
    return ends["min"] is not None and not FIRST_DAY * a_day <= ends["min"] <= ends["max"] < (LAST_DAY + 1) * a_day


def _span(value: Any) -> str:
    if isinstance(value, pa.MonthDayNano):
        return f"{value.months} months {value.days} days {value.nanoseconds / 1e9:g} seconds"
    return str(value)


def _conditions(interval: Interval, filters: Filters, time_column: str) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    parameters: dict[str, Any] = {}
    for column, wanted in (("project", filters.projects), ("model", filters.models), ("tool", filters.tools)):
        if wanted:
            conditions.append(f"list_contains(${column}, {column})")
            parameters[column] = list(wanted)
    if filters.harnesses:
        # The harness holds the program and its version; its program alone is asked for as a rule.
        conditions.append(
            "(list_contains($harness, harness) OR list_contains($harness, regexp_replace(harness, ' [^ ]*$', '')))"
        )
        parameters["harness"] = list(filters.harnesses)
    if interval.since_us is not None:
        conditions.append(f"{time_column} >= TIMESTAMPTZ '{iso(interval.since_us)}'")
    if interval.until_us is not None:
        conditions.append(f"{time_column} < TIMESTAMPTZ '{iso(interval.until_us)}'")
    if filters.where is not None:
        _check_condition(filters.where)
        conditions.append(f"({filters.where}\n)")
    return conditions, parameters


def _check_condition(where: str) -> None:
    """A condition that closes our bracket and opens another would be read as something else than it looks like."""
    try:
        duckdb.SQLExpression(where)
    except duckdb.Error as error:
        raise UsageError(
            f"--where {where!r}: {_first_line(error)}; a condition is needed, e.g. count_events >= 4"
        ) from error


def _asked(filters: Filters) -> str:
    return "sql" if filters.where is None else f"--where {filters.where!r}"


def _where(conditions: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(conditions)} " if conditions else ""


def loops(connection: duckdb.DuckDBPyConnection, interval: Interval, filters: Filters) -> pl.DataFrame:
    """Loops of the interval by the time of their detection, newest first, with all columns of the table."""
    conditions, parameters = _conditions(interval, filters, "detected_at")
    return run(
        connection,
        f"SELECT * FROM loops {_where(conditions)}ORDER BY detected_at DESC NULLS LAST, loop_id",
        parameters,
        _asked(filters),
    )


def tools(connection: duckdb.DuckDBPyConnection, interval: Interval, filters: Filters) -> pl.DataFrame:
    """Every tool with its kinds: one row per (tool, kind, source of the kind); what nothing classified comes first."""
    conditions, parameters = _conditions(interval, filters, "ts")
    return run(
        connection,
        "SELECT tool, kind, kind_source, is_attempt, count(*) AS count_steps, "
        "count(*) FILTER (outcome = 'failure') AS count_failures, "
        "count(*) FILTER (outcome = 'unknown') AS count_unknown, "
        "count(*) FILTER (outcome = 'vetoed') AS count_vetoed, "
        "count(DISTINCT run_id) AS count_runs, kind = 'other' AS is_unclassified "
        f"FROM stg_steps {_where(conditions)}"
        "GROUP BY tool, kind, kind_source, is_attempt "
        "ORDER BY is_unclassified DESC, count_steps DESC, tool, kind, kind_source, is_attempt",
        parameters,
        _asked(filters),
    )


def choose(frame: pl.DataFrame, interval: Interval, filters: Filters, time_column: str) -> pl.DataFrame:
    """The rows of any frame whose `time_column` lies in the interval and that meet the filters, in their order."""
    conditions, parameters = _conditions(interval, filters, time_column)
    if not conditions:
        return frame
    connection = _connect()
    connection.register("rows", frame.with_row_index("row_").to_arrow())
    _lock(connection)
    kept = run(connection, f"SELECT row_ FROM rows {_where(conditions)}ORDER BY row_", parameters, _asked(filters))[
        "row_"
    ]
    return frame[kept.to_list()]


def rows(snapshot: Snapshot, name: str, interval: Interval, filters: Filters) -> pl.DataFrame:
    """Rows of a table as known at the as-of, in the interval by their own time, in the order of the table.

    Tables without a time (`rejects`, `folds`, `sources`) are as they are now and take no interval. `loops` has a reader
    of its own, and so have the findings.
    """
    frame = snapshot.read(name)
    time_column = next((column for column in _TIMES if column in TABLES[name].names), None)
    if time_column is None:
        if interval.is_bounded:
            raise UsageError(f"{name}: its rows have no time, so there is no interval to choose them by")
        return choose(frame, interval, filters, "")
    is_known = (pl.col(time_column).dt.epoch("us") <= interval.as_of_us).fill_null(True)
    return choose(frame.filter(is_known), interval, filters, time_column)


Over = Callable[["Snapshot", str, Sequence[str], Callable[[pl.LazyFrame], pl.DataFrame]], pl.DataFrame]


def over_all(
    snapshot: Snapshot, name: str, columns: Sequence[str], stage: Callable[[pl.LazyFrame], pl.DataFrame]
) -> pl.DataFrame:
    """What a stage makes of columns of a table; a cluster runs it on parts and gives the frames of all as one."""
    return stage(snapshot.scan(name).select(columns))


def lift(
    snapshot: Snapshot,
    settings: Settings,
    interval: Interval,
    filters: Filters,
    by: Sequence[str] = (),
    experiment: str | None = None,
    over: Over = over_all,
) -> Readout:
    """The lift of the loops that meet the filters, with what the numbers rest on among its warnings.

    `over`: who reads the tables; this process, or `spark.Cluster.over`.
    UsageError where a split or filter is not known at detection, NothingError for an experiment that is not there.
    """
    check_early(by, "split")
    # Unsorted: the order of rows changes nothing here, and sorting a million loops takes longer than comparing them.
    names = ("loops", "sessions", "detections", "deliveries")
    read = {name: estimate.COLUMNS.get(name, TABLES[name].names) for name in names}
    # A filter may name any column that is known at detection.
    read["loops"] = LOOPS.names if filters != Filters() else tuple({*read["loops"], *by})
    frame, sessions, detections, deliveries = (
        over(snapshot, name, read[name], methodcaller("collect")) for name in names
    )
    readout = estimate.lift(
        frame,
        sessions,
        detections,
        deliveries,
        settings,
        as_of_us=interval.as_of_us,
        since_us=interval.since_us,
        until_us=interval.until_us,
        by=by,
        where=early_filter(frame, interval, filters),
    )
    readout = with_quality(readout, snapshot, over)
    return readout if experiment is None else only(readout, experiment)


def with_quality(readout: Readout, snapshot: Snapshot, over: Over = over_all) -> Readout:
    """The readout with METHOD 11's counts of what it rests on among its warnings."""
    counts = over(snapshot, "steps", estimate.QUALITY, partial(estimate.quality_counts, as_of_us=readout.as_of_us))
    known = estimate.quality_of(counts, snapshot.read("sources"))
    return replace(readout, warnings=(*readout.warnings, *known))


def only(readout: Readout, experiment: str) -> Readout:
    """The readout of one experiment, beside the replay; NothingError where it is not in the logs."""
    known = sorted({e.experiment for e in readout.estimates if e.experiment})
    if experiment not in known:
        raise NothingError(f"no experiment {experiment!r} in the logs; there are: {', '.join(known) or 'none'}")
    names = ("", experiment)
    return replace(
        readout,
        estimates=tuple(e for e in readout.estimates if e.experiment in names),
        warnings=tuple(w for w in readout.warnings if w.experiment in names),
    )


def early_filter(frame: pl.DataFrame, interval: Interval, filters: Filters) -> pl.Expr | None:
    """What `estimate.lift` is to choose the loops of `frame` by; None chooses all.

    Only columns that `estimate.check_early` lets pass are in sight of the SQL condition, so that no filter can follow
    the arm or the outcome; UsageError names a column that is refused. The window is not applied here.
    """
    conditions, parameters = _conditions(Interval(interval.as_of_us, None, None, interval.tz), filters, "detected_at")
    if not conditions:
        return None
    early = [name for name in LOOPS.names if _is_early(name)]
    connection = _connect()
    connection.register("early_loops", frame.select(early).to_arrow())
    _lock(connection)
    key = ", ".join(LOOPS.key)
    try:
        rows = run(
            connection, f"SELECT {key} FROM early_loops {_where(conditions)}ORDER BY {key}", parameters, _asked(filters)
        )
    except UsageError as error:
        column = _UNKNOWN_COLUMN.search(str(error))
        if column and column[1] in LOOPS.names:
            check_early([column[1]], "filter")
        raise
    return _joined().is_in(rows.select(_joined().alias("key"))["key"].to_list())


def _joined() -> pl.Expr:
    return pl.concat_str([pl.col(name).cast(pl.String) for name in LOOPS.key], separator="\x1f")


def _is_early(name: str) -> bool:
    try:
        check_early([name], "filter")
    except UsageError:
        return False
    return True


def schema_tables() -> pl.DataFrame:
    """Every table and view that `sql` can read, with its grain and key."""
    rows: list[tuple[str, str, str, str | None]] = [
        (t.name, "table", t.grain, ", ".join(t.key)) for t in TABLES.values()
    ]
    rows.append(("reading", "view", "one row: the as-of of this reading", None))
    rows += [(r.name, kind, r.about, None) for folder, kind in VIEW_FOLDERS.items() for r in relations(folder)]
    return pl.DataFrame(rows, schema=["name", "kind", "about", "key"], orient="row")


def schema_columns(name: str) -> pl.DataFrame:
    """The columns of one table or view; UsageError for an unknown name."""
    schema = pl.Schema(
        {
            "column": pl.String(),
            "type": pl.String(),
            "is_required": pl.Boolean(),
            "is_key": pl.Boolean(),
            "is_known_at_detection": pl.Boolean(),
            "about": pl.String(),
        }
    )
    connection = open_tables({}, 0)
    described = {table.name: {c.name: c for c in table.columns} for table in TABLES.values()}
    known = [*described, *(r.name for folder in VIEW_FOLDERS for r in relations(folder))]
    if name not in known:
        raise UsageError(f"schema {name}: no such table; use one of {', '.join(known)}")
    rows = []
    for column, kind in run(connection, f'SELECT column_name, column_type FROM (DESCRIBE "{name}")').iter_rows():
        found = described.get(name, {}).get(column)
        is_key = column in TABLES[name].key if name in TABLES else None
        rows.append(
            (
                column,
                kind,
                found.is_required if found else None,
                is_key,
                found.is_early if found and name == LOOPS.name else None,
                found.doc if found else None,
            )
        )
    return pl.DataFrame(rows, schema=schema, orient="row")


def queries() -> pl.DataFrame:
    """The named questions."""
    return pl.DataFrame(
        [(r.name, r.about) for r in relations("queries")],
        schema={"name": pl.String, "question": pl.String},
        orient="row",
    )


def shortened(frame: pl.DataFrame, length: int) -> pl.DataFrame:
    """Loops for a terminal: `loop` and `run` are the first `length` characters of the ids (of a run's last part)."""
    return frame.with_columns(
        pl.col("detected_at").dt.truncate("1s"),
        pl.col("loop_id").str.slice(0, length).alias("loop"),
        pl.col("run_id").str.split("/").list.last().str.slice(0, length).alias("run"),
    )


def shortened_run(frame: pl.DataFrame, length: int) -> pl.DataFrame:
    """Rows with a run for a terminal: `run` is the first `length` characters of the id (of its last part)."""
    return frame.with_columns(pl.col("run_id").str.split("/").list.last().str.slice(0, length).alias("run"))


def unclassified(frame: pl.DataFrame) -> str | None:
    """What `tools` has to say about tools that nothing classified; None where there are none."""
    part = frame.filter("is_unclassified")
    if not part.height:
        return None
    return (
        f"{part['tool'].n_unique()} of {frame['tool'].n_unique()} tools are unclassified, "
        f"{part['count_steps'].sum()} of {frame['count_steps'].sum()} steps"
    )
