"""Prices of turns: against the library's own sum for every model it knows, the user's own prices, and what stays unknown.

The library is asked for whole requests here (`calc_price`), while the package takes its rates and adds up itself: two
ways to one sum. Figures of single prices are worked out by hand from the list prices in the comments.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from genai_prices import Usage
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from lines import ingest, tables_of
from loopstats import config, prices
from loopstats.config import Rates, Settings
from loopstats.errors import UsageError
from loopstats.tables import TURNS
from small_lake import frame_of

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
SONNET = "claude-sonnet-4-5-20250929"


def turns(*rows: dict[str, Any]) -> pl.DataFrame:
    """Turns of one run; the model and the time unless told otherwise are `SONNET` at `NOON`."""
    base = {"session_id": "s", "run_id": "s", "model": SONNET, "ts": NOON, "tokens_input": 0, "tokens_output": 0}
    return frame_of(TURNS, [base | {"decision": number} | row for number, row in enumerate(rows)])


def costs(*rows: dict[str, Any], own: dict[str, Rates] | None = None) -> list[int | None]:
    """`cost_micros` of such turns."""
    return prices.priced(turns(*rows), own or {})["cost_micros"].to_list()


def test_cache_reads_and_writes_are_beside_the_input() -> None:
    # $3 input, $0.30 cache read, $3.75 cache write, $15 output, per million tokens
    counts = {"tokens_input": 1000, "tokens_cache_read": 5000, "tokens_cache_write": 2000, "tokens_output": 300}
    assert costs(counts) == [3000 + 1500 + 7500 + 4500]
    assert costs({"tokens_input": 1000, "tokens_output": 300}) == [3000 + 4500]


def test_cached_tokens_count_for_the_tier() -> None:
    # above 200 000 input tokens, cached ones among them: $6 input, $0.60 cache read, $22.50 output
    below = {"tokens_input": 100, "tokens_cache_read": 199_900, "tokens_output": 10}
    above = below | {"tokens_cache_read": 199_901}
    assert costs(below, above) == [300 + 59_970 + 150, round(600 + 119_940.6 + 225)]


def test_a_model_without_a_price_for_cache_writes_takes_them_as_input() -> None:
    # gpt-5: $1.25 input, $0.125 cached input, $10 output
    counts = {"model": "gpt-5-codex", "tokens_input": 800, "tokens_cache_write": 200, "tokens_cache_read": 8000}
    assert costs(counts | {"tokens_output": 100}) == [1250 + 1000 + 1000]


@pytest.mark.parametrize(
    "row",
    [
        {"model": "m-large"},
        {"model": "<synthetic>"},
        {"model": ""},
        {"model": None},
        {"tokens_input": None},
        {"tokens_output": None},
        {"tokens_input": prices.MOST_TOKENS + 1},
        {"model": "deepseek-chat", "ts": None},
    ],
)
def test_what_is_not_known_is_null(row: dict[str, Any]) -> None:
    assert costs({"tokens_input": 5, "tokens_output": 5} | row) == [None]


def test_nothing_used_costs_nothing_and_a_logged_cost_wins() -> None:
    assert costs({}, {"cost_micros": 7, "tokens_input": 10**6}, {"cost_micros": 0, "tokens_input": 10**6}) == [0, 7, 0]


def test_the_price_is_that_of_the_turns_time() -> None:
    cheap = next(
        (provider, model)
        for provider in get_snapshot().providers
        for model in provider.models
        if provider.id == "deepseek" and model.id == "deepseek-chat"
    )
    moments = [datetime(2025, 6, 1, tzinfo=UTC) + timedelta(days=50 * day, minutes=97 * day) for day in range(12)]
    row = {"model": "deepseek-chat", "tokens_input": 10**6, "tokens_output": 10**6}
    expected = [
        round(
            cheap[1]
            .calc_price(Usage(input_tokens=10**6, output_tokens=10**6), cheap[0], genai_request_timestamp=at)
            .total_price
            * 10**6
        )
        for at in moments
    ]
    assert len(set(expected)) > 1
    assert costs(*[row | {"ts": at} for at in moments]) == expected


def known_models() -> list[tuple[str, Any, Any]]:
    """Names under which the package finds a model of the library, with that model and its provider."""
    found = []
    for provider in get_snapshot().providers:
        for model in provider.models:
            name = f"{provider.id}/{model.id}"
            if prices._model(name) is model and not _is_of_other_units(model):
                found.append((name, provider, model))
    return found


def _is_of_other_units(model: Any) -> bool:
    """Models without a price for text that comes out have none here, where the library says 0."""
    listed = [price.prices for price in model.prices] if isinstance(model.prices, list) else [model.prices]
    return any(price.input_mtok is None or price.output_mtok is None for price in listed)


KNOWN = known_models()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(0, 1000),
    st.integers(0, 60 * 24 - 1),
)
def test_every_model_costs_what_the_library_says(
    fresh: int, written: int, read: int, out: int, day: int, minute: int
) -> None:
    at = datetime(2024, 6, 1, tzinfo=UTC) + timedelta(days=day, minutes=minute)
    chosen = KNOWN[(fresh * 7 + read * 13 + day) % 41 :: 41]
    row = {
        "tokens_input": fresh,
        "tokens_output": out,
        "tokens_cache_read": read,
        "tokens_cache_write": written,
        "ts": at,
    }
    usage = Usage(
        input_tokens=fresh + read + written, cache_read_tokens=read, cache_write_tokens=written, output_tokens=out
    )
    found = costs(*[row | {"model": name} for name, _, _ in chosen])
    for (name, provider, model), cost in zip(chosen, found, strict=True):
        whole = model.calc_price(usage, provider, genai_request_timestamp=at).total_price * 10**6
        # A few list prices have more than six decimals: a third of a cent, say.
        assert cost is not None and abs(cost - whole) <= 1 + 4e-7 * (fresh + read + written + out), name


def test_most_models_of_the_library_are_compared() -> None:
    assert len(KNOWN) > 500
    assert {"anthropic", "openai", "google", "deepseek", "openrouter"} <= {provider.id for _, provider, _ in KNOWN}


def test_own_prices_stand_before_the_librarys() -> None:
    own = {SONNET: Rates(1_000_000, 2_000_000, 0, 500_000), "m-large": Rates(250_000, 0, 0, 0)}
    counts = {"tokens_input": 10, "tokens_output": 10, "tokens_cache_read": 10, "tokens_cache_write": 10}
    assert costs(counts, counts | {"model": "m-large"}, counts | {"model": "m-large", "ts": None}, own=own) == [
        35,
        3,
        3,
    ]


def test_order_and_other_columns_stay() -> None:
    frame = turns(*[{"model": name, "tokens_input": 9} for name in ("m-large", SONNET, "gpt-5", SONNET, "nobody")])
    found = prices.priced(frame, {})
    assert found.schema == frame.schema
    assert found.drop("cost_micros").equals(frame.drop("cost_micros"))
    assert found["cost_micros"].to_list() == [None, 27, 11, 27, None]
    assert prices.coverage(found) == (3, 5)
    assert prices.priced(frame.clear(), {}).equals(frame.clear())


def test_turns_without_tokens_are_outside_the_coverage() -> None:
    frame = turns({"cost_micros": 5, "tokens_input": None, "tokens_output": None}, {"tokens_input": 3})
    assert prices.coverage(prices.priced(frame, {})) == (1, 1)


def read(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "loopstats.toml"
    path.write_text(text, encoding="utf-8")
    return config.load(path)


def test_prices_of_the_configuration(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        '[prices."m-large"]\ninput = 3\noutput = 15.5\ncache_read = 0.3\n[prices.x]\ninput = 0\noutput = 0.000001\n',
    )
    assert found.prices == {
        "m-large": Rates(3_000_000, 15_500_000, 300_000, 3_000_000),
        "x": Rates(0, 1, 0, 0),
    }


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("prices = 3", "prices:"),
        ("[prices]\nm = 3", "prices.m:"),
        ('[prices."a.b"]\ninput = 1\noutput = 1\ninputs = 2', 'prices."a.b".inputs:'),
        ("[prices.m]\ninput = 1", "prices.m.output:"),
        ("[prices.m]\noutput = 1", "prices.m.input:"),
        ("[prices.m]\ninput = -1\noutput = 1", "prices.m.input:"),
        ("[prices.m]\ninput = true\noutput = 1", "prices.m.input:"),
        ('[prices.m]\ninput = "1"\noutput = 1', "prices.m.input:"),
        ("[prices.m]\ninput = 1\noutput = nan", "prices.m.output:"),
        ("[prices.m]\ninput = 1\noutput = inf", "prices.m.output:"),
        ("[prices.m]\ninput = 1\noutput = 1001", "prices.m.output:"),
        ("[prices.m]\ninput = 1\noutput = 1\ncache_read = 0.0000001", "prices.m.cache_read:"),
    ],
)
def test_errors_name_the_key(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, text)
    assert f": {key}" in str(error.value)


def test_prices_are_part_of_what_the_tables_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Settings().derived_digest
    assert Settings(prices={"m": Rates(1, 1, 1, 1)}).derived_digest != plain
    monkeypatch.setattr(config, "version", lambda name: f"another {name}")
    assert Settings().derived_digest != plain
    assert Settings().rule_digest == Settings(prices={"m": Rates(1, 1, 1, 1)}).rule_digest


def log(tmp_path: Path) -> Path:
    """Two turns of one session: one of a model in the library, one of a model that only the user can price."""
    lines = [
        {
            "v": 1,
            "type": "step",
            "session": "s",
            "id": f"e{number}",
            "ts": "2026-03-02T12:00:00Z",
            "tool": "Edit",
            "target": "a",
            "outcome": "success",
            "decision": f"d{number}",
            "model": model,
            "tokens": {"input": 100, "output": 10},
        }
        for number, model in enumerate([SONNET, "m-large"])
    ]
    path = tmp_path / "logs" / "log.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_new_price_reaches_old_turns(tmp_path: Path) -> None:
    path = log(tmp_path)
    summary = ingest(tmp_path / "lake", path, settings=Settings())
    assert (summary["turns_priced"], summary["turns_told"]) == (1, 2)
    assert tables_of(tmp_path / "lake")["turns"]["cost_micros"].to_list() == [450, None]
    again = Settings(prices={"m-large": Rates(10_000_000, 0, 0, 0)})
    summary = ingest(tmp_path / "lake", path, settings=again)
    assert (summary["files_same"], summary["turns_priced"], summary["turns_told"]) == (1, 2, 2)
    assert tables_of(tmp_path / "lake")["turns"]["cost_micros"].to_list() == [450, 1000]
    summary = ingest(tmp_path / "lake", path, settings=again)
    assert (summary["turns_priced"], summary["turns_told"]) == (2, 2)


def test_the_summary_says_how_many_turns_have_a_price(tmp_path: Path) -> None:
    path = log(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "loopstats.cli", "--lake", str(tmp_path / "lake"), "ingest", str(path)],
        capture_output=True,
        check=True,
        text=True,
    )
    assert "price known for 1 of 2 turns with tokens" in done.stdout + done.stderr


def test_nothing_is_looked_up_over_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    prices._model.cache_clear()
    assert costs({"tokens_input": 100}, {"tokens_input": 100, "model": "no-such-model"}) == [300, None]
