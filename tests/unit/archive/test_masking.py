"""Secrets in lines of logs."""

from __future__ import annotations

import pytest

from allranks.masking import mask_log

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
