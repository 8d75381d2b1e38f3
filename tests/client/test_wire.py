"""The wire models: settings, their ranges and their changes (S9)."""

import pytest
from pydantic import ValidationError

from cfs.wire import Settings, SettingsPatch


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
