"""What names something: ids, cursors, queues, addresses."""

from __future__ import annotations

from random import Random
from typing import Any

from fuzz.mutation import mutate
from fuzz.target import Target, check
from fuzz.values import text, wild
from millstream.client.streaming.cursor import Cursor
from millstream.errors import InvalidRequest
from millstream.wire.connection import Endpoint
from millstream.wire.connection.nodes import ServerNode
from millstream.wire.keys import QueueKeys, check_own_id, full_id, is_job_id, job_id_of, shard_of
from millstream.wire.state.dead_letter import Place

PASSWORD = "zqsecret"
_NAMES = (
    "default", "docs", "a:b", "0-invoice-17", "12-a", "0@1-1", "7@18446744073709551615-3", "1-17",
    "3-0", "batch",
)  # fmt: skip
_HOSTS = (
    "localhost", "127.0.0.1:6379", "[::1]:6379", "h:0", "h:65535", "h:65536", "h:x", "", ":",
    "h1:1,h2:2", ",", "é", "a b", "%00", "[", "]", "[::", "%zz",
)  # fmt: skip
_SCHEMES = (
    "redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
    "http", "", "REDIS", "redis+",
)  # fmt: skip
_PATHS = (
    "", "/", "/0", "/15", "/x", "/mymaster", "/mymaster/0", "/mymaster/²", "//", "/%2e%2e", "/-1",
    "/99999999999999999999", "/tmp/no.sock", "/m/" + "9" * 5000,
)  # fmt: skip
_QUERIES = (
    "", "?", "?db=1", "?db=x", "?socket_timeout=1", "?ssl_cert_reqs=none", "?ssl_cert_reqs=x",
    "?ssl_ca_certs=/none", "?username=u", "?sentinel_password=zqsecret", "?decode_responses=True",
    "?retry_on_error=x", "?a=b&a=c", "?=", "?%", "?protocol=3", "?max_connections=x", "?ssl_min_version=99",
    "?ssl_ciphers=", "?ssl_check_hostname=maybe", "?db=" + "9" * 5000,
)  # fmt: skip


def _name(chance: Random) -> Any:
    shape = chance.random()
    if shape < 0.5:
        return mutate(chance, chance.choice(_NAMES), wild)
    return chance.choice(_NAMES) if shape < 0.75 else text(chance) if shape < 0.95 else wild(chance)


def _text_name(chance: Random) -> str:
    drawn = _name(chance)
    return drawn if isinstance(drawn, str) else text(chance)


def _cursor(given: Any) -> None:
    cursor = Cursor.parse(given)
    assert Cursor.parse(str(cursor)) == cursor
    assert cursor.seq >= 0


def _job_id(given: Any) -> None:
    job_id = full_id(given, 7)
    if job_id is None:
        raise InvalidRequest("job_id", "", "is no job's")
    assert is_job_id(job_id)
    assert 0 <= shard_of(job_id) < 10**9


def _own_id(given: Any) -> None:
    own = check_own_id(given)
    for shards in (1, 7):
        assert shard_of(job_id_of(own, shards)) < shards


def _queue(given: Any) -> None:
    keys = QueueKeys(given).shard(3)
    assert keys.job("0-a").count("{") == keys.job("0-a").count("}") == 1


def _letter_id(given: Any) -> None:
    place = Place.parse(given)
    if place is None:
        raise InvalidRequest("id", "", "is no letter's")
    assert Place.parse(str(place)) == place
    assert place.age >= (0, 0)


def _url(chance: Random) -> tuple[Any, bool]:
    """A URL, and whether its password stands where passwords do."""
    user = chance.choice(("", "", f":{PASSWORD}@", f"user:{PASSWORD}@", f"u:p@{PASSWORD}@", f"{PASSWORD}:@"))
    parts = (
        f"{chance.choice(_SCHEMES)}://",
        user,
        chance.choice(_HOSTS),
        chance.choice(_PATHS),
        chance.choice(_QUERIES),
    )
    url = "".join(parts)
    if chance.random() < 0.3:
        return mutate(chance, url, wild), False
    return url, True


def _endpoint(case: tuple[Any, bool]) -> None:
    url, whole = case
    try:
        endpoint = Endpoint.of(url)
    except InvalidRequest as error:
        check(not whole or PASSWORD not in str(error), f"the password is told: {error}")
        raise
    assert PASSWORD not in str(endpoint) or not whole, "the password is told"
    endpoint.commands("c", retries=3)
    endpoint.subscriber("c", ServerNode("host", 1) if endpoint.topology else None)


REFUSED = (InvalidRequest,)
TARGETS = (
    Target("cursors", _name, _cursor, REFUSED, share=2),
    Target("job-ids", _name, _job_id, REFUSED, share=2),
    Target("own-ids", _text_name, _own_id, REFUSED, share=2),
    Target("queue-names", _text_name, _queue, REFUSED, share=2),
    Target("letter-ids", _name, _letter_id, REFUSED, share=2),
    Target("redis-urls", _url, _endpoint, REFUSED, share=0.3),
)
