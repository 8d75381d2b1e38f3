"""Conformance tests for stores of versions, to be inherited. Needs pytest.

class TestMine(VersionStoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[MyStore]:
        ...
"""
# ruff: noqa: S101  a test asserts

import random
from functools import partial
from io import BytesIO

import pytest

from cfs_filesystem._errors import NotFoundError
from cfs_filesystem.versions.codec import LARGE
from cfs_filesystem.versions.model import Author, EntryType, Kind, State, VersionRetention
from cfs_filesystem.versions.store import VersionStore

ALICE, BOB = Author("alice", "main", "call-1"), Author("bob")
FOLDER = State(EntryType.FOLDER, 0o755)


def write(store: VersionStore, workspace: str, path: str, data: bytes, author: Author = ALICE) -> int:
    """Record a write as a server does: with the content that it replaces as dictionary."""
    before = store.at(workspace, path)
    read_previous = partial(store.read, workspace, before) if before is not None else None
    content = store.prepare(workspace, data, before, read_previous)
    return store.record(workspace, author, Kind.WRITE, {path: State(EntryType.FILE, 0o644, content)})


def content_at(store: VersionStore, workspace: str, path: str, number: int | None = None) -> bytes | None:
    """Return the content at a path after a change; None if there is no file."""
    entry = store.at(workspace, path, number)
    return None if entry is None else store.read(workspace, entry)


class VersionStoreConformance:
    """What every store of versions does. A subclass has a fixture `store`."""

    def test_each_change_is_a_version_with_its_author(self, store: VersionStore) -> None:
        """Numbers count up in each workspace; names are bytes."""
        name = "caf\udce9.txt"
        assert [write(store, "w", name, data) for data in (b"one", b"two", b"")] == [1, 2, 3]
        assert write(store, "other", "a", b"x", BOB) == 1
        assert [content_at(store, "w", name, number) for number in range(4)] == [None, b"one", b"two", b""]
        newest = store.changes("w")[0]
        assert (newest.number, newest.author, newest.kind) == (3, ALICE, Kind.WRITE)
        assert list(newest.entries) == [name]
        assert store.last("w") == 3
        assert store.last("unknown") == 0
        assert store.changes("unknown") == ()
        assert sorted(store.workspaces()) == ["other", "w"]

    def test_a_change_of_many_paths_is_one_version(self, store: VersionStore) -> None:
        """A tree is what each path was last; removed paths are not in it."""
        for path in ("src/a", "src/b", "src.txt"):
            write(store, "w", path, path.encode())
        moved = {entry.path: entry for entry in store.tree_at("w", None, "src").values()}
        states: dict[str, State | None] = dict.fromkeys(moved)
        states |= {
            path.replace("src", "lib"): State(entry.type, entry.mode, store.content_of(entry))
            for path, entry in moved.items()
        }
        number = store.record("w", BOB, Kind.MOVE, states | {"lib": FOLDER})
        assert number == 4
        assert sorted(store.tree_at("w")) == ["lib", "lib/a", "lib/b", "src.txt"]
        assert sorted(store.tree_at("w", 3)) == ["src.txt", "src/a", "src/b"]
        assert sorted(store.tree_at("w", None, "lib")) == ["lib", "lib/a", "lib/b"]
        assert sorted(store.paths("w")) == ["lib", "lib/a", "lib/b", "src.txt", "src/a", "src/b"]
        assert {path: entry.number for path, entry in store.paths("w", "src").items()} == {"src/a": 1, "src/b": 2}
        assert store.paths("unknown") == {}
        assert content_at(store, "w", "lib/b") == b"src/b"
        assert store.at("w", "src/a") is None
        assert [change.number for change in store.changes("w", "lib")] == [4]
        assert [change.number for change in store.changes("w", before=3, limit=1)] == [2]

    def test_folders_above_are_recorded_where_there_is_none(self, store: VersionStore) -> None:
        """Also where a folder was removed, or something else was."""
        write(store, "w", "was", b"a file")
        above = {"was": FOLDER, "was/new": FOLDER}
        for _ in range(2):
            content = store.prepare("w", b"x")
            state = State(EntryType.FILE, 0o644, content)
            store.record("w", ALICE, Kind.WRITE, {"was/new/a": state}, above, ends=True)
        store.record("w", ALICE, Kind.DELETE, {"was/new/a": None, "was/new": None})
        store.record("w", ALICE, Kind.WRITE, {"was/new/a": state}, above)
        changed = [sorted(change.entries) for change in store.changes("w")]
        new = ["was/new", "was/new/a"]
        assert changed == [new, new, ["was/new/a"], ["was", *new], ["was"]]
        assert sorted(store.tree_at("w")) == ["was", *new]

    def test_the_difference_of_two_numbers_has_both_entries(self, store: VersionStore) -> None:
        """What changed and changed back does not differ."""
        for path, data in (("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", b"2"), ("b", b"1"), ("c", b"new")):
            write(store, "w", path, data)
        between = store.changes_between("w", 2, 6)
        assert sorted(between) == ["a", "c"]
        one, other = between["a"]
        assert one is not None
        assert other is not None
        assert (store.read("w", one), store.read("w", other)) == (b"1", b"2")
        assert between["c"][0] is None
        assert store.changes_between("w", 6, 2)["c"][1] is None

    def test_numbers_that_do_not_exist_are_refused(self, store: VersionStore) -> None:
        """The message says which there are."""
        write(store, "w", "a", b"1")
        for number in (-1, 2):
            with pytest.raises(NotFoundError, match="the last is 1"):
                store.at("w", "a", number)
            with pytest.raises(NotFoundError):
                store.tree_at("w", number)

    def test_small_edits_take_little(self, store: VersionStore) -> None:
        """Hundreds of versions of a file take less than two copies of it, and each is read back."""
        generator = random.Random(1)
        lines = [generator.randbytes(30).hex() for _ in range(2000)]
        texts = []
        for _ in range(200):
            lines[generator.randrange(len(lines))] = generator.randbytes(30).hex()
            texts.append("\n".join(lines).encode())
            write(store, "w", "a", texts[-1])
        assert store.usage("w") < 2 * len(texts[0])
        assert [content_at(store, "w", "a", number + 1) for number in range(200)] == texts
        store.check_integrity()

    def test_large_contents_share_what_did_not_change(self, store: VersionStore) -> None:
        """They are read back in pieces."""
        data = random.Random(2).randbytes(LARGE + 4_000_000)
        edited = data[:5_000_000] + b"inserted" + data[5_000_000:]
        for content in (data, edited):
            with store.holding():
                stored = store.keep("w", BytesIO(content))
                store.record("w", ALICE, Kind.WRITE, {"big": State(EntryType.FILE, 0o600, stored)})
        assert store.usage("w") < len(data) + 2_000_000
        assert content_at(store, "w", "big", 1) == data
        newest = store.at("w", "big")
        assert newest is not None
        with store.open("w", newest) as file:
            file.seek(5_000_000)
            assert file.read(8) == b"inserted"

    def test_workspaces_share_nothing(self, store: VersionStore) -> None:
        """The same content takes its space again in another workspace, so nothing can be learnt of it."""
        data = random.Random(3).randbytes(100_000)
        write(store, "one", "a", data)
        write(store, "two", "a", b"x")
        before = store.usage("two")
        write(store, "two", "b", data)
        assert store.usage("two") - before >= len(data)
        entry = store.at("one", "a")
        assert entry is not None
        with pytest.raises(NotFoundError):
            store.read("three", entry)
        with pytest.raises(NotFoundError):
            store.record("three", BOB, Kind.COPY, {"a": State(EntryType.FILE, 0o644, store.content_of(entry))})
        assert store.last("three") == 0, "the refused change left nothing"

    def test_a_purged_workspace_is_gone_and_leaves_others(self, store: VersionStore) -> None:
        """Its forks keep what they share, and its name begins anew."""
        texts = [b"%d " % number * 1000 for number in range(70)]
        for text in texts:
            write(store, "w", "a", text)
        store.fork("w", "copy")
        assert write(store, "copy", "a", b"own") == 71
        store.purge("w")
        assert store.last("w") == 0
        assert store.workspaces() == ["copy"]
        assert [content_at(store, "copy", "a", number + 1) for number in range(70)] == texts
        assert write(store, "w", "a", b"new") == 1
        store.purge("copy")
        assert store.usage("copy") == 0
        store.check_integrity()

    def test_a_renamed_workspace_has_its_past(self, store: VersionStore) -> None:
        """What had the name before is forgotten."""
        write(store, "w", "a", b"1")
        write(store, "old", "b", b"2")
        store.rename("w", "old")
        assert content_at(store, "old", "a") == b"1"
        assert store.at("old", "b") is None
        assert store.workspaces() == ["old"]

    def test_a_fork_and_its_original_share_the_past_up_to_the_fork(self, store: VersionStore) -> None:
        """As long as it is kept; a workspace that gets the name later shares nothing."""
        assert store.common("w", "copy") is None
        for data in (b"one", b"two"):
            write(store, "w", "a", data)
            write(store, "other", "a", data)
        store.fork("w", "copy")
        assert (store.common("w", "copy"), store.common("copy", "w"), store.common("w", "other")) == (2, 2, None)
        write(store, "w", "a", b"three")
        write(store, "copy", "a", b"three")
        assert store.common("w", "copy") == 2
        store.prune("w", VersionRetention(changes=0))
        assert store.common("w", "copy") is None
        store.purge("copy")
        write(store, "copy", "a", b"one")
        assert store.common("w", "copy") is None

    def test_the_oldest_changes_are_forgotten_beyond_a_limit(self, store: VersionStore) -> None:
        """Every tree that is kept is whole; older numbers are refused."""
        texts = {number: b"%d " % number * 2000 for number in range(1, 101)}
        for number, text in texts.items():
            write(store, "w", f"f{number % 3}", text)
        assert store.prune("w", VersionRetention(changes=10)) == 90
        assert [change.number for change in store.changes("w")] == list(range(100, 89, -1))
        assert content_at(store, "w", "f0", 90) == texts[90]
        assert content_at(store, "w", "f1", 90) == texts[88]
        assert content_at(store, "w", "f2", 95) == texts[95]
        with pytest.raises(NotFoundError, match="the oldest is 90"):
            store.at("w", "f0", 89)
        assert store.prune("w", VersionRetention(seconds=0)) == 100
        assert sorted(store.tree_at("w")) == ["f0", "f1", "f2"]
        assert content_at(store, "w", "f2") == texts[98]
        store.check_integrity()

    def test_the_stored_bytes_have_a_limit(self, store: VersionStore) -> None:
        """What is there now stays, whatever it takes."""
        generator = random.Random(4)
        for _ in range(20):
            write(store, "w", "a", last := generator.randbytes(10_000))
        store.prune("w", VersionRetention(size=50_000))
        assert store.usage("w") <= 50_000
        store.prune("w", VersionRetention(size=1))
        assert content_at(store, "w", "a") == last

    def test_what_is_held_is_not_removed(self, store: VersionStore) -> None:
        """A content that was stored but not recorded yet survives a pruning meanwhile, and not the next one."""
        write(store, "w", "a", b"1")
        before = store.usage("w")
        with store.holding():
            stored = store.keep("w", BytesIO(b"later" * 100))
            store.prune("w", VersionRetention(changes=0))
            store.record("w", ALICE, Kind.WRITE, {"b": State(EntryType.FILE, 0o644, stored)})
        assert content_at(store, "w", "b") == b"later" * 100
        with store.holding():
            store.keep("w", BytesIO(b"never" * 100))
        store.record("w", ALICE, Kind.DELETE, {"b": None})
        store.prune("w", VersionRetention(changes=0))
        assert store.usage("w") == before

    def test_a_random_walk_reads_back_byte_for_byte(self, store: VersionStore) -> None:
        """Against a model that keeps every tree."""
        for seed in range(4):
            _walk(store, f"w{seed}", random.Random(seed), 120)
        store.check_integrity()


def _walk(store: VersionStore, workspace: str, generator: random.Random, steps: int) -> None:
    paths = ["a", "b/c", "b/d", "b", "\udcff"]
    trees: list[dict[str, tuple[EntryType, int, bytes]]] = [{}]
    oldest = 0
    for _ in range(steps):
        tree = dict(trees[-1])
        states: dict[str, State | None] = {}
        for path in generator.sample(paths, generator.randint(1, 3)):
            action = generator.choice(["edit", "edit", "write", "remove", "folder", "copy"])
            data = tree[path][2] if path in tree else b""
            if action == "remove":
                states[path] = None
                tree.pop(path, None)
                continue
            if action == "folder":
                states[path], tree[path] = FOLDER, (EntryType.FOLDER, 0o755, b"")
                continue
            if action == "edit":
                at = generator.randint(0, len(data))
                data = data[:at] + generator.randbytes(generator.randint(0, 40)) + data[at + generator.randint(0, 9) :]
            elif action == "copy":
                data = generator.choice(trees[oldest:]).get(generator.choice(paths), (0, 0, data))[2]
            else:
                data = generator.randbytes(generator.randint(0, 3000))
            before = store.at(workspace, path)
            read_previous = None if before is None else partial(store.read, workspace, before)
            mode = generator.choice([0o644, 0o755])
            entry_type = generator.choice([EntryType.FILE, EntryType.FILE, EntryType.LINK])
            content = store.prepare(workspace, data, before, read_previous)
            states[path], tree[path] = State(entry_type, mode, content), (entry_type, mode, data)
        assert store.record(workspace, generator.choice([ALICE, BOB]), Kind.WRITE, states) == len(trees)
        trees.append(tree)
        if generator.random() < 0.03:
            oldest = store.prune(workspace, VersionRetention(changes=generator.randint(0, 40)))
    for number in range(oldest, len(trees)):
        entries = store.tree_at(workspace, number)
        assert {
            path: (entry.type, entry.mode, store.read(workspace, entry)) for path, entry in entries.items()
        } == trees[number]
    one, other = generator.sample(range(oldest, len(trees)), 2)
    differ = {path for path in paths if trees[one].get(path) != trees[other].get(path)}
    assert set(store.changes_between(workspace, one, other)) == differ
