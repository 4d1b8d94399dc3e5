"""Attempts on the network and on services of the host."""

from __future__ import annotations

import os
import socket

from .base import Facts, attempt, found

_SECONDS = 2.0


def _say(place: tuple[str, int], facts: Facts) -> str:
    with socket.create_connection(place, _SECONDS) as connection:
        connection.settimeout(_SECONDS)
        return found(connection.recv(256), facts)


@attempt("talk to a service on the host's 127.0.0.1")
def host_loopback(facts: Facts) -> object:
    return _say(("127.0.0.1", facts["port"]), facts)


@attempt("talk to a service on the host's own address")
def host_address(facts: Facts) -> object:
    return _say((facts["address"], facts["port"]), facts)


@attempt("talk to the host over the link of a default route")
def gateway_address(facts: Facts) -> object:
    with open("/proc/net/route") as file:
        rows = [line.split() for line in file][1:]
    for row in rows:
        if row[1] == "00000000" and row[2] != "00000000":
            address = socket.inet_ntoa(bytes.fromhex(row[2])[::-1])
            return f"a route through {address}"
    return None


@attempt("have an interface that leads anywhere")
def interfaces(facts: Facts) -> object:
    return [name for _, name in socket.if_nameindex() if name != "lo"]


@attempt("exchange datagrams with the host")
def datagram(facts: Facts) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.settimeout(_SECONDS)
        out.sendto(b"x", (facts["address"], facts["port"]))
        return found(out.recv(256), facts)


@attempt("resolve a host name")
def name_service(facts: Facts) -> object:
    return socket.getaddrinfo("example.com", 80)


@attempt("capture packets")
def raw_packets(facts: Facts) -> object:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire:
        wire.settimeout(0.2)
        return wire.recv(64)


@attempt("send raw packets")
def raw_socket(facts: Facts) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as wire:
        return wire.sendto(b"\x08\x00\xf7\xff\x00\x00\x00\x00", (facts["address"], 0))


@attempt("talk to the hypervisor's host")
def vsock(facts: Facts) -> object:
    with socket.socket(40, socket.SOCK_STREAM) as out:
        out.settimeout(_SECONDS)
        out.connect((2, facts["port"]))
        return "connected"


@attempt("talk to a socket of the host by its abstract name")
def abstract_socket(facts: Facts) -> object:
    with socket.socket(socket.AF_UNIX) as out:
        out.settimeout(_SECONDS)
        out.connect("\0" + facts["name"])
        return found(out.recv(256), facts)


@attempt("talk to a socket of the host by its path")
def socket_file(facts: Facts) -> object:
    with socket.socket(socket.AF_UNIX) as out:
        out.settimeout(_SECONDS)
        out.connect(facts["socket"])
        return found(out.recv(256), facts)


@attempt("find sockets of the host's daemons")
def daemons(facts: Facts) -> object:
    for path in ("/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/containerd"):
        if os.path.exists(path):
            return path
    return None
