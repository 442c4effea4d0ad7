"""What a treated agent is told: a small, reviewed set of texts, one per kind of failing step.

A room of its own because the texts are the intervention: they have a version, and the log holds the hash of every one
that was shown or withheld, so that an effect can be laid to its cause. A text speaks to the agent, names the class of
the failure, where and how often it came, and asks for another explanation before the next action. It refuses nothing:
a stronger measure would change the ruler by arm. Standard library only.
"""

# pathlib takes longer to load than everything that is done here
# ruff: noqa: PTH123

from __future__ import annotations

VERSION = "provocation/1"
MESSAGE_LENGTH = 160
TEXT_LENGTH = 4000
TEXTS_BYTES = 1 << 16

ASK = (
    "Before your next action, name one other explanation of this failure that your attempts so far did not test, say "
    "what you would see if it were true, and look at that first."
)
_SAME = "that failed in the same way ({failure})"
TEXTS = {
    "edit": (
        f"You have tried {{count}} edits {_SAME}, on {{targets}}. The places differ and the failure does not, so the "
        f"cause is likely in what you take these files to contain. {ASK}"
    ),
    "verify": (
        f"You have run {{count}} checks {_SAME}, on {{targets}}. What you changed in between has not touched the "
        f"cause. {ASK}"
    ),
    "execute": (
        f"You have run {{count}} commands {_SAME}, on {{targets}}. Another variation of the command will likely fail "
        f"alike. {ASK}"
    ),
    "communicate": (
        f"You have made {{count}} attempts to send {_SAME}, to {{targets}}. The recipient is likely not the cause. "
        + ASK
    ),
    "operate": (
        f"You have made {{count}} attempts to manage jobs or services {_SAME}, on {{targets}}. The target is likely "
        f"not the cause. {ASK}"
    ),
    "other": (
        f"You have made {{count}} attempts {_SAME}, on {{targets}}. What they have in common is likely where the "
        f"cause is. {ASK}"
    ),
}


def provocation(
    kind: str, tool: str, code: str, message: str, targets: list[str], count: int, path: str | None = None
) -> tuple[str, str]:
    """The text for a loop, inside `<loopstats>` tags that every reader of this project strips, and its version.

    `targets`: the first distinct ones, placed and masked. `path`: the user's own texts, a JSON object of `version` and
    `texts` (kind to text; `other` for kinds without one; `{count}`, `{failure}`, `{targets}` are filled in). Where
    that file cannot be used, the built-in texts stand, and the version says so.
    """
    texts, version = (TEXTS, VERSION) if path is None else _own(path)
    name = kind if kind in texts else "other"
    short = message if len(message) <= MESSAGE_LENGTH else f"{message[: MESSAGE_LENGTH - 1]}…"
    failure = ": ".join(part for part in (tool, code if code.lower() not in short else "", short) if part)
    named = [target or "no target" for target in targets]
    filled = texts.get(name, TEXTS[name])
    for mark, value in (
        ("{count}", str(count)),
        ("{failure}", failure),
        ("{targets}", ", ".join(named) or "several targets"),
    ):
        filled = filled.replace(mark, value.replace("{", "(").replace("}", ")"))
    inner = filled.replace("<", "‹").replace(">", "›")[:TEXT_LENGTH]
    return f"<loopstats>\n{inner}\n</loopstats>", f"{version}:{name}"


def _own(path: str) -> tuple[dict[str, str], str]:
    import json

    try:
        with open(path, "rb") as file:
            told = json.loads(file.read(TEXTS_BYTES))
        texts = {kind: text for kind, text in told["texts"].items() if isinstance(text, str) and text.strip()}
        version = str(told["version"])[:40]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return TEXTS, f"{VERSION}(own texts unusable)"
    return (texts, version) if texts else (TEXTS, f"{VERSION}(own texts unusable)")
