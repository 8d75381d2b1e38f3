"""An S3 for tests, as a process: see `bucket_server`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import botocore.retries.standard
import botocore.session
import httpx
import pytest

from tests.pacing import python_path, sitecustomize

PROGRAM = Path(__file__).with_name("bucket_server.py")
NAME = "shared"


@dataclass(frozen=True)
class Bucket:
    """An S3 with one bucket."""

    port: int
    process: subprocess.Popen[str]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a program needs to use it, and to repeat requests without a pause."""
        return {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "PYTHONPATH": python_path(),
            "PACE_RETRIES": "0",
        }

    def client(self) -> "botocore.client.S3":
        """Return a client that is not ours."""
        return self._client

    @cached_property
    def _client(self) -> "botocore.client.S3":
        return botocore.session.get_session().create_client("s3")

    def stored(self) -> list[str]:
        """Return all keys of the bucket."""
        return [each["Key"] for each in self.client().list_objects_v2(Bucket=NAME).get("Contents", ())]

    def unfinished(self) -> int:
        """Return the number of uploads in parts that are not finished."""
        return len(self.client().list_multipart_uploads(Bucket=NAME).get("Uploads", ()))

    def refuse(self, method: str, code: str, status: int, times: int = 1_000_000, *, late: bool = False) -> None:
        """Refuse the next requests of a method; if `late`, after they were carried out."""
        params = {"method": method or "-", "code": code or "-", "status": f"{status}", "times": f"{times}"}
        params["late"] = f"{late:d}"
        httpx.post(f"http://127.0.0.1:{self.port}/-/refuse", params=params).raise_for_status()

    def accept(self) -> None:
        """Refuse no more requests."""
        self.refuse("", "", 0, 0)

    def requests(self) -> int:
        """Return how many requests there were."""
        return sum(self.requests_by_method().values())

    def requests_by_method(self) -> dict[str, int]:
        """Return how many requests of each method there were."""
        counted: dict[str, int] = httpx.get(f"http://127.0.0.1:{self.port}/-/requests").json()
        return counted


@contextmanager
def bucket_server(port: int = 0) -> Iterator[Bucket]:
    """Run an S3 with one bucket, and set the variables of this process. Clients of it repeat requests at once."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(port)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": ""},
    ) as process:
        try:
            assert process.stdout is not None
            bucket = Bucket(int(process.stdout.readline()), process)
            with pytest.MonkeyPatch.context() as patch:
                for name, value in bucket.environment.items():
                    patch.setenv(name, value)
                patch.setattr(botocore.retries.standard.ExponentialBackoff, "delay_amount", sitecustomize.at_once)
                bucket.client().create_bucket(Bucket=NAME)
                yield bucket
        finally:
            process.kill()
