"""Errors of transfers, each as one sentence that names the data and says what the user can do."""

from __future__ import annotations

import errno
import os
import re
from datetime import UTC, datetime
from importlib.util import find_spec
from urllib.parse import unquote

from allranks.errors import DataError
from allranks.extras import Extra, install_command

_FULL = (errno.ENOSPC, errno.EDQUOT)
_EXPIRED = ("expired", "expiredtoken", "tokenrefreshrequired")
# Names of exceptions of aiohttp, requests, httpx and the clients of stores, which are not imported here.
_TEMPORARY = (
    "ChecksumError",
    "ChunkedEncodingError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectTimeoutError",
    "ConnectionError",
    "EndpointConnectionError",
    "HTTPClientError",
    "IncompleteRead",
    "IncompleteReadError",
    "ReadError",
    "ReadTimeout",
    "ReadTimeoutError",
    "RemoteDisconnected",
    "RemoteProtocolError",
    "ResponseStreamingError",
    "ServerDisconnectedError",
    "ServiceRequestError",
    "ServiceResponseError",
    "Timeout",
    "TransportError",
)
_STATUS = {401: "permission", 403: "permission", 404: "missing", 410: "missing"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or FSSPEC_GS",
    "az": "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "hf": "HF_TOKEN",
}
_NONE = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "LocalTokenNotFoundError")
_NOT_GIVEN = "Must provide either a connection_string or account_name"
_DENIED = ("GatedRepoError", "AzureSigningError", "NonRetryableError")
_DENIED_TEXTS = ("Forbidden: ", "unable to connect to account")
"""Beginnings of an OSError without a number of gcsfs, and of a ValueError of adlfs."""


class TemporaryError(DataError):
    """The connection was lost, or the server is overloaded: it may succeed later."""


class ChangedError(DataError):
    """The data was changed while it was read."""


class DiskFullError(DataError):
    """The disk is full: it may succeed when others have made room."""


class UnknownError(DataError):
    """An error of a client or a server that has no explanation here."""


def explain(error: BaseException, uri: str) -> DataError:
    """Return the error as a DataError about `uri`."""
    if isinstance(error, DataError):
        return error
    scheme = uri.partition("://")[0]
    text, status = _text(error), _status(error)
    # Azure's client wraps connections that break.
    chain = (error, error.__cause__) if error.__cause__ and not status else (error,)
    kinds = {kind.__name__ for link in chain for kind in type(link).__mro__}
    kind = _STATUS.get(status, "")
    credentials = _CREDENTIALS.get(scheme, "the variables with them")
    if kinds & set(_NONE) or _NOT_GIVEN in text:
        return DataError(f"{uri}: there are no credentials: set {credentials}")
    if any(word in text.lower() for word in _EXPIRED):
        return DataError(f"{uri}: the credentials have expired: renew them ({text})")
    if "RevisionNotFoundError" in kinds:
        return DataError(f"{uri}: there is no such revision")
    forbidden = kind == "permission" or isinstance(error, PermissionError) or text.startswith(_DENIED_TEXTS)
    if forbidden or kinds & set(_DENIED):
        if scheme == "az" and (end := _end_of_signature()) and end < datetime.now(UTC):
            return DataError(
                f"{uri}: the credentials have expired: the shared access signature ended at {end}: renew it"
            )
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


def _text(error: BaseException) -> str:
    """Return the message in one line. Azure's client adds the number of the request, and the answer as XML."""
    text = " ".join(str(error).partition("\nRequestId:")[0].split()) or type(error).__name__
    if type(error.__cause__).__name__ == "RefreshError":  # gcsfs says "Invalid Credentials" only
        text = f"{text}: {error.__cause__}"
    return text if len(text) <= 300 else text[:297] + "..."


def _status(error: BaseException) -> int:
    """Return the HTTP status; 0 without one."""
    values = [getattr(error, name, None) for name in ("code", "status_code", "status")]
    for value in (*values, getattr(getattr(error, "response", None), "status_code", None)):
        if isinstance(value, int):
            return value
    return 0


def _end_of_signature() -> datetime | None:
    """Return the end of the shared access signature in the environment. Azure does not say that it is the reason."""
    names = ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN")
    for value in (os.environ.get(name, "") for name in names):
        if match := re.search(r"[?&=;]se=([^&;]+)", f"?{value}"):
            try:
                end = datetime.fromisoformat(unquote(match[1]))
            except ValueError:
                continue
            return end if end.tzinfo else end.replace(tzinfo=UTC)
    return None


def need(uri: str, *packages: str) -> None:
    """Check that the Python packages for `uri` are installed. Raise DataError if one is missing."""
    for package in packages:
        if find_spec(package) is None:
            extra: Extra = "gs" if package == "gcsfs" else "az" if package == "adlfs" else "data"
            command = install_command(extra)
            raise DataError(f"{uri}: {uri.partition('://')[0]}:// needs the Python package {package}: {command}")
