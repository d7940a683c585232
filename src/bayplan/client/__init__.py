"""How programs reach API objects: typed verbs over HTTP or in process, list+watch caches, queues, leases, events."""
