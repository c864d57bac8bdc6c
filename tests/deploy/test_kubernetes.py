"""The manifests are valid, and say the same thing where they speak of the same thing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.settings import load as settings

ROOT = Path(__file__).parents[2]
KUSTOMIZATIONS = ("k8s/base", "k8s/overlays/cpu", "k8s/overlays/gpu")
SIZE = re.compile(r"^(?P<number>\d+)(?P<unit>m|Ki|Mi|Gi|)$")
UNITS = {"m": 1e-3, "": 1.0, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


def tool(name: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a tool that the environment has installed beside this interpreter."""
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, **options)


def built(kustomization: str) -> str:
    """All manifests of a folder as kustomize makes them."""
    done = tool("kubectl", "kustomize", kustomization)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def workloads(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Deployments and StatefulSets by name."""
    return {
        document["metadata"]["name"]: document
        for document in manifests
        if document["kind"] in {"Deployment", "StatefulSet"}
    }


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return only


@pytest.fixture(scope="module", params=KUSTOMIZATIONS)
def text(request: pytest.FixtureRequest) -> str:
    return built(request.param)


@pytest.fixture
def manifests(text: str) -> list[dict[str, Any]]:
    return documents(text)


def amount(quantity: str) -> float:
    match = SIZE.match(str(quantity))
    assert match, quantity
    return int(match["number"]) * UNITS[match["unit"]]


def template(workload: dict[str, Any]) -> dict[str, Any]:
    return workload["spec"]["template"]


def test_manifests_pass_strict_validation(text: str, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(text)
    done = tool("kubernetes-validate", "--strict", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_secret_template_is_valid_and_has_the_key_that_the_gateway_reads() -> None:
    path = ROOT / "k8s" / "secret.example.yaml"
    assert tool("kubernetes-validate", "--strict", str(path)).returncode == 0
    (secret,) = documents(path.read_text())
    gateway = container(workloads(documents(built("k8s/base")))["gateway"])
    (reference,) = [e["valueFrom"]["secretKeyRef"] for e in gateway["env"] if "valueFrom" in e]
    assert secret["metadata"]["name"] == reference["name"]
    assert reference["key"] in secret["stringData"]


def test_selectors_choose_exactly_the_pods_they_mean(manifests: list[dict[str, Any]]) -> None:
    pods = {name: template(work)["metadata"]["labels"] for name, work in workloads(manifests).items()}
    for name, work in workloads(manifests).items():
        assert work["spec"]["selector"]["matchLabels"].items() <= pods[name].items(), name
    chosen: list[tuple[str, dict[str, str]]] = []
    for document in manifests:
        name, spec = document["metadata"]["name"], document.get("spec", {})
        if document["kind"] == "Service":
            chosen.append((name, spec["selector"]))
        elif document["kind"] == "PodDisruptionBudget":
            chosen.append((name, spec["selector"]["matchLabels"]))
        elif document["kind"] == "NetworkPolicy" and spec["podSelector"]:
            chosen.append((name, spec["podSelector"]["matchLabels"]))
            for rule in spec["ingress"]:
                for source in rule.get("from", []):
                    labels = source["podSelector"]["matchLabels"]
                    assert any(labels.items() <= known.items() for known in pods.values()), (name, labels)
    for name, selector in chosen:
        assert [pod for pod, labels in pods.items() if selector.items() <= labels.items()] == [name]


def test_ports_of_services_policies_and_settings_agree(manifests: list[dict[str, Any]], tmp_path: Path) -> None:
    known = load(manifests, tmp_path)
    for document in manifests:
        if document["kind"] != "Service":
            continue
        name = document["metadata"]["name"]
        (port,) = document["spec"]["ports"]
        (exposed,) = container(workloads(manifests)[name])["ports"]
        assert port["targetPort"] == exposed["name"]
        assert port["port"] == exposed["containerPort"]
        if name != "redis":
            assert getattr(known, name).port == port["port"]
            assert getattr(known, name).host == "0.0.0.0"
        if name not in {"redis", "gateway"}:
            assert known.service_url(name) == f"http://{name}:{port['port']}"
        (policy,) = [d for d in manifests if d["kind"] == "NetworkPolicy" and d["metadata"]["name"] == name]
        assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": port["port"]}]
    assert known.redis_url == "redis://redis:6379/0"


def load(manifests: list[dict[str, Any]], tmp_path: Path) -> settings.Settings:
    (config,) = [d for d in manifests if d["kind"] == "ConfigMap"]
    file = tmp_path / "tessera.toml"
    file.write_text(config["data"]["tessera.toml"])
    return settings.load(file, environment={})


def test_every_environment_variable_is_a_setting(manifests: list[dict[str, Any]], tmp_path: Path) -> None:
    load(manifests, tmp_path)
    for name, work in workloads(manifests).items():
        environment = {e["name"]: e.get("value", "a-key") for e in container(work).get("env", [])}
        environment.pop("TESSERA_CONFIG", None)
        settings.load(tmp_path / "tessera.toml", environment=environment)
        assert template(work)["spec"]["enableServiceLinks"] is False, name


def test_volumes_and_claims_exist_and_writable_paths_are_mounted(manifests: list[dict[str, Any]]) -> None:
    claims = {d["metadata"]["name"]: d for d in manifests if d["kind"] == "PersistentVolumeClaim"}
    maps = {d["metadata"]["name"] for d in manifests if d["kind"] == "ConfigMap"}
    for name, work in workloads(manifests).items():
        spec = template(work)["spec"]
        own = {claim["metadata"]["name"] for claim in work["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        mounted = {mount["name"]: mount["mountPath"] for mount in container(work)["volumeMounts"]}
        assert set(mounted) == set(volumes) | own, name
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                claim = claims[volume["persistentVolumeClaim"]["claimName"]]
                assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
        if name in {"text", "vision", "speech", "speech-worker", "video-worker"}:
            assert mounted["models"] == "/var/lib/tessera/models"
        if name in {"gateway", "response-worker", "video", "video-worker", "speech", "speech-worker"}:
            assert mounted["data"] == "/var/lib/tessera/data"


def test_requests_never_exceed_limits_and_memory_is_always_limited(manifests: list[dict[str, Any]]) -> None:
    for name, work in workloads(manifests).items():
        resources = container(work)["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys(), name
        assert "memory" in resources["limits"], name
        for kind, limit in resources["limits"].items():
            assert amount(resources["requests"].get(kind, "0")) <= amount(limit), (name, kind)


def test_pods_run_without_privileges_and_images_have_tags(manifests: list[dict[str, Any]]) -> None:
    for name, work in workloads(manifests).items():
        spec, only = template(work)["spec"], container(work)
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["automountServiceAccountToken"] is False, name
        assert only["securityContext"]["readOnlyRootFilesystem"] is True, name
        assert only["securityContext"]["allowPrivilegeEscalation"] is False, name
        assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
        repository, _, tag = only["image"].rpartition(":")
        assert repository, name
        assert tag != "latest", name


def test_every_server_has_probes_on_its_own_port(manifests: list[dict[str, Any]]) -> None:
    for name, work in workloads(manifests).items():
        only = container(work)
        if "ports" not in only:
            assert name in {"video-worker", "speech-worker", "response-worker"}
            continue
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = only[probe].get("httpGet")
            if name != "redis":
                assert asked["port"] == only["ports"][0]["name"], (name, probe)
        if name not in {"gateway", "redis"}:
            assert only["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_the_autoscaled_gateway_has_no_replica_count_of_its_own(manifests: list[dict[str, Any]]) -> None:
    (scaler,) = [d for d in manifests if d["kind"] == "HorizontalPodAutoscaler"]
    target = workloads(manifests)[scaler["spec"]["scaleTargetRef"]["name"]]
    assert "replicas" not in target["spec"]


def test_the_gpu_overlay_gives_every_engine_one_gpu_and_nothing_else_any() -> None:
    for name, work in workloads(documents(built("k8s/overlays/gpu"))).items():
        wanted = "1" if name in {"text", "vision", "video-worker", "speech"} else None
        assert container(work)["resources"]["limits"].get("nvidia.com/gpu") == wanted, name


def test_commands_name_modules_that_exist(manifests: list[dict[str, Any]]) -> None:
    for name, work in workloads(manifests).items():
        if name != "redis":
            module = container(work)["command"][-1]
            assert importlib.util.find_spec(module) is not None, module


def test_a_pod_has_more_time_to_end_than_its_server_takes_to_drain(manifests: list[dict[str, Any]]) -> None:
    http = settings.load(ROOT / "k8s/base/tessera.toml", environment={}).http
    assert http.unready_s > 0, "endpoints are taken away after the pod was told to stop"
    for name in ("gateway", "text", "vision", "video", "speech"):
        grace = template(workloads(manifests)[name])["spec"]["terminationGracePeriodSeconds"]
        assert grace >= http.unready_s + http.drain_s + 10, name
