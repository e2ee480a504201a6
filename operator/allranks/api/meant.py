"""What users mean by words that no field, value or address has: other spellings, and the words of other tools."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_FIELDS = {
    "categorical": "values",
    "choices": "values",
    "log": "logUniform",
    "loguniform": "logUniform",
    "range": "uniform",
    "low": "min",
    "lower": "min",
    "high": "max",
    "upper": "max",
    "maxTrialCount": "trials",
    "numTrials": "trials",
    "parallelTrialCount": "parallel",
    "earlyStopping": "stop",
    "searchAlgorithm": "algorithm",
    "objectiveMetricName": "metric",
    "type": "goal",
    "direction": "goal",
    "notification": "notify",
    "notifications": "notify",
    "events": "occasions",
    "on": "occasions",
    "address": "url",
    "source": "from",
    "src": "from",
    "uri": "from",
    "url": "from",
    "destination": "to",
    "target": "to",
    "dest": "to",
    "dir": "path",
    "directory": "path",
    "mountPath": "path",
    "checksum": "sha256",
    "version": "revision",
}
"""Words -> a field, where there is such a field."""
_SCHEMES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "az",
    "abfss": "az",
    "azure": "az",
    "wasb": "az",
    "wasbs": "az",
    "git": "git+https",
    "huggingface": "hf",
    "pvc": "claim",
    "docker": "image",
    "oci": "image",
}
_OWN_SCHEMES = ("s3", "gs", "az", "https", "http", "hf", "git+https", "claim", "image")
_LIKE = 0.75
_SHORTEST = 3
"""Characters of a word that is a part of another one."""


def field(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is meant by `name`."""
    names = list(names)
    if _FIELDS.get(name) in names:
        return _FIELDS[name]
    close = difflib.get_close_matches(name, names, n=1)
    return close[0] if close else None


def value(given: str, allowed: Iterable[str]) -> str | None:
    """The one of a few words that is meant by `given`."""
    lower = {each.lower(): each for each in allowed}
    word = given.lower()
    if word in lower:
        return lower[word]
    parts = [each for each in lower if each.startswith(word) or word.startswith(each)]
    if len(parts) == 1 and min(len(word), len(parts[0])) >= _SHORTEST:
        return lower[parts[0]]
    close = difflib.get_close_matches(word, lower, n=1, cutoff=_LIKE)
    return lower[close[0]] if close else None


def address(text: str) -> str | None:
    """The address of data that is probably meant. The caller checks whether it is one."""
    found = re.fullmatch(r"([A-Za-z0-9+]+):/*(?:[^/@]*@)?([^/].*)", text)
    if found is None:
        return None
    scheme = found[1].lower()
    close = difflib.get_close_matches(scheme, _OWN_SCHEMES, n=1, cutoff=_LIKE)
    scheme = _SCHEMES.get(scheme) or (close[0] if close else "")
    return f"{scheme}://{found[2]}" if scheme else None


def directory(text: str) -> str | None:
    """The directory of this machine that is given in place of an address."""
    path = text.removeprefix("file://")
    return path if path.startswith(("/", "./", "../", "~")) else None
