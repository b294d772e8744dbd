"""Plans as plain data: what ``drr plans check --json`` prints, under the keys that a plans file has."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drr.model import ANY, NodePolicy, Share
from drr.plans import DEFAULT_POOL, Plans, Terms
from drr.plans.resolved import NODE_KEYS, QUOTA_KEYS


def plain(found: Plans) -> dict[str, Any]:
    """Return everybody's terms, resolved: pools, limits, plans and organisations with their projects."""
    plans = {name: found.plan_terms(name) for name in found.names}
    return {
        "default_plan": found.default_plan,
        "pools": {name: asdict(pool) for name, pool in found.pools.items()},
        "limits": {name: asdict(limit) for name, limit in found.limits.items()},
        "plans": {
            name: {**_terms(found, organisation), "each_project": _terms(found, project)}
            for name, (organisation, project) in plans.items()
        },
        "organisations": {
            name: {
                "plan": found.plan_of(name),
                **_terms(found, found.terms((name,))),
                "each_project": _terms(found, found.terms((name, ANY))),
                "projects": {
                    project: _terms(found, found.terms((name, project))) for project in found.projects(name)
                },
            }
            for name in sorted({*found.organisations, *found.assigned})
        },
    }


def _terms(found: Plans, terms: Terms) -> dict[str, Any]:
    general = terms.policy(DEFAULT_POOL)
    own = {name: terms.policy(name) for name in found.pools if terms.policy(name) != general}
    return {
        **_policy(general),
        **{key: getattr(terms.quota, field) for key, field in QUOTA_KEYS.items()},
        "wait_target": terms.wait_target,
        "retry": None if terms.retry is None else asdict(terms.retry),
        "pools": {name: _policy(policy) for name, policy in own.items()},
    }


def _policy(policy: NodePolicy) -> dict[str, Any]:
    found = {key: getattr(policy, key) for key in NODE_KEYS}
    return {key: str(value) if isinstance(value, Share) else value for key, value in found.items()}
