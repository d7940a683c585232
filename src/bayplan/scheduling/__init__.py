"""Which node a pod gets: snapshot, queue, filters, scores, claims, preemption and gangs. Pure: facts in, decisions out.

Read in this order: `requests` (what a pod asks for), `cluster` (what nodes have and who uses it), `node_filters` and
`dynamic_resources` (may it go there), `scoring` (where best), `cycle` (one decision), `queue` (who is next),
`preemption`, `gang`.
"""
