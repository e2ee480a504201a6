"""PenguinNet with a role of its own beside the ranks: a data service that sends the batches. The ranks meet by the
generic variables MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, and know only the service's address."""

from __future__ import annotations

import argparse
import io
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

import numpy as np

from common.options import make_parser, parse_options
from common.penguins import load_penguins

EXAMPLE = """python penguins_spmd.py --serve 8000 &                 # the data service
export RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500    # 1 in another terminal
python penguins_spmd.py --service localhost:8000 --checkpoint-dir /tmp/penguins
(in an allranks job, `--serve` and `--service` have the values of ALLRANKS_PORT and ALLRANKS_ADDR_DATA)"""
STARTS_WITHIN_SECONDS = 300
"""The service may be replaced during the training: the ranks ask again."""


def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.01)
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve the batches instead of training")
    parser.add_argument(
        "--service", metavar="HOST:PORT", default=os.environ.get("ALLRANKS_ADDR_DATA", ""), help="the data service"
    )
    options = parse_options(parser)
    if options.serve is not None:
        serve(options.serve)
    elif options.service:
        train(options)
    else:
        parser.error("needs --service HOST:PORT, or ALLRANKS_ADDR_DATA")


# --- the data service -------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """`/epoch?seed=0&epoch=3&rank=1&size=2&batch=16`, `/validation` and `/test` answer with numpy's arrays x and y."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        penguins = load_once()
        if path == "/epoch":
            chosen = rows_of(len(penguins.train_y), **{name: int(value) for name, value in parse_qsl(query)})
            x, y = penguins.train_x[chosen], penguins.train_y[chosen]
        elif path == "/validation":
            x, y = penguins.validation_x, penguins.validation_y
        else:
            x, y = penguins.test_x, penguins.test_y
        buffer = io.BytesIO()
        np.savez(buffer, x=x, y=y)
        self.send_response(200)
        self.send_header("Content-Length", str(buffer.tell()))
        self.end_headers()
        self.wfile.write(buffer.getvalue())

    def log_message(self, *_: object) -> None:
        """No line for each request."""


load_once = cache(load_penguins)


def rows_of(count: int, seed: int, epoch: int, rank: int, size: int, batch: int) -> np.ndarray:
    """The rows of one rank in one epoch: (steps, batch). All ranks have the same number of steps."""
    steps = -(-count // (batch * size))
    order = np.resize(np.random.default_rng((seed, epoch)).permutation(count), steps * size * batch)
    return order.reshape(steps, size, batch)[:, rank]


def serve(port: int) -> None:
    print(f"data service: {len(load_once().train_y)} rows on port {port}", flush=True)
    ThreadingHTTPServer(("", port), Handler).serve_forever()


# --- the ranks --------------------------------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from common.ddp import any_rank_terminated, join_group, leave, resume, stop
    from common.journal import Journal
    from common.models_pytorch import PenguinNet
    from common.pytorch import SUFFIX, pack
    from common.report import instrument, waiting
    from common.termination import Termination
    from penguins_pytorch import evaluate, train_step

    device = join_group(options.threads)
    rank, size = dist.get_rank(), dist.get_world_size()
    journal = Journal(options, rank, size, SUFFIX, f"{device} ({dist.get_backend()})")
    termination = Termination(journal.save_alone)
    torch.manual_seed(options.seed)
    net = PenguinNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=options.lr)
    progress, _ = resume(journal, net, optimizer, device)
    model = DistributedDataParallel(net)
    instrument(model)

    x_validation, y_validation = fetch(options.service, "/validation")
    while progress.epoch < options.epochs:
        started = time.monotonic()
        query = f"seed={options.seed}&epoch={progress.epoch}&rank={rank}&size={size}&batch={options.batch_size}"
        x_of_epoch, y_of_epoch = fetch(options.service, f"/epoch?{query}")
        journal.begin_epoch(progress, len(y_of_epoch))
        totals = torch.zeros(2, device=device)  # loss and samples of this rank
        for x, y in zip(torch.from_numpy(x_of_epoch), torch.from_numpy(y_of_epoch), strict=True):
            if any_rank_terminated(termination, device):
                stop(termination, journal, progress, lambda: pack(net, optimizer, progress))
            journal.begin_step(progress)
            sums = train_step(model, optimizer, x.to(device), y.to(device))
            totals += sums
            progress.step += 1
            journal.end_step(progress, len(y), sums[0] / len(y))
            journal.save_on_request(progress, lambda: pack(net, optimizer, progress))
        with waiting():
            dist.all_reduce(totals)
            loss, samples = totals.tolist()
            validation_loss, accuracy = evaluate(net, x_validation, y_validation, device)
        progress.epoch += 1
        progress.losses.append(loss / samples)
        progress.validation_losses.append(validation_loss)
        journal.end_epoch(
            progress,
            accuracy=accuracy,
            seconds=time.monotonic() - started,
            samples=int(samples),
            checkpoint=lambda: pack(net, optimizer, progress),
        )
        termination.pause(options.pause)

    _, accuracy = evaluate(net, *fetch(options.service, "/test"), device)
    journal.finish(progress, accuracy, "Palmer penguins, data service")
    leave()


def fetch(service: str, path: str) -> tuple[np.ndarray, np.ndarray]:
    """The arrays x and y of one answer. Waits for a service that starts late or is replaced."""
    for content in attempts(f"http://{service}{path}"):
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return archive["x"], archive["y"]
    raise TimeoutError(f"no data service at {service} within {STARTS_WITHIN_SECONDS} s")


def attempts(url: str) -> Iterator[bytes]:
    deadline = time.monotonic() + STARTS_WITHIN_SECONDS
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the service is in the job
    while time.monotonic() < deadline:
        try:
            with direct.open(url, timeout=30) as answer:
                yield answer.read()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)


if __name__ == "__main__":
    main()
