"""The checkpointer passes the conformance suite of LangGraph, with and without coroutines (C11)."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from cfs_langgraph import CFSSaver
from pytest_cfs import ScriptedServer


class Synchronous(CFSSaver):
    """The suite calls the methods with coroutines; here these are the ones without."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(self, config: RunnableConfig | None, **arguments: Any) -> AsyncIterator[CheckpointTuple]:
        for found in self.list(config, **arguments):
            yield found

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, versions: ChannelVersions
    ) -> RunnableConfig:
        return self.put(config, checkpoint, metadata, versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.delete_for_runs(run_ids)

    async def acopy_thread(self, source: str, target: str) -> None:
        self.copy_thread(source, target)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self.prune(thread_ids, strategy=strategy)


@pytest.mark.parametrize("kind", [CFSSaver, Synchronous])
@pytest.mark.parametrize("capability", [each.value for each in Capability])
async def test_conformance(cfs_server: ScriptedServer, kind: type[CFSSaver], capability: str) -> None:
    async def saver() -> AsyncIterator[CFSSaver]:
        async with kind() as made:
            yield made

    report = await validate(checkpointer_test(name=kind.__name__)(saver), capabilities={capability})
    result = report.results[capability]
    assert (result.failures, result.passed, result.detected) == ([], True, True)
    assert result.tests_passed > 0
