"""The settings of an algorithm, as configurations have them: the arguments of its class, by name and type."""

from __future__ import annotations

import inspect
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch

from adambo.algorithms import ALL, Algorithm
from adambo.errors import ConfigError
from adambo.experiments.plain_adam import PlainAdam
from adambo.experiments.released_code import ReleasedNeumann
from adambo.experiments.values import fitted, known, nearest
from adambo.inverse import ConjugateGradient, Exact, Inverse, LinearSystem, Neumann
from adambo.problem import Problem

ALGORITHMS: dict[str, type[Algorithm]] = {**{name.lower(): cls for name, cls in ALL.items()}, "adam": PlainAdam}
INVERSES: dict[str, type[Inverse]] = {
    "neumann": Neumann,
    "conjugate_gradient": ConjugateGradient,
    "linear_system": LinearSystem,
    "exact": Exact,
    "released_neumann": ReleasedNeumann,
}
_OBJECTS = ("self", "problem", "upper_optimizer", "lower_optimizer")  # what no file can hold
_EXPERIMENTS_OWN = (
    "lower_slots",
    "upper_slots",
    "at_once",
)  # the experiment knows them, unless somebody says otherwise
REQUIRED = inspect.Parameter.empty


class Setting(NamedTuple):
    """One argument of an algorithm or of an inverse.

    Attributes:
        name: As the class has it.
        type: Its annotation.
        default: `REQUIRED` where there is none.
        doc: What the class says about it.
    """

    name: str
    type: Any
    default: Any
    doc: str


def canonical(algorithm: str) -> str:
    """The name of an algorithm as configurations have it; case, - and _ do not matter.

    Example:
        >>> canonical("MA-SOBA")
        'masoba'
    """
    name = re.sub("[-_ ]", "", str(algorithm)).lower()
    if name in ALGORITHMS:
        return name
    variant_of = str(algorithm).lower().partition("-")[0]
    if variant_of in ALGORITHMS:  # the label of a plan
        raise ConfigError(
            f"There is no algorithm {algorithm!r}. For a variant give --algorithm {variant_of} and the settings in "
            "which it differs."
        )
    return known(str(algorithm), ALGORITHMS, "algorithm")


def fields(algorithm: str) -> dict[str, Setting]:
    """What can be set in an algorithm, by name."""
    return _arguments(ALGORITHMS[canonical(algorithm)])


def inverse_fields(method: str) -> dict[str, Setting]:
    """What can be set in an inverse, by name, its method apart."""
    return _arguments(INVERSES[known(method, INVERSES, "inverse")])


def explained(algorithm: str) -> str:
    """What an algorithm does, with its formulas."""
    cls = ALGORITHMS[canonical(algorithm)]
    return f"{cls.__name__}: {(inspect.getdoc(cls) or '').partition('Args:')[0].strip()}"


def defaults(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What an algorithm takes where `settings` say nothing, dotted, such as "inverse.samples"."""
    result = {
        name: setting.default
        for name, setting in fields(algorithm).items()
        if name not in settings and name not in _EXPERIMENTS_OWN and not _endless(setting.default)
    }
    inverse = settings.get("inverse")
    if inverse is not None:
        given = {"terms", "products"} & set(inverse)  # two names for one thing
        for name, setting in inverse_fields(inverse.get("method", "neumann")).items():
            if name not in inverse and setting.default not in (None, REQUIRED):
                result[f"inverse.{name}"] = setting.default
        if inverse.get("method", "neumann") == "neumann" and not given:
            result["inverse.terms"] = Neumann().terms
    return result


def in_types(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` in the types of the algorithm.

    Raises:
        ConfigError: For a name that the algorithm does not have, or a value of a wrong type.
    """
    known_fields = fields(algorithm)
    result = {}
    for name, value in settings.items():
        if name not in known_fields:
            raise ConfigError(f"{canonical(algorithm)} has no setting {name!r}. {nearest(name, list(known_fields))}")
        if name == "inverse":
            result[name] = None if value is None else _inverse_in_types(value)
        else:
            result[name] = fitted(value, known_fields[name].type, f"settings.{name}")
            if _endless(result[name]) and result[name] == known_fields[name].default:
                del result[name]  # files of runs are plain: infinity is what leaving it out means
    return result


def try_out(algorithm: str, settings: Mapping[str, Any]) -> None:
    """Build the algorithm once, for a problem of two numbers: it knows best which values it can take.

    Raises:
        SettingError: For a value that it refuses.
    """
    x, y = (torch.nn.ParameterList([torch.zeros(1)]) for _ in range(2))
    problem = Problem(lambda batch: (x[0] + y[0]).square().sum(), lambda batch: (x[0] - y[0]).square().sum(), x, y)
    with _silence():  # what is to be said is said when the solver of the run is built
        _built(algorithm, problem, {name: value for name, value in settings.items() if name != "store"})


def build_solver(algorithm: str, problem: Problem, settings: Mapping[str, Any], **extra: Any) -> Algorithm:
    """The algorithm with these settings, and with what the experiment alone can know.

    Raises:
        ConfigError: For a setting that is the experiment's.
    """
    for name in extra:
        if name in settings:
            raise ConfigError(f"settings.{name} follows from the data and the size of batches here; leave it out.")
    return _built(algorithm, problem, {**extra, **in_types(algorithm, settings)})


@contextmanager
def _silence() -> Iterator[None]:
    logger, nothing = logging.getLogger("adambo"), lambda record: False
    logger.addFilter(nothing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeFilter(nothing)


def _built(algorithm: str, problem: Problem, settings: Mapping[str, Any]) -> Algorithm:
    arguments = dict(settings)
    if arguments.get("inverse") is not None:
        given = dict(arguments["inverse"])
        arguments["inverse"] = INVERSES[given.pop("method")](**given)
    return ALGORITHMS[canonical(algorithm)](problem, **arguments)


def _inverse_in_types(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        given = {"method": given}
    if not isinstance(given, Mapping):
        raise ConfigError(f"settings.inverse={given!r} does not fit: give a method, and what it takes.")
    method = known(given.get("method", "neumann"), INVERSES, "inverse")
    result: dict[str, Any] = {"method": method}
    known_fields = inverse_fields(method)
    for name, value in given.items():
        if name == "method":
            continue
        if name not in known_fields:
            raise ConfigError(f"The inverse {method} has no setting {name!r}. {nearest(name, list(known_fields))}")
        result[name] = fitted(value, known_fields[name].type, f"settings.inverse.{name}")
    for name, setting in known_fields.items():
        if setting.default is REQUIRED and name not in result:
            raise ConfigError(f"The inverse {method} needs settings.inverse.{name}: {setting.doc}")
    return result


def _endless(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


@cache
def _arguments(cls: type) -> dict[str, Setting]:
    docs = _documented(inspect.getdoc(cls) or "")
    return {
        name: Setting(name, parameter.annotation, parameter.default, docs.get(name, ""))
        for name, parameter in inspect.signature(cls.__init__, eval_str=True).parameters.items()  # type: ignore[misc]
        if name not in _OBJECTS
    }


def _documented(doc: str) -> dict[str, str]:
    """The sentences of the section "Args", by argument; one that is about several says which."""
    section = re.search(r"^Args:\n((?:[ ]+.*\n|\n)*)", doc + "\n", re.MULTILINE)
    entries = re.findall(r"^ {4}(\w[\w, ]*): (.*(?:\n {5,}.*)*)", section.group(1) if section else "", re.MULTILINE)
    result = {}
    for names, text in entries:
        sentence = " ".join(text.split())
        for name in names.split(", "):
            result[name] = sentence if name == names else f"{names}: {sentence}"
    return result
