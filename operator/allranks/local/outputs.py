"""The outputs of a job on this machine: directories of the run directory, uploaded when no rank runs any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allranks.api.data import MESSAGE_LENGTH, InputStatus, Output, claim_of
from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts.model import Event
from allranks.core.facts.status_summary import with_condition
from allranks.core.facts.uploads import Upload, checkpoint_of, of_checkpoint
from allranks.core.transfers import data, uploads
from allranks.core.transfers.manifests import provenance
from allranks.core.transfers.uploads import CONDITION, REASON_FAILED
from allranks.data.upload import check_destination
from allranks.errors import CannotRun, DataError
from allranks.local.inputs import LocalInputs
from allranks.local.transfer import Transfer


async def provide(inputs: LocalInputs, outputs: LocalOutputs, tell: Callable[[Event], None]) -> list[InputStatus]:
    """Fetch the inputs, unless the check of a destination fails. Return `status.inputs`. Raise CannotRun."""
    check = asyncio.create_task(outputs.check(tell))
    check.add_done_callback(lambda done: inputs.stop() if done.cancelled() or done.exception() else None)
    try:
        return await inputs.provide(tell)
    except BaseException:
        outputs.stop_checks()
        raise
    finally:
        await check


class LocalOutputs:
    """The uploads of one run."""

    def __init__(
        self,
        job: Job,
        volumes: Mapping[str, Path],
        claims: dict[str, Path],
        run_dir: Path,
        environ: Mapping[str, str],
        on_change: Callable[[], None],
        checkpoints: Callable[[], Path | None],
    ) -> None:
        """Prepare uploads. `volumes`, `claims`: as in the options of a run. `checkpoints`: the folder with the
        checkpoints.

        `on_change` is called when an upload ends."""
        self._job, self._volumes, self._claims, self._run_dir = job, volumes, claims, run_dir
        self._environ, self._on_change, self._checkpoints = environ, on_change, checkpoints
        self._outputs = {item.name: item for item in job.spec.outputs or ()}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: dict[str, tuple[int, int] | None] = {}
        """Name -> the checkpoint whose upload was started last."""
        self._transfers: dict[str, Transfer] = {}
        self._checks: list[Transfer] = []
        self._stopped = self._ended = False
        self.uploads: dict[str, Upload] = {}
        """Name -> its state, for the core."""
        self.directories = {data.output_volume(name): self._directory(name) for name in self._outputs}
        """Volume -> its directory, shared by all pods."""

    @property
    def names(self) -> set[str]:
        claims = {claim_of(item.to)[0] for item in self._outputs.values() if item.scheme == "claim"}
        return {*self._outputs, *claims}

    def notes(self) -> Iterator[str]:
        for item in self._outputs.values():
            if item.when == "Checkpoint":
                yield f"each checkpoint (output {item.name}) is copied to {self._to(item)} while the program runs"
                continue
            when = "when the program has ended" if item.when == "Always" else "when the program has completed"
            yield f"{item.path} (output {item.name}) is {self._directory(item.name)}, copied to {self._to(item)} {when}"
            if item.secret and not self._to(item).startswith("/"):
                yield f"secret {item.secret} is not used here: your own credentials upload output {item.name}"

    async def check(self, tell: Callable[[Event], None]) -> None:
        """Ask the destinations whether files can be written there. Raise CannotRun."""
        checks = [asyncio.create_task(self._checked(item, tell)) for item in self._outputs.values()]
        try:
            await asyncio.gather(*checks)
        except DataError as error:
            if not self._stopped:
                raise CannotRun(str(error)) from error
        finally:
            self.stop_checks()
            await asyncio.gather(*checks, return_exceptions=True)

    async def _checked(self, item: Output, tell: Callable[[Event], None]) -> None:
        """Raise DataError with the path of the field."""
        try:
            await self._check(item, tell)
        except DataError as error:
            raise DataError(f"{self._field(item)}: the output cannot be uploaded: {error}") from error

    def _field(self, item: Output) -> str:
        return f"spec.outputs[{list(self._outputs).index(item.name)}] ({item.name})"

    async def _check(self, item: Output, tell: Callable[[Event], None]) -> None:
        if (to := self._to(item)).startswith("/"):
            note = await asyncio.to_thread(check_destination, to)
        else:
            transfer = Transfer("check", {"to": to}, self._environ)
            self._checks.append(transfer)
            note = (await transfer.run(lambda _: None))["checked"]
        if note:
            text = f"{self._field(item)}: it is not certain that the output can be uploaded: {note}"
            tell(Event("OutputUnchecked", text, warning=True))

    def stop_checks(self) -> None:
        self._stopped = True
        for transfer in self._checks:
            transfer.stop()

    def start(self, status: Status, ranks_run: bool, tell: Callable[[Event], None]) -> None:
        """Start the uploads that the status has decided, and end those that are overdue. While ranks run, only
        checkpoints are uploaded, one after the other."""
        pending = uploads.to_upload(self._job, status)
        for name in self._transfers.keys() - set(pending):
            self._transfers[name].stop()
        ended = {output.name for output in status.outputs if output.start_time}
        for output in status.outputs:
            upload = self.uploads.get(output.name)
            earlier = upload and upload.state == "Failed" and not upload.final and output.name in ended
            if (output.state == "Failed" or earlier) and self._outputs[output.name].when == "Checkpoint":
                # It is tried again when the program has completed.
                self._begun.pop(output.name, None)
                self.uploads.pop(output.name, None)
        of_checkpoints = {output.name: checkpoint_of(output) for output in status.outputs}
        for name in pending:
            checkpoint = of_checkpoints[name] if self._outputs[name].when == "Checkpoint" else None
            if self._outputs[name].when == "Checkpoint":
                ready = checkpoint is not None and self._begun.get(name) != checkpoint
                ready = ready and not (name in self._tasks and not self._tasks[name].done())
            else:
                ready = name not in self._tasks and not ranks_run
            if ready:
                self._begun[name] = checkpoint
                self.uploads[name] = Upload("Uploading", where=self._where(name), checkpoint=checkpoint)
                self._tasks[name] = asyncio.create_task(self._upload(self._outputs[name], status, checkpoint, tell))

    def _where(self, name: str) -> str:
        """Return the directory of an output; empty for a checkpoint, which stays where the program has stored it."""
        return "" if self._outputs[name].when == "Checkpoint" else str(self._directory(name))

    async def _upload(
        self, item: Output, status: Status, checkpoint: tuple[int, int] | None, tell: Callable[[Event], None]
    ) -> None:
        directory = self._directory(item.name)
        request = {
            "directory": str(directory),
            "to": self._to(item),
            "journal": str(self._run_dir / f"upload-{item.name}.jsonl"),
            "provenance": provenance(self._job, status),
        }
        if checkpoint:
            request = of_checkpoint(request, str(self._checkpoints()), checkpoint)
        transfer = Transfer("upload", request, self._environ)
        self._transfers[item.name] = transfer
        if self._ended:
            transfer.stop()

        def on_progress(line: dict[str, Any]) -> None:
            sent, files, total = (line["files"], line["bytes"]), line["total_files"], line["total"]
            self.uploads[item.name] = replace(self.uploads[item.name], sent=sent, files=files, bytes=total)
            self._on_change()

        def on_retry(text: str) -> None:
            tell(Event(uploads.UPLOAD_RETRYING, f"{self._field(item)}: {text}", warning=True))

        try:
            line = await transfer.run(on_progress, on_retry)
            done = line["uploaded"]
            upload = Upload("Uploaded", bytes=done["bytes"], files=done["files"], checkpoint=checkpoint)
        except DataError as error:
            final = any(output.start_time for output in status.outputs if output.name == item.name)
            message = _interrupted(self.uploads[item.name]) if transfer.stopped else str(error)
            upload = Upload("Failed", message=message, where=self._where(item.name), checkpoint=checkpoint, final=final)
        self.uploads[item.name] = upload
        self._on_change()

    @property
    def busy(self) -> bool:
        return any(not task.done() for task in self._tasks.values())

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes of uploads."""
        return tuple(pid for transfer in self._transfers.values() for pid in transfer.pids)

    async def end(self, status: Status) -> Status:
        """End uploads that still run, or that were about to begin. Return the status, which says so."""
        self._ended = True
        for transfer in self._transfers.values():
            transfer.stop()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        return self._interrupted(status)

    def _interrupted(self, status: Status) -> Status:
        outputs, notes = [], []
        for output in status.outputs:
            not_begun = Upload("Failed", message=_INTERRUPTED, where=self._where(output.name))
            upload = self.uploads.get(output.name, not_begun)
            if output.state == "Uploading" and upload.state == "Failed":
                where = f"; the files are in {upload.where}" if upload.where else ""
                notes.append(f"output {output.name} is not uploaded: {upload.message}{where}")
                output = replace(output, state="Failed", message=f"{upload.message}{where}"[:MESSAGE_LENGTH])
            outputs.append(output)
        if not notes:
            return status
        status = replace(status, outputs=outputs)
        return with_condition(status, CONDITION, False, REASON_FAILED, "; ".join(notes), datetime.now(UTC))

    def _directory(self, name: str) -> Path:
        return self._run_dir / "outputs" / name

    def _to(self, item: Output) -> str:
        """Return the address, or the directory of this machine that takes its place."""
        if item.name in self._volumes:
            return str(self._volumes[item.name])
        if item.scheme != "claim":
            return item.to
        claim, below = claim_of(item.to)
        directory = self._volumes.get(claim) or self._claims.setdefault(claim, self._run_dir / "volumes" / claim)
        return str(directory.absolute() / below)


_INTERRUPTED = "its upload was interrupted"


def _interrupted(upload: Upload) -> str:
    sent = f": {upload.sent[0]} of {upload.files} files are there" if upload.sent and upload.files else ""
    return f"{_INTERRUPTED}{sent}"
