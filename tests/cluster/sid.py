"""The index of Debian's next release, for what no older release has; asked by way of a lab's package cache.

`python -m tests.cluster.sid PROXY PACKAGE` prints version, URL and SHA-256 of a package's newest version as JSON.
"""

import functools
import http.client
import json
import lzma
import re
import subprocess
import sys
import urllib.request

SID = "http://deb.debian.org/debian"
ATTEMPTS, SECONDS = 3, 60
"""How often the index is asked for at most, and how long it may say nothing."""


def index(proxy: str) -> str:
    """Return the entries of all packages."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy}))
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with opener.open(f"{SID}/dists/sid/main/binary-amd64/Packages.xz", timeout=SECONDS) as answer:
                return lzma.decompress(answer.read()).decode()
        except (OSError, lzma.LZMAError, http.client.HTTPException):
            if attempt == ATTEMPTS:
                raise
    raise AssertionError


def newest(entries: str, package: str) -> dict[str, str]:
    """Return the fields of a package's newest version; while one version replaces another an index has both."""
    found = re.findall(rf"(?ms)^(Package: {re.escape(package)}\n.*?)^$", entries)
    assert found, f"{package} is not in the index"
    fields = [dict(re.findall(r"(?m)^([A-Z][\w-]*): (.*)$", text)) for text in found]

    def newer(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
        argv = ["dpkg", "--compare-versions", one["Version"], "gt", other["Version"]]
        return one if subprocess.run(argv, check=False, timeout=60).returncode == 0 else other

    return functools.reduce(newer, fields)


def find(proxy: str, package: str) -> dict[str, str]:
    """Return version, URL and SHA-256 of a package."""
    fields = newest(index(proxy), package)
    return {"version": fields["Version"], "url": f"{SID}/{fields['Filename']}", "sha256": fields["SHA256"]}


if __name__ == "__main__":
    print(json.dumps(find(sys.argv[1], sys.argv[2])))
