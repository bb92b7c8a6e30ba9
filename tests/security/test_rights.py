"""A role of `ops/deploy/users.acl` may send the commands that its rules name and no others, and their replies
show nothing of other clients' jobs."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError
from support.servers.cluster import Cluster
from support.servers.monitor import watching
from support.servers.secured import LIMITED, SecuredServer, acl_lines, listed
from support.servers.sentinel import Sentinels
from support.servers.servers import KINDS, require
from support.wire.desk import Desk
from support.workers.work import LANE, SHARD

from millstream.wire.calls import Claim
from millstream.wire.connection import Endpoint
from millstream.wire.keys import GROUP, QueueKeys

QUEUE = QueueKeys("default")
LOOKS_AT_SETTINGS = ("worker", "command", "config|get")  # it says that it could not, and goes on
# The server asks nobody for a right to these.
FREE = {"auth", "hello", "quit", "reset"}
NEVER = {
    "flushall", "flushdb", "keys", "scan", "randomkey", "dbsize", "config|get", "config|set", "acl|list",
    "acl|setuser", "client|list", "client|kill", "client|pause", "shutdown", "save", "bgrewriteaof",
    "replicaof", "monitor", "info", "module|list", "script|flush", "script|kill", "slowlog|get", "swapdb",
    "migrate", "rename", "pubsub|channels", "psubscribe", "set", "dump", "expire", "xtrim", "xgroup|destroy",
    "xgroup|setid",
}  # fmt: skip


# --- which commands ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", LIMITED)
def test_a_role_may_send_what_is_listed_and_nothing_else(secured: SecuredServer, role: str) -> None:
    with secured.as_admin() as admin:
        allowed = {name for name, words in commands_of(admin) if may(admin, role, words)}
    assert allowed - FREE == listed(secured, role)
    assert not allowed & NEVER


def commands_of(admin: redis.Redis) -> list[tuple[str, list[str]]]:
    """Every command and subcommand of this server: its name in rules, and the fewest words it takes."""
    connection = admin.connection_pool.get_connection()
    connection.send_command("COMMAND")
    rows = connection.read_response()
    admin.connection_pool.release(connection)
    known = [row for top in rows for row in (top[9] or [top])]
    return [(name, with_words(name, int(row[1]))) for row in known for name in [row[0].decode()]]


def with_words(name: str, arity: int) -> list[str]:
    words = name.split("|")
    return words + ["1"] * (abs(arity) - len(words))


def may(admin: redis.Redis, role: str, words: list[str]) -> bool:
    """Whether the command is allowed, with whatever keys."""
    answer = admin.execute_command("ACL", "DRYRUN", role, *words)
    return answer in (b"OK", "OK") or b"to run the" not in answer


# --- what they show ----------------------------------------------------------------------------------------

# What somebody curious would send, for each command that a role may send. KEY stands for each key whose name
# needs no job's id, CHANNEL for channels.
CURIOUS = """
    client|setname curious; client|setinfo lib-name curious; select 0; time; role; ping; wait 0 1
    waitaof 0 0 1; cluster|slots; asking
    eval return_{KEYS[1],redis.call('time')} 1 KEY; evalsha e0e1f9fabfc9d4800c877a703b823ac0578ff831 0
    exists KEY; get KEY; incrby KEY 1; decrby KEY 1; persist KEY; pexpire KEY 99999999
    pexpireat KEY 99999999999999
    hget KEY state; hmget KEY state result payload; hgetall KEY; hstrlen KEY payload; hlen KEY; hset KEY a b
    hdel KEY a; hincrby KEY died 1
    xlen KEY; xrange KEY - +; xrevrange KEY + -; xadd KEY * a b; xdel KEY 1-1; xack KEY $GROUP 1-1
    xclaim KEY $GROUP me 0 1-1; xpending KEY $GROUP - + 99; xpending KEY $GROUP
    xreadgroup GROUP $GROUP me COUNT 99 STREAMS KEY >; memory|usage KEY SAMPLES 0
    xgroup|create KEY curious 0; xgroup|createconsumer KEY $GROUP curious
    xgroup|delconsumer KEY $GROUP curious; xinfo|groups KEY; xinfo|consumers KEY
    zadd KEY 1 a; zcard KEY; zrange KEY 0 -1; zrangebyscore KEY -inf +inf; zscore KEY a; zrem KEY a
    zremrangebyscore KEY -inf 0; zrevrange KEY 0 -1; zrevrangebyscore KEY +inf -inf
    llen KEY; lrange KEY 0 -1; lindex KEY 0; lset KEY 0 a; rpush KEY a; pttl KEY
    publish CHANNEL x; spublish CHANNEL x; subscribe CHANNEL; ssubscribe CHANNEL; unsubscribe; sunsubscribe
    unlink KEY; del KEY
"""
LINES = [line.split() for line in re.split("[;\n]", CURIOUS.strip())]
CANARIES = ("canary-own", "canary-other")
# They are there to hand out the jobs of their own queue, or to show them.
SEE_THEIR_QUEUE = ("worker", "observer")


@pytest.mark.parametrize("role", LIMITED)
async def test_no_reply_and_no_push_shows_a_job_of_others(secured: SecuredServer, role: str) -> None:
    """Ids, keys, prompts and results of others all have a word in them that shall not come back."""
    assert {line[0] for line in LINES} >= listed(secured, role)
    async with Endpoint.of(secured.login("admin")).commands("admin") as admin:
        desks = [await Desk(admin, keys).open() for keys in (SHARD, QueueKeys("other").shard(0))]
        running = [await live(desk, word) for desk, word in zip(desks, CANARIES, strict=True)]
        with curious(secured, role) as client:
            assert b"-NOPERM" in client.say(["CLIENT", "TRACKING", "ON", "BCAST"])
            heard = b"".join(client.say(words) for line in LINES for words in filled(line))
            for desk, job, word in zip(desks, running, CANARIES, strict=True):
                await desk.submit(f"0-{word}-new", payload=word.encode(), tenant="somebody")
                await desk.append(job, 1, word.encode())
                await desk.finish(job, 2, result=word.encode())
            heard += client.say(["PING"])
    own, other = (word.encode() in heard for word in CANARIES)
    assert not other
    assert own is (role in SEE_THEIR_QUEUE)


async def live(desk: Desk, word: str) -> Claim:
    """Jobs in every state and place; one of them runs."""
    request: dict[str, Any] = {"payload": word.encode(), "tenant": "somebody"}
    done = await desk.begin(f"0-{word}-done", **request)
    await desk.append(done, 1, word.encode())
    await desk.finish(done, 2, result=word.encode())
    running = await desk.begin(f"0-{word}-running", deadline_ms=2**50, **request)
    await desk.submit(f"0-{word}-queued", **request)
    await desk.fill_window()
    await desk.park(f"0-{word}-parked", **request)
    await desk.redis.zadd(desk.keys.delayed, {f"0-{word}-delayed": 2**50})
    return running


def filled(line: list[str]) -> Iterator[list[str]]:
    keys = [QUEUE.meta, LANE, SHARD.lane("interactive"), SHARD.delayed, SHARD.deadlines, SHARD.held_bytes]
    keys += [SHARD.parked("batch"), SHARD.tenants("batch"), SHARD.worker("*"), SHARD.job("*"), SHARD.dead]
    channels = [SHARD.control, SHARD.events("*"), "__keyevent@0__:hset", "__redis__:invalidate"]
    names = keys if "KEY" in line else channels if "CHANNEL" in line else [""]
    for name in names:
        given = {"KEY": name, "CHANNEL": name, "$GROUP": GROUP}
        words = line[0].split("|") + [given.get(word, word).replace("_", " ") for word in line[1:]]
        yield words


class Curious:
    """Sends anything, and hears all that comes, pushes of RESP3 among it."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def say(self, words: list[str]) -> bytes:
        """What has come by the answer to a command that no server knows."""
        mark = f"unknown-{secrets.token_hex(8)}"
        for command in (words, [mark]):
            parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in command]
            self._link.sendall(f"*{len(command)}\r\n{''.join(parts)}".encode())
        heard = b""
        while mark.encode() not in heard or not heard.endswith(b"\r\n"):
            received = self._link.recv(65536)
            assert received, heard
            heard += received
        return heard


@contextlib.contextmanager
def curious(server: SecuredServer, role: str) -> Iterator[Curious]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        client = Curious(link)
        assert b"proto" in client.say(["HELLO", "3", "AUTH", role, server.passwords[role]])
        yield client


# --- what connecting sends ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_role_sends_in_a_cluster_what_is_listed_for_it(kind: str) -> None:
    """Where the slots are, and ASKING for one that is being moved."""
    require(kind)
    with Cluster(kind, masters=2) as cluster:
        passwords = {role: secrets.token_hex(16) for role in LIMITED}
        for server in cluster.servers:
            for line in acl_lines(kind, passwords):
                server.ask("ACL", "SETUSER", *line)
        key = QueueKeys("default", sharded=True).shard(0).worker("w")
        cluster.migration(key).begin()
        for role in LIMITED:
            url = cluster.url.replace("://", f"://{role}:{passwords[role]}@")
            with contextlib.ExitStack() as stack:
                watches = [stack.enter_context(watching(server.url)) for server in cluster.servers]
                async with Endpoint.of(url).commands(role) as client:
                    assert await client.hgetall(key) == {}
                sent = set[Any]().union(*(words for watch in watches for words in watch.sent().values()))
            assert {("cluster", "slots"), ("asking",)} <= sent, role
        assert [server.ask("ACL", "LOG") for server in cluster.servers] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_role_sends_only_listed_commands_to_a_sentinel_master(kind: str) -> None:
    require(kind)
    with Sentinels(kind, replicas=1) as sentinels:
        passwords = {role: secrets.token_hex(16) for role in LIMITED}
        with contextlib.closing(redis.Redis.from_url(sentinels.master.url)) as admin:
            for line in acl_lines(kind, passwords):
                admin.execute_command("ACL", "SETUSER", *line)
            for role in LIMITED:
                url = sentinels.url.replace("://", f"://{role}:{passwords[role]}@")
                with watching(sentinels.master.url) as watch:
                    async with Endpoint.of(url).commands(role) as client:
                        await client.time()
                    assert {("role",), ("time",)} <= watch.sent()[role]
            assert admin.acl_log() == []


@pytest.mark.parametrize("role", LIMITED)
async def test_a_role_selects_its_database(secured: SecuredServer, role: str) -> None:
    with watching(secured.login("admin")) as watch:
        async with Endpoint.of(secured.login(role).removesuffix("0") + "1").commands(role) as client:
            await client.time()
            with pytest.raises(NoPermissionError):
                await client.get("k")
        sent = watch.sent()[role]
    assert ("select", "1") in sent
    assert sent - {("select", "1"), ("client", "setinfo")} == {("client", "setname"), ("time",)}
