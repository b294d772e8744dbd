"""Resolved plans as plain data: who gets what, with every default filled in, for programs that read it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drr.model import ANY, NodePolicy, Share
from drr.plans import DEFAULT_POOL, Plans, Terms


def plain_plans(found: Plans) -> dict[str, Any]:
    """Return what a plans file comes to. Organisations that are not listed get the terms of ``default_plan``."""
    names = sorted({*found.organisations, *found.assigned})
    return {
        "default_plan": found.default_plan,
        "pools": {name: asdict(pool) for name, pool in sorted(found.pools.items())},
        "limits": {name: asdict(limit) for name, limit in sorted(found.limits.items())},
        "plans": {name: _plan(found, name) for name in found.names},
        "organisations": {name: _organisation(found, name) for name in names},
    }


def _plan(found: Plans, name: str) -> dict[str, Any]:
    organisation, project = found.plan_terms(name)
    return {"terms": _terms(found, organisation), "each_project": _terms(found, project)}


def _organisation(found: Plans, name: str) -> dict[str, Any]:
    return {
        "plan": found.plan_of(name),
        "terms": _terms(found, found.terms((name,))),
        "each_project": _terms(found, found.terms((name, ANY))),
        "projects": {below: _terms(found, found.terms((name, below))) for below in found.projects(name)},
    }


def _terms(found: Plans, terms: Terms) -> dict[str, Any]:
    """Return what one tenant gets; ``pools``: what differs in a pool, whole."""
    usual = terms.policy(DEFAULT_POOL)
    return {
        **_policy(usual),
        "quota": asdict(terms.quota),
        "retry": None if terms.retry is None else asdict(terms.retry),
        "wait_target": terms.wait_target,
        "pools": {pool: _policy(terms.policy(pool)) for pool in found.pools if terms.policy(pool) != usual},
    }


def _policy(policy: NodePolicy) -> dict[str, Any]:
    """Return a policy; a share of the live slots is a text such as ``"20%"``."""
    given = {name: getattr(policy, name) for name in ("weight", "soft_cap", "hard_cap", "floor", "ceiling")}
    return {name: str(value) if isinstance(value, Share) else value for name, value in given.items()}
