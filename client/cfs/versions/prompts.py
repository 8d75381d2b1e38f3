"""Finds the message that an agent was answering at a time, from the versions of its session. Pure: no I/O."""

from collections.abc import Sequence

from cfs.contract.wire import SessionVersion


def prompt_at(versions: Sequence[SessionVersion], time: float) -> int | None:
    """Return the version that has the newest user's message of a session at a time, in seconds since 1970, as its last.

    `versions` are those of the session, the oldest first. A rewind brings back the message of its version.
    """
    prompts: dict[int, int] = {}
    prompt: int | None = None
    for version in versions:
        if version.at > time:
            break
        if version.to is not None or version.kind == "rewound":
            prompt = None if version.to is None else prompts.get(version.to)
        elif version.role == "user":
            prompt = version.number
        if prompt is not None:
            prompts[version.number] = prompt
    return prompt
