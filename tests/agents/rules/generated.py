"""Seeded generator of scripts that run a command, `victim x`, in several layers that hide it."""

import random
import shlex
from collections.abc import Callable

_NAMES = ("run", "job", "step.sh", "check.py.sh", "notes.txt", "Build", "a b", "data.json", "tool")
Layer = Callable[[str, random.Random], str]
_quoted = shlex.quote


def _name(source: random.Random) -> str:
    return source.choice(_NAMES)


def _file(then: str) -> Layer:
    """Return a layer that writes a file and runs it; `FILE` stands for its name."""

    def layer(script: str, source: random.Random) -> str:
        name = _name(source)
        writes = source.choice(
            [
                f"printf '%s\\n' {_quoted(script)} > {_quoted(name)}",
                f"cat > {_quoted(name)} <<'END'\n{script}\nEND",
                f"echo {_quoted(script)} | tee {_quoted(name)} > /dev/null",
                f"printf '%s' {_quoted(script)} > first; mv first {_quoted(name)}",
                f"printf '%s' {_quoted(script)} > first; cp first {_quoted(name)}",
                f"dd status=none of={_quoted(name)} <<'END'\n{script}\nEND",
                f"mkdir -p sub; printf '%s' {_quoted(script)} > sub/first; ln -sf sub/first {_quoted(name)}",
            ]
        )
        return f"{writes}\n{then.replace('FILE', _quoted(name))}"

    return layer


def _of(template: str) -> Layer:
    """Return a layer from a template: `BARE` stands for the script, `QUOTED` for it as one word."""
    return lambda script, _: template.replace("QUOTED", _quoted(script)).replace("BARE", script)


def _code(template: str) -> Layer:
    """Return a layer in another language: `CODE` stands for an expression of the script's text there."""

    def layer(script: str, source: random.Random) -> str:
        cut = source.randrange(len(script))
        text = "+".join(f'"{_escaped(part)}"' for part in (script[:cut], script[cut:]))
        return template.replace("QUOTED_CODE", _quoted(text)).replace("CODE", text)

    def _escaped(part: str) -> str:
        return part.encode("unicode_escape").decode().replace('"', '\\"')

    return layer


def _python(form: str) -> Layer:
    def layer(script: str, source: random.Random) -> str:
        cut = source.randrange(len(script))
        code = f"import os; os.system({script[:cut]!r} + {script[cut:]!r})"
        return form.replace("QUOTED", _quoted(code)).replace("BARE", code)

    return layer


_SHELL: tuple[Layer, ...] = (
    *map(
        _of,
        (
            "sh -c QUOTED",
            "bash -ec QUOTED",
            "eval QUOTED",
            "env sh -c QUOTED",
            "timeout 20 bash -c QUOTED",
            "nice -n 1 sh -c QUOTED",
            "command bash -c QUOTED",
            "exec sh -c QUOTED",
            "echo QUOTED | sh",
            "printf '%s' QUOTED | bash -s",
            "bash <<< QUOTED",
            "sh <<'OUTER'\nBARE\nOUTER",
            "cat <<'OUTER' | bash\nBARE\nOUTER",
            "source <(printf '%s' QUOTED)",
            "bash <(printf '%s' QUOTED)",
            "(\nBARE\n)",
            "{\nBARE\n}",
            "if true; then\nBARE\nfi",
            "for i in 1; do\nBARE\ndone",
            "run() {\nBARE\n}; run",
            "true && {\nBARE\n}",
            "{\nBARE\n} | cat",
            "echo $(\nBARE\n)",
            "cat <(\nBARE\n)",
            "trap QUOTED EXIT",
            'x=QUOTED; eval "$x"',
            'x=QUOTED; bash -c "$x"',
            'set -- QUOTED; sh -c "$1"',
            "find . -maxdepth 0 -exec sh -c QUOTED \\;",
            "echo x | xargs -I{} sh -c QUOTED",
            "printf '%s\\0' QUOTED | xargs -0 sh -c",
            "env -S 'sh -c \"$HIDDEN\"' HIDDEN=x; export HIDDEN=QUOTED; sh -c 'eval \"$HIDDEN\"'",
            "git -c alias.go='!'QUOTED go",
            "git init -q r; cd r; git config alias.go '!'QUOTED; git go; cd ..",
            "git init -q r; cd r; HIDDEN='!'QUOTED git --config-env=alias.go=HIDDEN go; cd ..",
            "tar cf /dev/null --checkpoint=1 --checkpoint-action=exec=QUOTED /etc/hostname",
            "ssh -F /dev/null -o ProxyCommand=QUOTED host",
            "ssh -F /dev/null -oproxycommand=QUOTED host",
            "make -s --eval 'go:; @eval \"$$HIDDEN\"' HIDDEN=x; HIDDEN=QUOTED bash -c 'eval \"$HIDDEN\"'",
            "echo a | split --filter=QUOTED",
            "echo a | split -b 1 --filter QUOTED -",
            "cd . && bash --norc -c QUOTED",
            "bash -c 'eval \"$0\"' QUOTED",
            "coproc bash -c QUOTED; wait",
        ),
    ),
    *map(
        _file,
        (
            "sh FILE",
            "bash ./FILE",
            ". ./FILE",
            "source FILE",
            "chmod +x FILE; bash -c ./FILE",
            "bash < FILE",
            "env bash FILE",
            "timeout 20 sh FILE",
            "cat FILE | sh",
            'bash -c "$(cat FILE)"',
            "find . -maxdepth 1 -name FILE -exec bash {} \\;",
            "ls FILE | xargs -d '\\n' bash",
            "cd .; bash -x FILE",
            "gzip -f FILE; gunzip -f FILE; sh FILE",
            "tar cf t.tar FILE; rm FILE; tar xf t.tar; sh FILE",
            "PATH=.:$PATH; chmod +x FILE; FILE",
        ),
    ),
)
_LANGUAGES: tuple[tuple[str, Layer], ...] = (
    *(
        ("python3", _python(form))
        for form in (
            "python3 -c QUOTED",
            "python3 -Bc QUOTED",
            "python3 -W ignore -c QUOTED",
            "python3 <<'CODE'\nBARE\nCODE",
            "echo QUOTED | python3 -",
            "printf '%s' QUOTED > module.py; python3 module.py",
            "printf '%s' QUOTED > module.py; python3 -m module",
            "printf '%s' QUOTED > module.py; echo 'import module' > other.py; python3 other.py",
            "python3 -m timeit -n 1 -r 1 QUOTED",
            "xargs -I{} python3 -c QUOTED <<< x",
        )
    ),
    ("perl", _of("HIDDEN=QUOTED perl -e 'system($ENV{HIDDEN})'")),
    ("perl", _of("HIDDEN=QUOTED perl -we 'exec $ENV{HIDDEN}'")),
    ("perl", _of("echo x | HIDDEN=QUOTED perl -lne 'print `$ENV{HIDDEN}`'")),
    ("perl", _of("echo 'system($ENV{HIDDEN})' | HIDDEN=QUOTED perl")),
    ("node", _code("echo 'require(\"child_process\").execSync('QUOTED_CODE')' | node")),
    ("node", _code("node -e 'require(\"child_process\").execSync('QUOTED_CODE')'")),
    ("node", _code("node -pe 'require(\"child_process\").execSync('QUOTED_CODE')'")),
    ("awk", _of("HIDDEN=QUOTED awk 'BEGIN { system(ENVIRON[\"HIDDEN\"]) }'")),
    ("sed", _of("printf '%s' QUOTED > hidden; echo x | sed '1e sh hidden'")),
    ("make", _of("printf '%s' QUOTED > hidden; printf 'all:\\n\\t@sh hidden\\n' > Makefile; make -s")),
    ("make", _of("printf '%s' QUOTED > hidden; make -s --eval='all:; @sh hidden'")),
    ("make", _of("printf '%s' QUOTED > hidden; printf 'all:\\n\\t@sh hidden\\n' | make -sf -")),
    ("ed", _of("printf '%s' QUOTED > hidden; echo '!sh hidden' | ed -s")),
    ("vim", _of("printf '%s' QUOTED > hidden; vim -es -c '!sh hidden' -c q < /dev/null")),
    ("sqlite3", _of("printf '%s' QUOTED > hidden; echo '.shell sh hidden' | sqlite3")),
    ("sqlite3", _of("printf '%s' QUOTED > hidden; sqlite3 :memory: '.system sh hidden'")),
    ("gdb", _of("printf '%s' QUOTED > hidden; gdb -batch -ex 'shell sh hidden'")),
    ("rsync", _of("printf '%s' QUOTED > hidden; rsync -ave 'sh hidden' a host:b")),
    (
        "git",
        _of(
            "git init -q r; printf '%s' QUOTED > r/hidden; cd r; git bisect start; echo '[alias]' >> .git/config;"
            " echo 'go = !sh hidden' >> .git/config; git go; cd .."
        ),
    ),
    ("tar", _of("printf '#!/bin/sh\\n%s' QUOTED > hidden; chmod +x hidden; tar cIf ./hidden t.tar hidden")),
    ("tar", _of("printf '#!/bin/sh\\n%s' QUOTED > hidden; chmod +x hidden; tar -cvI./hidden -f t.tar hidden")),
    ("scp", _of("printf '#!/bin/sh\\n%s' QUOTED > hidden; chmod +x hidden; scp -S ./hidden a host:b")),
)
_LEAVES = (
    "victim x",
    "vic''tim x",
    r"\victim x",
    "'victim' x",
    r"$'\x76ictim' x",
    "V=victim; $V x",
    "V=vic; ${V}tim x",
    "$(echo victim) x",
    "echo x | xargs victim",
    "env victim x",
    "nohup victim x",
    "true && victim x",
    "vic{t,}im x",
    'set -- victim x; "$@"',
    "A=(victim x); ${A[@]}",
    "alias v=victim; eval 'victim x'",
    "find . -maxdepth 0 -exec victim {} +",
    "read -r C <<< victim; $C x",
    "printf -v C victim; $C",
)


def scripts(seed: int, count: int, programs: Callable[[str], object]) -> list[str]:
    """Return `count` scripts of up to three layers. `programs` says of a name whether there is such a program."""
    source = random.Random(seed)
    layers = [*_SHELL, *(layer for program, layer in _LANGUAGES for _ in range(2) if programs(program))]
    result = []
    for _ in range(count):
        script = source.choice(_LEAVES)
        for _ in range(source.choice((1, 1, 2, 3))):
            script = source.choice(layers)(script, source)
        result.append(script)
    return result
