"""The environment that commands see: the runtime's own, without secrets and without what would change the shell."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|(^|_)(KEY|KEYS|PASS|PAT|AUTH|COOKIE|DSN|PRIVATE)(_|$)",
    re.IGNORECASE,
)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")

_OF_THE_SHELL = re.compile(
    r"^(BASH_.*|BASHOPTS|SHELLOPTS|ENV|CDPATH|GLOBIGNORE|IFS|PS[0-4]|PROMPT_.*|HIST.*|MAIL.*|TMOUT|POSIXLY_CORRECT"
    r"|PWD|OLDPWD|SHLVL|_|LC_.*|LANGUAGE|COLUMNS|LINES|FUNCNEST|EXECIGNORE|IGNOREEOF)$"
)
"""Variables that bash takes orders from, or that say what is not true of the new shell."""

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


def is_secret(name: str, value: str) -> bool:
    """Tell whether a variable looks like a secret: by its name, or because it is an address with a password."""
    return bool(_SECRET.search(name) or _URL_WITH_PASSWORD.search(value))


def environment(
    inherited: Mapping[str, str], added: Mapping[str, str], keep: AbstractSet[str], home: str
) -> dict[str, str]:
    """Make a shell's environment; what is `added` by name is never left out."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not _OF_THE_SHELL.match(name) and (name in keep or not is_secret(name, value))
    }
    return {**kept, **FIXED, "HOME": home, **added}
