"""What a lab's nodes need for homes on NFS: a disk for the server, and for the others a simulated client.

The server is real (NFS-Ganesha), as are the protocol, the mount units and the firewall. The client is simulated by the
program mount.nfs4 beside this file, because the kernel of a build machine may have no NFS.
"""

from collections.abc import Iterable
from pathlib import Path

from tests.cluster.lab import TestLab

HOMES = "/srv/homes"
# Ganesha finds files by handles, which the file system of a container does not have.
DISK = f"""
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends e2fsprogs > /dev/null
[ -e /dev/loop-control ] || mknod /dev/loop-control c 10 237
for number in $(seq 0 31); do [ -e /dev/loop$number ] || mknod /dev/loop$number b 7 $number; done
truncate -s 200M /var/tmp/homes.img
mkfs.ext4 -q /var/tmp/homes.img
mkdir {HOMES}
mount -o loop /var/tmp/homes.img {HOMES}
rmdir {HOMES}/lost+found
"""
# The package nfs-common then installs its own program under another name.
CLIENT = """
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends libnfs14 python3-fusepy > /dev/null
dpkg-divert --quiet --local --rename --add --divert /usr/sbin/mount.nfs4.kernel /usr/sbin/mount.nfs4
install -m 0755 /var/tmp/mount.nfs4 /usr/sbin/mount.nfs4
"""


def prepare(lab: TestLab, server: str, clients: Iterable[str]) -> None:
    """Mount a disk for the homes on the server, and install the client on the others."""
    lab.root(server, DISK)
    program = Path(__file__).with_name("mount.nfs4").read_text()
    for node in clients:
        lab.ssh(node, "sudo", "tee", "/var/tmp/mount.nfs4", stdin=program)
        lab.root(node, CLIENT)
