"""Which log files there are, which of them changed, and whether there is anything to do at all.

A room of its own because most nights most files are the same: this is asked first, with a `stat` per file and one look
at the ledger, and where nothing is new the answer must come before anything heavy is imported. So it stands on the
standard library alone. Links and devices are never followed or opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopstats.errors import UsageError

LEDGER = "ledger.sqlite"
MANIFEST = "manifest.json"
DATA = "data"  # the folder of the files of the lake
REPORT = "report"
NO_LOG = "no_log"  # in the ledger: files that were looked at and hold no log
SCHEMA_VERSION = 1  # of the ledger and of the tables in `tables.py`
INT64 = 1 << 63
ESCAPED = "escaped:"
SKIPPED_FOLDERS = frozenset({".git", ".hook", "node_modules", "__pycache__", ".venv"})


@dataclass(frozen=True)
class Found:
    """A file on disk: `path` absolute and resolved (escaped if it is no UTF-8), `source_file` as it will be shown."""

    path: str
    source_file: str
    size_bytes: int
    mtime_ns: int
    inode: int
    is_named: bool


def discover(paths: Sequence[str]) -> tuple[list[Found], list[tuple[str, str]]]:
    """Regular files under `paths` in a fixed order, and what could not be looked at as (shown name, reason).

    Links, FIFOs, sockets and devices are never opened; a path that does not exist is a UsageError.
    """
    found: dict[str, Found] = {}
    refused: list[tuple[str, str]] = []
    for given in paths:
        root = Path(given)
        if not os.path.lexists(root):
            raise UsageError(f"{given}: no such file or folder")
        shown = root.as_posix()
        resolved = root.resolve()
        if resolved.is_dir():
            for path, name in _walk(resolved, shown, refused):
                _look(path, name, False, found, refused)
        else:
            _look(resolved, shown, True, found, refused)
    return [found[path] for path in sorted(found)], sorted((_shown(name), reason) for name, reason in refused)


def _shown(name: str) -> str:
    """`name` as text that every store takes: bytes that are no UTF-8 are written as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def _kept(path: str) -> str:
    """`path` for the ledger; one that is no UTF-8 is marked and escaped, so that `_real` finds the way back."""
    return path if path == _shown(path) else ESCAPED + path.encode("unicode_escape").decode()


def make_folder(path: Path) -> None:
    """Make the folder and those above it that are not there, each for its owner alone, whatever the umask."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(0o700, exist_ok=True)


def real_path(path: str) -> str:
    return path.removeprefix(ESCAPED).encode().decode("unicode_escape") if path.startswith(ESCAPED) else path


def _walk(top: Path, top_shown: str, refused: list[tuple[str, str]]) -> Iterator[tuple[Path, str]]:
    todo = [(top, top_shown)]
    while todo:
        folder, shown = todo.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            refused.append((shown, "unreadable_folder"))
            continue
        for entry in entries:
            name = f"{shown.rstrip('/')}/{entry.name}"
            if entry.is_symlink():
                refused.append((name, "link"))
            elif not entry.is_dir(follow_symlinks=False):
                yield Path(entry.path), name
            elif entry.name not in SKIPPED_FOLDERS:
                todo.append((Path(entry.path), name))


def _look(path: Path, shown: str, is_named: bool, found: dict[str, Found], refused: list[tuple[str, str]]) -> None:
    try:
        status = path.lstat()
    except OSError:
        refused.append((shown, "unreadable"))
        return
    if not stat.S_ISREG(status.st_mode):
        refused.append((shown, "not_a_file"))
        return
    kept = _kept(str(path))
    found.setdefault(
        kept, Found(kept, _shown(shown), status.st_size, status.st_mtime_ns, status.st_ino & (INT64 - 1), is_named)
    )


def resolved_roots(paths: Sequence[str]) -> list[str]:
    """The absolute forms of `paths`."""
    return [str(Path(path).resolve()) for path in paths]


def is_below(path: str, roots: Sequence[str]) -> bool:
    """Whether a path of the ledger lies under one of the absolute `roots`; a refused name lies nowhere."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def with_known(found: Iterable[Found], known: dict[str, dict[str, Any]]) -> list[Found]:
    """`found` and all files of the ledger that are still on disk, to be read anew."""
    files = {file.path: file for file in found}
    for path, row in known.items():
        if path not in files and not path.startswith("refused:"):
            again: dict[str, Found] = {}
            _look(Path(real_path(path)), row["source_file"], False, again, [])
            files.update(again)
    return [files[path] for path in sorted(files)]


def plan(found: Iterable[Found], known: dict[str, dict[str, Any]]) -> tuple[list[Found], int]:
    """Files to read (new or changed by size, time or inode), and how many are the same as last time."""
    todo, count_same = [], 0
    for file in found:
        row = known.get(file.path)
        if (
            row is not None
            and not row["is_gone"]
            and ((row["size_bytes"], row["mtime_ns"], row["inode"]) == (file.size_bytes, file.mtime_ns, file.inode))
        ):
            count_same += 1
        else:
            todo.append(file)
    return todo, count_same


def parted(found: Iterable[Found], kept: str | None) -> tuple[list[Found], dict[str, list[int]]]:
    """Files that may hold a log, and by path those that held none and did not change since (`kept`: see `NO_LOG`).

    Whatever was installed in between may know a format that was not known then: all are looked at again.
    """
    told: dict[str, Any] = json.loads(kept) if kept else {}
    before = told.get("files", {}) if is_as_installed(kept) else {}
    rest: list[Found] = []
    passed: dict[str, list[int]] = {}
    for file in found:
        seen = [file.size_bytes, file.mtime_ns, file.inode]
        if before.get(file.path) == seen:
            passed[file.path] = seen
        else:
            rest.append(file)
    return rest, passed


def elsewhere(kept: str | None, roots: Sequence[str]) -> dict[str, list[int]]:
    """Of the files that are kept as holding no log, those that an ingest of `roots` does not look at."""
    told: dict[str, list[int]] = json.loads(kept)["files"] if kept and is_as_installed(kept) else {}
    return {path: seen for path, seen in told.items() if not is_below(path, roots)}


def is_as_installed(kept: str | None) -> bool:
    """Whether the same packages are installed as when the ledger's `NO_LOG` was written."""
    return kept is not None and bool(json.loads(kept).get("installed") == installed())


def installed() -> list[int]:
    """When a package was last put into or taken out of a folder of installed packages."""
    folders = {Path(name) for name in sys.path if name.endswith("-packages")}
    return sorted(folder.stat().st_mtime_ns for folder in folders if folder.is_dir())


def nothing_new(root: Path, paths: Sequence[str], digests: dict[str, str]) -> dict[str, Any] | None:
    """The summary of an ingest that would find every file as it was, else None: then the whole way must be gone.

    `digests`: the settings' `rule_digest` and `derived_digest`, of which the lake must have been made. Nothing is
    locked and nothing is written; a lake that cannot be read, or whose last commit was not published, gives None.
    """
    path = root / LEDGER
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as ledger:
            meta = dict(ledger.execute("SELECT key, value FROM meta"))
            cursor = ledger.execute(
                "SELECT path, size_bytes, mtime_ns, inode, is_gone FROM sources WHERE is_superseded = 0"
            )
            names = [item[0] for item in cursor.description]
            known = {row[0]: dict(zip(names, row, strict=True)) for row in cursor}
        generation = json.loads((root / MANIFEST).read_bytes())["generation"]
        report: dict[str, Any] = json.loads(meta[REPORT])
    except (sqlite3.Error, OSError, ValueError, KeyError, TypeError):
        return None
    if meta.get("schema_version") != str(SCHEMA_VERSION):
        return None
    if str(generation) != meta.get("generation") or any(meta.get(key) != value for key, value in digests.items()):
        return None
    found, refused = discover(paths)
    try:
        rest, passed = parted(found, meta.get(NO_LOG))
    except ValueError:
        return None
    todo, count_same = plan(rest, known)
    if todo or report["unbalanced"] or any(f"refused:{name}" not in known for name, _ in refused):
        return None
    present = {file.path for file in found}
    roots = resolved_roots(paths)
    if any(not row["is_gone"] and path not in present and is_below(path, roots) for path, row in known.items()):
        return None
    counts = dict.fromkeys(("files_new", "files_grown", "files_gone", "files_skipped", "records"), 0)
    told = {name: int(meta.get(name, 0)) for name in ("turns_priced", "turns_told")}
    counts["files_skipped"] = len(passed)
    return {**counts, "files_same": count_same, "stale": [], "rejects": [], **report, **told}
