"""The same scripted model drives our agents and other harnesses through tasks and faults."""
