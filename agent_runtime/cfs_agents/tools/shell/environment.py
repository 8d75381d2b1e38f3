"""The environment that commands see: a few variables of the runtime's own, and what programs need to be quiet."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

_PASSED = re.compile(r"PATH|HOME|LANG|LC_[A-Z]+|TERM|TZ|USER")
"""What commands get unasked. All else may be a secret, whatever its name, or something that bash takes orders from."""

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
"""For programs that would ask, page, colour or wait in an editor. Git's takes each message as it is proposed."""


def environment(
    inherited: Mapping[str, str], added: Mapping[str, str], keep: AbstractSet[str], home: str
) -> dict[str, str]:
    """Make a shell's environment: of what is inherited only what is harmless, or named in `keep`; and what is added."""
    passed = {name: value for name, value in inherited.items() if _PASSED.fullmatch(name)}
    kept = {name: value for name, value in inherited.items() if name in keep}
    return {**passed, **FIXED, "HOME": home, **kept, **added}
