"""A run that is saved, ended and continued in a new process is, bit for bit, the run that was never interrupted."""

import copy
import subprocess
import sys

import pytest
import torch
from states import assert_same
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import adambo

STEPS, SAVED_AT = 10, 4


def examples():
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(24, 3, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1).sin())


def function_source(generator):
    inputs = torch.randn(5, 3, generator=generator)
    return inputs, inputs.sum(dim=1).cos()


SOURCES = {
    "dataset": lambda needs: adambo.draws(examples(), examples(), needs, seed=3, batch_size=(6, 4)),
    "function": lambda needs: adambo.draws(function_source, function_source, needs, seed=4),
    "function, reused": lambda needs: adambo.draws(function_source, function_source, needs, seed=4, reuse=True),
    "loader": lambda needs: adambo.draws(
        DataLoader(examples(), batch_size=6), DataLoader(examples(), batch_size=5), needs, seed=5
    ),
    "list": lambda needs: adambo.draws(
        [function_source(torch.Generator().manual_seed(k)) for k in range(3)],
        [function_source(torch.Generator().manual_seed(k)) for k in range(7)],
        needs,
    ),
}

ALGORITHMS = {
    "chained": lambda problem: adambo.AdamBO(problem, lr=0.01, lower_lr=0.1, inverse=adambo.Neumann(terms=4)),
    "independent": lambda problem: adambo.AdamBO(
        problem, lr=0.01, lower_lr=0.1, inverse=adambo.Neumann(terms=3, samples="independent")
    ),
    "random": lambda problem: adambo.AdamBO(
        problem, lr=0.01, lower_lr=0.1, inverse=adambo.Neumann(terms=4, samples="random")
    ),
    "linear system, updated": lambda problem: adambo.AdamBO(
        problem,
        lr=0.01,
        lower_lr=0.1,
        inverse=adambo.LinearSystem(lr=0.2),
        lower_steps=3,
        hypergradient_at="updated",
    ),
    "own optimisers": lambda problem: adambo.AdamBO(
        problem,
        inverse=adambo.ConjugateGradient(3),
        upper_optimizer=torch.optim.AdamW([{"params": problem.x[:2]}, {"params": problem.x[2:], "lr": 0.02}], lr=0.01),
        lower_optimizer=torch.optim.SGD(problem.y, lr=0.05, momentum=0.9),
    ),
}

CASES = [(source, "chained") for source in SOURCES] + [("dataset", name) for name in ALGORITHMS if name != "chained"]
CASES += [("function", "random, levels of its own")]


def problem_of(seed):
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.5), nn.LayerNorm(6), nn.Linear(6, 4)).eval()
    head = nn.Linear(4, 1)

    def upper(features, batch):
        return (head(features).squeeze(-1) - batch[1]).square().mean()

    def lower(features, batch):
        return upper(features, batch) + 0.1 * sum(p.square().sum() for p in head.parameters())

    return adambo.EncoderHeadProblem(lambda batch: encoder(batch[0]), upper, lower, x=encoder, y=head)


def begin(source, algorithm, seed=0):
    solver = ALGORITHMS[algorithm.removesuffix(", levels of its own")](problem_of(seed))
    return solver, SOURCES[source](solver.needs)


def go_on(solver, stream, steps, algorithm):
    losses = []
    for _ in range(steps):
        draw = next(stream)
        if algorithm.endswith("levels of its own"):  # those that the solver draws when the draw has none
            draw = adambo.Draw(draw.upper, draw.lower, draw.cross, draw.hessian)
        info = solver.step(draw)
        losses += [info.upper_loss, info.lower_loss]
    return losses


def continue_all(folder):
    """What the new process does: it knows the program and the checkpoints, nothing else."""
    for number, (source, algorithm) in enumerate(CASES):
        solver, stream = begin(source, algorithm, seed=99)
        checkpoint = torch.load(f"{folder}/{number}.pt", weights_only=True)
        solver.load_state_dict(checkpoint["solver"])
        stream.load_state_dict(checkpoint["stream"])
        losses = go_on(solver, stream, STEPS - SAVED_AT, algorithm)
        found = {"losses": losses, "solver": solver.state_dict(), "stream": stream.state_dict()}
        torch.save(found, f"{folder}/{number}.continued.pt")


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """Every case, interrupted after four steps and continued in another process."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for number, (source, algorithm) in enumerate(CASES):
        solver, stream = begin(source, algorithm)
        go_on(solver, stream, SAVED_AT, algorithm)
        torch.save({"solver": solver.state_dict(), "stream": stream.state_dict()}, folder / f"{number}.pt")
    subprocess.run([sys.executable, "-W", "error", __file__, str(folder)], check=True, timeout=60)
    return [torch.load(folder / f"{number}.continued.pt", weights_only=True) for number in range(len(CASES))]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[", ".join(case) for case in CASES])
def test_resume_in_a_new_process_is_bit_exact(continued, number):
    solver, stream = begin(*CASES[number])
    losses = go_on(solver, stream, STEPS, CASES[number][1])
    found = continued[number]
    assert_same(found["losses"], losses[2 * SAVED_AT :])
    assert_same(found["solver"], solver.state_dict())
    assert_same(found["stream"], stream.state_dict())


def test_the_runs_that_are_compared_do_move():
    solver, stream = begin("dataset", "chained")
    before = solver.state_dict()
    go_on(solver, stream, 1, "chained")
    after = solver.state_dict()
    for part in ("x", "y"):
        assert all(not torch.equal(a, b) for a, b in zip(before[part], after[part], strict=True))


def test_a_state_is_a_copy_that_later_steps_do_not_touch():
    solver, stream = begin("dataset", "chained")
    go_on(solver, stream, 2, "chained")
    state = solver.state_dict()
    kept = copy.deepcopy(state)
    go_on(solver, stream, 3, "chained")
    assert_same(state, kept)
    solver.load_state_dict(state)
    go_on(solver, stream, 3, "chained")
    assert_same(state, kept)


def test_going_back_to_a_state_repeats_the_steps():
    solver, stream = begin("dataset", "random")
    go_on(solver, stream, 3, "random")
    here = solver.state_dict(), stream.state_dict()
    first = go_on(solver, stream, 4, "random")
    solver.load_state_dict(here[0])
    stream.load_state_dict(here[1])
    assert_same(go_on(solver, stream, 4, "random"), first)


def test_a_surrogate_that_waited_is_forgotten_when_a_state_is_loaded():
    solver, stream = begin("dataset", "chained")
    state = solver.state_dict()
    solver.surrogate(next(stream))
    solver.load_state_dict(state)
    with pytest.raises(adambo.StateError, match="nothing to write"):
        solver.update()
    assert_same(solver.state_dict(), state)


# States that belong elsewhere.


def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


def with_(name, value):
    return lambda state: state | {name: value}


def deep(*path_and_value):
    *path, last, value = path_and_value

    def changed(state):
        state = copy.deepcopy(state)
        part = state
        for key in path:
            part = part[key]
        part[last] = value
        return state

    return changed


MISMATCHED = {
    "another algorithm": with_("algorithm", "StocBiO"),
    "no step count": without("steps"),
    "no inverse": without("inverse"),
    "inverse is None": with_("inverse", None),
    "something more": with_("momentum", 1),
    "x of another shape": deep("x", 0, torch.zeros(7, 3)),
    "one tensor of x missing": lambda state: state | {"x": state["x"][:-1]},
    "y of another shape": deep("y", 0, torch.zeros(2, 4)),
    "x and y exchanged": lambda state: state | {"x": state["y"], "y": state["x"]},
    "x is None": with_("x", None),
    "y holds numbers": with_("y", [1.0, 2.0]),
    "steps is a word": with_("steps", "four"),
    "state of another inverse": with_("inverse", {"kind": "LinearSystem", "state": {"z": None}}),
    "inverse is a number": with_("inverse", 3),
    "inverse is a word": with_("inverse", "Neumann"),
    "curvature is garbage": deep("inverse", "state", "curvature", {"largest": 1.0}),
    "upper optimiser is empty": with_("upper_optimizer", {}),
    "upper optimiser is None": with_("upper_optimizer", None),
    "upper optimiser has no groups": deep("upper_optimizer", "param_groups", []),
    "moments of another shape": deep("upper_optimizer", "state", 0, "exp_avg", torch.zeros(2)),
    "state of another upper optimiser": lambda state: (
        state | {"upper_optimizer": torch.optim.SGD(problem_of(0).x, lr=0.1, momentum=0.9).state_dict()}
    ),
    "ledger with a count missing": with_("ledger", {"samples": 1}),
    "ledger is None": with_("ledger", None),
    "own state that AdamBO has not": with_("own", {"m": torch.zeros(1)}),
    "an empty dictionary": lambda state: {},
    "None": lambda state: None,
    "a word": lambda state: "garbage",
    "a list": lambda state: [1, 2, 3],
    "a tensor": lambda state: torch.zeros(3),
}


@pytest.mark.parametrize("name", MISMATCHED)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name):
    solver, stream = begin("dataset", "chained")
    go_on(solver, stream, 3, "chained")
    other, its_stream = begin("function", "chained", seed=5)
    go_on(other, its_stream, 5, "chained")
    before = solver.state_dict()
    with pytest.raises(adambo.StateError):
        solver.load_state_dict(MISMATCHED[name](other.state_dict()))
    assert_same(solver.state_dict(), before)


@pytest.mark.parametrize("saved", ["linear system, updated", "own optimisers"])
def test_the_state_of_a_solver_with_other_parts_is_refused_and_changes_nothing(saved):
    solver, stream = begin("dataset", "chained")
    go_on(solver, stream, 3, "chained")
    other, its_stream = begin("dataset", saved, seed=5)
    go_on(other, its_stream, 3, saved)
    before = solver.state_dict()
    with pytest.raises(adambo.StateError):
        solver.load_state_dict(other.state_dict())
    assert_same(solver.state_dict(), before)


def test_the_message_names_both_sides():
    solver, _ = begin("dataset", "chained")
    state = solver.state_dict()
    with pytest.raises(adambo.StateError, match=r"saved by StocBiO.*continue as AdamBO"):
        solver.load_state_dict(state | {"algorithm": "StocBiO"})
    with pytest.raises(adambo.StateError, match=r"x as .*\(1, 4\).*, but the problem has .*same model"):
        solver.load_state_dict(state | {"x": state["y"]})


if __name__ == "__main__":
    continue_all(sys.argv[1])
