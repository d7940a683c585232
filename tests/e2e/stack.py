"""A real stack for end-to-end tests: processes of ours, the real kubectl, waiting for what must become true."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

KUBECTL = Path(sys.executable).parent / "kubectl"
_PAUSE = threading.Event()


def wait_until(what: str, true: Callable[[], Any], timeout: float = 30.0) -> Any:
    """The first true answer of ``true``; an AssertionError that says what was waited for after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        answer = true()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"after {timeout:g} s: still no {what}"
        _PAUSE.wait(0.05)


class Kubectl:
    """The real kubectl against one kubeconfig."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        self._kubeconfig, self._home = kubeconfig, home

    def run(self, *args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(KUBECTL), "--kubeconfig", str(self._kubeconfig), *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={"HOME": str(self._home), "PATH": os.environ["PATH"]},
            check=False,
        )
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}"
        return done

    def out(self, *args: str, stdin: str | None = None) -> str:
        return self.run(*args, stdin=stdin).stdout.strip()

    def get(self, *args: str) -> Any:
        """An object or list as JSON."""
        return json.loads(self.out("get", *args, "-o", "json"))

    def apply(self, *manifests: dict[str, Any] | str) -> str:
        text = "\n---\n".join(m if isinstance(m, str) else json.dumps(m) for m in manifests)
        return self.out("apply", "-f", "-", stdin=text)


class Stack:
    """Programs of ours in one directory; each can be killed and started again. `close` ends all of them."""

    def __init__(self, directory: Path, gates: str = "AllAlpha=true,AllBeta=true") -> None:
        self.directory, self.gates = directory, gates
        self.data = directory / "data"
        self.kubeconfig = self.data / "kubeconfig"
        self.kubectl = Kubectl(self.kubeconfig, directory)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, Sequence[str]] = {}

    def start(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        """Start ``bayplan ARGS``; its output goes to ``<name>.log``."""
        self._commands[name] = args
        log = (self.directory / f"{name}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "bayplan", *args],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        log.close()
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def restart(self, name: str) -> None:
        self.start(name, *self._commands[name])

    def apiserver(self, *more: str) -> None:
        if "apiserver" not in self._commands:
            self._commands["apiserver"] = (
                "apiserver",
                "--data-dir",
                str(self.data),
                "--feature-gates",
                self.gates,
                *more,
            )
        self.start("apiserver", *self._commands["apiserver"])
        self.ready()

    def ready(self) -> None:
        def answers() -> bool:
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name} ended with {process.returncode}: {self.log(name)[-2000:]}"
            return self.kubeconfig.exists() and self.kubectl.run("get", "--raw", "/readyz", check=False).returncode == 0

        wait_until("answer on /readyz", answers)

    def component(self, name: str, *more: str) -> None:
        """The scheduler, the controllers, an agent or a driver against this stack's API server."""
        self.start(name, name, "--kubeconfig", str(self.kubeconfig), "--feature-gates", self.gates, *more)

    def close(self) -> None:
        """SIGTERM for all, in the reverse order of their start: nobody should outlive the API server."""
        for name, process in reversed(self.processes.items()):
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError(f"{name} did not end on SIGTERM: {self.log(name)[-2000:]}") from None
