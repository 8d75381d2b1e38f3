"""What several tests of Fibre need."""

from cfs_agents.fibre.tools import Finish, SpawnRequest


class RecordingConductor:
    """Answers each request with a plain text, and remembers them."""

    def __init__(self) -> None:
        self.asked: list[SpawnRequest | Finish | tuple[str, ...]] = []

    async def spawn(self, request: SpawnRequest) -> str:
        self.asked.append(request)
        return f"main/{request.agent_name}"

    async def send(self, agent_id: str, content: str) -> str:
        self.asked.append((agent_id, content))
        return "sent"

    async def wait(self, agent_id: str) -> str:
        self.asked.append((agent_id,))
        return "[report]"

    async def finish(self, finish: Finish) -> str:
        self.asked.append(finish)
        return "finished"

    async def lock(self, path: str) -> str:
        self.asked.append(("lock", path))
        return "locked"

    async def unlock(self, path: str) -> str:
        self.asked.append(("unlock", path))
        return "unlocked"
