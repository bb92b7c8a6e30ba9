"""The scenarios by name: which servers, which workers, which faults and how often of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from support.servers.cluster import Cluster
from support.servers.sentinel import Sentinels

from chaos.arena import LASTING, Setup
from chaos.faults import (
    Fault,
    aimed,
    gateway,
    image_processes,
    models,
    network,
    poison,
    process,
    server,
    topology,
    versions,
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
    process.kill_worker: 3,
    process.freeze_worker: 2,
    aimed.wake_usurped: 1,
    aimed.look_at_waiting: 1,
    process.drain_worker: 1,
    process.hurry_worker: 1,
}
ENGINES: Weights = {process.kill_engine: 9, process.freeze_engine: 4}
IMAGES: Weights = {image_processes.kill_child: 3, image_processes.kill_nursery: 1}
SERVER: Weights = {
    server.kill_server: 4,
    server.restart_server: 2,
    server.destroy_group: 2,
    server.cut_commands: 3,
    server.cut_pubsub: 3,
    server.pause_clients: 2,
    server.fill_memory: 2,
    server.jump_clock: 3,
    aimed.submit_again: 2,
}
FORGETFUL: Weights = {server.flush_server: 1, process.kill_engine: 1, server.cut_pubsub: 1}
NETWORK: Weights = {
    network.late: 1,
    network.lost_replies: 3,
    network.cut_replies: 2,
    network.black_hole: 1,
    network.all_cut: 2,
    network.some_cut: 2,
    network.half_open: 1,
}
SENTINEL: Weights = {topology.kill_master: 2, topology.switch_master: 2, topology.wake_old_master: 1}
# A replica that is being promoted acknowledges nothing more: all of them must, to outlast any failover.
ON_REPLICAS = {"durability": "replicas", "durability_replicas": 2, "durability_timeout_s": 0.3}
CLUSTER: Weights = {topology.move_slot: 3, topology.kill_node: 1}
BESIDE: Weights = {process.kill_engine: 6, server.cut_pubsub: 4}
GATEWAYS: Weights = {
    gateway.kill_gateway: 3, gateway.kill_claiming_gateway: 2, gateway.freeze_gateway: 2,
    gateway.replace_gateway: 1, gateway.lose_store: 1,
}  # fmt: skip
BESIDE_GATEWAYS: Weights = {
    server.kill_server: 2, server.restart_server: 1, server.cut_commands: 1, server.cut_pubsub: 1,
    process.kill_engine: 2,
}  # fmt: skip
LIGHT: Weights = {
    process.kill_engine: 12, process.freeze_engine: 4, process.freeze_worker: 2, process.kill_worker: 3,
    poison.unreadable: 2, image_processes.kill_child: 3, image_processes.kill_nursery: 1,
}  # fmt: skip
SHORT_WORKERS: Weights = dict.fromkeys((process.kill_worker, process.kill_engine, process.freeze_worker), 1)
SHORT_IMAGES: Weights = dict.fromkeys((image_processes.kill_child, image_processes.kill_nursery), 1)
SHORT_SERVER: Weights = dict.fromkeys(
    (server.kill_server, server.destroy_group, server.cut_commands, server.cut_pubsub, server.fill_memory,
     server.jump_clock, poison.unreadable), 1,
)  # fmt: skip

sentinels = partial(Sentinels, **LASTING)
# A master that has no replica any more takes no writes: most that a failover would lose.
guarded = partial(sentinels, min_replicas_to_write="1", min_replicas_max_lag="1")
cluster = partial(Cluster, **LASTING)
CACHING = {"result_cache": 2**20}
POISONED = {"engine": poison.ENGINE, "settings": poison.SETTINGS | CACHING}

_caching = partial(Scenario, settings=CACHING, images=1 / 3)

ALL = (
    _caching("processes", (WORKERS, ENGINES, IMAGES), weight=3, blows=25, crew=3),
    _caching("server", (SERVER,), weight=3, blows=23),
    _caching("forgetful", (FORGETFUL,), kinds=("valkey",), blows=15),
    _caching("network", (NETWORK,), route=network.proxied, weight=3, blows=24),
    _caching("sentinel", (SENTINEL, BESIDE), place=sentinels, kinds=("redis",)),
    _caching("replicas", (SENTINEL, BESIDE), place=guarded, kinds=("valkey",), options=ON_REPLICAS),
    _caching("cluster", (CLUSTER, BESIDE), place=cluster, shards=4, pubsub=PubSub.SHARDED),
    Scenario("poison", (dict.fromkeys(poison.ALL, 1),), kinds=("redis",), blows=8, **POISONED),
    Scenario("versions", ({versions.deploy: 1}, {process.kill_engine: 4}), kinds=("valkey",), blows=10),
    Scenario("models", ({models.replace_model: 1, process.kill_engine: 2},), kinds=("valkey",), blows=10),
    Scenario("gateways", (GATEWAYS, BESIDE_GATEWAYS), blows=12, gateways=2, customers=8, rate=15.0),
    _caching("mix", (LIGHT, SERVER), shards=2, weight=4, blows=46, crew=3),
)
SHORT = _caching("short", (SHORT_WORKERS, SHORT_SERVER), shards=2, pause_s=0.2, images=0.0)
PAGES = _caching("pages", (SHORT_WORKERS | SHORT_IMAGES, SHORT_SERVER), shards=2, pause_s=0.2)
BY_NAME = {scenario.name: scenario for scenario in (*ALL, SHORT, PAGES)}
