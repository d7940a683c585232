"""The review kinds: questions about tokens and permissions, answered and not stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.apiserver.authentication import API_AUDIENCES, AUTHENTICATED, Authenticator, UserInfo
from bayplan.apiserver.authorization import Attributes, Authorizer, Rule
from bayplan.apiserver.call import Call
from bayplan.apiserver.errors import bad_request, invalid
from bayplan.apiserver.policy import rfc3339, utc_now
from bayplan.apiserver.response import Response, json_response

__all__ = ["Reviews"]

Object = dict[str, Any]


class Reviews:
    """Answers SelfSubjectReview, TokenReview and the access reviews."""

    def __init__(self, authenticator: Authenticator, authorizer: Authorizer) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._answers = {
            "SelfSubjectReview": self._whoami,
            "TokenReview": self._token,
            "SelfSubjectAccessReview": self._self_access,
            "SubjectAccessReview": self._access,
            "LocalSubjectAccessReview": self._access,
            "SelfSubjectRulesReview": self._rules,
        }

    def create(self, call: Call, obj: Object) -> Response:
        """201 with the review and its status."""
        kind = call.resource.kind
        status = self._answers[kind.kind](call, obj.get("spec") or {})
        answer = {
            "kind": kind.kind,
            "apiVersion": kind.group_version,
            "metadata": {"creationTimestamp": rfc3339(utc_now()) if kind.kind == "SelfSubjectReview" else None},
        }
        if kind.kind != "SelfSubjectReview":
            answer["spec"] = obj.get("spec") or {}
        answer["status"] = status
        return json_response(201, answer, call.warnings or None)

    def _whoami(self, call: Call, spec: Object) -> Object:
        return {"userInfo": call.user.document()}

    def _token(self, call: Call, spec: Object) -> Object:
        token = spec.get("token")
        if not token:
            raise invalid(call.resource.kind, "", [("spec.token", "FieldValueRequired", "Required value")])
        found = self._authenticator.review(token, spec.get("audiences") or API_AUDIENCES)
        if found is None:
            return {"user": {}, "error": "the token is not known, has expired, or is for another audience"}
        user, audiences = found
        return {"authenticated": True, "user": user.document(), "audiences": audiences}

    def _self_access(self, call: Call, spec: Object) -> Object:
        return self._decide(call, call.user, spec)

    def _access(self, call: Call, spec: Object) -> Object:
        name, groups = spec.get("user") or "", tuple(spec.get("groups") or ())
        if not name and not groups:
            raise invalid(
                call.resource.kind,
                "",
                [
                    (
                        "spec.user",
                        "FieldValueInvalid",
                        'Invalid value: "": at least one of user or group must be specified',
                    )
                ],
            )
        extra = tuple((k, tuple(v)) for k, v in (spec.get("extra") or {}).items())
        return self._decide(call, UserInfo(name, groups, spec.get("uid") or "", extra), spec)

    def _decide(self, call: Call, user: UserInfo, spec: Object) -> Object:
        resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
        if (resource is None) == (path is None):
            why = "Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified"
            raise invalid(call.resource.kind, "", [("spec.resourceAttributes", "FieldValueInvalid", why)])
        if resource is not None:
            namespace = resource.get("namespace") or ""
            if call.target.namespace and namespace != call.target.namespace:
                raise bad_request(f"spec.resourceAttributes.namespace must match namespace: {call.target.namespace}")
            attributes = Attributes(
                resource.get("verb") or "",
                resource.get("group") or "",
                resource.get("resource") or "",
                resource.get("subresource") or "",
                namespace,
                resource.get("name") or "",
            )
        else:
            path = path or {}
            attributes = Attributes(path.get("verb") or "", path=path.get("path") or "/")
        allowed, reason = self._authorizer.authorize(user, attributes)
        status: Object = {"allowed": allowed}
        if reason:
            status["reason"] = reason
        return status

    def _rules(self, call: Call, spec: Object) -> Object:
        namespace = spec.get("namespace")
        if not namespace:
            why = "Required value"
            raise invalid(call.resource.kind, "", [("spec.namespace", "FieldValueRequired", why)])
        resources: list[Mapping[str, Any]] = []
        paths: list[Mapping[str, Any]] = []
        rules = list(self._authorizer.rules(call.user, namespace))
        if "system:masters" in call.user.groups:
            everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            rules = [Rule(everything), Rule({"verbs": ["*"], "nonResourceURLs": ["*"]}), *rules]
        for rule in rules:
            document = rule.document
            if rule.urls:
                paths.append({"verbs": document.get("verbs") or [], "nonResourceURLs": list(rule.urls)})
            else:
                resources.append(
                    {k: document[k] for k in ("verbs", "apiGroups", "resources", "resourceNames") if document.get(k)}
                )
        return {
            "resourceRules": resources,
            "nonResourceRules": paths,
            "incomplete": AUTHENTICATED not in call.user.groups,
        }
