"""Keeps leases, and receives what ends them: renewal, and the control channel."""

from millstream_worker.leases.control import Control
from millstream_worker.leases.renewal import Leases

__all__ = ["Control", "Leases"]
