"""The key-value cache: which tokens the model has computed, where their cells are, and what is kept of them."""
