"""FSDP2: a stack of sharded blocks, its whole state gathered and saved by rank 0.

Run it with

    torchrun --standalone --nproc-per-node 2 fsdp_training.py
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCABULARY, WIDTH, CONTEXT = 32, 48, 8
MAX_GRADIENT_NORM = 1.0


class Block(nn.Module):
    """Mixes earlier positions into each one, then each position by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Parameter(torch.zeros(CONTEXT, CONTEXT))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states of the next layer, [batch, context, width]."""
        hidden = hidden + self.mix.tril() @ self.norm(hidden)
        update: Tensor = self.feed_forward(hidden)
        return hidden + update


class LanguageModel(nn.Module):
    """Predicts each next token of a fixed-length context."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Log-probabilities, [batch, context, vocabulary], of [batch, context]."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits.float().log_softmax(dim=-1)


def make_dataset(sequences: int, seed: int) -> TensorDataset:
    """Texts in which each token follows, by a fixed rule, from the last but one."""
    generator = torch.Generator().manual_seed(seed)
    texts = torch.randint(VOCABULARY, (sequences, CONTEXT + 1), generator=generator)
    for position in range(2, CONTEXT + 1):
        texts[:, position] = (5 * texts[:, position - 2] + 1) % VOCABULARY
    return TensorDataset(texts)


def make_model(device: torch.device) -> nn.Module:
    """The model, sharded block by block over all ranks."""
    model = LanguageModel().to(device)
    policy = MixedPrecisionPolicy()
    if device.type == "cuda":
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def evaluate(model: nn.Module, dataset: TensorDataset, device: torch.device) -> float:
    """Mean loss over the dataset, of which each rank takes its part in one batch.

    Every forward gathers the shards from all ranks, so all must make equally many.
    """
    texts = dataset.tensors[0][dist.get_rank() :: dist.get_world_size()].to(device)
    model.eval()
    with torch.no_grad():
        log_probabilities = model(texts[:, :-1]).transpose(1, 2)
    loss = nn.functional.nll_loss(log_probabilities, texts[:, 1:])
    sum_and_count = torch.tensor([loss * len(texts), len(texts)], device=device)
    dist.all_reduce(sum_and_count)
    return float(sum_and_count[0] / sum_and_count[1])


def save(model: nn.Module, path: Path) -> None:
    """Gather the whole model, which all ranks must help with, and save it on one."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)  # empty on other ranks
    if dist.get_rank() == 0:
        partial = path.with_name(path.name + ".partial")
        torch.save(state, partial)
        partial.replace(path)  # a job killed while saving keeps the old file
    dist.barrier()


def load(model: nn.Module, path: Path) -> None:
    """Read the whole model on rank 0 and give each rank its shards."""
    state = {}
    if dist.get_rank() == 0:
        state = torch.load(path, map_location="cpu", weights_only=True)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state, options=options)


def train(args: argparse.Namespace, device: torch.device, checkpoint: Path) -> None:
    """Train, save, and evaluate what was saved."""
    rank = dist.get_rank()
    torch.manual_seed(args.seed)  # ranks start alike; sharding takes it for granted
    model = make_model(device)
    criterion = nn.NLLLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train_set = make_dataset(1024, seed=args.seed)
    sampler: DistributedSampler[int] = DistributedSampler(train_set, seed=args.seed)
    batches = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    val_set = make_dataset(125, seed=args.seed + 1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for (batch,) in batches:
            texts = batch.to(device)
            optimizer.zero_grad()
            loss = criterion(model(texts[:, :-1]).transpose(1, 2), texts[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
        val_loss = evaluate(model, val_set, device)
        save(model, checkpoint)
        if rank == 0:
            print(f"epoch {epoch + 1}: validation loss {val_loss:.4f}", flush=True)

    restored = make_model(device)
    load(restored, checkpoint)
    restored_loss = evaluate(restored, val_set, device)
    if rank == 0:
        print(f"restored: validation loss {restored_loss:.4f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train a small model with FSDP2.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE")
    args = parser.parse_args()
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    # Ranks share a temporary folder.
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    train(args, device, args.checkpoint or Path(folder[0], "model.pt"))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
