"""What each role of `ops/deploy/users.acl` cannot do, and how a refusal reaches whoever meets it."""

from __future__ import annotations

import asyncio
import re
import shlex

import pytest
import redis
from redis.exceptions import NoPermissionError, ResponseError
from support.commands import invoke
from support.servers.secured import ROLES, SecuredServer, acl_lines, make_acl
from support.wire.desk import WINDOW, Desk
from support.workers.work import LANE, SHARD, Work

from millstream import AccessDenied, AsyncClient
from millstream.wire.connection import Endpoint
from millstream.wire.keys import GROUP, LANES, QueueKeys
from millstream.wire.server_errors import refusal
from millstream_worker.service.service import CannotServe

JOB, LOG, EVENTS = SHARD.job("0-a"), SHARD.tokens("0-a"), SHARD.events("0-a")


def lines(text: str) -> list[str]:
    """$names are keys of our queue, of another, and of one whose name only begins like ours."""
    names = {
        "LANE": LANE, "JOB": JOB, "LOG": LOG, "EVENTS": EVENTS, "DEAD": SHARD.dead, "CONTROL": SHARD.control,
        "DEADLINES": SHARD.deadlines, "DELAYED": SHARD.delayed, "BYTES": SHARD.held_bytes, "GROUP": GROUP,
        "PARKED": SHARD.parked("batch"), "TENANTS": SHARD.tenants("batch"),
        "WORKER": SHARD.worker("w"), "META": QueueKeys("default").meta, "THEIR": "{ms:other:0}",
        "NEXT": "{ms:default2:0}",
    }  # fmt: skip
    commands = [command.strip() for command in re.split("[;\n]", text.strip())]
    return [re.sub(r"\$(\w+)", lambda name: names[name[1]], command) for command in commands]


# Of commands that some role may send; what no role may send at all is in test_rights.py.
EVERYBODY = lines("""
    GET $THEIR:bytes; HGETALL $THEIR:job:0-a; XLEN $THEIR:lane:batch; XADD $THEIR:lane:batch * id x
    XREVRANGE $THEIR:dead + -; PUBLISH $THEIR:control x; SUBSCRIBE $THEIR:events:0-a
    EVAL 'return 1' 1 $THEIR:job:0-a
    HGETALL $NEXT:job:0-a; HGETALL {ms:default2}:meta
    GET k; DEL k; DEL $LANE; DEL $JOB; DEL $META; SET $BYTES 0
""")
PRODUCERS = lines("""
    XRANGE $LANE - +; XREVRANGE $LANE + -; XREAD STREAMS $LANE 0
    XREADGROUP GROUP $GROUP me STREAMS $LANE >; XINFO STREAM $LANE
    XPENDING $LANE $GROUP; XACK $LANE $GROUP 1-1; XDEL $LANE 1-1; XCLAIM $LANE $GROUP me 0 1-1
    XAUTOCLAIM $LANE $GROUP me 0 0; XGROUP CREATE $LANE other 0; XGROUP DELCONSUMER $LANE $GROUP w
    EVAL 'return redis.call("XACK", KEYS[1], ARGV[1], ARGV[2])' 1 $LANE $GROUP 1-1
    EVAL 'return redis.call("XRANGE", KEYS[1], "-", "+")' 1 $LANE
    ZRANGE $DEADLINES 0 -1; ZRANGE $DELAYED 0 -1; ZADD $DELAYED 1 0-a
    ZRANGE $PARKED 0 -1; ZPOPMIN $PARKED; DEL $PARKED
    HGETALL $JOB; HSET $WORKER a b; SUBSCRIBE $CONTROL; XADD $DEAD * id x
""")
DEAD_LETTERS = lines("XRANGE $DEAD - +; XREVRANGE $DEAD + -; XDEL $DEAD 1-1")
OBSERVERS = lines("""
    EVAL 'return redis.call("XADD", KEYS[1], "*", "id", "x")' 1 $DEAD
    EVAL 'return redis.call("XDEL", KEYS[1], "1-1")' 1 $DEAD
    EVAL 'return 1' 1 $JOB
    HSET $JOB state completed; HSET $META shards 9; XADD $LANE * id x; XACK $LANE $GROUP 1-1
    XREADGROUP GROUP $GROUP me STREAMS $LANE >; XDEL $DEAD 1-1; XTRIM $DEAD MAXLEN 0
    PUBLISH $CONTROL released; PUBLISH $EVENTS x; ZREM $DEADLINES 0-a; ZREM $PARKED 0-a
    HSET $TENANTS @at 5; INCRBY $BYTES 1; PEXPIREAT $LOG 1
""")
GATEWAYS = lines("""
    HGETALL {msgw}:keys; HKEYS {msgw}:keys; HSET {msgw}:keys k v; HDEL {msgw}:keys k; DEL {msgw:t}:rates
    DEL {msgw}:store; HDEL {msgw}:store id; HGETALL {msgw}:store; DEL {msgw:t}:files; SET {msgw:t}:file:f x
""")
WORKERS = lines("DEL $LOG; XREVRANGE $DEAD + -; SUBSCRIBE $EVENTS")
REFUSED = {
    "producer": EVERYBODY + PRODUCERS + DEAD_LETTERS + ["HGETALL " + SHARD.tenants("batch")],
    "operator": EVERYBODY + PRODUCERS,
    "gateway": EVERYBODY + PRODUCERS + DEAD_LETTERS + GATEWAYS,
    "observer": EVERYBODY + OBSERVERS,
    "worker": EVERYBODY + WORKERS,
}


@pytest.mark.parametrize("role", REFUSED)
def test_a_role_is_refused_what_is_not_its_task(secured: SecuredServer, role: str) -> None:
    with secured.as_admin() as admin:
        for lane in LANES:
            admin.xgroup_create(SHARD.lane(lane), GROUP, "0", mkstream=True)
        admin.hset(JOB, "state", "queued")
        before = {key: admin.dump(key) for key in admin.scan_iter()}
        passed = []
        with redis.Redis.from_url(secured.login(role)) as client:
            for line in REFUSED[role]:
                try:
                    client.execute_command(*shlex.split(line))
                except ResponseError as error:
                    if refusal(error) is not None:
                        continue
                passed.append(line)
        assert passed == []
        assert {key: admin.dump(key) for key in admin.scan_iter()} == before


def test_nobody_comes_in_without_a_role(secured: SecuredServer) -> None:
    for login in (secured.url, "redis://default:x@127.0.0.1", "redis://worker:wrong@127.0.0.1"):
        address = login.rpartition("@127.0.0.1")[0] + f"@127.0.0.1:{secured.port}" if "@" in login else login
        with redis.Redis.from_url(address) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


# --- what whoever is refused gets to know ------------------------------------------------------------------


async def test_a_client_is_told_what_it_lacks(secured: SecuredServer) -> None:
    async with AsyncClient(secured.login("observer")) as client:
        with pytest.raises(AccessDenied, match=r"(?i)permissions.*; give this user.*users\.acl"):
            await client.submit("w1")
        with pytest.raises(AccessDenied, match=r"users\.acl"):
            await client.cancel("0-a")
        with pytest.raises(AccessDenied, match=r"users\.acl"):
            await client.forget("0-a")
    async with AsyncClient(secured.login("producer"), queue="other") as client:
        with pytest.raises(AccessDenied, match=r"(?i)permissions to access.* key"):
            await client.status("0-a")
    wrong = secured.login("producer").replace(secured.passwords["producer"], "hunter2-is-wrong")
    async with AsyncClient(wrong) as client:
        with pytest.raises(AccessDenied, match="check the user and the password") as failed:
            await client.submit("w1")
    assert "hunter2" not in str(failed.value)


async def test_a_missing_right_inside_a_script_is_named_as_such(secured: SecuredServer) -> None:
    """The server says NOPERM only of what was sent, not of what a script does."""
    async with AsyncClient(secured.login("producer")) as client:
        await client.submit("w1")  # the queue is there
    with secured.as_admin() as admin:
        keys = "~{ms:default}:meta ~{ms:default:*"
        admin.execute_command(
            "ACL", "SETUSER", "half", "on", ">half-a-producer", "-@all", "+@connection", "+time",
            f"(+eval +evalsha +exists +hgetall +hmget {keys})", "(+zcard +xlen +get ~*)",
        )  # fmt: skip
    half = f"redis://half:half-a-producer@127.0.0.1:{secured.port}"
    async with AsyncClient(half) as client:
        with pytest.raises(AccessDenied, match=r"users\.acl"):
            await client.submit("w1")


@pytest.mark.parametrize(
    ("role", "password", "says"),
    [
        ("observer", None, "users.acl"),
        ("worker", "not-the-password", "check the user and the password of the URL"),
    ],
)
async def test_a_worker_that_may_not_serve_ends_and_says_so(
    secured: SecuredServer, role_work: Work, role: str, password: str | None, says: str
) -> None:
    login = secured.login(role)
    if password is not None:
        login = login.replace(secured.passwords[role], password)
    with pytest.raises(CannotServe, match=says) as failed:
        async with asyncio.timeout(30):
            await role_work.service(redis_url=login).run()
    assert secured.passwords[role] not in str(failed.value)
    assert (password or "?") not in str(failed.value)


async def test_a_worker_with_rules_of_an_older_release_ends(secured: SecuredServer, role_work: Work) -> None:
    """It says so before it takes a job that it could not start."""
    with secured.as_admin() as admin:
        lines = acl_lines(secured.kind, secured.passwords)
        [[name, *rules]] = [line for line in lines if line[0] == "worker"]
        earlier = [rule for rule in rules if ":model)" not in rule]
        assert len(earlier) == len(rules) - 1
        admin.execute_command("ACL", "SETUSER", name, "reset", *earlier)
        try:
            with pytest.raises(CannotServe, match=r"users\.acl"):
                async with asyncio.timeout(30):
                    await role_work.service(redis_url=secured.login("worker")).run()
        finally:
            admin.execute_command("ACL", "SETUSER", name, "reset", *rules)


async def test_a_producer_with_rules_of_an_older_release_works(secured: SecuredServer) -> None:
    """It counts a full lane by its consumers, and the server's log names the right that it lacks."""
    async with Endpoint.of(secured.login("admin")).commands("admin") as admin:
        desk = await Desk(admin, SHARD).open()
        await desk.fill_window()
        [[name, *rules]] = [
            line for line in acl_lines(secured.kind, secured.passwords) if line[0] == "producer"
        ]
        earlier = [rule.replace("+xinfo|groups ", "") for rule in rules]
        assert earlier != rules
        await admin.execute_command("ACL", "SETUSER", name, "reset", *earlier)
        try:
            async with AsyncClient(secured.login("producer")) as client:
                await client.submit("w1", id="parked")
                assert await desk.parked() == ["0-parked"]
                assert len(await desk.take()) == WINDOW + 1
                await client.submit("w1", id="enters")  # a worker holds all others, and they are in the lane
                assert await desk.parked() == []
                assert len(await desk.take()) == 1
        finally:
            await admin.execute_command("ACL", "SETUSER", name, "reset", *rules)
    assert secured.denied() == [("producer", "command", "xinfo|groups")]


def test_the_command_line_says_it_in_one_line(secured: SecuredServer) -> None:
    done = invoke("submit", "w1", "--redis-url", secured.login("observer"))
    assert done.exit_code == 3
    assert "users.acl" in done.stderr
    assert "Traceback" not in done.stderr
    assert secured.passwords["observer"] not in done.output


# --- the file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passwords", "queue", "says"),
    [
        ({}, "default", "MILLSTREAM_ADMIN_PASSWORD is not set"),
        (dict.fromkeys(ROLES, "short"), "default", "has 5 characters; a password has at least 16"),
        (dict.fromkeys(ROLES, "x" * 16), "a{b", "without braces"),
    ],
)
def test_a_file_is_not_made_of_half_the_answers(passwords: dict[str, str], queue: str, says: str) -> None:
    done = make_acl(passwords, queue, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr


def test_a_queue_whose_name_is_a_pattern_opens_no_other() -> None:
    with (
        SecuredServer("valkey", queue="a[b]*?\\c") as server,
        redis.Redis.from_url(server.login("observer")) as client,
    ):
        assert client.hgetall("{ms:a[b]*?\\c}:meta") == {}
        for other in ("ab", "abxxc", "a[b]xyc", "default"):
            with pytest.raises(NoPermissionError):
                client.hgetall(f"{{ms:{other}}}:meta")
