"""The file of access tokens (G9): names, hashes of secrets, grants. TOML, for people to read and to edit.

    [tokens.alice]
    hash = "sha256:..."
    created = 2026-01-31T12:00:00Z
    expires = 2027-01-31T12:00:00Z                                   # optional
    grants = [{ prefix = "/sessions/alice", ops = ["list", "file", "read", "write", "delete"] }]
    limits = { sessions = 100, bytes = 1000000, streams = 10, requests = 50 }      # optional, each of them

The secrets themselves are nowhere. They have 256 random bits, so a plain hash of one cannot be turned around.
"""

import hashlib
import os
import re
import secrets
import tempfile
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import tomlkit
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from cfs_filesystem import GrantedOperation, InvalidPathError, validate_prefix
from cfs_server.sessions.paths import SESSIONS, WORKSPACES

PREFIX = "cfs_"
"""How every secret begins, so that scanners for leaked ones can tell."""
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

_SECRET_BYTES = 32


class TokensError(Exception):
    """The file cannot be used, or the change not be made; the text says why in one line."""


def _placed(prefix: str) -> str:
    """Check that a prefix covers something that can exist."""
    try:
        validate_prefix(prefix)
    except InvalidPathError as error:
        raise ValueError(error.detail) from None
    if any(place.startswith(prefix.removesuffix("/") + "/") or prefix.startswith(place) for place in PLACES):
        return prefix
    raise ValueError(f"{prefix!r} is neither '/' nor within {' or '.join(PLACES)}")


_ORDER: list[GrantedOperation] = [
    "list", "file", "read", "read_binary", "read_file", "read_re", "write", "delete",
]  # fmt: skip
PLACES = (SESSIONS, WORKSPACES)
_Frozen = ConfigDict(extra="forbid", frozen=True)


class TokenGrant(BaseModel):
    """A right to do some operations below a prefix (G2)."""

    model_config = _Frozen
    prefix: Annotated[str, AfterValidator(_placed)]
    ops: Annotated[frozenset[GrantedOperation], Field(min_length=1)]


class TokenLimits(BaseModel):
    """What the bearer of a token may take (H7); None is the server's default for all tokens."""

    model_config = _Frozen
    sessions: Annotated[int, Field(ge=0)] | None = None
    bytes: Annotated[int, Field(ge=0)] | None = None
    streams: Annotated[int, Field(ge=0)] | None = None
    requests: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Token(BaseModel):
    """One entry of the file."""

    model_config = _Frozen
    hash: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
    created: AwareDatetime | None = None
    expires: AwareDatetime | None = None
    grants: tuple[TokenGrant, ...] = ()
    limits: TokenLimits = TokenLimits()

    def expired(self, now: datetime) -> bool:
        """Whether its time is over."""
        return self.expires is not None and self.expires <= now


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tokens: dict[Annotated[str, StringConstraints(pattern=rf"^{NAME.pattern}$")], Token] = {}


def digest(secret: str) -> str:
    """Hash a secret as the file holds it."""
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def load(path: Path) -> dict[str, Token]:
    """Read the tokens by name; raises `TokensError`."""
    try:
        tokens = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))).tokens
    except FileNotFoundError:
        raise TokensError(f"{path}: there is no such file; make a token with: cfs token create") from None
    except OSError as error:
        raise TokensError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]  # the input may be a secret, written here by mistake
        raise TokensError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    except ValueError as error:
        raise TokensError(f"{path}: this is no TOML file: {error}") from None
    if len({token.hash for token in tokens.values()}) < len(tokens):
        raise TokensError(f"{path}: two tokens have the same hash")
    return tokens


def create(
    path: Path,
    name: str,
    grants: list[TokenGrant],
    *,
    expires: datetime | None = None,
    limits: TokenLimits | None = None,
) -> str:
    """Add a token to the file, which is made if it does not exist; return its secret, which is told only here."""
    if not NAME.fullmatch(name):
        raise TokensError(f"a token's name has 1 to 64 letters, digits, '.', '_' or '-'; not {name!r}")
    secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    token = Token(
        hash=digest(secret),
        created=datetime.now(UTC).replace(microsecond=0),
        expires=expires,
        grants=tuple(grants),
        limits=limits or TokenLimits(),
    )

    def add(tokens: tomlkit.items.Table) -> None:
        if name in tokens:
            raise TokensError(f"{path}: there is a token {name!r} already; revoke it first")
        tokens[name] = _table(token)

    _change(path, add)
    return secret


def revoke(path: Path, name: str) -> None:
    """Take a token out of the file; a running server stops taking it within seconds."""

    def remove(tokens: tomlkit.items.Table) -> None:
        if name not in tokens:
            raise TokensError(f"{path}: there is no token {name!r}")
        del tokens[name]

    load(path)
    _change(path, remove)


def _table(token: Token) -> tomlkit.items.Table:
    table = tomlkit.table()
    for key, value in token.model_dump(exclude_none=True, exclude={"grants", "limits"}).items():
        table[key] = value
    grants = tomlkit.array().multiline(len(token.grants) > 1)
    for grant in token.grants:
        grants.append(_inline(prefix=grant.prefix, ops=sorted(grant.ops, key=_ORDER.index)))
    table["grants"] = grants
    if limits := token.limits.model_dump(exclude_none=True):
        table["limits"] = _inline(**limits)
    return table


def _inline(**items: object) -> tomlkit.items.InlineTable:
    table = tomlkit.inline_table()
    table.update(items)
    return table


def _change(path: Path, change: Callable[[tomlkit.items.Table], None]) -> None:
    """Change the file in one step, keeping its comments; only its owner may read a new one."""
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
        if path.exists():
            load(path)
        if "tokens" not in document:
            document["tokens"] = tomlkit.table(is_super_table=True)
        change(document["tokens"])
        _replace(path, tomlkit.dumps(document))
    except OSError as error:
        raise TokensError(f"{path}: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(made)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
