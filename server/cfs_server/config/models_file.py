"""Reads the file of models (`--models`): the models of one server, and what answers for each. No engine is made here.

Every mistake is one line that names the file, its line if it is known, the model, and the reason. It never contains a
value that may be a secret.
"""

import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cfs.wire import ModelName, Price
from cfs_server.config.settings import ConfigurationError, Count, Seconds, price_of
from cfs_server.engine.contract.interface import AffinityKind, KvType, Sampling, UpstreamKind

EMBEDDED = "embedded"
"""Stands for the model that is part of CFS."""
_KEYS = ("default", "models")
_UPSTREAM_ONLY = (
    "kind",
    "upstream_model",
    "key_file",
    "key_variable",
    "sampling",
    "thinking_tokens",
    "affinity",
    "retries",
    "timeout",
    "check",
)
_LOCAL_ONLY = ("idle", "kv_type")
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_SECRET = re.compile(r"key|token|secret|password", re.IGNORECASE)
_TABLE = re.compile(r"^[ \t]*\[\[[ \t]*models[ \t]*\]\]", re.MULTILINE)


class UpstreamEntry(BaseModel):
    """One of several upstreams of a model. Without a key of its own it gets that of the model.

    It `continues` a reply that another one has begun, as vLLM does for `continue_final_message`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(min_length=1)
    continues: bool = False
    key_file: Path | None = None
    key_variable: _Variable | None = None


class ModelEntry(BaseModel):
    """One model of the file. What is None is as the server's settings say, such as `--upstream-parallel`.

    It has an `upstream`, or a `model` that this machine runs: the path of a GGUF file, a short name, a name of the hub,
    or `embedded`. Relative paths begin at the folder of the file. `price` is for a million tokens.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ModelName
    model: str | None = Field(None, min_length=1)
    upstream: tuple[UpstreamEntry, ...] | None = Field(None, min_length=1)
    kind: Literal["auto", UpstreamKind] = "auto"
    upstream_model: str | None = Field(None, min_length=1)
    key_file: Path | None = None
    key_variable: _Variable | None = None
    idle: Seconds | None = None
    kv_type: KvType | None = None
    sampling: tuple[Sampling, ...] = ()
    thinking_tokens: int = Field(0, ge=0)
    affinity: AffinityKind | None = None
    retries: int | None = Field(None, ge=0, le=20)
    timeout: Seconds | None = None
    check: bool | None = None
    context: Count | None = None
    parallel: Count | None = None
    price: Price | None = None

    @field_validator("upstream", mode="before")
    @classmethod
    def _read_upstream(cls, value: object) -> object:
        """Accept one URL, or a list of URLs and tables."""
        upstreams = [value] if isinstance(value, str) else value
        return (
            [{"url": upstream} if isinstance(upstream, str) else upstream for upstream in upstreams]
            if isinstance(upstreams, list)
            else upstreams
        )

    @field_validator("price", mode="before")
    @classmethod
    def _read_price(cls, value: object) -> object:
        return price_of(value) if isinstance(value, str) else value

    @property
    def contradiction(self) -> str | None:
        """Why its keys cannot be used together, if they cannot."""
        if (self.model is None) == (self.upstream is None):
            return f'it needs either an upstream, or a model such as "{EMBEDDED}"'
        if self.key_file is not None and self.key_variable is not None:
            return "key_file and key_variable name two keys"
        is_local, urls = self.upstream is None, [upstream.url for upstream in self.upstream or ()]
        if any(upstream.key_file is not None and upstream.key_variable is not None for upstream in self.upstream or ()):
            return "key_file and key_variable of an upstream name two keys"
        if len(set(urls)) < len(urls):
            return "an upstream is listed twice"
        misplaced = [key for key in (_UPSTREAM_ONLY if is_local else _LOCAL_ONLY) if key in self.model_fields_set]
        reason = "is for upstreams, and this model has none" if is_local else "is for models that this machine runs"
        return f"{misplaced[0]} {reason}" if misplaced else None


@dataclass(frozen=True, slots=True)
class ModelsFile:
    """The models of a server by their names, and the name of the default."""

    default: str
    models: dict[str, ModelEntry]


def read(path: Path) -> ModelsFile:
    """Read a file of models. Raises `ConfigurationError`."""
    try:
        return parse(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: this is not a text file") from None


def parse(path: Path, text: str) -> ModelsFile:
    """Read the text of a file of models. Raises `ConfigurationError`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if unknown := [key for key in document if key not in _KEYS]:
        raise ConfigurationError(f"{path}: {_unknown(unknown[0], _KEYS)}")
    tables = document.get("models", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigurationError(f"{path}: it lists no models: each is a table [[models]]")
    entries = [_entry(path, text, tables, index) for index in range(len(tables))]
    default = document.get("default", entries[0].name)
    names = [entry.name for entry in entries]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigurationError(f"{path}: two models have the name {twice[0]!r}")
    if default not in names:
        raise ConfigurationError(f"{path}: the default {default!r} is none of the models {', '.join(names)}")
    return ModelsFile(default, {entry.name: _placed(entry, path.absolute().parent) for entry in entries})


def _entry(path: Path, text: str, tables: list[dict[str, Any]], index: int) -> ModelEntry:
    table = tables[index]
    try:
        entry = ModelEntry.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = str(first["loc"][0])
        reason = f"{key}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        if first["type"] == "extra_forbidden":
            model = UpstreamEntry if len(first["loc"]) > 1 else ModelEntry
            reason = _unknown(str(first["loc"][-1]), tuple(model.model_fields))
        elif first["type"] == "missing":
            reason = f"{'an upstream' if len(first['loc']) > 1 else 'it'} has no {first['loc'][-1]}"
    else:
        reason, key = entry.contradiction or "", ""
        if not reason:
            return entry
    line = _line_of(text, len(tables), index, key)
    name = table.get("name")
    which = f"model {name!r}" if isinstance(name, str) else f"model {index + 1}"
    raise ConfigurationError(f"{path}{f', line {line}' if line else ''}: {which}: {reason}")


def _unknown(key: str, keys: tuple[str, ...]) -> str:
    if _SECRET.search(key):
        return f"unknown key {key!r}: a secret does not stand here; name its file (key_file) or variable (key_variable)"
    close = get_close_matches(key, keys, n=1)
    return f"unknown key {key!r}" + (f"; did you mean {close[0]}?" if close else f"; known are {', '.join(keys)}")


def _line_of(text: str, count: int, index: int, key: str) -> int | None:
    """Return the line of a key in a table, or that of the table; None if the tables are written in another form."""
    begins = [table.start() for table in _TABLE.finditer(text)]
    if len(begins) != count:
        return None
    begin, end = begins[index], (*begins, len(text))[index + 1]
    match = re.compile(rf"^[ \t]*{re.escape(key)}[ \t]*=", re.MULTILINE).search(text, begin, end) if key else None
    return text.count("\n", 0, match.start() if match else begin) + 1


def _placed(entry: ModelEntry, folder: Path) -> ModelEntry:
    """Make the paths of a model absolute."""
    changes: dict[str, object] = {}
    if entry.key_file is not None:
        changes["key_file"] = folder / entry.key_file.expanduser()
    if entry.upstream is not None:
        changes["upstream"] = tuple(
            upstream
            if upstream.key_file is None
            else upstream.model_copy(update={"key_file": folder / upstream.key_file.expanduser()})
            for upstream in entry.upstream
        )
    spec = entry.model
    if spec is not None and not spec.startswith("hf:") and ("/" in spec or spec.endswith(".gguf")):
        changes["model"] = str(folder / Path(spec).expanduser())
    return entry.model_copy(update=changes)
