"""What follows from what a server tells: the level, the warnings, and what stays unknown."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from drr.dispatcher import StoreStatus, decode_status
from drr.dispatcher.status import Status, encode_status
from drr.dispatcher.surveying import INTERVAL
from drr.durability import Caution, Level, Survey
from drr.errors import StoreUnavailable
from drr.wire import pack, unpack
from drr_backends.redis.server import read_info, survey_of
from tests.helpers.desk import ACME
from tests.helpers.site import Site, running

GOOD = Survey(
    server="Valkey 9.1.2",
    supported=True,
    append_only=True,
    fsync="always",
    snapshots=False,
    disk_fails=False,
    memory_limit=0,
    eviction="noeviction",
    replicas=1,
    replicas_needed=1,
)


def changed(**facts: Any) -> Survey:
    return Survey(**{name: facts.get(name, getattr(GOOD, name)) for name in GOOD.__slots__})


def cautions(survey: Survey) -> list[Caution]:
    return [remark.caution for remark in survey.warnings]


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({}, Level.SYNCED),
        ({"fsync": "everysec"}, Level.SECOND),
        ({"fsync": "no"}, Level.SYSTEM),
        ({"fsync": None}, Level.UNKNOWN),
        ({"append_only": False}, Level.NOTHING),
        ({"append_only": False, "snapshots": True}, Level.SNAPSHOTS),
        ({"append_only": False, "snapshots": None}, Level.UNKNOWN),
        ({"append_only": None}, Level.UNKNOWN),
    ],
)
def test_the_level_follows_from_log_sync_and_snapshots(facts: dict[str, Any], level: Level) -> None:
    assert changed(**facts).level is level


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"append_only": False}, [Caution.KEEPS_NOTHING]),
        ({"append_only": False, "snapshots": True}, [Caution.SNAPSHOTS_ONLY]),
        ({"memory_limit": 1, "eviction": "allkeys-lru"}, [Caution.MAY_EVICT]),
        ({"memory_limit": 1, "eviction": "volatile-ttl"}, [Caution.MAY_EVICT]),
        ({"supported": False}, [Caution.TOO_OLD]),
        ({"disk_fails": True}, [Caution.DISK_FAILING]),
        (
            {"supported": False, "append_only": False, "memory_limit": 1, "eviction": "allkeys-lru"},
            [Caution.TOO_OLD, Caution.KEEPS_NOTHING, Caution.MAY_EVICT],
        ),
    ],
)
def test_what_is_wrong_is_warned_of(facts: dict[str, Any], expected: list[Caution]) -> None:
    survey = changed(**facts)
    assert cautions(survey) == expected
    assert all(remark.text.startswith("Valkey 9.1.2 ") for remark in survey.warnings)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"fsync": "everysec"},
        {"memory_limit": 1 << 30},
        {"eviction": "allkeys-lru"},  # without a limit nothing is evicted
        {name: None for name in GOOD.__slots__ if name != "server"},
        {"memory_limit": 1 << 30, "eviction": None},
    ],
)
def test_what_is_right_or_unknown_is_not(facts: dict[str, Any]) -> None:
    assert cautions(changed(**facts)) == []


def test_what_is_unknown_is_named_where_it_matters() -> None:
    assert GOOD.unknown == ()
    assert changed(snapshots=None, eviction=None).unknown == ()
    assert changed(fsync=None).unknown == ("fsync",)
    assert changed(memory_limit=1, eviction=None).unknown == ("eviction",)
    assert Survey().unknown == ("supported", "append_only", "snapshots", "memory_limit")


# --- reading servers


INFO = b"# Server\r\nredis_version:7.2.4\r\nvalkey_version:9.1.2\r\naof_enabled:1\r\nmaxmemory:100\r\n" + (
    b"maxmemory_policy:allkeys-lru\r\nconnected_slaves:2\r\naof_last_write_status:ok\r\nrdb_last_bgsave_status:err\r\n"
)


def test_info_alone_tells_most_of_it() -> None:
    survey = survey_of(INFO, {})
    assert (survey.server, survey.supported, survey.append_only) == ("Valkey 9.1.2", True, True)
    assert (survey.fsync, survey.level, survey.unknown) == (None, Level.UNKNOWN, ("fsync",))
    assert (survey.memory_limit, survey.eviction, survey.replicas, survey.disk_fails) == (100, "allkeys-lru", 2, True)
    assert cautions(survey) == [Caution.MAY_EVICT, Caution.DISK_FAILING]


def test_settings_alone_tell_all_but_the_version() -> None:
    survey = survey_of(
        None, {"appendonly": "no", "save": "3600 1", "maxmemory": "0", "maxmemory-policy": "noeviction"}
    )
    assert (survey.server, survey.level, survey.unknown) == ("", Level.SNAPSHOTS, ("supported",))
    assert survey.warnings[0].text.startswith("the server keeps snapshots only")


def test_nothing_told_is_nothing_known_and_nothing_said() -> None:
    assert survey_of(None, {}) == Survey()
    assert survey_of(b"", {}) == Survey()


@pytest.mark.parametrize("info", [b"\xff\xfe", b"a\r\nb:c:d\r\n:\r\n", b"maxmemory:lots\r\nconnected_slaves:-1"])
def test_replies_that_make_no_sense_are_unknown(info: bytes) -> None:
    survey = survey_of(info, {"appendfsync": "sometimes", "maxmemory": "\u00b2"})
    assert (survey.memory_limit, survey.fsync, survey.replicas) == (None, None, None)


def test_an_old_server_is_named() -> None:
    survey = survey_of(b"redis_version:6.2.14\r\n", {})
    assert (survey.server, survey.supported) == ("Redis 6.2.14", False)
    assert read_info(b"a:b:c\r\n") == {"a": "b:c"}


# --- the dispatcher's part


def told(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == level and ("keeps" in record.getMessage() or "tell" in record.getMessage())
    ]


@pytest.mark.anyio
async def test_a_warning_is_given_at_the_start_once_and_again_when_it_comes_back(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    survey = [changed(append_only=False)]

    async def say() -> Survey:
        return survey[0]

    monkeypatch.setattr(site.backend, "survey", say)
    async with running(site) as dispatcher:
        assert told(caplog, logging.WARNING) == [f"keeps_nothing: {survey[0].warnings[0].text}"]
        assert dispatcher.health().cautions == (Caution.KEEPS_NOTHING,)
        assert dispatcher.health().ready, "a warning stops nobody"
        await site.clock.advance(3 * INTERVAL)
        assert len(told(caplog, logging.WARNING)) == 1
        survey[0] = GOOD
        await site.clock.advance(INTERVAL)
        assert (dispatcher.health().durability, dispatcher.health().cautions) == (Level.SYNCED, ())
        survey[0] = changed(append_only=False)
        await site.clock.advance(INTERVAL)
        assert len(told(caplog, logging.WARNING)) == 2


@pytest.mark.anyio
async def test_a_server_that_is_set_well_is_not_warned_of(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def say() -> Survey:
        return GOOD

    monkeypatch.setattr(site.backend, "survey", say)
    async with running(site):
        await site.clock.advance(2 * INTERVAL)
    assert told(caplog, logging.WARNING) == []


@pytest.mark.anyio
async def test_what_the_server_does_not_tell_is_said_once_and_stops_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def say() -> Survey:
        return Survey()

    monkeypatch.setattr(site.backend, "survey", say)
    async with running(site) as dispatcher:
        await dispatcher.wait_leading()
        await site.clock.advance(2 * INTERVAL)
        assert dispatcher.health().durability is Level.UNKNOWN
    [text] = told(caplog, logging.INFO)
    assert text.startswith("the store does not tell: supported, append_only, snapshots, memory_limit")
    assert told(caplog, logging.WARNING) == []


@pytest.mark.anyio
async def test_a_store_that_fails_to_say_is_asked_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [GOOD]

    async def say() -> Survey:
        if len(answers) == 1:
            answers.append(GOOD)
            raise StoreUnavailable("away")
        return answers[0]

    monkeypatch.setattr(site.backend, "survey", say)
    async with running(site) as dispatcher:
        assert dispatcher.health().ready
        assert dispatcher.health().durability is Level.UNKNOWN
        await site.clock.advance(INTERVAL)
        assert dispatcher.health().durability is Level.SYNCED


@pytest.mark.anyio
async def test_the_status_tells_of_the_store_and_of_the_last_commit(site: Site) -> None:
    async with running(site):
        await site.submit(ACME, estimate=1000.0)
        await site.join(slots=1)
        await site.clock.settle()
        committed_at = site.clock.wall()
        await site.clock.advance(3.0)
        status = decode_status((await site.status()).blob)
    assert (status.store.server, status.store.level) == ("memory of this process", "nothing")
    assert list(status.store.cautions) == ["keeps_nothing"]
    assert status.committed_at == pytest.approx(committed_at, abs=1.0)


def test_a_status_of_before_is_read_without_them() -> None:
    raw = unpack("status", encode_status(Status(1.0, "d1", "0", 1.0, {}, ())))
    del raw["store"], raw["committed_at"]
    status = decode_status(pack(raw))
    assert (status.store, status.committed_at) == (StoreStatus(), None)
