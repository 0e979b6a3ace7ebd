"""What the retrieval server has done since it started, counted, and written as the text that Prometheus reads."""

from collections import Counter
from dataclasses import dataclass, field

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PREFIX = "burnish_retriever"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Metrics:
    """Written by the event loop's thread alone."""

    in_flight: int = 0  # requests
    queries: int = 0
    cache_hits: int = 0
    joined: int = 0  # queries that another request, or the same one, was waiting for already
    batches: int = 0
    batch_queries: int = 0
    failures: int = 0  # queries on which the retriever failed
    search_seconds: float = 0.0
    request_seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    buckets: Counter[float] = field(default_factory=Counter)  # upper bound → requests between it and the one before

    def observe(self, status: int, seconds: float) -> None:
        """A request was answered."""
        self.statuses[status] += 1
        self.request_seconds += seconds
        self.buckets[next((bound for bound in BUCKETS_S if seconds <= bound), float("inf"))] += 1

    def text(self, gauges: dict[str, tuple[str, int]]) -> str:
        """All of it in Prometheus' format; `gauges` are further name → meaning and value."""
        lines = _head("requests_total", "counter", "requests answered, by status")
        lines += [f'{PREFIX}_requests_total{{status="{code}"}} {n}' for code, n in sorted(self.statuses.items())]
        counters = {
            "queries_total": ("queries asked", self.queries),
            "cache_hits_total": ("queries answered from the cache", self.cache_hits),
            "joined_queries_total": ("queries that shared the search of an equal one", self.joined),
            "batches_total": ("calls of the retriever", self.batches),
            "batch_queries_total": ("queries in them", self.batch_queries),
            "search_seconds_total": ("seconds spent in them", round(self.search_seconds, 6)),
            "errors_total": ("queries on which the retriever failed", self.failures),
        }
        for name, (meaning, value) in counters.items():
            lines += [*_head(name, "counter", meaning), f"{PREFIX}_{name} {value}"]
        lines += self._histogram()
        for name, (meaning, value) in {
            "requests_in_flight": ("requests not yet answered", self.in_flight),
            **gauges,
        }.items():
            lines += [*_head(name, "gauge", meaning), f"{PREFIX}_{name} {value}"]
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[str]:
        lines, below = _head("request_seconds", "histogram", "seconds from a request to its answer"), 0
        for bound in BUCKETS_S:
            below += self.buckets[bound]
            lines.append(f'{PREFIX}_request_seconds_bucket{{le="{bound}"}} {below}')
        count = self.statuses.total()
        return [
            *lines,
            f'{PREFIX}_request_seconds_bucket{{le="+Inf"}} {count}',
            f"{PREFIX}_request_seconds_sum {self.request_seconds:.6f}",
            f"{PREFIX}_request_seconds_count {count}",
        ]


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {PREFIX}_{name} {meaning}", f"# TYPE {PREFIX}_{name} {kind}"]
