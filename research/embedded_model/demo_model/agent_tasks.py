"""Tasks for agents with files: what is asked, and what an agent does, step by step, after it has seen each result."""

from demo_model import agent_phrases as say
from demo_model import tool_phrases, words
from demo_model.agent_jobs import (
    Desk,
    Job,
    Steps,
    asked_to_write,
    content_of,
    could_not_read,
    could_not_write,
    existing,
    failed,
    is_error,
    job_of,
    joined,
    letters,
    list_step,
    path_of,
    read_step,
    says,
    work,
    write_step,
    wrote,
)
from demo_model.chat_format import ToolCall
from demo_model.scenes import Cast


@work(3.0)
def write(cast: Cast, desk: Desk) -> Job:
    """Write one file, new or there already."""
    path = existing(cast, desk) if cast.rng.random() < 0.15 else path_of(cast)
    content = content_of(cast)

    def steps(job: Job) -> Steps:
        result = yield from write_step(job, path, content)
        return could_not_write(cast, path, result) if is_error(result) else wrote(cast, path)

    return job_of(asked_to_write(cast, path, content), steps)


@work(8.0)
def write_and_read(cast: Cast, desk: Desk) -> Job:
    """Write a file and read it back."""
    path = existing(cast, desk) if cast.rng.random() < 0.1 else path_of(cast)
    content = content_of(cast)
    asked = joined(asked_to_write(cast, path, content), cast.pick(say.AND_READ, say.AND_READ_ZH))

    def steps(job: Job) -> Steps:
        result = yield from write_step(job, path, content)
        if is_error(result):
            return could_not_write(cast, path, result)
        return says(cast, path, (yield from read_step(job, path)))

    return job_of(asked, steps)


@work(1.0)
def write_and_list(cast: Cast, desk: Desk) -> Job:
    """Write a file and list the workspace."""
    path, content = path_of(cast), content_of(cast)
    if cast.rng.random() < 0.5:
        existing(cast, desk)
    asked = joined(asked_to_write(cast, path, content), cast.pick(say.AND_LIST, say.AND_LIST_ZH))

    def steps(job: Job) -> Steps:
        result = yield from write_step(job, path, content)
        if is_error(result):
            return could_not_write(cast, path, result)
        return (yield from list_step(cast, "."))

    return job_of(asked, steps)


@work(3.0)
def write_two(cast: Cast, desk: Desk) -> Job:  # noqa: ARG001 - the signature is the makers'
    """Write two files; now and then read both."""
    paths = [path_of(cast), path_of(cast)]
    while paths[1] == paths[0]:
        paths[1] = path_of(cast)
    contents = [content_of(cast), content_of(cast)]
    asked = cast.pick(say.TWO, say.TWO_ZH).replace("#", paths[0]).replace("@", paths[1])
    asked = asked.replace("*", contents[0]).replace("~", contents[1])
    read = cast.rng.random() < 0.4
    if read:
        asked = joined(asked, cast.pick(say.AND_READ_BOTH, say.AND_READ_BOTH_ZH))

    def steps(job: Job) -> Steps:
        for path, content in zip(paths, contents, strict=True):
            result = yield from write_step(job, path, content)
            if is_error(result):
                return could_not_write(cast, path, result)
        if not read:
            return cast.say(f"I wrote the files {paths[0]} and {paths[1]}.", f"我已写好文件{paths[0]}和{paths[1]}。")
        told: list[str] = []
        for path in paths:
            result = yield from read_step(job, path)
            told += [says(cast, path, result)]
        return "\n".join(told)

    return job_of(asked, steps)


@work(2.0)
def read(cast: Cast, desk: Desk) -> Job:
    """Read a file that is there."""
    content = "\n".join(content_of(cast) for _ in range(cast.rng.choice((1, 1, 1, 2, 3))))
    path = existing(cast, desk, content + cast.rng.choice(("", "\n")) if cast.rng.random() < 0.96 else "")
    asked = cast.pick(tool_phrases.READ, tool_phrases.READ_ZH).replace("#", path)

    def steps(job: Job) -> Steps:
        return says(cast, path, (yield from read_step(job, path)))

    return job_of(asked, steps)


@work(1.5)
def read_missing(cast: Cast, desk: Desk) -> Job:
    """Read a file that is not there, with others near it or not."""
    path = path_of(cast)
    if cast.rng.random() < 0.6:
        existing(cast, desk)
    if cast.rng.random() < 0.25:
        desk.files[path + cast.rng.choice(("x", "2", "_"))] = "x"
    desk.files.pop(path, None)
    asked = cast.pick(tool_phrases.READ, tool_phrases.READ_ZH).replace("#", path)

    def steps(job: Job) -> Steps:
        result = yield from read_step(job, path)
        return could_not_read(cast, path, result) if is_error(result) else says(cast, path, result)

    return job_of(asked, steps)


@work(2.0)
def look(cast: Cast, desk: Desk) -> Job:
    """List the workspace, or a folder."""
    if cast.rng.random() < 0.3:
        folder = letters(cast)
        if cast.rng.random() < 0.8:
            desk.files[f"{folder}/{letters(cast)}.txt"] = content_of(cast)
        asked = cast.pick(tool_phrases.LIST, tool_phrases.LIST_ZH).replace("#", folder)
    else:
        folder, asked = ".", cast.pick(say.LIST_ALL, say.LIST_ALL_ZH)
        for _ in range(cast.rng.choice((0, 1, 1, 2, 3))):
            existing(cast, desk)
    return job_of(asked, lambda _: list_step(cast, folder))


@work(1.2)
def search(cast: Cast, desk: Desk) -> Job:
    """Find a word in the files."""
    wanted = cast.rng.choice((letters(cast), words.word(cast.rng), words.number(cast.rng)))
    if cast.rng.random() < 0.85:
        line = cast.rng.choice((wanted, f"{wanted} {words.word(cast.rng)}", f"{words.word(cast.rng)} {wanted}"))
        existing(cast, desk, line)
    for _ in range(cast.rng.choice((0, 1, 1))):
        existing(cast, desk)
    asked = cast.pick(say.SEARCH, say.SEARCH_ZH).replace("*", wanted)

    def steps(_: Job) -> Steps:
        result = yield ToolCall("search_files", {"pattern": wanted})
        *found, _note = result.split("\n")
        places = [line.split(":")[0] for line in found]
        if is_error(result):
            return failed(cast, "I could not search", "我没能搜索", result)
        if not places:
            return cast.say(f"I did not find {wanted}.", f"我没有找到{wanted}。")
        told = ", ".join(dict.fromkeys(places))
        return cast.say(f"{wanted} is in {told}.", f"{wanted}在{told}里。")

    return job_of(asked, steps)


@work(0.5)
def run(cast: Cast, desk: Desk) -> Job:
    """Run a command."""
    path, there = path_of(cast).replace("\\", ""), cast.rng.random() < 0.7
    if there:
        desk.files[path] = content_of(cast)
    shell_safe = all(char.isascii() and (char.isalnum() or char in "._-/") for char in path)
    kinds = [f"echo {letters(cast)}", f"echo {words.word(cast.rng)} {letters(cast)}", "true", "ls"]
    command = cast.rng.choice([*kinds, f"cat {path}", f"wc -c {path}"] if shell_safe else kinds)
    quoted = cast.rng.random() < 0.5
    asked = (
        cast.pick(tool_phrases.RUN_QUOTED, tool_phrases.RUN_QUOTED_ZH)
        if quoted
        else cast.pick(tool_phrases.RUN, tool_phrases.RUN_ZH)
    )

    def steps(_: Job) -> Steps:
        result = yield ToolCall("execute_command", {"command": command})
        *printed, note = result.rstrip("\n").split("\n")
        output = printed if note.startswith("[exit status") else [*printed, note]
        if note.startswith("[exit status") and not note.startswith("[exit status 0"):
            reason = output[0] if output else note.strip("[]").partition(",")[0]
            return cast.say(f"The command failed: {reason}.", f"命令失败了：{reason}。")
        if not output or not output[0]:
            return cast.say("The command finished without output.", "命令已执行，没有输出。")
        return cast.say(f"The command printed: {output[0]}", f"命令输出：{output[0]}")

    return job_of(asked.replace("*", command), steps)
