"""loopstats: does what you do against stuck agents help? Measured from their logs, against a blind control arm.

Reading order, along the data: `formats/` turns one agent's log into records, `ingest.py` reads files and keeps what is
new, `steps.py` makes steps of records, `detect.py` finds loops, `assign.py` replays the arm, `classify.py` judges the
outcome, `estimate.py` compares the arms with the mathematics of `intervals.py`, `report.py` shows it. `run.py` knows
the order, `store.py` the disk, `tables.py` every column. `rule.py` (with `shell.py`, `actions.py`, `failures.py`) is
the one ruler, used live by `hook.py` and in batch.

From Python: `loopstats.open(path)` gives a lake with the tables and results of the commands (`api.py`, docs/api.md).
What is not asked for is not imported.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopstats.api import Ingested, Lift, OpenLake, Selection, open

__version__ = "0.1.0"
__all__ = ["Ingested", "Lift", "OpenLake", "Selection", "__version__", "open"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from loopstats import api

        return getattr(api, name)
    raise AttributeError(f"module 'loopstats' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
