"""What turns messages into text: one interface, several back ends (E4)."""
