"""Scripts that complete what is typed, as shells read them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from commands import call


def completed(script: str, line: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    typed = f'COMP_WORDS=({" ".join(words[:-1])} "{words[-1]}"); COMP_CWORD={len(words) - 1}'
    ask = f'{typed}; _fedloom; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_completes_commands_names_flags_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    status, script, _ = call(capsys, "completion", "bash")
    assert status == 0
    assert completed(script, "fedloom re") == ["resume", "replay", "report", "reproduce"]
    assert completed(script, "fedloom compare fedavg fednt") == ["fedntd", "fedntd_mse"]
    assert completed(script, "fedloom run fedavg --round") == ["--rounds"]
    assert completed(script, "fedloom run fedavg --engine st") == ["stacked", "stacks"]
    assert completed(script, "fedloom run fedavg -h") == []
    assert completed(script, "fedloom run fedavg --model resnet1") == [
        *("resnet10", "resnet18", "resnet18_gn", "resnet18_cosine")
    ]
    assert completed(script, "fedloom run fedavg --task h") == ["hinge"]
    assert completed(script, "fedloom run fedavg --partition logn") == ["lognormal", "lognormal_sizes"]
    assert completed(script, "fedloom run fedavg --sampler by_") == ["by_round", "by_size"]
    assert completed(script, "fedloom analyse runs pro") == [f"proposition-{n}" for n in (1, 2, 3)]
    assert completed(script, "fedloom data download cifar") == ["cifar10", "cifar100"]
    assert completed(script, "fedloom explain FL-CLI")[:2] == ["FL-CLI-001", "FL-CLI-002"]
    assert completed(script, "fedloom data s") == ["show", "sources"]
    assert completed(script, "fedloom data show --parti") == ["--partition", "--partition-seed"]
    assert completed(script, "fedloom summary runs --re") == ["--reading"]


def test_the_other_shells_have_scripts_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    _, bash, _ = call(capsys, "completion", "bash")
    assert call(capsys, "completion", "zsh")[1] == f"autoload -U +X bashcompinit && bashcompinit\n{bash}"
    fish = call(capsys, "completion", "fish")[1].splitlines()
    assert "complete -c fedloom -f -n __fish_use_subcommand -a compare" in fish
    assert any("-l engine -x -a 'auto loop stacked" in line for line in fish)
