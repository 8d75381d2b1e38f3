import typer

app = typer.Typer()


@app.command()
def up() -> None:
    """x"""
