"""The metrics at `/metrics` for Prometheus (H6). Each application has its own registry."""

from collections.abc import Callable
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cfs.wire import Usage
from cfs_server.domain.events import LoggedEvent
from cfs_server.engine.contract.interface import Engine, EnginePlan, EngineStats
from cfs_server.journal.journal import Journal
from cfs_server.sessions.store import SessionStore

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_RATES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_ENGINE_COUNTERS = (
    "prompt_tokens_evaluated",
    "tokens_generated",
    "recomputed_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "steps",
)
_ENGINE_GAUGES = ("running", "waiting", "sequences_resident", "sequences_parked", "cells_used")
_JOURNAL: dict[str, tuple[str, Callable[[Journal], float]]] = {
    "commits_total": ("Commits of the store of sessions.", lambda journal: journal.commits),
    "records_total": ("Records that the store has written.", lambda journal: journal.written),
    "commit_seconds_total": ("Time that the commits took.", lambda journal: journal.commit_seconds),
    "pending": ("Records that are not durable yet.", lambda journal: journal.pending),
    "writable": ("Whether the store accepts writes.", lambda journal: journal.problem is None),
}
_MODELS = {
    "loaded": "Whether the model is loaded.",
    "loads_total": "How often the model has been loaded for a turn.",
    "running": "Turns that the model answers now.",
    "waiting": "Turns that wait for the model.",
    "tokens_generated_total": "Tokens that the model has generated.",
    "restarts_total": "Worker processes of the model that were replaced.",
}


class Metrics:
    """Counters that are updated by events, and gauges that are read on each request."""

    def __init__(self, plan: EnginePlan | None = None) -> None:
        self.registry = CollectorRegistry()
        if plan is not None:
            chosen = Info("cfs_engine", "What the engine chose for its model and this machine.", registry=self.registry)
            chosen.info({name: str(value).lower() for name, value in asdict(plan).items()})
        self.streams = Gauge("cfs_streams_open", "Event streams open now.", registry=self.registry)
        self._requests = Histogram(
            "cfs_request_seconds",
            "Time from a request to the beginning of its answer.",
            ["method", "route", "status"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._turns = _TurnMetrics(self.registry)
        self._store = _StoreMetrics(self.registry)
        self._engine = _EngineMetrics(self.registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).observe(seconds)

    def count_spent(self, principal: str, model: str, usage: Usage) -> None:
        """Count what a turn or a completion has spent."""
        self._turns.count_spent(principal, model, usage)

    async def watch(self, store: SessionStore) -> None:
        """Count the finished turns of all sessions until the store closes."""
        async for events in store.bus.log.follow(store.bus.log.last):
            for event in events if isinstance(events, list) else ():
                if event.type in ("turn.finished", "turn.failed"):
                    self._turns.count(event)

    async def render(self, store: SessionStore, engine: Engine) -> bytes:
        """Return all metrics in Prometheus' text format."""
        await self.update(store, engine)
        return generate_latest(self.registry)

    async def update(self, store: SessionStore, engine: Engine) -> None:
        """Measure what is true now, for a reader of the registry."""
        self._store.read(store)
        self._engine.read(await engine.stats(), ready=engine.ready)


class _TurnMetrics:
    """Finished turns, and what they and completions have spent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._turns = Counter("cfs_turns", "Finished turns by result.", ["result"], registry=registry)
        self._tokens = Counter("cfs_tokens", "Tokens of finished turns by kind.", ["kind"], registry=registry)
        by, labels = "by model and by the principal that they count for.", ["model", "principal"]
        tokens, cost = f"Tokens of turns and completions {by}", f"Cost of turns and completions in US dollars {by}"
        self._spent_tokens = Counter("cfs_spent_tokens", tokens, labels, registry=registry)
        self._cost = Counter("cfs_cost_dollars", cost, labels, registry=registry)
        self._phases = Histogram(
            "cfs_turn_seconds",
            "Time of a turn in the engine: until it left the queue, until its first text, until its end.",
            ["phase"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._rate = Histogram(
            "cfs_turn_tokens_per_second", "Speed of a reply after its first text.", buckets=_RATES, registry=registry
        )

    def count_spent(self, principal: str, model: str, usage: Usage) -> None:
        self._spent_tokens.labels(model, principal).inc(max(0, usage.tokens))
        self._cost.labels(model, principal).inc(usage.cost or 0.0)

    def count(self, event: LoggedEvent) -> None:
        self._turns.labels(event.data["finish_reason"]).inc()
        usage = event.data["usage"]
        for kind in ("prompt", "cached", "completion"):
            self._tokens.labels(kind).inc(max(0, usage[f"{kind}_tokens"]))
        if usage["total_seconds"] <= 0:
            return  # it never reached an engine, or the agent reported no usage
        for phase in ("queue", "first_token", "total"):
            self._phases.labels(phase).observe(max(0.0, usage[f"{phase}_seconds"]))
        if usage["tokens_per_second"] > 0:
            self._rate.observe(usage["tokens_per_second"])


class _StoreMetrics:
    """The sessions as they are, and what their journal has written."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sessions = Gauge("cfs_sessions", "Sessions by state.", ["state"], registry=registry)
        self._bytes = Gauge("cfs_transcript_bytes", "Bytes of all transcripts.", registry=registry)
        self._memory = Gauge("cfs_transcript_memory_bytes", "Bytes of transcripts in memory.", registry=registry)
        self._queued = Gauge("cfs_turns_queued", "Turns that wait in a session's queue.", registry=registry)
        self._journal = {
            name: Gauge(f"cfs_store_{name}", help_, registry=registry) for name, (help_, _) in _JOURNAL.items()
        }

    def read(self, store: SessionStore) -> None:
        states = {"idle": 0, "generating": 0, "waiting_for_agent": 0}
        queued = 0
        for session in store:
            states[session.state] += 1
            queued += len(session.queue)
        for state, count in states.items():
            self._sessions.labels(state).set(count)
        self._queued.set(queued)
        self._bytes.set(store.account.bytes)
        self._memory.set(store.histories.bytes if store.durable else store.account.bytes)
        if store.journal is not None:
            for name, (_, figure) in _JOURNAL.items():
                self._journal[name].set(figure(store.journal))


class _EngineMetrics:
    """The figures of the engine and of each of its models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ready = Gauge("cfs_engine_ready", "Whether a turn would start now.", registry=registry)
        self._figures = {
            name: Gauge(f"cfs_engine_{name}", f"The engine's {name.replace('_', ' ')}.", registry=registry)
            for name in (*_ENGINE_GAUGES, *(f"{name}_total" for name in _ENGINE_COUNTERS))
        }
        self._restarts = Gauge(
            "cfs_engine_restarts_total",
            "Worker processes that were replaced because they crashed or hung.",
            ["reason"],
            registry=registry,
        )
        self._models = {
            name: Gauge(f"cfs_model_{name}", help_, ["model"], registry=registry) for name, help_ in _MODELS.items()
        }
        self._more = Gauge("cfs_engine_gauge", "Further figures of the engine.", ["name"], registry=registry)

    def read(self, stats: EngineStats, *, ready: bool) -> None:
        self._ready.set(ready)
        for name, gauge in self._figures.items():
            gauge.set(getattr(stats, name.removesuffix("_total")))
        for reason, count in stats.restarts_by_reason.items():
            self._restarts.labels(reason).set(count)
        for gauge in self._models.values():
            gauge.clear()  # models may have gone
        for model, figures in stats.models.items():
            for name, gauge in self._models.items():
                gauge.labels(model).set(getattr(figures, name.removesuffix("_total")))
        for name, value in stats.gauges.items():
            self._more.labels(name).set(value)
