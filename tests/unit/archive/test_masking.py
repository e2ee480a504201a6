"""Secrets in lines of logs, and in messages."""

from __future__ import annotations

import pytest

from allranks import masking
from allranks.masking import mask_ends, mask_log, mask_messages, masked_as_before, searchable

TOKEN = "ghp_" + "a1B2" * 10


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("WANDB_API_KEY=0123456789abcdef python train.py", "WANDB_API_KEY=<masked> python train.py"),
        ("password='correct horse' host=db", "password=<masked> host=db"),
        ('{"secret": "abcdefgh", "epoch": "1"}', '{"secret": "<masked>", "epoch": "1"}'),
        ("auth_token: 'abcdefgh'", "auth_token: '<masked>'"),
        ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer <masked>"),
        (f"cloning with {TOKEN}.", "cloning with <masked>."),
        ("AKIAIOSFODNN7EXAMPLE is the key", "<masked> is the key"),
        ("hf_" + "x" * 34, "<masked>"),
        ("postgres://me:pass@db/x", "postgres://<masked>@db/x"),
        ("train --api-token=abcdef1 --2nd-key=abcdef2", "train --api-token=<masked> --2nd-key=<masked>"),
    ],
)
def test_secrets_are_masked(line: str, masked: str):
    assert mask_log(line) == masked


@pytest.mark.parametrize(
    "line",
    [
        "epoch=3 loss=0.25 tokens=1048576",
        "key=3",
        "num_tokens: '1234567'",
        "https://example.com/a:b@c",
        "the bearer of bad news",
    ],
)
def test_usual_lines_stay(line: str):
    assert mask_log(line) == line


@pytest.mark.parametrize("word", ["x", "aB3-", "eyJ-", "a:", "a='", 'a:"'])
def test_a_line_without_end_takes_time_in_proportion_to_its_length(word: str):
    line = word * ((1 << 20) // len(word))  # takes hours if each place is compared with the rest
    assert len(mask_log(f"10:00 {line}")) == len(line) + 6


def test_values_of_secret_variables_are_masked_wherever_they_are():
    assert mask_log("x=swordfish; swordfish", {"swordfish"}) == "x=<masked>; <masked>"


# --- values of Secrets -----------------------------------------------------------------------------------------------

SECRET = "correct-horse-battery"


def test_a_value_is_searched_for_by_its_lines_as_they_are_printed():
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n\n-----END KEY-----\n"
    assert searchable([key]) == {"-----BEGIN KEY-----", "MIIEvQIBADANBg", "-----END KEY-----"}
    assert searchable(["  swordfish\r\n"]) == {"swordfish"}
    assert searchable(["sword\x1b[31mfish"]) == {"swordfish"}, "a log has no control sequences"
    assert searchable(["12345", "true", "", "123456"]) == {"123456"}


def test_the_number_of_texts_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(masking, "MOST_SEARCHED", 2)
    assert searchable(["abcdef\nabcdefgh", "abcdefg"]) == {"abcdefgh", "abcdefg"}


@pytest.mark.parametrize("shown", range(6, len(SECRET)))
def test_a_part_of_a_secret_at_the_end_or_begin_of_a_line_is_masked(shown: int):
    assert mask_ends(f"token {SECRET[:shown]}", [SECRET]) == "token <masked>"
    assert mask_ends(f"{SECRET[-shown:]} is the token", [SECRET]) == "<masked> is the token"
    assert mask_ends(SECRET[:shown], [SECRET]) == "<masked>"


@pytest.mark.parametrize("line", ["token corre", "correct-horse", "a correct-hors", "correct-horse is no secret", ""])
def test_other_lines_stay(line: str):
    longer = "correct-horse is no secret at all"
    assert mask_ends(line, ["unrelated-secret"]) == line
    assert mask_ends("tail of an other text", [longer]) == "tail of an other text"


def test_a_part_of_a_secret_that_repeats_itself_is_masked_from_its_begin():
    assert mask_ends("x aaaaaaaaaa", ["a" * 12 + "b"]) == "x <masked>"
    assert mask_ends("aaaaaaaaaa x", ["b" + "a" * 12]) == "<masked> x"


def test_values_are_masked_in_messages_only():
    job = {"metadata": {"name": SECRET}, "status": {"history": [{"message": f"{SECRET}\nat {SECRET[:9]}"}]}}
    found = mask_messages(job, {SECRET})
    assert found == {"metadata": {"name": SECRET}, "status": {"history": [{"message": "<masked>\nat <masked>"}]}}
    assert mask_messages(job, set()) is job


@pytest.mark.parametrize(
    ("before", "now", "shown"),
    [
        ("login with <masked> failed", "login with swordfish failed", "login with <masked> failed"),
        ("from <masked> to <masked>", "from one to two", "from <masked> to <masked>"),
        ("<masked> b and <masked> c", "one b and two c", "<masked> b and <masked> c"),
        ("login with <masked> failed", "login with  failed", "login with  failed"),
        ("login with <masked> failed", "login works", "login works"),
        ("<masked>", "anything else", "anything else"),
        ("Error: token=<masked>", "Error: token=<masked>", "Error: token=<masked>"),
        ("Error: token=<masked>", "Error: token=<masked> expired", "Error: token=<masked> expired"),
        ("Error: token=<masked>", "Error: token=x\nat line 7", "Error: token=x\nat line 7"),
        ("from <masked> to <masked>", "from <masked> to here", "from <masked> to <masked>"),
        ("from <masked> to <masked>", "from one", "from one"),
        ("login with <masked>", "login with ", "login with "),
        ("no secret", "other text", "other text"),
    ],
)
def test_a_message_stays_masked_as_it_was(before: str, now: str, shown: str):
    found = masked_as_before({"a": [{"message": now, "reason": now}]}, [{"status": {"message": before}}])
    assert found == {"a": [{"message": shown, "reason": now}]}
