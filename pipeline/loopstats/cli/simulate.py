"""`simulate`: the lake's loops under other salts, logs with a planted lift, power."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopstats.cli.base import (
    AsOf,
    Format,
    Globals,
    Json,
    Output,
    app,
    make_answer,
    make_envelope,
    make_interval,
    progress_bar,
    write_static,
)

if TYPE_CHECKING:
    pass


POWER_COLUMNS = (
    "n",
    "power_fixed",
    "power_anytime",
    "mde_fixed",
    "mde_anytime",
    "n_needed_fixed",
    "n_needed_anytime",
    "nights_to_n_star",
    "nights",
    "method",
    "n_treated",
    "n_holdout",
)

simulate_app = typer.Typer(
    help="Simulate chance, a planted lift, or power.\n\n"
    "On the lake's own loops under other salts, or on logs made with a known truth.",
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(simulate_app, name="simulate")

Seed = Annotated[int, typer.Option("--seed", metavar="S", help="Same seed, same bytes.")]
ShareBp = Annotated[int, typer.Option("--share-bp", metavar="BP", help="Treated share in basis points.")]
NStar = Annotated[int, typer.Option("--n-star", metavar="N", help="Planned total of the experiment.")]
Base = Annotated[float, typer.Option("--base", metavar="P", help="Break rate of the holdout.")]
Effect = Annotated[float, typer.Option("--lift", metavar="D", help="What the intervention adds to it.")]


@simulate_app.command("aa")
def simulate_aa(
    context: typer.Context,
    salts: Annotated[int, typer.Option("--salts", metavar="N", min=1, help="How many salts.")] = 1000,
    seed: Seed = 1,
    share_bp: Annotated[
        int, typer.Option("--share-bp", metavar="BP", min=1, max=9999, help="Treated share in basis points.")
    ] = 5000,
    n_star: Annotated[int, typer.Option("--n-star", metavar="N", min=10, help="Planned total.")] = 200,
    as_of: AsOf = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Assign the lake's own loops anew by other salts.

    Nothing was delivered by them, so that every verdict is a false one.
    """
    answer = make_answer(context, format_, json, output)
    interval = make_interval(context, None, None, as_of)
    given: Globals = context.obj
    snapshot = given.snapshot()
    from loopstats import simulate

    with progress_bar(given) as progress:
        frame = simulate.aa(
            snapshot.read("loops"),
            salts=salts,
            seed=seed,
            as_of_us=interval.as_of_us,
            share_bp=share_bp,
            n_star=n_star,
            progress=progress,
        )
    answer.rows(frame, make_envelope(answer, "simulate_aa", interval, given.settings()), answer.layout())


@simulate_app.command("planted")
def simulate_planted(
    context: typer.Context,
    lift: Effect = 0.15,
    base: Base = 0.4,
    loops: Annotated[int, typer.Option("--loops", metavar="N", help="How many loops.")] = 400,
    loops_per_session: Annotated[int, typer.Option("--loops-per-session", metavar="N", help="Of one session.")] = 3,
    seed: Seed = 1,
    share_bp: ShareBp = 5000,
    icc: Annotated[float, typer.Option("--icc", metavar="R", help="Correlation of loops of one session.")] = 0.0,
    attrition: Annotated[
        float, typer.Option("--attrition", metavar="P", help="Share of recurring loops whose session ends instead.")
    ] = 0.0,
    attrition_treated: Annotated[
        float | None, typer.Option("--attrition-treated", metavar="P", help="The same for treated loops, if different.")
    ] = None,
    noncompliance: Annotated[
        float, typer.Option("--noncompliance", metavar="P", help="Share of treated loops without a delivery.")
    ] = 0.0,
    interference: Annotated[
        float, typer.Option("--interference", metavar="P", help="Share of the lift that reaches later loops.")
    ] = 0.0,
    late: Annotated[float, typer.Option("--late", metavar="P", help="Share of breaks that come after maturity.")] = 0.0,
    maturity: Annotated[float, typer.Option("--maturity", metavar="HOURS", help="Maturity time.")] = 24.0,
    nights: Annotated[int, typer.Option("--nights", metavar="N", help="Over how many nights.")] = 30,
    n_star: NStar = 200,
    folder: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Keep logs, truth.json and settings here.")
    ] = None,
    format_: Format = None,
    json: Json = False,
) -> None:
    """Hold the estimate against a known truth.

    Writes logs with a planted lift and runs the whole line on them.
    """
    from loopstats import simulate
    from loopstats.when import Interval

    answer = make_answer(context, format_, json, None)
    world = simulate.World(
        seed=seed,
        lift=lift,
        base=base,
        loops=loops,
        loops_per_session=loops_per_session,
        share_bp=share_bp,
        icc=icc,
        attrition=attrition,
        attrition_treated=attrition if attrition_treated is None else attrition_treated,
        noncompliance=noncompliance,
        interference=interference,
        late=late,
        maturity_hours=maturity,
        nights=nights,
        n_star=n_star,
    )
    frame = simulate.planted(world, folder)[1]
    interval = Interval(world.as_of_us, None, None, "UTC")
    answer.rows(frame, make_envelope(answer, "simulate_planted", interval, world.settings), answer.layout())
    if folder is not None:
        answer.context.note(f"logs in {folder / simulate.LOGS}, truth in {folder / simulate.TRUTH}")


@simulate_app.command("power")
def simulate_power(
    context: typer.Context,
    sizes: Annotated[
        list[int] | None, typer.Option("--n", metavar="N", min=2, help="Loops of both arms together (repeatable).")
    ] = None,
    base: Base = 0.4,
    lift: Effect = 0.15,
    share_bp: ShareBp = 5000,
    n_star: NStar = 200,
    deff: Annotated[float, typer.Option("--deff", metavar="X", help="Design effect of the sessions.")] = 1.0,
    loops_per_night: Annotated[
        float | None, typer.Option("--loops-per-night", metavar="X", help="Pace, for the nights it takes.")
    ] = None,
    format_: Format = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Say what a number of loops can show.

    Power, smallest lift found, loops and nights needed.
    """
    answer = make_answer(context, format_, json, output)
    from loopstats import simulate

    frame = simulate.power(
        sizes or [100, 200, 400, 800],
        base=base,
        lift=lift,
        share_bp=share_bp,
        n_star=n_star,
        deff=deff,
        loops_per_night=loops_per_night,
    )
    write_static(answer, "simulate_power", frame, POWER_COLUMNS)
