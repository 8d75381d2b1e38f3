"""The table of providers: where each is, and which of its models is used."""

from urllib.parse import urlsplit

import pytest

from cfs_server.connect import providers
from cfs_server.connect.providers import SERVICES, configured, identity, preferred_model


def service(name: str) -> providers.Provider:
    """A service of the table."""
    return next(provider for provider in SERVICES if provider.name == name)


def test_each_service_has_its_own_address_and_key() -> None:
    assert len({identity(provider.url) for provider in SERVICES}) == len(SERVICES)
    assert all(urlsplit(provider.url).scheme == "https" for provider in SERVICES)
    for provider in SERVICES:
        for variable in provider.key_variables:
            assert provider in configured({variable: "a-key"})
    assert [provider for provider in configured({}) if not provider.here] == []


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),  # noqa: S104 - what users write
        (":12345", "http://127.0.0.1:12345/v1"),
        ("gpu.example", "http://gpu.example:11434/v1"),
        ("gpu.example:80", "http://gpu.example:80/v1"),
        ("https://gpu.example", "https://gpu.example:443/v1"),
        ("[::1]:7000", "http://[::1]:7000/v1"),
    ],
)
def test_ollama_is_where_its_variable_says(address: str, url: str) -> None:
    assert [provider.url for provider in configured({"OLLAMA_HOST": address}) if provider.name == "ollama"] == [url]


def test_an_address_that_cannot_be_read_is_no_provider() -> None:
    assert [provider for provider in configured({"OLLAMA_HOST": "host:port"}) if provider.name == "ollama"] == []


def test_a_server_is_in_the_list_once() -> None:
    known = configured({"OPENAI_BASE_URL": "http://localhost:11434/v1"})
    assert [provider.name for provider in known if ":11434" in provider.url] == ["ollama"]


@pytest.mark.parametrize(
    ("name", "models", "model"),
    [
        ("openai", ["text-embedding-3", "gpt-4.1-mini", "gpt-5-mini", "gpt-5", "whisper-1"], "gpt-5-mini"),
        (
            "anthropic",
            ["claude-opus-4-20250514", "claude-sonnet-4-20250514", "claude-sonnet-4-5-20250929"],
            "claude-sonnet-4-5-20250929",
        ),
        (
            "gemini",
            ["models/embedding-001", "models/gemini-2.0-flash", "models/gemini-2.5-flash"],
            "models/gemini-2.5-flash",
        ),
        ("deepseek", ["deepseek-reasoner", "deepseek-chat"], "deepseek-chat"),
        ("mistral", ["mistral-embed", "a-model"], "a-model"),
        ("groq", ["whisper-large-v3"], None),
    ],
)
def test_of_a_service_its_newest_usual_model_is_used(name: str, models: list[str], model: str | None) -> None:
    assert preferred_model(service(name), models) == model
