"""DTensor: tensor and sequence parallelism of a transformer, by `parallelize_module`.

Run it with

    torchrun --standalone --nproc-per-node 2 sequence_parallel.py

Layers are split over the ranks, and between them each rank has a part of the sequence.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

VOCABULARY, WIDTH, HEADS, CONTEXT = 32, 32, 4, 8


class Attention(nn.Module):
    """Causal attention; each rank has some of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """What each position takes from earlier ones, [batch, context, width]."""
        query, key, value = (
            layer(hidden).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """``up`` is split by columns and ``down`` by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """What is added to each position, [batch, context, width]."""
        update: Tensor = self.down(nn.functional.gelu(self.up(hidden)))
        return update


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.feed_norm, self.feed_forward = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states of the next layer, [batch, context, width]."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        update: Tensor = self.feed_forward(self.feed_norm(hidden))
        return hidden + update


class LanguageModel(nn.Module):
    """Predicts each next token."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, [batch, context, vocabulary], of tokens, [batch, context]."""
        logits: Tensor = self.head(self.norm(self.blocks(self.embedding(tokens))))
        return logits


def make_model(mesh: DeviceMesh) -> nn.Module:
    """The model with its layers split over the mesh, as all ranks draw it."""
    model = LanguageModel().to(mesh.device_type)
    gathers = PrepareModuleInput(
        input_layouts=Shard(1), desired_input_layouts=Replicate()
    )
    plan: dict[str, ParallelStyle] = {
        "embedding": ColwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for number in range(len(model.blocks)):
        block = f"blocks.{number}"
        plan |= {
            f"{block}.attention_norm": SequenceParallel(),
            f"{block}.attention": gathers,
            f"{block}.attention.query": ColwiseParallel(),
            f"{block}.attention.key": ColwiseParallel(),
            f"{block}.attention.value": ColwiseParallel(),
            f"{block}.attention.out": RowwiseParallel(output_layouts=Shard(1)),
            f"{block}.feed_norm": SequenceParallel(),
            f"{block}.feed_forward": gathers,
            f"{block}.feed_forward.up": ColwiseParallel(),
            f"{block}.feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
        }
    return parallelize_module(model, mesh, plan)


def make_texts(count: int, generator: torch.Generator) -> Tensor:
    """Texts in which each token follows, by a fixed rule, from the last but one."""
    texts = torch.randint(VOCABULARY, (count, CONTEXT + 1), generator=generator)
    for position in range(2, CONTEXT + 1):
        texts[:, position] = (5 * texts[:, position - 2] + 1) % VOCABULARY
    return texts


def train(args: argparse.Namespace, mesh: DeviceMesh) -> None:
    """Train on batches that all ranks draw alike."""
    torch.manual_seed(args.seed)
    model = make_model(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    generator = torch.Generator().manual_seed(args.seed)
    for step in range(args.steps):
        texts = make_texts(args.batch_size, generator).to(mesh.device_type)
        optimizer.zero_grad()
        logits = model(texts[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train with sequence parallelism.")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    world_size = int(os.environ["WORLD_SIZE"])
    if HEADS % world_size:
        parser.error(f"{HEADS} heads cannot be split over {world_size} ranks")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    train(args, init_device_mesh(device.type, (world_size,), mesh_dim_names=("tp",)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
