"""Writes connected models to the file of models, and takes them out again. Keys are named there, never written."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from cfs_server.base import owned_file
from cfs_server.config import models_file
from cfs_server.config.models_file import ModelEntry, ModelsFile
from cfs_server.config.settings import ConfigurationError
from cfs_server.connect import providers
from cfs_server.engine.upstream.options import kind_of

_HEAD = "Models that `cfs connect` has connected. A key is in the variable that key_variable names, never here."
_PLACES = ("upstream", "model")


def add(path: Path, entries: Sequence[ModelEntry], default: str | None = None) -> ModelsFile:
    """Add models, or renew those that are there, and set the default. Raises `ConfigurationError`.

    Without a `default`, the first new one becomes it if the file has none yet.
    """

    def edit(document: tomlkit.TOMLDocument) -> None:
        if "default" not in document or default is not None:
            document["default"] = default or entries[0].name
            if "models" not in document:
                document.add(tomlkit.nl())
        tables = document.setdefault("models", tomlkit.aot())
        for entry in entries:
            new = _table(entry)
            same = next((table for table in tables if table.get("name") == entry.name), None)
            if same is None:
                tables.append(new)
                continue
            for key in [key for key in same if key not in new and (key in _PLACES or key.startswith("key_"))]:
                del same[key]
            same.update(new)

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _change(path, edit)
    return models_file.read(path)


def remove(path: Path, name: str) -> list[str]:
    """Take out a model, or all of a provider. Returns their names. The file goes with the last one.

    Raises `ConfigurationError` if there is none of this name.
    """
    entries = _entries(path)
    names = [name] if name in entries else [other for other, entry in entries.items() if provider_of(entry) == name]
    if not names:
        raise _not_connected(name, entries)

    def edit(document: tomlkit.TOMLDocument) -> None:
        tables = document["models"]
        for index in reversed(range(len(tables))):
            if tables[index]["name"] in names:
                del tables[index]
        if document.get("default") in names and tables:
            document["default"] = tables[0]["name"]

    _change(path, edit)
    return names


def set_default(path: Path, name: str) -> None:
    """Let a connected model answer by default. Raises `ConfigurationError`."""
    entries = _entries(path)
    if name not in entries:
        raise _not_connected(name, entries)

    def edit(document: tomlkit.TOMLDocument) -> None:
        document["default"] = name

    _change(path, edit)


def provider_of(entry: ModelEntry) -> str:
    """Return the name of the provider of a connected model; empty for a file."""
    return providers.of_url(entry.upstream[0].url, os.environ).name if entry.upstream else ""


def place_of(entry: ModelEntry) -> str:
    """Return where a model is: the URLs of its servers, or its file."""
    return ", ".join(upstream.url for upstream in entry.upstream or ()) or entry.model or ""


def _entries(path: Path) -> dict[str, ModelEntry]:
    return models_file.read(path).models if path.exists() else {}


def _not_connected(name: str, entries: dict[str, ModelEntry]) -> ConfigurationError:
    listed = f"there are {', '.join(entries)}" if entries else "there are none: `cfs connect` finds some"
    return ConfigurationError(f"no model {name!r} is connected; {listed}")


def _change(path: Path, edit: Callable[[tomlkit.TOMLDocument], None]) -> None:
    def checked(text: str | None) -> str | None:
        document = tomlkit.document() if text is None else tomlkit.parse(text)
        if text is None:
            document.add(tomlkit.comment(_HEAD))
            document.add(tomlkit.nl())
        else:
            models_file.parse(path, text)
            if not isinstance(document.get("models"), tomlkit.items.AoT):
                raise ConfigurationError(f"{path}: write each model as a table [[models]], so that it can be changed")
        edit(document)
        if not document["models"]:
            return None
        models_file.parse(path, tomlkit.dumps(document))
        return tomlkit.dumps(document)

    try:
        owned_file.change(path, checked)
    except OSError as error:
        raise ConfigurationError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _table(entry: ModelEntry) -> tomlkit.items.Table:
    values = entry.model_dump(exclude_none=True, exclude_unset=True)
    if entry.upstream is not None:
        values["upstream"] = url = entry.upstream[0].url
        if entry.kind == kind_of(url):
            del values["kind"]
    table = tomlkit.table()
    for key in ("name", *_PLACES, *(key for key in values if key not in ("name", *_PLACES))):
        if key in values and values[key] != ():
            table[key] = list(values[key]) if isinstance(values[key], tuple) else values[key]
    return table
