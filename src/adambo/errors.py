"""The errors of adambo. Each message says what came, why it cannot work and what to do."""


class AdamboError(Exception):
    """Every error raised on purpose by this library."""


class ProblemError(AdamboError, ValueError):
    """The two losses, `x` and `y` do not make a bilevel problem."""


class SettingError(AdamboError, ValueError):
    """An argument of an algorithm, an inverse or a stream cannot be used."""


class NoMemoryError(SettingError):
    """What was asked for needs more memory than is free at the moment."""


class SampleError(AdamboError, ValueError):
    """A draw or a batch is not what the step needs."""


class NonFiniteError(AdamboError, FloatingPointError):
    """A loss or a gradient is NaN or infinite."""


class CurvatureError(AdamboError, ArithmeticError):
    """The lower Hessian does not allow what was asked of it."""


class SecondDerivativeError(AdamboError, RuntimeError):
    """A kernel between `y` and the lower loss has no second derivative."""


class StateError(AdamboError, RuntimeError):
    """A state dict does not belong here, or calls came in an impossible order."""


class WholeTableUsed(AdamboError):
    """A loss touched a stacked table other than by the rows of its tasks."""

    def __init__(self, use: str) -> None:
        super().__init__(
            f"A loss uses a stacked tensor of y as a whole ({use}), not only by the rows of its tasks, table[ids] with "
            "ids = tasks(batch). Read rows only, or use adambo.Problem, which differentiates whole tables."
        )


class DataError(AdamboError, ValueError):
    """A data file is missing, damaged, or not in the form that its reader expects."""


class ConfigError(AdamboError, ValueError):
    """The configuration of an experiment names something unknown, or asks for what cannot be."""


class RunError(AdamboError, RuntimeError):
    """A run folder cannot be made, read or continued."""
