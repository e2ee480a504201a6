"""Publishes the images and the chart of a release to a registry, and signs everything: docs/dev/releasing.md.

    tools/publish.py --registry ghcr.io/allranks --login dist/files-amd64 dist/files-arm64    # in a workflow, no key
    tools/publish.py --registry 127.0.0.1:5000/me --key cosign.key dist                       # with your own key

A folder is what `make dist` has written, for one architecture. Each file gets a signature beside it
(FILE.sigstore.json). An image gets the tag VERSION, which names the images of all architectures, the signature of this
name and of each image, and two attestations: its bill of materials and the provenance. Without --key, cosign asks the
identity provider of the workflow, and the transparency log of Sigstore keeps the signature. At the end everything is
verified as a user would. The password of a key comes from COSIGN_PASSWORD.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist.files import BILLS, SUMS, digest
from dist.source import ROOT, DistError

SIGNATURE = ".sigstore.json"
ISSUER = "https://token.actions.githubusercontent.com"


@dataclass(frozen=True)
class Trust:
    """How something is signed and verified: with a key, or with the identity of a workflow."""

    key: str
    """Private key; empty for the identity of the workflow."""

    @property
    def sign(self) -> list[str]:
        return [
            "--yes",
            *(["--key", self.key, "--use-signing-config=false", "--tlog-upload=false"] if self.key else []),
        ]

    @property
    def verify(self) -> list[str]:
        if self.key:
            return ["--key", str(Path(self.key).with_suffix(".pub")), "--insecure-ignore-tlog=true"]
        return ["--certificate-identity", workflow(), "--certificate-oidc-issuer", ISSUER]


def workflow() -> str:
    """Return the identity of the workflow that runs. Raises DistError elsewhere."""
    try:
        return f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_WORKFLOW_REF']}"
    except KeyError:
        raise DistError("this is no workflow: name a key with --key") from None


class Release:
    """The files of a version, in one folder for each architecture."""

    def __init__(self, folders: Sequence[Path], registry: str, trust: Trust, insecure: bool) -> None:
        self._folders, self._registry, self._trust = folders, registry.rstrip("/"), trust
        tools = Path(output([ROOT / "tools" / "go-tools.sh", "signing"]).strip())
        self._cosign, self._crane = tools / "cosign", tools / "crane"
        self._plain = ["--allow-http-registry"] if insecure else []
        self._insecure = ["--insecure"] if insecure else []
        self._helm = [Path(output([ROOT / "tools" / "helm.sh"]).strip()) / "helm"]
        self._plain_http = ["--plain-http"] if insecure else []
        [chart] = folders[0].glob("allranks-*.tgz")
        self.version = chart.stem.removeprefix("allranks-")

    def check(self) -> None:
        """Compare the files with their checksums. Raises DistError."""
        for folder in self._folders:
            for line in (folder / SUMS).read_text().splitlines():
                expected, _, name = line.partition("  ")
                if digest(folder / name) != expected:
                    raise DistError(f"{folder / name} has changed since it was built")

    def sign_files(self) -> None:
        """Write the signature of each file beside it."""
        for file in self._files():
            signature = file.with_name(file.name + SIGNATURE)
            run([self._cosign, "sign-blob", *self._trust.sign, "--bundle", signature, file])
            run([self._cosign, "verify-blob", *self._trust.verify, "--bundle", signature, file])

    def publish_images(self) -> list[str]:
        """Push, sign and attest the images. Return their names with digests."""
        return [self._publish_image(name) for name in self._images()]

    def publish_chart(self) -> str:
        """Push and sign the chart. Return its name with its digest."""
        chart = self._folders[0] / f"allranks-{self.version}.tgz"
        charts = f"{self._registry}/charts"
        run([*self._helm, "push", *self._plain_http, chart, f"oci://{charts}"])
        name = self._with_digest(f"{charts}/allranks:{self.version}")
        self._sign(name)
        return name

    def _files(self) -> Iterator[Path]:
        for folder in self._folders:
            yield from sorted(path for path in folder.iterdir() if not path.name.endswith(SIGNATURE))

    def _images(self) -> list[str]:
        archives = sorted(self._folders[0].glob(f"allranks-*-image-{self.version}.tar"))
        return [path.name.removeprefix("allranks-").removesuffix(f"-image-{self.version}.tar") for path in archives]

    def _publish_image(self, image: str) -> str:
        repository, parts = f"{self._registry}/{image}", []
        for folder in self._folders:
            archive = folder / f"allranks-{image}-image-{self.version}.tar"
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                pushed = Path(scratch, "digest")
                staged = f"{repository}:{self.version}-{folder.name.rpartition('-')[2]}"
                run([self._crane, "push", *self._insecure, "--image-refs", pushed, archive, staged])
                parts.append(pushed.read_text().strip())
        append = [word for part in parts for word in ("--manifest", part)]
        run([self._crane, "index", "append", *self._insecure, *append, "--tag", f"{repository}:{self.version}"])
        name = self._with_digest(f"{repository}:{self.version}")
        self._sign(name, "--recursive")
        for part, folder in zip(parts, self._folders, strict=True):
            provenance = json.loads((folder / f"allranks-{self.version}.provenance.json").read_text())
            self._attest(part, "slsaprovenance1", provenance["predicate"])
            if image in BILLS:
                self._attest(
                    part, "cyclonedx", json.loads((folder / f"allranks-{image}-{self.version}.cdx.json").read_text())
                )
        return name

    def _sign(self, name: str, *options: str) -> None:
        run([self._cosign, "sign", *self._trust.sign, *self._plain, *options, name])
        run([self._cosign, "verify", *self._trust.verify, *self._plain, name])

    def _attest(self, name: str, kind: str, predicate: object) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(predicate, file)
            file.flush()
            options = ["--type", kind, "--predicate", file.name]
            run([self._cosign, "attest", *self._trust.sign, *self._plain, *options, name])
        run([self._cosign, "verify-attestation", *self._trust.verify, *self._plain, "--type", kind, name])

    def _with_digest(self, name: str) -> str:
        pushed = output([self._crane, "digest", *self._insecure, name]).strip()
        return f"{name.rpartition(':')[0]}@{pushed}"


def run(command: Sequence[str | Path]) -> None:
    """Run a command, whose output is shown if it fails. Raises DistError."""
    output(command)


def output(command: Sequence[str | Path]) -> str:
    """Return the stdout of a command. Raises DistError."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise DistError(f"{Path(command[0]).name} {command[1] if len(command) > 1 else ''} failed, see above")
    return done.stdout


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="what `make dist` has written")
    parser.add_argument("--registry", required=True, metavar="HOST/PATH", help="where the images go, and PATH/charts")
    parser.add_argument("--key", default="", metavar="FILE", help="private key; its public key is beside it")
    parser.add_argument("--login", action="store_true", help="sign in with GITHUB_ACTOR and GITHUB_TOKEN")
    parser.add_argument("--insecure", action="store_true", help="the registry speaks HTTP, or has its own certificate")
    return parser.parse_args()


def login(registry: str) -> None:
    """Sign in to the registry, for all programs: the token is not in their arguments."""
    host = registry.partition("/")[0]
    tools = Path(output([ROOT / "tools" / "go-tools.sh", "signing"]).strip())
    command = [tools / "crane", "auth", "login", host, "--username", os.environ["GITHUB_ACTOR"], "--password-stdin"]
    subprocess.run(command, input=os.environ["GITHUB_TOKEN"], text=True, check=True)


def main() -> int:
    options = arguments()
    try:
        if not options.key:
            workflow()
        release = Release(options.folders, options.registry, Trust(options.key), options.insecure)
        release.check()
        if options.login:
            login(options.registry)
        release.sign_files()
        names = [*release.publish_images(), release.publish_chart()]
    except DistError as error:
        print(f"publish: error: {error}", file=sys.stderr)
        return 1
    print("\n".join(names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
