"""Who is entitled to what, as one value: the stored settings and the plans they hold, resolved.

What was set for single nodes and pools, by API or command line, comes before what the plans say of them. A value
does not change: `with_plans` and the like return another one, or raise and leave this one in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from drr.model import NodePolicy, PoolPolicy, RetryPolicy, Settings, SharedLimit, TenantPath, check_name
from drr.plans import NO_PLANS, Plans, read_plans


class Entitlement:
    """Settings that can be asked. Raises `PlansError` or `UnknownPlan` if stored plans contradict themselves."""

    def __init__(self, settings: Settings, plans: Plans | None = None) -> None:
        """``plans``: those of ``settings``, if they were read already."""
        if plans is None:
            plans = read_plans(settings.plans) if settings.plans else NO_PLANS
            plans = plans.with_assigned(settings.assigned)
        self.settings = settings
        self.plans = plans

    @property
    def limits(self) -> Mapping[str, SharedLimit]:
        """The shared limits by name."""
        return self.settings.limits

    def policy_of(self, pool: str) -> Callable[[TenantPath], NodePolicy]:
        """Return what tells, for a pool, the policy of a node that has none of its own."""
        plans = self.plans
        return lambda path: plans.policy(path, pool)

    def pool(self, name: str) -> PoolPolicy:
        """Return a pool's settings."""
        return self.settings.pools.get(name) or self.plans.pool(name)

    def retry(self, path: TenantPath) -> RetryPolicy | None:
        """Return the retry policy of a tenant's jobs that bring none, or ``None``."""
        return self.plans.retry(path)

    def wait_target(self, path: TenantPath) -> float | None:
        """Return the seconds that a tenant's jobs should wait at most, or ``None``."""
        return self.plans.wait_target(path)

    # --- changes --------------------------------------------------------------------------------------

    def with_plans(self, text: str, source: str = "plans") -> Entitlement:
        """Return this with another plans file in force. Assignments stay; an empty text takes the plans away.

        Raises `PlansError`, or `UnknownPlan` if somebody is assigned to a plan that the file does not have.
        """
        plans = read_plans(text, source=source) if text else NO_PLANS
        plans = plans.with_assigned(self.settings.assigned if text else {})
        return Entitlement(plans.settings(self.settings), plans)

    def with_assignment(self, organisation: str, plan: str = "") -> Entitlement:
        """Return this with an organisation on another plan, or with ``""`` on what the file says.

        Raises `UnknownPlan`, `InvalidName`, or `PlansError` if the organisation's own terms contradict the plan.
        """
        assigned = dict(self.settings.assigned)
        assigned.pop(check_name("organisation", organisation), None)
        if plan:
            assigned[organisation] = plan
        plans = self.plans.with_assigned(assigned)
        return Entitlement(plans.settings(self.settings), plans)

    def with_node(self, pool: str, path: TenantPath, policy: NodePolicy | None) -> Entitlement:
        """Return this with a node's own policy set, or with ``None`` taken away."""
        nodes = {name: dict(policies) for name, policies in self.settings.nodes.items()}
        policies = nodes.setdefault(pool, {})
        if policy is None:
            policies.pop(path, None)
        else:
            policies[path] = policy
        return Entitlement(replace(self.settings, nodes=nodes), self.plans)

    def with_pool(self, name: str, policy: PoolPolicy) -> Entitlement:
        """Return this with a pool's own settings set."""
        return Entitlement(replace(self.settings, pools={**self.settings.pools, name: policy}), self.plans)
