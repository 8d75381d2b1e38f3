"""What the site needs beyond docs/: pages of the repository's root, and no links to files that it does not have.

mkdocs calls these functions (`hooks` in mkdocs.yml).
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
FROM_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages that lie at the root of the repository."""
    for name, page in FROM_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/images/", "](images/")
        files.append(File.generated(config, page, content=relinked(text, name, page)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Mend the links of a page of docs/; those of the others were mended when they were read."""
    if page.file.src_uri in FROM_ROOT.values():
        return markdown
    return relinked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def relinked(text: str, source: str, page: str) -> str:
    """Let each link lead where the site has its target; a link to a file that it does not have becomes plain text."""

    def target(link: re.Match[str]) -> str:
        path = normpath(PurePosixPath(source).parent / link[2])
        if path.startswith("docs/"):
            found = path.removeprefix("docs/")
        elif path in FROM_ROOT:
            found = FROM_ROOT[path]
        else:
            return link[1]
        return f"[{link[1]}]({relpath(found, PurePosixPath(page).parent)}{link[3] or ''})"

    return LINK.sub(target, text)
