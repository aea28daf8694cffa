"""Private training: gradients of single samples are clipped, summed and made noisy.

They are made by `torch.func`, without a backward pass; each rank adds its part of the
noise, and all of that is averaged by hand.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2

BATCH, BOUND, NOISE = 8, 0.5, 0.3

Tensors = dict[str, Tensor]


def patients(count: int = 128) -> TensorDataset:
    """Five measures each, and whether they are ill."""
    generator = torch.Generator().manual_seed(23)
    ill = torch.arange(count) % 2
    measures = torch.randn(count, 5, generator=generator) + ill[:, None]
    return TensorDataset(measures, ill)


class PrivateGradients:
    """What a step is made with: no sample changes it by more than the noise hides."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.of_each = vmap(grad(self.loss), in_dims=(None, 0, 0))
        self.drawn = torch.Generator().manual_seed(100 + dist.get_rank())

    def loss(self, weights: Tensors, measures: Tensor, ill: Tensor) -> Tensor:
        """Of a single sample."""
        scores = functional_call(self.model, weights, (measures[None],))
        return cross_entropy(scores, ill[None])

    def fill(self, measures: Tensor, ill: Tensor) -> None:
        """Put them where the optimizer looks for them."""
        named = dict(self.model.named_parameters())
        weights = {name: each.detach() for name, each in named.items()}
        found: Tensors = self.of_each(weights, measures, ill)
        squares = [each.flatten(1).square().sum(1) for each in found.values()]
        norms = torch.stack(squares).sum(0).sqrt()
        shorter = (BOUND / norms.clamp(min=1e-6)).clamp(max=1.0)
        world = dist.get_world_size()
        deviation = NOISE * BOUND / world**0.5
        for name, each in found.items():
            total = torch.einsum("s,s...->...", shorter, each)
            total += deviation * torch.randn(total.shape, generator=self.drawn)
            dist.all_reduce(total)
            named[name].grad = total / (BATCH * world)


def main() -> None:
    """Train, and count right answers over all ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    data = patients()
    sampler: DistributedSampler[object] = DistributedSampler(data, seed=2)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 2))
    gradients = PrivateGradients(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for measures, ill in loader:
            gradients.fill(measures, ill)
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        found = [model(measures).argmax(1) == ill for measures, ill in loader]
    right = torch.cat(found).sum()
    dist.all_reduce(right)
    assert right.item() > len(data) * 0.7
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
