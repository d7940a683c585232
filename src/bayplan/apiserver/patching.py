"""The patch verb: four kinds of patch, one way into the store."""

from __future__ import annotations

from typing import Any

from bayplan.api.conversion import convert
from bayplan.apiserver.apply import apply
from bayplan.apiserver.bodies import parse, typed
from bayplan.apiserver.call import APPLY_PATCH, Call
from bayplan.apiserver.errors import StatusError, bad_request, unsupported_media_type
from bayplan.apiserver.patches import PatchError, PatchTooLargeError, apply_json_patch, merge_patch
from bayplan.apiserver.response import Response
from bayplan.apiserver.strategic import strategic_merge
from bayplan.apiserver.writes import Writer, fresh, operation_of
from bayplan.storage.contract import Record

__all__ = ["patch"]

Object = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
SUPPORTED = f"{JSON_PATCH}, {MERGE_PATCH}, {STRATEGIC_MERGE_PATCH}, {APPLY_PATCH}"


async def patch(writer: Writer, call: Call) -> Response:
    """Change an object by a patch; 200 with what is stored now (201 where an apply created it)."""
    media = call.content_type.partition(";")[0].strip().lower()
    if call.resource.deprecation:
        call.warnings.append(call.resource.deprecation)
    if media == APPLY_PATCH:
        return await apply(writer, call)
    if media not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH):
        raise unsupported_media_type(call.content_type, SUPPORTED)
    if call.query.get("force"):
        raise bad_request("force: Forbidden: may not be specified for non-apply patch")
    document = parse(call.body, "application/json", "the patch")
    if media != JSON_PATCH and not isinstance(document, dict):
        raise bad_request("a merge patch is an object with the fields to change")
    kind, storage = call.resource.kind, call.resource.storage
    warned = False

    def changed(record: Record) -> Object:
        nonlocal warned
        shown = convert(fresh(record), storage, kind)
        try:
            if media == JSON_PATCH:
                result = apply_json_patch(shown, document)
            elif media == MERGE_PATCH:
                result = merge_patch(shown, document)
            else:
                result = strategic_merge(kind.schema, shown, document)
        except PatchTooLargeError as error:
            raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: {error}", {}) from None
        except RecursionError:
            raise bad_request("the patch makes an object that is nested too deeply") from None
        except PatchError as error:
            raise StatusError(
                422, "Invalid", f"the server rejected our request due to an error in our request: {error}", {}
            ) from None
        if not isinstance(result, dict):
            raise bad_request("the patch leaves no object")
        if (
            result.get("kind", kind.kind) != kind.kind
            or result.get("apiVersion", kind.group_version) != kind.group_version
        ):
            raise bad_request("a patch must not change kind or apiVersion")
        decoded = typed(kind, result, call.validation)
        if not warned:
            call.warnings.extend(decoded.warnings)
            warned = True
        _check_identity(call, decoded.object)
        return convert(decoded.object, kind, storage)

    return await writer.change(call, changed, operation_of(call))


def _check_identity(call: Call, obj: Object) -> None:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") != call.target.name:
        found = metadata.get("name") if isinstance(metadata, dict) else None
        raise bad_request(
            f"the name of the object ({found or ''}) does not match the name on the URL ({call.target.name})"
        )
    if call.resource.kind.namespaced and metadata.get("namespace") != call.target.namespace:
        raise bad_request(
            f"the namespace of the object ({metadata.get('namespace') or ''}) does not match the namespace on the URL "
            f"({call.target.namespace})"
        )
