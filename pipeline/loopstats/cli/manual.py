"""What stands beneath the options in `--help`: examples, and what exit codes mean beside the usual ones.

A room of its own because it is the manual: every command has an entry, a test runs every example on the sample, and
`docs/commands.md` is made of it. A new command gets its entry here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import typer

USUAL = {
    0: "ok",
    1: "internal error",
    2: "usage",
    3: "nothing matched",
    4: "too many rejects",
    5: "a check found something",
    74: "I/O error",
    75: "lake locked",
    130: "interrupt",
}


class Entry(NamedTuple):
    """Lines that can be typed, and exit codes whose meaning here is worth saying."""

    examples: tuple[str, ...]
    exits: Mapping[int, str] = {}


_READS = {3: "nothing matched; a data format is written all the same, without rows"}

_CLUSTER = {75: "another writer holds the lake; nothing was written"}

ENTRIES: dict[str, Entry] = {
    "ingest": Entry(
        ("loopstats ingest", "loopstats ingest ~/.claude/projects ~/.codex", "loopstats ingest --dry-run"),
        {
            3: "no log file there, or no path was named and no agent's home was found",
            4: "more rejects than --max-rejects or --strict allow; nothing was written",
            75: "another writer holds the lake; nothing was written",
        },
    ),
    "doctor": Entry(
        ("loopstats doctor", "loopstats doctor --json"), {5: "a hand is needed: at least one row says mend"}
    ),
    "lift": Entry(
        (
            "loopstats lift --since 7d",
            "loopstats lift --by tool --all",
            "loopstats lift --as-of 2026-11-20 -f json -o lift.json",
            "loopstats lift --record --as-of today",
            "loopstats lift --history",
        ),
        {
            0: "also where the result is withheld: the readout did its work",
            3: "no loop matches",
            75: "--record, and another writer holds the lake",
        },
    ),
    "loops": Entry(
        ("loopstats loops --since 7d", "loopstats loops --tool Bash --where 'count_events >= 4' -f csv"), _READS
    ),
    "explain": Entry(
        (
            "loopstats explain f60634a1",
            "loopstats explain f60634a1 --raw",
            "loopstats explain f60634a1 -f md -o loop.md",
        ),
        {3: "no loop has an id that begins so"},
    ),
    "report": Entry(
        ("loopstats report --since 7d --title 'Last week' -o week.html",),
        {3: "no step matches; the page is written all the same and says so"},
    ),
    "nightly": Entry(
        ("loopstats nightly --as-of 2026-11-20 --max-rejects 100 --report night.html",),
        {
            3: "no path was named and no agent's home was found",
            4: "more rejects than --max-rejects; nothing was written",
            5: "another gate failed, or the lake is damaged",
            75: "another night is running, or something else writes the lake",
        },
    ),
    "schedule": Entry(
        (
            "loopstats schedule --status",
            "loopstats schedule --print cron --at 03:30",
            "loopstats schedule --print systemd",
            "loopstats schedule --install systemd --dry-run -- --max-rejects 100",
            "loopstats schedule --uninstall systemd --dry-run",
        ),
        {2: "also what would fail every night: an unknown option, a path that is not whole, no such command"},
    ),
    "lake": Entry(("loopstats lake info", "loopstats lake verify")),
    "lake info": Entry(("loopstats lake info", "loopstats lake info --json")),
    "lake verify": Entry(
        ("loopstats lake verify", "loopstats lake verify --json"), {5: "something differs; each fault names its mend"}
    ),
    "lake compact": Entry(("loopstats lake compact",), {75: "another writer holds the lake; nothing was written"}),
    "lake rebuild": Entry(
        ("loopstats lake rebuild",),
        {
            5: "records were damaged and their logs are gone, so lines are lost",
            75: "another writer holds the lake; nothing was written",
        },
    ),
    "spark": Entry(("loopstats spark job", "loopstats spark lift --master 'local[2]'")),
    "spark ingest": Entry(("loopstats spark ingest --master 'local[2]' ~/.claude/projects",), _CLUSTER),
    "spark detect": Entry(("loopstats spark detect --master 'local[2]' --out ~/other-lake",), _CLUSTER),
    "spark lift": Entry(("loopstats spark lift --master 'local[2]' --since 7d",), {3: "no loop matches"}),
    "spark job": Entry(("loopstats spark job",)),
    "tools": Entry(("loopstats tools", "loopstats tools --harness claude-code -f md"), _READS),
    "sql": Entry(
        (
            "loopstats sql worst_classes",
            'loopstats sql "select outcome, count(*) as n from loops group by outcome"',
            "loopstats sql conservation -f csv -o conservation.csv",
            "loopstats sql worst_classes --timeout 60",
        ),
        {130: "interrupted, or ended by --timeout; nothing was printed or written"},
    ),
    "queries": Entry(("loopstats queries",)),
    "schema": Entry(("loopstats schema", "loopstats schema loops", "loopstats schema --json-schema loops")),
    "drift": Entry(("loopstats drift --since 4w", "loopstats drift --all --json"), _READS),
    "audit": Entry(("loopstats audit --since 7d", "loopstats audit --all -f csv"), _READS),
    "waste": Entry(("loopstats waste --since 4w", "loopstats waste --by week,model"), _READS),
    "runs": Entry(
        (
            "loopstats runs --since 7d",
            "loopstats runs --by model",
            "loopstats runs --by model --compare claude-sonnet-4-5 gpt-5-codex",
        ),
        _READS | {5: "--compare: runs of B are longer and are not shown to solve more"},
    ),
    "ladder": Entry(("loopstats ladder careful", "loopstats ladder faulty --faults"), {3: "no run matches"}),
    "hook": Entry(("loopstats hook install --agent claude-code --dry-run", "loopstats hook status")),
    "hook install": Entry(
        (
            "loopstats hook install --agent claude-code --dry-run",
            "loopstats hook install --agent codex --scope project --dry-run",
        )
    ),
    "hook uninstall": Entry(("loopstats hook uninstall --agent claude-code --dry-run",)),
    "hook status": Entry(
        ("loopstats hook status", "loopstats hook status --json"),
        {5: "an agent's settings are partial, moved or unreadable"},
    ),
    "hook test": Entry(
        ("loopstats hook test --agent claude-code",), {5: "the installed command line does not answer as it should"}
    ),
    "hook run": Entry(("loopstats hook run",), {0: "always: the hook fails open"}),
    "simulate": Entry(("loopstats simulate power --n 400", "loopstats simulate aa --salts 200")),
    "simulate aa": Entry(("loopstats simulate aa --salts 200 --seed 7",)),
    "simulate planted": Entry(("loopstats simulate planted --lift 0.2 --loops 80 -o planted",)),
    "simulate power": Entry(("loopstats simulate power --n 200 --n 800 --loops-per-night 12",)),
    "config": Entry(
        ("loopstats config", "loopstats config --path", "loopstats --tz Europe/Berlin config -f md"),
        {2: "a setting is wrong; the message names its file, line and key"},
    ),
    "completion": Entry(("loopstats completion bash", "loopstats completion zsh", "loopstats completion fish")),
}


def epilog(entry: Entry) -> str:
    """The entry as `--help` shows it."""
    lines = "\n".join(f"  {line}" for line in entry.examples)
    told = (
        f"\n\nExit codes: {'; '.join(f'{code} {says}' for code, says in entry.exits.items())}." if entry.exits else ""
    )
    # The mark keeps the lines as they are.
    return f"\b\nExamples:\n{lines}{told}"


def fill(app: typer.Typer, above: str = "") -> None:
    """Give every command and group its part of the manual."""
    for info in app.registered_commands:
        name = info.name or (info.callback.__name__.replace("_", "-") if info.callback else "")
        if (entry := ENTRIES.get(f"{above}{name}")) is not None:
            info.epilog = epilog(entry)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            if (entry := ENTRIES.get(f"{above}{group.name}")) is not None:
                group.typer_instance.info.epilog = epilog(entry)
            fill(group.typer_instance, f"{above}{group.name} ")
