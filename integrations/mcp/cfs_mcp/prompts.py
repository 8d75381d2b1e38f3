"""The prompts: conversations that a person starts from a session, with its transcript in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mcp.types import (
    EmbeddedResource,
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
    TextResourceContents,
)

from cfs import api
from cfs.errors import InvalidParameters
from cfs.transports.async_http import AsyncClient
from cfs_mcp.resources import TEXT
from cfs_mcp.uris import uri_of_session


@dataclass(frozen=True, slots=True)
class SessionPrompt:
    """A prompt about one session; `words` writes what it asks for from its arguments."""

    name: str
    title: str
    description: str
    words: Callable[[Mapping[str, str]], str]
    optional: tuple[tuple[str, str], ...] = ()

    @property
    def shown(self) -> Prompt:
        """The prompt as clients see it."""
        arguments = [PromptArgument(name="session", description="Name of the session.", required=True)]
        arguments += [PromptArgument(name=name, description=what, required=False) for name, what in self.optional]
        return Prompt(name=self.name, title=self.title, description=self.description, arguments=arguments)

    async def get(self, client: AsyncClient, arguments: Mapping[str, str]) -> GetPromptResult:
        """Return the messages of the prompt. Raises `InvalidParameters` for wrong arguments."""
        accepted = {"session", *(name for name, _ in self.optional)}
        if unknown := sorted(set(arguments) - accepted):
            raise InvalidParameters(f"the prompt {self.name!r} has no argument {unknown[0]!r}")
        session = arguments.get("session")
        if not session:
            raise InvalidParameters(f"the prompt {self.name!r} needs the argument 'session'")
        view = await client.call(api.transcript(session))
        transcript = TextResourceContents(uri=uri_of_session(session), mime_type=TEXT, text=view.text)
        return GetPromptResult(
            description=f"{self.title}: {session}",
            messages=[
                PromptMessage(role="user", content=EmbeddedResource(resource=transcript)),
                PromptMessage(role="user", content=TextContent(text=self.words(arguments))),
            ],
        )


def _continue(arguments: Mapping[str, str]) -> str:
    session, message = arguments["session"], arguments.get("message")
    begin = f"This is the transcript of the session {session!r}. "
    if message:
        return begin + f"Send it this message with the tool `send_message`, and show me the reply:\n\n{message}"
    return begin + "Say in two sentences where it stands, then ask me what to send to it with the tool `send_message`."


def _summarize(arguments: Mapping[str, str]) -> str:
    focus = arguments.get("focus")
    return (
        f"Summarize the session {arguments['session']!r}, whose transcript this is: what was asked, what was decided,"
        " what was done, and what is open. Use only what the transcript says."
        + (f" Look above all at this: {focus}" if focus else "")
    )


def _report(arguments: Mapping[str, str]) -> str:
    session = arguments["session"]
    return (
        f"This is the transcript of the session {session!r}, whose agent may lead others in sub-sessions. Look at all"
        " of them with the tool `watch_tree`, read those that matter with `read_session`, and report: which agents work"
        " on what, which have finished, which wait for an answer of a person, and what looks wrong."
    )


PROMPTS: dict[str, SessionPrompt] = {
    prompt.name: prompt
    for prompt in (
        SessionPrompt(
            "continue_session",
            "Continue a session",
            "Take up a conversation where it stopped.",
            _continue,
            (("message", "What to send to it."),),
        ),
        SessionPrompt(
            "summarize_session",
            "Summarize a session",
            "What was asked, decided and done in a conversation, and what is open.",
            _summarize,
            (("focus", "What to look at above all."),),
        ),
        SessionPrompt(
            "report_on_agents",
            "Report on agents",
            "What the agents of a session and of its sub-sessions do, and which of them wait.",
            _report,
        ),
    )
}
