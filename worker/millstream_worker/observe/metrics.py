"""Records the worker's measurements as Prometheus metrics in a registry that is passed in. Names and
definitions are the field's:

    queue time   submit accepted -> admitted into the batch
    TTFT         submit accepted -> first token sent to its readers (sampled, where nobody streams)
    TPOT         (last token time - first token time) / (output tokens - 1), per request
    end to end   TTFT + TPOT x (output tokens - 1): submit accepted -> last token

It knows neither Redis nor the engine process.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from millstream.version import version
from millstream.wire.keys import LANES, Lane
from millstream.wire.loop_gaps import LoopGaps
from millstream.wire.messages.job_messages import State, Timing
from millstream.wire.state.queue_series import QueueSeries, QueueSnapshot
from millstream_worker.engine.protocol.config import LABELS, EngineInfo
from millstream_worker.engine.protocol.outputs import EngineStats
from millstream_worker.images.messages import KINDS

# From a small model on a GPU to a long queue before a busy CPU; neighbours differ by a factor of 2.5 at most.
_WAITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 900, 3600)
_PER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_STEPS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LONGEST_REASON = 300  # characters
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
# The engine's own figures: the field of EngineStats, and the series with its text.
_NOW = (
    ("rows_running", "rows_running", "Rows in the batch"),
    ("rows_waiting", "rows_waiting", "Rows held by the engine, not in the batch"),
    ("image_bytes", "image_feature_bytes", "Features of images that are held for jobs, or kept for more"),
    ("grammars_waiting", "grammars_waiting", "Requests whose format is being compiled, or waits for that"),
)
_TOTALS = (
    ("output_total", "generation_tokens", "Output tokens sampled"),
    ("prefix_queried_total", "prefix_cache_queried_tokens", "Prompt tokens looked up in the prefix cache"),
    ("prefix_hit_total", "prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache"),
    ("prompt_computed_total", "prompt_tokens_computed", "Prompt tokens computed by the model"),
    ("states_saved_total", "state_checkpoints_made", "Checkpoints made of rows' recurrent states"),
    ("states_loaded_total", "state_checkpoints_loaded", "Rows that began at a checkpoint of recurrent state"),
    ("image_units_total", "image_units_encoded", "Images, or tiles of images, encoded"),
    ("image_s_total", "image_encode_seconds", "Encoding images"),
    ("drafted_total", "draft_tokens", "Draft tokens verified by speculative decoding"),
    ("accepted_total", "accepted_draft_tokens", "Draft tokens that became output"),
    ("preemptions_total", "preemptions", "Rows preempted, to be computed again"),
    ("grammars_compiled_total", "grammars_compiled", "Formats compiled"),
    ("grammars_reused_total", "grammars_reused", "Requests whose format was compiled before"),
    ("grammar_s_total", "grammar_seconds", "Compiling formats, and following earlier output through them"),
    ("masked_rows_total", "masked_rows", "Output tokens sampled under a format or limits"),
    ("forced_total", "forced_tokens", "Output tokens that a format left no choice about, not sampled"),
)


class _Series:
    """Creates series with the label `queue`."""

    def __init__(self, registry: CollectorRegistry, queue: str) -> None:
        self._registry, self._queue = registry, queue

    def counter(self, name: str, text: str) -> Counter:
        return Counter(f"millstream_{name}", text, ("queue",), registry=self._registry).labels(self._queue)

    def counters(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        whole = Counter(f"millstream_{name}", text, ("queue", label), registry=self._registry)
        return {value: whole.labels(self._queue, value) for value in values}

    def gauge(self, name: str, text: str) -> Gauge:
        return self.gauges(name, text).labels(self._queue)

    def gauges(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"millstream_{name}", text, ("queue", *labels), registry=self._registry)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return self._histogram(name, text, buckets).labels(self._queue)

    def histograms(self, name: str, text: str, buckets: tuple[float, ...]) -> dict[str, Histogram]:
        """One for each lane, from the first scrape on."""
        whole = self._histogram(name, text, buckets, "lane")
        return {lane: whole.labels(self._queue, lane) for lane in LANES}

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        names = ("queue", *labels)
        return Histogram(f"millstream_{name}", text, names, registry=self._registry, buckets=buckets)


class Metrics:
    """`observe_step`, `admitted`, `first_token` and `ended` derive values; plain counters are used directly.
    Every series has the label `queue`."""

    def __init__(self, registry: CollectorRegistry, queue: str = "default") -> None:
        self._queue = queue
        self._last = EngineStats()
        self._queues = QueueSeries(registry)
        self._queues.show(queue, None)  # until it is read
        make = _Series(registry, queue)
        self._of_requests(make)
        self._of_engine(make)
        self._of_jobs(make)
        self._of_images(make)

    def _of_requests(self, make: _Series) -> None:
        self.queue_time = make.histograms(
            "request_queue_time_seconds", "Submitted to admitted into the batch", _WAITS_S
        )
        self.ttft = make.histograms(
            "time_to_first_token_seconds",
            "Submitted to first token sent, or sampled where nobody streams",
            _WAITS_S,
        )
        self.tpot = make.histogram(
            "time_per_output_token_seconds", "Between output tokens, per request", _PER_TOKEN_S
        )
        self.e2e = make.histograms("e2e_request_latency_seconds", "Submitted to last token", _WAITS_S)
        ends = [state for state in State if state.terminal]
        self._ended = make.counters("requests", "Jobs ended here, by terminal state", "state", ends)
        self.prompt_tokens = make.counter("prompt_tokens", "Prompt tokens of admitted requests")

    def _of_engine(self, make: _Series) -> None:
        self._now = {field: make.gauge(name, text) for field, name, text in _NOW}
        self._totals = {field: make.counter(name, text) for field, name, text in _TOTALS}
        self._kv_blocks = make.gauges("kv_blocks", "KV cache blocks by use", "state")
        self.grammar_wait = make.histogram(
            "request_grammar_wait_seconds", "Given to the engine to its response_format compiled", _WAITS_S
        )
        self.step_time = make.histogram("step_seconds", "Launch to settled, per step", _STEPS_S)
        self.step_tokens = make.histogram("step_tokens", "New tokens computed, per step", _TOKENS)
        self.engine_restarts = make.counter("engine_restarts", "Engines that died and were started again")
        self._fallbacks = make.gauges(
            "engine_fallbacks",
            "1 for each slower way of computing that the running engine had to take",
            "reason",
        )
        self._info = make.gauges(
            "engine_info",
            "The running engine",
            *LABELS,
            "version",
        )
        self._weight_bytes = make.gauge(
            "engine_weight_bytes", "Weights of the running engine, with their scales, in memory"
        )
        self._parameters = make.gauge("engine_parameters", "Number of weights of the running engine")

    def _of_jobs(self, make: _Series) -> None:
        self.cache_hits = make.counter("result_cache_hits", "Jobs ended with a kept result")
        self.cache_misses = make.counter("result_cache_misses", "Jobs that looked for one in vain")
        self.cache_followers = make.counter(
            "result_cache_followers", "Jobs ended with the tokens of an equal job that was running"
        )
        self.cache_damaged = make.counter(
            "result_cache_damaged", "Kept results that could not be read, or were none of their job's"
        )
        self.cache_bytes = make.gauge("result_cache_bytes", "Kept results on the server")
        self.jobs_held = make.gauge("jobs_held", "Jobs this worker holds a lease on")
        self.unreadable = make.counter(
            "unreadable_requests", "Requests that failed because reading them raised what nobody expected"
        )
        self.reclaimed = make.counter("jobs_reclaimed", "Jobs taken over after their lease expired")
        self.released = make.counter("jobs_released", "Jobs released")
        self.other_versions = make.gauge(
            "jobs_of_other_versions", "Queued jobs that wait for a worker of another version"
        )
        self.fenced = make.counter("jobs_fenced", "Jobs that another attempt has taken over")
        self.dead_lettered = make.counter("jobs_dead_lettered", "Jobs that became dead letters")
        self.gap_fills = make.counter(
            "token_log_gap_fills", "Times that the lost end of a token log was written again"
        )
        self.write_troubles = make.counter(
            "write_troubles",
            "Times that the server began to refuse writes, or not to answer them",
        )
        self.loop_gaps = LoopGaps()
        make.gauge(
            "loop_gap_seconds", "Longest time of the last minute or two that the event loop did not run"
        ).set_function(lambda: self.loop_gaps.longest_s)
        self.lease_lateness = make.gauge(
            "lease_renewal_lateness_seconds", "Delay of the last renewal of leases"
        )

    def _of_images(self, make: _Series) -> None:
        self._images_prepared = make.counter("images_prepared", "Images prepared for the model")
        self._image_bytes = make.counter("image_bytes", "Bytes of prepared images, as the engine gets them")
        self._image_time = make.histogram(
            "image_prepare_seconds", "Opening and preparing an image, with its process", _STEPS_S
        )
        self._images_refused = make.counters("images_refused", "Jobs refused for an image", "reason", KINDS)
        self.image_deaths = make.counter(
            "image_processes_killed", "Processes that died over an image, or were killed for their time"
        )

    def image_prepared(self, size: int, seconds: float) -> None:
        self._images_prepared.inc()
        self._image_bytes.inc(size)
        self._image_time.observe(seconds)

    def image_refused(self, reason: str) -> None:
        self._images_refused[reason].inc()

    def engine_ready(self, info: EngineInfo) -> None:
        """A new engine: its counters begin at zero."""
        self._last = EngineStats()
        self._info.clear()
        self._info.labels(self._queue, *info.labels.values(), version()).set(1)
        self._weight_bytes.set(info.weight_bytes)
        self._parameters.set(info.parameters)
        self._fallbacks.clear()
        for reason in info.fallbacks:
            self._fallbacks.labels(self._queue, reason[:_LONGEST_REASON]).set(1)

    def engine_gone(self) -> None:
        """There is no engine, and no cache, until the next one is ready."""
        for gauge in (*self._now.values(), self._weight_bytes, self._parameters):
            gauge.set(0)
        self._set_blocks(used=0, cached=0, free=0)
        self._info.clear()
        self._fallbacks.clear()

    def observe_step(self, stats: EngineStats) -> None:
        self._set_blocks(used=stats.blocks_used, cached=stats.blocks_cached, free=stats.blocks_free)
        for field, gauge in self._now.items():
            gauge.set(getattr(stats, field))
        for field, counter in self._totals.items():
            if grown := getattr(stats, field) - getattr(self._last, field):
                counter.inc(grown)
        self._last = stats
        if stats.step_tokens:
            self.step_time.observe(stats.step_s)
            self.step_tokens.observe(stats.step_tokens)

    def _set_blocks(self, **counts: int) -> None:
        for state, count in counts.items():
            self._kv_blocks.labels(self._queue, state).set(count)

    def show_queue(self, snapshot: QueueSnapshot | None) -> None:
        """Shows the figures of the whole queue; None: it cannot be read now."""
        self._queues.show(self._queue, snapshot)

    def admitted(self, lane: Lane, timing: Timing, prompt_tokens: int, *, queued: bool) -> None:
        """`queued`: it waited until now, not only until an earlier attempt's admission."""
        assert timing.admitted_ms is not None, "called once it is admitted"
        if queued:
            self.queue_time[lane].observe(_seconds(timing.submitted_ms, timing.admitted_ms))
        self.prompt_tokens.inc(prompt_tokens)

    def first_token(self, lane: Lane, timing: Timing) -> None:
        assert timing.first_token_ms is not None, "called once it is there"
        self.ttft[lane].observe(_seconds(timing.submitted_ms, timing.first_token_ms))

    def ended(
        self, lane: Lane, state: State, timing: Timing, output_tokens: int, *, answered: bool = True
    ) -> None:
        """A job's end was written. `answered`: with an answer; a count of tokens is none."""
        self._ended[state].inc()
        if not answered or state is not State.COMPLETED or timing.finished_ms is None:
            return
        self.e2e[lane].observe(_seconds(timing.submitted_ms, timing.last_token_ms or timing.finished_ms))
        if timing.first_token_ms is not None and timing.last_token_ms is not None and output_tokens > 1:
            self.tpot.observe(_seconds(timing.first_token_ms, timing.last_token_ms) / (output_tokens - 1))


def _seconds(begin_ms: int, end_ms: int) -> float:
    return max(0, end_ms - begin_ms) / 1000
