"""Aider's `.aider.chat.history.md`: Markdown in which a heading starts a chat and quoted lines are what Aider did.

A room of its own because it is prose: edits and commands are told from fixed sentences, nothing has an id, and no step
has a time. Experimental: the real file behind it holds no edit. The start of a chat is local time without its zone.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from loopstats.formats import Emit, Format, Head, Reader, Source, canonical_id
from loopstats.formats.pairing import each

SIGN = "# aider chat started at "
START = re.compile(r"^# aider chat started at ([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8})[ \t]*\r?$", re.MULTILINE)
TOKENS = re.compile(r"Tokens: ([0-9.,]{1,12}k?) sent, (?:[^\n]{0,60}, )?([0-9.,]{1,12}k?) received")
COST = re.compile(r"Cost: \$([0-9]{1,6}(?:\.[0-9]{1,8})?) message")
VERSION = re.compile(r"^> Aider (v[0-9][0-9A-Za-z.+-]{0,30})", re.MULTILINE)
MODEL = re.compile(r"^> (?:Main model|Model): ([^ \n]{1,100})", re.MULTILINE)
APPLIED, RUNNING = "Applied edit to ", "Running "
FIRST_TURN_CAP = 100_000


class Aider(Format):
    """A Markdown file with at least one start of a chat."""

    name: ClassVar[str] = "aider"
    unit: ClassVar[str] = "container"
    is_experimental: ClassVar[bool] = True

    def matches(self, head: Head) -> int:
        """Sure where a line is the heading that Aider writes."""
        return 80 if SIGN in head.text and START.search(head.text) else 0

    def reader(self, source: Source, state: dict[str, Any] | None = None) -> Reader:
        """A reader of the whole file."""
        return AiderReader(source, state)

    def load(self, data: bytes) -> Any:
        """The chats: start and text of each."""
        parts = START.split(data.decode("utf-8", "replace"))
        return list(zip(parts[1::2], parts[2::2], strict=True))


class AiderReader(Reader):
    """One record of the container is one chat."""

    def read_document(self, document: Any, emit: Emit) -> None:
        """Hand on all chats; one without a word of the model carries nothing."""
        each(document, emit, lambda chat: self._chat(chat[0], chat[1], emit))

    def _chat(self, started: str, text: str, emit: Emit) -> None:
        lines = text.splitlines()
        said = _first_turn(lines)
        if not said:
            emit.nothing("chat without a model turn")
            return
        session = f"{Aider.name}~{canonical_id({'started': started, 'text': said[:FIRST_TURN_CAP]})}"
        version, model = VERSION.search(text), MODEL.search(text)
        name = model[1] if model else None
        emit.session(session=session, ts=started, harness="aider", version=version[1] if version else None, model=name)
        turn, is_model = 0, False
        for number, line in enumerate(lines):
            is_turn_line = bool(line.strip()) and not line.startswith(("> ", ">", "#### "))
            turn += is_turn_line and not is_model
            is_model = is_turn_line or (is_model and not line.strip())
            if line.startswith("> "):
                self._quoted(line[2:].strip(), session, turn, number, name, emit)

    def _quoted(self, line: str, session: str, turn: int, number: int, model: str | None, emit: Emit) -> None:
        call_id = f"{turn}.{number}"
        if line.startswith(APPLIED):
            path = line.removeprefix(APPLIED)
            emit.call(session=session, call_id=call_id, tool="edit", arguments={"path": path}, decision=str(turn))
            emit.result(session=session, call_id=call_id, text=line, is_error=False, source="text")
        elif line.startswith(RUNNING):
            command = line.removeprefix(RUNNING)
            emit.call(session=session, call_id=call_id, tool="run", arguments={"command": command}, decision=str(turn))
        usage = TOKENS.match(line)
        if usage is not None:
            cost = COST.search(line)
            emit.turn(
                session=session,
                decision=str(turn),
                model=model,
                tokens_input=count(usage[1]),
                tokens_output=count(usage[2]),
                cost_usd=float(cost[1]) if cost else None,
            )


def _first_turn(lines: list[str]) -> str:
    """The first lines of the model: neither quoted nor the user's."""
    said: list[str] = []
    for line in lines:
        if line.startswith((">", "####")):
            if said:
                break
        elif line.strip() or said:
            said.append(line.rstrip())
    return "\n".join(said).strip()


def count(text: str) -> int | None:
    """A number as Aider prints it: `1,234` or `4.1k`; None where it is none."""
    plain = text.replace(",", "")
    try:
        return round(float(plain.removesuffix("k")) * (1000 if plain.endswith("k") else 1))
    except ValueError:
        return None
