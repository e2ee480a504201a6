"""The commands of a command line, the launchers among them and their options."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from allranks.frameworks.command_line import calls, edited, starts
from support.builders import table


def shell(script: str) -> list[str]:
    return ["bash", "-c", script]


def words(command: list[str]) -> list[list[str]]:
    return [[word.text for word in call.words] for call in calls(command)]


@table(
    ("a command", ["torchrun", "a b.py"], [["torchrun", "a b.py"]]),
    (
        "one after the other",
        shell("cd /app && exec train; sync\nend"),
        [["cd", "/app"], ["exec", "train"], ["sync"], ["end"]],
    ),
    ("quotes", shell("a 'b c' \"d $E\" f\\ g"), [["a", "b c", "d $E", "f g"]]),
    ("redirections", shell("a b > c 2>&1 | tee d"), [["a", "b"], ["tee", "d"]]),
    ("a background process", shell("a & b"), [["a"], ["b"]]),
    ("comments and lines that continue", shell("# x | y\na \\\n  b # c"), [["a", "b"]]),
    ("substitutions", shell('a --n=$(ls -L | wc -l) "$(x -d" " -f1)" $((G / 2)) `y | z`'), None),
    ("arrays", shell('D=(--n 8 --m $M)\na "${D[@]}"'), [["D=(--n 8 --m $M)"], ["a", "${D[@]}"]]),
    ("a subshell", shell("(cd x && a) || b"), [["cd", "x"], ["a"], ["b"]]),
    ("a branch", shell("if [ $A = 0 ]; then a; else b; fi"), [["[", "$A", "=", "0", "]"], ["a"], ["b"], ["fi"]]),
    ("another option of the shell", ["/bin/bash", "-euxc", "a; b", "name"], [["a"], ["b"]]),
    ("a here-document", shell("cat > f <<-'EOF' && a\n  it's $(b\n\tEOF\nc"), [["cat"], ["a"], ["c"]]),
    ("a here-string", shell("cat <<< 'a b'; c"), [["cat"], ["c"]]),
    ("an ANSI quotation", shell("a $'it\\'s' \"$'\"; b"), [["a", "$'it\\'s'", "$'"], ["b"]]),
    ("a here-document without an end cannot be read", shell("cat <<EOF\na"), []),
    ("an open quote cannot be read", shell("a 'b"), []),
    ("an open substitution cannot be read", shell("a $(b"), []),
    ("very many substitutions cannot be read", shell("a " + "$(" * 9999), []),
    ("process substitutions", shell("exec > >(tee log) 2>&1\na <(b; c) d"), [["exec"], ["a", "<(b; c)", "d"]]),
    ("a script in a file is one command", ["bash", "run.sh"], [["bash", "run.sh"]]),
)
def test_the_commands_of_a_command_line_are_separated_as_a_shell_does(case):
    command, expected = case
    if expected is None:
        expected = [["a", "--n=$(ls -L | wc -l)", '"$(x -d" " -f1)"', "$((G / 2))", "`y | z`"]]
    assert words(command) == expected


@table(
    ("a list", "a && b; c | d", [True] * 4),
    ("after a failure", "a || b; c", [True, False, True]),
    ("after a test", "[ -f x ] && a\nb", [True, False, True]),
    ("a branch", "if a; then b; fi", [False] * 3),
    ("a loop", "for i in 1 2; do a; done", [False] * 3),
    ("a function", "f() { a; }; f", [False] * 4),
)
def test_a_command_that_may_not_run_is_not_sure(case):
    script, expected = case
    assert [call.sure for call in calls(shell(script))] == expected


@table(
    ("torchrun", "torchrun --nproc-per-node 2 a.py --nnodes 3", ("torchrun", ["nproc-per-node"], "a.py")),
    ("a path", "/opt/venv/bin/torchrun a.py", ("torchrun", [], "a.py")),
    (
        "a module",
        "python3.11 -u -m torch.distributed.launch --use_env --nnodes=2 a.py",
        ("torchrun", ["use-env", "nnodes"], "a.py"),
    ),
    ("a module to start", "torchrun -m pkg.train", ("torchrun", ["m"], "pkg.train")),
    ("mpirun", "mpirun -np 2 --mca btl tcp -x A -q prog -f 2", ("mpirun", ["np", "mca", "x", "q"], "prog")),
    ("Hydra", "mpiexec.hydra -n 2 -genv A=1 -genv B 2 prog", ("mpirun", ["n", "genv", "genv"], "prog")),
    ("horovodrun", "horovodrun --gloo -np 2 -H a:1 python a.py", ("horovodrun", ["gloo", "np", "H"], "python")),
    (
        "accelerate",
        "accelerate launch --multi_gpu --num_machines 2 a.py",
        ("accelerate", ["multi-gpu", "num-machines"], "a.py"),
    ),
    ("deepspeed", "deepspeed --num_gpus=2 a.py --deepspeed", ("deepspeed", ["num-gpus"], "a.py")),
    ("ray", "ray start --head --port 1", ("ray", ["head", "port"], None)),
    ("variables before it", "A=1 B=2 torchrun a.py", ("torchrun", [], "a.py")),
    ("a wrapper", "timeout -k 5 1800 mpirun -np 2 prog", ("mpirun", ["np"], "prog")),
    ("a profiler", "nsys profile -o /p torchrun a.py", ("torchrun", [], "a.py")),
    ("a script that starts its arguments", "/opt/entry.sh mpirun prog", ("mpirun", [], "prog")),
    ("two dashes end the options", "torchrun --nnodes 2 -- a.py", ("torchrun", ["nnodes"], "a.py")),
)
@pytest.mark.parametrize("place", ["arguments", "script"])
def test_a_launcher_has_its_options_and_its_program(case, place: str):
    text, (kind, options, program) = case[0], case[1]
    command = shlex.split(text) if place == "arguments" and "=1 B=" not in text else shell(f"cd x && {text} | tee log")
    [start] = starts(command)
    assert start.kind == kind
    assert [option.name for option in start.options] == options
    assert (start.program[0].text if start.program else None) == program


@pytest.mark.parametrize(
    "text",
    [
        "python3 train.py mpirun",
        "python3 -m train torchrun",
        "pip install deepspeed",
        "uv pip install deepspeed",
        "echo torchrun",
        "ray job submit -- python3 a.py",
        "accelerate config",
    ],
)
def test_a_word_that_names_a_launcher_is_not_one(text: str):
    assert starts(text.split()) == starts(shell(text)) == ()


@table(
    ("a word in the middle", "a  b c", ["b"], "a  c"),
    ("the last word", "a b", ["b"], "a"),
    ("before a separator", "a b; c", ["b"], "a; c"),
    ("before a pipe", "a b | c", ["b"], "a | c"),
    ("before the end of a line", "a b\nc", ["b"], "a\nc"),
    ("a line that continues", "a \\\n  b \\\n  c", ["b"], "a \\\n  c"),
    ("in parentheses", "(a b)", ["b"], "(a)"),
    ("quoted", "a 'b' \"$c\" 'd e'", ["b"], "a \"$c\" 'd e'"),
)
def test_words_are_removed_from_a_script_that_stays_valid(case):
    script, remove, expected = case
    edits = {word: "" for call in calls(shell(script)) for word in call.words if word.text in remove}
    [*_, result] = edited(shell(script), edits)
    assert result == expected
    assert subprocess.run(["bash", "-n", "-c", result], check=False).returncode == 0


def test_a_word_is_replaced_by_several():
    [call] = calls(["horovodrun", "a.py"])
    assert edited(["horovodrun", "a.py"], {call.words[0]: "env 'A=1 2'"}) == ["env", "A=1 2", "a.py"]
