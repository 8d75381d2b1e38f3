"""`cfs merge`: the files of a copy, merged back into the original."""

import typer

from cfs import api
from cfs.cli.base.output import note, show
from cfs.contract.invisible import shapely
from cfs.transports.http import Client

_CONFLICTS = 1
_SIGNS = {"added": "+", "changed": "*", "merged": "*", "removed": "-"}
_REASONS = {
    "changed": "both have changed it",
    "type": "it has become something else",
    "removed": "{target} has removed it, {source} has changed it",
    "removed_by_source": "{source} has removed it, {target} has changed it",
}


def merge_files(client: Client, source: str, target: str, *, dry_run: bool, as_json: bool) -> None:
    """Merge the files of a session into those of another one, or say what that would do."""
    merged = client.call(api.merge_files(source, target, dry_run=dry_run))
    if as_json:
        show(merged.model_dump_json() + "\n")
    else:
        for file in merged.files:
            show(f"  {_SIGNS[file.change]} {shapely(file.path)}\n")
        for conflict in merged.conflicts:
            reason = _REASONS[conflict.reason].format(target=target, source=source)
            files = ", ".join(map(shapely, conflict.files))
            show(f"  conflict in {shapely(conflict.path)}: {reason}; see {files}\n")
        for path in merged.left:
            show(f"  {shapely(path)} stays: a program has changed it, or has files there\n")
        if not merged.files:
            note(f"{target} has all changes of {source} already.")
        elif dry_run:
            note("Nothing has been changed.")
    if merged.conflicts:
        raise typer.Exit(_CONFLICTS)
