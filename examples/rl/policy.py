"""The policy: a small recurrent network that answers an addition of two digits, such as 7 + 8, with two digits."""

import torch

DIGITS, START, LENGTH = 10, 10, 2


class Policy(torch.nn.Module):
    """Reads the two digits of the question and the answer so far, and returns logits of the next digit."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(DIGITS + 1, width)
        self.network = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, DIGITS)

    def forward(self, questions: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, LENGTH, DIGITS) for questions (batch, 2) and answers (batch, LENGTH)."""
        start = torch.full((len(questions), 1), START)
        tokens = torch.cat([questions, start, answers[:, :-1]], dim=1)
        hidden, _ = self.network(self.embedding(tokens))
        return self.head(hidden[:, 2:])

    @torch.no_grad()
    def generate(self, questions: torch.Tensor) -> torch.Tensor:
        """Return an answer to each question, drawn digit by digit: (batch, LENGTH)."""
        answers = torch.zeros(len(questions), LENGTH, dtype=torch.long)
        for position in range(LENGTH):
            logits = self(questions, answers)[:, position]
            answers[:, position] = torch.distributions.Categorical(logits=logits).sample()
        return answers


def log_likelihood(logits: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the probability of each digit of the answers: (batch, LENGTH)."""
    return logits.log_softmax(dim=2).gather(2, answers.unsqueeze(2)).squeeze(2)
