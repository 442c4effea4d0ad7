"""The command line: parses, calls, prints; owns stderr and the exit codes, and works on no data.

A room of its own because manners live here: stdout is data and stderr is talk, every error is one line with its
documented exit code, a closed pipe is no error, and what a command does not need is not imported. Each module beside
this one adds its commands to the `app` of `base`; the order of the imports is the order of `--help`.
"""

from __future__ import annotations

import contextlib
import os
import sys

from loopstats.cli import (
    cluster,
    ingest,
    lake,
    live,
    manual,
    nightly,
    reading,
    setup,
    simulate,
)
from loopstats.cli.base import Globals, app, drop_stdout, say
from loopstats.cli.waiting import waiting
from loopstats.errors import FINDING, INTERNAL, INTERRUPT, IO, OK, USAGE, LoopstatsError, UsageError, unforeseen

manual.fill(app)

GLOBAL_VALUES = ("--lake", "--config", "--color", "--tz")
GLOBAL_FLAGS = ("--quiet", "-q", "--verbose", "-v", "--no-progress")


def main(arguments: list[str] | None = None) -> None:
    """Entry point: runs the command and exits with its code."""
    code = _complete() if os.environ.get("_LOOPSTATS_COMPLETE") else run_command(arguments)
    try:
        sys.stdout.flush()
    except OSError:
        drop_stdout()
    if code == INTERRUPT:
        # A thread of an engine that is still at work would abort an interpreter that ends beneath it.
        os._exit(code)
    sys.exit(code)


def hoisted(arguments: list[str]) -> list[str]:
    """The arguments with the global options first, wherever they stood; UsageError where one lacks its value."""
    front: list[str] = []
    rest: list[str] = []
    items = iter(arguments)
    for item in items:
        if item == "--":
            rest += [item, *items]
        elif item in GLOBAL_FLAGS or item.startswith(tuple(f"{name}=" for name in GLOBAL_VALUES)):
            front.append(item)
        elif item in GLOBAL_VALUES:
            value = next(items, None)
            if value is None:
                raise UsageError(f"{item}: a value is needed (see loopstats --help)")
            front += [item, value]
        else:
            rest.append(item)
    return front + rest


def run_command(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code. Errors have been said."""
    try:
        given = hoisted(sys.argv[1:] if arguments is None else arguments)
        if ingest.is_answered_unparsed(given):
            return OK
        if not given:
            with contextlib.redirect_stdout(sys.stderr):
                app(args=["--help"], standalone_mode=False, prog_name="loopstats")
            return USAGE
        result = app(args=given, standalone_mode=False, prog_name="loopstats")
        return result if isinstance(result, int) else OK
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPT
    except Exception as error:
        if os.environ.get("LOOPSTATS_DEBUG") == "1":
            from loopstats.originals import told_whole

            sys.stderr.write(told_whole(error))
        return _explain(error)
    finally:
        waiting.end()


def _complete() -> int:
    """Answer a shell that asks what may be typed next; a fault here must not disturb a prompt."""
    from typer.main import get_command

    from loopstats.cli.complete import complete

    for word, about in complete(get_command(app), sys.argv[1:], os.environ["_LOOPSTATS_COMPLETE"] == "bash"):
        sys.stdout.write(f"{word}\t{about}\n" if about else f"{word}\n")
    return OK


def _is_of_a_data_file(error: Exception) -> bool:
    """The engine found a file of the lake missing or not as it was written."""
    from loopstats.found import DATA

    is_engine = type(error).__module__.startswith("polars") and str(error).startswith("parquet: ")
    return is_engine or (isinstance(error, FileNotFoundError) and f"{DATA}/" in str(error) and ".parquet" in str(error))


def _explain(error: Exception) -> int:
    """Say what went wrong in one line; the exit code for it."""
    if isinstance(error, LoopstatsError):
        say(str(error))
        return error.exit_code
    if type(error).__name__ == "Abort":
        say("interrupted")
        return INTERRUPT
    if callable(message := getattr(error, "format_message", None)):
        asked = getattr(getattr(error, "ctx", None), "command_path", "loopstats")
        say(f"{message()} (see {asked} --help)")
        return USAGE
    if _is_of_a_data_file(error):
        first = str(error).splitlines()[0]
        say(f"the lake cannot be read ({first}); try again, and if it stays, `loopstats lake verify` names the mend")
        return FINDING
    if isinstance(error, OSError) and error.strerror:
        say(f"{error.filename or 'I/O error'}: {error.strerror}")
        return IO
    say(unforeseen(error))
    return IO if isinstance(error, OSError) else INTERNAL
