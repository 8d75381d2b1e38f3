"""Tasks in which an agent writes its context window anew."""

from itertools import chain

from demo_model import agent_phrases as say
from demo_model import tool_phrases
from demo_model.agent_jobs import (
    Desk,
    Job,
    Note,
    Steps,
    asked_to_write,
    content_of,
    could_not_read,
    could_not_write,
    existing,
    is_error,
    job_of,
    joined,
    path_of,
    read_step,
    says,
    work,
    write_step,
)
from demo_model.chat_format import ToolCall
from demo_model.scenes import Cast


def window_of(cast: Cast, task: str, facts: list[Note], left: str = "") -> str:
    """A context window in the form of the default: the task, what is known, and what comes next."""
    heads = cast.say(
        "# Current Task|# Working Memory|# Active Observations|# Next Steps",
        "# 当前任务|# 工作记忆|# 当前观察|# 下一步",
    ).split("|")
    known = [
        cast.say(f"- I wrote {one.path}.", f"- 已写好{one.path}。")
        if one.written
        else f"- {says(cast, one.path, one.content)}"
        for one in facts
    ]
    nothing = cast.say("None.", "无。")
    known = known or [nothing]
    return "\n".join(
        chain((heads[0], task, "", heads[1]), known, ("", heads[2], nothing, "", heads[3], left or nothing))
    )


def sync_step(window: str) -> Steps:
    """Write a new window; what comes after it sees the new one only."""
    return (yield ToolCall("sync_context", {"new_context_content": window}))


def synced(cast: Cast) -> str:
    """The answer after a sync that was all that was asked for."""
    return cast.say("The context is synced.", "上下文已同步。")


@work(0.7)
def sync(cast: Cast, desk: Desk) -> Job:  # noqa: ARG001 - the signature is the makers'
    """Sync the context, when asked to; nothing is known yet."""
    asked = cast.pick(say.SYNC, say.SYNC_ZH)

    def steps(job: Job) -> Steps:
        yield from sync_step(window_of(cast, asked, job.facts))
        return synced(cast)

    return job_of(asked, steps)


@work(1.0)
def work_and_sync(cast: Cast, desk: Desk) -> Job:
    """Write or read a file, then sync the context."""
    reads = cast.rng.random() < 0.4
    content = content_of(cast)
    path = existing(cast, desk, content) if reads else path_of(cast)
    asked = (
        cast.pick(tool_phrases.READ, tool_phrases.READ_ZH).replace("#", path)
        if reads
        else asked_to_write(cast, path, content)
    )
    asked = joined(asked, cast.pick(say.THEN_SYNC, say.THEN_SYNC_ZH))

    def steps(job: Job) -> Steps:
        result = yield from (read_step(job, path) if reads else write_step(job, path, content))
        if is_error(result):
            return (could_not_read if reads else could_not_write)(cast, path, result)
        yield from sync_step(window_of(cast, asked, job.facts))
        return synced(cast)

    return job_of(asked, steps)
