"""The MCP server: passes each request of the protocol to the tools, resources and prompts, as its caller.

It speaks the versions of the protocol that the library speaks: 2026-07-28, where each request stands for itself and
`subscriptions/listen` is a stream of changes, and the ones before, with a handshake and `resources/subscribe`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError

from cfs.errors import CfsError, InvalidRequest, NotFound, Unsupported, to_problem
from cfs_mcp import resources, tools
from cfs_mcp.callers import CallerClient, CallerClients
from cfs_mcp.changes import Subscriber
from cfs_mcp.prompts import PROMPTS
from cfs_mcp.questions import Asking
from cfs_mcp.tools import TOOLS
from cfs_mcp.uris import session_in

NAME = "cfs"
INSTRUCTIONS = (
    "Sessions are conversations with language models and agents that run on a CFS server; a name such as `main/coder`"
    " is a sub-session of `main`. Send messages with `send_message`; a reply that takes long goes on without you:"
    " `wait` for it. Each session may have a workspace of files at `/workspaces/NAME/`. To change a file, read it,"
    " then write it with the `version` that you have read."
)
PROBLEM = "cfs/problem"
"""Member of `_meta` of a failed tool call: the error as a problem document (RFC 9457)."""

Context = ServerRequestContext[Any, Any]
P = TypeVar("P")
R = TypeVar("R")


class Face:
    """The handlers of the protocol's requests."""

    def __init__(self, callers: CallerClients) -> None:
        self._callers = callers
        self._schemas = {name: tool.arguments.schema_of() for name, tool in TOOLS.items()}
        self._tools = [tool.shown for tool in TOOLS.values()]

    def server(self) -> Server[None]:
        """Build the server with these handlers."""

        @asynccontextmanager
        async def lifespan(_: Server[None]) -> AsyncIterator[None]:
            try:
                yield
            finally:
                await self._callers.close()

        return Server(
            NAME,
            version=version("cfs-local-mcp"),
            title="CFS",
            instructions=INSTRUCTIONS,
            lifespan=lifespan,
            get_tool_input_schema=self._schema_of,
            on_list_tools=self._list_tools,
            on_call_tool=self._as_caller(self._call_tool),
            on_list_resources=self._as_caller(self._list_resources),
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._as_caller(self._read_resource),
            on_subscribe_resource=self._as_caller(self._subscribe),
            on_unsubscribe_resource=self._as_caller(self._unsubscribe),
            on_subscriptions_listen=self._as_caller(self._listen),
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._as_caller(self._get_prompt),
            on_completion=self._as_caller(self._complete),
        )

    def _as_caller(
        self, handler: Callable[[CallerClient, Context, P], Awaitable[R]]
    ) -> Callable[[Context, P], Awaitable[R]]:
        """Return a handler that gets the caller of the request, and whose errors are those of the protocol."""

        async def handle(context: Context, params: P) -> R:
            async with self._callers.calling(self._callers.token_of(context)) as caller:
                try:
                    return await handler(caller, context, params)
                except CfsError as error:
                    raise _protocol_error(error) from None

        return handle

    def _schema_of(self, tool: str) -> Mapping[str, Any] | None:
        return self._schemas.get(tool)

    async def _list_tools(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._tools)

    async def _call_tool(
        self, caller: CallerClient, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(
                types.INVALID_PARAMS, f"there is no tool {params.name[:100]!r}: use one of {', '.join(TOOLS)}"
            )

        async def progress(tokens: float, text: str) -> None:
            await context.session.report_progress(tokens, None, text)

        try:
            asking = _asking(context)
            await asking.resume(caller.client, params)
            result = await tool.call(tools.CallContext(caller.client, progress, asking), params.arguments or {})
        except CfsError as error:
            return types.CallToolResult(
                content=[types.TextContent(text=f"{error.title}: {error.detail}")],
                is_error=True,
                _meta={PROBLEM: to_problem(error)},
            )
        if asking.pending is not None:
            return asking.pending.result
        return types.CallToolResult(
            content=[types.TextContent(text=result.model_dump_json())],
            structured_content=result.model_dump(mode="json"),
        )

    async def _list_resources(
        self, caller: CallerClient, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        if not _is_modern(context):
            with suppress(CfsError):  # a list without notices is better than none
                await (await self._subscriber(caller, context)).add_list()
        return await resources.list_page(caller.client, params.cursor if params else None)

    async def _list_templates(
        self, _: Context, __: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=resources.TEMPLATES)

    async def _read_resource(
        self, caller: CallerClient, _: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return types.ReadResourceResult(contents=[await resources.read(caller.client, params.uri)])

    async def _complete(
        self, caller: CallerClient, _: Context, params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        completion = await resources.complete(caller.client, params.argument.name, params.argument.value)
        return types.CompleteResult(completion=completion)

    async def _listen(
        self, caller: CallerClient, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        requested = params.notifications
        uris = [uri for uri in requested.resource_subscriptions or () if _has_events(uri)]
        honored = types.SubscriptionFilter(
            resources_list_changed=requested.resources_list_changed, resource_subscriptions=uris or None
        )
        await caller.changes.watch(*uris)
        try:
            return await caller.listen(context, params.model_copy(update={"notifications": honored}))
        finally:
            await caller.changes.unwatch(*uris)

    async def _subscribe(
        self, caller: CallerClient, context: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        if session_in(params.uri) is None:
            raise Unsupported("only transcripts can be subscribed to: the server has no events of files")
        await (await self._subscriber(caller, context)).add(params.uri)
        return types.EmptyResult()

    async def _unsubscribe(
        self, caller: CallerClient, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        await (await self._subscriber(caller, context)).remove(params.uri)
        return types.EmptyResult()

    async def _subscriber(self, caller: CallerClient, context: Context) -> Subscriber:
        """Return the subscriptions of a connection, which end with it."""
        connection = context.session._connection  # noqa: SLF001 - the library shows it in no other way
        existing = connection.state.get(NAME)
        if isinstance(existing, Subscriber):
            return existing
        caller = await connection.exit_stack.enter_async_context(self._callers.calling(self._callers.token_of(context)))
        subscriber = connection.state[NAME] = Subscriber(caller.changes, context.session)
        connection.exit_stack.push_async_callback(subscriber.close)
        return subscriber

    async def _list_prompts(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[prompt.shown for prompt in PROMPTS.values()])

    async def _get_prompt(
        self, caller: CallerClient, _: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        prompt = PROMPTS.get(params.name)
        if prompt is None:
            raise MCPError(
                types.INVALID_PARAMS, f"there is no prompt {params.name[:100]!r}: use one of {', '.join(PROMPTS)}"
            )
        return await prompt.get(caller.client, params.arguments or {})


def options_of(server: Server[None]) -> InitializationOptions:
    """Return what a client learns at the handshake of the versions before 2026-07-28."""
    return server.create_initialization_options(NotificationOptions(resources_changed=True))


def _is_modern(context: Context) -> bool:
    return context.protocol_version in types.version.MODERN_PROTOCOL_VERSIONS


def _asking(context: Context) -> Asking:
    """Return how the person at the client can be asked."""
    capabilities = context.session.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        return Asking()
    if _is_modern(context):
        return Asking(by_result=True)
    return Asking(partial(context.session.elicit_form, related_request_id=context.request_id))


def _has_events(uri: str) -> bool:
    try:
        return session_in(uri) is not None
    except CfsError:
        return False


def _protocol_error(error: CfsError) -> MCPError:
    """Convert an error: what the caller can mend is about its parameters (SEP-2164 for what is not there)."""
    theirs = isinstance(error, InvalidRequest | NotFound | Unsupported)
    code = types.INVALID_PARAMS if theirs else types.INTERNAL_ERROR
    return MCPError(code, error.detail, to_problem(error))
