"""Files to records: find the format by content, read only new bytes, set aside what cannot be used, count every line.

A room of its own because this is where the outside comes in: hostile names, torn lines, files that grow, shrink, move
and vanish. `read_source` turns one file into records and is a pure function of the file's bytes and its ledger row, so
that any worker can run it; `ingest` keeps the ledger and hands the records to the lake. Copies are not decided here
but in `steps.py`, where all records of a session are at hand.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
import zstandard

from loopstats.decode import decode_document, decode_line, may_hold_object
from loopstats.errors import Reject
from loopstats.formats import Emit, Format, Head, Source, by_name, kept_state, recognise
from loopstats.found import Found as Found
from loopstats.found import discover as discover
from loopstats.found import is_below as is_below
from loopstats.found import plan as plan
from loopstats.found import real_path
from loopstats.found import resolved_roots as resolved_roots
from loopstats.found import with_known as with_known
from loopstats.tables import INT, LIST, RECORD_TYPES, RECORDS, STR, Table

LINE_CAP = 64 << 20
INFLATE_CAP = 4 << 30
BLANKS_CAP = 1 << 20  # blank lines in a packed file: a bomb of them costs time, not memory
INFLATE_FREE = 8 << 20  # what every file may grow to, however small it is
INFLATE_RATIO = 200  # logs pack 5 to 50 times smaller, gzip cannot pack more than 1,032 times
INFLATE_PIECE = 1 << 10
INFLATE_STEP = 1 << 20
DOCUMENT_CAP = 1 << 30
HEAD_BYTES = 256 << 10
HEAD_RECORDS = 20
TAIL_BYTES = 4096
LIST_SIGN = "\x1f"
_JSON_START = re.compile(rb'(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*[\[{"0-9-])')
_SHAPE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)


@dataclass
class Reading:
    """What one file gave: rows by record type, the ledger row as it is now, rejects, and whether it starts anew."""

    row: dict[str, Any]
    rows: dict[str, list[tuple[Any, ...]]]
    rejects: list[tuple[int, int, int, str, str | None]] = field(default_factory=list)
    is_anew: bool = True


def _open(path: str) -> BinaryIO:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.fdopen(os.open(real_path(path), flags), "rb", buffering=512 << 10)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("not a regular file")
    return file


class _Capped(io.RawIOBase):
    """Inflated bytes of a gzip or zstd file, member after member, with an end where they grow beyond reason.

    What comes before a damage is handed on. Input goes in by small pieces, so that one piece cannot fill the memory.
    """

    def __init__(self, file: BinaryIO, size_bytes: int, is_gzip: bool) -> None:
        self._file = file
        self._is_gzip = is_gzip
        self._left = min(INFLATE_CAP, max(INFLATE_FREE, size_bytes * INFLATE_RATIO))
        self._inflater: Any = None
        self._rest = b""
        self._ready = b""
        self._is_ended = False
        self.is_broken = False
        self.is_bomb = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._is_ended:
            self._fill()
        data, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _fill(self) -> None:
        piece = self._rest or self._file.read(INFLATE_PIECE)
        self._rest = b""
        is_at_end = not piece
        if self._inflater is None:
            piece = piece.lstrip(b"\x00") if self._is_gzip else piece
            if piece:
                self._inflater = (
                    zlib.decompressobj(31)
                    if self._is_gzip
                    else zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
                )
        if self._inflater is None:
            self._is_ended = is_at_end
            return
        try:
            data = self._inflater.decompress(piece, INFLATE_STEP) if self._is_gzip else self._inflater.decompress(piece)
        except (zlib.error, zstandard.ZstdError):
            self._is_ended = self.is_broken = True
            return
        if self._inflater.eof:
            self._rest, self._inflater = self._inflater.unused_data, None
        elif self._is_gzip:
            self._rest = self._inflater.unconsumed_tail
        if is_at_end and not data and self._inflater is not None:
            self._is_ended = self.is_broken = True
        if len(data) > self._left:
            self._is_ended = self.is_bomb = True
        self._ready = data[: self._left]
        self._left -= len(self._ready)


def _inflate(file: BinaryIO, size_bytes: int) -> tuple[BinaryIO, _Capped | None]:
    magic = file.read(4)
    file.seek(0)
    is_gzip = magic[:2] == b"\x1f\x8b"
    if not is_gzip and magic != b"\x28\xb5\x2f\xfd":
        return file, None
    capped = _Capped(file, size_bytes, is_gzip)
    return io.BufferedReader(capped, 512 << 10), capped


def head_of(name: str, data: bytes, whole: Callable[[], bytes | None]) -> tuple[Head, bytes | None]:
    """What formats may look at, from the first bytes; `whole` gives all bytes when the file is one JSON value."""
    is_zip = data.startswith(b"PK\x03\x04")
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    records: list[dict[str, Any]] = []
    document: Any = None
    body: bytes | None = None
    if not is_zip:
        lines = data.split(b"\n")
        is_cut = len(data) >= HEAD_BYTES
        usable = [line for line in (lines[:-1] if is_cut and len(lines) > 1 else lines) if line.strip()]
        is_begun, is_within = False, False
        for number, line in enumerate(usable):
            is_object = may_hold_object(line)
            # A document with a list's items one a line: lines that are objects stand between lines that are none.
            is_within = is_within or (is_begun and (not is_object or line.rstrip().endswith(b",")))
            if is_object:
                with contextlib.suppress(Reject):
                    records.extend(decode_line(line)[0])
            is_begun = is_begun or (number == 0 and not records)
            if len(records) >= HEAD_RECORDS:
                break
        start = text.lstrip()[:1]
        is_single = len(usable) == 1 and len(records) == 1
        if start in ("{", "[") and (is_single or is_within or not records or start == "["):
            body = whole()
            if body is not None:
                try:
                    document = decode_document(body)
                except Reject:
                    document = None
        if document is not None and not is_single:
            records = []
    return Head(name, text, records[:HEAD_RECORDS], document, is_zip), body


def read_source(
    found: Found,
    before: dict[str, Any] | None,
    source_id: int,
    tool_rows: dict[str, str],
    make_emit: Callable[..., Emit] = Emit,
) -> Reading:
    """Read what is new in one file.

    `before` is the ledger's row of the file (None: never seen). `make_emit` makes what takes the facts; another
    than `Emit` may look at texts that go no further. Raises OSError only for a file that cannot be opened.
    """
    with _open(found.path) as file:
        raw_head = _head_bytes(file)
        file.seek(0)
        stream, capped = _inflate(file, found.size_bytes)
        is_broken = False
        if capped is not None:
            raw_head = _head_bytes(stream)
            is_broken = capped.is_broken
            file.seek(0)
            stream, capped = _inflate(file, found.size_bytes)

        if before and before["format"] and capped is None and _is_grown(file, before):
            fmt = by_name(before["format"])
            if fmt.unit == "line":
                file.seek(before["offset"])
                return _read_lines(found, file, None, fmt, before, before["source_id"], tool_rows, make_emit)
        file.seek(0)

        is_bomb = False

        def whole() -> bytes | None:
            nonlocal is_bomb
            file.seek(0)
            body_stream, cap = _inflate(file, found.size_bytes)
            body = body_stream.read(DOCUMENT_CAP + 1)
            is_bomb = cap is not None and cap.is_bomb
            return None if len(body) > DOCUMENT_CAP or is_bomb or (cap and cap.is_broken) else body

        name = Path(found.path).name.removesuffix(".gz").removesuffix(".zst")
        head, body = head_of(name, raw_head, whole)
        fmt_or_none = recognise(head)
        row = _blank_row(found, source_id)
        unknown: list[tuple[int, int, int, str, str | None]]
        if fmt_or_none is None:
            reason = _why_unknown(raw_head, found.is_named)
            reason = "truncated_archive" if is_broken else "inflates_too_far" if is_bomb else reason
            digest = hashlib.sha256(raw_head).hexdigest()
            unknown = [(source_id, 0, 0, reason, digest)] if reason else []
            row |= {"size_bytes": found.size_bytes, "mtime_ns": found.mtime_ns}
            is_whole = head.document is not None
            if reason == "unknown_format" and capped is None and b"\n" not in raw_head and not is_whole:
                return Reading(row | {"count_waiting": 1}, {})
            return Reading(row, {}, unknown)
        fmt = fmt_or_none
        row |= {"format": fmt.name, "is_experimental": int(fmt.is_experimental)}
        if fmt.unit == "container":
            body = body if body is not None else whole()
            row["tail_sha256"] = hashlib.sha256(body or b"").hexdigest()
            if before and before["format"] == fmt.name and before["tail_sha256"] == row["tail_sha256"]:
                touched = {
                    "size_bytes": found.size_bytes,
                    "mtime_ns": found.mtime_ns,
                    "inode": found.inode,
                    "is_gone": 0,
                }
                return Reading(before | touched, {}, is_anew=False)
            if is_bomb:
                unknown = [(source_id, 0, 0, "inflates_too_far", None)]
                return Reading(row | {"size_bytes": found.size_bytes, "mtime_ns": found.mtime_ns}, {}, unknown)
            return _read_container(found, fmt, row, head, body, make_emit(fmt, source_id, None, tool_rows))
        file.seek(0)
        stream, capped = _inflate(file, found.size_bytes)
        return _read_lines(found, stream, capped, fmt, row, source_id, tool_rows, make_emit)


def _head_bytes(stream: BinaryIO) -> bytes:
    """The first bytes; where they hold no whole line, on to the end of the first."""
    head = stream.read(HEAD_BYTES)
    return head + stream.readline(LINE_CAP) if len(head) == HEAD_BYTES and b"\n" not in head else head


def _why_unknown(head: bytes, is_named: bool) -> str | None:
    """Reason for a file that no format fits; None for one that is plainly no log and was not asked for by name."""
    if not head.strip():
        return None
    if head.startswith(b"version https://git-lfs"):
        return "git_lfs_pointer"
    if _JSON_START.match(head) or b'\n{"' in head:
        return "unknown_format"
    if b"\x00" in head[:4096]:
        return "binary" if is_named else None
    return "unknown_format" if is_named else None


def _blank_row(found: Found, source_id: int) -> dict[str, Any]:
    return {
        "source_id": source_id,
        "path": found.path,
        "source_file": found.source_file,
        "format": "",
        "is_experimental": 0,
        "is_gone": 0,
        "is_superseded": 0,
        "size_bytes": 0,
        "mtime_ns": 0,
        "inode": found.inode,
        "offset": 0,
        "tail_sha256": "",
        "chain": "",
        "count_lines": 0,
        "is_line_open": 0,
        "order_us": None,
        "order_sha256": "",
        "state": "{}",
        "count_carrying": 0,
        "count_waiting": 0,
        "nothing_types": "{}",
        "folded": "{}",
        "repair_kinds": "{}",
    }


def _is_grown(file: BinaryIO, before: dict[str, Any]) -> bool:
    """The bytes before the stored offset are still those that were read, none are gone, and the last line stands.

    A last line that was whole without a newline, and to which more than a newline was added, is another line now: the
    file is read anew.
    """
    offset = before["offset"]
    if os.fstat(file.fileno()).st_size < offset or not before["tail_sha256"]:
        return False
    if _tail(file, offset) != before["tail_sha256"]:
        return False
    file.seek(offset)
    return not before["is_line_open"] or file.readline(LINE_CAP) in (b"", b"\n")


def _tail(file: BinaryIO, offset: int) -> str:
    start = max(0, offset - TAIL_BYTES)
    file.seek(start)
    return hashlib.sha256(file.read(offset - start)).hexdigest()


def stands_for(present: dict[str, Any], gone: dict[str, Any]) -> bool:
    """The file of the ledger's row `present` begins with all that was read of the one that is `gone`.

    Both rows are of one format and begin with the same line. A packed file keeps no hash of its end: there equal
    numbers of lines and bytes have to do.
    """
    if gone["tail_sha256"] and present["tail_sha256"] == gone["tail_sha256"] and present["offset"] == gone["offset"]:
        return True
    if not gone["offset"] or present["offset"] < gone["offset"]:
        return False
    if not gone["tail_sha256"]:
        return bool(present["offset"] == gone["offset"] and present["count_lines"] == gone["count_lines"])
    try:
        with _open(present["path"]) as file:
            stream, _ = _inflate(file, present["size_bytes"])
            start = left = max(0, gone["offset"] - TAIL_BYTES)
            while left and (piece := stream.read(min(left, INFLATE_STEP))):
                left -= len(piece)
            return bool(hashlib.sha256(stream.read(gone["offset"] - start)).hexdigest() == gone["tail_sha256"])
    except OSError:
        return False


def lines_at(found: Found, numbers: set[int], cap: int) -> dict[int, bytes]:
    """The first `cap` bytes of lines of a file, by their 1-based numbers, as `read_source` counts them.

    OSError where the file cannot be opened.
    """
    lines: dict[int, bytes] = {}
    with _open(found.path) as file:
        stream, _ = _inflate(file, found.size_bytes)
        for number in range(1, max(numbers, default=0) + 1):
            line = piece = stream.readline(LINE_CAP)
            if not piece:
                break
            while len(piece) == LINE_CAP and not piece.endswith(b"\n"):
                piece = stream.readline(LINE_CAP)
            if number in numbers:
                lines[number] = line.removesuffix(b"\n")[:cap]
    return lines


def _read_lines(
    found: Found,
    stream: BinaryIO,
    capped: _Capped | None,
    fmt: Format,
    before: dict[str, Any],
    source_id: int,
    tool_rows: dict[str, str],
    make_emit: Callable[..., Emit],
) -> Reading:
    state = json.loads(before["state"])
    reader = fmt.reader(Source(found.path), state.get("reader"))
    emit = make_emit(fmt, source_id, state.get("pending"), tool_rows)
    chain = before["chain"]
    offset, number, is_open = before["offset"], before["count_lines"], bool(before["is_line_open"])
    order_sha = before["order_sha256"]
    repairs: dict[str, int] = json.loads(before["repair_kinds"])
    nothing: dict[str, int] = json.loads(before["nothing_types"])
    rejects: list[tuple[int, int, int, str, str | None]] = []
    waiting = 0

    def reject(reason: str, sha256: str) -> None:
        rejects.append((source_id, number, offset, reason, sha256))

    while True:
        raw = stream.readline(LINE_CAP)
        if not raw:
            break
        length = len(raw)
        if length >= LINE_CAP and not raw.endswith(b"\n"):
            digest = hashlib.sha256(raw)
            while (more := stream.readline(LINE_CAP)) and not more.endswith(b"\n"):
                digest.update(more)
                length += len(more)
            length += len(more)
            number += 1
            if more or capped is not None:
                digest.update(more)
                reject("too_long", digest.hexdigest())
                offset += length
                continue
            waiting = 1
            number -= 1
            break
        has_newline = raw.endswith(b"\n")
        line = raw[:-1] if has_newline else raw
        if is_open and not line.strip():
            offset += length
            is_open = not has_newline
            continue
        if not is_open:
            number += 1
        try:
            objects, kinds = decode_line(line)
        except Reject as error:
            # Of a line that is no object nothing that is added makes one.
            if not has_newline and capped is None and error.reason != "not_an_object":
                waiting = 1
                number -= 0 if is_open else 1
                break
            reject(error.reason, hashlib.sha256(line).hexdigest())
            objects, kinds = None, ()
        if objects is not None and not has_newline and capped is None and "trailing_garbage" in kinds:
            waiting = 1
            number -= 0 if is_open else 1
            break
        if not order_sha:
            order_sha = hashlib.sha256(line.removesuffix(b"\r")).hexdigest()
        if fmt.needs_chain:
            chain = hashlib.blake2b(chain.encode() + line.removesuffix(b"\r"), digest_size=16).hexdigest()
            emit.chain = chain
        if objects is not None:
            if not objects:
                nothing["blank"] = nothing.get("blank", 0) + (0 if is_open else 1)
                if capped is not None and nothing["blank"] >= BLANKS_CAP:
                    capped.is_bomb = True
                    offset += length
                    break
            elif _feed(reader, objects, emit, number, reject, line):
                for kind in kinds:
                    repairs[kind] = repairs.get(kind, 0) + 1
        offset += length
        is_open = not has_newline
    emit.close()
    if capped is not None and (capped.is_broken or capped.is_bomb):
        rejects.append((source_id, 0, offset, "inflates_too_far" if capped.is_bomb else "truncated_archive", None))
    for label, count in emit.nothing_types.items():
        nothing[label] = nothing.get(label, 0) + count
    folded: dict[str, int] = json.loads(before["folded"])
    for reason, count in emit.fold_reasons.items():
        folded[reason] = folded.get(reason, 0) + count
    tail = ""
    if capped is None:
        with contextlib.closing(_open(found.path)) as again:
            tail = _tail(again, offset)
    row = before | {
        "source_file": before["source_file"],
        "is_gone": 0,
        "size_bytes": found.size_bytes,
        "mtime_ns": found.mtime_ns,
        "inode": found.inode,
        "offset": offset,
        "tail_sha256": tail,
        "chain": chain,
        "count_lines": number,
        "is_line_open": int(is_open),
        "order_us": before["order_us"] if before["order_us"] is not None else emit.first_ts,
        "order_sha256": order_sha,
        "state": _dump({"reader": kept_state(reader.state), "pending": emit.pending}),
        "count_carrying": before["count_carrying"] + emit.lines_used,
        "count_waiting": waiting,
        "nothing_types": _dump(nothing),
        "folded": _dump(folded),
        "repair_kinds": _dump(repairs),
    }
    return Reading(row, emit.rows, rejects, is_anew=before["offset"] == 0)


def _feed(
    reader: Any, objects: list[dict[str, Any]], emit: Emit, number: int, reject: Callable[[str, str], None], line: bytes
) -> bool:
    emit.at(number)
    try:
        for item in objects:
            reader.read(item, emit)
    except Reject as error:
        emit.undo()
        reject(error.reason, hashlib.sha256(line).hexdigest())
        return False
    except _SHAPE_ERRORS as error:
        emit.undo()
        reason = "too_deep" if isinstance(error, RecursionError) else "wrong_shape"
        reject(reason, hashlib.sha256(line).hexdigest())
        return False
    return True


def _read_container(
    found: Found, fmt: Format, row: dict[str, Any], head: Head, body: bytes | None, emit: Emit
) -> Reading:
    source_id = row["source_id"]
    row = row | {"size_bytes": found.size_bytes, "mtime_ns": found.mtime_ns}
    if body is None:
        return Reading(row, {}, [(source_id, 0, 0, "unreadable_container", None)])
    digest = hashlib.sha256(body).hexdigest()
    reader = fmt.reader(Source(found.path))
    rejects: list[tuple[int, int, int, str, str | None]] = []
    try:
        document = head.document if head.document is not None else fmt.load(body)
        reader.read_document(document, emit)
        emit.close()
    except (Reject, *_SHAPE_ERRORS, EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        line = emit.line
        emit.undo()
        emit.close()
        reason = error.reason if isinstance(error, Reject) else "wrong_shape"
        rejects.append((source_id, line, 0, reason, digest))
    rejects.extend((source_id, line, 0, reason, None) for line, reason in emit.rejects)
    # A reject of the whole file (line 0) is no record of it.
    count_rejected = sum(1 for reject in rejects if reject[1])
    count = emit.lines_used + sum(emit.nothing_types.values()) + sum(emit.fold_reasons.values()) + count_rejected
    row |= {
        "order_us": None if emit.place else emit.first_ts,
        "order_sha256": emit.place + hashlib.sha256(body.split(b"\n", 1)[0]).hexdigest(),
        "count_lines": count,
        "count_carrying": emit.lines_used,
        "nothing_types": _dump(emit.nothing_types),
        "folded": _dump(emit.fold_reasons),
    }
    return Reading(row, emit.rows, rejects)


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def counts(text: str) -> dict[str, int]:
    """A ledger column that holds counts by name."""
    parsed: dict[str, int] = json.loads(text)
    return parsed


def is_continued(found: Found, before: dict[str, Any]) -> bool:
    """Whether `read_source` would go on where it stopped: lines, not compressed, the old bytes as they were."""
    if not before["format"] or by_name(before["format"]).unit != "line":
        return False
    try:
        with _open(found.path) as file:
            return _inflate(file, found.size_bytes)[1] is None and _is_grown(file, before)
    except OSError:
        return False


def frame_of(rows: dict[str, list[tuple[Any, ...]]]) -> pl.DataFrame:
    """Rows by type to one frame in the order of `tables.RECORDS`."""
    parts = [_columns_of(table, rows[kind]) for kind, table in RECORD_TYPES.items() if rows.get(kind)]
    return RECORDS.conform(pl.concat(parts, how="diagonal")) if parts else RECORDS.empty()


def frames_of(readings: Sequence[Reading]) -> list[pl.DataFrame]:
    """`frame_of` of each reading, made at once: a frame of few rows costs as much as one of many."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for reading in readings:
        for kind, tuples in reading.rows.items():
            rows.setdefault(kind, []).extend(tuples)
    parts = frame_of(rows).partition_by("source_id", maintain_order=True, as_dict=True)
    none = RECORDS.empty()
    return [parts.get((reading.row["source_id"],), none) for reading in readings]


def _columns_of(table: Table, tuples: list[tuple[Any, ...]]) -> pl.DataFrame:
    """One frame of rows of one type. Most columns of a file hold one value: they are made of that alone or left out."""
    told: list[pl.Series] = []
    constant: list[pl.Expr] = []
    for column, values in zip(table.columns, zip(*tuples, strict=True), strict=True):
        if column.dtype == LIST:
            told.append(_lists_of(column.name, values))
        elif column.name == "ts":
            told.append(pl.Series("ts", values, dtype=INT))
            constant.append(pl.from_epoch("ts", "us").dt.replace_time_zone("UTC"))
        elif len(values) == 1 or values.count(values[0]) != len(values):
            told.append(pl.Series(column.name, values, dtype=column.dtype))
        elif values[0] is not None:
            constant.append(pl.lit(values[0], dtype=column.dtype).alias(column.name))
    return pl.DataFrame(told).with_columns(constant)


def _lists_of(name: str, values: Sequence[list[str]]) -> pl.Series:
    """A column of lists of texts, by way of one text each: polars takes ten times as long for lists."""
    joined = ["".join([LIST_SIGN + text for text in texts]) for texts in values]
    if sum(text.count(LIST_SIGN) for text in joined) != sum(map(len, values)):
        return pl.Series(name, values, dtype=LIST)
    return pl.Series(name, joined, dtype=STR).str.split(LIST_SIGN).list.slice(1)
