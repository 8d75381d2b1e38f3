"""Write docs/cli.md from the help of the commands; `--check` only compares (C10).

The page has the output of `cfs COMMAND --help` for all commands of this repository, whatever is installed here.
"""

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from cfs.cli import app
from make_api_docs import table, update

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/cli.md"
HEAD = """# The command line

<!-- Made by scripts/docs from the commands themselves; change their help. -->

`cfs COMMAND --help` prints the same text as this page. All commands follow these rules:

- The server is given by `--url` or `CFS_URL`; the default is this machine. The token is read from `--token-file` or
  from `CFS_TOKEN`. No option takes the token itself, as all users of a machine can see the arguments of processes.
- Results go to standard output, remarks and errors to standard error. Each error is one line. With `--json`, standard
  output contains only JSON.
- Colours and streaming are used on terminals only; `NO_COLOR=1` disables colours. On a terminal, control characters in
  texts of models and users are made visible. Pipes get the text unchanged.
- The server is reached through the proxy that `HTTP_PROXY`, `HTTPS_PROXY` or `ALL_PROXY` names, unless it is on this
  machine or `NO_PROXY` names it: by domain, address or network, also with a port. A SOCKS proxy needs
  `pip install 'httpx[socks]'`.
- Exit codes: 0 success; 1 refused by the server, the turn or task failed, or the output cannot be written; 2 wrong
  usage; 3 no server responds; 4 an agent claims changes of files that did not happen; 5
  an agent asks something and there is no terminal to ask at; 130 interrupted; 141 the reader
  of the output has closed it.
- `cfs --install-completion` installs shell completion for commands, options and names of sessions.

"""


def page() -> str:
    """Write the whole page."""
    root: Any = get_command(app.build(_entry_points()))
    return HEAD + "\n".join(_commands(root, typer.Context(root, info_name="cfs")))


def _entry_points() -> list[EntryPoint]:
    """Return the packages that add commands; an older installation of this tree may not know the newest ones."""
    named: dict[str, str] = {}
    for path in (ROOT / "pyproject.toml", *sorted(ROOT.glob("integrations/*/pyproject.toml"))):
        project = tomllib.loads(path.read_text(encoding="utf-8"))
        packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        sys.path += [str((path.parent / package).parent) for package in packages]
        named |= project["project"].get("entry-points", {}).get(app.GROUP, {})
    return [EntryPoint(name, value, app.GROUP) for name, value in named.items()]


def _commands(group: Any, context: Any) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = typer.Context(command, info_name=name, parent=context)
        if hasattr(command, "list_commands"):
            yield from _commands(command, inner)
        else:
            inner = command.make_context(name, [], parent=context, resilient_parsing=True)
            yield _command(inner.command, inner)


def _command(command: Any, context: Any) -> str:
    help_text = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parameters = _sorted(command)
    rows = [(f"`{_name(each).replace('|', ' or ')}`", _meaning(each, context)) for each in parameters]
    options = table(("argument or option", "meaning"), rows)
    return f"## `{context.command_path}`\n\n    {usage}\n\n{help_text}\n\n{options}"


def _sorted(command: Any) -> list[Any]:
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    return sorted(shown, key=lambda each: each.param_type_name != "argument")


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return (name if parameter.required else f"[{name}]") + ("..." if parameter.nargs == -1 else "")
    names = "/".join([*sorted(parameter.opts, key=len, reverse=True)[:1], *parameter.secondary_opts])
    shorter = "".join(f", {opt}" for opt in sorted(parameter.opts, key=len, reverse=True)[1:])
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return names + shorter + value


def _meaning(parameter: Any, context: Any) -> str:
    text = " ".join((parameter.help or "").split())
    default = parameter.get_default(context)
    if parameter.show_default and default not in (None, "", (), []) and not parameter.is_flag:
        text += f" [default: {default}]"
    return text + (f" [env: {parameter.envvar}]" if parameter.envvar else "")


if __name__ == "__main__":
    raise SystemExit(update(PAGE, lambda _: page()))
