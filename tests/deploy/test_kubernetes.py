"""The chart of Helm and the plain manifests: what they contain is valid, confined and ended in time.

No cluster runs here. The manifests are compared with the schemas of Kubernetes; where there is the program `helm`, it
renders the chart, and the result must be the same manifests.
"""

import copy
import json
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from cfs_server.config.settings import ServerSettings

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy/helm/cfs"
MANIFESTS = ROOT / "deploy/kubernetes/cfs.yaml"
EXAMPLE = ROOT / "deploy/kubernetes/values.yaml"
VERSIONS = ("1.27", kubernetes_validate.latest_version())
EVERYTHING = {
    "replicas": 3,
    "store": {"url": "postgresql://cfs:secret@database/cfs postgresql://cfs:secret@other/cfs"},
    "tokens": {"file": '[tokens.alice]\nhash = "sha256:0"\n'},
    "settings": {"upstream": "http://router:9000", "upstream_parallel": 64, "upstream_check": False},
    "env": [{"name": "CFS_UPSTREAM_KEY", "valueFrom": {"secretKeyRef": {"name": "upstream", "key": "key"}}}],
    "imagePullSecrets": [{"name": "registry"}],
    "workspaces": {"create": True, "storageClass": "shared"},
    "ingress": {"enabled": True, "className": "nginx", "hosts": ["cfs.example"], "tlsSecret": "cfs-tls"},
    "serviceMonitor": {"enabled": True, "tokenSecret": "prometheus"},
    "podAnnotations": {"team": "a"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "cfs", "operator": "Exists"}],
}
OF_OTHERS = {"ServiceMonitor"}
"""Kinds of an operator, which the schemas of Kubernetes do not have."""
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="needs the program helm, which Debian lacks")

Document = dict[str, Any]


def documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def values() -> Document:
    found: Document = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def merged(changes: Document) -> Document:
    """Return the values with changes, as Helm merges them."""
    found = copy.deepcopy(values())
    for name, change in changes.items():
        found[name] = found[name] | change if isinstance(change, dict) else change
    return found


def rendered(changes: Document, folder: Path) -> list[Document]:
    """Let Helm render the chart."""
    given = folder / "values.yaml"
    given.write_text(yaml.safe_dump(changes), encoding="utf-8")
    found = subprocess.run(
        ["helm", "template", "cfs", CHART, "--values", given], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return documents(found.stdout)


@pytest.fixture(scope="module")
def manifests() -> list[Document]:
    return documents(MANIFESTS.read_text(encoding="utf-8"))


def is_valid(changes: Document) -> bool:
    """Whether the schema of the values accepts changes of them."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return bool(jsonschema_rs.validator_for(schema).is_valid(merged(changes)))


def test_the_chart_has_the_version_of_the_package() -> None:
    """Its default image is of the same version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == version("cfs-local")


def test_the_schema_accepts_what_is_meant() -> None:
    assert is_valid(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")))
    assert is_valid(EVERYTHING)


@pytest.mark.parametrize(
    "wrong",
    [
        {"store": {"existingSecret": "", "url": ""}},
        {"store": {"url": "mysql://cfs@database/cfs"}},
        {"tokens": {"existingSecret": ""}},
        {"replicas": 0},
        {"replica": 2},
        {"ingress": {"enabled": True}},
        {"settings": {"store": "memory"}},
        {"settings": {"--upstream": "http://router:9000"}},
        {"shutdownGrace": "30s"},
    ],
    ids=lambda wrong: json.dumps(wrong),
)
def test_the_schema_refuses_mistakes(wrong: Document) -> None:
    """No database, no tokens although nobody has agreed to that, names that do not exist."""
    good = {"store": {"existingSecret": "store"}, "tokens": {"existingSecret": "tokens"}}
    assert is_valid(good)
    assert not is_valid(good | wrong)


def test_templates_use_each_value_and_no_other() -> None:
    """`.Values.a.b` is in values.yaml, and what stands there is used."""
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([A-Za-z]+(?:\.[A-Za-z]+)?)", templates))
    known = {
        f"{name}.{key}" if isinstance(value, dict) and value else name
        for name, value in values().items()
        for key in (value if isinstance(value, dict) and value else [""])
    }
    whole = {"resources"}  # passed on as it is
    assert {name.partition(".")[0] if name.partition(".")[0] in whole else name for name in known} == used


@pytest.mark.parametrize("release", VERSIONS)
def test_the_manifests_are_valid(release: str, manifests: list[Document]) -> None:
    """No unknown field, no wrong type."""
    kinds = [manifest["kind"] for manifest in manifests]
    assert sorted(kinds) == ["Deployment", "PersistentVolumeClaim", "PodDisruptionBudget", "Service", "Service"]
    for manifest in manifests:
        kubernetes_validate.validate(manifest, release, strict=True)


def test_a_pod_is_confined_and_ends_in_time(manifests: list[Document]) -> None:
    """It is no root, writes to its volumes only, and is killed after its turns have ended; an update loses nobody."""
    (deployment,) = (manifest for manifest in manifests if manifest["kind"] == "Deployment")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001, "the user of the image"
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    env = {each["name"]: each.get("value") for each in container["env"]}
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > float(env["CFS_SHUTDOWN_GRACE"]) + pause
    probes = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert probes == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    ours = {name.removeprefix("CFS_").lower() for name in env if name.startswith("CFS_")}
    assert ours <= ServerSettings.model_fields.keys()
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_what_chooses_pods_fits_their_labels(manifests: list[Document]) -> None:
    (deployment,) = (manifest for manifest in manifests if manifest["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    for manifest in manifests:
        selector = manifest["spec"].get("selector", {})
        assert selector.get("matchLabels", selector).items() <= labels, manifest["kind"]


@needs_helm
def test_helm_finds_nothing_wrong() -> None:
    command = ["helm", "lint", "--strict", str(CHART), "--values", str(EXAMPLE)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@needs_helm
def test_the_manifests_are_those_of_the_chart(manifests: list[Document], tmp_path: Path) -> None:
    found = rendered(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")), tmp_path)
    for manifest in found:
        manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "kubectl"
        pod = manifest["spec"].get("template")
        if pod is not None:
            pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "kubectl"
    assert found == manifests


@needs_helm
@pytest.mark.parametrize("release", VERSIONS)
def test_with_all_that_can_be_set_the_chart_is_valid(release: str, tmp_path: Path) -> None:
    found = rendered(EVERYTHING, tmp_path)
    kinds = {manifest["kind"] for manifest in found}
    assert kinds >= {"Deployment", "Ingress", "PersistentVolumeClaim", "PodDisruptionBudget", "Secret", "Service"}
    assert kinds >= OF_OTHERS
    for manifest in found:
        if manifest["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(manifest, release, strict=True)
    (deployment,) = (manifest for manifest in found if manifest["kind"] == "Deployment")
    env = {each["name"]: each.get("value") for each in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["CFS_UPSTREAM_PARALLEL"] == "64"
    assert env["CFS_UPSTREAM_CHECK"] == "false"
    assert env["CFS_ALLOWED_HOSTS"] == "cfs.example,cfs,cfs.default,cfs.default.svc,$(POD_IP)"
    secrets = {each["metadata"]["name"]: each["stringData"] for each in found if each["kind"] == "Secret"}
    assert secrets["cfs-tokens"]["tokens.toml"] == EVERYTHING["tokens"]["file"]  # type: ignore[index]
