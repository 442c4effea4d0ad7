"""The lines behind records, while their source is still on disk and still says the same.

A room of its own because here alone the program shows what the lake never keeps: text of a log. It is shown only where
it was asked for, with secrets masked, control characters visible and a bounded length. A file is read again with its
format, and a place counts as unchanged where the record found there has the identity, time, arguments and result that
the lake has of it; what the lake does not know of a line cannot be compared.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from loopstats import failures, ingest, rule
from loopstats.errors import UsageError
from loopstats.formats import Emit, by_name
from loopstats.found import Found, real_path
from loopstats.report import safe_text
from loopstats.tables import RECORD_TYPES

LINE_SHOWN = 1_000
SALIENT_SHOWN = 300
BYTES_LOOKED_AT = 64 << 10
LONGEST_SECRET = 8 << 10  # what a cut may have left of a key is not shown
SAME = ("uid", "ts", "fingerprint", "result_hash")
STATES = {
    "shown": "the line as it stands in the file, secrets masked",
    "container": "a record of a container file, which has no lines",
    "gone": "the file is no longer on disk",
    "changed": "the file does not say this at that place any more",
    "unreadable": "the file cannot be read",
}

# A letter after a backslash stands before what follows it like a letter of a word, and hides the start of a key.
_ESCAPE = re.compile(r"\\+(?:[bfnrt]|u[0-9a-fA-F]{4})")
_PLAIN_ESCAPE = re.compile(r"\\+u00([2-7][0-9a-fA-F])")
_GAP = "\u2005"


@dataclass(frozen=True, slots=True)
class Original:
    """What stands at a place. `text` is null unless `state` is `shown`; the rest is null but for a failed result.

    `salient` is the line that made the class (METHOD 6), `masks` the masks that changed it, in their order.
    """

    state: str
    text: str | None = None
    salient: str | None = None
    masks: tuple[str, ...] | None = None


class _Listening(Emit):
    """Takes the facts of a source like `Emit`, and keeps the texts of results by line and call."""

    def __init__(self, texts: dict[tuple[int, str], str], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._texts = texts

    def result(self, *, call_id: str, text: str | None, **facts: Any) -> None:
        self._texts[self.line, rule.safe_id(call_id)] = text or ""
        super().result(call_id=call_id, text=text, **facts)


def read(records: pl.DataFrame, sources: Iterable[Mapping[str, Any]], tool_rows: Mapping[str, str]) -> list[Original]:
    """What stands at the places of `records` (`tables.RECORDS`, calls and results), one for each row, in their order.

    `sources`: the rows of the ledger. A source that cannot be opened is a word, no error.
    """
    known = {row["source_id"]: row for row in sources}
    found: dict[int, Original] = {}
    places = records.with_row_index("row")
    for (source_id,), part in places.partition_by("source_id", as_dict=True, maintain_order=True).items():
        found.update(_read_source(part, known.get(source_id), dict(tool_rows)))
    return [found[row] for row in range(records.height)]


def _read_source(
    part: pl.DataFrame, source: Mapping[str, Any] | None, tool_rows: dict[str, str]
) -> dict[int, Original]:
    rows = list(part.iter_rows(named=True))

    def everywhere(state: str) -> dict[int, Original]:
        return {row["row"]: Original(state) for row in rows}

    if source is None or source["is_superseded"]:
        return everywhere("changed")
    texts: dict[tuple[int, str], str] = {}
    try:
        status = os.lstat(real_path(source["path"]))
        file = Found(source["path"], source["source_file"], status.st_size, status.st_mtime_ns, status.st_ino, True)
        is_lined = by_name(source["format"]).unit == "line"
        reading = ingest.read_source(file, None, source["source_id"], tool_rows, partial(_Listening, texts))
        lines = ingest.lines_at(file, {row["source_line"] for row in rows}, BYTES_LOOKED_AT) if is_lined else {}
    except FileNotFoundError:
        return everywhere("gone")
    except (OSError, UsageError):
        return everywhere("unreadable")
    if reading.row["format"] != source["format"]:
        return everywhere("changed")
    said = _facts(reading.rows)
    answers = {}
    for row in rows:
        place = (row["type"], row["source_line"], row["call_id"])
        if tuple(row[name] for name in SAME) not in said.get(place, ()):
            answers[row["row"]] = Original("changed")
            continue
        line = lines.get(row["source_line"])
        salient = masks = None
        if row["type"] == "result" and row["message"] is not None:
            plain = failures.salient_line(texts[row["source_line"], row["call_id"]])
            salient, masks = shown(plain, SALIENT_SHOWN), tuple(failures.masks_used(plain))
        if line is None:
            answers[row["row"]] = Original("container" if not is_lined else "changed", None, salient, masks)
        else:
            answers[row["row"]] = Original("shown", shown(line.decode("utf-8", "replace")), salient, masks)
    return answers


def _facts(rows: Mapping[str, list[tuple[Any, ...]]]) -> dict[tuple[str, int, str], set[tuple[Any, ...]]]:
    """By type, line and call: what a source says now, in the columns of `SAME`."""
    frame = ingest.frame_of({kind: rows.get(kind, []) for kind in ("call", "result") if kind in RECORD_TYPES})
    said: dict[tuple[str, int, str], set[tuple[Any, ...]]] = {}
    for kind, line, call_id, *facts in frame.select("type", "source_line", "call_id", *SAME).iter_rows():
        said.setdefault((kind, line, call_id), set()).add(tuple(facts))
    return said


def shown(text: str, length: int = LINE_SHOWN) -> str:
    """Log text for a person who asked for it: secrets masked, one line, everything visible, at most `length` long."""
    looked_at = text[:BYTES_LOOKED_AT].replace(_GAP, " ")
    is_cut = len(looked_at) >= BYTES_LOOKED_AT
    # JSON hides signs such as = and & behind escapes; they are part of how a secret is recognised.
    looked_at = _PLAIN_ESCAPE.sub(lambda found: chr(int(found[1], 16)), looked_at)
    apart = rule.mask_secrets(_ESCAPE.sub(lambda found: found[0] + _GAP, looked_at))
    masked = rule.mask_secrets(apart.replace(_GAP, ""))
    if is_cut:
        masked = masked[: max(0, len(masked) - LONGEST_SECRET)]
    visible = safe_text(masked[: length + 1])
    return visible if not is_cut and len(masked) <= length and len(visible) <= length else visible[:length] + "…"


def told_whole(error: BaseException) -> str:
    """The traceback of an error, line by line. It may quote a log: secrets are masked, and all is visible."""
    lines = rule.mask_secrets("".join(traceback.format_exception(error))).splitlines()
    return "".join(safe_text(line) + "\n" for line in lines)
