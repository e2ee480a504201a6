"""PenguinNet on the Palmer penguins with Ray Tune: a driver starts a trial for each choice of parameters on the nodes
of a Ray cluster, and stops trials early that are worse than others."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common.models_pytorch import PenguinNet
from common.options import CHECKPOINT_VARIABLE, positive_int
from common.penguins import load_penguins
from common.splits import stratified_split

RUN = "penguins-tune"
VALIDATION_FRACTION = 0.2  # of the training rows: the test rows choose no trial


def main() -> None:
    """The driver. A new attempt of the job continues the trials of the one before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=positive_int, default=8, help="choices of parameters (default %(default)s)")
    parser.add_argument("--epochs", type=positive_int, default=30, help="of each trial, at most (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--storage",
        type=Path,
        default=Path(os.environ.get(CHECKPOINT_VARIABLE) or "/tmp/penguins-tune"),
        help=f"directory of results, the same on all nodes (default ${CHECKPOINT_VARIABLE}, else /tmp/penguins-tune)",
    )
    options = parser.parse_args()

    ray.init()  # the cluster at RAY_ADDRESS, or a new one
    trial = partial(train, epochs=options.epochs, seed=options.seed)
    path = str(options.storage.absolute() / RUN)
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, trainable=trial, resume_errored=True)
    else:
        tuner = tune.Tuner(
            trial,
            param_space={"lr": tune.loguniform(1e-5, 1e-1), "batch_size": tune.choice([8, 16, 32])},
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                num_samples=options.trials,
                scheduler=ASHAScheduler(grace_period=5, max_t=options.epochs),
                search_alg=tune.search.BasicVariantGenerator(random_state=options.seed),
            ),
            run_config=tune.RunConfig(name=RUN, storage_path=str(options.storage.absolute()), verbose=0),
        )
    results = tuner.fit()
    if results.num_errors:
        raise SystemExit(f"{results.num_errors} of {len(results)} trials failed: {results.errors[0]}")
    worst_first = sorted(results, key=lambda result: result.metrics["loss"], reverse=True)
    for result in worst_first:
        show(result)
    best = worst_first[-1]
    accuracy = best.metrics["test_accuracy"]
    print(f"the best trial: test accuracy {accuracy:.4f}, of rows that neither trained nor chose a trial", flush=True)


def train(config: dict[str, Any], epochs: int, seed: int) -> None:
    """One trial, a process on one of the nodes. Trials are compared by the loss of held-out validation rows."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    penguins = load_penguins()
    fit, held_out = stratified_split(penguins.train_y, VALIDATION_FRACTION)
    x, y = torch.from_numpy(penguins.train_x), torch.from_numpy(penguins.train_y)
    net = PenguinNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
    loader = DataLoader(TensorDataset(x[fit], y[fit]), batch_size=config["batch_size"], shuffle=True)
    for _ in range(epochs):
        for batch_x, batch_y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(batch_x), batch_y).backward()
            optimizer.step()
        with torch.no_grad():
            loss = nn.functional.cross_entropy(net(x[held_out]), y[held_out]).item()
            correct = net(torch.from_numpy(penguins.test_x)).argmax(1) == torch.from_numpy(penguins.test_y)
        tune.report({"loss": loss, "test_accuracy": correct.float().mean().item()})


def show(result: tune.Result) -> None:
    epochs, config = result.metrics["training_iteration"], result.config
    choice = f"lr {config['lr']:.2g}, batch size {config['batch_size']:2}"
    print(f"{choice}: {epochs:3} epochs, validation loss {result.metrics['loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()
