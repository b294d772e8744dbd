"""Checking what a `Dispatcher` is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from drr.dispatcher.batch import Rules
from drr.dispatcher.settings import Binding, check_node_policy, check_pool_policy, set_node, set_pool
from drr.errors import InvalidConfiguration
from drr.model import NodePolicy, PoolPolicy, TenantPath, check_name, check_number

BEATS_PER_LEASE: Final = 3
"""A heartbeat may be lost twice in a row before the lease is."""


@dataclass(frozen=True, slots=True)
class Options:
    """The checked settings of a dispatcher. ``bindings``: entitlements to start with."""

    name: str
    rules: Rules
    leader_lease: float
    patience: float
    bindings: tuple[Binding, ...]


def read_options(
    name: str,
    lease: float,
    heartbeat: float | None,
    leader_lease: float,
    patience: float,
    poison_after: int,
    depth: int,
    pools: Mapping[str, PoolPolicy] | None,
    policies: Mapping[str, Mapping[str | TenantPath, NodePolicy]] | None,
) -> Options:
    """Return the checked settings; see `Dispatcher`."""
    check_number("lease", lease, 0.1, 86_400.0, error=InvalidConfiguration)
    check_number("leader lease", leader_lease, 0.1, 3600.0, error=InvalidConfiguration)
    check_number("patience", patience, 0.0, 86_400.0, error=InvalidConfiguration)
    for what, value, high in (("poison_after", poison_after, 65_535), ("depth", depth, 16)):
        if type(value) is not int or not 1 <= value <= high:
            raise InvalidConfiguration(what, value, f"it must be a whole number from 1 to {high}")
    rules = Rules(float(lease), _check_heartbeat(lease, heartbeat), poison_after, depth)
    bindings = [set_pool(check_pool_policy(pool, policy), policy) for pool, policy in (pools or {}).items()]
    for pool, nodes in (policies or {}).items():
        check_name("pool", pool)
        bindings.extend(
            set_node(pool, check_node_policy(path, policy, depth), policy) for path, policy in nodes.items()
        )
    checked = check_name("dispatcher", name or "dispatcher")
    return Options(checked, rules, float(leader_lease), float(patience), tuple(bindings))


def _check_heartbeat(lease: float, heartbeat: float | None) -> float:
    longest = lease / BEATS_PER_LEASE
    if heartbeat is None:
        return longest
    if not 0.0 < heartbeat <= longest * (1 + 1e-9):  # also false for a NaN
        rule = (
            f"with a lease of {lease!r} s it must be above 0 and at most a third of it ({longest:g} s): "
            "shorten the heartbeat, or lengthen the lease, at the workers too"
        )
        raise InvalidConfiguration("heartbeat", heartbeat, rule)
    return float(heartbeat)


def package_version() -> str:
    """Return the installed version of drr, or "unknown" from a bare source tree."""
    try:
        return version("drr-dispatcher")
    except PackageNotFoundError:
        return "unknown"
