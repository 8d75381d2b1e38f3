"""The wire models: settings, their ranges and their changes (S9)."""

import pytest
from pydantic import ValidationError

from cfs.wire import Settings, SettingsPatch, Usage


def test_a_change_keeps_what_it_does_not_name() -> None:
    settings = Settings().patched(SettingsPatch(temperature=0.0, stop=("END",)))
    assert (settings.temperature, settings.stop, settings.max_tokens) == (0.0, ("END",), 512)
    assert settings.patched(SettingsPatch()) == settings


def test_null_puts_a_setting_back_to_its_default() -> None:
    settings = Settings(temperature=0.1, seed=7, system="You are a pirate.")
    patch = SettingsPatch.model_validate({"temperature": None, "seed": None})
    assert settings.patched(patch) == Settings(system="You are a pirate.")


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 0},
        {"max_tokens": "many"},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": 5.1},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_k": -1},
        {"min_p": 2},
        {"seed": -1},
        {"seed": 2**32},
        {"stop": [""]},
        {"stop": ["x"] * 17},
        {"prompt_style": "poem"},
        {"overflow": "explode"},
        {"reproducible": "perhaps"},
        {"driver": "human"},
        {"temprature": 0.5},
    ],
)
def test_unknown_keys_and_values_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SettingsPatch.model_validate(change)


def test_patch_and_settings_know_the_same_keys() -> None:
    assert set(SettingsPatch.model_fields) == set(Settings.model_fields)


def test_usages_are_added_and_subtracted() -> None:
    """Costs count as far as they are known, and what was added can be taken away again."""
    first = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=5, cost=0.1, total_seconds=3)
    second = Usage(prompt_tokens=1, completion_tokens=2, cost=0.2)
    total = Usage(prompt_tokens=11, cached_tokens=4, completion_tokens=7, cost=0.3)
    assert first + second == total
    assert total - second == Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=5, cost=0.1)
    assert (first + Usage()).cost == 0.1
    assert (Usage() + Usage()).cost is None
    assert (Usage() - first).cost is None
    assert total.tokens == 18
    assert Usage.model_validate_json('{"prompt_tokens": 5.0}').prompt_tokens == 5
