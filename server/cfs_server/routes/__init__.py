"""REST and SSE: each module translates HTTP for one resource (H)."""
