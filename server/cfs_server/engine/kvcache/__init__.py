"""The key-value cache: computed tokens, their cells on the device, and their saved state."""
