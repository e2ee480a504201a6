"""A training step for pipelines in Python, such as those of Prefect, Dagster and Flyte."""

import subprocess


def train(manifest: str, name: str) -> None:
    """Run the job `name`, print its logs, and raise if it fails. An interrupt of the step deletes the job."""
    command = ["allranks", "submit", manifest, "--set", f"metadata.name={name}", "--logs", "--attach"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
        except BaseException:
            process.terminate()
            process.communicate()
            raise
    if process.returncode:
        raise RuntimeError(f"{name} has not succeeded: see the end of the log")
