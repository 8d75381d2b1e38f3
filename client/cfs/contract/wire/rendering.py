"""Texts that the server renders as HTML."""

from typing import Annotated

from pydantic import (
    Field,
    StringConstraints,
)

from cfs.contract.wire.base import WireModel


class RenderItem(WireModel):
    """A text to render: `markdown`, code of a language or of a file with this name, or plain text (null)."""

    text: str
    language: Annotated[str, StringConstraints(max_length=255)] | None = None


class RenderRequest(WireModel):
    """Body of `POST /v1/render`."""

    items: Annotated[tuple[RenderItem, ...], Field(max_length=256)]


class RenderedItem(WireModel):
    """A rendered text. Its HTML is safe to insert into a page."""

    html: str


class Rendered(WireModel):
    """The rendered texts, in the order of the request."""

    items: tuple[RenderedItem, ...]
