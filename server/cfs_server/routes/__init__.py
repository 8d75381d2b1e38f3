"""REST and SSE. Each module translates HTTP for one resource (H)."""
