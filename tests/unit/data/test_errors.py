"""Errors of the clients of stores, recognized by the names of their classes: no client needs to be installed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from allranks.data.errors import TemporaryError, explain

AZURE = "Server failed to authenticate the request.\nRequestId:78c3\nErrorCode:AuthenticationFailed\nContent: <?xml"
DENIED = "access is denied: check the credentials"


def error(kinds: str, text: str, cause: BaseException | None = None, **attributes: object) -> BaseException:
    """`kinds`: names of its class and of the classes below."""
    kind: type[Exception] = Exception
    for name in reversed(kinds.split()):
        kind = type(name, (kind,), {})
    made = kind(text)
    made.__cause__ = cause
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("uri", "raised", "message"),
    [
        (
            "gs://b/x",
            error("HttpError", "Anonymous caller, 401", code=401),
            f"{DENIED} (GOOGLE_APPLICATION_CREDENTIALS",
        ),
        (
            "gs://b/x",
            OSError("Forbidden: b/o\nno access"),
            f"{DENIED} (GOOGLE_APPLICATION_CREDENTIALS or FSSPEC_GS): For",
        ),
        (
            "gs://b/x",
            error("HttpError", "Invalid Credentials, 401", error("RefreshError", "expired or revoked"), code=401),
            "the credentials have expired: renew them (Invalid Credentials, 401: expired or revoked)",
        ),
        (
            "az://b/x",
            error("HttpResponseError", AZURE, status_code=403),
            f"{DENIED} (AZURE_STORAGE_CONNECTION_STRING, or",
        ),
        ("az://b/x", error("AzureSigningError", "Incorrect padding"), f"{DENIED} (AZURE_STORAGE_CONNECTION_STRING, or"),
        ("az://b/x", ValueError("unable to connect to account for ... malformed"), f"{DENIED} (AZURE_STORAGE_CONN"),
        (
            "az://b/x",
            ValueError("unable to connect to account for Must provide either a connection_string or account_name"),
            "there are no credentials: set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and",
        ),
        ("az://b/x", error("ResourceNotFoundError", "no", status_code=404), "there is no such object, or it is not"),
    ],
)
def test_an_error_that_stays_says_what_to_do(uri: str, raised: BaseException, message: str) -> None:
    found = explain(raised, uri)
    assert not isinstance(found, TemporaryError)
    assert str(found).startswith(f"{uri}: {message}")
    assert "RequestId" not in str(found)


@pytest.mark.parametrize(
    "raised",
    [
        error("ServiceRequestError AzureError", "Cannot connect"),
        error("HttpResponseError", "Response payload is not completed", error("IncompleteReadError", "cut")),
        error("HttpResponseError", "Server busy", status_code=503),
        error("HttpError", "rate, 429", code=429),
        error("ConnectionError RequestException", "aborted"),
        error("TransportError GoogleAuthError", "the token endpoint does not answer"),
    ],
    ids=str,
)
def test_an_error_that_may_pass_is_temporary(raised: BaseException) -> None:
    assert isinstance(explain(raised, "az://b/x"), TemporaryError)


@pytest.mark.parametrize("name", ["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING"])
def test_a_signature_that_has_ended_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = error("HttpResponseError", AZURE, status_code=403)
    token = "sv=2026&ss=b&se={}&sig=abc%3D"
    form = token if name.endswith("TOKEN") else f"BlobEndpoint=https://a.example.com;SharedAccessSignature={token};"
    monkeypatch.setenv(name, form.format("2026-01-02T03%3A04%3A05Z"))
    ended = "the credentials have expired: the shared access signature ended at 2026-01-02 03:04:05+00:00: renew it"
    assert str(explain(raised, "az://b/x")) == f"az://b/x: {ended}"
    later = datetime.now(UTC).year + 5
    for end in (f"{later}-01-02", "tomorrow"):
        monkeypatch.setenv(name, form.format(end))
        assert DENIED in str(explain(raised, "az://b/x"))
