"""What keeps a job ours, and what takes it away: renewal, and orders from outside."""

from millstream_worker.leases.control import Control
from millstream_worker.leases.renewal import Leases

__all__ = ["Control", "Leases"]
