"""Creates the job of a function or a script on a cluster: the manifest, the code, the request."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from allranks.api.code import Code
from allranks.api.job import KIND
from allranks.cli.creation import Creation
from allranks.cli.manifests import load_documents
from allranks.code.bundle import EMPTY, Bundle, collect
from allranks.code.ship import create_with_code
from allranks.errors import AllranksError, CannotRun, ClusterError
from allranks.inpod.call_function import VALUE_RANKS
from allranks.kube import job_codec
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.paths import job_path
from allranks.sdk import documents, payload, results
from allranks.sdk.async_job import AsyncJob
from allranks.sdk.documents import Options, Target
from allranks.sdk.interrupt import Words
from allranks.sdk.words import connected

CODE_DIR = str(Code.model_fields["path"].default)
"""Where the pods have the code."""
PAYLOAD = ".allranks/function.pickle"
IMAGE = "ALLRANKS_IMAGE"
"""Variable with the image of jobs for which the caller names none."""


def prepare(
    target: Target,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    code: str | os.PathLike[str] | None,
) -> tuple[Manifest, Bundle | None]:
    """The manifest, and the code that it needs. Nothing is sent. Raises InvalidManifest, CannotPickle, CannotShip,
    CannotRun, TypeError, ValueError."""
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
        what = f"Python {python} and the packages of the function" if callable(target) else "the packages of the script"
        raise CannotRun(f"image= is missing: name an image that has {what}, here or in the variable {IMAGE}")
    document = documents.with_generated_name(document, options)
    if bundle is not None:
        document["spec"]["code"] = bundle.spec
    if options.packages:
        document["spec"]["packages"] = list(options.packages)
    loaded = load_documents([("allranks.submit", document)])  # raises InvalidManifest
    _check_ranks(document, loaded.documents, options)
    return document, bundle


async def create(where: Where, document: Manifest, bundle: Bundle | None, words: Words) -> AsyncJob:
    """The job. After a cancellation it is either complete, and a message says how to find it, or it does not exist.

    Raises ClusterError.
    """
    creation = Creation[Manifest]()
    name = document["metadata"].get("name") or f"{document['metadata']['generateName']}*"
    namespace = ""

    async def work() -> AsyncJob:
        nonlocal namespace
        async with connected(where) as cluster:
            namespace = cluster.namespace

            async def post() -> Manifest:
                return await creation.send(_post(cluster, document, name, words))

            if bundle is None:
                creation.check()
                return AsyncJob(await post(), where)
            return AsyncJob(await create_with_code(cluster, namespace, bundle, post, check=creation.check), where)

    def tell(error: AllranksError | None) -> None:
        if error is not None:
            print(error, file=sys.stderr)
        if creation.result is not None:
            print(words.continues(AsyncJob(creation.result, where)), file=sys.stderr)
        elif creation.sent:
            print(words.unknown(name, namespace), file=sys.stderr)

    return await creation.run(work(), tell)


async def _post(cluster: Cluster, document: Manifest, name: str, words: Words) -> Manifest:
    query = {"fieldManager": "allranks", "fieldValidation": "Strict"}
    try:
        return await cluster.request("POST", job_path(cluster.namespace), query, document)
    except ClusterError as error:
        if error.uncertain:
            text = f"{error}. {words.unknown(name, cluster.namespace)}"
            raise ClusterError(text, error.status, error.reason, uncertain=True) from error
        if error.reason != "AlreadyExists" or name.endswith("*"):
            raise
        cure = f"choose another name, or delete it with allranks.job({name!r}).cancel()"
        raise ClusterError(f"there is already a {KIND} {name}: {cure}", error.status, error.reason) from error


def _with_function(
    bundle: Bundle, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Bundle:
    """The pickle lies beside the code, with the modules that load it, which the image may not have."""
    bundle = bundle.with_file(PAYLOAD, payload.dumps(function, args, kwargs))
    for name, data in payload.cloudpickle_files().items():
        bundle = bundle.with_file(f".allranks/python/{name}", data)
    return bundle


def _check_ranks(document: Manifest, parsed: Any, options: Options) -> None:
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
