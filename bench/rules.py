"""How long a decision about a command takes, with 2 KB of shell that no cache has seen.

    .venv/bin/python bench/rules.py [--rounds N]

Prints the median and the 99th percentile of the processor time in milliseconds: a decision waits for nothing, so other
programs of the machine do not count.
"""

import argparse
import time
from pathlib import Path

from cfs_agents.guards.rules import GatedCall, Scope
from cfs_agents.guards.rules.rules_file import parse_rules
from cfs_agents.guards.rules.script import analyse

RULES = parse_rules(
    "allow = ['execute_command(git status:*)', 'execute_command(ls:*)', 'execute_command(grep:*)',"
    " 'execute_command(echo:*)', 'execute_command(cat:*)', 'execute_command(head:*)', 'execute_command(python:*)']\n"
    "deny = ['execute_command(rm:*)', 'execute_command(git push:*)', 'write_file(.env)']",
    Path("rules.toml"),
)
DENSE = 'for f in src tests; do grep -rn "def main" "$f" | head -5 && echo "done: $f" > out.txt; done; git status -s\n'
PROGRAM = "cat > check.py <<'E'\n" + "    value = compute(first, second, third)  # a line of a program\n" * 28 + "E\n"
DIFFERENT = (
    'for f in s{number} t{number}; do grep -rn "def m{number}" "$f" | head -{number} && echo "done {number}: $f"'
    " > out{number}.txt; done; git status -{number}\n"
)
SCRIPTS = {
    "one command": "git status --short",
    "a program of 2 KB in a here-document, and 4 commands": f"{PROGRAM}python check.py && git status | head -5; ls\n",
    "2 KB of commands, 72 of them": DENSE * 18,
    "2 KB of commands, each another": "".join(DIFFERENT.format(number=number) for number in range(17)),
}


def main() -> None:
    """Measure each script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    rounds = parser.parse_args().rounds
    scope = Scope(Path.cwd())
    for name, script in SCRIPTS.items():
        commands = len(analyse(script).commands)
        print(f"{name} ({len(script)} characters, {commands} commands): {measured(rounds, script, scope)}")


def measured(rounds: int, script: str, scope: Scope) -> str:
    """Return the times of decisions about a script in milliseconds."""
    times = []
    for number in range(rounds):
        command = f"{script}# {number}".replace("def m", f"def m{number}_")
        begin = time.process_time()
        RULES.decide(GatedCall("execute_command", command, {"command": command}), scope)
        times.append((time.process_time() - begin) * 1000)
    times.sort()
    return f"median {times[rounds // 2]:.2f} ms, p99 {times[rounds * 99 // 100]:.2f} ms"


if __name__ == "__main__":
    main()
