"""One HTML page with charts that carries all it needs: no other script runs in it, and it loads nothing.

Rules of this file: whatever text comes in is anybody's. It is escaped here, once, where it goes into HTML or into
the data of the script; only labels within figures, in which the charting library reads some HTML, are escaped by
`label` where the figure is made.
"""

from __future__ import annotations

import importlib.util
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, Final, TypeAlias

from drr.errors import ReportUnavailable

Figure: TypeAlias = dict[str, Any]
"""A figure of plotly: ``data`` and ``layout``."""

_LIBRARY: Final = "plotly"


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with its heading and what it shows, in a sentence."""

    title: str
    note: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table; ``mood`` is ``"better"``, ``"worse"`` or empty."""

    text: str
    mood: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """A table with its heading. The first column is text, the others are numbers."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]


Part: TypeAlias = Chart | Listing


def check_library() -> None:
    """Raise `ReportUnavailable` if the charting library is not installed; to be called before hours of work."""
    if importlib.util.find_spec(_LIBRARY) is None:
        raise ReportUnavailable(_LIBRARY)


def label(text: str) -> str:
    """Return ``text`` as a figure's label that shows it as it is."""
    return escape(text, quote=False)


def render(title: str, facts: Sequence[tuple[str, str]], parts: Sequence[Part]) -> str:
    """Return the page. Raises `ReportUnavailable` if the charting library is not installed."""
    check_library()
    from plotly.offline import get_plotlyjs  # an extra, and slow to import

    library, draw, style = get_plotlyjs(), _resource("report.js"), _resource("report.css")
    figures: list[Figure] = []
    body = []
    for part in parts:
        if isinstance(part, Chart):
            body.append(_chart(part, len(figures)))
            figures.append(part.figure)
        else:
            body.append(_listing(part))
    known = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(library, draw)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<dl>{known}</dl>\n"
        "<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>\n"
        + "\n".join(body)
        + f'\n<script type="application/json" id="figures">{_data(figures)}</script>\n'
        f"<script>{library}</script>\n<script>{draw}</script>\n</body>\n</html>\n"
    )


def _chart(chart: Chart, number: int) -> str:
    height = int(chart.figure["layout"]["height"])
    return (
        f"<section><h2>{escape(chart.title)}</h2><p>{escape(chart.note)}</p>"
        f'<div class="scroll"><div id="chart-{number}" class="chart" style="height:{height}px"></div></div></section>'
    )


def _listing(listing: Listing) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in listing.columns)
    rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in listing.rows)
    return (
        f"<section><h2>{escape(listing.title)}</h2><p>{escape(listing.note)}</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    mood = f' class="{escape(cell.mood)}"' if cell.mood else ""
    return f"<td{mood}>{escape(cell.text)}</td>"


def _data(figures: list[Figure]) -> str:
    """Return JSON in which no text can end the script element, or mean anything to HTML."""
    text = json.dumps(figures, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    # The library adds rules to the page's style, and makes pictures (of a chart, if asked) out of data.
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _resource(name: str) -> str:
    return files("drr.simulate").joinpath(name).read_text(encoding="utf-8")
