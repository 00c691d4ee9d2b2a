"""Build recipes of the kit: Debian's trees on this machine, everything else in a build container."""

import hashlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from clusterctl.lab import cache, image, kit_pack
from clusterctl.lab.kit_recipe import Go, Image, Recipe
from clusterctl.lab.podman import LIMITS, LabError, podman, remove_containers, run_as_root, runtime_options

REPOSITORY = "localhost/clusterctl-kit"
_CONTAINER = "clusterctl-kit-build"
_MODULES = "clusterctl-kit-go"  # volume
# Debian testing: the modules require a Go version that no stable release has.
_SUITE = "forky"
_PACKAGES = (
    "apt-utils", "ca-certificates", "docker-registry", "gcc", "gnupg", "golang-go", "libc6-dev", "nginx", "openssl",
)  # fmt: skip
# Testing's index may have an expired date between two releases. Its signature is still checked.
_APT = '--aptopt=Acquire::Check-Valid-Until "false"'
_KEPT = 8  # builds of a recipe, and published sets, that are kept

Say = Callable[[str], None]
Run = Callable[[str], str]


def directory(*parts: str) -> Path:
    """Return a directory of the kit on this machine; make it unless it exists."""
    path = cache.directory("kit").joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def forget(used: Path, pattern: str) -> None:
    """Mark `used` as used now, and remove the least recently used directories beside it."""
    os.utime(used)
    by_age = sorted(used.parent.glob(pattern), key=lambda path: path.stat().st_mtime)
    for old in by_age[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def owner() -> str:
    """Return the user and group that results belong to, for chown."""
    return f"{os.getuid()}:{os.getgid()}"


def ensure_builder(mirror: str, say: Say) -> str:
    """Return the image of the build container and server; build it unless it exists."""
    digest = hashlib.sha256(repr((_SUITE, _PACKAGES, mirror)).encode()).hexdigest()[:12]
    name = f"{REPOSITORY}:{digest}"
    if run_as_root(["podman", "image", "exists", name], check=False).returncode != 0:
        say(f"the build container: Debian {_SUITE} with Go")
        with image.scratch() as folder:
            image.debian_root(folder / "root.tar", _SUITE, mirror, f"--include={','.join(_PACKAGES)}", _APT)
            podman("import", "--quiet", str(folder / "root.tar"), name)
        image.prune(f"{REPOSITORY}:*", keep=name)
    return name


def ensure_built(recipe: Recipe, builder: str, mirror: str, say: Say) -> Path:
    """Return the directory with a recipe's results; build it if missing. It is renamed into place when complete."""
    finished = directory("built") / f"{recipe.name}-{recipe.digest(builder)}"
    if finished.is_dir():
        forget(finished, f"{recipe.name}-????????????")
        return finished
    stage = Path(tempfile.mkdtemp(prefix=".", dir=finished.parent))
    try:
        for made in recipe.images:
            _unpack_debian(recipe, made, stage, mirror, say)
        if recipe.is_compiled:
            with _build_container(builder, recipe, stage) as run:
                _build_and_pack(recipe, run, say)
        stage.chmod(0o755)
        stage.rename(finished)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return finished


def _unpack_debian(recipe: Recipe, made: Image, stage: Path, mirror: str, say: Say) -> None:
    """Make the archive of a minimal Debian, or of the Debian packages that an image has."""
    suite = made.suite or _SUITE
    if made.is_system:
        say(f"{recipe.name} {recipe.version}: Debian {suite}")
        image.debian_root(stage / made.archive, suite, mirror)
    elif made.packages:
        say(f"{recipe.name} {recipe.version}: Debian packages of {made.name}")
        include = f"--include={','.join(made.packages)}"
        archive = stage / kit_pack.packages_archive(made)
        image.debian_root(archive, suite, mirror, include, _APT, variant="extract")


@contextmanager
def _build_container(builder: str, recipe: Recipe, stage: Path) -> Iterator[Run]:
    """Start a container for one build; yield a function that runs a shell script in it."""
    name = f"{_CONTAINER}-{hashlib.sha256(bytes(directory())).hexdigest()[:6]}"
    remove_containers(name)  # of a build that was killed
    proxies = os.environ.get("GOPROXY", "https://proxy.golang.org")
    settings = {
        "GOPROXY": proxies, "GOSUMDB": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -trimpath",
        "GOMODCACHE": "/go/modules", "GOCACHE": "/go/cache", "SOURCE_DATE_EPOCH": kit_pack.EPOCH,
        "CGO_CFLAGS": "-O2 -g -Wno-deprecated-declarations",
    }  # fmt: skip
    volumes = [f"--volume={path}:/recipe{number}:ro" for number, path in enumerate(recipe.directories)]
    try:
        podman(
            *runtime_options(), "run", "--detach", "--name", name, "--network", cache.NETWORK, *LIMITS,
            *(f"--env={key}={value}" for key, value in settings.items()), *volumes,
            "--volume", f"{stage}:/made", "--volume", f"{_MODULES}:/go", builder, "sleep", "infinity",
        )  # fmt: skip

        def run(script: str) -> str:
            return podman("exec", "--interactive", name, "sh", "-eu", stdin=script)

        # The container must trust the CA of a company's proxy as this machine does.
        trust = ("sh", "-c", "cat >> /etc/ssl/certs/ca-certificates.crt")
        podman("exec", "--interactive", name, *trust, stdin="".join(image.extra_certificates()))
        yield run
        run(f"chown -R {owner()} /made")
    finally:
        remove_containers(name)


def _build_and_pack(recipe: Recipe, run: Run, say: Say) -> None:
    what = f"{recipe.name} {recipe.version}"
    sources = " ".join(f"/recipe{number}/." for number, _ in enumerate(recipe.directories))
    run(f"mkdir -p /work/recipe /work/bin && cp -r {sources} /work/recipe")
    if recipe.tools:
        say(f"{what}: install {', '.join(recipe.tools)}")
        run(tools_script(recipe.tools))
    if recipe.maven:
        _fetch_maven(recipe, run, say)
    if recipe.go:
        _build_go(recipe, recipe.go, run, say)
    for program, arguments in recipe.c.items():
        run(f"cd /work && gcc -Os -Wall -static -s -o bin/{program} {arguments}")
    trees = [made for made in recipe.images if not made.is_system]
    say(f"{what}: pack {len(recipe.packages)} packages and {len(trees)} images")
    for name, package in recipe.packages.items():
        run(kit_pack.package_script(name, package))
    for made in trees:
        run(kit_pack.image_script(made))


def tools_script(tools: Sequence[str]) -> str:
    """Return the script that installs Debian packages in the build container."""
    options = "-o Acquire::Check-Valid-Until=false -q"
    return (
        "mkdir -p /usr/share/man/man1\n"  # Java's packages fail without it
        f"apt-get {options} update > /dev/null\nDEBIAN_FRONTEND=noninteractive apt-get {options} install --yes "
        f"--no-install-recommends {shlex.join(tools)} > /dev/null\n"
    )


# Java reads the certificates that the container trusts from a store of its own format.
MAVEN = """cd /work
openssl pkcs12 -export -nokeys -in /etc/ssl/certs/ca-certificates.crt -jdktrust anyExtendedKeyUsage \\
  -passout pass:changeit -out trust.p12
export MAVEN_OPTS="-Djavax.net.ssl.trustStore=/work/trust.p12 -Djavax.net.ssl.trustStorePassword=changeit"
mvn --batch-mode --quiet --file recipe/pom.xml -Dmaven.repo.local=/go/maven -DoutputDirectory=/work/maven \\
  org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies > errors 2>&1 \\
  || { grep ERROR errors | head -n 5 >&2; exit 1; }
"""
# Each artifact has the hash in the recipe, and there are no others.
CHECK_MAVEN = """cd /work/maven
sha256sum --check --strict --quiet ../recipe/maven.sha256 >&2
sed 's/^[^ ]*  //' ../recipe/maven.sha256 | sort > ../pinned
ls | LC_ALL=C sort | diff <(LC_ALL=C sort ../pinned) - >&2
"""


def _fetch_maven(recipe: Recipe, run: Run, say: Say) -> None:
    """Fetch the artifacts of Maven's repository, and check their hashes."""
    say(f"{recipe.name} {recipe.version}: fetch its artifacts")
    run(MAVEN)
    try:
        run(f"bash -eu <<'END'\n{CHECK_MAVEN}END\n")
    except LabError as error:
        pinned = recipe.directory / "maven.sha256"
        raise LabError(
            f"{recipe.name}: an artifact does not match its hash in {pinned}; nothing was built:\n  {error}"
        ) from None


def _build_go(recipe: Recipe, go: Go, run: Run, say: Say) -> None:
    """Fetch and build the modules. Go checks their hashes against the recipe's go.sum."""
    what = f"{recipe.name} {recipe.version}"
    try:
        say(f"{what}: fetch its modules")
        run("cp /work/recipe/go.mod /work/recipe/go.sum /work")
        # For a wrong hash, the first lines of Go's output have the cause.
        run("cd /work && go mod download 2> errors || { grep . errors | head -n 5 >&2; exit 1; }")
        if go.programs:
            say(f"{what}: build {len(go.programs)} programs")
            run(go_script(go))
        run(f'cd /work && ln -s "$(go list -m -f {{{{.Dir}}}} {shlex.quote(go.module)})" source')
    except LabError as error:
        if "checksum mismatch" in str(error):
            pinned = recipe.directory / "go.sum"
            raise LabError(
                f"{recipe.name}: a module does not match its hash in {pinned}; nothing was built:\n  {error}"
            ) from None
        raise


def go_script(go: Go) -> str:
    """Return the script that builds the programs and tests of a module."""
    cgo, flags = f"CGO_ENABLED={int(go.cgo)}", f"-ldflags {shlex.quote(go.ldflags)}"
    lines = [f"cd /work && {cgo} go build {flags} -o bin/ {shlex.join(go.packages())}"]
    lines += [f"{cgo} go test -c {flags} -o bin/ {shlex.quote(f'{go.module}/{path}')}" for path in go.tests]
    return "\n".join(lines)
