"""Shows the progress of long commands on standard error, if that is a terminal (C10)."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cfs.cli.base.output import has_colours, is_terminal


@contextmanager
def progress(title: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Callable[[int], object]]:
    """Show a bar during a block; the function that it yields adds to what is done. It shows nothing without a terminal.

    Without a `total` the bar only moves. It disappears at the end.
    """
    if not is_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    console = Console(stderr=True, no_color=not has_colours(sys.stderr))
    columns = TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount: bar.update(task, advance=amount)
