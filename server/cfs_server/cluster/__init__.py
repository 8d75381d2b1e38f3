"""Several servers on one store: who has which sessions, and how a request gets there (`--store postgresql://…`)."""
