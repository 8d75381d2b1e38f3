"""What all tests share."""

from pathlib import Path

import pytest

import tool_calls


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: run with --slow"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A small model that others have trained: SmolLM2-135M-Instruct."""
    return Path(tool_calls.smollm2())
