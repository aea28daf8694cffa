"""The other rank of a job of two commands."""

import argparse

import torch
import torch.distributed as dist

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    dist.init_process_group(
        "gloo",
        init_method="tcp://127.0.0.1:29534",
        rank=parser.parse_args().rank,
        world_size=2,
    )
    weights = torch.empty(4)
    dist.broadcast(weights, src=0)
    dist.destroy_process_group()
