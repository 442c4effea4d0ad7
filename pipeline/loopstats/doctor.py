"""The health of everything in a few lines: homes and what agents delete, the lake, the hook, the nightly run.

A room of its own because nobody looks at a nightly job that works: one command says whether a hand is needed, where,
and what to do. Functions of what the store, the homes, the hook and the log of nights tell; `cli/live.py` gathers it.
Nothing here reads a log or the bytes of a table that it does not need.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from loopstats import found as files
from loopstats.errors import LoopstatsError
from loopstats.estimate import Rate
from loopstats.homes import Home, days_kept
from loopstats.journal import DONE
from loopstats.tables import OVERSIZE_STEPS
from loopstats.when import EPOCH

if TYPE_CHECKING:
    from loopstats.schedule import Standing
    from loopstats.store import Snapshot

SHOWN = 3
MANY_FILES = 16  # more of them make reading slow
DAY_US = 86_400_000_000
SOON_DAYS = 7
LATE_HOURS = 36


@dataclass(frozen=True)
class Finding:
    """One line: `state` is `ok`, `look` (worth knowing) or `mend` (a hand is needed); `advice` says what to do."""

    check: str
    state: str
    detail: str
    advice: str = ""


# --- homes -----------------------------------------------------------------------------------------------------------


def homes(
    places: Sequence[Home], sources: Sequence[dict[str, Any]], published_ns: int | None, now_us: int
) -> list[Finding]:
    """Homes that were found: files by what the ledger knows of them, and when the agent deletes them; by `stat` only.

    `sources`: rows of the ledger. `published_ns`: when the lake was last written. A file that is older than that and
    yet unknown was looked at in a home that was read, and is no log.
    """
    if not places:
        advice = "name folders: `loopstats ingest PATH`, or [ingest] paths in loopstats.toml"
        return [Finding("log homes", "look", "no installed agent was found", advice)]
    known = {row["path"]: row for row in sources if not row["is_superseded"]}
    out: list[Finding] = []
    for home in places:
        try:
            present, _ = files.discover([home.path])
        except LoopstatsError as error:
            out.append(Finding(f"home {home.name}", "mend", str(error), "look who may read it"))
            continue
        roots = files.resolved_roots([home.path])
        below = {path: row for path, row in known.items() if files.is_below(path, roots)}
        paths = {file.path for file in present}
        unknown = [file for file in present if file.path not in below]
        is_read = bool(below) and published_ns is not None
        new = [file for file in unknown if not is_read or file.mtime_ns > (published_ns or 0)]
        changed = [file for file in files.plan(present, below)[0] if file.path in below]
        count_gone = sum(1 for path in below if path not in paths)
        counts = (
            f"{len(present)} files: {len(new)} new, {len(changed)} changed since they were read, {count_gone} gone"
            + (f", {len(unknown) - len(new)} no log" if len(unknown) > len(new) else "")
        )
        unread = [*new, *changed]
        advice = "`loopstats ingest`, or `loopstats schedule` to have it done every night" if unread else ""
        out.append(Finding(f"home {home.name}", "look" if unread else "ok", f"{home.path}: {counts}", advice))
        if home.retention is not None:
            out.append(_retention(home, present, unread, now_us))
    return out


def _retention(home: Home, present: Sequence[files.Found], unread: Sequence[files.Found], now_us: int) -> Finding:
    """Days that are left before the agent deletes logs; a hand is needed where the lake does not have them yet."""
    check = f"kept by {home.name}"
    days, where = days_kept(home)
    if days is None or home.retention is None:
        return Finding(check, "ok", f"logs are not deleted: {where}")
    if days <= 0:
        return Finding(check, "mend", f"0 days by {where}: the agent keeps no logs", f"set {home.retention.advice}")

    def left(these: Iterable[files.Found]) -> float | None:
        ages = [now_us - file.mtime_ns // 1000 for file in these]
        return round(days - max(ages) / DAY_US, 1) if ages else None

    oldest, endangered = left(present), left(unread)
    if oldest is None:
        return Finding(check, "ok", f"{days:g} days by {where}; there is no log")
    text = f"{days:g} days by {where}; the oldest log has {max(oldest, 0):g} days left"
    keep = f"set {home.retention.advice} there to keep logs longer"
    if endangered is not None and endangered < SOON_DAYS:
        text += f"; of {len(unread)} files that the lake does not have the oldest has {max(endangered, 0):g}"
        return Finding(check, "mend", text, f"`loopstats ingest` now; {keep}")
    return Finding(check, "ok", text, keep)


# --- the lake --------------------------------------------------------------------------------------------------------


def lake(
    meta: Mapping[str, str],
    derived_digest: str,
    sources: pl.DataFrame,
    steps: pl.DataFrame,
    turns: pl.DataFrame,
    rejects: pl.DataFrame | None = None,
    snapshot: Snapshot | None = None,
) -> list[Finding]:
    """Health of a lake. `sources`, `rejects`: their tables; `steps`: tool, kind, outcome; `turns`: model, tokens, cost.

    `snapshot`: whose files are looked at, by name and size only.
    """
    settled = meta.get("derived_digest") == derived_digest
    read = int(sources["count_read"].sum())
    accounted = pl.sum_horizontal("count_used", "count_nothing", "count_folded", "count_rejected", "count_waiting")
    unbalanced = sources.filter(pl.col("count_read") != accounted)["source_file"].to_list()
    gone = sources.filter("is_gone")["source_file"].to_list()
    unknown = sources.filter(pl.col("format") == "")["source_file"].to_list()
    rejected = int(sources["count_rejected"].sum())
    reasons = [] if rejects is None else _counted(rejects["reason"])
    tools = _counted(steps.filter(pl.col("kind") == "other")["tool"])
    told = turns.filter(pl.col("tokens_output").is_not_null())
    unpriced = told.filter(pl.col("cost_micros").is_null())
    models = _counted(unpriced["model"].drop_nulls())
    types = unknown_types(sources)
    size = "" if snapshot is None else f", {sum(f.size_bytes for f in snapshot.files):,} bytes"
    out = [
        Finding(
            "lake",
            "ok" if settled else "mend",
            f"generation {meta.get('generation', '0')} of loopstats {meta.get('version', '?')}, "
            f"{sources.height} files, {steps.height} steps{size}"
            + ("" if settled else "; made under other settings or rules"),
            "" if settled else "run `loopstats ingest` again",
        ),
    ]
    if snapshot is not None:
        out += [_whole(snapshot), _few(snapshot), _oversize(snapshot)]
    return [
        *out,
        Finding(
            "lines accounted for",
            "mend" if unbalanced else "ok",
            _some(unbalanced) or f"{read} lines",
            "see `loopstats sql conservation` and report the format" if unbalanced else "",
        ),
        Finding("files gone", "look" if gone else "ok", _some(gone) or "none", "their rows stay" if gone else ""),
        Finding(
            "files of no format",
            "look" if unknown else "ok",
            _some(unknown) or "none",
            "name folders that hold logs only, or add a format (CONTRIBUTING)" if unknown else "",
        ),
        Finding(
            "rejects",
            "look" if rejected else "ok",
            f"{Rate(rejected, read)}{': ' * bool(reasons)}{_some(reasons)}" if read else "nothing read",
            '`loopstats sql "select * from rejects"` names file and line' if rejected else "",
        ),
        Finding(
            "unclassified tools",
            "look" if tools else "ok",
            _some(tools, "steps") or "none",
            f'give it a kind: [tools] in loopstats.toml, e.g. {tools[0][0]} = "execute"' if tools else "",
        ),
        Finding(
            "unknown record types",
            "look" if types else "ok",
            _some(types) or "none",
            "a newer agent writes them: see whether a newer loopstats knows them" if types else "",
        ),
        Finding("unknown outcomes", "ok", f"{Rate(int((steps['outcome'] == 'unknown').sum()), steps.height)}"),
        Finding(
            "unpriced models",
            "look" if models else "ok",
            _some(models, "turns") or f"{Rate(told.height - unpriced.height, told.height)} turns priced",
            f'give it a price: [prices."{models[0][0]}"] in loopstats.toml' if models else "",
        ),
    ]


def _whole(snapshot: Snapshot) -> Finding:
    """Every file of the manifest is there with its size; the bytes are not read."""
    bad = []
    for file in snapshot.files:
        try:
            is_there = (snapshot.root / file.path).stat().st_size == file.size_bytes
        except OSError:
            is_there = False
        if not is_there:
            bad.append(file.path)
    advice = "`loopstats lake verify` tells what is lost, `loopstats lake rebuild` mends" if bad else ""
    return Finding("lake files", "mend" if bad else "ok", _some(bad) or f"{len(snapshot.files)} files, whole", advice)


def _few(snapshot: Snapshot) -> Finding:
    most = max(Counter((file.name, file.bucket) for file in snapshot.files).values(), default=0)
    is_many = most > MANY_FILES
    return Finding(
        "files a bucket",
        "look" if is_many else "ok",
        f"at most {most} of a table",
        "run `loopstats lake compact`" if is_many else "",
    )


def _oversize(snapshot: Snapshot) -> Finding:
    sizes = snapshot.scan("runs").select("run_id", "count_steps").filter(pl.col("count_steps") > OVERSIZE_STEPS)
    rows = sizes.sort("count_steps", "run_id", descending=[True, False]).collect().rows()
    advice = "made whole, in memory: see docs/scale.md for how much it takes" if rows else ""
    return Finding("oversize runs", "look" if rows else "ok", _some(rows, "steps") or "none", advice)


# Types of records that carry no fact for loopstats, as the formats' logs have them (`_` for a space; a word without a
# `/` stands for all its kinds); a type that is not here is new. Formats that are not here name too few to tell.
_KNOWN_TEXT = {
    "claude-code": """
        agent-name ai-title assistant/synthetic assistant/text atis-latch attachment bridge-session custom-title
        file-history-snapshot frame-link last-prompt mode permission-mode pr-link progress/agent_progress
        progress/bash_progress progress/hook_progress progress/mcp_progress progress/query_update
        progress/search_results_received progress/waiting_for_task queue-operation relocated result started summary
        system/api_error system/api_refusal system/compact_boundary system/error system/local_command
        system/microcompact_boundary system/model_refusal_fallback system/stop_hook_summary system/turn_duration
        tool_result_without_a_call user/compact_summary user/meta user/prompt worktree-state
    """,
    "codex": """
        compacted event_msg/agent_message event_msg/agent_reasoning event_msg/collab_agent_interaction_end
        event_msg/collab_agent_spawn_end event_msg/collab_close_end event_msg/collab_waiting_end
        event_msg/context_compacted event_msg/dynamic_tool_call_request event_msg/dynamic_tool_call_response
        event_msg/entered_review_mode event_msg/error event_msg/exec_command_begin event_msg/exec_command_end
        event_msg/exited_review_mode event_msg/guardian_assessment event_msg/image_generation_end
        event_msg/item_completed event_msg/mcp_tool_call_end event_msg/patch_apply_begin event_msg/patch_apply_end
        event_msg/sub_agent_activity event_msg/task_complete event_msg/task_started event_msg/thread_goal_updated
        event_msg/thread_name_updated event_msg/thread_settings_applied event_msg/token_count event_msg/turn_aborted
        event_msg/undo_completed event_msg/user_message event_msg/view_image_tool_call event_msg/web_search_end
        inter_agent_communication_metadata response_item/agent_message response_item/ghost_snapshot
        response_item/message response_item/reasoning response_item/tool_search_call response_item/web_search_call
        turn_context world_state
    """,
    "copilot": """
        abort assistant.message assistant.reasoning assistant.turn_end assistant.turn_start hook.end hook.start
        session.auto_mode_resolved session.error session.info session.model_change session.resume session.shutdown
        session.truncation session.usage_checkpoint subagent.completed subagent.started system.message
        system.notification user.message
    """,
    "gemini-cli": """
        $set error gemini info model user warning
    """,
    "gemini-cli-telemetry": """
        gemini_cli.api_error gemini_cli.api_request gemini_cli.api_response gemini_cli.config
        gemini_cli.file_operation gemini_cli.hook_call gemini_cli.model_routing gemini_cli.user_prompt
        gen_ai.client.inference.operation.details metric
    """,
    "openclaw": """
        agent.start compact compaction custom custom_message leaf message message.in message.out message.sending
        message/assistant message/system message/user model_change thinking_level_change
    """,
    "pi": """
        compaction custom custom_message leaf message/assistant message/bashExecution message/user model_change
        thinking_level_change
    """,
    "stella-events": """
        block_registered budget_tick complete error file_change reasoning retries_exhausted retry stage
        step_manifest text text_delta
    """,
}
_KNOWN = {name: frozenset(text.split()) for name, text in _KNOWN_TEXT.items()}


def unknown_types(sources: pl.DataFrame) -> list[tuple[str, int]]:
    """`format: type` of the records that carried nothing and that no log had when the formats were written, with n."""
    counts: dict[str, int] = {}
    for name, told in sources.select("format", "nothing_types").iter_rows():
        known = _KNOWN.get(name, frozenset())
        for label, n in json.loads(told).items() if known else ():
            if not {label.replace(" ", "_"), label.partition("/")[0]} & known:
                counts[f"{name}: {label}"] = counts.get(f"{name}: {label}", 0) + n
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


# --- hook ------------------------------------------------------------------------------------------------------------


def hook(statuses: Sequence[Any], faults: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Health of the live hook: `hooks.status` and `hooks.faults`."""
    out = []
    for row in statuses:
        if row.settings == "absent":
            continue
        is_broken = row.settings != "installed"
        is_silent = row.firing != "recent"
        detail = f"{row.path}: {row.settings}, last fired {row.last_fired or 'never'}"
        install = f"`loopstats hook install --agent {row.agent} --scope {row.scope}` again"
        test = f"`loopstats hook test --agent {row.agent} --scope {row.scope}`"
        out.append(
            Finding(
                f"hook {row.agent} ({row.scope})",
                "mend" if is_broken else "look" if is_silent else "ok",
                detail,
                install if is_broken else test if is_silent else "",
            )
        )
    if faults:
        newest = faults[0]
        out.append(
            Finding(
                "hook faults",
                "mend",
                f"{len(faults)} noted, the newest at {newest['ts']}: {newest['fault']} in {newest['where']}",
                "mend the cause, then remove the log below the spool (.hook/log)",
            )
        )
    elif out:
        out.append(Finding("hook faults", "ok", "none noted"))
    return out or [Finding("hook", "ok", "not installed")]


# --- nightly ---------------------------------------------------------------------------------------------------------


def nightly(
    nights: Sequence[Mapping[str, Any]], standings: Sequence[Standing], now_us: int, log: Path
) -> list[Finding]:
    """The last night by its line in the log, and the timetable."""
    on = [one for one in standings if one.state == "installed"]
    half = [one for one in standings if one.state in ("off", "partial")]
    told = ", ".join(f"{one.kind} at {one.at}" for one in on) or "none"
    out = [Finding("schedule", "ok" if on else "look", told, "" if on else "`loopstats schedule --install cron`")]
    if half:
        advice = (
            "`systemctl --user daemon-reload && systemctl --user enable --now TIMER`, or schedule --uninstall systemd"
        )
        detail = "; ".join(f"{one.kind}: {one.state} in {one.place}" for one in half)
        out = [Finding("schedule", "ok" if on else "look", "; ".join([told] * bool(on) + [detail]), advice)]
    mine = [night for night in nights if night.get("exit_code") != 75]
    if not mine:
        state = "look" if not nights else "mend"
        detail = "never ran" if not nights else f"all {len(nights)} found another one running"
        return [*out, Finding("last night", state, detail, "`loopstats nightly`")]
    last = mine[-1]
    began = datetime.fromisoformat(str(last["started"]))
    hours = (EPOCH + timedelta(microseconds=now_us) - began.astimezone(UTC)) / timedelta(hours=1)
    failed = [str(gate.get("gate")) for gate in last.get("gates", ()) if gate.get("state") == "failed"]
    code = last.get("exit_code")
    detail = f"{hours:.0f} hours ago, exit code {code}"
    detail += f", gates failed: {', '.join(failed)}" if failed else f": {last['error']}" if last.get("error") else ""
    if code != 0:
        advice = "docs/nightly.md says what each gate means" if code in DONE else "mend it, then `loopstats nightly`"
        return [*out, Finding("last night", "mend", detail, f"{advice}; its line is in {log}")]
    if on and hours > LATE_HOURS:
        return [*out, Finding("last night", "mend", f"{detail}, though scheduled", "is cron or the timer running?")]
    return [*out, Finding("last night", "ok", detail)]


def _counted(names: pl.Series) -> list[tuple[str, int]]:
    """Values with n, most first."""
    return sorted(names.value_counts().iter_rows(), key=lambda item: (-item[1], item[0]))


def _some(names: Sequence[Any], unit: str = "") -> str:
    """The first few: a name, or a name with its n."""
    texts = [one if isinstance(one, str) else f"{one[0]} ({one[1]}{f' {unit}' * bool(unit)})" for one in names[:SHOWN]]
    return ", ".join(texts) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
