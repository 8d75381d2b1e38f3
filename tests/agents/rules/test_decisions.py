"""Decisions about files, MCP and other calls; rules files; lasting answers; suggestions (A11)."""

import stat
import threading
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cfs_agents.guards.rules import (
    Decision,
    Defaults,
    GatedCall,
    Remembered,
    Rules,
    RulesError,
    Scope,
    Verdict,
    load_rules,
    remembered_path,
    user_rules_path,
)
from cfs_agents.guards.rules.patterns import Pattern
from cfs_agents.guards.rules.rules_file import parse_rules
from cfs_agents.guards.rules.script import analyse

SCOPE = Scope(Path("workspace"))
ALLOWED, ASKED, DENIED = Verdict.ALLOWED, Verdict.ASKED, Verdict.DENIED


def rules(text: str) -> Rules:
    """Parse rules."""
    return parse_rules(text, Path("rules.toml"))


def decide(text: str, tool: str, workspace: Path, defaults: Defaults | None = None, **arguments: Any) -> Decision:
    """Decide about a call of one of the agent's tools."""
    return rules(text).decide(GatedCall.of(tool, arguments), Scope(workspace, workspace.parent), defaults)


def test_deny_comes_before_ask_before_allow(tmp_path: Path) -> None:
    """Whatever their order in the file."""
    text = "allow=['write_file(**)']\nask=['write_file(src/**)']\ndeny=['write_file(src/secret/**)']"
    for path, verdict in (("a", ALLOWED), ("src/a", ASKED), ("src/secret/a", DENIED), ("src/secret", DENIED)):
        assert decide(text, "write_file", tmp_path, path=path).verdict is verdict


@pytest.mark.parametrize(
    "path", ["src/a", "/workspace/src/a", "./src/a", "x/../src/a", "link/a", "/workspace/other/../src/a"]
)
def test_paths_are_compared_where_they_lead(path: str, tmp_path: Path) -> None:
    """Other forms and links do not hide a file."""
    workspace = tmp_path / "w"
    (workspace / "src").mkdir(parents=True)
    (workspace / "link").symlink_to("src")
    assert decide("deny=['write_file(src/**)']", "write_file", workspace, path=path).verdict is DENIED
    assert decide("deny=['write_file(src/**)']", "edit_file", workspace, path=path).verdict is DENIED
    assert decide("deny=['edit_file(src/**)']", "write_file", workspace, path=path).verdict is ALLOWED


def test_an_allowed_path_is_not_where_a_link_leads_elsewhere(tmp_path: Path) -> None:
    """Both the name and its target must be allowed."""
    workspace = tmp_path / "root/w"
    workspace.mkdir(parents=True)
    (workspace / "src").symlink_to(tmp_path)
    decision = decide("allow=['write_file(src/**)']", "write_file", workspace, path="src/a")
    assert decision.verdict is ASKED
    assert "outside of the workspace" in decision.reason


@pytest.mark.parametrize(
    ("tool", "arguments", "attended", "unattended"),
    [
        ("read_file", {"path": "a"}, ALLOWED, ALLOWED),
        ("write_file", {"path": "a"}, ALLOWED, ALLOWED),
        ("write_file", {"path": ".cfs/rules.toml"}, ASKED, DENIED),
        ("write_file", {"path": ".git/hooks/pre-commit"}, ASKED, DENIED),
        ("edit_file", {"path": "lib/.git/config"}, ASKED, DENIED),
        ("read_file", {"path": ".git/config"}, ALLOWED, ALLOWED),
        ("write_file", {"path": ".gitignore"}, ALLOWED, ALLOWED),
        ("execute_command", {"command": "ls"}, ASKED, DENIED),
        ("execute_command", {"command": "true"}, ASKED, DENIED),
        ("sys_spawn_agent", {"agent_id": "coder"}, ALLOWED, ALLOWED),
        ("sync_context", {}, ALLOWED, ALLOWED),
    ],
)
def test_defaults(tool: str, arguments: dict[str, Any], attended: Verdict, unattended: Verdict, tmp_path: Path) -> None:
    """File tools run in the workspace; commands ask, and are denied where nobody can be asked."""
    assert decide("", tool, tmp_path, **arguments).verdict is attended
    decision = decide("", tool, tmp_path, Defaults(attended=False), **arguments)
    assert decision.verdict is unattended
    assert unattended is ALLOWED or "no person can be asked" in decision.reason


def test_mcp_and_spawns(tmp_path: Path) -> None:
    """Servers, tools and agents by name."""
    text = "allow=['mcp(files/read_*)', 'mcp(memory)']\ndeny=['mcp(files/delete)', 'spawn_agent(*)']"
    expected = {"files/read_file": ALLOWED, "memory/add": ALLOWED, "files/delete": DENIED, "files/write": ASKED}
    for name, verdict in expected.items():
        server, tool = name.split("/")
        assert rules(text).decide(GatedCall.of_mcp(server, tool, {}), Scope(tmp_path)).verdict is verdict
    assert decide(text, "sys_spawn_agent", tmp_path, agent_id="coder").verdict is DENIED


def test_the_digest_covers_all_arguments_and_the_directory(tmp_path: Path) -> None:
    """A changed call is another call."""
    calls = [
        GatedCall.of("execute_command", {"command": "ls"}),
        GatedCall.of("execute_command", {"command": "ls "}),
        GatedCall.of("execute_command", {"command": "ls", "background": True}),
        GatedCall.of("write_file", {"path": "ls", "content": "a"}),
        GatedCall.of("write_file", {"path": "ls", "content": "b"}),
    ]
    digests = {call.digest() for call in calls} | {calls[0].digest("/x")}
    assert len(digests) == len(calls) + 1
    assert calls[0].digest() == GatedCall.of("execute_command", {"command": "ls"}).digest()


@pytest.mark.parametrize(
    ("text", "line", "advice"),
    [
        ("deny = [", 1, "not TOML"),
        ("\ndeny = 'x'", 2, "must be a list"),
        ("\n\ndeny = [1]", 3, "texts in quotation marks"),
        ("denied = []", 1, "use allow, ask and deny"),
        ("deny = [\n'ls',\n'execute_command(a b'\n]", 3, "TOOL(PATTERN)"),
        ("deny = [\n'Bash(ls)']", 2, "write execute_command"),
        ("deny = ['execute_command(a && b)']", 1, "write one command"),
        ('deny = ["execute_command(a \'b)"]', 1, "not closed"),
        ("allow = ['write_file(../x)']", 1, "no `..`"),
        ("allow = ['write_file(~/x)']", 1, "relative to the workspace"),
        ("allow = ['*(x)']", 1, "takes no pattern"),
        ("allow = ['mcp(/)']", 1, "SERVER/TOOL"),
        ("allow = ['']", 1, "TOOL(PATTERN)"),
        ("allow = ['execute_command(:*)', 'execute_command( )', 'execute_command(\"\")', 'ls ls']", 1, "TOOL"),
        (f"allow = {'[' * 5000}", 1, "nested"),
    ],
)
def test_malformed_files_are_refused_with_file_and_line(text: str, line: int, advice: str, tmp_path: Path) -> None:
    """One line that says what to do."""
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(RulesError) as error:
        load_rules(files=[path])
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert advice in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """Rules that were meant to hold are not left out in silence."""
    with pytest.raises(RulesError, match="no such file"):
        load_rules(files=[tmp_path / "none"])
    with pytest.raises(RulesError, match="cannot be read"):
        load_rules(files=[tmp_path])
    (tmp_path / "x").write_bytes(b"\n\xff")
    with pytest.raises(RulesError, match="x:2: not UTF-8"):
        load_rules(files=[tmp_path / "x"])


def test_a_workspace_restricts_and_never_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `allow` is ignored with a warning; the user's rules come from the configuration folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user_rules_path().parent.mkdir(parents=True)
    user_rules_path().write_text("allow = ['execute_command(ls:*)', 'execute_command(cat:*)']")
    workspace = tmp_path / "w"
    (workspace / ".cfs").mkdir(parents=True)
    (workspace / ".cfs/rules.toml").write_text("allow = ['execute_command(rm:*)']\ndeny = ['execute_command(cat:*)']")
    loaded = load_rules(workspace)
    assert "`allow` is ignored" in loaded.warnings[0]
    verdicts = {
        command: loaded.decide(GatedCall.of("execute_command", {"command": command}), Scope(workspace)).verdict
        for command in ("ls", "cat x", "rm x")
    }
    assert verdicts == {"ls": ALLOWED, "cat x": DENIED, "rm x": ASKED}
    assert load_rules(tmp_path / "elsewhere").deny == ()


def test_lasting_answers_outlive_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exact call, also one that rules cannot read, and a pattern; both in this workspace only."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    call = GatedCall.of("execute_command", {"command": "$X 'ä\x7f\n\U0001f600\""})
    scope = Scope(tmp_path)
    decision = Rules().decide(call, scope)
    assert decision.verdict is ASKED
    Remembered().add_call(tmp_path, call, decision)
    Remembered().add_patterns(tmp_path, ["execute_command(git status:*)"])
    Remembered().add_patterns(tmp_path, ["execute_command(git status:*)"])
    answers = Remembered().answers(tmp_path)
    assert Rules().decide(call, scope, answers=answers).verdict is ALLOWED
    changed = GatedCall.of("execute_command", {**call.arguments, "background": True})
    assert Rules().decide(changed, scope, answers=answers).verdict is ASKED
    assert Rules().decide(call, Scope(tmp_path, directory=Path("/")), answers=answers).verdict is ASKED
    status = GatedCall.of("execute_command", {"command": "git status -s"})
    assert Rules().decide(status, scope, answers=answers).verdict is ALLOWED
    assert rules("ask=['execute_command']").decide(status, scope, answers=answers).verdict is ASKED
    assert rules("deny=['execute_command']").decide(call, scope, answers=answers).verdict is DENIED
    assert Remembered().answers(tmp_path / "other").patterns == ()
    entries = tomllib.loads(remembered_path().read_text())["answer"]
    assert len(entries) == 2
    assert stat.S_IMODE(remembered_path().stat().st_mode) == 0o600


def test_answers_of_many_programs_are_all_stored(tmp_path: Path) -> None:
    """The file is replaced as a whole, under a lock."""
    path = tmp_path / "remembered.toml"
    threads = [
        threading.Thread(target=Remembered(path).add_patterns, args=(tmp_path, [f"execute_command(run{number})"]))
        for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Remembered(path).answers(tmp_path).patterns) == 12


@pytest.mark.parametrize(
    "text", ["x", "answer = 1", "[[answer]]\nworkspace = 1", "[[answer]]\nworkspace = 'a'", "answer = ['x']"]
)
def test_a_damaged_file_of_answers_is_refused(text: str, tmp_path: Path) -> None:
    """Nothing is overwritten."""
    path = tmp_path / "remembered.toml"
    path.write_text(text)
    with pytest.raises(RulesError, match=r"remembered\.toml"):
        Remembered(path).answers(tmp_path)
    with pytest.raises(RulesError):
        Remembered(path).add_patterns(tmp_path, ["execute_command(ls)"])
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("command", "pattern"),
    [
        ("git status", "execute_command(git status:*)"),
        ("cd src && git log -5", "execute_command(git log:*)"),
        ("timeout 5 git diff", "execute_command(git diff:*)"),
        ("ls -la", "execute_command(ls:*)"),
        ("bash -c 'ls'", "execute_command(ls:*)"),
        *((command, "") for command in ("bash x.sh", "python -c 'x'", "python x.py", "node x.js", "ls | xargs rm")),
        *(
            (command, "")
            for command in ("sudo ls", "env -S ls", "git -C x status", "git", "git bisect run x", "git $X")
        ),
        *(
            (command, "")
            for command in ("./run", "/bin/ls", "rm x", "ls > /x", "ls; rm x", "$X", "ls 'x", "make", "npx x")
        ),
        *((command, "") for command in ("find . -delete", "awk 1", "sed p", "ssh host ls", "uv run x", "docker run x")),
    ],
)
def test_suggestions_allow_what_their_words_say(command: str, pattern: str, tmp_path: Path) -> None:
    """Of what runs anything, only the exact call can be remembered."""
    call = GatedCall.of("execute_command", {"command": command})
    assert Rules().decide(call, Scope(tmp_path)).patterns == ((pattern,) if pattern else ())
    if pattern:
        assert rules(f"allow = ['{pattern}']").decide(call, Scope(tmp_path)).verdict is ALLOWED


@pytest.mark.parametrize(
    ("command", "patterns"),
    [
        ("git status && ls; cat x | head", ["git status", "ls", "cat", "head"]),
        ("git status && git status -s", ["git status"]),
        ("echo $(date)", ["date", "echo"]),
        ("grep x y && git diff", ["git diff"]),  # a rule allows grep
        ("ls > ../x", []),
        ("ls && make", []),
        ("ls; cat x; head y; tail z; wc a", []),  # too many to read
        ("ls; git push", []),  # a rule asks
    ],
)
def test_each_command_of_a_compound_gets_a_pattern_or_none_does(
    command: str, patterns: list[str], tmp_path: Path
) -> None:
    """Together they allow the call, and commands that are allowed already need none."""
    text = "allow = ['execute_command(grep:*)']\nask = ['execute_command(git push)']"
    call = GatedCall.of("execute_command", {"command": command})
    decision = rules(text).decide(call, Scope(tmp_path))
    assert decision.patterns == tuple(f"execute_command({words}:*)" for words in patterns)
    if patterns:
        more = rules(text.replace("[", f"[{', '.join(map(repr, decision.patterns))}, ", 1))
        assert more.decide(call, Scope(tmp_path)).verdict is ALLOWED


_SYMBOLS = [*"'\"\\)`;|{>#\n\0 ", "$(", "<<E\n", "E\n", "$X", "&&", "\\\n", "((", "[[", "]]"]
_PIECES = st.sampled_from(
    [*_SYMBOLS, *(f"{word} " for word in ("ls", "victim", "if", "then", "fi", "for", "do", "eval"))]
)


@example("/")
@given(st.lists(_PIECES, max_size=30).map("".join) | st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_is_decided(text: str) -> None:
    """Nothing crashes, and what does not parse is not allowed."""
    loaded = rules("allow=['execute_command(*)']\ndeny=['execute_command(victim:*)']")
    decision = loaded.decide(GatedCall("execute_command", text), SCOPE)
    assert decision.verdict is not ALLOWED or not analyse(text).doubts
    for tool in ("write_file", "mcp", "other"):
        Rules().decide(GatedCall(tool, text), SCOPE)
    with suppress(ValueError):
        Pattern.parse(text)


@given(st.lists(st.sampled_from(["{}", "'{}'", '"{}"', "\\{}", "''{}", '{}""', "$'{}'"]), min_size=6, max_size=6))
def test_no_quoting_of_a_denied_name_allows_it(forms: list[str]) -> None:
    """Each letter may be quoted in its own way."""
    name = "".join(form.format(letter) for form, letter in zip(forms, "victim", strict=True))
    loaded = rules("allow=['execute_command(*)']\ndeny=['execute_command(victim:*)']")
    for command in (f"{name} x", f"true && {name}", f"env {name} x", f'sh -c "$({name})"'):
        assert loaded.decide(GatedCall("execute_command", command), SCOPE).verdict is not ALLOWED


@given(
    st.sampled_from(["victim x", "sh -c 'victim'", "echo $(victim)"]),
    st.sampled_from(["", "true; ", "echo a | ", "cd x && ", "A=b ", "! "]),
    st.sampled_from(["", "; true", " | cat", " && echo 'x", ' "', " $(", " # '", "\necho \\", " > $X", " <<E", " )"]),
)
def test_text_around_a_denied_command_does_not_allow_it(command: str, before: str, after: str) -> None:
    """Whatever stands before and after it."""
    loaded = rules("allow=['execute_command(*)']\ndeny=['execute_command(victim:*)']")
    decision = loaded.decide(GatedCall("execute_command", before + command + after), SCOPE)
    assert decision.verdict is not ALLOWED
