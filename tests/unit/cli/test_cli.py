"""Output and exit status of commands that need no cluster, except `allranks run`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from allranks.cli.main import COMMANDS, HIDDEN, SECTIONS, SYNONYMS, cli
from allranks.version import __version__
from support.builders import manifest, table

JOB = yaml.safe_dump(manifest())
BAD = yaml.safe_dump(manifest(env=[{"name": "ALLRANKS_X", "value": "a"}], roles={"worker": {"replica": 1}}))
CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: runs}\n"
RESERVED = "variables that begin with ALLRANKS_ are set by allranks: choose another name"
POOL = "apiVersion: allranks.dev/v1alpha1\nkind: TrainingPool\nmetadata: {name: gpu}\nspec: {gpu: {count: 8}}\n"


def allranks(*args: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, args, input=stdin, catch_exceptions=False)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- help and version ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_and_has_examples(flag):
    result = allranks(flag)
    assert result.exit_code == 0
    for name, (_, what) in COMMANDS.items():
        assert f"  {name}" in result.stdout
        assert what.split()[0] in result.stdout
    for text in ("Examples:", "Documentation:", "docs/index.md"):
        assert text in result.stdout
    listed = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ") and line.strip()]
    assert not set(HIDDEN) & set(listed)


def test_every_command_is_in_a_section_of_the_help():
    assert sorted(COMMANDS) == sorted(name for names in SECTIONS.values() for name in names)


@pytest.mark.parametrize("command", [*COMMANDS, *HIDDEN])
def test_every_command_has_help(command):
    result = allranks(command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: cli {command}")


def test_version():
    assert allranks("--version").stdout == f"allranks, version {__version__}\n"
    python = platform.python_version()
    assert allranks("version").stdout == f"allranks {__version__}, Python {python} ({sys.executable})\n"
    facts = {"allranks": __version__, "python": python, "executable": sys.executable}
    assert json.loads(allranks("version", "-o", "json").stdout) == facts
    assert yaml.safe_load(allranks("version", "-o", "yaml").stdout) == facts


def test_python_m_allranks_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "allranks", "--version"], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == f"allranks, version {__version__}\n"


def test_an_unknown_command_has_status_2():
    result = allranks("rnu")
    assert result.exit_code == 2
    assert "No such command 'rnu'" in result.stderr


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("valdate", "No such command 'valdate'. Did you mean 'validate'?"),
        ("rnu", "No such command 'rnu'. Did you mean 'run'?"),
        ("sub", "No such command 'sub'. Did you mean 'submit'?"),
        ("Get", "No such command 'Get'. Did you mean 'get'?"),
        ("ls", "No such command 'ls'. Did you mean 'get'?"),
        ("apply", "No such command 'apply'. Did you mean 'submit'?"),
        ("rm", "No such command 'rm'. Did you mean 'delete'?"),
        ("status", "No such command 'status'. Did you mean 'describe'?"),
        ("help", "No such command 'help'. Did you mean '--help'?"),
        ("runs lsit", "No such command 'lsit'. Did you mean 'list'?"),
        ("xyzzy", "No such command 'xyzzy'.\n"),
        ("operato", "No such command 'operato'.\n"),
    ],
)
def test_an_unknown_command_suggests_the_one_that_was_meant(command, hint):
    result = allranks(*command.split())
    assert result.exit_code == 2
    assert hint in result.stderr


def test_every_synonym_is_a_command():
    assert set(SYNONYMS.values()) <= {*COMMANDS, "--help"}
    assert not set(SYNONYMS) & {*COMMANDS, *HIDDEN}


# --- validate --------------------------------------------------------------------------------------------------------


NOT_READ = (
    "podSecurity: Auto: pods have the user of the image; where the namespace enforces restricted pods, "
    "an image that runs as root does not start (neither is read here)"
)


def test_a_valid_manifest_prints_one_line_and_what_its_pods_depend_on(here):
    (here / "job.yaml").write_text(JOB)
    result = allranks("validate", "job.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "job is valid: pytorch, 2 pods\n",
        f"note: {NOT_READ}\n",
    )


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"podSecurity": "Restricted"}, "an image that runs as root does not start, and the image is not read here"),
        (
            {"podSecurity": "Image"},
            "podSecurity: Image: pods have the user of the image, and a namespace that enforces",
        ),
        ({"template": {"spec": {"securityContext": {"runAsUser": 0}}}}, "the template asks for root: a namespace that"),
        ({"template": {"spec": {"securityContext": {"runAsUser": 1000}}}}, ""),
        (
            {"template": {"spec": {"containers": [{"name": "trainer", "securityContext": {"privileged": True}}]}}},
            "a privileged container: a namespace that",
        ),
    ],
)
def test_validate_says_what_the_user_of_the_pods_depends_on(fields, note):
    result = allranks("validate", "-", stdin=yaml.safe_dump(manifest(**fields)))
    assert result.exit_code == 0
    assert note in result.stderr
    assert bool(note) == bool(result.stderr)


@pytest.mark.parametrize(("enforce", "level"), [((), "Baseline"), (("--enforce", "restricted"), "Restricted")])
def test_render_prints_the_level_of_the_pods_and_why(enforce, level):
    result = allranks("render", "-", "-o", "json", *enforce, stdin=JOB)
    pods = [item for item in map(json.loads, result.stdout.splitlines()) if item["kind"] == "Pod"]
    assert {pod["metadata"]["annotations"]["allranks.dev/pod-security"].partition(":")[0] for pod in pods} == {level}
    assert {pod["spec"]["securityContext"].get("runAsNonRoot", False) for pod in pods} == {bool(enforce)}
    assert ("--enforce restricted prints" in result.stderr) is not bool(enforce)


def test_an_invalid_manifest_prints_every_error_with_file_job_and_field(here):
    (here / "job.yaml").write_text(BAD)
    result = allranks("validate", "job.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert sorted(result.stderr.splitlines()) == [
        f"error: job.yaml: job: spec.env: {RESERVED}",
        "error: job.yaml: job: spec.roles.worker.replica: unknown field, did you mean replicas?",
    ]


def test_an_invalid_manifest_as_json():
    result = allranks("validate", "-", "-o", "json", stdin=BAD)
    assert result.exit_code == 2
    result_data = json.loads(result.stdout)
    assert result_data["valid"] is False
    place = {"file": "stdin", "document": 1, "name": "job", "severity": "error"}
    assert sorted(result_data["problems"], key=lambda problem: problem["path"]) == [
        place | {"path": "spec.env", "message": RESERVED},
        place | {"path": "spec.roles.worker.replica", "message": "unknown field, did you mean replicas?"},
    ]


def test_valid_manifests_as_json():
    result = allranks(
        "validate", "-", "-o", "json", stdin=f"{JOB}---\n{CLAIM}---\n{yaml.safe_dump(manifest(name='b'))}"
    )
    assert result.exit_code == 0
    texts = {"job": NOT_READ, "b": NOT_READ}
    expected = {"valid": True, "jobs": ["job", "b"], "pools": [], "podSecurity": texts, "problems": []}
    assert json.loads(result.stdout) == expected


def test_pools_are_validated_alone_or_with_jobs():
    alone = allranks("validate", "-", stdin=POOL)
    assert (alone.exit_code, alone.stdout) == (0, "gpu is valid: a TrainingPool\n")
    both = allranks("validate", "-", "-o", "json", stdin=f"{POOL}---\n{JOB}")
    expected = {"valid": True, "jobs": ["job"], "pools": ["gpu"], "podSecurity": {"job": NOT_READ}, "problems": []}
    assert json.loads(both.stdout) == expected


@table(
    ("by its schema", {"gpu": {"count": 0}}, "spec.gpu.count: should be greater than or equal to 1"),
    (
        "by its rules",
        {"env": [{"name": "TF_CONFIG", "value": "x"}]},
        "spec.env: variables by which the ranks of tensorflow find one another are set by allranks: remove TF_CONFIG",
    ),
    (
        "inside its template",
        {"template": {"spec": {"restartPolicy": "Always"}}},
        "spec.template.spec.restartPolicy: must be Never or OnFailure: with Always a finished rank would run again",
    ),
)
def test_an_invalid_pool_is_rejected(case):
    spec, message = case
    document = yaml.safe_dump(yaml.safe_load(POOL) | {"spec": spec})
    for command in ("validate", "render"):
        result = allranks(command, "-", stdin=f"{JOB}---\n{document}")
        assert (result.exit_code, result.stderr) == (2, f"error: stdin: gpu: {message}\n")


def test_all_documents_of_all_files_are_validated(here):
    bad = yaml.safe_dump(yaml.safe_load(BAD) | {"metadata": {"name": "bad"}})
    (here / "a.yaml").write_text(f"{JOB}---\n{bad}---\n")
    (here / "b.yaml").write_text(yaml.safe_dump(manifest(name="B")))
    result = allranks("validate", "a.yaml", "b.yaml", "gone.yaml")
    assert result.exit_code == 2
    assert sorted(line.split(": ")[1] for line in result.stderr.splitlines()) == ["a.yaml"] * 2 + [
        "b.yaml",
        "gone.yaml",
    ]


def test_errors_inside_a_template_are_printed():
    document = manifest(template={"spec": {"restartPolicy": "Always"}})
    result = allranks("validate", "-", stdin=yaml.safe_dump(document))
    assert (result.exit_code, result.stderr) == (
        2,
        "error: stdin: job: spec.template.spec.restartPolicy: must be Never or OnFailure: with Always a finished "
        "rank would run again\n",
    )


# Case, content of stdin, error.
UNREADABLE: list[tuple[str, str | bytes, str]] = [
    (
        "truncated YAML",
        "a: [1\nb: 2",
        "stdin:2:2: is not YAML: did not find expected ',' or ']'\n  1 | a: [1\n  2 | b: 2\n    |  ^",
    ),
    (
        "an extra colon",
        "spec:\n  a: b: c",
        "stdin:2:7: is not YAML: mapping values are not allowed in this context\n"
        "  1 | spec:\n  2 |   a: b: c\n    |       ^",
    ),
    (
        "a tab",
        "\ta: 1",
        "stdin:1:1: is not YAML: found character that cannot start any token\n  1 |  a: 1\n    | ^",
    ),
    (
        "a key that begins too far to the left",
        "spec:\n  roles:\n    worker: {}\n   master: {}\n",
        "stdin:4:4: is not YAML: did not find expected key\n  3 |     worker: {}\n  4 |    master: {}\n    |    ^",
    ),
    (
        "a Python tag",
        "a: !!python/name:x 1",
        "stdin:1:4: is not YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:x'\n"
        "  1 | a: !!python/name:x 1\n    |    ^",
    ),
    (
        "a control character",
        "a: \x01",
        "stdin: is not YAML: unacceptable character #x0001: control characters are not allowed",
    ),
    ("an invalid date", "a: 2026-13-45", "stdin: is not YAML: month must be in 1..12"),
    ("invalid UTF-8", b"a: \xff\xfe", "stdin: is not a UTF-8 text file"),
    ("an empty file", "", "stdin: contains no DistributedTraining"),
    ("a comment", "# later\n", "stdin: contains no DistributedTraining"),
    ("another kind", CLAIM, "stdin: contains no DistributedTraining, only PersistentVolumeClaim"),
    ("a list", "[1]", "stdin: a manifest must be a mapping, not a list"),
    ("a word", "hello", "stdin: a manifest must be a mapping, not a string"),
]


@table(*UNREADABLE)
def test_unreadable_yaml_is_reported_with_its_line(case):
    text, error = case
    result = allranks("validate", "-", stdin=text)
    assert (result.exit_code, result.stderr) == (2, f"error: {error}\n")


def test_ctrl_c_before_a_command_has_started_prints_no_traceback(monkeypatch):
    """Imports take a second, on a busy machine longer."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    result = allranks("validate", "-", stdin="")
    assert (result.exit_code, result.output) == (130, "")


def test_ctrl_c_while_the_command_line_is_imported_prints_no_traceback(tmp_path):
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-m", "allranks", "version"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_unreadable_files_are_reported(here):
    (here / "d").mkdir()
    (here / "latin.yaml").write_bytes(b"a: \xe9\n")
    result = allranks("validate", "gone.yaml", "d", "latin.yaml")
    assert (result.exit_code, result.stderr.splitlines()) == (
        2,
        [
            "error: gone.yaml: cannot be read: no such file or directory",
            "error: d: cannot be read: is a directory",
            "error: latin.yaml: is not a UTF-8 text file",
        ],
    )


# --- render ----------------------------------------------------------------------------------------------------------


def rendered(*args: str, stdin: str = JOB) -> list[dict[str, Any]]:
    result = allranks("render", "-", *args, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def names(objects: list[dict[str, Any]]) -> list[str]:
    return [f"{thing['kind']} {thing['metadata']['name']}" for thing in objects]


def test_render_prints_the_objects_of_the_first_attempt():
    assert names(rendered()) == ["Service job", "Pod job-worker-0-0", "Pod job-worker-1-0"]


def test_render_prints_the_objects_of_every_job():
    two = f"{JOB}---\n{yaml.safe_dump(manifest(name='b', roles={'worker': 1}))}"
    assert names(rendered(stdin=two))[3:] == ["Service b", "Pod b-worker-0-0"]


def test_render_as_json_prints_the_same_objects_one_a_line():
    result = allranks("render", "-", "-o", "json", stdin=JOB)
    assert [json.loads(line) for line in result.stdout.splitlines()] == rendered()


def test_render_prints_no_yaml_anchors():
    result = allranks("render", "-", stdin=JOB)
    assert "&id" not in result.stdout
    assert "*id" not in result.stdout


def test_render_of_an_invalid_manifest_prints_only_errors():
    result = allranks("render", "-", stdin=BAD)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 2


def test_render_uses_the_given_helper_image():
    job = yaml.safe_dump(manifest("horovod", {"worker": 1}))
    (pod,) = (thing for thing in rendered("--helper-image", "mine:2", stdin=job) if thing["kind"] == "Pod")
    assert pod["spec"]["initContainers"][0]["image"] == "mine:2"


def test_rendered_owner_references_have_a_zero_uid():
    (owner,) = rendered()[0]["metadata"]["ownerReferences"]
    assert owner["uid"] == "00000000-0000-0000-0000-000000000000"


def on_pool() -> str:
    return yaml.safe_dump(manifest(pool="gpu"))


def limits(result: Result) -> list[dict[str, int] | None]:
    made = [document for document in yaml.safe_load_all(result.stdout) if document["kind"] == "Pod"]
    return [document["spec"]["containers"][0].get("resources", {}).get("limits") for document in made]


def test_render_applies_a_pool_in_the_files_to_the_jobs_that_name_it(here):
    (here / "pool.yaml").write_text(POOL)
    result = allranks("render", "-", "-f", "pool.yaml", stdin=f"{on_pool()}---\n{yaml.safe_dump(manifest(name='b'))}")
    assert (result.exit_code, limits(result)) == (0, [{"nvidia.com/gpu": 8}, {"nvidia.com/gpu": 8}, None, None])


def test_two_pools_with_one_name_are_an_error():
    second = POOL.replace("8", "4")
    result = allranks("render", "-", stdin=f"{POOL}---\n{second}---\n{on_pool()}")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: stdin: gpu: metadata.name: another TrainingPool has the same name, gpu (document 1 of stdin): rename "
        "or remove one of them\n",
    )


def test_render_of_a_job_without_its_pool_says_what_to_add():
    result = allranks("render", "-", stdin=on_pool())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        'error: job: spec.pool: TrainingPool "gpu" is not in these files: add it, for example -f pool.yaml '
        "(kubectl get trainingpool -o yaml prints the cluster's)\n"
    )


def test_render_names_the_role_whose_pool_is_missing():
    job = manifest(pool="gpu", roles={"master": 1, "worker": {"replicas": 1, "pool": "cpu"}})
    result = allranks("render", "-", stdin=f"{POOL}---\n{yaml.safe_dump(job)}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'error: job: spec.roles.worker.pool: TrainingPool "cpu" is not in these files' in result.stderr


def test_render_of_only_a_pool_is_an_error():
    result = allranks("render", "-", stdin=POOL)
    assert (result.exit_code, result.stderr) == (2, "error: stdin: contains no DistributedTraining\n")


def test_run_ignores_pools():
    result = allranks("run", "-", "--dry-run", stdin=f"{POOL}---\n{on_pool()}")
    assert (result.exit_code, limits(result)) == (0, [None, None])


# --- --set -----------------------------------------------------------------------------------------------------------

# Case, overrides, path in the first pod, value.
SETS = [
    ("a field of spec", ["image=b:2"], ("spec", "containers", 0, "image"), "b:2"),
    ("a field with spec in front", ["spec.image=b:2"], ("spec", "containers", 0, "image"), "b:2"),
    ("a list", ["command=[a, b]"], ("spec", "containers", 0, "command"), ["a", "b"]),
    ("an item of a list", ["command[1]=other.py"], ("spec", "containers", 0, "command"), ["python3", "other.py"]),
    ("the name", ["metadata.name=other"], ("metadata", "name"), "other-worker-0-0"),
    ("missing maps are created", ["template.spec.nodeSelector.gpu=h100"], ("spec", "nodeSelector"), {"gpu": "h100"}),
    (
        "a name with dots in brackets",
        ["resources.limits[nvidia.com/gpu]=2"],
        ("spec", "containers", 0, "resources", "limits"),
        {"nvidia.com/gpu": 2},
    ),
    ("a value with an equals sign", ["args=[--lr=0.1]"], ("spec", "containers", 0, "args"), ["--lr=0.1"]),
    ("the last one wins", ["image=b:2", "image=c:3"], ("spec", "containers", 0, "image"), "c:3"),
]


@table(*SETS)
def test_set(case):
    overrides, path, value = case
    found: Any = next(
        thing for thing in rendered(*(part for item in overrides for part in ("--set", item))) if thing["kind"] == "Pod"
    )
    for step in path:
        found = found[step]
    assert found == value


def test_set_changes_the_number_of_pods():
    assert len(rendered("--set", "roles.worker.replicas=3")) == 4


def test_set_applies_to_every_job():
    two = f"{JOB}---\n{CLAIM}---\n{yaml.safe_dump(manifest(name='b'))}"
    objects = rendered("--set", "roles.worker.replicas=1", stdin=two)
    assert names(objects) == ["Service job", "Pod job-worker-0-0", "Service b", "Pod b-worker-0-0"]


# Case, override, error.
BAD_SETS = [
    ("without a value", "image", "--set image: must be path=value, for example roles.worker.replicas=2"),
    ("without a path", "=1", "--set =1: must be path=value, for example roles.worker.replicas=2"),
    (
        "a value that is not YAML",
        "image=a: b: c",
        "--set image=a: b: c: the value is not YAML",
    ),
    ("an unknown field", "imag=1", "stdin: job: spec.imag: unknown field, did you mean image?"),
    ("a path through a string", "image.x=1", "stdin: job: spec.image.x: --set: spec.image is not a map"),
    ("a missing item", "command[7]=x", "stdin: job: spec.command[7]: --set: the list has no item 7"),
    (
        "a misspelt spec",
        "spc.roles.worker.replicas=2",
        "--set spc.roles.worker.replicas=2: there is no field spc, did you mean spec.roles.worker.replicas?",
    ),
    (
        "an item of a list that is missing",
        "template.spec.containers[0].image=x",
        "stdin: job: spec.template.spec.containers[0].image: --set: there is no list spec.template.spec.containers: "
        "set the whole list",
    ),
    ("a name", "name=x", "stdin: job: spec.name: unknown field: belongs under metadata.name"),
    (
        "a wrong type",
        "roles.worker.replicas=two",
        "stdin: job: spec.roles.worker.replicas: must be a whole number, not a string",
    ),
]


@table(*BAD_SETS)
def test_bad_set(case):
    override, error = case
    result = allranks("validate", "-", "--set", override, stdin=JOB)
    assert (result.exit_code, result.stderr) == (2, f"error: {error}\n")


# --- inject ----------------------------------------------------------------------------------------------------------


def test_inject_copies_only_the_helpers_and_the_report_library(here):
    assert allranks("inject", "made/here").exit_code == 0
    made = here / "made" / "here"
    copied = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert {"horovod_gloo.py", "watch.py", "startup/sitecustomize.py"} <= copied
    assert {"python/allranks/__init__.py", "python/allranks/report/__init__.py"} <= copied
    assert "__init__.py" not in copied
    entry_points = {
        f"startup/allranks_automatic_reports-1.dist-info/{name}" for name in ("METADATA", "entry_points.txt")
    }
    assert all(name.endswith((".py", ".sh")) for name in copied - entry_points)
    assert entry_points <= copied
    assert sorted(path.name for path in (made / "python" / "allranks").iterdir()) == [
        "__init__.py",
        "report",
        "version.py",
    ]


def test_a_program_can_report_with_the_copied_library(here):
    assert allranks("inject", "made").exit_code == 0
    program = "from allranks.report import report; report(step=1); import sys; print(sys.modules['allranks'].__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(here / "made" / "python")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.stdout, done.stderr) == (f"{here}/made/python/allranks/__init__.py\n", "")


def test_inject_can_run_twice(here):
    assert [allranks("inject", ".").exit_code for _ in range(2)] == [0, 0]


def test_inject_into_a_directory_that_is_not_writable(here):
    (here / "file").write_text("")
    result = allranks("inject", "file/below")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot write to file/below: ")


# --- FILE arguments --------------------------------------------------------------------------------------------------


def test_files_can_be_given_with_f_as_in_kubectl(here):
    (here / "one.yaml").write_text(JOB)
    assert allranks("validate", "-f", "-", stdin=JOB).exit_code == 0
    (here / "two.yaml").write_text(yaml.safe_dump(manifest(name="two")))
    both = allranks("validate", "one.yaml", "-f", "two.yaml")
    assert (both.exit_code, both.stdout.count("is valid")) == (0, 2)


@pytest.mark.parametrize("words", [[], ["--"], ["--", "--lr", "0.1"], ["--", ""]])
def test_arguments_without_a_program_are_an_error(words):
    result = allranks("run", *words)
    assert result.exit_code == 2
    assert "no program given: specify a FILE" in result.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("validate", "no manifest given: specify a FILE, or - for standard input."),
        ("render", "no manifest given: specify a FILE, or - for standard input."),
    ],
)
def test_a_missing_file_argument_is_an_error(command, message):
    result = allranks(command)
    assert result.exit_code == 2
    assert message in result.stderr


def test_as_a_kubectl_plugin_usage_names_kubectl():
    program = (
        "import sys\nsys.argv = ['/bin/kubectl-allranks', 'get', '--help']\nfrom allranks.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.startswith("Usage: kubectl allranks get ")
