"""Find the machine's running container engine, or start a private one from Debian's packages.

The private engine is separate from any other engine: it has its own networks, and its files are in the state folder.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

from containers import firewall
from containers.shell import ImagesError, Places, answers, call, install_packages, mounts_under

# Debian's client, which matches Debian's daemon and builds without a plugin.
CLIENT = "/usr/bin/docker"
PACKAGES = {CLIENT: "docker.io", "/usr/sbin/dockerd": "docker.io", "/usr/sbin/iptables": "iptables"}
START_LIMIT_S = 60
RULES = "firewall-before"
"""The file in the state folder that records the firewall rules before the private engine starts."""
STOP_LIMIT_S = 30
# A private address range that hosts and clusters seldom use.
OWN_NETWORKS = ("10.213.",)
NETWORKS = ("--bip=10.213.0.1/24", "--default-address-pool=base=10.213.128.0/17,size=24")


def docker(places: Places) -> tuple[str, dict[str, str]]:
    """Return the client program, and its variables for the private engine if that runs, else for the machine's engine.

    Raises:
        ImagesError: no engine is running.
    """
    own = {"DOCKER_HOST": f"unix://{places.socket}", "DOCKER_BUILDKIT": "1"}
    if places.socket.exists() and answers(CLIENT, "info", environ=own):
        return CLIENT, own
    client = shutil.which("docker") or CLIENT
    if answers(client, "info"):
        return client, {"DOCKER_BUILDKIT": "1"}
    raise ImagesError("no container engine answers; as root, `ci/images engine start` starts one")


def obstacles() -> list[str]:
    """Return the reasons why a private engine cannot start here; the list is empty if it can."""
    if os.uname().sysname != "Linux":
        return [f"containers need Linux, this is {os.uname().sysname}"]
    if os.geteuid():
        return ["no container engine answers, and only root can start one"]
    if shutil.which("apt-get") is None and not Path(CLIENT).exists():
        return ["no container engine answers, and there is no apt-get to install docker.io with"]
    if not answers("unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"):
        return ["root cannot mount file systems on this machine, which containers need"]
    return []


def start(places: Places) -> None:
    """Start the private engine unless it is running; wait until it answers."""
    install_packages(PACKAGES)
    environ = {"DOCKER_HOST": f"unix://{places.socket}"}
    if places.socket.exists() and answers(CLIENT, "info", environ=environ):
        return
    _sweep(places)
    places.logs.mkdir(parents=True, exist_ok=True)
    firewall.remember(places.state / RULES)
    with (places.logs / "dockerd.log").open("ab") as log:
        daemon = subprocess.Popen(
            [
                "/usr/sbin/dockerd",
                f"--host=unix://{places.socket}",
                f"--data-root={places.data}",
                f"--exec-root={places.run}",
                f"--pidfile={places.daemon_pid}",
                *NETWORKS,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_LIMIT_S
    while not answers(CLIENT, "info", environ=environ):
        if daemon.poll() is not None or time.monotonic() > deadline:
            stop(places)
            said = (places.logs / "dockerd.log").read_text(errors="replace")
            raise ImagesError(f"dockerd did not start:\n{said[-1500:]}")
        time.sleep(0.2)


def stop(places: Places) -> None:
    """Stop the private engine and its containers, and restore the machine's firewall rules."""
    pid = _daemon(places)
    if pid is not None:
        environ = {"DOCKER_HOST": f"unix://{places.socket}"}
        with contextlib.suppress(ImagesError):
            if left := call(CLIENT, "ps", "-q", environ=environ).split():
                call(CLIENT, "kill", *left, environ=environ)
        _end(pid, signal.SIGTERM, STOP_LIMIT_S)
    _sweep(places)
    firewall.restore(places.state / RULES, OWN_NETWORKS)


def remove(places: Places) -> None:
    """Stop the private engine and remove the state folder."""
    stop(places)
    shutil.rmtree(places.state, ignore_errors=True)


def _daemon(places: Places) -> int | None:
    """Return the private daemon's process ID from its pid file; None if that process is not this daemon."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(places.daemon_pid.read_text())
        if str(places.socket) in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    return None


def _sweep(places: Places) -> None:
    """Kill the processes that a killed daemon has left (containerd and its shims), and unmount its folders."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            program = Path(os.fsdecode(words[0])).name
            if program.startswith("containerd") and any(os.fsencode(places.run) in word for word in words[1:]):
                _end(int(folder.name), signal.SIGKILL, 5)
    for point in mounts_under(places.state.resolve()):
        answers("umount", "-l", point)
    places.daemon_pid.unlink(missing_ok=True)
    shutil.rmtree(places.run, ignore_errors=True)
    if not answers("ip", "link", "show", "docker0"):
        return
    # A bridge with this address belongs to the private engine.
    if "10.213.0.1" in call("ip", "-o", "address", "show", "docker0"):
        answers("ip", "link", "delete", "docker0")


def _end(pid: int, number: signal.Signals, limit_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, number)
            if not select.select([descriptor], [], [], limit_s)[0]:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [], 5)
        finally:
            os.close(descriptor)
