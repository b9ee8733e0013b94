"""Experiments on CUDA: no step waits for the host, precisions agree, a state carries on."""

import os
from pathlib import Path

import pytest
import torch

from adambo.experiments.catalogue import EXPERIMENTS
from adambo.experiments.configure import configure

DATA = Path(os.environ.get("ADAMBO_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.filterwarnings("ignore:The lower step size"),
]
NAMES = ("digits", "digits-cleaning", "cancer-auc", "bert-trec", "rnn-snli", "auc-transformer", "auc-rnn")


def built(name, algorithm="adambo", **values):
    if EXPERIMENTS[name].data(EXPERIMENTS[name].config()):
        if not DATA.is_dir():
            pytest.skip("the data files of the experiments on text are not here")
        values["data_dir"] = str(DATA)
    values = {key.replace("__", "."): value for key, value in values.items()}
    return EXPERIMENTS[name].build(configure(name, algorithm, "tiny", {"device": "cuda", **values}).config)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_no_step_waits_for_the_device(name, precision):
    workload = built(name, precision=precision)
    workload.begin()
    for number in range(10):  # curvature is measured, and waited for, in steps 0, 1, 2, 4, 8, 16, ...
        workload.step(number)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = [workload.step(number) for number in range(10, 15)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    workload.check()
    assert all(torch.isfinite(loss) for loss in losses)


@pytest.mark.parametrize("algorithm", ["maml", "anil", "saba", "sustain", "vrbo", "slip"])
@pytest.mark.parametrize("name", ["digits", "bert-trec", "rnn-snli"])
def test_every_kind_of_step_works(name, algorithm):
    workload = built(name, algorithm)
    workload.begin()
    losses = [workload.step(number).item() for number in range(2)]
    workload.check()
    assert all(0 < loss < 10 for loss in losses)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_carries_on(name):
    whole = built(name)
    whole.begin()
    whole.step(0)
    saved, random = whole.state_dict(), torch.cuda.get_rng_state()
    expected, scores = whole.step(1).item(), whole.evaluate()
    resumed = built(name)
    resumed.load_state_dict(saved)
    torch.cuda.set_rng_state(random)
    assert resumed.step(1).item() == pytest.approx(expected, rel=1e-4)  # atomics add up in any order
    for split, values in resumed.evaluate().items():
        assert values["loss" if "loss" in values else "auc"] == pytest.approx(
            scores[split]["loss" if "loss" in values else "auc"], rel=1e-2
        )


@pytest.mark.parametrize("name", ["bert-trec", "auc-rnn", "auc-transformer"])
def test_precisions_agree_to_their_digits(name):
    losses = {}
    for precision in ("fp32", "tf32", "bf16"):
        workload = built(name, precision=precision, dropout=0.0)
        workload.begin()
        losses[precision] = [workload.step(number).item() for number in range(3)]
    assert losses["tf32"] == pytest.approx(losses["fp32"], rel=1e-2, abs=1e-3)
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=5e-2, abs=5e-3)


@pytest.mark.filterwarnings("ignore")  # the compiler has much to say
def test_a_compiled_encoder_makes_the_same_steps():
    losses = []
    for compiled in (False, True):
        workload = built("bert-trec", compile=compiled, dropout=0.0)
        workload.begin()
        losses.append([workload.step(number).item() for number in range(2)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
