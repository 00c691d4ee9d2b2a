"""A real OpenLDAP server (slapd of Debian) with TLS, in a container of its own in a lab's network."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import yaml

from tests.cluster.lab import TestLab, podman
from tests.faults.injury import container
from tests.programs import call, output_of

BASE = "dc=example,dc=org"
READER = f"cn=reader,{BASE}"
PASSWORD = "a-password-of-the-lab-only"
AUTHORITY = "directory.pem"
_LIMIT = 300.0
_INSTALL = """
set -eu
export DEBIAN_FRONTEND=noninteractive
exec >/tmp/install.log 2>&1
apt-get -o Acquire::http::Proxy=$1 update -q
apt-get -o Acquire::http::Proxy=$1 install -q -y --no-install-recommends slapd ldap-utils openssl
mkdir -p /srv/ldap; install -d -o openldap /run/slapd
"""
# openssh-lpk, the usual attribute of public keys: https://code.google.com/archive/p/openssh-lpk
_KEYS = """
attributetype ( 1.3.6.1.4.1.24552.500.1.1.1.13 NAME 'sshPublicKey' DESC 'public key of OpenSSH'
  EQUALITY octetStringMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 )
objectclass ( 1.3.6.1.4.1.24552.500.1.1.2.0 NAME 'ldapPublicKey' SUP top AUXILIARY MAY ( sshPublicKey $ uid ) )
"""
_CONFIGURATION = f"""
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
include /etc/ldap/schema/nis.schema
include /srv/keys.schema
pidfile /run/slapd/slapd.pid
modulepath /usr/lib/ldap
moduleload back_mdb
TLSCACertificateFile /srv/authority.pem
TLSCertificateFile /srv/server.pem
TLSCertificateKeyFile /srv/server.key
security ssf=128
database mdb
suffix "{BASE}"
rootdn "cn=root,{BASE}"
rootpw {PASSWORD}
directory /srv/ldap
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="{READER}" read by * none
"""
_CERTIFICATES = """
set -eu
cd /srv
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout authority.key -out authority.pem
openssl req -newkey rsa:2048 -nodes -subj /CN=directory -keyout server.key -out server.csr
printf 'subjectAltName=IP:%s' "$1" > names
openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -days 2 -extfile names -out server.pem
chgrp openldap server.key; chmod 640 server.key; chown openldap ldap
"""
_TREE = f"""
dn: {BASE}
objectClass: domain
dc: example

dn: {READER}
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: reader
userPassword: {PASSWORD}

dn: ou=people,{BASE}
objectClass: organizationalUnit
ou: people

dn: ou=groups,{BASE}
objectClass: organizationalUnit
ou: groups
"""


class Directory:
    """The server, by the name of its container."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address

    @property
    def authority(self) -> str:
        return self.shell("cat /srv/authority.pem")

    def shell(self, script: str, *arguments: str) -> str:
        done = call(["podman", "exec", "-i", self.name, "sh", "-s", *arguments], _LIMIT, input=script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self) -> None:
        self.shell("slapd -f /srv/slapd.conf -u openldap -g openldap -h 'ldap:/// ldaps:///'")

    def stop(self) -> None:
        self.shell("kill $(cat /run/slapd/slapd.pid); while [ -e /run/slapd/slapd.pid ]; do sleep 0.1; done")

    def _apply(self, program: str, ldif: str) -> None:
        environment = ("-e", "LDAPTLS_CACERT=/srv/authority.pem")
        argv = ["podman", "exec", "-i", *environment, self.name, program, "-x", "-H", f"ldaps://{self.address}"]
        output_of([*argv, "-D", f"cn=root,{BASE}", "-w", PASSWORD], _LIMIT, input=ldif)

    def add_person(self, name: str, uid: int, key: str) -> None:
        """Add a person whose group is 7000."""
        self._apply(
            "ldapadd",
            f"dn: uid={name},ou=people,{BASE}\nobjectClass: inetOrgPerson\nobjectClass: posixAccount\n"
            f"objectClass: shadowAccount\nobjectClass: ldapPublicKey\nuid: {name}\ncn: {name}\nsn: {name}\n"
            f"uidNumber: {uid}\ngidNumber: 7000\nhomeDirectory: /nowhere/{name}\nloginShell: /bin/bash\n"
            f"sshPublicKey: {key}\n",
        )

    def add_group(self, name: str, gid: int, members: Sequence[str] = ()) -> None:
        lines = "".join(f"memberUid: {one}\n" for one in members)
        self._apply(
            "ldapadd", f"dn: cn={name},ou=groups,{BASE}\nobjectClass: posixGroup\ncn: {name}\ngidNumber: {gid}\n{lines}"
        )

    def remove(self, dn: str) -> None:
        """Delete an entry below the base."""
        self._apply("ldapmodify", f"dn: {dn},{BASE}\nchangetype: delete\n")

    def change(self, dn: str, *lines: str) -> None:
        """Modify an entry below the base, in the notation of ldapmodify(1)."""
        self._apply("ldapmodify", "\n".join([f"dn: {dn},{BASE}", "changetype: modify", *lines]) + "\n")


@contextmanager
def directory(lab: TestLab) -> Iterator[Directory]:
    """Run slapd in the lab's network, with the image of the lab's nodes."""
    name = f"clusterctl-{lab.name}-directory"
    podman("rm", "--force", "--ignore", name)
    image = podman("inspect", "--format", "{{.ImageName}}", container(lab, "gpu01")).strip()
    limits = ("--ulimit", "nofile=10000:10000", "--ulimit", "nproc=10000:10000")
    network = ("--network", f"clusterctl-{lab.name}")
    podman("run", "--detach", "--name", name, *limits, *network, "--entrypoint", "sleep", image, "infinity")
    try:
        shown = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        found = Directory(name, podman("inspect", "--format", shown, name).strip())
        found.shell(_INSTALL, yaml.safe_load(lab.inventory.read_text())["all"]["vars"]["cluster_package_proxy"])
        for path, content in (("/srv/slapd.conf", _CONFIGURATION), ("/srv/keys.schema", _KEYS)):
            found.shell(f"umask 022; cat > {path} <<'E'\n{content}E\n")
        found.shell(_CERTIFICATES, found.address)
        found.start()
        found._apply("ldapadd", _TREE)
        yield found
    finally:
        podman("rm", "--force", name)
