"""The server itself: whether it is ready, its stores, and a backup."""

import json

from cfs.api._calls import Call, Request, parse_nothing


def backup() -> Request:
    """`GET /v1/backup`: a backup of all sessions and workspaces, a tar, for `Client.download`."""
    return Request("GET", "/v1/backup")


def store() -> Call[str]:
    """`GET /healthz`: the id of the server's store, which is another one where sessions have been lost."""
    return Call(Request("GET", "/healthz"), lambda answer: str(json.loads(answer.body).get("store", "")))


def files_store() -> Call[str]:
    """`GET /healthz`: the id of the store of the workspaces, which servers may share, or else as `store`."""

    def id_in(body: bytes) -> str:
        health = json.loads(body)
        return str(health.get("workspaces") or health.get("store", ""))

    return Call(Request("GET", "/healthz"), lambda answer: id_in(answer.body))


def ready() -> Call[None]:
    """`GET /readyz`: raises `Unavailable` where a turn would not start now."""
    return Call(Request("GET", "/readyz"), parse_nothing)
