"""What the site needs beyond docs/: pages of the repository's root, no links to files that it does not have, versions.

mkdocs calls these functions (`hooks` in mkdocs.yml). Each version of the site is a folder of its own (`site/0.2.0`),
which later builds leave as it is. Two files are written beside these folders: `versions.json`, which the theme's
selector of versions reads, and `index.html`, which leads to the newest version.
"""

import json
import re
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
VERSION = version("cfs-local")
FROM_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
ICON = ROOT / "server/cfs_server/dashboard/icon.svg"
START = {"README.md": "README.md"}  # the site begins with docs/README.md instead of the repository's
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
FORWARD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>CFS</title>
<meta http-equiv="refresh" content="0; url={0}/index.html">
<a href="{0}/index.html">The documentation of CFS {0}</a>
"""


def on_config(config: MkDocsConfig) -> None:
    """Show the version on each page, also where the selector does not work: in files that are read without a server."""
    config.copyright = f"CFS {VERSION}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies elsewhere in the repository: pages at its root, and the icon."""
    for name, page in FROM_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relinked(text, name, page)))
    files.append(File.generated(config, "images/icon.svg", abs_src_path=str(ICON)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Mend the links of a page of docs/; those of the others were mended when they were read."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # its menu is itself only
    if page.file.src_uri.startswith(("how-to/", "tutorial")):
        page.meta["search"] = {"boost": 2}  # who searches has a task, mostly
    if page.file.src_uri in FROM_ROOT.values():
        return markdown
    return relinked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the list of versions, and the page that leads to the newest one."""
    folder = Path(config.site_dir)
    if folder.name != VERSION:  # `mkdocs serve` builds elsewhere
        return
    found = [path.name for path in folder.parent.iterdir() if re.fullmatch(r"\d+(\.\d+)+", path.name)]
    found.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    rows = [{"version": name, "title": name, "aliases": ["latest"] if name == found[0] else []} for name in found]
    (folder.parent / "versions.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    (folder.parent / "index.html").write_text(FORWARD.format(found[0]), encoding="utf-8")


def relinked(text: str, source: str, page: str) -> str:
    """Let each link lead where the site has its target; a link to a file that it does not have becomes plain text.

    A link that shows the name of a page's file shows the page's title instead.
    """

    def target(link: re.Match[str]) -> str:
        path = normpath(PurePosixPath(source).parent / link[2])
        found = path.removeprefix("docs/") if path.startswith("docs/") else (FROM_ROOT | START).get(path)
        if found is None:
            return link[1]
        words = title(path) if link[1] == PurePosixPath(path).name else link[1]
        return f"[{words}]({relpath(found, PurePosixPath(page).parent)}{link[3] or ''})"

    return LINK.sub(target, text)


def title(path: str) -> str:
    """Return the first heading of a page of the repository."""
    return (ROOT / path).read_text(encoding="utf-8").partition("# ")[2].partition("\n")[0]
