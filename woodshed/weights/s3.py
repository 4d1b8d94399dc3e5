"""Store of a chain in an S3-compatible bucket. The only module that imports obstore.

Credentials, region and endpoint come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
``AWS_REGION``, ``AWS_ENDPOINT_URL``), or from the machine's role, as for any other S3 client.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from .errors import ChainError

log = logging.getLogger(__name__)

_ENVIRONMENT = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and, unless it is Amazon's, AWS_ENDPOINT_URL"
_RETRIES = 6
_REQUEST = timedelta(minutes=10)
"""Timeout of one request: a part of an anchor over a slow line."""
_KEEP_TRYING = timedelta(minutes=2)


class BucketStore:
    """Objects of a bucket below a prefix. An S3 PUT is atomic, and so is the end of a multipart upload."""

    def __init__(self, url: str) -> None:
        """``url``: ``s3://bucket/prefix``. Lists the bucket once. Raises ChainError if a retry is pointless."""
        try:
            from obstore.exceptions import BaseError
            from obstore.store import S3Store
        except ImportError:
            raise ChainError(f"{url}: a weight chain in a bucket needs the extra: pip install 'woodshed[s3]'") from None
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not bucket or not prefix.strip("/"):
            raise ChainError(f"{url}: write s3://bucket/prefix; each run needs a prefix of its own")
        self.url = url.rstrip("/")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        try:
            self._store = S3Store(
                bucket,
                prefix=prefix.strip("/"),
                config={"endpoint": endpoint} if endpoint else None,
                client_options={"allow_http": endpoint.startswith("http://"), "timeout": _REQUEST},
                retry_config={"max_retries": _RETRIES, "retry_timeout": _KEEP_TRYING},
            )
        except BaseError as error:
            raise ChainError(f"{url}: {_first(error)}; set {_ENVIRONMENT}") from None
        self.listing(after="~")

    def listing(self, *, after: str = "") -> list[str]:
        import obstore

        with self._named("list"):
            pages = obstore.list(self._store, offset=after or None, chunk_size=1000)
            return sorted(entry["path"] for page in pages for entry in page)

    def get(self, key: str) -> bytes:
        import obstore

        with self._named(key):
            return bytes(obstore.get(self._store, key).bytes())

    def put(self, key: str, data: bytes) -> None:
        import obstore

        with self._named(key):
            obstore.put(self._store, key, data)

    def create(self, key: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError

        with self._named(key):
            try:
                obstore.put(self._store, key, data, mode="create")
            except AlreadyExistsError:
                return self.get(key) == data  # An earlier try of a repeated request may have succeeded.
            except BaseError as error:
                if "NotImplemented" not in str(error):
                    raise
                log.warning("%s: no conditional writes; two publishers at the same time may go undetected", self.url)
                if self.listing(after=key[:-1])[:1] != [key]:
                    obstore.put(self._store, key, data)
                return self.get(key) == data
            return True

    def delete(self, key: str) -> None:
        import obstore

        keys = [k for k in self.listing(after=key) if k.startswith(key)] if key.endswith("/") else [key]
        with self._named(key):
            if keys:
                obstore.delete(self._store, keys)

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        """Convert obstore's errors: FileNotFoundError, ChainError (a retry is pointless) or OSError (worth a retry)."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        where = f"{self.url}/{key}"
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise ChainError(f"{self.url}: there is no such bucket; create it, or check {_ENVIRONMENT}") from None
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(f"{where} does not exist") from None
            # A refused listing has no error type of its own.
            refused = isinstance(error, (PermissionDeniedError, UnauthenticatedError))
            if refused or any(f"status code: {code}" in str(error) for code in (401, 403)):
                raise ChainError(f"{where}: not allowed ({_first(error)}); check {_ENVIRONMENT}") from None
            raise OSError(f"{where}: {_first(error)}; check {_ENVIRONMENT}, and that the server answers") from None


def _first(error: BaseException) -> str:
    """First line of the message: obstore appends a debug dump."""
    return str(error).strip().split("\n", 1)[0]
