"""Options from typed fields: jsonargparse reads them, and what it refuses becomes one sentence."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, set_parsing_settings

from adambo.errors import ConfigError
from adambo.experiments import presets, settings
from adambo.experiments.catalogue import EXPERIMENTS
from adambo.experiments.config import RunConfig
from adambo.experiments.values import misfit, nearest

set_parsing_settings(docstring_parse_attribute_docstrings=True)


class Parser:
    """The options of one command.

    Args:
        usage: How the command is called.
        description: What it does.
    """

    def __init__(self, usage: str, description: str) -> None:
        self._parser = ArgumentParser(
            prog="adambo", usage=_escaped(usage), description=description, exit_on_error=False, allow_abbrev=False
        )  # fmt: skip
        self._forms: dict[str, Any] = {}
        self._own: dict[str, Any] = {}
        self._epilogue = ""

    def option(self, name: str, form: Any, default: Any, doc: str, several: bool = False) -> None:
        """An option of the command itself; with `several` it takes a list, and if it is given twice, both."""
        many: dict[str, Any] = {"nargs": "+", "action": "extend"} if several else {}
        self._parser.add_argument(f"--{name}", type=form, default=default, help=_escaped(doc), **many)
        self._forms[name], self._own[name] = form, default

    def config(self, config: type[RunConfig], defaults: Mapping[str, Any], without: Sequence[str] = ()) -> None:
        """All fields of a config but `without`; `defaults` by dotted name are shown."""
        self._parser.add_class_arguments(config, None, skip={"settings", *without})
        forms = {name: form for name, form in get_type_hints(config).items() if name not in ("settings", *without)}
        self._forms |= forms
        self._parser.set_defaults({name: defaults[name] for name in forms if name in defaults})

    def settings(self, algorithms: Sequence[str], defaults: Mapping[str, Any]) -> None:
        """All settings of these algorithms."""
        group = self._parser.add_argument_group(f"Settings of {', '.join(algorithms)}")
        found = {f"settings.{name}": field for each in algorithms for name, field in settings.fields(each).items()}
        if found.pop("settings.inverse", None):
            methods = Literal[tuple(settings.INVERSES)]  # type: ignore[valid-type]
            found["settings.inverse.method"] = settings.Setting("method", methods, None, "How z is estimated.")
            for each in settings.INVERSES:
                for name, field in settings.inverse_fields(each).items():
                    key, doc = f"settings.inverse.{name}", f"Of {each}: {field.doc}"
                    before = found.get(key)  # of the inverse that was named first; others may have it too
                    found[key] = (before or field)._replace(doc=f"{before.doc} {doc}" if before else doc)
        for name, field in found.items():
            self._forms[name] = _plain(field.type)
            default = defaults.get(name, None if field.default is settings.REQUIRED else field.default)
            group.add_argument(f"--{name}", type=_plain(field.type), default=default, help=_escaped(field.doc))
        if len(algorithms) == 1:  # its symbols are explained by its formulas
            self._epilogue = "\n" + settings.explained(algorithms[0])

    def mark(self, sources: Mapping[str, str]) -> None:
        """Show where defaults come from, except those of the library."""
        for action in self._parser._actions:
            source = sources.get(action.dest, "library default")
            if source != "library default":
                action.help = f"{action.help} [{_escaped(source)}]"

    def read(self, words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The command's own options, with their defaults; and what was given of the config, by dotted name.

        Raises:
            ConfigError: For an option that does not exist or a value that does not fit.
        """
        words = self._with_values(underscored(words))
        if {"-h", "--help"} & set(words):
            print(dashed(self._parser.format_help()) + self._epilogue)
            raise SystemExit(0)
        try:
            given = self._parser.parse_args(words, defaults=False).as_flat()
        except argparse.ArgumentError as error:
            raise ConfigError(dashed(str(self._refusal(error.message, words)))) from None
        values = vars(given)
        own = {name: values.pop(name, default) for name, default in self._own.items()}
        return own, values

    def _with_values(self, words: Sequence[str]) -> list[str]:
        """`--compile` alone is `--compile true`."""
        result = []
        for word, after in zip(words, [*words, "--"][1:], strict=True):
            result.append(word)
            if word.startswith("--") and self._forms.get(word[2:]) is bool and after.startswith("--"):
                result.append("true")
        return result

    def _refusal(self, message: str, words: Sequence[str]) -> ConfigError:
        if message.startswith("unrecognized arguments: "):
            unknown = message.partition(": ")[2].split()
            option = next((word[2:].partition("=")[0] for word in unknown if word.startswith("--")), None)
            if option is None:
                return ConfigError(f"{unknown[0]!r} is not expected here; options begin with --.")
            if f"settings.{option}" in self._forms:
                return ConfigError(f"There is no option --{option}. It is one of the algorithm's: --settings.{option}.")
            near = nearest(option, list(self._forms)).replace("mean '", "mean '--")
            return ConfigError(f"There is no option --{option}. {near if 'mean' in near else 'See --help.'}")
        key = re.match(r'Parser key "([^"]+)"', message)
        if key and key[1] in self._forms:
            return misfit(_given(key[1], words), self._forms[key[1]], key[1])
        option_of = re.match(r"argument (--[\w.]+): (.*)", message)
        if option_of:
            return ConfigError(f"{option_of[1]}: {option_of[2]}.")
        return ConfigError(" ".join(message.split()))


class Peeked(NamedTuple):
    """What decides which options there are; found before they are read."""

    algorithms: list[str]
    preset: str | None
    config: str | None


def peek(words: Sequence[str]) -> Peeked:
    """Find algorithms, preset and config file among words that cannot be read as a whole yet."""
    found: dict[str, list[str]] = {"algorithm": [], "algorithms": [], "preset": [], "config": []}
    option = ""
    for word in underscored(words):
        if word.startswith("--"):
            option, _, value = word[2:].partition("=")
            if option in found:
                before = found[option] if option == "algorithms" else []  # which add up, if they are given twice
                found[option] = [*before, *([value] if value else [])]
        elif option in found:
            found[option].append(word)
    several = [name for word in found["algorithms"] for name in word.split(",") if name]
    preset, config = (found[key][0] if found[key] else None for key in ("preset", "config"))
    return Peeked(several or found["algorithm"][:1], preset, config)


def dashed(text: str) -> str:
    """Options as they are typed, --data-dir; in code and files the same names have an underscore."""
    return re.sub(r"--[\w.]+", lambda option: option[0].replace("_", "-"), text)


def underscored(words: Sequence[str]) -> list[str]:
    """--data-dir as --data_dir; values stay as they are."""
    result = []
    for word in words:
        name, equals, value = word.partition("=")
        result.append(name[:2] + name[2:].replace("-", "_") + equals + value if word.startswith("--") else word)
    return result


def experiment_first(words: Sequence[str], command: str) -> tuple[str, list[str]]:
    """The experiment, which comes first, and the rest."""
    if words[:1] in (["-h"], ["--help"]):
        print(
            f"usage: adambo {command} EXPERIMENT [options]\n\n"
            f"`adambo {command} EXPERIMENT --help` explains all options. Experiments: {', '.join(EXPERIMENTS)}."
        )
        raise SystemExit(0)
    if not words or words[0].startswith("-"):
        raise ConfigError(f"Name an experiment first, as in `adambo {command} digits`; `adambo list` shows all.")
    return words[0], list(words[1:])


def dotted(values: Mapping[str, Any]) -> dict[str, Any]:
    return presets.laid_over({}, values)


def _given(name: str, words: Sequence[str]) -> str:
    """What was typed for an option."""
    place = max(k for k, word in enumerate(words) if word.partition("=")[0] == f"--{name}")
    word = words[place]
    return word.partition("=")[2] if "=" in word else words[place + 1]


def _plain(form: Any) -> Any:
    """Without paths, which are typed as text."""
    members = [member for member in get_args(form) if get_origin(member) is not os.PathLike]
    return form if len(members) == len(get_args(form)) else reduce(or_, members)


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
