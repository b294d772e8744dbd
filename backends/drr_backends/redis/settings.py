"""The stored settings, and what of them admission reads. Hostile until decoded here (`MalformedMessage`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from drr.errors import DrrError, MalformedMessage, StoreCorrupt
from drr.model import (
    ANY,
    Amount,
    NodePolicy,
    Policies,
    PoolPolicy,
    Quota,
    Settings,
    Share,
    SharedLimit,
    TenantPath,
    check_name,
)
from drr.wire import pack, unpack
from drr_backends.redis.codec import VERSION
from drr_backends.redis.records import record

SETTINGS_LIMIT: Final = 64 * 1024 * 1024
_PER_CHUNK: Final = 5000


def encode_settings(settings: Settings) -> bytes:
    """Return the record of all settings."""
    pools = {
        name: (pool.quantum, pool.ceiling, pool.reserve, pool.default_estimate, pool.lease)
        for name, pool in settings.pools.items()
    }
    nodes: list[Any] = [
        (pool, path, (policy.weight, _amount(policy.soft_cap), _amount(policy.hard_cap), _amount(policy.floor),
                      policy.ceiling))
        for pool, policies in settings.nodes.items()
        for path, policy in policies.items()
    ]  # fmt: skip
    # A pool without policies is kept too, as an entry without a path.
    nodes += [(pool, None, None) for pool, policies in settings.nodes.items() if not policies]
    chunks = [pack(nodes[i : i + _PER_CHUNK]) for i in range(0, len(nodes), _PER_CHUNK)]
    quotas = [
        (path, (quota.jobs, quota.worker_seconds, quota.rate, quota.burst)) for path, quota in settings.quotas.items()
    ]
    limits = {
        name: (limit.concurrency, limit.rate, limit.burst, limit.per_organisation, limit.per_project)
        for name, limit in settings.limits.items()
    }
    assigned = list(settings.assigned.items())
    return pack((VERSION, pools, chunks, settings.plans.encode(), _chunks(assigned), _chunks(quotas), limits))


def _chunks(items: list[Any]) -> list[bytes]:
    return [pack(items[i : i + _PER_CHUNK]) for i in range(0, len(items), _PER_CHUNK)]


def encode_admission(settings: Settings, packed: bytes) -> list[Any]:
    """Return ``packed``, then the fields and values of the hash that a submit looks at."""
    parts: list[Any] = [packed]
    for path, quota in settings.quotas.items():
        if quota.unlimited:
            parts += ("/".join(path), "- - - -")
            continue
        micros = None if quota.worker_seconds is None else round(quota.worker_seconds * 1e6)
        burst = None if quota.rate is None else quota.bucket
        values = (quota.rate, burst, quota.jobs, micros)
        parts += ("/".join(path), " ".join("-" if value is None else repr(value) for value in values))
    for name in settings.limits:
        parts += (f"limit:{name}", "1")
    return parts


def _amount(value: Amount | None) -> int | float | None:
    # A share is told from a count by its type: floats are shares.
    return float(value.fraction) if isinstance(value, Share) else value


def decode_settings(data: bytes) -> Settings:
    """Decode the settings; raises `MalformedMessage`."""
    _, pools, chunks, plans, assigned, quotas, limits = record("settings", data, 7, SETTINGS_LIMIT)
    try:
        found_pools = {check_name("pool", name): PoolPolicy(*values) for name, values in pools.items()}
        nodes: dict[str, dict[tuple[str, ...], NodePolicy]] = {}
        for chunk in chunks:
            for pool, path, policy in unpack("settings", chunk):
                policies = nodes.setdefault(check_name("pool", pool), {})
                if path is not None:
                    weight, soft, hard, floor, ceiling = policy
                    policies[tuple(check_name("tenant", name) for name in path)] = NodePolicy(
                        weight, _read_amount(soft), _read_amount(hard), _read_amount(floor) or 0, ceiling
                    )
        final: Mapping[str, Policies] = nodes
        return Settings(
            found_pools,
            final,
            plans.decode(),
            {check_name("organisation", name): check_name("plan", plan) for name, plan in _unchunked(assigned)},
            {_quota_path(path): Quota(*values) for path, values in _unchunked(quotas)},
            {check_name("limit", name): SharedLimit(*values) for name, values in limits.items()},
        )
    except (DrrError, ValueError, TypeError, AttributeError) as error:
        raise MalformedMessage("settings", str(error)[:300]) from None


def _unchunked(chunks: list[bytes]) -> list[Any]:
    return [item for chunk in chunks for item in unpack("settings", chunk)]


def _quota_path(path: list[str]) -> TenantPath:
    return tuple(name if name == ANY else check_name("tenant", name) for name in path)


def _read_amount(value: Any) -> Amount | None:
    return Share(value) if isinstance(value, float) else value


def read_settings(data: bytes | None) -> Settings:
    """Return the stored settings, or none if nothing was stored. Raises `StoreCorrupt`."""
    if data is None:
        return Settings()
    try:
        return decode_settings(data)
    except MalformedMessage as error:
        # Going on with the defaults would lift every cap without a word.
        raise StoreCorrupt(
            f"the stored settings cannot be read ({error}); delete the key `settings` and set weights and caps again"
        ) from None
