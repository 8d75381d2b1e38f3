"""What surrounds the code holds together: the version, the release, the hooks of commits."""

import re
import subprocess
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.host.scripted import ScriptedEngine

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def check_tag(tag: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run what a release runs first."""
    return subprocess.run([root / "scripts/lib/check-tag", tag], capture_output=True, text=True, check=False)


def test_one_version_everywhere() -> None:
    """Package, interface and changelog name the same one."""
    assert version("cfs-local") == VERSION
    assert create_app(ServerSettings(), ScriptedEngine()).openapi()["info"]["version"] == VERSION
    sections = re.findall(r"^## \[(.+?)\]", CHANGELOG, re.MULTILINE)
    sections = sections[sections[0] == "Unreleased" :]
    assert sections[0] == VERSION
    assert sections == sorted(set(sections), key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def test_each_pinned_version_runs_with_the_oldest_python_that_is_supported() -> None:
    """Debian 12 has Python 3.11.2, for example, and pip refuses there what needs a later one."""
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    installed = [found for found in distributions() if canonicalize_name(found.name) in pinned]
    assert len(installed) > 100
    needs = {found.name: found.metadata.get_all("Requires-Python") or [""] for found in installed}
    assert [name for name, (need,) in needs.items() if not SpecifierSet(need).contains(oldest)] == []


def test_a_tag_must_be_the_version_and_stand_in_the_changelog(tmp_path: Path) -> None:
    for name in ("scripts/lib/check-tag", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "scripts/lib/check-tag").chmod(0o755)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(f"## [{VERSION}] - not released yet\n")
    assert "no dated section" in check_tag(f"v{VERSION}", tmp_path).stderr
    changelog.write_text(f"## [{VERSION}] - 2026-11-30\n")
    assert check_tag(f"v{VERSION}", tmp_path).returncode == 0
    assert "The tag is v9.9.9" in check_tag("v9.9.9", tmp_path).stderr


def parsed(name: str) -> dict[Any, Any]:
    """Read a YAML file of the repository."""
    content = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_a_release_builds_packages_and_image() -> None:
    """Its commands are scripts of this repository, which tests run, and it begins with all checks."""
    workflow = parsed(".github/workflows/release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key "on" as true
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    scripts = [script for command in commands for script in re.findall(r"scripts/[\w/-]+", command)]
    assert scripts == ["scripts/lib/check-tag", "scripts/test", "scripts/build"]
    assert all((ROOT / script).is_file() for script in scripts)
    assert any(command.startswith("docker build ") for command in commands)


def test_hooks_of_commits_are_local() -> None:
    """Nothing is fetched to make a commit, and the hook is the check that all contributors run."""
    (repository,) = parsed(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == ["scripts/check"]


def test_each_decision_is_a_page_with_the_same_headings_and_listed() -> None:
    """Context, decision, consequences; and the index leads to each."""
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert [path.name[:3] for path in pages] == [f"{number:03}" for number in range(1, len(pages) + 1)]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert re.match(rf"# {path.name[:3]}: .+\n", text), path.name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE)[:3] == ["Context", "Decision", "Consequences"], path.name
        assert f"]({path.name})" in index, path.name
