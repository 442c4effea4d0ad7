"""loopstats: does what you do against stuck agents help? Measured from their logs, against a blind control arm.

Reading order, along the data: `formats/` turns one agent's log into records, `ingest.py` reads files and keeps what is
new, `steps.py` makes steps of records, `detect.py` finds loops, `assign.py` replays the arm, `classify.py` judges the
outcome, `estimate.py` compares the arms with the mathematics of `intervals.py`, `report.py` shows it. `run.py` knows
the order, `store.py` the disk, `tables.py` every column. `rule.py` (with `shell.py`, `actions.py`, `failures.py`) is
the one ruler, used live by `hook.py` and in batch.
"""

__version__ = "0.1.0"
