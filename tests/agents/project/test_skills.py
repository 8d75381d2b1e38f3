"""Skills in folders, checked against the reference implementation of their format."""

from pathlib import Path

import pytest
import skills_ref
from hypothesis import given
from hypothesis import strategies as st

from cfs_agents.project.skills import WORKSPACE_FOLDERS, Skill, SkillProblem, find_skills, skills_prompt, user_folder
from cfs_filesystem import OPERATIONS, DiskFileSystem, FsHandle, Grant, InMemoryFileSystem
from tests.client.terminal import cfs, ended

ROOT = "/workspace"
NO_SERVER = "http://127.0.0.1:1"
FOLDERS = [f"{ROOT}/{folder}" for folder in WORKSPACE_FOLDERS]


def handle(folder: Path) -> FsHandle:
    return DiskFileSystem(folder, prefix=f"{ROOT}/").create_handle([Grant(prefix=ROOT, ops=OPERATIONS)])


def write(folder: Path, name: str, text: str, below: str = WORKSPACE_FOLDERS[0]) -> Path:
    path = folder / below / name / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path.parent


def fields(name: str, description: str = "Reads PDF files", more: str = "") -> str:
    return f"---\nname: {name}\ndescription: {description}\n{more}---\n\n# How\n\nRead it.\n"


def test_skills_of_a_workspace_are_found_in_the_order_of_its_folders(tmp_path: Path) -> None:
    write(tmp_path, "tables", fields("tables", "Makes tables"), WORKSPACE_FOLDERS[1])
    write(tmp_path, "pdf", fields("pdf", "Another one"), WORKSPACE_FOLDERS[1])
    write(tmp_path, "pdf", fields("pdf", more="license: MIT\nmetadata:\n  version: 1.0\n"))
    skills, problems = find_skills(handle(tmp_path), FOLDERS)
    assert skills == [
        Skill("pdf", "Reads PDF files", "/workspace/.agents/skills/pdf/SKILL.md"),
        Skill("tables", "Makes tables", "/workspace/.claude/skills/tables/SKILL.md"),
    ]
    assert problems == [
        SkillProblem(
            "/workspace/.claude/skills/pdf", "/workspace/.agents/skills/pdf/SKILL.md has the same name and is used"
        )
    ]
    assert skills_prompt(skills).splitlines()[1:] == [
        "- pdf: Reads PDF files (/workspace/.agents/skills/pdf/SKILL.md)",
        "- tables: Makes tables (/workspace/.claude/skills/tables/SKILL.md)",
    ]


def test_a_workspace_without_skills_adds_nothing_to_a_prompt(tmp_path: Path) -> None:
    assert find_skills(handle(tmp_path), FOLDERS) == ([], [])
    assert skills_prompt([]) == ""


def test_many_long_descriptions_leave_names_only() -> None:
    skills = [Skill(f"skill-{number}", "x" * 1000, f"/s/{number}") for number in range(100)]
    prompt = skills_prompt(skills)
    assert len(prompt) < 12_000
    assert prompt.endswith("- skill-99 (/s/99)")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", "pdf", fields("pdf"))
    workspace = tmp_path / "workspace"
    (workspace / ".agents/skills").mkdir(parents=True)
    (workspace / ".agents/skills/pdf").symlink_to(outside)
    (workspace / ".agents/skills/tables").mkdir()
    (workspace / ".agents/skills/tables/SKILL.md").symlink_to(outside / "SKILL.md")
    skills, problems = find_skills(handle(workspace), FOLDERS)
    assert skills == []
    assert [problem.path for problem in problems] == ["/workspace/.agents/skills/tables"]


FAULTS = {
    "without fields": ("pdf", "# How", "must begin with fields"),
    "not closed": ("pdf", "---\nname: pdf\n", "must begin with fields"),
    "not YAML": ("pdf", "---\nname: [\n---\n", "are not YAML"),
    "a list": ("pdf", "---\n- pdf\n---\n", "are not a map"),
    "no name": ("pdf", "---\ndescription: x\n---\n", "the field 'name' is missing"),
    "no description": ("pdf", "---\nname: pdf\n---\n", "the field 'description' is missing"),
    "empty description": ("pdf", "---\nname: pdf\ndescription: ''\n---\n", "the field 'description' is missing"),
    "long description": ("pdf", fields("pdf", "x" * 1025), "1,025 characters"),
    "upper case": ("PDF", fields("PDF"), "lower-case letters"),
    "two hyphens": ("a--b", fields("a--b"), "single hyphens"),
    "hyphen at the end": ("a-", fields("a-"), "single hyphens"),
    "another folder": ("pdf", fields("tables"), "must be that of the folder"),
    "long name": ("a" * 65, fields("a" * 65), "65 characters"),
    "unknown field": ("pdf", fields("pdf", more="tools: all\n"), "unknown field 'tools'"),
    "compatibility": ("pdf", fields("pdf", more=f"compatibility: {'x' * 501}\n"), "'compatibility'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_the_reference_finds_it_too(tmp_path: Path, fault: str) -> None:
    name, text, reason = FAULTS[fault]
    folder = write(tmp_path, name, text)
    skills, (problem,) = find_skills(handle(tmp_path), FOLDERS)
    assert skills == []
    assert reason in problem.reason
    assert skills_ref.validate(folder) != []


VALID = {
    "plain": ("pdf", fields("pdf")),
    "folded": ("pdf", "---\nname: pdf\ndescription: >-\n  Reads PDF files,\n  and writes them.\n---\n"),
    "quoted": ("pdf", "---\nname: 'pdf'\ndescription: \"a: b\"\n---\n"),
    "numbers": ("pdf-2", fields("pdf-2", "123")),
    "other letters": ("文件", fields("文件", "读文件")),
    "all fields": (
        "pdf",
        fields(
            "pdf", more="license: MIT\ncompatibility: needs git\nallowed-tools: Bash(git:*) Read\nmetadata:\n  a: b\n"
        ),
    ),
}


@pytest.mark.parametrize("case", VALID)
def test_a_valid_skill_is_valid_for_the_reference_too(tmp_path: Path, case: str) -> None:
    name, text = VALID[case]
    folder = write(tmp_path, name, text)
    (skill,), problems = find_skills(handle(tmp_path), FOLDERS)
    assert problems == []
    assert skills_ref.validate(folder) == []
    reference = skills_ref.read_properties(folder)
    assert (skill.name, skill.description) == (reference.name, reference.description)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_skill_or_a_problem(data: bytes, fenced: bool) -> None:
    files = InMemoryFileSystem().create_handle([Grant(prefix=ROOT, ops=OPERATIONS)])
    files.write(f"{FOLDERS[0]}/pdf/SKILL.md", b"---\n" + data + b"\n---\n" if fenced else data)
    skills, problems = find_skills(files, FOLDERS)
    assert len(skills) + len(problems) == 1


def test_the_skills_of_the_user_are_in_the_folder_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert user_folder() == tmp_path / "cfs/skills"


@pytest.mark.external
def test_the_command_lists_and_checks_the_skills(tmp_path: Path) -> None:
    workspace, home = tmp_path / "workspace", tmp_path / "config"
    write(workspace, "pdf", fields("pdf"))
    write(home, "tables", fields("tables", "Makes tables"), "cfs/skills")
    done = ended(cfs(NO_SERVER, "agent", "skills", str(workspace), XDG_CONFIG_HOME=str(home)))
    pdf = "pdf: Reads PDF files (/workspace/.agents/skills/pdf/SKILL.md)\n"
    assert done == (0, f"{pdf}tables: Makes tables ({home}/cfs/skills/tables/SKILL.md)\n", "")
    write(workspace, "wrong", "# How")
    code, _, errors = ended(cfs(NO_SERVER, "agent", "skills", str(workspace), XDG_CONFIG_HOME=str(home)))
    assert code == 1
    assert errors.startswith("/workspace/.agents/skills/wrong: SKILL.md must begin with fields")
    code, _, errors = ended(cfs(NO_SERVER, "agent", "skills", str(tmp_path / "nowhere")))
    assert (code, "there is no folder" in errors) == (2, True)
