"""Which devices a claim gets: dynamic resource allocation as a pure function of a given world.

The ways in, for scheduling, controllers, node and tools:

* `bayplan.dra.features.Features` - the switches, from feature gates.
* `bayplan.dra.inventory.Inventory` - what exists: ``put(slice)``, ``remove(name)``; incremental.
* `bayplan.dra.ledger.Ledger` - what is in use: ``apply(claim)``, ``book(key, holder, allocation)``, ``release(key)``.
* `bayplan.dra.allocator.Allocator` - ``Allocator(inventory, ledger, classes, features)``; ``allocate(claims, node)`` gives
  one AllocationResult per claim, None where they do not fit, or raises `bayplan.dra.errors.AllocationError`.
  For many nodes, ``plan = allocator.prepare(claims)`` once and ``plan.allocate(node)`` for each.
* `bayplan.dra.record.Record` - handed to ``allocate(..., record=...)``, it is filled with the reasons of the decision.
* `bayplan.dra.pod_claims`, `taint_rules`, `node_allocatable`, `skip_operations` - what several components must see alike.

How it is built, from the world to the answer: `node_selection`, `devices`, `pools` and `inventory` say what a node sees; `ledger`
what is in use; `requests` and `selectors` make claims ready; `attributes`, `constraints`, `counters`, `capacity`, `taints` hold
the rules; `state` keeps what a search has taken and `search` its order; `proof`, `bounds`, `lookahead`, `symmetry` end hopeless
searches and `shapes` spares equal ones; `result` writes the allocation, `record` the reasons.
"""
