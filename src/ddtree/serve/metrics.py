"""What the server counts and measures, in Prometheus' terms.

Counts are kept where things happen, on the engine's thread, so that they add up to what answers
report; gauges are read when somebody asks. Times are the server's own: a client's are longer by
the way there and back.
"""

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ddtree.engine import Engine, Job, ReplayJob, Request, RoundResult, Work
from ddtree.records.arms import METHODS

MEDIA_TYPE = CONTENT_TYPE_LATEST
FINISH_REASONS = ("stop", "length", "abort", "error")
JOB_OUTCOMES = ("ok", "abort", "error")

_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5),
    *(0.75, 1.0, 2.5, 5.0),
)
_WAIT_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0),
)
_TOKENS_A_ROUND = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)


class ServerMetrics:
    """The metrics of one worker, in a registry of their own. It observes the engine's rounds."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._count_requests()
        self._count_rounds()
        self._measure_times()
        self._watch(engine)
        engine.observers.append(self._round)

    def render(self) -> bytes:
        """The text to be scraped, of type `MEDIA_TYPE`."""
        return generate_latest(self.registry)

    def refused(self, status: int) -> None:
        """A call was answered with an error status."""
        self._refused.labels(str(status)).inc()

    def gained(self, work: Work, tokens: int, submitted_s: float) -> None:
        """`tokens` more of the work's output exist; submitted_s is of `time.perf_counter`."""
        if not isinstance(work, Request) or not tokens:
            return
        self._generated.inc(tokens)
        if len(work.output) == tokens and work.first_token_s is not None:
            self._prompt.inc(len(work.prompt))
            self._ttft.observe(work.first_token_s - submitted_s)

    def ended(self, work: Work, how: str | None, submitted_s: float) -> None:
        """Work is over: by itself, or by `how` ("abort", "error")."""
        if isinstance(work, Job):
            jobs = self._replays if isinstance(work, ReplayJob) else self._scores
            jobs.labels(how or ("ok" if work.error is None else "error")).inc()
            return
        reason = how or work.finish_reason or "error"
        self._requests.labels(reason).inc()
        if reason not in ("stop", "length"):
            return
        self._latency.observe(time.perf_counter() - submitted_s)
        rate = work.decode_tokens_per_s
        if rate is not None:
            self._tpot.observe(1 / rate)

    def _round(self, result: RoundResult) -> None:
        for row, request in enumerate(result.requests):
            if row in result.faults:
                continue
            method, accepted = request.speculation.method, len(result.tokens[row]) - 1
            self._rounds.labels(method).inc()
            self._drafted.inc(result.num_nodes[row])
            self._accepted.inc(accepted)
            for depth in range(1, accepted + 1):
                self._accepted_at.labels(str(depth)).inc()
            if method != "ar":
                self._acceptance.observe(1 + accepted)

    def _count_requests(self) -> None:
        self._requests = self._counter(
            "requests", "Requests that ended, each choice one.", "finish_reason", FINISH_REASONS
        )
        self._scores = self._counter(
            "score_jobs", "Scoring requests that ended.", "outcome", JOB_OUTCOMES
        )
        self._replays = self._counter("replay_jobs", "Replays that ended.", "outcome", JOB_OUTCOMES)
        self._refused = self._counter(
            "requests_refused",
            "Calls answered with an error status (499: the client had left).",
            "status",
        )
        self._prompt = self._counter(
            "prompt_tokens", "Prompt tokens of requests that got a first token, for every choice."
        )
        self._generated = self._counter("generation_tokens", "Generated tokens.")

    def _count_rounds(self) -> None:
        self._rounds = self._counter(
            "rounds", "Rounds of decoding, one for each request in the batch.", "method", METHODS
        )
        self._drafted = self._counter("draft_tokens", "Draft nodes verified.")
        self._accepted = self._counter(
            "accepted_tokens", "Draft tokens accepted, before any cut by a stop or a limit."
        )
        self._accepted_at = self._counter(
            "accepted_at_depth", "Rounds that accepted at least `depth` draft tokens.", "depth"
        )
        self._acceptance = self._histogram(
            "acceptance_length",
            "1 + accepted draft tokens of a round of chain or ddtree: sum / count is the "
            "acceptance length.",
            _TOKENS_A_ROUND,
        )

    def _measure_times(self) -> None:
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "From submission to the first token.", _WAIT_S
        )
        self._tpot = self._histogram(
            "time_per_output_token_seconds",
            "(last - first token's time) / (tokens - 1), of each request that finished.",
            _TOKEN_S,
        )
        self._latency = self._histogram(
            "e2e_request_latency_seconds",
            "From submission to the last token, of requests that finished.",
            _WAIT_S,
        )

    def _watch(self, engine: Engine) -> None:
        def used() -> int:
            use = engine.cache_use()
            return use.cells - use.free_cells

        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "requests_running": ("Requests that hold a slot.", lambda: engine.num_running),
            "requests_waiting": ("Requests that wait for one.", lambda: engine.num_waiting),
            "slots": ("Requests that can be decoded at once.", lambda: engine.cache_use().slots),
            "slots_free": ("Slots that nobody holds.", lambda: engine.cache_use().free_slots),
            "kv_cache_tokens": ("Tokens' worth of the target's cache that is taken.", used),
            "kv_cache_usage_ratio": (
                "That, by the tokens' worth there is.",
                lambda: used() / engine.cache_use().cells,
            ),
        }
        for name, (text, read) in gauges.items():
            Gauge(f"ddtree_{name}", text, registry=self.registry).set_function(read)

    def _counter(
        self, name: str, text: str, label: str | None = None, values: Iterable[str] = ()
    ) -> Counter:
        """With the label's values, if they are known, there from the start with 0."""
        labels = () if label is None else (label,)
        counter = Counter(f"ddtree_{name}", text, labels, registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(f"ddtree_{name}", text, buckets=tuple(buckets), registry=self.registry)
