"""The rows of the speed table that need the whole control plane: pods through the API, durable creates, watch fan-out, start-up.

Starts `bayplan up` (API server, store, scheduler and controllers in one process; SQLite with full synchronisation; TLS and
RBAC on) and drives it with the clients in ``../shared/bench/e2e``, which share the machine's CPUs with it. Figures of one run on a
busy machine say little: compare medians, and ratios measured side by side.

    python bench/endtoend.py [sched|creates|watch|start ...]
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("BAYPLAN_SHARED") or ROOT.parent / "shared") / "bench" / "e2e"
GO = {
    "dra1": "35.5 pods/s",
    "dra2": "16.4 pods/s",
    "plain": "283 pods/s",
    "creates": "1,017/s",
    "watch": "p50 13 ms, p99 28 ms",
}
WANTED = {"dra1": ">= 250", "dra2": ">= 200", "plain": ">= 300", "creates": ">= 1,000", "watch": "<= 15 / 40 ms"}


@contextlib.contextmanager
def running(*args: str) -> Iterator[tuple[Path, psutil.Process]]:
    """`bayplan ARGS --data-dir TMP`, its kubeconfig, its process; stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="bp-") as directory:
        kubeconfig = Path(directory) / "data" / "kubeconfig"
        command = [sys.executable, "-m", "bayplan", *args, "--data-dir", str(kubeconfig.parent), "--port", "0"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if "kubeconfig" in line:
                break
        try:
            yield kubeconfig, psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def client(kubeconfig: Path, *args: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, str(SHARED / "bench.py"), args[0], str(kubeconfig), *args[1:]],
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def sched() -> None:
    for workload in ("dra1", "dra2", "plain"):
        with running("up", "--no-local-node") as (kubeconfig, process):
            rows = [r for r in client(kubeconfig, "sched", workload) if r.get("phase") != "warm-up"]
            rates = sorted(float(str(r["pods_per_s"])) for r in rows)
            memory = process.memory_info().rss >> 20
        report(
            workload,
            f"{rates[len(rates) // 2]:.0f} pods/s (of {', '.join(f'{r:.0f}' for r in rates)}); {memory} MiB afterwards",
        )


def creates() -> None:
    with running("apiserver") as (kubeconfig, _process):
        report("creates", str(client(kubeconfig, "creates", "resourceclaims", "--n", "3000")[-1]))


def watch() -> None:
    with running("apiserver") as (kubeconfig, _process):
        report("watch", str(client(kubeconfig, "watch")[-1]))


def start() -> None:
    """exec to 200 on /readyz, empty store, best of five."""
    import ssl

    best = 99.0
    for _ in range(5):
        with tempfile.TemporaryDirectory(prefix="bp-") as directory:
            began = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "bayplan", "apiserver", "--data-dir", directory, "--port", "0"],
                stderr=subprocess.DEVNULL,
            )
            context = ssl._create_unverified_context()
            while True:
                try:
                    port = (Path(directory) / "port").read_text()
                    urllib.request.urlopen(f"https://127.0.0.1:{port}/readyz", context=context).read()
                    break
                except OSError:
                    time.sleep(0.005)
            best = min(best, time.perf_counter() - began)
            process.terminate()
            process.wait()
    report("start", f"{best:.2f} s to /readyz")


def report(name: str, text: str) -> None:
    print(f"{name:8} {text}   [Go: {GO.get(name, '2.4 s')}; wanted: {WANTED.get(name, '<= 0.7 s')}]", flush=True)


if __name__ == "__main__":
    if not SHARED.exists():
        sys.exit(f"{SHARED} is missing: put ../shared beside the project or set BAYPLAN_SHARED")
    for chosen in sys.argv[1:] or ["start", "creates", "watch", "sched"]:
        {"sched": sched, "creates": creates, "watch": watch, "start": start}[chosen]()
