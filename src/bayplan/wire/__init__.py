"""Bytes of others: the kubelet's gRPC protocols, CDI documents, Kubernetes' protobuf encoding.

The ``.proto`` files in ``protos`` are written for this project; package, service, message and field names and numbers
are those of the published protocols, so the wire is the same. ``scripts/generate_protos.py`` makes ``_generated``.
"""
