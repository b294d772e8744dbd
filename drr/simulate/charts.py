"""Figures of the report, as data of plotly: lines over time in panels side by side, and dots that compare.

Rules of this file: names are escaped where they become labels (`drr.simulate.page.label`); colours that
have to differ between light and dark are the page's (``report.js``), only those of series are set here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from drr.simulate.page import Figure, label
from drr.simulate.text import duration, shorten

PALETTE: Final = (
    "#4e8fd9",
    "#ef8536",
    "#3aa76d",
    "#d9534f",
    "#9b72cf",
    "#b5895b",
    "#e377b5",
    "#7aa52a",
    "#d4a81e",
    "#25a6b8",
)
"""Colours of series, told apart on white and on black."""
OTHERS_COLOUR: Final = "#8b95a3"
_DASHES: Final = ("solid", "dash", "dot", "dashdot")
_PANEL_HEIGHT: Final = 320
_ROW_HEIGHT: Final = 26
_SHORTEST: Final = 0.01
"""Seconds at which a shorter wait is drawn: a logarithm has no zero."""
_TICKS: Final[Mapping[float, str]] = {
    0.01: "10 ms",
    0.1: "100 ms",
    1.0: "1 s",
    10.0: "10 s",
    60.0: "1 min",
    600.0: "10 min",
    3600.0: "1 h",
    36000.0: "10 h",
    86400.0 * 4: "4 d",
    86400.0 * 40: "40 d",
}
_TIME_UNITS: Final = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))


@dataclass(frozen=True, slots=True)
class Line:
    """One series over time; ``y`` has ``None`` where there was nothing to measure."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines that share a plot."""

    title: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Dots:
    """One series of a comparison: a value for each row, or ``None``."""

    name: str
    colour: str
    values: Sequence[float | None]


_Trace: TypeAlias = Callable[[Line], dict[str, Any]]


def wait_lines(panels: Sequence[Panel]) -> Figure:
    """Draw waits in seconds over time, on one logarithmic scale for all panels."""
    values = [y for panel in panels for line in panel.lines for y in line.y]

    def trace(line: Line) -> dict[str, Any]:
        return {
            "y": [None if y is None else round(_drawn(y), 4) for y in line.y],
            "text": [duration(y) for y in line.y],
            "hovertemplate": "%{text}",
            "mode": "lines+markers",
            "marker": {"size": 3.5, "color": line.colour},
            "line": {"color": line.colour, "width": 1.8},
        }

    return _over_time(panels, trace, {"title": {"text": "mean wait (log scale)"}, **_duration_axis(values)})


def share_areas(panels: Sequence[Panel]) -> Figure:
    """Draw fractions of a whole over time, one upon the other."""

    def trace(line: Line) -> dict[str, Any]:
        return {
            "y": [round(y or 0.0, 5) for y in line.y],
            "hovertemplate": "%{y:.1%}",
            "mode": "lines",
            "stackgroup": "all",
            "fillcolor": line.colour + "c0",
            "line": {"color": line.colour, "width": 0.6},
        }

    axis = {"title": {"text": "share of worker-seconds"}, "tickformat": ".0%", "range": [0, 1.0]}
    return _over_time(panels, trace, axis)


def fraction_lines(panel: Panel, title: str) -> Figure:
    """Draw fractions (0..1) over time in one panel. Lines that fall together can be told apart by their dashes."""
    dashes = {line.name: _DASHES[index % len(_DASHES)] for index, line in enumerate(panel.lines)}

    def trace(line: Line) -> dict[str, Any]:
        return {
            "y": [None if y is None else round(y, 5) for y in line.y],
            "hovertemplate": "%{y:.1%}",
            "mode": "lines",
            "line": {"color": line.colour, "width": 1.8, "dash": dashes[line.name]},
        }

    axis = {"title": {"text": title}, "tickformat": ".0%", "range": [0, 1.05]}
    return _over_time([panel], trace, axis, height=260)


def wait_dots(rows: Sequence[str], series: Sequence[Dots]) -> Figure:
    """Draw one row for each name: a dot for each series at its wait, and a grey bar from the least to the most."""
    names = [label(shorten(name)) for name in rows]
    values = [value for dots in series for value in dots.values]
    places = list(range(len(rows)))
    spans = [[v for dots in series if (v := dots.values[row]) is not None] for row in places]
    bar: dict[str, Any] = {
        "type": "scatter",
        "x": [x for span in spans for x in ((_drawn(min(span)), _drawn(max(span)), None) if span else ())],
        "y": [y for row, span in zip(places, spans, strict=True) for y in ((row, row, None) if span else ())],
        "mode": "lines",
        "line": {"color": OTHERS_COLOUR, "width": 2},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    dots = [
        {
            "type": "scatter",
            "name": label(dots.name),
            "x": [None if value is None else _drawn(value) for value in dots.values],
            "y": places,
            "customdata": [[label(name), duration(value)] for name, value in zip(rows, dots.values, strict=True)],
            "hovertemplate": "%{customdata[0]}: %{customdata[1]}<extra>%{fullData.name}</extra>",
            "mode": "markers",
            "marker": {"size": 11, "color": dots.colour, "line": {"width": 1, "color": "rgba(127,127,127,0.6)"}},
        }
        for dots in series
    ]
    layout = {
        "height": 136 + _ROW_HEIGHT * max(4, len(rows)),
        "margin": {"l": 8, "r": 16, "t": 60, "b": 48},
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        "hovermode": "closest",
        "xaxis": {"title": {"text": "p99 wait (log scale)"}, **_duration_axis(values)},
        "yaxis": {
            "tickvals": places,
            "ticktext": names,
            "range": [len(rows) - 0.4, -0.6],
            "automargin": True,
            "zeroline": False,
            "ticks": "",
        },
    }
    return {"data": [bar, *dots], "layout": layout}


def _drawn(wait: float) -> float:
    return max(wait, _SHORTEST)


def _duration_axis(values: Iterable[float | None]) -> dict[str, Any]:
    """Return a logarithmic axis whose marks are durations, and that has room for ``values`` in seconds."""
    drawn = [_drawn(value) for value in values if value is not None] or [1.0]
    low, high = math.log10(min(drawn)), math.log10(max(drawn))
    margin = 0.05 * max(1.0, high - low)
    return {
        "type": "log",
        "range": [low - margin, max(high, low + 1.0) + margin],
        "tickvals": list(_TICKS),
        "ticktext": list(_TICKS.values()),
        "automargin": True,
        "zeroline": False,
    }


def _over_time(
    panels: Sequence[Panel], trace: _Trace, axis: dict[str, Any], *, height: int = _PANEL_HEIGHT
) -> Figure:
    """Lay panels out in one or two columns, with one scale of time, one of values, and one legend."""
    longest = max((x for panel in panels for line in panel.lines for x in line.x), default=0.0)
    second, unit = next(((size, name) for least, size, name in _TIME_UNITS if longest >= least), (1.0, "seconds"))
    columns = min(2, len(panels)) or 1
    rows = math.ceil(len(panels) / columns)
    layout: dict[str, Any] = {
        "height": height * rows + 40,
        "margin": {"l": 8, "r": 8, "t": 34, "b": 48},
        "hovermode": "x unified",
        "legend": {"traceorder": "normal", "font": {"size": 12}, "itemsizing": "constant"},
        "annotations": [],
    }
    data = []
    listed: set[str] = set()
    for index, panel in enumerate(panels):
        number = "" if index == 0 else str(index + 1)
        row, column = divmod(index, columns)
        x_domain, y_domain = _domain(column, columns, 0.07), _domain(rows - 1 - row, rows, 0.12)
        lowest = index + columns >= len(panels)
        x_axis = {"domain": x_domain, "anchor": f"y{number}", "range": [0, longest / second or 1], "zeroline": False}
        y_axis = {"domain": y_domain, "anchor": f"x{number}", "automargin": True, **axis}
        if lowest:
            x_axis["title"] = {"text": f"time of the trace ({unit})"}
        if column > 0:
            del y_axis["title"]
        if number:
            x_axis["matches"], y_axis["matches"] = "x", "y"
        layout[f"xaxis{number}"], layout[f"yaxis{number}"] = x_axis, y_axis
        if len(panels) > 1:
            layout["annotations"].append(_heading(panel.title, x_domain[0], y_domain[1]))
        for line in panel.lines:
            data.append({**_series(line, number, second, first=line.name not in listed), **trace(line)})
            listed.add(line.name)
    return {"data": data, "layout": layout}


def _series(line: Line, number: str, second: float, *, first: bool) -> dict[str, Any]:
    """Return what all lines have in common; the ``first`` of a name is in the legend, and switches all of them."""
    return {
        "type": "scatter",
        "name": label(shorten(line.name)),
        "legendgroup": label(line.name),
        "showlegend": first,
        "x": [round(x / second, 6) for x in line.x],
        "xaxis": f"x{number}",
        "yaxis": f"y{number}",
        "connectgaps": False,
    }


def _heading(text: str, x: float, y: float) -> dict[str, Any]:
    return {
        "text": f"<b>{label(shorten(text, 48))}</b>",
        "x": x,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
    }


def _domain(index: int, number: int, gap: float) -> list[float]:
    """Return where the ``index``-th of ``number`` plots begins and ends along an axis of length 1."""
    size = (1.0 - gap * (number - 1)) / number
    start = index * (size + gap)
    return [round(start, 6), round(min(1.0, start + size), 6)]
