"""Text for people, on a console: as it is, however wide."""

import logging
import warnings
from typing import Any

from rich.console import Console


def line(console: Console, text: str) -> None:
    """Print `text` without wrapping, colours or markup: it may hold brackets and paths."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def show_warnings_on(console: Console, prefix: str = "") -> None:
    """Let warnings and what is logged appear as plain lines, without the place in the code."""

    def show(message: Warning | str, *args: Any, **more: Any) -> None:
        line(console, f"{prefix}{message}")

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line(console, f"{prefix}{record.getMessage()}")

    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if type(handler).__name__ == Lines.__name__]:
        root.removeHandler(handler)
    root.addHandler(Lines())
    warnings.showwarning = show
