"""The kit: software that distributions do not package, built from its modules and served to the labs of this machine.

A build container builds, packs and signs. The results are stored under a digest of their recipes. A server for all labs
has the packages under https://ADDRESS/SET/…, in their vendors' layout, and the images in a registry at ADDRESS. SET is
a digest of the builds in it, so the URL that a lab uses never changes its content.
"""

import fcntl
import hashlib
import os
import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab import cache, image, kit_build
from clusterctl.lab.kit_build import Say
from clusterctl.lab.kit_recipe import Image, Recipe, fill
from clusterctl.lab.podman import (
    LIMITS,
    LabError,
    container_state,
    podman,
    remove_containers,
    require_programs,
    run_as_root,
    runtime_options,
)

SERVER = "clusterctl-kit"
_REGISTRY = "clusterctl-kit-registry"  # volume
_FILES = image.HERE / "kit_server"
READY_WITHIN = 30.0  # seconds


@dataclass(frozen=True)
class Kit:
    """What a lab needs to use the kit: its address, its certificate authority and the key of its packages."""

    url: str
    address: str
    authority: str  # certificate, PEM
    fingerprint: str  # of the key that signs its packages
    recipes: tuple[Recipe, ...]

    def variables(self) -> dict[str, object]:
        """Return the variables that point roles at the kit. Those of a recipe win over those of recipes like it."""
        known = {"{url}": self.url, "{fingerprint}": self.fingerprint}
        found: dict[str, object] = {}
        for recipe in sorted(self.recipes, key=lambda recipe: recipe.like is None):
            found |= fill(recipe.variables, known)
        if mirrors := self.mirrors():
            found["containers_registry_mirrors"] = mirrors
        return found

    def mirrors(self) -> dict[str, str]:
        """Return the URL below which the kit has images of each registry."""
        registries = {made.registry for recipe in self.recipes for made in recipe.images if made.registry}
        return {registry: f"https://{self.address}/{registry}" for registry in sorted(registries)}

    def places(self, recipe: Recipe) -> list[str]:
        """Return the URLs of a recipe's packages and the references of its images."""
        urls = [f"{self.url}/{repository}" for repository in recipe.repositories]
        return [*urls, *(f"{self.address}/{made.name}:{made.tag}" for made in recipe.images)]


@dataclass(frozen=True)
class Build:
    """The results of recipes on this machine's disk, before they are served."""

    recipes: tuple[Recipe, ...]
    results: Mapping[str, Path]  # recipe -> directory
    builder: str  # the image of the build container and of the server


def build(recipes: Sequence[Recipe], say: Say, mirror: str = image.DEBIAN_MIRROR) -> Build:
    """Build missing recipes; call `say` with each step. This may take minutes: do not hold the labs' lock."""
    require_programs()
    with _locked(say):
        _remove_hidden(kit_build.directory("built"))
        builder = kit_build.ensure_builder(mirror, say)
        results = {recipe.name: kit_build.ensure_built(recipe, builder, mirror, say) for recipe in recipes}
    return Build(tuple(recipes), results, builder)


def serve(build: Build, say: Say) -> Kit:
    """Serve a build; return the Kit for labs. The caller holds the labs' lock, because `down` removes the server."""
    _remove_hidden(kit_build.directory("served"))
    address = cache.shared_address(-4)
    private = _private(build.builder, address)
    fingerprint = (private / "gnupg" / "fingerprint").read_text().strip()
    builds = sorted(path.name for path in build.results.values())
    name = hashlib.sha256("".join((fingerprint, *builds)).encode()).hexdigest()[:12]
    _publish(name, build, private)
    _serve(build.builder, address, private)
    for recipe in build.recipes:
        for made in recipe.images:
            _push(made, build.results[recipe.name], address, private, say)
    authority = (private / "tls" / "trust" / "ca.crt").read_text()
    return Kit(f"https://{address}/{name}", address, authority, fingerprint, build.recipes)


def _remove_hidden(directory: Path) -> None:
    """Remove the unfinished directories of a killed run."""
    for half in directory.glob(".*"):
        shutil.rmtree(half, ignore_errors=True)


def remove() -> None:
    """Remove the kit's server; the builds stay on disk."""
    remove_containers(SERVER)


@contextmanager
def _locked(say: Say) -> Iterator[None]:
    with (kit_build.directory() / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("wait for another build of the kit")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _private(builder: str, address: str) -> Path:
    """Return the directory of the kit's keys; make them unless they exist. They never leave this machine."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    path = Path(base) / "clusterctl" / "kit"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    _run(builder, path, "/files/make-keys", address, kit_build.owner())
    return path


def _run(builder: str, private: Path, *argv: str) -> None:
    podman(
        *runtime_options(), "run", "--rm", "--network", "none", *LIMITS, "--volume", f"{_FILES}:/files:ro",
        "--volume", f"{private}:/private", "--volume", f"{kit_build.directory('served')}:/served", builder, *argv,
    )  # fmt: skip


def _publish(name: str, build: Build, private: Path) -> None:
    """Copy the packages into their vendors' layout and sign them, once for each set of builds and each key."""
    served = kit_build.directory("served")
    finished = served / name
    if not finished.is_dir():
        stage = Path(tempfile.mkdtemp(prefix=".", dir=served))
        try:
            for recipe in build.recipes:
                for repository in recipe.repositories:
                    folder = stage / repository
                    folder.mkdir(parents=True, exist_ok=True)
                    for package in build.results[recipe.name].glob("*.deb"):
                        shutil.copy(package, folder)
                    (folder / "KEY").write_text(fill(recipe.repository_key, {"{repository}": repository}))
                    if recipe.suite:
                        (folder / "SUITE").write_text(f"{recipe.suite}\n")
            stage.chmod(0o755)
            _run(build.builder, private, "/files/publish", f"/served/{stage.name}", kit_build.owner())
            stage.rename(finished)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    kit_build.forget(finished, "[!.]*")


def _serve(builder: str, address: str, private: Path) -> None:
    """Start the server unless it already runs with these files."""
    digest = hashlib.sha256(builder.encode() + (private / "tls" / "server.crt").read_bytes())
    for path in sorted(_FILES.iterdir()):
        digest.update(path.read_bytes())
    label = f"clusterctl.kit={digest.hexdigest()[:12]}"
    same = run_as_root(["podman", "ps", "--quiet", "--filter", f"name=^{SERVER}$", "--filter", f"label={label}"]).stdout
    if not same or container_state(SERVER) != "running":
        remove_containers(SERVER)
        script = "docker-registry serve /files/registry.yml & exec nginx -c /files/nginx.conf"
        podman(
            *runtime_options(), "run", "--detach", "--name", SERVER, "--label", label,
            "--network", f"{cache.NETWORK}:ip={address}", *LIMITS, "--volume", f"{_FILES}:/files:ro",
            "--volume", f"{private / 'tls'}:/private/tls:ro", "--volume", f"{kit_build.directory('served')}:/served:ro",
            "--volume", f"{_REGISTRY}:/registry", builder, "sh", "-c", script,
        )  # fmt: skip
    deadline = time.monotonic() + READY_WITHIN
    while not _answers(address, private, ""):
        if time.monotonic() > deadline:
            last = run_as_root(["podman", "logs", "--tail", "5", SERVER]).stderr.strip()
            raise LabError(f"the kit's server does not answer at {address}:\n  {last}")
        time.sleep(0.2)


def _answers(address: str, private: Path, path: str) -> bool:
    """Return whether the registry answers for this path."""
    context = ssl.create_default_context(cafile=str(private / "tls" / "trust" / "ca.crt"))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    request = urllib.request.Request(f"https://{address}/v2/{path}", headers=accept, method="HEAD")
    with suppress(OSError, urllib.error.URLError):
        opener.open(request, timeout=5).close()
        return True
    return False


def _push(made: Image, result: Path, address: str, private: Path, say: Say) -> None:
    """Push an image to the registry, tagged as its vendor's and with this build."""
    build = f"{made.tag}-{result.name.rsplit('-', 1)[-1]}"
    if _answers(address, private, f"{made.name}/manifests/{build}"):
        return
    say(f"{made.name}:{made.tag}: push to the registry")
    local = f"{kit_build.REPOSITORY}-image:{build}"
    try:
        changes = [option for change in made.changes() for option in ("--change", change)]
        podman("import", "--quiet", *changes, str(result / made.archive), local)
        for tag in (made.tag, build):
            target = f"docker://{address}/{made.name}:{tag}"
            podman("push", "--quiet", "--cert-dir", str(private / "tls" / "trust"), "--format", "oci", local, target)
    finally:
        run_as_root(["podman", "rmi", local], check=False)
