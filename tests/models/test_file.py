"""The file of models: what it may say, and the one line that refuses anything else before the server listens."""

from pathlib import Path

import pytest

from cfs.wire import Price
from cfs_server.config import models_file
from cfs_server.config.settings import ConfigurationError, ServerSettings
from cfs_server.connect.engines import make_engine
from tests.documentation import block
from tests.server.support import run_cfs

MISPLACED = "sk-a-key-in-the-wrong-place"
ONE = '[[models]]\nname = "one"\n'


def written(folder: Path, text: str) -> Path:
    """Write a file of models."""
    file = folder / "models.toml"
    file.write_text(text)
    return file


def test_a_file_says_which_models_there_are_and_how_each_is_used(tmp_path: Path) -> None:
    file = models_file.read(
        written(
            tmp_path,
            """
            default = "big"
            [[models]]
            name = "small"
            model = "weights/small.gguf"
            context = 1024
            parallel = 2
            [[models]]
            name = "big"
            upstream = "http://127.0.0.1:9/v1"
            upstream_model = "Big-70B"
            key_file = "keys/big"
            sampling = ["temperature", "seed"]
            price = "3, 15 EUR"
            affinity = "user"
            [[models]]
            name = "tiny"
            model = "embedded"
            """,
        )
    )
    assert (file.default, list(file.models)) == ("big", ["small", "big", "tiny"])
    assert file.models["small"].model == str(tmp_path / "weights/small.gguf")
    big = file.models["big"]
    assert (big.key_file, big.sampling) == (tmp_path / "keys/big", ("temperature", "seed"))
    assert big.price == Price(prompt=3, completion=15, currency="EUR")
    assert file.models["tiny"].model == "embedded"


def test_the_first_model_is_the_default(tmp_path: Path) -> None:
    text = ONE + 'model = "embedded"\n' + ONE.replace("one", "two") + 'model = "smollm2"\n'
    file = models_file.read(written(tmp_path, text))
    assert (file.default, file.models["two"].model) == ("one", "smollm2")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it lists no models: each is a table [[models]]"),
        ("models = 3", "it lists no models"),
        ("[[models]", "(at line 1"),
        ('colour = "red"', "unknown key 'colour'; known are default, models"),
        ("[[models]]\nmodel = 'x'", "line 1: model 1: it has no name"),
        (ONE, "line 1: model 'one': it needs either an upstream, or a model such as \"embedded\""),
        (ONE + 'model = "a.gguf"\nupstream = "http://h"', "line 1: model 'one': it needs either"),
        ("\n" + ONE + 'modle = "a.gguf"', "line 4: model 'one': unknown key 'modle'; did you mean model?"),
        (ONE + f'key = "{MISPLACED}"', "line 3: model 'one': unknown key 'key': a secret does not stand here"),
        (ONE + f'api_token = "{MISPLACED}"', "line 3: model 'one': unknown key 'api_token': a secret does not"),
        (ONE + 'model = "embedded"\nretries = 3', "line 1: model 'one': retries is for upstreams"),
        (ONE + 'upstream = "h"\nkey_file = "k"\nkey_variable = "K"', "key_file and key_variable name two keys"),
        (
            ONE + f'upstream = "h"\nkey_variable = "{MISPLACED}"',
            "line 4: model 'one': key_variable: string should match",
        ),
        (ONE + 'upstream = "h"\nparallel = 0', "line 4: model 'one': parallel: input should be greater"),
        (ONE + 'upstream = "h"\nkind = "gopher"', "line 4: model 'one': kind: input should be 'auto'"),
        (ONE + 'upstream = "h"\nsampling = ["colour"]', "line 4: model 'one': sampling: input should be 'temp"),
        (ONE + 'upstream = "h"\nprice = "cheap"', "line 4: model 'one': price: value error, write a price as"),
        (ONE + 'upstream = ["h", {url = "i", continue = true}]', "line 3: model 'one': unknown key 'continue'; did"),
        (ONE + 'upstream = ["h", {continues = true}]', "line 3: model 'one': an upstream has no url"),
        (ONE + "upstream = []", "line 3: model 'one': upstream: tuple should have at least 1 item"),
        (ONE + 'upstream = ["h", "h"]', "line 1: model 'one': an upstream is listed twice"),
        (ONE + 'upstream = "h"\nidle = 3', "line 1: model 'one': idle is for models that this machine runs"),
        (ONE + 'upstream = "h"\nkv_type = "q8_0"', "line 1: model 'one': kv_type is for models that this machine runs"),
        ('[[models]]\nname = "a b"\nmodel = "embedded"', "line 2: model 'a b': name: string should match"),
        (2 * (ONE + 'model = "embedded"\n'), "two models have the name 'one'"),
        ('default = "two"\n' + ONE + 'model = "embedded"', "the default 'two' is none of the models one"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as refused:
        models_file.read(file)
    line = str(refused.value)
    assert line.startswith(f"{file}")
    assert told in line
    assert "\n" not in line
    assert MISPLACED not in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('upstream = "ftp://llm.example"', "no URL of an upstream"),
        ('upstream = "h"\nthinking_tokens = 2048', "kind openai take no thinking budget"),
        ('upstream = "https://h"\nkind = "anthropic"\naffinity = "prompt_cache_key"', "no member prompt_cache_key"),
        ('upstream = [{url = "anthropic.example", continues = true}]', "anthropic continue no replies of others"),
        ('upstream = "h"\nkey_variable = "CFS_TEST_NO_SUCH_KEY"', "the variable CFS_TEST_NO_SUCH_KEY is not set"),
        ('upstream = "h"\nkey_file = "no-such-key"', "no-such-key: no such file or directory"),
    ],
)
def test_what_cannot_be_used_is_told_with_the_model(tmp_path: Path, text: str, told: str) -> None:
    file = written(tmp_path, ONE + text)
    with pytest.raises(ConfigurationError, match="model 'one': ") as refused:
        make_engine(ServerSettings(models=file))
    assert told in str(refused.value)


@pytest.mark.parametrize("other", [{"model": "smollm2"}, {"upstream": "http://h"}, {"engine": "scripted"}])
def test_a_file_of_models_stands_alone(tmp_path: Path, other: dict[str, str]) -> None:
    file = written(tmp_path, ONE + 'model = "embedded"')
    with pytest.raises(ConfigurationError, match="--models cannot be combined"):
        make_engine(ServerSettings.model_validate({"models": file} | other))


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        models_file.read(tmp_path / "missing.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not a text file"):
        models_file.read(tmp_path / "binary")


def test_the_server_ends_before_it_listens(tmp_path: Path) -> None:
    file = written(tmp_path, ONE + 'modle = "x"')
    ended = run_cfs("serve", "--port", "0", "--models", str(file))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"cfs: {file}, line 3: model 'one': unknown key 'modle'; did you mean model?\n"
    file.write_text(ONE + 'model = "gone.gguf"')
    ended = run_cfs("serve", "--port", "0", "--models", str(file))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.endswith(f"cfs: model 'one': {tmp_path}/gone.gguf: no such file or directory\n")


def test_the_example_of_the_documentation_is_a_file_of_models(tmp_path: Path) -> None:
    """docs/models.md shows it."""
    file = models_file.read(written(tmp_path, block("docs/models.md", "models file")))
    assert file.default in file.models
    assert any(entry.upstream for entry in file.models.values())
    assert any(entry.model == "embedded" for entry in file.models.values())
