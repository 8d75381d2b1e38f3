"""The interface between sessions and engines, and values that all engines share."""
