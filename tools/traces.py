"""Runs the tests in memory and those that start programs in a clone of the last commit that is full of traces: runs of
earlier commands, hostile variables, a hostile home, another language and time zone. The part `traces` of tools/test.py.

    tools/traces.py                                  the parts unit and processes
    tools/traces.py tests/unit/cli/test_report.py    these tests alone

A test that fails here alone depends on something that is not in the repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

RUNS = {"penguins": "raise SystemExit(3)", "demo": "print('loss 0.1')", "sine": "print('loss 0.1')"}
"""Names of jobs that tests use as well -> program."""

HOME = {
    ".kube/config": "not: [a, kubeconfig",
    ".gitconfig": "[commit]\n\tgpgsign = true\n[core]\n\thooksPath = /nonexistent\n\tautocrlf = true\n",
    ".aws/config": "[default]\nregion = mars-1\nendpoint_url = http://127.0.0.1:9\n",
    ".config/pip/pip.conf": "[global]\nindex-url = http://127.0.0.1:9\nrequire-virtualenv = true\nuser = true\n",
    ".config/matplotlib/matplotlibrc": "backend: nonsense\n",
    ".cache/allranks/inputs/rubbish": "rubbish",
    ".netrc": "machine 127.0.0.1 login me password wrong\n",
    "python/sitecustomize.py": "raise SystemExit('PYTHONPATH of the user')\n",
    "python/yaml.py": "raise ImportError('PYTHONPATH of the user')\n",
}  # fmt: skip

VARIABLES = """
ALLRANKS_ATTEMPT=7 ALLRANKS_INDEX=7 ALLRANKS_JOB=wrong ALLRANKS_JOB_UID=wrong ALLRANKS_ROLE=wrong ALLRANKS_RANK=7
ALLRANKS_PORT=7 ALLRANKS_HANG_SECONDS=7 ALLRANKS_CACHE=/nonexistent ALLRANKS_ARCHIVE=/nonexistent
ALLRANKS_CHECKPOINT_DIR=/nonexistent ALLRANKS_REPORT_URL=http://127.0.0.1:9 ALLRANKS_REPORT_TOKEN_FILE=/nonexistent
ALLRANKS_IMAGE=wrong:1 ALLRANKS_NAMESPACES=wrong ALLRANKS_NO_REPORTS=1 RANK=5 WORLD_SIZE=9 LOCAL_RANK=5
LOCAL_WORLD_SIZE=9 OMPI_COMM_WORLD_RANK=5 PMI_RANK=5 MASTER_ADDR=wrong MASTER_PORT=1 TF_CONFIG={
CUDA_VISIBLE_DEVICES= NCCL_DEBUG=WRONG RAY_ADDRESS=wrong:1 KUBECONFIG=/nonexistent KUBERNETES_SERVICE_HOST=127.0.0.1
KUBERNETES_SERVICE_PORT=9 HELM_NAMESPACE=wrong NO_COLOR=1 FORCE_COLOR=1 CLICOLOR_FORCE=1 TERM=dumb COLUMNS=23
LINES=5 LANG=tr_TR.UTF-8 LC_ALL=tr_TR.UTF-8 LC_NUMERIC=de_DE.UTF-8 TZ=Pacific/Chatham
PIP_INDEX_URL=http://127.0.0.1:9 PIP_REQUIRE_VIRTUALENV=1 UV_INDEX_URL=http://127.0.0.1:9 UV_OFFLINE=1
PYTHONWARNINGS=error PYTHONOPTIMIZE=2 PYTHONHASHSEED=1 PYTHONIOENCODING=latin-1 WANDB_MODE=online
WANDB_API_KEY=wrong HF_HOME=/nonexistent HF_TOKEN=wrong HF_ENDPOINT=http://127.0.0.1:9 XDG_CACHE_HOME=/nonexistent
XDG_CONFIG_HOME=/nonexistent XDG_DATA_HOME=/nonexistent XDG_STATE_HOME=/nonexistent HTTP_PROXY=http://127.0.0.1:9
HTTPS_PROXY=http://127.0.0.1:9 http_proxy=http://127.0.0.1:9 ALL_PROXY=http://127.0.0.1:9 AWS_ACCESS_KEY_ID=wrong
AWS_SECRET_ACCESS_KEY=wrong AWS_PROFILE=wrong AWS_REGION=wrong AWS_ENDPOINT_URL=http://127.0.0.1:9
GOOGLE_APPLICATION_CREDENTIALS=/nonexistent AZURE_STORAGE_ACCOUNT=wrong GOFLAGS=-wrong MAKEFLAGS=n
GIT_DIR=/nonexistent GIT_INDEX_FILE=/nonexistent GIT_AUTHOR_NAME= SSL_CERT_FILE=/nonexistent
REQUESTS_CA_BUNDLE=/nonexistent
"""


def main() -> None:
    """Exit with the status of the tests."""
    with tempfile.TemporaryDirectory(prefix="allranks-traces-") as folder:
        clone, home = Path(folder) / "clone", Path(folder) / "home"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        subprocess.run(["make", "--no-print-directory", ".venv/.installed"], cwd=clone, check=True)
        leave_runs(clone)
        for name, text in HOME.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        variables = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        variables |= dict(word.split("=", 1) for word in VARIABLES.split())
        variables |= {"HOME": str(home), "PYTHONPATH": str(home / "python")}
        python = [clone / ".venv" / "bin" / "python", "-E"]  # as the Makefile starts it
        command = ["-m", "pytest", "-q", *sys.argv[1:]] if sys.argv[1:] else ["tools/test.py", "unit", "processes"]
        sys.exit(subprocess.run([*python, *command], cwd=clone, env=variables).returncode)


def leave_runs(clone: Path) -> None:
    """Leave what `make demo`, local runs and mistakes leave in the working directory."""
    for name, program in RUNS.items():
        (clone / f"{name}.py").write_text(program)
        command = [clone / ".venv" / "bin" / "allranks", "run", "--framework", "spmd", f"{name}.py"]
        subprocess.run(command, cwd=clone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
    if not all((clone / "runs" / name).is_dir() for name in RUNS):
        sys.exit(f"{clone}/runs does not have the runs of {', '.join(RUNS)}")
    (clone / ".allranksignore").write_text("*\n")
    (clone / "job.yaml").write_text("not: [a, manifest")


if __name__ == "__main__":
    main()
