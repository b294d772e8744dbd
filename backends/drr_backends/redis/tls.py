"""Encryption: the options of a URL, checked when the store is opened, and what a failed handshake means.

Certificates are read again at every connection, so that renewed files serve without a restart.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from redis.asyncio.connection import RedisSSLContext
from redis.exceptions import RedisError

from drr.errors import InvalidValue

_SHORT: Final = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}
TLS_OPTIONS: Final = (
    *_SHORT.values(),
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_password",
)
"""Options of redis-py's connections that a URL may set."""

_PERMANENT: Final = (
    "WRONG_VERSION_NUMBER",
    "HANDSHAKE_FAILURE",
    "CERTIFICATE_REQUIRED",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
)
"""Ends of OpenSSL's reasons that no repetition changes."""


def tls_name(name: str) -> str:
    """Return redis-py's name of an option."""
    return _SHORT.get(name, name)


def check_tls(options: Mapping[str, Any]) -> None:
    """Raise `InvalidValue`, naming the option, if these options make no encrypted connection."""
    ca, cert, key = (options.get(name) for name in _SHORT.values())
    for name, path in (("ca", ca), ("cert", cert), ("key", key)):
        if path is not None:
            _check_readable(name, path)
    if key is not None and cert is None:
        raise InvalidValue("store URL option key", key, "it needs cert=, the certificate that the key belongs to")
    context = ssl.create_default_context()
    if ca is not None:
        try:
            context.load_verify_locations(cafile=ca)
        except ssl.SSLError as error:
            rule = f"the file must hold trusted certificates in PEM: {error}"
            raise InvalidValue("store URL option ca", ca, rule) from None
    if cert is not None:
        try:
            # A password of its own, or OpenSSL would ask for one on the terminal.
            context.load_cert_chain(cert, key, options.get("ssl_password", ""))
        except ssl.SSLError as error:
            rule = (
                f"this certificate and its key (key=, or in the same file) must be PEM and belong together: {error}"
            )
            raise InvalidValue("store URL option cert", cert, rule) from None
    given = {name.removeprefix("ssl_"): value for name, value in options.items() if name in TLS_OPTIONS}
    try:
        RedisSSLContext(**given).get()  # type: ignore[no-untyped-call,unused-ignore]
    except (RedisError, ValueError, TypeError, OSError) as error:
        raise InvalidValue("store URL options", sorted(given), f"they must make sense together: {error}") from None


def _check_readable(name: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidValue(f"store URL option {name}", path, f"it must be a file to read: {reason}") from None


def handshake_fault(error: BaseException | None) -> str | None:
    """Return why a handshake behind ``error`` failed, if no repetition can help; else ``None``."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted ({error.verify_message}); see ca= and the host's name"
        if isinstance(error, ssl.SSLError) and str(error.reason).endswith(_PERMANENT):
            return f"the handshake failed ({error.reason}); see whether it is encrypted, and cert= and key="
        error = error.__cause__ or error.__context__
    return None
