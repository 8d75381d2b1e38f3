"""`cfs connect`: it finds models, tries them, and writes those that work to the file of models."""

import stat
from pathlib import Path

import pytest

from cfs_server.config import models_file
from tests.client.terminal import terminal
from tests.connect.support import NOTHING, Machine, OllamaStub, copy_to, ollama, service
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import KEY, MODEL, WINDOW, served_aside

WRONG_KEY = "sk-a-key-that-is-wrong"


def test_a_key_in_the_environment_is_named_in_the_file_and_written_nowhere(machine: Machine) -> None:
    with service(machine):
        done = machine.connect("openai")
    entry = models_file.read(machine.file).models[MODEL]
    assert (entry.key_variable, entry.upstream_model, entry.context, entry.check) == (
        "OPENAI_API_KEY",
        MODEL,
        WINDOW,
        False,
    )
    assert stat.S_IMODE(machine.file.stat().st_mode) == 0o600
    assert KEY not in machine.file.read_text() + done.stdout + done.stderr


def test_the_table_says_what_works_and_in_one_line_what_does_not(machine: Machine) -> None:
    with service(machine, WRONG_KEY), ollama(machine, OllamaStub()):
        done = machine.connect("--yes")
    lines = {line.split()[1]: line for line in done.stdout.splitlines()[1:]}
    assert lines[MODEL].endswith("works")
    assert f"  {8192}  " in lines[MODEL]
    assert "key" in lines["openai"]
    assert WRONG_KEY not in done.stdout + done.stderr
    assert list(models_file.read(machine.file).models) == [MODEL]


def test_models_that_hold_no_conversation_are_not_connected(machine: Machine) -> None:
    with ollama(machine, OllamaStub("qwen3:8b", "nomic-embed-text", "bge-m3")):
        assert [name for name, row in machine.rows("ollama").items() if row["works"]] == ["qwen3:8b"]


def test_of_a_server_with_many_models_some_are_tried_unless_it_is_named(machine: Machine) -> None:
    names = [f"model:{number}b" for number in range(5)]
    with ollama(machine, OllamaStub(*names)):
        done = machine.connect("--yes")
        assert list(models_file.read(machine.file).models) == names[:3]
        assert "2 more: cfs connect ollama" in done.stderr
        machine.connect("ollama")
    assert set(models_file.read(machine.file).models) == set(names)


def test_a_url_is_a_server(machine: Machine) -> None:
    with served_aside(OpenAIStub(key=None, models=("first", "second"))) as url:
        machine.connect(url, "--model", "second")
        assert list(models_file.read(machine.file).models) == ["second"]


def test_a_server_of_cfs_is_not_connected_to_itself(machine: Machine) -> None:
    with machine.serving("--engine", "scripted") as server:
        machine.env["OPENAI_BASE_URL"] = f"{server.process.url}/v1"
        done = machine.run("connect", server.process.url)
        assert done.returncode == 1
        assert "this is a CFS server" in done.stdout
        assert not any(row["works"] for row in machine.rows().values())


def test_a_file_is_a_model(machine: Machine, tiny: Path) -> None:
    machine.connect(str(tiny))
    assert models_file.read(machine.file).models["tiny"].model == str(tiny)
    done = machine.run("connect", str(machine.home / "no-such.gguf"))
    assert (done.returncode, "no-such.gguf: no such file" in done.stderr) == (1, True)


def test_files_in_the_folders_of_other_programs_are_found_once(machine: Machine, tiny: Path) -> None:
    blob = machine.home / ".ollama/models/blobs/sha256-1234"
    manifest = machine.home / ".ollama/models/manifests/registry.example/library/small/1b"
    snapshot = machine.home / "cache/huggingface/hub/models--o--r/snapshots/1/hub.gguf"
    copy_to(
        tiny,
        machine.home / "cache/llama.cpp/cached.gguf",
        machine.home / ".lmstudio/models/owner/repo/studio.gguf",
        machine.home / ".lmstudio/models/owner/repo/mmproj-studio.gguf",
        machine.home / "cache/llama.cpp/large-00001-of-00002.gguf",
        machine.home / "data/cfs/models/hf/owner/repo/own.gguf",
        snapshot,
        blob,
    )
    snapshot.with_name("again.gguf").symlink_to(snapshot)
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:1234"}]}')
    rows = machine.rows(CFS_DATA_DIR=str(machine.home / "data/cfs"))
    works = {"hub" if name == "again" else name for name, row in rows.items() if row["works"]}
    assert works == {"cached", "studio", "hf:owner/repo:own.gguf", "hub", "small:1b"}


def test_nothing_at_all_says_what_to_do(machine: Machine) -> None:
    done = machine.run("connect")
    assert done.returncode == 1
    assert "cfs connect smollm2" in done.stderr
    assert not machine.file.exists()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("anthropic", "the variable ANTHROPIC_API_KEY is not set"),
        ("ollama", "no server answers there"),
        (NOTHING, "no server answers there"),
        ("nonsense", "name one of ollama"),
    ],
)
def test_what_cannot_be_connected_is_told_in_one_line(machine: Machine, target: str, reason: str) -> None:
    done = machine.run("connect", target)
    assert done.returncode == 1
    assert reason in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not machine.file.exists()


def test_models_are_listed_chosen_and_removed(machine: Machine, tiny: Path) -> None:
    with ollama(machine, OllamaStub("one", "two")):
        machine.connect("ollama")
    machine.connect(str(tiny))
    machine.connect("--default", "two")
    listed = [line.split() for line in machine.connect("--list").stdout.splitlines()]
    assert [words[0] for words in listed] == ["one", "*", "tiny"]
    assert listed[1][1] == "two"
    machine.connect("--remove", "ollama")
    assert models_file.read(machine.file).default == "tiny"
    done = machine.run("connect", "--remove", "one")
    assert (done.returncode, "no model 'one' is connected; there are tiny" in done.stderr) == (1, True)
    machine.connect("--remove", "tiny")
    assert not machine.file.exists()


def test_what_a_user_has_written_into_the_file_stays(machine: Machine, tiny: Path) -> None:
    machine.file.parent.mkdir(parents=True)
    machine.file.write_text(f'# mine\n[[models]]\nname = "tiny"  # small\nmodel = "{tiny}"\nidle = 7\n')
    with ollama(machine, OllamaStub("one")):
        machine.connect("--yes")
    machine.connect(str(tiny))
    text = machine.file.read_text()
    assert "# mine" in text
    assert "# small" in text
    file = models_file.read(machine.file)
    assert (list(file.models), file.models["tiny"].idle, file.default) == (["tiny", "one"], 7, "tiny")


def test_a_broken_file_is_left_as_it_is(machine: Machine, tiny: Path) -> None:
    machine.file.parent.mkdir(parents=True)
    machine.file.write_text("[[models]\n")
    done = machine.run("connect", str(tiny))
    assert (done.returncode, str(machine.file) in done.stderr) == (1, True)
    assert machine.file.read_text() == "[[models]\n"


def test_at_a_terminal_the_user_chooses(machine: Machine) -> None:
    with ollama(machine, OllamaStub("one", "two")), terminal("", "connect", **machine.env) as screen:
        screen.expect("Connect which?")
        screen.type("2\r")
        assert screen.end()[0] == 0
    assert list(models_file.read(machine.file).models) == ["two"]
