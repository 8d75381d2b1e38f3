"""Which models an upstream has, and whether the one that was asked for is among them."""

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from cfs_server.engine.interface import ModelLoadError
from cfs_server.engine.upstream.link import Answer, Link

T = TypeVar("T")

_NO_CATALOGUE = frozenset({404, 405, 501})
_SHOWN = 8


class _Meta(BaseModel):
    n_ctx: int | None = None
    n_ctx_train: int | None = None


class Model(BaseModel):
    """A model in a catalogue; each server has another name for the size of its context."""

    id: str
    max_model_len: int | None = None
    max_input_tokens: int | None = None
    context_length: int | None = None
    meta: _Meta | None = None

    @property
    def context_tokens(self) -> int:
        """Size of the context; 0 when the upstream does not say."""
        meta = self.meta or _Meta()
        known = (self.max_model_len, self.max_input_tokens, self.context_length, meta.n_ctx, meta.n_ctx_train)
        return next((size for size in known if size), 0)


class _Page(BaseModel):
    data: tuple[Model, ...]


async def find(link: Link, name: str | None) -> Model:
    """Look for a model; without a name it is the only one that there is.

    Raises `ModelLoadError` when there is none, and `Failure` when the upstream does not answer or refuses the key.
    """
    listed = _read(_Page.model_validate_json, await link.get("models"), name or "")
    if listed is None:
        if name is None:
            raise ModelLoadError("the upstream does not list its models: name one with --upstream-model")
        return Model(id=name)
    names = [model.id for model in listed.data]
    if name is None:
        if len(names) != 1:
            raise ModelLoadError(f"name a model with --upstream-model: {_which(names)}")
        return listed.data[0]
    if (found := next((model for model in listed.data if model.id == name), None)) is not None:
        return found
    # Aliases, and what stands on a later page, are in no list.
    if (alias := _read(Model.model_validate_json, await link.get(f"models/{quote(name, safe='')}"), name)) is not None:
        return alias.model_copy(update={"id": name})
    raise ModelLoadError(f"the upstream has no model {name!r}: {_which(names)}")


def _read(parse: Callable[[str], T], answer: Answer, name: str) -> T | None:
    if answer.status in _NO_CATALOGUE:
        return None
    if answer.status != 200:
        raise answer.failure(name)
    try:
        return parse(answer.body)
    except ValidationError:
        return None


def _which(names: list[str]) -> str:
    if not names:
        return "it lists none"
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it has {', '.join(names[:_SHOWN])}{more}"
