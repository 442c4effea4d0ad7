"""METHOD 12 walked by hand, run by run and step by step: slow, plain, and sharing no code with the package.

Steps are dictionaries of one run in order, with the columns of the steps table; `state_hash` is the log's own or None.
"""

from __future__ import annotations

from typing import Any

Step = dict[str, Any]
UNKNOWN = None


def states(steps: list[Step]) -> list[Any]:
    """World state after each step as a value that can be compared; None is unknown."""
    if any(s["state_hash"] is not None for s in steps):
        return [s["state_hash"] for s in steps]
    verdict: Any = UNKNOWN
    is_blind = False
    content: dict[str, Any] = {}
    out: list[Any] = []
    for number, step in enumerate(steps):
        if step["actor"] == "agent" and step["kind"] == "verify" and step["outcome"] != "vetoed":
            verdict = verdict_of(step)
            is_blind = False
        if step["actor"] == "agent" and step["kind"] == "edit":
            if step["outcome"] == "success":
                content[step["target"]] = step["fingerprint"]
            elif step["outcome"] == "unknown":
                content[step["target"]] = ("unknown", number)
                is_blind = True
        out.append(None if verdict is UNKNOWN or is_blind else (verdict, tuple(sorted(content.items(), key=str))))
    return out


def verdict_of(step: Step) -> Any:
    if step["outcome"] == "success":
        return "success"
    if step["outcome"] == "failure":
        return ("failure", step["signature"] or step["result_hash"])
    if step["result_hash"] is None or step["outcome_reason"] in ("missing", "interrupt", "sibling"):
        return UNKNOWN
    return ("text", step["result_hash"])


def productive(steps: list[Step]) -> list[bool | None]:
    """Whether each step was productive; None is unknown."""
    has_own = any(s["state_hash"] is not None for s in steps)
    world = states(steps)
    content: dict[str, Any] = {}
    verdicts: list[Any] = []
    out: list[bool | None] = []
    for number, step in enumerate(steps):
        kind, outcome = step["kind"], step["outcome"]
        before = world[number - 1] if number else None
        moved = None if before is None or world[number] is None else before != world[number]
        answer: bool | None = False
        if step["actor"] != "agent":
            answer = False
        elif kind == "verify" and outcome != "vetoed":
            verdict = verdict_of(step)
            answer = None
            if verdicts and verdicts[-1] is not UNKNOWN and verdict is not UNKNOWN:
                answer = verdict != verdicts[-1]
            verdicts.append(verdict)
        elif kind == "edit" and outcome == "success":
            answer = moved if has_own else content.get(step["target"]) != step["fingerprint"]
            content[step["target"]] = step["fingerprint"]
        elif kind in ("execute", "communicate", "operate") and outcome == "success":
            answer = moved if has_own else None
        elif kind in ("edit", "execute", "communicate", "operate") and outcome == "unknown":
            answer = None
            if kind == "edit":
                content[step["target"]] = ("unknown", number)
        out.append(answer)
    return out


def drifts(steps: list[Step], rule: str) -> list[dict[str, Any]]:
    """Stretches in which the rule keeps firing."""
    world = states(steps)
    seen: set[str] = set()
    counted: list[tuple[Step, Any, bool]] = []
    for step, state in zip(steps, world, strict=True):
        if step["actor"] != "agent" or (rule == "drift/1" and step["kind"] == "wait"):
            continue
        counted.append((step, state, step["fingerprint"] not in seen))
        seen.add(step["fingerprint"])
    out: list[dict[str, Any]] = []
    was_firing = False
    for end in range(7, len(counted)):
        window = counted[end - 7 : end + 1]
        is_novelty = len({s["fingerprint"] for s, _, _ in window}) < 3
        known = [state for _, state, _ in window if state is not None]
        is_state = len(known) == 8 and len(set(known)) == 1
        if rule == "drift/1":
            is_state = is_state and sum(new for _, _, new in window) < 3
        if is_novelty or is_state:
            step = window[-1][0]["step"]
            if was_firing:
                out[-1]["last_step"] = step
                out[-1]["length"] += 1
            else:
                reason = "both" if is_novelty and is_state else "novelty" if is_novelty else "state"
                out.append(
                    {
                        "run_id": window[0][0]["run_id"],
                        "rule": rule,
                        "first_step": window[0][0]["step"],
                        "detected_step": step,
                        "last_step": step,
                        "reason": reason,
                        "length": 8,
                        "lead_steps": steps[-1]["step"] - step,
                    }
                )
        was_firing = is_novelty or is_state
    return out


def longest_frozen(steps: list[Step]) -> int | None:
    """Most steps in a row with one known state, waiting and the user's steps left out."""
    best, length, previous = None, 0, None
    for step, state in zip(steps, states(steps), strict=True):
        if step["actor"] != "agent" or step["kind"] == "wait":
            continue
        length = 0 if state is None else length + 1 if state == previous else 1
        previous = state
        best = best if state is None else max(best or 0, length)
    return best


def echoes(steps: list[Step]) -> list[dict[str, Any]]:
    """One fingerprint with one result at least four times and nothing productive between."""
    counts: dict[tuple[str, str], list[int]] = {}
    out: list[dict[str, Any]] = []
    current: dict[tuple[str, str], dict[str, Any]] = {}
    for step, is_productive in zip(steps, productive(steps), strict=True):
        if step["actor"] != "agent":
            continue
        if is_productive or (is_productive is None and step["kind"] == "edit"):
            counts, current = {}, {}
        if step["kind"] == "wait" or step["result_hash"] is None:
            continue
        key = (step["fingerprint"], step["result_hash"])
        mine = counts.setdefault(key, [])
        mine.append(step["step"])
        if len(mine) == 4:
            current[key] = {
                "run_id": step["run_id"],
                "fingerprint": key[0],
                "result_hash": key[1],
                "first_step": mine[0],
                "detected_step": step["step"],
            }
            out.append(current[key])
        if len(mine) >= 4:
            current[key] |= {"last_step": step["step"], "length": len(mine)}
    return out


def ghosts(steps: list[Step], has_guards: bool) -> list[dict[str, Any]]:
    """Rows of cycles without an attempt or research; see METHOD 12 for the logs that have cycles, guards or neither."""
    mine = [s for s in steps if s["actor"] == "agent"]
    has_cycles = any(s["cycle"] is not None for s in mine)
    groups: list[list[Step]] = []
    place: dict[Any, int] = {}
    for step in mine:
        key = step["cycle"] if has_cycles else step["decision"]
        if key is None:
            continue
        if key not in place:
            place[key] = len(groups)
            groups.append([])
        groups[place[key]].append(step)
    if not has_cycles:
        groups = [g for g in groups if any(s["kind"] != "wait" for s in g)]
    facts: list[tuple[list[Step], bool, int]] = []
    first_of: dict[str, int] = {}
    for step in mine:
        first_of.setdefault(step["fingerprint"], step["step"])
    for group in groups:
        acts = ("edit", "verify", "execute", "communicate", "operate", "other")
        is_ghost = not any((s["kind"] in acts and s["outcome"] != "vetoed") or s["kind"] == "research" for s in group)
        new = sum(1 for s in group if first_of[s["fingerprint"]] == s["step"])
        facts.append((group, is_ghost, new))
    fires = [False] * len(facts)
    if has_cycles or has_guards:
        fires = [is_ghost for _, is_ghost, _ in facts]
    else:
        for end in range(7, len(facts)):
            window = facts[end - 7 : end + 1]
            if all(is_ghost for _, is_ghost, _ in window) and sum(new for _, _, new in window) < 3:
                for number in range(end - 7, end + 1):
                    fires[number] = True
    out: list[dict[str, Any]] = []
    for number, (group, _, _) in enumerate(facts):
        if not fires[number]:
            continue
        if number and fires[number - 1]:
            out[-1]["length"] += 1
            out[-1]["count_steps"] += len(group)
            out[-1]["last_step"] = max(out[-1]["last_step"], *[s["step"] for s in group])
        else:
            reason = "cycle" if has_cycles else "guard" if has_guards else "streak"
            out.append(
                {
                    "run_id": group[0]["run_id"],
                    "first_step": group[0]["step"],
                    "reason": reason,
                    "length": 1,
                    "count_steps": len(group),
                    "last_step": max(s["step"] for s in group),
                }
            )
    return out


def resets(steps: list[Step], guards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns of a guard's counter to zero; `guards` are the records of this run in order."""
    answers = {s["step"]: p for s, p in zip(steps, productive(steps), strict=True)}
    last: dict[str, tuple[int | None, int]] = {}
    out: list[dict[str, Any]] = []
    for record in guards:
        name = record["name"] or ""
        has_before = name in last
        before, place = last.get(name, (None, -1))
        here = -1 if record["step"] is None else record["step"]
        counter = record["counter"]
        fell = counter == 0 and has_before and before is not None and before > 0
        said = record["event"] == "reset" and counter in (None, 0) and (before is None or before > 0)
        if fell or said:
            between = [answers[s["step"]] for s in steps if place < s["step"] <= here]
            reason = "productive" if True in between else "unknown" if None in between else "unproductive"
            out.append({"guard": record["guard"], "reason": reason, "length": here - place, "counter_before": before})
        last[name] = (counter, here)
    return out


def chases(steps: list[Step]) -> list[dict[str, Any]]:
    """Chains of truncated reads of overflow files; `overflow_path` and `target` are compared as they stand."""
    above: dict[int, tuple[int, int]] = {}
    found: dict[int, dict[str, Any]] = {}
    for step in steps:
        if step["actor"] != "agent" or step["kind"] != "read" or not step["is_truncated"] or not step["target"]:
            continue
        parents = [
            s["step"]
            for s in steps
            if s["step"] < step["step"] and s["overflow_path"] == step["target"] and s["is_truncated"] is not False
        ]
        if not parents:
            continue
        root, depth = above.get(parents[-1], (parents[-1], 0))
        above[step["step"]] = (root, depth + 1)
        row = found.setdefault(root, {"run_id": step["run_id"], "first_step": root, "length": 0, "depth": 0})
        row["length"] += 1
        row["depth"] = max(row["depth"], depth + 1)
        row["last_step"] = step["step"]
    return sorted(found.values(), key=lambda row: row["first_step"])


def bypasses(steps: list[Step], guards: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    """(first step, last step, reason) of every way around a refusal or a block of research; times in microseconds."""
    acts = ("edit", "verify", "execute", "communicate", "operate", "other")
    mine = [s for s in steps if s["actor"] == "agent"]
    out: set[tuple[int, int, str]] = set()
    for refused in mine:
        if refused["outcome"] != "vetoed" or not refused["target"]:
            continue
        done: set[str] = set()
        for step in mine:
            is_way = (
                step["step"] > refused["step"]
                and step["outcome"] == "success"
                and step["target"] == refused["target"]
                and step["tool"] != refused["tool"]
            )
            if is_way:
                reason = "done" if step["kind"] in acts or refused["kind"] not in acts else "looked"
                if reason not in done:
                    done.add(reason)
                    out.add((refused["step"], step["step"], reason))
    active: dict[str, tuple[int, int | None]] = {}
    for step in mine:
        active = {}
        for record in guards:
            place = -1 if record["step"] is None else record["step"]
            if place >= step["step"]:
                continue
            name = record["name"] or ""
            if record["event"] == "block" and (record["tier"] is None or record["tier"] >= 3):
                end = (
                    None
                    if record["ttl_s"] is None or record["ts"] is None
                    else record["ts"] + record["ttl_s"] * 1_000_000
                )
                active[name] = (place, end)
            elif record["event"] in ("expire", "reset", "override"):
                active.pop(name, None)
        is_on = any(end is None or step["ts"] is None or step["ts"] <= end for _, end in active.values())
        is_url = step["target"].startswith(("http://", "https://")) and step["kind"] in ("execute", "read", "other")
        if is_on and step["outcome"] == "success" and (step["kind"] == "research" or is_url):
            is_open = step["kind"] == "research" and step["kind_source"] in ("table", "name")
            out.add((step["step"], step["step"], "open" if is_open else "clothes"))
    return sorted(out)
