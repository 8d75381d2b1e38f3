"""Object stores as file systems: S3, as moto has it, and the memory of fsspec (G6, G8)."""

import secrets
from collections.abc import Iterator

import pytest

from cfs_filesystem import ObjectFileSystem, open_store
from cfs_filesystem.testing import FileSystemConformance
from tests.buckets import NAME, Bucket, bucket_server


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with bucket_server() as bucket:
        yield bucket


class TestMemory(FileSystemConformance):
    dated_directories = False

    @pytest.fixture
    def filesystem(self) -> ObjectFileSystem:
        return ObjectFileSystem(open_store(f"memory://{secrets.token_hex(4)}"))


@pytest.mark.usefixtures("bucket")
class TestS3(FileSystemConformance):
    prefix = "/workspaces/main/"
    dated_directories = False
    versions_of_writes = False

    @pytest.fixture
    def filesystem(self) -> Iterator[ObjectFileSystem]:
        store = open_store(f"s3://{NAME}/{secrets.token_hex(4)}")
        store.check()
        filesystem = ObjectFileSystem(store, prefix="/workspaces/")
        yield filesystem
        filesystem.close()
