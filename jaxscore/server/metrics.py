"""Counters of a server, as Prometheus reads them. No label holds what a client wrote."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
PROMPTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 20000)


class Metrics:
    """Counters, gauges and histograms of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"jaxscore_{name}", what, labels, registry=registry)

        self.requests = counter("requests", "Requests answered", "endpoint", "code")
        self.cancelled = counter("requests_cancelled", "Requests whose client went away")
        self.prompts = counter("prompts", "Prompts scored or continued")
        self.tokens_given = counter("tokens_given", "Tokens of all texts that were scored")
        self.tokens_computed = counter("tokens_computed", "Tokens computed after sharing")
        self.tokens_generated = counter("tokens_generated", "Tokens generated")
        self.programs = counter("programs_compiled", "Programs compiled")
        self.request_seconds = Histogram(
            "jaxscore_request_seconds",
            "Seconds from a request's head to the end of its answer",
            ("endpoint",),
            registry=registry,
            buckets=SECONDS,
        )
        self.window_seconds = Histogram(
            "jaxscore_window_seconds", "Seconds of a window", registry=registry, buckets=SECONDS
        )
        self.window_prompts = Histogram(
            "jaxscore_window_prompts", "Prompts of a window", registry=registry, buckets=PROMPTS
        )

    def watch_queue(self, n_prompts: Callable[[], int], n_tokens: Callable[[], int]) -> None:
        """Tell the length of a queue, which is asked for at each reading."""
        for name, what in (("prompts", n_prompts), ("tokens", n_tokens)):
            Gauge(
                f"jaxscore_queue_{name}", f"Waiting and in work: {name}", registry=self._registry
            ).set_function(what)

    def text(self) -> bytes:
        """Everything in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)
