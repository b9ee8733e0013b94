"""What the workloads of all experiments have in common: a solver, its draws, its schedule and its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from adambo.algorithms import SABA, Algorithm
from adambo.algorithms.meta_learning import MetaLearning
from adambo.diagnostics import LowerErrorMonitor
from adambo.draw import Draw
from adambo.errors import ConfigError
from adambo.experiments.config import RunConfig
from adambo.experiments.plain_adam import PlainAdam
from adambo.kernels import twice_differentiable
from adambo.sources import key_of
from adambo.stream import DrawStream, has_slots
from adambo.training.workload import Scores

T = TypeVar("T")
LARGER = 4  # times a step's batches: those that the monitor measures on


class SolverWorkload(ABC):
    """A `Workload` that makes one solver step per step.

    Args:
        config: Of the run.
        solver: What moves the parameters.
        steps_per_epoch: See `Workload`.
        metric: See `Workload`.
    """

    def __init__(self, config: RunConfig, solver: Algorithm, steps_per_epoch: int, metric: str) -> None:
        self.config, self.solver, self.steps_per_epoch, self.metric = config, solver, steps_per_epoch, metric
        for group in solver.upper_optimizer.param_groups if config.upper_weight_decay else ():
            group["weight_decay"] = config.upper_weight_decay  # read by Adam in every step
        self._decays: list[LambdaLR] = []
        if config.decay == "cube_root":
            for optimizer in (solver.upper_optimizer, solver.lower_optimizer):
                self._decays.append(LambdaLR(optimizer, lambda epoch: (epoch + 2) ** (-1 / 3)))
        self.monitor: LowerErrorMonitor | None = None
        if config.monitor_every is not None and not isinstance(solver, PlainAdam | MetaLearning):
            self.monitor = LowerErrorMonitor(solver, self.reference(), every=config.monitor_every, warn=False)

    @abstractmethod
    def draw(self, number: int) -> Any:
        """What step `number` takes; it depends on the seed and the number alone."""

    @abstractmethod
    def reference(self) -> Draw:
        """What the monitor measures on: larger than a step's draw, always the same, and of no effect on those."""

    @abstractmethod
    def begin(self) -> None:
        """See `Workload`."""

    @abstractmethod
    def evaluate(self) -> Scores:
        """See `Workload`; of the splits that are `scored`."""

    def scored(self, splits: Mapping[str, T]) -> dict[str, T]:
        """Those of the splits that the configuration asks for."""
        return {name: split for name, split in splits.items() if self.config.evaluate_on in ("all", name)}

    def step(self, number: int) -> Tensor:
        return self.solver.step(self.draw(number)).upper_loss

    def observe(self) -> Mapping[str, Any] | None:
        if self.monitor is None:
            return None
        known = len(self.monitor.warnings)
        record = self.monitor.observe()
        return None if record is None else asdict(record) | {"warnings": self.monitor.warnings[known:]}

    def end_epoch(self, epoch: int) -> None:
        for decay in self._decays:
            decay.step()

    def check(self) -> None:
        self.solver.check()

    def oracles(self) -> Mapping[str, int]:
        return self.solver.ledger.as_dict()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "solver": self.solver.state_dict(),
            "decays": [{"epoch": decay.last_epoch, "lr": decay.get_last_lr()} for decay in self._decays],
        }
        return state if self.monitor is None else state | {"monitor": self.monitor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.solver.load_state_dict(state["solver"])
        for decay, saved in zip(self._decays, state["decays"], strict=True):
            decay.last_epoch, decay._last_lr = saved["epoch"], saved["lr"]
        if self.monitor is not None:
            self.monitor.load_state_dict(state["monitor"])


class StreamWorkload(SolverWorkload):
    """One whose draws come from a stream of batches."""

    _stream: DrawStream

    def begin(self) -> None:
        self.solver.warm_start(self._stream.warm_start_batches(self.config.warm_start))
        if isinstance(self.solver, SABA) and has_slots(self.solver.needs):
            self.solver.fill_memory(*self._stream.slot_batches())

    def draw(self, number: int) -> Draw:
        if self._stream.step != number:
            self._stream.seek(number)
        return next(self._stream)


def reference_draw(seed: int, upper: Callable[[torch.Generator], Any], lower: Callable[[torch.Generator], Any]) -> Draw:
    """One batch of each source, by random numbers of their own."""
    above, below = (torch.Generator().manual_seed(key_of(seed, "reference", level)) for level in ("upper", "lower"))
    return Draw(upper=(upper(above),), cross=(lower(below),), seed=key_of(seed, "reference"))


class Encoder:
    """A network as an experiment calls it: in its precision, compiled or not, in chunks when it is judged.

    Args:
        config: Says precision and whether to compile.
        network: The modules.
        call: (network, inputs) -> output, one row per example.
    """

    def __init__(self, config: RunConfig, network: nn.Module, call: Callable[[Any, Any], Tensor]) -> None:
        # Only MAML differentiates a whole network twice; for that, fused kernels have to stay off.
        twice = config.algorithm == "maml" and not config.settings.get("first_order")
        if config.compile and twice:
            raise ConfigError(
                f"compile=true cannot serve {config.algorithm}, which differentiates the network twice: compiled code "
                "has no second derivative. Leave compile off, or set settings.first_order=true."
            )
        self.network, self._call, self._twice = network, call, twice
        self._called: Any = network
        if config.compile:
            # Several algorithms walk the graph of one forward pass twice; donated buffers last for one walk only.
            torch._functorch.config.donated_buffer = False
            self._called = torch.compile(network, dynamic=False)
        self._bf16 = config.precision == "bf16"

    def __call__(self, inputs: Any) -> Tensor:
        with twice_differentiable() if self._twice else nullcontext():
            return self._forward(self._called, inputs)

    def judged(self, chunks: Iterable[Any]) -> list[Tensor]:
        """The output for each of the inputs, without dropout and without a graph; not compiled, for shapes vary."""
        with judged(self.network):
            return [self._forward(self.network, inputs) for inputs in chunks]

    def _forward(self, network: Any, inputs: Any) -> Tensor:
        device = next(self.network.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._bf16):
            output = self._call(network, inputs)
        return output.float() if self._bf16 else output


@contextmanager
def judged(network: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module is in the mode in which it was."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def padded_to(device: torch.device) -> int:
    """Batches are padded to a multiple of this: on CUDA few shapes mean memory that is used again, and fast kernels."""
    return 8 if device.type == "cuda" else 1


def padding_is_left_out(config: RunConfig) -> bool:
    """Whether batches hold no padding; compiled code needs the same shapes again and again."""
    return not config.compile


def prepare_device(config: RunConfig) -> torch.device:
    """Where the run computes; sets, for the whole process, its threads, and whether products may use TensorFloat-32."""
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={config.device!r} is not a device: give auto, cpu, cuda or cuda:1.") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={config.device!r}: experiments run on cpu or cuda.")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ConfigError(
                f"device={config.device!r}: {count or 'no'} CUDA device{'s' * (count != 1)} here. Give cpu."
            )
        torch.cuda.set_device(device.index or 0)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    tf32 = config.precision != "fp32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    return device
