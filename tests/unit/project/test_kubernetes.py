"""deploy/kubernetes and deploy/docker agree with each other and with the product.

`make check-manifests` validates them against schemas.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.command.drain_node import make_parser
from router.config.flags.command_line import parse
from router.config.settings import RouterConfig
from scripts.kubernetes_rules import prometheus_rule

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = ROOT / "deploy" / "kubernetes"
DOCKERFILE = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()


def manifest(kind: str, name: str) -> Any:
    (found,) = (each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def manifests() -> list[Any]:
    names = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]
    return [each for name in names for each in yaml.safe_load_all((MANIFESTS / name).read_text())]


def settings() -> RouterConfig:
    return parse(["--config", str(MANIFESTS / "settings" / "router.yaml")])


def router_pod() -> Any:
    return manifest("Deployment", "baton-router")["spec"]["template"]


def test_every_file_is_in_the_kustomization() -> None:
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    files = {file.name for file in MANIFESTS.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    assert [map_["files"] for map_ in kustomization["configMapGenerator"]] == [["settings/router.yaml"]]


def test_a_router_ends_before_kubernetes_kills_it() -> None:
    pod = router_pod()["spec"]
    (container,) = pod["containers"]
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    margin = pod["terminationGracePeriodSeconds"] - waits - settings().operation.drain_timeout
    assert margin >= 20


def test_a_worker_loses_its_requests_before_kubernetes_kills_it() -> None:
    (group,) = manifest("RayCluster", "baton")["spec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    (container,) = pod["containers"]
    program, command, *flags = container["lifecycle"]["preStop"]["exec"]["command"]
    timeout_s = make_parser().parse_args(flags).timeout
    assert (program, command) == ("router", "drain-node")
    rays_own_s = 30
    assert pod["terminationGracePeriodSeconds"] - timeout_s - rays_own_s >= 20


def test_ports_of_pods_are_those_that_the_router_listens_on() -> None:
    config, (container,) = settings(), router_pod()["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.frontend.http_port, "grpc": config.frontend.grpc_port}
    assert config.frontend.host == "0.0.0.0"
    assert f"EXPOSE {ports['http']} {ports['grpc']}" in DOCKERFILE


def test_metrics_of_workers_are_reachable_for_prometheus() -> None:
    first, last = map(int, (settings().cluster.worker_ports or "").split("-"))
    rule = manifest("NetworkPolicy", "baton-workers")["spec"]["ingress"][1]["ports"][0]
    assert (rule["port"], rule["endPort"]) == (first, first + (last - first) // 2)


def test_ray_has_the_same_ports_on_every_kind_of_node() -> None:
    (container,) = router_pod()["spec"]["containers"]
    joined = dict(re.findall(r"--([\w-]+-port)=(\d+)", container["args"][0]))
    ray = manifest("RayCluster", "baton")["spec"]
    for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"]):
        given = group["rayStartParams"].items()
        assert {name: value for name, value in given if name.endswith("-port")} == joined
    assert "--num-cpus=0 --num-gpus=0" in container["args"][0]


def test_key_files_are_mounted_where_the_router_reads_them() -> None:
    config, (container,) = settings(), router_pod()["spec"]["containers"]
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    for file in (config.access.api_key_file, config.access.metrics_key_file):
        assert file is not None
        assert Path(file).parent == Path(mounted["keys"])
    assert f"--config {mounted['settings']}/router.yaml" in container["args"][0]
    assert config.model.startswith(mounted["models"] + "/")


def job_of_routers() -> str:
    """Label `job` of the routers' series as the Prometheus operator renders it for a PodMonitor."""
    monitor = manifest("PodMonitor", "baton-router")["spec"]
    labels = router_pod()["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    job: str = labels[monitor["jobLabel"]]
    return job


def test_alerts_for_the_operator_are_those_of_prometheus_and_name_the_job_of_the_routers() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text()
    assert (MANIFESTS / "rules.yaml").read_text() == prometheus_rule(rules)
    operated = manifest("PrometheusRule", "baton")["spec"]
    assert operated == yaml.safe_load(rules)
    expressions = [rule["expr"] for group in operated["groups"] for rule in group["rules"]]
    assert {job for each in expressions for job in re.findall(r'job="([^"]+)"', each)} == {job_of_routers()}


def test_routers_and_workers_have_the_same_cluster_in_prometheus() -> None:
    (endpoint,) = manifest("PodMonitor", "baton-router")["spec"]["podMetricsEndpoints"]
    workers = manifest("ScrapeConfig", "baton-workers")["spec"]["relabelings"]
    routers = [label for label in endpoint["relabelings"] if label["targetLabel"] == "baton_cluster"]
    assert len(routers) == 1
    assert routers == [label for label in workers if label["targetLabel"] == "baton_cluster"]


def test_secrets_are_those_that_the_first_lines_create() -> None:
    created = re.findall(r"create secret generic (\S+)(.*)", (MANIFESTS / "kustomization.yaml").read_text())
    keys = {name: re.findall(r"--from-(?:file|literal)=([\w-]+)", rest) for name, rest in created}
    used = re.findall(r"name: (baton-\w+), key: ([\w-]+)", (MANIFESTS / "monitoring.yaml").read_text())
    used += re.findall(
        r"name: (baton-ray)\n\s+key: (\w+)", "".join(each.read_text() for each in MANIFESTS.glob("*.yaml"))
    )
    assert len(used) >= 4
    assert all(key in keys[name] for name, key in used)


def test_selectors_find_the_pods() -> None:
    ray = manifest("RayCluster", "baton")["spec"]
    groups = (ray["headGroupSpec"], *ray["workerGroupSpecs"])
    pods = [router_pod(), *(group["template"] for group in groups)]
    labels = {pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods}
    assert all(pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "baton" for pod in pods)
    text = "".join(file.read_text() for file in MANIFESTS.glob("*.yaml"))
    assert set(re.findall(r"app\.kubernetes\.io/name: (\S+)", text)) == labels


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_ask_routes_that_need_no_key(probe: str) -> None:
    (container,) = router_pod()["spec"]["containers"]
    assert container[probe]["httpGet"]["path"] in ("/live", "/ready")


def test_the_image_has_every_package_and_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = dict(re.findall(r"^COPY (\w+) (\w+)$", DOCKERFILE, flags=re.MULTILINE))
    assert set(copied) == set(copied.values()) == packages
    (others,) = re.findall(r"^COPY (.*\.toml.*) \./$", DOCKERFILE, flags=re.MULTILINE)
    assert all((ROOT / name).is_file() for name in [*others.split(), "scripts/constraints.txt"])
    extras = re.findall(r'extras="(\w+)', DOCKERFILE)
    assert extras == ["gpu"]
    assert set(extras) <= project["project"]["optional-dependencies"].keys()
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == {*packages, *others.split(), "scripts/constraints.txt"}
