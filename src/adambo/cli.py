"""The command line: `adambo COMMAND ...`. Whatever a user can cause ends with one sentence and exit code 2."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

from adambo.errors import AdamboError, ConfigError
from adambo.version import __version__

_NO_MEMORY = "There is not enough memory for this: take smaller batches or a smaller model."
COMMANDS = {  # name: (module, function, arguments, what it does)
    "list": ("listing", "list_all", "", "experiments and algorithms, and whether their data is there"),
    "run": ("run", "run", "EXPERIMENT", "one run, or a study"),
    "compare": ("compare", "compare", "EXPERIMENT", "many algorithms and seeds, and a table"),
    "resume": ("run", "resume", "RUN", "go on with a run that was stopped"),
    "report": ("report", "report", "RUNS...", "a page about runs, with figures and a table"),
    "reproduce": ("reproduce", "reproduce", "PART", "figures and tables of the page on the paper, from records"),
    "make": ("make", "make", "PLAN", "the runs and searches that a folder of records lacks of its plan"),
    "repeat": ("repeat", "repeat", "RUN", "make a recorded run again, and compare"),
    "sweep": ("sweep", "sweep", "EXPERIMENT", "search for good settings of an algorithm"),
    "suggest": ("suggest", "suggest", "EXPERIMENT", "starting values for AdamBO's settings, measured, with reasons"),
    "data": ("data", "data", "check|fetch", "the files of data sets"),
    "theory": ("theory", "theory", "--constants FILE", "the parameters that AdamBO's theorem asks for"),
    "study": ("study", "study", "NAME", "a simulation of what the theory speaks about, with figure and tables"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        words: After the name of the program; those of the process if there are none.

    Returns:
        The exit code: 0; 1 if a run has diverged or failed; 2 with one sentence if what was asked for cannot be done;
        128 and the number of a signal that has stopped it.
    """
    words = list(sys.argv[1:] if words is None else words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no λ gets an escape, not an error
            stream.reconfigure(errors="backslashreplace")
    try:
        return _command(words)
    except AdamboError as error:
        return _refused(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "adambo":
            raise
        return _refused(f"The package {error.name} is not installed: pip install 'adambo[experiments]'.")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # what we print is read by nobody any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as end:  # --help
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _refused(f"{where}{error.strerror or error}.")
    except MemoryError:
        return _refused(_NO_MEMORY)
    except RuntimeError as error:  # torch's own, for the GPU and for the CPU
        if type(error).__name__ != "OutOfMemoryError" and "can't allocate memory" not in str(error):
            raise
        return _refused(_NO_MEMORY)


def _command(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        from adambo.experiments.values import nearest

        raise ConfigError(f"There is no command {words[0]!r}. {nearest(words[0], list(COMMANDS))}")
    from rich.console import Console

    from adambo.experiments.lines import show_warnings_on

    out, err = Console(), Console(stderr=True)
    module, function, *_ = COMMANDS[words[0]]
    command: Callable[..., int] = getattr(import_module(f"adambo.commands.{module}"), function)
    with warnings.catch_warnings():
        show_warnings_on(err)
        return command(words[1:], out, err)


def usage() -> str:
    lines = [f"  adambo {f'{name} {arguments}':<24}{does}" for name, (_, _, arguments, does) in COMMANDS.items()]
    return "\n".join(
        [
            "Bilevel optimisation: experiments that can be run, stopped, resumed, compared and looked at.",
            "",
            *lines,
            "",
            "`adambo COMMAND --help` explains a command, `adambo run EXPERIMENT --help` every setting of it.",
        ]
    )


def _refused(sentence: str) -> int:
    print(f"adambo: {' '.join(sentence.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
