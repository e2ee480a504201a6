"""Records the transcripts of docs/guides/verify.md: verifications of a program without and with mistakes.

Run it as `PATH=$(tools/frameworks.sh pytorch)/bin:$PATH .venv/bin/python tools/verify_guide.py`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

from transcripts import ROOT, console, replaced

PAGE = ROOT / "docs" / "guides" / "verify.md"
JOB = "examples/verify/job.yaml"
SEEDS = {"none": 7, "optimizer": 7, "sampler": 7, "in-place": 7}


def main() -> None:
    """Record the given mistakes, by default all."""
    text = PAGE.read_text()
    for mistake in sys.argv[1:] or SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            text = replaced(text, mistake, transcript(mistake, folder))
    PAGE.write_text(text)


def transcript(mistake: str, folder: str) -> str:
    """Run one verification, and return its command and output."""
    words = [
        JOB,
        "--kills",
        "2",
        "--seed",
        str(SEEDS[mistake]),
        *([] if mistake == "none" else ["--", "--mistake", mistake]),
    ]
    at = words.index("--") if "--" in words else len(words)
    options = [*words[:at], "--run-dir", f"{folder}/run", *words[at:]]
    command = [sys.executable, "-m", "allranks", "verify", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    output = done.stdout.replace(f"{folder}/run", "runs/verify/20261130-160000")
    return console(f"allranks verify {' '.join(words)}", [*output.splitlines(), f"$ echo $?\n{done.returncode}"])


if __name__ == "__main__":
    main()
