"""Hostile files: bombs under a memory cap, archives cut anywhere, names, links, pipes, and files that change while read.

What one bad line does stands in `test_bad_lines.py`; here the whole program is run on files that are made to hurt it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard

from hostile import HARMFUL, OWN, run
from lines import ingest, tables_of
from loopstats import ingest as reading
from loopstats.found import Found

MIB = 1 << 20
BOMB = 600  # MiB that each bomb would grow to
MEMORY_MIB = 550  # all that reading takes, so that no bomb was ever taken whole
ADDRESS_SPACE = 4 << 30  # room for mapped libraries and threads' stacks; a bomb taken whole twice does not fit


def step(session: str, call: str, **more: Any) -> bytes:
    record = {"v": 1, "type": "step", "session": session, "id": call, "tool": "Edit", "outcome": "success"}
    return json.dumps(record | more).encode() + b"\n"


def packed(kind: str) -> Callable[[bytes], bytes]:
    return gzip.compress if kind == "gz" else zstandard.compress


def bomb(kind: str, head: bytes, piece: bytes, tail: bytes, count: int = BOMB) -> bytes:
    """`head`, `count` times a mebibyte and `tail`; made of equal members, so that making it costs nothing."""
    pack = packed(kind)
    return pack(head) + pack(piece * MIB) * count + pack(tail)


BOMBS = {
    "zeros after a line": (b"LINE", b"\x00", b"\n"),
    "line ends": (b"LINE", b"\n", b""),
    "one long text": (b'{"a":"', b"x", b'"}'),
    "brackets": (b"[", b"[", b""),
    "a long text in a line": (b'LINE{"a":"', b"x", b'"}\nLINE'),
}


def limited(arguments: list[str], seconds: int) -> tuple[int, str, int, float]:
    """The program under a cap of address space: exit code, output, peak of resident memory in MiB, CPU seconds."""

    def cap() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    process = subprocess.Popen(
        [sys.executable, "-m", "loopstats.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=cap,
        env={**os.environ, "POLARS_MAX_THREADS": "1"},
    )
    assert process.stdout is not None
    out = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, out, usage.ru_maxrss // 1024, usage.ru_utime + usage.ru_stime


def test_bombs_end_at_their_cap_within_the_memory(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "good.jsonl").write_bytes(step("good", "one"))
    for kind, few in (("gz", 5), ("zst", 3)):
        for number, (head, piece, tail) in enumerate(list(BOMBS.values())[:few]):
            line = step(f"{kind}{number}", "x")
            data = bomb(kind, head.replace(b"LINE", line), piece, tail.replace(b"LINE", line))
            (logs / f"{number}.jsonl.{kind}").write_bytes(data)
            assert len(data) < 2 * MIB
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", b"[" * 64 * MIB)
    with zipfile.ZipFile(logs / "nested.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({"version": 2, "status": "success", "eval": {"run_id": "r"}}))
        archive.writestr("samples/1_epoch_1.json", inner.getvalue())
        with archive.open("samples/2_epoch_1.json", "w") as member:
            for _ in range(128):
                member.write(b"[" * MIB)
    code, out, peak_mib, seconds = limited(["--lake", str(tmp_path / "lake"), "ingest", str(logs)], 100)
    assert code == 0, out
    assert peak_mib < MEMORY_MIB
    assert seconds < 90
    tables = tables_of(tmp_path / "lake")
    assert "good" in set(tables["sessions"]["session_id"])
    reasons: dict[str, set[str]] = {}
    for file, reason in tables["rejects"].select("source_file", "reason").iter_rows():
        reasons.setdefault(Path(file).name, set()).add(reason)
    bombs = {path.name for path in logs.glob("*.jsonl.*")}
    assert len(bombs) == 8
    assert {name for name in bombs if "inflates_too_far" not in reasons.get(name, set())} == set()
    assert "inflates_too_far" in reasons["nested.eval"]
    sources = tables["sources"]
    parts = pl.sum_horizontal("count_used", "count_nothing", "count_folded", "count_rejected", "count_waiting")
    assert sources.filter(pl.col("count_read") != parts).height == 0


def test_a_line_of_50_mb_a_number_of_5000_digits_and_a_depth_of_100000(tmp_path: Path) -> None:
    middle = [
        step("s", "long", extra="x" * 50_000_000),
        step("s", "digits")[:-2] + b',"exit_code":' + b"7" * 5000 + b"}\n",
        step("s", "infinite")[:-2] + b',"cost_usd":1e999,"duration_ms":-1e999}\n',
        step("s", "deep")[:-2] + b',"input":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}\n",
        step("s", "wide")[:-2] + b',"input":[' + b"[]," * 100_000 + b"0]}\n",
        step("s", "keys")[:-2] + b',"input":{' + b",".join(b'"k%d":%d' % (n, n) for n in range(100_000)) + b"}}\n",
    ]
    log = tmp_path / "a.jsonl"
    log.write_bytes(step("s", "before") + b"".join(middle) + step("s", "after"))
    code, out, peak_mib, seconds = limited(["--lake", str(tmp_path / "lake"), "ingest", str(log)], 60)
    assert code == 0, out
    assert peak_mib < MEMORY_MIB
    tables = tables_of(tmp_path / "lake")
    names = ["before", "long", "digits", "infinite", "wide", "keys", "after"]
    assert sorted(tables["steps"]["call_id"]) == sorted(names)
    assert tables["rejects"]["reason"].to_list() == ["too_deep"]
    assert tables["steps"].filter(pl.col("call_id") == "digits")["exit_code"].to_list() == [None]
    assert seconds < 60


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_an_archive_cut_anywhere_gives_its_whole_lines_and_the_rest_next_time(kind: str, tmp_path: Path) -> None:
    noise = os.urandom(500_000).hex()
    whole = b"".join(step("s", f"{n:03d}", extra=noise[n * 5000 : n * 5000 + 5000]) for n in range(200))
    data = packed(kind)(whole)
    counts = []
    for tenth in (0, 1, 4, 9):
        logs = tmp_path / f"logs{tenth}"
        logs.mkdir()
        log = logs / f"a.jsonl.{kind}"
        log.write_bytes(data[: len(data) * tenth // 10])
        (logs / "good.jsonl").write_bytes(step("good", "one"))
        ingest(tmp_path / f"lake{tenth}", logs)
        tables = tables_of(tmp_path / f"lake{tenth}")
        calls = sorted(tables["steps"].filter(pl.col("session_id") == "s")["call_id"])
        assert calls == [f"{n:03d}" for n in range(len(calls))]
        assert tables["steps"].filter(pl.col("session_id") == "good").height == 1
        assert tables["rejects"].filter(reason="truncated_archive").height == (1 if tenth else 0)
        counts.append(len(calls))
        if tenth in (1, 9):
            log.write_bytes(data)
            ingest(tmp_path / f"lake{tenth}", logs)
            tables = tables_of(tmp_path / f"lake{tenth}")
            assert tables["steps"].filter(pl.col("session_id") == "s").height == 200
            assert tables["rejects"].height == 0
    assert counts == sorted(counts)
    assert counts[-1] > 0


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_flipped_byte_in_an_archive_costs_no_other_file(kind: str, tmp_path: Path) -> None:
    whole = b"".join(step("s", f"{n:03d}", extra=os.urandom(100).hex()) for n in range(50))
    data = bytearray(packed(kind)(whole))
    for place in range(len(data) // 20, len(data), len(data) // 8):
        broken = bytearray(data)
        broken[place] ^= 0xFF
        (tmp_path / f"{place}.jsonl.{kind}").write_bytes(broken)
    (tmp_path / "good.jsonl").write_bytes(step("good", "one"))
    ingest(tmp_path / "lake", tmp_path)
    assert "good" in set(tables_of(tmp_path / "lake")["sessions"]["session_id"])


NAMES = [
    b"a[1]*{x}.jsonl", b"quote'.jsonl", b'quote".jsonl', b"line\nend.jsonl", b"\x1b]0;title\x07.jsonl", b"-rf", b"--lake",
    b"%s%n%d.jsonl", b"bytes\xff\xfe\x80.jsonl", b"x" * 249 + b".jsonl", "right\u202eto\u202cleft.jsonl".encode(),
    b" ", b"~", b"$HOME", b"`id`.jsonl", b"a;b|c&d.jsonl", b"..jsonl", b"...", b"C:\\x.jsonl", b"a\tb", "\u2028.jsonl".encode(),
    b"escaped:x.jsonl", b"refused:y.jsonl", b"COM1.jsonl", b"bucket=00", b"\xed\xa0\x80.jsonl", b"_lock", b"ledger.sqlite",
]  # fmt: skip


def test_hostile_names_are_read_shown_and_read_no_second_time(tmp_path: Path) -> None:
    logs = os.fsencode(tmp_path / "logs")
    Path(os.fsdecode(logs)).mkdir()
    for number, name in enumerate(NAMES):
        Path(os.fsdecode(logs + b"/" + name)).write_bytes(step(f"s{number}", "one") + b"{torn\n")
    lake = ["--lake", str(tmp_path / "lake"), "--color", "never"]
    for arguments in (["ingest", "logs"], ["ingest", "logs", "--dry-run", "--full"]):
        done = run(*lake, *arguments, cwd=tmp_path, env={"HOME": str(tmp_path)})
        assert done.returncode in (0, 5), done.stderr
        assert HARMFUL.search(done.stdout.decode()) is None
        assert HARMFUL.search(done.stderr.decode()) is None
    sources = tables_of(tmp_path / "lake")["sources"]
    assert sources.height == sources["source_file"].n_unique() == len(NAMES)
    assert sorted(tables_of(tmp_path / "lake")["sessions"]["session_id"]) == sorted(f"s{n}" for n in range(len(NAMES)))
    again = ingest(tmp_path / "lake", tmp_path / "logs")
    assert (again["files_same"], again["files_new"], again["files_gone"]) == (len(NAMES), 0, 0)


def test_a_name_like_an_option_is_a_path_behind_two_dashes(tmp_path: Path) -> None:
    (tmp_path / "-rf").write_bytes(step("s", "one"))
    done = run("--lake", str(tmp_path / "lake"), "ingest", "--", "-rf", cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert tables_of(tmp_path / "lake")["steps"].height == 1


def test_nothing_outside_the_root_is_read_and_nothing_hangs(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.jsonl").write_bytes(step("outside", "one"))
    logs = tmp_path / "logs"
    (logs / "sub").mkdir(parents=True)
    (logs / "good.jsonl").write_bytes(step("good", "one"))
    (logs / "file-out.jsonl").symlink_to(outside / "secret.jsonl")
    (logs / "folder-out").symlink_to(outside, target_is_directory=True)
    (logs / "sub" / "up").symlink_to(logs, target_is_directory=True)
    (logs / "loop-a").symlink_to(logs / "loop-b")
    (logs / "loop-b").symlink_to(logs / "loop-a")
    (logs / "self.jsonl").symlink_to("self.jsonl")
    (logs / "etc.jsonl").symlink_to("/etc/passwd")
    (logs / "folder.jsonl").mkdir()
    (logs / "folder.jsonl.gz").mkdir()
    os.mkfifo(logs / "pipe.jsonl")
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(logs)  # a socket's address is short
    server.bind("socket.jsonl")
    os.chdir(here)
    is_device = os.geteuid() == 0
    if is_device:
        try:
            os.mknod(logs / "zero.jsonl", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        except OSError:
            is_device = False
    done = run("--lake", str(tmp_path / "lake"), "ingest", str(logs), env={"HOME": str(tmp_path)}, timeout=60)
    server.close()
    assert done.returncode == 0, done.stderr
    tables = tables_of(tmp_path / "lake")
    assert tables["sessions"]["session_id"].to_list() == ["good"]
    reasons = {
        Path(file).name: reason for file, reason in tables["rejects"].select("source_file", "reason").iter_rows()
    }
    links = ("file-out.jsonl", "folder-out", "up", "loop-a", "loop-b", "self.jsonl", "etc.jsonl")
    odd = ("pipe.jsonl", "socket.jsonl", *(["zero.jsonl"] if is_device else []))
    assert reasons == dict.fromkeys(links, "link") | dict.fromkeys(odd, "not_a_file")


@pytest.mark.parametrize("name", ["file", "folder"])
def test_a_link_that_is_named_on_the_command_line_is_followed_for_it_was_asked_for(name: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.jsonl").write_bytes(step("s", "one"))
    (tmp_path / "link").symlink_to(tmp_path / "real" / ("a.jsonl" if name == "file" else ""))
    ingest(tmp_path / "lake", tmp_path / "link")
    assert tables_of(tmp_path / "lake")["steps"].height == 1


def found(path: Path) -> Found:
    status = path.lstat()
    return Found(str(path), path.name, status.st_size, status.st_mtime_ns, status.st_ino, False)


def test_a_file_that_became_something_else_since_it_was_found_is_not_opened(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(step("secret", "one"))
    log.write_bytes(step("s", "one"))
    seen = found(log)
    for change in (lambda: log.symlink_to(secret), lambda: os.mkfifo(log), log.mkdir, lambda: None):
        shutil.rmtree(log) if log.is_dir() and not log.is_symlink() else log.unlink(missing_ok=True)
        change()
        started = time.monotonic()
        with pytest.raises(OSError):
            reading.read_source(seen, None, 1, {})
        assert time.monotonic() - started < 5


def test_files_that_change_while_they_are_read(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(30):
        (logs / f"{number:02d}.jsonl").write_bytes(b"".join(step(f"s{number}", f"{n}") for n in range(40)))
    is_over = threading.Event()

    def disturb() -> None:
        turn = 0
        while not is_over.is_set():
            turn += 1
            path = logs / f"{turn % 30:02d}.jsonl"
            try:
                match turn % 4:
                    case 0:
                        path.unlink()
                    case 1:
                        path.write_bytes(step(f"s{turn % 30}", "0") * 50)
                    case 2:
                        os.truncate(path, 10)
                    case _:
                        path.unlink()
                        path.symlink_to("/etc/passwd")
            except OSError:
                continue
            time.sleep(0.001)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        done = [
            run("--lake", str(tmp_path / "lake"), "ingest", str(logs), env={"HOME": str(tmp_path)}) for _ in range(2)
        ]
    finally:
        is_over.set()
        thread.join()
    assert {one.returncode for one in done} <= {0, 3}, [one.stderr for one in done]
    for path in logs.iterdir():
        path.unlink()
    for number in range(30):
        (logs / f"{number:02d}.jsonl").write_bytes(b"".join(step(f"s{number}", f"{n}") for n in range(40)))
    ingest(tmp_path / "lake", logs)
    steps = tables_of(tmp_path / "lake")["steps"]
    assert steps.filter(~pl.col("source_file").str.contains("passwd")).group_by("session_id").len()["len"].min() >= 40


def test_no_file_name_of_ours_is_made_of_a_name_of_theirs(tmp_path: Path) -> None:
    lines = [
        step(text, text, tool=text, project=text, agent=text) for text in ("../../out", "/etc/x", "a/../../b", *OWN)
    ]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.jsonl").write_bytes(b"".join(lines))
    ingest(tmp_path / "lake", tmp_path / "logs")
    names = {part for path in (tmp_path / "lake").rglob("*") for part in path.relative_to(tmp_path / "lake").parts}
    odd = {name for name in names if not all(char.isascii() and (char.isalnum() or char in "-_.=") for char in name)}
    assert odd == set()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "logs"]
