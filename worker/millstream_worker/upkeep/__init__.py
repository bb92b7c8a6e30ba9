"""The queue's housekeeping, which every worker does for all."""

from millstream_worker.upkeep.chores import Chores, Upkeep
from millstream_worker.upkeep.lost import LostEntries
from millstream_worker.upkeep.reclaim import Reclaimer

__all__ = ["Chores", "LostEntries", "Reclaimer", "Upkeep"]
