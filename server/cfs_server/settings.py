"""How the server is configured: one table, read from flags, environment, a TOML file and defaults (P3).

The table is the class `Settings`. The flags of `cfs serve`, the variables `CFS_*`, the keys of the file and
`docs/configuration.md` are all made from it. The first that names a setting wins, in this order.
"""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from cfs_server.access.auth import ConnectionLimits, Network, PrincipalLimits
from cfs_server.engine.interface import UpstreamKind
from cfs_server.sessions.quotas import Limits

ENV_PREFIX = "CFS_"
CONFIG_VARIABLE = "CFS_CONFIG"
_FILES = ("/dav/", "/v1/files/workspaces/")
_DAV = "/dav"
_DAV_BYTES = 64 << 10
"""A request that lists properties or asks for a lock is a few hundred bytes of XML."""

Seconds = Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class ConfigurationError(Exception):
    """A setting cannot be used; its text is the one line that the operator sees."""


class Settings(BaseSettings):
    """Every setting of the server, its default and what it means."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, env_parse_none_str="none"
    )
    _limits: ClassVar[Limits] = Limits()
    _connections: ClassVar[ConnectionLimits] = ConnectionLimits()

    host: str = Field("127.0.0.1", description="Address to listen on. Anything but loopback needs `--tokens`.")
    port: int = Field(8000, ge=0, le=65_535, description="Port to listen on; 0 takes a free one and says which.")
    tokens: Path | None = Field(
        None, description="TOML file of access tokens (`cfs token create`); with it every caller needs one."
    )
    allow_remote_without_tokens: bool = Field(
        False,
        description="Listen elsewhere than on loopback without tokens: everybody who comes may read and write all.",
        json_schema_extra={"flag": "--allow-remote"},
    )
    allowed_hosts: str = Field(
        "",
        description="Names, separated by commas, under which the server may be called besides loopback ones;"
        " browsers send them. With `--tokens` or `--allow-remote` any, unless set.",
    )
    model: str | None = Field(
        None, description="Path of a GGUF file, or `hf:OWNER/REPO:FILE`; the embedded model unless set."
    )
    engine: Literal["llama", "scripted"] = Field(
        "llama", description="What answers: `llama` runs the model; `scripted` repeats the message, for tests."
    )
    engine_disk: Path | None = Field(
        None,
        description="Folder for what the engine has computed for sessions, beyond memory; nothing is kept on disk"
        " unless set. The files hold what the sessions are about, and outlive the server.",
    )
    engine_disk_bytes: Count = Field(4 << 30, description="Bytes that the engine may keep on disk.")
    engine_hang_seconds: Seconds = Field(
        6.0,
        ge=3,
        description="Seconds without a sign of life from the engine after which its worker process is replaced;"
        " steps that are predicted to take long get more; a worker that uses CPU time gets ten times as long (Linux).",
    )
    upstream: str | None = Field(
        None, description="URL of another server that answers instead: `http://127.0.0.1:8080/v1`."
    )
    upstream_kind: Literal["auto", UpstreamKind] = Field(
        "auto", description="Protocol of the upstream; `auto` is `anthropic` when its URL says so, else `openai`."
    )
    upstream_model: str | None = Field(None, description="Model of the upstream; its only one unless set.")
    upstream_key_file: Path | None = Field(
        None,
        description="File with the upstream's key. Unless set the key is the variable `CFS_UPSTREAM_KEY`, if there is"
        " one. It is never a flag, which others could read.",
    )
    upstream_sampling: str = Field(
        "",
        description="Settings that the upstream is told, separated by commas: of `temperature`, `top_p`, `top_k`,"
        " `min_p`, `seed`. Unless set `temperature,top_p,seed`, or `temperature` for Anthropic.",
    )
    upstream_thinking_tokens: int = Field(
        0, ge=0, description="Tokens that a model of Anthropic may think before it answers, 1024 or more; 0 is none."
    )
    upstream_timeout: Seconds = Field(
        120.0, gt=0, description="Seconds for which the upstream may say nothing before a turn fails."
    )
    upstream_parallel: Count = Field(8, description="Turns that the upstream gets at a time; others wait.")
    upstream_retries: int = Field(
        3, ge=0, le=20, description="How often a request is sent again that failed before its first word."
    )
    upstream_retry_pause: Seconds = Field(
        0.5, description="Longest pause before a request is sent again; it doubles each time."
    )
    upstream_check: bool = Field(
        True, description="Ask the upstream at the start whether it is there, takes the key and has the model."
    )
    scripted_interval: Seconds = Field(0.0, description="Seconds between two tokens of the scripted engine.")
    data_dir: Path | None = Field(
        None,
        description="Folder for what outlives the server: the workspaces. Unless set they end with it, as sessions do.",
    )
    ready_file: Path | None = Field(None, description="File that gets the server's URL once it listens.")
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="`text` for people, `json` for programs; `auto` is `text`, coloured on a terminal."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least that is logged.")
    shutdown_grace: Seconds = Field(10.0, description="Seconds that running turns get when the server is stopped.")
    ping: Seconds = Field(15.0, description="Seconds between two heartbeats of a stream; 0 sends none.")
    send_timeout: Seconds = Field(
        30.0, gt=0, description="Seconds after which a reader that takes nothing from its stream is dropped."
    )
    stream_seconds: Seconds = Field(0.0, description="Longest life of a stream; readers resume. 0 sets no limit.")
    max_wait: Seconds = Field(3600.0, description="Longest wait of one request; longer ones are cut to it.")
    token_sessions: int | None = Field(None, ge=0, description="Sessions that one token may hold (507).")
    token_bytes: int | None = Field(
        None,
        ge=0,
        description="Bytes that one token's messages may take in memory, and bytes of workspaces' files (507).",
    )
    token_streams: int | None = Field(None, ge=0, description="Streams that one token may have open (429).")
    token_requests: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Requests a second that one token may make in the long run (429)."
    )
    max_streams: Count = Field(10_000, description="Streams open at a time; more are told to come back (429).")
    max_head_bytes: Count = Field(
        _connections.head_bytes, description="Largest head of a request: its first line and its header fields (431)."
    )
    max_head_fields: Count = Field(_connections.head_fields, description="Header fields of one request (431).")
    head_seconds: Seconds = Field(
        _connections.head_seconds,
        gt=0,
        description="Longest time for the head of a request, from its first byte or from the connection (408).",
    )
    stall_seconds: Seconds = Field(
        _connections.stall_seconds,
        gt=0,
        description="Longest time in which nothing more of a request's body comes (408); a slow upload goes on.",
    )
    max_unfinished: Count = Field(
        _connections.unfinished,
        description="Connections of one address that have no whole request for over a second; more are closed (429)."
        " Networks of IPv6 count by their 64 bits.",
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses and networks, separated by commas, for which `max_unfinished` does not count: proxies"
        " that bound their own clients.",
    )
    max_body_bytes: Count = Field(8 << 20, description="Largest body of a request, unless that is a file (413).")
    max_file_bytes: Count = Field(1 << 30, description="Largest file that is put into a workspace (413).")
    max_message_bytes: Count = Field(_limits.message_bytes, description="Largest message (413).")
    max_messages: Count = Field(
        _limits.messages, description="Messages of one session (507), and of one request or transcript (413)."
    )
    max_reply_bytes: Count = Field(
        4 << 20,
        description="Largest reply of an upstream, with its thinking and calls of tools; a longer one fails its turn.",
    )
    max_sessions: Count = Field(_limits.sessions, description="Sessions that the server holds (507).")
    max_total_bytes: Count = Field(_limits.total_bytes, description="Bytes of memory for all messages together (507).")
    max_queued_turns: Count = Field(_limits.queued_turns, description="Turns that wait in one session (429).")
    max_wait_seconds: Seconds = Field(
        _limits.wait_seconds,
        gt=0,
        description="Longest predicted wait for the engine; turns beyond it are refused (429).",
    )
    turn_seconds: Seconds = Field(_limits.turn_seconds, gt=0, description="Longest time that one turn may take.")
    session_events: Count = Field(_limits.session_events, description="Events of one session kept for resuming.")
    session_event_bytes: Count = Field(
        _limits.session_event_bytes, description="Bytes of memory for these; the newest event is always kept."
    )
    all_events: Count = Field(_limits.all_events, description="Events of all sessions kept for resuming.")
    all_event_bytes: Count = Field(
        _limits.all_event_bytes, description="Bytes of memory for the events of all sessions together."
    )

    @property
    def host_names(self) -> frozenset[str] | None:
        """Names under which the server may be called; None for any."""
        names = frozenset(name.strip().lower() for name in self.allowed_hosts.split(",") if name.strip())
        anywhere = self.allow_remote_without_tokens or self.tokens is not None
        return None if anywhere and not names else names

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
    def principal_limits(self) -> PrincipalLimits:
        """What one token may take unless its own limits say otherwise."""
        return PrincipalLimits(self.token_sessions, self.token_bytes, self.token_streams, self.token_requests)

    @property
    def limits(self) -> Limits:
        """What the sessions may take."""
        return Limits(
            sessions=self.max_sessions,
            message_bytes=self.max_message_bytes,
            messages=self.max_messages,
            total_bytes=self.max_total_bytes,
            queued_turns=self.max_queued_turns,
            turn_seconds=self.turn_seconds,
            wait_seconds=self.max_wait_seconds,
            session_events=self.session_events,
            session_event_bytes=self.session_event_bytes,
            all_events=self.all_events,
            all_event_bytes=self.all_event_bytes,
        )

    def body_limit(self, method: str, path: str) -> int:
        """Say how many bytes the body of a request may have."""
        if method == "PUT" and path.startswith(_FILES):
            return self.max_file_bytes
        return _DAV_BYTES if path.startswith(_DAV) else self.max_body_bytes


def _networks(names: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(name.strip(), strict=False) for name in names.split(",") if name.strip())


def flag_of(name: str) -> str:
    """Name the flag of `cfs serve` that sets a field."""
    extra = Settings.model_fields[name].json_schema_extra
    given = extra.get("flag") if isinstance(extra, dict) else None
    return str(given or "--" + name.replace("_", "-"))


def load(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> Settings:
    """Read the settings; raises `ConfigurationError` naming the first one that cannot be used."""
    if config is not None and not config.is_file():
        raise ConfigurationError(f"{config}: there is no such configuration file")

    class Configured(Settings):
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
        return Configured(**dict(flags or {}))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"setting {name!r}: {first['msg'].lower()}{_given(first)}") from None
    except ValueError as error:  # a file that is no TOML, an unreadable one
        raise ConfigurationError(f"{config}: {error}") from None


def _given(problem: Any) -> str:
    return "" if problem["type"] == "extra_forbidden" else f" (given: {problem['input']!r})"
