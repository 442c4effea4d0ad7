"""Seeded logs of a fixed mix, as large as asked for: what the ingest benchmark reads.

`python tests/bench/generate.py FOLDER MEGABYTES [SEED]` writes Claude Code transcripts of about 4.2 MB and 780 lines
each (mean line 5.4 kB, about 62 thousand calls a gigabyte): of three lines one asks for a call, one answers it, one
carries no fact of a loop. About one call in nine fails, some of them three times and more with the same error on
different files, so that there are loops to find. The same arguments give the same bytes on every machine. Lines are
whole and clean, because the engines that are raced can read nothing else; bad lines have tests of their own.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE_BYTES = 4_200_000
BEGIN_S = 1_790_000_000
WORDS = [
    "return",
    "self",
    "value",
    "index",
    "config",
    "request",
    "response",
    "handler",
    "for",
    "in",
    "if",
    "not",
    "None",
    "True",
    "False",
    "import",
    "from",
    "class",
    "def",
    "async",
    "await",
    "yield",
    "lambda",
    "assert",
    "raise",
    "except",
    "finally",
    "with",
    "open",
    "path",
    "read",
    "write",
    "line",
    "count",
    "total",
    "result",
    "items",
    "token",
    "stream",
    "buffer",
    "offset",
    "limit",
    "parse",
    "render",
    "update",
    "delete",
    "insert",
    "select",
    "where",
    "order",
    "group",
    "cache",
    "key",
    "node",
    "edge",
]
ERRORS = (
    'Traceback (most recent call last):\n  File "{file}", line {n}, in run\n    raise ValueError(x)\n'
    "ValueError: bad part {n} in {file}",
    "error: Cannot find module './{word}' from '{file}'",
    "{file}:{n}:7 - error TS2304: Cannot find name '{word}'.",
    "FAILED {file}::test_{word} - AssertionError: assert {n} == 3\n1 failed, 12 passed in 0.{n}s",
    "bash: {word}: command not found",
    "fatal: pathspec '{file}' did not match any files",
)
TOOLS = ("Bash", "Bash", "Bash", "Read", "Read", "Edit", "Write", "Grep")


class Author:
    """One seeded stream of sessions; texts are cut from a pool, so that writing keeps up with a disk."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        pieces = []
        for number in range(60_000):
            words = " ".join(self._random.choices(WORDS, k=self._random.randint(3, 11)))
            indent = "    " * self._random.randint(0, 4)
            pieces.append(f'{indent}{words} "{number}"' if number % 7 == 0 else f"{indent}{words}")
        self._pool = "\n".join(pieces)

    def text(self, length: int) -> str:
        """A passage of about `length` characters that looks like source or a program's output."""
        size = max(20, int(length * self._random.choice((0.2, 0.5, 0.8, 1.0, 1.5, 2.0))))
        start = self._random.randrange(len(self._pool) - size)
        return self._pool[start : start + size]

    def hex(self, digits: int) -> str:
        """Random hexadecimal digits, as in an id."""
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"

    def uuid(self) -> str:
        """A random uuid."""
        return "-".join(self.hex(n) for n in (8, 4, 4, 4, 12))

    def path(self) -> str:
        """A file of the project."""
        return f"/home/dev/project/src/{self._random.choice(WORDS)}/{self._random.choice(WORDS)}_{self._random.randint(1, 40)}.py"

    def session(self, number: int) -> Iterator[dict[str, Any]]:
        """The records of one session, without an end."""
        pick = self._random
        ids = {"sessionId": self.uuid(), "version": "2.1.30", "cwd": "/home/dev/project", "gitBranch": "main"}
        clock, parent = BEGIN_S * 1000 + number * 600_000, None
        stuck, error = 0, ERRORS[0]

        def record(kind: str, **more: Any) -> dict[str, Any]:
            nonlocal clock, parent
            clock += pick.randint(200, 9_000)
            seconds, millis = divmod(clock, 1000)
            days, rest = divmod(seconds - 1_767_225_600, 86_400)  # days since 2026-01-01
            month, day = divmod(days, 28)
            stamp = f"2026-{month % 12 + 1:02d}-{day + 1:02d}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}.{millis:03d}Z"
            before, parent = parent, self.uuid()
            return {
                "parentUuid": before, "isSidechain": False, "userType": "external", **ids, "type": kind, **more,
                "uuid": parent, "timestamp": stamp,
            }  # fmt: skip

        yield record("user", message={"role": "user", "content": self.text(900)}, permissionMode="default")
        while True:
            message_id, request = "msg_01" + self.hex(22), "req_01" + self.hex(22)
            usage = {
                "input_tokens": pick.randint(1, 900), "cache_creation_input_tokens": pick.randint(100, 9000),
                "cache_read_input_tokens": pick.randint(9000, 120_000), "output_tokens": pick.randint(5, 2500),
                "service_tier": "standard",
            }  # fmt: skip
            told = {
                "id": message_id,
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-4-5",
                "usage": usage,
            }
            yield self._aside(record, told, request)
            name, call_id = pick.choice(TOOLS), "toolu_01" + self.hex(22)
            if not stuck and pick.random() < 0.02:
                stuck, error = pick.randint(3, 7), pick.choice(ERRORS)
            is_failed = stuck > 0 or pick.random() < 0.04
            stuck = max(0, stuck - 1)
            given, shown, used = self._call(name)
            call = {"type": "tool_use", "id": call_id, "name": name, "input": given}
            yield record("assistant", message={**told, "content": [call], "stop_reason": "tool_use"}, requestId=request)
            if is_failed:
                said = error.format(file=self.path(), n=pick.randint(2, 90), word=pick.choice(WORDS))
                shown = (
                    f"Exit code 1\n{self.text(2500)}\n{said}"
                    if name == "Bash"
                    else f"<tool_use_error>{said}</tool_use_error>"
                )
                used = f"Error: {shown}"
            answer = {
                "tool_use_id": call_id,
                "type": "tool_result",
                "content": shown,
                **({"is_error": True} if is_failed else {}),
            }
            yield record("user", message={"role": "user", "content": [answer]}, toolUseResult=used)

    def _aside(self, record: Any, told: dict[str, Any], request: str) -> dict[str, Any]:
        """A record without a call: a thought, a text, progress of a hook, a snapshot of files."""
        draw = self._random.random()
        if draw < 0.45:
            block = {"type": "thinking", "thinking": self.text(2200), "signature": self.hex(700)}
            return record("assistant", message={**told, "content": [block]}, requestId=request)
        if draw < 0.7:
            block = {"type": "text", "text": self.text(1800)}
            return record("assistant", message={**told, "content": [block]}, requestId=request)
        if draw < 0.95:
            data = {"type": "bash_progress", "output": self.text(1500), "fullOutput": self.text(4200)}
            return record("progress", data=data, toolUseID="bash-progress-1")
        backups = {self.path(): {"backupFileName": self.hex(16), "version": 1} for _ in range(12)}
        return {"type": "file-history-snapshot", "messageId": self.uuid(), "snapshot": {"trackedFileBackups": backups}}

    def _call(self, name: str) -> tuple[dict[str, Any], str, Any]:
        """Arguments, the text of the answer, and the structure that is written beside it."""
        path, word = self.path(), self._random.choice(WORDS)
        if name == "Bash":
            commands = (
                f"cd /home/dev/project && pytest tests/test_{word}.py -q | tail -20",
                f"git -C /home/dev/project diff --stat HEAD~{self._random.randint(1, 9)}",
                f"grep -rn {word} src/ | head -{self._random.randint(5, 60)}",
                f"npm run build -- --filter={word}",
                f"sed -n 1,{self._random.randint(20, 200)}p {path}",
            )
            text = self.text(5600)
            return (
                {"command": self._random.choice(commands), "description": f"Look at {word}"}, text,
                {"stdout": text, "stderr": "", "interrupted": False, "isImage": False},
            )  # fmt: skip
        if name == "Read":
            text = self.text(5900)
            shown = "\n".join(f"{n:6d}\u2192{line}" for n, line in enumerate(text.split("\n"), 1))
            return (
                {"file_path": path},
                shown,
                {"type": "text", "file": {"filePath": path, "content": text, "numLines": 90}},
            )
        if name == "Grep":
            text = self.text(3600)
            return (
                {"pattern": word, "path": "src", "output_mode": "content"},
                text,
                {"mode": "content", "content": text},
            )
        old, new = self.text(700), self.text(900)
        done = f"The file {path} has been updated. Here is the result of running `cat -n`:\n{new}"
        if name == "Write":
            return {"file_path": path, "content": new}, done, {"type": "create", "filePath": path, "content": new}
        return (
            {"file_path": path, "old_string": old, "new_string": new}, done,
            {"filePath": path, "oldString": old, "newString": new, "originalFile": self.text(19_000), "userModified": False},
        )  # fmt: skip


def write(folder: Path, size_bytes: int, seed: int = 7) -> list[Path]:
    """Write files of together `size_bytes` or a little more; their paths, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    author, paths, total = Author(seed), [], 0
    while total < size_bytes:
        path = folder / f"session-{len(paths):05d}.jsonl"
        size = 0
        with path.open("wb") as file:
            for record in author.session(len(paths)):
                size += file.write(json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")
                if size >= FILE_BYTES:
                    break
        paths.append(path)
        total += size
    return paths


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: generate.py FOLDER MEGABYTES [SEED]")
    made = write(Path(sys.argv[1]), int(sys.argv[2]) << 20, int(sys.argv[3]) if len(sys.argv) > 3 else 7)
    print(f"{len(made)} files, {sum(path.stat().st_size for path in made):,} bytes")
