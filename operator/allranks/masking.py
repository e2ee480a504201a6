"""Masks secrets in manifests and logs before they leave the user's hands. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from allranks.control_sequences import clean

MASK = "<masked>"

_WORDS = r"(?:TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|KEY)"
_SECRET_NAME = re.compile(rf"(?:^|_|-){_WORDS}(?:$|_|-)|{_WORDS}$", re.IGNORECASE)
_NAME = r"(?<![A-Za-z0-9_-])(?P<name>[A-Za-z0-9_-]++)"
"""Begins where nothing of it is left out, and is not tried again: a line that is one long word takes no longer."""
_ASSIGNMENT = re.compile(_NAME + r"=(?P<value>'[^']*'|\"[^\"]*\"|[^\s'\";&|]+)")
_URL_LOGIN = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_PAIR = re.compile(_NAME + r"(?P<between>[\"']?\s*:\s*)(?P<quote>[\"'])(?P<value>[^\"']+)(?P=quote)")
_LITERAL = re.compile(
    _NAME + r"(?P<between>[\"']?\]?\s*(?::\s*[A-Za-z_][A-Za-z0-9_.]*\s*)?=\s*[rbfuRBFU]{0,2})"
    r"(?P<quote>[\"'])(?P<value>[^\"'\n]+)(?P=quote)"
)
"""`password = "..."`, also of an item of a dictionary and with a type."""
_BEARER = re.compile(r"(?<=\bBearer )[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE)
_TOKENS = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|eyJ[A-Za-z0-9_-]{8,1024}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+)"  # JWT, such as tokens of service accounts
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SHORTEST = 6
"""A shorter value, such as `1` or `true`, also occurs where it is no secret."""
MOST_SEARCHED = 1000
"""Texts of Secrets that are searched for in a log, the longest ones."""


def is_secret_name(name: str) -> bool:
    """Return whether a variable or an option with this name usually has a secret as its value."""
    return bool(_SECRET_NAME.search(name))


def secrets_in(value: Any) -> set[str]:
    """Return the values that `masked` removes from a manifest and that are long enough to be searched for elsewhere."""
    return {secret for secret in _secrets(value) if len(secret) >= _SHORTEST}


def masked(value: Any) -> Any:
    """Return a copy of a manifest without secret values of variables, options and URLs, and without the copy of itself
    that `kubectl apply` keeps in an annotation. References to Secrets stay: they are only names."""
    if isinstance(value, dict):
        if isinstance(value.get("name"), str) and isinstance(value.get("value"), str) and is_secret_name(value["name"]):
            return {**value, "value": MASK}
        return {
            key: _masked_words(item) if key in ("command", "args") and isinstance(item, list) else masked(item)
            for key, item in value.items()
            if key not in (_LAST_APPLIED, "managedFields")
        }
    if isinstance(value, list):
        return [masked(item) for item in value]
    return mask_text(value) if isinstance(value, str) else value


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Mask these values, and logins in URLs."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _URL_LOGIN.sub(MASK, text) if "://" in text else text


def mask_log(text: str, secrets: Iterable[str] = ()) -> str:
    """Mask lines of a log: these values, logins in URLs, tokens of common forms, and values of at least six characters
    that follow the name of a secret: `API_KEY=...`, `"password": "..."`, `Bearer ...`."""
    text = mask_text(text, secrets)
    if "=" in text:
        text = _ASSIGNMENT.sub(_masked_long_assignment, text)
    if ":" in text:
        text = _PAIR.sub(_masked_pair, text)
    return _TOKENS.sub(MASK, _BEARER.sub(MASK, text))


def holds_token(text: str) -> bool:
    """Return whether a text has a token of a common form. Names of CSS classes and examples in words are none."""
    tokens = (match[0] for match in _TOKENS.finditer(text))
    return any(any(map(str.isdigit, token)) and token != token.lower() for token in tokens)


def mask_code(text: str) -> str:
    """Mask lines of a program: texts in quotes that are assigned to a name of a secret, such as `password = "..."`,
    logins in URLs, and tokens of common forms. Expressions stay: `sorted(items, key=first)`."""
    text = _PAIR.sub(_masked_pair, _LITERAL.sub(_masked_pair, mask_text(text)))
    return _TOKENS.sub(MASK, _BEARER.sub(MASK, text))


def mask_all(value: Any, secrets: Iterable[str]) -> Any:
    """Return a copy of an object whose strings are all masked as lines of a log are."""
    if isinstance(value, dict):
        return {key: mask_all(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [mask_all(item, secrets) for item in value]
    return mask_log(value, secrets) if isinstance(value, str) else value


def searchable(values: Iterable[str]) -> set[str]:
    """Return the texts to search for where these values may be printed: their lines as `clean` prints them, because a
    log has one line after the other. Texts that are shorter than six characters are left out."""
    lines = {clean(line.encode(), colour=False).strip() for value in values for line in value.splitlines()}
    texts = sorted((line for line in lines if len(line) >= _SHORTEST), key=len, reverse=True)
    return set(texts[:MOST_SEARCHED])


def mask_ends(line: str, secrets: Iterable[str]) -> str:
    """Mask the part of a secret, six characters or more, that a line ends or begins with. A line may be cut there,
    because it is too long, or because the program was killed."""
    for secret in secrets:
        begin, end = secret[:_SHORTEST], secret[-_SHORTEST:]
        place = line.find(begin, max(0, len(line) - len(secret)))
        while place >= 0 and not secret.startswith(line[place:]):
            place = line.find(begin, place + 1)
        if place >= 0:
            line = line[:place] + MASK
        place = line.rfind(end, 0, len(secret))
        while place >= 0 and not secret.endswith(line[: place + _SHORTEST]):
            place = line.rfind(end, 0, place + _SHORTEST - 1)
        if place >= 0:
            line = MASK + line[place + _SHORTEST :]
    return line


def mask_messages(value: Any, secrets: Iterable[str]) -> Any:
    """Return a copy of an object in which each `message` is without these texts."""
    return _with_messages(value, lambda text: mask_ends(mask_text(text, secrets), secrets)) if secrets else value


def masked_as_before(value: Any, before: Any) -> Any:
    """Return a copy of an object whose messages stay masked as in an earlier copy: the values may be gone by now."""
    former = [text for text in _messages(before) if MASK in text and len(text.replace(MASK, "")) >= _SHORTEST]
    if not former:
        return value
    return _with_messages(value, lambda text: next((old for old in former if _is_masked_form(old, text)), text))


def _is_masked_form(masked: str, text: str) -> bool:
    """Return whether `masked` is `text` with parts of it masked, each within a line."""
    first, *parts = masked.split(MASK)
    if not parts or not text.startswith(first):
        return False
    place = len(first)
    for number, part in enumerate(parts, 1):
        end = text.find(part, place + 1) if number < len(parts) else len(text) - len(part)
        hidden = text[place : max(place, end)]
        if not hidden or not text.startswith(part, end) or (hidden != MASK and (MASK in hidden or "\n" in hidden)):
            return False
        place = end + len(part)
    return True


def _messages(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "message" and isinstance(item, str):
                yield item
            else:
                yield from _messages(item)
    elif isinstance(value, list):
        for item in value:
            yield from _messages(item)


def _with_messages(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {
            key: change(item) if key == "message" and isinstance(item, str) else _with_messages(item, change)
            for key, item in value.items()
        }
    return [_with_messages(item, change) for item in value] if isinstance(value, list) else value


def _masked_words(words: list[Any]) -> list[Any]:
    """Mask the words of a command line: `--token=abc`, `--token abc` and `sh -c "API_KEY=abc train"`."""
    out: list[Any] = []
    for word in words:
        before = out[-1] if out else None
        if not isinstance(word, str):
            out.append(word)
        elif isinstance(before, str) and _takes_secret(before) and not word.startswith("-"):
            out.append(MASK)
        else:
            out.append(mask_text(_ASSIGNMENT.sub(_masked_assignment, word)))
    return out


def _takes_secret(option: str) -> bool:
    return option.startswith("--") and "=" not in option and is_secret_name(option)


def _masked_assignment(match: re.Match[str]) -> str:
    return f"{match['name']}={MASK}" if is_secret_name(match["name"]) else match[0]


def _masked_long_assignment(match: re.Match[str]) -> str:
    return _masked_assignment(match) if len(match["value"].strip("'\"")) >= _SHORTEST else match[0]


def _masked_pair(match: re.Match[str]) -> str:
    if len(match["value"]) < _SHORTEST or not is_secret_name(match["name"]):
        return match[0]
    return f"{match['name']}{match['between']}{match['quote']}{MASK}{match['quote']}"


def _secrets(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        name, content = value.get("name"), value.get("value")
        if isinstance(name, str) and isinstance(content, str) and is_secret_name(name):
            yield content
        for key, item in value.items():
            if key in ("command", "args") and isinstance(item, list):
                yield from _secret_words(item)
            else:
                yield from _secrets(item)
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item)


def _secret_words(words: list[Any]) -> Iterator[str]:
    for before, word in zip([None, *words], words, strict=False):
        if not isinstance(word, str):
            continue
        if isinstance(before, str) and _takes_secret(before) and not word.startswith("-"):
            yield word
        for match in _ASSIGNMENT.finditer(word):
            if is_secret_name(match["name"]):
                yield match["value"].strip("'\"")
