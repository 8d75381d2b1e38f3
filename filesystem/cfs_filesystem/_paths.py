"""Validates logical paths and prefixes, and decides which paths a prefix covers (G1, G2).

Paths are compared exactly: no case folding, no Unicode normalisation, no trimming. A path that other programs could
interpret differently (a slash look-alike, a component that normalises to `..`) is refused, not repaired.
"""

import re
from collections.abc import Iterable

from cfs_filesystem._errors import InvalidPathError
from cfs_filesystem._types import Path

MAX_PATH_BYTES = 4096
MAX_COMPONENT_BYTES = 255
MAX_DEPTH = 128
"""The most components of a path. Programs that walk through directories recursively end at about 1,000."""

# U+2044 fraction slash, U+2215 division slash, U+2571 box diagonal, U+27CB, U+29F8 big solidus, U+FF0F fullwidth
_SLASHES = "\u2044\u2215\u2571\u27cb\u29f8\uff0f"
# U+2216 set minus, U+2572 box diagonal, U+27CD, U+29F5, U+29F9, U+FE68 small, U+FF3C fullwidth
_BACKSLASHES = "\u2216\u2572\u27cd\u29f5\u29f9\ufe68\uff3c"
# a full stop, and characters that NFKC turns into one (U+2024, U+FE52, U+FF0E) or two (U+2025)
_DOTS = r"(?:[.\u2024\ufe52\uff0e]{1,2}|\u2025)"

_REASONS = [
    (re.compile(r"\x00"), "it contains NUL"),
    (re.compile(r"[\x01-\x1f\x7f-\x9f]"), "it contains a control character"),
    (re.compile(r"[\ud800-\udfff]"), "it is not valid Unicode (a lone surrogate)"),
    (re.compile(r"[*?]"), "it contains a wildcard, '*' or '?'"),
    (re.compile(r"\\"), "it contains a backslash"),
    (re.compile(f"[{_SLASHES}{_BACKSLASHES}]"), "it contains a character that looks like a slash"),
    (re.compile(r"//"), "it contains an empty component, '//'"),
    (re.compile(rf"/{_DOTS}(?:/|\Z)"), "it contains a component '.' or '..', or one that reads like it"),
]
_LEGAL = re.compile(
    rf"(?:/(?!{_DOTS}(?:/|\Z))[^/\\*?\x00-\x1f\x7f-\x9f\ud800-\udfff{_SLASHES}{_BACKSLASHES}]+)+", re.UNICODE
).fullmatch


def covers(prefix: Path, other: Path) -> bool:
    """Return whether a prefix covers a path or another prefix; compares whole components."""
    return other == prefix or other.startswith(prefix if prefix.endswith("/") else prefix + "/")


def validate_path(path: str, prefixes: Iterable[Path] = ("/",)) -> Path:
    """Return the path, unchanged, if it can name an entry below one of the prefixes; or raise `InvalidPathError`."""
    if type(path) is not str or not _LEGAL(path) or (len(path) > 63 and _too_long(path)):
        raise _invalid(path)
    for prefix in prefixes:  # each ends in "/", so a sibling with the same first letters does not match
        if path.startswith(prefix):
            return path
    raise InvalidPathError(f"{path!r} is below none of the prefixes {_listed(prefixes)}", path)


def validate_prefix(prefix: str) -> Path:
    """Return a prefix (a path that may end in `/`, or `/` itself) unchanged, or raise `InvalidPathError`."""
    if prefix != "/":
        validate_path(prefix.removesuffix("/") if type(prefix) is str else prefix)
    return prefix


def validate_listed(prefix: str, prefixes: Iterable[Path]) -> Path:
    """Return a prefix to list, if it is legal and overlaps a registered prefix; or raise `InvalidPathError`."""
    validate_prefix(prefix)
    if any(covers(existing, prefix) or covers(prefix, existing) for existing in prefixes):
        return prefix
    raise InvalidPathError(f"{prefix!r} is below none of the prefixes {_listed(prefixes)}", prefix)


def validate_directory(directory: str, prefixes: Iterable[Path]) -> Path:
    """Return the prefix of a directory's members: its path with a `/` at the end.

    The argument is a path, a registered prefix or `/`. Raises `InvalidPathError`.
    """
    existing = tuple(prefixes)
    if directory != "/" and directory not in existing:
        validate_path(directory)
    validate_listed(directory, existing)
    return directory if directory.endswith("/") else directory + "/"


def directories_above(path: Path) -> list[Path]:
    """Yield the parent directories of a path as prefixes: `/` and `/a/` for `/a/b`."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) + "/" for depth in range(1, len(parts))]


def narrower(one: Path, other: Path) -> Path | None:
    """Return the prefix that covers exactly what both cover; None if they do not overlap."""
    if covers(one, other):
        return other
    return one if covers(other, one) else None


def _too_long(path: str) -> bool:
    """Whether an otherwise legal path exceeds a length limit; called only for more than 63 characters (252 bytes)."""
    encoded = path.encode()
    return (
        len(encoded) > MAX_PATH_BYTES
        or path.count("/") > MAX_DEPTH
        or (
            len(encoded) > MAX_COMPONENT_BYTES
            and any(len(component) > MAX_COMPONENT_BYTES for component in encoded.split(b"/"))
        )
    )


def _invalid(path: object) -> InvalidPathError:
    return InvalidPathError(_why_not(path), path if isinstance(path, str) else None)


def _why_not(path: object) -> str:
    """Return why a path is not legal."""
    if type(path) is not str:
        return f"a path is a plain string, not {type(path).__name__}"
    quoted = ascii(path if len(path) <= 200 else path[:200] + "...")
    if not path.startswith("/"):
        return f"{quoted} is not absolute: a path begins with '/'"
    for pattern, reason in _REASONS:
        if pattern.search(path):
            return f"{quoted} is no path: {reason}"
    if path.endswith("/"):
        return f"{quoted} names no entry: it ends in '/'"
    if path.count("/") > MAX_DEPTH and len(path.encode()) <= MAX_PATH_BYTES:
        return f"{quoted} is too deep: a path has at most {MAX_DEPTH} components"
    return f"{quoted} is too long: {MAX_COMPONENT_BYTES} bytes a component, {MAX_PATH_BYTES} in all"


def _listed(prefixes: Iterable[Path]) -> str:
    return ", ".join(map(repr, prefixes))
