"""Egress rules: which hosts a box may reach and which addresses a name may resolve to; records of its requests."""

from __future__ import annotations

import ipaddress
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from woodshed.record.jsonl import JsonLines

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_WEB = frozenset([80, 443])
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")


@dataclass(frozen=True)
class Rule:
    """One allowed host: a name or an address. ``subdomains``: every name below ``host``, but not ``host`` itself."""

    host: str
    ports: frozenset[int]
    subdomains: bool = False

    def allows(self, host: str, port: int) -> bool:
        if port not in self.ports:
            return False
        return host.endswith("." + self.host) if self.subdomains else host == self.host


def parse_rule(text: str) -> Rule:
    """Parse ``HOST``, ``*.DOMAIN``, ``HOST:PORT`` or an address (IPv6 in brackets); default ports are 80 and 443.

    Raises ValueError naming the rule.
    """
    rest, subdomains = text.strip(), False
    if rest.startswith("*."):
        rest, subdomains = rest[2:], True
    try:
        host, port = split_host(rest)
    except ValueError:
        raise ValueError(
            f"egress rule {text!r}: expected HOST, *.DOMAIN or HOST:PORT, such as '*.example.org:8443'"
        ) from None
    if subdomains and _address(host) is not None:
        raise ValueError(f"egress rule {text!r}: an address has no subdomains")
    return Rule(host, _WEB if port is None else frozenset([port]), subdomains)


def split_host(text: str) -> tuple[str, int | None]:
    """Split ``HOST[:PORT]`` into (normal form of the host, port). Raises ValueError."""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError(text)
        port = port[1:]
        if _address(host) is None:
            raise ValueError(text)
    else:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(text)
    return _normal(host), int(port) if port else None


def allowed(rules: Iterable[Rule], host: str, port: int) -> bool:
    """Return whether a rule allows ``host`` (in the normal form of ``split_host``) and ``port``."""
    return any(rule.allows(host, port) for rule in rules)


def reachable(addresses: Iterable[str], *, host: str, private: bool) -> list[str]:
    """Return the addresses of a host that may be connected to.

    A name must resolve to public addresses: otherwise whoever controls a name could open this machine's own network.
    ``private`` allows other addresses too. An address that a rule names is always allowed.
    """
    found = list(addresses)
    if private or _address(host) is not None:
        return found
    return [a for a in found if _public(ipaddress.ip_address(a.partition("%")[0]))]


def _public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return _public(inner)
        if address in _NAT64:
            return _public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return address.is_global and not address.is_multicast


_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def _normal(host: str) -> str:
    address = _address(host)
    if address is not None:
        return str(address)
    name = host.rstrip(".").lower()
    if not name.isascii():
        name = name.encode("idna").decode()  # UnicodeError is a ValueError
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise ValueError(host)
    return name


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


_LOGGED = 500
"""Maximum characters of a text in a log line: a box may ask for names as long as a request's head."""


class Record:
    """Counts and logs the requests of one box. ``counts``: ``requests``, ``refused``, ``up`` and ``down`` (bytes)."""

    def __init__(self, box: str, log: JsonLines | None) -> None:
        self.box = box
        self.counts = Counter(requests=0, refused=0, up=0, down=0)
        self._log = log

    def __call__(self, entry: dict[str, Any]) -> None:
        entry = {key: value[:_LOGGED] if isinstance(value, str) else value for key, value in entry.items()}
        refused = int(bool(entry["reason"]))
        self.counts.update(requests=1, refused=refused, up=entry["up"], down=entry["down"])
        if self._log is not None:
            self._log.append({"time": round(time.time(), 3), "box": self.box, **entry})
