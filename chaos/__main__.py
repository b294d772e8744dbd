"""``python -m chaos``: the fault matrix on every server there is.

What happens is told on standard error; the last line on standard output is the summary, as JSON. The exit code is
1 if a verdict is bad or nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial

import anyio

from chaos.rows.table import ROWS
from chaos.run import Result, run_rows, summary
from chaos.scale import LONG, SHORT
from drr.embedded import SERVER_NAMES, find_server
from drr.errors import ServerNotFound


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    given = _arguments()
    rows = [row for row in ROWS if not given.only or any(word in row.name for word in given.only)]
    results: list[Result] = []
    for server in given.server or SERVER_NAMES:
        try:
            find_server(server)
        except ServerNotFound as missing:
            _tell(f"{server}: skipped: {missing}")
            results += [Result(row.name, server, skipped=str(missing)) for row in rows]
            continue
        run = partial(run_rows, server, rows, SHORT if given.short else LONG, given.seed, _tell)
        found = anyio.run(run)
        done = {result.fault for result in found}
        results += found
        results += [
            Result(row.name, server, problems=["not run: an earlier row left the site stuck"])
            for row in rows
            if row.name not in done
        ]
    print(json.dumps(summary(results)))
    ran = [result for result in results if not result.skipped]
    return 0 if ran and all(result.good for result in ran) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few minutes instead of half an hour")
    parser.add_argument("--server", action="append", choices=SERVER_NAMES, help="on this server only")
    parser.add_argument("--only", action="append", metavar="WORD", help="rows whose name has this in it")
    parser.add_argument("--seed", type=int, default=1, help="of tenants, lengths of jobs and the network's faults")
    return parser.parse_args()


_BEGAN = time.monotonic()


def _tell(line: str) -> None:
    print(f"{time.monotonic() - _BEGAN:7.1f} s  {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
