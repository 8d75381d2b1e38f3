"""Reads and changes the file of access tokens (G9): names, hashes of secrets and grants, as editable TOML.

    [tokens.alice]
    hash = "sha256:..."
    created = 2026-01-31T12:00:00Z
    expires = 2027-01-31T12:00:00Z                                   # optional
    grants = [{ prefix = "/sessions/alice", ops = ["list", "file", "read", "write", "delete"] }]
    limits = { sessions = 100, bytes = 1000000, streams = 10, requests = 50 }      # optional, each of them

Limits of spending are `daily_tokens`, and `daily_cost` in US dollars, for a day in UTC.

The secrets themselves are not stored. A secret has 256 random bits, so its plain hash cannot be inverted.
"""

import contextlib
import hashlib
import re
import secrets
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, get_args

import tomlkit
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from cfs_filesystem import GrantedOperation, InvalidPathError, Operation, validate_prefix
from cfs_server.base import owned_file
from cfs_server.domain.ids import SESSIONS, WORKSPACES

PREFIX = "cfs_"
"""The prefix of all secrets, so that scanners for leaked secrets can find them."""
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

_SECRET_BYTES = 32
_SECRET = re.compile(PREFIX + r"[A-Za-z0-9_-]{32,}")


class TokensError(Exception):
    """The file is invalid, or the change is not possible. The text gives the reason in one line."""


def _placed(prefix: str) -> str:
    """Check that a prefix covers paths that can exist."""
    try:
        validate_prefix(prefix)
    except InvalidPathError as error:
        raise ValueError(error.detail) from None
    if any(root.startswith(prefix.removesuffix("/") + "/") or prefix.startswith(root) for root in PLACES):
        return prefix
    raise ValueError(f"{prefix!r} is neither '/' nor within {' or '.join(PLACES)}")


_ORDER: list[GrantedOperation] = [*get_args(Operation)]
_ORDER.insert(_ORDER.index("read_binary"), "read")


def _checked_operations(ops: object) -> object:
    """Check the names of operations. The error names the invalid one."""
    unknown = [op for op in ops if op not in _ORDER] if isinstance(ops, list | set | frozenset) else []
    if unknown:
        raise ValueError(f"there is no operation {unknown[0]!r}; there are {', '.join(_ORDER)}")
    return ops


PLACES = (SESSIONS, WORKSPACES)
_Frozen = ConfigDict(extra="forbid", frozen=True)


class TokenGrant(BaseModel):
    """A right to some operations below a prefix (G2)."""

    model_config = _Frozen
    prefix: Annotated[str, AfterValidator(_placed)]
    ops: Annotated[frozenset[GrantedOperation], Field(min_length=1), BeforeValidator(_checked_operations)]


class TokenLimits(BaseModel):
    """The limits of a token's bearer (H7). None is the server's default."""

    model_config = _Frozen
    sessions: Annotated[int, Field(ge=0)] | None = None
    bytes: Annotated[int, Field(ge=0)] | None = None
    streams: Annotated[int, Field(ge=0)] | None = None
    requests: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    daily_tokens: Annotated[int, Field(ge=0)] | None = None
    daily_cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class Token(BaseModel):
    """One entry of the file."""

    model_config = _Frozen
    hash: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
    created: AwareDatetime | None = None
    expires: AwareDatetime | None = None
    grants: tuple[TokenGrant, ...] = ()
    limits: TokenLimits = TokenLimits()

    def expired(self, now: datetime) -> bool:
        """Return whether the token has expired."""
        return self.expires is not None and self.expires <= now


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tokens: dict[Annotated[str, StringConstraints(pattern=rf"^{NAME.pattern}$")], Token] = {}


def digest(secret: str) -> str:
    """Return the hash of a secret as stored in the file."""
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def masked(text: str) -> str:
    """Return a text with all secrets masked, for example for a log."""
    return _SECRET.sub(PREFIX + "***", text)


def load(path: Path) -> dict[str, Token]:
    """Return the tokens by name. Raises `TokensError`."""
    try:
        return _read(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TokensError(f"{path}: there is no such file; make a token with: cfs token create") from None
    except OSError as error:
        raise TokensError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise TokensError(f"{path}: {first_problem(error)}") from None
    except (ValueError, RecursionError) as error:
        raise TokensError(f"{path}: this is no TOML file: {error}") from None
    except TokensError as error:
        raise TokensError(f"{path}: {error}") from None


def _read(text: str) -> dict[str, Token]:
    tokens = _File.model_validate(tomllib.loads(text)).tokens
    names: dict[str, str] = {}
    for name, token in tokens.items():
        if (other := names.setdefault(token.hash, name)) != name:
            raise TokensError(f"tokens.{name}.hash: {other!r} has the same one")
    return tokens


def first_problem(error: ValidationError) -> str:
    """Describe pydantic's first error and its place in one line. The input is left out, because it may be a secret."""
    first = error.errors(include_input=False)[0]
    field = masked(".".join(map(str, first["loc"])))
    reason = str(first["msg"]).removeprefix("Value error, ")
    return f"{field}: {reason[:1].lower()}{masked(reason[1:])}"


def create(
    path: Path,
    name: str,
    grants: list[TokenGrant],
    *,
    expires: datetime | None = None,
    limits: TokenLimits | None = None,
) -> str:
    """Add a token to the file, which is created if needed. Return the secret, which is stored nowhere."""
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

    def add(text: str) -> str:
        document = tomlkit.parse(text)
        tables = document.setdefault("tokens", tomlkit.table(is_super_table=True))
        if name in tables:
            raise TokensError(f"{path}: there is a token {name!r} already; revoke it first")
        if isinstance(tables, tomlkit.items.InlineTable):
            raise TokensError(f"{path}: write [tokens.NAME] for each token instead of tokens = {{...}} to add more")
        tables[name] = _table(token)
        return tomlkit.dumps(document)

    _change(path, add)
    return secret


def revoke(path: Path, name: str) -> None:
    """Delete a token from the file. A running server refuses it within seconds."""

    def remove(text: str) -> str:
        left = _read(text)
        if left.pop(name, None) is None:
            raise TokensError(f"{path}: there is no token {name!r}")
        with contextlib.suppress(ValueError, TokensError):
            if _read(cut := _without_tables(text, name)) == left:
                return cut
        document = tomlkit.parse(text)  # the entry is not written as a table
        del document["tokens"][name]
        return tomlkit.dumps(document)

    _change(path, remove, missing_ok=False)


def _without_tables(text: str, name: str) -> str:
    """Remove the tables of a token, but not the comments after them: those belong to the next entry."""
    remaining: list[str] = []
    cut: list[str] = []
    within = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            remaining += _comments_at_end(cut)
            cut = []
            within = name in tomllib.loads(line).get("tokens", ())
        (cut if within else remaining).append(line)
    return "".join(remaining + _comments_at_end(cut))


def _comments_at_end(lines: list[str]) -> list[str]:
    start = len(lines)
    while start and lines[start - 1].lstrip()[:1] in ("", "#"):
        start -= 1
    return lines[start:] if any(line.strip() for line in lines[start:]) else []


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


def _change(path: Path, change: Callable[[str], str], *, missing_ok: bool = True) -> None:
    """Change the file; see `owned_file.change`. A file that cannot be read stays as it is."""

    def checked(text: str | None) -> str:
        if text is not None or not missing_ok:
            load(path)
        return change(text or "")

    try:
        owned_file.change(path, checked)
    except OSError as error:
        raise TokensError(f"{path}: {error.strerror}") from None
