"""The identity with which a test's API server forwards requests to another server, such as Kueue's visibility server.

The other server believes the user name in a header only of a client with such a certificate.
"""

from __future__ import annotations

from pathlib import Path

from .certificates import Authority

CLIENT = "front-proxy-client"


def options(folder: Path) -> list[str]:
    """Writes the certificates, and returns the options of the API server that uses them."""
    folder.mkdir(parents=True, exist_ok=True)
    authority_file, client, key = (folder / f"front-proxy-{name}" for name in ("ca.crt", "client.crt", "client.key"))
    authority = Authority("front-proxy-ca")
    authority_file.write_bytes(authority.certificate)
    authority.issue(CLIENT, client, key)
    return [
        f"--requestheader-client-ca-file={authority_file}",
        f"--requestheader-allowed-names={CLIENT}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={client}",
        f"--proxy-client-key-file={key}",
    ]
