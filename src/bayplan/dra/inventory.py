"""What exists: all slices of the cluster, kept so that a change costs what it touches.

Slices for one node are filed under it; others are found through an index of their node selectors. A node's pools are
gathered when first asked for and kept until a slice that could matter changes: one of the node itself, one without a
node, or any slice of a pool that the node has looked at (its completeness hangs on them all). Nothing is done per pod.

Source: allocator notes sections 3 and 13.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from bayplan.api.core import Node
from bayplan.api.resource import ResourceSlice
from bayplan.dra.devices import DeviceInfo, SliceInfo
from bayplan.dra.errors import NODE_SELECTOR, AllocationError
from bayplan.dra.features import Features
from bayplan.dra.node_selection import NodeSelectorError, ParsedSelector, SelectorIndex
from bayplan.dra.pools import Pool, PoolView, order


class NodeView:
    """The pools of one node, in evaluation order. Positions of devices count through all usable pools."""

    __slots__ = ("first_invalid", "labels", "markers", "name", "offsets", "plain", "pools", "shapes", "single", "size")

    def __init__(self, name: str, labels: Mapping[str, str], views: list[PoolView], features: Features) -> None:
        self.name = name
        self.labels = labels
        self.markers = [v for v in views if not v.usable]
        """Incomplete and invalid pools, in pool order."""
        self.pools = [v for v in views if v.usable and v.devices]
        self.offsets: list[int] = []
        self.size = 0
        for view in self.pools:
            self.offsets.append(self.size)
            self.size += len(view.devices)
        self.single = self.pools[0] if len(self.pools) == 1 else None
        self.first_invalid = next((v for v in self.markers if v.incomplete is None), None)
        self.shapes: dict[int, int] = {}
        """What `bayplan.dra.shapes` remembers of this node, by kind of claims."""
        self.plain = self.single is not None and _plain(self.single, features)
        """All devices stand in one pool, and nothing but selectors, taints and use can tell them apart."""

    def device(self, position: int) -> DeviceInfo:
        """The device at a position."""
        if self.single is not None:
            return self.single.devices[position]
        place = bisect_right(self.offsets, position) - 1
        return self.pools[place].devices[position - self.offsets[place]]


def _plain(pool: PoolView, features: Features) -> bool:
    return not (
        pool.per_device
        or pool.counter_users
        or pool.policies
        or (pool.multi and features.consumable_capacity)
        or (pool.skips_operations and not features.optional_node_operations)
    )


class Inventory:
    """All ResourceSlices, incrementally: `put` and `remove` as the watch tells it."""

    __slots__ = ("_broken", "_by_node", "_index", "_next", "_pools", "_slices", "_views", "version")

    def __init__(self, slices: Iterable[ResourceSlice] = ()) -> None:
        self._slices: dict[str, SliceInfo] = {}
        self._pools: dict[tuple[str, str], Pool] = {}
        self._by_node: dict[str, dict[str, SliceInfo]] = {}
        self._index = SelectorIndex()
        self._broken: dict[str, NodeSelectorError] = {}
        self._views: dict[Features, dict[str, NodeView]] = {}
        self._next = 0
        self.version = 0
        for slice_ in slices:
            self.put(slice_)

    def __len__(self) -> int:
        return len(self._slices)

    def slices(self) -> list[ResourceSlice]:
        """All slices, in the order in which they came."""
        return [info.object for info in sorted(self._slices.values(), key=lambda s: s.order)]

    def pool(self, driver: str, name: str) -> Pool | None:
        """All slices of one pool, or None if there is none."""
        return self._pools.get((driver, name))

    def pools(self) -> list[Pool]:
        """Every pool of the cluster, by driver and name."""
        return [self._pools[key] for key in sorted(self._pools)]

    def put(self, slice_: ResourceSlice) -> None:
        """A slice was added or changed. Devices that stay as they are keep all that was found out about them."""
        name = (slice_.metadata.name if slice_.metadata is not None else None) or ""
        old = self._slices.get(name)
        if old is not None:
            if old.object is slice_:
                return
            self._unfile(old)
        info = SliceInfo(slice_, old.order if old is not None else self._next, old)
        self._next += 1
        self._slices[name] = info
        pool = self._pools.get((info.driver, info.pool))
        if pool is None:
            pool = self._pools[(info.driver, info.pool)] = Pool(info.driver, info.pool)
        pool.slices[name] = info
        if info.node_name:
            self._by_node.setdefault(info.node_name, {})[name] = info
        else:
            self._index.add(name, self._keys(info))
        self._forget(info, pool)

    def remove(self, name: str) -> None:
        """A slice is gone; no error if it was not there."""
        info = self._slices.pop(name, None)
        if info is not None:
            self._unfile(info)

    def views(self, features: Features) -> dict[str, NodeView]:
        """The node views gathered so far with these features, by node name; for `node`. Always the same object."""
        return self._views.setdefault(features, {})

    def node(self, node: Node, features: Features, views: dict[str, NodeView] | None = None) -> NodeView:
        """The node's pools; AllocationError (fatal) if a node selector on the way cannot be parsed.

        ``views``: what `views` gave for these features, from a caller who asks for many nodes.
        """
        if views is None:
            views = self.views(features)
        metadata = node.metadata
        name, labels = (metadata.name or "", metadata.labels) if metadata is not None else ("", None)
        view = views.get(name)
        # Objects from a watch are replaced, never changed in place: the same labels object means the same labels.
        if view is None or view.labels is not labels:
            if view is not None and view.labels == (labels or {}):
                view.labels = labels or {}
            else:
                view = views[name] = self._gather(name, labels or {}, features)
        return view

    def _gather(self, name: str, labels: Mapping[str, str], features: Features) -> NodeView:
        found: dict[tuple[str, str], list[SliceInfo]] = {}
        for info in sorted(self._by_node.get(name, {}).values(), key=lambda s: s.order):
            if _counts(info, features):
                found.setdefault((info.driver, info.pool), []).append(info)
        shared = [self._slices[n] for n in self._index.candidates(labels, name)]
        for info in sorted(shared, key=lambda s: s.order):
            if _counts(info, features) and self._relevant(info, name, labels, features):
                found.setdefault((info.driver, info.pool), []).append(info)
        views = []
        for key, relevant in found.items():
            pool = self._pools[key]
            pool.viewers.add(name)
            view = pool.view(relevant, features, (name, tuple(sorted(labels.items()))))
            if view is not None:
                views.append(view)
        return NodeView(name, labels, order(views), features)

    def _relevant(self, info: SliceInfo, name: str, labels: Mapping[str, str], features: Features) -> bool:
        spec = info.spec
        if spec.all_nodes:
            return True
        broken = self._broken.get(info.name)
        if broken is not None:
            raise _selector_error(f"slice {info.name}", broken)
        if spec.node_selector is not None:
            return info.selector is not None and info.selector.matches(labels, name)
        if features.profile.counters_from_any_node and info.has_counters:
            return True
        if info.per_device:
            for device in info.devices:
                try:
                    if device.available_on(labels, name):
                        return True
                except NodeSelectorError as error:
                    raise _selector_error(f"device {device.name} in slice {info.name}", error) from error
        return False

    def _keys(self, info: SliceInfo) -> list[tuple[str, str]] | None:
        spec = info.spec
        if spec.all_nodes or spec.node_selector is None:
            return None
        try:
            info.selector = ParsedSelector(spec.node_selector)
        except NodeSelectorError as error:
            self._broken[info.name] = error
            return None
        # A pool's counter slice may be wanted on nodes that its selector does not name.
        return None if info.has_counters else info.selector.index_keys()

    def _unfile(self, info: SliceInfo) -> None:
        pool = self._pools[(info.driver, info.pool)]
        self._forget(info, pool)
        del pool.slices[info.name]
        if not pool.slices:
            del self._pools[(info.driver, info.pool)]
        if info.node_name:
            slices = self._by_node[info.node_name]
            del slices[info.name]
            if not slices:
                del self._by_node[info.node_name]
        else:
            broken = self._broken.pop(info.name, None)
            keys = None
            if broken is None and info.selector is not None and not info.has_counters:
                keys = info.selector.index_keys()
            self._index.discard(info.name, keys)

    def _forget(self, info: SliceInfo, pool: Pool) -> None:
        self.version += 1
        pool.views.clear()
        if not info.node_name:
            # Any node may see this slice, or see it no longer.
            for views in self._views.values():
                views.clear()
            pool.viewers.clear()
            return
        stale = pool.viewers | {info.node_name}
        pool.viewers = set()
        for views in self._views.values():
            for name in stale:
                views.pop(name, None)


def _counts(info: SliceInfo, features: Features) -> bool:
    """With partitionable devices off, slices that use the feature are as good as not there."""
    return features.partitionable_devices or (info.spec.per_device_node_selection is None and not info.has_counters)


def _selector_error(what: str, error: NodeSelectorError) -> AllocationError:
    return AllocationError(
        NODE_SELECTOR,
        f"gather pool information: failed to perform node selection for {what}: failed to parse node selector: {error}",
    )
