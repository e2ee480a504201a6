"""What the Python blocks of the documentation need around them to run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("train/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """A block, found by a part of its text, and the code before and after it."""

    part: str
    before: str = ""
    after: str = ""
    framework: str = ""
    """The package that it needs; empty for none."""
    elsewhere: str = ""
    """The file whose test runs it; empty if it runs as it is."""

    @property
    def text(self) -> str:
        [found] = {block for _, block in blocks() if self.part in block}
        return f"{self.before}\n{found}\n{self.after}\n"


def blocks() -> list[tuple[str, str]]:
    """(page, text) of all blocks."""
    return [(page.name, text) for page in PAGES for text in BLOCK.findall(page.read_text())]


MLFLOW = """
import contextlib, sys
from types import ModuleType

mlflow = sys.modules["mlflow"] = ModuleType("mlflow")
mlflow.set_experiment, mlflow.start_run = str, lambda run_id: contextlib.nullcontext()
"""
"""MLflow is in no environment of the tests. `tests/unit/report/test_mlflow.py` tests the function with its client."""

SNIPPETS = [
    Snippet("with mlflow.start_run(run_id=job_run_id()):", before=MLFLOW),
    Snippet("total = torch.ones(1)", elsewhere="tests/frameworks/test_first_program.py"),
    Snippet("return rate * dist.get_world_size()", elsewhere="tests/frameworks/test_sdk.py"),
    Snippet("loss = torch.tensor(lr * dist.get_rank())", elsewhere="tests/frameworks/test_sdk.py"),
    Snippet("best = allranks.run(train, 0.1, ranks=4", elsewhere="tests/apiserver/test_python_interface.py"),
    Snippet("job = allranks.submit(train, 0.1, ranks=4", elsewhere="tests/apiserver/test_python_interface.py"),
    Snippet("jobs = [allranks.submit(train, rate, ranks=4", elsewhere="tests/apiserver/test_python_interface.py"),
    Snippet('job = allranks.job("train-x7k2p")', elsewhere="tests/apiserver/test_python_interface.py"),
    Snippet('allranks.job("penguins").restart(code=".")', elsewhere="tests/apiserver/test_dev_cluster.py"),
    Snippet('values = allranks.history("penguins")', elsewhere="tests/frameworks/examples/test_trackers.py"),
    Snippet("except allranks.RankFailed as error:", elsewhere="tests/frameworks/test_sdk.py"),
    Snippet(
        'fsspec.url_to_fs(os.environ["ALLRANKS_INPUT_DATA"])',
        before='import os, pathlib\npathlib.Path("a.csv").touch()\nos.environ["ALLRANKS_INPUT_DATA"] = "."\n'
        "rank, ranks = 0, 1",
        after='assert name.endswith("a.csv"), name',
    ),
    Snippet('os.environ.get("ALLRANKS_BACKEND")', elsewhere="tests/frameworks/examples/test_launchers.py"),
    Snippet("jax.distributed.initialize()", elsewhere="train/common/jax.py"),
    Snippet(
        "from allranks.report.transformers import ReportCallback",
        elsewhere="tests/frameworks/examples/test_unchanged_programs.py",
    ),
    Snippet('label_selector={"ray.io/node-group": "gpu"}', elsewhere="tests/frameworks/examples/test_ray_cluster.py"),
    Snippet(
        "ScalingConfig(num_workers=int(",
        "import os\nfrom ray.train import ScalingConfig\nos.environ['ALLRANKS_RAY_WORKERS'] = '2'",
        framework="ray",
    ),
    Snippet(
        'RunConfig(name="run", storage_path=',
        "import os\nfrom ray.train import FailureConfig, RunConfig\nos.environ['ALLRANKS_CHECKPOINT_DIR'] = '/data'",
        framework="ray",
    ),
    Snippet(
        "from allranks.report.ray import ReportCallback", elsewhere="tests/frameworks/examples/test_ray_cluster.py"
    ),
    Snippet("from lightning import Trainer", elsewhere="tests/unit/report/test_frameworks.py"),
    Snippet("report(step=step, total_steps=total, loss=loss)", "step, total, loss = 1, 2, 0.5"),
    Snippet(
        "for step, (x, y) in enumerate(loader, start=1)",
        "loader, epochs, epoch, model, saved = [(0, [1, 2])] * 500, 1, 0, 'model', []\n"
        "train_step, save = lambda x, y: 0.5, saved.append",
        "assert saved == ['model']",
    ),
    Snippet("def report(**what): ...", after="report(step=1)"),
    Snippet(
        "path = resume_from()",
        "import os, pathlib, tempfile\n"
        "os.environ['ALLRANKS_CHECKPOINT_DIR'] = str(folder := pathlib.Path(tempfile.mkdtemp(dir='.')))\n"
        "total, train_step, load = 200, list, str\n"
        "def save(step):\n    file = folder / f'step-{step}.pt'\n    file.write_text('weights')\n    return file",
        "assert sorted(file.name for file in folder.glob('*.pt')) == ['step-100.pt', 'step-200.pt']",
    ),
    Snippet("from allranks.report import checkpoint_due, report", "first, total, train_step, save = 0, 2, list, exit"),
    Snippet(
        "from allranks.report.pytorch import checkpoint_due",
        elsewhere="tests/frameworks/examples/test_checkpoint_request.py",
    ),
    Snippet("from allranks.report import checkpoint_requested, report", "first, total, train_step = 0, 2, list"),
    Snippet(
        "from allranks.report.pytorch import checkpoint_requested",
        elsewhere="tests/frameworks/examples/test_checkpoint_request.py",
    ),
    Snippet(
        "with waiting():",
        "class dist:\n    flags = []\n    all_reduce = flags.append\nflag = True",
        "assert dist.flags == [True]",
    ),
    Snippet("in loading(loader):", "loader = [1, 2]", "assert batch == 2"),
    Snippet(
        'sorted(root.glob("attempt-*/*.pt")',
        "import os, tempfile\nfrom pathlib import Path\nclaim = Path(tempfile.mkdtemp(dir='.'))\n"
        "os.environ |= {'ALLRANKS_CHECKPOINT_DIR': str(claim), 'ALLRANKS_ATTEMPT': '10'}\n"
        "for name in ('attempt-2/7.pt', 'attempt-9/3.pt', 'attempt-9/1.pt'):\n"
        "    (claim / name).parent.mkdir(exist_ok=True)\n    (claim / name).touch()",
        "assert resume_from == claim / 'attempt-9' / '3.pt'\nassert folder.is_dir()",
    ),
    Snippet(
        "except Replaced as replaced:",
        "import os, sys, tempfile\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(ROOT / 'train')!r})\n"
        "from common.claims import EXIT_CODE, Claim, Replaced\n"
        "os.environ['ALLRANKS_CHECKPOINT_DIR'] = tempfile.mkdtemp(dir='.')\nepoch, content = 3, b'weights'",
        "[file] = claim.directory.glob('epoch-00003*.pt')\nassert file.read_bytes() == content",
    ),
    Snippet(
        "instrument(model)",
        "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\nnet = torch.nn.Linear(2, 1)",
        # Without the shutdown of the interpreter, in which the threads of gloo sometimes abort the process.
        "model(torch.ones(1, 2)).sum().backward()\nimport os\nos._exit(0)",
        framework="torch",
    ),
    Snippet(
        "mark_gradients_ready(tape.gradient",
        "import keras\nimport tensorflow as tf\nnet = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "optimizer = keras.optimizers.SGD()\nwith tf.GradientTape() as tape:\n"
        "    loss = tf.reduce_sum(net(tf.ones((1, 2))))",
        "assert optimizer.iterations == 1",
        framework="tensorflow",
    ),
    Snippet(
        "mean_of_all = jax.shard_map(",
        "import jax\nimport numpy as np\nfrom jax.sharding import Mesh, PartitionSpec as P\n"
        "mesh = Mesh(np.array(jax.devices()), ('data',))\n"
        "def mean_loss(net, x, y):\n    return ((x @ net - y) ** 2).mean()",
        "loss, gradients = jax.jit(mean_of_all)(np.ones(2), np.ones((4, 2)), np.zeros(4))\n"
        "assert (float(loss), gradients.tolist()) == (4.0, [4.0, 4.0])",
        framework="jax",
    ),
    Snippet(
        "callbacks=[checkpoints, ReportCallback(",
        "import keras\nimport tensorflow as tf\nmodel = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "data = tf.data.Dataset.from_tensors((tf.ones((4, 2)), tf.ones((4, 1))))\n"
        "checkpoints = keras.callbacks.ModelCheckpoint('{epoch}.keras')",
        framework="tensorflow",
    ),
]
