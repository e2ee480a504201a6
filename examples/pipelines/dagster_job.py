"""A job of Dagster with a training step."""

import step
from dagster import OpExecutionContext, RetryPolicy, job, op


@op(config_schema={"manifest": str}, retry_policy=RetryPolicy(max_retries=2))
def train(context: OpExecutionContext) -> None:
    step.train(context.op_config["manifest"], f"train-{context.run_id}")


@job
def pipeline() -> None:
    train()
