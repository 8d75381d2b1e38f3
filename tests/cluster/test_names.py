"""A name is in one slot at any time, whoever asks in whatever order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cfs_server.cluster.names import Names, Place
from cfs_server.domain.placement import slot_of

SLOTS = 3
NAMES = [f"n{number}" for number in range(4)]


class Documents:
    """Documents in memory."""

    def __init__(self) -> None:
        self.spaces: dict[str, dict[str, str]] = {}

    def keep(self, space: str, name: str, value: str | None) -> None:
        if value is None:
            self.spaces.get(space, {}).pop(name, None)
        else:
            self.spaces.setdefault(space, {})[name] = value

    def kept(self, space: str) -> dict[str, str]:
        return dict(self.spaces.get(space, {}))


def home_of(name: str) -> int:
    return slot_of(name, SLOTS)


class OneNameOnce(RuleBasedStateMachine):
    """Sessions are created, renamed and deleted in slots that restart; requests that are on their way arrive late."""

    @initialize()
    def begin(self) -> None:
        self.documents = [Documents() for _ in range(SLOTS)]
        self.names = [Names(slot, home_of, self.documents[slot]) for slot in range(SLOTS)]
        self.sessions: list[set[str]] = [set() for _ in range(SLOTS)]
        self.under_way: list[tuple[int, str, str | None]] = []

    def _admits(self, slot: int, name: str, mark: str | None) -> bool:
        return name in self.sessions[slot] or self.names[slot].admit(name, mark)

    def _place(self, name: str) -> Place:
        home = home_of(name)
        return self.names[home].place(name) or Place(home, "")

    @rule(name=st.sampled_from(NAMES))
    def send(self, name: str) -> None:
        """A replica asks the home for the place of a name, and sends a request there, which takes its time."""
        place = self._place(name)
        self.under_way.append((place.slot, name, place.mark or None))

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """A request creates its session, if it is accepted."""
        if self.under_way:
            slot, name, mark = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
            if self._admits(slot, name, mark):
                self.sessions[slot].add(name)

    @rule(slot=st.integers(0, SLOTS - 1), name=st.sampled_from(NAMES))
    def guess(self, slot: int, name: str) -> None:
        """A replica with an old hint sends a request without a mark."""
        if self._admits(slot, name, None):
            self.sessions[slot].add(name)

    @rule(data=st.data(), new=st.sampled_from(NAMES))
    def rename(self, data: st.DataObject, new: str) -> None:
        """A session gets another name and stays in its slot; as `Reservations` does it."""
        living = [(slot, name) for slot in range(SLOTS) for name in sorted(self.sessions[slot])]
        if not living:
            return
        slot, old = data.draw(st.sampled_from(living))
        if new in self.sessions[slot]:
            return
        if not self.names[slot].may_create(new):
            home = home_of(new)
            if new in self.sessions[home]:
                return
            known = self.names[home].place(new)
            if known is not None:
                if new in self.sessions[known.slot]:
                    return
                self.names[known.slot].give_up(new, known.mark)
            self.names[slot].grant(new, self.names[home].note(new, slot).mark)
        self.sessions[slot].remove(old)
        self.sessions[slot].add(new)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        living = [(slot, name) for slot in range(SLOTS) for name in sorted(self.sessions[slot])]
        if living:
            slot, name = data.draw(st.sampled_from(living))
            self.sessions[slot].remove(name)

    @rule(slot=st.integers(0, SLOTS - 1))
    def restart(self, slot: int) -> None:
        """A slot goes to another owner, after the requests that were on their way to it."""
        self.under_way = [each for each in self.under_way if each[0] != slot]
        self.names[slot] = Names(slot, home_of, self.documents[slot])

    @invariant()
    def one_session_of_each_name(self) -> None:
        for name in NAMES:
            assert sum(name in sessions for sessions in self.sessions) <= 1, name

    @invariant()
    def each_session_is_found(self) -> None:
        for slot, sessions in enumerate(self.sessions):
            for name in sessions:
                assert self._place(name).slot == slot, name


TestOneNameOnce = OneNameOnce.TestCase
TestOneNameOnce.settings = settings(stateful_step_count=40)
