"""A script as users of SageMaker write it for its PyTorch container: nothing in it is about allranks.

It trains a classifier with one process per host, averages gradients, and saves the model on the first host."""

from __future__ import annotations

import argparse
import csv
import json
import os

import torch
import torch.distributed as dist
from torch import nn

SPECIES = ("Adelie", "Chinstrap", "Gentoo")
COLUMNS = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")


def load(folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    rows = []
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".csv")):
        with open(os.path.join(folder, name), newline="") as file:
            rows += [row for row in csv.DictReader(file) if all(row[column] not in ("", "NA") for column in COLUMNS)]
    x = torch.tensor([[float(row[column]) for column in COLUMNS] for row in rows])
    return (x - x.mean(0)) / x.std(0), torch.tensor([SPECIES.index(row["species"]) for row in rows])


def train(args: argparse.Namespace) -> None:
    rank = args.hosts.index(args.current_host)
    os.environ["WORLD_SIZE"] = str(len(args.hosts))
    os.environ["RANK"] = str(rank)
    dist.init_process_group(backend=args.backend, rank=rank, world_size=len(args.hosts))
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(len(COLUMNS), 16), nn.ReLU(), nn.Linear(16, len(SPECIES)))
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
    x, y = load(args.train)
    held_out = torch.arange(len(y)) % 5 == 0
    mine = ~held_out & (torch.arange(len(y)) % len(args.hosts) == rank)
    for _ in range(args.epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[mine]), y[mine]).backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= len(args.hosts)
        optimizer.step()
    correct = (net(x[held_out]).argmax(1) == y[held_out]).float().mean().item()
    print(f"host {rank} of {len(args.hosts)}: held-out accuracy {correct:.3f}", flush=True)
    if rank == 0:
        torch.save(net.state_dict(), os.path.join(args.model_dir, "model.pth"))
        print("hyperparameters:", os.environ["SM_HPS"], flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", type=str, default=None)
    parser.add_argument("--hosts", type=list, default=json.loads(os.environ["SM_HOSTS"]))
    parser.add_argument("--current-host", type=str, default=os.environ["SM_CURRENT_HOST"])
    parser.add_argument("--model-dir", type=str, default=os.environ["SM_MODEL_DIR"])
    parser.add_argument("--train", type=str, default=os.environ["SM_CHANNEL_TRAINING"])
    parser.add_argument("--num-gpus", type=int, default=os.environ["SM_NUM_GPUS"])
    train(parser.parse_args())
