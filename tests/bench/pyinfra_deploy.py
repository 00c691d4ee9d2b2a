"""The state of a lab's nodes for pyinfra: packages, users, directories, files, links, settings of the kernel, units.

Each host's data is a file, which against_pyinfra.py has made from the node itself. Packages, settings and users are one
operation each; files and units are what an administrator writes for each of them. pyinfra runs this file, so no module
imports it.
"""

import json
from pathlib import Path

from pyinfra import host
from pyinfra.operations import apt, files, server, systemd

state = json.loads((Path(host.data.states) / f"{host.name}.json").read_text())

apt.packages(name="Packages", packages=state["packages"])
for user in state["users"]:
    server.user(name=f"User {user['name']}", user=user["name"], uid=user["uid"], home=user["home"], shell=user["shell"])
for path, given in state["directories"].items():
    files.directory(name=path, path=path, **given)
for path, given in state["files"].items():
    files.put(name=path, src=str(Path(host.data.states) / given.pop("content")), dest=path, **given)
for path in state["absent"]:
    files.file(name=path, path=path, present=False)
for path, target in state["links"].items():
    files.link(name=path, path=path, target=target)
for key, value in state["sysctl"].items():
    server.sysctl(name=key, key=key, value=value)
for unit, given in state["units"].items():
    systemd.service(name=unit, service=unit, **given)
