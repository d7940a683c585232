"""Environment variables as Kubernetes documents them."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from bayplan.api.core import ConfigMap, Secret
from bayplan.managers.assignment import ContainerAssignment
from bayplan.node.container_spec import build_spec, container_resources, find_container
from bayplan.node.environment import ContainerConfigError, Lookups, container_environment, expand, sources
from bayplan.node.runtime.contract import Resources
from bayplan.wire.cdi import ContainerEdits
from tests.unit.node.worlds import make_pod

LOOKUPS = Lookups(
    config_maps={"cm": ConfigMap(data={"key": "value", "BAD NAME": "x", "OTHER": "o"})},
    secrets={"s": Secret(data={"password": base64.b64encode(b"hidden").decode()})},
    node_name="n1",
    host_ip="10.0.0.1",
    node_allocatable={"cpu": "4", "memory": "1Gi"},
)


def environment(*env: dict[str, Any], **container: Any) -> dict[str, str]:
    pod = make_pod(
        {"name": "app", "env": list(env), **container},
        metadata={"labels": {"app": "web"}, "annotations": {"a/b": "c"}},
        serviceAccountName="robot",
    )
    return container_environment(pod, find_container(pod, "app"), LOOKUPS)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$$", "$"),
    ],
)
def test_references(text: str, result: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == result


def test_variables_that_double_each_other_are_an_error_and_take_no_memory() -> None:
    bomb = [{"name": "V0", "value": "x" * 1000}]
    bomb += [{"name": f"V{i}", "value": f"$(V{i - 1})" * 8} for i in range(1, 40)]
    with pytest.raises(ContainerConfigError, match="would be longer than 6291456 characters"):
        environment(*bomb)


def test_arguments_are_bounded_together() -> None:
    pod = make_pod(
        {"name": "app", "command": ["x"], "args": ["$(A)"] * 10, "env": [{"name": "A", "value": "y" * 10**6}]}
    )
    with pytest.raises(ContainerConfigError, match="the command with its arguments"):
        build_spec(pod, find_container(pod, "app"), 0, Resources(), ContainerEdits(), LOOKUPS)


def test_references_without_an_end_take_linear_time() -> None:
    text = "$(" * 500_000
    assert expand(text, {"A": "1"}) == text
    assert expand("$(A)" + text + "$$", {"A": "1"}) == "1" + text + "$"


def test_a_value_uses_names_defined_before_it() -> None:
    env = environment({"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(C)"}, {"name": "C", "value": "3"})
    assert env == {"A": "1", "B": "1-$(C)", "C": "3"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "uid-p"),
        ("metadata.labels['app']", "web"),
        ("metadata.annotations['a/b']", "c"),
        ("metadata.labels['none']", ""),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "robot"),
        ("status.hostIP", "10.0.0.1"),
        ("status.podIP", "10.0.0.1"),
    ],
)
def test_field_references(path: str, value: str) -> None:
    assert environment({"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}) == {"X": value}


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "requests.cpu"}, "1"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "250"),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "64"),
        ({"resource": "limits.cpu"}, "4"),
        ({"resource": "requests.memory"}, "0"),
    ],
)
def test_resource_references(reference: dict[str, Any], value: str) -> None:
    resources = {"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}}
    env = environment({"name": "X", "valueFrom": {"resourceFieldRef": reference}}, resources=resources)
    assert env == {"X": value}


def test_config_maps_and_secrets() -> None:
    env = environment(
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "key"}}},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
        {"name": "MAYBE", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "key", "optional": True}}},
        envFrom=[{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "absent", "optional": True}}],
    )
    assert env == {"P_OTHER": "o", "P_key": "value", "KEY": "value", "PASSWORD": "hidden"}


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ({"configMapKeyRef": {"name": "absent", "key": "k"}}, 'configmap "absent" not found'),
        ({"configMapKeyRef": {"name": "cm", "key": "k"}}, "couldn't find key k in ConfigMap cm"),
        ({"secretKeyRef": {"name": "absent", "key": "k"}}, 'secret "absent" not found'),
        ({"fieldRef": {"fieldPath": "spec.priority"}}, "spec.priority"),
        ({"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}, "fileKeyRef is not supported"),
        ({"resourceFieldRef": {"resource": "cpu"}}, "limits"),
        ({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "other"}}, "no container 'other'"),
    ],
)
def test_what_cannot_be_resolved_says_so(variable: dict[str, Any], message: str) -> None:
    with pytest.raises(ContainerConfigError, match=message):
        environment({"name": "X", "valueFrom": variable})


def test_sources_are_found_before_anything_is_read() -> None:
    pod = make_pod(
        {
            "name": "app",
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}}],
            "envFrom": [{"configMapRef": {"name": "c1"}}, {"secretRef": {"name": "s2"}}],
        }
    )
    assert sources(find_container(pod, "app")) == ({"c1"}, {"s1", "s2"})


def test_a_run_has_expanded_commands_and_cdi_variables_win() -> None:
    pod = make_pod({"name": "app", "command": ["run", "$(A)"], "args": ["$(B)"], "env": [{"name": "A", "value": "1"}]})
    edits = ContainerEdits(env=["A=cdi", "GPU=0"])
    spec = build_spec(pod, find_container(pod, "app"), 2, Resources(), edits, LOOKUPS)
    assert spec.id == "uid-p-app-2"
    assert (spec.command, spec.args) == (("run", "1"), ("$(B)",))
    assert dict(spec.env) == {"HOSTNAME": "p", "A": "cdi", "GPU": "0"}


def test_arguments_without_a_command_mean_the_pause_process() -> None:
    pod = make_pod({"name": "app", "args": ["--serve"]})
    spec = build_spec(pod, find_container(pod, "app"), 0, Resources(), ContainerEdits(), LOOKUPS)
    assert (spec.command, spec.args) == ((), ())


def resources(container: dict[str, Any], isolation: str = "host") -> Resources:
    pod = make_pod({"name": "app", "resources": container})
    assignment = ContainerAssignment(name="app", kind="app", cpuset_mask=0b110, mems=(0, 2), cpu_isolation=isolation)  # type: ignore[arg-type]
    return container_resources(find_container(pod, "app"), assignment)


def test_limits_become_quota_weight_and_memory() -> None:
    found = resources({"requests": {"cpu": "500m"}, "limits": {"cpu": "1500m", "memory": "1Gi"}})
    assert found == Resources(
        cpus_mask=0b110,
        mems_mask=0b101,
        memory_limit_bytes=1 << 30,
        cpu_quota_us=150_000,
        cpu_period_us=100_000,
        cpu_shares=512,
    )


def test_exclusive_cpus_have_no_quota_and_best_effort_the_least_weight() -> None:
    assert resources({"limits": {"cpu": "2", "memory": "1Gi"}}, "container").cpu_quota_us == -1
    assert resources({}).cpu_shares == 2
    assert resources({}).cpu_quota_us == -1
    assert resources({"limits": {"cpu": "5m"}}).cpu_quota_us == 1000


def test_a_pod_level_shared_pool_keeps_its_quota() -> None:
    assert resources({"limits": {"cpu": "1"}}, "pod").cpu_quota_us == 100_000


def test_structs_are_not_changed() -> None:
    pod = make_pod({"name": "app", "env": [{"name": "A", "value": "$(B)"}]})
    before = msgspec.json.encode(pod)
    container_environment(pod, find_container(pod, "app"), LOOKUPS)
    assert msgspec.json.encode(pod) == before
