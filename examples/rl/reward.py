"""The reward service: a verifier of answers. Half of the reward is for each digit that is right."""

from typing import Any

from services import serve


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the reward of each answer."""
    pairs = zip(request["questions"], request["answers"], strict=True)
    return {"rewards": [reward(question, digits) for question, digits in pairs]}


def reward(question: list[int], digits: list[int]) -> float:
    right = divmod(sum(question), 10)
    return sum(digit == expected for digit, expected in zip(digits, right, strict=True)) / len(right)


print("reward service: ready", flush=True)
serve(answer)
