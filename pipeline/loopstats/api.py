"""The Python door: what the commands read, as polars frames and small results.

A room of its own because notebooks and scripts depend on these names. They are those of the command line and mean the
same, since both call the same functions (`query.py`, `findings.py`, `explain.py`); nothing is computed here. Times are
given as on the command line (`7d`, `2026-11-20`, ISO 8601) or as datetimes with a zone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import polars as pl

from loopstats import config, explain, findings, output, query, report, when
from loopstats.errors import UsageError
from loopstats.store import Lake

if TYPE_CHECKING:
    from typing import Unpack

    from loopstats.config import Settings
    from loopstats.estimate import Comparison, Estimate, Notice, Rate, Readout
    from loopstats.explain import Explanation
    from loopstats.page import Content
    from loopstats.query import Filters
    from loopstats.store import Snapshot
    from loopstats.when import Interval

When = str | datetime | None
Names = str | Sequence[str]
StrPath = str | os.PathLike[str]


class Selection(TypedDict, total=False):
    """What the reading methods share: an interval, an as-of, and filters; as `--since`, `--project` and the like.

    `project`, `model`, `harness` and `tool` take one name or several, `where` a SQL condition over the rows' columns.
    """

    since: When
    until: When
    as_of: When
    project: Names
    model: Names
    harness: Names
    tool: Names
    where: str


def open(
    path: str | os.PathLike[str] | None = None,
    *,
    create: bool = False,
    as_of: When = None,
    tz: str | None = None,
    config_file: str | os.PathLike[str] | None = None,
) -> OpenLake:
    """The lake at `path`; without one the lake of the commands. Settings are theirs too, environment included.

    `create`: it need not be there yet, `ingest` makes it. `as_of` stands for every method that is not told another,
    else it is now; `tz` is the zone of dates, else that of the settings. `config_file` is one more configuration, over
    the others.
    UsageError where there is no lake, or a setting is wrong.
    """
    import platformdirs

    user_file = Path(platformdirs.user_config_path("loopstats")) / "loopstats.toml"
    more = config_file or os.environ.get("LOOPSTATS_CONFIG")
    given = config.gather(Path(more) if more else None, user_file, Path.cwd(), os.environ)
    named = path or given.get("lake")
    root = Path(named) if named else Path(platformdirs.user_data_path("loopstats")) / "lake"
    opened = OpenLake(root, given.settings(), _text(as_of), tz or str(given.get("tz")))
    if not create:
        opened.refresh()
    return opened


class OpenLake:
    """One generation of a lake, whatever a writer does meanwhile; `refresh` goes on to the newest.

    Every reading method gives a frame with the columns that `loopstats schema` describes, and takes `Selection`.
    """

    def __init__(self, root: Path, settings: Settings, as_of: str | None, tz: str) -> None:
        self.path = root
        self.settings = settings
        self._as_of = as_of
        self._tz = tz
        self._lake = Lake(root)
        self._snapshot = self._lake.snapshot() if (root / "manifest.json").exists() else None

    def __repr__(self) -> str:
        return f"<loopstats lake {str(self.path)!r}, generation {self.generation}>"

    @property
    def generation(self) -> int:
        """Number of the commit that is read; 0 where there is none yet."""
        return 0 if self._snapshot is None else self._snapshot.generation

    def refresh(self) -> OpenLake:
        """Read the newest generation from now on; itself."""
        self._snapshot = Lake.open(self.path).snapshot()
        return self

    def ingest(
        self,
        paths: StrPath | Sequence[StrPath],
        *,
        full: bool = False,
        max_rejects: int | None = None,
        jobs: int = 1,
    ) -> Ingested:
        """Read new and grown log files under `paths` into the lake, and go on to what it then holds.

        As `loopstats ingest`, but with one process unless told: more than one needs a program that can be imported.
        LockedError where another writer is at work, RejectsError with more rejects than allowed (nothing is written).
        """
        from loopstats import run

        given = paths if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
        names = [str(Path(path).expanduser()) for path in given]
        summary = run.ingest(self._lake, names, self.settings, is_full=full, max_rejects=max_rejects, jobs=jobs)
        self.refresh()
        counts = {name: summary[f"files_{name}"] for name in ("new", "grown", "same", "gone", "skipped")}
        rejects = pl.DataFrame(
            summary["rejects"],
            schema={"source_file": pl.String, "source_line": pl.Int64, "reason": pl.String},
            orient="row",
        )
        return Ingested(**counts, formats=pl.DataFrame(summary["formats"], infer_schema_length=None), rejects=rejects)

    # --- tables ---

    def steps(self, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One row per tool call."""
        return self._rows("steps", selection)

    def turns(self, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One row per model turn, with its tokens and cost."""
        return self._rows("turns", selection)

    def sessions(self, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One row per session, chosen by its last time."""
        return self._rows("sessions", selection)

    def deliveries(self, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One row per record of a delivery decision."""
        return self._rows("deliveries", selection)

    def detections(self, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One row per detection that the log itself recorded."""
        return self._rows("detections", selection)

    def guards(self, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One row per record of the log's own safety system."""
        return self._rows("guards", selection)

    def results(self, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One row per external fact about a run's task."""
        return self._rows("results", selection)

    def rejects(self) -> pl.DataFrame:
        """One row per line or file that could not be used."""
        return self._rows("rejects", {})

    def sources(self) -> pl.DataFrame:
        """One row per file: what became of each of its lines."""
        return self._rows("sources", {})

    def loops(self, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One row per loop, newest first; `pending` where it is younger than the maturity time at the as-of."""
        interval, filters = self._asked(selection)
        return query.loops(query.open_snapshot(self._read, interval.as_of_us), interval, filters)

    def tools(self, **selection: Unpack[Selection]) -> pl.DataFrame:
        """Every tool with its kind and counts; unclassified ones first."""
        interval, filters = self._asked(selection)
        return query.tools(query.open_snapshot(self._read, interval.as_of_us), interval, filters)

    def runs(self, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One row per run that ended in the interval, newest first."""
        interval, filters = self._asked(selection)
        return findings.ended(findings.tables_as_of(self._read, interval.as_of_us), interval, filters)

    def drifts(self, *, all_rules: bool = False, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One row per stretch in which a run turned in circles, newest first; drift/1, or every rule."""
        interval, filters = self._asked(selection)
        tables = findings.tables_as_of(self._read, interval.as_of_us)
        return findings.drifts(tables, interval, filters, all_rules)[0]

    def audit(self, *, all_rows: bool = False, **selection: Unpack[Selection]) -> pl.DataFrame:
        """One line a kind of finding with its n, or one row a finding; of the runs that ended in the interval."""
        interval, filters = self._asked(selection)
        tables = findings.tables_as_of(self._read, interval.as_of_us)
        return findings.audit(findings.chosen(tables, interval, filters), all_rows)

    def waste(self, *, by: Names = (), **selection: Unpack[Selection]) -> pl.DataFrame:
        """Tokens and cost from detection or onset to outcome or end, each turn once, with the coverage of prices."""
        interval, filters = self._asked(selection)
        tables = findings.tables_as_of(self._read, interval.as_of_us)
        return findings.wasted(tables, interval, filters, _names(by))[0]

    def sql(self, text: str, *, as_of: When = None) -> pl.DataFrame:
        """The rows of one SELECT over the lake, read-only, or of a named question; UsageError where it does not run."""
        interval = self._asked({"as_of": as_of})[0]
        return query.ask(query.open_snapshot(self._read, interval.as_of_us), text)

    # --- results ---

    def lift(self, *, by: Names = (), experiment: str | None = None, **selection: Unpack[Selection]) -> Lift:
        """The break rates of the arms compared. Splits and filters take only what is known at detection."""
        interval, filters = self._asked(selection)
        readout = query.lift(self._read, self.settings, interval, filters, _names(by), experiment)
        return Lift(readout, interval.tz)

    def report(self, **selection: Unpack[Selection]) -> Content:
        """Everything that the `report` command shows, read once; `loopstats.page.html` makes the page of it."""
        from loopstats import page

        interval, filters = self._asked(selection)
        return page.read(self._read, self.settings, interval, filters)

    def explain(self, loop_id: str, *, raw: bool = False, as_of: When = None) -> Explanation:
        """One loop down to every event; the id may be shortened. `raw` also reads the original lines."""
        interval = self._asked({"as_of": as_of})[0]
        return explain.explain(self._read, self.settings, loop_id, as_of_us=interval.as_of_us, is_raw=raw)

    # --- what they share ---

    @property
    def _read(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = Lake.open(self.path).snapshot()
        return self._snapshot

    def _rows(self, name: str, selection: Selection) -> pl.DataFrame:
        return query.rows(self._read, name, *self._asked(selection))

    def _asked(self, selection: Selection) -> tuple[Interval, Filters]:
        now_us = time.time_ns() // 1_000_000_000 * 1_000_000
        as_of = _text(selection.get("as_of")) or self._as_of
        since, until = _text(selection.get("since")), _text(selection.get("until"))
        filters = query.Filters(
            _names(selection.get("project", ())),
            _names(selection.get("model", ())),
            _names(selection.get("harness", ())),
            _names(selection.get("tool", ())),
            selection.get("where"),
        )
        return when.resolve(since, until, as_of, self._tz, now_us), filters


@dataclass(frozen=True)
class Ingested:
    """What one ingest found: files by what became of them, a row per format, and a row per reject."""

    new: int
    grown: int
    same: int
    gone: int
    skipped: int
    formats: pl.DataFrame
    rejects: pl.DataFrame


@dataclass(frozen=True)
class Lift:
    """What `lift` found. `str()` is the readout in words; the attributes are of one experiment, to date.

    Where the logs hold several experiments, name one (`lake.lift(experiment=…)`) before asking for an attribute. Where
    they hold none there is no lift: the attributes are those of the A/A replay, in which nothing was delivered, and
    `lift`, `interval` and `interval_nightly` are None.
    """

    readout: Readout
    tz: str = "UTC"

    @property
    def headline(self) -> str:
        """The answer in words, a line for each experiment."""
        return "\n".join(report.headlines(self.readout))

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the experiments in the logs."""
        return tuple(dict.fromkeys(e.experiment for e in self.readout.estimates if e.scope != "replay"))

    @property
    def is_replay(self) -> bool:
        """No session is enrolled in an experiment."""
        return self.readout.is_replay_only

    def scope(self, name: str = "to_date", experiment: str | None = None) -> Estimate:
        """`to_date`, `window` (where `since` or `until` was given) or `replay`, with every number of it."""
        if experiment is None and name != "replay" and len(self.experiments) > 1:
            raise UsageError(f"the logs hold several experiments, name one of {', '.join(self.experiments)}")
        found = self.readout.scope(name, experiment)
        if found is None:
            known = ", ".join(dict.fromkeys(e.scope for e in self.readout.estimates))
            raise UsageError(f"scope {name!r} is not in this readout; there are: {known or 'none'}")
        return found

    @property
    def _main(self) -> Comparison:
        return self.scope("replay" if self.is_replay else "to_date").headline

    @property
    def lift(self) -> float | None:
        """Break rate of the treated minus that of the holdout, as a share; None where it is withheld."""
        return None if self.is_replay else self._main.lift

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the lift for one pre-planned look."""
        return None if self.is_replay else self._main.ci_fixed

    @property
    def interval_nightly(self) -> tuple[float, float] | None:
        """95 % interval that stays valid when it is read every night."""
        return None if self.is_replay else self._main.ci_anytime

    @property
    def verdict(self) -> str | None:
        """`helps`, `harms`, `no verdict yet` or `withheld`; None for a replay."""
        return None if self.is_replay else self.scope().verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why something is withheld."""
        return self._main.reasons

    @property
    def treated(self) -> Rate:
        """Broken of treated loops, as `x` of `n`."""
        return self._main.treated

    @property
    def holdout(self) -> Rate:
        """Broken of holdout loops, as `x` of `n`."""
        return self._main.holdout

    @property
    def n(self) -> int:
        """Loops in both arms."""
        return self.treated.n + self.holdout.n

    @property
    def warnings(self) -> tuple[Notice, ...]:
        """What speaks against taking the number as it stands, the weightiest first."""
        return self.readout.warnings

    def rows(self) -> pl.DataFrame:
        """A row for each experiment and scope: the columns of `lift -f parquet`."""
        return output.frame_of_objects(self.to_json()["rows"])

    def segments(self, scope: str = "to_date", experiment: str | None = None) -> pl.DataFrame:
        """A row for each part of a split (`by`): its values, counts, lift and the lift's interval for one look."""
        rows = [
            dict(segment.values)
            | {
                "n_treated": segment.comparison.treated.n,
                "broke_treated": segment.comparison.treated.x,
                "n_holdout": segment.comparison.holdout.n,
                "broke_holdout": segment.comparison.holdout.x,
                "lift": segment.comparison.lift,
                "ci_low": (segment.comparison.ci_fixed or (None, None))[0],
                "ci_high": (segment.comparison.ci_fixed or (None, None))[1],
                "is_selected": segment.is_selected,
                "reasons": list(segment.comparison.reasons),
            }
            for segment in self.scope(scope, experiment).segments
        ]
        numbers = dict.fromkeys(("lift", "ci_low", "ci_high"), pl.Float64())
        schema = {**numbers, "reasons": pl.List(pl.String())} if rows else None
        return pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)

    def to_json(self) -> dict[str, Any]:
        """The body of `lift -f json`."""
        return self.readout.to_json(self.tz)

    def text(self, width: int = 100, *, all_checks: bool = False) -> str:
        """What the command prints."""
        return report.lift_text(self.readout, width, all=all_checks)

    def __str__(self) -> str:
        return self.text()


def _names(given: Names) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _text(moment: When) -> str | None:
    """An instant in the words of the command line."""
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise UsageError(f"{moment.isoformat()}: a time needs its zone, e.g. datetime(…, tzinfo=UTC)")
    return moment.isoformat()
