"""A pipeline of Kubeflow Pipelines 2 with a training step: `python kubeflow_pipeline.py` writes pipeline.yaml."""

from kfp import compiler, dsl

SCRIPT = """exec allranks submit - --set "metadata.name=train-$1" --logs --attach <<END
$0
END
"""
"""`exec` lets allranks get the SIGTERM of a pod that is deleted."""


@dsl.container_component
def train(manifest: str, run: str):
    return dsl.ContainerSpec(
        image="ghcr.io/allranks/operator:0.2.0", command=["sh", "-c", SCRIPT], args=[manifest, run]
    )


@dsl.pipeline(name="train")
def pipeline(manifest: str):
    train(manifest=manifest, run=dsl.PIPELINE_JOB_ID_PLACEHOLDER).set_retry(2).set_caching_options(False)


if __name__ == "__main__":
    compiler.Compiler().compile(pipeline, "pipeline.yaml")
