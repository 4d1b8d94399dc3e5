"""What the proxy of a box takes and what it refuses, without a box."""

from __future__ import annotations

import pytest

from woodshed.sandbox.host.egress.proxy import BadRequest, parse_request
from woodshed.sandbox.host.egress.rules import allowed, parse_rule, reachable, split_host


@pytest.mark.parametrize(
    ("rule", "host", "port", "verdict"),
    [
        ("index.example", "index.example", 443, True),
        ("index.example", "Index.Example.", 80, True),
        ("index.example", "index.example", 22, False),
        ("index.example", "a.index.example", 443, False),
        ("index.example", "notindex.example", 443, False),
        ("index.example", "index.example.evil.com", 443, False),
        ("*.files.example", "a.files.example", 443, True),
        ("*.files.example", "a.b.files.example", 443, True),
        ("*.files.example", "files.example", 443, False),
        ("*.files.example", "evilfiles.example", 443, False),
        ("mirror.example:8443", "mirror.example", 8443, True),
        ("mirror.example:8443", "mirror.example", 443, False),
        ("10.1.2.3:8080", "10.1.2.3", 8080, True),
        ("10.1.2.3:8080", "10.1.2.30", 8080, False),
        ("[::1]:8080", "[0:0:0:0:0:0:0:1]", 8080, True),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("xn--bcher-kva.example", "BÜCHER.example", 443, True),
    ],
)
def test_rules(rule: str, host: str, port: int, verdict: bool) -> None:
    assert allowed([parse_rule(rule)], split_host(host)[0], port) is verdict


@pytest.mark.parametrize(
    "rule", ["", "*", "*.", "*.*.org", "http://index.example", "index.example/simple", "a b.org", "host:", "host:0",
             "host:99999", "host:٤", "*.10.0.0.1", "[::1", "[index.example]", "-a.org", "a..org", "x" * 300, "me@host",
             "host:80:80"],
)  # fmt: skip
def test_rules_that_make_no_sense_are_named(rule: str) -> None:
    if rule == "host:":
        assert parse_rule(rule).ports == {80, 443}  # an empty port is none
        return
    with pytest.raises(ValueError, match="egress rule"):
        parse_rule(rule)


def test_a_name_stands_for_public_addresses_only() -> None:
    inside = [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.5.5",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "ff02::1",
        "::",
    ]
    assert reachable(inside, host="rebind.example", private=False) == []
    public = ["8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808"]
    assert reachable([*public, *inside], host="ok.example", private=False) == public
    assert reachable(inside, host="mirror.lan", private=True) == inside
    assert reachable(["10.1.2.3"], host="10.1.2.3", private=False) == ["10.1.2.3"]  # a rule names it


def request(*lines: str) -> bytes:
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def test_a_request_is_written_anew() -> None:
    parsed = parse_request(
        request(
            "POST http://Example.org:8080/a?b=c HTTP/1.1",
            "Host: internal.example",
            "Proxy-Authorization: Basic eA==",
            "Connection: keep-alive, X-Secret",
            "Content-Length: 5",
            "X-Kept: yes",
            "TE: trailers",
            "Upgrade: h2c",
        )
    )
    assert (parsed.host, parsed.port, parsed.path, parsed.length) == ("example.org", 8080, "/a?b=c", 5)
    assert parsed.head.decode().split("\r\n") == [
        "POST /a?b=c HTTP/1.1",
        "Host: Example.org:8080",
        "X-Kept: yes",
        "Content-Length: 5",
        "Connection: close",
        "",
        "",
    ]
    tunnel = parse_request(request("CONNECT [2001:db8::1]:443 HTTP/1.1", "Host: x"))
    assert (tunnel.host, tunnel.port, tunnel.head) == ("2001:db8::1", 443, b"")


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("GET / HTTP/1.1", "Host: a"), 400),
        (("GET https://a/ HTTP/1.1",), 400),
        (("GET ftp://a/ HTTP/1.1",), 400),
        (("GET http://user:pw@a/ HTTP/1.1",), 400),
        (("GET http://a/ HTTP/2",), 400),
        (("GET  http://a/ HTTP/1.1",), 400),
        (("GET http://a/\thttp://b/ HTTP/1.1",), 400),
        (("G(T http://a/ HTTP/1.1",), 400),
        (("CONNECT a HTTP/1.1",), 400),
        (("CONNECT a:b HTTP/1.1",), 400),
        (("GET http://a:99999/ HTTP/1.1",), 400),
        (("GET http://a/ HTTP/1.1", " folded: x"), 400),
        (("GET http://a/ HTTP/1.1", "X: y\nHost: b"), 400),
        (("GET http://a/ HTTP/1.1", "X : y"), 400),
        (("POST http://a/ HTTP/1.1", "Content-Length: 5", "Content-Length: 6"), 400),
        (("POST http://a/ HTTP/1.1", "Content-Length: +5"), 400),
        (("POST http://a/ HTTP/1.1", "Content-Length: 5", "Transfer-Encoding: chunked"), 411),
        (("",), 400),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(lines: tuple[str, ...], status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_request(request(*lines))
    assert caught.value.status == status
