"""`allranks.submit`: creates the job of a function or a script on a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from allranks.api.data import Code
from allranks.api.job import KIND
from allranks.authoring.manifests import load_documents
from allranks.client.submission import Creation
from allranks.code.bundle import EMPTY, Bundle, collect
from allranks.code.ship import create_with_code
from allranks.errors import AllranksError, CannotRun, ClusterError
from allranks.inpod.call_function import VALUE_RANKS
from allranks.kube import job_codec
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.paths import job_path
from allranks.sdk import background, documents, payload, results
from allranks.sdk.documents import Options, Ranks, Target
from allranks.sdk.job import Job, continues
from allranks.sdk.outcome import Outputs
from allranks.sdk.result_key import create_with_key

CODE_DIR = str(Code.model_fields["path"].default)
"""Where the pods have the code."""
PAYLOAD = ".allranks/function.pickle"
IMAGE = "ALLRANKS_IMAGE"
"""Variable with the image of jobs for which the caller names none."""


def submit(
    target: Target,
    *args: Any,
    ranks: Ranks,
    gpus: int = 0,
    image: str | None = None,
    framework: str | None = None,
    name: str | None = None,
    pool: str | None = None,
    queue: str | None = None,
    code: str | os.PathLike[str] | None = None,
    packages: Sequence[str] = (),
    checkpoint: str | None = None,
    outputs: Outputs | None = None,
    env: Mapping[str, str] | None = None,
    restarts: int | None = None,
    every_rank: bool = False,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **more: Any,
) -> Job:
    """Create a job on a cluster and return at once.

    `target`: a function, which is called with `args`, `kwargs` and `more` in each rank; or the path of a script, which
    gets `args` as its command line. `ranks`: the number of replicas, or (least, most) of an elastic job. `gpus`: GPUs
    of each replica. `image`: by default the value of the variable ALLRANKS_IMAGE. `framework`: by default the one
    that the function or script imports. `name`: by default the name of the function, with a suffix. `pool`: a
    TrainingPool. `queue`: that admits the job. `code`: a directory that is sent to the ranks and is their working
    directory. `packages`: pip requirements that are installed before the start. `checkpoint`: a volume claim.
    `outputs`: name -> address, such as s3://BUCKET/PREFIX; what the function writes to /outputs/NAME is uploaded there.
    `env`: further variables of the ranks. `restarts`: maximum number of restarts after failures. `every_rank`: all
    ranks send their values back, not only rank 0. `namespace`, `context`, `kubeconfig`: by default as in kubectl.
    `kwargs`: arguments of the function whose names are parameters of `submit` as well.

    Raises CannotPickle, CannotShip, InvalidManifest and CannotRun before anything is sent, ClusterError.
    """
    options = Options(
        replicas=_replicas(ranks),
        gpus=gpus,
        framework=framework,
        name=name,
        env=dict(env or {}),
        restarts=restarts,
        image=image or os.environ.get(IMAGE),
        pool=pool,
        queue=queue,
        checkpoint=checkpoint,
        outputs=outputs or {},
        packages=tuple(packages),
        every_rank=every_rank,
    )
    document, bundle = prepare(target, args, {**(kwargs or {}), **more}, options, code)
    work = _create(Where(namespace, context, kubeconfig), document, bundle)
    return background.run(work, lambda late: print(continues(late), file=sys.stderr))


def _replicas(ranks: Ranks) -> Ranks:
    """Raises ValueError."""
    bounds = (ranks,) if not isinstance(ranks, tuple) else ranks if len(ranks) == 2 else ()
    if bounds and all(isinstance(bound, int) and not isinstance(bound, bool) and bound > 0 for bound in bounds):
        return ranks
    raise ValueError(
        f"ranks={ranks!r}: must be the number of replicas on a cluster, or (least, most) for an elastic job; "
        "allranks.run(..., ranks=-2) runs two replicas on this machine"
    )


def prepare(
    target: Target,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    code: str | os.PathLike[str] | None,
) -> tuple[Manifest, Bundle | None]:
    """Return the manifest, and the code that it needs. Nothing is sent.

    Raises InvalidManifest, CannotPickle, CannotShip, CannotRun, TypeError, ValueError.
    """
    bundle = collect(os.fspath(code)) if code is not None else None
    for note in bundle.notes() if bundle else ():
        _note(note)
    if callable(target):
        document = documents.function_on_cluster(target, f"{CODE_DIR}/{PAYLOAD}", options)
        bundle = _with_function(bundle or EMPTY, target, args, kwargs)
    elif kwargs:
        raise TypeError(f"{os.fspath(target)} is a script, which takes no keyword arguments: {', '.join(kwargs)}")
    else:
        document, notes = documents.of_script(os.fspath(target), args, options)
        for note in notes:
            _note(note)
    if not options.image:
        python = "{}.{}".format(*sys.version_info[:2])
        contents = (
            f"Python {python} and the packages of the function" if callable(target) else "the packages of the script"
        )
        raise CannotRun(f"image= is missing: name an image that has {contents}, here or in the variable {IMAGE}")
    document = documents.with_generated_name(document, options)
    if bundle is not None:
        document["spec"]["code"] = bundle.spec
    if options.packages:
        document["spec"]["packages"] = list(options.packages)
    load_documents([("allranks.submit", document)])  # raises InvalidManifest
    _check_ranks(document, options)
    return document, bundle


async def _create(where: Where, document: Manifest, bundle: Bundle | None) -> Job:
    """Send the job. After a cancellation it is either complete, and a message says how to find it, or does not exist.

    Raises ClusterError.
    """
    creation = Creation[Manifest]()
    name = document["metadata"].get("name") or f"{document['metadata']['generateName']}*"
    namespace = ""

    async def work() -> Job:
        nonlocal namespace
        async with Cluster.connect(where) as cluster:
            namespace = cluster.namespace

            async def post() -> Manifest:
                return await creation.send(_post(cluster, document, name))

            async def create() -> Manifest:
                if bundle is None:
                    creation.check()
                    return await post()
                return await create_with_code(cluster, namespace, bundle, post, check=creation.check)

            if documents.FUNCTION_ANNOTATION not in (document["metadata"].get("annotations") or {}):
                return Job(await create(), where)
            job, key = await create_with_key(cluster, document, creation, create)
            return Job(job, where, key.value if key else None)

    def tell(error: AllranksError | None) -> None:
        if error is not None:
            print(error, file=sys.stderr)
        if creation.result is not None:
            print(continues(Job(creation.result, where)), file=sys.stderr)
        elif creation.sent:
            print(_unanswered(name, namespace), file=sys.stderr)

    return await creation.run(work(), tell)


async def _post(cluster: Cluster, document: Manifest, name: str) -> Manifest:
    query = {"fieldManager": "allranks", "fieldValidation": "Strict"}
    try:
        return await cluster.request("POST", job_path(cluster.namespace), query, document)
    except ClusterError as error:
        if error.uncertain:
            text = f"{error}. {_unanswered(name, cluster.namespace)}"
            raise ClusterError(text, error.status, error.reason, uncertain=True) from error
        if error.reason != "AlreadyExists" or name.endswith("*"):
            raise
        cure = f"choose another name, or delete it with allranks.job({name!r}).cancel()"
        raise ClusterError(f"there is already a {KIND} {name}: {cure}", error.status, error.reason) from error


def _unanswered(name: str, namespace: str) -> str:
    lookup = f"allranks.jobs(namespace={namespace!r}) lists the jobs"
    return f"The job {name} may exist, but no answer arrived: {lookup}"


def _with_function(
    bundle: Bundle, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Bundle:
    """Place the pickle beside the code, with the modules that load it, which the image may not have."""
    bundle = bundle.with_file(PAYLOAD, payload.dumps(function, args, kwargs))
    for name, data in payload.cloudpickle_files().items():
        bundle = bundle.with_file(f".allranks/python/{name}", data)
    return bundle


def _check_ranks(document: Manifest, options: Options) -> None:
    if not options.every_rank:
        return
    name = document["metadata"].get("name") or "job"
    job = job_codec.job({**document, "metadata": {"name": name}})
    ranks = results.ranks_of(job, job_codec.status_of(document))
    if ranks > VALUE_RANKS:
        raise ValueError(
            f"every_rank=True: at most {VALUE_RANKS} ranks send their values back, and the job has {ranks}: gather "
            "them in the function, and return them from rank 0"
        )


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
