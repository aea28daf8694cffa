"""What a program finds out about torch, its own classes and compilers, with probes."""

from pathlib import Path

from twins import JOINED, told_bare, told_probed

COMPILED = (
    JOINED
    + """
import copy
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
head, x = net[0], torch.ones(8, 4)
by_sgd = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.1))
by_adam = torch.optim.Adam(net.parameters())
net(x).sum().backward()
mean = copy.deepcopy(net)
for _ in range(3):
    by_sgd.step()


def modes():
    net.train()
    trained = net(x)
    net.eval()
    return trained + net(x)

def sgd(): by_sgd.step()
def adam(): by_adam.step()
def makes(): return nn.Linear(4, 4)(x)
def clears(): net.zero_grad(); return x + 1
def loads(): net.load_state_dict(mean.state_dict()); return x + 1
def averaged():
    with torch.no_grad():
        return mean(x)
def lowered():
    with torch.autocast("cpu", torch.bfloat16):
        return net(x)
def again(): return checkpoint(net, x, use_reentrant=False)
def loss(weights, row): return functional_call(head, weights, (row,)).sum()
def per_sample():
    weights = dict(head.named_parameters())
    return vmap(grad(loss), in_dims=(None, 0))(weights, x)["weight"]

found = {}
bodies = modes, sgd, adam, makes, clears, loads, averaged, lowered, again, per_sample
for body in bodies:
    for whole in (True, False):
        torch.compiler.reset()
        counters = torch._dynamo.utils.counters
        counters.clear()
        try:
            torch.compile(body, fullgraph=whole, backend="eager")()
            breaks = sum(counters["graph_break"].values())
            text = f"{counters['stats'].get('calls_captured')} calls, {breaks} breaks"
        except Exception as error:
            text = type(error).__name__
        found[f"{body.__name__} {whole}"] = text
tell(found)
"""
)


def test_compilers_find_no_probe_in_the_programs_code(tmp_path: Path) -> None:
    bare = told_bare(tmp_path, COMPILED)
    assert bare["modes True"].endswith(" 0 breaks")
    assert bare["per_sample True"].endswith(" 0 breaks")
    assert told_probed(tmp_path, COMPILED) == bare


PER_SAMPLE = (
    JOINED
    + """
import copy
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(1)
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
mean = copy.deepcopy(net)


def loss(weights, row):
    return functional_call(net, weights, (row,)).square().sum()


for step in range(6):
    x = torch.randn(8, 4)
    weights = {name: one.detach() for name, one in net.named_parameters()}
    grads = vmap(grad(loss), in_dims=(None, 0))(weights, x)
    for name, one in net.named_parameters():
        one.grad = grads[name].mean(0)
    optimizer.step()
    net.eval()
    vmap(grad(loss), in_dims=(None, 0))(weights, x)
    of_mean = lambda given, row: functional_call(mean, given, (row,)).sum()
    vmap(grad(of_mean), in_dims=(None, 0))(weights, x)
    net.train()
tell([one.tolist() for one in net.parameters()])
"""
)


def test_gradients_of_each_sample_lose_no_probe_anything(tmp_path: Path) -> None:
    assert told_probed(tmp_path, PER_SAMPLE) == told_bare(tmp_path, PER_SAMPLE)


SIGNATURES = """
import inspect, typing
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from torch.utils.data import TensorDataset

class Plain(Dataset): pass
class Own(Dataset):
    def __init__(self, folder: str, *, size: int = 3): ...
class Behind:
    def __init__(self, path): ...
class Mixed(Dataset, Behind): pass
class Derived(Own): pass
class New(Dataset):
    def __new__(cls, rows, columns=2): return super().__new__(cls)
    def __init__(self, rows, columns=2): self.rows = rows
class Stream(IterableDataset): pass
class Choice(Sampler):
    def __init__(self, source): ...
class Every(Sampler): pass
class Loader(DataLoader):
    def __init__(self, data, extra=1): ...
class Typed(Dataset[int]): pass

found = {}
for kind in (Plain, Own, Mixed, Derived, New, Stream, Choice, Every, Loader, Typed,
             DataLoader, Dataset, Sampler, TensorDataset):
    try:
        found[kind.__name__] = str(inspect.signature(kind))
    except (TypeError, ValueError) as error:
        found[kind.__name__] = repr(error)
found["made"] = New(4).rows
for kind in (Plain, Own):
    try:
        kind(1, 2, 3)
    except TypeError as error:
        found[f"{kind.__name__} called"] = str(error)
tell(found)
"""


def test_signatures_of_data_classes_are_as_without_probes(tmp_path: Path) -> None:
    bare = told_bare(tmp_path, SIGNATURES)
    assert bare["Own"] == "(folder: str, *, size: int = 3)"
    assert told_probed(tmp_path, SIGNATURES) == bare
