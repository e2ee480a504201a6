"""Builds the files of a release from the checked-out commit: `make dist`. docs/dev/releasing.md describes them."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from dist import files, provenance
from dist.source import ROOT, DistError, head

EPILOG = """files:
  allranks-VERSION-py3-none-any.whl, allranks-VERSION.tar.gz   the Python package
  allranks-VERSION.tgz                                         the Helm chart
  allranks-VERSION-kustomize.tar.gz                            the same objects for kubectl apply -k
  allranks-NAME-image-VERSION.tar                              images, for docker load
  allranks-NAME-VERSION.cdx.json                               CycloneDX: the Python packages of the images of allranks
                                                               itself: operator, ui, data and archiver
  allranks-VERSION.provenance.json                             SLSA provenance
  allranks-VERSION-airgap-MACHINE.tar                          with --bundle: all of it for a network without access
  SHA256SUMS                                                   for sha256sum --check

examples:
  make dist                                     # everything; without images, and a line about it, if none can be built
  make dist ARGS='--images operator'            # with this image, or an error
  make dist ARGS='--bundle 3.11 3.12'           # and an archive for air-gapped clusters, with wheels for these Pythons
  make dist ARGS='--images none'                # without images: needs no docker, podman or buildah
"""
IMAGES = ("operator", "ui", "data", "archiver", "pytorch", "tensorflow", "horovod", "jax", "ray", "mpi")
"""Those that tools/images.sh builds by default."""


def main() -> int:
    options = arguments()
    try:
        return build(options)
    except DistError as error:
        print(f"dist: error: {error}", file=sys.stderr)
        return 1


def build(options: argparse.Namespace) -> int:
    out: Path = options.out
    if out.exists() and any(out.iterdir()) and not (out / files.SUMS).exists():
        raise DistError(f"{out} holds other files: choose an empty folder with --out")
    source = head()
    if not source.clean:
        say(f"uncommitted changes are left out: the files are those of commit {source.commit[:12]}")
    names = [name for name in options.images or IMAGES if name != "none"]
    (ROOT / "build").mkdir(exist_ok=True)
    # Images have gigabytes, and /tmp may be in memory.
    with (
        tempfile.TemporaryDirectory(prefix="dist-", dir=ROOT / "build") as place,
        tempfile.TemporaryDirectory() as name,
    ):
        made, scratch = Path(place, "dist"), Path(name)
        made.mkdir()
        export = scratch / "allranks"
        source.export(export)
        missing = files.images(names, options.base, made, source) if names else "--images none"
        if missing and options.images and names:
            raise DistError(f"no images: {missing}")
        files.python_packages(export, made, source)
        files.chart(export, made, source)
        files.manifests(export, made, source)
        for name in files.BILLS:
            files.bill_of_materials(name, export, made, source, scratch)
        if options.bundle:
            files.bundle(options.bundle, made, source)
        built = [name for name in names if files.archive(made, name, source).exists()]
        provenance.write(made, source, built, options.base)
        files.checksums(made)
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(made, out)
    for path in sorted(out.iterdir()):
        print(os.path.relpath(path))
    if built and options.base != "test" and "@sha256:" not in options.base:
        say(
            f"the base {options.base} has no digest, so the images may differ in the next build: --base NAME@sha256:..."
        )
    if missing:
        left_out = [name for name in IMAGES if name not in built]
        say(f"WITHOUT THE IMAGES {', '.join(left_out)}: {missing}")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/dist.py", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    parser.add_argument(
        "--images",
        nargs="+",
        choices=[*IMAGES, "none"],
        metavar="IMAGE",
        help=f"any of {', '.join(IMAGES)}, or none; default: all of them if they can be built here",
    )
    parser.add_argument(
        "--base",
        default=files.BASE,
        help="base of the images, best with its digest; `test` is the base that needs no registry, for tests only; "
        "default: %(default)s",
    )
    parser.add_argument(
        "--bundle",
        nargs="+",
        metavar="PYTHON",
        help="write one archive with the images of allranks itself, the chart, the kustomization, and the command line "
        "with the wheels that it needs in these versions of Python on machines like this one",
    )
    return parser.parse_args()


def say(text: str) -> None:
    print(f"dist: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
