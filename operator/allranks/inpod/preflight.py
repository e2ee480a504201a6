"""Tests the disk, the devices and the network of a pod before its program: `python3 preflight.py -- PROGRAM [ARG...]`.

ALLRANKS_PREFLIGHT (JSON) says what to test: {"checks": [...], "seconds": N}, and with the network `rank`, `size` and
`address`. A child process makes the tests, with the image's torch, and is killed at the end of the time; then this
process becomes the program. A test that is not possible, or does not end, is said so and fails nothing. After a wrong
result the pod ends, and its last line says which replica failed (`core/facts/preflight.py` reads it). Needs the
standard library and `patterns.py`, which is in the same directory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

VARIABLE = "ALLRANKS_PREFLIGHT"
PASSED, FAILED, UNTESTED, UNDECIDED = "passed", "failed", "not tested", "undecided"
MEBIBYTE = 1024 * 1024
DISK_BYTES = 64 * MEBIBYTE
ROUNDS = 3
"""Rounds of pairs, so that each rank meets three others."""
NETWORK_NUMBERS = 4 * MEBIBYTE
LONGEST_NETWORK_SECONDS = 90.0
"""Part of the time that is kept for the rounds; until then, ranks wait for one another."""


def main(argv: list[str]) -> int:
    """Test, then become the program. Return an exit status if a test failed, or if there is no program."""
    if argv == ["--test"]:
        return test(json.loads(os.environ[VARIABLE]))
    if len(argv) < 2 or argv[0] != "--":
        print("usage: preflight.py -- PROGRAM [ARG...]", file=sys.stderr)
        return 2
    program = argv[1:]
    settings = json.loads(os.environ[VARIABLE])
    began = time.monotonic()
    results = tested(settings)
    outcome = ", ".join(f"{check} {state} ({text})" for check, (state, text) in results.items())
    write_line(f"preflight in {time.monotonic() - began:.1f} s: {outcome}")
    for check, (state, text) in results.items():
        if state == FAILED:
            failed = json.loads(text) if check == "network" else {"replica": replica(), "text": text}
            write_line(f"preflight failed: {json.dumps({'check': check, **failed})}")
            return 1
    os.environ.pop(VARIABLE)
    return become(program)


def tested(settings: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return check -> result, from a child process that cannot outlive the time."""
    command = [sys.executable, str(Path(__file__).resolve()), "--test"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)

    def stop(number: int, frame: object) -> None:
        child.kill()
        os._exit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    missing = f"no result in {settings['seconds']} s"
    try:
        output, _ = child.communicate(timeout=settings["seconds"])
        missing = f"the test ended with exit code {child.returncode}"
    except subprocess.TimeoutExpired:
        child.kill()
        output, _ = child.communicate()
    for number, handler in before.items():
        signal.signal(number, handler)
    results = dict.fromkeys(settings["checks"], (UNTESTED, missing))
    for line in output.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError):
            check, state, text = json.loads(line)
            results[check] = (state, text)
    return results


def become(program: list[str]) -> int:
    """Replace this process by the program."""
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps that
        signal.signal(ignored, signal.SIG_DFL)
    sys.stderr.flush()
    try:
        os.execvp(program[0], program)
    except OSError as error:
        write_line(f"cannot start {program[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126


def write_line(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"allranks: {line}\n".encode("utf-8", "replace"))


def replica() -> str:
    return f"{os.environ.get('ALLRANKS_ROLE', '')}-{os.environ.get('ALLRANKS_INDEX', '')}"


# --- in the child process --------------------------------------------------------------------------------------------


def test(settings: dict[str, Any]) -> int:
    """Make the tests, and write one line of JSON for each. The first failure is the last test."""
    channel = os.fdopen(os.dup(1), "w")
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    deadline = time.monotonic() + settings["seconds"]
    tests: dict[str, Callable[[], tuple[str, str]]] = {
        "disk": test_disk,
        "gpu": test_devices,
        "network": lambda: test_network(settings, deadline),
    }
    for check in tests:
        if check not in settings["checks"]:
            continue
        try:
            state, text = tests[check]()
        except ImportError as error:
            state, text = UNTESTED, "the image has no torch" if error.name == "torch" else last_line(error)
        except Exception as error:
            state, text = judge(error)
        print(json.dumps([check, state, text]), file=channel, flush=True)
        if state == FAILED:
            break
    os._exit(0)  # threads of libraries may still wait for other ranks


def judge(error: Exception) -> tuple[str, str]:
    """Return the result of a test that raised: only an error that names a device is one of the node."""
    from patterns import kind_of_error  # type: ignore[import-not-found]  # in the same directory

    text = last_line(error)
    return (FAILED if kind_of_error(text) == "DeviceError" else UNTESTED), text


def last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def test_disk() -> tuple[str, str]:
    """Write a file into the directory for temporary files, and read it from the disk."""
    folder, block = tempfile.gettempdir(), os.urandom(MEBIBYTE)
    shifts = range(DISK_BYTES // MEBIBYTE)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.writelines(block[shift:] + block[:shift] for shift in shifts)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            if any(file.read(MEBIBYTE) != block[shift:] + block[:shift] for shift in shifts):
                return FAILED, f"a file in {folder} has other bytes than were written"
    except OSError as error:
        state = FAILED if error.errno == errno.EIO else UNTESTED
        return state, f"{folder}: {os.strerror(error.errno or 0)}"
    return PASSED, f"{DISK_BYTES // MEBIBYTE} MiB in {folder}"


def test_devices() -> tuple[str, str]:
    """Test the GPUs that torch sees, or the CPU and its memory if it sees none."""
    import torch  # type: ignore[import-not-found]

    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    for device in devices:
        if problem := wrong_product(torch, device) or wrong_memory(torch, device):
            return FAILED, f"{device}: {problem}"
    return PASSED, f"{len(devices)} GPUs" if devices != ["cpu"] else "torch sees no GPU: the CPU"


def wrong_product(torch: Any, device: str) -> str:
    """Return what is wrong with matrix products; empty if nothing is.

    The numbers are small integers, so that each result is exact, also with TF32. A product times a vector shows on the
    CPU whether any of its elements is wrong.
    """
    on_cpu = device == "cpu"
    size, repetitions = (256, 1) if on_cpu else (4096, 8)
    numbers = torch.Generator().manual_seed(1)
    left, right = (torch.randint(-8, 9, (size, size), generator=numbers).float() for _ in range(2))
    vector = torch.randint(0, 2, (size,), generator=numbers).double() * 2 - 1
    expected = left.double().mv(right.double().mv(vector))
    left, right = left.to(device), right.to(device)
    for _ in range(repetitions):
        product = torch.matmul(left, right)
        if not torch.equal(product.cpu().double().mv(vector), expected):
            return "a matrix product is wrong"
    return ""


def wrong_memory(torch: Any, device: str) -> str:
    """Return what is wrong with half of the free memory of a GPU; empty if nothing is. All of it is written before
    any of it is read."""
    chunk = 4 * MEBIBYTE
    free = 64 * MEBIBYTE if device == "cpu" else torch.cuda.mem_get_info(device)[0]
    for pattern in (0x5555555555555555, -0x5555555555555556):
        values = [pattern ^ number for number in range(max(1, free // 2 // (8 * chunk)))]
        blocks = [torch.full((chunk,), value, dtype=torch.int64, device=device) for value in values]
        if not all(bool((block == value).all()) for block, value in zip(blocks, values)):  # noqa: B905 (Python 3.9)
            return "its memory has other values than were written"
        del blocks
    return ""


def test_network(settings: dict[str, Any], deadline: float) -> tuple[str, str]:
    """Exchange data with other ranks, one after another, so that the node is found that fails with all of them.

    The ranks meet at a store in rank 0. It collects what each of them says about its partners, and tells all of them
    who is suspected. A suspected rank, and those that could not exchange data, end.
    """
    import torch.distributed as dist  # type: ignore[import-not-found]

    rank, size = settings["rank"], settings["size"]
    kept = min(settings["seconds"] / 2, LONGEST_NETWORK_SECONDS)
    host, _, port = settings["address"].rpartition(":")
    server = dist.TCPStore(
        host,
        int(port),
        is_master=rank == 0,
        timeout=timedelta(seconds=max(1.0, deadline - kept - time.monotonic())),
        wait_for_workers=False,
    )
    # Another job on a node with the network of the host may have the same port.
    store = dist.PrefixStore(f"{os.environ.get('ALLRANKS_JOB_UID')}-{os.environ.get('ALLRANKS_ATTEMPT')}", server)
    if not all_came(store, rank, size, deadline - kept):
        return UNTESTED, "not all ranks came in time"
    rounds = schedule(size)
    seconds = kept / (2 * len(rounds) + 3)  # a round takes twice this time if one rank connects and does not answer
    results = {}
    for number, partners in enumerate(rounds):
        meet(store, f"round {number}", size, seconds)
        partner = partners[rank]
        if partner is not None:
            key, place = f"{number} {min(rank, partner)}", int(rank > partner)
            results[partner] = exchange(dist.PrefixStore(key, store), place, timedelta(seconds=seconds))
    store.set(f"result {rank}", json.dumps([replica(), results]))
    if rank == 0:
        store.set("verdict", json.dumps(verdict(collected(store, size, seconds))))
    wait(store, ["verdict"], 3 * seconds)
    suspected = json.loads(store.get("verdict"))
    leave(store, rank, size)
    errors = [error for error in results.values() if error]
    if suspected and (errors or rank in (suspect["rank"] for suspect in suspected)):
        return FAILED, json.dumps(suspected[0])
    if errors:
        return UNDECIDED, f"no node is suspected, but {len(errors)} of {len(results)} exchanges failed: {errors[0]}"
    return PASSED, f"{len(results)} of {size - 1} other ranks"


def all_came(store: Any, rank: int, size: int, deadline: float) -> bool:
    """Return whether all ranks take part. The first rank that has waited until its deadline decides it for all."""
    store.add("came", 1)
    while rank == 0 and store.add("came", 0) < size and time.monotonic() < deadline:
        time.sleep(0.05)
    if rank == 0 and store.add("came", 0) >= size:
        store.compare_set("start", "", "all")
    with contextlib.suppress(Exception):
        wait(store, ["start"], max(0.1, deadline - time.monotonic()))
    return bool(store.compare_set("start", "", "late") == b"all")


def schedule(size: int) -> list[list[int | None]]:
    """Return the partner of each rank in each round; None if it has none. No pair meets twice."""
    places = size + size % 2
    rounds = []
    for number in range(min(places - 1, ROUNDS)):
        ring = [0, *((number + place) % (places - 1) + 1 for place in range(places - 1))]
        pairs = {rank: ring[places - 1 - place] for place, rank in enumerate(ring)}
        rounds.append([pairs[rank] if pairs[rank] < size else None for rank in range(size)])
    return rounds


def verdict(results: dict[int, tuple[str, dict[int, str]]]) -> list[dict[str, Any]]:
    """Return the ranks that are suspected, from rank -> (replica, partner -> error; empty if it passed).

    A rank is suspected if all of its exchanges failed, at least two, and one of its partners passed with another rank.
    A healthy rank that met only bad ones is not, because these passed with no rank. Ranks without a result are no
    evidence.
    """
    errors = {
        rank: {partner: error or results[partner][1].get(rank, "") for partner, error in of_rank.items()}
        for rank, (_, partners) in results.items()
        if (of_rank := {partner: error for partner, error in partners.items() if partner in results})
    }
    healthy = {rank for rank, of_rank in errors.items() if not all(of_rank.values())}
    suspected = [
        rank
        for rank, of_rank in errors.items()
        if len(of_rank) > 1 and all(of_rank.values()) and not healthy.isdisjoint(of_rank)
    ]
    out = []
    for rank in sorted(suspected):
        names = ", ".join(results[partner][0] for partner in errors[rank])
        text = f"all-reduce failed with {names}, and other pairs passed: {next(iter(errors[rank].values()))}"
        out.append({"rank": rank, "replica": results[rank][0], "text": text})
    return out


_GROUPS: list[Any] = []
"""Groups of two ranks. The destructor of one that failed may wait for ever, so they are kept until the process ends."""


def exchange(store: Any, number: int, limit: timedelta) -> str:
    """Sum numbers with one other rank, as rank `number` of two; return the error, or an empty text."""
    import torch

    numbers = torch.arange(NETWORK_NUMBERS, dtype=torch.float32) % 1024
    try:
        device, group = pair(torch, store, number, limit)
        _GROUPS.append(group)
        summed = (numbers * (number + 1)).to(device)
        group.allreduce([summed]).wait(limit)
        return "" if torch.equal(summed.cpu(), numbers * 3) else "the sum is wrong"
    except Exception as error:
        return last_line(error)


def pair(torch: Any, store: Any, number: int, limit: timedelta) -> tuple[str, Any]:
    """Return (device, group of two ranks): with NCCL on the first GPU, or with gloo without a GPU."""
    import torch.distributed as dist

    if not torch.cuda.is_available():
        return "cpu", dist.ProcessGroupGloo(store, number, 2, limit)
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # otherwise a timeout ends the process
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    return "cuda:0", dist.ProcessGroupNCCL(store, number, 2, options)


def meet(store: Any, place: str, size: int, seconds: float) -> None:
    """Wait until all ranks are there. One that is late, or has ended, is not waited for longer."""
    if store.add(place, 1) == size:
        store.set(f"{place} begins", "")
    with contextlib.suppress(Exception):
        wait(store, [f"{place} begins"], 2 * seconds)


def collected(store: Any, size: int, seconds: float) -> dict[int, tuple[str, dict[int, str]]]:
    """Return the results that arrive in time."""
    with contextlib.suppress(Exception):
        wait(store, [f"result {rank}" for rank in range(size)], 2 * seconds)
    out = {}
    for rank in range(size):
        if store.check([f"result {rank}"]):
            name, results = json.loads(store.get(f"result {rank}"))
            out[rank] = name, {int(partner): error for partner, error in results.items()}
    return out


def wait(store: Any, keys: list[str], seconds: float) -> None:
    store.wait(keys, timedelta(seconds=seconds))


def leave(store: Any, rank: int, size: int) -> None:
    """Keep the store of rank 0 until the others have read the verdict, at most for some seconds."""
    store.add("read", 1)
    until = time.monotonic() + 5
    while rank == 0 and store.add("read", 0) < size and time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
