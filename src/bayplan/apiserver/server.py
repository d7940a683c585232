"""The API server without HTTP: `APIServer.handle` answers requests, whoever carries them.

Programs in the same process call it directly (no HTTP is spoken, all rules apply); `bayplan.apiserver.http` carries it over
TLS. Everything runs in one event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import bayplan
from bayplan.api.gates import FeatureGates
from bayplan.apiserver.audit import AuditLog
from bayplan.apiserver.authentication import Authenticator, UserInfo, impersonated
from bayplan.apiserver.authorization import Attributes, Authorizer
from bayplan.apiserver.bodies import MAX_BODY, parse
from bayplan.apiserver.bootstrap import bootstrap, ensure_service_account
from bayplan.apiserver.call import TRUE, Call
from bayplan.apiserver.deletion import Deleter
from bayplan.apiserver.discovery import Discovery
from bayplan.apiserver.encoding import FrameCache
from bayplan.apiserver.errors import (
    StatusError,
    internal,
    method_not_allowed,
    not_found_path,
    service_unavailable,
    too_large,
    too_many_requests,
)
from bayplan.apiserver.expiry import expire_events
from bayplan.apiserver.metrics import Metrics
from bayplan.apiserver.negotiation import in_wanted_form
from bayplan.apiserver.nodes import NodeConnections
from bayplan.apiserver.openapi import OpenAPI
from bayplan.apiserver.patching import patch
from bayplan.apiserver.pod_streams import REMOTE, PodStreams
from bayplan.apiserver.policy import Policy, rfc3339, utc_now
from bayplan.apiserver.reads import get, list_objects
from bayplan.apiserver.response import Response, encode, json_response
from bayplan.apiserver.reviews import Reviews
from bayplan.apiserver.routes import Router
from bayplan.apiserver.served import Served
from bayplan.apiserver.subresources import Subresources
from bayplan.apiserver.tokens import TokenSigner
from bayplan.apiserver.watches import watch
from bayplan.apiserver.writes import Writer
from bayplan.storage.contract import Store, Unavailable, Watch

__all__ = ["KUBERNETES_VERSION", "MAX_BODY", "APIServer"]

log = logging.getLogger("bayplan.apiserver")

KUBERNETES_VERSION = "1.37"
MAX_MUTATING = 400
MAX_READING = 800

Query = Mapping[str, str]
Headers = Mapping[str, str]


class APIServer:
    """Kubernetes' API over a store.

    `authenticator` knows the tokens; `signing_key` (a private EC key, or a function that gives one) lets it issue service
    account tokens; `node_client` gives the files of the client certificate that agents ask for;
    `audit` gets a line per write. `start` must have been awaited before requests are served.
    """

    def __init__(
        self,
        store: Store,
        gates: FeatureGates,
        *,
        authenticator: Authenticator | None = None,
        authorizer: Authorizer | None = None,
        signing_key: Any = None,
        node_client: Callable[[], tuple[Path, Path]] | None = None,
        audit: AuditLog | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.store = store
        self.gates = gates
        self.served = Served(gates.enabled)
        self.authenticator = authenticator or Authenticator()
        self.authorizer = authorizer or Authorizer(store)
        self.metrics = Metrics()
        self.audit = audit
        self.stopping = False
        self._open_feeds: set[Watch] = set()
        self.ready = False
        self._clock = clock
        self._router = Router(self.served)
        self._frames = FrameCache()
        policy = Policy(store, gates, self.authorizer, clock)
        self._policy = policy
        self._writer = Writer(store, self.served, policy)
        self._deleter = Deleter(store, policy)
        signer = TokenSigner(signing_key, store) if signing_key is not None else None
        if signer is not None:
            self.authenticator.service_account = signer.user
        self._subresources = Subresources(self.served, self._writer, self._deleter, signer)
        self._reviews = Reviews(self.authenticator, self.authorizer)
        self._nodes = NodeConnections(node_client)
        self._streams = PodStreams(store, self.served, self._nodes)
        self._discovery = Discovery(self.served)
        self._openapi = OpenAPI(self.served, bayplan.__version__)

    async def start(self) -> None:
        """Store what every cluster begins with; afterwards `/readyz` answers 200."""
        await bootstrap(self.store, rfc3339(self._clock()))
        self.ready = True

    async def expire(self) -> None:
        """Remove what has had its time; to be called every minute or so."""
        await expire_events(self.store, self._clock())

    async def stop(self) -> None:
        """End watches and refuse new ones; requests in progress finish. The store stays the caller's."""
        self.ready = False
        self.stopping = True
        for feed in list(self._open_feeds):
            feed.close()
        await self._nodes.close()

    # -- the entry point ----------------------------------------------------------------------------------------

    async def handle(
        self,
        method: str,
        path: str,
        query: Query,
        headers: Headers,
        body: bytes = b"",
        peer: UserInfo | None = None,
    ) -> Response:
        """Answer one request. `peer` is the user of a verified client certificate. Never raises for a bad request."""
        began = time.perf_counter()
        trace = _Trace(method)
        kind = "readOnly" if method in ("GET", "HEAD") else "mutating"
        in_flight = self.metrics.in_flight
        in_flight[kind] += 1
        try:
            if in_flight[kind] > (MAX_READING if kind == "readOnly" else MAX_MUTATING):
                self.metrics.dropped += 1
                raise too_many_requests()
            if len(body) > MAX_BODY:
                raise too_large(MAX_BODY)
            seen = self.store.newest_revision()
            try:
                response = await self._answer(trace, method, path, query, headers, body, peer)
            except StatusError as error:
                if not await self._may_have_missed(error, seen):
                    raise
                response = await self._answer(trace, method, path, query, headers, body, peer)
        except StatusError as error:
            response = error.response()
        except Unavailable as error:
            response = service_unavailable(str(error)).response()
        except RecursionError:
            response = StatusError(400, "BadRequest", "the object is nested too deeply").response()
        except Exception as error:
            log.exception("%s %s failed", method, path)
            response = internal(f"{type(error).__name__}: {error}").response()
        finally:
            in_flight[kind] -= 1
        accept = headers.get("Accept")
        if accept and ("protobuf" in accept or "yaml" in accept):
            response = in_wanted_form(response, accept)
        seconds = time.perf_counter() - began
        self.metrics.observe(trace.verb, trace.group, trace.resource, response.status, seconds)
        if self.audit is not None:
            agent = headers.get("User-Agent") or ""
            what = (
                f"{path}?{urlencode(list(query.items()))}" if trace.verb == "connect" else path
            )  # the command is in it
            self.audit.record(
                rfc3339(self._clock()), trace.user, trace.as_user, trace.verb, what, response.status, seconds, agent
            )
        return response

    async def _may_have_missed(self, error: StatusError, seen: int) -> bool:
        """Whether another server on the same store had stored something that was not seen when the request was refused.

        Accounts, roles, namespaces and the like are looked up in what this process has seen so far.
        """
        if not self.store.shared or error.code not in (401, 403, 404):
            return False
        return await self.store.current_revision() != seen

    async def _answer(
        self,
        trace: _Trace,
        method: str,
        path: str,
        query: Query,
        headers: Headers,
        body: bytes,
        peer: UserInfo | None,
    ) -> Response:
        user = self.authenticator.authenticate(headers, peer)
        trace.user = user.name
        acting = impersonated(headers)
        if acting is not None:
            self._check_impersonation(user, acting)
            trace.as_user = acting.name
            user = acting
        if not path.startswith("/api"):
            return self._plain(trace, method, path, query, user)
        target = self._router.target(path)
        if target is None:
            self._check_path(user, path)
            if method != "GET":
                raise method_not_allowed()
            return self._discovery.answer(path, headers.get("Accept") or "")
        verb = target.verb(method)
        if method == "GET" and query.get("watch") in TRUE and not target.subresource:
            verb = "watch"
        kind = target.resource.kind
        remote = target.subresource in REMOTE
        trace.verb, trace.group, trace.resource = "connect" if remote else verb, kind.group, kind.plural
        self._check(user, verb, target, query)
        if remote:
            self._check(user, "create", target, query)  # a WebSocket begins with a GET, but is no reading
        call = Call(target, method, verb, query, headers, body, user)
        if method != "GET":
            call.check_options()
        return await self._dispatch(call)

    async def _dispatch(self, call: Call) -> Response:
        verb, target = call.verb, call.target
        subresource = target.subresource
        if call.resource.kind.namespaced and not target.namespace and verb not in ("list", "watch"):
            raise method_not_allowed()  # all namespaces at once can only be read
        if subresource == "log":
            return await self._streams.log(call)
        if subresource in REMOTE:
            return await self._streams.remote(call)
        if verb == "get":
            return await get(self.store, call)
        if verb == "list":
            return await list_objects(self.store, call)
        if verb == "watch":
            return await self._watch(call)
        if verb == "create":
            if call.resource.kind.virtual:
                return await self._create_virtual(call)
            if subresource:
                return await self._subresources.create(call)
            return await self._created(call, await self._writer.create(call))
        if verb == "update":
            if subresource == "finalize":
                return await self._subresources.finalize(call)
            return await self._writer.update(call)
        if verb == "patch":
            return await self._created(call, await patch(self._writer, call))
        if verb == "delete" and not subresource:
            return await self._deleter.delete(call)
        if verb == "deletecollection":
            return await self._deleter.delete_collection(call)
        raise method_not_allowed()

    async def _created(self, call: Call, response: Response) -> Response:
        """A new namespace, however it was made (an apply creates too), has its default service account at once."""
        if call.resource.kind.kind == "Namespace" and response.status == 201 and not call.dry_run:
            await ensure_service_account(self.store, _created_name(response), self._policy.now())
        return response

    async def _create_virtual(self, call: Call) -> Response:
        if call.resource.kind.kind == "Binding":
            document = parse(call.body, call.content_type or "application/json")
            metadata = document.get("metadata") if isinstance(document, dict) else None
            name = metadata.get("name") if isinstance(metadata, dict) else ""
            inner = self._subresources.pod_call(call, str(name or ""))
            return await self._subresources.bind(inner, document)
        return self._reviews.create(call, self._writer.decode(call))

    async def _watch(self, call: Call) -> Response:
        if self.stopping:
            raise service_unavailable("the server is shutting down")
        response = await watch(self.store, self._frames, call, self._open_feeds)
        assert response.stream is not None
        kind = call.resource.kind
        response.stream = self._counted(response.stream, (kind.group, kind.plural))
        return response

    async def _counted(self, stream: AsyncIterator[bytes], key: tuple[str, str]) -> AsyncIterator[bytes]:
        watches = self.metrics.watches
        watches[key] = watches.get(key, 0) + 1
        try:
            async for chunk in stream:
                yield chunk
        finally:
            watches[key] -= 1

    # -- permission ---------------------------------------------------------------------------------------------

    def _check(self, user: UserInfo, verb: str, target: Any, query: Query) -> None:
        kind, name, namespace = target.resource.kind, target.name, target.namespace
        if verb in ("list", "watch", "deletecollection") and not name:
            name = _selected(query.get("fieldSelector", ""), "metadata.name")
        if kind.plural == "namespaces" and not kind.group:
            namespace = target.name
        node = ""
        if kind.plural == "pods" and verb in ("list", "watch"):
            node = _selected(query.get("fieldSelector", ""), "spec.nodeName")
        attributes = Attributes(verb, kind.group, kind.plural, target.subresource, namespace, name, node=node)
        self._policy.require(user, attributes)

    def _check_path(self, user: UserInfo, path: str, verb: str = "get") -> None:
        self._policy.require(user, Attributes(verb, path=path))

    def _check_impersonation(self, user: UserInfo, acting: UserInfo) -> None:
        wanted = [Attributes("impersonate", "", "users", "", "", acting.name)]
        if acting.name.startswith("system:serviceaccount:") and acting.name.count(":") == 3:
            _, _, namespace, account = acting.name.split(":")
            wanted = [Attributes("impersonate", "", "serviceaccounts", "", namespace, account)]
        wanted += [
            Attributes("impersonate", "", "groups", "", "", group)
            for group in acting.groups
            if group != "system:authenticated" and not group.startswith("system:serviceaccounts")
        ]
        if acting.uid:
            wanted.append(Attributes("impersonate", "authentication.k8s.io", "uids", "", "", acting.uid))
        for key, values in acting.extra:
            wanted += [Attributes("impersonate", "authentication.k8s.io", "userextras", key, "", v) for v in values]
        for attributes in wanted:
            self._policy.require(user, attributes)

    # -- everything that is no resource ---------------------------------------------------------------------------

    def _plain(self, trace: _Trace, method: str, path: str, query: Query, user: UserInfo) -> Response:
        trace.resource = path.split("/", 2)[1]
        self._check_path(user, path, "get" if method in ("GET", "HEAD") else method.lower())
        if method not in ("GET", "HEAD"):
            raise method_not_allowed()
        if path in ("/version", "/version/"):
            return json_response(200, version_document())
        root = "/" + path.split("/", 2)[1]
        if root in ("/healthz", "/livez", "/readyz"):
            return self._health(root, path, "verbose" in query)
        if path.startswith("/openapi/v3"):
            return self._openapi.answer(path)
        if path == "/openapi/v2":
            return self._openapi.old_answer()
        if path == "/metrics":
            counts = {r.kind.group_resource: self.store.count(r.prefix) for r in self.served.stored()}
            page = self.metrics.render(counts, self.store.newest_revision())
            return Response(200, page.encode(), "text/plain; version=0.0.4; charset=utf-8")
        if path == "/":
            return Response(200, encode({"paths": self._root_paths()}))
        raise not_found_path()

    def _health(self, root: str, path: str, verbose: bool) -> Response:
        checks = {"ping": True, "storage": True}
        if root == "/readyz":
            checks |= {"bootstrap": self.ready, "shutdown": not self.stopping}
        wanted = path.removeprefix(root).strip("/")
        if wanted:
            if wanted not in checks:
                raise not_found_path()
            checks = {wanted: checks[wanted]}
        good = all(checks.values())
        if good and not verbose:
            return Response(200, b"ok", "text/plain; charset=utf-8")
        lines = [f"[{'+' if fine else '-'}]{name} {'ok' if fine else 'failed'}" for name, fine in checks.items()]
        lines.append(f"{root[1:]} check {'passed' if good else 'failed'}")
        return Response(200 if good else 500, ("\n".join(lines) + "\n").encode(), "text/plain; charset=utf-8")

    def _root_paths(self) -> list[str]:
        paths = {"/healthz", "/livez", "/readyz", "/metrics", "/openapi/v3", "/version", "/api", "/apis"}
        for kind in self.served.kinds:
            paths.add(kind.path)
            if kind.group:
                paths.add(f"/apis/{kind.group}")
        return sorted(paths)


class _Trace:
    """What the log and the metrics say about a request; filled in on the way."""

    __slots__ = ("as_user", "group", "resource", "user", "verb")

    def __init__(self, method: str) -> None:
        self.verb = method.lower()
        self.group = ""
        self.resource = ""
        self.user = ""
        self.as_user = ""


def _selected(text: str, field: str) -> str:
    """The value of the field that a field selector asks for, if it asks for one."""
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key == field:
            return value.lstrip("=")
    return ""


def _created_name(response: Response) -> str:
    from msgspec.json import decode

    return str(decode(response.body)["metadata"]["name"])


def version_document() -> dict[str, str]:
    """The answer at /version."""
    major, _, minor = KUBERNETES_VERSION.partition(".")
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": f"v{KUBERNETES_VERSION}.0+bayplan-{bayplan.__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "cpython",
        "platform": "any",
    }
