"""Holds the sessions, runs the engine, serves REST, SSE, WebDAV and the dashboard."""
