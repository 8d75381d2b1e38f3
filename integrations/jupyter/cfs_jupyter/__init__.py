"""Sessions in notebooks: the magics `%cfs` and `%%cfs`."""
