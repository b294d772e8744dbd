"""The demo: half a minute in which tenants share a pool, on real parts, and what was measured meanwhile.

A Valkey server of its own, two dispatcher processes and four worker processes play. From the inside out: `plot` (who
wants what and when), `journal` (what handlers write down) and `figures` (what follows from it) are plain; `processes`
and `stage` set up and tear down; `play` makes things happen, `view` shows them; `tasks` is what the workers run.
"""

from drr.demo.figures import Figures, expectations
from drr.demo.play import perform
from drr.demo.plot import Timeline
from drr.demo.view import View

__all__ = ["Figures", "Timeline", "View", "expectations", "perform"]
