"""What a shell hides from the program that it starts, and from the pod."""

from __future__ import annotations

from allranks.core.objects.shells import shell_notes, shell_warnings
from support.builders import table


@table(
    ("no shell", ["python3", "train.py"], "", ""),
    ("bash replaces itself by the last command", ["bash", "-c", "cd /work && python3 train.py"], "", ""),
    ("sh does not", ["sh", "-c", "cd /work && python3 train.py"], "", "sh gets SIGTERM and python3 does not"),
    ("exec", ["sh", "-c", "cd /work && exec python3 train.py"], "", ""),
    (
        "a command after the program",
        ["bash", "-c", 'echo prepared && python3 train.py; echo "ended $?"'],
        "a failure of python3 is not noticed if echo succeeds: begin the script with set -e",
        "bash gets SIGTERM and python3 does not",
    ),
    (
        "a success after a failure",
        ["bash", "-c", "torchrun train.py || true"],
        "a failure of torchrun is not noticed, because true follows after ||: remove it",
        "bash gets SIGTERM",
    ),
    ("an exit after a failure", ["bash", "-c", "torchrun train.py || exit 3"], "", "bash gets SIGTERM"),
    (
        "it waits for all",
        ["bash", "-c", "python3 train.py & wait"],
        "a failure of python3 is not noticed, because wait alone succeeds: write wait $!",
        "bash gets SIGTERM",
    ),
    ("it waits for the program", ["bash", "-c", "python3 train.py & wait $!"], "", "bash gets SIGTERM"),
    (
        "the script always succeeds",
        ["bash", "-c", "python3 train.py; exit 0"],
        "a failure of python3 is not noticed, because the script ends with exit 0: write exit $? after the program",
        "bash gets SIGTERM",
    ),
    ("the script ends at errors", ["bash", "-ec", "set -e\npython3 train.py\necho done"], "", "bash gets SIGTERM"),
    ("a command after a success", ["bash", "-c", "python3 train.py && echo done"], "", "bash gets SIGTERM"),
    (
        "a pipe",
        ["bash", "-c", "python3 train.py | tee log"],
        "a failure of python3 is not noticed, because the exit code is that of the pipe's end: begin the script",
        "bash gets SIGTERM",
    ),
    ("a pipe that fails with its parts", ["bash", "-c", "set -o pipefail; python3 t.py | tee log"], "", "bash gets"),
    (
        "a pipe of sh",
        ["sh", "-c", "torchrun train.py | tee log"],
        "use bash, and begin",
        "sh gets SIGTERM and torchrun",
    ),
    (
        "the background",
        ["bash", "-c", "nohup python3 train.py > log &"],
        "python3 runs in the background, and is killed when the script ends: remove &, or add wait",
        "",
    ),
    ("the background, and a wait", ["bash", "-c", "python3 train.py & wait $!"], "", "bash gets SIGTERM"),
    ("a branch", ["bash", "-c", "if [ -f a ]; then python3 a.py; fi; echo done"], "", ""),
    ("nothing that is a program by its name", ["sh", "-c", "./train; echo done"], "", ""),
)
def test_what_a_shell_hides(case):
    command, warning, note = case
    for found, words in ((shell_warnings(command), warning), (shell_notes(command), note)):
        text = "; ".join(sentence for _, sentence in found)
        assert text.startswith(words) or words in text
        assert bool(text) == bool(words) or (words == "" and warning.startswith("python3 runs in the background"))
