"""The moving picture of the README is made from a recorded run, and what it shows still happens (P1)."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

from make_picture import COMMANDS, PICTURE, RECORDING, Step, lines_of, record, render
from ports import free_port
from tests.fuse import support as fuse

SVG = "{http://www.w3.org/2000/svg}"
STEPS = [Step(**step) for step in json.loads(RECORDING.read_text(encoding="utf-8"))]


def test_the_picture_is_made_from_the_recording_alone() -> None:
    """It is the same on every machine, small, and loads nothing from elsewhere."""
    text = PICTURE.read_text(encoding="utf-8")
    assert text == render()
    assert len(text) < 300_000
    assert (
        re.findall(r"https?://", text.replace("http://www.w3.org/2000/svg", "").replace("http://localhost", "")) == []
    )


def test_every_line_of_the_recording_is_in_the_picture() -> None:
    """Those who see no motion see the last picture, with all lines; a screen reader gets the commands."""
    root = ET.fromstring(PICTURE.read_text(encoding="utf-8"))  # noqa: S314 - it is our own picture
    shown = [text.text for text in root.iter(f"{SVG}text") if text.text != "$"]
    assert shown == [line.text for line in lines_of(STEPS)]
    assert [step.typed for step in STEPS] == list(COMMANDS)
    assert all(command in (root.findtext(f"{SVG}desc") or "") for command in COMMANDS)
    assert "prefers-reduced-motion:reduce" in (root.findtext(f"{SVG}style") or "")


@pytest.mark.external
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_recorded_commands_still_work() -> None:
    """Their lines are those of the recording, but for what the model says."""
    if reason := fuse.reason_to_skip():
        pytest.skip(reason)
    again = record(free_port())
    assert [step.typed for step in again] == [step.typed for step in STEPS]
    assert [len(step.shown.splitlines()) for step in again] == [len(step.shown.splitlines()) for step in STEPS]
