"""Errors of transfers, each as one sentence that names the data and says what the user can do."""

from __future__ import annotations

import errno
from importlib.util import find_spec

from allranks.errors import DataError
from allranks.extras import install_command

_FULL = (errno.ENOSPC, errno.EDQUOT)
_EXPIRED = ("expired", "expiredtoken", "tokenrefreshrequired")
# Names of exceptions of aiohttp, botocore, httpx and the hub's client, which are not imported here.
_TEMPORARY = (
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectTimeoutError",
    "EndpointConnectionError",
    "HTTPClientError",
    "IncompleteRead",
    "ReadError",
    "ReadTimeout",
    "ReadTimeoutError",
    "RemoteDisconnected",
    "RemoteProtocolError",
    "ResponseStreamingError",
    "ServerDisconnectedError",
)
_STATUS = {401: "permission", 403: "permission", 404: "missing", 410: "missing"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_CONNECTION_STRING",
    "hf": "HF_TOKEN",
}


class TemporaryError(DataError):
    """The connection was lost, or the server is overloaded: it may succeed later."""


class ChangedError(DataError):
    """The data was changed while it was read."""


class DiskFullError(DataError):
    """The disk is full: it may succeed when others have made room."""


class UnknownError(DataError):
    """An error of a client or a server that has no explanation here."""


def explain(error: BaseException, uri: str) -> DataError:
    """The error as a DataError about `uri`."""
    if isinstance(error, DataError):
        return error
    scheme = uri.partition("://")[0]
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = " ".join(str(error).split()) or type(error).__name__
    if len(text) > 300:
        text = text[:297] + "..."
    status = _status(error)
    kind = _STATUS.get(status, "")
    credentials = _CREDENTIALS.get(scheme, "the variables with them")
    if kinds & {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "LocalTokenNotFoundError"}:
        return DataError(f"{uri}: there are no credentials: set {credentials}")
    if any(word in text.lower() for word in _EXPIRED):
        return DataError(f"{uri}: the credentials have expired: renew them ({text})")
    if "RevisionNotFoundError" in kinds:
        return DataError(f"{uri}: there is no such revision")
    if isinstance(error, PermissionError) or kind == "permission" or "GatedRepoError" in kinds:
        return DataError(f"{uri}: access is denied: check the credentials ({credentials}): {text}")
    if isinstance(error, FileNotFoundError) or kind == "missing" or "RepositoryNotFoundError" in kinds:
        return DataError(f"{uri}: there is no such object, or it is not visible with these credentials")
    if isinstance(error, OSError) and error.errno in _FULL:
        return DiskFullError(f"{uri}: the disk is full ({error.filename or 'cache'}): make room and run again")
    if kinds & set(_TEMPORARY) or isinstance(error, (ConnectionError, TimeoutError)) or status == 429 or status >= 500:
        return TemporaryError(f"{uri}: the connection failed: {text}")
    if "URLError" in kinds and not status:
        return TemporaryError(f"{uri}: the server cannot be reached: {text}")
    return UnknownError(f"{uri}: {text}")


def _status(error: BaseException) -> int:
    """The HTTP status; 0 without one."""
    for value in (getattr(error, "code", None), getattr(getattr(error, "response", None), "status_code", None)):
        if isinstance(value, int):
            return value
    return 0


def need(uri: str, *packages: str) -> None:
    """Raises DataError if a Python package for `uri` is missing."""
    for package in packages:
        if find_spec(package) is None:
            extra = install_command("data") if package not in ("gcsfs", "adlfs") else f"pip install {package}"
            raise DataError(f"{uri}: {uri.partition('://')[0]}:// needs the Python package {package}: {extra}")
