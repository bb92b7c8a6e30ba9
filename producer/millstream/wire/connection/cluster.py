"""Sends commands to a Cluster: each to the node that serves its keys, in order and in few round trips, and
again if the node did not execute it.

It does not use redis-py's RedisCluster (8.1), which sends ASKING on one pooled connection and the asked
command on another, does not refresh the nodes in pipelines after a lost connection, re-sends lost commands
unasked, gives up on TRYAGAIN after 0.4 s, and raises when its connections are all in use. The nodes' pools
are ours here, the commands' names and replies redis-py's.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from redis.asyncio import Redis
from redis.commands import AsyncCoreCommands
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

from millstream.wire.connection.nodes import ServerNode
from millstream.wire.connection.slots import places_by, slot_of
from millstream.wire.connection.topology import Topology
from millstream.wire.timing import Backoff

PAUSE_S = (0.02, 0.5)  # first and longest pause before commands are sent again
LOST = (ConnectionError, TimeoutError, OSError)
NOT_DONE = (AskError, TryAgainError, ClusterDownError)  # MovedError is an AskError


@dataclass(slots=True, eq=False)
class Command:
    """`slot` None: it follows the command before it, on the same connection (WAIT after writes)."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    slot: int | None
    keyless: bool
    node: ServerNode | None = None  # the node it was sent to last
    reply: Any = None

    @property
    def lost(self) -> bool:
        """The connection broke: it is unknown whether the command was executed."""
        return isinstance(self.reply, LOST)

    @property
    def asked_elsewhere(self) -> bool:
        return isinstance(self.reply, AskError) and not isinstance(self.reply, MovedError)

    @property
    def failed(self) -> bool:
        return self.lost or isinstance(self.reply, NOT_DONE)


class ClusterClient(AsyncCoreCommands):
    """Like a redis.asyncio.Redis of one server. `open_node` opens one of a node, which never re-sends.

    Commands that a node did not execute are sent again for up to `patience_s`; commands that were lost, up to
    `retries` times, so only commands that are safe to repeat.
    """

    _event_dispatcher: Any = None  # redis-py's command methods expect one

    def __init__(
        self, topology: Topology, open_node: Callable[[ServerNode], Redis], *, retries: int, patience_s: float
    ) -> None:
        self._topology = topology
        self._open_node = open_node
        self._retries = retries
        self._patience_s = patience_s
        self._nodes: dict[ServerNode, Redis] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self._closed = True
        for redis in self._nodes.values():
            await redis.aclose()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        slot = slot_of(args)
        command = Command(args, options, slot, keyless=slot is None)
        await self.send([command])
        if isinstance(command.reply, Exception):
            raise command.reply
        return command.reply

    def pipeline(self, transaction: bool = False) -> ClusterPipeline:
        """Many commands at once, each for itself: there are no transactions over nodes."""
        if transaction:
            raise ValueError("transaction=True: a Cluster has none over several nodes; use a script")
        return ClusterPipeline(self)

    async def send(self, commands: Sequence[Command]) -> None:
        """Set every command's reply, or its error. Commands of a slot are executed in order, those of
        different nodes concurrently.
        """
        effort = Effort(self._topology, self._retries, self._patience_s)
        left = list(commands)
        while left:
            await self._send_once(left)
            effort.learn(left)
            groups = [[left[i] for i in places] for places in places_by(one.slot for one in left)]
            left = [command for group in groups for command in await self._undone(group, effort)]
            if left and not await effort.pause():
                return

    async def _undone(self, group: Sequence[Command], effort: Effort) -> Sequence[Command]:
        """The commands of one slot to send again: all from the first on that was not executed, since later
        ones must not precede it. If they include a WAIT, all of them: it covers the writes of its connection.
        """
        first = next((i for i, command in enumerate(group) if command.failed), len(group))
        if first == len(group) or not effort.may_repeat(group[first]):
            return ()
        if any(command.keyless for command in group[1:]):
            return group
        if not group[first].asked_elsewhere:
            return group[first:]
        for place, command in enumerate(group[first:], first):  # one by one: each key may be here or there
            if place > first:
                await self._send_once([command])
            if command.asked_elsewhere:
                await self._send_asking(command)
            if command.failed:
                effort.learn([command])
                return group[place:] if effort.may_repeat(command) else ()
        return ()

    async def _send_once(self, commands: Sequence[Command]) -> None:
        nodes: dict[ServerNode, list[Command]] = defaultdict(list)
        for command in commands:
            try:
                command.node = await self._topology.node_of(command.slot)
            except RedisError as error:
                command.reply = error
            else:
                nodes[command.node].append(command)
        if len(nodes) == 1:
            [(node, batch)] = nodes.items()
            await self._send_to(node, batch)
        elif nodes:
            async with asyncio.TaskGroup() as tasks:
                for node, batch in nodes.items():
                    tasks.create_task(self._send_to(node, batch))

    async def _send_to(self, node: ServerNode, commands: Sequence[Command]) -> None:
        replies: Sequence[Any]
        try:
            async with self._redis(node).pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command.args, **command.options)
                replies = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            replies = [error] * len(commands)
        for command, reply in zip(commands, replies, strict=True):
            command.reply = reply

    async def _send_asking(self, command: Command) -> None:
        """Send to the node that an ASK names. ASKING is valid for the next command of its connection."""
        allowance = Command(("ASKING",), {}, command.slot, keyless=True)
        await self._send_to(_named_by(command), [allowance, command])

    def _redis(self, node: ServerNode) -> Redis:
        if self._closed:
            raise ConnectionError("this client is closed")
        if node not in self._nodes:
            self._nodes[node] = self._open_node(node)
        return self._nodes[node]


class ClusterPipeline(AsyncCoreCommands):
    """Collects commands; `execute` sends them. One without a key follows the one before it, on the same
    connection.
    """

    _event_dispatcher: Any = None

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._commands: list[Command] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._commands = []

    def __len__(self) -> int:
        return len(self._commands)

    def execute_command(self, *args: Any, **options: Any) -> Self:
        slot = slot_of(args)
        keyless = slot is None
        if keyless and self._commands:
            slot = self._commands[-1].slot
        self._commands.append(Command(args, options, slot, keyless))
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """All replies in their order, errors among them unless `raise_on_error`. If no node answered at all
        the error is raised in any case, as a single server's would be.
        """
        commands, self._commands = self._commands, []
        await self._client.send(commands)
        errors = [command.reply for command in commands if isinstance(command.reply, Exception)]
        if errors and (raise_on_error or all(command.lost for command in commands)):
            raise errors[0]
        return [command.reply for command in commands]


def is_cluster(redis: object) -> bool:
    """True if this client's commands go to a Cluster."""
    return isinstance(redis, ClusterClient)


class Effort:
    """The retry budget of commands that were not executed, or may not have been: seconds and retries."""

    def __init__(self, topology: Topology, retries: int, patience_s: float) -> None:
        self._topology = topology
        self._retries = retries
        self._give_up_s = time.monotonic() + patience_s
        self._backoff = Backoff(*PAUSE_S)
        self._at_once = True  # the first redirection is followed without a pause

    def learn(self, sent: Sequence[Command]) -> None:
        """Update the topology from the failures. All commands lost in one round count as one retry."""
        for command in sent:
            if isinstance(command.reply, MovedError):
                self._topology.learn(command.reply.slot_id, _named_by(command))
            elif command.lost or isinstance(command.reply, ClusterDownError):
                self._topology.doubt(command.node)
        self._retries -= any(command.lost for command in sent)

    def may_repeat(self, command: Command) -> bool:
        return not command.lost or self._retries >= 0

    async def pause(self) -> bool:
        """Wait before sending again. False: the time is over."""
        if time.monotonic() >= self._give_up_s:
            return False
        if not self._at_once:
            await self._backoff.pause()
        self._at_once = False
        return True


def _named_by(command: Command) -> ServerNode:
    """The node that a MOVED or ASK names; without a host, it is on the host that replied."""
    error, node = command.reply, command.node
    assert isinstance(error, AskError)
    assert node is not None
    return ServerNode(error.host or node.host, error.port)
