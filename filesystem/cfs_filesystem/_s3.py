"""S3, and what speaks its protocol, as an object store, by s3fs.

A version is an ETag. Changes of one version are conditional requests, so they are atomic among all processes that use
the bucket, where the store has them; `check` finds that out. Credentials, region and endpoint come from the environment
and the configuration files of AWS.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, TypeAlias

import s3fs
from botocore.exceptions import BotoCoreError, ClientError
from fsspec.asyn import sync

from cfs.errors import CfsError, StorageFull, TooLarge, Unavailable, Unsupported
from cfs_filesystem._errors import InvalidPathError, NotFoundError
from cfs_filesystem._objects import ABSENT, Changed, Expected, KeyLocks, ObjectStore, StoredObject
from cfs_filesystem._temporary import temporary_name

PART_BYTES = 8 << 20
"""Bytes of one part of an upload; S3 takes 5 MiB to 5 GiB, and 10,000 parts."""

_CONFIG = {
    "connect_timeout": 5,
    "read_timeout": 60,
    "retries": {"mode": "standard", "max_attempts": 4},  # throttling, lost connections and 5xx
    "max_pool_connections": 50,
}
_RETRY_SECONDS = 5.0
_LARGEST_PAGE = 1000
_WRITTEN_BY = "cfs-write"
"""Metadata with a new value for each write: a write whose answer was lost, and that was repeated, knows its object."""

_CHANGED = {"PreconditionFailed", "ConditionalRequestConflict", "412"}
_ABSENT = {"NoSuchKey", "404"}
_FULL = {"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "507"}
_UNKNOWN = {"NotImplemented", "501", "InvalidArgument", "InvalidRequest", "MethodNotAllowed"}
_WRONG = "0" * 32
"""An ETag that no object has."""

CHANGES = (
    "put IfNoneMatch",
    "put IfMatch",
    "complete IfNoneMatch",
    "complete IfMatch",
    "copy IfNoneMatch",
    "copy IfMatch",
    "delete IfMatch",
)
"""The conditional requests in use: the change, and the header. `unconditional` has those that the store lacks."""

Response: TypeAlias = Mapping[str, Any]


class S3Store(ObjectStore):
    """The objects of a bucket whose keys begin with a prefix: `s3://BUCKET/PREFIX`."""

    def __init__(self, url: str) -> None:
        self.name = url
        self._bucket, _, prefix = url.partition("://")[2].partition("/")
        self._root = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._s3 = s3fs.S3FileSystem(config_kwargs=_CONFIG, use_listings_cache=False, skip_instance_cache=True)
        self._s3.retries = 1  # botocore repeats requests by itself
        self._locked = KeyLocks()

    def check(self) -> None:
        """Try each kind of conditional request on an object of its own, which is deleted again."""
        key = temporary_name()
        self._put(key, b"", None, "")
        try:
            self.unconditional = frozenset(change for change in CHANGES if not self._is_conditional(change, key))
        finally:
            self._call("delete_object", key)

    def _is_conditional(self, change: str, key: str) -> bool:
        """Return whether the store refuses a change of an object that exists, if the condition does not hold."""
        name, _, header = change.partition(" ")
        expected = ABSENT if header == "IfNoneMatch" else _WRONG
        try:
            match name:
                case "put":
                    self._put(key, b"", expected, "")
                case "complete":
                    self._upload(key, [b""], expected, "")
                case "delete":
                    self.delete(key, expected)
                case "copy":
                    if (stored := self.look(key)) is not None:
                        self.copy(stored, key, expected)
        except Changed:
            return True
        except Unsupported:
            return False
        return False

    def close(self) -> None:
        """Close the connections."""
        if self._s3._s3 is not None:  # noqa: SLF001 - s3fs closes them only when it is garbage-collected
            with suppress(Exception):
                sync(self._s3.loop, self._s3._s3.close)  # noqa: SLF001

    def look(self, key: str) -> StoredObject | None:
        """Return what HEAD says of an object."""
        head = self._head(key)
        return None if head is None else _stored(key, head["ContentLength"], head)

    def _head(self, key: str) -> Response | None:
        try:
            return self._call("head_object", key)
        except NotFoundError:
            return None

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        """Yield all objects whose keys begin with a prefix, a thousand for each request."""
        for page in self._pages(prefix):
            yield from self._listed(page)

    def scan(self, prefix: str) -> tuple[list[StoredObject], list[str]]:
        """Return the objects directly below a prefix, and the longer prefixes."""
        objects: list[StoredObject] = []
        deeper: list[str] = []
        for page in self._pages(prefix, Delimiter="/"):
            objects += self._listed(page)
            deeper += (common["Prefix"].removeprefix(self._root) for common in page.get("CommonPrefixes", ()))
        return objects, deeper

    def holds_any(self, prefix: str) -> bool:
        """Return whether a key begins with a prefix."""
        return bool(next(self._pages(prefix, MaxKeys=1)).get("Contents"))

    def _pages(self, prefix: str, **options: Any) -> Iterator[Response]:
        request: dict[str, Any] = {"MaxKeys": _LARGEST_PAGE, "Prefix": self._root + prefix} | options
        while True:
            page = self._call("list_objects_v2", **request)
            yield page
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _listed(self, page: Response) -> Iterator[StoredObject]:
        for item in page.get("Contents", ()):
            yield _stored(item["Key"].removeprefix(self._root), item["Size"], item)

    def read(self, key: str, start: int, stop: int | None, expected: Expected = None) -> tuple[bytes, StoredObject]:
        """Read a part of an object by one request with a range."""
        options: dict[str, Any] = {"IfMatch": _quoted(expected)} if expected else {}
        if start or stop is not None:
            options["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        with _translated(key):
            data, stored = sync(self._s3.loop, self._get, key, options)
        return data, stored

    async def _get(self, key: str, options: dict[str, Any]) -> tuple[bytes, StoredObject]:
        try:
            answer = await self._s3._call_s3("get_object", Bucket=self._bucket, Key=self._root + key, **options)  # noqa: SLF001
        except OSError as error:
            if _code_of(error)[0] not in ("InvalidRange", "416"):
                raise
            options = {name: value for name, value in options.items() if name != "Range"}  # an empty object has none
            answer = await self._s3._call_s3("get_object", Bucket=self._bucket, Key=self._root + key, **options)  # noqa: SLF001
        async with answer["Body"] as body:
            data: bytes = await body.read()
        total = answer.get("ContentRange", "").rpartition("/")[2]
        return data, _stored(key, int(total) if total else len(data), answer)

    def write(self, key: str, chunks: Iterable[bytes], expected: Expected) -> StoredObject:
        """Store an object by one request, or in parts of 8 MiB, one of them in memory. It appears when it is whole."""
        parts = _parts(chunks)
        first = [next(parts, b"")]
        token = secrets.token_hex(8)
        try:
            if len(first[0]) < PART_BYTES:
                return self._put(key, first.pop(), expected, token)
            return self._upload(key, _drained(first, parts), expected, token)
        except Changed:
            head = self._head(key)
            if head is None or head.get("Metadata", {}).get(_WRITTEN_BY) != token:
                raise
            return _stored(key, head["ContentLength"], head)

    def _put(self, key: str, data: bytes, expected: Expected, token: str) -> StoredObject:
        with self._compared("put", key, expected) as condition:
            answer = self._call("put_object", key, Body=data, Metadata={_WRITTEN_BY: token}, **condition)
        return self._written(key, len(data), answer)

    def _upload(self, key: str, parts: Iterable[bytes], expected: Expected, token: str) -> StoredObject:
        """Upload parts and put them together. If that fails, the parts are deleted."""
        upload = self._call("create_multipart_upload", key, Metadata={_WRITTEN_BY: token})["UploadId"]
        try:
            uploaded, size = [], 0
            for number, part in enumerate(parts, 1):
                answer = self._call("upload_part", key, UploadId=upload, PartNumber=number, Body=part)
                uploaded.append({"PartNumber": number, "ETag": answer["ETag"]})
                size += len(part)
            with self._compared("complete", key, expected) as condition:
                parts_of = {"Parts": uploaded}
                answer = self._call(
                    "complete_multipart_upload", key, UploadId=upload, MultipartUpload=parts_of, **condition
                )
        except BaseException:
            with suppress(CfsError):
                self._call("abort_multipart_upload", key, UploadId=upload)
            raise
        return self._written(key, size, answer)

    def _written(self, key: str, size: int, answer: Response) -> StoredObject:
        """Return what was stored. Only another request tells its time."""
        head = self._head(key)
        when = {"LastModified": head["LastModified"] if head else datetime.now(UTC)}
        return _stored(key, size, {"ETag": answer["ETag"]} | when)

    def delete(self, key: str, expected: Expected) -> None:
        """Delete an object, which another process may have done before."""
        with self._compared("delete", key, expected) as condition:
            self._call("delete_object", key, **condition)

    def copy(self, source: StoredObject, key: str, expected: Expected) -> None:
        """Copy up to 5 GiB within the bucket by one request."""
        source_object = {"Bucket": self._bucket, "Key": self._root + source.key}
        with self._compared("copy", key, expected) as condition:
            self._call(
                "copy_object", key, CopySource=source_object, CopySourceIfMatch=_quoted(source.version), **condition
            )

    @contextmanager
    def _compared(self, change: str, key: str, expected: Expected) -> Iterator[dict[str, str]]:
        """Yield the headers of a conditional request; or compare here, and keep other threads away in the block."""
        condition = (
            {} if expected is None else {"IfNoneMatch": "*"} if expected == ABSENT else {"IfMatch": _quoted(expected)}
        )
        with self._locked(key) if self.unconditional else nullcontext():
            if f"{change} {next(iter(condition), '')}" in self.unconditional:
                condition = {}
                stored = self.look(key)
                if (ABSENT if stored is None else stored.version) != expected:
                    raise Changed
            try:
                yield condition
            except NotFoundError:
                if "IfMatch" in condition:
                    raise Changed from None
                raise

    def _call(self, method: str, key: str | None = None, **options: Any) -> Response:
        """Send a request, and wait for the answer. Raises `Changed`, `NotFoundError` and errors of `cfs.errors`."""
        if key is not None:
            options["Key"] = self._root + key
        with _translated(key):
            answer: Response = self._s3.call_s3(method, Bucket=self._bucket, **options)
        return answer


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut a source into the parts of an upload; the last may be shorter."""
    waiting = bytearray()
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            missing = PART_BYTES - len(waiting)
            waiting += chunk[at : at + missing]
            at += missing
            if len(waiting) == PART_BYTES:
                whole = bytes(waiting)
                waiting.clear()
                yield whole
    if waiting:
        yield bytes(waiting)


def _drained(first: list[bytes], others: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what is in the list, and then the others. Nothing that was yielded is kept."""
    while first:
        yield first.pop()
    yield from others


def _stored(key: str, size: int, answer: Response) -> StoredObject:
    when: datetime = answer["LastModified"]
    return StoredObject(key, size, when.replace(microsecond=0), answer["ETag"].strip('"'))  # HEAD has no fractions


def _quoted(version: str) -> str:
    return f'"{version}"'


@contextmanager
def _translated(key: str | None) -> Iterator[None]:
    """Raise an error of the library as one of ours. Its message is for callers, and names no address."""
    try:
        yield
    except (OSError, BotoCoreError, ClientError) as error:
        raise _error_of(error, key) from error


def _error_of(error: Exception, key: str | None) -> Exception:
    code, status = _code_of(error)
    if code in _CHANGED:
        return Changed()
    if code in _ABSENT:
        return NotFoundError(f"there is no object {key!r}")
    if code in _FULL or status == HTTPStatus.INSUFFICIENT_STORAGE:
        return StorageFull(f"the object store is full ({code})")
    if code == "EntityTooLarge":
        return TooLarge("the object store does not take so much at once")
    if code == "KeyTooLongError":
        return InvalidPathError("the path is too long for the object store")
    if code in _UNKNOWN:
        return Unsupported(f"the object store does not have this request ({code})")
    if code == "NoSuchBucket":
        return Unavailable("the bucket does not exist", retry_after=_RETRY_SECONDS)
    if isinstance(error, PermissionError) or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Unavailable(f"the object store denies access to the server ({code})", retry_after=_RETRY_SECONDS)
    return Unavailable(f"the object store does not answer ({code})", retry_after=_RETRY_SECONDS)


def _code_of(error: Exception) -> tuple[str, int | None]:
    """Return the store's code of an error, or the name of its class, and the status of HTTP."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None) or {}
    code = response.get("Error", {}).get("Code") or type(error).__name__
    return str(code), response.get("ResponseMetadata", {}).get("HTTPStatusCode")
