"""Object stores as file systems: S3, as moto has it, and the memory of fsspec (G6, G8)."""

import copy
import secrets
from collections.abc import Iterator

import pytest

from cfs_filesystem import (
    OPERATIONS,
    ConflictError,
    Grant,
    InvalidPathError,
    ObjectFileSystem,
    ObjectStore,
    _s3,
    open_store,
)
from cfs_filesystem._objects import ABSENT, Changed
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


@pytest.fixture(scope="module")
def checked(bucket: Bucket) -> Iterator[_s3.S3Store]:
    """A store that knows which conditional requests moto lacks. Its client takes long to make, so it is shared."""
    store = _s3.S3Store(f"s3://{NAME}/checked")
    store.check()
    yield store
    store.close()


class TestS3(FileSystemConformance):
    prefix = "/workspaces/main/"
    every_pair = False
    dated_directories = False
    versions_of_writes = False

    @pytest.fixture
    def filesystem(self, checked: _s3.S3Store) -> ObjectFileSystem:
        store = copy.copy(checked)
        store._root = f"{secrets.token_hex(4)}/"
        return ObjectFileSystem(store, prefix="/workspaces/")


@pytest.fixture
def store(bucket: Bucket) -> Iterator[ObjectStore]:
    store = open_store(f"s3://{NAME}/{secrets.token_hex(4)}")
    yield store
    bucket.accept()
    store.close()


def test_a_write_whose_answer_was_lost_knows_that_it_was_done(store: ObjectStore, bucket: Bucket) -> None:
    """It is sent again, and refused then, as the object exists: it is its own."""
    bucket.refuse("PUT", "InternalError", 500, times=1, late=True)
    written = store.write("a", [b"x"], ABSENT)
    assert store.look("a") == written
    with pytest.raises(Changed):
        store.write("a", [b"x"], ABSENT)
    bucket.refuse("PUT", "InternalError", 500, times=1, late=True)
    assert store.write("a", [b"y"], written.version) == store.look("a")
    with pytest.raises(Changed):
        store.write("a", [b"z"], written.version)


def test_of_a_replaced_entry_no_mixture_is_read(store: ObjectStore) -> None:
    """A small one stays as it was. A large one is read in blocks, and reading ends with an error."""
    handle = ObjectFileSystem(store).create_handle([Grant(prefix="/", ops=OPERATIONS)])
    handle.write("/large", b"a" * (12 << 20))
    with handle.open("/large") as content:
        assert content.read(1 << 20) == b"a" * (1 << 20)
        assert content.seek(-3, 2) == (12 << 20) - 3
        assert content.read() == b"aaa"
        handle.write("/large", b"b" * (12 << 20))
        content.seek(9 << 20)
        with pytest.raises(ConflictError, match="replaced while it was read"):
            content.read(1 << 20)
    with handle.open("/large") as content:
        handle.delete("/large")
        content.seek(9 << 20)
        with pytest.raises(ConflictError, match="or deleted"):
            content.read(1 << 20)
    assert handle.list() == []


def test_a_listing_has_all_pages_and_only_what_is_a_path(
    store: ObjectStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_s3, "_LARGEST_PAGE", 3)
    handle = ObjectFileSystem(store).create_handle([Grant(prefix="/", ops=OPERATIONS)])
    for number in range(7):
        handle.write(f"/{number % 2}/{number}", "x")
    prefix = store.name.rpartition("/")[2]
    for key in ("star*", "0//empty", "0/../up", "back\\slash", ".cfs-write-1"):
        bucket.client().put_object(Bucket=NAME, Key=f"{prefix}/{key}", Body=b"x")
    assert [meta["path"] for meta in handle.list()] == sorted(f"/{number % 2}/{number}" for number in range(7))
    assert [meta["path"] for meta in handle.scan("/")] == ["/0", "/1"]
    with pytest.raises(InvalidPathError):
        handle.write("/.cfs-write-2", "x")


def test_a_store_that_has_lost_its_objects_is_another_one(store: ObjectStore) -> None:
    first = store.identity()
    assert (store.identity(), open_store(store.name).identity()) == (first, first)
    for found in list(store.walk("")):
        store.delete(found.key, None)
    assert store.identity() != first
