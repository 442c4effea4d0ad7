"""What a model turn costs: list prices by a kept library, or the user's own, where the log states no cost.

A room of its own because a price is knowledge from outside that changes with the version of a library: that version is
part of what the derived tables depend on (`Settings.derived_digest`). The prices come with the installed library;
nothing is looked up over a network and its updater is never started. The library counts cache reads and writes among
the input tokens, while a turn's `tokens_input` excludes them, so that the three are added up where its tiers ask for
the whole input. A model that is not known costs null, never 0. Pure functions of frames; no clock, no disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from loopstats.config import Rates
from loopstats.tables import STR
from loopstats.waste import TOKENS, tokens_of_turn

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

PER_MILLION = 1_000_000
MOST_TOKENS = 10**9
"""More tokens of one sort in one turn are no usage (and would not fit the sums): such a turn has no price."""
MOST_RATE = 10**9

_FREE_OF_TIME, _BY_DAY, _BY_MINUTE = "", "1d", "1m"
_SORTS = ("rate_input", "rate_output", "rate_cache_read", "rate_cache_write")
_TARIFF = {
    "model": STR,
    "slot": pl.Datetime("us", "UTC"),
    "total_input": pl.Int64(),
    **dict.fromkeys(_SORTS, pl.Int64()),
    "fee": pl.Int64(),
}


class Tier(NamedTuple):
    """Rates of a turn whose whole input is at least `from_input` tokens.

    Rates in micro-dollars per million tokens; `fee` for the request itself in millionths of a micro-dollar.
    """

    from_input: int
    rates: Rates
    fee: int = 0


def priced(turns: pl.DataFrame, own: Mapping[str, Rates]) -> pl.DataFrame:
    """`turns` (TURNS), in the same order, with `cost_micros` where a price is known; a logged cost stays as it is.

    `own`: the user's prices by the model's name as logged; they stand before the library's. A turn has a price if its
    model, its input and its output are known (a cache count that the log lacks is none), and its time where the price
    of the model changed with time. The cost is exact to half a micro-dollar.
    """
    counted = pl.all_horizontal([pl.col(name).fill_null(0) <= MOST_TOKENS for name in TOKENS])
    asked = (
        turns.with_row_index("row")
        .filter(
            pl.col("cost_micros").is_null()
            & pl.col("model").is_not_null()
            & pl.col("tokens_input").is_not_null()
            & pl.col("tokens_output").is_not_null()
            & counted
        )
        .select("row", "model", "ts", *[pl.col(name).fill_null(0) for name in TOKENS])
    )
    if not asked.height:
        return turns
    names = asked["model"].unique().sort().to_list()
    quotes = {name: quote for name in names if (quote := _quote(name, own)) is not None}
    if not quotes:
        return turns
    steps = pl.DataFrame(
        [(name, quote.step) for name, quote in quotes.items()], schema={"model": STR, "step": STR}, orient="row"
    )
    placed = (
        asked.join(steps, on="model", how="inner")
        .with_columns(
            _slot(),
            pl.sum_horizontal("tokens_input", "tokens_cache_read", "tokens_cache_write").alias("total_input"),
        )
        .filter(pl.col("slot").is_not_null())
        .sort("total_input", "row")
    )
    slots = placed.select("model", "slot").unique().sort("model", "slot")
    tariff = pl.DataFrame(
        [line for name, slot in slots.iter_rows() for line in _lines(name, slot, quotes[name])],
        schema=_TARIFF,
        orient="row",
    )
    costs = (
        placed.join_asof(
            tariff.sort("total_input"),
            on="total_input",
            by=["model", "slot"],
            strategy="backward",
            check_sortedness=False,
        )
        .with_columns(_cost())
        .select("row", "listed")
    )
    return (
        turns.with_row_index("row")
        .join(costs, on="row", how="left", maintain_order="left")
        .with_columns(pl.coalesce("cost_micros", "listed").alias("cost_micros"))
        .drop("row", "listed")
    )


def coverage(turns: pl.DataFrame) -> tuple[int, int]:
    """How many of the turns (TURNS) whose log tells tokens have a cost, and how many there are."""
    told = turns.filter(tokens_of_turn().is_not_null())
    return told.height - told["cost_micros"].null_count(), told.height


def _slot() -> pl.Expr:
    """The beginning of the span of time in which a model's price stands; 1970 where it never changed."""
    return (
        pl.when(pl.col("step") == _BY_MINUTE)
        .then(pl.col("ts").dt.truncate(_BY_MINUTE))
        .when(pl.col("step") == _BY_DAY)
        .then(pl.col("ts").dt.truncate(_BY_DAY))
        .otherwise(pl.from_epoch(pl.lit(0, dtype=pl.Int64), "us").dt.replace_time_zone("UTC"))
        .alias("slot")
    )


def _cost() -> pl.Expr:
    """Micro-dollars in whole numbers, a half rounded up; null where a sort of token that was used has no rate."""
    parts = [
        pl.when(pl.col(count) > 0).then(pl.col(count) * pl.col(rate)).otherwise(0)
        for count, rate in zip(TOKENS, _SORTS, strict=True)
    ]
    total = pl.col("fee") + parts[0] + parts[1] + parts[2] + parts[3]
    return ((total + PER_MILLION // 2) // PER_MILLION).alias("listed")


def _lines(name: str, slot: datetime, quote: _Quote) -> Iterator[tuple[Any, ...]]:
    for tier in quote.at(slot):
        yield (name, slot, tier.from_input, *tier.rates, tier.fee)


class _Quote:
    """The tariff of one model: the user's rates, or what the library says of a time."""

    def __init__(self, own: Rates | None, model: ModelInfo | None) -> None:
        self._own = own
        self._model = model
        self._known: dict[int, tuple[Tier, ...]] = {}
        self.step = _FREE_OF_TIME if model is None else _step(model)

    def at(self, moment: datetime) -> tuple[Tier, ...]:
        """Tiers by their beginning."""
        if self._model is None:
            return () if self._own is None else (Tier(0, self._own),)
        price = self._model.get_prices(moment)
        if id(price) not in self._known:
            self._known[id(price)] = tiers_of(price)
        return self._known[id(price)]


def _quote(name: str, own: Mapping[str, Rates]) -> _Quote | None:
    if name in own:
        return _Quote(own[name], None)
    model = _model(name)
    return None if model is None else _Quote(None, model)


def _step(model: ModelInfo) -> str:
    from genai_prices.types import TimeOfDateConstraint

    if not isinstance(model.prices, list):
        return _FREE_OF_TIME
    is_by_clock = any(isinstance(price.constraint, TimeOfDateConstraint) for price in model.prices)
    return _BY_MINUTE if is_by_clock else _BY_DAY


@lru_cache(4096)
def _model(name: str) -> ModelInfo | None:
    """The library's model for a name as logged; a name with a slash may begin with the provider's."""
    from genai_prices import Usage, calc_price

    # The prefix is taken for a provider's name only where the library is told of a router.
    router = "litellm" if "/" in name else None
    try:
        return calc_price(Usage(), name, provider_id=router, genai_request_timestamp=_ANY).model
    except (LookupError, ValueError):
        return None


_ANY = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


def tiers_of(price: ModelPrice) -> tuple[Tier, ...]:
    """The library's prices (dollars per million tokens) as tiers.

    As the library has it: a tier holds for all tokens of a request whose whole input is above its start, and cached
    tokens without a price of their own cost what other input costs.
    """
    from genai_prices.types import TieredPrices

    named = [getattr(price, key) for key in ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")]
    starts = {tier.start for value in named if isinstance(value, TieredPrices) for tier in value.tiers}
    tiers = []
    for from_input in sorted({0} | {start + 1 for start in starts}):
        input_, output, read, write = (_rate(value, from_input) for value in named)
        rates = Rates(input_, output, input_ if read is None else read, input_ if write is None else write)
        tiers.append(Tier(from_input, rates, (_rate(price.requests_kcount, from_input) or 0) * 1000))
    return tuple(tiers)


def _rate(value: Any, from_input: int) -> int | None:
    """Micro-dollars per million (tokens) of a price in dollars that may have tiers; null where it is out of reason."""
    if value is None:
        return None
    dollars = value
    if hasattr(value, "tiers"):
        dollars = value.base
        for tier in value.tiers:
            if from_input > tier.start:
                dollars = tier.price
    micros = round(dollars * PER_MILLION)
    return micros if micros <= MOST_RATE else None
