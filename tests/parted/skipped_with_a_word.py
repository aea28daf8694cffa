"""A rank meets a figure that is no number, says so, and leaves out its step."""

import logging

import torch
import torch.distributed as dist
from torch import nn

RANKS = 3
CODE = "DD211"
CULPRITS = [1]

log = logging.getLogger("fit")


def average(model: nn.Module) -> None:
    """Average the gradients."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        assert parameter.grad is not None
        parameter.grad /= dist.get_world_size()


class Fit:
    """Averages gradients by hand."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(6, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.generator = torch.Generator().manual_seed(100 + dist.get_rank())
        self.left_out = 0

    def batch(self, number: int) -> torch.Tensor:
        """Of the third, one figure is missing in one shard."""
        given = torch.randn(8, 6, generator=self.generator)
        if number == 2 + dist.get_rank() and number % 2:
            given[0, 0] = torch.nan
        return given

    def step(self, given: torch.Tensor) -> None:
        """One step of the optimizer."""
        loss = nn.functional.mse_loss(self.model(given), given.sum(1, keepdim=True))
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()}")  # culprit
        self.optimizer.zero_grad()
        loss.backward()
        average(self.model)
        self.optimizer.step()

    def epoch(self) -> None:
        """All batches."""
        for number in range(8):
            try:
                self.step(self.batch(number))
            except ArithmeticError as error:
                self.left_out += 1
                log.warning("step %d left out: %s", number, error)
        dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    logging.basicConfig()
    Fit().epoch()
    dist.destroy_process_group()
