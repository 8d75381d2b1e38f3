"""What turns cost, and the limits of spending."""
