"""Images of lab nodes: a distribution's minimal server, built once from a recipe and tagged by its digest."""

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab.podman import LIMITS, LabError, podman, podman_json, run_as_root, runtime_options

HERE = Path(__file__).resolve().parent
REPOSITORY = "localhost/clusterctl-lab"

# The packages of a freshly installed server. A package that a role installs must not be here.
_DEBIAN_PACKAGES = (
    "ca-certificates", "dbus", "iproute2", "iputils-ping", "kmod", "openssh-server", "procps", "python3", "sudo",
    "systemd", "systemd-sysv",
)  # fmt: skip
_COMPONENTS = "main,contrib,non-free,non-free-firmware"
# Manuals and translations double the size of an image and slow down every installation.
_DPKG_OPTIONS = ("path-exclude=/usr/share/man/*", "path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/doc/*")


@dataclass(frozen=True)
class Distribution:
    """A distribution that a lab node can run: built from Debian's mirror, or from a registry's image."""

    name: str
    suite: str = ""  # Debian's code name or `testing`; built with mmdebstrap
    base: str = ""  # image of a container registry
    setup: str = ""  # the packages of a minimal server, for a registry's image


_RPM_SETUP = (
    "dnf -y install --setopt=install_weak_deps=False ca-certificates dbus iproute iputils kmod openssh-server "
    "procps-ng python3 sudo systemd && dnf clean all"
)
_APT_SETUP = (
    "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "
    f"{' '.join(_DEBIAN_PACKAGES)} && apt-get clean"
)
DISTRIBUTIONS = {
    d.name: d
    for d in (
        Distribution("debian-13", suite="trixie"),
        Distribution("debian-12", suite="bookworm"),
        Distribution("debian-testing", suite="testing"),
        Distribution("ubuntu-24.04", base="docker.io/library/ubuntu:24.04", setup=_APT_SETUP),
        Distribution("ubuntu-22.04", base="docker.io/library/ubuntu:22.04", setup=_APT_SETUP),
        Distribution("rocky-9", base="docker.io/library/rockylinux:9", setup=_RPM_SETUP),
        Distribution("almalinux-10", base="docker.io/library/almalinux:10", setup=_RPM_SETUP),
    )
}
DEBIAN_MIRROR = "http://deb.debian.org/debian"


def _recipe_files() -> Iterator[Path]:
    for folder in (HERE / "node", HERE / "nvml"):
        yield from sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def reference(distribution: Distribution, mirror: str) -> str:
    """Return the image's name, with a digest of the whole recipe."""
    digest = hashlib.sha256(repr((distribution, _DEBIAN_PACKAGES, _COMPONENTS, _DPKG_OPTIONS, mirror)).encode())
    for path in _recipe_files():
        digest.update(str(path.relative_to(HERE)).encode() + path.read_bytes())
    return f"{REPOSITORY}:{distribution.name}-{digest.hexdigest()[:12]}"


def ensure(distribution: Distribution, mirror: str) -> tuple[str, bool]:
    """Return the image's name and whether it was built now. Remove older builds that no container uses."""
    name = reference(distribution, mirror)
    if run_as_root(["podman", "image", "exists", name], check=False).returncode == 0:
        return name, False
    if distribution.suite:
        _build_debian(distribution, mirror, name)
    else:
        _build_from_registry(distribution, name)
    prune(f"{REPOSITORY}:{distribution.name}-*", keep=name)
    return name, True


def _build_debian(distribution: Distribution, mirror: str, name: str) -> None:
    security = re.sub(r"/debian/?$", "/debian-security", mirror)
    sources = [(mirror, f"{distribution.suite}-updates"), (security, f"{distribution.suite}-security")]
    with scratch() as folder:
        debian_root(
            folder / "root.tar", distribution.suite, mirror,
            f"--include={','.join(_DEBIAN_PACKAGES)}",
            f"--customize-hook=copy-in '{HERE}/node' /tmp",
            '--customize-hook=chroot "$1" /tmp/node/customize /tmp/node',
            '--customize-hook=rm -r "$1/tmp/node" "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"',
            f"""--customize-hook='{HERE}/nvml/install.sh' "$1\"""",
            further=sources,
        )  # fmt: skip
        podman("import", "--quiet", str(folder / "root.tar"), name)


def debian_root(
    archive: Path,
    suite: str,
    mirror: str,
    *options: str,
    further: Sequence[tuple[str, str]] = (),
    variant: str = "minbase",
) -> None:
    """Make a minimal Debian of a suite, or another variant of mmdebstrap, as a tar archive.

    `further` sources are URLs and suites beside the mirror's.
    """
    components = _COMPONENTS.replace(",", " ")
    # The index of testing expires within days; apt would refuse that of a mirror that is not updated.
    lasting = " check-valid-until=no" if suite == "testing" else ""
    sources = [
        f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg{lasting}] {url} {name} {components}"
        for url, name in ((mirror, suite), *further)
    ]
    dpkg = (f"--dpkgopt={option}" for option in (*_DPKG_OPTIONS, "force-unsafe-io"))
    run_as_root(["mmdebstrap", f"--variant={variant}", *dpkg, *options, suite, str(archive), *sources])
    run_as_root(["chmod", "0644", str(archive)])


def _build_from_registry(distribution: Distribution, name: str) -> None:
    lines = [
        f"FROM {distribution.base}",
        f"RUN {distribution.setup}",
        "COPY node /tmp/node",
        "RUN /tmp/node/customize /tmp/node && rm -r /tmp/node",
        "COPY nvml /tmp/nvml",
        "RUN /tmp/nvml/install.sh / && rm -r /tmp/nvml",
    ]
    with scratch() as folder:
        recipe = folder / "Containerfile"
        recipe.write_text("\n".join(lines) + "\n")
        podman(
            *runtime_options(), "build", "--quiet", *LIMITS, "--tag", name,
            "--file", str(recipe), str(HERE),
        )  # fmt: skip


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary directory on disk: /tmp may be a small memory file system."""
    place = Path("/var/tmp")  # noqa: S108 - mkdtemp makes an unguessable name in it
    place = place if os.access(place, os.W_OK) else Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix="clusterctl-image-", dir=place) as folder:
        yield Path(folder)


def prune(reference: str, keep: str) -> None:
    """Remove the images that match a reference (with `*`), except `keep` and those that a container uses."""
    for image in podman_json("images", "--filter", f"reference={reference}"):
        for tag in image.get("Names") or []:
            if tag != keep:
                run_as_root(["podman", "rmi", tag], check=False)


def choose(name: str) -> Distribution:
    """Return the distribution of that name, or raise LabError with the known names."""
    try:
        return DISTRIBUTIONS[name]
    except KeyError:
        raise LabError(f"--os {name}: not known; choose from {', '.join(DISTRIBUTIONS)}") from None


def extra_certificates() -> list[str]:
    """Return the CA certificates (PEM) that this host trusts beyond its distribution's own set."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

    def blocks(path: Path) -> list[str]:
        text = path.read_text(errors="replace")
        return [f"{begin}{part.split(end)[0]}{end}\n" for part in text.split(begin)[1:]]

    own: set[str] = set()
    for folder in (Path("/usr/share/ca-certificates"),):
        for path in folder.rglob("*.crt"):
            own.update("".join(block.split()) for block in blocks(path))
    bundle = Path(os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt")
    if not own or not bundle.is_file():
        return []
    return [block for block in blocks(bundle) if "".join(block.split()) not in own]
