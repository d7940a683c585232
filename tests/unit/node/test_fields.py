"""Which fields are acted on, and that the documentation says the same."""

from __future__ import annotations

from pathlib import Path

from bayplan.api.core import Container, PodSpec
from bayplan.node.fields import CONTAINER_FIELDS, POD_FIELDS, ignored_fields, markdown
from tests.unit.node.worlds import make_pod


def test_every_field_of_the_api_has_a_rule() -> None:
    assert set(POD_FIELDS) == set(PodSpec.__struct_encode_fields__)
    assert set(CONTAINER_FIELDS) == set(Container.__struct_encode_fields__)


def test_the_documentation_shows_the_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "container-fields.md").read_text(encoding="utf-8")
    assert text.endswith(markdown())


def test_what_is_set_and_ignored_is_named() -> None:
    pod = make_pod(
        {
            "name": "app",
            "livenessProbe": {"exec": {"command": ["x"]}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        },
        init=[{"name": "init", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}],
        volumes=[{"name": "v", "emptyDir": {}}],
        securityContext={"runAsUser": 1000},
    )
    assert ignored_fields(pod) == [
        "spec.securityContext",
        "spec.volumes",
        "spec.initContainers[init].lifecycle",
        "spec.containers[app].livenessProbe",
        "spec.containers[app].volumeMounts",
    ]


def test_defaults_of_an_api_server_are_not_named() -> None:
    pod = make_pod(
        {
            "name": "app",
            "image": "x",
            "imagePullPolicy": "Always",
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "resources": {},
            "volumeMounts": [
                {"name": "kube-api-access-x7x2k", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
            ],
        },
        dnsPolicy="ClusterFirst",
        enableServiceLinks=True,
        securityContext={},
        serviceAccountName="default",
        volumes=[{"name": "kube-api-access-x7x2k", "projected": {"sources": []}}],
        preemptionPolicy="PreemptLowerPriority",
    )
    assert ignored_fields(pod) == []
