"""The form of answers: JSON, unless the client would rather have Kubernetes protobuf or YAML.

Everything inside the server is JSON; an answer in another form is made of the finished JSON at the end. What has no protobuf
form (Tables, discovery) is answered in JSON.
"""

from __future__ import annotations

import msgspec

from bayplan.apiserver.bodies import YAML
from bayplan.apiserver.response import JSON, Response

__all__ = ["in_wanted_form"]

_decode = msgspec.json.Decoder().decode


def in_wanted_form(response: Response, accept: str) -> Response:
    """The response in the first form of the Accept header that can be given."""
    if response.content_type != JSON:
        return response
    if "protobuf" in accept:
        from bayplan.apiserver import protobuf  # only programs built on client-go need it

        if protobuf.preferred(accept):
            return protobuf.answered(response)
    if _prefers_yaml(accept) and response.stream is None:
        return _to_yaml(response)
    return response


def _prefers_yaml(accept: str) -> bool:
    for clause in accept.split(","):
        media = clause.partition(";")[0].strip()
        if media in (JSON, "*/*", "application/*"):
            return False
        if media == YAML:
            return True
    return False


def _to_yaml(response: Response) -> Response:
    import yaml

    response.body = yaml.safe_dump(_decode(response.body), default_flow_style=False, sort_keys=True).encode()
    response.content_type = YAML
    return response
