"""Start-time fair queueing of one lane in plain Python: in which order parked jobs have to be served.

It says the rules of the scripts once more, so that a test can hold the two side by side.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

Place = tuple[int, int, str, str]  # start, arrival, job id, tenant


@dataclass(eq=False, slots=True)
class FairOrder:
    places: list[Place] = field(default_factory=list)  # in the order in which they are served
    finishes: dict[str, int] = field(default_factory=dict)  # by tenant
    at: int = 0  # start of the job that was served last
    arrivals: int = 0

    def park(self, job_id: str, tenant: str = "", cost: int = 1) -> Place:
        start = max(self.at, self.finishes.get(tenant, 0))
        self.arrivals += 1
        place = (start, self.arrivals, job_id, tenant)
        self.finishes[tenant] = start + cost
        insort(self.places, place)
        return place

    def serve(self) -> str:
        place = self.places.pop(0)
        self.at = place[0]
        self._forget_when_empty()
        return place[2]

    def leave(self, place: Place) -> None:
        """It has ended without being served."""
        self.places.remove(place)
        if not self.parked_of(place[3]):
            del self.finishes[place[3]]
        self._forget_when_empty()

    def parked_of(self, tenant: str) -> int:
        return sum(place[3] == tenant for place in self.places)

    def _forget_when_empty(self) -> None:
        if not self.places:
            self.finishes, self.at, self.arrivals = {}, 0, 0
