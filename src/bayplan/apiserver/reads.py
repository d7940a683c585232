"""get and list: current or as of a revision, in pages, selected, as objects or as a Table."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from bayplan.apiserver.call import Call
from bayplan.apiserver.encoding import list_body, list_metadata, object_bytes
from bayplan.apiserver.errors import (
    StatusError,
    bad_request,
    expired,
    invalid_options,
    not_found,
    too_large_resource_version,
)
from bayplan.apiserver.managed import all_shown, shown
from bayplan.apiserver.partial import partial_list, partial_object, partial_wanted
from bayplan.apiserver.response import JSON, Response
from bayplan.apiserver.selectors import Selection, selection
from bayplan.apiserver.tables import table_wanted, tabulate
from bayplan.storage.contract import Compacted, FutureRevision, Listing, Record, Store

__all__ = ["ListOptions", "get", "list_objects", "list_options", "too_old"]

EXACT = "Exact"
NOT_OLDER_THAN = "NotOlderThan"
SCAN = 500
"""With a selector and a limit, so many records are read at a time until the page is full."""


class ListOptions:
    """The checked parameters of a list."""

    __slots__ = ("at", "limit", "match", "minimum", "revision", "selection", "start")

    def __init__(self) -> None:
        self.limit = 0
        self.start = ""
        self.at = 0
        self.minimum = 0
        self.match = ""
        self.selection: Selection | None = None
        self.revision = ""


def list_options(call: Call) -> ListOptions:
    """The parameters of a list; 400 or 422 for contradictory ones."""
    query = call.query
    options = ListOptions()
    options.selection = selection(call.resource.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    options.limit = call.integer("limit")
    options.revision = query.get("resourceVersion", "")
    options.match = query.get("resourceVersionMatch", "")
    token = query.get("continue", "")
    revision = _revision(options.revision)
    if call.verb != "watch":
        _check_match(options, call.query, revision)
    if token:
        if options.revision and options.revision != "0":
            raise bad_request("specifying resource version is not allowed when using continue")
        options.at, options.start = _read_token(token, call)
    elif options.match == EXACT or (revision and options.limit and not options.match):
        options.at = revision
    else:
        options.minimum = revision
    return options


def _check_match(options: ListOptions, query: Mapping[str, str], revision: int) -> None:
    """422 for parameters of a list that do not go together."""
    causes = []
    match = options.match
    if match:
        forbidden = ""
        if query.get("continue"):
            forbidden = "resourceVersionMatch is forbidden when continue is provided"
        elif not options.revision:
            forbidden = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        elif match == EXACT and not revision:
            forbidden = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        if forbidden:
            causes.append(("resourceVersionMatch", "FieldValueForbidden", f"Forbidden: {forbidden}"))
        if match not in (EXACT, NOT_OLDER_THAN):
            text = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan"'
            causes.append(("resourceVersionMatch", "FieldValueNotSupported", text))
    if query.get("sendInitialEvents"):
        text = "Forbidden: sendInitialEvents is forbidden for list"
        causes.append(("sendInitialEvents", "FieldValueForbidden", text))
    if causes:
        raise invalid_options("ListOptions", causes)


def _revision(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise bad_request(
            f'resourceVersion: Invalid value: "{text}": must be a number, as an answer of this server gave it'
        )
    return int(text)


def _token(revision: int, start: str) -> str:
    text = msgspec.json.encode({"v": "meta.k8s.io/v1", "rv": revision, "start": start})
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def _read_token(token: str, call: Call) -> tuple[int, str]:
    try:
        data: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        revision, start = data["rv"], data["start"]
        if not isinstance(revision, int) or not isinstance(start, str) or not start.startswith("/"):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise bad_request("continue key is not valid: use one from the previous answer of this list") from None
    prefix = call.resource.list_prefix(call.target.namespace)
    return revision, prefix + start[1:]


async def get(store: Store, call: Call) -> Response:
    """One object. (A resourceVersion parameter is a minimum, which the newest state always satisfies.)"""
    record = await store.get(call.key)
    if record is None:
        raise not_found(call.resource.kind, call.target.name)
    wanted = _revision(call.query.get("resourceVersion", ""))
    current = await store.current_revision() if wanted else 0
    if wanted > current:
        raise too_large_resource_version(wanted, current)
    columns = table_wanted(call.accept)
    if columns:
        return tabulate(call, columns, [record], record.revision)
    value = shown(call, record)
    if partial_wanted(call.accept):
        return Response(200, partial_object(value, record.revision), JSON)
    return Response(200, object_bytes(call.resource, value, record.revision), JSON)


async def list_objects(store: Store, call: Call) -> Response:
    """A list of objects, possibly one page of it."""
    options = list_options(call)
    current = await store.current_revision()
    if options.minimum > current:
        raise too_large_resource_version(options.minimum, current)
    prefix = call.resource.list_prefix(call.target.namespace)
    try:
        listing = await _read(store, prefix, options)
    except Compacted:
        raise too_old(options.at, bool(call.query.get("continue"))) from None
    except FutureRevision as error:
        raise too_large_resource_version(options.at, error.revision) from None
    records = listing.records
    next_page = ""
    if listing.more and records:
        next_page = _token(listing.revision, "/" + records[-1].key[len(prefix) :] + "\0")
    remaining = listing.remaining if options.selection is None else 0
    columns = table_wanted(call.accept)
    if columns:
        return tabulate(call, columns, records, listing.revision, next_page, remaining)
    records = await all_shown(call, records)
    metadata = list_metadata(listing.revision, next_page, remaining)
    if partial_wanted(call.accept):
        return Response(200, partial_list([partial_object(r.value, r.revision) for r in records], metadata), JSON)
    return Response(200, list_body(call.resource, records, metadata), JSON)


async def _read(store: Store, prefix: str, options: ListOptions) -> Listing:
    chosen = options.selection
    if chosen is None:
        return await store.list(prefix, options.limit, options.start, options.at)
    if not options.limit:
        listing = await store.list(prefix, 0, options.start, options.at)
        listing.records = [r for r in listing.records if chosen.matches(r)]
        return listing
    found: list[Record] = []
    start, at = options.start, options.at
    while True:
        listing = await store.list(prefix, SCAN, start, at)
        at = listing.revision
        for index, record in enumerate(listing.records):
            if chosen.matches(record):
                found.append(record)
                if len(found) == options.limit:
                    more = listing.more or index + 1 < len(listing.records)
                    return Listing(found, at, more)
        if not listing.more:
            return Listing(found, at, False)
        start = listing.records[-1].key + "\0"


def too_old(revision: int, continued: bool = False) -> StatusError:
    """410: what a client that asks for forgotten history is told."""
    if continued:
        return expired(
            "The provided continue parameter is too old to display a consistent list result. "
            "You must start a new list without the continue parameter."
        )
    return expired(f"The resourceVersion for the provided list is too old: {revision}")
