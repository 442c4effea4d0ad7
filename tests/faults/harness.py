"""Runs of the command line that are killed, starved and traced, and an independent model of what the lake must hold.

A room of its own because the tests beside it only tell stories: here stand the processes (`Runner`), the tiny log writer
with its own bookkeeping (`World`) and the check of a lake against it (`World.check`). The model knows nothing of the
product: it looks at the bytes that lie on disk when a run begins, and counts the events in them.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from loopstats import care
from loopstats.store import Lake
from loopstats.tables import TABLES

TESTS = Path(__file__).resolve().parents[1]
IS_LONG = os.environ.get("LOOPSTATS_FAULTS") == "long"
PATIENCE_S = 300

Event = tuple[str, str, str]  # session, id, target


class Runner:
    """One child at a time, forked from a process that has imported everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "pipeline")]),
            "HOME": str(folder),
            "POLARS_MAX_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.output = folder / f"output-{id(self)}"
        self._server = subprocess.Popen(
            [sys.executable, "-m", "faults.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
        )
        assert self._answer() == {"ready": True}
        self.pid = 0

    def _answer(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        assert self._server.stdout is not None
        assert select.select([self._server.stdout], [], [], timeout_s)[0], "a run hangs"
        line = self._server.stdout.readline()
        return json.loads(line) if line else {}

    def _say(self, line: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(line + "\n")

    def start(self, *arguments: str, **options: Any) -> None:
        """Begin a run; it works until `wait` or `kill`."""
        request = {"arguments": list(arguments), "folder": str(self.folder), "output": str(self.output), **options}
        self._say(json.dumps(request))
        self.pid = self._answer()["pid"]

    def wait(self) -> int:
        """The exit code; negative where a signal ended it."""
        assert self._answer() == {"ended": True}
        self._say("reap")
        return int(self._answer()["code"])

    def kill(self) -> None:
        """SIGKILL; a run that has ended is not yet reaped, so no other process can be hit."""
        os.kill(self.pid, signal.SIGKILL)

    def run(self, *arguments: str, **options: Any) -> int:
        """A run to its end."""
        self.start(*arguments, **options)
        return self.wait()

    def run_killed(self, after_s: float, *arguments: str, **options: Any) -> bool:
        """A run that is killed after a while; whether it was still at work."""
        self.start(*arguments, **options)
        time.sleep(after_s)
        self.kill()
        return self.wait() == -signal.SIGKILL

    def run_traced(self, calls: str, inject: str, *arguments: str, **options: Any) -> tuple[int, str]:
        """A run under strace; `inject` is what happens at a call, or empty. Its exit code and the trace of `calls`."""
        gate, trace = self.folder / "gate", self.folder / "trace"
        gate.unlink(missing_ok=True)
        trace.unlink(missing_ok=True)
        os.mkfifo(gate)
        self.start(*arguments, go=str(gate), is_serial=True, **options)
        command = ["strace", "-f", "-y", "-s", "0", "-o", str(trace), "-e", f"trace={calls}", "-p", str(self.pid)]
        command += ["-e", f"inject={calls}:{inject}"] if inject else []
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        assert "attached" in said, said
        with gate.open("wb"):
            pass
        code = self.wait()
        tracer.wait(PATIENCE_S)
        tracer.stderr.close()
        return code, trace.read_text(errors="replace")

    def said(self) -> str:
        """What the last run wrote to stdout and stderr."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(PATIENCE_S)
        self._server.stdout.close()


@dataclass
class Tally:
    """What a harness counts: attempts, those that really hit, and what the lake then lacked or had too often."""

    attempts: int = 0
    hit: int = 0
    lost: int = 0
    doubled: int = 0
    unreadable: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.lost += other.lost
        self.doubled += other.doubled
        self.unreadable += other.unreadable
        self.wrong += other.wrong

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.unreadable or self.wrong)

    def __str__(self) -> str:
        wrong = f"; {len(self.wrong)} other faults, first: {self.wrong[0][:300]}" if self.wrong else ""
        return (
            f"{self.attempts} attempts, {self.hit} really hit: {self.lost} lost, {self.doubled} doubled, "
            f"{self.unreadable} unreadable{wrong}"
        )


def step_line(session: str, number: int, rng: random.Random) -> bytes:
    """One event of the native log, with text of several bytes a character to be cut inside."""
    return (
        json.dumps(
            {
                "v": 1,
                "type": "step",
                "session": session,
                "id": f"e{number}",
                "tool": "Edit",
                "target": f"f{rng.randrange(3)}é漢🦊.py",
                "ts": f"2026-11-{2 + number // 1440 % 28:02d}T{number // 60 % 24:02d}:{number % 60:02d}:00Z",
                "outcome": rng.choice(["failure", "failure", "success"]),
                "message": f"größe {rng.randrange(3)} 漢字",
            },
            ensure_ascii=False,
        ).encode()
        + b"\n"
    )


def events_in(data: bytes) -> tuple[set[Event], set[Event]]:
    """Events of a log's bytes: those that stand whole on a line, and those that only might be made out of a torn one."""
    sure: set[Event] = set()
    maybe: set[Event] = set()
    for line in data.split(b"\n"):
        try:
            sure.add(_event(json.loads(line)))
        except ValueError:
            # Two writers' pieces on one line: a reader may mend what is whole in it, or reject the line.
            for start in (i for i in range(1, len(line)) if line[i : i + 6] == b'{"v": '):
                try:
                    maybe.add(_event(json.JSONDecoder().raw_decode(line[start:].decode("utf-8", "replace"))[0]))
                except ValueError:
                    continue
    return sure, maybe - sure


def _event(record: dict[str, Any]) -> Event:
    return record["session"], record["id"], record["target"]


class World:
    """A folder of logs that a seeded writer ruins, and what a lake that follows it must hold.

    `must`: events that lay whole on disk when a run ended well. `may`: events that a killed run might have caught before
    they vanished. The files' bytes are the truth; there is no other bookkeeping that could agree with the product by
    mistake.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.logs, self.lake = root, root / "logs", root / "lake"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.rng = random.Random(seed)
        self.must: set[Event] = set()
        self.may: set[Event] = set()
        self.count_events = self.count_files = 0
        self.kinds: Counter[str] = Counter()
        for _ in range(3):
            self.new_file()

    # -- what happens to the logs

    def files(self) -> list[Path]:
        return sorted(path for path in self.logs.rglob("*") if path.is_file())

    def plain(self) -> list[Path]:
        return [path for path in self.files() if path.suffix != ".gz"]

    def pick(self) -> Path:
        return self.rng.choice(self.plain() or [self.new_file()])

    def line(self, session: str) -> bytes:
        self.count_events += 1
        return step_line(session, self.count_events, self.rng)

    def session(self, path: Path) -> str:
        return path.name.split(".")[0].split("_")[0]

    def lines(self, path: Path, count: int) -> bytes:
        return b"".join(self.line(self.session(path)) for _ in range(count))

    def new_file(self) -> Path:
        self.count_files += 1
        path = self.logs / f"s{self.count_files}.jsonl"
        path.write_bytes(self.lines(path, self.rng.randint(1, 5)))
        return path

    def close_line(self, path: Path) -> None:
        """End a torn line as its writer would: what was begun is lost, a new line begins."""
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            path.write_bytes(data + b"\n")

    def append(self) -> None:
        path = self.pick()
        with path.open("ab") as file:
            file.write(self.rest(path) + self.lines(path, self.rng.randint(1, 6)))

    def rest(self, path: Path) -> bytes:
        """The end of the torn line of a file, where one is open."""
        return self.torn.pop(path, b"") if hasattr(self, "torn") else b""

    def append_part(self) -> None:
        """A line that is cut at a random byte, often inside a character; its rest comes later."""
        self.torn: dict[Path, bytes] = getattr(self, "torn", {})
        path = self.pick()
        line = self.lines(path, 1)
        cut = self.rng.randrange(1, len(line))
        with path.open("ab") as file:
            file.write(self.rest(path) + line[:cut])
        self.torn[path] = line[cut:]

    def append_late(self) -> None:
        """Events of weeks before, in a file of now."""
        path = self.pick()
        number = self.count_events
        self.count_events = 100_000 + number
        with path.open("ab") as file:
            file.write(self.rest(path) + self.lines(path, 2))
        self.count_events = 100_002 + number

    def finished(self) -> Path:
        """A plain file whose last line is whole."""
        path = self.pick()
        rest = self.rest(path)
        with path.open("ab") as file:
            file.write(rest)
        self.close_line(path)
        return path

    def rotate(self) -> None:
        path = self.finished()
        self.count_files += 1
        path.rename(path.with_name(f"{self.session(path)}_{self.count_files}.jsonl.1"))
        path.write_bytes(self.lines(path, self.rng.randint(0, 4)))

    def copytruncate(self) -> None:
        path = self.finished()
        self.count_files += 1
        shutil.copy(path, path.with_name(f"{self.session(path)}_{self.count_files}.jsonl.2"))
        with path.open("r+b") as file:
            file.truncate(0)
            file.write(self.lines(path, self.rng.randint(0, 4)))

    def compress(self) -> None:
        path = self.finished()
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()

    def shorten(self) -> None:
        path = self.pick()
        self.rest(path)
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(self.rng.randrange(len(data) + 1))

    def rewrite(self) -> None:
        """Other lines in the same file (the same inode): fewer, as many bytes or more, or more."""
        path = self.pick()
        self.rest(path)
        size = path.stat().st_size
        data = self.lines(path, self.rng.choice([1, 3, 8]))
        kind = self.rng.choice(["as it comes", "as many bytes", "longer"])
        while kind == "longer" and len(data) <= size:
            data += self.lines(path, 2)
        if kind == "as many bytes":
            while len(data) < size:
                data += self.lines(path, 1)
            data = data[: data.rfind(b"\n", 0, size) + 1]
            data += b" " * (size - len(data) - 1) + b"\n" if len(data) < size else b""
        with path.open("r+b") as file:
            file.truncate(0)
            file.write(data)

    def replace(self) -> None:
        """Another file under the same name; the file system gives the old inode away again at once, if it likes."""
        path = self.finished()
        size = path.stat().st_size
        path.unlink()
        data = b""
        while len(data) <= size:
            data += self.lines(path, 2)
        path.write_bytes(data)

    def copy(self) -> None:
        path = self.rng.choice(self.files() or [self.new_file()])
        self.count_files += 1
        name = f"{self.session(path)}_{self.count_files}.jsonl"
        shutil.copy(path, self.logs / (name + (".gz" if path.suffix == ".gz" else "")))

    def resume(self) -> None:
        """A copy that goes on: the old lines once, the new ones too."""
        path = self.finished()
        self.count_files += 1
        data = path.read_bytes()
        path.with_name(f"{self.session(path)}_{self.count_files}.jsonl").write_bytes(data + self.lines(path, 3))

    def delete(self) -> None:
        path = self.rng.choice(self.files() or [self.new_file()])
        self.rest(path)
        path.unlink()

    def new(self) -> None:
        self.new_file()

    CHANGES = (
        ["append"] * 5
        + ["append_part"] * 4
        + ["append_late", "rotate", "copytruncate", "compress", "shorten", "rewrite", "replace", "copy", "resume"]
        + ["delete", "new"]
    )

    def change(self) -> str:
        """One seeded change of the logs; its name."""
        kind = self.rng.choice(self.CHANGES)
        getattr(self, kind)()
        self.kinds[kind] += 1
        return kind

    # -- what the lake must hold

    def look(self) -> tuple[set[Event], set[Event]]:
        """Events on disk now."""
        sure: set[Event] = set()
        maybe: set[Event] = set()
        for path in self.files():
            data = path.read_bytes()
            whole, torn = events_in(gzip.decompress(data) if path.suffix == ".gz" else data)
            sure |= whole
            maybe |= torn
        return sure, maybe

    def note(self, is_read: bool) -> None:
        """A run ended: well, so that everything on disk is in the lake now, or not, so that it may be."""
        sure, maybe = self.look()
        if is_read:
            self.must |= sure
            self.may |= maybe
        else:
            self.may |= sure | maybe

    def check(self, *, is_final: bool = True) -> Tally:
        """Compare the lake with the model; where the last run did not end well, only what must not be lost."""
        return check_lake(self.lake, self.must, self.must | self.may, is_verified=is_final)


def check_lake(lake: Path, must: set[Event], can: set[Event], *, is_verified: bool = True) -> Tally:
    """`must`: events that the lake has to hold, `can`: those that it may hold; none twice, and every table readable."""
    tally = Tally()
    try:
        snapshot = Lake.open(lake).snapshot()
        steps = snapshot.read("steps").select("session_id", "call_id", "target")
        for name in TABLES:
            snapshot.read(name)
    except Exception as error:
        if must or not str(error).startswith("no lake"):
            tally.unreadable = 1
            tally.wrong.append(f"unreadable: {type(error).__name__}: {error}")
        return tally
    held = Counter(steps.iter_rows())
    tally.lost = len(must - held.keys())
    tally.doubled = sum(count - 1 for count in held.values())
    if strange := held.keys() - can:
        tally.wrong.append(f"events that were never written: {sorted(strange)[:3]}")
    sources = snapshot.read("sources")
    accounted = pl.sum_horizontal("count_used", "count_nothing", "count_folded", "count_rejected", "count_waiting")
    if (unbalanced := sources.filter(pl.col("count_read") != accounted)).height:
        tally.wrong.append(f"not accounted for: {unbalanced['source_file'].to_list()}")
    if is_verified:
        tally.wrong += [f"verify: {c.where}: {c.detail}" for c in care.verify(Lake(lake)) if c.state != "ok"]
    return tally


def told(name: str, figures: object) -> None:
    """A line of figures; `make faults` shows it (-s)."""
    sys.__stdout__.write(f"\n{name}: {figures}\n")
    sys.__stdout__.flush()


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
