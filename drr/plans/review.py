"""What in a plans file can hardly be meant, though it is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from drr.core.limits import resolve
from drr.model import NodePolicy, Share, TenantPath
from drr.plans.resolved import QUOTA_KEYS, Plans
from drr.plans.wording import dotted

STRANGE_RATIO: Final = 1000.0
"""A quantum that is so many times the typical job, or so small a part of it, is doubted."""


class Doubt(NamedTuple):
    """Something to look at: the key, and what is strange about it."""

    key: str
    text: str


def review(plans: Plans, slots: int | None = None) -> list[Doubt]:
    """Return what can hardly be meant. ``slots``: live slots of a pool, if they are known."""
    return [
        *_pools(plans),
        *_floors(plans, slots),
        *_caps(plans, slots),
        *_limits(plans),
        *_quotas(plans),
        *_unused(plans),
        *_planless(plans),
    ]


def _pools(plans: Plans) -> Iterator[Doubt]:
    for name, pool in plans.pools.items():
        ratio = pool.quantum / pool.default_estimate
        key = dotted(("pools", name, "quantum"))
        if ratio >= STRANGE_RATIO:
            yield Doubt(
                key,
                f"a quantum of {pool.quantum:g} is {ratio:g} times the typical job ({pool.default_estimate:g} "
                "worker-seconds): a tenant is served for that long before the next gets a turn",
            )
        elif ratio <= 1 / STRANGE_RATIO:
            yield Doubt(
                key,
                f"a quantum of {pool.quantum:g} is a {1 / ratio:g}th of the typical job "
                f"({pool.default_estimate:g} worker-seconds): it takes that many rounds to afford one",
            )


def _tenants(plans: Plans) -> Iterator[tuple[str, TenantPath]]:
    for name in plans.organisations:
        yield dotted(("organisations", name)), (name,)
        for project in plans.projects(name):
            yield dotted(("organisations", name, "projects", project)), (name, project)


def _floors(plans: Plans, slots: int | None) -> Iterator[Doubt]:
    for pool in plans.pools:
        shares, counts = 0.0, 0
        for name in plans.organisations:
            floor = plans.policy((name,), pool).floor
            if isinstance(floor, Share):
                shares += floor.fraction
            else:
                counts += floor
        where = f" in pool {pool}" if len(plans.pools) > 1 else ""
        if shares > 1.0:
            yield Doubt(
                "organisations", f"their floors{where} add up to {shares:.0%} of the slots: not all can be kept"
            )
        elif slots is not None and counts + int(shares * slots) > slots:
            total = counts + int(shares * slots)
            yield Doubt(
                "organisations", f"their floors{where} add up to {total} of {slots} slots: not all can be kept"
            )


def _caps(plans: Plans, slots: int | None) -> Iterator[Doubt]:
    for key, path in _tenants(plans):
        for pool in plans.pools:
            text = _contradiction(plans.policy(path, pool), slots)
            if text:
                yield Doubt(key, text + (f" (in pool {pool})" if len(plans.pools) > 1 else ""))
                break


def _contradiction(policy: NodePolicy, slots: int | None) -> str:
    if slots is None:
        return ""
    plain = NodePolicy(policy.weight, policy.soft_cap, policy.hard_cap, 0)
    bounds, floor = resolve(plain, slots), resolve(NodePolicy(floor=policy.floor), slots).floor
    if floor > bounds.soft:
        return f"with {slots} slots its floor of {floor} is above its cap of {bounds.soft}: the cap wins"
    return ""


def _limits(plans: Plans) -> Iterator[Doubt]:
    for name, limit in plans.limits.items():
        key = dotted(("limits", name))
        if limit.concurrency is limit.rate is limit.per_organisation is limit.per_project is None:
            yield Doubt(key, "it limits nothing")
        for what in ("per_organisation", "per_project"):
            part = getattr(limit, what)
            if part is not None and limit.concurrency is not None and part > limit.concurrency:
                text = f"{part} {what.replace('_', ' ')} is more than there is for all ({limit.concurrency})"
                yield Doubt(f"{key}.{what}", text)
        organisation, project = limit.per_organisation, limit.per_project
        if organisation is not None and project is not None and project > organisation:
            yield Doubt(f"{key}.per_project", f"{project} per project is more than per organisation ({organisation})")


def _quotas(plans: Plans) -> Iterator[Doubt]:
    pairs = [(dotted(("plans", name, "each_project")), *plans.plan_terms(name)) for name in plans.names]
    for name in plans.organisations:
        whole = plans.terms((name,))
        pairs.extend(
            (dotted(("organisations", name, "projects", project)), whole, plans.terms((name, project)))
            for project in plans.projects(name)
        )
    for key, organisation, each in pairs:
        for word, field in QUOTA_KEYS.items():
            most, part = getattr(organisation.quota, field), getattr(each.quota, field)
            if field != "burst" and most is not None and part is not None and part > most:
                yield Doubt(f"{key}.{word}", f"{part:g} per project is more than the organisation has ({most:g})")


def _unused(plans: Plans) -> Iterator[Doubt]:
    used = {plans.plan_of(name) for name in plans.organisations} | {plans.default_plan}
    used |= set(plans.assigned.values())
    for organisation in plans.document.get("organisations", {}).values():
        used |= {project.get("plan") for project in organisation.get("projects", {}).values()}
    for name in plans.names:
        if name not in used:
            yield Doubt(dotted(("plans", name)), "nobody is on this plan, and it is not the default")


def _planless(plans: Plans) -> Iterator[Doubt]:
    if plans.names and plans.default_plan is None:
        yield Doubt("default_plan", "organisations that are not listed are on no plan: weight 1, no caps, no quota")
    for name in plans.organisations:
        if plans.names and plans.plan_of(name) is None:
            yield Doubt(dotted(("organisations", name)), "it is on no plan")
