"""Where a test has the files of workspaces: a folder on disk, or a part of a bucket that looks like one."""

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from hashlib import md5
from pathlib import Path
from typing import TypeAlias

import pytest

from cfs_filesystem import FOLDER_IDENTITY
from tests.buckets import NAME, Bucket, bucket_server


def _in_both(*marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    bucket = pytest.param("bucket", marks=[pytest.mark.external, *marks])
    return pytest.mark.parametrize("files", ["folder", bucket], indirect=True)


everywhere = _in_both()
"""Runs a test with its files (the fixture `files`) in a folder, and in a bucket."""
slow_in_a_bucket = _in_both(pytest.mark.slow)
"""Runs a test as `everywhere`, but in a bucket only with `--slow`: the S3 of the tests takes most of their time."""


class BucketFolder:
    """What is below a key of a bucket, read and written past the server by a client that is not ours."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key

    def __str__(self) -> str:
        """Return its address for a server."""
        return f"s3://{NAME}/{self._key}"

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self._key.rpartition("/")[2]

    def __truediv__(self, name: str) -> "BucketFolder":
        return BucketFolder(self._bucket, f"{self._key}/{name}")

    def digests(self) -> dict[str, str]:
        """Return the MD5 of all objects below it, by the rest of their keys."""
        pages = self._bucket.client().get_paginator("list_objects_v2").paginate(Bucket=NAME, Prefix=f"{self._key}/")
        items = [item for page in pages for item in page.get("Contents", ())]
        return {item["Key"].removeprefix(f"{self._key}/"): item["ETag"].strip('"') for item in items}

    def objects(self) -> dict[str, bytes]:
        """Return the contents of all objects below it, by the rest of their keys."""
        return {name: (self / name).read_bytes() for name in self.digests()}

    def mkdir(self, *, parents: bool = False) -> None:
        """Do nothing: a folder is there with its first object."""

    def tree(self) -> dict[str, tuple[str, int] | tuple[str, int, bytes]]:
        """Return everything below it as `tree` does of a folder."""
        result: dict[str, tuple[str, int] | tuple[str, int, bytes]] = {}
        for key, data in self.objects().items():
            parts = key.split("/")
            for count in range(1, len(parts)):
                result["/".join(parts[:count])] = ("folder", 0o755)
            if parts[-1]:
                result[key] = ("file", 0o644, data)
        return dict(sorted(result.items()))

    def iterdir(self) -> "Iterator[BucketFolder]":
        """Yield what is directly below it, without the hidden identity of the bucket."""
        names = {key.partition("/")[0] for key in self.digests()} - {FOLDER_IDENTITY}
        return (self / name for name in sorted(names))

    def exists(self) -> bool:
        """Return whether there is an object of this key or below it."""
        client = self._bucket.client()
        listed = client.list_objects_v2(Bucket=NAME, Prefix=self._key).get("Contents", ())
        return any(item["Key"] == self._key or item["Key"].startswith(f"{self._key}/") for item in listed)

    def read_bytes(self) -> bytes:
        """Read the object."""
        data: bytes = self._bucket.client().get_object(Bucket=NAME, Key=self._key)["Body"].read()
        return data

    def read_text(self) -> str:
        """Read the object."""
        return self.read_bytes().decode()

    def write_text(self, text: str) -> None:
        """Store the object."""
        self._bucket.client().put_object(Bucket=NAME, Key=self._key, Body=text.encode())

    def unlink(self) -> None:
        """Delete the object."""
        self._bucket.client().delete_object(Bucket=NAME, Key=self._key)


Folder: TypeAlias = Path | BucketFolder


def digests(folder: Folder) -> dict[str, str]:
    """Return the MD5 of all files below a folder, by their paths, also while a server changes them."""
    if isinstance(folder, BucketFolder):
        return folder.digests()
    result = {}
    for parent, _, names in os.walk(folder):  # passes over folders that are gone since they were listed
        for path in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError):
                result[path.relative_to(folder).as_posix()] = md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    return result


def flags_of(files: Folder) -> tuple[str, ...]:
    """Return the options with which a server has its files there; none for the folder in its data folder."""
    return ("--workspaces", str(files)) if isinstance(files, BucketFolder) else ()


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """An S3 with one bucket."""
    with bucket_server() as bucket:
        yield bucket


@pytest.fixture
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """Where the files of workspaces are: in the test's folder, or, if the test says `everywhere`, also in a bucket."""
    if getattr(request, "param", "folder") == "folder":
        return tmp_path / "workspaces"
    return BucketFolder(request.getfixturevalue("bucket"), secrets.token_hex(4))
