"""A name is in one slot at any time, whoever asks in whatever order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cfs_server.cluster.names import NameLocation, Names
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
        self.renames: list[tuple[int, str, str, str]] = []
        """Slot, old and new name, and the mark of the reservation."""

    def _admits(self, slot: int, name: str, mark: str | None) -> bool:
        return name in self.sessions[slot] or self.names[slot].admit(name, mark)

    def _place(self, name: str) -> NameLocation:
        home = home_of(name)
        return self.names[home].place(name) or NameLocation(home, "")

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
    def begin_rename(self, data: st.DataObject, new: str) -> None:
        """A session is to get a new name in its slot, as `Reservations` does it; the answer is on its way."""
        living = [(slot, name) for slot in range(SLOTS) for name in sorted(self.sessions[slot])]
        if not living:
            return
        slot, old = data.draw(st.sampled_from(living))
        if new in self.sessions[slot]:
            return
        if self.names[slot].may_create(new):
            self.renames.append((slot, old, new, ""))
            return
        home = home_of(new)
        if new in self.sessions[home]:
            return
        place = self.names[home].place(new)
        if place is not None:
            if new in self.sessions[place.slot]:
                return
            self.names[place.slot].give_up(new, place.mark)
        self.renames.append((slot, old, new, self.names[home].note(new, slot).mark))

    @rule(data=st.data())
    def end_rename(self, data: st.DataObject) -> None:
        """The answer arrives. A name that is reserved for nothing is given back."""
        if not self.renames:
            return
        slot, old, new, mark = self.renames.pop(data.draw(st.integers(0, len(self.renames) - 1)))
        names, sessions = self.names[slot], self.sessions[slot]
        if mark and not names.grant(new, mark):
            return
        if old in sessions and new not in sessions and names.may_create(new):
            sessions.remove(old)
            sessions.add(new)
        elif mark and new not in sessions:
            names.give_up(new, mark)
            home = self.names[home_of(new)]
            if (place := home.place(new)) is not None and place.mark == mark:
                home.note(new, home_of(new))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        living = [(slot, name) for slot in range(SLOTS) for name in sorted(self.sessions[slot])]
        if living:
            slot, name = data.draw(st.sampled_from(living))
            self.sessions[slot].remove(name)

    @rule(slot=st.integers(0, SLOTS - 1))
    def restart(self, slot: int) -> None:
        """A slot goes to another owner, after the requests that were on their way to it."""
        self.under_way = [request for request in self.under_way if request[0] != slot]
        self.renames = [rename for rename in self.renames if rename[0] != slot]
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
TestOneNameOnce.settings = settings(max_examples=4 * settings().max_examples, stateful_step_count=40)


def test_a_name_that_was_given_away_while_its_grant_was_under_way_is_not_granted() -> None:
    name = NAMES[0]
    first, second = (slot for slot in range(SLOTS) if slot != home_of(name))
    names = [Names(slot, home_of, Documents()) for slot in range(SLOTS)]
    late = names[home_of(name)].note(name, first)
    names[first].give_up(name, late.mark)
    newer = names[home_of(name)].note(name, second)
    assert names[second].grant(name, newer.mark)
    assert not names[first].grant(name, late.mark)
    assert [names[slot].may_create(name) for slot in (first, second)] == [False, True]
