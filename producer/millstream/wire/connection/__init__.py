"""Connections to one server or several: one pool per purpose, with every timeout and retry explicit.

`Endpoint` is the address, read from a URL or taken over from a client of redis-py: one server, a master that
Sentinels name, or a Cluster. `Subscriptions` listens there. Knows nothing of jobs.
"""

from millstream.wire.connection.cluster import is_cluster
from millstream.wire.connection.endpoint import Endpoint, unavailable
from millstream.wire.connection.subscriptions import MessageListener, Subscriptions
from millstream.wire.connection.target import SCHEMES, Target

__all__ = ["SCHEMES", "Endpoint", "MessageListener", "Subscriptions", "Target", "is_cluster", "unavailable"]
