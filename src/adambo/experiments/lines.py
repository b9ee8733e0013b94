"""Text for people, on a console: as it is, however wide."""

from rich.console import Console


def line(console: Console, text: str) -> None:
    """Print `text` without wrapping, colours or markup: it may hold brackets and paths."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
