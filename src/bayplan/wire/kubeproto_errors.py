"""The error of the Kubernetes protobuf codec."""


class ProtobufError(ValueError):
    """Bytes that are no Kubernetes protobuf object, or an object that has no protobuf form."""
