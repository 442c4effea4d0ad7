"""Aider's Markdown: chats, edits, commands and usage by their fixed sentences."""

from __future__ import annotations

import pytest

from emitting import feed_document, head_of
from loopstats.formats.aider import Aider, count

LOG = """
# aider chat started at 2025-01-02 03:04:05

> Aider v0.86.1
> Main model: some/model with diff edit format

# aider chat started at 2025-01-02 04:00:00

> Aider v0.86.1
> Main model: some/model with diff edit format

#### mend the total

I will change the sum.

> Tokens: 4.1k sent, 1,234 received. Cost: $0.25 message, $0.25 session.
> Applied edit to shop/total.py
> Applied edit to shop/tax.py
> Running pytest -q

#### thanks

You are welcome.

> Tokens: 5k sent, 1k cache hit, 9 received.
"""


def test_edits_commands_and_usage() -> None:
    fed = feed_document(Aider(), LOG.encode())
    assert fed.outcomes() == [("edit", "success", None), ("edit", "success", None), ("run", "unknown", "missing")]
    assert [row["target"] for row in fed.calls[:2]] == ["shop/total.py", "shop/tax.py"]
    assert {row["decision_key"] for row in fed.calls} == {"1"}
    assert [
        (row["decision_key"], row["tokens_input"], row["tokens_output"], row["cost_micros"]) for row in fed.rows["turn"]
    ] == [
        ("1", 4100, 1234, 250_000),
        ("2", 5000, 9, None),
    ]
    (session,) = fed.rows["session"]
    assert (session["version"], session["model"]) == ("v0.86.1", "some/model")
    assert session["session_id"].startswith("aider~")
    assert fed.nothing == {"chat without a model turn": 1}


def test_a_chat_keeps_its_records_when_the_file_grows() -> None:
    grown = LOG + "\n# aider chat started at 2025-01-03 00:00:00\n\nHello.\n\n> Applied edit to a.py\n"
    before, after = feed_document(Aider(), LOG.encode()), feed_document(Aider(), grown.encode())
    assert {row["uid"] for row in before.calls} < {row["uid"] for row in after.calls}


@pytest.mark.parametrize(
    ("text", "expected"), [("63", 63), ("4.1k", 4100), ("1,234", 1234), (".", None), ("1.2.3", None)]
)
def test_counts(text: str, expected: int | None) -> None:
    assert count(text) == expected


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\x00", b"# aider chat started at 2025-01-02 03:04:05\n" * 200, b"> " * 10_000]
)
def test_hostile_bytes_give_nothing(data: bytes) -> None:
    fed = feed_document(Aider(), data)
    assert fed.calls == [] and fed.rejects == []


def test_recognised_by_content_and_experimental() -> None:
    assert Aider().matches(head_of(LOG)) > 0
    assert Aider().matches(head_of("I read that an aider chat started at 2025-01-02 03:04:05.")) == 0
    assert Aider.is_experimental
