"""Encrypted connections to a real server, with certificates made for the test; and options that cannot be."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio.connection import SSLConnection

from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.errors import BackendError, InvalidValue, ServerFailed, StoreUnavailable
from drr_backends.redis import open_redis
from drr_backends.redis.link import Address
from tests.redis.harness import RedisHarness, every_operation
from tests.redis.ports import free_ports


class Authority:
    """Certificates in files: of an authority, and by it of a server at 127.0.0.1 and of a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self._ca_key = folder / "ca.pem", folder / "ca.key"
        self._run("req", "-x509", *self._new(self._ca_key), "-out", str(self.ca), "-subj", "/CN=test authority")
        self.server = self._issue("server", "subjectAltName=IP:127.0.0.1")
        self.client = self._issue("client", "subjectAltName=DNS:client")

    def _issue(self, name: str, extension: str) -> tuple[Path, Path]:
        cert, key, asked = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        (self.folder / "extension").write_text(extension)
        self._run("req", *self._new(key), "-out", str(asked), "-subj", f"/CN={name}")
        signed = ("-CA", str(self.ca), "-CAkey", str(self._ca_key), "-CAcreateserial", "-days", "2")
        extended = ("-extfile", str(self.folder / "extension"))
        self._run("x509", "-req", "-in", str(asked), "-out", str(cert), *signed, *extended)
        return cert, key

    @staticmethod
    def _new(key: Path) -> tuple[str, ...]:
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key))

    @staticmethod
    def _run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl on PATH to make certificates with")
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=["valkey-server", "redis-server"])
def encrypted(request: pytest.FixtureRequest, authority: Authority) -> Iterator[int]:
    """The port of a server that demands certificates of clients."""
    request.getfixturevalue(f"{request.param.partition('-')[0]}_server")  # skips where there is no such server
    (port,) = free_ports(1)
    cert, key = authority.server
    directives = {
        "tls-port": str(port),
        "tls-cert-file": str(cert),
        "tls-key-file": str(key),
        "tls-ca-cert-file": str(authority.ca),
        "tls-auth-clients": "yes",
    }
    server = EmbeddedServer(binary=request.param, directives=directives)
    try:
        server.start()
    except ServerFailed as failure:
        if "TLS support" not in failure.log:
            raise
        pytest.skip(f"{server.binary} was built without TLS: {failure.log.splitlines()[-1]}")
    yield port
    server.close()


@pytest.fixture
async def stores() -> AsyncIterator[list[RedisHarness]]:
    opened: list[RedisHarness] = []
    yield opened
    for store in opened:
        await store.close()


def query(ca: Path, pair: tuple[Path, Path] | None) -> str:
    return f"ca={ca}" + (f"&cert={pair[0]}&key={pair[1]}" if pair else "")


@pytest.mark.anyio
@pytest.mark.redis
async def test_every_operation_works_encrypted(
    encrypted: int, authority: Authority, stores: list[RedisHarness]
) -> None:
    store = RedisHarness(f"rediss://127.0.0.1:{encrypted}/0?{query(authority.ca, authority.client)}", "own")
    stores.append(store)
    await every_operation(store.handle)


@pytest.mark.anyio
@pytest.mark.redis
async def test_who_is_not_trusted_is_refused(
    encrypted: int, authority: Authority, stores: list[RedisHarness], tmp_path: Path
) -> None:
    """Neither a server of another authority, nor one of another name, nor a client without a certificate."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    for host, options, why in (
        ("127.0.0.1", query(other.ca, authority.client), "its certificate is not accepted"),
        ("localhost", query(authority.ca, authority.client), "its certificate is not accepted.*localhost"),
    ):
        store = RedisHarness(f"rediss://{host}:{encrypted}?{options}", "own")
        stores.append(store)
        with pytest.raises(BackendError, match=why) as refused:
            await store.handle.leader()
        assert not isinstance(refused.value, StoreUnavailable), why
    for options, why in ((query(authority.ca, other.client), "UNKNOWN_CA"), (query(authority.ca, None), "REQUIRED")):
        store = RedisHarness(f"rediss://127.0.0.1:{encrypted}?{options}", "own")
        stores.append(store)
        # The server's reason may be overtaken by the end of the connection.
        with pytest.raises(BackendError, match=rf"{why}|reset|closed|[Bb]roken pipe"):
            await store.handle.leader()


# --- URLs


def test_options_of_a_url_reach_the_connection(authority: Authority) -> None:
    cert, key = authority.client
    address = Address(
        f"rediss://me:secret@host/2?ca={authority.ca}&cert={cert}&key={key}&client_name=billing&ssl_check_hostname=false"
    )
    connection = address.make_connection()
    assert isinstance(connection, SSLConnection)
    assert (connection.ca_certs, connection.certfile, connection.keyfile) == (str(authority.ca), str(cert), str(key))
    assert not connection.check_hostname
    assert (connection.db, connection.client_name, address.shown) == (2, "billing", "host:6379")
    assert connection.retry.get_retries() == 0


def test_redis_pys_own_names_serve_too(authority: Authority) -> None:
    connection = Address(f"rediss://host?ssl_ca_certs={authority.ca}").make_connection()
    assert isinstance(connection, SSLConnection)
    assert (connection.ca_certs, connection.check_hostname) == (str(authority.ca), True)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("ca=/nowhere/ca.pem", "option ca is '/nowhere/ca.pem'"),
        ("ca={folder}", "option ca is"),
        ("ca={key}", "option ca is"),
        ("cert=/nowhere/cert.pem", "option cert is '/nowhere/cert.pem'"),
        ("cert={cert}&key=/nowhere/key", "option key is '/nowhere/key'"),
        ("key={key}", "option key is"),
        ("cert={ca}&key={key}", "option cert is"),
        ("cert={cert}", "option cert is"),
        ("ssl_cert_reqs=perhaps", "cert_reqs"),
        ("ssl_ciphers=none-such", "ciphers"),
        ("ssl_nonsense=1", "ssl_nonsense"),
        ("ca=", "once, with a value"),
        ("ca={ca}&ca={ca}", "once, with a value"),
        ("ca={ca}&ssl_ca_certs={ca}", "once, with a value"),
    ],
)
def test_options_that_cannot_be_are_named(authority: Authority, options: str, named: str) -> None:
    cert, key = authority.client
    filled = options.format(ca=authority.ca, cert=cert, key=key, folder=authority.folder)
    with pytest.raises(InvalidValue, match=named):
        open_redis(f"rediss://host/0?{filled}", "n", SystemClock())


def test_encryption_needs_its_scheme(authority: Authority) -> None:
    for url in (f"redis://host?ca={authority.ca}", f"redis+sentinel://host/jobs?ca={authority.ca}"):
        with pytest.raises(InvalidValue, match=r"rediss://, or tls=yes"):
            open_redis(url, "n", SystemClock())
