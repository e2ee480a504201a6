"""A flow of Prefect 3 with a training step: `python prefect_flow.py job.yaml`, or deployed."""

import sys

import step
from prefect import flow, task
from prefect.runtime import flow_run

train = task(retries=2, log_prints=True)(step.train)


@flow
def pipeline(manifest: str) -> None:
    train(manifest, f"train-{flow_run.id}")


if __name__ == "__main__":
    pipeline(sys.argv[1])
