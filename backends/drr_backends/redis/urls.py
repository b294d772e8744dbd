"""What a store's URL says, checked before anything is connected; messages never show a password.

    redis://[user:password@]host[:port][/db][?options]       rediss:// the same, encrypted
    unix:///path/of/socket[?options]
    redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/db][?options]

``replicas`` (and ``replica_timeout``, in seconds) make a submit wait until so many replicas have it (replication.py).
Options that set what this adapter relies on (timeouts, retries, decoding) are refused.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, parse_url

from drr.errors import InvalidValue
from drr_backends.redis.replication import Replication
from drr_backends.redis.sentinel import EncryptedPrimaryConnection, PrimaryConnection, Sentinels
from drr_backends.redis.tls import TLS_OPTIONS, check_tls, tls_name

SENTINEL_SCHEME: Final = "redis+sentinel"
SENTINEL_PORT: Final = 26379
_OPTIONS: Final = ("host", "port", "path", "db", "username", "password", "client_name")
_OF_SENTINEL: Final = ("sentinel_username", "sentinel_password", "tls")
_SWITCH: Final = {"yes": True, "no": False}


class Place(NamedTuple):
    """Where a store is: how redis-py connects to it, and what to call it in messages."""

    connection_class: type[AbstractConnection]
    options: dict[str, Any]
    shown: str
    replication: Replication


def read_url(url: str) -> Place:
    """Return what ``url`` says. Raises `InvalidValue`, naming the option that cannot be."""
    try:
        parts = urlsplit(url)
        query = _read_query(parts.query)
        replication = Replication.taken_from(query)
        if parts.scheme == SENTINEL_SCHEME:
            return _read_sentinel(url, query, replication)
        tls = parts.scheme == "rediss"
        path = parts.path.strip("/")
        if parts.scheme != "unix" and path and not path.isdecimal():
            raise ValueError("its path must be the number of a database")
        shown = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
        options = _options_of(parts._replace(query=urlencode(query)).geturl(), tls)
    except InvalidValue:
        raise
    except ValueError as error:
        raise InvalidValue("store URL", redacted(url), f"it must be valid: {error}") from None
    return Place(options.pop("connection_class", Connection), options, shown, replication)


def redacted(url: str) -> str:
    """Return ``url`` without its credentials and without the values of its options."""
    scheme, _, rest = url.partition("://")
    place, question, query = rest.rpartition("@")[2].partition("?")
    names = "&".join(f"{part.partition('=')[0]}=..." for part in query.split("&"))
    return f"{scheme}://{place}" + (f"?{names}" if question else "")


def _read_query(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for given, value in parse_qsl(text, keep_blank_values=True):
        name = tls_name(given)
        if not value or name in found:
            raise InvalidValue("store URL option", given, "it must be given once, with a value")
        found[name] = value
    return found


def _options_of(url: str, tls: bool) -> dict[str, Any]:
    options: dict[str, Any] = dict(parse_url(url))
    for name in options:
        if name in TLS_OPTIONS and not tls:
            raise InvalidValue("store URL option", name, "it needs an encrypted connection: rediss://, or tls=yes")
        if name not in _OPTIONS and name not in TLS_OPTIONS and name != "connection_class":
            known = ", ".join((*_OPTIONS, "ca", "cert", "key", "replicas", "replica_timeout"))
            raise InvalidValue("store URL option", name, f"it must be one of {known}, or ssl_... as of redis-py")
    if tls:
        check_tls(options)
    return options


def _read_sentinel(url: str, query: dict[str, str], replication: Replication) -> Place:
    parts = urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    service, _, database = unquote(parts.path).strip("/").partition("/")
    if not service:
        raise ValueError("its path must name the service that the Sentinels watch, such as /mymaster")
    if database and not database.isdecimal():
        raise ValueError("what follows the service must be the number of a database")
    own = {name: query.pop(name) for name in _OF_SENTINEL if name in query}
    switch = own.pop("tls", "no")
    if switch not in _SWITCH:
        raise InvalidValue("store URL option tls", switch, "it must be yes or no")
    tls = _SWITCH[switch]
    # The options are those of a URL of the primary itself, whose host is not known yet.
    scheme = "rediss" if tls else "redis"
    options = _options_of(f"{scheme}://{user}@sentinel/{database}?{urlencode(query)}", tls)
    for name in ("host", "port", "path"):
        if name in query:
            raise InvalidValue("store URL option", name, "the Sentinels tell where the primary is")
    for name in ("host", "connection_class"):
        options.pop(name, None)
    addresses = [_address(host) for host in hosts.split(",")]
    encryption = {name: value for name, value in options.items() if name in TLS_OPTIONS}
    sentinels = Sentinels(
        service,
        addresses,
        username=own.get("sentinel_username"),
        password=own.get("sentinel_password"),
        **({"ssl": True, **encryption} if tls else {}),
    )
    options["connection_pool"] = sentinels
    return Place(EncryptedPrimaryConnection if tls else PrimaryConnection, options, sentinels.shown, replication)


def _address(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("it must name each Sentinel as host or host:port, with commas in between")
    return parts.hostname, parts.port or SENTINEL_PORT
