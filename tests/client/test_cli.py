"""The program: its commands, what it imports for them, completion, and what is missing (C10)."""

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cfs.cli import app
from tests.client.harness import HttpHarness
from tests.client.terminal import cfs
from tests.server.support import CFS, environment, run_cfs

HEAVY = {"httpx", "fastapi", "uvicorn", "llama_cpp", "huggingface_hub", "numpy"}
NOT_FOR_HELP = {"pydantic", "pydantic_settings", "rich", "structlog", "asyncio", "cfs.contract.wire"}
MODULES_FOR_HELP = 240
"""A bare Python imports 40, typer 150; each further one takes about a third of a millisecond."""
COMMANDS = ["send", "chat", "cat", "ls", "rm", "export", "import", "up", "doctor", "serve", "token", "model"]


def run(*arguments: str, found: list[EntryPoint]) -> tuple[int, str]:
    """Run the program with the commands of some packages."""
    result = CliRunner(env={"COLUMNS": "400", "TERM": "dumb"}).invoke(app.build(found), arguments)
    return result.exit_code, result.output


def imported(*arguments: str) -> set[str]:
    """The packages and modules that a call of the program imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cfs", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    return set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))


MISSING = EntryPoint("fuse", "cfs_no_such_package.cli:app", app.GROUP)


def test_a_missing_extra_is_told_when_a_command_is_not_found() -> None:
    code, output = run("mount", "/x", found=[MISSING])
    assert code == 2
    assert "pip install 'cfs-local[fuse]'" in output


@pytest.mark.parametrize("command", ["acp", "mcp"])
def test_a_command_of_a_distribution_of_its_own_says_how_to_install_it(command: str) -> None:
    code, output = run(command, "--help", found=[])
    assert (code, output.count("\n")) == (1, 1)
    assert f"pip install 'cfs-local[{command}]' (in a clone: scripts/install {command})" in output


def test_without_a_missing_extra_an_unknown_command_is_just_that() -> None:
    code, output = run("mount", found=[])
    assert (code, "pip install" in output) == (2, False)


@pytest.mark.parametrize("found", [[], [MISSING]])
def test_a_typing_error_is_understood(found: list[EntryPoint]) -> None:
    code, output = run("snd", found=found)
    assert (code, "Did you mean 'send'" in output) == (2, True)


@pytest.mark.parametrize("found", [[], [MISSING]])
def test_the_version_needs_no_extra(found: list[EntryPoint]) -> None:
    code, output = run("--version", found=found)
    assert (code, output.startswith("cfs ")) == (0, True)


def test_every_command_is_listed_and_explains_itself() -> None:
    packages = list(entry_points(group=app.GROUP))
    listed = run("--help", found=packages)[1]
    for command in COMMANDS:
        assert re.search(rf"^\W*{command} +\w", listed, re.MULTILINE), command
        code, output = run(command, "--help", found=packages)
        assert (code, f"Usage: cfs {command}" in output or f"Usage: root {command}" in output) == (0, True), output


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["serve", "--help"], ["send", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert imported(*arguments) & HEAVY == set()


def test_the_list_of_commands_comes_at_once() -> None:
    """All packages are asked for their commands. Importing their code would take five times as long."""
    modules = imported("--help")
    assert modules & NOT_FOR_HELP == set()
    assert len(modules) < MODULES_FOR_HELP


def test_the_list_of_commands_has_sections_and_whole_sentences() -> None:
    listed = run("--help", found=list(entry_points(group=app.GROUP)))[1]
    assert re.findall(r"^(\w[\w ]*):$", listed, re.MULTILINE) == ["Options", "Sessions", "Server and mount", "Agents"]
    assert re.search(r"^  rm +Delete sessions and their sub-sessions$", listed, re.MULTILINE)
    assert "..." not in listed.partition("Sessions:")[2]


def test_help_names_values_as_a_user_does() -> None:
    """A switch has no value, a value is named by its meaning, and no type of Python shows."""
    found = list(entry_points(group=app.GROUP))
    for command in (["serve"], ["mount"], ["send"], ["agent", "run"], ["token", "create"]):
        shown = run(*command, "--help", found=found)[1]
        assert not re.search(r"<\w+|[{}]|True|False|None|bool", shown), shown
    served = run("serve", "--help", found=found)[1]
    assert re.search(r"^  --allow-remote / --no-allow-remote(  |$)", served, re.MULTILINE)
    assert re.search(r"^  --port PORT  ", served, re.MULTILINE)
    assert "[default: on]" in " ".join(served.split())
    assert "Usage: cfs send [OPTIONS] SESSION [TEXT|-]..." in run("send", "--help", found=found)[1]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(["ls", "--jsn"], "--json"), (["--versoin"], "--version"), (["agent", "tree", "--jsom"], "--json")],
)
def test_an_option_that_is_typed_wrong_is_understood(arguments: list[str], meant: str) -> None:
    code, output = run(*arguments, found=list(entry_points(group=app.GROUP)))
    assert (code, output.splitlines()[-1]) == (2, f"Error: No such option: {arguments[-1]}. Did you mean '{meant}'?")


def test_an_option_like_no_other_gets_no_suggestion() -> None:
    assert run("ls", "--quartz", found=[])[1].splitlines()[-1] == "Error: No such option: --quartz"


def test_a_client_command_does_not_load_the_server() -> None:
    modules = imported("ls", "--url", "http://127.0.0.1:9")
    assert "httpx" in modules
    assert {module for module in modules if module.startswith("cfs_")} == set()


def test_a_command_of_this_package_reads_no_list_of_others() -> None:
    """To look through all that is installed takes longer than some commands."""
    source = (
        "import sys; sys.addaudithook(lambda event, args: event == 'open' and "
        "str(args[0]).endswith('entry_points.txt') and print('read')); "
        "from cfs.cli import main; main()"
    )
    for command, is_read in (("cat", False), ("serve", True)):
        done = subprocess.run(
            [sys.executable, "-c", source, command, "--help"], capture_output=True, text=True, check=True
        )
        assert ("read\n" in done.stdout) == is_read, done


def test_python_m_cfs_is_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "cfs", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, run_cfs("--version").stdout)


def completed(url: str, words: str, last: int) -> list[str]:
    """What bash would offer for the last of some words."""
    done = cfs(url, _CFS_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(last))
    assert done.stderr == b""
    return done.stdout.decode().split()


def test_the_shell_completes_commands_and_names_of_sessions(http_harness: HttpHarness) -> None:
    http_harness.do(lambda: [http_harness.server.store.open(session) for session in ("chat1", "chat2", "other")])
    assert completed(http_harness.url, "cfs se", 1) == ["send", "search", "set", "serve"]
    assert completed(http_harness.url, "cfs cat ch", 2) == ["chat1", "chat2"]
    assert completed("http://127.0.0.1:9", f"cfs cat --url {http_harness.url} o", 4) == ["other"]


def test_without_a_server_nothing_is_completed() -> None:
    assert completed("http://127.0.0.1:9", "cfs cat ch", 2) == []
    assert completed("nonsense", "cfs cat ch", 2) == []


def test_a_command_without_its_extra_says_which_one_it_needs() -> None:
    """Its options are known without the libraries, which are imported when it runs."""
    code = (
        "import sys; sys.modules['platformdirs'] = None; sys.argv = ['cfs', 'serve']; from cfs.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = "cfs: this command needs platformdirs, which is not installed: pip install 'cfs-local[server]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_the_version_names_the_build_of_the_engine() -> None:
    """Its commit and what it uses of the processor; neither the package around it nor a model is loaded."""
    done = run_cfs("--version")
    first, second = done.stdout.splitlines()
    assert first.startswith("cfs ")
    package = version("llama-cpp-python")
    assert re.fullmatch(
        rf"engine: llama-cpp-python {package} \(llama\.cpp [0-9a-f]{{7,}}, ggml [\d.]+; [A-Z0-9_ ]+\)", second
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_one_command_installs_completion(shell: str, tmp_path: Path) -> None:
    """Into the files that each shell reads. The program finds out which shell it is; here the test says so."""
    told = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    env = os.environ | told | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    done = subprocess.run([CFS, "--install-completion", shell], env=env, capture_output=True, text=True, check=True)
    assert f"{shell} completion installed in {tmp_path}" in done.stdout
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert f"_CFS_COMPLETE=complete_{shell}" in written


def test_bash_completes_after_that_command(tmp_path: Path) -> None:
    """In an interactive shell of a user who has done nothing else: commands, and options of a command."""
    env = os.environ | {"HOME": str(tmp_path), "PATH": f"{CFS.parent}:{os.environ['PATH']}"}
    # the program looks for the shell among its parents, and `:` keeps bash from becoming the program itself
    subprocess.run(["bash", "-c", "cfs --install-completion && :"], env=env, capture_output=True, check=True)
    script = """
        complete -p cfs
        COMP_WORDS=(cfs sen) COMP_CWORD=1; _cfs_completion cfs; echo "${COMPREPLY[@]}"
        COMP_WORDS=(cfs chat --u) COMP_CWORD=2; _cfs_completion cfs; echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(  # without a terminal, for which bash would stop
        ["bash", "-ic", script], env=env, capture_output=True, text=True, check=True, start_new_session=True
    )
    assert done.stdout.splitlines() == ["complete -o default -F _cfs_completion cfs", "send", "--up --url"]
