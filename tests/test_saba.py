"""SABA: its contract, the step re-done by hand, where its tables live, and what it refuses."""

from __future__ import annotations

import copy
import gc
import io
import logging
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from states import assert_same

import adambo
from adambo import SABA, SOBA, Draw, NonFiniteError, SampleError, SettingError, StateError, table_store
from adambo.testing import AlgorithmContract, StochasticQuadratic, TaskQuadratics, flat, same

TABLE = {"grad_x_f": 1, "grad_y_f": 1, "grad_y_g": 1, "hessian_vector": 1, "cross_vector": 1, "samples": 4}
RATES = {"lr": 0.05, "lower_lr": 0.1, "z_lr": 0.15}
SINGLES = ([[0], [1], [2], [3]], 4)
UNEVEN = ([[0], [1, 2, 3]], [1, 3])


# The contract ---------------------------------------------------------------------------------------------------------


class Visiting(SABA):
    """The contract names no slots; this one visits them in turn when a draw does not say."""

    def advance(self, draw):
        turn = (self.steps % len(self._lower), self.steps % len(self._upper))
        return super().advance(replace(draw, slot=turn) if draw.slot is None else draw)


class TestOneSlot(AlgorithmContract):
    ledger_per_step: ClassVar = TABLE

    def make(self, problem, **settings):
        return SABA(problem, **settings)


class TestOneSlotPlainX(AlgorithmContract):
    ledger_per_step: ClassVar = TABLE

    def make(self, problem, **settings):
        return SABA(problem, saga_x=False, **settings)


class TestSlots(AlgorithmContract):
    # Rows are some steps old, so x swings away with the contract's lr of 0.5; and SAGA wants at most 1/(3L) below,
    # where the contract has 0.8/L.
    far_lr = 0.1
    slots: ClassVar = {"lower_slots": 3, "upper_slots": 2}
    ledger_per_step: ClassVar = TABLE

    def make(self, problem, lower_lr, **settings):
        return Visiting(problem, lower_lr=0.4 * lower_lr, **self.slots, **settings)


class TestSlotsPlainX(TestSlots):
    slots: ClassVar = {"lower_slots": [1, 2], "upper_slots": [2, 1, 1], "saga_x": False}


class TestSlotsOnDisk(TestSlots):
    slots: ClassVar = {"lower_slots": 2, "upper_slots": 2, "store": "disk"}


# The step, by hand ----------------------------------------------------------------------------------------------------


class ByHand:
    """SABA as the specification writes it, on the closed forms of `StochasticQuadratic`."""

    def __init__(self, known, batches, sizes, saga_x):
        self.known, self.batches, self.saga_x = known, batches, saga_x
        self.x, self.y, self.z = known.x0.clone(), known.y0.clone(), torch.zeros_like(known.y0)
        sizes = [1] * sizes if isinstance(sizes, int) else sizes
        self.weights = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
        rows = {"g_y": 4, "hessian": 4, "cross": 3, "f_y": 4, "f_x": 3}
        self.tables = {name: torch.zeros(len(sizes), size, dtype=torch.float64) for name, size in rows.items()}

    def lower(self, i):
        k, batch = self.known, self.batches[i]
        A, N, b = (values[batch].mean(0) for values in (k.A_i, k.N_i, k.b_i))
        r = self.y - k.B @ self.x - k.c
        return {"g_y": A @ r + b + N @ self.x, "hessian": A @ self.z, "cross": N.T @ self.z - k.B.T @ A @ self.z}

    def upper(self, j):
        k, batch = self.known, self.batches[j]
        return {
            "f_y": self.y - k.d + k.d_i[batch].mean(0),
            "f_x": k.C @ (self.x - k.e) + k.e_i[batch].mean(0),
        }

    def fill(self):
        for slot in range(len(self.batches)):
            for name, row in (self.lower(slot) | self.upper(slot)).items():
                self.tables[name][slot] = row

    def step(self, i, j):
        new = self.lower(i) | self.upper(j)
        d = {}
        for name, row in new.items():
            slot, table = (j if name.startswith("f") else i), self.tables[name]
            d[name] = row - table[slot] + self.weights @ table
            table[slot] = row
        if not self.saga_x:
            d |= {name: new[name] for name in ("cross", "f_x")}
        self.y = self.y - 0.1 * d["g_y"]
        self.z = self.z - 0.15 * (d["hessian"] - d["f_y"])
        self.x = self.x - 0.05 * (d["f_x"] - d["cross"])


def draw_of(batches, i, j):
    return Draw(upper=(batches[j],), lower=(batches[i],), slot=(i, j))


def slots_of(batches, steps, seed=0):
    chance = random.Random(seed)
    return [(chance.randrange(len(batches)), chance.randrange(len(batches))) for _ in range(steps)]


def solver_of(division=SINGLES, known=None, full=True, steps=0, **settings):
    batches, sizes = division
    solver = SABA((known or StochasticQuadratic()).problem(), **RATES, lower_slots=sizes, upper_slots=sizes, **settings)
    if full:
        solver.fill_memory(lower=batches, upper=batches)
    advance(solver, batches, slots_of(batches, steps))
    return solver


def advance(solver, batches, slots):
    for i, j in slots:
        solver.step(draw_of(batches, i, j))


def without_ledger(solver):
    return {name: value for name, value in solver.state_dict().items() if name != "ledger"}


@pytest.mark.parametrize("full", [False, True], ids=["zero start", "full start"])
@pytest.mark.parametrize("saga_x", [True, False], ids=["saga", "plain x"])
@pytest.mark.parametrize("division", [SINGLES, UNEVEN], ids=["even", "uneven"])
def test_the_steps_are_the_maths(division, saga_x, full):
    known = StochasticQuadratic()
    solver, by_hand = solver_of(division, known, full, saga_x=saga_x), ByHand(known, *division, saga_x)
    if full:
        by_hand.fill()
    for i, j in slots_of(division[0], steps=30):
        info = solver.step(draw_of(division[0], i, j))
        by_hand.step(i, j)
        for found, expected in ((solver.problem.x, by_hand.x), (solver.problem.y, by_hand.y), (info.z, by_hand.z)):
            torch.testing.assert_close(flat(found).detach(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("full", [False, True], ids=["zero start", "full start"])
@pytest.mark.parametrize("saga_x", [True, False], ids=["saga", "plain x"])
def test_with_one_slot_it_is_soba(saga_x, full):
    known = StochasticQuadratic()
    soba, saba = SOBA(known.problem(), **RATES), SABA(known.problem(), **RATES, saga_x=saga_x)
    if full:
        saba.fill_memory(lower=[[3]], upper=[[3]])
    for t in range(40):
        soba.step([t % 4], [(t + 1) % 3])
        saba.step([t % 4], [(t + 1) % 3])
    found, expected = ([*s.problem.x, *s.problem.y] for s in (saba, soba))
    if saga_x:  # ∇x f and ∇²xy g z are added up in another order
        torch.testing.assert_close(flat(found), flat(expected), rtol=0, atol=1e-13)
    else:
        assert_same([p.detach() for p in found], [p.detach() for p in expected])


def directions(solver, division):
    """What x would move along, for every pair of slots, from the present state."""
    state, found = solver.state_dict(), {}
    for i in range(len(division[0])):
        for j in range(len(division[0])):
            found[i, j] = flat(solver.step(draw_of(division[0], i, j)).hypergradient).clone()
            solver.load_state_dict(state)
    return found


def expected_direction(known, solver):
    """∇x f − ∇²xy g z of the population, in closed form."""
    x, z = flat(solver.problem.x).detach(), flat(solver.state_dict()["memory"]["tables"]["z"])
    return known.C @ (x - known.e) + known.B.T @ known.A @ z


@pytest.mark.parametrize("full", [False, True], ids=["zero start", "full start"])
@pytest.mark.parametrize("division", [SINGLES, UNEVEN], ids=["even", "uneven"])
def test_the_direction_is_unbiased_if_slots_are_drawn_by_their_size(division, full):
    known = StochasticQuadratic()
    solver = solver_of(division, known, full, steps=7)
    chance = ByHand(known, *division, True).weights
    found = directions(solver, division)
    mean = sum(chance[i] * chance[j] * d for (i, j), d in found.items())
    torch.testing.assert_close(mean, expected_direction(known, solver), rtol=0, atol=1e-12)
    assert torch.stack(list(found.values())).std(dim=0).max() > 1e-3, "the slots do differ"


def test_with_a_full_memory_of_this_point_the_direction_has_no_variance():
    known = StochasticQuadratic()
    solver = solver_of(SINGLES, known, full=True, steps=7)
    solver.fill_memory(lower=SINGLES[0], upper=SINGLES[0])
    for d in directions(solver, SINGLES).values():
        torch.testing.assert_close(d, expected_direction(known, solver), rtol=0, atol=1e-12)


def test_it_comes_to_rest_at_the_optimum_with_constant_steps_where_soba_does_not():
    known = StochasticQuadratic()
    batches = SINGLES[0]
    saba, soba = solver_of(SINGLES, known), SOBA(known.problem(), **RATES)
    for i, j in slots_of(batches, steps=800):
        saba.step(draw_of(batches, i, j))
        soba.step(draw_of(batches, i, j))
    distance, noisy = ((flat(s.problem.x).detach() - known.optimum).norm() for s in (saba, soba))
    assert distance < 1e-6
    assert noisy > 1e-2


def test_running_means_stay_the_means_of_the_rows():
    solver = solver_of(UNEVEN, steps=300)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    for table in solver.state_dict()["own"]["tables"].values():
        torch.testing.assert_close(table["mean"][0], weights @ table["rows"][0], rtol=0, atol=1e-13)


def test_parameters_of_two_dtypes_share_a_table_row():
    def problem():
        x = [torch.full((3,), 0.5, dtype=kind, requires_grad=True) for kind in (torch.float64, torch.float32)]
        y = [torch.ones(3, dtype=kind, requires_grad=True) for kind in (torch.float64, torch.float32, torch.float64)]
        gap = lambda: y[0] - x[0] + y[1].double() - x[1].double() * y[2]  # noqa: E731
        return adambo.Problem(
            lambda b: (flat([t.double() for t in y]) - b).square().sum(),
            lambda b: b * gap().square().sum() + flat([t.double() for t in y]).square().sum(),
            x,
            y,
        )

    one, other = SOBA(problem(), lr=0.02, lower_lr=0.05), SABA(problem(), lr=0.02, lower_lr=0.05)
    for t in range(10):
        for solver in (one, other):
            solver.step(1.0 + t % 3, 1.0 + t % 2)
    for p, q in zip(one.problem.x + one.problem.y, other.problem.x + other.problem.y, strict=True):
        torch.testing.assert_close(q, p, rtol=0, atol=1e-6)
    rows = other.state_dict()["own"]["tables"]["g_y"]["rows"]
    assert [(r.dtype, r.shape) for r in rows] == [(torch.float64, (1, 6)), (torch.float32, (1, 3))]


# The full start -------------------------------------------------------------------------------------------------------


def test_the_full_start_costs_one_oracle_of_each_kind_per_slot():
    solver = SABA(StochasticQuadratic().problem(), lower_slots=3, upper_slots=2)
    solver.fill_memory(lower=[[0], [1], [2]], upper=[[0], [1]])
    expected = {"grad_y_g": 3, "hessian_vector": 3, "cross_vector": 3, "grad_y_f": 2, "grad_x_f": 2, "samples": 11}
    assert solver.ledger == adambo.Ledger(**expected)


def test_without_tables_for_x_the_full_start_asks_for_nothing_in_x():
    solver = SABA(StochasticQuadratic().problem(), lower_slots=3, upper_slots=2, saga_x=False)
    solver.fill_memory(lower=[[0], [1], [2]], upper=[[0], [1]])
    assert solver.ledger == adambo.Ledger(grad_y_g=3, hessian_vector=3, grad_y_f=2, samples=3 * 2 + 2)


def test_a_stream_gives_its_slots_to_the_full_start_and_names_them_in_its_draws():
    known = StochasticQuadratic()
    solver = SABA(known.problem(), **RATES, lower_slots=4, upper_slots=4)
    stream = adambo.draws(SINGLES[0], SINGLES[0], solver.needs)
    solver.fill_memory(*stream.slot_batches())
    for _ in range(800):
        solver.step(next(stream))
    assert (flat(solver.problem.x).detach() - known.optimum).norm() < 1e-6


def broken(problem, level, batch, poison):
    """Let the loss of `level` fail on one batch; returns the loss as it was."""
    healthy = getattr(problem, level)
    setattr(problem, level, lambda b: poison(healthy(b)) if b == batch else healthy(b))
    return healthy


def nan(loss):
    return loss + float("nan")


def steep(loss):
    return loss * float("inf")


def stop(loss):
    raise ZeroDivisionError("the loss has a bug")


@pytest.mark.parametrize("steps", [0, 5], ids=["blank", "in use"])
@pytest.mark.parametrize("poison", [nan, steep, stop])
@pytest.mark.parametrize("level", ["lower", "upper"])
def test_a_full_start_that_fails_leaves_everything_as_it_was(level, poison, steps):
    solver = solver_of(SINGLES, full=bool(steps), steps=steps)
    before = without_ledger(solver)
    healthy = broken(solver.problem, level, [2], poison)
    with pytest.raises((NonFiniteError, ZeroDivisionError)):
        solver.fill_memory(lower=SINGLES[0], upper=SINGLES[0])
    assert same(without_ledger(solver), before)
    setattr(solver.problem, level, healthy)
    advance(solver, SINGLES[0], [(1, 2), (3, 0)])
    untouched = solver_of(SINGLES, full=bool(steps), steps=steps)
    advance(untouched, SINGLES[0], [(1, 2), (3, 0)])
    assert same(without_ledger(solver), without_ledger(untouched))


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        (SINGLES[0][:3], r"4 lower slots, but 3 batches"),
        (iter(SINGLES[0] + [[0]]), r"4 lower slots, but 5 batches"),
        (torch.zeros(4), r"sequence of lower batches is needed, but came a Tensor"),
    ],
)
def test_the_full_start_wants_one_batch_per_slot(batches, says):
    solver = solver_of(SINGLES, steps=2)
    before = solver.state_dict()
    with pytest.raises(SampleError, match=says):
        solver.fill_memory(lower=batches, upper=SINGLES[0])
    assert same(solver.state_dict(), before)


# Slots ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [(4, 0), (0, 4), (-1, 0), (0,), (0, 1, 2), (0.0, 1), (True, 0), "ab", 3])
def test_a_slot_that_does_not_exist_is_refused_before_anything_changes(slot):
    solver = solver_of(SINGLES, steps=2)
    before = solver.state_dict()
    with pytest.raises(SampleError, match=r"from 0 to 3"):
        solver.step(Draw(upper=([0],), lower=([0],), slot=slot))
    assert same(solver.state_dict(), before)


def test_a_draw_without_slots_is_refused_where_there_is_a_choice():
    with pytest.raises(SampleError, match=r"4 lower and 4 upper slots, but the draw does not say"):
        solver_of(SINGLES).step([0], [0])


@pytest.mark.parametrize("slots", [0, -1, 2.0, True, [], [1, 0], [1, 2.5], "3", None])
def test_slots_that_do_not_divide_the_data_are_refused(slots):
    for name in ("lower_slots", "upper_slots"):
        with pytest.raises(SettingError, match=rf"{name}={re.escape(repr(slots))} does not divide the data"):
            SABA(StochasticQuadratic().problem(), **{name: slots})


def test_the_needs_tell_the_stream_of_the_slots():
    needs = SABA(StochasticQuadratic().problem(), lower_slots=[1, 2, 3], upper_slots=5).needs
    assert (needs.upper, needs.lower, needs.cross, needs.hessian, needs.slots) == (1, 1, 0, 0, ((1, 2, 3), 5))


# Tasks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["problem", "encoder_head_problem"])
def test_with_tasks_only_the_direction_of_x_has_tables(form):
    known, groups = TaskQuadratics(), [[0, 3], [1, 4], [2, 3]]
    solver = SABA(getattr(known, form)(), **RATES, lower_slots=3, upper_slots=3)
    solver.fill_memory(lower=groups, upper=groups)
    x, Y, Z = known.x0.clone(), known._stacked(known.y0).clone(), torch.zeros(5, 3, dtype=torch.float64)

    def in_x(group):
        f_x = sum(known.B[i].T @ (known.B[i] @ x - known.e[i]) for i in group) / len(group)
        return f_x, -sum(known.B[i].T @ known.A[i] @ Z[i] for i in group)

    f_x_rows, cross_rows = (torch.stack(rows) for rows in zip(*map(in_x, groups), strict=True))
    for slot in (0, 2, 1, 1, 0, 2, 0):
        group = groups[slot]
        f_x, cross = in_x(group)
        h = (f_x - f_x_rows[slot] + f_x_rows.mean(0)) - (cross - cross_rows[slot] + cross_rows.mean(0))
        f_x_rows[slot], cross_rows[slot] = f_x, cross
        for i in group:
            g_y = known.A[i] @ (Y[i] - known.B[i] @ x - known.c[i])
            Z[i] -= 0.15 * (known.A[i] @ Z[i] - (Y[i] - known.d[i]) / len(group))
            Y[i] -= 0.1 * g_y
        x = x - 0.05 * h
        solver.step(Draw(upper=(group,), lower=(group,), slot=(slot, slot)))
        torch.testing.assert_close(flat(solver.problem.x).detach(), x, rtol=0, atol=1e-12)
        torch.testing.assert_close(known._stacked(flat(solver.problem.y).detach()), Y, rtol=0, atol=1e-12)
    assert set(solver.state_dict()["own"]["tables"]) == {"cross", "f_x"}


# State ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["device", "cpu", "disk"])
def test_a_run_resumed_from_a_file_in_another_store_is_the_same_to_the_last_bit(store):
    whole, first = (solver_of(UNEVEN, steps=0) for _ in range(2))
    slots = slots_of(UNEVEN[0], steps=20)
    advance(whole, UNEVEN[0], slots)
    advance(first, UNEVEN[0], slots[:9])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = solver_of(UNEVEN, full=False, store=store)
    second.load_state_dict(torch.load(file, weights_only=True))
    advance(second, UNEVEN[0], slots[9:])
    assert same(second.state_dict(), whole.state_dict())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lower_slots": 3, "upper_slots": 2}, "same numbers of slots"),
        ({"lower_slots": 2, "upper_slots": [1, 3]}, r"sizes None, not \[1, 3\]"),
        ({"lower_slots": 2, "upper_slots": 2, "saga_x": False}, "same settings"),
    ],
)
def test_the_state_of_other_tables_is_refused_and_changes_nothing(settings, says):
    saved = solver_of(([[0, 1], [2, 3]], 2), steps=3).state_dict()
    solver = SABA(StochasticQuadratic().problem(), **RATES, **settings)
    before = solver.state_dict()
    with pytest.raises(StateError, match=says):
        solver.load_state_dict(saved)
    assert same(solver.state_dict(), before)


def test_loading_copies_into_the_tables_that_are_there():
    solver, state = solver_of(SINGLES, steps=1), solver_of(SINGLES, steps=6).state_dict()
    places = [t.data_ptr() for table in solver.own_state()["tables"].values() for t in table["rows"] + table["mean"]]
    kept = copy.deepcopy(state)
    solver.load_state_dict(state)
    advance(solver, SINGLES[0], [(0, 1)])
    assert same(state, kept)
    tables = solver.own_state()["tables"].values()
    assert places == [t.data_ptr() for table in tables for t in table["rows"] + table["mean"]]


# Where the tables live ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["cpu", "disk", "a directory"])
@pytest.mark.parametrize("saga_x", [True, False])
def test_every_store_gives_the_same_steps_to_the_last_bit(store, saga_x, tmp_path):
    store = tmp_path if store == "a directory" else store
    there, here = solver_of(UNEVEN, steps=25, saga_x=saga_x, store=store), solver_of(UNEVEN, steps=25, saga_x=saga_x)
    assert same(there.state_dict(), here.state_dict())


def test_the_files_of_a_directory_hold_the_tables_and_go_with_the_solver(tmp_path):
    solver = solver_of(SINGLES, steps=3, store=str(tmp_path))
    files = {path.name: path for path in tmp_path.rglob("*.*")}
    assert set(files) == {"g_y.0", "hessian.0", "cross.0", "f_y.0", "f_x.0"}
    rows = solver.state_dict()["own"]["tables"]["cross"]["rows"][0]
    on_disk = torch.frombuffer(bytearray(files["cross.0"].read_bytes()), dtype=torch.float64).view(4, 3)
    assert torch.equal(on_disk, rows)
    assert rows.norm() > 0
    del solver
    gc.collect()
    assert list(tmp_path.iterdir()) == []


# Of y there are 4 numbers, of x 3; where tables are with the parameters, their means are too.
BYTES = {"device": 8 * (2 * 6 * 4 + 3 * 4 + 6 * 3 + 3 * 3), "disk": 8 * (2 * 5 * 4 + 2 * 4 + 5 * 3 + 2 * 3)}


@pytest.mark.parametrize("store", ["device", "disk"])
def test_the_size_is_announced_before_the_tables_are_made(store, caplog, monkeypatch):
    def no_memory(*arguments, **options):
        raise MemoryError("too early")

    monkeypatch.setattr(table_store.TableStore, "rows", no_memory)
    with caplog.at_level(logging.WARNING, "adambo"), pytest.raises(MemoryError):
        SABA(StochasticQuadratic().problem(), lower_slots=5, upper_slots=2, store=store)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING, "visible without any setting up"
    place = {"device": "host memory", "disk": "files under"}[store]
    assert f"({BYTES[store]:,} bytes) in {place}" in record.message
    assert "rows: g_y 5" in record.message
    assert "f_x 2" in record.message


@pytest.mark.parametrize("store", ["device", "cpu", "disk"])
def test_tables_that_do_not_fit_are_refused_with_both_numbers(store, monkeypatch):
    needed = BYTES["device" if store == "cpu" else store]
    usage = shutil.disk_usage("/")._replace(free=needed - 1)
    monkeypatch.setattr(table_store, "free_host_bytes", lambda: needed - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    problem = StochasticQuadratic().problem()
    with pytest.raises(SettingError, match=rf"\({needed:,} bytes\), but .*\({needed - 1:,} bytes\) free.*saga_x=False"):
        SABA(problem, lower_slots=5, upper_slots=2, store=store)
    SABA(problem, lower_slots=4, upper_slots=2, store=store)


def test_a_table_larger_than_this_machine_is_refused_without_a_trial(caplog):
    with pytest.raises(SettingError, match=r"need .* TiB \(.* bytes\), but host memory has .* free\. Take fewer"):
        SABA(StochasticQuadratic().problem(), lower_slots=10**13)
    assert not caplog.records


def test_free_memory_is_known_with_and_without_a_proc_filesystem(monkeypatch):
    told = table_store.free_host_bytes()

    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    for free in (told, table_store.free_host_bytes()):
        assert 2**20 < free < 2**50


@pytest.mark.parametrize("store", ["gpu", "/no/such/place", 3, None])
def test_a_store_that_does_not_exist_is_refused(store):
    with pytest.raises(SettingError, match=rf"store={re.escape(repr(store))} is neither 'device', 'cpu', 'disk' nor"):
        SABA(StochasticQuadratic().problem(), store=store)


def test_sharded_x_has_no_tables():
    problem = StochasticQuadratic().problem()
    problem.x_is_sharded = True
    with pytest.raises(SettingError, match=r"FSDP2.*saga_x=False"):
        SABA(problem)


# On CUDA --------------------------------------------------------------------------------------------------------------

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here")


def on_cuda(store):
    from test_gpu import batches, head_problem

    data = batches(n=7)
    solver = SABA(head_problem(), lr=0.01, lower_lr=0.1, lower_slots=4, upper_slots=3, store=store)
    solver.fill_memory(lower=data[:4], upper=data[4:])
    return solver, data


@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("store", ["device", "cpu"])
def test_no_step_waits_for_tables_on_the_device_or_in_pinned_memory(store):
    from test_gpu import waiting_is_an_error

    solver, data = on_cuda(store)
    draws = [Draw((data[4 + t % 3],), (data[t % 4],), slot=(t % 4, t % 3)) for t in range(12)]
    for draw in draws[:4]:
        solver.step(draw)
    with waiting_is_an_error():
        for draw in draws[4:]:
            solver.step(draw)
    solver.check()
    rows = solver.own_state()["tables"]["cross"]["rows"][0]
    assert (rows.is_cuda, rows.is_pinned()) == ((True, False) if store == "device" else (False, True))


@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("store", ["device", "cpu", "disk"])
def test_on_cuda_a_bad_batch_writes_no_row(store):
    solver, data = on_cuda(store)
    before = solver.state_dict()["own"]
    bad = copy.deepcopy(data[0])
    bad[0][0, 0] = float("nan")
    solver.step(Draw((data[5],), (bad,), slot=(0, 1)))
    assert same(solver.state_dict()["own"], before)
    with pytest.raises(NonFiniteError):
        solver.check()
    with pytest.raises(NonFiniteError):
        solver.fill_memory(lower=[*data[1:4], bad], upper=data[4:])
    assert same(solver.state_dict()["own"], before)


@needs_cuda
@pytest.mark.gpu
def test_tables_larger_than_the_device_are_refused():
    problem = StochasticQuadratic().problem()
    for p in (*problem.x, *problem.y):
        p.data = p.data.cuda()
    with pytest.raises(SettingError, match=r"cuda:0 memory has .* free"):
        SABA(adambo.Problem(lambda b: 0, lambda b: 0, problem.x, problem.y), lower_slots=10**12)
