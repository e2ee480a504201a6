"""The inputs of a job on this machine: fetched into a cache, and linked into the run directory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from allranks.api.data import Input, InputStatus, StartingPoint, claim_of
from allranks.api.job import Job
from allranks.core.facts.model import FETCH_RETRYING, Event
from allranks.core.facts.quantity import quantity
from allranks.core.transfers import data
from allranks.core.transfers.manifests import choices
from allranks.data.cache import DEFAULT_LIMIT, Cache, Entry, Lease
from allranks.errors import CannotRun, DataError
from allranks.fields import validated
from allranks.local.code import CACHE
from allranks.local.errors import explain
from allranks.local.transfer import Transfer
from allranks.text import size as text_size

LIMIT = "ALLRANKS_INPUTS_SIZE"
"""Variable with the size of the cache of inputs, for example 50Gi."""
PROGRESS_SECONDS = 10.0
"""Between two messages about an input."""


def with_given_directories(job: Job, volumes: Mapping[str, Path]) -> Job:
    """Return the job with the user's own directories in place of destinations and inputs, also of a directory in a
    claim."""
    addresses = {name: f"file://{directory.absolute()}" for name, directory in volumes.items()}
    inputs = [
        item.model_copy(update={"source": addresses[item.name]}) if item.name in addresses else item
        for item in job.spec.inputs or ()
    ]
    outputs = [
        item.model_copy(update={"to": addresses[item.name]}) if item.name in addresses else item
        for item in job.spec.outputs or ()
    ]
    start = job.spec.resume_from
    if start and "://" in start:  # the job's own destination is read where it is written
        destinations = [item.name for item in job.spec.outputs or () if item.to.rstrip("/") == start.rstrip("/")]
        start = next((addresses[name] for name in destinations if name in addresses), start)
    spec = job.spec.model_copy(
        update={
            "inputs": inputs or job.spec.inputs,
            "outputs": outputs or job.spec.outputs,
            "resume_from": start,
        }
    )
    return job.model_copy(update={"spec": spec})


class _FetchProgress:
    """Turns progress of a fetch into events: one at its start, then one every PROGRESS_SECONDS."""

    def __init__(self, name: str, tell: Callable[[Event], None]) -> None:
        self._name, self._tell = name, tell
        self._reported_at = time.monotonic()

    def __call__(self, line: dict[str, Any]) -> None:
        now = time.monotonic()
        total, done = line["total"], line["bytes"]
        if done and now - self._reported_at < PROGRESS_SECONDS:
            return
        self._reported_at = now
        share = f"{text_size(done)} of {text_size(total)}, {done * 100 // total} %" if total else text_size(done)
        message = f"input {self._name}: {share}" if done else f"input {self._name} is fetched: {share}"
        self._tell(Event("Fetching", message))


class LocalInputs:
    """The inputs of one run, fetched before its first pod."""

    def __init__(self, job: Job, volumes: Mapping[str, Path], run_dir: Path, environ: Mapping[str, str]) -> None:
        """Keep what is needed to fetch. `volumes`: the user's own directories by the name of an input or claim."""
        self._job, self._directories, self._environ = job, volumes, environ
        self._directory = run_dir / "inputs"
        self._root = Path(environ.get(CACHE) or Path.home() / ".cache" / "allranks") / "inputs"
        self._inputs = list(job.spec.sources)
        self._fetched = [item for item in self._inputs if not item.mounted and item.name not in volumes]
        self._transfers: list[Transfer] = []
        self._leases: list[Lease] = []
        self._stopped = False
        self.directories: dict[str, Path] = {}
        """Volume -> its directory, shared by all pods."""
        for item in self._inputs:
            if item.streamed:
                continue
            if item.name in volumes:
                self.directories[data.input_volume(item.name)] = volumes[item.name]
            elif not item.mounted:
                self.directories[data.input_volume(item.name)] = self._directory / item.name

    @property
    def names(self) -> set[str]:
        return {item.name for item in self._inputs}

    def check(self) -> None:
        """Raise CannotRun if an input is not on this machine."""
        problems = [text for item in self._inputs for text in self._problems(item)]
        if problems:
            raise CannotRun("\n".join(problems))
        if any(not item.streamed for item in self._fetched):
            self._limit()

    def _problems(self, item: Input) -> Iterator[str]:
        field, option = f"{self._job.spec.field_of(item.name)}.from", f"--volume {item.name}=DIR"
        if item.name in self._directories:
            directory = self._directories[item.name]
            if not directory.is_dir():
                yield f"--volume {item.name}={directory}: there is no such directory"
        elif item.scheme == "image":
            yield f"{field}: an image cannot be mounted on this machine: give a directory with its files, {option}"
        elif item.scheme == "claim":
            claim = claim_of(item.source)[0]
            if claim not in self._directories:
                yield f"{field}: claim {claim} is not on this machine: give a directory with its files, {option}"

    def notes(self) -> Iterator[str]:
        for item in self._inputs:
            if isinstance(item, StartingPoint):
                directory = self._directories.get(item.name)
                yield f"the job starts from the checkpoints in {directory or item.source}"
            elif item.name in self._directories:
                yield f"{item.path or 'the address'} (input {item.name}) is {self._directories[item.name]}"
            elif not item.mounted:
                if item.streamed:
                    yield f"input {item.name} is not copied: the program reads {item.source}"
                else:
                    yield f"{item.path} (input {item.name}) is fetched from {item.source} (cache: {self._root})"
                if item.secret:
                    reads = "read" if item.streamed else "fetch"
                    yield f"secret {item.secret} is not used here: your own credentials {reads} input {item.name}"

    async def provide(self, tell: Callable[[Event], None]) -> list[InputStatus]:
        """Fetch the inputs, and return `status.inputs`. Raise CannotRun; then a later run continues the fetch."""
        tasks = {item.name: asyncio.create_task(self._provide(item, tell)) for item in self._fetched}
        try:
            await asyncio.gather(*tasks.values())
        except DataError as error:
            if self._stopped:
                return []
            self.stop()
            raise CannotRun(str(error)) from error
        except OSError as error:
            raise CannotRun(f"the inputs cannot be linked into {self._directory}: {explain(error)}") from error
        finally:
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return [
            tasks[item.name].result() if item.name in tasks else InputStatus(name=item.name, state="Ready")
            for item in self._inputs
        ]

    async def _provide(self, item: Input, tell: Callable[[Event], None]) -> InputStatus:
        """Raise DataError with the path of the field."""
        field = self._field(item)

        def on_retry(text: str) -> None:
            tell(Event(FETCH_RETRYING, f"{field}: {text}", warning=True))

        try:
            how = self._resolve if item.streamed else self._fetch
            return await how(item, tell, on_retry)
        except DataError as error:
            raise DataError(f"{field}: the input cannot be fetched: {error}") from error

    def _field(self, item: Input) -> str:
        field = self._job.spec.field_of(item.name)
        return field if isinstance(item, StartingPoint) else f"{field} ({item.name})"

    async def _resolve(
        self, item: Input, tell: Callable[[Event], None], on_retry: Callable[[str], None]
    ) -> InputStatus:
        """Look up the revision of an input that the program streams."""
        transfer = Transfer("resolve", {"uri": item.source, "revision": item.revision}, self._environ)
        self._transfers.append(transfer)
        resolved = (await transfer.run(lambda _: None, on_retry))["resolved"]
        tell(Event("Fetched", f"input {item.name} is {text_size(resolved['bytes'])}, revision {resolved['revision']}"))
        return validated(InputStatus(name=item.name, state="Ready", **resolved))

    async def _fetch(self, item: Input, tell: Callable[[Event], None], on_retry: Callable[[str], None]) -> InputStatus:
        began = time.monotonic()
        request = {
            "uri": item.source,
            "revision": item.revision,
            "sha256": item.sha256,
            "cache": str(self._root),
            "limit": self._limit(),
            **choices(item),
        }
        on_progress = _FetchProgress(item.name, tell)
        while True:
            transfer = Transfer("fetch", request, self._environ)
            self._transfers.append(transfer)
            line = await transfer.run(on_progress, on_retry)
            entry = Entry(**line["entry"])
            # Between the fetch and the lease another run may have evicted it.
            if lease := await asyncio.to_thread(Cache(self._root).lease, entry.uri, entry.pin):
                break
        self._leases.append(lease)
        self._link(self._directory / item.name, lease.directory)
        size = f"{text_size(entry.bytes)}, revision {entry.revision}"
        took = "was in the cache" if line["cached"] else f"was fetched in {time.monotonic() - began:.1f} s"
        tell(Event("Fetched", f"input {item.name} {took}: {size}"))
        return validated(
            InputStatus(
                name=item.name,
                state="Ready",
                revision=entry.revision[:256],
                sha256=entry.sha256,
                bytes=entry.bytes,
                cached=line["cached"],
            )
        )

    def _link(self, link: Path, target: Path) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)  # of an earlier run with the same --run-dir
        link.symlink_to(target.absolute())

    def _limit(self) -> int:
        """Raise CannotRun."""
        text = self._environ.get(LIMIT)
        try:
            limit = int(quantity(text)) if text else DEFAULT_LIMIT
        except (ValueError, ArithmeticError):
            limit = -1
        if limit < 0:
            raise CannotRun(f"{LIMIT}={text}: must be a size, for example 50Gi")
        return limit

    def stop(self) -> None:
        """End the fetches. What they have stays for another run."""
        self._stopped = True
        for transfer in self._transfers:
            transfer.stop()

    def release(self) -> None:
        """Release the data, which the run does not read any more."""
        while self._leases:
            self._leases.pop().close()
