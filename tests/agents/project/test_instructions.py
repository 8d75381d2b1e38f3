"""AGENTS.md of a workspace."""

from pathlib import Path

from cfs_agents.project.instructions import MAX_BYTES, FolderInstructions, instructions_of
from tests.agents.project.test_skills import ROOT, handle


def test_the_instructions_of_a_project_are_marked_as_its_own(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.\n")
    (tmp_path / "CLAUDE.md").write_text("Use spaces.\n")
    text = instructions_of(handle(tmp_path), ROOT)
    assert text.startswith("The project's own instructions, from /workspace/AGENTS.md.")
    assert text.endswith("<project>\nUse tabs.\n</project>")


def test_claude_md_is_read_if_there_is_no_agents_md(tmp_path: Path) -> None:
    (tmp_path / "CLAUDE.md").write_text("Use spaces.")
    text = instructions_of(handle(tmp_path), f"{ROOT}/")
    assert "from /workspace/CLAUDE.md." in text
    assert "Use spaces." in text


def test_a_workspace_without_instructions_adds_nothing(tmp_path: Path) -> None:
    files = handle(tmp_path)
    assert instructions_of(files, ROOT) == ""
    (tmp_path / "AGENTS.md").write_text(" \n")
    assert instructions_of(files, ROOT) == ""


def test_long_instructions_are_cut_between_characters(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("ä" * MAX_BYTES)
    text = instructions_of(handle(tmp_path), ROOT)
    assert text.count("ä") == MAX_BYTES // 2
    assert f"[... /workspace/AGENTS.md has {2 * MAX_BYTES:,} bytes; this is its beginning ...]" in text


def test_a_link_to_a_file_outside_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "AGENTS.md").symlink_to(secret)
    assert instructions_of(handle(workspace), ROOT) == ""


def test_instructions_of_folders_are_named_once_when_a_file_there_is_first_read(tmp_path: Path) -> None:
    """Also those of the folders between, but not the workspace's own, which the prompt has."""
    for folder in ("", "web", "web/forms", "docs"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / ("CLAUDE.md" if folder == "docs" else "AGENTS.md")).write_text("Use tabs.")
    folders = FolderInstructions(handle(tmp_path), ROOT)
    assert folders.note(f"{ROOT}/a.py") == ""
    assert folders.note("/storage/web/a.py") == ""
    note = folders.note(f"{ROOT}/web/forms/a.py")
    assert "in /workspace/web/AGENTS.md and /workspace/web/forms/AGENTS.md: read them before" in note
    assert folders.note(f"{ROOT}/web/forms/b.py") == folders.note(f"{ROOT}/web/a.py") == ""
    assert folders.note(f"{ROOT}/docs/CLAUDE.md") == "", "it is being read"
    assert folders.note(f"{ROOT}/none/a.py") == ""
