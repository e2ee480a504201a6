"""A DAG of Airflow 3 with a training step. The worker has `allranks[cli]`, and a kubeconfig or a service account."""

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param

with DAG("train", schedule=None, params={"manifest": Param("/jobs/penguins.yaml", type="string")}) as dag:
    BashOperator(
        task_id="train",
        bash_command="exec allranks submit {{ params.manifest }} --logs --attach "
        "--set metadata.name=train-{{ dag_run.run_after | ts_nodash | lower }}",
        append_env=True,
        retries=2,
    )
