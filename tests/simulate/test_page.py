"""The report's page: it carries all it needs, loads nothing, and shows foreign names as text."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects
import pytest

from drr.errors import ReportUnavailable
from drr.simulate.charts import (
    OTHERS_COLOUR,
    PALETTE,
    Dots,
    Line,
    Panel,
    fraction_lines,
    share_areas,
    wait_dots,
    wait_lines,
)
from drr.simulate.page import Cell, Chart, Figure, Listing, render

HOSTILE = "</script><img src=x onerror=alert(1)><b>&\u2028'\""
LOADING = {"src", "href", "srcset", "action", "data", "poster", "background", "xlink:href", "formaction"}


class Reader(HTMLParser):
    """Takes a page apart as a browser would: elements with their attributes, scripts, text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles = ""
        self.text = ""
        self._open = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._open == "style":
            self.styles += data
        else:
            self.text += data

    @property
    def figures(self) -> list[Any]:
        """The data of the charts."""
        (data,) = [text for attributes, text in self.scripts if attributes.get("id") == "figures"]
        found: list[Any] = json.loads(data)
        return found


def lines(panels: int = 1, name: str = "acme") -> list[Panel]:
    series = (Line(name, PALETTE[0], [0.0, 60.0, 120.0], [0.0, None, 5.0]), Line("o", OTHERS_COLOUR, [0.0], [1.0]))
    return [Panel(f"policy {number} {name}", series) for number in range(panels)]


def figures(panels: int, name: str = "acme") -> list[Figure]:
    dots = [Dots(f"policy {number} {name}", PALETTE[number], [float(number), None]) for number in range(panels)]
    return [
        wait_lines(lines(panels, name)),
        share_areas(lines(panels, name)),
        fraction_lines(lines(1, name)[0], "busy"),
        wait_dots([name, "other"], dots),
    ]


def page(name: str = "acme", panels: int = 2) -> str:
    parts = [Chart(f"chart of {name}", f"note on {name}", figure) for figure in figures(panels, name)]
    listing = Listing(
        f"table of {name}", f"on {name}", ["tenant", "wait"], [[name, "1 s"], ["x", Cell(name, "worse")]]
    )
    return render(f"Simulation of {name}", [(f"fact {name}", f"value {name}")], [listing, *parts])


def test_nothing_in_the_page_points_outside() -> None:
    reader = Reader(page())
    for tag, attributes in reader.elements:
        assert not LOADING & set(attributes), f"<{tag}> loads something: {attributes}"
        assert tag not in {"link", "iframe", "object", "embed", "base", "img"}
    assert "url(" not in reader.styles
    assert "@import" not in reader.styles


def test_the_page_forbids_itself_everything_but_its_own_scripts() -> None:
    reader = Reader(page())
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in reader.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    run = [text for attributes, text in reader.scripts if attributes.get("type") is None]
    assert len(run) == 2
    hashes = {f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in run}
    assert set(rules["script-src"].split()) == hashes
    assert not re.search(r"https?:|\*|unsafe", rules["script-src"] + rules["img-src"])


def test_the_page_has_the_data() -> None:
    reader = Reader(page())
    first = reader.figures[0]
    assert [trace["name"] for trace in first["data"]] == ["acme", "o", "acme", "o"]
    assert first["data"][0]["y"] == [0.01, None, 5.0], "no wait is drawn where a logarithm can show it"
    assert first["data"][0]["text"] == ["0", "-", "5.0 s"]
    charts = [
        attributes["id"] for tag, attributes in reader.elements if (attributes.get("id") or "").startswith("chart")
    ]
    assert charts == [f"chart-{number}" for number in range(len(reader.figures))]
    for text in ("Simulation of acme", "fact acme", "table of acme", "note on acme"):
        assert text in reader.text


def test_a_hostile_name_is_text_everywhere() -> None:
    made = page(HOSTILE)
    reader = Reader(made)
    harmless = Reader(page())
    assert [tag for tag, _ in reader.elements] == [tag for tag, _ in harmless.elements], "the name made no element"
    assert len(reader.scripts) == len(harmless.scripts) == 3
    for text in (f"Simulation of {HOSTILE}", f"fact {HOSTILE}", f"table of {HOSTILE}"):
        assert text in reader.text
    assert "<img src=x" not in made
    assert "onerror=alert(1)>" not in made


def test_a_hostile_name_is_text_in_the_labels_of_the_charts() -> None:
    """The library reads some HTML in labels; what it would show is the name as it is."""
    for figure in Reader(page(HOSTILE)).figures:
        shown = [trace["name"] for trace in figure["data"] if "name" in trace]
        shown += [
            note["text"].removeprefix("<b>").removesuffix("</b>") for note in figure["layout"].get("annotations", ())
        ]
        shown += [row for trace in figure["data"] for row, _ in trace.get("customdata", ())]
        shown += figure["layout"]["yaxis"].get("ticktext", ())
        assert shown
        assert not any("<" in text or ">" in text for text in shown)


@pytest.mark.parametrize("panels", [1, 2, 3, 4])
def test_the_library_knows_every_property_of_the_figures(panels: int) -> None:
    for figure in figures(panels):
        plotly.graph_objects.Figure(figure)  # raises for what it does not know


@pytest.mark.parametrize("panels", [1, 2, 3, 4])
def test_panels_share_their_scales_and_do_not_overlap(panels: int) -> None:
    layout = wait_lines(lines(panels))["layout"]
    places = []
    for number in range(panels):
        suffix = "" if number == 0 else str(number + 1)
        x, y = layout[f"xaxis{suffix}"], layout[f"yaxis{suffix}"]
        assert (x.get("matches"), y.get("matches")) == ((None, None) if number == 0 else ("x", "y"))
        places.append((x["domain"], y["domain"]))
    for index, (x, y) in enumerate(places):
        assert 0 <= x[0] < x[1] <= 1
        assert 0 <= y[0] < y[1] <= 1
        for other_x, other_y in places[index + 1 :]:
            assert x[1] <= other_x[0] or other_x[1] <= x[0] or y[1] <= other_y[0] or other_y[1] <= y[0]


def test_a_name_is_in_the_legend_once() -> None:
    shown = [trace["name"] for trace in wait_lines(lines(4))["data"] if trace["showlegend"]]
    assert shown == ["acme", "o"]


@pytest.mark.parametrize(
    ("span", "unit"), [(30.0, "seconds"), (3600.0, "minutes"), (86400.0, "hours"), (864000.0, "days")]
)
def test_time_has_a_unit_of_its_size(span: float, unit: str) -> None:
    layout = wait_lines([Panel("", [Line("acme", PALETTE[0], [0.0, span], [1.0, 1.0])])])["layout"]
    assert layout["xaxis"]["title"]["text"] == f"time of the trace ({unit})"


def test_nothing_at_all_can_be_drawn() -> None:
    for figure in (wait_lines([]), share_areas([Panel("", [])]), wait_dots([], []), wait_dots(["a"], [])):
        plotly.graph_objects.Figure(figure)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    sys.path_importer_cache.clear()
    with pytest.raises(ReportUnavailable, match=r"pip install 'drr-dispatcher\[report\]'"):
        render("x", [], [])
