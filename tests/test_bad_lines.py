"""What becomes of every kind of bad line and odd file: repaired, rejected with its place, waiting or nothing.

A room of its own because the promise is about the whole way from bytes on disk to the tables: the good lines around a
bad one are read, no file and no ingest fails, and every line is accounted for. The kinds are those of the bad-lines
page; one ingest reads a file of each.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
import zstandard

from lines import assert_same, ingest, tables_of
from loopstats import cli, errors, rule, run
from loopstats import ingest as reading
from loopstats.config import Settings
from loopstats.decode import decode_line, may_hold_object
from loopstats.store import Lake

READ, REPAIRED, REJECTED, NOTHING = "read", "repaired", "rejected", "nothing"
NOBODY = 65534


def step(session: str, call: str, **more: Any) -> bytes:
    """A whole line of the native log, without its newline."""
    record = {"v": 1, "type": "step", "session": session, "id": call, "tool": "Edit", "outcome": "success"}
    return json.dumps(record | more, separators=(",", ":"), ensure_ascii=False).encode()


def raw(**values: bytes) -> bytes:
    """The bad line of a file: `exit_code`, `model` and `extra`, which no reader knows, with these bytes as values."""
    fields = {"exit_code": b"7", "model": b'"t"', "extra": b"0"} | values
    return step("SESSION", "bad")[:-1] + b"".join(b',"%s":%s' % (k.encode(), v) for k, v in fields.items()) + b"}"


class Kind(NamedTuple):
    """One kind of bad line: the bytes between two good lines, what becomes of them, and what the step then holds."""

    name: str
    line: bytes
    fate: str
    word: str = ""
    exit_code: int | None = 7
    model: str | None = "t"
    calls: tuple[str, ...] = ("bad",)


def deep(levels: int) -> bytes:
    return raw(extra=b"[" * levels + b"]" * levels)


PAGE = (
    Kind("truncated line", raw()[:-20], REJECTED, "truncated"),
    Kind("top-level 42", b"42", REJECTED, "not_an_object"),
    Kind("top-level null", b"null", REJECTED, "not_an_object"),
    Kind("array line", b"[" + raw() + b"]", REJECTED, "not_an_object"),
    Kind("blank line", b"", NOTHING, "blank"),
    Kind("spaces only", b"  \t ", NOTHING, "blank"),
    Kind("two objects on a line", raw() + step("SESSION", "second"), REPAIRED, "two_objects", calls=("bad", "second")),
    Kind("trailing garbage", raw() + b" xyz", REPAIRED, "trailing_garbage"),
    Kind("CRLF", raw() + b"\r", REPAIRED, "crlf"),
    Kind("BOM on the line", b"\xef\xbb\xbf" + raw(), REPAIRED, "bom"),
    Kind("bad UTF-8, needed field", raw(model=b'"a\xffb"'), REPAIRED, "utf8", model="a\ufffdb"),
    Kind("bad UTF-8, skipped field", raw(extra=b'"a\xffb"'), REPAIRED, "utf8"),
    Kind("lone surrogate, needed", raw(model=rb'"a\ud83d b"'), REPAIRED, "surrogate", model="a\ufffd b"),
    Kind("lone surrogate, skipped", raw(extra=rb'"a\ud83d b"'), REPAIRED, "surrogate"),
    Kind("\\u0000, needed", raw(model=rb'"a\u0000b"'), READ, model="a\x00b"),
    Kind("raw NUL in string", raw(model=b'"a\x00b"'), REPAIRED, "control", model="a\x00b"),
    Kind("line of NUL bytes", b"\x00" * 64, REJECTED, "nul_block"),
    Kind("raw tab in string", raw(model=b'"a\tb"'), REPAIRED, "control", model="a\tb"),
    Kind("raw U+2028", raw(model='"a\u2028b"'.encode()), READ, model="a\u2028b"),
    Kind("duplicate key", raw(extra=b'0,"model":"second"'), REPAIRED, "duplicate_key", model="second"),
    Kind("escaped key", raw().replace(b'"model"', rb'"mod\u0065l"'), READ),
    Kind("int 2**63", raw(exit_code=b"9223372036854775808"), REPAIRED, "number", exit_code=None),
    Kind("int 2**70", raw(exit_code=b"1180591620717411303424"), REPAIRED, "number", exit_code=None),
    Kind("int 1e400", raw(exit_code=b"1e400"), REPAIRED, "number", exit_code=None),
    Kind("float 7.0", raw(exit_code=b"7.0"), READ, exit_code=7),
    Kind("float 7.5", raw(exit_code=b"7.5"), READ, exit_code=None),
    Kind('string "7"', raw(exit_code=b'"7"'), READ, exit_code=7),
    Kind("NaN", raw(exit_code=b"NaN"), REPAIRED, "not_a_number", exit_code=None),
    Kind("true as int", raw(exit_code=b"true"), READ, exit_code=None),
    Kind("text is number", raw(model=b"5"), READ, model="5"),
    Kind("text is object", raw(model=b'{"a":1}'), READ, model=None),
    Kind("text is null", raw(model=b"null"), READ, model=None),
    Kind("bad escape, skipped", raw(extra=rb'"a\qb"'), REJECTED, "invalid_json"),
    Kind("deep nesting 2000", deep(2000), REJECTED, "too_deep"),
    Kind("deep nesting 100000", deep(100_000), REJECTED, "too_deep"),
    Kind("line of 20 MB", raw(extra=b'"' + b"x" * 20_000_000 + b'"'), READ),
    Kind("line of 40 MB", raw(extra=b'"' + b"x" * 40_000_000 + b'"'), READ),
    Kind("leading zeros", raw(exit_code=b"007"), REJECTED, "invalid_json"),
    Kind("comment", b"// " + raw(), REJECTED, "invalid_json"),
)
BESIDE = (
    Kind("Infinity", raw(exit_code=b"-Infinity"), REPAIRED, "not_a_number", exit_code=None),
    Kind("number of 5000 digits", raw(exit_code=b"9" * 5000), REPAIRED, "number", exit_code=None),
    Kind("NaN as a word in a text", raw(model=b'"a\tNaN b"'), REPAIRED, "control", model="a\tNaN b"),
    Kind("raw carriage return", raw(model=b'"a\rb"'), REPAIRED, "control", model="a\rb"),
    Kind("NUL block before an object", b"\x00" * 16 + raw(), REPAIRED, "control"),
    Kind(
        "three objects",
        raw() + step("SESSION", "second") + b" " + step("SESSION", "third"),
        REPAIRED,
        "two_objects",
        calls=("bad", "second", "third"),
    ),
    Kind("duplicate key in an object below", raw(extra=b'{"a":1,"b":[{"c":1,"c":2}]}'), REPAIRED, "duplicate_key"),
    Kind("a text that begins with a colon", raw(model=b'":t"', extra=b'[":",":"]'), READ, model=":t"),
    Kind("a key that ends in a backslash", raw(extra=rb'{"a\\":":","a":1}'), READ),
    Kind("JSON inside a text is no key", raw(extra=rb'"{\"model\":1,\"model\":2}"'), READ),
    Kind("deep, but within the limit", deep(190), READ),
    Kind("just too deep", deep(210), REJECTED, "too_deep"),
    Kind("opened and never closed", raw(extra=b"[" * 50_000), REJECTED, "too_deep"),
    Kind("torn in a word", raw(exit_code=b"tru")[: -len(b',"model":"t","extra":0}')], REJECTED, "truncated"),
    Kind("torn in an escape", raw(extra=rb'"a\u12"')[:-2], REJECTED, "truncated"),
    Kind("torn, then another whole record", raw()[:-4] + step("SESSION", "second"), REJECTED, "invalid_json"),
    Kind("a quoted string", b'"text"', REJECTED, "not_an_object"),
    Kind("single quotes", b"{'v':1}", REJECTED, "invalid_json"),
    Kind(
        "a step without its tool",
        b'{"v":1,"type":"step","session":"SESSION","id":"bad","outcome":"success"}',
        REJECTED,
        "step_without_tool",
    ),
    Kind("no session", b'{"v":1,"type":"step","id":"bad","tool":"Edit","outcome":"success"}', REJECTED, "no_session"),
    Kind("a type of another version", b'{"v":1,"type":"dream","session":"SESSION"}', NOTHING, "dream"),
)
KINDS = PAGE + BESIDE


class Places(NamedTuple):
    """The tables of the one ingest of all kinds, and where each file starts and ends."""

    tables: dict[str, pl.DataFrame]
    files: dict[str, str]
    lines: dict[str, bytes]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("bad-lines")
    files, bad = {}, {}
    for number, kind in enumerate(KINDS):
        path = folder / "logs" / f"{number:02d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        session = f"k{number:02d}"
        line = kind.line.replace(b"SESSION", session.encode())
        path.write_bytes(step(session, "before") + b"\n" + line + b"\n" + step(session, "after") + b"\n")
        files[kind.name], bad[kind.name] = path.as_posix(), line
    ingest(folder / "lake", folder / "logs")
    return Places(tables_of(folder / "lake"), files, bad)


def test_the_page_has_39_kinds() -> None:
    assert len({kind.name for kind in PAGE}) == len(PAGE) == 39
    assert len({kind.name for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_of_bad_line(lake: Places, kind: Kind) -> None:
    file = lake.files[kind.name]
    steps = lake.tables["steps"].filter(pl.col("source_file") == file).sort("step")
    rejects = lake.tables["rejects"].filter(pl.col("source_file") == file).to_dicts()
    (source,) = lake.tables["sources"].filter(pl.col("source_file") == file).to_dicts()
    assert (source["format"], source["count_read"], source["count_waiting"]) == ("native", 3, 0)
    assert source["count_read"] == sum(
        source[f"count_{name}"] for name in ("used", "nothing", "folded", "rejected", "waiting")
    )
    is_used = kind.fate in (READ, REPAIRED)
    expected = ["before", *(kind.calls if is_used else ()), "after"]
    assert steps["call_id"].to_list() == expected
    assert steps["source_line"].to_list() == [1, *([2] * len(expected[1:-1])), 3]
    assert source["count_used"] == (3 if is_used else 2)
    assert json.loads(source["repair_kinds"]) == ({kind.word: 1} if kind.fate == REPAIRED else {})
    assert source["count_repaired"] == (1 if kind.fate == REPAIRED else 0)
    assert json.loads(source["nothing_types"]) == ({kind.word: 1} if kind.fate == NOTHING else {})
    if kind.fate == REJECTED:
        line, offset = lake.lines[kind.name], len(step("k00", "before")) + 1
        assert rejects == [
            {
                "source_file": file,
                "source_line": 2,
                "byte_offset": offset,
                "reason": kind.word,
                "bytes_sha256": hashlib.sha256(line).hexdigest(),
            }
        ]
    else:
        assert rejects == []
    if is_used:
        (row,) = steps.filter(pl.col("call_id") == "bad").to_dicts()
        model = None if kind.model is None else rule.safe_label(kind.model)
        assert (row["exit_code"], row["model"], row["outcome"]) == (kind.exit_code, model, "success")


def test_no_line_with_an_object_is_passed_over() -> None:
    assert all(may_hold_object(kind.line) for kind in (*PAGE, *BESIDE) if kind.fate in (READ, REPAIRED))
    assert not [line for line in (b"", b"{", b'  {"a": [', b"}", b'"a": {}') if may_hold_object(line)]


def test_the_summary_counts_rejects_and_repairs(lake: Places) -> None:
    count_rejected = sum(kind.fate == REJECTED for kind in KINDS)
    count_repaired = sum(kind.fate == REPAIRED for kind in KINDS)
    assert lake.tables["rejects"].height == count_rejected > 0
    sources = lake.tables["sources"]
    assert (sources["count_rejected"].sum(), sources["count_repaired"].sum()) == (count_rejected, count_repaired)


HOSTILE = (b"{" + b'"a":"' * 3000, b"[" * 5000, b"{" * 5000, b'{"a":' * 5000, b"\xff" * 5000, b"-" * 5000)


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_are_rejected_in_one_pass(line: bytes) -> None:
    with pytest.raises(errors.Reject):
        decode_line(line)


def write(path: Path, *lines: bytes, end: bytes = b"\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(lines) + end)
    return path


def calls_of(lake: Path) -> list[str]:
    return tables_of(lake)["steps"]["call_id"].to_list()


def source_of(lake: Path) -> dict[str, Any]:
    (row,) = tables_of(lake)["sources"].to_dicts()
    return row


def tallies(lake: Path) -> dict[str, int]:
    row = source_of(lake)
    return {name: row[f"count_{name}"] for name in ("read", "used", "waiting", "rejected")}


def rejects_of(lake: Path) -> list[tuple[str, int, int, str]]:
    rows = tables_of(lake)["rejects"].rows()
    return sorted((Path(file).name, line, offset, reason) for file, line, offset, reason, _ in rows)


def test_a_line_beyond_the_cap_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LINE_CAP", 1000)
    long = step("s", "long", extra="x" * 5000)
    logs = write(tmp_path / "logs" / "a.jsonl", step("s", "one"), long, step("s", "two"))
    write(tmp_path / "logs" / "b.jsonl", step("t", "exact", extra="x" * (999 - len(step("t", "exact", extra="")))))
    ingest(tmp_path / "lake", logs.parent)
    assert calls_of(tmp_path / "lake") == ["one", "two", "exact"]
    assert rejects_of(tmp_path / "lake") == [("a.jsonl", 2, len(step("s", "one")) + 1, "too_long")]
    (digest,) = tables_of(tmp_path / "lake")["rejects"]["bytes_sha256"]
    assert digest == hashlib.sha256(long + b"\n").hexdigest()


def test_a_line_beyond_the_cap_waits_for_its_newline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LINE_CAP", 1000)
    log = write(tmp_path / "logs" / "a.jsonl", step("s", "one"), b'{"x":"' + b"x" * 3000, end=b"")
    ingest(tmp_path / "lake", log)
    assert (source_of(tmp_path / "lake")["count_waiting"], rejects_of(tmp_path / "lake")) == (1, [])
    with log.open("ab") as file:
        file.write(b'"}\n' + step("s", "two") + b"\n")
    ingest(tmp_path / "lake", log)
    assert calls_of(tmp_path / "lake") == ["one", "two"]
    assert [reject[3] for reject in rejects_of(tmp_path / "lake")] == ["too_long"]
    assert source_of(tmp_path / "lake")["count_read"] == 3


def test_the_last_line_waits_until_it_is_whole(tmp_path: Path) -> None:
    half = step("s", "two")[:40]
    log = write(tmp_path / "logs" / "a.jsonl", step("s", "one"), half, end=b"")
    ingest(tmp_path / "lake", log)
    assert tallies(tmp_path / "lake") == {"read": 2, "used": 1, "waiting": 1, "rejected": 0}
    with log.open("ab") as file:
        file.write(step("s", "two")[40:])
    ingest(tmp_path / "lake", log)
    assert tallies(tmp_path / "lake") == {"read": 2, "used": 2, "waiting": 0, "rejected": 0}
    with log.open("ab") as file:
        file.write(b"\n" + half + b"\n" + step("s", "three") + b"\n")
    ingest(tmp_path / "lake", log)
    assert calls_of(tmp_path / "lake") == ["one", "two", "three"]
    assert [reject[1::2] for reject in rejects_of(tmp_path / "lake")] == [(3, "truncated")]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("whole", [b'{"config": {"a": 1}}', b'[{"config": 1}]', b"[1, 2]", b' {"config": 1} '])
def test_a_whole_document_of_no_known_format_does_not_wait(tmp_path: Path, name: str, whole: bytes) -> None:
    log = write(tmp_path / "logs" / name, whole[:5], end=b"")
    ingest(tmp_path / "lake", log)
    assert (source_of(tmp_path / "lake")["count_waiting"], rejects_of(tmp_path / "lake")) == (1, [])
    write(log, whole, end=b"")
    ingest(tmp_path / "lake", log)
    assert source_of(tmp_path / "lake")["count_waiting"] == 0
    assert rejects_of(tmp_path / "lake") == [(name, 0, 0, "unknown_format")]


def test_a_first_line_of_no_known_format_may_be_followed_by_one_that_is(tmp_path: Path) -> None:
    log = write(tmp_path / "logs" / "a.jsonl", b'{"config": 1}', end=b"")
    ingest(tmp_path / "lake", log)
    with log.open("ab") as file:
        file.write(b"\n" + step("s", "one") + b"\n")
    ingest(tmp_path / "lake", log)
    assert calls_of(tmp_path / "lake") == ["one"]
    assert "unknown_format" not in [reject[3] for reject in rejects_of(tmp_path / "lake")]


@pytest.mark.parametrize("last", [b"[1, 2]", b'"text"', b"null", b"42"])
def test_a_last_line_that_is_no_object_does_not_wait(tmp_path: Path, last: bytes) -> None:
    log = write(tmp_path / "logs" / "a.json", step("s", "one"), last, end=b"")
    ingest(tmp_path / "lake", log)
    assert tallies(tmp_path / "lake") == {"read": 2, "used": 1, "waiting": 0, "rejected": 1}
    for piece in (b"7", b"\n" + step("s", "two") + b"\n"):
        with log.open("ab") as file:
            file.write(piece)
        ingest(tmp_path / "lake", log)
    assert calls_of(tmp_path / "lake") == ["one", "two"]
    assert [reject[1::2] for reject in rejects_of(tmp_path / "lake")] == [(2, "not_an_object")]


def test_a_repaired_last_line_needs_no_newline(tmp_path: Path) -> None:
    repaired = raw(model=b'"a\tb"').replace(b"SESSION", b"s")
    log = write(tmp_path / "logs" / "a.jsonl", step("s", "one"), repaired, end=b"")
    ingest(tmp_path / "lake", log)
    assert calls_of(tmp_path / "lake") == ["one", "bad"]
    assert json.loads(source_of(tmp_path / "lake")["repair_kinds"]) == {"control": 1}


@pytest.mark.parametrize("more", [b" garbage", step("s", "second"), b"\r", b" {", b"\x00\x00"])
def test_what_is_added_to_a_whole_last_line(tmp_path: Path, more: bytes) -> None:
    log = write(tmp_path / "grown" / "a.jsonl", step("s", "zero"), step("s", "one"), end=b"")
    ingest(tmp_path / "lake", log)
    assert calls_of(tmp_path / "lake") == ["zero", "one"]
    for piece in (more, b"\n" + step("s", "two") + b"\n"):
        with log.open("ab") as file:
            file.write(piece)
        ingest(tmp_path / "lake", log)
    once = write(tmp_path / "once" / "a.jsonl", step("s", "zero"), step("s", "one") + more, step("s", "two"))
    ingest(tmp_path / "lake-once", once)
    assert_same(tables_of(tmp_path / "lake", is_placeless=True), tables_of(tmp_path / "lake-once", is_placeless=True))
    counted = [name for name in source_of(tmp_path / "lake") if name.startswith("count_")]
    grown, whole = source_of(tmp_path / "lake"), source_of(tmp_path / "lake-once")
    assert {name: grown[name] for name in counted} == {name: whole[name] for name in counted}


def test_compressed_files_are_read_and_are_final(tmp_path: Path) -> None:
    lines = [step("S", str(n)) + b"\n" for n in range(3)]
    logs = tmp_path / "logs"
    logs.mkdir()

    def body(session: bytes, *more: bytes) -> bytes:
        return b"".join([*lines, *more]).replace(b'"S"', b'"%s"' % session)

    (logs / "a.jsonl.gz").write_bytes(gzip.compress(body(b"a")))
    (logs / "b.jsonl.zst").write_bytes(zstandard.compress(body(b"b")))
    (logs / "c.jsonl.gz").write_bytes(b"".join(map(gzip.compress, body(b"c").splitlines(keepends=True))))
    (logs / "d.jsonl.zst").write_bytes(b"".join(map(zstandard.compress, body(b"d").splitlines(keepends=True))))
    (logs / "e-named-without-ending").write_bytes(gzip.compress(body(b"e")))
    (logs / "f.jsonl.gz").write_bytes(gzip.compress(body(b"f", b'{"v":1,"ty')))
    ingest(tmp_path / "lake", logs)
    counts = tables_of(tmp_path / "lake")["sessions"].select("session_id", "count_steps").rows()
    assert sorted(counts) == [(session, 3) for session in "abcdef"]
    assert rejects_of(tmp_path / "lake") == [("f.jsonl.gz", 4, len(body(b"f")), "truncated")]
    sources = tables_of(tmp_path / "lake")["sources"]
    assert (sources["count_waiting"].sum(), sources["count_rejected"].sum()) == (0, 1)


@pytest.mark.parametrize("packed", ["gz", "zst"])
def test_a_cut_archive_gives_what_it_holds_and_says_so(tmp_path: Path, packed: str) -> None:
    random = [hashlib.shake_256(str(n).encode()).hexdigest(5_000) for n in range(200)]
    whole = b"".join(step("s", str(n), extra=text) + b"\n" for n, text in enumerate(random))
    data = gzip.compress(whole) if packed == "gz" else zstandard.compress(whole)
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / f"a.jsonl.{packed}"
    path.write_bytes(data[: len(data) // 2])
    ingest(tmp_path / "lake", path)
    count = len(calls_of(tmp_path / "lake"))
    assert 50 < count < 150
    assert "truncated_archive" in {reject[3] for reject in rejects_of(tmp_path / "lake")}
    path.write_bytes(data)
    ingest(tmp_path / "lake", path)
    assert len(calls_of(tmp_path / "lake")) == 200
    assert rejects_of(tmp_path / "lake") == []


@pytest.mark.parametrize("packed", ["gz", "zst"])
def test_an_archive_cut_at_its_start_is_rejected_whole(tmp_path: Path, packed: str) -> None:
    data = gzip.compress(step("s", "a") + b"\n") if packed == "gz" else zstandard.compress(step("s", "a") + b"\n")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / f"a.jsonl.{packed}").write_bytes(data[:6])
    ingest(tmp_path / "lake", tmp_path / "logs")
    assert rejects_of(tmp_path / "lake") == [(f"a.jsonl.{packed}", 0, 0, "truncated_archive")]


def test_a_bomb_ends_at_its_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "INFLATE_RATIO", 10)
    monkeypatch.setattr(reading, "INFLATE_FREE", 40_960)
    whole = b"".join(step("s", str(n)) + b"\n" for n in range(3)) + b"\n" * 5_000_000
    (tmp_path / "logs").mkdir()
    for packed, data in (("gz", gzip.compress(whole)), ("zst", zstandard.compress(whole))):
        (tmp_path / "logs" / f"a.jsonl.{packed}").write_bytes(data)
    ingest(tmp_path / "lake", tmp_path / "logs")
    assert calls_of(tmp_path / "lake") == ["0", "1", "2"]
    assert [(reject[0], reject[3]) for reject in rejects_of(tmp_path / "lake")] == [
        ("a.jsonl.gz", "inflates_too_far"),
        ("a.jsonl.zst", "inflates_too_far"),
    ]


def test_odd_files_beside_a_good_one(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    good = write(logs / "good.jsonl", step("good", "one"))
    write(logs / "folder.jsonl" / "inner.jsonl", step("inner", "one"))
    (logs / "empty.jsonl").write_bytes(b"")
    (logs / "blank.jsonl").write_bytes(b"\n\n \n")
    (logs / "empty-folder").mkdir()
    (logs / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40)
    (logs / "notes.txt").write_text("no log at all\n", encoding="utf-8")
    (logs / "other.jsonl").write_text('{"a":1}\n', encoding="utf-8")
    (logs / "pointer.jsonl").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", encoding="utf-8")
    os.mkfifo(logs / "pipe.jsonl")
    (logs / "link.jsonl").symlink_to(good)
    (logs / "dangling.jsonl").symlink_to(logs / "nowhere")
    (logs / "link-folder").symlink_to(logs / "folder.jsonl", target_is_directory=True)
    summary = ingest(tmp_path / "lake", logs)
    assert sorted(tables_of(tmp_path / "lake")["sessions"]["session_id"]) == ["good", "inner"]
    assert rejects_of(tmp_path / "lake") == [
        ("dangling.jsonl", 0, 0, "link"),
        ("link-folder", 0, 0, "link"),
        ("link.jsonl", 0, 0, "link"),
        ("other.jsonl", 0, 0, "unknown_format"),
        ("pipe.jsonl", 0, 0, "not_a_file"),
        ("pointer.jsonl", 0, 0, "git_lfs_pointer"),
    ]
    assert summary["files_skipped"] == 4
    again = ingest(tmp_path / "lake", logs)
    assert (again["files_new"], again["rejects"]) == (0, [])
    assert len(rejects_of(tmp_path / "lake")) == 6


def documents() -> dict[str, Any]:
    """Containers whose lists hold objects that look like lines of other formats, and one that is a list."""

    def message(role: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "content": "x", **more}

    shell = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "make"}'}}
    asked, answered = message("assistant", tool_calls=[shell]), message("tool", tool_call_id="c1")
    block = {"type": "tool_use", "id": "c1", "name": "Edit", "input": {"file_path": "a.py"}}
    record = {"type": "assistant", "uuid": "u1", "sessionId": "s1", "message": {"id": "m1", "content": [block]}}
    step = {
        "step_id": 1,
        "source": "agent",
        "message": "x",
        "tool_calls": [{"tool_call_id": "c1", "function_name": "ls"}],
    }
    return {
        "mini-swe-agent": {"trajectory_format": "mini-swe-agent-1.1", "messages": [message("user"), asked, answered]},
        "tau-bench": [{"task_id": 1, "reward": 1.0, "traj": [asked, answered]}, {"task_id": 2, "traj": [asked]}],
        "atif": {"schema_version": "ATIF-v1.4", "session_id": "s", "agent": {}, "steps": [step, step | {"step_id": 2}]},
        "claude-code-array": [record, record | {"uuid": "u2"}],
    }


def layouts(document: Any) -> dict[str, str]:
    """The same JSON value on one line, indented, and with the items of its lists one a line."""
    if isinstance(document, dict):
        told = [f'"{key}": {json.dumps(value)}' for key, value in document.items() if not isinstance(value, list)]
        lists = [
            f'"{key}": [\n' + ",\n".join(map(json.dumps, value)) + "\n]"
            for key, value in document.items()
            if isinstance(value, list)
        ]
        by_line = "{" + ",\n".join(told + lists) + "}"
    else:
        by_line = "[\n" + ",\n".join(map(json.dumps, document)) + "\n]"
    return {"one line": json.dumps(document), "indented": json.dumps(document, indent=2), "by line": by_line}


@pytest.mark.parametrize("name", documents())
def test_a_document_is_read_the_same_however_it_is_laid_out(name: str, tmp_path: Path) -> None:
    read = {}
    for layout, text in layouts(documents()[name]).items():
        assert json.loads(text) == documents()[name]
        path = tmp_path / layout / "log.json"
        path.parent.mkdir()
        path.write_text(text)
        lake = tmp_path / f"lake {layout}"
        ingest(lake, path)
        assert source_of(lake)["format"] == name
        read[layout] = tables_of(lake)["steps"].drop("source_file").rows(), tallies(lake)
    assert read["one line"][0]
    assert read["one line"] == read["indented"] == read["by line"]


def test_a_file_that_is_asked_for_by_name_is_rejected_with_its_reason(tmp_path: Path) -> None:
    picture, notes = tmp_path / "picture.png", tmp_path / "notes.txt"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40)
    notes.write_text("no log at all\n", encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    ingest(tmp_path / "lake", picture, notes, tmp_path / "pipe")
    assert rejects_of(tmp_path / "lake") == [
        ("notes.txt", 0, 0, "unknown_format"),
        ("picture.png", 0, 0, "binary"),
        ("pipe", 0, 0, "not_a_file"),
    ]


def test_an_empty_folder_gives_an_empty_lake(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    summary = ingest(tmp_path / "lake", tmp_path / "logs")
    assert (summary["files_new"], summary["records"], summary["rejects"]) == (0, 0, [])
    assert all(frame.height == 0 for frame in tables_of(tmp_path / "lake").values())


def test_a_file_that_was_empty_is_read_once_it_holds_lines(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "a.jsonl"
    log.write_bytes(b"")
    ingest(tmp_path / "lake", tmp_path / "logs")
    log.write_bytes(step("s", "one") + b"\n")
    ingest(tmp_path / "lake", tmp_path / "logs")
    assert calls_of(tmp_path / "lake") == ["one"]


NAMES = [
    "a'b.jsonl",
    'a"b.jsonl',
    "a[0-9]*?.jsonl",
    "a{b,c}.jsonl",
    "a\nb.jsonl",
    "a\tb.jsonl",
    "ä ö.jsonl",
    "%s;--.jsonl",
    "\x1b[31m.jsonl",
]


def test_any_file_name_will_do(tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        write(tmp_path / "logs" / name, step(f"s{number}", "one"), b"42")
    ingest(tmp_path / "lake", tmp_path / "logs")
    steps = tables_of(tmp_path / "lake")["steps"]
    assert sorted(Path(file).name for file in steps["source_file"]) == sorted(NAMES)
    assert sorted(name for name, *_ in rejects_of(tmp_path / "lake")) == sorted(NAMES)
    again = ingest(tmp_path / "lake", tmp_path / "logs")
    assert (again["files_same"], again["files_new"], again["files_gone"]) == (len(NAMES), 0, 0)


@pytest.mark.skipif(os.name != "posix", reason="file names are text on this system")
def test_a_file_name_that_is_no_utf_8(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    name = os.fsencode(tmp_path / "logs") + b"/a\xffb.jsonl"
    Path(os.fsdecode(name)).write_bytes(step("s", "one") + b"\n")
    ingest(tmp_path / "lake", tmp_path / "logs")
    assert [Path(file).name for file in tables_of(tmp_path / "lake")["steps"]["source_file"]] == ["a\\udcffb.jsonl"]
    again = ingest(tmp_path / "lake", tmp_path / "logs")
    assert (again["files_same"], again["files_new"], again["files_gone"]) == (1, 0, 0)


def test_two_names_that_are_no_utf_8_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for number, byte in enumerate((b"\xff", b"\xfe")):
        name = os.fsencode(tmp_path / "logs") + b"/a" + byte + b".jsonl"
        Path(os.fsdecode(name)).write_bytes(step(f"s{number}", "one") + b"\n42\n")
        Path(os.fsdecode(name + b".link")).symlink_to(tmp_path / "logs")
    ingest(tmp_path / "lake", tmp_path / "logs")
    assert tables_of(tmp_path / "lake")["sources"].height == 2
    assert len(rejects_of(tmp_path / "lake")) == 4


def test_a_missing_path_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.UsageError, match="no such file or folder") as raised:
        run.ingest(Lake(tmp_path / "lake"), [str(tmp_path / "nowhere")], Settings())
    assert raised.value.exit_code == 2
    with pytest.raises(SystemExit) as ended:
        cli.main(["--lake", str(tmp_path / "lake"), "ingest", str(tmp_path / "nowhere")])
    assert ended.value.code == 2
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "lake").exists()


@contextmanager
def unprivileged() -> Iterator[None]:
    """Without root's right to read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no file modes")
def test_a_folder_and_a_file_without_permission() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "logs" / "closed" / "a.jsonl", step("a", "one"))
        write(folder / "logs" / "open" / "b.jsonl", step("b", "one"))
        write(folder / "logs" / "open" / "c.jsonl", step("c", "one"))
        if os.geteuid() == 0:
            for path in [folder, *folder.rglob("*")]:
                os.chown(path, NOBODY, NOBODY)
        (folder / "logs" / "closed").chmod(0)
        (folder / "logs" / "open" / "c.jsonl").chmod(0)
        try:
            with unprivileged():
                ingest(folder / "lake", folder / "logs")
                tables = tables_of(folder / "lake")
        finally:
            (folder / "logs" / "closed").chmod(0o700)
        assert tables["sessions"]["session_id"].to_list() == ["b"]
        rejects = tables["rejects"].select("source_file", "reason").rows()
        found = sorted((Path(file).name, reason) for file, reason in rejects)
        assert found == [("c.jsonl", "permission"), ("closed", "unreadable_folder")]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("1763000000.25", 1_763_000_000_250_000),
        (" 1763000000.123456 ", 1_763_000_000_123_456),
        ("1763000000250.5", 1_763_000_000_250_500),
        ("1763000000", 1_763_000_000_000_000),
        (1763000000.25, 1_763_000_000_250_000),
        ("0.0", None),
        ("-1763000000.25", None),
        ("1763000000.", None),
        ("1763.0.1", None),
        ("9" * 30 + ".5", None),
    ],
)
def test_epoch_times_may_be_text_with_a_fraction(told: str | float, expected: int | None, tmp_path: Path) -> None:
    ingest(tmp_path / "lake", write(tmp_path / "logs" / "a.jsonl", step("s", "one", ts=told)))
    (ts,) = tables_of(tmp_path / "lake")["steps"]["ts"].dt.epoch("us").to_list()
    assert ts == expected
