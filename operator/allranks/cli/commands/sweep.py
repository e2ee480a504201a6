"""`allranks sweep`: searches for the best parameters of a job on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.commands.run import PROGRAM_ARGUMENTS, WithProgramArguments
from allranks.cli.completers import complete_files
from allranks.cli.options import (
    BAD_MANIFEST,
    Count,
    code_option,
    grace_period_option,
    mapped_volumes,
    print_error,
    print_problem,
    set_option,
    volume_option,
    workdir_option,
)

if TYPE_CHECKING:
    from allranks.authoring.sweep_manifests import LoadedSweep

EXAMPLES = """\b
Examples:
  allranks sweep examples/penguins-sweep.yaml
  allranks sweep train.py -n 2 --param lr=log:1e-4..1e-1 --metric loss --trials 20 -- --epochs 3
  allranks sweep job.yaml --param lr=log:1e-4..1e-1 --param batch=32,64 --metric loss --goal min --trials 20
  allranks sweep job.yaml --param lr=0.1,0.01 --metric accuracy --goal max --algorithm grid > best.yaml
  allranks sweep job.yaml --param lr=log:1e-4..1e-1 --metric loss --trials 20 --parallel 4 --stop asha
  allranks sweep job.yaml --param lr=0.1,0.01 --metric loss --trials 2 --dry-run | kubectl apply -f -
  allranks sweep job.yaml --param delay=exponential:0.5 --trials 10
\b
Exit status:
  0 a trial succeeded, 1 none did, 2 nothing was started, 130 interrupted by Ctrl-C, 143 terminated by SIGTERM.
"""


@click.command(cls=WithProgramArguments, epilog=EXAMPLES)
@click.argument("file", metavar="FILE [-- ARGUMENTS]", shell_complete=complete_files)
@click.option("-n", "--replicas", type=Count(min=1), metavar="N", help="Ranks of each trial of a script. [default: 1]")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values of a parameter: log:LOW..HIGH, LOW..HIGH, int:LOW..HIGH, or A,B,C. ..STEP after a range is the "
    "difference between two values, /N the number of values for a grid. Distributions: normal:MU,SIGMA, "
    "lognormal:MU,SIGMA, gamma:SHAPE,SCALE, beta:ALPHA,BETA, exponential:MEAN. Repeatable.",
)
@click.option(
    "--metric",
    metavar="NAME",
    help="Metric that the trials are compared by, for example loss. Without it no trial is the best.",
)
@click.option(
    "--goal",
    type=click.Choice(["min", "max"], case_sensitive=False),
    help="Whether smaller values are better. [default: min]",
)
@click.option("--trials", type=Count(min=1), metavar="N", help="Number of trials. [default for a grid: all]")
@click.option("--parallel", type=Count(min=1), metavar="N", help="Trials at the same time. [default: 1]")
@click.option(
    "--algorithm",
    type=click.Choice(["random", "grid", "tpe"], case_sensitive=False),
    help="How values are chosen. [default: random; grid for lists of values without --trials]",
)
@click.option("--seed", type=Count(min=0), metavar="N", help="Seed of random values. [default: 0]")
@click.option(
    "--stop",
    type=click.Choice(["asha", "median"], case_sensitive=False),
    help="Stop trials that are worse than others early.",
)
@click.option("--min-steps", type=Count(min=1), metavar="N", help="Steps before the first comparison.")
@click.option(
    "--factor", type=Count(min=2), metavar="N", help="With --stop: steps between comparisons grow by it. [default: 3]"
)
@set_option
@code_option
@volume_option
@workdir_option
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the state, the trials and their logs. The directory of an interrupted sweep continues it. "
    "[default: runs/SWEEP/TIME]",
)
@grace_period_option
@click.option("--dry-run", is_flag=True, help="Print the TrainingSweep as YAML without running it.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), help="Print the sweep with its status at the end.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the result.")
@click.option("--no-color", "--no-colour", is_flag=True, help="Do not use colours.")
@click.pass_context
def sweep(
    ctx: click.Context, /, file: str, dry_run: bool, sets: tuple[str, ...], code: Path | None, **options: Any
) -> None:
    """Search for the best parameters of a job on this machine.

    FILE is a manifest of a TrainingSweep; or, with the options that describe the sweep, a manifest of a job or a Python
    script, whose arguments follow --. Each trial is a job
    with other values of the parameters: $(NAME) in its command, args and env is replaced by the value, which is also in
    the variable ALLRANKS_PARAM_NAME. A parameter that the job does not name is added to args as --NAME=VALUE.

    The manifest of the best trial is printed to stdout, ready to run. On a cluster, kubectl apply runs a TrainingSweep.
    """
    from allranks.authoring.yaml_text import dump
    from allranks.cli.live.sweep_session import run_sweep
    from allranks.errors import AllranksError

    try:
        loaded, document = _load(file, sets, code, options | {"arguments": ctx.meta[PROGRAM_ARGUMENTS]})
        if dry_run:
            click.echo(dump([document]), nl=False)
            return
        volumes = mapped_volumes(options["volumes"])
    except AllranksError as error:
        print_error(error)
        sys.exit(BAD_MANIFEST)
    sys.exit(
        run_sweep(
            loaded,
            run_dir=options["run_dir"],
            workdir=options["workdir"],
            volumes=volumes,
            grace=options["grace_period"],
            output=options["output"],
            quiet=options["quiet"],
            no_color=options["no_color"],
        )
    )


_OF_A_SWEEP = ("params", "metric", "goal", "trials", "parallel", "algorithm", "seed", "stop", "min_steps", "factor")
_GOALS = {"min": "Minimize", "max": "Maximize"}
_NAMES = {"random": "Random", "grid": "Grid", "tpe": "TPE", "asha": "ASHA", "median": "Median"}


def _load(file: str, sets: tuple[str, ...], code: Path | None, options: dict[str, Any]) -> tuple[LoadedSweep, Any]:
    """Return the loaded sweep and its document. Raise AllranksError."""
    from allranks.authoring import manifest_files
    from allranks.authoring.manifests import load, load_documents
    from allranks.authoring.script_job import is_script, make_job, read_script
    from allranks.authoring.sweep_manifests import is_job
    from allranks.errors import InvalidManifest

    if is_script(file):
        script = read_script(file, code or options["workdir"])
        document, notes = make_job(script, replicas=options["replicas"] or 1, arguments=options["arguments"])
        for note in notes:
            print_problem("note", note)
        documents: list[Any] = [document]
    else:
        if options["replicas"] or options["arguments"]:
            option = "--replicas" if options["replicas"] else "--"
            raise InvalidManifest([(option, "is for a script: change a manifest with --set")])
        content = manifest_files.read(file)
        documents = content if isinstance(content, list) else []
    jobs = [document for document in documents if is_job(document)]
    if jobs and not any(isinstance(item, dict) and item.get("kind") == "TrainingSweep" for item in documents):
        loaded = load_documents([(file, _sweep_of_job(file, jobs, options))], sets, code=code, local=True)
    else:
        _refuse_sweep_manifests(options)
        loaded = load([file], sets, sweeps_suffice=True, code=code, local=True)
    if len(loaded.sweeps) != 1:
        raise InvalidManifest([(file, f"has {len(loaded.sweeps)} sweeps: it must have one")])
    [document] = [item for item in loaded.documents if item.get("kind") == "TrainingSweep"]
    return loaded.sweeps[0], document


def _refuse_sweep_manifests(options: dict[str, Any]) -> None:
    """Raise InvalidManifest for an option that describes a sweep: the file has a TrainingSweep."""
    from allranks.errors import InvalidManifest

    name = next((name for name in _OF_A_SWEEP if options[name]), None)
    if name:
        option = "param" if name == "params" else name.replace("_", "-")
        text = "describes the sweep of a job; change a TrainingSweep with --set, for example --set trials=20"
        raise InvalidManifest([(f"--{option}", text)])


def _sweep_of_job(file: str, jobs: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    """Return the TrainingSweep that the options describe for the job. Raise InvalidManifest."""
    from allranks.authoring.sweep_manifests import parameter, sweep_document
    from allranks.errors import InvalidManifest

    if len(jobs) > 1:
        raise InvalidManifest([(file, "has several jobs: a sweep has one")])
    if not options["params"]:
        raise InvalidManifest([(file, "has no TrainingSweep: describe the sweep of its job with --param and --metric")])
    if options["goal"] and not options["metric"]:
        raise InvalidManifest([("--goal", "needs --metric: whose values are better if they are smaller or larger")])
    parameters = [parameter(text) for text in options["params"]]
    names = [name for name, _ in parameters]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidManifest([(f"--param {twice}", "is given twice: remove one of them")])
    return sweep_document(
        jobs[0],
        parameters,
        objective={"metric": metric, "goal": _GOALS[options["goal"] or "min"]}
        if (metric := options["metric"])
        else None,
        algorithm=_NAMES[options["algorithm"] or _algorithm(parameters, options["trials"])],
        seed=options["seed"],
        trials=options["trials"],
        parallel=options["parallel"],
        stop=_stop(options),
    )


def _algorithm(parameters: Sequence[tuple[str, dict[str, Any]]], trials: int | None) -> str:
    """Return the default: lists of values without a number of trials are all combinations."""
    return "grid" if trials is None and all("values" in values for _, values in parameters) else "random"


def _stop(options: dict[str, Any]) -> dict[str, Any] | None:
    if options["stop"] is None:
        return None
    limits = {"minSteps": options["min_steps"], "factor": options["factor"]}
    return {"rule": _NAMES[options["stop"]], **{name: value for name, value in limits.items() if value is not None}}
