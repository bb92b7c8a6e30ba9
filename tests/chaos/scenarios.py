"""The scenarios by name: which servers, which workers, which faults and how often of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from support.servers.cluster import Cluster
from support.servers.sentinel import Sentinels

from chaos.arena import Setup
from chaos.faults import Fault, network, poison, topology, versions
from chaos.faults.aimed import LookAtWaiting, SubmitAgain, WakeUsurped
from chaos.faults.process import DrainWorker, FreezeEngine, FreezeWorker, KillEngine, KillWorker
from chaos.faults.server import (
    CutClients,
    DestroyGroup,
    FillMemory,
    FlushServer,
    JumpClock,
    KillServer,
    PauseClients,
    RestartServer,
)
from millstream.wire.state.queue_info import PubSub

Weights = Mapping[Fault, int]


@dataclass(frozen=True, slots=True)
class Scenario(Setup):
    """`lanes`: faults with their weights; each lane strikes on its own, beside the others. `weight` is its
    share of a long run's time and jobs, `blows` of its faults, on each kind of server."""

    name: str
    lanes: tuple[Weights, ...]
    kinds: tuple[str, ...] = ("valkey", "redis")
    weight: int = 2
    blows: int = 15
    pause_s: float = 0.3  # between two faults of a lane, on average


WORKERS: Weights = {
    KillWorker(): 3,
    FreezeWorker(): 2,
    WakeUsurped(): 1,
    LookAtWaiting(): 1,
    DrainWorker(): 1,
    DrainWorker(hurry=True): 1,
}
ENGINES: Weights = {KillEngine(): 9, FreezeEngine(): 4}
SERVER: Weights = {
    KillServer(): 4,
    RestartServer(): 2,
    DestroyGroup(): 2,
    CutClients("normal"): 3,
    CutClients("pubsub"): 3,
    PauseClients(): 2,
    FillMemory(): 2,
    JumpClock(): 3,
    SubmitAgain(): 2,
}
FORGETFUL: Weights = {FlushServer(): 1, KillEngine(): 1, CutClients("pubsub"): 1}
NETWORK: Weights = {
    network.LATE: 1,
    network.LOST_REPLIES: 3,
    network.CUT_REPLIES: 2,
    network.BLACK_HOLE: 1,
    network.ALL_CUT: 2,
    network.SOME_CUT: 2,
    network.HALF_OPEN: 1,
}
SENTINEL: Weights = {topology.KillMaster(): 2, topology.SwitchMaster(): 2, topology.WakeOldMaster(): 1}
# A replica that is being promoted acknowledges nothing more: all of them must, to outlast any failover.
ON_REPLICAS = {"durability": "replicas", "durability_replicas": 2, "durability_timeout_s": 0.3}
CLUSTER: Weights = {topology.MoveSlot(): 3, topology.KillNode(): 1}
BESIDE: Weights = {KillEngine(): 6, CutClients("pubsub"): 4}
LIGHT: Weights = {KillEngine(): 12, FreezeEngine(): 4, FreezeWorker(): 2, KillWorker(): 3}


def sentinels(kind: str) -> Sentinels:
    return Sentinels(kind, appendonly="yes", appendfsync="always")


def guarded(kind: str) -> Sentinels:
    """A master that has no replica any more takes no writes: most that a failover would lose."""
    return Sentinels(
        kind, appendonly="yes", appendfsync="always", min_replicas_to_write="1", min_replicas_max_lag="1"
    )


def cluster(kind: str) -> Cluster:
    return Cluster(kind, appendonly="yes", appendfsync="always")


ALL = (
    Scenario("processes", (WORKERS, ENGINES), weight=3, blows=21, crew=3),
    Scenario("server", (SERVER,), weight=3, blows=23),
    Scenario("forgetful", (FORGETFUL,), kinds=("valkey",), blows=15),
    Scenario("network", (NETWORK,), route=network.proxied, weight=3, blows=24),
    Scenario("sentinel", (SENTINEL, BESIDE), place=sentinels, kinds=("redis",)),
    Scenario("replicas", (SENTINEL, BESIDE), place=guarded, kinds=("valkey",), options=ON_REPLICAS),
    Scenario("cluster", (CLUSTER, BESIDE), place=cluster, shards=4, pubsub=PubSub.SHARDED),
    Scenario(
        "poison",
        (dict.fromkeys(poison.ALL, 1),),
        kinds=("redis",),
        engine=poison.ENGINE,
        settings=poison.SETTINGS,
        blows=7,
    ),
    Scenario("versions", ({versions.Deploy(): 1}, {KillEngine(): 4}), kinds=("valkey",), blows=10),
    Scenario("mix", (LIGHT, SERVER), shards=2, weight=4, blows=46, crew=3),
)
SHORT = Scenario(
    "short",
    (
        {KillWorker(): 1, KillEngine(): 1, FreezeWorker(): 1},
        {
            KillServer(): 1,
            DestroyGroup(): 1,
            CutClients("normal"): 1,
            CutClients("pubsub"): 1,
            FillMemory(): 1,
            JumpClock(): 1,
        },
    ),
    shards=2,
    pause_s=0.2,
)
BY_NAME = {scenario.name: scenario for scenario in (*ALL, SHORT)}
