"""The picture of the demo's report: mean delay of each carrier, and the routes that are worst."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from examples.demo.flights import airlines
from examples.demo.totals import Delays, Row, together

#: Routes that are shown.
MOST: Final = 15
#: A route is shown if it has this share of all flights: the mean of a few says little.
ENOUGH: Final = 0.001

_LEAVING, _LANDING, _GREY = "#9db4c9", "#c8553d", "#555555"
_HALF: Final = 0.4


def draw(report: Sequence[Row], path: Path) -> None:
    """Draw a report as PNG; raises `OSError` if it cannot be written."""
    layout = ConstrainedLayoutEngine(w_pad=0.2, h_pad=0.15, wspace=0.06)
    figure = Figure(figsize=(15, 7.5), dpi=120, layout=layout)
    FigureCanvasAgg(figure)
    carriers, routes = figure.subplots(1, 2)
    total = sum(row.flights for row in report)
    figure.suptitle(f"{total:,} flights from New York in 2013: how late they were", fontsize=16)
    _draw_carriers(carriers, report)
    _draw_routes(routes, worst(report), at_least=round(total * ENOUGH))
    figure.savefig(path)


def worst(report: Sequence[Row]) -> list[tuple[str, Delays]]:
    """The routes, whatever the carrier, with the highest mean delay at arrival; the worst one first."""
    enough = round(sum(row.flights for row in report) * ENOUGH)
    found = together(report, lambda row: row.route).items()
    many = [(route, delays) for route, delays in found if delays.flights >= enough and delays.arrived]
    return sorted(many, key=lambda pair: pair[1].arrival_delay or 0.0, reverse=True)[:MOST]


def _draw_carriers(axes: Axes, report: Sequence[Row]) -> None:
    names = airlines()
    found = sorted(
        together(report, lambda row: row.carrier).items(), key=lambda pair: pair[1].arrival_delay or 0.0
    )
    for number, (_, delays) in enumerate(found):
        for shift, color, delay in (
            (_HALF / 2, _LEAVING, delays.departure_delay),
            (-_HALF / 2, _LANDING, delays.arrival_delay),
        ):
            axes.barh(number + shift, delay or 0.0, height=_HALF, color=color)
    axes.set_yticks(
        range(len(found)),
        [
            f"{names.get(carrier, carrier).removesuffix(' Inc.')} ({delays.flights:,})"
            for carrier, delays in found
        ],
    )
    axes.axvline(0, color=_GREY, linewidth=0.8)
    _finish(axes, "By carrier (number of flights)", "mean delay, minutes; left of 0: early")
    leaving, landing = axes.patches[:2]
    axes.legend([leaving, landing], ["at departure", "at arrival"], frameon=False, loc="lower right")


def _draw_routes(axes: Axes, routes: Sequence[tuple[str, Delays]], *, at_least: int) -> None:
    shown = list(reversed(routes))
    bars = axes.barh(
        [f"{route} ({delays.flights:,})" for route, delays in shown],
        [delays.arrival_delay or 0.0 for _, delays in shown],
        height=2 * _HALF,
        color=_LANDING,
    )
    axes.bar_label(bars, fmt="%.1f", padding=4, color=_GREY)
    axes.margins(x=0.08)
    title = f"The {len(shown)} worst routes with at least {at_least:,} flights"
    _finish(axes, title, "mean delay at arrival, minutes")


def _finish(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, pad=8)
    axes.margins(y=0.02)
    axes.set_xlabel(label)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
