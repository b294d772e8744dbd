"""From the options of ``drr serve`` to policies.

A node option is written ``[POOL:]PATH=VALUE``, a pool option ``[POOL=]VALUE``. What one command line says of a node
is that node's whole policy: what it leaves out has its default, whatever was stored before. Nodes and
pools that it does not name keep what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from drr.cli.fields import read_count, read_named, read_number
from drr.errors import InvalidPolicy
from drr.model import NodePolicy, PoolPolicy, TenantPath, check_name, check_path, parse_amount

NodeOptions = Mapping[str, Sequence[str]]
"""The entries of each node option, by the field of `NodePolicy` that they set."""
PoolOptions = Mapping[str, Sequence[str]]
"""The entries of each pool option, by the field of `PoolPolicy` that they set."""

_READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "weight": read_number,
    "soft_cap": parse_amount,
    "hard_cap": parse_amount,
    "floor": parse_amount,
    "ceiling": read_number,
    "quantum": read_number,
    "default_estimate": read_number,
    "reserve": read_count,
}


@dataclass(frozen=True, slots=True)
class Entitlements:
    """What a command line says of pools and of the nodes of their trees."""

    pools: dict[str, PoolPolicy]
    policies: dict[str, dict[str | TenantPath, NodePolicy]]


def read_entitlements(pool: str, nodes: NodeOptions, pools: PoolOptions) -> Entitlements:
    """Return the policies that the options describe; ``pool`` is meant where none is named.

    Raises `InvalidPolicy`, `InvalidName` or `InvalidValue`, naming the option and the node.
    """
    check_name("pool", pool)
    return Entitlements(_read_pools(pool, pools), _read_nodes(pool, nodes))


def _read_pools(default: str, options: PoolOptions) -> dict[str, PoolPolicy]:
    fields: dict[str, dict[str, Any]] = {}
    for name, entries in options.items():
        what = name.replace("_", " ")
        for pool, value in read_named(what, entries, default, _READERS[name]).items():
            fields.setdefault(check_name("pool", pool), {})[name] = value
    return {pool: _made(PoolPolicy, f"pool {pool}", given) for pool, given in fields.items()}


def _read_nodes(default: str, options: NodeOptions) -> dict[str, dict[str | TenantPath, NodePolicy]]:
    fields: dict[tuple[str, TenantPath], dict[str, Any]] = {}
    for name, entries in options.items():
        what = name.replace("_", " ")
        for entry in entries:
            target, equals, text = entry.partition("=")
            if not equals:
                raise InvalidPolicy(what, entry, "it is written [POOL:]TENANT=VALUE, for instance acme/imports=3")
            before, colon, after = target.partition(":")
            pool, path = (before, after) if colon else (default, target)
            given = fields.setdefault((check_name("pool", pool), check_path(path)), {})
            if name in given:
                raise InvalidPolicy(f"{what} of {target}", text, "it is given twice; give it once")
            given[name] = _READERS[name](f"{what} of {target}", text)
    policies: dict[str, dict[str | TenantPath, NodePolicy]] = {}
    for (pool, names), given in fields.items():
        policies.setdefault(pool, {})[names] = _made(NodePolicy, "/".join(names), given)
    return policies


def _made(kind: type[Any], whose: str, given: dict[str, Any]) -> Any:
    try:
        return kind(**given)
    except InvalidPolicy as error:
        raise InvalidPolicy(f"{error.what} of {whose}", error.value, error.rule) from None
