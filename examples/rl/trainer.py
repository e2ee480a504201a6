"""A rank of the trainer: group-relative policy optimization (GRPO) with answers from the rollout engines."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from policy import Policy, log_likelihood
from services import ask
from torch.nn.parallel import DistributedDataParallel

from allranks.report import report, waiting

QUESTIONS, GROUP, UPDATES, CLIP, ENTROPY, SAVE_EVERY = 32, 16, 2, 0.2, 0.1, 20

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--pause", type=float, default=0, help="seconds of sleep in each step")
options = parser.parse_args()

directory = Path(os.environ["ALLRANKS_CHECKPOINT_DIR"])
dist.init_process_group(os.environ.get("ALLRANKS_BACKEND") or "gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
model = DistributedDataParallel(Policy())
policy = model.module
optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)


def write(name: str, content: dict[str, object]) -> None:
    """Replace a file of the volume. A kill leaves the old one or the new one."""
    torch.save(content, directory / f".{name}")
    (directory / f".{name}").replace(directory / name)


def resume() -> int:
    """Return the step of the checkpoint; 0 without one."""
    path = directory / "checkpoint.pt"
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    policy.load_state_dict(state["policy"])
    optimizer.load_state_dict(state["optimizer"])
    print(f"resumed from step {state['step']}", flush=True)
    return state["step"]


def rollouts(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return questions, a group of answers to each, the advantage of each answer within its group, and the rewards."""
    draw = torch.Generator().manual_seed(step * dist.get_world_size() + rank)
    questions = torch.randint(10, (QUESTIONS, 2), generator=draw).repeat_interleave(GROUP, dim=0)
    request = {"questions": questions.tolist(), "version": step}
    answers = ask("rollout", request, first=rank)["answers"]
    request = {"questions": questions.tolist(), "answers": answers}
    rewards = torch.tensor(ask("reward", request, first=rank)["rewards"]).view(QUESTIONS, GROUP)
    advantages = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)
    return questions, torch.tensor(answers), advantages.view(-1, 1), rewards


def update(questions: torch.Tensor, answers: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """Change the policy towards the better answers, within CLIP of the policy that drew them; return the loss."""
    with torch.no_grad():
        before = log_likelihood(policy(questions, answers), answers)
    for _ in range(UPDATES):
        logits = model(questions, answers)
        ratio = (log_likelihood(logits, answers) - before).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
        loss = -gain - ENTROPY * torch.distributions.Categorical(logits=logits).entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


for step in range(resume(), options.steps):
    if rank == 0:
        write("weights.pt", {"version": step, "policy": policy.state_dict()})
    with waiting():
        dist.barrier()  # the weights of this step are there before a rank asks for answers
    questions, answers, advantages, rewards = rollouts(step)
    loss = update(questions, answers, advantages)
    reward = rewards.mean()
    with waiting():
        dist.all_reduce(reward)
    reward /= dist.get_world_size()
    report(step=step + 1, total_steps=options.steps, loss=loss, reward=reward)
    if rank == 0 and (step + 1) % SAVE_EVERY == 0:
        print(f"step {step + 1}/{options.steps} reward {reward:.3f}", flush=True)
        write("checkpoint.pt", {"step": step + 1, "policy": policy.state_dict(), "optimizer": optimizer.state_dict()})
        report(checkpoint=True)
    time.sleep(options.pause)
if rank == 0:
    print(f"trained: reward {reward:.3f}", flush=True)
dist.destroy_process_group()
