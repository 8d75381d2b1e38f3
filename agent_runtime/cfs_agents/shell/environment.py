"""The environment of commands: the harmless part of the runtime's own."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

_PASSED = re.compile(r"PATH|HOME|LANG|LC_[A-Z]+|TERM|TZ|USER")
"""Variables that commands inherit. Any other may be a secret, whatever its name, or may change how bash works."""

FIXED = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "NO_COLOR": "1",
}
"""Keeps programs from asking, paging, colouring or waiting in an editor. `true` as editor keeps git's own message."""


def environment(
    inherited: Mapping[str, str], added: Mapping[str, str], keep: AbstractSet[str], home: str
) -> dict[str, str]:
    """Return the environment of a shell: harmless inherited variables, those named in `keep`, and the `added` ones."""
    passed = {name: value for name, value in inherited.items() if _PASSED.fullmatch(name)}
    allowed = {name: value for name, value in inherited.items() if name in keep}
    return {**passed, **FIXED, "HOME": home, **allowed, **added}
