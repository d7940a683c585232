"""IP addresses, CIDR blocks and URLs, as Kubernetes' libraries read them.

Stricter than Python's: no zones, no IPv4 mapped into IPv6. A URL must be absolute, or an absolute path.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import unquote

from bayplan.cel.errors import EvaluationError
from bayplan.cel.library.declare import Declaration
from bayplan.cel.values import Opaque

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class IPValue(Opaque):
    __slots__ = ("address",)
    type_name = "net.IP"

    def __init__(self, address: Address) -> None:
        self.address = address

    @property
    def key(self) -> Address:
        return self.address


class CIDRValue(Opaque):
    """An address (host bits may be set) and the length of its prefix."""

    __slots__ = ("address", "length")
    type_name = "net.CIDR"

    def __init__(self, address: Address, length: int) -> None:
        self.address = address
        self.length = length

    @property
    def key(self) -> tuple[Address, int]:
        return self.address, self.length

    def masked(self) -> CIDRValue:
        return CIDRValue(_mask(self.address, self.length), self.length)

    def has_address(self, address: Address) -> bool:
        return address.version == self.address.version and _mask(address, self.length) == _mask(
            self.address, self.length
        )


def _mask(address: Address, length: int) -> Address:
    shift = address.max_prefixlen - length
    return type(address)(int(address) >> shift << shift)


def parse_ip(text: str) -> IPValue:
    try:
        if "%" in text:
            raise ValueError(f'IP address "{text}" with zone value is not allowed')
        address = ipaddress.ip_address(text)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            raise ValueError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    except ValueError as error:
        raise EvaluationError(f"IP Address parse error during conversion from string: {error}") from None
    return IPValue(address)


def parse_cidr(text: str) -> CIDRValue:
    address, slash, length = text.partition("/")
    digits = length.isascii() and length.isdigit() and (length == "0" or not length.startswith("0"))
    ip = parse_ip(address).address if slash and digits else None
    if ip is None or int(length) > ip.max_prefixlen:
        raise EvaluationError(f'network address parse error during conversion from string: netip.ParsePrefix("{text}")')
    return CIDRValue(ip, int(length))


def _succeeds(parse: type | object, text: str) -> bool:
    try:
        parse(text)  # type: ignore[operator]
    except EvaluationError:
        return False
    return True


def _is_canonical(text: str) -> bool:
    return str(parse_ip(text).address) == text


def _is_global_unicast(ip: IPValue) -> bool:
    address = ip.address
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or address == ipaddress.IPv4Address("255.255.255.255")
    )


def _link_local_multicast(ip: IPValue) -> bool:
    address = ip.address
    if address.version == 4:
        return address in ipaddress.IPv4Network("224.0.0.0/24")
    return int(address) >> 112 & 0xFF0F == 0xFF02


def _contains_cidr(outer: CIDRValue, inner: CIDRValue) -> bool:
    return outer.length <= inner.length and outer.has_address(inner.address)


class URLValue(Opaque):
    """A parsed URL; `text` is what equality looks at."""

    __slots__ = ("host", "path", "query", "scheme", "text")
    type_name = "kubernetes.URL"

    def __init__(self, text: str, scheme: str, host: str, path: str, query: str) -> None:
        self.text = text
        self.scheme = scheme
        self.host = host
        self.path = path
        self.query = query

    @property
    def key(self) -> str:
        return self.text

    def hostname(self) -> str:
        if self.host.startswith("["):
            return self.host[1:].partition("]")[0]
        return self.host.rpartition(":")[0] if ":" in self.host else self.host

    def port(self) -> str:
        rest = self.host.rpartition("]")[2] if self.host.startswith("[") else self.host
        return rest.rpartition(":")[2] if ":" in rest else ""

    def values(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for part in self.query.split("&"):
            if part and ";" not in part:
                name, _, value = part.partition("=")
                found.setdefault(_unescape(name), []).append(_unescape(value))
        return found


def _unescape(text: str) -> str:
    return unquote(text.replace("+", " "))


_URL: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?]*))?([^?]*)(?:\?(.*))?", re.DOTALL)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_HOST: Final = re.compile(r'[\s<>"\\^`{|}]')
_PORT: Final = re.compile(r":[0-9]*")


def parse_url(text: str) -> URLValue:
    """An absolute URL or path. A ``#`` is part of the path, as for a request line."""
    match = _URL.fullmatch(text)
    problem = ""
    if not text:
        problem = "empty url"
    elif match is None or not (match[1] or text.startswith("/")):
        problem = "invalid URI for request"
    elif any(ord(char) < 0x20 or char == "\x7f" for char in text):
        problem = "invalid control character in URL"
    elif match[1] and match[2] is None and not match[3].startswith("/"):
        problem = "" if match[3] else "invalid URI for request"
    if problem or match is None:
        raise EvaluationError(f'URL parse error during conversion from string: parse "{text}": {problem}')
    host = (match[2] or "").rpartition("@")[2]
    port = host.rpartition("]")[2] if host.startswith("[") else host[host.find(":") :] if ":" in host else ""
    if _BAD_HOST.search(host) or (port and not _PORT.fullmatch(port)) or _BAD_ESCAPE.search(match[3] + host):
        raise EvaluationError(f'URL parse error during conversion from string: parse "{text}": invalid host or escape')
    opaque = bool(match[1]) and match[2] is None and not match[3].startswith("/")
    path = "" if opaque else match[3]
    return URLValue(text, (match[1] or "").lower(), host, path, match[4] or "")


_I: Final = "net.IP"
_C: Final = "net.CIDR"
_U: Final = "kubernetes.URL"

DECLARATIONS: Final[list[Declaration]] = [
    (f"ip(string) -> {_I} = string_to_ip", parse_ip),
    (f"string({_I}) -> string = ip_to_string", lambda ip: str(ip.address)),
    ("isIP(string) -> bool = is_ip", lambda text: _succeeds(parse_ip, text)),
    ("ip.isCanonical(string) -> bool = ip_is_canonical", _is_canonical),
    (f"{_I}::family() -> int = ip_family", lambda ip: ip.address.version),
    (f"{_I}::isUnspecified() -> bool = ip_is_unspecified", lambda ip: ip.address.is_unspecified),
    (f"{_I}::isLoopback() -> bool = ip_is_loopback", lambda ip: ip.address.is_loopback),
    (f"{_I}::isLinkLocalMulticast() -> bool = ip_is_link_local_multicast", _link_local_multicast),
    (f"{_I}::isLinkLocalUnicast() -> bool = ip_is_link_local_unicast", lambda ip: ip.address.is_link_local),
    (f"{_I}::isGlobalUnicast() -> bool = ip_is_global_unicast", _is_global_unicast),
    (f"cidr(string) -> {_C} = string_to_cidr", parse_cidr),
    (f"string({_C}) -> string = cidr_to_string", lambda cidr: f"{cidr.address}/{cidr.length}"),
    ("isCIDR(string) -> bool = is_cidr", lambda text: _succeeds(parse_cidr, text)),
    (f"{_C}::containsIP(string) -> bool = cidr_contains_ip_string", lambda c, ip: c.has_address(parse_ip(ip).address)),
    (f"{_C}::containsIP({_I}) -> bool = cidr_contains_ip_ip", lambda c, ip: c.has_address(ip.address)),
    (f"{_C}::containsCIDR(string) -> bool = cidr_contains_cidr_string", lambda a, b: _contains_cidr(a, parse_cidr(b))),
    (f"{_C}::containsCIDR({_C}) -> bool = cidr_contains_cidr", _contains_cidr),
    (f"{_C}::ip() -> {_I} = cidr_ip", lambda cidr: IPValue(cidr.address)),
    (f"{_C}::prefixLength() -> int = cidr_prefix_length", lambda cidr: cidr.length),
    (f"{_C}::masked() -> {_C} = cidr_masked", lambda cidr: cidr.masked()),
    (f"url(string) -> {_U} = string_to_url", parse_url),
    ("isURL(string) -> bool = is_url", lambda text: _succeeds(parse_url, text)),
    (f"{_U}::getScheme() -> string = url_get_scheme", lambda url: url.scheme),
    (f"{_U}::getHost() -> string = url_get_host", lambda url: url.host),
    (f"{_U}::getHostname() -> string = url_get_hostname", lambda url: url.hostname()),
    (f"{_U}::getPort() -> string = url_get_port", lambda url: url.port()),
    (f"{_U}::getEscapedPath() -> string = url_get_escaped_path", lambda url: url.path),
    (f"{_U}::getQuery() -> map(string, list(string)) = url_get_query", lambda url: url.values()),
]
