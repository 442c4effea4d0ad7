"""Nothing lost, nothing doubled, nothing unreadable, whatever kills, fills, cuts, rotates or disturbs a run (F1 to F21).

A short form belongs to every landing, the long one is `make faults`; figures and seeds are printed. What a broken
variant does not fail here is not tested: the four mutants at the end are caught by the same checks.

Damaged ledgers and files (F15, F16) and lakes of other schemas (F20) need no harness: `test_lake.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from faults.harness import IS_LONG, Runner, Tally, World, check_lake, events_in, seconds, told
from loopstats import care, query, run
from loopstats.config import Settings
from loopstats.errors import IO, LOCKED, LakeError, LoopstatsError
from loopstats.store import Lake, Writer

pytestmark = pytest.mark.faults

SEED = int(os.environ.get("LOOPSTATS_FAULTS_SEED", "7"))
CALLS = ("fsync", "fdatasync", "pwrite64", "rename", "unlink", "mkdir")
INGEST = ("--lake", "lake", "ingest", "logs")
COMPACT = ("--lake", "lake", "lake", "compact")
REBUILD = ("--lake", "lake", "lake", "rebuild")


def of(short: int, long: int) -> int:
    """A size: of the short form or of the long one."""
    return long if IS_LONG else short


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    one = Runner(tmp_path)
    yield one
    one.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, SEED)


def read(world: World, runner: Runner, **options: object) -> None:
    """An ingest that ends well."""
    code = runner.run(*INGEST, **options)
    assert code == 0, f"exit {code}: {runner.said()[-2000:]}"
    world.note(True)


# --- F1, F2, F4: crashes ----------------------------------------------------------------------------------------------


def test_f1_kills_at_random_instants(world: World, runner: Runner) -> None:
    rng, tally, wanted = random.Random(SEED), Tally(), of(12, 200)
    read(world, runner)
    world.append()
    whole_s = seconds(lambda: read(world, runner))
    while tally.hit < wanted and tally.attempts < 4 * wanted:
        for _ in range(rng.randint(1, 3)):
            world.change()
        command = rng.choice([INGEST, INGEST, INGEST, INGEST, COMPACT, REBUILD])
        tally.attempts += 1
        tally.hit += runner.run_killed(rng.uniform(0, whole_s), *command)
        if command == INGEST:
            world.note(False)
        tally.add(world.check(is_final=False))
        if rng.random() < 0.5:  # else one kill follows another
            read(world, runner)
            tally.add(world.check())
    read(world, runner)
    tally.add(world.check())
    told("F1 kill -9 at random instants", f"seed {SEED}, {tally}")
    assert tally.is_clean, tally
    assert tally.hit == wanted


def points_of(runner: Runner, world: World, calls: tuple[str, ...]) -> dict[str, int]:
    """How often a run that has much to do makes each call."""
    world.append()
    world.copy()
    code, trace = runner.run_traced(",".join(calls), "", *INGEST)
    assert code == 0
    world.note(True)
    return {call: trace.count(f" {call}(") for call in calls}


def some(points: list[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """A seeded choice, with every call among them."""
    rng = random.Random(SEED)
    first = [rng.choice(list(group)) for _, group in itertools.groupby(points, key=lambda point: point[0])]
    return [*first, *rng.sample(points, max(0, count - len(first)))]


def test_f2_crash_at_each_call_of_the_file_system(world: World, runner: Runner) -> None:
    """The long form walks on to the next place until a run gets through; the short one chooses some."""
    tally = Tally()
    for _ in range(2):
        read(world, runner)
        world.append()
    counts = points_of(runner, world, CALLS)
    # Not the last ones: another run may make fewer calls.
    chosen = some([(call, number) for call, count in counts.items() for number in range(1, count * 2 // 3 + 2)], 12)
    walked = dict.fromkeys(CALLS, 0)
    for call in CALLS:
        for number in itertools.count(1) if IS_LONG else [n for name, n in chosen if name == call]:
            world.append()
            tally.attempts += 1
            code, _ = runner.run_traced(call, f"signal=KILL:when={number}", *INGEST)
            is_hit = code == -signal.SIGKILL
            tally.hit += is_hit
            walked[call] += is_hit
            world.note(code == 0)
            tally.add(world.check(is_final=False))
            if not is_hit and IS_LONG:
                break
            read(world, runner)
            tally.add(world.check())
    told("F2 crash at each file-system call", f"{walked}; {tally}")
    assert tally.is_clean, tally
    assert tally.hit >= 0.7 * tally.attempts
    assert min(walked.values()) >= 1


def test_f2_crash_in_the_first_run(world: World, runner: Runner) -> None:
    """Where there is no lake yet: the next run begins one, and nothing that was left makes it refuse."""
    code, trace = runner.run_traced(",".join(CALLS), "", *INGEST)
    assert code == 0
    counts = {call: trace.count(f" {call}(") for call in CALLS}
    points = [(call, number) for call, count in counts.items() for number in range(1, count + 1)]
    tally = Tally()
    for call, number in some(points, of(6, 40)):
        shutil.rmtree(world.lake)
        world.must.clear()
        tally.attempts += 1
        code, _ = runner.run_traced(call, f"signal=KILL:when={number}", *INGEST)
        tally.hit += code == -signal.SIGKILL
        world.note(False)
        tally.add(world.check(is_final=False))
        read(world, runner)
        tally.add(world.check())
    told("F2 crash in the first run", f"{counts}; {tally}")
    assert tally.is_clean, tally
    assert tally.hit >= 0.8 * tally.attempts


def test_f4_failing_and_read_only_disks(world: World, runner: Runner, tmp_path: Path) -> None:
    tally, codes = Tally(), dict.fromkeys(("EIO", "EROFS"), "")
    read(world, runner)
    counts = points_of(runner, world, CALLS)
    for error in codes:
        points = [(call, number) for call, count in counts.items() for number in range(1, count + 1)]
        seen: dict[int, int] = {}
        for call, number in some(points, of(8, 40)):
            world.append()
            tally.attempts += 1
            code, trace = runner.run_traced(call, f"error={error}:when={number}", *INGEST)
            tally.hit += "INJECTED" in trace
            seen[code] = seen.get(code, 0) + 1
            if code not in (0, IO):
                tally.wrong.append(f"{error} at {call} {number}: exit {code}: {runner.said()[-300:]}")
            world.note(code == 0)
            tally.add(world.check(is_final=False))
            read(world, runner)
            tally.add(world.check())
        codes[error] = str(dict(sorted(seen.items())))
    told("F4 EIO and EROFS", f"exit codes {codes}; {tally}")
    assert tally.is_clean, tally
    assert tally.hit >= 0.8 * tally.attempts


def test_files_are_on_disk_before_the_commit_and_folders_after_what_they_name(world: World, runner: Runner) -> None:
    """Power loss is not simulated; the order of the calls is asserted."""
    read(world, runner)
    world.append()
    code, trace = runner.run_traced(",".join(CALLS), "", *INGEST)
    assert code == 0
    lines = trace.splitlines()

    def where(start: str, end: str) -> list[int]:
        return [i for i, line in enumerate(lines) if f" {start}(" in line and end in line]

    snapshot = Lake(world.lake).snapshot()
    new = [file.path for file in snapshot.files if f"/{snapshot.generation:08d}-" in file.path]
    commit = where("pwrite64", "ledger.sqlite>")[0]
    assert len(new) > 5
    for path in new:
        synced = where("fsync", f"{path}>")
        assert synced and synced[0] < commit, f"{path} is not on disk before the commit"
        folder = where("fsync", f"/{Path(path).parent}>")
        assert folder and synced[0] < folder[0] < commit, f"the folder of {path} is not"
    ledger_synced = where("fdatasync", "ledger.sqlite>")[0]
    (renamed,) = where("rename", "manifest.json")
    assert commit < ledger_synced < where("fsync", ".manifest.json.new>")[0] < renamed
    assert any(i > renamed for i in where("fsync", "/lake>")), "the rename is not on disk"
    told("fsync order", f"{len(new)} files and their folders before the commit, the lake's folder after the rename")


# --- F3: the disk is full ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 4 MiB at `folder`, where we may mount one."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], check=True)


def test_f3_a_full_disk(world: World, runner: Runner, tmp_path: Path) -> None:
    tally, levels, codes = Tally(), of(3, 15), []
    with small_disk(tmp_path / "disk") as is_mounted:
        (tmp_path / "lake").symlink_to(tmp_path / "disk" / "lake") if is_mounted else None
        (tmp_path / "disk" / "lake").mkdir() if is_mounted else None
        read(world, runner)
        for level in range(levels):
            world.append()
            world.new_file()
            filler = tmp_path / "disk" / "filler"
            before = Lake(world.lake).snapshot().generation
            if is_mounted:
                free = os.statvfs(tmp_path / "disk").f_bavail * 4096
                filler.write_bytes(b"x" * max(0, free - level * 2 * 4096))
                code = runner.run(*INGEST)
            else:
                code = runner.run(*INGEST, limit=1000 + level * 2000)
            tally.attempts += 1
            tally.hit += code != 0
            codes.append(code)
            if code not in (0, IO):
                tally.wrong.append(f"level {level}: exit {code}: {runner.said()[-500:]}")
            if code == IO and Lake(world.lake).snapshot().generation not in (before, before + 1):
                tally.wrong.append("a full disk changed the generation")
            world.note(code == 0)
            tally.add(world.check(is_final=False))
            filler.unlink(missing_ok=True)
            read(world, runner)
            tally.add(world.check())
        (tmp_path / "lake").unlink() if is_mounted else None
    told("F3 full disk", f"{'4 MiB tmpfs' if is_mounted else 'RLIMIT_FSIZE'}, exit codes {codes}; {tally}")
    assert tally.is_clean, tally
    assert tally.hit >= levels // 3


def test_f4_a_read_only_lake_is_read_and_not_written(world: World, runner: Runner, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as is_mounted:
        if not is_mounted:
            pytest.skip("mounting needs root")
        lake = str(tmp_path / "disk" / "lake")
        assert runner.run("--lake", lake, *INGEST[2:]) == 0
        world.note(True)
        world.append()
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        assert runner.run("--lake", lake, *INGEST[2:]) == IO
        assert "Read-only file system" in runner.said()
        for command in (["lake", "verify"], ["lake", "info"], ["sql", "select count(*) from steps"], ["doctor"]):
            assert runner.run("--lake", lake, *command) == 0, runner.said()
        assert check_lake(Path(lake), world.must, world.must).is_clean
        subprocess.run(["mount", "-o", "remount,rw", str(tmp_path / "disk")], check=True)
        assert runner.run("--lake", lake, *INGEST[2:]) == 0
        world.note(True)
        assert check_lake(Path(lake), world.must, world.must).is_clean


# --- F5: two at once --------------------------------------------------------------------------------------------------


def test_f5_overlapping_runs(world: World, runner: Runner, tmp_path: Path) -> None:
    tally, wanted, other = Tally(), of(3, 30), Runner(tmp_path)
    try:
        read(world, runner)
        while tally.hit < wanted and tally.attempts < 4 * wanted:
            world.append()
            world.new_file()
            gates = [tmp_path / f"gate{number}" for number in range(2)]
            for gate, one in zip(gates, (runner, other), strict=True):
                gate.unlink(missing_ok=True)
                os.mkfifo(gate)
                one.start(*INGEST, go=str(gate))
            with gates[0].open("wb"), gates[1].open("wb"):
                pass
            codes = sorted((runner.wait(), other.wait()))
            tally.attempts += 1
            tally.hit += codes == [0, LOCKED]
            if codes not in ([0, LOCKED], [0, 0]):
                tally.wrong.append(f"exit codes {codes}")
            world.note(True)
            tally.add(world.check())
    finally:
        other.close()
    told("F5 overlapping pairs", f"{tally}")
    assert tally.is_clean, tally
    assert tally.hit == wanted


# --- F6 to F12: what happens to logs ----------------------------------------------------------------------------------


def test_f6_a_line_that_is_cut_anywhere(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cut inside the line waits; the whole line is read once."""
    monkeypatch.chdir(tmp_path)
    rng, tally, path = random.Random(SEED), Tally(), world.plain()[0]
    inside = 0
    for _ in range(of(6, 60)):
        line = world.lines(path, 1)
        cut = rng.randrange(1, len(line) - 1)
        inside += 0x80 <= line[cut] < 0xC0
        tally.attempts += 1
        for piece in (line[:cut], line[cut:]):
            with path.open("ab") as file:
                file.write(piece)
            run.ingest(Lake(Path("lake")), ["logs"], Settings())
            world.note(True)
            waiting = Lake(Path("lake")).snapshot().read("sources")["count_waiting"].sum()
            tally.hit += waiting == 1 and piece == line[:cut]
            tally.add(world.check())
    told("F6 partial last lines", f"{inside} of them cut inside a character; {tally}")
    assert tally.is_clean, tally
    assert tally.hit == tally.attempts


def test_f10_a_loop_of_identical_lines_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call = {"function": {"name": "Edit", "arguments": '{"file_path": "a.py"}'}}
    lines = [
        {"role": "assistant", "content": None, "tool_calls": [call], "session_id": "s"},
        {"role": "tool", "name": "Edit", "content": "boom", "is_error": True, "session_id": "s"},
    ] * 100
    Path("logs").mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    Path("logs/x.jsonl").write_text(text[:7000], encoding="utf-8")
    lake = Lake(Path("lake"))
    run.ingest(lake, ["logs"], Settings())
    Path("logs/x.jsonl").write_text(text, encoding="utf-8")
    run.ingest(lake, ["logs"], Settings())
    shutil.copy("logs/x.jsonl", "logs/copy.jsonl")
    run.ingest(lake, ["logs"], Settings())
    snapshot = lake.snapshot()
    steps, loops = snapshot.read("steps"), snapshot.read("loops")
    told("F10 identical lines", f"{steps.height} steps of 100, {loops['rule'].to_list()}")
    assert steps.height == 100
    assert steps["outcome"].unique().to_list() == ["failure"]
    assert "repeat/1" in loops["rule"].to_list()


@pytest.mark.parametrize("seed", [SEED, SEED + 1, SEED + 2])
def test_f6_to_f12_any_story_of_logs_and_runs(seed: int, tmp_path: Path, runner: Runner) -> None:
    """Files grow, tear, rotate, shrink, vanish and come back while runs work, are killed and compact: 540 steps in all."""
    world, rng, tally = World(tmp_path, seed), random.Random(seed), Tally()
    runs: dict[str, int] = {}
    read(world, runner)
    steps = of(14, 180)
    for step in range(steps):
        kind = world.change()
        tally.attempts += 1
        doing = rng.choice(["nothing", "nothing", "ingest", "ingest", "killed ingest", "compact", "killed compact"])
        if step % 30 == 29:
            doing = rng.choice(["rebuild", "killed rebuild", "rebuild from sources"])
        runs[doing] = runs.get(doing, 0) + 1
        if doing == "nothing":
            continue
        command = INGEST if "ingest" in doing else COMPACT if "compact" in doing else REBUILD
        command = (*REBUILD, "--from-sources") if "sources" in doing else command
        if doing.startswith("killed"):
            tally.hit += runner.run_killed(rng.uniform(0, 0.4), *command)
            world.note(False)
            found = world.check(is_final=False)
        else:
            code = runner.run(*command)
            if code != 0:
                tally.wrong.append(f"step {step}, {doing} after {kind}: exit {code}: {runner.said()[-500:]}")
            # A compaction reads no log; a rebuild from sources reads those that it knows.
            world.note(doing == "ingest")
            found = world.check()
        if not found.is_clean:
            tally.wrong.append(f"step {step}, {doing} after {kind}: {found}")
        tally.add(found)
    read(world, runner)
    tally.add(world.check())
    told(
        f"F6-F12 seed {seed}",
        f"{steps} steps, {len(world.must)} events, runs {runs}, changes {dict(world.kinds)}; killed: {tally}",
    )
    assert tally.is_clean, tally


def test_f12_late_events_in_any_order_give_the_lake_of_one_ingest(world: World, runner: Runner, tmp_path: Path) -> None:
    for _ in range(of(4, 20)):
        for _ in range(3):
            world.append_late()
            world.append()
        read(world, runner)
    assert runner.run("--lake", "once", *INGEST[2:]) == 0
    assert Lake(tmp_path / "lake").snapshot().digest() == Lake(tmp_path / "once").snapshot().digest()


# --- F13: a year ------------------------------------------------------------------------------------------------------


def test_f13_a_year_of_nights_is_one_rebuild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nights, world = of(30, 365), World(tmp_path, SEED)
    going_on = [world.new_file() for _ in range(9)]
    for path in world.plain():  # loops and drifts from the first night on: every night writes the same tables
        path.write_bytes(world.lines(path, 30))
    lake = Lake(Path("lake"))
    commits: list[tuple[float, float]] = []
    staged: list[int] = []
    commit = Writer.commit

    def timed(self: Writer, *arguments: object) -> None:
        staged.append(len(self._added))
        cpu, wall = time.process_time(), time.perf_counter()
        commit(self, *arguments)  # type: ignore[arg-type]
        commits.append((time.process_time() - cpu, time.perf_counter() - wall))

    monkeypatch.setattr(Writer, "commit", timed)
    whole: list[float] = []
    most = 0
    for night in range(nights):
        for path in going_on:
            with path.open("ab") as file:
                file.write(world.lines(path, 1))
        if night % 7 == 0:
            world.append_late()
        begin = time.process_time()
        run.ingest(lake, ["logs"], Settings())
        whole.append(time.process_time() - begin)
        most = max(most, care.most_files(lake.snapshot()))
    monkeypatch.setattr(Writer, "commit", commit)
    world.note(True)
    assert world.check().is_clean
    before = lake.snapshot().digest()
    done = care.compact(lake)
    assert care.most_files(lake.snapshot()) <= 2
    run.ingest(Lake(Path("once")), ["logs"], Settings())
    once = Lake(Path("once")).snapshot().digest()

    def median(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    part = max(5, nights // 12)
    first, last = ([median([c[i] for c in some]) for i in (0, 1)] for some in (commits[1 : part + 1], commits[-part:]))
    told(
        f"F13 {nights} nights",
        f"digest of increments {before[:12]}, compacted {lake.snapshot().digest()[:12]}, one ingest {once[:12]}; "
        f"at most {most} files of a table in a bucket, {done['count_files_before']} files -> {done['count_files']}; "
        f"commit of the first and the last {part} nights (median): CPU {first[0] * 1e3:.0f} -> {last[0] * 1e3:.0f} ms, "
        f"wall {first[1] * 1e3:.0f} -> {last[1] * 1e3:.0f} ms, {staged[1]} -> {staged[-1]} files; whole ingest CPU "
        f"{median(whole[1 : part + 1]) * 1e3:.0f} -> {median(whole[-part:]) * 1e3:.0f} ms",
    )
    assert before == lake.snapshot().digest() == once
    assert last[0] <= 1.5 * first[0]


# --- F14: readers -----------------------------------------------------------------------------------------------------


def test_f14_no_reader_ever_sees_a_wrong_count(world: World, runner: Runner, tmp_path: Path) -> None:
    """Three kinds of readers poll while nights, compactions and rebuilds come, are killed, and sweep old files."""
    for _ in range(3):
        world.append()
        read(world, runner)
    allowed = {len(world.must)}
    seen: dict[str, list[int]] = {"polars": [], "DuckDB": [], "loopstats sql": []}
    gone: list[str] = []
    is_over = threading.Event()

    def by_polars() -> None:
        snapshot = Lake.open(world.lake).snapshot()
        steps = snapshot.scan("steps").select(pl.len()).collect().item()
        calls = snapshot.scan("records").filter(pl.col("type") == "call").select("session_id", "call_id").collect()
        seen["polars"] += [steps, calls.unique().height]

    def by_duckdb() -> None:
        connection = query.open_snapshot(Lake.open(world.lake).snapshot(), 0)
        seen["DuckDB"].append(query.run(connection, "SELECT count(*) AS n FROM steps").item())

    other = Runner(tmp_path)

    def by_sql() -> None:
        code = other.run("--lake", "lake", "sql", "select count(*) as n from steps", "-f", "jsonl", "--quiet")
        if code != 0:
            raise LakeError(other.said()[-300:])
        found = [json.loads(line)["n"] for line in other.said().splitlines() if line.startswith("{")]
        seen["loopstats sql"] += found

    def poll(look: object) -> None:
        while not is_over.is_set():
            try:
                look()  # type: ignore[operator]
            except (LoopstatsError, OSError, pl.exceptions.PolarsError) as error:
                gone.append(f"{type(error).__name__}: {error}"[:200])

    readers = [threading.Thread(target=poll, args=(look,)) for look in (by_polars, by_duckdb, by_sql)]
    for reader in readers:
        reader.start()
    rng, kills = random.Random(SEED), 0
    for _ in range(of(4, 40)):
        world.append()
        allowed.add(len(world.must | world.look()[0]))
        read(world, runner)
        kills += runner.run_killed(rng.uniform(0, 0.4), *COMPACT)
        kills += runner.run_killed(rng.uniform(0, 0.6), *REBUILD)
        assert runner.run(*COMPACT) == 0
    is_over.set()
    for reader in readers:
        reader.join()
    other.close()
    wrong = {name: [count for count in counts if count not in allowed] for name, counts in seen.items()}
    told(
        "F14 readers",
        f"{ {name: len(counts) for name, counts in seen.items()} } counts, {kills} kills: "
        f"{sum(map(len, wrong.values()))} wrong, {len(gone)} asked to run again {gone[:1]}",
    )
    assert wrong == {"polars": [], "DuckDB": [], "loopstats sql": []}
    assert all(len(counts) > 2 for counts in seen.values())
    assert world.check().is_clean


# --- F21: clocks and zones --------------------------------------------------------------------------------------------


def test_f21_no_clock_and_no_zone_is_in_the_lake(world: World, runner: Runner, tmp_path: Path) -> None:
    """Three hosts in three zones, one whose clock jumps back over a change to summer time between its nights."""
    hosts = {
        "a": ("Pacific/Kiritimati", 1_793_000_000),
        "b": ("America/New_York", 0),
        "c": ("Asia/Kolkata", 4_000_000_000),
    }
    for night in range(2):
        world.append()
        for path in world.files():
            os.utime(path, (10_000 - night, 10_000 - night))  # files that get older every night
        for lake, (zone, clock) in hosts.items():
            code = runner.run("--lake", lake, *INGEST[2:], zone=zone, clock=max(0, clock - night * 7_200))
            assert code == 0, runner.said()
        world.note(True)
    digests = {Lake(tmp_path / lake).snapshot().digest() for lake in hosts}
    told("F21 zones and clocks", f"{len(hosts)} hosts, {len(digests)} digest")
    assert len(digests) == 1
    assert check_lake(tmp_path / "a", world.must, world.must).is_clean


# --- the mutants ------------------------------------------------------------------------------------------------------


def story(name: str, world: World, runner: Runner, mutant: str | None) -> Tally:
    """The story that needs the promise which a mutant breaks."""
    tally = Tally()

    def ingest() -> None:
        code = runner.run(*INGEST, mutant=mutant)
        world.note(True)
        if code != 0:
            tally.wrong.append(f"exit {code}: {runner.said()[-200:]}")
        tally.add(world.check())

    ingest()
    if name == "no anti-join":
        world.copy()
        ingest()
    elif name == "no tail check":
        for _ in range(3):
            world.replace()
            ingest()
    elif name == "no roll-forward":
        world.append()
        runner.run_traced("rename", "signal=KILL:when=1", *INGEST, mutant=mutant)
        ingest()
    else:
        world.append()
        ingest()
        assert not (tally.lost or tally.doubled or tally.unreadable), "the naive writer must work where nothing happens"
        for number in (3, 4, 5, 6, 7):
            world.append()
            world.copy()
            runner.run_traced("fdatasync", f"signal=KILL:when={number}", *INGEST, mutant=mutant)
            world.note(False)
            tally.add(world.check(is_final=False))
            ingest()
    return tally


@pytest.mark.parametrize("name", ["no anti-join", "no tail check", "no roll-forward", "naive writer"])
def test_each_mutant_is_caught(name: str, tmp_path: Path) -> None:
    found = {}
    for mutant in (None, name):
        folder = tmp_path / str(mutant)
        folder.mkdir()
        runner = Runner(folder)
        try:
            found[mutant] = story(name, World(folder, SEED), runner, mutant)
        finally:
            runner.close()
    told(f"mutant {name}", found[name])
    assert found[None].is_clean, f"the story fails without the mutant: {found[None]}"
    caught = found[name]
    assert {
        "no anti-join": caught.doubled,
        "no tail check": caught.lost,
        "no roll-forward": caught.lost,
        "naive writer": caught.lost + caught.doubled + caught.unreadable,
    }[name], f"not caught: {caught}"


def test_the_model_sees_what_it_should() -> None:
    """The judge is judged: events on whole lines are sure, events in torn ones are not, others are none."""
    line = '{"v": 1, "type": "step", "session": "s", "id": "e1", "target": "fé"}'.encode()
    event = ("s", "e1", "fé")
    assert events_in(line + b"\n") == ({event}, set())
    assert events_in(line) == ({event}, set())
    assert events_in(line[:-3]) == (set(), set())
    assert events_in(line[:20] + line + b"\n") == (set(), {event})
