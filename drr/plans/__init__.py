"""The plans file: which billing plan entitles whom to what, the pools' own settings, and shared limits.

A file is TOML. ``[plans.NAME]`` says what an organisation on that plan gets, and ``[plans.NAME.each_project]`` what
each of its projects gets inside it; ``[organisations.NAME]`` puts one on a plan and may override parts of it;
``[organisations.NAME.projects.NAME]`` does the same for a project inside its organisation; ``[pools.NAME]`` sets up
a pool and ``[limits.NAME]`` a limit that jobs share. An organisation that is not listed is on ``default_plan``. What
a table says of weights, caps and floors applies to every pool, unless a table ``pools.NAME`` within it says
otherwise for that one.

Rules of this package: it reads and resolves, and knows nothing of stores or dispatchers. A file is used whole or not
at all, and everything that is wrong with it is said at once (`PlansError`). What a key may hold is decided by the
value classes of `drr.policy`, not here. A key that nothing reads is refused: it would be a limit that does not hold.

From the inside out: `resolved` (`Plans`: everybody's terms; plain data, no validation library), `tables` (what a
file may hold; imported when the first text is read), `reading` (from text to `Plans`), `review` (what can hardly be
meant) and `changes` (what differs between two).
"""

from drr.plans.changes import differences
from drr.plans.reading import load_plans, read_plans
from drr.plans.resolved import DEFAULT_POOL, NO_PLANS, Plans, Terms
from drr.plans.review import Doubt, review

__all__ = [
    "DEFAULT_POOL",
    "NO_PLANS",
    "Doubt",
    "Plans",
    "Terms",
    "differences",
    "load_plans",
    "read_plans",
    "review",
]
