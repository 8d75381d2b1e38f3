"""Finds the files that an answer claims to have made or changed, in English and in Chinese. No I/O.

A false success is bad, and so is doubt about a true answer. So only explicit claims count: the name of a file governed
by a verb that says that it was written. A file is not claimed if it was read, does not exist, may be written later, was
written by another agent or before, or is named in code, in a quotation or in a question. In doubt nothing is claimed.

Method: code, quotations and addresses are blanked out, items of a list follow the line that introduces the list, and
the rest is cut into clauses. In a clause a name belongs to the verb before it, or to the passive after it. Each pattern
holds both languages, because a text may mix them.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_LONGEST, _LONGEST_LINE, _LONGEST_CLAUSE = 20_000, 1_000, 400
"""Characters of a text, a line and a clause that are examined; this bounds the time."""

_ENDINGS = (
    r"adoc|asm|astro|avi|awk|bak|bash|bat|bib|bin|bmp|c|cc|cfg|clj|cmake|cmd|conf|cpp|"
    r"cs|css|csv|cxx|dart|dat|db|diff|doc|docx|ejs|epub|erl|ex|example|exs|f90|fish|"
    r"gif|go|gpx|gradle|graphql|groovy|gz|h|hbs|hpp|hs|htm|html|ico|ics|ini|ino|ipynb|"
    r"jar|java|jl|jpeg|jpg|js|json|json5|jsonc|jsonl|jsx|kt|kts|lean|less|lisp|lock|log|"
    r"lua|m4|markdown|md|mdx|mjs|mk|ml|mov|mp3|mp4|mts|nim|nix|ods|odt|ogg|"
    r"out|parquet|patch|pdf|php|pkl|pl|plist|png|po|ppt|pptx|properties|proto|ps1|"
    r"pug|puml|py|pyi|pyx|r|rake|rb|rkt|rs|rst|rtf|sass|sbt|scala|scss|sed|"
    r"sh|sln|sol|sql|sqlite|srt|sty|sum|sv|svelte|svg|swift|tar|tcl|template|tex|tf|tgz|"
    r"tmpl|toml|ts|tsv|tsx|ttl|txt|v|vb|vhdl|vim|vtt|vue|wasm|wav|webm|webp|wsdl|xls|"
    r"xlsx|xml|xsd|xsl|yaml|yml|zig|zip|zsh"
)
_BARE_NAMES = "Makefile|Dockerfile|Jenkinsfile|Procfile|Vagrantfile|Gemfile|Rakefile|LICENSE"
_PROGRAMS = re.compile(
    r"(?:alpine|angular|backbone|chart|d3|discord|ember|express|moment|next|"
    r"node|nuxt|p5|react|require|three|vue)\.js|socket\.io|asp\.net|"
    r"(?:console|math|np|numpy|torch|logger|self|this|process|git|os|sys|django|window|document)\.\w+",
    re.IGNORECASE,
)
"""Names of programs and libraries, and of their parts, that look like names of files."""

_ENDING = rf"\.(?:{_ENDINGS})(?:\.(?:{_ENDINGS}))?"
_BARE = r"[A-Za-z0-9_À-ɏ.+@-]"
_NAME = re.compile(
    rf"(?<![A-Za-z0-9_À-ɏ./\\@~$+-])(?P<bare>~?/?(?:{_BARE}+/)*(?:{_BARE}*[A-Za-z0-9_À-ɏ+-]{_ENDING}|{_BARE_NAMES}))"
    rf"(?![A-Za-z0-9_(/\\À-ɏ]|[.-][A-Za-z0-9])"
)
_QUOTED_NAME = re.compile(rf"[^\s`'\"<>|;&$*?{{}}()]*[^\s`'\"<>|;&$*?{{}}()./]{_ENDING}|{_BARE_NAMES}")
_QUOTES = re.compile(
    r"`([^`\n]+)`|\"([^\"\n]*)\"|“([^”\n]*)”|「([^」\n]*)」|『([^』\n]*)』|《([^》\n]*)》|‘([^’\n]*)’"
    r"|(?<!\w)'([^'\s][^'\n]*)'(?!\w)|\*\*([^*\n]+)\*\*"
)
_BLANKED = re.compile(
    r"^[ \t]*(`{3,}|~{3,}).*?(?:^[ \t]*\1[`~]*[ \t]*$|\Z)"  # code between fences
    r"|^(?: {4,}|\t)(?![ \t]*(?:[-*+•]|\d+[.)])\s).*$"  # indented code
    r"|^[ \t]*>.*$"  # quotations
    r"|^[ \t]*(?:\$|>>>) .*$"  # what was typed
    r"|\b[a-z][a-z0-9+.-]*://[^\s)>\]]+"
    r"|\bwww\.[^\s)>\]]+"
    r"|[\w.+-]+@[\w-]+\.[\w.]+",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"!?\[([^\]\n]*)\]\(([^)\s]+)\)")
_MARK = "\ue000{}\ue001"
_MARKED = re.compile("\ue000(\\d+)\ue001")

_MADE = (
    r"wrote|written|rewrote|rewritten|overwrote|overwritten|created|recreated|saved|stored|updated|modified|changed|"
    r"edited|amended|appended|added|generated|regenerated|produced|made|built|exported|dumped|recorded|inserted|"
    r"placed|put|filled|fixed|corrected|replaced|refactored|reformatted|extended|implemented|drafted|composed|"
    r"prepared|set up|output(?:ted)?|converted|emptied|cleared|truncated"
)
_OTHER = (
    r"read|reads|reading|looked|looking|checked|checking|reviewed|opened|found|saw|seen|see|listed|inspected|"
    r"examined|searched|parsed|loaded|analy[sz]ed|compared|copied|used|uses|using|tested|ran|run|runs|running|"
    r"executed|verified|says|said|contains|contain|contained|includes|holds|shows|showed|lists|has|have|reading|"
    r"needs|require[sd]?|imports(?= from| \ue000)|calls?|mentions|mentioned|described|defined|specified|"
    r"given|asked|based|following|called from|linked|refers?|matches|matched|downloaded|fetched|"
    r"creates|writes|saves|updates|adds|generates|produces|makes|prints|outputs|"
    r"create|write|save|update|modify|change|edit|append|add|generate|produce|make|build|export|delete|remove|"
    r"put it|fix|replace|implement|creating|writing|saving|updating|modifying|editing|adding|generating"
)
_MADE_ZH = (
    r"写入|写到|写进|写好|写成|写完|写了|写在|改写|重写|创建|新建|建立|生成|保存|存入|存到|存为|存放|更新|修改|编辑|"
    r"追加|添加|加入|增加|导出|输出到|输出为|覆盖|记录到|记录在|记录于|制作|完善|补充|修复|清空|替换"
)
_OTHER_ZH = (
    r"读取|读了|读到|阅读|查看|看了|检查|打开|搜索|列出|分析|包含|含有|内容是|内容为|显示|根据|参考|基于|按照|使用|"
    r"运行|执行|来自|导入|引用|说明|提到|描述|比较"
)
_VERB = re.compile(rf"(?P<made>\b(?:{_MADE})\b|{_MADE_ZH})|\b(?:{_OTHER})\b|{_OTHER_ZH}", re.IGNORECASE)

_DENIED_ZH = (
    r"没|未(?!来)|不(?!过|仅|但)|无法|失败|别|请|如果|若|假如|除非|将会|将要|将(?![结内其文数它该所此全报])|会(?!议|话|员|计)|"
    r"可以|可能|应该|应当|需要|需(?!求)|打算|准备|计划(?:创|写|保|生|更|修)|想要|能够|"
    r"之前|以前|先前|早已|原有|原来|已有|上次|昨天|仍|还是|你|您|他们|删除|移除|重命名|改名|移动|撤销|回滚|例如|比如|是否|吗|怎么|如何"
)
_DENIED = re.compile(
    r"\b(?:not|never|no|none|nothing|neither|nor|without|cannot|unable|fail(?:s|ed|ing)?|failure|refused|denied|"
    r"instead of|would|could|should|can|may|might|must|will|shall|going to|want(?:ed|s)? to|plan(?:ned|s)? to|"
    r"need(?:ed|s)? to|let me|let's|please|if|unless|until|whether|when|once|how to|in order to|tried|attempted|trying|"
    r"already|earlier|previously|before|beforehand|existing|originally|last time|previous|yesterday|unchanged|"
    r"untouched|still|they|he|she|someone|somebody|others?|by you|"
    r"you(?: have|[’']ve)? (?:wrote|written|created|saved|made|added|updated|changed)|"
    r"deleted|removed|renamed|moved|cleaned up|rolled back|reverted|undid|undone|discarded|"
    r"supposed|pretend|example|e\.g|for instance|suppose|imagine|claims?|claimed)\b|n[’']t\b|[’']ll\b|[’']d\b|"
    + _DENIED_ZH,
    re.IGNORECASE,
)
_SOURCE = re.compile(
    r"(?:\bof|\bfrom|\bin(?:side)?|\bwith|\busing|\bper|\bthan|\blike|\bas in|\bto match|\bfor|\bagainst|\bvia|\bby|"
    r"\babout|\bon|\bat|\band test|\bbased on|\baccording to)\s+"
    r"(?:the |a |an |its |this |that |file |contents? of |source )*$",
    re.IGNORECASE,
)
_INTO = re.compile(
    r"\b(?:to|into|as|at|under|in|called|named)\b[\s:]*(?:the |a |an |new |file |text |called |named )*$", re.IGNORECASE
)
_IN = re.compile(r"\bin\s+(?:the |a |file )*$", re.IGNORECASE)
_PUT_IN = re.compile(r"\b(?:saved|stored|wrote|written|recorded|put|placed|exported|dumped)\b", re.IGNORECASE)
_OF = re.compile(r"\b(?:of|from)\b", re.IGNORECASE)
_PASSIVE = re.compile(
    rf"^\W*(?:file|script|module|page|document)?\W*(?:(?:and|,)[^.]*?)?\W*"
    rf"(?:(?:has|have) been|was|were|is now|are now|now"
    rf"|is|are|got|:|-|–|—|\()\s*(?:successfully |also |now |both |all |newly |just |been )*(?:{_MADE})\b"
    rf"|^[^，。；！？]{{0,8}}?(?:已经?|均已|都已|被|成功|现已|已被)+[^，。；！？]{{0,4}}?(?:{_MADE_ZH})",
    re.IGNORECASE,
)
_UNDONE = re.compile(
    r"\b(?:deleted|removed|cleaned|rolled|reverted|undid|discarded)(?: up| back)?\s+(?:it|them|both|that|again)\b"
    r"|(?:又|再|并|然后|最后|随后|后)(?:将其|把它|把其)?(?:删除|移除|撤销)",
    re.IGNORECASE,
)
_ENDS = re.compile(r"[.!?;](?=[\s)*\"]|$)|[。！？；\n]")
_CLAUSE = re.compile(
    r",\s*(?:and\s+)?(?:but|which|while|whereas|so|then|although|though|because|since|after|before|where|whose)\b"
    r"|\s+(?:but|while|whereas|although|though|because|after|before|then|that|which)\s+"
    r"|,\s*(?:and\s+)?(?:I|we)\b|\s+and\s+(?:I|we|then)\b|\s[-–—]\s|，|：(?=[^\ue000`]*?[，。])",
    re.IGNORECASE,
)
_ITEM = re.compile(r"^[ \t]*(?:[-*+•]|\d+[.)、])\s+(?:\[[xX ]\]\s+)?")
_HEADING = re.compile(r"^\s*#{1,6}\s|[:：]\s*\**\s*$")
_ORDER = re.compile(
    r"(?:^|[.!?;,\n]\s*|\b(?:then|and|please|also|finally|first|now)\s+)"
    r"(?P<verb>write|create|save|store|update|modify|edit|append|add|generate|produce|make|export|put|fix|implement|"
    r"rewrite|overwrite|record)\b",
    re.IGNORECASE,
)
_ORDER_ZH = re.compile(rf"(?:{_MADE_ZH}|写|存|建)")
_NO_ORDER_ZH = re.compile(_DENIED_ZH)
_ORDER_OTHER = re.compile(
    rf"\b(?:{_OTHER}|that|so|which|if|whether|how|why|what|unless|without|not|don[’']t)\b", re.IGNORECASE
)


class _Clause(NamedTuple):
    """A part of an answer in which marks replace names; an item of a list includes the head of the list."""

    text: str
    void: bool = False
    """Whether it is a question, or about something that was undone."""
    listed: bool = False


def claimed_files(answer: str, task: str = "") -> tuple[str, ...]:
    """Return the files that an answer claims to have made or changed, as it writes them, each once.

    A file that the `task` explicitly orders to be written counts as well, if the answer mentions it without a denial.
    """
    names, text = _marked(answer)
    ordered = _ordered(task) if task else frozenset()
    claimed: dict[str, None] = {}
    for clause in _clauses(text):
        denied = clause.void or len(clause.text) > _LONGEST_CLAUSE or _denied(clause.text)
        for mark in _MARKED.finditer(clause.text):
            if denied:
                break
            name = names[int(mark[1])]
            if clause.listed or _is_made(clause.text, mark) or name.rpartition("/")[2] in ordered:
                claimed[name] = None
    return tuple(claimed)


def named_files(answer: str, task: str, doubted: str | None) -> tuple[str, ...]:
    """Return the files that an answer claims, and those of a `doubted` earlier answer that it does not correct."""
    names = dict.fromkeys(claimed_files(answer, task))
    if doubted is not None:
        names |= dict.fromkeys(name for name in claimed_files(doubted, task) if not corrects(answer, name))
    return tuple(names)


def corrects(answer: str, name: str) -> bool:
    """Return whether an answer takes a claim back: it denies something, about this file if it names files."""
    names, text = _marked(answer)
    denied = [clause.text for clause in _clauses(text) if _denied(clause.text)]
    about = {names[int(mark[1])] for clause in denied for mark in _MARKED.finditer(clause)}
    return bool(denied) and (not names or not about or name in about)


def _denied(clause: str) -> bool:
    return _DENIED.search(clause) is not None


def _ordered(task: str) -> frozenset[str]:
    """Return the file names, without folders, that a task orders to be written."""
    names, text = _marked(task)
    ordered = set()
    for clause in _sentences(text):
        if len(clause) > _LONGEST_CLAUSE:
            continue
        for mark in _MARKED.finditer(clause):
            before = clause[: mark.start()]
            orders = list(_ORDER.finditer(before))
            english = orders and not _ORDER_OTHER.search(before, orders[-1].end()) and not _SOURCE.search(before)
            if english or (_ORDER_ZH.search(before[-8:]) and not _NO_ORDER_ZH.search(before.replace("请", ""))):
                ordered.add(names[int(mark[1])].rpartition("/")[2])
    return frozenset(ordered)


def _marked(text: str) -> tuple[Sequence[str], str]:
    """Replace each name of a file by a mark, and blank out code, quotations and addresses."""
    names: list[str] = []

    def mark(name: str) -> str:
        name = name.removesuffix(".").rstrip(",:")
        if _PROGRAMS.fullmatch(name):
            return " "
        names.append(name)
        return _MARK.format(len(names) - 1)

    def quoted(match: re.Match[str]) -> str:
        inside = next(group for group in match.groups() if group is not None).strip()
        if _QUOTED_NAME.fullmatch(inside):
            return mark(inside)
        if match[0].startswith("**"):
            return f" {_QUOTES.sub(quoted, inside)} "
        return " " if " " in inside or match[0].startswith("`") else match[0]

    def linked(match: re.Match[str]) -> str:
        return f"`{match[2]}`" if "://" not in match[2] and _QUOTED_NAME.fullmatch(match[2]) else match[1]

    text = text[:_LONGEST].replace("\ue000", " ").replace("\ue001", " ")
    text = "\n".join(line[:_LONGEST_LINE] for line in text.splitlines())
    text = _BLANKED.sub(" ", _LINK.sub(linked, text))
    text = _QUOTES.sub(quoted, text)
    return names, _NAME.sub(lambda match: mark(match["bare"]), text)


def _sentences(text: str) -> Iterator[str]:
    start = 0
    for end in _ENDS.finditer(text):
        yield text[start : end.end()]
        start = end.end()
    yield text[start:]


def _clauses(text: str) -> Iterator[_Clause]:
    """Cut a text into clauses; the first name of a list item is put after the line that introduces the list."""
    head: str | None = None
    for line in text.split("\n"):
        item = _ITEM.match(line)
        if item is not None and head is not None:
            first = _MARKED.search(line)
            rest = line[item.end() :]
            if first is not None and first.start() - item.end() < 3:
                yield _Clause(f"{head} {first[0]}", listed=not _denied(rest.partition(".")[0]))
                rest = line[first.end() :]
            yield from _parts(rest)
            continue
        if line.strip():
            head = line if _HEADING.search(line) and _is_head(line) else None
        yield from _parts(line)


def _is_head(line: str) -> bool:
    """Return whether a line claims that the files in the list below it were made."""
    verbs = list(_VERB.finditer(line))
    return bool(verbs) and verbs[-1]["made"] is not None and not _denied(line)


def _parts(line: str) -> Iterator[_Clause]:
    for sentence in _sentences(line):
        void = sentence.rstrip(' *)"').endswith(("?", "？")) or _UNDONE.search(sentence) is not None
        start = 0
        for cut in _CLAUSE.finditer(sentence):
            yield _Clause(sentence[start : cut.start()], void)
            start = cut.start()
        yield _Clause(sentence[start:], void)


def _is_made(clause: str, mark: re.Match[str]) -> bool:
    """Return whether a clause claims that the file at a mark was made or changed."""
    before, after = clause[: mark.start()], clause[mark.end() :]
    if _PASSIVE.match(after):
        return True
    verbs = list(_VERB.finditer(before))
    if not verbs or verbs[-1]["made"] is None:
        return False
    between = _MARKED.sub("", before[verbs[-1].end() :])
    if _SOURCE.search(before) is None:
        return True
    if _IN.search(before) is None:
        return False
    goes_on = _MARKED.search(after) is not None and _INTO.search(after[: after.index("\ue000")]) is not None
    return _PUT_IN.search(verbs[-1][0]) is not None and not goes_on and _OF.search(between) is None
