"""Hints for people, at the mistakes that the document's own manifests make."""

from __future__ import annotations

from bayplan.api.kinds import Kind, by_kind
from bayplan.apiserver.hints import hint, misfit


def kind(name: str = "ResourceSlice") -> Kind:
    found = by_kind("resource.k8s.io", "v1", name)
    assert found is not None
    return found


def test_a_wrong_type_is_answered_with_the_right_form() -> None:
    text = "json: cannot unmarshal string into Go struct field Device.spec.devices.capacity of type v1.DeviceCapacity"
    assert hint(kind(), text) == (
        "spec.devices.capacity: write a map from names to entries, each {requestPolicy: ..., value: ...}"
    )
    text = "json: cannot unmarshal number into Go struct field ResourceSliceSpec.spec.driver of type string"
    assert hint(kind(), text) == "spec.driver: write a string"


def test_an_unknown_field_is_answered_with_the_known_ones() -> None:
    text = 'strict decoding error: unknown field "spec.pool.size"'
    assert hint(kind(), text) == "spec.pool.size: the fields here are generation, name, resourceSliceCount"


def test_an_entry_written_inside_out() -> None:
    text = 'strict decoding error: unknown field "spec.devices[0].nodeAllocatableResources.overhead.memory"'
    assert hint(kind(), text) == (
        "spec.devices[0].nodeAllocatableResources.overhead.memory: write nodeAllocatableResources: {memory: {overhead: ...}}"
    )


def test_no_hint_where_none_helps() -> None:
    assert hint(kind(), "yaml: line 3: could not find expected ':'") is None


def test_the_place_of_a_quantity_or_time_that_is_none() -> None:
    pod = by_kind("", "v1", "Pod")
    assert pod is not None
    container = {"name": "c", "resources": {"requests": {"memory": "1Gi", "cpu": "2x"}}}
    assert misfit(pod, {"spec": {"containers": [{"name": "b"}, container]}}) == (
        "spec.containers[1].resources.requests.cpu: '2x': write a quantity such as \"4Gi\""
    )
    assert misfit(pod, {"metadata": {"creationTimestamp": "yesterday"}}) == (
        "metadata.creationTimestamp: 'yesterday': write a time such as 2026-01-31T12:00:00Z"
    )
    assert misfit(pod, {"spec": {"containers": [{"name": "c"}], "unknown": 1}}) is None
