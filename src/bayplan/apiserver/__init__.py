"""The API server: Kubernetes' HTTP API over a `Store`.

The way of a request: `routes` (what is asked) -> `authentication` (who asks) -> `authorization` (may they) -> `decoding`
(bytes to a checked, pruned object) -> `patching` or `apply` -> `strategy` and `bayplan.admission` (what may be stored)
-> the store -> `encoding` (stored bytes to the version and form that was asked for).

`server.APIServer.handle` is the entry point for programs in the same process, `http` the one for everybody else.
"""
