"""A workflow of Flyte with a training step. The image of the task has `allranks[cli]`."""

import flytekit
import step
from flytekit import task, workflow


@task(retries=2)
def train(manifest: str) -> None:
    step.train(manifest, f"train-{flytekit.current_context().execution_id.name}")


@workflow
def pipeline(manifest: str) -> None:
    train(manifest=manifest)
