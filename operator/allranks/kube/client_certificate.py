"""Client certificates for TLS. A private key that is embedded in a kubeconfig is never stored on a disk."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from allranks.kube.errors import LoginError

NO_PEM = "is not a certificate in PEM format: copy it again from the cluster"


class ClientCertificate(NamedTuple):
    """Certificate and key: paths of files, or their content in PEM."""

    certificate: str | bytes
    key: str | bytes

    def __repr__(self) -> str:
        return "ClientCertificate(...)"

    def load(self, context: ssl.SSLContext) -> None:
        """Raises LoginError."""
        for name, pem in (("client-certificate", self.certificate), ("client-key", self.key)):
            if isinstance(pem, str):
                check_readable(name, pem)
        with _file(self.certificate) as certificate, _file(self.key) as key:
            try:
                context.load_cert_chain(certificate, key)
            except (OSError, ValueError) as error:
                if "MISMATCH" in str(error):
                    text = "client-key does not belong to client-certificate: get both again from the cluster"
                    raise LoginError(text) from error
                text = "client-certificate or client-key is not in PEM format: copy both again from the cluster"
                raise LoginError(text) from error


def check_readable(name: str, path: str) -> None:
    """Raises LoginError, which names the field and the file."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise LoginError(f"{name} {path}: {why}: make it readable, or correct its path") from error


@contextlib.contextmanager
def _file(pem: str | bytes) -> Iterator[str]:
    """The path of a file with this content while it is loaded: Python's ssl loads certificates from files only."""
    if isinstance(pem, str):
        yield pem
    elif hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        # The kernel frees the memory when the process ends, however it ends.
        with os.fdopen(os.memfd_create("allranks-certificate"), "wb") as file:
            file.write(pem)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.TemporaryDirectory(prefix="allranks-") as folder:  # only this user may enter it
            path = Path(folder) / "pem"
            path.write_bytes(pem)
            yield str(path)
