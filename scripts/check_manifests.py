"""Check deploy/kubernetes, ray-serve and docker with the tools that read them: `make check-manifests`.

kubectl renders the kustomization. Every object of Kubernetes' own kinds is validated against the schemas of
Kubernetes, those of the Prometheus operator against its types. KubeRay publishes no schema as a package: the
Pods of a RayCluster and of a RayService are validated as Kubernetes' Pods, and the fields around them are
lists here, after the CRDs of KubeRay 1.5. hadolint reads the Dockerfile. The tools are in an environment of
their own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator import v1, v1alpha1

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
KUBERNETES = "1.37"
TOOLS = Path(sys.executable).parent
OPERATED = {
    "PodMonitor": v1.PodMonitor,
    "PrometheusRule": v1.PrometheusRule,
    "ScrapeConfig": v1alpha1.ScrapeConfig,
}
RAY_CLUSTER = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
RAY_SERVICE = {"serveConfigV2", "rayClusterConfig"}
HEAD = {"rayStartParams", "template"}
WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


class WrongManifest(Exception):
    """The message names the object and the field."""


def main() -> int:
    objects = rendered()
    for each in objects:
        check(each)
        print(f"{each['kind']} {each['metadata']['name']}: valid")
    subprocess.run([TOOLS / "hadolint", DEPLOY / "docker" / "Dockerfile"], check=True)
    print(f"Dockerfile: no warnings\n{len(objects)} objects")
    return 0


def rendered() -> list[dict[str, Any]]:
    command = [TOOLS / "kubectl", "kustomize", DEPLOY / "kubernetes"]
    written = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [
        *yaml.safe_load_all(written),
        yaml.safe_load((DEPLOY / "ray-serve" / "rayservice.yaml").read_text()),
    ]


def check(manifest: dict[str, Any]) -> None:
    """Raises WrongManifest, and what the validators raise."""
    kind = manifest["kind"]
    if kind in OPERATED:
        check_types(OPERATED[kind], manifest)
    elif kind == "RayCluster":
        check_pods(manifest["spec"])
    elif kind == "RayService":
        same_fields("spec", manifest["spec"], RAY_SERVICE)
        check_pods(manifest["spec"]["rayClusterConfig"])
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def check_pods(cluster: dict[str, Any]) -> None:
    for pod in pods_of(cluster):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def check_types(model: Any, manifest: dict[str, Any]) -> None:
    """Also raises for a field that the model does not have, which pydantic may ignore."""
    known = model.model_validate(manifest).model_dump(by_alias=True, exclude_unset=True, mode="json")
    if lost := list(missing(manifest, known)):
        raise WrongManifest(f"{manifest['kind']} has no {', '.join(lost)}")


def missing(given: Any, known: Any, path: str = "") -> Iterator[str]:
    """Paths of fields in `given` that are not in `known`."""
    if isinstance(given, dict):
        for name, value in given.items():
            if not isinstance(known, dict) or name not in known:
                yield f"{path}.{name}"
            else:
                yield from missing(value, known[name], f"{path}.{name}")
    elif isinstance(given, list):
        for index, value in enumerate(given):
            yield from missing(value, known[index], f"{path}[{index}]")


def pods_of(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The Pods of a RayCluster's spec. Raises WrongManifest for a field that is unknown or absent."""
    same_fields("spec", spec, RAY_CLUSTER)
    groups = [(spec["headGroupSpec"], HEAD), *((group, WORKERS) for group in spec["workerGroupSpecs"])]
    for group, fields in groups:
        same_fields(group.get("groupName", "head"), group, fields)
        strings = group["rayStartParams"].values()
        if not all(isinstance(value, str) for value in strings):
            raise WrongManifest(f"rayStartParams are strings: {list(strings)}")
        name = group.get("groupName", "head")
        metadata = {"name": name} | group["template"]["metadata"]
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": group["template"]["spec"]}


def same_fields(name: str, given: dict[str, Any], expected: set[str]) -> None:
    if different := given.keys() ^ expected:
        raise WrongManifest(f"{name}: unknown or absent: {', '.join(sorted(different))}")


if __name__ == "__main__":
    sys.exit(main())
