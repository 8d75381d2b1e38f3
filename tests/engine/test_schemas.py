"""Replies under a JSON schema: those that end fit it, whatever the model would rather have said."""

import asyncio
import json
from collections.abc import Sequence
from datetime import date, datetime, time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema_rs
import pytest
from pydantic import BaseModel, Field

from cfs_server.engine.chat.constrained_output import reply_schema
from tests.engine import random_schemas
from tests.engine.support import Answer, ask, running

TEMPERATURES = (0.0, 1.0, 3.0)


async def answers(model: Path, schemas: Sequence[dict[str, Any]], max_tokens: int = 700) -> list[Answer]:
    """Ask for one reply under each schema; from random weights, some of them quite at random."""
    async with running(model) as engine:
        return await asyncio.gather(
            *(
                ask(engine, f"{n}", json_schema=each, temperature=TEMPERATURES[n % 3], max_tokens=max_tokens, stop=())
                for n, each in enumerate(schemas)
            )
        )


def ended(reply: Answer) -> bool:
    """Whether a reply is one that must fit."""
    return reply.finished.reason == "stop"


async def test_replies_fit_random_schemas(tiny: Path) -> None:
    """All of sixty; nearly all of them end, as their schemas bound what there is to say."""
    schemas = [random_schemas.schema(seed) for seed in range(60)]
    replies = await answers(tiny, schemas)
    for schema, reply in zip(schemas, replies, strict=True):
        if ended(reply):
            jsonschema_rs.validator_for(schema, validate_formats=True).validate(json.loads(reply.text))
    assert sum(map(ended, replies)) >= 50


class Colour(StrEnum):
    """Values that are words."""

    RED = "red"
    BLUE = "blue"


class Leaf(BaseModel):
    """Times, an id, and numbers of all kinds of bounds."""

    kind: Literal["leaf"]
    day: date
    at: datetime
    clock: time
    id: UUID
    count: int = Field(ge=0, le=99)
    below: int = Field(lt=0, gt=-1000)
    share: float = Field(gt=0, lt=1)
    code: str = Field(pattern=r"^[A-Z]{2}\d{3}$")
    word: str = Field(min_length=2, max_length=6)


class Branch(BaseModel):
    """What holds others of its kind."""

    kind: Literal["branch"]
    colour: Colour
    rows: Annotated[list[Annotated[list[Annotated[int, Field(ge=1, le=6)]], Field(max_length=2)]], Field(max_length=2)]
    pair: tuple[bool, Annotated[int, Field(ge=-1, le=1)]]
    maybe: Annotated[int, Field(ge=5, le=7)] | None = None
    next: "Branch | Leaf | None" = Field(default=None, description="A union, in which the model may go on for ever.")


class Tree(BaseModel):
    """A choice by a tag."""

    top: Annotated[Branch | Leaf, Field(discriminator="kind")]
    scores: Annotated[dict[Colour, Annotated[int, Field(ge=0, le=9)]], Field(max_length=2)]


async def test_replies_fit_pydantic_models(tiny: Path) -> None:
    """Bounds, literals, enums, dates, lists in lists, what may be missing, and models of themselves."""
    models: list[type[BaseModel]] = [Leaf, Branch, Tree] * 4
    replies = await answers(tiny, [model.model_json_schema() for model in models], 1500)
    for model, reply in zip(models, replies, strict=True):
        if ended(reply):
            model.model_validate_json(reply.text)
    assert {model for model, reply in zip(models, replies, strict=True) if ended(reply)} == {Leaf, Branch, Tree}


async def test_arguments_of_a_forced_call_keep_their_bounds(tiny: Path) -> None:
    """Definitions and references of the parameters too."""
    tools = [{"type": "function", "function": {"name": each.__name__, "parameters": each.model_json_schema()}}
             for each in (Leaf, Branch)]  # fmt: skip
    schema = reply_schema(tools, required=True, schema=None)
    assert schema is not None
    replies = await answers(tiny, [schema] * 6, 1500)
    calls = [json.loads(reply.text) for reply in replies if ended(reply)]
    assert calls
    for call in calls:
        (Leaf if call["name"] == "Leaf" else Branch).model_validate(call["arguments"])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 1000},
        {"type": "string", "minLength": 1000, "maxLength": 1000},
        {"type": "string", "minLength": 7, "maxLength": 100_007},
        {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 100_000},
        {"type": "array", "items": {"type": "null"}, "maxItems": 10**9},
        {"type": "number", "minimum": -1.8e308, "maximum": 1.8e308},
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "array", "items": {"type": "null"}, "minItems": 10**6},
        {"type": "string", "minLength": 10**6},
        {"properties": {f"name-{n}": {} for n in range(500)}},
        {"enum": [f"value {n}" for n in range(2000)]},
    ],
    ids=lambda schema: str(schema)[:60],
)
async def test_large_numbers_of_things_are_taken_by_the_library(tiny: Path, schema: dict[str, Any]) -> None:
    """However long, they are compiled at once."""
    async with running(tiny) as engine:
        assert (await ask(engine, "?", json_schema=schema, max_tokens=3)).finished.reason in ("length", "stop")


async def test_a_long_string_ends_within_its_length(tiny: Path) -> None:
    """No sooner and no later than it may."""
    bounds = [(1000, 1001), (3, 1499), (999, 1700)]
    schemas = [{"type": "string", "pattern": f"^a{{{least},{most}}}$"} for least, most in bounds]
    for (least, most), reply in zip(bounds, await answers(tiny, schemas, 1800), strict=True):
        assert reply.finished.reason == "stop"
        assert least <= len(json.loads(reply.text)) <= most
