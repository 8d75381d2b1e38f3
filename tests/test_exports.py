"""A package's list of public names is true, and what it lists can be imported and has been described."""

import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

from layout import Layout

pytestmark = pytest.mark.server  # libraries that modules import open sockets and start programs meanwhile
# read from the disk: to import all modules takes a second, and each process of a run collects all tests
FILES = [
    module
    for module in Layout(Path(__file__).parent.parent).modules.values()
    if not module.name.endswith("__main__")  # programs are not for importing
]
MODULES = [module.name for module in FILES]
INITS = [module.name for module in FILES if module.is_package]


def public_names(module: ModuleType) -> set[str]:
    """What a module's namespace offers without an underscore, other modules left out."""
    return {name for name, value in vars(module).items() if not name.startswith("_") and not inspect.ismodule(value)}


@pytest.mark.parametrize("name", INITS)
def test_list_of_public_names_is_the_namespace(name: str) -> None:
    """`__all__` of a package, or nothing where it has none, is exactly what can be seen in it."""
    package = importlib.import_module(name)
    for listed in getattr(package, "__all__", []):
        assert hasattr(package, listed), "some are loaded when they are first asked for"
    assert public_names(package) == set(getattr(package, "__all__", []))


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_described(name: str) -> None:
    """Each module, and each public class and function that it defines, has a docstring of its own."""
    module = importlib.import_module(name)
    bare = [
        public
        for public, value in vars(module).items()
        if not public.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == name
        and not value.__doc__
    ]
    assert module.__doc__
    assert bare == []
