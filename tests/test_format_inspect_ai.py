"""Inspect logs: archives of all packings with caps, events before messages, subagents, attachments, scores."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from typing import Any

import pytest
import zstandard

from emitting import HOSTILE, Fed, feed_document
from loopstats.formats import Head, inspect_ai
from loopstats.formats.inspect_ai import Inspect, verdict


def _sample(**more: Any) -> dict[str, Any]:
    return {
        "id": "s1",
        "epoch": 2,
        "messages": [
            {
                "id": "m1",
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "function": "bash", "arguments": {"cmd": "make"}}],
            },
            {"id": "m2", "role": "tool", "tool_call_id": "c1", "function": "bash", "content": "old text"},
            {
                "id": "m3",
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c9", "function": "bash", "arguments": {"cmd": "ls"}}],
            },
        ],
        "events": [
            {
                "event": "model",
                "uuid": "turn-1",
                "model": "p/m",
                "timestamp": "2025-01-01T00:00:00+00:00",
                "output": {
                    "choices": [{"message": {"id": "m1", "tool_calls": [{"id": "c1"}]}}],
                    "usage": {
                        "input_tokens": 50,
                        "output_tokens": 5,
                        "total_tokens": 55,
                        "input_tokens_cache_read": 30,
                    },
                },
            },
            {
                "event": "tool",
                "id": "c1",
                "function": "bash",
                "arguments": {"cmd": "attachment://k1"},
                "result": "attachment://k2",
                "error": None,
                "timestamp": "2025-01-01T00:00:01+00:00",
                "completed": "2025-01-01T00:00:03+00:00",
                "working_time": 1.5,
            },
        ],
        "attachments": {"k1": "make all", "k2": "a long result"},
        "scores": {"match": {"value": "C"}},
    } | more


def _log(*samples: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": 2,
        "status": "success",
        "eval": {"run_id": "R", "task": "t", "model": "p/m", "packages": {"inspect_ai": "0.3"}},
        "samples": list(samples),
    }


def _archive(log: dict[str, Any], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    members = {
        f"samples/{sample['id']}_epoch_{sample['epoch']}.json": json.dumps(sample).encode() for sample in log["samples"]
    }
    members |= {
        "summaries.json": b"[]",
        "header.json": json.dumps({key: log[key] for key in ("version", "status", "eval")}).encode(),
    }
    out = io.BytesIO()
    if method != inspect_ai.ZSTANDARD:
        with zipfile.ZipFile(out, "w", method) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return out.getvalue()
    directory = b""
    for name, content in members.items():
        packed = zstandard.ZstdCompressor().compress(content)
        fields = (63, 0, inspect_ai.ZSTANDARD, 0, 33, zlib.crc32(content), len(packed), len(content), len(name), 0)
        offset = out.tell()
        out.write(b"PK\x03\x04" + struct.pack("<HHHHHIIIHH", *fields) + name.encode() + packed)
        directory += b"PK\x01\x02" + struct.pack("<HHHHHHIIIHHHHHII", 63, *fields, 0, 0, 0, 0, offset) + name.encode()
    start = out.tell()
    out.write(
        directory + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), start, 0)
    )
    return out.getvalue()


def _uids(fed: Fed) -> list[str]:
    return [row["uid"] for kind in ("call", "result", "turn", "fact") for row in fed.rows[kind]]


def test_a_sample_is_a_run_and_events_come_before_messages() -> None:
    fed = feed_document(Inspect(), _log(_sample()))
    assert [(row["session_id"], row["call_id"], row["decision_key"]) for row in fed.calls] == [
        ("R/s1/2", "c1", "turn-1"),
        ("R/s1/2", "c9", "m3"),
    ]
    assert [word for _, word, _ in fed.outcomes()] == ["success", "unknown"]
    assert (
        fed.calls[0]["target"]
        == feed_document(
            Inspect(),
            _log(_sample(events=[{"event": "tool", "id": "c1", "function": "bash", "arguments": {"cmd": "make all"}}])),
        ).calls[0]["target"]
    )
    result = fed.results["c1"]
    assert result["duration_ms"] == 1500 and result["ts"] - fed.calls[0]["ts"] == 2_000_000
    (turn,) = fed.rows["turn"]
    assert (turn["tokens_input"], turn["tokens_cache_read"], turn["tokens_output"]) == (20, 30, 5)
    (fact,) = fed.rows["fact"]
    assert (fact["solved"], fact["ending"]) == (True, None)


def test_cache_that_is_counted_apart_is_not_subtracted() -> None:
    sample = _sample()
    sample["events"][0]["output"]["usage"]["total_tokens"] = 85
    assert feed_document(Inspect(), _log(sample)).rows["turn"][0]["tokens_input"] == 50


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, inspect_ai.ZSTANDARD])
def test_an_archive_gives_what_the_json_gives(method: int) -> None:
    log = _log(_sample(), _sample(id="s2"))
    packed = feed_document(Inspect(), _archive(log, method))
    assert packed.rejects == []
    assert _uids(packed) == _uids(feed_document(Inspect(), log))


def test_a_damaged_member_costs_no_other() -> None:
    good = _archive(_log(_sample(), _sample(id="s2")), zipfile.ZIP_STORED)
    at = good.index(b'"s2"')
    fed = feed_document(Inspect(), good[: at - 8] + b"\xff" * 4 + good[at - 4 :])
    assert {row["session_id"] for row in fed.calls} == {"R/s1/2"}
    assert len(fed.rejects) == 1


def test_bombs_and_other_zips_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_ai, "INFLATED_CAP", 1 << 16)
    bomb = _archive(_log(_sample(padding="0" * (1 << 20))))
    assert [reason for _, reason in feed_document(Inspect(), bomb).rejects] == ["inflates_too_far"]
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    assert feed_document(Inspect(), other.getvalue()).rejects == [(0, "archive_without_header")]
    assert feed_document(Inspect(), b"PK\x03\x04 torn").rejects == [(0, "not_a_zip")]


def test_ratio_alone_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_ai, "INFLATED_FREE", 1000)
    monkeypatch.setattr(inspect_ai, "INFLATED_RATIO", 10)
    bomb = _archive(_log(_sample(padding="0" * (1 << 20))))
    assert [reason for _, reason in feed_document(Inspect(), bomb).rejects] == ["inflates_too_far"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("timeout", ("failure", "timeout")),
        ("parsing", ("failure", None)),
        ("permission", ("failure", None)),
        ("approval", ("vetoed", "permission")),
    ],
)
def test_error_types(kind: str, expected: tuple[str, str | None]) -> None:
    sample = _sample()
    sample["events"][1] |= {"error": {"type": kind, "message": "it went wrong"}, "result": ""}
    assert feed_document(Inspect(), _log(sample)).outcomes()[0][1:] == expected


def test_without_events_the_messages_stand() -> None:
    fed = feed_document(Inspect(), _log(_sample(events=[])))
    assert [(row["call_id"], row["decision_key"]) for row in fed.calls] == [("c1", "m1"), ("c9", "m3")]
    assert [word for _, word, _ in fed.outcomes()] == ["success", "unknown"]


def test_an_agent_started_by_a_tool_is_a_run_of_its_own() -> None:
    def tool(log_id: str, span: str) -> dict[str, Any]:
        return {"event": "tool", "id": log_id, "function": "bash", "arguments": {}, "result": "", "span_id": span}

    events = [
        {"event": "span_begin", "id": "A", "type": "agent", "parent_id": None},
        tool("c1", "A"),
        {"event": "span_begin", "id": "T", "type": "tool", "parent_id": "A"},
        {"event": "span_begin", "id": "B", "type": "agent", "parent_id": "T"},
        tool("c1", "B"),
        {
            "event": "tool",
            "id": "c2",
            "function": "task",
            "arguments": {},
            "result": "",
            "span_id": "A",
            "events": [tool("c1", "")],
        },
    ]
    fed = feed_document(Inspect(), _log(_sample(events=events, messages=[])))
    assert [(row["agent"], row["call_id"]) for row in fed.calls] == [
        (None, "c1"),
        ("B", "c1"),
        (None, "c2"),
        ("c2", "c1"),
    ]


@pytest.mark.parametrize(
    ("more", "ending"), [({"limit": {"type": "message", "limit": 5}}, "cap"), ({"error": {"message": "x"}}, "crash")]
)
def test_endings(more: dict[str, Any], ending: str) -> None:
    assert feed_document(Inspect(), _log(_sample(scores=None, **more))).rows["fact"][0]["ending"] == ending


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("C", True),
        ("I", False),
        ("P", None),
        (1, True),
        (0.0, False),
        (0.4, None),
        (True, True),
        ({"a": 1}, None),
        (None, None),
    ],
)
def test_verdicts(value: Any, expected: bool | None) -> None:
    assert verdict(value) is expected


def test_recognised_by_content() -> None:
    assert Inspect().matches(Head("x.eval", "PK\x03\x04....header.json", [], None, is_zip=True)) > 0
    assert Inspect().matches(Head("x.eval", "PK\x03\x04....word/document.xml", [], None, is_zip=True)) == 0
    assert Inspect().matches(Head("x", "", [], _log())) > 0
    assert Inspect().matches(Head("long.eval", "version https://git-lfs.github.com/spec/v1", [])) == 0


@pytest.mark.parametrize(
    "shape", [*HOSTILE, [], None, 7, {"id": "q", "events": [7, {"event": "tool", "function": "f", "id": {}}]}]
)
def test_hostile_shapes_end_in_a_reject_or_nothing(shape: Any) -> None:
    fed = feed_document(Inspect(), _log(shape, _sample()))
    assert {"c1", "c9"} <= {row["call_id"] for row in fed.calls if row["session_id"] == "R/s1/2"}
    assert feed_document(Inspect(), shape).calls == []
