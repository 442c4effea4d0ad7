"""The commands that read the lake and change nothing: `lift`, `loops`, `drift`, `audit`, `runs`, `sql` and their like.

`lift --record` alone writes: the estimate of a night.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopstats.cli.base import (
    Answer,
    AsOf,
    Format,
    Globals,
    Harness,
    Json,
    Model,
    Output,
    Project,
    Since,
    Tool,
    Until,
    Where,
    app,
    json_schema_of,
    make_answer,
    make_envelope,
    make_filters,
    make_interval,
    now_us,
    say,
    split_names,
    write_or_nothing,
    write_static,
)
from loopstats.errors import FINDING, EndedError, NothingError, UsageError

if TYPE_CHECKING:
    import polars as pl

    from loopstats.config import Settings
    from loopstats.estimate import Readout
    from loopstats.when import Interval


SHORT_ID = 8
LONGEST_S = 1e6
HEARING_S = 0.1
GRACE_S = 2.0  # in which a query that was told to stop comes back
LOOP_COLUMNS = (
    "loop",
    "outcome",
    "tool",
    "message",
    "detected_at",
    "arm",
    "error_code",
    "count_events",
    "steps_to_outcome",
    "rule",
    "is_enrolled",
    "model",
    "project",
    "run",
    "harness",
)
TOOL_COLUMNS = (
    "tool",
    "kind",
    "kind_source",
    "count_steps",
    "count_failures",
    "count_unknown",
    "count_vetoed",
    "count_runs",
    "is_attempt",
)
HISTORY_COLUMNS = (
    "as_of",
    "scope",
    "lift",
    "nightly",
    "verdict",
    "revision",
    "experiment",
    "treated",
    "holdout",
    "since",
    "reasons",
)
DRIFT_COLUMNS = (
    "run",
    "reason",
    "first_step",
    "detected_step",
    "length",
    "lead_steps",
    "tokens",
    "cost_micros",
    "tool",
    "detected_at",
    "rule",
    "harness",
    "model",
    "project",
)
AUDIT_COLUMNS = ("finding", "rate", "unit", "about", "count_rows")
AUDIT_ROW_COLUMNS = ("finding", "run", "step", "detail", "at")
GROUP_COLUMNS = (
    "n",
    "solved",
    "n_judged",
    "steps_p50",
    "steps_p90",
    "tokens_p50",
    "runs_with_drifts",
    "runs_with_loops",
    "runs_with_echoes",
    "unverified",
    "n_edited",
    "right_endings",
    "n_endings",
    "false_claims",
    "n_claims",
)
RUN_COLUMNS = (
    "run",
    "count_steps",
    "solved",
    "tokens",
    "distinct_ratio",
    "count_state_changes",
    "longest_frozen",
    "count_loops",
    "count_drifts",
    "count_echoes",
    "is_unverified",
    "last_verify",
    "ending",
    "claimed",
    "model",
    "project",
    "harness",
    "last_at",
)
TIER_COLUMNS = (
    "tier",
    "name",
    "after_cycles",
    "runs_fired",
    "n_runs",
    "runs_in_log",
    "count_cleared",
    "cleared_first_by",
    "count_lifted",
    "steps_left",
    "tokens_left",
    "cost_left_micros",
    "n_priced",
)
FAULT_COLUMNS = ("fault", "is_fault", "x", "n", "about", "detail", "run_id", "step")


@app.command()
def lift(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    by: Annotated[
        list[str] | None, typer.Option("--by", metavar="COLUMN,...", help="Split by facts known at detection.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Show every check and sensitivity.")] = False,
    experiment: Annotated[
        str | None, typer.Option("--experiment", metavar="NAME", help="Only this experiment, beside the replay.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Also write every scope's estimate to the lake, for the nightly history.")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="List the recorded nights; --since and --until choose them by as-of.")
    ] = False,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    tool: Tool = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Compare the break rates of the arms: does it help?

    Every rate comes with its n, the lift with its intervals, and a failed check withholds the result.
    """
    answer = make_answer(context, format_, json, output)
    if record or history:
        if by or project or model or harness or tool or where or (record and history):
            raise UsageError("--record and --history take no split, no filter and not each other: a night is whole")
        interval = make_interval(context, since, until, as_of)
        _history(answer, interval, experiment) if history else _record(answer, interval, experiment, all_)
        return
    interval = make_interval(context, since, until, as_of)
    given: Globals = context.obj
    snapshot = given.snapshot()
    settings = given.settings()
    from loopstats import query

    filters = make_filters(project, model, harness, tool, where)
    readout = query.lift(snapshot, settings, interval, filters, split_names(by), experiment)
    finish_lift(answer, readout, interval, settings, all_)


def finish_lift(
    answer: Answer,
    readout: Readout,
    interval: Interval,
    settings: Settings,
    is_all: bool,
    is_record: bool = False,
) -> None:
    """Print a readout, whoever gathered what it was made of."""
    _print_lift(answer, readout, interval, settings, is_all, is_record)
    if not any(e.headline.treated.n + e.headline.holdout.n + sum(e.pending) for e in readout.estimates):
        raise NothingError("no loops match")


def _record(answer: Answer, interval: Interval, experiment: str | None, is_all: bool) -> None:
    """`lift --record`: what it prints in a data format leaves out what later events may still change."""
    given = answer.context
    if interval.as_of_us > now_us():
        raise UsageError("--record: the as-of lies in the future, where outcomes are not known yet")
    given.snapshot()
    settings = given.settings()
    from loopstats import nights, query
    from loopstats.store import Lake

    readout, fresh = nights.record_lift(
        Lake(given.root),
        settings,
        as_of_us=interval.as_of_us,
        since_us=interval.since_us,
        until_us=interval.until_us,
    )
    restated = int((fresh["revision"] > 0).sum())
    given.note(f"recorded {fresh.height - restated} new and {restated} restated of {len(readout.estimates)} estimates")
    if answer.is_plain_table:
        readout = query.with_quality(readout, given.snapshot())
    if experiment is not None:
        readout = query.only(readout, experiment)
    finish_lift(answer, readout, interval, settings, is_all, is_record=True)


def _history(answer: Answer, interval: Interval, experiment: str | None) -> None:
    from loopstats import nights

    frame = nights.lift_history(
        answer.context.snapshot(),
        as_of_us=interval.as_of_us,
        since_us=interval.since_us,
        until_us=interval.until_us,
        experiment=experiment,
    )
    envelope = make_envelope(answer, "lift_history", interval, answer.context.settings())
    shown = nights.shown_history(frame) if answer.is_plain_table else frame
    write_or_nothing(answer, shown, envelope, HISTORY_COLUMNS, "recorded nights")


def _print_lift(
    answer: Answer, readout: Readout, interval: Interval, settings: Settings, is_all: bool, is_record: bool
) -> None:
    from loopstats import output, report

    if answer.is_plain_table:
        answer.pieces([report.lift_text(readout, answer.layout().width, all=is_all).rstrip("\n").encode() + b"\n"])
        return
    body = readout.to_json(interval.tz, with_known_now=not is_record)
    if answer.format_name == "json":
        answer.pieces([output.canonical(body).encode() + b"\n"])
    elif answer.format_name == "jsonl":
        answer.pieces(output.canonical(row).encode() + b"\n" for row in body["rows"])
    else:
        frame = output.frame_of_objects(body["rows"], has_nested=answer.format_name != "md")
        answer.rows(frame, make_envelope(answer, "lift", interval, settings))


@app.command()
def loops(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    tool: Tool = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List the loops, newest first."""
    answer = make_answer(context, format_, json, output)
    interval = make_interval(context, since, until, as_of)
    given: Globals = context.obj
    snapshot = given.snapshot()
    from loopstats import query

    connection = query.open_snapshot(snapshot, interval.as_of_us)
    frame = query.loops(connection, interval, make_filters(project, model, harness, tool, where))
    envelope = make_envelope(answer, "loops", interval, given.settings(), snapshot=snapshot)
    write_or_nothing(
        answer, query.shortened(frame, SHORT_ID) if answer.is_plain_table else frame, envelope, LOOP_COLUMNS, "loops"
    )


@app.command()
def explain(
    context: typer.Context,
    loop: Annotated[
        str, typer.Argument(metavar="LOOP", help="Id of a loop, or its first characters (see `loopstats loops`).")
    ],
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Also the original lines, where the source is still there and the same; secrets are masked."
        ),
    ] = False,
    as_of: AsOf = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Tell one loop from its first event to its outcome.

    Why it fired, its arm, what was delivered, and what ended it; every event with its file and line.
    """
    answer = make_answer(context, format_, json, output)
    interval = make_interval(context, None, None, as_of)
    snapshot = answer.context.snapshot()
    settings = answer.context.settings()
    from loopstats import explain as explaining
    from loopstats import output as writing

    told = explaining.explain(snapshot, settings, loop, as_of_us=interval.as_of_us, is_raw=raw)
    if answer.is_plain_table:
        answer.pieces([told.text(answer.layout().width).encode()])
    elif answer.format_name == "md":
        answer.pieces([told.markdown().encode()])
    elif answer.format_name == "json":
        answer.pieces([writing.canonical(told.to_json(interval.tz)).encode() + b"\n"])
    else:
        answer.rows(told.rows, make_envelope(answer, "explain", interval, settings, told.warnings))


@app.command()
def tools(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    tool: Tool = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List every tool with its kind; unclassified ones first."""
    answer = make_answer(context, format_, json, output)
    interval = make_interval(context, since, until, as_of)
    given: Globals = context.obj
    snapshot = given.snapshot()
    from loopstats import query

    connection = query.open_snapshot(snapshot, interval.as_of_us)
    frame = query.tools(connection, interval, make_filters(project, model, harness, tool, where))
    unclassified = query.unclassified(frame)
    warnings = (unclassified,) if unclassified else ()
    envelope = make_envelope(answer, "tools", interval, given.settings(), warnings, snapshot)
    write_or_nothing(answer, frame, envelope, TOOL_COLUMNS, "steps")
    for warning in warnings:
        given.note(warning)


@app.command()
def sql(
    context: typer.Context,
    query_text: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="A SELECT, or the name of a question; without it, from stdin."),
    ] = None,
    as_of: AsOf = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", help="End the query after that, with exit code 130; default never."
        ),
    ] = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Ask the lake in SQL, read-only."""
    if timeout is not None and not 0 < timeout <= LONGEST_S:
        raise UsageError(f"--timeout {timeout:g}: give seconds, more than 0 and at most {LONGEST_S:g}")
    answer = make_answer(context, format_, json, output)
    interval = make_interval(context, None, None, as_of)
    given: Globals = context.obj
    if query_text is None:
        if sys.stdin.isatty():
            raise UsageError(
                'sql: give a query, e.g. `loopstats sql "select * from outcomes_by_arm"`, or see `loopstats queries`'
            )
        query_text = sys.stdin.read()
    snapshot = given.snapshot()
    from loopstats import query

    connection, asked = query.open_snapshot(snapshot, interval.as_of_us), query_text
    frame = _in_time(lambda: query.ask(connection, asked), connection.interrupt, timeout)
    answer.rows(frame, make_envelope(answer, "sql", interval, given.settings()), answer.layout())


def _in_time(work: Callable[[], pl.DataFrame], stop: Callable[[], None], limit_s: float | None) -> pl.DataFrame:
    """What `work` gives; EndedError beyond the limit.

    It runs in a thread, so that the limit and Ctrl-C are heard whatever the engine does. Some of its functions cannot
    be stopped: then the process ends, which costs nothing, since nothing was printed and a reader holds no lock.
    """
    import threading
    from concurrent.futures import Future

    done: Future[pl.DataFrame] = Future()

    def body() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    until = time.monotonic() + (LONGEST_S if limit_s is None else limit_s)
    ending = EndedError(f"sql: the query was ended after {limit_s or LONGEST_S:g} s (--timeout)")
    try:
        # Short waits: a signal that another thread took is heard when this one wakes.
        while thread.is_alive() and (left := until - time.monotonic()) > 0:
            thread.join(min(left, HEARING_S))
        if not thread.is_alive():
            return done.result()
    except KeyboardInterrupt:
        ending = EndedError("interrupted")
    stop()
    thread.join(GRACE_S)
    if thread.is_alive():
        say(str(ending))
        os._exit(ending.exit_code)
    raise ending


@app.command()
def queries(context: typer.Context, format_: Format = None, json: Json = False, output: Output = None) -> None:
    """List the named questions that `sql` knows."""
    answer = make_answer(context, format_, json, output)
    from loopstats import query

    write_static(answer, "queries", query.queries())


@app.command()
def schema(
    context: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="A table or view.")] = None,
    json_schema: Annotated[
        str | None,
        typer.Option(
            "--json-schema", metavar="COMMAND", help="Print the JSON Schema of what a command's --json prints."
        ),
    ] = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List the tables and views, or the columns of one."""
    if json_schema is not None:
        if table or format_ or json:
            raise UsageError("--json-schema takes no table and no format: a schema is JSON")
        make_answer(context, "json", True, output).pieces([json_schema_of(json_schema)])
        return
    answer = make_answer(context, format_, json, output)
    from loopstats import query

    write_static(answer, "schema", query.schema_tables() if table is None else query.schema_columns(table))


@app.command(name="drift")
def drift_(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also the rows of drift/0, the rule kept for comparison.")
    ] = False,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    tool: Tool = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List where runs turned in circles, newest first.

    With reason, onset, length, cost and lead time.
    """
    answer = make_answer(context, format_, json, output)
    interval = make_interval(context, since, until, as_of)
    snapshot = answer.context.snapshot()
    from loopstats import findings, query

    tables = findings.tables_as_of(snapshot, interval.as_of_us)
    frame, text = findings.drifts(tables, interval, make_filters(project, model, harness, tool, where), all_)
    envelope = make_envelope(answer, "drift", interval, answer.context.settings(), (text,), snapshot)
    shown = query.shortened_run(frame, SHORT_ID) if answer.is_plain_table else frame
    answer.context.note(text)
    write_or_nothing(answer, shown, envelope, DRIFT_COLUMNS, "drifts")


@app.command()
def audit(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    all_: Annotated[bool, typer.Option("--all", help="One row a finding instead of one line a kind.")] = False,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Audit agents and their safety net.

    One line a kind of finding with its n, over the runs that ended in the interval.
    """
    answer = make_answer(context, format_, json, output)
    interval = make_interval(context, since, until, as_of)
    snapshot = answer.context.snapshot()
    from loopstats import findings, query

    tables = findings.chosen(
        findings.tables_as_of(snapshot, interval.as_of_us), interval, make_filters(project, model, harness, None, where)
    )
    if not tables["runs"].height:
        raise NothingError("no runs match")
    frame = findings.audit(tables, all_)
    shown = query.shortened_run(frame, SHORT_ID) if all_ and answer.is_plain_table else frame
    envelope = make_envelope(answer, "audit", interval, answer.context.settings(), snapshot=snapshot)
    write_or_nothing(answer, shown, envelope, AUDIT_ROW_COLUMNS if all_ else AUDIT_COLUMNS, "findings")


@app.command()
def waste(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", metavar="COLUMN,...", help="week, tool, project, model, harness, group or rule."),
    ] = None,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    tool: Tool = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Sum what loops and drifts cost, in tokens and money.

    From detection or onset to outcome or end, each turn once, with the coverage of prices.
    """
    answer = make_answer(context, format_, json, output)
    interval = make_interval(context, since, until, as_of)
    snapshot = answer.context.snapshot()
    from loopstats import findings

    tables = findings.tables_as_of(snapshot, interval.as_of_us)
    frame, text = findings.wasted(tables, interval, make_filters(project, model, harness, tool, where), split_names(by))
    answer.context.note(text)
    envelope = make_envelope(answer, "waste", interval, answer.context.settings(), (text,), snapshot)
    write_or_nothing(answer, frame, envelope, (), "turns")


@app.command()
def runs(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="COLUMN,...",
            help="Distributions per version, model, group, harness, project, format, task or bait.",
        ),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="A B",
            help="Compare two values of the one column of --by (or period: START..END); exit 5 where runs of B are "
            "longer and are not shown to solve more.",
        ),
    ] = None,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Evaluate runs: each, per group, or one group against another.

    The runs are those that ended in the interval.
    """
    answer = make_answer(context, format_, json, output)
    interval = make_interval(context, since, until, as_of)
    snapshot = answer.context.snapshot()
    from loopstats import compare as comparing
    from loopstats import findings, query, when

    names = split_names(by)
    tables = findings.tables_as_of(snapshot, interval.as_of_us)
    frame = findings.ended(tables, interval, make_filters(project, model, harness, None, where))
    settings = answer.context.settings()
    text = f"false claims of success {comparing.false_claims(frame)}" + "".join(
        f"; right endings of {bait} {rate}" for bait, rate in comparing.endings(frame)
    )
    answer.context.note(text)
    envelope = make_envelope(answer, "runs", interval, settings, (text,), snapshot)
    if compare is not None:
        if len(names) > 1:
            raise UsageError("runs --compare: give one column with --by, e.g. --by model")
        done = findings.compared(frame, *compare, names[0] if names else "group", interval, when.zone_of(interval.tz))
        from loopstats import output as writing

        answer.rows(writing.frame_of_objects([done.to_row()]), envelope, answer.layout())
        if done.is_failed:
            answer.context.note(f"gate failed: {', '.join(done.reasons)}")
            raise typer.Exit(FINDING)
        return
    if names:
        write_or_nothing(answer, comparing.distributions(frame, names), envelope, (*names, *GROUP_COLUMNS), "runs")
        return
    shown = query.shortened_run(frame, SHORT_ID) if answer.is_plain_table else frame
    write_or_nothing(answer, shown, envelope, RUN_COLUMNS, "runs")


@app.command()
def ladder(
    context: typer.Context,
    policy: Annotated[
        Path, typer.Argument(metavar="POLICY.toml", help="A policy, or the name of a packaged one: careful or faulty.")
    ],
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    faults: Annotated[bool, typer.Option("--faults", help="Only the faults of the policy, as rows.")] = False,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    where: Where = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Replay the four tiers of a policy and name its faults.

    On the runs that ended in the interval.
    """
    answer = make_answer(context, format_, json, output)
    interval = make_interval(context, since, until, as_of)
    from loopstats import findings
    from loopstats import ladder as climbing

    given = climbing.load(policy)
    snapshot = answer.context.snapshot()
    tables = findings.chosen(
        findings.tables_as_of(snapshot, interval.as_of_us), interval, make_filters(project, model, harness, None, where)
    )
    if not tables["steps"].height:
        raise NothingError("no runs match")
    tiers, faults_found, text = findings.climbed(given, tables)
    answer.context.note(text)
    envelope = make_envelope(answer, "ladder", interval, answer.context.settings(), (text,), snapshot)
    if not faults:
        answer.rows(tiers, envelope, answer.layout(TIER_COLUMNS))
    if faults or (answer.is_plain_table and answer.path is None):
        answer.rows(faults_found, envelope, answer.layout(FAULT_COLUMNS))


@app.command(name="report")
def report_(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Heading of the page.")] = None,
    project: Project = None,
    model: Model = None,
    harness: Harness = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the page goes; - is stdout.")
    ] = Path("loopstats-report.html"),
) -> None:
    """Write everything as one HTML file that needs no network.

    The lift with its charts, the loops, the checks, and how it was measured.
    """
    interval = make_interval(context, since, until, as_of)
    given: Globals = context.obj
    snapshot = given.snapshot()
    from loopstats import page

    content = page.read(snapshot, given.settings(), interval, make_filters(project, model, harness, None, None))
    answer = Answer(given, "html", None if str(output) == "-" else output)
    answer.pieces([page.html(content, title).encode()])
    if answer.path is not None:
        given.note(f"wrote {output}")
    if content.is_nothing:
        raise NothingError("no steps match; the page says so")
