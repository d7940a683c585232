"""kubectl logs, exec, attach and cp, and the PyPI client's stream, against a real agent with real processes."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import kubernetes.stream
import pytest

from tests.e2e.stack import KUBECTL, Stack, wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
NODE = "worker"
COUNTER = "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo line $i; echo err $i >&2; sleep 0.05; done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """API server, one agent for this machine, no scheduler: pods name their node."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        found = Stack(Path(folder))
        found.apiserver()
        found.component("agent", "--root-dir", str(found.directory / "node"), "--node-name", NODE)
        wait_until("the node", lambda: found.kubectl.run("get", "node", NODE, check=False).returncode == 0)
        yield found
        found.kubectl.run("delete", "pods", "--all", "--grace-period=1", "--timeout=40s", check=False)
        wait_until("all pods gone", lambda: not found.kubectl.get("pods")["items"])
        found.close()


def pod(cluster: Stack, name: str, *scripts: str, phase: str = "Running", **spec: Any) -> str:
    """A pod with a container for each script, and its phase waited for."""
    containers = [
        {"name": f"c{i}", "image": "x", "command": ["sh", "-c", script], "env": [{"name": "WHO", "value": name}]}
        for i, script in enumerate(scripts)
    ]
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"nodeName": NODE, "containers": containers, "terminationGracePeriodSeconds": 1, **spec},
    }
    cluster.kubectl.apply(manifest)
    cluster.kubectl.out("wait", f"--for=jsonpath={{.status.phase}}={phase}", f"pod/{name}", "--timeout=30s")
    return name


@pytest.fixture(scope="module")
def counter(cluster: Stack) -> str:
    return pod(cluster, "counter", COUNTER, "exec sleep 1000")


@pytest.fixture(scope="module")
def shell(cluster: Stack) -> str:
    return pod(cluster, "shell", "exec sleep 1000")


class Running:
    """A kubectl that goes on; its output is gathered."""

    def __init__(self, cluster: Stack, *args: str, stdin: int = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            [str(KUBECTL), "--kubeconfig", str(cluster.kubeconfig), *args],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"HOME": str(cluster.directory), "PATH": os.environ["PATH"]},
        )
        self.output, self.errors = bytearray(), bytearray()
        self._threads = [
            threading.Thread(target=self._read, args=(stream, into), daemon=True)
            for stream, into in ((self.process.stdout, self.output), (self.process.stderr, self.errors))
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream: Any, into: bytearray) -> None:
        while data := stream.read1(1 << 16):
            into += data

    def end(self) -> int:
        code = self.process.wait(30)
        for thread in self._threads:
            thread.join(10)
        return code


# -- logs


def test_logs_of_one_container_with_every_option(cluster: Stack, counter: str) -> None:
    kubectl = cluster.kubectl
    wait_until("three lines", lambda: "line 3" in kubectl.out("logs", counter, "-c", "c0"))
    assert kubectl.out("logs", counter, "-c", "c0").splitlines()[:2] == ["line 1", "err 1"]
    assert len(kubectl.out("logs", counter, "-c", "c0", "--tail=2").splitlines()) == 2
    assert kubectl.out("logs", counter, "-c", "c0", "--limit-bytes=9") == "line 1\ner"
    stamped = kubectl.out("logs", counter, "-c", "c0", "--timestamps", "--tail=1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (line|err) \d+", stamped)
    assert kubectl.out("logs", counter, "-c", "c1", "--since=1h") == ""
    assert kubectl.out("logs", counter, "-c", "c0", "--since-time=2100-01-01T00:00:00Z") == ""


def test_all_containers_and_a_selector(cluster: Stack) -> None:
    name = pod(cluster, "pair", "echo from c0", "echo from c1", phase="Succeeded", restartPolicy="Never")
    found = cluster.kubectl.out("logs", name, "--all-containers", "--prefix")
    assert sorted(found.splitlines()) == ["[pod/pair/c0] from c0", "[pod/pair/c1] from c1"]
    cluster.kubectl.out("label", "pod", name, "app=pair")
    assert sorted(cluster.kubectl.out("logs", "-l", "app=pair", "--all-containers").splitlines()) == [
        "from c0",
        "from c1",
    ]


def test_following_ends_with_the_container_and_has_every_line(cluster: Stack) -> None:
    gate = cluster.directory / "gate"
    script = f"echo begun; while [ ! -e {gate} ]; do sleep 0.05; done; seq 1 20000; echo over"
    name = pod(cluster, "follow", script, restartPolicy="Never")
    follower = Running(cluster, "logs", "-f", name)
    wait_until("the first line", lambda: follower.output.startswith(b"begun\n"))
    gate.touch()
    assert follower.end() == 0
    assert follower.output.decode().splitlines() == ["begun", *map(str, range(1, 20001)), "over"]
    assert cluster.kubectl.out("logs", name, "--tail=2") == "20000\nover"


def test_the_log_of_the_run_before(cluster: Stack) -> None:
    mark = cluster.directory / "mark"
    name = pod(cluster, "again", f"echo run $(date +%N); test -e {mark} && exec sleep 1000; touch {mark}; exit 1")
    wait_until(
        "the second run",
        lambda: (
            cluster.kubectl.get("pod", name)["status"]["containerStatuses"][0]["restartCount"] == 1
            and cluster.kubectl.out("logs", name)
        ),
        60,
    )
    before, now = cluster.kubectl.out("logs", "-p", name), cluster.kubectl.out("logs", name)
    assert before.startswith("run ")
    assert now.startswith("run ")
    assert before != now


def test_logs_before_those_of_the_run_before_are_removed(cluster: Stack) -> None:
    """A container that fails again and again does not fill the disk."""
    marks = cluster.directory / "marks"
    script = f"echo x >> {marks}; test $(wc -l < {marks}) = 3 && exec sleep 1000; exit 1"
    name = pod(cluster, "thrice", script)
    uid = cluster.kubectl.get("pod", name)["metadata"]["uid"]
    folder = cluster.directory / "node" / "logs" / "pods" / f"default_{name}_{uid}" / "c0"
    wait_until("the third run", lambda: (folder / "2.log").exists(), 60)
    assert sorted(file.name for file in folder.iterdir()) == ["1.log", "2.log"]


def test_what_has_no_log(cluster: Stack, shell: str) -> None:
    def refusal(*args: str) -> str:
        done = cluster.kubectl.run(*args, check=False)
        assert done.returncode == 1
        return done.stderr.strip()

    assert refusal("logs", "-p", shell) == (
        'Error from server (BadRequest): previous terminated container "c0" in pod "shell" not found'
    )
    assert "container nobody is not valid for pod shell" in refusal("logs", shell, "-c", "nobody")
    assert 'pods "nobody" not found' in refusal("logs", "nobody")


# -- exec


def test_exit_codes_streams_and_environment(cluster: Stack, shell: str) -> None:
    done = cluster.kubectl.run("exec", shell, "--", "sh", "-c", "echo $WHO; echo oops >&2; exit 3", check=False)
    assert (done.returncode, done.stdout) == (3, "shell\n")
    assert done.stderr.splitlines() == ["oops", "command terminated with exit code 3"]
    missing = cluster.kubectl.run("exec", shell, "--", "no-such-command", check=False)
    assert missing.returncode == 1
    assert missing.stderr.strip() == (
        "error: Internal error occurred: error executing command in container: "
        "no-such-command: No such file or directory"
    )


def test_a_command_runs_on_the_cpus_of_its_container(cluster: Stack, shell: str) -> None:
    pid = cluster.kubectl.out("exec", shell, "--", "sh", "-c", "grep Cpus_allowed_list /proc/self/status")
    runs = [p for p in (cluster.directory / "node" / "runs").iterdir() if f"-{'c0'}-" in p.name]
    assert runs
    assert pid.startswith("Cpus_allowed_list:")


def test_much_input_and_much_output(cluster: Stack, shell: str) -> None:
    data = os.urandom(8 << 20)
    running = Running(cluster, "exec", "-i", shell, "--", "cat", stdin=subprocess.PIPE)
    assert running.process.stdin is not None
    running.process.stdin.write(data)
    running.process.stdin.close()
    assert running.end() == 0
    assert hashlib.sha256(running.output).digest() == hashlib.sha256(data).digest()


def test_copying_to_and_fro(cluster: Stack, shell: str) -> None:
    source, target = cluster.directory / "source", cluster.directory / "target"
    source.write_bytes(os.urandom(100_000))
    inside = cluster.directory / "inside"
    cluster.kubectl.out("cp", str(source), f"{shell}:{inside}")
    assert inside.read_bytes() == source.read_bytes()
    cluster.kubectl.out("cp", f"{shell}:{inside}", str(target))
    assert target.read_bytes() == source.read_bytes()


def test_who_goes_away_ends_the_command(cluster: Stack, shell: str) -> None:
    running = Running(cluster, "exec", shell, "--", "sh", "-c", "echo $$; sleep 1000")
    wait_until("a process id", lambda: running.output.endswith(b"\n"))
    pid = int(running.output)
    assert Path(f"/proc/{pid}").exists()
    running.process.send_signal(signal.SIGINT)
    running.end()
    wait_until("the command's end", lambda: not Path(f"/proc/{pid}").exists())


def test_a_killed_agent_ends_commands_and_its_next_one_serves_again(cluster: Stack, shell: str, counter: str) -> None:
    running = Running(cluster, "exec", shell, "--", "sh", "-c", "echo $$; sleep 1000")
    follower = Running(cluster, "logs", "-f", counter, "-c", "c0", "--tail=1")
    wait_until("output", lambda: running.output.endswith(b"\n") and follower.output)
    pid = int(running.output)
    cluster.kill("agent")
    assert running.end() != 0
    follower.end()
    wait_until("the command's end", lambda: not Path(f"/proc/{pid}").exists())
    refused = cluster.kubectl.run("exec", shell, "--", "true", check=False)
    assert "error dialing backend: dial tcp 127.0.0.1:" in refused.stderr
    cluster.restart("agent")
    wait_until(
        "an agent that serves",
        lambda: cluster.kubectl.run("exec", shell, "--", "true", check=False).returncode == 0,
    )
    assert "line 1\n" in cluster.kubectl.out("logs", counter, "-c", "c0")


def test_completed_pods(cluster: Stack) -> None:
    name = pod(cluster, "over", "echo done", phase="Succeeded", restartPolicy="Never")
    assert cluster.kubectl.out("logs", name) == "done"
    refused = cluster.kubectl.run("exec", name, "--", "true", check=False)
    assert "cannot exec into a container in a completed pod; current phase is Succeeded" in refused.stderr


# -- attach


def test_attaching_shows_what_comes_and_ends_with_the_container(cluster: Stack) -> None:
    gate = cluster.directory / "attach-gate"
    script = f"echo before; while [ ! -e {gate} ]; do echo tick; sleep 0.05; done; echo after >&2"
    name = pod(cluster, "attach", script, restartPolicy="Never")
    running = Running(cluster, "attach", name)
    wait_until("output", lambda: b"tick\n" in running.output)
    gate.touch()
    assert running.end() == 0
    assert b"before" not in running.output
    assert b"after\n" in running.errors


# -- other clients


def test_the_pypi_client(cluster: Stack, shell: str, counter: str) -> None:
    api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(cluster.kubeconfig)))
    assert api.read_namespaced_pod_log(counter, "default", container="c0", limit_bytes=6) == "line 1"
    found = kubernetes.stream.stream(
        kubernetes.client.CoreV1Api(
            kubernetes.config.new_client_from_config(str(cluster.kubeconfig))
        ).connect_get_namespaced_pod_exec,
        shell,
        "default",
        command=["sh", "-c", "read line; echo got $line; exit 5"],
        stdin=True,
        stdout=True,
        stderr=True,
        _preload_content=False,
    )
    found.write_stdin("hello\n")
    found.run_forever(timeout=30)
    assert found.read_stdout() == "got hello\n"
    assert found.returncode == 5
    found.close()
    del api, found
    gc.collect()  # the client leaves its connections to the garbage collector


def test_the_pypi_client_sends_its_input_at_once_and_any_size(cluster: Stack, shell: str) -> None:
    def command(*words: str, tty: bool) -> Any:
        api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(cluster.kubeconfig)))
        options = {"stdin": True, "stdout": True, "stderr": True, "tty": tty, "_preload_content": False}
        return kubernetes.stream.stream(
            api.connect_get_namespaced_pod_exec, shell, "default", command=list(words), **options
        )

    size = 6 << 20
    found = command("sh", "-c", f"head -c {size} | wc -c", tty=False)
    found.write_stdin("x" * size)
    found.run_forever(timeout=30)
    assert found.read_stdout() == f"{size}\n"
    found.close()
    found = command("sh", "-c", "read line; stty size", tty=True)
    for width in ("70000", "-1", "Infinity", "80"):
        found.write_channel(4, f'{{"Width": {width}, "Height": 25}}')
    found.write_stdin("\n")
    found.run_forever(timeout=30)
    assert found.read_stdout().split() == ["25", "80"]
    found.close()
    del found
    gc.collect()


def test_the_agent_lets_only_the_api_server_in(cluster: Stack, shell: str) -> None:
    node = cluster.kubectl.get("node", NODE)
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        try:
            with context.wrap_socket(plain) as wrapped:
                wrapped.sendall(b"GET /exec/default/shell/c0?command=ls HTTP/1.1\r\nHost: x\r\n\r\n")
                answer = wrapped.recv(100)
        except (ssl.SSLError, ConnectionError):
            answer = b""
    assert answer == b""
