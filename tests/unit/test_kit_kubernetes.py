"""Kubernetes' recipes, and the parts of the kit that they use: needs, likeness, images and what is run to pack them."""

import subprocess
import tarfile
from pathlib import Path

import pytest

from clusterctl.lab import image, kit, kit_build, kit_pack, kit_recipe
from clusterctl.util.errors import ClusterctlError

ADDRESS = "10.88.255.252"
URL = f"https://{ADDRESS}/0123"


def served(*names: str) -> kit.Kit:
    return kit.Kit(URL, ADDRESS, "", "ABCD" * 10, tuple(kit_recipe.load(names)))


def write(directory: Path, name: str, text: str) -> None:
    (directory / name).mkdir()
    (directory / name / "recipe.yaml").write_text(f"description: x\nversion: 1.2.3\n{text}")


# Recipes as data


def test_recipes__needed_by_others__come_first_and_once() -> None:
    names = [recipe.name for recipe in kit_recipe.load(("kubernetes", "kubernetes-previous", "pause"))]
    assert names == [
        "coredns", "cri-tools", "etcd", "kubernetes-cni", "pause", "kubernetes",
        "coredns-previous", "etcd-previous", "pause-previous", "kubernetes-previous",
    ]  # fmt: skip


def test_recipes__that_are_optional__are_loaded_only_by_name(tmp_path: Path) -> None:
    write(tmp_path, "plain", "needs: [needed]\n")
    write(tmp_path, "needed", "optional: true\n")
    write(tmp_path, "other", "optional: true\n")
    assert [recipe.name for recipe in kit_recipe.load(directory=tmp_path)] == ["needed", "plain"]
    assert [recipe.name for recipe in kit_recipe.load(("other",), tmp_path)] == ["other"]


def test_recipe__that_needs_an_unknown_one__is_damaged(tmp_path: Path) -> None:
    write(tmp_path, "bad", "needs: [kubernets]\n")
    with pytest.raises(ClusterctlError, match=r"kubernets/recipe.yaml is damaged: FileNotFoundError"):
        kit_recipe.load(directory=tmp_path)


def test_recipe__with_an_unknown_key_of_an_image__is_damaged(tmp_path: Path) -> None:
    write(tmp_path, "bad", "images: [{name: example.com/x, tga: '1'}]\n")
    with pytest.raises(ClusterctlError, match=r"bad/recipe.yaml is damaged: TypeError: .*tga"):
        kit_recipe.load(directory=tmp_path)


def test_placeholders__of_texts__are_the_version_and_its_parts(tmp_path: Path) -> None:
    text = """\
repositories: ["v{major}.{minor}/{architecture}"]
images: [{name: example.com/x, tag: "v{version}"}, {name: example.com/y}]
packages:
  own: {version: "{version}-1.1", files: {}, control: "Depends: x (= {version})"}
  inherited: {files: {}, control: "Depends: x (= {version}), y (>= {major}.{minor})"}
"""
    write(tmp_path, "one", text)
    (one,) = kit_recipe.load(directory=tmp_path)
    assert one.repositories == (f"v1.2/{kit_recipe.architecture()}",)
    assert [made.tag for made in one.images] == ["v1.2.3", "1.2.3"]
    assert one.packages["own"].control == "Depends: x (= 1.2.3-1.1)"
    assert (one.packages["inherited"].version, one.packages["inherited"].control) == (
        "1.2.3",
        "Depends: x (= 1.2.3), y (>= 1.2)",
    )


@pytest.mark.parametrize("name", ["kubernetes", "coredns", "etcd", "pause"])
def test_recipe__like_another__differs_only_in_versions(name: str) -> None:
    (new,), (old,) = (kit_recipe.load((one,))[-1:] for one in (name, f"{name}-previous"))
    assert old.like == new.directory
    assert (old.optional, old.packages.keys()) == (True, new.packages.keys())
    assert [made.name for made in old.images] == [made.name for made in new.images]
    for one, another in ((old, new), (new, old)):
        texts = [*one.repositories, *one.c.values(), one.go.ldflags if one.go else "", str(one.variables)]
        texts += [kit_pack.package_script(name, package) for name, package in one.packages.items()]
        texts += [made.tag for made in one.images]
        minor = ".".join(another.version.split(".")[:2]) if name == "kubernetes" else another.version
        assert not [text for text in texts if minor in text]


# What a lab gets


@pytest.mark.proves("lab", "The kit has every image of kubeadm under the name of its registry.")
@pytest.mark.parametrize(
    ("recipe", "wanted"),
    [  # kubeadm config images list of v1.36.3, 2026-11-25; of v1.35.4 by its cmd/kubeadm/app/constants
        ("kubernetes", ("v1.36.3", "v1.14.2", "3.10.2", "3.6.8-0")),
        ("kubernetes-previous", ("v1.35.4", "v1.13.1", "3.10.1", "3.6.6-0")),
    ],
)
def test_images__of_a_release__are_those_of_kubeadm(recipe: str, wanted: tuple[str, ...]) -> None:
    kubernetes, coredns, pause, etcd = wanted
    parts = ("apiserver", "controller-manager", "scheduler", "proxy")
    assert {f"{made.name}:{made.tag}" for one in kit_recipe.load((recipe,)) for made in one.images} == {
        *(f"registry.k8s.io/kube-{part}:{kubernetes}" for part in parts),
        f"registry.k8s.io/coredns/coredns:{coredns}",
        f"registry.k8s.io/pause:{pause}",
        f"registry.k8s.io/etcd:{etcd}",
    }


def test_packages__of_both_releases__are_in_the_layout_of_pkgs_k8s_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    signed: list[tuple[str, ...]] = []
    monkeypatch.setattr(kit, "_run", lambda builder, private, *argv: signed.append(argv))
    recipes = kit_recipe.load(("kubernetes", "kubernetes-previous"))
    for recipe in recipes:
        (tmp_path / recipe.name).mkdir()
        for name, package in recipe.packages.items():
            (tmp_path / recipe.name / f"{name}_{package.version}.deb").touch()
    results = {recipe.name: tmp_path / recipe.name for recipe in recipes}
    kit._publish("set", kit.Build(tuple(recipes), results, "builder"), tmp_path / "private")
    top = kit_build.directory("served") / "set"
    for minor, version in (("1.36", "1.36.3"), ("1.35", "1.35.4")):
        folder = top / f"core:/stable:/v{minor}/deb"
        assert {path.name for path in folder.glob("*.deb")} == {
            "cri-tools_1.36.0-1.1.deb", "kubernetes-cni_1.9.1-1.1.deb",
            *(f"{name}_{version}-1.1.deb" for name in ("kubeadm", "kubectl", "kubelet")),
        }  # fmt: skip
        assert (folder / "KEY").read_text() == f"core:/stable:/v{minor}/deb/Release.key"
    assert len(signed) == 1


@pytest.mark.parametrize("names", [("kubernetes", "kubernetes-previous"), ("kubernetes-previous", "kubernetes")])
def test_variables__of_two_releases__are_those_of_the_newer(names: tuple[str, ...]) -> None:
    assert served(*names, "flannel").variables() == {
        "kubernetes_node_repository_url": f"{URL}/core:/stable:",
        "kubernetes_node_key_fingerprint": "ABCD" * 10,
        "kubernetes_node_version": "1.36.3",
        "kubernetes_network_version": "v0.28.4",
        "containers_registry_mirrors": {
            "ghcr.io": f"https://{ADDRESS}/ghcr.io",
            "registry.k8s.io": f"https://{ADDRESS}/registry.k8s.io",
        },
    }
    assert served("kubernetes-previous").variables()["kubernetes_node_version"] == "1.35.4"


def test_mirrors__without_images_of_a_registry__are_not_set() -> None:
    assert served("debian").mirrors() == {}
    assert "containers_registry_mirrors" not in served("debian").variables()


def test_places__of_packages_and_images__are_urls_and_references() -> None:
    kubernetes = served("kubernetes")
    places = kubernetes.places(kubernetes.recipes[-1])
    assert places[0] == f"{URL}/core:/stable:/v1.36/deb"
    assert f"{ADDRESS}/registry.k8s.io/kube-proxy:v1.36.3" in places[1:]


# What is built and packed


@pytest.mark.parametrize(
    ("name", "packages", "built"),
    [
        ("coredns", ["github.com/coredns/coredns"], ["bin/coredns"]),
        ("cri-tools", ["sigs.k8s.io/cri-tools/cmd/crictl"], ["bin/crictl"]),
        (
            "etcd",
            [f"go.etcd.io/etcd/{part}/v3" for part in ("server", "etcdctl", "etcdutl")],
            ["bin/server", "bin/etcdctl", "bin/etcdutl"],
        ),
        ("kubernetes-e2e", ["k8s.io/kubernetes/test/images/agnhost"], ["bin/agnhost", "bin/e2e.test"]),
        ("pause", [], []),
    ],
)
def test_go__programs__are_packages_and_have_names(name: str, packages: list[str], built: list[str]) -> None:
    go = kit_recipe.load((name,))[-1].go
    assert go
    assert (go.packages(), go.built()) == (packages, built)


def test_go_script__with_and_without_cgo__quotes_the_linker_flags() -> None:
    go = kit_recipe.Go("example.com/x/v2", (".", "cmd/tool.d/a"), ldflags="-s '-extldflags=-Wl,-z,lazy'")
    flags = "'-s '\"'\"'-extldflags=-Wl,-z,lazy'\"'\"''"
    packages = "example.com/x/v2 example.com/x/v2/cmd/tool.d/a"
    assert kit_build.go_script(go) == f"cd /work && CGO_ENABLED=1 go build -ldflags {flags} -o bin/ {packages}"
    assert "CGO_ENABLED=0" in kit_build.go_script(kit_recipe.Go("example.com/x", (".",), cgo=False))
    assert kit_build.go_script(kit_recipe.Go("example.com/x", (".",), tests=("test/a",))).endswith(
        "CGO_ENABLED=1 go test -c -ldflags '' -o bin/ example.com/x/test/a"
    )


def test_build__of_go_and_c__runs_in_order() -> None:
    scripts: list[str] = []
    steps: list[str] = []

    def run(script: str) -> str:
        scripts.append(script)
        return ""

    for name in ("pause-previous", "cri-tools"):
        kit_build._build_and_pack(kit_recipe.load((name,))[0], run, steps.append)
    assert scripts[:4] == [
        "mkdir -p /work/recipe /work/bin && cp -r /recipe0/. /recipe1/. /work/recipe",
        "cp /work/recipe/go.mod /work/recipe/go.sum /work",
        "cd /work && go mod download 2> errors || { grep . errors | head -n 5 >&2; exit 1; }",
        'cd /work && ln -s "$(go list -m -f {{.Dir}} k8s.io/kubernetes)" source',
    ]
    compiler = "gcc -Os -Wall -static -s -o bin/pause -DVERSION=v3.10.1 source/build/pause/linux/pause.c"
    assert scripts[4] == f"cd /work && {compiler}"
    assert scripts[6] == "mkdir -p /work/recipe /work/bin && cp -r /recipe0/. /work/recipe"
    assert scripts[9].endswith("-o bin/ sigs.k8s.io/cri-tools/cmd/crictl")
    assert steps == [
        "pause-previous 3.10.1: fetch its modules",
        "pause-previous 3.10.1: pack 0 packages and 1 images",
        "cri-tools 1.36.0: fetch its modules",
        "cri-tools 1.36.0: build 1 programs",
        "cri-tools 1.36.0: pack 1 packages and 0 images",
    ]


def test_images__with_debian_packages__are_unpacked_from_their_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, ...]] = []

    def debian_root(archive: Path, suite: str, mirror: str, *options: str, variant: str = "minbase") -> None:
        made.append((archive.name, suite, variant, *options[:1]))

    monkeypatch.setattr(image, "debian_root", debian_root)
    for name in ("debian", "busybox", "kubernetes"):
        recipe = kit_recipe.load((name,))[-1]
        for one in recipe.images:
            kit_build._unpack_debian(recipe, one, tmp_path, "http://mirror.example/debian", lambda step: None)
    assert made == [
        ("lab+debian.tar", "trixie", "minbase"),
        (
            "packages-registry.k8s.io+e2e-test-images+busybox.tar", "trixie", "extract",
            "--include=busybox-static",
        ),
        ("packages-registry.k8s.io+kube-proxy.tar", "forky", "extract", "--include=iptables,nftables"),
    ]  # fmt: skip
    assert [kit_recipe.load((name,))[0].is_compiled for name in ("debian", "busybox", "pause")] == [False, True, True]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The directory /work of a build container, with programs."""
    work = tmp_path / "work"
    for path, text in (("bin/tool", "#!/bin/sh\n"), ("recipe/tool.conf", "a=1\n"), ("recipe/post", "#!/bin/sh\n")):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)
    (tmp_path / "made").mkdir()
    return work


def execute(script: str, work: Path) -> Path:
    """Run a script of the build container in a directory of its own; return the directory of results."""
    made = work.parent / "made"
    script = script.replace("/work", str(work)).replace("/made", str(made))
    subprocess.run(["sh", "-eu"], input=script, text=True, check=True, capture_output=True)
    return made


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_package__that_the_script_makes__has_files_modes_and_scripts(work: Path) -> None:
    files = {
        "/usr/bin/tool": "bin/tool",
        "/opt/cni/bin/tool": "bin/tool",
        "/etc/tool/tool.conf": "recipe/tool.conf",
        "/etc/tool/.keep": "/dev/null",
    }
    control = "Maintainer: x <x@localhost>\nDescription: x\n"
    package = kit_recipe.Package(control, "1.2.3-1.1", files, postinst="recipe/post", prerm="recipe/post")
    made = execute(kit_pack.package_script("tool", package), work)
    (path,) = made.iterdir()
    assert path.name == f"tool_1.2.3-1.1_{kit_recipe.architecture()}.deb"
    rows = [line.split() for line in output("dpkg-deb", "--contents", str(path)).splitlines()]
    assert {row[5]: (row[0], row[1]) for row in rows if row[0][0] == "-"} == {
        "./usr/bin/tool": ("-rwxr-xr-x", "root/root"),
        "./opt/cni/bin/tool": ("-rwxr-xr-x", "root/root"),
        "./etc/tool/tool.conf": ("-rw-r--r--", "root/root"),
        "./etc/tool/.keep": ("-rw-r--r--", "root/root"),
    }
    assert output("dpkg-deb", "--info", str(path), "conffiles") == "/etc/tool/tool.conf\n"
    for script in ("postinst", "prerm"):
        assert output("dpkg-deb", "--info", str(path), script) == "#!/bin/sh\n"
    assert "Version: 1.2.3-1.1" in output("dpkg-deb", "--info", str(path), "control")


def unpacked(folder: Path, archive: Path) -> None:
    """Make an archive as mmdebstrap's: a program, a library's table, and what belongs to apt and the runtime."""
    names = (
        "usr/bin/box",
        "usr/lib/x/gconv/table",
        "etc/protocols",
        "etc/apt/sources.list",
        "etc/resolv.conf",
        "dev/x",
    )
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("#!/bin/sh\necho ls tool box\n")
    (folder / "usr/bin/box").chmod(0o755)
    output("tar", "--create", "--file", str(archive), "--directory", str(folder), ".")


def test_image__that_the_script_makes__has_packages_files_and_links(work: Path) -> None:
    setup = 'usr/bin/box | tr " " "\\n" | while read -r n; do [ -e "usr/bin/$n" ] || ln -s box "usr/bin/$n"; done\n'
    one = kit_recipe.Image("example.com/a/b", "v1", packages=("box",), files={"/bin/tool": "bin/tool"}, setup=setup)
    unpacked(work / "debian", work.parent / "made" / kit_pack.packages_archive(one))
    made = execute(kit_pack.image_script(one), work)
    assert [path.name for path in made.iterdir()] == ["example.com+a+b.tar"]
    with tarfile.open(made / one.archive) as tar:
        members = {member.name: member for member in tar}
    kept = {name.removeprefix("./") for name, member in members.items() if not member.isdir()}
    assert kept == {
        "bin", "sbin", "lib", "lib64", "usr/bin/box", "usr/bin/ls", "usr/bin/tool",
        "etc/group", "etc/nsswitch.conf", "etc/passwd", "etc/protocols",
    }  # fmt: skip
    assert (members["./lib64"].linkname, members["./usr/bin/ls"].linkname) == ("usr/lib64", "box")
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, int(kit_pack.EPOCH))}
    assert (members["./tmp"].mode, members["./usr/bin/tool"].mode) == (0o1777, 0o755)


def test_image__that_is_made_twice__is_the_same(work: Path) -> None:
    one = kit_recipe.Image("example.com/a", "v1", files={"/tool": "bin/tool"})
    first = (execute(kit_pack.image_script(one), work) / one.archive).read_bytes()
    assert (execute(kit_pack.image_script(one), work) / one.archive).read_bytes() == first


@pytest.mark.parametrize("program", ["curl", "busybox"])
def test_busybox__links_of_its_images__do_not_replace_programs(work: Path, program: str) -> None:
    """The set-up of the recipes' images, with a program that lists these two as its applets."""
    for name in ("busybox", "flannel"):
        (one,) = kit_recipe.load((name,))[0].images
        tree = work / name
        (tree / "usr/bin").mkdir(parents=True)
        (tree / "usr/sbin").mkdir()
        (tree / "usr/bin/busybox").write_text("#!/bin/sh\necho busybox\necho curl\n")
        (tree / "usr/bin/busybox").chmod(0o755)
        subprocess.run(["sh", "-eu"], input=f"cd {tree}\n{one.setup}", text=True, check=True)
        assert (tree / "usr/bin" / program).is_symlink() == (program == "curl")
    assert (work / "flannel/usr/sbin/ip6tables-restore").readlink() == Path("ip6tables-nft-restore")


def test_push__of_an_image__has_its_configuration_and_both_tags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []
    present: set[str] = set()
    monkeypatch.setattr(kit, "podman", lambda *argv: calls.append(argv))
    monkeypatch.setattr(kit, "run_as_root", lambda argv, check: calls.append(tuple(argv)))
    monkeypatch.setattr(kit, "_answers", lambda address, private, path: path in present)
    (pause,) = kit_recipe.load(("pause",))[0].images
    kit._push(pause, Path("/built/pause-0123456789ab"), ADDRESS, tmp_path, lambda step: None)
    assert [call[0] for call in calls] == ["import", "push", "push", "podman"]
    changes = [calls[0][i + 1] for i, word in enumerate(calls[0]) if word == "--change"]
    assert changes[1:] == ['ENTRYPOINT ["/pause"]', "USER 65535:65535"]
    assert calls[0][-2] == "/built/pause-0123456789ab/registry.k8s.io+pause.tar"
    targets = [f"docker://{ADDRESS}/registry.k8s.io/pause:{tag}" for tag in ("3.10.2", "3.10.2-0123456789ab")]
    assert [call[-1] for call in calls[1:3]] == targets
    calls.clear()
    present.add("registry.k8s.io/pause/manifests/3.10.2-0123456789ab")
    kit._push(pause, Path("/built/pause-0123456789ab"), ADDRESS, tmp_path, lambda step: None)
    assert calls == []


def test_variables__of_images_that_roles_name__have_the_kits_version() -> None:
    """A role may have a newer default: what cannot be built from modules is not in the kit."""
    given = served("nvidia-device-plugin", "local-path-provisioner").variables()
    assert given["kubernetes_gpu_plugin_version"] == "v0.19.3"
    assert given["kubernetes_storage_local_version"] == "v0.0.30"
