"""`cfs agent skills`: list and check the skills that agents have in a workspace."""

from pathlib import Path
from typing import Annotated

import typer

from cfs.cli.base.output import note, show, visible


def skills(
    workspace: Annotated[
        Path,
        typer.Argument(
            metavar="[DIR]", help="Workspace, or any folder (default: the present one).", show_default=False
        ),
    ] = Path(),
) -> None:
    """List and check the skills that agents have in a workspace.

    A skill is a folder with a SKILL.md, in .agents/skills or .claude/skills of the workspace, or in the folder
    cfs/skills of your settings. The exit code is 1 if one of them is not valid; a line says why.
    """
    from cfs_agents.project.skills import WORKSPACE_FOLDERS, find_skills, user_skills
    from cfs_filesystem import OPERATIONS, DiskFileSystem, Grant

    if not workspace.is_dir():
        raise typer.BadParameter(f"there is no folder {workspace}")
    disk = DiskFileSystem(workspace, prefix="/workspace/")
    files = disk.create_handle([Grant(prefix="/workspace", ops=OPERATIONS)])
    workspace_skills, problems = find_skills(files, [f"/workspace/{folder}" for folder in WORKSPACE_FOLDERS])
    disk.close()
    of_user, problems_of_user = user_skills()
    for skill in [*workspace_skills, *of_user]:
        show(visible(f"{skill.name}: {' '.join(skill.description.split())} ({skill.path})") + "\n")
    for problem in [*problems, *problems_of_user]:
        note(visible(f"{problem.path}: {problem.reason}"))
    if problems or problems_of_user:
        raise typer.Exit(1)
    if not workspace_skills and not of_user:
        note("There are no skills in this workspace, nor in your settings.")
