"""What is known of the lower loss in the space of `y`, at one point (x, y), for one draw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from adambo.captured_losses import Found
from adambo.draw import Batch, Draw, is_empty
from adambo.encodings import Encodings, Ending
from adambo.errors import SampleError
from adambo.kernels import explained
from adambo.ledger import Ledger
from adambo.lower_graph import LowerGraph
from adambo.lower_variable import LowerVariable
from adambo.masks import Repeatable, SameMasks
from adambo.vectors import Vector, added, zero_filled

if TYPE_CHECKING:
    from adambo.problem import Problem


class LowerPoint:
    """Gradients and Hessian products of g in y, computed when they are first asked for, once per batch object.

    Args:
        problem: Whose losses are evaluated.
        draw: The batches, by role.
        y: The part of the lower variable that the draw is about.
        encodings: The features of the batches, where there is an encoder.
        ledger: Where oracle calls are counted.
        masks: Where dropout must be the same at every point of the draw.
        closed: Lower losses at the same x whose derivatives in y are in closed form, by batch.
    """

    def __init__(
        self,
        problem: Problem,
        draw: Draw,
        y: LowerVariable,
        encodings: Encodings | None,
        ledger: Ledger,
        masks: SameMasks | None = None,
        closed: dict[int, LowerGraph] | None = None,
    ) -> None:
        self.problem, self.draw, self.y, self.ledger = problem, draw, y, ledger
        self.encodings, self.masks = encodings, masks
        self._graphs: dict[int, LowerGraph] = {}
        self._losses: dict[int, Tensor] = {}
        self._closed = {} if closed is None else closed
        self._replayed: Found | None = None

    @property
    def g(self) -> Tensor:
        """The lower loss on the cross batch."""
        batch = self._first("cross")
        self._graph(batch)
        return self._lower_loss(batch)

    @property
    def recognised(self) -> Literal["all", "part", "nothing"]:
        """How much of the lower loss on the cross batch has derivatives in closed form; autograd does the rest."""
        graph = self._graph(self._first("cross"))
        return "all" if graph.is_closed else "part" if graph.has_closed_forms else "nothing"

    def lower_gradient(self, index: int = 0) -> Vector:
        """∇y g on lower batch `index`, ready for a lower step."""
        batch = self.draw.lower[index]
        self.ledger.read("lower", batch)
        self.ledger.grad_y_g += 1
        if self._replayed is not None and batch is self.draw.cross[0]:
            return zero_filled(self._replayed.vectors[1], self.y.leaves)
        graph = self._known_graph(batch) or self._new_graph(batch)
        gradient = graph.gradient()
        if graph.is_closed:
            self._graphs[id(batch)] = graph
        elif not graph.is_prepared:
            self._graphs.pop(id(batch), None)  # used up by one gradient: no graph was made for products
        return self.y.average(gradient)

    def lower_descent(self, rate: float) -> Vector | None:
        """`y` after plain gradient steps of size `rate` on the lower batches; None where they have to be made singly.

        It is to be had where one batch serves them all, and the lower loss is that of a linear head.
        """
        batches = self.draw.lower
        if self.y.processes.active or any(b is not batches[0] for b in batches):
            return None
        graph = self._known_graph(batches[0])
        if graph is None:
            graph = self._graphs[id(batches[0])] = self._new_graph(batches[0])
        kept = id(batches[0]) in self._closed
        found = graph.descended(rate, len(batches), self.problem.programmes) if kept else None
        if found is None:
            return None
        self.ledger.read("lower", batches[0])
        self.ledger.grad_y_g += len(batches)
        return found

    def lower_loss(self, index: int = 0) -> Tensor:
        """g on lower batch `index`."""
        return self._lower_loss(self.draw.lower[index])

    def lower_values(self, index: int = 0) -> Vector:
        """g on lower batch `index` if it is known: a closed form finds the gradient without it."""
        batch = self.draw.lower[index]
        return [self._losses[id(batch)]] if id(batch) in self._losses else []

    def _lower_loss(self, batch: Batch) -> Tensor:
        if id(batch) not in self._losses:
            self._losses[id(batch)] = self._evaluate("lower", batch, "y").detach()
        return self._losses[id(batch)]

    def hessian(self, vector: Vector, index: int = 0) -> Vector:
        """∇²yy g · vector on Hessian batch `index`."""
        batch = self.draw.hessian[index]
        self.ledger.read("hessian", batch)
        self.ledger.hessian_vector += 1
        return self._hessian(vector, batch)

    def contracted(self, w: Vector, step: float, v: Vector, index: int = 0) -> Vector:
        """v + (I − s ∇²yy g) w on Hessian batch `index`."""
        if self.y.processes.active:
            return added(added(w, self.hessian(w, index), -step), v)
        batch = self.draw.hessian[index]
        self.ledger.read("hessian", batch)
        self.ledger.hessian_vector += 1
        with self._explained():
            return self._graph(batch).contracted(w, step, v)

    def neumann(self, v: Vector, step: float | Tensor, terms: int) -> Vector | None:
        """s Σ_{q<Q} (I − s ∇²yy g)^q v; None where its products have to be made singly.

        It is to be had where one batch serves them all, and the lower loss is in closed form.
        """
        batches = self.draw.hessian
        if not batches or self.y.processes.active or any(b is not batches[0] for b in batches):
            return None
        found = self._graph(batches[0]).solved(v, step, terms, self.problem.programmes)
        if found is not None:
            self.ledger.read("hessian", batches[0])
            self.ledger.hessian_vector += terms - 1
        return found

    def curvature(self, vector: Vector) -> Vector:
        """∇²yy g · vector on the first Hessian batch (or the cross batch), for learning about the Hessian itself."""
        self.ledger.curvature_vector += 1
        return self._hessian(vector, (*self.draw.hessian[:1], *self.draw.cross)[0])

    def _hessian(self, vector: Vector, batch: Batch) -> Vector:
        with self._explained():
            found = self._graph(batch).hessian(vector)
        return self.y.average(found)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise explained(error, self.problem.modules) from error

    def _graph(self, batch: Batch) -> LowerGraph:
        graph = self._known_graph(batch)
        if graph is None:
            graph = self._graphs[id(batch)] = self._new_graph(batch)
        return graph

    def _known_graph(self, batch: Batch) -> LowerGraph | None:
        """What was found on `batch` here, or at the same x, from where a closed form is moved."""
        key = id(batch)
        if key not in self._graphs and key in self._closed:
            self._graphs[key] = self._closed[key].moved()
        return self._graphs.get(key)

    def _new_graph(self, batch: Batch) -> LowerGraph:
        ending: Ending = "features" if any(batch is b for b in self.draw.cross) else "y"
        if self.encodings is not None and not is_empty(batch):
            self.encodings.features(batch, ending)  # before anything is noticed
        repeatable = Repeatable(self.problem.device, self.problem.buffers) if len(self.draw.lower) > 1 else None
        with nullcontext() if repeatable is None else repeatable:
            g = self._evaluate("lower", batch, ending)
        self._losses[id(batch)] = g.detach()
        graph = LowerGraph.of(g, self.y)
        if graph.is_closed and repeatable is not None and repeatable.still():
            graph = self._closed[id(batch)] = graph.keeping_y()  # for the lower steps that follow
        return graph

    def _evaluate(self, name: str, batch: Batch, ending: Ending) -> Tensor:
        return self.problem.evaluate(name, batch, self.y, self.encodings, ending, self.masks)

    def _first(self, role: str) -> Batch:
        batches = getattr(self.draw, role)
        if not len(batches):
            raise SampleError(
                f"The draw holds no {role} batch, which is needed here. Build it with needs=solver.needs."
            )
        return batches[0]
