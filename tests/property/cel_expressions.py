"""Random expressions over one device, for the property tests of the expression language.

They are well-formed but not well-typed throughout: attributes have a dynamic type, so run-time errors are frequent, which is
what error absorption has to be tried with.
"""

from __future__ import annotations

from hypothesis import strategies as st

from bayplan.api.resource import Device, DeviceAttribute, DeviceCapacity
from bayplan.cel import DeviceView

DEVICE = Device(
    attributes={
        "s": DeviceAttribute(string="a-Bé"),
        "e": DeviceAttribute(string=""),
        "i": DeviceAttribute(int_=3),
        "n": DeviceAttribute(int_=-7),
        "z": DeviceAttribute(int_=0),
        "o": DeviceAttribute(int_=1),
        "big": DeviceAttribute(int_=2**63 - 1),
        "t": DeviceAttribute(bool_=True),
        "f": DeviceAttribute(bool_=False),
        "l": DeviceAttribute(strings=["a", "b"]),
        "li": DeviceAttribute(ints=[1, 2, 3]),
    },
    capacity={"mem": DeviceCapacity(value="80Gi")},
)
VIEW = DeviceView.of("d", DEVICE)

_attributes = st.sampled_from(["s", "e", "i", "n", "z", "o", "big", "t", "f", "l", "li", "nosuch"]).map(
    lambda name: f'device.attributes["d"].{name}'
)
_literals = st.sampled_from(
    ["0", "1", "3", "-7", "1.0", "2.5", "true", "false", '"a"', '"a-Bé"', '""', "null", "1u", '["a"]', "[1, 2, 3]"]
)
# Literals pass through dyn(), or most combinations would be refused statically.
_atoms = st.one_of(_attributes, _literals.map(lambda text: f"dyn({text})"), _literals)


def _extend(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in"])
    methods = st.sampled_from(
        ["size()", 'startsWith("a")', 'contains("B")', 'matches("B.*")', "lowerAscii()", 'split("-")', "reverse()"]
    )
    macros = st.sampled_from(["exists", "all", "map", "filter", "exists_one"])
    return st.one_of(
        st.tuples(parts, binary, parts).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(parts, methods).map(lambda p: f"{p[0]}.{p[1]}"),
        st.tuples(parts, macros, parts).map(lambda p: f"{p[0]}.{p[1]}(x, dyn(x) == {p[2]})"),
        st.tuples(parts, parts, parts).map(lambda p: f"(({p[0]}) ? {p[1]} : {p[2]})"),
        st.tuples(parts, parts).map(lambda p: f"cel.bind(y, {p[0]}, y == {p[1]} || y in [y])"),
        parts.map(lambda part: f"!({part})"),
        parts.map(lambda part: f"-({part})"),
        parts.map(lambda part: f"string({part})"),
        parts.map(lambda part: f"type({part}) == int"),
        st.tuples(parts, parts).map(lambda p: f"{p[0]}[{p[1]}]"),
        st.sampled_from(["i", "s", "nosuch"]).map(lambda n: f'has(device.attributes["d"].{n})'),
        st.tuples(st.sampled_from(["i", "s", "nosuch"]), _literals).map(
            lambda p: f'device.attributes["d"].?{p[0]}.orValue({p[1]})'
        ),
    )


expressions = st.recursive(_atoms, _extend, max_leaves=8)
