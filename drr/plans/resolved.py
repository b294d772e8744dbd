"""A plans file, resolved: everybody's terms. Works on a document that was validated, as plain data.

Tables replace each other key by key, from the widest word to the narrowest: plan, plan in a pool, organisation,
organisation in a pool. A project has what ``each_project`` of its organisation's plan and of its organisation say,
then its own plan if it names one, then its own table; retry policy and wait target it has from its organisation if
none of those says anything of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from drr.errors import InvalidValue, PlansError, Problem, UnknownPlan
from drr.model import (
    ANY,
    NO_QUOTA,
    NodePolicy,
    PoolPolicy,
    Quota,
    RetryPolicy,
    Settings,
    SharedLimit,
    TenantPath,
    check_name,
)
from drr.plans.wording import dotted, unknown

DEFAULT_POOL: Final = "default"

Table: TypeAlias = Mapping[str, Any]

NODE_KEYS: Final = ("weight", "soft_cap", "hard_cap", "floor", "ceiling")
"""Keys that make up a `NodePolicy`; the only ones that may differ by pool."""
QUOTA_KEYS: Final = {
    "backlog": "jobs",
    "backlog_worker_seconds": "worker_seconds",
    "rate": "rate",
    "burst": "burst",
}
"""Keys that make up a `Quota`, and its fields."""
_OTHER_POOLS: Final = ""
"""Stands for a pool that the file does not name; no pool is called so."""
_DEFAULTS: Final = NodePolicy()
_NO_POLICIES: Final[Mapping[str, NodePolicy]] = {_OTHER_POOLS: _DEFAULTS}


class Terms(NamedTuple):
    """What one tenant is entitled to. ``wait_target``: seconds that its jobs should wait at most, if it names any."""

    policies: Mapping[str, NodePolicy] = _NO_POLICIES
    """By pool; pools that the file does not name have the entry ""."""
    quota: Quota = NO_QUOTA
    retry: RetryPolicy | None = None
    wait_target: float | None = None

    def policy(self, pool: str) -> NodePolicy:
        """Return the policy in a pool."""
        return self.policies.get(pool) or self.policies[_OTHER_POOLS]


_NOTHING: Final = Terms()
_OF_TENANTS: Final = frozenset((*NODE_KEYS, *QUOTA_KEYS, "pools", "retry", "wait_target"))


class _Offer(NamedTuple):
    """What a plan gives an organisation, and each project of it."""

    organisation: Terms = _NOTHING
    project: Terms = _NOTHING


class Plans:
    """A plans file, resolved: everybody's terms in every pool. It does not change.

    ``source`` names the file, ``text`` is what it holds. ``default_plan`` is the plan of organisations that are not
    listed or name none; if it is ``None`` they have the defaults of `NodePolicy` and no quota. ``pools`` are the
    settings by pool, of which ``default`` is always there; ``limits`` those that jobs share. ``assigned``:
    organisation to plan, where something else than the file decides.
    """

    def __init__(self, source: str, text: str, document: Table) -> None:
        """``document``: what the file says, validated. Raises `PlansError` if it contradicts itself."""
        self.source = source
        self.text = text
        self.document = document
        self.default_plan: str | None = document.get("default_plan")
        self.assigned: Mapping[str, str] = {}
        self.limits: Mapping[str, SharedLimit] = {
            name: SharedLimit(**table) for name, table in document.get("limits", {}).items()
        }
        self.pools: Mapping[str, PoolPolicy] = {
            DEFAULT_POOL: PoolPolicy(),
            **{name: PoolPolicy(**table) for name, table in document.get("pools", {}).items()},
        }
        self._plans: Mapping[str, Table] = document.get("plans", {})
        self._organisations: Mapping[str, Table] = document.get("organisations", {})
        self._problems: list[Problem] = []
        self._offers = {name: self._offer(name, table) for name, table in self._plans.items()}
        self._refuse()  # before everybody who is on a plan that contradicts itself is named for it
        self._listed: dict[TenantPath, Terms] = {}
        for name in self._organisations:
            self._list(name)
        self._refuse()

    # --- whose terms ----------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the plans, in the file's order."""
        return tuple(self._plans)

    @property
    def organisations(self) -> tuple[str, ...]:
        """Names of the organisations that the file lists, in its order."""
        return tuple(self._organisations)

    def projects(self, organisation: str) -> tuple[str, ...]:
        """Names of an organisation's projects that the file lists, in its order."""
        return tuple(self._organisations.get(organisation, {}).get("projects", {}))

    def plan_of(self, organisation: str) -> str | None:
        """Return the name of an organisation's plan: as assigned, else as listed, else the default plan."""
        found = self.assigned.get(organisation)
        if found is None:
            found = self._organisations.get(organisation, {}).get("plan", self.default_plan)
        return found

    def terms(self, path: TenantPath) -> Terms:
        """Return what any organisation or project is entitled to, whether the file lists it or not.

        An organisation that is not listed has its plan's terms; a project that is not listed has those of
        ``each_project``. What is below projects has the defaults, and its project's retry policy and wait target.
        """
        if not path:
            return _NOTHING
        if len(path) > 2:
            return _below(self.terms(path[:2]))
        found = self._listed.get(path)
        if found is None and len(path) == 2:
            found = self._listed.get((path[0], ANY))
        if found is None:
            offer = self._offers.get(self.plan_of(path[0]) or "", _NO_OFFER)
            found = offer[len(path) - 1]
        return found

    def plan_terms(self, plan: str) -> tuple[Terms, Terms]:
        """Return what a plan gives an organisation, and each of its projects. Raises `KeyError`."""
        return self._offers[plan]

    def pool(self, name: str = DEFAULT_POOL) -> PoolPolicy:
        """Return a pool's settings; of one that the file does not name, the defaults of `PoolPolicy`."""
        return self.pools.get(name) or PoolPolicy()

    def policy(self, path: TenantPath, pool: str = DEFAULT_POOL) -> NodePolicy:
        """Return the policy of an organisation or project in a pool; see `terms`."""
        return self.terms(path).policy(pool)

    def quota(self, path: TenantPath) -> Quota:
        """Return what an organisation or project may submit; see `terms`."""
        return self.terms(path).quota

    def retry(self, path: TenantPath) -> RetryPolicy | None:
        """Return the retry policy of jobs that bring none, or ``None`` if nothing is said of it; see `terms`."""
        return self.terms(path).retry

    def wait_target(self, path: TenantPath) -> float | None:
        """Return the seconds that jobs should wait at most, or ``None`` if nothing is said of it; see `terms`."""
        return self.terms(path).wait_target

    # --- what is stored -------------------------------------------------------------------------------

    @property
    def quotas(self) -> dict[TenantPath, Quota]:
        """Everybody's quotas in the form of `Settings.quotas`: without those that follow from the others."""
        default = self._offers.get(self.default_plan or "", _NO_OFFER)
        anybody, any_project = default.organisation.quota, default.project.quota
        found: dict[TenantPath, Quota] = {}
        if not anybody.unlimited:
            found[ANY,] = anybody
        if not any_project.unlimited:
            found[ANY, ANY] = any_project
        for name in dict.fromkeys((*self._organisations, *self.assigned)):
            own, each = self.quota((name,)), self.quota((name, ANY))
            if own != anybody:
                found[name,] = own
            if each != any_project:
                found[name, ANY] = each
            for project in self.projects(name):
                quota = self.quota((name, project))
                if quota != each:
                    found[name, project] = quota
        return found

    def settings(self, base: Settings | None = None) -> Settings:
        """Return ``base`` with these plans in force: their text and assignments, and the quotas and limits they make.

        What ``base`` says of single nodes and pools stays: it comes before what plans say.
        """
        return replace(
            base or Settings(),
            plans=self.text,
            assigned=dict(self.assigned),
            quotas=self.quotas,
            limits=dict(self.limits),
        )

    def with_assigned(self, assigned: Mapping[str, str]) -> Plans:
        """Return these plans with organisations put on plans by something else than the file.

        Raises `UnknownPlan` for a plan that the file does not have, `PlansError` if what the file says of an
        organisation contradicts its new plan.
        """
        for name, plan in assigned.items():
            if self.assigned.get(name) != plan:
                check_name("organisation", name)
                if plan not in self._plans:
                    raise UnknownPlan(plan, self.names, unknown("plan", plan, self.names))
        moved = {name for name in {*assigned, *self.assigned} if assigned.get(name) != self.assigned.get(name)}
        plans = copy(self)
        plans.assigned = dict(assigned)
        plans._listed = dict(self._listed)
        plans._problems = []
        for name in moved:
            if name in self._organisations:
                plans._list(name)
        plans._refuse()
        return plans

    # --- resolving ------------------------------------------------------------------------------------

    def _offer(self, name: str, plan: Table) -> _Offer:
        key = ("plans", name)
        each = plan.get("each_project", {})
        return _Offer(
            self._made(key, [plan], [plan]), self._made((*key, "each_project"), [each], [plan, each], each=True)
        )

    def _list(self, name: str) -> None:
        """Resolve an organisation that the file lists, and its projects."""
        table, key = self._organisations[name], ("organisations", name)
        plan_name = self.plan_of(name)
        plan = self._plans[plan_name] if plan_name is not None else {}
        offer = self._offers.get(plan_name or "", _NO_OFFER)
        own = not _OF_TENANTS.isdisjoint(table)
        both = [plan, table]
        self._listed[name,] = self._made(key, both, both) if own else offer.organisation
        each = [part.get("each_project", {}) for part in both]
        if own or each[1]:
            self._listed[name, ANY] = self._made((*key, "each_project"), each, [*both, *each], each=True)
        else:
            self._listed[name, ANY] = offer.project
        for below, project in table.get("projects", {}).items():
            tables = [*each, self._plans.get(project.get("plan"), {}), project]
            self._listed[name, below] = self._made((*key, "projects", below), tables, [*both, *tables])

    def _made(
        self, key: tuple[str, ...], tables: Sequence[Table], chain: Sequence[Table], *, each: bool = False
    ) -> Terms:
        """Return the terms that ``tables`` make; note a problem at ``key`` if they contradict each other.

        ``chain``: the tables that retry policy and wait target are taken from. ``each``: they may say nothing.
        """
        if each and not any(tables):
            policies, quota = _NO_POLICIES, NO_QUOTA
        else:
            policies = {pool: self._policy(key, tables, pool) for pool in (_OTHER_POOLS, *self.pools)}
            quota = self._quota(key, tables)
        retry: dict[str, Any] = {}
        wait_target = None
        for table in chain:
            retry.update(table.get("retry", {}))
            wait_target = table.get("wait_target", wait_target)
        named = any("retry" in table for table in chain)
        return Terms(policies, quota, RetryPolicy(**retry) if named else None, wait_target)

    def _policy(self, key: tuple[str, ...], tables: Iterable[Table], pool: str) -> NodePolicy:
        given: dict[str, Any] = {}
        special = False
        for table in tables:
            in_pool = table.get("pools", {}).get(pool)
            special |= in_pool is not None
            for part in (table, in_pool or {}):
                given.update((name, part[name]) for name in NODE_KEYS if name in part)
        try:
            return NodePolicy(**given)
        except InvalidValue as error:
            where = f" (in pool {pool})" if special else ""
            self._contradiction(key, error, where)
            return _DEFAULTS

    def _quota(self, key: tuple[str, ...], tables: Iterable[Table]) -> Quota:
        given: dict[str, Any] = {}
        for table in tables:
            if "rate" in table and table["rate"] is None:
                given.pop("burst", None)  # it goes with the rate
            given.update((field, table[name]) for name, field in QUOTA_KEYS.items() if name in table)
        try:
            return Quota(**given)
        except InvalidValue as error:
            self._contradiction(key, error)
            return NO_QUOTA

    def _contradiction(self, key: tuple[str, ...], error: InvalidValue, where: str = "") -> None:
        self._problems.append(Problem(dotted((*key, error.what.replace(" ", "_"))), error.value, error.rule + where))

    def _refuse(self) -> None:
        found = list(dict.fromkeys(self._problems))  # the same may be found in every pool
        if found:
            raise PlansError(self.source, found)


_NO_OFFER: Final = _Offer()


def _below(terms: Terms) -> Terms:
    """Return what of a project's terms holds for what is below it."""
    return Terms(retry=terms.retry, wait_target=terms.wait_target)


NO_PLANS: Final = Plans("plans", "", {})
"""Everybody equal, and nobody limited."""
