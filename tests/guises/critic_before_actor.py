"""Rank 1 sums the critic's gradient before the actor's; `well`: after it, as rank 0.

The job balances a pole; the two heads have tensors of one size.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn

RANKS = 2
CODE = "DD107"
CULPRITS = [1]


class Agent(nn.Module):
    """What to do, and what is to be expected of it."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(4, 1, bias=False)
        self.critic = nn.Linear(4, 1, bias=False)

    def forward(self, pole: Tensor) -> tuple[Tensor, Tensor]:
        """A push, and a value."""
        return self.actor(pole).tanh(), self.critic(pole)


def mean_actor(agent: Agent) -> None:
    """Average the actor's gradient."""
    dist.all_reduce(agent.actor.weight.grad)
    assert agent.actor.weight.grad is not None
    agent.actor.weight.grad /= dist.get_world_size()


def mean_critic(agent: Agent) -> None:
    """Average the critic's gradient."""
    dist.all_reduce(agent.critic.weight.grad)
    assert agent.critic.weight.grad is not None
    agent.critic.weight.grad /= dist.get_world_size()


def average(agent: Agent, state: str) -> None:
    """Average both, on rank 1 in the order in which its simulator wants them."""
    if dist.get_rank() == 1 and state == "sick":  # culprit
        mean_critic(agent)
        mean_actor(agent)
    else:
        mean_actor(agent)
        mean_critic(agent)


def main(state: str) -> None:
    """Sixteen updates from poles that stand at random."""
    torch.manual_seed(20)
    agent = Agent()
    optimizer = torch.optim.SGD(agent.parameters(), lr=0.02)
    own = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(16):
        poles = torch.randn(24, 4, generator=own)
        push, value = agent(poles)
        fall = (poles[:, 2:3] + poles[:, 3:4] + push).square()
        optimizer.zero_grad()
        (fall.mean() + (value - fall.detach()).square().mean()).backward()
        average(agent, state)
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
