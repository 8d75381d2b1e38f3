"""Tries models with one short request each, through the engines that would answer for them."""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cfs.errors import EngineError
from cfs.wire import ConnectionCandidate, Message, Usage
from cfs.wire import Settings as TurnSettings
from cfs_server.config.models_file import ModelEntry
from cfs_server.config.settings import ConfigurationError, ServerSettings
from cfs_server.connect.engines import make_trial
from cfs_server.connect.search import Candidate, context_in_use
from cfs_server.engine.contract.interface import Engine, Finished, GenerationRequest, ModelLoadError
from cfs_server.engine.host.process import in_thread
from cfs_server.engine.llama import probe

SECONDS = 60.0
"""How long a model may take to reply, unless the user says otherwise: a server may have to load it."""
_PROMPT = "Say hello."
_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Trial:
    """A model that was tried: the usage of its reply, or why there was none."""

    candidate: Candidate
    usage: Usage | None = None
    fault: str = ""
    context: int = 0
    """Tokens of the model's context; 0 if it is not known."""

    @property
    def entry(self) -> ModelEntry | None:
        """The entry for the file of models, if the model works."""
        return None if self.fault else self.candidate.entry

    def summary(self) -> ConnectionCandidate:
        """Return what callers see."""
        entry = self.candidate.entry
        return ConnectionCandidate(
            name=self.candidate.name,
            where=self.candidate.where,
            works=not self.fault,
            reason=self.fault,
            context=self.context or None,
            first_token_seconds=self.usage and self.usage.first_token_seconds,
            tokens_per_second=(self.usage and self.usage.tokens_per_second) or None,
            key_variable=entry and entry.key_variable,
        )


async def try_all(
    settings: ServerSettings,
    candidates: Sequence[Candidate],
    seconds: float = SECONDS,
    started: Callable[[Candidate], None] = lambda _: None,
) -> list[Trial]:
    """Try models. Those that this machine computes come one after the other, those of services all at once."""

    async def in_turn(group: Sequence[Candidate]) -> list[Trial]:
        trials = []
        for candidate in group:
            started(candidate)
            trials.append(await _try(settings, candidate, seconds))
        return trials

    local = [candidate for candidate in candidates if candidate.here]
    groups = [local, *([candidate] for candidate in candidates if not candidate.here)]
    trials = [trial for group in await asyncio.gather(*map(in_turn, groups)) for trial in group]
    order = {candidate.name: number for number, candidate in enumerate(candidates)}
    return sorted(trials, key=lambda trial: order[trial.candidate.name])


async def _try(settings: ServerSettings, candidate: Candidate, seconds: float) -> Trial:
    entry, fault = candidate.entry, candidate.fault or await asyncio.to_thread(_too_large, candidate.entry)
    if entry is None or fault:
        return Trial(candidate, fault=fault)
    try:
        usage = await _usage(make_trial(settings, entry, seconds), seconds)
    except TimeoutError:
        return Trial(candidate, fault=f"no reply within {seconds:g} seconds")
    except (ConfigurationError, ModelLoadError) as error:
        return Trial(candidate, fault=str(error))
    except EngineError as error:
        return Trial(candidate, fault=error.detail)
    context = entry.context or await _context(candidate, entry)
    if entry.upstream is not None and context != entry.context:
        candidate = replace(candidate, entry=entry.model_copy(update={"context": context or None}))
    return Trial(candidate, usage, context=context)


async def _context(candidate: Candidate, entry: ModelEntry) -> int:
    """Return the context of a model that has just replied."""
    if entry.model is not None and Path(entry.model).suffix == ".gguf":
        return (await in_thread(partial(probe.describe, Path(entry.model)))).context_tokens
    return (await context_in_use(entry) if candidate.provider == "ollama" else None) or 0


def _too_large(entry: ModelEntry | None) -> str:
    """Return why a file cannot be loaded: it has more bytes than this machine has memory."""
    if entry is None or entry.model is None or not Path(entry.model).is_file():
        return ""
    size, memory = Path(entry.model).stat().st_size, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gib = 1 << 30
    return f"it has {size / gib:.1f} GiB, and this machine {memory / gib:.1f} GiB of memory" if size > memory else ""


async def _usage(engine: Engine, seconds: float) -> Usage:
    """Let an engine make one short reply. The time to download or load a file does not count."""
    settings = TurnSettings(max_tokens=_TOKENS, temperature=0)
    request = GenerationRequest("trial", "trial", (Message(role="user", content=_PROMPT),), settings)
    usage = Usage()
    try:
        await engine.start()
        async with asyncio.timeout(seconds):
            async for item in engine.generate(request):
                if isinstance(item, Finished):
                    usage = item.usage
    finally:
        await engine.stop()
    return usage
