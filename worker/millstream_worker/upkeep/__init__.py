"""The queue's maintenance, which every worker does for all."""

from millstream_worker.upkeep.figures import QueueFigures
from millstream_worker.upkeep.heartbeats import Heartbeats
from millstream_worker.upkeep.lost import LostEntries
from millstream_worker.upkeep.maintenance import Maintenance
from millstream_worker.upkeep.reclaim import LeaseTimes, Reclaimer
from millstream_worker.upkeep.shards import on_all
from millstream_worker.upkeep.tasks import PeriodicTask, Upkeep

__all__ = [
    "Heartbeats",
    "LeaseTimes",
    "LostEntries",
    "Maintenance",
    "PeriodicTask",
    "QueueFigures",
    "Reclaimer",
    "Upkeep",
    "on_all",
]
