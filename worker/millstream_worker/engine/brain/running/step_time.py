"""How long steps take, learned from those that were settled; and how many prompt tokens a step may compute,
so that rows that decode beside them get their tokens in time.

    seconds of a step = base + slope x prompt tokens        decode rows are in the base, which follows them

Base and slope come from exponentially weighted means, variance and covariance. Where steps are all alike the
slope cannot be seen, and the mean seconds per token stand for it: the chunk then moves by target / seconds
with each step, which leads to the target without passing it.
"""

from __future__ import annotations

from collections import deque
from math import inf

_WEIGHT = 0.2  # of the newest step
_SPIKE = 4.0  # a step counts as at most this many times its expected duration: a pause is not the model's
_LEAST_SLOPE = 0.05  # of the mean seconds per token: noise may look like a slope of zero
_GROWTH = 1.5  # from one chunk to the next
LEAST_TOKENS = 64  # prompts progress, however slow the decode rows alone are


class StepTimeModel:
    """`target_s`: longest duration of a step with decode rows; 0: any. `most`: prompt tokens of a step."""

    def __init__(self, target_s: float, most: int) -> None:
        self._target_s = target_s
        self._most = most
        self._lately = 0.0  # the longest recent chunk
        self._planned: deque[tuple[float, int]] = deque()  # start, prompt tokens
        self._settled_at = -inf
        self.token_s = 0.0  # the slope: of one more prompt token; 0 until one was computed
        self._tokens = 0.0  # running means
        self._seconds = 0.0
        self._variance = 0.0  # of the tokens
        self._covariance = 0.0
        self._steps = 0

    def planned(self, tokens: int, now: float) -> None:
        self._planned.append((now, tokens))

    def settled(self, now: float, aside_s: float = 0.0) -> float:
        """The oldest planned step is settled; returns its seconds. The device has one after the other. Of
        these, `aside_s` had nothing to do with its tokens."""
        planned_at, tokens = self._planned.popleft()
        seconds = step_s = now - max(planned_at, self._settled_at)
        seconds = max(0.0, seconds - aside_s)
        self._settled_at = now
        self._steps += 1
        weight = max(_WEIGHT, 1 / self._steps)
        tokens_off = tokens - self._tokens
        if self.token_s:
            seconds = min(seconds, _SPIKE * (self._seconds + self.token_s * max(tokens_off, 0.0)))
        seconds_off = seconds - self._seconds
        self._tokens += weight * tokens_off
        self._seconds += weight * seconds_off
        self._variance = (1 - weight) * (self._variance + weight * tokens_off**2)
        self._covariance = (1 - weight) * (self._covariance + weight * tokens_off * seconds_off)
        if tokens:  # steps without prompt tokens do not change the slope
            self._lately = max(tokens, (1 - _WEIGHT) * self._lately)
            mean = self._seconds / self._tokens
            slope = self._covariance / self._variance if self._variance > 1.0 else mean
            self.token_s = min(max(slope, _LEAST_SLOPE * mean), mean)
        return step_s

    def prompt_tokens(self) -> int:
        """Most prompt tokens of the next step, beside decode rows that somebody waits for."""
        if not self._target_s:
            return self._most
        least = min(LEAST_TOKENS, self._most)
        most = min(int(_GROWTH * max(self._lately, least)), self._most)
        if not self.token_s:
            return most if self._seconds < self._target_s else least
        return max(least, min(most, int(self._tokens + (self._target_s - self._seconds) / self.token_s)))
