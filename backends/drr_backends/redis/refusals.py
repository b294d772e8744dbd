"""What the refusals of ``lua/submit.lua`` mean."""

from __future__ import annotations

from typing import Final

from drr.errors import AdmissionRefused, BacklogFull, JobExists, RateLimited, UnknownLimit

REFUSALS: Final = ("QUOTA", "EXISTS", "NOLIMIT")
"""First words of the error replies that `refusal` reads."""

_QUOTA: Final[dict[str, tuple[type[AdmissionRefused], str]]] = {
    "jobs": (BacklogFull, "the backlog in jobs"),
    "work": (BacklogFull, "the backlog in worker-seconds"),
    "rate": (RateLimited, "the rate of submitted jobs a second"),
}


def refusal(text: str) -> Exception:
    """Return what a refusal of a submit means."""
    word, _, rest = text.partition(" ")
    if word == "NOLIMIT":
        return UnknownLimit(rest)
    if word == "EXISTS":
        name, _, job_id = rest.partition(" ")
        return JobExists(name, job_id if "~" in job_id else "(of the same call)")
    tenant, what, limit, depth, room, pause = rest.split(" ")
    kind, words = _QUOTA[what]
    return kind(tuple(tenant.split("/")), words, float(limit), float(depth), int(room), float(pause))
