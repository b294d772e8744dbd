"""Drawing a status report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drr.backend import WorkerRecord
from drr.dispatcher import NodeStatus, PoolStatus
from drr.dispatcher.status import BacklogStatus, LimitStatus
from drr.model import Settings

if TYPE_CHECKING:
    from drr.cli.status import Report

PIPE_WIDTH: Final = 140
"""Columns where nobody has a terminal: lines are not to be cut at 80."""


def make_console(*, stderr: bool = False) -> Console:
    """Return a console for stdout (or stderr); without a terminal it writes plain, wide lines."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)


def print_report(report: Report) -> None:
    """Print who leads, who works and every pool's tree."""
    console = make_console()
    console.print(Text.assemble(("namespace ", "dim"), (report.namespace, "bold")))
    console.print(_leader_line(report))
    for remark in report.status.store.cautions.values() if report.status else ():
        console.print(Text(f"store      warning: {remark}", "yellow"))
    if report.status is None:
        console.print("nothing is described yet: a leader describes its tree within a second")
    else:
        counters = ", ".join(f"{count:,} {name}" for name, count in report.status.counters.items() if count)
        console.print(Text(f"counters   {counters or 'nothing yet'}"))
    console.print(
        _workers_table(report.workers) if report.workers else "workers    none: jobs wait (start: drr worker)"
    )
    for pool in report.status.pools if report.status else ():
        console.print()
        console.print(_pool_line(pool))
        console.print(_pool_table(pool))
        if pool.omitted > 0:
            console.print(f"... and {pool.omitted:,} more tenants, less busy")
    if report.status and report.status.limits:
        console.print()
        console.print(_limits_table(report.status.limits))
    backlogs = [backlog for backlog in report.status.backlogs if backlog.jobs] if report.status else []
    if backlogs:
        console.print()
        console.print(_backlogs_table(backlogs, report.settings))


def _leader_line(report: Report) -> Text:
    if not report.leader.token:
        return Text("leader     none: jobs wait until a dispatcher leads (start: drr serve)", "yellow")
    described = report.status
    who = f"{described.dispatcher} ({report.leader.token})" if described else report.leader.token
    if not report.alive:
        return Text(f"leader     {who} gives no sign of life; jobs wait until a dispatcher leads", "red")
    age = "" if report.age is None else f", described {report.age:.1f} s ago"
    since = f", leads for {_seconds(described.leading_for)}" if described else ""
    return Text(f"leader     {who}{since}{age}")


def _workers_table(workers: tuple[WorkerRecord, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("workers", "slots", "running", "state", "version"):
        table.add_column(column, justify="right" if column == "running" else "left")
    for record in workers:
        slots = ", ".join(f"{count} {pool}" for pool, count in sorted(record.slots.items()))
        state = "draining" if record.draining else "working"
        if record.blocks:
            state += f", loop blocked {record.blocks:,}x"
        table.add_row(Text(record.name), slots, str(len(record.held)), state, Text(record.version or "?"))
    return table


def _pool_line(pool: PoolStatus) -> Text:
    parts = [
        f"{pool.running} of {pool.slots} slots busy" if pool.workers else "no workers: its jobs wait",
        f"{pool.queued:,} queued",
        f"{pool.active:,} projects with work",
    ]
    if pool.idle_capped:
        parts.append(f"{pool.idle_capped} free although jobs wait (caps or reserve)")
    if pool.withheld:
        parts.append(f"{pool.withheld} withheld (silent workers)")
    return Text.assemble(("pool ", "dim"), (pool.name, "bold"), f"   {', '.join(parts)}")


def _pool_table(pool: PoolStatus) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("tenant", no_wrap=True)
    for column in ("weight", "queued", "running", "credit", "share", "oldest wait"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("lane", no_wrap=True)
    table.add_column("waits for", no_wrap=True)
    for node in pool.nodes:
        if node.path:
            table.add_row(*_node_row(node))
    return table


def _node_row(node: NodeStatus) -> tuple[Text | str, ...]:
    return (
        Text("  " * (len(node.path) - 1) + node.path[-1], "bold" if len(node.path) == 1 else ""),
        f"{node.weight:g}",
        f"{node.queued:,}",
        _running(node),
        f"{node.credit:+.2f}",
        f"{node.share:.1%}",
        _wait(node) if node.queued else "",
        node.lane,
        Text(node.waits, "yellow"),
    )


def _running(node: NodeStatus) -> str:
    """Return the running jobs, with the lower cap if there is one: ``3/3``."""
    caps = [cap for cap in (node.soft_cap, node.hard_cap) if cap is not None]
    return f"{node.running}/{min(caps)}" if caps else str(node.running)


def _wait(node: NodeStatus) -> Text:
    """Return how long the next job has waited, and how long it should at most: ``12.0 s (of 5.0 s)``."""
    if node.wait_target is None:
        return Text(_seconds(node.oldest_wait))
    text = f"{_seconds(node.oldest_wait)} (of {_seconds(node.wait_target)})"
    return Text(text, "red" if node.late else "")


def _limits_table(limits: tuple[LimitStatus, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("limit", no_wrap=True)
    for column in ("held", "waiting", "starts a second"):
        table.add_column(column, justify="right", no_wrap=True)
    for limit in limits:
        held = f"{limit.running:,}" if limit.concurrency is None else f"{limit.running:,}/{limit.concurrency:,}"
        rate = "" if limit.rate is None else f"{limit.rate:g}"
        table.add_row(Text(limit.name, "bold"), held, f"{limit.waiting:,}", rate)
    return table


def _backlogs_table(backlogs: Sequence[BacklogStatus], settings: Settings) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("backlog of", no_wrap=True)
    for column in ("jobs", "worker-seconds", "delayed"):
        table.add_column(column, justify="right", no_wrap=True)
    for backlog in backlogs:
        quota = settings.quota((backlog.organisation,))
        table.add_row(
            Text(backlog.organisation, "bold"),
            _against(backlog.jobs, quota.jobs, ",d"),
            _against(backlog.worker_seconds, quota.worker_seconds, ",.1f"),
            f"{backlog.delayed:,}",
        )
    return table


def _against(value: float, most: float | None, form: str) -> Text:
    if most is None:
        return Text(format(value, form))
    return Text(f"{value:{form}} of {most:{form}}", "red" if value >= most else "")


def _seconds(seconds: float) -> str:
    """Return a duration as people read it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
