"""A network as CUDA graphs has the results and gradients of the network; on a CPU, a stand-in is there for graphs."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from adambo.experiments import captured_network
from adambo.experiments.captured_network import CapturedNetwork
from adambo.models.recurrent import SentenceRNN
from adambo.models.transformer import ScoreHead, SentenceTransformer

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")],
)
PATIENCE = captured_network.PATIENCE


class Memory:
    """What `_Captured` does, without CUDA: one memory of activations, which every call overwrites."""

    made = 0

    def __init__(self, network, parameters, inputs):
        type(self).made += 1
        self.network, self.generation, self._parameters = network, 0, parameters

    def forward(self, inputs):
        self.generation += 1
        with torch.enable_grad():
            self._output = self.network(*(t.clone() for t in inputs))
        return self._output.detach().clone()

    def backward(self, weight):
        return torch.autograd.grad(self._output, self._parameters, weight, retain_graph=True)


@pytest.fixture(params=["cpu", CUDA])
def device(request, monkeypatch):
    if request.param == "cpu":
        Memory.made = 0
        monkeypatch.setattr(captured_network, "_Captured", Memory)
        monkeypatch.setattr(captured_network, "_can_be_captured", lambda inputs: torch.is_grad_enabled())
    return torch.device(request.param)


class Scored(nn.Module):
    def __init__(self, sentence):
        super().__init__()
        self.sentence, self.head = sentence, ScoreHead(sentence.width)

    def forward(self, tokens, lengths):
        return self.head(self.sentence(tokens, lengths))


def sentence_network(name, device):
    torch.manual_seed(0)
    table = torch.randn(40, 12)
    makes = {
        "transformer": lambda: SentenceTransformer(table, 2, 3, 20, 0.0, "mean"),
        "rnn": lambda: SentenceRNN(table, 2, 16, 0.0, "max"),
    }
    return Scored(makes[name]()).to(device)


def sentences(seed, device, rows=6, length=8):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 41, (rows, length), generator=generator)
    return tokens.to(device), torch.randint(1, length + 1, (rows,), generator=generator).to(device)


def weight_of(seed, rows, device):
    return torch.randn(rows, generator=torch.Generator().manual_seed(seed)).to(device)


def assert_same(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["transformer", "rnn"])
def test_results_and_gradients_are_those_of_the_network_while_its_parameters_move(name, device):
    network = sentence_network(name, device)
    captured = CapturedNetwork(network)
    for step in range(8):
        rows = 6 if step % 2 else 4  # two shapes by turns
        inputs, weight = sentences(step, device, rows), weight_of(step, rows, device)
        output, expected = captured(*inputs), network(*inputs)
        assert_same([output], [expected])
        parameters = list(network.parameters())
        found = torch.autograd.grad(output, parameters, weight, retain_graph=True)
        assert_same(found, torch.autograd.grad(expected, parameters, weight))
        assert_same(torch.autograd.grad(output, parameters, 2 * weight), [2 * part for part in found])  # once more
        with torch.no_grad():
            for p, part in zip(parameters, found, strict=True):
                p.sub_(part, alpha=0.01)
    assert len(captured._graphs) == 2


def test_of_two_calls_with_one_shape_both_can_go_back(device):
    network = sentence_network("transformer", device)
    captured, parameters = CapturedNetwork(network), list(network.parameters())
    for _ in range(PATIENCE + 1):
        captured(*sentences(0, device))
    both = [sentences(1, device), sentences(2, device)]
    outputs, expected = [captured(*each) for each in both], [network(*each) for each in both]
    assert_same(outputs, expected)
    for output, plain in zip(outputs, expected, strict=True):
        weight = weight_of(3, 6, device)
        assert_same(torch.autograd.grad(output, parameters, weight), torch.autograd.grad(plain, parameters, weight))


def test_gradients_that_were_given_are_not_overwritten_by_later_calls(device):
    network = sentence_network("rnn", device)
    captured, parameters = CapturedNetwork(network), list(network.parameters())
    for _ in range(PATIENCE + 1):
        captured(*sentences(0, device))
    output = captured(*sentences(1, device))
    found = torch.autograd.grad(output, parameters, weight_of(1, 6, device))
    kept = [output.clone(), *(part.clone() for part in found)]
    torch.autograd.grad(captured(*sentences(2, device)), parameters, weight_of(2, 6, device))
    assert all(torch.equal(now, before) for now, before in zip((output, *found), kept, strict=True))


def test_parameters_that_change_before_the_way_back_are_an_error(device):
    network = sentence_network("transformer", device)
    captured, parameters = CapturedNetwork(network), list(network.parameters())
    for _ in range(PATIENCE + 1):
        output = captured(*sentences(0, device))
    with torch.no_grad():
        parameters[0].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(output, parameters, weight_of(0, 6, device))


def test_without_gradients_the_network_is_called(device):
    network = sentence_network("rnn", device)
    captured = CapturedNetwork(network)
    with torch.no_grad():
        for step in range(PATIENCE + 2):
            assert_same([captured(*sentences(step, device))], [network(*sentences(step, device))])
    assert not captured._graphs


def test_a_shape_that_comes_rarely_is_not_captured(device):
    network = sentence_network("rnn", device)
    captured = CapturedNetwork(network)
    for rows in range(2, 6):
        for _ in range(PATIENCE):
            captured(*sentences(0, device, rows))
    assert not captured._graphs


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_modes_of_the_network_have_graphs_of_their_own():
    network = sentence_network("rnn", "cuda")
    captured = CapturedNetwork(network)
    for _ in range(PATIENCE + 1):
        captured(*sentences(0, "cuda"))
    other = deepcopy(network).eval()
    network.eval()
    for _ in range(PATIENCE + 1):
        assert_same([captured(*sentences(1, "cuda"))], [other(*sentences(1, "cuda"))])
    assert len(captured._graphs) == 2
