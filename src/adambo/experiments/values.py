"""Values that come as text or from a file: made to fit a type, or refused with a sentence; and names."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from adambo.errors import ConfigError


def fitted(value: Any, form: Any, name: str) -> Any:
    """`value` as the annotation `form` has it: numbers may be written as text (YAML reads 1e-4 as one).

    Raises:
        ConfigError: If it does not fit; `name` says what it was meant for.
    """
    try:
        return _fit(value, form)
    except ValueError:
        raise misfit(value, form, name) from None


def misfit(value: Any, form: Any, name: str) -> ConfigError:
    """The error that a value is not what the annotation `form` has."""
    shown = str(value).lower() if isinstance(value, bool) or value is None else repr(value)
    return ConfigError(f"{name}={shown} does not fit: give {_described(form)}.")


def _fit(value: Any, form: Any) -> Any:
    origin, members = get_origin(form), get_args(form)
    if form is Any:
        return value
    if origin in (Union, UnionType):
        return _fit_first(value, members)
    if origin is Literal:
        return _fit_choice(value, members)
    if form in (None, NoneType) and value is None:
        return None
    if form is bool and isinstance(value, bool):
        return value
    if form in (int, float):
        return _number(value, form)
    if form is str and isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if origin is not None and issubclass(origin, Sequence) and isinstance(value, list | tuple):
        return [_fit(item, members[0]) for item in value]
    raise ValueError


def _fit_first(value: Any, members: Iterable[Any]) -> Any:
    for member in members:
        try:
            return _fit(value, member)
        except ValueError:
            continue
    raise ValueError


def _fit_choice(value: Any, choices: Iterable[Any]) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:  # True is no 1
            return value
    raise ValueError


def _number(value: Any, form: type[int] | type[float]) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    try:
        number = value if isinstance(value, int) else float(value)
        float(number)
    except OverflowError as error:  # hundreds of digits
        raise ValueError from error
    if math.isnan(number) or (form is int and not float(number).is_integer()):
        raise ValueError
    return form(number)


def _described(form: Any) -> str:
    plain = {float: "a number", int: "a whole number", bool: "true or false", str: "text", NoneType: "null"}
    if form in plain:
        return plain[form]
    origin, members = get_origin(form), get_args(form)
    if origin is Literal:
        return " or ".join(str(choice) for choice in members)
    if origin in (Union, UnionType):
        return ", or ".join(_described(member) for member in members if get_origin(member) is not os.PathLike)
    return f"a list, each item {_described(members[0])}" if members else str(form)


def known(name: str, names: Iterable[str], kind: str) -> str:
    """`name`, if it is one of `names`.

    Raises:
        ConfigError: With the nearest of them.
    """
    names = list(names)
    if name in names:
        return name
    raise ConfigError(f"There is no {kind} {name!r}. {nearest(name, names)}")


def nearest(name: str, names: Sequence[str]) -> str:
    """A sentence that leads from a wrong name to a right one, or to all that begin with its words.

    Example:
        >>> nearest("auc_rnn", ["auc-rnn", "digits"]), nearest("auc", ["auc-rnn", "digits", "auc-transformer"])
        ("Did you mean 'auc-rnn'?", 'Choose one of auc-rnn, auc-transformer.')
    """
    longer = [each for each in names if each.startswith(f"{name}-")]
    if len(longer) > 1:
        return f"Choose one of {', '.join(longer)}."
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Choose one of {', '.join(names)}." if names else "There are none to choose from."


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}.

    Example:
        >>> nested({"epochs": 2, "settings.lr": 1, "settings.inverse.terms": 3})
        {'epochs': 2, 'settings': {'lr': 1, 'inverse': {'terms': 3}}}
    """
    result: dict[str, Any] = {}
    for key, value in flat.items():
        *folders, last = key.split(".")
        place = result
        for folder in folders:
            place = place.setdefault(folder, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{key} does not fit: {folder} is one value, it has no parts.")
        place[last] = value
    return result
