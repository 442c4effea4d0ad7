"""The live hook: what it records, whom it tells, and that nothing whatever makes it harm the agent.

Payloads named RECORDED were taken from the agents' programs (Claude Code 2.1.197, Codex 0.171.0) talking to a local
stand-in for a model, with ids and paths scrubbed; those named DOCUMENTED follow the published schemas only.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lines import ingest, tables_of
from loopstats import collector, failures, hook, provocations, rule
from loopstats.config import Experiment, Settings

NOW_US = 1_793_000_000_000_000
SECOND = 1_000_000
SESSION = "3b8e2c60-97f3-4d44-8f0b-6f2a0c7d1e55"
CWD = "/home/ann/shop"

CLAUDE_COMMON = {
    "session_id": SESSION,
    "transcript_path": "/home/ann/.claude/projects/-home-ann-shop/x.jsonl",
    "cwd": CWD,
    "prompt_id": "9d8ca4f7-7bde-47e2-841f-581af13db058",
    "permission_mode": "default",
    "effort": {"level": "high"},
}
RECORDED_START = {key: CLAUDE_COMMON[key] for key in ("session_id", "transcript_path", "cwd")} | {
    "hook_event_name": "SessionStart",
    "source": "startup",
}
RECORDED_FAILURE = CLAUDE_COMMON | {
    "hook_event_name": "PostToolUseFailure",
    "tool_name": "Bash",
    "tool_use_id": "toolu_01AAAAAAAAAAAAAAAAAAAAAA",
    "tool_input": {"command": "python3 -c 'import nope'", "description": "x"},
    "error": 'Exit code 1\nTraceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
    "ModuleNotFoundError: No module named 'nope'",
    "is_interrupt": False,
    "duration_ms": 512,
}
RECORDED_SUCCESS = CLAUDE_COMMON | {
    "hook_event_name": "PostToolUse",
    "tool_name": "Bash",
    "tool_use_id": "toolu_01FFFFFFFFFFFFFFFFFFFFFF",
    "tool_input": {"command": "echo hi; echo err >&2", "description": "x"},
    "tool_response": {
        "stdout": "hi\nerr",
        "stderr": "",
        "interrupted": False,
        "isImage": False,
        "noOutputExpected": False,
    },
    "duration_ms": 45,
}
RECORDED_BATCH = CLAUDE_COMMON | {
    "hook_event_name": "PostToolBatch",
    "tool_calls": [
        {
            "tool_name": "Edit",
            "tool_use_id": "toolu_01DDDDDDDDDDDDDDDDDDDDDD",
            "tool_input": {"replace_all": False, "file_path": f"{CWD}/a.txt", "old_string": "zzz", "new_string": "q"},
            "tool_response": "<tool_use_error>String to replace not found in file.\nString: zzz</tool_use_error>",
        },
        {
            "tool_name": "Read",
            "tool_use_id": "toolu_01BBBBBBBBBBBBBBBBBBBBBB",
            "tool_input": {"file_path": f"{CWD}/a.txt"},
            "tool_response": "1\thello\n2\t",
        },
    ],
}
CODEX_COMMON = {
    "session_id": "01a22c07-cb28-74d3-819f-4cd6208af693",
    "turn_id": "01a22c07-cb82-72e3-80f6-6b200fc0f9ab",
    "transcript_path": "/home/ann/.codex/sessions/2026/11/30/rollout-x.jsonl",
    "cwd": CWD,
    "model": "m",
    "permission_mode": "bypassPermissions",
}
RECORDED_CODEX = CODEX_COMMON | {
    "hook_event_name": "PostToolUse",
    "tool_name": "Bash",
    "tool_use_id": "call_AAAAAAAAAAAAAAAAAAAAAA01",
    "tool_input": {"command": "python3 -c 'import nope'"},
    "tool_response": 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
    "ModuleNotFoundError: No module named 'nope'\n",
}
DOCUMENTED_CODEX_SUBAGENT = RECORDED_CODEX | {"agent_id": "a7", "agent_type": "worker"}
DOCUMENTED_DENIED = CLAUDE_COMMON | {
    "hook_event_name": "PermissionDenied",
    "tool_name": "Bash",
    "tool_use_id": "toolu_01HHHHHHHHHHHHHHHHHHHHHH",
    "tool_input": {"command": "rm -rf /"},
    "reason": "Auto mode denied this action",
}
DOCUMENTED_2025 = {
    "session_id": SESSION,
    "transcript_path": "x",
    "cwd": CWD,
    "hook_event_name": "PostToolUse",
    "tool_name": "Write",
    "tool_input": {"file_path": f"{CWD}/n.py", "content": "x = 1"},
    "tool_response": {"filePath": f"{CWD}/n.py", "success": True},
}


def token(share_bp: int = 9_999, **more: Any) -> str:
    return json.dumps({"experiment": "live", "salt": "pepper", "share_bp": share_bp, "n_star": 100} | more)


def terms(spool: Path, share_bp: int = 9_999, **more: Any) -> collector.Terms:
    found = collector.read_terms({"LOOPSTATS_SPOOL": str(spool)}, token(share_bp, **more), [], str(spool))
    assert found is not None
    return found


def failing(number: int, name: str, **more: Any) -> dict[str, Any]:
    """A failing test run on its own target; all of one class."""
    return (
        CLAUDE_COMMON
        | {
            "hook_event_name": "PostToolUseFailure",
            "tool_name": "Bash",
            "tool_use_id": f"toolu_01{number:022d}",
            "tool_input": {"command": f"pytest tests/{name}.py"},
            "error": "Exit code 1\nImportError: no module for prices",
        }
        | more
    )


def tell(spool: Path, events: list[dict[str, Any]], share_bp: int = 9_999, now_us: int = NOW_US) -> list[str | None]:
    """The text that each event was answered with, None for silence."""
    told = terms(spool, share_bp)
    answers: list[str | None] = []
    for number, event in enumerate(events):
        said = [
            json.loads(answer)["hookSpecificOutput"]["additionalContext"]
            for answer, is_treated in collector.handle(event, "", told, now_us + number * SECOND)
            if is_treated
        ]
        answers.append("".join(said) or None)
    return answers


def told(spool: Path, *types: str) -> list[dict[str, Any]]:
    """The lines of the event logs, by type."""
    lines = [
        json.loads(line) for path in sorted(spool.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()
    ]
    return [line for line in lines if not types or line["type"] in types]


def start(arguments: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", hook.__file__, *arguments],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def call(payload: bytes | dict[str, Any], env: dict[str, str], **more: Any) -> subprocess.CompletedProcess[bytes]:
    """One event through a process of its own, as an agent does it."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return subprocess.run(
        [sys.executable, "-I", "-S", hook.__file__, "claude-code"],
        input=data,
        env=env,
        capture_output=True,
        check=False,
        timeout=60,
        **more,
    )


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(tmp_path),
        "LOOPSTATS_SPOOL": str(tmp_path / "spool"),
        hook.TOKEN: token(),
    }


def faults(folder: Path) -> list[str]:
    return [json.loads(line)["fault"] for line in (folder / "log").read_text().splitlines()]


LOOP = [RECORDED_START, failing(1, "a"), failing(2, "b"), failing(3, "a")]


# --- what is recorded, who is told -------------------------------------------------------------------------------


def test_the_third_failure_on_two_targets_is_answered_once(tmp_path: Path) -> None:
    answers = tell(tmp_path, [*LOOP, failing(4, "c"), failing(5, "d")])
    assert [number for number, answer in enumerate(answers) if answer] == [3]
    said = answers[3] or ""
    assert (
        "You have run 3 checks" in said
        and "tests/a.py, tests/b.py" in said
        and "importerror: no module for prices" in said
    )
    assert [line["type"] for line in told(tmp_path)] == [
        "session",
        "step",
        "step",
        "step",
        "loop",
        "delivery",
        "step",
        "step",
    ]


def test_the_lines_hold_what_the_log_format_asks_for(tmp_path: Path) -> None:
    tell(tmp_path, LOOP)
    (enrolment,), (loop,), (delivery,) = (told(tmp_path, name) for name in ("session", "loop", "delivery"))
    digest, signature = rule.digest({}), loop["signature"]
    assert enrolment == {
        "v": 1,
        "session": SESSION,
        "type": "session",
        "ts": "2026-10-26T07:33:20.000000Z",
        "harness": "claude-code",
        "experiment": "live",
        "salt_id": rule.salt_id("pepper"),
        "share_bp": 9_999,
        "epoch": digest,
        "rule_digest": digest,
    }
    points = rule.arm_bp("pepper", SESSION, signature)
    assert loop == {
        "v": 1,
        "session": SESSION,
        "type": "loop",
        "id": f"loop:strategy-loop/1:{signature}",
        "ts": "2026-10-26T07:33:23.000000Z",
        "signature": signature,
        "rule": "strategy-loop/1",
        "rule_digest": digest,
        "step": f"toolu_01{3:022d}",
        "experiment": "live",
        "arm": "treated",
        "arm_bp": points,
        "salt_id": rule.salt_id("pepper"),
        "share_bp": 9_999,
        "epoch": digest,
    }
    assert {key: delivery[key] for key in ("experiment", "signature", "arm", "delivered", "tier", "step", "text")} == {
        "experiment": "live",
        "signature": signature,
        "arm": "treated",
        "delivered": True,
        "tier": 1,
        "step": f"toolu_01{3:022d}",
        "text": "provocation/1:verify",
    }
    step = told(tmp_path, "step")[0]
    assert {
        key: step[key]
        for key in ("id", "tool", "action", "kind", "target", "outcome", "exit_code", "error_code", "message")
    } == {
        "id": f"toolu_01{1:022d}",
        "tool": "Bash",
        "action": "Bash:pytest",
        "kind": "verify",
        "target": "tests/a.py",
        "outcome": "failure",
        "exit_code": 1,
        "error_code": "ImportError",
        "message": "importerror: no module for prices",
    }


def test_the_hash_in_the_log_is_the_text_that_was_said(tmp_path: Path) -> None:
    from hashlib import sha256

    said = tell(tmp_path, LOOP)[3] or ""
    assert told(tmp_path, "delivery")[0]["text_sha256"] == sha256(said.encode()).hexdigest()


def test_holdout_gets_nothing_and_the_log_says_so(tmp_path: Path) -> None:
    assert tell(tmp_path, LOOP, share_bp=1) == [None] * 4
    (delivery,) = told(tmp_path, "delivery")
    assert (delivery["arm"], delivery["delivered"], delivery["reason"]) == ("holdout", False, "holdout")
    assert len(delivery["text_sha256"]) == 64


def test_holdout_does_the_same_work_as_treated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a clock but what takes time: every call that is made, and how many bytes go through each write."""
    traces = []
    for name, share in (("one", 9_999), ("two", 1)):
        tell(tmp_path / name, LOOP[:3], share)
        trace: list[Any] = []
        written: list[int] = []
        write = os.write

        def counted(file: int, data: bytes, write: Any = write, written: list[int] = written) -> int:
            written.append(len(data))
            return int(write(file, data))

        def follow(frame: Any, kind: str, what: Any, trace: list[Any] = trace) -> None:
            if kind == "call" and "loopstats" in frame.f_code.co_filename:
                trace.append(frame.f_code.co_name)
            elif kind == "c_call":
                trace.append(what.__name__)

        found = terms(tmp_path / name, share)
        nothing = os.open(os.devnull, os.O_WRONLY)
        stdout = os.dup(1)
        os.dup2(nothing, 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", counted)
            sys.setprofile(follow)
            try:
                for answer, is_treated in collector.handle(failing(3, "a"), "", found, NOW_US + 3 * SECOND):
                    collector._say(answer, is_treated)
            finally:
                sys.setprofile(None)
                os.dup2(stdout, 1)
                os.close(nothing)
                os.close(stdout)
        # the log lines differ by the words for the arm, the answer by nothing
        traces.append((trace, len(written), written[-1]))
    assert traces[0] == traces[1]
    assert "_say" in traces[0][0] and "provocation" in traces[0][0]


def test_both_arms_take_the_same_time(tmp_path: Path) -> None:
    spans: dict[int, list[float]] = {9_999: [], 1: []}
    for number in range(30):
        for share in spans:
            spool = tmp_path / f"{number}-{share}"
            tell(spool, LOOP[:3], share)
            found = terms(spool, share)
            begun = time.process_time()
            collector.handle(failing(3, "a"), "", found, NOW_US + 3 * SECOND)
            spans[share].append(time.process_time() - begun)
    treated, holdout = (sorted(values)[len(values) // 4] for values in spans.values())
    assert 0.7 < treated / holdout < 1.4


def test_repeat_is_recorded_without_an_arm_and_not_answered(tmp_path: Path) -> None:
    events = [RECORDED_START, *(failing(number, "a") for number in range(1, 5)), failing(5, "b")]
    answers = tell(tmp_path, events)
    assert [bool(answer) for answer in answers] == [False] * 5 + [True]
    assert [(line["rule"], line.get("arm")) for line in told(tmp_path, "loop")] == [
        ("repeat/1", None),
        ("strategy-loop/1", "treated"),
    ]


def test_a_call_turned_down_before_it_ran_is_seen_in_its_batch(tmp_path: Path) -> None:
    def batch(number: int) -> dict[str, Any]:
        asked = RECORDED_BATCH["tool_calls"][0] | {
            "tool_use_id": f"toolu_01{number:022d}",
            "tool_input": {"file_path": f"{CWD}/f{number}.txt"},
        }
        return RECORDED_BATCH | {"tool_calls": [asked, RECORDED_BATCH["tool_calls"][1]]}

    answers = tell(tmp_path, [RECORDED_START, batch(1), batch(2), batch(3)])
    assert [bool(answer) for answer in answers] == [False, False, False, True]
    assert [(line["tool"], line["target"], line["outcome"]) for line in told(tmp_path, "step")] == [
        ("Edit", f"f{number}.txt", "failure") for number in (1, 2, 3)
    ]


def test_recorded_payloads_give_the_steps_that_they_are(tmp_path: Path) -> None:
    tell(
        tmp_path,
        [
            RECORDED_START,
            RECORDED_FAILURE,
            RECORDED_SUCCESS,
            RECORDED_BATCH,
            RECORDED_CODEX,
            DOCUMENTED_DENIED,
            DOCUMENTED_2025,
            DOCUMENTED_CODEX_SUBAGENT,
        ],
    )
    found = {
        line["id"]: (line["outcome"], line.get("error_code"), line.get("outcome_reason"))
        for line in told(tmp_path, "step")
    }
    written = next(key for key in found if key.endswith("#0"))
    assert found == {
        RECORDED_FAILURE["tool_use_id"]: ("failure", "ModuleNotFoundError", None),
        RECORDED_SUCCESS["tool_use_id"]: ("success", None, None),
        "toolu_01DDDDDDDDDDDDDDDDDDDDDD": ("failure", "", None),
        # Codex tells its hooks no exit code: what the text does not say is not known
        RECORDED_CODEX["tool_use_id"]: ("unknown", None, None),
        DOCUMENTED_DENIED["tool_use_id"]: ("vetoed", None, "permission"),
        written: ("success", None, None),
    }
    assert [path.name.rsplit("-", 1)[0] for path in sorted(tmp_path.glob("*.jsonl"))] == ["claude-code", "codex"]


def test_codex_failures_that_the_text_tells_are_loops(tmp_path: Path) -> None:
    events = [
        CODEX_COMMON
        | {
            "hook_event_name": "PostToolUse",
            "tool_name": "Bash",
            "tool_use_id": f"call_{number:022d}",
            "tool_input": {"command": f"pytest tests/{name}.py"},
            "tool_response": f"FAILED tests/{name}.py::test_it - KeyError: 'price'\n1 failed in 0.10s",
        }
        for number, name in enumerate("aba")
    ]
    assert [bool(answer) for answer in tell(tmp_path, events)] == [False, False, True]


def test_a_patch_of_codex_has_the_files_that_it_names(tmp_path: Path) -> None:
    """DOCUMENTED: the patch comes as a command; the text of a failure stands in the answer."""
    events = [
        CODEX_COMMON
        | {
            "hook_event_name": "PostToolUse",
            "tool_name": "apply_patch",
            "tool_use_id": f"call_{number:022d}",
            "tool_input": {"command": f"*** Begin Patch\n*** Update File: src/{name}.py\n@@\n-x\n+y\n*** End Patch\n"},
            "tool_response": "apply_patch verification failed: Failed to find expected lines",
        }
        for number, name in enumerate("aba")
    ]
    assert [bool(answer) for answer in tell(tmp_path, events)] == [False, False, True]
    assert [line["target"] for line in told(tmp_path, "step")] == ["src/a.py", "src/b.py", "src/a.py"]


def test_double_firing_counts_once(tmp_path: Path) -> None:
    events = [event for event in LOOP for _ in range(2)] + LOOP
    assert sum(bool(answer) for answer in tell(tmp_path, events)) == 1
    assert [line["type"] for line in told(tmp_path)] == ["session", "step", "step", "step", "loop", "delivery"]


def test_subagents_are_runs_of_their_own(tmp_path: Path) -> None:
    mine = [failing(number, name, agent_id="a5f32c6ca66a598c9") for number, name in enumerate("aba", 10)]
    answers = tell(tmp_path, [RECORDED_START, failing(1, "a"), *mine, failing(2, "b"), failing(3, "a")])
    assert [number for number, answer in enumerate(answers) if answer] == [4, 6]
    loops = told(tmp_path, "loop")
    assert [line.get("agent") for line in loops] == ["a5f32c6ca66a598c9", None]
    assert loops[0]["arm_bp"] == rule.arm_bp("pepper", f"{SESSION}/a5f32c6ca66a598c9", loops[0]["signature"])
    assert len(told(tmp_path, "session")) == 1


def test_enrolment_is_the_first_line_and_not_later_than_the_call_it_came_with(tmp_path: Path) -> None:
    tell(tmp_path, [failing(1, "a")])
    enrolment, step = told(tmp_path)
    assert (enrolment["type"], step["type"]) == ("session", "step")
    assert enrolment["ts"] == "2026-10-26T07:33:19.000000Z" < step["ts"]


def test_a_session_keeps_the_experiment_it_was_enrolled_in(tmp_path: Path) -> None:
    tell(tmp_path, LOOP[:3])
    other = terms(tmp_path, salt="another")
    assert collector.handle(failing(3, "a"), "", other, NOW_US) == []
    assert told(tmp_path, "loop", "delivery") == [] and len(told(tmp_path, "step")) == 3
    assert faults(tmp_path / ".hook") == ["experiment_changed"]


def test_the_users_tool_rows_are_the_batchs_and_in_the_digest(tmp_path: Path) -> None:
    config = tmp_path / "loopstats.toml"
    config.write_text('[tools]\nacme_frob = "execute"\n')
    found = collector.read_terms({"LOOPSTATS_SPOOL": str(tmp_path)}, token(), [str(config)], "")
    assert found is not None
    collector.handle(failing(1, "a", tool_name="acme_frob", tool_input={}), "", found, NOW_US)
    assert told(tmp_path, "step")[0]["kind"] == "execute"
    assert told(tmp_path, "session")[0]["rule_digest"] == rule.digest({"acme_frob": "execute"}) != rule.digest({})


def test_one_appending_write_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    seen: list[tuple[str, bool]] = []
    write = os.write

    def watched(file: int, data: bytes) -> int:
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path.suffix == ".jsonl":
            seen.append((data.decode(), bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND)))
        return write(file, data)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    tell(tmp_path, LOOP[:3])
    monkeypatch.setattr(os, "write", watched)
    tell(tmp_path, LOOP[3:])
    ((lines, is_appending),) = seen
    assert is_appending and [json.loads(line)["type"] for line in lines.splitlines()] == ["step", "loop", "delivery"]


def test_fsync_on_request_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    tell(tmp_path / "one", LOOP)
    assert synced == []
    tell_env = {"LOOPSTATS_SPOOL": str(tmp_path / "two"), "LOOPSTATS_FSYNC": "1"}
    found = collector.read_terms(tell_env, token(), [], "")
    assert found is not None
    for event in LOOP:
        collector.handle(event, "", found, NOW_US)
    assert len(synced) == 4


def test_files_are_for_the_user_alone(tmp_path: Path, env: dict[str, str]) -> None:
    for event in LOOP:
        call(event, env)
    call(b"garbage", env)
    spool = Path(env["LOOPSTATS_SPOOL"])
    modes = {path.is_dir(): set() for path in (spool, spool / ".hook" / "log")}
    for path in [spool, *spool.rglob("*")]:
        modes[path.is_dir()].add(path.stat().st_mode & 0o777)
    assert modes == {True: {0o700}, False: {0o600}}


def test_the_spool_is_ingested_and_its_loop_enrolled(tmp_path: Path) -> None:
    tell(tmp_path / "spool", [*LOOP, failing(4, "a", hook_event_name="PostToolUse", error=None, tool_response="ok")])
    own = Settings(experiments={"live": Experiment("live", "pepper", 9_999, 100)})
    summary = ingest(tmp_path / "lake", tmp_path / "spool", settings=own)
    tables = tables_of(tmp_path / "lake")
    assert summary["files_new"] == 1 and tables["rejects"].height == 0
    (loop,) = tables["loops"].to_dicts()
    assert {
        key: loop[key] for key in ("is_enrolled", "experiment", "arm", "arm_logged", "is_delivered", "detected_call_id")
    } == {
        "is_enrolled": True,
        "experiment": "live",
        "arm": "treated",
        "arm_logged": "treated",
        "is_delivered": True,
        "detected_call_id": f"toolu_01{3:022d}",
    }


def test_deliveries_meet_the_loops_of_the_transcript(tmp_path: Path) -> None:
    tell(tmp_path / "spool", LOOP)
    lines = []
    for number, event in enumerate(LOOP[1:], 1):
        common = {"sessionId": SESSION, "cwd": CWD, "version": "2.1.197"}
        lines.append(
            common
            | {
                "type": "assistant",
                "uuid": f"a{number}",
                "timestamp": f"2026-10-26T07:33:{20 + number}.100Z",
                "message": {
                    "id": f"msg_{number}",
                    "model": "m",
                    "content": [
                        {"type": "tool_use", "id": event["tool_use_id"], "name": "Bash", "input": event["tool_input"]}
                    ],
                },
            }
        )
        lines.append(
            common
            | {
                "type": "user",
                "uuid": f"u{number}",
                "timestamp": f"2026-10-26T07:33:{20 + number}.900Z",
                "message": {
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": event["tool_use_id"],
                            "content": event["error"],
                            "is_error": True,
                        }
                    ]
                },
            }
        )
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = Settings(experiments={"live": Experiment("live", "pepper", 9_999, 100)})
    ingest(tmp_path / "lake", tmp_path / "spool", tmp_path / "logs", settings=own)
    tables = tables_of(tmp_path / "lake")
    assert set(tables["steps"]["harness"]) == {"claude-code 2.1.197"} or tables["steps"].height == 3
    (loop,) = tables["loops"].to_dicts()
    assert (loop["is_enrolled"], loop["arm"], loop["is_delivered"], loop["detected_call_id"]) == (
        True,
        "treated",
        True,
        f"toolu_01{3:022d}",
    )


# --- live equals batch -------------------------------------------------------------------------------------------

CLASSES = ("ImportError: no module for prices", "KeyError: 'x'")
RESULTS = ["exit"] * 6 + ["rejected"] * 4 + ["ok", "ok", "interrupt", "timeout", "masked"]
streams = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 2, 3]),
        st.sampled_from(["Edit", "Bash", "Bash", "Read", "acme_frob"]),
        st.sampled_from("aaabbc"),
        st.sampled_from(RESULTS),
        st.sampled_from([0, 0, 0, 1]),
        st.booleans(),
        st.booleans(),
    ),
    min_size=8,
    max_size=50,
)


def stream_of(values: list[Any]) -> list[dict[str, Any]]:
    """Events of three sessions, one with a subagent, one of Codex; some fire twice, some have no call id."""
    events: list[dict[str, Any]] = []
    for number in range(3):
        events.append(
            {
                "session_id": f"s{number}",
                "cwd": CWD,
                "hook_event_name": "SessionStart",
                **({"turn_id": "t"} if number == 2 else {}),
            }
        )
    for number, (who, tool, name, result, text, is_twice, has_id) in enumerate(values):
        event: dict[str, Any] = {"session_id": ("s0", "s0", "s1", "s2")[who], "cwd": CWD, "tool_name": tool}
        if who == 1:
            event["agent_id"] = "sub"
        if who == 3:
            event["turn_id"] = "t"
        command = f"pytest tests/{name}.py" + (" | tail -3" if result == "masked" else "")
        event["tool_input"] = {"command": command} if tool == "Bash" else {"file_path": f"{CWD}/{name}.py"}
        event["hook_event_name"] = "PostToolUse"
        if has_id or result == "rejected":
            event["tool_use_id"] = f"e{number}"
        summary = f"FAILED tests/{name}.py::test_it - {CLASSES[text]}\n1 failed in 0.10s"
        if who == 3:
            said = {
                "exit": json.dumps({"output": CLASSES[text], "metadata": {"exit_code": 1}}),
                "timeout": "command timed out",
            }
            event["tool_response"] = said.get(result, summary if result == "masked" else "fine")
        elif result == "rejected":
            inner = {key: event.pop(key) for key in ("tool_name", "tool_input", "tool_use_id")}
            inner["tool_response"] = f"<tool_use_error>{CLASSES[text]}</tool_use_error>"
            event |= {"hook_event_name": "PostToolBatch", "tool_calls": [inner]}
        elif result in ("ok", "masked"):
            event["tool_response"] = {"stdout": summary if result == "masked" else "fine", "stderr": ""}
        else:
            event["hook_event_name"] = "PostToolUseFailure"
            event["error"] = "Command timed out after 2m" if result == "timeout" else f"Exit code 1\n{CLASSES[text]}"
            event["is_interrupt"] = result == "interrupt"
        events += [event] * (1 + (is_twice and has_id))
    return events


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams)
def test_live_equals_batch(values: list[Any]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="loopstats-test-"))
    events = stream_of(values)
    answers = tell(folder / "spool", events, 5_000)
    own = Settings(experiments={"live": Experiment("live", "pepper", 5_000, 100)})
    (folder / "logs").mkdir()
    (folder / "logs" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    ingest(folder / "lake-agent", folder / "logs", settings=own)
    ingest(folder / "lake-spool", folder / "spool", settings=own)
    columns = ("run_id", "signature", "rule", "detected_call_id")
    live = {
        (
            f"{line['session']}/{line['agent']}" if "agent" in line else line["session"],
            line["signature"],
            line["rule"],
            line["step"],
        ): (line.get("arm"), line.get("arm_bp"))
        for line in told(folder / "spool", "loop")
    }
    agent, own_log = (tables_of(folder / name)["loops"] for name in ("lake-agent", "lake-spool"))
    assert set(live) == {tuple(row) for row in agent.select(columns).iter_rows()}
    assert live == {tuple(row[:4]): (row[4], row[5]) for row in own_log.select(*columns, "arm", "arm_bp").iter_rows()}
    assert own_log["is_enrolled"].all()
    assert sum(bool(answer) for answer in answers) <= sum(arm == "treated" for arm, _ in live.values())
    shutil.rmtree(folder)


def test_the_first_working_directory_is_whoevers_was_heard_first(tmp_path: Path) -> None:
    # The hook may be put in while a subagent works elsewhere; both sides then write targets relative to that place.
    events = [
        failing(1, "a", agent_id="sub", cwd="/srv/elsewhere"),
        failing(2, "a", cwd="/srv/shop"),
        failing(3, "b", cwd="/srv/elsewhere"),
    ]
    tell(tmp_path / "spool", events)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    for name in ("logs", "spool"):
        ingest(tmp_path / f"lake-{name}", tmp_path / name)
    batch, live = (
        dict(tables_of(tmp_path / f"lake-{name}")["steps"].select("call_id", "target").iter_rows())
        for name in ("logs", "spool")
    )
    assert sorted(live.values()) == ["/srv/shop/tests/a.py", "tests/a.py", "tests/b.py"]
    assert batch == live


# --- whatever happens --------------------------------------------------------------------------------------------

BAD_INPUTS = {
    "nothing": b"",
    "garbage": b"\x00\xff{{{",
    "half": json.dumps(failing(1, "a")).encode()[:-20],
    "list": b"[1, 2]",
    "text": b'"x"',
    "no session": b'{"hook_event_name": "PostToolUse"}',
    "no tool": json.dumps({"session_id": "s", "hook_event_name": "PostToolUse"}).encode(),
    "deep": b"[" * 200_000,
    "large number": b'{"session_id": ' + b"9" * 10_000 + b"}",
    "wrong types": json.dumps(
        {
            "session_id": "s",
            "hook_event_name": "PostToolUse",
            "tool_name": ["x"],
            "tool_input": 3,
            "cwd": {},
            "agent_id": [],
        }
    ).encode(),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_let_go_and_noted(name: str, env: dict[str, str]) -> None:
    done = call(BAD_INPUTS[name], env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert len(faults(Path(env["LOOPSTATS_SPOOL"]) / ".hook")) == 1


def test_a_huge_payload_is_read_to_its_end_and_let_go(env: dict[str, str]) -> None:
    done = call(b'{"session_id": "s", "tool_response": "' + b"x" * (collector.MOST_BYTES + 1) + b'"}', env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert faults(Path(env["LOOPSTATS_SPOOL"]) / ".hook") == ["payload_too_large"]


def test_a_large_payload_is_a_step(env: dict[str, str]) -> None:
    done = call(failing(1, "a", error="Exit code 1\n" + "line\n" * 1_000_000), env)
    assert (done.returncode, done.stdout) == (0, b"")
    assert len(told(Path(env["LOOPSTATS_SPOOL"]), "step")) == 1


@pytest.mark.parametrize(
    "text", ["\ud800 lone", "nul \x00 and \x1f", "é" * 5_000, "</loopstats> {count} <system-reminder>"]
)
def test_strange_text_is_a_step_like_any_other(text: str, tmp_path: Path) -> None:
    events = [
        failing(
            number,
            name,
            error=f"Exit code 1\nImportError: {text}",
            tool_input={"command": f"pytest tests/{name}.py {text}"},
        )
        for number, name in enumerate("aba")
    ]
    answers = tell(tmp_path, events)
    assert [bool(answer) for answer in answers] == [False, False, True]
    assert (answers[2] or "").count("</loopstats>") == 1 and failures.clean(answers[2] or "").strip() == ""


def test_without_a_disk_the_agent_is_left_alone(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "file").write_text("")
    env["LOOPSTATS_SPOOL"] = str(tmp_path / "file" / "spool")
    for event in LOOP:
        done = call(event, env)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    noted = faults(tmp_path / f"loopstats-hook-{os.geteuid()}")
    assert len(noted) == len(LOOP) and set(noted) <= {"ENOTDIR", "EEXIST"}


def test_with_no_place_to_write_at_all_it_still_leaves_in_peace(env: dict[str, str]) -> None:
    env |= {"LOOPSTATS_SPOOL": "/proc/none/spool", "TMPDIR": "/proc/none", "HOME": "/proc/none"}
    done = call(failing(1, "a"), env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_with_a_full_disk_nothing_is_said_that_was_not_recorded(env: dict[str, str]) -> None:
    for event in LOOP[:3]:
        call(event, env)
    done = call(LOOP[3], env, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1)))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    spool = Path(env["LOOPSTATS_SPOOL"])
    assert told(spool, "loop", "delivery") == []
    done = call(LOOP[3], env)
    assert b"additionalContext" in done.stdout and len(told(spool, "delivery")) == 1


def test_a_short_write_leaves_no_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(tmp_path, LOOP[:2])
    (log,) = tmp_path.glob("*.jsonl")
    before = log.read_bytes()
    write = os.write

    def short(file: int, data: bytes) -> int:
        return write(file, data[:10]) if data.startswith(b'{"v"') else write(file, data)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="short write"):
        patch.setattr(os, "write", short)
        tell(tmp_path, LOOP[2:3])
    assert log.read_bytes() == before


def test_a_torn_line_of_a_crash_does_not_take_the_next_with_it(tmp_path: Path) -> None:
    tell(tmp_path, LOOP[:2])
    (log,) = tmp_path.glob("*.jsonl")
    log.write_bytes(log.read_bytes() + b'{"v":1,"type":"st')
    tell(tmp_path, LOOP[2:3])
    assert json.loads(log.read_bytes().splitlines()[-1])["id"] == LOOP[2]["tool_use_id"]


@pytest.mark.parametrize(
    "data", [b"", b"\x00\x01garbage", b'{"counts": {"x": "y"}, "named": {}}', b"[]", b'{"enrolled_us": "x"}']
)
def test_a_corrupt_state_is_read_again_from_the_event_log(data: bytes, tmp_path: Path) -> None:
    tell(tmp_path, LOOP[:3])
    for path in (tmp_path / ".hook" / "sessions").rglob("*.json"):
        path.write_bytes(data)
    answers = tell(tmp_path, [LOOP[1], LOOP[2], LOOP[3], failing(4, "c")])
    assert [bool(answer) for answer in answers] == [False, False, True, False]
    assert len(told(tmp_path, "session")) == 1 and len(told(tmp_path, "step")) == 4


def test_a_lost_state_brings_no_second_delivery(tmp_path: Path) -> None:
    tell(tmp_path, LOOP)
    shutil.rmtree(tmp_path / ".hook")
    assert tell(tmp_path, [*LOOP, failing(4, "c")]) == [None] * 5
    assert len(told(tmp_path, "session")) == 1 and len(told(tmp_path, "delivery")) == 1


@pytest.mark.parametrize("jump_us", [-(10**15), -NOW_US, 10**15, 10**19])
def test_a_clock_that_jumps_changes_no_loop(jump_us: int, tmp_path: Path) -> None:
    tell(tmp_path, LOOP[:2])
    answers = tell(tmp_path, LOOP[2:], now_us=NOW_US + jump_us)
    assert [bool(answer) for answer in answers] == [False, True]
    (enrolment,), steps = told(tmp_path, "session"), told(tmp_path, "step")
    assert all(step["ts"] >= enrolment["ts"] for step in steps)


def test_a_lock_that_is_not_let_go_is_waited_for_and_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    tell(tmp_path, LOOP[:1])
    monkeypatch.setattr(collector, "PATIENCE_S", 0.05)
    (lock,) = (tmp_path / ".hook" / "sessions").rglob("lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(collector.Fault, match="lock_timeout"):
            tell(tmp_path, LOOP[1:2])
    assert len(told(tmp_path, "step")) == 0


@pytest.mark.parametrize("is_blocked", [False, True])
def test_told_to_end_it_ends_in_good_order(env: dict[str, str], is_blocked: bool) -> None:
    """Also where the agent that starts it has the signal blocked, since a mask is inherited."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM] if is_blocked else [])
    try:
        process = start(["claude-code"], env)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        process.kill()
        pytest.skip("needs /proc")
    bit = 1 << (signal.SIGALRM - 1)  # the last one it takes up
    until = time.monotonic() + 20
    while not any(
        int(line.split()[1], 16) & bit for line in status.read_text().splitlines() if line.startswith("SigCgt")
    ):
        assert time.monotonic() < until
        time.sleep(0.01)
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert faults(Path(env["LOOPSTATS_SPOOL"]) / ".hook")[-1] == "signal 15"


def test_a_closed_stdout_is_no_error(env: dict[str, str]) -> None:
    for event in LOOP[:3]:
        call(event, env)
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-I", "-S", hook.__file__],
        input=json.dumps(LOOP[3]).encode(),
        env=env,
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
    assert faults(Path(env["LOOPSTATS_SPOOL"]) / ".hook") == ["EPIPE"]


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[]",
        "7",
        '{"experiment": "x"}',
        '{"experiment": "x", "salt": "a|b"}',
        '{"experiment": "x", "salt": "a", "share_bp": 0}',
        '{"experiment": "x", "salt": 1}',
    ],
)
def test_a_token_of_the_wrong_shape_records_nothing(value: str, env: dict[str, str]) -> None:
    env[hook.TOKEN] = value
    done = call(failing(1, "a"), env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert told(Path(env["LOOPSTATS_SPOOL"])) == []


# --- dormant -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{hook.TOKEN: ""}, {hook.SILENCE: "1"}, {hook.SILENCE: "1", hook.TOKEN: ""}])
def test_asleep_it_touches_no_file(change: dict[str, str], tmp_path: Path, env: dict[str, str]) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = call(failing(1, "a"), env | change, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_settings_wake_it_like_the_token(tmp_path: Path, env: dict[str, str]) -> None:
    del env[hook.TOKEN], env["LOOPSTATS_SPOOL"]
    folder = Path(hook.user_folder("config", env))
    folder.mkdir(parents=True)
    (folder / "loopstats.toml").write_text(
        f'[hook]\nexperiment = "set"\nsalt = "pepper"\nshare_bp = 2500\nspool = "{tmp_path}/elsewhere"\n'
    )
    call(RECORDED_START, env, cwd=tmp_path)
    (enrolment,) = told(tmp_path / "elsewhere")
    assert (enrolment["experiment"], enrolment["share_bp"]) == ("set", 2500)


def test_a_folders_settings_may_not_say_where_files_go_nor_what_is_said(tmp_path: Path, env: dict[str, str]) -> None:
    del env[hook.TOKEN]
    project = tmp_path / "project"
    project.mkdir()
    (project / "loopstats.toml").write_text(
        f'[hook]\nexperiment = "set"\nsalt = "p"\nspool = "{tmp_path}/elsewhere"\ntexts = "{tmp_path}/evil.json"\n'
    )
    (tmp_path / "evil.json").write_text(json.dumps({"version": "evil", "texts": {"other": "obey", "verify": "obey"}}))
    answers = [call(event, env, cwd=project).stdout for event in LOOP]
    assert not (tmp_path / "elsewhere").exists() and b"obey" not in b"".join(answers)
    assert told(Path(env["LOOPSTATS_SPOOL"]), "session")[0]["experiment"] == "set"


def test_the_default_spool_is_in_the_users_data_folder(env: dict[str, str]) -> None:
    import platformdirs

    del env["LOOPSTATS_SPOOL"]
    call(RECORDED_START, env)
    assert len(list((Path(hook.user_folder("data", env)) / "spool").glob("claude-code-*.jsonl"))) == 1
    around = dict(os.environ)
    for kind in ("config", "data"):
        assert Path(hook.user_folder(kind, around)) == getattr(platformdirs, f"user_{kind}_path")("loopstats")


# --- privacy -----------------------------------------------------------------------------------------------------

SECRETS = ("ghp_{:036d}", "sk-ant-api03-{:030d}AbCdEfGh", "AKIA{:016d}", "xoxb-{:012d}-{:012d}-AbCdEfGhIjKlMnOp")
NAMED_FIELDS = frozenset({"hook_event_name", "tool_name"})


def planted(value: Any, made: list[str], name: str = "") -> Any:
    """A payload with a secret of its own in every text, and the list of all of them."""
    if isinstance(value, dict):
        return {key: planted(inner, made, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [planted(inner, made, name) for inner in value]
    if not isinstance(value, str) or name == "hook_event_name":
        return value
    number = len(made) + 1
    secret = SECRETS[number % len(SECRETS)].format(number, number)
    made.append(secret)
    if name.endswith("_id"):
        return secret
    return f"{value} {secret}" if name not in NAMED_FIELDS else f"{value}_{secret}"


def test_no_secret_of_any_field_of_any_event_is_in_any_file(tmp_path: Path, env: dict[str, str]) -> None:
    made: list[str] = []
    events = [
        RECORDED_START,
        RECORDED_FAILURE,
        RECORDED_SUCCESS,
        RECORDED_BATCH,
        RECORDED_CODEX,
        DOCUMENTED_CODEX_SUBAGENT,
        DOCUMENTED_DENIED,
        DOCUMENTED_2025,
        failing(1, "a", agent_id="x"),
    ]
    env["HOME"] = str(tmp_path / "home")
    for event in events:
        call(planted(event, made), env)
    loop = [planted(failing(number, name), made) | {"session_id": SESSION} for number, name in enumerate("aba")]
    said = [call(event, env).stdout for event in loop]
    assert len(made) > 80
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    everything = b"\n".join(files.values()) + b"\n".join(str(path).encode() for path in files) + b"".join(said)
    assert [secret for secret in made if secret.encode() in everything] == []
    assert len(told(Path(env["LOOPSTATS_SPOOL"]), "step")) >= len(events)


def test_no_content_is_in_any_file(tmp_path: Path, env: dict[str, str]) -> None:
    word = "marzipanturtle"
    call(
        CLAUDE_COMMON
        | {
            "hook_event_name": "PostToolUse",
            "tool_name": "Write",
            "tool_use_id": "t1",
            "tool_input": {"file_path": f"{CWD}/a.py", "content": word},
            "tool_response": {"content": word, "originalFile": word},
        },
        env,
    )
    call(
        failing(
            2,
            "a",
            prompt=word,
            error=f"Exit code 1\n{word} here\nImportError: no module for prices\n{word}",
            tool_input={"command": "pytest tests/a.py", "description": word},
            last_assistant_message=word,
        ),
        env,
    )
    call(CLAUDE_COMMON | {"hook_event_name": "UserPromptSubmit", "prompt": word}, env)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(told(Path(env["LOOPSTATS_SPOOL"]), "step")) == 2
    assert [path for path in files if word.encode() in path.read_bytes()] == []


def test_a_step_line_holds_no_more_than_the_issue_allows(tmp_path: Path) -> None:
    tell(tmp_path, [RECORDED_START, RECORDED_FAILURE, RECORDED_SUCCESS])
    keys = {key for line in told(tmp_path, "step") for key in line}
    assert keys <= {
        "v",
        "session",
        "agent",
        "type",
        "id",
        "ts",
        "tool",
        "action",
        "kind",
        "target",
        "targets",
        "outcome",
        "outcome_reason",
        "exit_code",
        "error_code",
        "message",
        "signature",
        "fingerprint",
    }


# --- parallel, bounded -------------------------------------------------------------------------------------------


def test_parallel_hooks_of_one_session_take_turns(env: dict[str, str]) -> None:
    payloads = [failing(number, "ab"[number % 2]) for number in range(8)] + [failing(7, "b")] * 3
    processes = [start(["claude-code"], env) for _ in payloads]
    for process, payload in zip(processes, payloads, strict=True):
        assert process.stdin is not None
        process.stdin.write(json.dumps(payload).encode())
        process.stdin.close()
    answers = []
    for process in processes:
        assert process.stdout is not None and process.stderr is not None
        answers.append(process.stdout.read())
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait() == 0
    spool = Path(env["LOOPSTATS_SPOOL"])
    assert len([answer for answer in answers if answer]) == 1
    lines = told(spool)
    types = [line["type"] for line in lines]
    assert (types[0], types.count("step"), types.count("delivery")) == ("session", 8, 1)
    # Which of the parallel calls is recorded first is open, so one target may have failed three times before the other.
    assert [line["rule"] for line in lines if line["type"] == "loop"].count("strategy-loop/1") == 1


def test_old_sessions_are_forgotten_and_the_rest_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MOST_SESSIONS", 5)
    kept = tmp_path / ".hook" / "sessions"
    now_us = time.time_ns() // 1000
    tell(tmp_path, [RECORDED_START], now_us=now_us)
    (first,) = kept.iterdir()
    os.utime(first, (0, 0))
    for number in range(9):
        tell(tmp_path, [RECORDED_START | {"session_id": f"other-{number}"}], now_us=now_us)
        assert not first.exists()
    assert len(list(kept.iterdir())) == 5


def test_the_state_of_a_run_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MOST_SIGNATURES", 4)
    monkeypatch.setattr(collector, "MOST_SEEN_BYTES", 64)
    tell(tmp_path, [failing(number, "a", error=f"Exit code 1\nImportError: {'x' * number}") for number in range(1, 40)])
    (run,) = (tmp_path / ".hook" / "sessions").rglob("run-*.json")
    assert len(json.loads(run.read_text())["counts"]) == 4
    (seen,) = (tmp_path / ".hook" / "sessions").rglob("seen")
    assert seen.stat().st_size <= 64 + collector.SEEN


def test_a_long_session_does_not_slow_a_call(tmp_path: Path) -> None:
    """CPU time of the work itself; the whole process is measured by the bench."""
    found = terms(tmp_path)

    def cost(first: int) -> float:
        spans = []
        for number in range(first, first + 60):
            event = failing(number, f"t{number}", error=f"Exit code 1\nImportError: {'xy' * (number % 40)}")
            begun = time.process_time()
            collector.handle(event, "", found, NOW_US + number * SECOND)
            spans.append(time.process_time() - begun)
        return sorted(spans)[len(spans) // 4]

    collector.handle(RECORDED_START, "", found, NOW_US)
    cost(0)
    early = cost(100)
    for number in range(1_000, 6_000):
        collector.handle(RECORDED_SUCCESS | {"tool_use_id": f"toolu_01{number:022d}"}, "", found, NOW_US)
    assert len(told(tmp_path, "step")) > 5_000
    # a tenth of a whole process is far below what one start varies by
    assert cost(10_000) - early < 0.002


def test_the_hooks_own_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "LOG_BYTES", 1_000)
    for _ in range(60):
        collector.note(str(tmp_path), "codex", ValueError("secretword"), {})
    sizes = {path.name: path.stat().st_size for path in (tmp_path / ".hook").iterdir()}
    assert {"log.1"} <= set(sizes) <= {"log", "log.1"} and max(sizes.values()) < 1_300
    assert b"secretword" not in (tmp_path / ".hook" / "log.1").read_bytes()


# --- texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(rule.ATTEMPTS))
def test_every_kind_of_attempt_has_a_text_that_says_what_it_must(kind: str) -> None:
    said, version = provocations.provocation(kind, "Bash", "E1", "boom at <path>", ["a.py", "b.py"], 7)
    assert said.startswith("<loopstats>\nYou have ") and said.endswith("\n</loopstats>")
    assert "7" in said and "Bash" in said and "boom at" in said and "a.py, b.py" in said and "E1" in said
    assert "Before your next action" in said and "explanation" in said
    assert "{" not in said and version == f"provocation/1:{kind if kind in provocations.TEXTS else 'other'}"


def test_a_text_is_stripped_before_anything_is_read() -> None:
    said, _ = provocations.provocation("edit", "Edit", "", "error: x", ["a"], 3)
    text = f"fine\n{said}\ndone"
    assert failures.clean(text).split() == ["fine", "done"]


def test_the_user_may_bring_texts(tmp_path: Path) -> None:
    path = tmp_path / "texts.json"
    path.write_text(json.dumps({"version": "mine/2", "texts": {"edit": "{count} times {failure} on {targets}"}}))
    assert provocations.provocation("edit", "Edit", "", "m", ["a"], 3, str(path)) == (
        "<loopstats>\n3 times Edit: m on a\n</loopstats>",
        "mine/2:edit",
    )
    assert provocations.provocation("verify", "Bash", "", "m", ["a"], 3, str(path))[1] == "mine/2:other"
    for data in ("", "[]", '{"version": "x", "texts": {}}', '{"texts": {"edit": "x"}}'):
        path.write_text(data)
        assert (
            provocations.provocation("edit", "Edit", "", "m", ["a"], 3, str(path))[1]
            == "provocation/1(own texts unusable):edit"
        )


# --- three ways to run -------------------------------------------------------------------------------------------


def test_it_runs_as_a_module_too(env: dict[str, str]) -> None:
    root = Path(hook.__file__).resolve().parents[1]
    for event in LOOP:
        done = subprocess.run(
            [sys.executable, "-m", "loopstats.hook", "claude-code"],
            input=json.dumps(event).encode(),
            env=env | {"PYTHONPATH": str(root)},
            capture_output=True,
            check=True,
        )
    assert b"additionalContext" in done.stdout


def test_it_loads_the_standard_library_only_and_little_of_it(env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", hook.__file__],
        input=json.dumps(LOOP[1]).encode(),
        env=env,
        capture_output=True,
        check=True,
    )
    names = {line.rsplit("|", 1)[1].strip() for line in done.stderr.decode().splitlines() if "|" in line} - {
        "imported package"
    }
    assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) <= {"loopstats", "_sha2"}
    assert {name for name in names if name.startswith("loopstats.")} == {
        f"loopstats.{name}" for name in ("collector", "answers", "rule", "actions", "shell", "failures", "provocations")
    }
    assert not names & {
        "typing",
        "dataclasses",
        "pathlib",
        "logging",
        "hashlib",
        "_hashlib",
        "signal",
        "datetime",
        "tomllib",
        "site",
    }
