"""How the server is configured: one table, read from flags, environment, a TOML file and defaults (P3).

The table is the class `ServerSettings`. The flags of `cfs serve`, the variables `CFS_*`, the keys of the file and
`docs/configuration.md` are all made from it. The first that names a setting wins, in this order.
"""

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import platformdirs
from pydantic import ByteSize, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from cfs.wire import CURRENCY, Keep, Price, seconds_of
from cfs_filesystem.versions import VersionRetention
from cfs_server.base.limits import ConnectionLimits, Network, PrincipalLimits
from cfs_server.domain.placement import SLOTS
from cfs_server.domain.quotas import StoreLimits
from cfs_server.engine.contract.interface import AffinityKind, KvType, UpstreamKind

ENV_PREFIX = "CFS_"
CONFIG_VARIABLE = "CFS_CONFIG"
TEMPORARY = "temporary"
"""A data folder of this name is deleted when the server exits."""

_AMOUNT = r"([0-9]{1,6}(?:\.[0-9]{1,6})?)"
_PRICE = re.compile(rf"{_AMOUNT}\s*,\s*(?:{_AMOUNT}\s*,\s*)?{_AMOUNT}(?:\s+([A-Z]{{3}}))?")
_NO_LIMIT = 1 << 62
_DATABASES = frozenset({"postgresql", "postgres"})
Seconds = Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class ConfigurationError(Exception):
    """A setting cannot be used; its text is the one line that the operator sees."""


class ServerSettings(BaseSettings):
    """Every setting of the server, its default and what it means."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, env_parse_none_str="none"
    )
    _limits: ClassVar[StoreLimits] = StoreLimits()
    _connections: ClassVar[ConnectionLimits] = ConnectionLimits()

    host: str = Field("127.0.0.1", description="Address to listen on. Anything but loopback needs `--tokens`.")
    port: int = Field(8000, ge=0, le=65_535, description="Port to listen on; 0 picks a free port and logs it.")
    tokens: Path | None = Field(
        None, description="TOML file of access tokens (`cfs token create`). If set, every request needs a token."
    )
    allow_remote_without_tokens: bool = Field(
        False,
        description="Allow non-loopback access without tokens. Anyone who can connect gets full access.",
        json_schema_extra={"flag": "--allow-remote"},
    )
    allowed_hosts: str = Field(
        "",
        description="Comma-separated host names that requests may use besides loopback ones (the `Host` header)."
        " Default: any name with `--tokens` or `--allow-remote`, else none.",
    )
    model: str | None = Field(
        None,
        description="Path of a GGUF file, a short name such as `smollm2` (`cfs model ls --all` lists them), or"
        " `hf:OWNER/REPO:FILE`. A missing file is downloaded. Default: the embedded model.",
    )
    models: Path | None = Field(
        None,
        description="TOML file of models, for a server that has several: GGUF files and upstreams, in place of `model`"
        " and `upstream`. The settings of upstreams are the defaults of each model of the file.",
    )
    connections: Path | None = Field(
        None,
        description="TOML file of connected models, which `cfs connect` writes. It is read if none of `model`, `models`"
        " and `upstream` is set; `none` reads none. Default: `models.toml` in `cfs` in the user's configuration"
        " folder, on Linux `~/.config/cfs/models.toml`.",
    )
    models_memory: ByteSize | None = Field(
        None,
        description="Memory for the models of `models` that this machine runs, such as `8GiB`, by the sizes of their"
        " files. The least recently used worker without turns ends for one that needs its place; turns wait if all are"
        " busy. Default: no limit.",
    )
    models_dir: Path | None = Field(
        None,
        description="Folder of downloaded models. Default: `models` in the data folder, or, if that is temporary, in"
        " the user's data folder.",
    )
    engine: Literal["llama", "scripted"] = Field(
        "llama", description="`llama` runs the model; `scripted` repeats each message, for tests."
    )
    engine_pool: ByteSize | None = Field(
        None,
        ge=1 << 20,
        description="Memory for the computed state of running and recent conversations of a model that this machine"
        " runs, such as `1GiB`. Default: that of two full contexts (1 GiB at most) or the size of the model, whichever"
        " is more, but at most a quarter of the machine's memory.",
    )
    kv_type: KvType = Field(
        "f16",
        description="Type of the numbers that the engine keeps of each token (keys and values). `q8_0` takes 53 % of"
        " the memory of `f16`, and `q4_0` 28 %, at the quality that docs/engine.md states. A model of the file of"
        " models may have another.",
    )
    engine_disk: Path | None = Field(
        None,
        description="Folder for the engine's cache of computed sessions, which survives restarts; `none` keeps it in"
        " memory only. The files reveal the contents of sessions, and go with them. Default: `engine` in the data"
        " folder if sessions are kept in a file, else none.",
    )
    engine_disk_bytes: Count = Field(
        4 << 30, description="Maximum size of the engine's disk cache in bytes, for each model. 1 GiB stays free."
    )
    engine_disk_rate: ByteSize = Field(
        ByteSize(64 << 20), ge=1 << 20, description="Most bytes that the engine's disk cache writes in a second."
    )
    speculation: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether the engine guesses tokens of a reply from earlier text of the session and of others of"
        " the same owner, and verifies several at once. `on` does so where that is measured to be faster, and `auto`"
        " only if it also gives the same text to the letter. With `on`, sums may be rounded otherwise.",
    )
    engine_hang_seconds: Seconds = Field(
        6.0,
        ge=3,
        description="Seconds without progress after which the engine's worker process is restarted. Steps that are"
        " predicted to take long get more; on Linux a worker that uses CPU time gets ten times as long.",
    )
    upstream: str | None = Field(
        None, description="URL of another model server that generates the replies, such as `http://127.0.0.1:8080/v1`."
    )
    upstream_kind: Literal["auto", UpstreamKind] = Field(
        "auto", description="API of the upstream. `auto` is `anthropic` if its URL contains that name, else `openai`."
    )
    upstream_model: str | None = Field(None, description="Model of the upstream. Default: its only model.")
    upstream_key_file: Path | None = Field(
        None,
        description="File with the API key of the upstream. Default: the environment variable `CFS_UPSTREAM_KEY`."
        " There is no flag for the key itself, because other users could read it.",
    )
    upstream_sampling: str = Field(
        "",
        description="Comma-separated sampling settings to send to the upstream: `temperature`, `top_p`, `top_k`,"
        " `min_p`, `seed`, `presence_penalty`, `frequency_penalty`, `repeat_penalty`, `repeat_last_n`, `logit_bias`,"
        " `min_tokens`. Default: `temperature`, `top_p`, `seed`, `presence_penalty`, `frequency_penalty` and"
        " `logit_bias`, or `temperature` for Anthropic.",
    )
    upstream_thinking_tokens: int = Field(
        0, ge=0, description="Thinking budget in tokens for Anthropic models, at least 1024; 0 disables thinking."
    )
    upstream_price: str = Field(
        "",
        description="What a million tokens of prompts and of replies cost, and the currency: `3, 15 USD`; with another"
        " price of cached tokens, `3, 0.3, 15 USD`. Default: what CFS knows of the upstream's price, if anything.",
    )
    upstream_timeout: Seconds = Field(
        120.0, gt=0, description="Seconds without data from the upstream after which a turn fails."
    )
    upstream_parallel: Count = Field(
        8, description="Maximum number of concurrent requests to the upstream; other turns wait."
    )
    upstream_affinity: AffinityKind = Field(
        "x-session-id",
        description="Where requests to the upstream say which of them belong together, so that a router can send a"
        " session, or a tree of agents, to the worker that has its prompt in the cache: the headers `x-session-id`"
        " (vllm-router) and `x-session-affinity`, the members `prompt_cache_key` and `user`, or `none`. The value is"
        " opaque.",
    )
    upstream_retries: int = Field(
        3, ge=0, le=20, description="How often to retry a request that failed before its first token."
    )
    upstream_retry_pause: Seconds = Field(
        0.5, description="Longest pause before a retry, in seconds; it doubles each time."
    )
    upstream_check: bool = Field(
        True, description="Check at startup that the upstream responds, accepts the key and has the model."
    )
    scripted_interval: Seconds = Field(0.0, description="Seconds between tokens of the scripted engine.")
    data_dir: Path | None = Field(
        None,
        description="Folder of sessions and workspaces, created with mode 0700. `temporary` is a new folder that is"
        " deleted when the server exits. Default: `cfs` in the user's data folder, on Linux `~/.local/share/cfs`.",
    )
    store: str = Field(
        "default",
        description="Where sessions are kept. `default`: in `sessions.db` in the data folder; what has been"
        " acknowledged survives a power loss. `fast`: the same file, but a power loss may take the last seconds."
        " `memory`: nowhere. `postgresql://USER@HOST/DATABASE`: in a database that many servers share, see"
        " docs/replicas.md; several such URLs are separated by white space. Anything else is the path of the file. In a"
        " temporary data folder the first two are `memory`.",
    )
    slots: int = Field(
        SLOTS,
        ge=1,
        le=4_096,
        description="Parts into which the sessions of a new database are divided, and so the maximum number of servers"
        " that share the work. A database keeps its number.",
    )
    replica_url: str | None = Field(
        None,
        description="URL at which the other servers of a shared database reach this one. Default: the address that it"
        " listens on.",
    )
    store_repair: bool = Field(
        False,
        description="If the file of the sessions is damaged, set it aside, and start with the sessions that can be"
        " read from it.",
    )
    workspaces: str | None = Field(
        None,
        description="Where the files of workspaces are: a folder, or an object store such as `s3://BUCKET/PREFIX` that"
        " several servers share (extra `cluster`). Credentials come from the environment. Default: `workspaces` in the"
        " data folder.",
    )
    versions: bool = Field(
        True,
        description="Keep the versions of files of workspaces, in `versions.db` in the data folder; servers that share"
        " a database keep them there, if they share the folder or bucket `workspaces`.",
    )
    versions_keep: Keep = Field(
        "forever", description="Forget changes of files that are older than this, such as `90d`; see `keep`."
    )
    versions_changes: Count | None = Field(
        None, description="Number of changes that are kept of each workspace. Default: no limit."
    )
    versions_bytes: ByteSize = Field(
        "1GiB",
        validate_default=True,
        description="Maximum bytes of the versions of each workspace, as they are stored. The oldest changes are"
        " forgotten first; what is there now stays.",
    )
    keep: Keep = Field(
        "forever",
        description="Delete sessions that have not changed for this long, such as `90d`: a number of minutes (`m`),"
        " hours (`h`), days (`d`), weeks (`w`) or years (`y`). The setting `keep` of a session wins.",
    )
    memory: ByteSize = Field(
        "512MiB",
        validate_default=True,
        description="Memory for messages, such as `2GiB`. Beyond it, the messages of idle sessions leave the memory,"
        " the least recently used first, and are read from the store when they are needed. With the store `memory`"
        " nothing leaves.",
    )
    ready_file: Path | None = Field(None, description="File to write the server's URL to once it listens.")
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="`text` for people, `json` for programs; `auto` is `text`, coloured on a terminal."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Minimum log level.")
    shutdown_grace: Seconds = Field(10.0, description="Seconds that running turns get to finish when the server stops.")
    ping: Seconds = Field(15.0, description="Seconds between heartbeats of an event stream; 0 disables them.")
    send_timeout: Seconds = Field(
        30.0, gt=0, description="Seconds after which a stream is closed if its client reads nothing."
    )
    stream_seconds: Seconds = Field(
        0.0, description="Maximum duration of a stream in seconds; clients resume it. 0 sets no limit."
    )
    cancel_on_disconnect: bool = Field(
        True,
        description="Cancel a turn when the client disconnects that sent it in the protocol of another service (OpenAI,"
        " Anthropic, Ollama). The header `X-CFS-On-Disconnect` decides for one request.",
    )
    max_wait: Seconds = Field(
        3600.0, description="Maximum `wait` of a request in seconds; longer waits are cut to this."
    )
    token_sessions: int | None = Field(None, ge=0, description="Maximum number of sessions of one token (507).")
    token_bytes: int | None = Field(
        None,
        ge=0,
        description="Maximum bytes of messages, as they take in memory, and of files in workspaces, of one token"
        " (507).",
    )
    token_streams: int | None = Field(None, ge=0, description="Maximum number of open streams of one token (429).")
    token_requests: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Maximum average rate of requests of one token, per second (429)."
    )
    token_daily_tokens: int | None = Field(
        None, ge=0, description="Maximum number of tokens that one token may use on models in a day in UTC (429)."
    )
    token_daily_cost: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Maximum cost in US dollars that one token may cause on models in a day in UTC (429).",
    )
    max_streams: Count = Field(10_000, description="Maximum number of open streams (429).")
    max_head_bytes: Count = Field(
        _connections.head_bytes, description="Maximum bytes of a request's first line and headers (431)."
    )
    max_head_fields: Count = Field(
        _connections.head_fields, description="Maximum number of header fields of a request (431)."
    )
    head_seconds: Seconds = Field(
        _connections.head_seconds,
        gt=0,
        description="Maximum seconds to receive a request's headers, from its first byte or the connection (408).",
    )
    stall_seconds: Seconds = Field(
        _connections.stall_seconds,
        gt=0,
        description="Maximum seconds without new data of a request's body (408). Slow uploads that progress are fine.",
    )
    max_unfinished: Count = Field(
        _connections.unfinished,
        description="Maximum number of connections of one address that have sent no complete request within a"
        " second (429). IPv6 addresses count by their /64 network.",
    )
    trusted_proxies: str = Field(
        "",
        description="Comma-separated addresses and networks that are exempt from `max_unfinished`: proxies that"
        " limit their own clients.",
    )
    max_body_bytes: Count = Field(8 << 20, description="Maximum bytes of a request's body, except for files (413).")
    max_file_bytes: Count = Field(1 << 30, description="Maximum bytes of a file in a workspace (413).")
    max_message_bytes: Count = Field(_limits.message_bytes, description="Maximum bytes of a message (413).")
    max_messages: Count = Field(
        _limits.messages, description="Maximum number of messages of a session (507), a request or a transcript (413)."
    )
    max_reply_bytes: Count = Field(
        4 << 20,
        description="Maximum bytes of an upstream's reply, including thinking and tool calls; longer ones fail.",
    )
    max_sessions: Count = Field(_limits.sessions, description="Maximum number of sessions (507).")
    max_total_bytes: Count | None = Field(
        None,
        description="Maximum bytes of all messages, in memory or not, counted as they take in memory (507)."
        " Default: 1 GiB if sessions are in memory only, else only the disk is the limit.",
    )
    max_busy_bytes: Count = Field(
        _limits.busy_bytes,
        description="Maximum bytes of memory for the messages of sessions with turns (507), which cannot leave it.",
    )
    max_queued_turns: Count = Field(
        _limits.queued_turns, description="Maximum number of turns that wait in a session (429)."
    )
    max_wait_seconds: Seconds = Field(
        _limits.wait_seconds,
        gt=0,
        description="Maximum predicted wait for the engine in seconds; turns that would wait longer are refused (429).",
    )
    turn_seconds: Seconds = Field(_limits.turn_seconds, gt=0, description="Maximum duration of a turn in seconds.")
    session_events: Count = Field(
        _limits.session_events, description="Number of events kept for each session, so that streams can resume."
    )
    session_event_bytes: Count = Field(
        _limits.session_event_bytes, description="Maximum bytes of memory for these; the newest event is always kept."
    )
    all_events: Count = Field(
        _limits.all_events, description="Number of events kept for all sessions, so that streams can resume."
    )
    all_event_bytes: Count = Field(
        _limits.all_event_bytes, description="Maximum bytes of memory for the events of all sessions."
    )

    @field_validator("data_dir", mode="before")
    @classmethod
    def _temporary(cls, value: object) -> object:
        return None if value == TEMPORARY or value == Path(TEMPORARY) else value

    @field_validator("store")
    @classmethod
    def _check_store(cls, value: str) -> str:
        kinds = {part.partition("://")[0] for part in value.split() if "://" in part}
        if others := kinds - _DATABASES:
            raise ValueError(f"CFS keeps sessions in a file, in memory or in PostgreSQL, but not in {min(others)}")
        if kinds and not all("://" in part for part in value.split()):
            raise ValueError(
                "the addresses of several databases are separated by white space; each begins postgresql://"
            )
        return value or "default"

    @property
    def databases(self) -> tuple[str, ...]:
        """The addresses of the databases that this server shares with others; none for a server of its own."""
        return tuple(self.store.split()) if "://" in self.store else ()

    @property
    def store_file(self) -> Path | None:
        """The file of the sessions; None if they are in memory only."""
        if self.store == "memory" or self.databases:
            return None
        if self.store not in ("default", "fast"):
            return Path(self.store)
        return self.data_dir and self.data_dir / "sessions.db"

    @property
    def engine_folder(self) -> Path | None:
        """The folder of the engine's cache; None if it is in memory only."""
        return None if self.engine_disk in (None, Path("none")) else self.engine_disk

    @property
    def models_folder(self) -> Path:
        """The folder of downloaded models."""
        return self.models_dir or (self.data_dir or user_data_dir()) / "models"

    @property
    def models_path(self) -> Path | None:
        """The file of models that the server reads: that of `models` or of `connections`. None if it reads none."""
        named = self.model or self.upstream or self.engine == "scripted"
        return self.models or (None if named else self.connections)

    @property
    def host_names(self) -> frozenset[str] | None:
        """Names under which the server may be called; None for any."""
        names = frozenset(name.strip().lower() for name in self.allowed_hosts.split(",") if name.strip())
        anywhere = self.allow_remote_without_tokens or self.tokens is not None
        return None if anywhere and not names else names

    @field_validator("upstream_price")
    @classmethod
    def _check_price(cls, value: str) -> str:
        price_of(value)
        return value

    @property
    def price(self) -> Price | None:
        """The price of tokens, if it is known."""
        return price_of(self.upstream_price)

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: str) -> str:
        _networks(value)
        return value

    @property
    def connection_limits(self) -> ConnectionLimits:
        """What a connection may cost before its request is there."""
        return ConnectionLimits(
            head_bytes=self.max_head_bytes,
            head_fields=self.max_head_fields,
            head_seconds=self.head_seconds,
            stall_seconds=self.stall_seconds,
            unfinished=self.max_unfinished,
            trusted_proxies=_networks(self.trusted_proxies),
        )

    @property
    def versions_absent(self) -> str:
        """Why no versions of files are kept; empty if they are."""
        if not self.versions:
            return "the setting `versions` is off"
        if self.databases and self.workspaces is None:
            return "servers that share a database need a common folder or bucket for that: name it with `--workspaces`"
        return ""

    @property
    def version_retention(self) -> VersionRetention | None:
        """Which versions of files are kept; None if none are."""
        if self.versions_absent:
            return None
        seconds = None if self.versions_keep == "forever" else seconds_of(self.versions_keep)
        return VersionRetention(seconds, self.versions_changes, self.versions_bytes)

    @property
    def principal_limits(self) -> PrincipalLimits:
        """What one token may take unless its own limits say otherwise."""
        return PrincipalLimits(
            self.token_sessions,
            self.token_bytes,
            self.token_streams,
            self.token_requests,
            self.token_daily_tokens,
            self.token_daily_cost,
        )

    @property
    def limits(self) -> StoreLimits:
        """What the sessions may take."""
        return StoreLimits(
            sessions=self.max_sessions,
            message_bytes=self.max_message_bytes,
            messages=self.max_messages,
            total_bytes=self.max_total_bytes
            or (_NO_LIMIT if self.store_file or self.databases else StoreLimits().total_bytes),
            memory=self.memory,
            busy_bytes=self.max_busy_bytes,
            queued_turns=self.max_queued_turns,
            turn_seconds=self.turn_seconds,
            wait_seconds=self.max_wait_seconds,
            session_events=self.session_events,
            session_event_bytes=self.session_event_bytes,
            all_events=self.all_events,
            all_event_bytes=self.all_event_bytes,
        )


def price_of(text: str) -> Price | None:
    """Read a price, such as `3, 15 USD`, or `3, 0.3, 15 USD` with that of cached tokens; an empty text is none.

    Raises `ValueError`.
    """
    match = _PRICE.fullmatch(text.strip())
    if text.strip() and not match:
        raise ValueError(
            "write a price as two numbers and a currency, such as 3, 15 USD; three if cached tokens have one"
        )
    return match and Price(
        prompt=float(match[1]),
        cached=None if match[2] is None else float(match[2]),
        completion=float(match[3]),
        currency=match[4] or CURRENCY,
    )


def _networks(names: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(name.strip(), strict=False) for name in names.split(",") if name.strip())


def flag_of(name: str) -> str:
    """Name the flag of `cfs serve` that sets a field."""
    extra = ServerSettings.model_fields[name].json_schema_extra
    flag = extra.get("flag") if isinstance(extra, dict) else None
    return str(flag or "--" + name.replace("_", "-"))


def user_data_dir() -> Path:
    """Return the folder in which this user's programs keep data of `cfs`."""
    return platformdirs.user_data_path("cfs", appauthor=False)


def user_connections() -> Path:
    """Return the file of this user's connected models."""
    return platformdirs.user_config_path("cfs", appauthor=False) / "models.toml"


def load(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> ServerSettings:
    """Read the settings; raises `ConfigurationError` naming the first one that cannot be used.

    The data folder and the file of connected models are the user's unless they are set, and the engine's cache is in
    the data folder. `ServerSettings()` itself has a temporary folder, and no file.
    """
    if config is not None and not config.is_file():
        raise ConfigurationError(f"{config}: there is no such configuration file")

    class Configured(ServerSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is the library's
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=config)

    try:
        configured = Configured(**dict(flags or {}))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"setting {name!r}: {first['msg'].lower()}{_given(first)}") from None
    except ValueError as error:  # a file that is no TOML, an unreadable one
        raise ConfigurationError(f"{config}: {error}") from None
    users = {"data_dir": user_data_dir, "connections": user_connections}
    configured = configured.model_copy(
        update={name: path() for name, path in users.items() if name not in configured.model_fields_set}
    )
    if "engine_disk" in configured.model_fields_set or configured.data_dir is None or configured.store_file is None:
        return configured
    return configured.model_copy(update={"engine_disk": configured.data_dir / "engine"})


def _given(problem: Any) -> str:
    value = repr(problem["input"])
    is_secret = "://" in value and "@" in value  # the address of a database may contain its password
    return "" if problem["type"] == "extra_forbidden" or is_secret else f" (given: {value})"
