"""The committed sample logs: made by their generator byte for byte, and as true as their truth file says.

A room of its own because demo, docs and other tests rest on the sample. Here it is read with the ruler alone (detector
and classifier, step by step), so that no stage of the pipeline can agree with itself.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import make_sample
from loopstats import intervals, rule

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "sample"
TRUTH_FILE = Path(__file__).resolve().parent / "golden" / "sample-truth.json"
TRUTH: dict[str, Any] = json.loads(TRUTH_FILE.read_text(encoding="utf-8"))
MATURITY_US = TRUTH["maturity_hours"] * 3_600_000_000
LEDGER = frozenset({"README.md", "loopstats.toml"})


def headline() -> list[dict[str, Any]]:
    """The planted loops that enter the lift at the as-of time."""
    return [
        row
        for row in TRUTH["loops"]
        if row["rule"] == rule.STRATEGY_LOOP and row["is_enrolled"] and row["state"] == "mature"
    ]


def session_of(row: dict[str, Any]) -> str:
    """The session of a planted loop."""
    return str(row["run_id"]).split("/")[0]


def clusters(rows: list[dict[str, Any]]) -> list[list[int]]:
    """Per session: n and broken of treated, n and broken of holdout."""
    out: dict[str, list[int]] = {}
    for row in rows:
        cell = out.setdefault(session_of(row), [0, 0, 0, 0])
        at = 0 if row["arm"] == "treated" else 2
        cell[at] += 1
        cell[at + 1] += row["outcome"] == "broke"
    return list(out.values())


def event_log() -> list[dict[str, Any]]:
    """All usable records of the native log and the spool, in the order in which the log says they happened."""
    files = []
    for path in [*SAMPLE.glob("native/*.jsonl"), *SAMPLE.glob("spool/*.jsonl")]:
        lines = path.read_bytes().split(b"\n")[:-1]
        records = []
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                records.append(record)
        first = next((record["ts"] for record in records if record["ts"]), "")
        files.append((first, hashlib.sha256(lines[0]).hexdigest(), records))
    out, seen = [], set()
    for _, _, records in sorted(files, key=lambda file: file[:2]):
        for record in records:
            key = (record["session"], record.get("agent"), record["type"], record.get("id") or json.dumps(record))
            if key not in seen:
                seen.add(key)
                out.append(record)
    return out


def microseconds(ts: str | None) -> int | None:
    return None if ts is None else round(datetime.fromisoformat(ts).timestamp() * 1_000_000)


def walk() -> dict[tuple[str, str, str, bool], tuple[str, str, str]]:
    """Loop key to (detecting call, outcome, final outcome), by the ruler alone."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for record in event_log():
        sessions.setdefault(record["session"], []).append(record)
    out = {}
    for records in sessions.values():
        is_enrolled = has_detected = False
        detectors: dict[tuple[str, bool], rule.Detector] = {}
        steps: dict[str, list[tuple[Any, ...]]] = {}
        found = []
        for record in records:
            if record["type"] == "session" and "experiment" in record and not has_detected:
                is_enrolled = True
            if record["type"] != "step":
                continue
            run_id = record["session"] + (f"/{record['agent']}" if "agent" in record else "")
            facts = rule.read_call(
                record["tool"],
                record.get("input"),
                None,
                kind=record.get("kind"),
                action=record.get("action"),
                target=record.get("target"),
            )
            signature = record.get("signature")
            if signature is None and record["outcome"] == "failure":
                failure = rule.read_failure(record.get("message", ""), record.get("exit_code"), None, False)
                code = record.get("error_code", failure.code) or ""
                signature = rule.signature(record["tool"], code, failure.message)
            actor = record.get("actor", "agent")
            run = steps.setdefault(run_id, [])
            decision = record.get("decision", f"step {record['id']}")
            run.append(
                (
                    len(run),
                    decision,
                    microseconds(record["ts"]),
                    facts.kind,
                    actor,
                    facts.action,
                    facts.target,
                    record["outcome"],
                    signature,
                )
            )
            detector = detectors.setdefault((run_id, is_enrolled), rule.Detector())
            name = detector.feed(facts.kind, actor, record["outcome"], signature, facts.target)
            if name:
                has_detected = has_detected or name == rule.STRATEGY_LOOP
                found.append((run_id, signature, name, is_enrolled, len(run) - 1, record["id"]))
        for run_id, signature, name, was_enrolled, at, call_id in found:
            ruler = rule.Classifier(signature, at, steps[run_id][at][1], steps[run_id][at][2], MATURITY_US)
            for step in steps[run_id]:
                ruler.feed(*step)
            out[run_id, signature, name, was_enrolled] = (call_id, ruler.outcome, ruler.outcome_final)
    return out


def test_fresh_run_gives_the_committed_bytes(tmp_path: Path) -> None:
    made_truth = tmp_path / "truth.txt"
    make_sample.generate(tmp_path / "sample", made_truth)
    assert made_truth.read_bytes() == TRUTH_FILE.read_bytes()
    tmp_path = tmp_path / "sample"
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    committed = {path.relative_to(SAMPLE).as_posix() for path in SAMPLE.rglob("*") if path.is_file()}
    assert made == committed
    differing = [name for name in sorted(made) if (tmp_path / name).read_bytes() != (SAMPLE / name).read_bytes()]
    assert differing == [], "run `python tests/make_sample.py` after a change of the rule, and read the diff"


def test_former_files_go_and_strangers_stay(tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "old.jsonl").write_text("{}\n")
    (tmp_path / "native" / "mine.jsonl").write_text("{}\n")
    truth = tmp_path / "truth.txt"
    truth.write_text('{"files": {"native/old.jsonl": {}}}')
    make_sample.generate(tmp_path, truth)
    assert not (tmp_path / "native" / "old.jsonl").exists()
    assert (tmp_path / "native" / "mine.jsonl").exists()


def test_size() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) < 3_000_000


def test_every_file_has_the_lines_that_truth_says() -> None:
    names = {path.relative_to(SAMPLE).as_posix() for path in SAMPLE.rglob("*") if path.is_file()}
    assert names - LEDGER == set(TRUTH["files"])
    reasons: Counter[str] = Counter()
    for name, file in TRUTH["files"].items():
        *lines, tail = (SAMPLE / name).read_bytes().split(b"\n")
        assert (len(lines), int(tail != b"")) == (file["lines"], file["waiting"]), name
        bad = []
        for line in lines:
            try:
                bad += [] if isinstance(json.loads(line), dict) else ["not_an_object"]
            except ValueError:
                bad.append("truncated" if line.strip(b"\0") else "nul")
        assert bad == file["rejected"], name
        reasons.update(bad)
    assert reasons == {"truncated": 2, "nul": 1, "not_an_object": 2}
    assert sum(file["waiting"] for file in TRUTH["files"].values()) == 1


def test_arms_are_the_hash_of_run_and_signature() -> None:
    for row in TRUTH["loops"]:
        if row["rule"] == rule.STRATEGY_LOOP:
            salt = "loopstats-sample|" if row["is_enrolled"] else ""
            key = f"{salt}{row['run_id']}|{row['signature']}"
            basis_points = int(hashlib.sha256(key.encode()).hexdigest()[:13], 16) % 10_000
            assert row["arm"] == ("treated" if basis_points < 5000 else "holdout"), row


def test_counts_by_arm_and_outcome() -> None:
    rows = headline()
    for arm, said in TRUTH["arms"].items():
        mine = [row for row in rows if row["arm"] == arm]
        outcomes = Counter(row["outcome"] for row in mine)
        assert {word: said[word] for word in ("broke", "recurred", "unresolved")} == outcomes
        assert said["n"] == len(mine) >= 190
        assert said["sessions"] == len({session_of(row) for row in mine}) >= 150
        week = [row for row in mine if "2026-11-13" <= row["detected_at"] < "2026-11-19"]
        assert said["n_last_7d"] == len(week) >= 40
        assert 0.10 <= outcomes["unresolved"] / len(mine) <= 0.14
        cells = (
            arm,
            f"{said['planted_break_rate']:.2f}",
            len(mine),
            said["sessions"],
            *(outcomes[word] for word in ("broke", "recurred", "unresolved")),
        )
        assert f"| {' | '.join(map(str, cells))} |" in (SAMPLE / "README.md").read_text(encoding="utf-8")
    days = sorted(row["detected_at"][:10] for row in rows)
    assert (days[0], days[-1]) == ("2026-10-20", "2026-11-18")


def test_intervals_show_the_planted_lift() -> None:
    rows = headline()
    table = clusters(rows)
    low, high = intervals.newcombe_clustered(table)
    assert 0 < low < 0.25 < high
    assert high - low <= 0.25
    totals = [sum(row[at] for row in table) for at in (1, 0, 3, 2)]
    assert intervals.newcombe_anytime(*totals, n_star=TRUTH["n_star"], rows=table)[0] > 0


def test_the_ruler_finds_what_was_planted() -> None:
    found = walk()
    planted = {
        (row["run_id"], row["signature"], row["rule"], row["is_enrolled"]): row
        for row in TRUTH["loops"]
        if row["source"] == "native" or (row["source"] == "claude-code" and row["is_enrolled"])
    }
    assert found.keys() == planted.keys()
    for key, row in planted.items():
        call_id, outcome, outcome_final = found[key]
        assert call_id == row["detecting_call_id"], row
        if "outcome" in row:
            assert (outcome, outcome_final) == (row["outcome"], row.get("outcome_final", row["outcome"])), row


def test_log_records_agree_with_the_arms() -> None:
    records = event_log()
    planted = {
        (row["run_id"], row["signature"]): row
        for row in TRUTH["loops"]
        if row["rule"] == rule.STRATEGY_LOOP and row["is_enrolled"]
    }
    for kind in ("loop", "delivery"):
        logged = [r for r in records if r["type"] == kind]
        keys = [(r["session"] + (f"/{r['agent']}" if "agent" in r else ""), r["signature"]) for r in logged]
        assert sorted(keys) == sorted(planted)
        assert all(r["arm"] == planted[key]["arm"] for key, r in zip(keys, logged, strict=True))
    deliveries = [r for r in records if r["type"] == "delivery"]
    assert not any(r["delivered"] for r in deliveries if r["arm"] == "holdout")
    missed = [r for r in deliveries if r["arm"] == "treated" and not r["delivered"]]
    assert len(missed) == 2
    assert all(len(r["reason"]) > 10 for r in missed)
    enrolments = [r for r in records if r["type"] == "session" and "experiment" in r]
    assert {(r["salt_id"], r["share_bp"], r["rule_digest"]) for r in enrolments} == {
        (rule.salt_id("loopstats-sample"), 5000, rule.digest())
    }


@pytest.mark.parametrize(
    ("fact", "at_least"), [("infra", 20), ("interrupted", 15), ("relapsed", 10), ("sidestepped", 5)]
)
def test_every_kind_of_loop_is_there(fact: str, at_least: int) -> None:
    rows = [row for row in TRUTH["loops"] if row["rule"] == rule.STRATEGY_LOOP and fact in row["facts"]]
    assert TRUTH["count"][fact] == len(rows) >= at_least
    assert {row["arm"] for row in rows} == {"treated", "holdout"}


def test_odd_loops_are_there() -> None:
    rows = TRUTH["loops"]
    strategy = {(row["run_id"], row["signature"]) for row in rows if row["rule"] == rule.STRATEGY_LOOP}
    repeats = {(row["run_id"], row["signature"]) for row in rows if row["rule"] == rule.REPEAT}
    assert repeats & strategy
    assert repeats - strategy
    assert sum(row["count_decisions"] == 1 for row in rows) >= 5
    late_decisions = [(row["outcome"], row["outcome_final"]) for row in rows if "outcome_final" in row]
    assert late_decisions == [("unresolved", "broke")]
    assert sum("/" in row["run_id"] for row in rows) == 1
    assert {row["source"] for row in rows if not row["is_enrolled"]} == {"native", "claude-code", "codex"}
    assert any(row["detected_at"] is None for row in rows)
    late = [row for row in rows if session_of(row) == "acme-late-enrolment"]
    assert [row["is_enrolled"] for row in late] == [False]
    assert not [row for row in rows if session_of(row) in ("acme-mid-enrolment", "acme-user-typing", "acme-refused")]


def test_odd_records_are_there() -> None:
    records = event_log()
    types = Counter(record["type"] for record in records)
    assert min(types["guard"], types["result"]) >= 20
    steps = [record for record in records if record["type"] == "step"]
    reasons = {(step["outcome"], step.get("outcome_reason")) for step in steps}
    assert {("vetoed", word) for word in ("user", "permission", "hook")} <= reasons
    assert {("unknown", word) for word in ("interrupt", "sibling", "missing")} <= reasons
    assert rule.read_call("palette_sync", {"theme": "night"}, None).kind == "other"
    assert any(step["tool"] == "palette_sync" for step in steps)


def test_copies_are_there() -> None:
    native = {path.name: path.read_bytes() for path in SAMPLE.glob("native/*.jsonl")}
    copies = [name for name in native if name.startswith("copy-of-")]
    assert len(copies) == 1
    whole = native[copies[0].removeprefix("copy-of-")]
    assert whole.startswith(native[copies[0]])
    assert len(whole) > len(native[copies[0]])

    places: dict[str, set[str]] = {}
    for name, data in native.items():
        if name not in copies:
            for session in {
                line.split(b'"session":"')[1].split(b'"')[0].decode()
                for line in data.split(b"\n")
                if line.startswith(b'{"v":1') and line.endswith(b"}")
            }:
                places.setdefault(session, set()).add(name)
    assert sum(len(names) == 2 for names in places.values()) >= 5

    uuids: dict[str, set[str]] = {}
    usage: dict[str, list[int]] = {}
    for path in SAMPLE.glob("claude-code/**/*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            uuids.setdefault(record["uuid"], set()).add(record["sessionId"])
            if record["type"] == "assistant":
                message = record["message"]
                usage.setdefault(message["id"], []).append(message["usage"]["output_tokens"])
    assert len({frozenset(names) for names in uuids.values() if len(names) == 2}) == 1
    assert sum(len(set(counts)) > 1 for counts in usage.values()) >= 20


def test_one_transcript_waits_for_its_last_result() -> None:
    waiting = []
    for path in SAMPLE.glob("claude-code/**/*.jsonl"):
        text = path.read_text(encoding="utf-8")
        calls = text.count('"type":"tool_use"')
        if calls != text.count('"type":"tool_result"') and '"type":"tool_use"' in text.splitlines()[-1]:
            waiting.append(path.stem)
    pending = {session_of(row) for row in TRUTH["loops"] if row["state"] == "pending"}
    assert len(waiting) == 1
    assert waiting[0] in pending
