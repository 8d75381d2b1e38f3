"""Paths that an attacker tries in order to get out, in or around; for every face of the gate.

`REFUSED` are no logical paths: each face answers `InvalidPathError` (or its own word for it). `LITERAL` are legal and
mean just what they say: a face that decodes, trims, folds or normalises one of them touches something else than asked.
"""

from typing import NamedTuple


class Hostile(NamedTuple):
    """A path, and a word of the reason for which it is refused."""

    path: str
    reason: str


_CONTROLS = [*range(1, 0x20), *range(0x7F, 0xA0)]
_SLASHES = "\u2044\u2215\u2571\u27cb\u29f8\uff0f\u2216\u2572\u27cd\u29f5\u29f9\ufe68\uff3c"
_DOTS = [".", "..", "\u2024", "\u2024\u2024", "\u2025", "\uff0e\uff0e", "\ufe52\ufe52", ".\uff0e", "\u2024.", "\uff0e"]

REFUSED: list[Hostile] = [
    # not absolute
    *(
        Hostile(path, "absolute")
        for path in (
            "",
            " ",
            "a",
            "a/b",
            "~",
            "~root/.ssh/id_rsa",
            " /etc/passwd",
            "etc/passwd",
            "C:/Windows/win.ini",
            "c:relative",
            "file:///etc/passwd",
            "%2fetc%2fpasswd",
            "-rf",
            "$HOME/x",
        )
    ),
    *(Hostile(path, "absolute") for path in ("..", "../a", "../../etc/passwd", "./a", ".", "\ufeff/a", "\u200b/a")),
    # traversal
    *(Hostile(f"/{dots}", "component") for dots in _DOTS),
    *(Hostile(f"/{dots}/etc/passwd", "component") for dots in _DOTS),
    *(Hostile(f"/workspace/{dots}", "component") for dots in _DOTS),
    *(Hostile(f"/workspace/{dots}/secret", "component") for dots in _DOTS),
    *(Hostile("/workspace" + "/.." * depth + "/etc/passwd", "component") for depth in range(1, 9)),
    Hostile("/workspace/a/b/../../../../etc/shadow", "component"),
    Hostile("/workspace/./../internal/key", "component"),
    Hostile("/./././.", "component"),
    # empty components and directories
    *(Hostile(path, "//") for path in ("//", "//etc/passwd", "/a//b", "/a//", "///", "/workspace//../internal")),
    *(Hostile(path, "ends in") for path in ("/", "/a/", "/workspace/", "/a/b/c/")),
    # NUL and controls
    *(Hostile(path, "NUL") for path in ("/\0", "/a\0", "/a\0.txt", "/workspace/\0/../internal", "/a.png\0.sh")),
    *(Hostile(f"/a{chr(code)}b", "control") for code in _CONTROLS),
    Hostile("/a\r\nSet-Cookie: x", "control"),
    Hostile("/a\x1b[2J", "control"),
    # wildcards and backslashes
    *(Hostile(path, "wildcard") for path in ("/*", "/a*", "/**/x", "/?", "/a?b", "/a/*.txt", "/a?download=1")),
    *(Hostile(path, "backslash") for path in ("/\\", "/..\\..\\etc", "/a\\b", "/\\\\host\\share", "/a/..\\x", "/\\0")),
    # look-alikes
    *(Hostile(f"/a{slash}b", "looks like a slash") for slash in _SLASHES),
    *(Hostile(f"/..{slash}..{slash}etc", "looks like a slash") for slash in _SLASHES),
    # surrogates
    *(
        Hostile(path, "surrogate")
        for path in ("/\ud800", "/a\udfff", "/\udc2e\udc2e/x", "/\udcff", "/\ud83d", "/\ude00a")
    ),
    # too long
    Hostile("/" + "a" * 256, "too long"),
    Hostile("/" + "é" * 128, "too long"),
    Hostile("/" + "🙂" * 64, "too long"),
    Hostile("/ok/" + "a" * 256 + "/ok", "too long"),
    Hostile("/" + "中" * 86, "too long"),
    Hostile("/a" * 2049, "too long"),
    Hostile(("/" + "b" * 255) * 17, "too long"),
    Hostile("/" + "a" * 1_000_000, "too long"),
    # too deep
    Hostile("/a" * 129, "too deep"),
    Hostile("/a" * 2048, "too deep"),
]

LITERAL: list[str] = [
    # traversal that only a decoder would see
    *(
        f"/{name}/etc/passwd"
        for name in (
            "%2e%2e",
            "%2E%2E",
            ".%2e",
            "%2e.",
            "%252e%252e",
            "%25252e%25252e",
            "..%2f..",
            "..%2F..",
            "..%5c..",
            "..%255c",
            "%c0%ae%c0%ae",
            "%c0%af",
            "%e0%80%ae%e0%80%ae",
            "%uff0e%uff0e",
            "%u002e%u002e",
            "&#46;&#46;",
            "&period;&period;",
            "=2E=2E",
            "+ADw-",
            "$(..)",
            "`..`",
            "${..}",
            "..;",
            "...",
            "....",
            ". .",
            ".. ",
            " ..",
            ". ",
            "..\u00a0",
            "..\u200b",
            "\u200b..",
            "..\ufeff",
            "\u202e..",
            "…",
            "··",
            "。。",
        )
    ),
    *(f"/a{end}" for end in ("%00", "%00.txt", "%0a", "%0d%0a", "%09", "%20", "%", "%%", "%zz", "%2", "+", "\u2400")),
    # what some systems trim, fold or keep for themselves
    *(
        f"/a{end}"
        for end in (".", "..", " ", "  ", ". ", " .", "\u00a0", "\u3000", "\u200b", "\ufeff", "\u200d", "::$DATA")
    ),
    *(
        f"/{name}"
        for name in ("CON", "nul", "aux.txt", "COM1", "LPT9", "desktop.ini", "C:", "A:b", "~", "~root", "-rf", "--")
    ),
    *(
        f"/{name}"
        for name in ("é", "e\u0301", "ﬁ", "fi", "Å", "\u212b", "A\u030a", "ß", "SS", "İ", "i\u0307", "ſ", "K", "\u212a")
    ),
    *(
        f"/{name}"
        for name in (
            " ",
            "  ",
            "\u00a0",
            "\u2028",
            "\u2029",
            "\u202eexe.txt",
            ".hidden",
            ".git",
            "..a",
            "a..b",
            "{a,b}",
        )
    ),
    *(
        f"/{name}"
        for name in (
            "'",
            '"',
            "`id`",
            "$(id)",
            "$HOME",
            ";id",
            "|id",
            "&",
            "<",
            ">",
            "!",
            "#",
            "[a]",
            "(a)",
            "a:b",
            "@",
        )
    ),
    *(
        f"/{name}"
        for name in (
            "<script>",
            "' OR 1=1 --",
            "{{7}}",
            "__proto__",
            "？",
            "＊",
            "中文",
            "🙂",
            "👩\u200d💻",
            "עברית",
            "a=b",
            "a,b",
        )
    ),
    # at the limits
    "/" + "a" * 255,
    "/" + "é" * 127,
    "/" + "🙂" * 63,
    "/a" * 128,
    # the machine's own places
    *("/etc/passwd", "/proc/self/environ", "/proc/self/fd/0", "/dev/null", "/dev/fd/0", "/sys/power/state"),
]

ALL = [*(hostile.path for hostile in REFUSED), *LITERAL]
SOME = [*{hostile.reason: hostile.path for hostile in REFUSED}.values(), *ALL[::6]]
"""One of each kind and more: for places and encodings whose code meets all of them elsewhere."""
