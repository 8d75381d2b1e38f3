"""The format of exported sessions: a tar file that can be read without CFS (docs/export-format.md).

The file has a folder for each session with its transcript and everything else as JSON. `cfs export` and `cfs import`
use the REST interface, so they work with any server, and with the rights of the caller.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from cfs.contract.wire import Message, Origin, Question, Settings

FORMAT = 1
"""The version of the format. It grows when an earlier reader would misread a file; new members alone do not count."""

ROOT = "cfs-export"
INDEX = f"{ROOT}/index.json"


class _Part(BaseModel):
    """A part of an export. Members of later versions are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ExportedSession(_Part):
    """A `session.json`: one session without those below it. Only `format`, `id` and `settings` are always there."""

    format: int = Field(description="The version of the format.")
    id: str = Field(description="The name of the session; `main/coder` is a sub-session of `main`.")
    settings: Settings
    history: tuple[Message, ...] = Field((), description="The messages, oldest first.")
    times: tuple[float, ...] = Field((), description="When each message was added, in seconds since 1970 (UTC).")
    queue: tuple[Message, ...] = Field((), description="Messages that waited for their turn.")
    partial: str | None = Field(None, description="The part of a reply that was being generated.")
    questions: tuple[Question, ...] = Field((), description="Questions of its agent that waited for an answer.")
    tokens: int = Field(0, ge=0, description="Tokens that the model has read and written for the session.")
    cost: float = Field(0.0, ge=0, description="What that has cost, in US dollars.")
    title: str | None = Field(None, description="What listings show: the setting, or what a user wrote first.")
    origin: Origin | None = Field(None, description="What it is a copy of.")
    created_at: float | None = Field(None, description="In seconds since 1970 (UTC).")
    updated_at: float | None = Field(None, description="In seconds since 1970 (UTC).")

    @field_validator("settings", mode="before")
    @classmethod
    def _drop_unknown_settings(cls, value: Any, info: ValidationInfo) -> Any:
        """Drop the settings of later versions; the `context` of the validation is a list that gets their names."""
        if not isinstance(value, dict):
            return value
        if isinstance(info.context, list):
            info.context.extend(sorted(value.keys() - Settings.model_fields))
        return {name: value[name] for name in value if name in Settings.model_fields}

    @property
    def root(self) -> str:
        """The first part of the name."""
        return self.id.partition("/")[0]


class ExportedNode(_Part):
    """A session in the index, with those below it."""

    id: str
    messages: int
    created_at: float
    updated_at: float
    sub_sessions: tuple["ExportedNode", ...] = ()


class ExportIndex(_Part):
    """The `index.json`, which is the last file of an export: without it, the export is not complete."""

    format: int = Field(description="The version of the format.")
    exported_at: str | None = Field(None, description="When it was written, as ISO 8601.")
    cfs: str | None = Field(None, description="The version of CFS that has written it.")
    sessions: tuple[ExportedNode, ...] = Field((), description="The sessions as trees.")


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of both files."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Export of CFS"}
    definitions: dict[str, Any] = {}
    for model in (ExportIndex, ExportedSession):
        part = model.model_json_schema()
        definitions |= part.pop("$defs", {})
        definitions[model.__name__] = part
    schema["anyOf"] = [{"$ref": f"#/$defs/{model.__name__}"} for model in (ExportIndex, ExportedSession)]
    return schema | {"$defs": dict(sorted(definitions.items()))}


def counted(count: int) -> str:
    """Write a number of sessions."""
    return f"{count} session" if count == 1 else f"{count} sessions"
