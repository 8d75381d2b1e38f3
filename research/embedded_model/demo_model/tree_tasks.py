"""Tasks for a tree of agents: files that sub-agents make side by side, and what root and sub-agents do for it."""

from dataclasses import dataclass

from demo_model import agent_phrases as say
from demo_model.agent_jobs import Job, Note, Steps, content_of, could_not_write, path_of, write_step
from demo_model.chat_format import ToolCall
from demo_model.scenes import Cast


@dataclass(frozen=True)
class Part:
    """What one sub-agent is to do: its name, its file, and what the file is to hold."""

    name: str
    path: str
    content: str

    def goal(self, cast: Cast) -> str:
        """The sub-agent's first message."""
        return cast.say(f'Write "{self.content}" to {self.path}.', f"把“{self.content}”写入{self.path}。")

    def spawn(self, cast: Cast) -> ToolCall:
        """The call that starts it."""
        arguments = {
            "agent_name": self.name,
            "role_description": cast.say(f"writes {self.path}", f"写{self.path}"),
            "system_instruction": cast.say(
                f"You are a writer. Write only {self.path}.", f"你是写手，只写{self.path}。"
            ),
            "task_goal": self.goal(cast),
        }
        return ToolCall("sys_spawn_agent", arguments)


def parts_of(cast: Cast, first: int) -> list[Part]:
    """What is to be made; the names of the agents are counted from `first`."""
    count = cast.rng.choice((2, 2, 2, 2, 2, 2, 3))
    paths: list[str] = []
    while len(paths) < count:
        path = path_of(cast)
        if path not in paths and len(path) < 30:
            paths.append(path)
    return [Part(f"writer_{first + index}", path, content_of(cast)) for index, path in enumerate(paths)]


def asked(cast: Cast, parts: list[Part]) -> str:
    """The wording of the task."""
    form = cast.pick(say.PART, say.PART_ZH)
    told = [form.replace("#", part.path).replace("*", part.content) for part in parts]
    together = cast.say(", ".join(told[:-1]) + " and " + told[-1], cast.rng.choice(("和", "，")).join(told))
    text = cast.pick(say.SIDE_BY_SIDE, say.SIDE_BY_SIDE_ZH).replace("#", together)
    if len(parts) == 3:
        text = text.replace("two agents", "three agents").replace("两个", "三个")
    return text


def root_steps(cast: Cast, parts: list[Part]) -> Steps:
    """The root: an agent for each part, then their reports, then a look, then the answer."""
    for part in parts:
        yield part.spawn(cast)
    failed = []
    for part in parts:
        report = yield ToolCall("sys_wait_agent", {"agent_id": part.name})
        if not report.startswith((f"[{part.name} success]", f"[{part.name} 成功]")):
            failed.append(part)
    yield ToolCall("list_directory", {"path": "."})
    done = [part.path for part in parts if part not in failed]
    if failed:
        names = ", ".join(part.path for part in failed)
        return cast.say(f"The agents could not write {names}.", f"智能体没能写入{names}。")
    *most, last = done
    return cast.say(
        f"The agents wrote the files {', '.join(most)} and {last}.", f"智能体已写好文件{'、'.join(most)}和{last}。"
    )


def part_steps(cast: Cast, part: Part) -> Steps:
    """A sub-agent: it writes its file and reports."""
    facts: list[Note] = []
    job = Job(part.goal(cast), iter(()), facts)  # type: ignore[arg-type]
    result = yield from write_step(job, part.path, part.content)
    if result.startswith("Error"):
        summary, status, files = could_not_write(cast, part.path, result), "failed", []
    else:
        summary, status, files = (
            cast.say(f"I wrote the file {part.path}.", f"我已写好文件{part.path}。"),
            "success",
            [part.path],
        )
    yield ToolCall("sys_finish_task", {"status": status, "summary": summary, "details": {"created_files": files}})
    return summary
