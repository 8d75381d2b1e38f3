"""How git runs other programs: options, subcommands, aliases and settings. No I/O (A11)."""

import re
from collections.abc import Sequence

from cfs_agents.guards.rules.code_options import note_options
from cfs_agents.guards.rules.inner import Inner, scripts_in, suspect_suffixes
from cfs_agents.guards.rules.words import Word, names

_VALUED = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--super-prefix"})
"""Options before the subcommand whose value is the next word."""

_OPTIONS = {
    "": ("-c", "--config-env", "--exec-path"),
    "archive": ("--exec",),
    "clone": ("-u", "--upload-pack", "-c", "--config", "--template"),
    "difftool": ("-x", "--extcmd"),
    "fetch": ("--upload-pack",),
    "fetch-pack": ("--upload-pack", "--exec"),
    "grep": ("-O", "--open-files-in-pager"),
    "init": ("--template",),
    "ls-remote": ("--upload-pack", "--exec"),
    "pull": ("--upload-pack",),
    "push": ("--receive-pack", "--exec"),
    "rebase": ("-x", "--exec"),
    "send-pack": ("--receive-pack", "--exec"),
    **dict.fromkeys(("diff", "diff-files", "diff-index", "diff-tree"), ("--ext-diff",)),
    **dict.fromkeys(("format-patch", "log", "range-diff", "shortlog", "show"), ("--ext-diff",)),
    "stash": ("--ext-diff",),
}
"""Options that run a program, by subcommand; the first row has those before it."""

_WRITES = {"archive": ("-o", "--output"), **dict.fromkeys(("diff", "log", "show", "format-patch"), ("--output",))}
"""Options that write a file."""

_RUN = frozenset({"bisect run", "submodule foreach"})
_RUNNERS = names(
    "daemon difftool filter-branch for-each-repo hook http-backend imap-send instaweb merge-index"
    " merge-one-file mergetool p4 remote-ext remote-fd send-email shell web--browse cvsserver svn quiltimport"
)
"""Subcommands that run programs which their arguments or settings name."""

_SUBCOMMANDS = names(
    "add am annotate apply archive bisect blame branch bundle cat-file check-attr check-ignore check-mailmap"
    " check-ref-format checkout checkout-index cherry cherry-pick clean clone column commit commit-graph"
    " commit-tree config count-objects describe diff diff-files diff-index diff-tree fast-export fast-import"
    " fetch fetch-pack fmt-merge-msg for-each-ref format-patch fsck gc grep hash-object help index-pack init"
    " log ls-files ls-remote ls-tree mailinfo mailsplit maintenance merge merge-base merge-file merge-tree"
    " mktag mktree mv name-rev notes pack-objects pack-refs patch-id prune pull push range-diff read-tree"
    " rebase reflog remote repack replace rerere reset restore rev-list rev-parse revert rm send-pack shortlog"
    " show show-branch show-index show-ref sparse-checkout stash status stripspace submodule switch"
    " symbolic-ref tag unpack-file unpack-objects update-index update-ref var verify-commit verify-pack"
    " verify-tag version whatchanged worktree write-tree lfs"
)
"""Subcommands of git itself. Others may be aliases, or programs."""

_PLAIN_SETTING = re.compile(
    r"(?:user\.(?:name|email|signingkey)|init\.defaultbranch|color\..*|push\.(?:default|autosetupremote)"
    r"|(?:pull|fetch|rebase|merge|branch|advice|commit|tag|log|status|diff|http|blame|column)\.(?!tool$|external$|.*\.)\w+"
    r"|core\.(?:autocrlf|eol|filemode|ignorecase|quotepath|safecrlf|symlinks|longpaths)|safe\.directory)",
    re.IGNORECASE,
)
"""Settings that name no program."""


def note_git(words: tuple[Word, ...], result: Inner) -> None:
    """Note what a git command may run."""
    index = 1
    while index < len(words) and words[index].text.startswith("-"):
        index += 2 if words[index].text in _VALUED else 1
    before, after = words[:index], words[index:]
    note_options((*before, *after[:1]), _OPTIONS[""], "C", result)
    for number, word in enumerate(before):
        value = word.text.partition("=")[2]
        for text in (value, words[number + 1].text if word.text in ("-c", "--config-env") and after else ""):
            result.hidden_scripts += [f"git {part}" for part in scripts_in(text) if part]  # the value of an alias
    _check_settings((*before, *after[:1]), ("-c", "--config-env"), result)
    if not after:
        return
    if not after[0].literal:
        result.spell([after[0].text])
        return
    subcommand = after[0].text
    note_options(after, _OPTIONS.get(subcommand, ()), "", result, _WRITES.get(subcommand, ()))
    if subcommand == "clone":
        _check_settings(after, ("-c", "--config"), result)
    pair = next((run for run in _RUN if run.split()[0] == subcommand and run.split()[1] in _texts(after)), None)
    if pair is not None:
        result.spell(pair.split(), f"`git {pair}` runs a command")
        suspect_suffixes(after[2:], result)
    elif subcommand in _RUNNERS:
        result.spell([subcommand], f"`git {subcommand}` runs programs")
        suspect_suffixes(after[1:], result)
    elif subcommand == "config":
        _config(after, result)
    elif subcommand not in _SUBCOMMANDS:
        result.spell([subcommand])  # an alias, or a program
        suspect_suffixes(after[1:], result)
    if any("::" in word.text for word in after):
        result.spell([word.text for word in after if "::" in word.text], "it names a transport, which is a program")
        result.hidden_scripts += [word.text.partition("::")[2] for word in after if "::" in word.text]


def _check_settings(words: Sequence[Word], options: Sequence[str], result: Inner) -> None:
    """Note settings for one command that can name a program."""
    for number, word in enumerate(words):
        for option in options:
            if not word.text.startswith(option):
                continue
            value = word.text.removeprefix(option).removeprefix("=")
            setting = value or "".join(following.text for following in words[number + 1 : number + 2])
            if option == "--config-env" or _PLAIN_SETTING.fullmatch(setting.partition("=")[0]) is None:
                result.spell([option], f"`git {option}` can name a program that git runs")


def _config(words: Sequence[Word], result: Inner) -> None:
    """Doubt settings that later git commands take for programs."""
    operands: list[Word] = []
    options = iter(words[1:])
    for word in options:
        if word.text in ("-f", "--file", "--blob", "--type", "--default", "--comment", "--value", "--url"):
            next(options, None)
        elif not word.text.startswith("-"):
            operands.append(word)
        elif word.text in ("-e", "--edit"):
            result.doubts.append("`git config --edit` runs an editor")
    verb = operands[0].text if operands else ""
    if verb in ("set", "get", "list", "unset", "edit", "rename-section", "remove-section"):
        operands = operands[1:]
    if verb == "edit":
        result.doubts.append("`git config edit` runs an editor")
    if verb in ("get", "list") or len(operands) < 2 or {"--get", "--get-all", "--get-regexp"} & _texts(words):
        return
    if all(word.literal for word in operands) and _PLAIN_SETTING.fullmatch(operands[0].text):
        return
    result.doubts.append(f"the setting {operands[0].text[:60]} can name a program that git runs later")
    for word in operands[1:]:
        result.hidden_scripts += [*scripts_in(word.text), f"git {word.text}"]


def _texts(words: Sequence[Word]) -> set[str]:
    return {word.text for word in words}
