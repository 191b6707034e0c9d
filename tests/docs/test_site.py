"""The documentation site builds without a warning, and its generated pages are what the program says."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from commands_reference import commands_reference
from conftest import BROWSER_LIMIT_MS, REPOSITORY
from processes import run_to_end

MANIFEST = REPOSITORY / "examples" / "kubernetes" / "pytorchjob.yaml"


@pytest.fixture(scope="module")
def site(environ, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dead link, a missing anchor, or a page that no menu leads to is an error (mkdocs.yml)."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = run_to_end(command, environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    page = (site / "index.html").read_text()
    outside = re.findall(r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))"', page)
    assert not outside, "the site must open without the network"


def test_the_pages_open_as_files_and_can_be_searched(browser, site: Path) -> None:
    """From the disk, in a browser that may not use the network: links lead to pages, and a word is found in another."""
    context = browser.new_context(offline=True)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    page.goto((site / "index.html").as_uri())
    page.get_by_role("link", name="Concepts", exact=True).first.click()
    page.wait_for_url("**/site/concepts.html")
    page.get_by_role("textbox", name="Search").press_sequentially("preemption")
    found = page.locator(".md-search-result__link").first
    found.wait_for(timeout=BROWSER_LIMIT_MS)
    found.click()
    page.wait_for_url("**/site/slurm.html*")
    context.close()
    assert not complaints


def test_the_reference_of_commands_is_what_they_say() -> None:
    assert (REPOSITORY / "docs" / "commands.md").read_text() == commands_reference(), "run `make docs`"


def pods() -> list[dict[str, str]]:
    """Returns the environment that Kubeflow's training operator gives to each pod of the manifest.

    Source: the operator's documentation of PyTorchJob: MASTER_ADDR and MASTER_PORT name the master's service,
    WORLD_SIZE counts the pods, RANK is 0 for the master and from 1 on for the workers.
    """
    job = yaml.safe_load(MANIFEST.read_text())
    replicas = job["spec"]["pytorchReplicaSpecs"]
    count = sum(spec["replicas"] for spec in replicas.values())
    shared = {"MASTER_ADDR": f"{job['metadata']['name']}-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": str(count)}
    return [{**shared, "RANK": str(rank)} for rank in range(count)]


@pytest.mark.parametrize("rank", range(4))
def test_each_pod_of_the_manifest_is_one_rank(noether, rank: int) -> None:
    container = yaml.safe_load(MANIFEST.read_text())["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    verb, *arguments = container["containers"][0]["args"]
    assert verb == "train"
    plan = json.loads(noether("plan", "--json", "--visible-devices", "0", *arguments, **pods()[rank], code=0).out)
    assert plan["world_size"] == 4
    assert [worker["rank"] for worker in plan["workers"]] == [rank]
    assert plan["endpoint"]["host"] == "cars-master-0"
