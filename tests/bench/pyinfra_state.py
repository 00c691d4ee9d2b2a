"""Print a node's state for pyinfra_deploy.py, from what its roles have recorded there. Runs on the node, as root."""

import base64
import glob
import grp
import json
import os
import pwd
from typing import Any

RECORDS = "/var/lib/clusterctl/state/*.json"
PEOPLE = range(10000, 60000)  # ids of users


def access(now: dict[str, Any]) -> dict[str, str]:
    """Return owner and mode of a recorded file or directory."""
    return {
        "user": pwd.getpwuid(now["uid"]).pw_name,
        "group": grp.getgrgid(now["gid"]).gr_name,
        "mode": now["mode"].lstrip("0"),
    }


def service(now: dict[str, Any]) -> dict[str, bool]:
    """Return whether a recorded unit runs, and starts with the system; a static unit is neither of both."""
    enablement = {"enabled": now["enablement"] == "enabled"} if now["enablement"] in ("enabled", "disabled") else {}
    return {"running": now["state"] == "up", **enablement}


def main() -> None:
    items: dict[str, dict[str, Any]] = {}
    for record in sorted(glob.glob(RECORDS)):
        with open(record) as file:
            items.update(json.load(file)["items"])
    files, directories, links, absent = {}, {}, {}, []
    for key, item in items.items():
        kind, _, name = key.partition(":")
        path = name.rstrip("/")
        if kind not in ("file", "directory"):
            continue
        if os.path.islink(path):
            links[path] = os.readlink(path)
        elif os.path.isdir(path):
            directories[path] = access(item["now"])
        elif os.path.isfile(path):
            with open(path, "rb") as content:
                files[path] = {**access(item["now"]), "content": base64.b64encode(content.read()).decode()}
        else:
            absent.append(path)

    def of(kind: str) -> dict[str, Any]:
        return {key.partition(":")[2]: item["now"] for key, item in items.items() if key.startswith(f"{kind}:")}

    people = [user for user in pwd.getpwall() if user.pw_uid in PEOPLE]
    state = {
        "packages": sorted(name for name, now in of("package").items() if now.get("version")),
        "users": [
            {"name": user.pw_name, "uid": user.pw_uid, "home": user.pw_dir, "shell": user.pw_shell} for user in people
        ],
        "directories": directories,
        "files": files,
        "links": links,
        "absent": absent,
        "sysctl": {name: now["value"] for name, now in of("sysctl").items() if now["value"] is not None},
        "units": {name: service(now) for name, now in of("unit").items()},
    }
    print(json.dumps(state))


if __name__ == "__main__":
    main()
