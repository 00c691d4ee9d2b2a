"""The kit: software that distributions do not package, built from its modules and served to the labs of this machine.

A build container builds, packs and signs. The results are stored under a digest of their recipes. A server for all labs
has the packages under https://ADDRESS/SET/…, in their vendors' layout, and the images in a registry at ADDRESS. SET is
a digest of the builds in it, so the URL that a lab uses never changes its content.
"""

import fcntl
import functools
import hashlib
import json
import os
import shlex
import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab import cache, image
from clusterctl.lab.kit_recipe import Go, Package, Recipe
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
_REPOSITORY = "localhost/clusterctl-kit"
_MODULES, _REGISTRY = "clusterctl-kit-go", "clusterctl-kit-registry"  # volumes
# Debian testing: the modules require a Go version that no stable release has.
_SUITE = "forky"
_PACKAGES = (
    "apt-utils", "ca-certificates", "docker-registry", "gcc", "gnupg", "golang-go", "libc6-dev", "nginx", "openssl",
)  # fmt: skip
# Testing's index may have an expired date between two releases. Its signature is still checked.
_APT = 'Acquire::Check-Valid-Until "false"'
_FILES = image.HERE / "kit_server"
_EPOCH = "1767225600"  # of every file in a package, so that builds are reproducible
_KEPT = 8  # builds of a recipe, and published sets, that are kept
READY_WITHIN = 30.0  # seconds

Say = Callable[[str], None]


@dataclass(frozen=True)
class Kit:
    """What a lab needs to use the kit: its address, its certificate authority and the key of its packages."""

    url: str
    address: str
    authority: str  # certificate, PEM
    fingerprint: str  # of the key that signs its packages
    recipes: tuple[Recipe, ...]

    def variables(self) -> dict[str, object]:
        """Return the variables that point roles at the kit."""
        known = {"{url}": self.url, "{fingerprint}": self.fingerprint}
        text = json.dumps({name: value for recipe in self.recipes for name, value in recipe.variables.items()})
        return dict(json.loads(fill(text, known)))

    def place(self, recipe: Recipe) -> str:
        """Return the URL of a recipe's packages, or the reference of its image."""
        if recipe.image:
            return f"{self.address}/{recipe.image.name}:{recipe.version}"
        return f"{self.url}/{fill(recipe.repository, {'{architecture}': architecture()})}"


def fill(text: str, known: dict[str, str]) -> str:
    """Replace the placeholders of a recipe with their values."""
    for name, value in known.items():
        text = text.replace(name, value)
    return text


@functools.cache
def architecture() -> str:
    """Debian's name of this machine's architecture."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


@dataclass(frozen=True)
class Build:
    """The results of recipes on this machine's disk, before they are served."""

    recipes: tuple[Recipe, ...]
    results: Mapping[str, Path]  # recipe -> directory
    builder: str  # the image of the build container and of the server


def build(recipes: Sequence[Recipe], say: Say, mirror: str = image.DEBIAN_MIRROR) -> Build:
    """Build missing recipes; call `say` with each step. This may take minutes: do not hold the labs' lock."""
    require_programs()
    with _locked():
        _remove_hidden(_directory("built"))
        builder = _builder(mirror, say)
        results = {recipe.name: _ensure_built(recipe, builder, mirror, say) for recipe in recipes}
    return Build(tuple(recipes), results, builder)


def serve(build: Build, say: Say) -> Kit:
    """Serve a build; return the Kit for labs. The caller holds the labs' lock, because `down` removes the server."""
    _remove_hidden(_directory("served"))
    address = cache.shared_address(-4)
    private = _private(build.builder, address)
    fingerprint = (private / "gnupg" / "fingerprint").read_text().strip()
    builds = sorted(path.name for path in build.results.values())
    name = hashlib.sha256("".join((fingerprint, *builds)).encode()).hexdigest()[:12]
    _publish(name, build, private)
    _serve(build.builder, address, private)
    for recipe in build.recipes:
        _push(recipe, build.results[recipe.name], address, private, say)
    authority = (private / "tls" / "trust" / "ca.crt").read_text()
    return Kit(f"https://{address}/{name}", address, authority, fingerprint, build.recipes)


def _remove_hidden(directory: Path) -> None:
    """Remove the unfinished directories of a killed run."""
    for half in directory.glob(".*"):
        shutil.rmtree(half, ignore_errors=True)


def remove() -> None:
    """Remove the kit's server; the builds stay on disk."""
    remove_containers(SERVER)


def _directory(*parts: str) -> Path:
    path = cache.directory("kit").joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def _locked() -> Iterator[None]:
    with (_directory() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _forget(used: Path, pattern: str) -> None:
    """Mark `used` as used now, and remove the least recently used directories beside it."""
    os.utime(used)
    by_age = sorted(used.parent.glob(pattern), key=lambda path: path.stat().st_mtime)
    for old in by_age[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _owner() -> str:
    return f"{os.getuid()}:{os.getgid()}"


# --- building -------------------------------------------------------------------------------------------------------


def _builder(mirror: str, say: Say) -> str:
    """Return the image of the build container and server; build it unless it exists."""
    digest = hashlib.sha256(repr((_SUITE, _PACKAGES, mirror)).encode()).hexdigest()[:12]
    name = f"{_REPOSITORY}:{digest}"
    if run_as_root(["podman", "image", "exists", name], check=False).returncode != 0:
        say(f"the build container: Debian {_SUITE} with Go")
        with image.scratch() as folder:
            options = (f"--include={','.join(_PACKAGES)}", f"--aptopt={_APT}")
            image.debian_root(folder / "root.tar", _SUITE, mirror, *options)
            podman("import", "--quiet", str(folder / "root.tar"), name)
        image.prune(f"{_REPOSITORY}:*", keep=name)
    return name


def _ensure_built(recipe: Recipe, builder: str, mirror: str, say: Say) -> Path:
    """Return the directory with a recipe's results; build it if missing. It is renamed into place when complete."""
    finished = _directory("built") / f"{recipe.name}-{recipe.digest(builder)}"
    if finished.is_dir():
        _forget(finished, f"{recipe.name}-????????????")
        return finished
    stage = Path(tempfile.mkdtemp(prefix=".", dir=finished.parent))
    try:
        if recipe.image:
            say(f"{recipe.name} {recipe.version}: Debian {recipe.image.suite}")
            image.debian_root(stage / "root.tar", recipe.image.suite, mirror)
        if recipe.packages:
            with _build_container(builder, recipe, stage) as run:
                run("mkdir /work && ln -s /recipe /work/recipe")
                if recipe.go:
                    _build(recipe, recipe.go, run, say)
                say(f"{recipe.name} {recipe.version}: pack {len(recipe.packages)} packages")
                for name, package in recipe.packages.items():
                    run(_pack(recipe, name, package))
        stage.chmod(0o755)
        stage.rename(finished)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return finished


Run = Callable[[str], str]


@contextmanager
def _build_container(builder: str, recipe: Recipe, stage: Path) -> Iterator[Run]:
    """Start a container for one build; yield a function that runs a shell script in it."""
    name = f"{SERVER}-build-{hashlib.sha256(bytes(_directory())).hexdigest()[:6]}"
    remove_containers(name)  # of a build that was killed
    proxies = os.environ.get("GOPROXY", "https://proxy.golang.org")
    settings = {
        "GOPROXY": proxies, "GOSUMDB": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -trimpath",
        "GOMODCACHE": "/go/modules", "GOCACHE": "/go/cache", "CGO_ENABLED": "1", "SOURCE_DATE_EPOCH": _EPOCH,
        "CGO_CFLAGS": "-O2 -g -Wno-deprecated-declarations",
    }  # fmt: skip
    try:
        podman(
            *runtime_options(), "run", "--detach", "--name", name, "--network", cache.NETWORK, *LIMITS,
            *(f"--env={key}={value}" for key, value in settings.items()),
            "--volume", f"{recipe.directory}:/recipe:ro", "--volume", f"{stage}:/made", "--volume", f"{_MODULES}:/go",
            builder, "sleep", "infinity",
        )  # fmt: skip

        def run(script: str) -> str:
            return podman("exec", "--interactive", name, "sh", "-eu", stdin=script)

        # The container must trust the CA of a company's proxy as this machine does.
        trust = ("sh", "-c", "cat >> /etc/ssl/certs/ca-certificates.crt")
        podman("exec", "--interactive", name, *trust, stdin="".join(image.extra_certificates()))
        yield run
        run(f"chown -R {_owner()} /made")
    finally:
        remove_containers(name)


def _build(recipe: Recipe, go: Go, run: Run, say: Say) -> None:
    """Fetch and build the modules. Go checks their hashes against the recipe's go.sum."""
    what = f"{recipe.name} {recipe.version}"
    programs = " ".join(shlex.quote(f"{go.module}/{program}") for program in go.programs)
    try:
        say(f"{what}: fetch its modules")
        run("cp /recipe/go.mod /recipe/go.sum /work")
        # For a wrong hash, the first lines of Go's output have the cause.
        run("cd /work && go mod download 2> errors || { grep . errors | head -n 5 >&2; exit 1; }")
        say(f"{what}: build {len(go.programs)} programs")
        run(f"cd /work && go build -ldflags {shlex.quote(go.ldflags)} -o bin/ {programs}")
        run(f'cd /work && ln -s "$(go list -m -f {{{{.Dir}}}} {shlex.quote(go.module)})" source')
    except LabError as error:
        if "checksum mismatch" in str(error):
            pinned = recipe.directory / "go.sum"
            raise LabError(
                f"{recipe.name}: a module does not match its hash in {pinned}; nothing was built:\n  {error}"
            ) from None
        raise


def _pack(recipe: Recipe, name: str, package: Package) -> str:
    """Return the script that makes a Debian package in /made."""
    known = {"{version}": package.version or recipe.version, "{architecture}": architecture()}
    control = fill(f"Package: {name}\nVersion: {{version}}\nArchitecture: {{architecture}}\n{package.control}", known)
    tree = f"/work/{name}"
    lines = ["cd /work"]
    for path, origin in package.files.items():
        mode = "0755" if path.startswith("/usr/bin/") else "0644"
        lines.append(f"install -D -m {mode} {shlex.quote(origin)} {shlex.quote(tree + path)}")
    lines.append(f"mkdir -p {tree}/DEBIAN && cat > {tree}/DEBIAN/control <<'END'\n{control.rstrip()}\nEND")
    if kept := [path for path in package.files if path.startswith("/etc/")]:
        lines.append(f"printf '%s\\n' {shlex.join(kept)} > {tree}/DEBIAN/conffiles")
    for script in ("postinst", "postrm"):
        if origin := getattr(package, script):
            lines.append(f"install -m 0755 {shlex.quote(origin)} {tree}/DEBIAN/{script}")
    lines.append(f"dpkg-deb --root-owner-group --build {tree} /made")
    return "\n".join(lines) + "\n"


# --- serving --------------------------------------------------------------------------------------------------------


def _private(builder: str, address: str) -> Path:
    """Return the directory of the kit's keys; make them unless they exist. They never leave this machine."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    path = Path(base) / "clusterctl" / "kit"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    _run(builder, path, "/files/make-keys", address, _owner())
    return path


def _run(builder: str, private: Path, *argv: str) -> None:
    podman(
        *runtime_options(), "run", "--rm", "--network", "none", *LIMITS, "--volume", f"{_FILES}:/files:ro",
        "--volume", f"{private}:/private", "--volume", f"{_directory('served')}:/served", builder, *argv,
    )  # fmt: skip


def _publish(name: str, build: Build, private: Path) -> None:
    """Copy the packages into their vendors' layout and sign them, once for each set of builds and each key."""
    served = _directory("served")
    finished = served / name
    if not finished.is_dir():
        stage = Path(tempfile.mkdtemp(prefix=".", dir=served))
        try:
            for recipe in (recipe for recipe in build.recipes if recipe.packages):
                folder = stage / fill(recipe.repository, {"{architecture}": architecture()})
                folder.mkdir(parents=True, exist_ok=True)
                for package in build.results[recipe.name].glob("*.deb"):
                    shutil.copy(package, folder)
                (folder / "KEY").write_text(recipe.repository_key)
            stage.chmod(0o755)
            _run(build.builder, private, "/files/publish", f"/served/{stage.name}", _owner())
            stage.rename(finished)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    _forget(finished, "[!.]*")


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
            "--volume", f"{private / 'tls'}:/private/tls:ro", "--volume", f"{_directory('served')}:/served:ro",
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


def _push(recipe: Recipe, made: Path, address: str, private: Path, say: Say) -> None:
    """Push a recipe's image to the registry, tagged with its version and with this build."""
    if not recipe.image:
        return
    build = f"{recipe.version}-{made.name.rsplit('-', 1)[-1]}"
    if _answers(address, private, f"{recipe.image.name}/manifests/{build}"):
        return
    say(f"{recipe.name} {recipe.version}: push to the registry")
    local = f"{_REPOSITORY}-image:{build}"
    try:
        podman("import", "--quiet", str(made / "root.tar"), local)
        for tag in (recipe.version, build):
            target = f"docker://{address}/{recipe.image.name}:{tag}"
            podman("push", "--quiet", "--cert-dir", str(private / "tls" / "trust"), "--format", "oci", local, target)
    finally:
        run_as_root(["podman", "rmi", local], check=False)
