"""``python -m chaos``: the fault matrix on every server there is.

What happens is told on standard error; the last line on standard output is the summary, as JSON. The exit code is
1 if a verdict is bad or nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import anyio

from chaos.report import written
from chaos.result import Result, summary
from chaos.rows.table import NOT_RUN, ROWS
from chaos.run import run_rows, soak
from chaos.scale import LONG, SHORT
from drr.embedded import SERVER_NAMES, find_server
from drr.errors import ServerNotFound


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    given = _arguments()
    rows = [row for row in ROWS if not given.only or any(word in row.name for word in given.only)]
    servers = given.server or SERVER_NAMES
    results: list[Result] = []
    for server in servers:
        try:
            find_server(server)
        except ServerNotFound as missing:
            _tell(f"{server}: skipped: {missing}")
            results += [Result(row.name, server, skipped=str(missing)) for row in rows]
            continue
        if given.soak:
            seconds = 60 * given.minutes / len(servers)
            run = partial(soak, server, rows, SHORT, given.seed, _tell, seconds=seconds)
        else:
            run = partial(run_rows, server, rows, SHORT if given.short else LONG, given.seed, _tell)
        try:
            results += anyio.run(run)
        except Exception as error:  # the site could not be opened, or not be closed
            traceback.print_exc()
            results += [Result(row.name, server, problems=[f"{type(error).__name__}: {error}"]) for row in rows]
    results += [Result(fault, "any", skipped=reason) for fault, reason in NOT_RUN.items()]
    found = summary(results)
    if given.write:
        given.write.write_text(written(given.write.read_text("utf-8"), found), "utf-8")
    print(json.dumps(found))
    ran = [result for result in results if not result.skipped]
    return 0 if ran and all(result.good for result in ran) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Inject faults into real processes.")
    parser.add_argument("--short", action="store_true", help="in a few minutes, with a tenth of the jobs")
    parser.add_argument("--soak", action="store_true", help="rows at random until the time is over")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the soak, on all servers together (30)")
    parser.add_argument("--server", action="append", choices=SERVER_NAMES, help="on this server only")
    parser.add_argument("--only", action="append", metavar="WORD", help="rows whose name has this in it")
    parser.add_argument("--seed", type=int, default=1, help="of tenants, lengths of jobs and the network's faults")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the figures into this page, too")
    return parser.parse_args()


_BEGAN = time.monotonic()


def _tell(line: str) -> None:
    print(f"{time.monotonic() - _BEGAN:7.1f} s  {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
