"""The command line: ``drr serve``, ``init``, ``worker``, ``submit``, ``status`` and ``demo``.

One small module per command, around what they share: `exits` (exit codes, errors as one line), `fields` (options
and how their values are written), `runtime` (event loop, signals, log lines). The commands only translate:
from words to the arguments of `drr.dispatcher`, `drr.worker` and `drr.client`, and from values to text.
"""

from drr.cli.commands import app, main

__all__ = ["app", "main"]
