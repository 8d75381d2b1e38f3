"""State of sessions in files: their form, their folder, and the thread that writes and reads them (E3)."""
