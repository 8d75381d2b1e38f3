import typer

app = typer.Typer()


@app.command()
def doctor() -> None:
    """x"""
