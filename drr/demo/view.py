"""What the audience sees: live bars on a terminal, plain lines elsewhere, a table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from drr.demo import plot
from drr.demo.figures import Expectation, Figures, held_by, shares_of
from drr.demo.journal import Run

BAR: Final = 24
"""Columns of a bar that stands for all of the pool."""
PLAIN_EVERY: Final = 3.0
"""Seconds between two lines where there is no terminal to draw on."""
WANTED: Final = shares_of(plot.WEIGHTS, plot.WEIGHTS)


class View:
    """Shows a run on a console. All times are seconds after its start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._plain_due = PLAIN_EVERY

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def announce(self, at: float, text: str) -> None:
        """Print what happened."""
        self._console.print(Text.assemble((f"{at:5.1f} s  ", "dim"), text), soft_wrap=True)

    def show(self, at: float, runs: Sequence[Run], queued: dict[str, int], since: float | None) -> None:
        """Draw how things stand; ``since``: since when the shares count, on the runs' clock."""
        if self._live is not None:
            self._live.update(self._bars(at, runs, queued, since), refresh=True)
        elif at >= self._plain_due:
            self._plain_due = at + PLAIN_EVERY
            self._console.print(f"{at:5.1f} s  {self._line(runs, queued, since)}", soft_wrap=True)

    def conclude(self, figures: Figures, shares: dict[str, float], expected: dict[str, Expectation]) -> None:
        """Print the table of what was measured."""
        self._console.print()
        self._console.print(figures_table(figures, shares, expected))

    def _bars(self, at: float, runs: Sequence[Run], queued: dict[str, int], since: float | None) -> Table:
        table = Table(title=f"{plot.WORKERS} workers of one slot, {at:.0f} s", title_justify="left", box=None)
        table.add_column("tenant")
        for column in ("weight", "queued", "running", "worker-s"):
            table.add_column(column, justify="right")
        table.add_column("share of the three, | = its weight")
        table.add_column("last wait", justify="right")
        running, held, waits, shares = _standing(runs, since)
        for organisation in plot.LANES:
            table.add_row(
                organisation,
                str(plot.WEIGHTS.get(organisation, 1)),
                f"{queued[organisation]:,}",
                Text("■" * running.get(organisation, 0) or "·", "green"),
                f"{held.get(organisation, 0.0):.1f}",
                _bar(shares[organisation], WANTED[organisation]) if organisation in shares else "",
                f"{waits[organisation]:.2f} s" if organisation in waits else "",
            )
        return table

    @staticmethod
    def _line(runs: Sequence[Run], queued: dict[str, int], since: float | None) -> str:
        running, held, _, shares = _standing(runs, since)
        parts = []
        for organisation in plot.LANES:
            share = (
                f", share {shares[organisation]:.0%} of {WANTED[organisation]:.0%}" if organisation in shares else ""
            )
            parts.append(
                f"{organisation}: {running.get(organisation, 0)} running, {queued[organisation]:,} queued, "
                f"{held.get(organisation, 0.0):.1f} worker-s{share}"
            )
        return "; ".join(parts)


def _standing(
    runs: Sequence[Run], since: float | None
) -> tuple[dict[str, int], dict[str, float], dict[str, float], dict[str, float]]:
    """Return running jobs, worker-seconds and the last start's wait by organisation, and the shares so far."""
    running: dict[str, int] = {}
    waits: dict[str, float] = {}
    now = max((run.ended or run.started for run in runs), default=0.0)
    for run in runs:
        waits[run.organisation] = run.waited
        if run.ended is None:
            running[run.organisation] = running.get(run.organisation, 0) + 1
    shares = {} if since is None else shares_of(held_by(runs, since, now), plot.WEIGHTS)
    return running, held_by(runs, float("-inf"), now), waits, shares


def _bar(share: float, wanted: float) -> Text:
    """Return a bar as long as ``share``, with a mark where ``wanted`` ends."""
    filled, mark = round(share * BAR), min(BAR - 1, round(wanted * BAR))
    cells = ["█" if column < filled else " " for column in range(BAR)]
    cells[mark] = "|"
    return Text.assemble(("".join(cells), "cyan"), f" {share:6.1%} of {wanted:.1%}")


_MEANING: Final = {
    "newcomer_wait_ms": f"{plot.NEWCOMER}'s wait, from submit to the first line of its handler",
    "fifo_wait_ms": f"  the same on one first-in-first-out queue (computed for {plot.WORKERS} slots)",
    "max_running_acme": f"{plot.CROWD}'s most jobs running at once, of a hard cap of {plot.CROWD_CAP}",
    "share_error": "largest difference between share of worker-seconds and share of weight",
    "takeover_ms": "takeover, from SIGKILL to the first job started under the new leader",
    "lost": "jobs lost: acknowledged, but neither ended nor stored",
    "duplicated_completions": "ends recorded beyond one per job",
    "leases_left": "leases left after everything has stopped",
    "dispatched": "attempts started",
    "seconds": "length of the run",
}


def figures_table(figures: Figures, shares: dict[str, float], expected: dict[str, Expectation]) -> Table:
    """Return the table that the demo ends with; ``shares`` of the weighted organisations as measured."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("measured")
    table.add_column("figure", justify="right")
    table.add_column("expected")
    for name, meaning in _MEANING.items():
        figure, wanted = getattr(figures, name), expected.get(name)
        table.add_row(
            meaning,
            Text(_shown(name, figure), "" if wanted is None or wanted.met_by(figure) else "red"),
            "" if wanted is None else f"{'below' if wanted.below else 'exactly'} {_shown(name, wanted.value)}",
        )
        if name == "share_error":
            for organisation, share in shares.items():
                weight = plot.WEIGHTS[organisation]
                table.add_row(
                    f"  {organisation}, weight {weight}", f"{share:.1%}", f"about {WANTED[organisation]:.1%}"
                )
    return table


def _shown(name: str, value: float) -> str:
    if name.endswith("_ms"):
        return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.0f} s"
    if name == "share_error":
        return f"{value:.3f}"
    return f"{value:,.1f} s" if name == "seconds" else f"{value:,.0f}"
