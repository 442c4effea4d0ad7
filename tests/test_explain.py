"""`explain`: the events that it lists make the detection, the arm can be computed by hand, lines are shown only where
they stand unchanged, and what is pending stays untold.

`python tests/test_explain.py --write` writes `tests/golden/explain.txt` anew.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
from lines import SALT, SETTINGS, events, ingest, log_of
from loopstats import config, explain, originals, rule
from loopstats.assign import assign
from loopstats.classify import classify
from loopstats.cli import run_command
from loopstats.detect import detect, enrol
from loopstats.errors import NothingError, UsageError
from loopstats.store import Lake
from loopstats.tables import DELIVERIES, DETECTIONS, SESSIONS, TURNS
from loopstats.when import resolve
from test_stages import MATURITY, build, session_values
from test_stages import SALT as STAGE_SALT

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).resolve().parent / "golden" / "explain.txt"
AS_OF = "2026-11-20T00:00:00Z"
AS_OF_US = resolve(None, None, AS_OF, "UTC", 0).as_of_us
LATE_US = AS_OF_US + 10 * 86_400_000_000
EXAMPLE = "6b104823"


def loopstats(lake: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loopstats.cli", "--lake", str(lake), "-q", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "100", "HOME": "/nonexistent"},
    )


def detected_again(rows: pl.DataFrame, loop: dict[str, Any]) -> int | None:
    """The step at which a fresh detector, fed with the listed events alone, completes the loop's rule."""
    detector = rule.Detector()
    for event in rows.filter(pl.col("role") == "event").iter_rows(named=True):
        if detector.feed(event["kind"], "agent", event["outcome"], loop["signature"], event["target"]) == loop["rule"]:
            return int(event["step"])
    return None


def by_hand(salt: str, run_id: str, signature: str) -> int:
    key = f"{salt}|{run_id}|{signature}" if salt else f"{run_id}|{signature}"
    return int(hashlib.sha256(key.encode()).hexdigest()[:13], 16) % 10_000


def check_against_loop(rows: pl.DataFrame, loop: dict[str, Any]) -> None:
    """The rows say by themselves what the loop's row says."""
    listed = rows.filter(pl.col("role") == "event")
    assert detected_again(rows, loop) == loop["detected_step"] == listed["step"].to_list()[-1]
    assert listed["count"].to_list() == list(range(1, loop["count_events"] + 1))
    assert listed["target"].n_unique() == loop["count_targets"] == listed["count_targets"].to_list()[-1]
    assert listed["decision"].n_unique() == loop["count_decisions"]
    assert listed["step"][2] - listed["step"][0] == loop["span_steps"]
    assert (rows.filter(pl.col("role") == "between").height > 0) == loop["is_interrupted"]
    deciding = rows.filter(pl.col("is_deciding").fill_null(False))
    if loop["outcome"] in ("broke", "recurred"):
        (step,) = deciding.iter_rows(named=True)
        assert step["step"] == loop["outcome_step"]
        assert step["role"] == ("success" if loop["outcome"] == "broke" else "failure")
        if loop["outcome"] == "recurred":
            assert step["count"] == rule.FAILURES_TO_RECUR
    else:
        assert not deciding.height
        in_time = rows.filter((pl.col("role") == "failure") & ~pl.col("is_late"))
        assert in_time.height < rule.FAILURES_TO_RECUR
    if loop["outcome"] == "unresolved":
        found = rows.filter((pl.col("role") == "sidestep") & ~pl.col("is_late"))
        assert (found.height > 0) == loop["is_sidestepped"]


@pytest.fixture(scope="module")
def told(sample_lake: Path) -> Callable[..., explain.Explanation]:
    snapshot = Lake.open(sample_lake).snapshot()

    @cache
    def tell(loop_id: str, as_of_us: int = AS_OF_US, is_raw: bool = False) -> explain.Explanation:
        return explain.explain(snapshot, config.Settings(), loop_id, as_of_us=as_of_us, is_raw=is_raw)

    return tell


def test_every_loop_of_the_sample_is_made_by_the_events_that_are_listed(sample_lake: Path) -> None:
    snapshot = Lake.open(sample_lake).snapshot()
    loops, sessions = snapshot.read("loops"), snapshot.read("sessions")
    runs = {key[0]: frame for key, frame in snapshot.read("steps").partition_by("run_id", as_dict=True).items()}
    for number, loop in enumerate(loops.iter_rows(named=True)):
        # All rare kinds, and of the many plain ones every sixth.
        is_plain = loop["is_enrolled"] and loop["rule"] == rule.STRATEGY_LOOP and not loop["is_interrupted"]
        if is_plain and loop["outcome"] != "unresolved" and number % 6:
            continue
        mine = sessions.filter(pl.col("session_id") == loop["session_id"])
        check_against_loop(explain.story(loop, runs[loop["run_id"]], mine), loop)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(session_values, min_size=2, max_size=6))
def test_random_runs(sessions: list[Any]) -> None:
    steps, session_frame, plain = build(sessions)
    session_frame = SESSIONS.conform(enrol(steps, session_frame))
    loops = assign(
        detect(steps, session_frame),
        session_frame,
        DETECTIONS.empty(),
        DELIVERIES.empty(),
        {rule.salt_id(STAGE_SALT): (STAGE_SALT, 5000)},
    )
    key = ["run_id", "signature", "rule", "is_enrolled"]
    blind = loops.select(*key, "detected_step", "detected_at")
    judged = classify(blind, steps, TURNS.empty(), MATURITY).drop("detected_step", "detected_at")
    expected = {
        tuple(row[name] for name in key): row
        for runs, enrolment in plain
        for row in oracle.loops_of_session(runs, enrolment, STAGE_SALT, 4000, MATURITY)
    }
    for loop in loops.join(judged, on=key).iter_rows(named=True):
        rows = explain.story(loop, steps, session_frame)
        check_against_loop(rows, loop)
        wanted = expected[tuple(loop[name] for name in key)]
        assert rows.filter(pl.col("role") == "event")["step"].to_list()[-1] == wanted["detected_step"]
        if wanted["outcome"] == "broke" and wanted["is_relapsed"]:
            assert rows.filter(pl.col("role") == "relapse").height == 3


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values=events)
def test_random_lakes(values: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("random")
    (folder / "log.jsonl").write_text("\n".join(log_of(values)[0]) + "\n", encoding="utf-8")
    ingest(folder / "lake", folder / "log.jsonl")
    snapshot = Lake.open(folder / "lake").snapshot()
    for loop in snapshot.read("loops").head(3).iter_rows(named=True):
        told = explain.explain(snapshot, SETTINGS, loop["loop_id"], as_of_us=LATE_US, is_raw=True)
        assert told.warnings == ()
        check_against_loop(told.rows, loop)
        assert set(told.rows["source_state"]) | set(told.rows["result_state"]) == {"shown"}
        if loop["rule"] == rule.STRATEGY_LOOP:
            salt = SALT if loop["is_enrolled"] else ""
            assert told.arm["arm_bp"] == by_hand(salt, loop["run_id"], loop["signature"])


def test_the_arm_can_be_computed_by_hand(told: Callable[..., explain.Explanation]) -> None:
    for loop_id, salt in ((EXAMPLE, config.SAMPLE.salt), ("152c239b9d217dd7", "")):
        arm = told(loop_id).arm
        run_id, signature = arm["key"].split("|")[-2:]
        assert arm["arm_bp"] == by_hand(salt, run_id, signature) == int(arm["digits"], 16) % 10_000
        assert arm["arm"] == ("treated" if arm["arm_bp"] < arm["share_bp"] else "holdout")
        # The salt of a running experiment is told nowhere.
        assert config.SAMPLE.salt not in json.dumps(told(loop_id).to_json()) + told(loop_id).text()


def test_without_the_salt_the_arm_is_the_logged_one(sample_lake: Path) -> None:
    snapshot = Lake.open(sample_lake).snapshot()
    arm = explain.explain(snapshot, config.Settings(experiments={}), EXAMPLE, as_of_us=AS_OF_US).arm
    assert (arm["digits"], arm["is_salt_known"]) == (None, False)


def test_a_loop_is_named_like_a_commit(told: Callable[..., explain.Explanation], sample_lake: Path) -> None:
    assert told(EXAMPLE.upper()).loop["loop_id"].startswith(EXAMPLE)
    with pytest.raises(UsageError, match=r"42 loops begin so, write more of it: 6b1048238abdd96e \(.* and 32 more"):
        told("6")
    with pytest.raises(NothingError, match="loopstats loops"):
        told("nothing")
    done = loopstats(sample_lake, "explain", "6", "--as-of", AS_OF)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_pending_loop_is_not_told_before_its_time(told: Callable[..., explain.Explanation]) -> None:
    pending = told("961b68c0")
    body = pending.to_json()["outcome"]
    assert body["outcome"] == "pending"
    assert {name for name, value in body.items() if value is not None} == {
        "outcome", "count_failures_after", "failures_to_recur", "mature_at", "last_step", "is_reproduced",
    }  # fmt: skip
    assert pending.rows["is_deciding"].null_count() == pending.rows.height
    assert "nothing is decided before" in pending.text()
    later = told("961b68c0", LATE_US)
    assert later.outcome["outcome"] != "pending"
    with pytest.raises(NothingError, match="detected after the as-of"):
        told("961b68c0", AS_OF_US - 86_400_000_000)


def test_what_comes_after_the_as_of_is_not_told(told: Callable[..., explain.Explanation]) -> None:
    whole = told(EXAMPLE)
    detected_us = int(whole.loop["detected_at"].timestamp() * 1_000_000)
    early = told(EXAMPLE, detected_us)
    assert early.rows["role"].to_list() == ["event"] * whole.why["count_events"]
    assert early.delivery["records"] == [] != whole.delivery["records"]
    assert early.outcome["outcome"] == "pending"


def test_a_repeat_has_no_arm(told: Callable[..., explain.Explanation]) -> None:
    repeat = told("0f86d9d1bfab06fb")
    assert repeat.arm["key"] is repeat.arm["arm"] is None
    assert repeat.why["targets_needed"] == repeat.why["count_targets"] == 1
    text = repeat.text()
    assert "has no arm" in text
    assert "Delivery" not in text


def test_what_a_person_reads(sample_lake: Path) -> None:
    done = loopstats(sample_lake, "explain", EXAMPLE, "--raw", "--as-of", AS_OF)
    assert done.stdout == GOLDEN.read_text(encoding="utf-8")
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_markdown_and_rows(sample_lake: Path, tmp_path: Path, told: Callable[..., explain.Explanation]) -> None:
    target = tmp_path / "loop.md"
    run_command(["--lake", str(sample_lake), "-q", "explain", EXAMPLE, "-o", str(target), "--as-of", AS_OF])
    markdown = target.read_text(encoding="utf-8")
    assert markdown == told(EXAMPLE).markdown()
    assert re.findall("^#+ .*", markdown, re.MULTILINE)[1:] == [
        "## Class", "## Events up to the detection", "## Why it fired at step 4", "## Arm", "## Delivery",
        "## After the detection", "## Outcome",
    ]  # fmt: skip
    target = tmp_path / "rows.parquet"
    run_command(["--lake", str(sample_lake), "-q", "explain", EXAMPLE, "-o", str(target), "--as-of", AS_OF])
    assert pl.read_parquet(target).equals(told(EXAMPLE).rows)


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def test_the_page_names_every_key(sample_lake: Path) -> None:
    body = json.loads(loopstats(sample_lake, "explain", EXAMPLE, "--json", "--as-of", AS_OF).stdout)
    assert list(body)[:5] == ["schema", "as_of", "interval", "tz", "rule_digest"]
    assert body["schema"] == "loopstats.explain/1"
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_0-9]+)`", page))
    assert keys_of(body) - named == set()
    assert {*explain.ROLES, *originals.STATES} - named == set()


# --- lines -----------------------------------------------------------------------------------------------------------

KEY = "sk-ant-api03-" + "Zx9" * 12


def hostile_log() -> list[dict[str, Any]]:
    """One loop on two files; its lines carry a key behind an escape, one behind &, and what a terminal would act on."""
    shared = {
        "v": 1,
        "session": "s1",
        "type": "step",
        "tool": "Bash",
        "outcome": "failure",
        "exit_code": 2,
        "kind": "execute",
    }
    shared["input"] = {"command": "make all"}
    said = f"\x1b]0;owned\x07fatal: cannot open 'x{{n}}' after 41 ms\nexport TOKEN\n{KEY}\nhttps://h/?a=1&token=Aa0Bb1Cc2Dd3"
    return [
        shared
        | {
            "id": f"e{n}",
            "ts": f"2026-11-02T09:00:0{n}Z",
            "decision": f"d{n}",
            "target": f"src/{n % 2}.py",
            "message": said.replace("{n}", str(n)),
        }
        for n in range(1, 5)
    ]


def lake_of(folder: Path, name: str, data: bytes) -> tuple[Path, Path]:
    source = folder / name
    source.write_bytes(data)
    ingest(folder / "lake", source)
    return source, folder / "lake"


def lines_bytes(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def raw(lake: Path) -> explain.Explanation:
    snapshot = Lake.open(lake).snapshot()
    (loop_id,) = snapshot.read("loops").filter(pl.col("rule") == rule.STRATEGY_LOOP)["loop_id"].to_list()
    return explain.explain(snapshot, SETTINGS, loop_id, as_of_us=LATE_US, is_raw=True)


def states(told: explain.Explanation) -> list[str]:
    return told.rows["source_state"].to_list()


def packed(name: str, data: bytes) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(data)
    return zstandard.ZstdCompressor().compress(data) if name.endswith(".zst") else data


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.jsonl.zst"])
def test_lines_are_shown_without_secrets_and_harmless(tmp_path: Path, name: str) -> None:
    _, lake = lake_of(tmp_path, name, packed(name, lines_bytes(hostile_log())))
    told = raw(lake)
    assert states(told) == ["shown"] * 4
    assert told.rows["salient_line"].to_list() == [f"fatal: cannot open 'x{n}' after 41 ms" for n in range(1, 5)]
    assert told.rows["masks"].to_list() == [["str", "qty"]] * 4
    assert told.failure["masks"] == ["str", "qty"]
    assert told.failure["masks_from"] == "line"
    everything = told.text(60) + told.markdown() + json.dumps(told.to_json(), ensure_ascii=False)
    assert '"target": "src/1.py"' in told.rows["source_text"][0]
    for secret in (KEY, KEY[:20], "Aa0Bb1Cc2Dd3"):
        assert secret not in everything
    assert "<secret>" in everything
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\x9b]", everything)
    untold = explain.explain(Lake.open(lake).snapshot(), SETTINGS, told.loop["loop_id"], as_of_us=LATE_US)
    assert untold.failure["masks"] == ["str", "qty"]
    assert untold.failure["masks_from"] == "message"
    assert "cannot open 'x" not in untold.text() + json.dumps(untold.to_json())


def test_a_source_that_is_not_as_it_was(tmp_path: Path) -> None:
    records = hostile_log()
    source, lake = lake_of(tmp_path, "log.jsonl", lines_bytes(records))
    source.write_bytes(lines_bytes([*records, records[0] | {"id": "e9"}]))
    assert states(raw(lake)) == ["shown"] * 4, "a file that grew still says what it said"
    changed = [record | {"message": "other"} if record["id"] == "e2" else record for record in records]
    source.write_bytes(lines_bytes(changed))
    told = raw(lake)
    assert told.rows["result_state"].to_list() == ["shown", "changed", "shown", "shown"]
    assert told.rows["result_text"][1] is told.rows["salient_line"][1] is None
    source.write_bytes(lines_bytes([{"v": 1, "type": "session", "session": "s0"}, *records]))
    assert states(raw(lake)) == ["changed"] * 4, "the lines stand elsewhere now"
    source.write_bytes(b"not a log\n")
    assert states(raw(lake)) == ["changed"] * 4
    source.unlink()
    gone = raw(lake)
    assert states(gone) == ["gone"] * 4
    assert "no longer on disk" in gone.text()
    source.mkdir()
    assert states(raw(lake)) == ["unreadable"] * 4


def test_a_container_has_no_lines(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    for n in range(4):
        use = {"type": "tool_use", "id": f"toolu_{n}", "name": "Write", "input": {"file_path": f"/r/{n % 2}.py"}}
        said = {
            "type": "tool_result",
            "tool_use_id": f"toolu_{n}",
            "is_error": True,
            "content": f"disk full, {n} kb left",
        }
        for number, (role, part) in enumerate((("assistant", use), ("user", said))):
            records.append(
                {
                    "type": role,
                    "sessionId": "7b0c6a0e-0000-4000-8000-000000000001",
                    "uuid": f"7b0c6a0e-0000-4000-8000-0000000000{n}{number}",
                    "timestamp": f"2026-11-02T09:00:{n}{number}.000Z",
                    "cwd": "/r",
                    "message": {"id": f"msg_{n}", "role": role, "content": [part]},
                }
            )
    _, lake = lake_of(tmp_path, "session.json", json.dumps(records, indent=1).encode())
    told = raw(lake)
    assert set(states(told)) == {"container"}
    assert told.rows["source_text"].null_count() == told.rows.height
    assert told.rows["salient_line"][0] == "disk full, 0 kb left"
    assert "has no lines" in told.text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f'{{"a":"x\\n{KEY}"}}', '{"a":"x\\n<secret>"}'),
        (f'{{"a":"{{\\"b\\":\\"x\\\\n{KEY}\\"}}"}}', '{"a":"{\\"b\\":\\"x\\\\n<secret>\\"}"}'),
        ('{"u":"https://h/?a\\u003d1\\u0026token\\u003dAa0Bb1Cc2"}', '{"u":"https://h/?a=1&token=<secret>"}'),
        ('{"password":"hunter2"}', '{"password":<secret>}'),
        ("a\x1b[2Jb\u202ec", "a\\x1b[2Jb\\u202ec"),
        ("x" * 2000, "x" * originals.LINE_SHOWN + "…"),
        (f"{'- ' * 32_765}{KEY}", "- " * (originals.LINE_SHOWN // 2) + "…"),
        # What is left of a key at the end of what is looked at is not shown, even where all before it was masked away.
        (f"-----BEGIN PRIVATE KEY-----{'A' * 65_460}-----END PRIVATE KEY----- {KEY}", "…"),
    ],
)
def test_how_a_line_is_shown(text: str, shown: str) -> None:
    assert originals.shown(text) == shown


if __name__ == "__main__" and "--write" in sys.argv:
    import tempfile

    lake = Path(tempfile.mkdtemp()) / "lake"
    loopstats(lake, "ingest", "data/sample")
    GOLDEN.write_text(loopstats(lake, "explain", EXAMPLE, "--raw", "--as-of", AS_OF).stdout, encoding="utf-8")
