"""Files that grow, are rewritten, cut, rotated, compressed, moved, copied and deleted: the lake is that of the final state.

The property test drives random files through random changes with ingests in between, and compares with one ingest of a
mirror folder in which every piece of log that was ever read lies once. The single stories compare all tables, places
and counts of files included, with one ingest of the final state.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lines import assert_same, events, ingest, log_of, tables_of

SETTINGS = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # each example is seconds of ingests: too slow to shrink
)


class Piece:
    """One file of the world: where it lies, all that it will hold, how much it holds, and whether it may still grow."""

    def __init__(self, path: Path, whole: bytes) -> None:
        self.path, self.whole, self.length, self.is_open = path, whole, 0, True

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = self.whole[: self.length]
        if self.path.suffix == ".gz":
            data = gzip.compress(data, mtime=0)
        elif self.path.suffix == ".zst":
            data = zstandard.compress(data)
        self.path.write_bytes(data)

    def to_line_end(self) -> None:
        """Grow on to the end of the line."""
        self.length = self.whole.find(b"\n", max(self.length - 1, 0)) + 1 if self.length else 0


class World:
    """A folder of pieces, a lake that follows it, and a mirror of everything that was ever in it."""

    def __init__(self, root: Path, lines: list[str], cuts: list[int]) -> None:
        self.root, self.lake = root, root / "lake"
        bounds = [0, *sorted({cut % len(lines) for cut in cuts} - {0}), len(lines)]
        parts = ["".join(line + "\n" for line in lines[a:b]).encode() for a, b in pairwise(bounds)]
        self.pieces = [Piece(root / "logs" / f"{number}.jsonl", part) for number, part in enumerate(parts)]
        self.count_moves = 0
        (root / "logs").mkdir(parents=True)
        (root / "mirror").mkdir()

    def ingest(self) -> None:
        ingest(self.lake, self.root / "logs")

    def change(self, kind: str, which: int, amount: int) -> None:
        piece = self.pieces[which % len(self.pieces)]
        if kind == "grow":
            self.grow(piece, amount)
        elif kind == "ingest":
            self.ingest()
        elif piece.length and piece.path.exists():
            getattr(self, kind)(piece)

    def grow(self, piece: Piece, amount: int) -> None:
        if piece.is_open:
            piece.length = min(piece.length + amount, len(piece.whole))
            piece.write()

    def move(self, piece: Piece) -> None:
        self.count_moves += 1
        self._rename(piece, self.root / "logs" / f"moved{self.count_moves}" / piece.path.name)

    def rotate(self, piece: Piece) -> None:
        """The file gets another name, and one that begins anew stands in its place."""
        piece.to_line_end()
        piece.write()
        rest, piece.whole, piece.is_open = piece.whole[piece.length :], piece.whole[: piece.length], False
        before = piece.path
        self.count_moves += 1
        self._rename(piece, before.with_name(f"{before.name}.{self.count_moves}"))
        if rest and before.suffix == ".jsonl":
            successor = Piece(before, rest)
            self.pieces.append(successor)
            successor.length = rest.index(b"\n") + 1
            successor.write()
        elif rest:
            piece.whole += rest

    def gzip(self, piece: Piece) -> None:
        self._compress(piece, ".gz")

    def zstd(self, piece: Piece) -> None:
        self._compress(piece, ".zst")

    def copy(self, piece: Piece) -> None:
        self.count_moves += 1
        target = self.root / "logs" / f"copy{self.count_moves}" / piece.path.name
        target.parent.mkdir()
        shutil.copy(piece.path, target)

    def delete(self, piece: Piece) -> None:
        """What was read and vanished stays: the mirror keeps it."""
        piece.to_line_end()
        piece.write()
        self.ingest()
        piece.path.unlink()
        piece.whole, piece.is_open = piece.whole[: piece.length], False

    def _rename(self, piece: Piece, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        piece.path.rename(path)
        piece.path = path

    def _compress(self, piece: Piece, suffix: str) -> None:
        if piece.path.suffix in (".gz", ".zst"):
            return
        piece.to_line_end()
        piece.path.unlink()
        piece.path = piece.path.with_name(piece.path.name + suffix)
        piece.write()

    def finish(self) -> None:
        for number, piece in enumerate(self.pieces):
            is_there = piece.path.exists() or not piece.length
            if is_there and piece.is_open:
                piece.length = len(piece.whole)
                piece.write()
            (self.root / "mirror" / f"{number}.jsonl").write_bytes(piece.whole[: piece.length])
        self.ingest()


CHANGES = ["grow"] * 6 + ["ingest"] * 4 + ["move", "rotate", "gzip", "zstd", "copy", "delete"]


@SETTINGS
@given(
    events,
    st.lists(st.integers(1, 59), max_size=2),
    st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 5), st.integers(1, 6000)), max_size=14),
)
def test_any_story_of_the_files_ends_in_the_lake_of_what_they_held(
    values: list[Any], cuts: list[int], changes: list[tuple[str, int, int]]
) -> None:
    root = Path(tempfile.mkdtemp(prefix="loopstats-test-"))
    # Files are ordered by their first time, so a piece must not begin at the second in which the one before began.
    lines, _, _ = log_of([(*value[:-1], value[-1] + 1) for value in values])
    world = World(root, lines, cuts)
    for change in changes:
        world.change(*change)
    world.finish()
    ingest(root / "once", root / "mirror")
    assert_same(tables_of(world.lake, is_placeless=True), tables_of(root / "once", is_placeless=True))
    sources = tables_of(world.lake)["sources"]
    on_disk = {path.as_posix() for path in (root / "logs").rglob("*") if path.is_file()}
    assert set(sources.filter(~pl.col("is_gone"))["source_file"]) == on_disk
    assert not set(sources.filter("is_gone")["source_file"]) & on_disk
    shutil.rmtree(root)


# --- single stories ---------------------------------------------------------------------------------------------------


def step(number: int, session: str = "s", outcome: str = "failure", **more: Any) -> str:
    """One step of a native log, a minute after the one before."""
    return json.dumps(
        {
            "v": 1,
            "type": "step",
            "session": session,
            "id": f"e{number}",
            "tool": "Edit",
            "target": f"f{number % 2}",
            "ts": f"2026-11-02T09:{number:02d}:00Z",
            "outcome": outcome,
            "message": "boom",
            "decision": f"d{number}",
            "tokens": {"input": 10, "output": 1},
        }
        | more
    )


OLD = [step(number) for number in range(6)]
NEW = [step(number) for number in range(6, 12)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with `logs/x.jsonl` that was read into `lake`."""
    monkeypatch.chdir(tmp_path)
    put("logs/x.jsonl", OLD)
    ingest(Path("lake"), Path("logs"))
    return tmp_path


def put(path: str, lines: list[str]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def same_as_once() -> dict[str, pl.DataFrame]:
    """All tables of `lake` after another ingest, which must be those of one ingest of the final state."""
    ingest(Path("lake"), Path("logs"))
    ingest(Path("once"), Path("logs"))
    assert_same(tables_of(Path("lake")), tables_of(Path("once")))
    return tables_of(Path("lake"))


def counts(tables: dict[str, pl.DataFrame]) -> dict[str, tuple[bool, int, int, int]]:
    """By file: gone, lines read, used, folded."""
    columns = ("source_file", "is_gone", "count_read", "count_used", "count_folded")
    return {row[0]: row[1:] for row in tables["sources"].select(columns).iter_rows()}


def test_moved(folder: Path) -> None:
    Path("logs/elsewhere").mkdir()
    Path("logs/x.jsonl").rename("logs/elsewhere/y.jsonl")
    summary = ingest(Path("lake"), Path("logs"))
    assert summary["files_gone"] == 0
    assert counts(same_as_once()) == {"logs/elsewhere/y.jsonl": (False, 6, 6, 0)}


def test_moved_and_grown(folder: Path) -> None:
    Path("logs/x.jsonl").unlink()
    put("logs/y.jsonl", OLD + NEW)
    assert counts(same_as_once()) == {"logs/y.jsonl": (False, 12, 12, 0)}


def test_seen_as_gone_first_and_found_elsewhere_later(folder: Path) -> None:
    Path("logs/x.jsonl").unlink()
    assert ingest(Path("lake"), Path("logs"))["files_gone"] == 1
    assert counts(tables_of(Path("lake"))) == {"logs/x.jsonl": (True, 6, 6, 0)}
    put("logs/y.jsonl", OLD)
    assert counts(same_as_once()) == {"logs/y.jsonl": (False, 6, 6, 0)}


def test_gone_and_back_at_its_place(folder: Path) -> None:
    Path("logs/x.jsonl").rename("x.jsonl")
    ingest(Path("lake"), Path("logs"))
    Path("x.jsonl").rename("logs/x.jsonl")
    assert counts(same_as_once()) == {"logs/x.jsonl": (False, 6, 6, 0)}


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_and_inflated_again(folder: Path, suffix: str) -> None:
    data = Path("logs/x.jsonl").read_bytes()
    packed = Path(f"logs/x.jsonl.{suffix}")
    packed.write_bytes(gzip.compress(data, mtime=0) if suffix == "gz" else zstandard.compress(data))
    Path("logs/x.jsonl").unlink()
    assert counts(same_as_once()) == {packed.as_posix(): (False, 6, 6, 0)}
    packed.unlink()
    Path("logs/x.jsonl").write_bytes(data)
    shutil.rmtree("once")
    assert counts(same_as_once()) == {"logs/x.jsonl": (False, 6, 6, 0)}


def test_rotated(folder: Path) -> None:
    Path("logs/x.jsonl").rename("logs/x.jsonl.1")
    put("logs/x.jsonl", NEW)
    assert counts(same_as_once()) == {"logs/x.jsonl": (False, 6, 6, 0), "logs/x.jsonl.1": (False, 6, 6, 0)}
    Path("logs/x.jsonl.1").rename("logs/x.jsonl.2")
    Path("logs/x.jsonl").rename("logs/x.jsonl.1")
    put("logs/x.jsonl", [step(number) for number in range(12, 14)])
    shutil.rmtree("once")
    assert same_as_once()["steps"].height == 14


def test_rotated_by_copying_and_cutting(folder: Path) -> None:
    shutil.copy("logs/x.jsonl", "logs/x.jsonl.1")
    put("logs/x.jsonl", [])
    ingest(Path("lake"), Path("logs"))
    put("logs/x.jsonl", NEW)
    assert counts(same_as_once()) == {"logs/x.jsonl": (False, 6, 6, 0), "logs/x.jsonl.1": (False, 6, 6, 0)}


def test_copied_and_the_first_one_deleted(folder: Path) -> None:
    shutil.copy("logs/x.jsonl", "logs/y.jsonl")
    ingest(Path("lake"), Path("logs"))
    assert counts(tables_of(Path("lake"))) == {"logs/x.jsonl": (False, 6, 6, 0), "logs/y.jsonl": (False, 6, 0, 6)}
    Path("logs/x.jsonl").unlink()
    assert counts(same_as_once()) == {"logs/y.jsonl": (False, 6, 6, 0)}


def test_deleted(folder: Path) -> None:
    before = tables_of(Path("lake"), is_placeless=True)
    Path("logs/x.jsonl").unlink()
    put("logs/other.jsonl", [step(20, "t")])
    summary = ingest(Path("lake"), Path("logs"))
    assert (summary["files_gone"], summary["files_new"]) == (1, 1)
    tables = tables_of(Path("lake"))
    assert counts(tables) == {"logs/other.jsonl": (False, 1, 1, 0), "logs/x.jsonl": (True, 6, 6, 0)}
    assert tables["loops"].drop("detected_at").height == before["loops"].height > 0
    assert tables["steps"].filter(pl.col("session_id") == "s").height == 6


def test_cut_short(folder: Path) -> None:
    """The lines that are no longer in the file stay; the file is what it is now."""
    before = tables_of(Path("lake"), is_placeless=True)
    put("logs/x.jsonl", OLD[:2])
    ingest(Path("lake"), Path("logs"))
    assert_same(tables_of(Path("lake"), is_placeless=True), before)
    assert counts(tables_of(Path("lake"))) == {"logs/x.jsonl": (False, 2, 2, 0)}
    put("logs/x.jsonl", OLD + NEW)
    assert counts(same_as_once()) == {"logs/x.jsonl": (False, 12, 12, 0)}


def test_rewritten_with_a_line_more_and_a_line_changed(folder: Path) -> None:
    changed = [*OLD[:3], step(3, outcome="success"), *OLD[4:], NEW[0]]
    put("logs/x.jsonl", changed)
    assert counts(same_as_once()) == {"logs/x.jsonl": (False, 7, 7, 0)}
    assert tables_of(Path("lake"))["steps"]["outcome"].to_list()[3] == "success"


def test_a_container_that_moves_and_one_that_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    array = [json.loads(line) for line in transcript("a", range(4))]
    Path("logs").mkdir()
    Path("logs/chat.json").write_text(json.dumps(array), encoding="utf-8")
    ingest(Path("lake"), Path("logs"))
    Path("logs/chat.json").rename("logs/moved.json")
    assert list(counts(same_as_once())) == ["logs/moved.json"]
    Path("logs/packed.json.gz").write_bytes(gzip.compress(Path("logs/moved.json").read_bytes(), mtime=0))
    Path("logs/moved.json").unlink()
    shutil.rmtree("once")
    assert [(file, row[2]) for file, row in counts(same_as_once()).items()] == [("logs/packed.json.gz", 8)]


# --- a session resumed next month -------------------------------------------------------------------------------------


def transcript(session: str, numbers: range, month: int = 11, copied: str = "") -> list[str]:
    """A Claude Code transcript: one Edit and its failure for each number; ids come from the session that made them."""
    lines = []
    for number in numbers:
        made_by = copied or session
        common = {"sessionId": session, "cwd": "/home/dev/shop", "version": "2.1.9"}
        call_id = f"toolu_{made_by}{number:024d}"
        lines.append(
            json.dumps(
                common
                | {
                    "type": "assistant",
                    "uuid": f"{made_by}-a-{number:016d}",
                    "timestamp": f"2026-{month}-02T09:{2 * number:02d}:00Z",
                    "message": {
                        "id": f"msg_{made_by}{number:024d}",
                        "model": "claude-opus-4-5",
                        "role": "assistant",
                        "content": [
                            {
                                "type": "tool_use",
                                "id": call_id,
                                "name": "Edit",
                                "input": {
                                    "file_path": f"/home/dev/shop/f{number % 2}.py",
                                    "old_string": f"x{number}",
                                    "new_string": "y",
                                },
                            }
                        ],
                        "usage": {"input_tokens": 10, "output_tokens": 3},
                    },
                }
            )
        )
        lines.append(
            json.dumps(
                common
                | {
                    "type": "user",
                    "uuid": f"{made_by}-u-{number:016d}",
                    "timestamp": f"2026-{month}-02T09:{2 * number + 1:02d}:00Z",
                    "message": {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": call_id,
                                "is_error": True,
                                "content": "<tool_use_error>String to replace not found in file.</tool_use_error>",
                            }
                        ],
                    },
                }
            )
        )
    return lines


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_a_session_resumed_next_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]) -> None:
    """The same file goes on in December, and a new session copies it and goes on too: only what is new counts there."""
    monkeypatch.chdir(tmp_path)
    files = {
        "old": ("logs/a.jsonl", transcript("a", range(3))),
        "new": ("logs/b.jsonl", transcript("b", range(3), copied="a") + transcript("b", range(5, 7), month=12)),
    }
    for name in order:
        put(*files[name])
        ingest(Path("lake"), Path("logs"))
    put("logs/a.jsonl", transcript("a", range(3)) + transcript("a", range(3, 5), month=12))
    tables = same_as_once()
    steps = tables["steps"].select("run_id", "step").rows()
    assert steps == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 0), ("b", 1)]
    assert counts(tables) == {"logs/a.jsonl": (False, 10, 10, 0), "logs/b.jsonl": (False, 10, 5, 5)}
    # The first line of the copy also tells the new session's folder and version.
    assert tables["folds"].rows() == [("logs/b.jsonl", "fork", 5)]
    assert tables["loops"]["run_id"].to_list() == ["a"]
    assert tables["turns"].group_by("session_id").agg(pl.col("tokens_input").sum()).sort("session_id").rows() == [
        ("a", 50),
        ("b", 20),
    ]
