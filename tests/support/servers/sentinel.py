"""A master, two replicas and three Sentinels as processes of the tests' own, with timings that make a
failover a matter of a second. All methods block: from asynchronous tests call them by `asyncio.to_thread`.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Any, Self

import redis

from support.servers.lifetime import Startable, ask, wait_for
from support.servers.servers import Server, binary

SERVICE = "main"
# Milliseconds: how often a Sentinel asks and tells; the defaults are of seconds. And how late its own clock
# may tick before it trusts nothing it sees for a while: a loaded test machine is no broken one.
PACE = {
    "info-period": 200,
    "ping-period": 100,
    "ask-period": 100,
    "publish-period": 200,
    "tilt-trigger": 10_000,
    "tilt-period": 1000,
}
REPLICATION = {"repl_diskless_sync_delay": "0", "repl_ping_replica_period": "1"}


class Sentinels(Startable):
    """`start` (or `with`) and `remove`; `servers[0]` is the first master. `url` finds whoever is master now.

    `kind` is "valkey" or "redis"; `options` go to the servers (`appendonly="yes"`). `password` is that of the
    Sentinels themselves; the servers have none.
    """

    def __init__(self, kind: str, *, replicas: int = 2, password: str = "", **options: str) -> None:
        self.kind = kind
        self.password = password
        self.servers = [Server(kind, **(REPLICATION | options)) for _ in range(1 + replicas)]
        self.sentinels = [SentinelServer(kind) for _ in range(3)]

    @property
    def url(self) -> str:
        """For clients and workers, with the password of the Sentinels where they have one."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        options = f"?sentinel_password={self.password}" if self.password else ""
        return f"redis+sentinel://{hosts}/{SERVICE}/0{options}"

    def start(self) -> Self:
        for server in self.servers:
            server.start()
        master, *replicas = self.servers
        for replica in replicas:
            ask(replica.port, "REPLICAOF", "127.0.0.1", master.port)
        for sentinel in self.sentinels:
            sentinel.start(master.port, [one.port for one in replicas], self.sentinels, self.password)
        try:
            wait_for(self._settled, "the Sentinels know all replicas and each other")
        except RuntimeError as error:
            logs = "\n".join(one.log_tail() for one in (*self.servers, *self.sentinels))
            raise RuntimeError(f"{error}\n{logs}") from error
        return self

    def remove(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.remove()

    @property
    def master(self) -> Server:
        """The server that the Sentinels name as master now; it may be down while they have not noticed."""
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.RedisError):
                address = self._tell(sentinel, "GET-MASTER-ADDR-BY-NAME", SERVICE)
                return next(server for server in self.servers if server.port == int(address[1]))
        raise RuntimeError("no Sentinel answers")

    def kill_master(self, *, wait: bool = True) -> Server:
        """SIGKILL the master; returns it (start it again: it comes back as a replica). `wait`: until another
        is master and takes writes."""
        self.wait_settled()
        old = self.master
        old.kill()
        if wait:
            self.wait_for_new_master(old)
        return old

    def failover(self, *, wait: bool = True) -> Server:
        """Have the Sentinels choose another master; the old one lives on as a replica. Returns the old one.

        What the old one had acknowledged and not yet replicated is lost, as in any failover."""
        self.wait_settled()
        old = self.master
        wait_for(self._fail_over, "a Sentinel begins a failover")
        if wait:
            self.wait_for_new_master(old)
        return old

    def wait_settled(self) -> None:
        """Until every server that runs follows the master. One that has just come back is not made a replica
        before a second or two, and with too few of them nobody can take over."""
        wait_for(self._all_follow, "all servers that run follow the master")

    def _tell(self, sentinel: SentinelServer, *command: Any) -> Any:
        return ask(sentinel.port, "SENTINEL", *command, password=self.password)

    def _all_follow(self) -> bool:
        master = self.master
        running = [server for server in self.servers if server.process is not None and server is not master]
        roles = [ask(server.port, "ROLE") for server in running]
        return all(
            role[0] == b"slave" and role[2] == master.port and role[3] == b"connected" for role in roles
        )

    def wait_for_new_master(self, old: Server) -> Server:
        """The master that follows `old`, once all Sentinels name it and it takes writes."""
        wait_for(lambda: self._has_replaced(old), "another master takes writes")
        return self.master

    def _fail_over(self) -> bool:
        try:
            self._tell(self.sentinels[0], "FAILOVER", SERVICE)
        except redis.ResponseError:  # INPROG, NOGOODSLAVE: just after another failover
            return False
        return True

    def _has_replaced(self, old: Server) -> bool:
        ports = {
            int(self._tell(sentinel, "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
            for sentinel in self.sentinels
            if sentinel.process is not None
        }
        if len(ports) != 1 or old.port in ports:
            return False
        return bool(ask(ports.pop(), "ROLE")[0] == b"master")

    def _settled(self) -> bool:
        for sentinel in self.sentinels:
            replicas = [_fields(row) for row in self._tell(sentinel, "REPLICAS", SERVICE)]
            linked = [row for row in replicas if row["master-link-status"] == "ok"]
            others = self._tell(sentinel, "SENTINELS", SERVICE)
            reached = [row for row in map(_fields, others) if row["flags"] == "sentinel"]
            if len(linked) != len(self.servers) - 1 or len(reached) != len(self.sentinels) - 1:
                return False
        return True


class SentinelServer(Server):
    """One Sentinel. It keeps what it learns in its own configuration file. Each is a little slower than the
    one before it, so that they do not all stand for election at once, and wait seconds for the next one.
    """

    def __init__(self, kind: str, **options: str) -> None:
        super().__init__(kind)
        self.id = secrets.token_hex(20)
        self.options = {name.replace("_", "-"): value for name, value in options.items()}

    def start(  # type: ignore[override]  # it takes a configuration file instead of options
        self, master: int, replicas: list[int], all_sentinels: list[SentinelServer], password: str
    ) -> SentinelServer:
        executable = binary(self.kind)
        assert executable is not None, f"no {self.kind} server on this machine"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f'dir "{self.folder}"',
            *(f"{name} {value}" for name, value in self.options.items()),
            f"sentinel myid {self.id}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {master} 1",
            f"sentinel down-after-milliseconds {SERVICE} {500 + 400 * all_sentinels.index(self)}",
            f"sentinel failover-timeout {SERVICE} 2000",
            *(f"sentinel known-replica {SERVICE} 127.0.0.1 {port}" for port in replicas),
            *(
                f"sentinel known-sentinel {SERVICE} 127.0.0.1 {other.port} {other.id}"
                for other in all_sentinels
                if other is not self
            ),
            *([f"requirepass {password}", f"sentinel sentinel-pass {password}"] if password else []),
        ]
        configuration = self.folder / "sentinel.conf"
        configuration.write_text("\n".join(lines) + "\n")
        self._spawn([executable, str(configuration), "--sentinel"])
        wait_for(lambda: self._hurry(password), f"{self.kind} runs as a Sentinel")
        return self

    def _hurry(self, password: str) -> bool:
        pace = [str(part) for pair in PACE.items() for part in pair]
        return bool(ask(self.port, "SENTINEL", "DEBUG", *pace, password=password) == b"OK")


def _fields(row: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in row]
    return dict(zip(words[::2], words[1::2], strict=True))
