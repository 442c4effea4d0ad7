"""A night: ingest with everything derived, audits, the lift's record, a report, gates; one line says how it went.

A room of its own because nobody watches this run: it has to be safe when two overlap, when it was killed and when the
machine slept, and its line has to be written whatever went wrong. The clock is asked once at the start, and that is
the as-of of everything; durations are monotonic, so that a machine that slept shows it. `docs/nightly.md` describes
the line, the gates and the exit codes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from importlib.metadata import version
from pathlib import Path
from typing import Any

import filelock
import polars as pl

from loopstats import __version__, findings, journal, nights, rule, run
from loopstats.audits import audit as audit_runs
from loopstats.config import PRICE_LIBRARY, Settings
from loopstats.errors import (
    FINDING,
    INTERNAL,
    INTERRUPT,
    IO,
    OK,
    TOO_MANY_REJECTS,
    LockedError,
    LoopstatsError,
    NothingError,
    RejectsError,
    StorageError,
    UsageError,
    unforeseen,
)
from loopstats.estimate import SRM_FAIL_E, Readout
from loopstats.found import make_folder
from loopstats.output import canonical, write_file
from loopstats.query import Filters
from loopstats.store import SCHEMA_VERSION, Lake, Snapshot
from loopstats.when import Interval, iso, moment

LOCK = "_nightly"
RUNNING = "nightly.running"
STEPS = ("ingest", "derive", "audit", "lift", "report")
GATES = ("conservation", "rejects", "stale", "audit", "sample_ratio", "regression", "runs")
NIGHT_US = 86_400_000_000
MISSED_NAMED = 31
ON_FAIL_S = 60.0
LARGEST_E = 1e300


@dataclass(frozen=True)
class Place:
    """A file or folder that is read, and whose it is."""

    name: str
    path: str


@dataclass(frozen=True)
class Plan:
    """What a night reads and by which limits it is judged. `since_us` adds a window to the record."""

    settings: Settings
    places: Sequence[Place]
    max_rejects: int | None = None
    stale_days: float = 7
    runs_days: float = 0
    report: Path | None = None
    since_us: int | None = None
    jobs: int | None = None


@dataclass(frozen=True)
class Gate:
    """One question with a limit. `state`: `ok`, `failed`, `unknown` (the night could not answer it) or `off`."""

    gate: str
    value: float | None
    limit: float | None
    state: str
    about: str = ""


@dataclass
class Night:
    """What is known of a night so far; `line` is what the log gets."""

    started_us: int
    as_of_us: int
    root: Path
    steps: dict[str, dict[str, Any]] = field(default_factory=lambda: {name: {"state": "skipped"} for name in STEPS})
    inputs: list[dict[str, str]] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    count_missed: int = 0
    killed: str | None = None
    generation: int | None = None
    digests: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    exit_code: int = OK

    def line(self, ended_us: int, duration_s: float) -> dict[str, Any]:
        """The object of schema `loopstats.nightly/1`."""
        return {
            "schema": journal.SCHEMA,
            "started": iso(self.started_us),
            "ended": iso(ended_us),
            "duration_ms": _ms(duration_s),
            "as_of": iso(self.as_of_us),
            "exit_code": self.exit_code,
            "error": self.error,
            "lake": str(self.root),
            "generation": self.generation,
            "versions": {
                "loopstats": __version__,
                "python": platform.python_version(),
                "polars": pl.__version__,
                "prices": version(PRICE_LIBRARY),
                "lake_schema": SCHEMA_VERSION,
                "rule": rule.STRATEGY_LOOP,
                **self.digests,
            },
            "missed": self.missed,
            "count_missed": self.count_missed,
            "killed": self.killed,
            "inputs": self.inputs,
            "steps": self.steps,
            "verdicts": self.verdicts,
            "gates": [vars(gate) for gate in self.gates],
        }

    @property
    def failed(self) -> list[str]:
        """Names of the gates that failed."""
        return [gate.gate for gate in self.gates if gate.state == "failed"]


def night(
    root: Path,
    log: Path,
    prepare: Callable[[], Plan],
    *,
    as_of_us: int | None = None,
    clock: Callable[[], int],
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Do a night over the lake at `root` and append its line to `log`; gives the line.

    `prepare` is called once under the lock, so that a broken configuration is in the log too. Whatever goes wrong is
    in the line (`exit_code`, `error`); where the line itself cannot be written, its code is 74. A second night at the
    same time ends at once, with a line of exit code 75.
    """
    started_us, began = clock(), monotonic()
    done = Night(started_us, started_us if as_of_us is None else as_of_us, root.absolute())
    os.umask(0o077)
    try:
        with _alone(root):
            _look_back(done, root, log)
            with _marked(root, done):
                _do(done, prepare, monotonic)
                return _finish(done, log, clock, monotonic() - began)
    except (LoopstatsError, OSError) as error:
        _note_error(done, error)
    return _finish(done, log, clock, monotonic() - began)


def _finish(done: Night, log: Path, clock: Callable[[], int], duration_s: float) -> dict[str, Any]:
    line = done.line(clock(), duration_s)
    try:
        journal.append(log, canonical(line).encode())
    except StorageError as error:
        line["exit_code"] = IO
        line["error"] = str(error) + (f" (and before that: {line['error']})" if line["error"] else "")
    return line


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the lock of nights; another one holds it: LockedError, at once."""
    make_folder(root)
    lock = filelock.FileLock(root / LOCK, mode=0o600)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise LockedError(f"{root}: another nightly is running; it will do this night's work") from None
    try:
        yield
    finally:
        lock.release()


def _look_back(done: Night, root: Path, log: Path) -> None:
    """What became of the nights before: one that was killed, and those that never began."""
    nights = journal.read(log)
    with contextlib.suppress(OSError, ValueError):
        marked = str(json.loads((root / RUNNING).read_bytes())["started"])
        if not any(night["started"] == marked for night in nights):
            done.killed = marked
    whole = [night["started"] for night in nights if night.get("exit_code") in journal.DONE]
    last_us = _instant(whole[-1]) if whole else None
    if last_us is None:
        return
    # A night belongs to the middle of its day: an hour more or less (summer time) makes no night missed.
    nights_between = round((done.started_us - last_us) / NIGHT_US) - 1
    done.count_missed = max(0, nights_between)
    first = max(1, done.count_missed - MISSED_NAMED + 1)
    done.missed = [iso(last_us + n * NIGHT_US)[:10] for n in range(first, done.count_missed + 1)]


def _instant(text: str) -> int | None:
    try:
        return moment(text, 0, UTC)
    except UsageError:
        return None


@contextlib.contextmanager
def _marked(root: Path, done: Night) -> Iterator[None]:
    """A mark that only a kill leaves behind."""
    mark = root / RUNNING
    beside = mark.with_suffix(".new")
    beside.touch(mode=0o600)
    beside.write_text(json.dumps({"started": iso(done.started_us), "pid": os.getpid()}), encoding="utf-8")
    beside.replace(mark)
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def _do(done: Night, prepare: Callable[[], Plan], monotonic: Callable[[], float]) -> None:
    try:
        plan = prepare()
        done.digests = {"rule_digest": plan.settings.rule_digest, "derived_digest": plan.settings.derived_digest}
        done.inputs = [{"name": place.name, "path": place.path} for place in plan.places]
        _work(done, plan, monotonic)
        done.exit_code = _code(done)
    except (Exception, KeyboardInterrupt) as error:
        _note_error(done, error)


def _code(done: Night) -> int:
    return TOO_MANY_REJECTS if "rejects" in done.failed else FINDING if done.failed else OK


def _note_error(done: Night, error: BaseException) -> None:
    """What went wrong, in one line that can hold no log text: of one that is not ours type and place are told."""
    if isinstance(error, LoopstatsError):
        done.error, done.exit_code = str(error), error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        done.error, done.exit_code = "interrupted", INTERRUPT
    elif isinstance(error, OSError) and error.strerror:
        done.error, done.exit_code = f"{error.filename or 'I/O error'}: {error.strerror}", IO
    else:
        done.error, done.exit_code = unforeseen(error), IO if isinstance(error, OSError) else INTERNAL
    if os.environ.get("LOOPSTATS_DEBUG") == "1":
        from loopstats.originals import told_whole

        sys.stderr.write(told_whole(error))


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _work(done: Night, plan: Plan, monotonic: Callable[[], float]) -> None:
    lake = Lake(done.root)

    @contextlib.contextmanager
    def step(name: str) -> Iterator[dict[str, Any]]:
        began = monotonic()
        facts: dict[str, Any] = {}
        done.steps[name] = {"state": "failed"}
        try:
            yield facts
            done.steps[name] = {"state": "ok"}
        finally:
            done.steps[name] |= {"duration_ms": _ms(monotonic() - began), **facts}

    try:
        with step("ingest") as facts:
            summary = run.ingest(
                lake,
                [place.path for place in plan.places],
                plan.settings,
                max_rejects=plan.max_rejects,
                jobs=plan.jobs,
            )
            names = ("files_new", "files_grown", "files_same", "files_gone", "files_skipped", "records")
            facts |= {name: summary[name] for name in names} | {"rejects": len(summary["rejects"])}
    except RejectsError as error:
        done.error = str(error)
        done.gates = [Gate(name, None, None, "unknown") for name in GATES if name != "rejects"]
        done.gates.insert(GATES.index("rejects"), Gate("rejects", error.count, plan.max_rejects, "failed"))
        return
    done.steps["derive"] = {"state": "ok", **summary["tables"], "runs_oversize": summary["runs_oversize"]}
    snapshot = lake.snapshot()
    with step("audit") as facts:
        tables = findings.tables_as_of(snapshot, done.as_of_us)
        lines = audit_runs(tables).lines()
        facts["findings"] = {name: [x, n] for name, x, n in lines.select("finding", "x", "n").iter_rows()}
    with step("lift") as facts:
        readout, fresh = nights.record_lift(lake, plan.settings, as_of_us=done.as_of_us, since_us=plan.since_us)
        restated = int((fresh["revision"] > 0).sum())
        facts |= {"estimates": len(readout.estimates), "recorded": fresh.height - restated, "restated": restated}
    done.verdicts = [_verdict(estimate.to_row()) for estimate in readout.estimates]
    snapshot = lake.snapshot()
    done.generation = snapshot.generation
    done.gates = [
        _conservation(summary),
        _rejects(summary, plan.max_rejects),
        _stale(tables, done.as_of_us, plan.stale_days),
        *_integrity(readout),
        _regression(snapshot, readout),
        _runs(tables, done.as_of_us, plan.runs_days),
    ]
    if plan.report is None:
        done.steps["report"] = {"state": "off"}
        return
    with step("report") as facts:
        facts["path"] = str(plan.report)
        write_report(snapshot, plan.settings, plan.report, done.as_of_us, plan.since_us)


def write_report(snapshot: Snapshot, settings: Settings, path: Path, as_of_us: int, since_us: int | None) -> None:
    """Write the page of `loopstats report` as of the night."""
    from loopstats import page  # only where a page is asked for: its charts take long to import

    content = page.read(snapshot, settings, Interval(as_of_us, since_us, None, "UTC"), Filters())
    write_file(path, [page.html(content).encode()])


def _verdict(row: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "experiment",
        "scope",
        "verdict",
        "lift",
        "ci_anytime_low",
        "ci_anytime_high",
        "broke_treated",
        "n_treated",
        "broke_holdout",
        "n_holdout",
        "reasons",
    )
    return {name: row[name] for name in names}


# --- gates -----------------------------------------------------------------------------------------------------------


def _limited(gate: str, value: float, limit: float, about: str = "") -> Gate:
    return Gate(gate, value, limit, "failed" if value > limit else "ok", about)


def _conservation(summary: Mapping[str, Any]) -> Gate:
    """Files with a line that is in no one of used, nothing, folded, rejected, waiting."""
    return _limited("conservation", len(summary["unbalanced"]), 0, ", ".join(summary["unbalanced"][:3]))


def _rejects(summary: Mapping[str, Any], limit: int | None) -> Gate:
    count = len(summary["rejects"])
    return Gate("rejects", count, None, "off") if limit is None else _limited("rejects", count, limit)


def _stale(tables: Mapping[str, pl.DataFrame], as_of_us: int, limit_days: float) -> Gate:
    """Days since the newest event that is known at the as-of; a lake without any step is stale."""
    newest = [
        found
        for name in ("steps", "turns")
        if (found := tables[name].select(pl.col("ts").max().dt.epoch("us")).item()) is not None
    ]
    if not limit_days:
        return Gate("stale", None, None, "off")
    if newest:
        return _limited("stale", round((as_of_us - max(newest)) / NIGHT_US, 2), limit_days)
    is_empty = not tables["steps"].height
    return Gate("stale", None, limit_days, "failed" if is_empty else "unknown", "no step was ever read" * is_empty)


def _integrity(readout: Readout) -> Iterator[Gate]:
    """The audit of arms (METHOD 11): logged arms that the hash does not give, and the split over all nights."""
    parts = [*readout.audit.experiments.values(), readout.audit.replay, readout.audit.outside]
    wrong = [part for part in parts if part.hash_failures.n or "share_invalid" in part.failures]
    count = sum(part.hash_failures.n or 1 for part in wrong)
    yield _limited("audit", count, 0, _named([part.experiment for part in wrong]))
    off = [part for part in parts if "srm_failed" in part.failures]
    largest = max((part.srm_log_e for part in parts), default=0.0)
    e_value = float(f"{min(math.exp(min(largest, 690.0)), LARGEST_E):.6g}")
    about = _named([part.experiment for part in off])
    yield Gate("sample_ratio", e_value, SRM_FAIL_E, "failed" if off else "ok", about)


def _named(experiments: Sequence[str]) -> str:
    return ", ".join(name or "replay" for name in experiments[:3])


def _regression(snapshot: Snapshot, readout: Readout) -> Gate:
    """Experiments that harm, or whose lift fell: both read from the interval that holds every night, and no other.

    Harm: tonight's anytime interval lies below 0. Fell: it lies below a lower bound that an earlier recorded night
    had. The intervals of all nights hold together in 95 of 100 experiments, so the effect itself has changed, or what
    is measured has; no number of nights makes this more likely by chance.
    """
    history = nights.lift_history(snapshot, as_of_us=readout.as_of_us).filter(
        (pl.col("scope") == "to_date") & pl.col("is_latest")
    )
    tonight = pl.col("as_of").dt.epoch("us") == readout.as_of_us
    found = []
    count_known = 0
    for name, settings, high in (
        history.filter(tonight).select("experiment", "settings_sha256", "ci_anytime_high").iter_rows()
    ):
        if high is None:
            continue
        count_known += 1
        earlier = history.filter(~tonight & (pl.col("experiment") == name) & (pl.col("settings_sha256") == settings))
        held = earlier["ci_anytime_low"].max()
        if high < 0:
            found.append(f"{name} harms")
        elif isinstance(held, float) and high < held:
            found.append(f"the lift of {name} fell below {held:+.4f}")
    if not count_known:
        return Gate("regression", None, 0, "unknown", "no experiment with an interval")
    return _limited("regression", len(found), 0, "; ".join(found[:3]))


def _runs(tables: Mapping[str, pl.DataFrame], as_of_us: int, days: float) -> Gate:
    """Runs of the last `days` against those of the `days` before: longer, and not shown to solve more."""
    if not days:
        return Gate("runs", None, None, "off")
    interval = Interval(as_of_us, None, None, "UTC")
    low, mid, high = (iso(as_of_us - round(n * days * NIGHT_US)) for n in (2, 1, 0))
    chosen = findings.chosen(tables, interval, Filters())["runs"]
    try:
        done = findings.compared(chosen, f"{low}..{mid}", f"{mid}..{high}", "period", interval, UTC)
    except NothingError as error:
        return Gate("runs", None, 0, "unknown", str(error))
    shifts = [shift.shift for shift in done.shifts if shift.shift is not None]
    value = round(shifts[0], 2) if shifts else None
    state = "failed" if done.is_failed else "ok" if done.gate == "pass" else "unknown"
    return Gate("runs", value, 0, state, ", ".join(done.reasons))


# --- on failure ------------------------------------------------------------------------------------------------------


def split_command(text: str) -> list[str]:
    """The argument vector of a command line, as a shell would cut it; no shell runs it. UsageError if it cannot."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--on-fail {text!r}: {error}; quote it as for a shell") from error
    if not words:
        raise UsageError("--on-fail: name a command, e.g. --on-fail 'notify-send loopstats'")
    return words


def call_on_fail(
    command: Sequence[str], line: Mapping[str, Any], log: Path, env: Mapping[str, str], limit_s: float = ON_FAIL_S
) -> str | None:
    """Run the command with the night's line on stdin and its facts in the environment; what went wrong, or None.

    It gets `limit_s` seconds, then it and everything it started in its group is killed. What it prints goes to stderr.
    """
    failed = [gate["gate"] for gate in line["gates"] if gate["state"] == "failed"]
    around = dict(env) | {
        "LOOPSTATS_LAKE": str(line["lake"]),
        "LOOPSTATS_NIGHTLY_EXIT_CODE": str(line["exit_code"]),
        "LOOPSTATS_NIGHTLY_GATES": ",".join(failed),
        "LOOPSTATS_NIGHTLY_STARTED": str(line["started"]),
        "LOOPSTATS_NIGHTLY_LOG": str(log),
    }
    try:
        # fd 2: stdout is data, and this is talk
        child = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=2, env=around, start_new_session=True)
    except OSError as error:
        return f"{command[0]}: {error.strerror or error}"
    try:
        with contextlib.suppress(BrokenPipeError):
            child.communicate(canonical(line).encode() + b"\n", timeout=limit_s)
        code = child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return f"{command[0]}: took longer than {limit_s:g} s and was killed"
    return None if code == 0 else f"{command[0]}: exit code {code}"


def in_words(line: Mapping[str, Any]) -> str:
    """The night in one line for a person."""
    ingest, derive = line["steps"]["ingest"], line["steps"]["derive"]
    parts = []
    if ingest["state"] == "ok":
        parts.append(f"{ingest['files_new']} new and {ingest['files_grown']} grown files")
        parts.append(f"{derive['steps']} steps, {derive['loops']} loops")
    if count := derive.get("runs_oversize"):
        parts.append(f"{count} runs are oversize (docs/scale.md)")
    parts += [f"{v['experiment']}: {v['verdict']}" for v in line["verdicts"] if v["scope"] == "to_date"]
    failed = [gate["gate"] for gate in line["gates"] if gate["state"] == "failed"]
    parts.append(f"gates failed: {', '.join(failed)}" if failed else line["error"] or "gates ok")
    if line["count_missed"]:
        parts.append(f"{line['count_missed']} nights missed ({', '.join(line['missed'])})")
    if line["killed"]:
        parts.append(f"the night of {line['killed']} was killed")
    return f"night of {line['started']}: " + "; ".join(parts)
