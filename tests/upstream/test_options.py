"""How an upstream is named: by an address, a protocol, and settings that it takes."""

import pytest

from cfs_server.engine.upstream.options import InvalidOptions, base_url, kind_of, sampling_of, thinking_of


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1"),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080/v1"),
        ("https://llm.example/openai/v2", "https://llm.example/openai/v2"),
        ("localhost:11434", "http://localhost:11434/v1"),
        ("[::1]:80", "http://[::1]:80/v1"),
        ("llm.example", "https://llm.example/v1"),
        (" llm.example/api ", "https://llm.example/api"),
    ],
)
def test_an_address_is_completed(given: str, expected: str) -> None:
    assert base_url(given) == expected


@pytest.mark.parametrize(
    "given", ["", "http://", "ftp://llm.example", "https://me:secret@llm.example", "llm.example?k=1"]
)
def test_an_address_that_is_none_or_has_secrets_in_it_is_refused(given: str) -> None:
    with pytest.raises(InvalidOptions) as refused:
        base_url(given)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://api.anthropic.example/v1", "anthropic"),
        ("https://llm.example/anthropic", "anthropic"),
        ("http://127.0.0.1:8080/v1", "openai"),
    ],
)
def test_the_protocol_is_guessed_from_the_address(url: str, kind: str) -> None:
    assert kind_of(url) == kind


def test_settings_that_an_upstream_is_told_are_named_or_the_usual_ones() -> None:
    openai = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
    assert sampling_of("", "openai") == openai
    assert sampling_of("", "anthropic") == ("temperature",)
    assert sampling_of(" min_p, temperature ,", "openai") == ("temperature", "min_p")
    with pytest.raises(InvalidOptions, match="'colour'"):
        sampling_of("temperature,colour", "openai")


def test_a_budget_for_thinking_has_a_least_and_a_protocol() -> None:
    assert (thinking_of(0, "openai"), thinking_of(1024, "anthropic")) == (0, 1024)
    for tokens, kind in ((1023, "anthropic"), (2048, "openai")):
        with pytest.raises(InvalidOptions):
            thinking_of(tokens, kind)  # type: ignore[arg-type]
