"""Where objects live: one `Store` contract, three back ends (memory, SQLite, etcd).

A store maps keys (`/registry/<group>/<plural>/[<namespace>/]<name>`) to bytes and numbers every change with one
global, growing revision. It knows nothing about Kubernetes objects; `apiserver` gives the bytes their meaning.
"""
