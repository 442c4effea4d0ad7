"""The installed configuration loaded by the agents' own programs, with a stand-in for the model on this machine.

Needs the programs `claude` and `codex` (the packages that their makers publish; on the PATH, or named by
LOOPSTATS_TEST_CLAUDE and LOOPSTATS_TEST_CODEX) and no account: both talk to a small server here that plays a fixed
conversation. What is proved: the agents accept the settings, fire the events, and put what the hook says before the
model.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lines import ingest, tables_of
from loopstats import hook, hooks
from loopstats.config import Experiment, Settings

TOKEN = json.dumps({"experiment": "live", "salt": "s", "share_bp": 9_999, "n_star": 100})
OWN = Settings(experiments={"live": Experiment("live", "s", 9_999, 100)})
PATIENCE_S = 120


def program(name: str) -> str:
    found = os.environ.get(f"LOOPSTATS_TEST_{name.upper()}") or shutil.which(name)
    if not found:
        pytest.skip(f"the agent's program is not installed: {name}")
    return found


def claude_turn(turn: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """The server-sent events of one Messages API answer."""
    message = {
        "id": f"msg_{number:04d}",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(turn):
        text = block["type"] == "text"
        empty = {"type": "text", "text": ""} if text else block | {"input": {}}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if text
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        events += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    stop = "end_turn" if turn[0]["type"] == "text" else "tool_use"
    events.append(
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 2}}
    )
    return [*events, {"type": "message_stop"}]


def codex_turn(turn: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """The server-sent events of one Responses API answer."""
    usage = {
        "input_tokens": 1,
        "input_tokens_details": None,
        "output_tokens": 1,
        "output_tokens_details": None,
        "total_tokens": 2,
    }
    return [
        {"type": "response.created", "response": {"id": f"resp_{number}"}},
        *(
            {"type": "response.output_item.done", "output_index": index, "item": item}
            for index, item in enumerate(turn)
        ),
        {"type": "response.completed", "response": {"id": f"resp_{number}", "usage": usage}},
    ]


@contextmanager
def model(turns: list[list[dict[str, Any]]], is_codex: bool) -> Iterator[tuple[str, list[str]]]:
    """A server that gives `turns` one by one and then says done; its address, and the requests that it got."""
    heard: list[str] = []
    left = list(turns)

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            return

        def _send(self, data: bytes, kind: str = "application/json") -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._send(b'{"data": [], "models": []}')

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode("utf-8", "replace")
            asked = json.loads(body) if body else {}
            if not asked.get("stream") or not asked.get("tools"):
                self._send(b'{"input_tokens": 1}')
                return
            heard.append(body)
            end = [
                {
                    "type": "message",
                    "role": "assistant",
                    "id": "m",
                    "content": [{"type": "output_text", "text": "done"}],
                }
            ]
            turn = left.pop(0) if left else end if is_codex else [{"type": "text", "text": "done"}]
            events = (codex_turn if is_codex else claude_turn)(turn, len(heard))
            data = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
            self._send(data.encode(), "text/event-stream")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        server.server_close()


def lines_of(spool: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(spool.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_claude_code_loads_the_settings_and_hears_the_hook(tmp_path: Path) -> None:
    claude = program("claude")
    home, project, spool = (tmp_path / name for name in ("home", "project", "spool"))
    home.mkdir()
    project.mkdir()
    for name in "abc":
        (project / f"{name}.txt").write_text("hello\n")

    def use(tool: str, number: int, given: dict[str, Any]) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"toolu_01{tool.upper()}{number:018d}", "name": tool, "input": given}

    files = [str(project / f"{name}.txt") for name in "abc"]
    turns = [
        [use("Read", number, {"file_path": path}) for number, path in enumerate(files)],
        *(
            [use("Edit", number, {"file_path": path, "old_string": "zzz", "new_string": "q"})]
            for number, path in enumerate(files)
        ),
        [use("Bash", 1, {"command": "python3 -c 'import nope'", "description": "x"})],
    ]
    hooks.install(hooks.CLAUDE_CODE, "project", project, {})
    with model(turns, is_codex=False) as (address, heard):
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "LOOPSTATS_SPOOL": str(spool),
            hook.TOKEN: TOKEN,
        }
        done = subprocess.run(
            [claude, "-p", "go", "--allowedTools", "Bash Edit Read", "--output-format", "json"],
            cwd=project,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr.decode()[-500:]
    told = lines_of(spool)
    assert [line["type"] for line in told if line["type"] != "step"] == ["session", "loop", "delivery"]
    (loop,) = (line for line in told if line["type"] == "loop")
    assert loop["step"] == turns[3][0]["id"]
    before, after = heard[3], heard[4]
    assert "<loopstats>" not in before and "You have tried 3 edits that failed in the same way" in after
    ingest(tmp_path / "lake", spool, home / ".claude" / "projects", settings=OWN)
    tables = tables_of(tmp_path / "lake")
    (row,) = tables["loops"].to_dicts()
    assert (row["signature"], row["detected_call_id"], row["is_enrolled"], row["arm"], row["is_delivered"]) == (
        loop["signature"],
        loop["step"],
        True,
        loop["arm"],
        True,
    )
    assert tables["steps"].height == 7


def test_codex_loads_the_settings_and_hears_the_hook(tmp_path: Path) -> None:
    codex = program("codex")
    home, project, spool = (tmp_path / name for name in ("codex", "project", "spool"))
    home.mkdir()
    project.mkdir()
    for name in "abc":
        (project / f"test_{name}.py").write_text("def test_it():\n    raise KeyError('price')\n")
    (project / "pytest.sh").write_text(
        'echo "FAILED $1::test_it - KeyError: price"; echo "======= 1 failed in 0.10s ======="; exit 1\n'
    )
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "pytest").write_text("#!/bin/sh\n" + (project / "pytest.sh").read_text())
    (bin_folder / "pytest").chmod(0o755)
    turns = [
        [
            {
                "type": "function_call",
                "name": "exec_command",
                "call_id": f"call_{number:022d}",
                "arguments": json.dumps({"cmd": f"pytest test_{name}.py", "login": False}),
            }
        ]
        for number, name in enumerate("abc")
    ]
    env = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "CODEX_HOME": str(home),
        "LOOPSTATS_SPOOL": str(spool),
        hook.TOKEN: TOKEN,
    }
    hooks.install(hooks.CODEX, "user", project, env)
    with model(turns, is_codex=True) as (address, heard):
        (home / "config.toml").write_text(
            f'model = "m"\nmodel_provider = "here"\n[model_providers.here]\nname = "here"\nbase_url = "{address}/v1"\n'
            'wire_api = "responses"\nrequires_openai_auth = false\n'
        )
        done = subprocess.run(
            [
                codex,
                "exec",
                "--dangerously-bypass-hook-trust",
                "-s",
                "danger-full-access",
                "--skip-git-repo-check",
                "go",
            ],
            cwd=project,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr.decode()[-500:]
    told = lines_of(spool)
    assert told[0]["harness"] == "codex"
    assert [(line["action"], line["target"], line["outcome"]) for line in told if line["type"] == "step"] == [
        ("Bash:pytest", f"test_{name}.py", "failure") for name in "abc"
    ]
    assert [line["type"] for line in told if line["type"] != "step"] == ["session", "loop", "delivery"]
    assert "<loopstats>" not in heard[2] and "You have run 3 checks that failed in the same way" in heard[3]


def test_codex_does_not_run_a_hook_that_nobody_reviewed(tmp_path: Path) -> None:
    codex = program("codex")
    home = tmp_path / "codex"
    home.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CODEX_HOME": str(home),
        "LOOPSTATS_SPOOL": str(tmp_path / "spool"),
        hook.TOKEN: TOKEN,
    }
    hooks.install(hooks.CODEX, "user", tmp_path, env)
    with model([], is_codex=True) as (address, _):
        (home / "config.toml").write_text(
            f'model = "m"\nmodel_provider = "here"\n[model_providers.here]\nname = "here"\nbase_url = "{address}/v1"\n'
            'wire_api = "responses"\nrequires_openai_auth = false\n'
        )
        subprocess.run(
            [codex, "exec", "-s", "danger-full-access", "--skip-git-repo-check", "go"],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=PATIENCE_S,
        )
    # why `status` looks into the spool: installed is not firing
    rows = {row.agent: row for row in hooks.status(tmp_path, env, 0) if row.scope == "user"}
    assert (rows["codex"].settings, rows["codex"].firing) == ("installed", "never")
