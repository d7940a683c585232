"""Kubernetes' sentence first, the causes behind it. Expected texts: the recorded conditions."""

from __future__ import annotations

from bayplan.explain.scheduling import fit_message, with_causes


def test_the_sentence() -> None:
    preemption = "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    counts = {"cannot allocate all claims": 1, "node(s) didn't match Pod's node affinity/selector": 2}
    assert fit_message(3, counts, postfilter=["still not schedulable", preemption]) == (
        "0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) didn't match Pod's node affinity/selector. "
        "still not schedulable, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    )
    assert fit_message(
        3,
        {},
        prefilter="request r: device class nope does not exist",
        postfilter=["no new claims to deallocate", preemption],
    ) == (
        "0/3 nodes are available: request r: device class nope does not exist. no new claims to deallocate, "
        "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    )
    assert fit_message(0, {}) == "no nodes available to schedule pods"


def test_causes_are_counted_and_bounded() -> None:
    assert with_causes("text", []) == "text"
    assert with_causes("text", [("n1", "a"), ("n2", "b"), ("n3", "b")]) == ("text (2 nodes such as n2: b; node n1: a)")
    many = with_causes("text", [(f"n{i}", f"cause {i}") for i in range(9)])
    assert many.endswith("; 5 other causes)")
    assert with_causes("text", [("n1", "a")], refused=40) == "text (1 of 40 refused nodes looked at: node n1: a)"
    assert len(with_causes("text", [("n1", "x" * 5000)])) < 1024
