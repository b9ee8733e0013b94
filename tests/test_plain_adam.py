"""Plain Adam is Adam on the ordinary loss: on the whole network, encoder and head."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from adambo.experiments.catalogue import EXPERIMENTS
from adambo.experiments.configure import configure


def built(name, **values):
    return EXPERIMENTS[name].build(configure(name, "adam", "tiny", values).config)


def losses_by_hand(workload, name, number):
    """The loss of step `number`, from the network itself."""
    (batch,) = workload.draw(number).upper
    if name == "cancer-auc":
        outputs = workload.encoder(workload._levels[0].take(batch.inputs))
        return F.binary_cross_entropy_with_logits(outputs + workload.variables.b, batch.positive)
    outputs = workload.encoder(workload.splits["train"].inputs.take(batch.inputs))
    weight, bias = (part[0] for part in workload.heads)
    return F.cross_entropy(outputs @ weight.T + bias, batch.labels.flatten())


def moments(workload):
    state = workload.solver.upper_optimizer.state
    return [state[p]["exp_avg"].clone() for p in workload.solver.theta]


@pytest.mark.parametrize("name", ["digits", "cancer-auc"])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_plain_adam_follows_the_gradient_of_the_whole_network(name, decay):
    workload = built(name, upper_weight_decay=decay)
    start = [p.detach().clone() for p in workload.solver.theta]
    for number in range(3):  # heads start at zero, where the encoder has no gradient
        workload.step(number)
    loss, before = losses_by_hand(workload, name, 3), moments(workload)
    expected = torch.autograd.grad(loss, workload.solver.theta)
    expected = [g + decay * p.detach() for g, p in zip(expected, workload.solver.theta, strict=True)]
    assert workload.step(3).item() == pytest.approx(loss.item(), rel=1e-5)
    assert min(float(g.abs().max()) for g in expected) > 1e-4
    for old, new, g in zip(before, moments(workload), expected, strict=True):
        torch.testing.assert_close((new - 0.9 * old) / 0.1, g, rtol=1e-4, atol=1e-6)  # beta is 0.1
    for p, first in zip(workload.solver.theta, start, strict=True):
        assert not torch.equal(p, first)
    assert workload.solver.ledger.grad_x_f == workload.solver.ledger.grad_y_f == 4
