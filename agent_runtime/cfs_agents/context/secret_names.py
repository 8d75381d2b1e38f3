"""Which names say that a secret follows, and which values are none all the same. Pure: no I/O.

The last words of a name decide: `DB_PASSWORD`, `apiKey` and `client-secret` tell, `max_tokens`, `token_count` and
`public_key` do not.
"""

import re
from dataclasses import dataclass

_WORDS = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PASSWORDS = {b"password", b"passwd", b"passphrase", b"dbpassword", b"userpassword"}
_SECRETS = {b"secret", b"clientsecret", b"apisecret"}
_TOKENS = {b"token", b"authtoken", b"accesstoken", b"refreshtoken", b"apitoken"}
_KEYS = {b"apikey", b"secretkey", b"accesskey", b"privatekey"}
_KEYS_OF = {b"api", b"access", b"secret", b"private", b"auth", b"encryption", b"signing", b"account", b"master"}
_NO_TOKEN_AFTER = set(
    b"next last first prev previous current start stop end new each this"
    b" pad eos bos unk mask sep cls special max min num total per page".split()
)
_NO_VALUE = set(
    b"none null nil true false yes no undefined required optional empty unset"
    b" str string int bool bytes any object text number hidden".split()
)
_REFERENCE = re.compile(rb"[$%<{*@!]|\[redacted|(?:os|process|self|this|config|settings|env)\.")
_CALL = re.compile(rb"[(\[{]")
_ATTRIBUTE = re.compile(rb"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_IDENTIFIER = re.compile(rb"[A-Za-z_]\w*")
_DIGIT = re.compile(rb"[0-9]")
_SHORTEST = 3
_RANDOM_LENGTH = 8


def kind_of_name(name: bytes) -> str | None:
    """Say what a value of this name is: `password`, `secret`, `token` or `key`; None if the name says nothing."""
    words = [word.lower() for word in _WORDS.findall(name)]
    last, before = words[-1] if words else b"", words[-2] if len(words) > 1 else b""
    if last in _PASSWORDS or (last == b"pass" and before and name.isupper()):
        return "password"
    if last in _SECRETS:
        return "secret"
    if last in _TOKENS and before not in _NO_TOKEN_AFTER:
        return "token"
    return "key" if last in _KEYS or (last == b"key" and before in _KEYS_OF) else None


@dataclass(frozen=True, slots=True)
class Style:
    """How a value stands behind its name.

    What is `quoted` is taken at its word. What is not may be code: `spaced` if blanks follow the `=`, `colon` if it is
    a `:`; `shouted` if the name is in capitals, as in a file of settings.
    """

    quoted: bool = False
    colon: bool = False
    spaced: bool = False
    shouted: bool = False
    last_of_line: bool = True


QUOTED = Style(quoted=True)


def is_secret_value(kind: str, value: bytes, style: Style) -> bool:
    """Say whether what stands behind a telling name can be the secret itself, and not a reference, a type or prose."""
    if len(value) < _SHORTEST or value.lower() in _NO_VALUE or _REFERENCE.match(value):
        return False
    if value.count(value[:1]) == len(value):  # asterisks, or x for x
        return False
    if style.quoted:
        return value.count(b" ") < 3 and not value.isspace()
    if kind != "password" and (value.isdigit() or not (style.shouted or _looks_random(value))):
        return False
    identifier = _IDENTIFIER.fullmatch(value) is not None
    if _CALL.search(value) or _ATTRIBUTE.fullmatch(value) or (identifier and kind_of_name(value) is not None):
        return False
    if kind != "password" or (style.shouted and not style.colon):
        return True
    return style.last_of_line if style.colon else not (style.spaced and identifier and value.islower())


def _looks_random(value: bytes) -> bool:
    return len(value) >= _RANDOM_LENGTH and _DIGIT.search(value) is not None
