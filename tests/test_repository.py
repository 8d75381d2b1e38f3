"""What is checked in: no address of this or that machine, nothing too long, no promise that leads nowhere."""

import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCK_FILES = {"poetry.lock", "uv.lock", "pdm.lock", "pylock.toml", "Pipfile.lock", "package-lock.json", "yarn.lock"}
FOLDERS = [
    "client/cfs",
    "filesystem/cfs_filesystem",
    "webdav/cfs_webdav",
    "server/cfs_server",
    "server/cfs_server/sessions",
    "server/cfs_server/engine/llama",
    "server/cfs_server/routes",
    "fuse_bridge/cfs_fuse",
    "agent_runtime/cfs_agents",
    "agent_runtime/cfs_agents/context",
    "tests",
    "docs",
    "bench",
    "research/embedded_model",
    "research/engine_bench",
    "research/harness_bench",
    "examples",
    "scripts",
    "tools",
]
HOSTS = {  # every host that a file may name; a new one is a decision
    "127.0.0.1",
    "localhost",
    "www.apache.org",
    "example.com",
    "example.org",
    "json-schema.org",
    "git-lfs.github.com",  # the name of a format
    "www.w3.org",  # the name of the elements of a picture (SVG)
}
RESERVED = (".example", ".invalid", ".test")  # names that cannot be registered (RFC 2606)


def checked_in() -> list[Path]:
    """Files that are or would be in the repository: what git ignores is not."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


FILES = checked_in()
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in FILES
    if path.suffix not in (".db", ".gguf", ".png")
}
PAGES = [name for name in TEXTS if name.endswith(".md")]


def lines_that_match(pattern: str, *, but: set[str] | None = None) -> list[str]:
    """Each line of each text file that holds a pattern, this file left out."""
    search = re.compile(pattern).search
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in TEXTS.items()
        if name != "tests/test_repository.py" and name not in (but or set())
        for number, line in enumerate(text.splitlines(), 1)
        if search(line)
    ]


def test_urls_name_known_hosts_only() -> None:
    """No registry, mirror or download address gets in: packages are named, and pip knows where they come from."""
    found = {
        (name, host)
        for name, text in TEXTS.items()
        for host in re.findall(r"https?://([A-Za-z0-9][A-Za-z0-9.-]*\.[A-Za-z0-9-]+|localhost)", text)
    }
    assert {(name, host) for name, host in found if host not in HOSTS and not host.endswith(RESERVED)} == set()


def test_no_option_points_pip_elsewhere() -> None:
    """Where packages come from is the machine's business; what scripts/build has made is in `dist`."""
    assert (
        lines_that_match(r"--(extra-)?index-url|--find-links[= ](?!(\$PWD/)?dist\b)|PIP_(EXTRA_)?INDEX|--trusted-host")
        == []
    )


def test_no_path_of_a_home_or_of_this_checkout() -> None:
    """A path that exists on one machine only is of no use on another."""
    assert lines_that_match(r"(/Users/|/root/|/home/(?!cfs\b))") == []
    if len(ROOT.parts) > 2:  # "/cfs" alone is no telling name
        assert lines_that_match(re.escape(str(ROOT)) + r"\b") == []


def test_no_lock_file_with_addresses() -> None:
    """constraints.txt names versions; formats that record where files were fetched stay out."""
    assert [name for name in TEXTS if Path(name).name in LOCK_FILES] == []
    pins = [line for line in TEXTS["constraints.txt"].splitlines() if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


def test_every_dependency_is_pinned() -> None:
    """Each name in a pyproject.toml has its exact version in constraints.txt; the other ones are in this repository."""
    projects = [tomllib.loads(text)["project"] for name, text in TEXTS.items() if Path(name).name == "pyproject.toml"]
    requirements: list[str] = []
    for project in projects:
        requirements += itertools.chain(project["dependencies"], *project.get("optional-dependencies", {}).values())
    names = {re.split(r"[^A-Za-z0-9_-]", requirement)[0] for requirement in requirements}
    names -= {project["name"] for project in projects}
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in TEXTS["constraints.txt"].splitlines()}
    assert {name.lower().replace("_", "-") for name in names} - pinned == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_of_the_layout_exists(folder: str) -> None:
    """docs/architecture.md describes this layout."""
    assert any(path.is_relative_to(ROOT / folder) for path in FILES)


def test_commands_of_the_readme_exist() -> None:
    """Every script that a page tells the reader to run is there and may be run."""
    named = {
        (page, command)
        for page in PAGES
        for command in re.findall(
            r"(?<![\w./-])(scripts/(?:lib/)?[a-z-]+|(?:tools|bench|research/\w+)/\w+\.py)", TEXTS[page]
        )
    }
    benches = re.compile(r"scripts/bench ([a-z]\w*)")
    scripts = {path.stem: str(path) for pattern in ("bench/*.py", "research/*/*.py") for path in ROOT.glob(pattern)}
    named |= {(page, scripts.get(name, f"bench/{name}.py")) for page in PAGES for name in benches.findall(TEXTS[page])}
    assert {"scripts/up", "scripts/test"} <= {command for page, command in named if page == "README.md"}
    assert [pair for pair in sorted(named) if not (ROOT / pair[1]).is_file()] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """A relative link of a page names a file that is checked in, and its anchor a heading of that file."""
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        known = target.resolve() in FILES or any(path.is_relative_to(target.resolve()) for path in FILES)
        if not known or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
