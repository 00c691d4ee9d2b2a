#!/usr/bin/python
"""Ansible module: check that all targets of Prometheus are up."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import ssl
import time
import urllib.error
import urllib.request
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: prometheus_targets
author: the clusterctl authors
short_description: Check which targets of Prometheus are up
description:
  - Reads Prometheus's targets. A target that is not up is scraped again by this module, because Prometheus's next
    scrape may be a whole interval away.
  - Changes nothing.
options:
  url:
    description: Address of Prometheus.
    type: str
    required: true
  user:
    description: User to log in as.
    type: str
    required: true
  password:
    description: Password of the user.
    type: str
    required: true
  logins:
    description:
      - Logins of other targets that require one, C(USER:PASSWORD) by the target's address, such as
        C(https://10.0.0.10:9093).
    type: dict
    default: {}
  authority:
    description: File with the certificate of the authority of Prometheus's certificate.
    type: path
    default: /etc/prometheus/tls/authority.pem
  certificate:
    description: File with the certificate with which Prometheus reads exporters.
    type: path
    default: /etc/prometheus/tls/client-certificate.pem
  key:
    description: File with the key of that certificate.
    type: path
    default: /etc/prometheus/tls/client-key.pem
  elsewhere:
    description: Names and addresses of hosts that are known to be unreachable; their targets are ignored.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds to wait for the targets.
    type: int
    default: 60
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Check that every target is up
  prometheus_targets:
    url: https://10.0.0.10:9090
    user: admin
    password: "{{ lookup('cluster_secret', 'prometheus_password') }}"
"""

RETURN = r"""
up:
  description: Targets that are up in Prometheus.
  type: list
  elements: str
  returned: always
answering:
  description: Targets that answer but that Prometheus has not scraped again yet.
  type: list
  elements: str
  returned: always
down:
  description: The reason why a target does not answer, by host.
  type: dict
  returned: always
"""


class SilentError(Exception):
    """Prometheus does not return its targets."""


class Prometheus:
    """The Prometheus at a URL. A login is sent only to its address, which must have a certificate of the authority."""

    def __init__(
        self,
        url: str,
        login: str,
        authority: str,
        client: tuple[str, str] | None = None,
        logins: dict[str, str] | None = None,
    ) -> None:
        self.url, self.logins = url, {url: login, **(logins or {})}
        context = ssl.create_default_context(cafile=authority)
        if client:
            context.load_cert_chain(*client)
        trusted = urllib.request.HTTPSHandler(context=context)
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusted)

    def fetch(self, url: str, most: int = -1) -> bytes:
        """Return at most `most` bytes of a URL's content. Raises OSError, also for HTTP errors."""
        login = next((login for address, login in self.logins.items() if url.startswith(f"{address}/")), "")
        request = urllib.request.Request(url)  # noqa: S310 - from the inventory or from Prometheus
        if login:  # a redirect does not get it
            coded = base64.b64encode(login.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {coded}")
        with self.opener.open(request, timeout=5) as answer:
            body: bytes = answer.read(most)
        return body


def label(target: dict[str, Any]) -> str:
    """Return the target's name for people."""
    return f"{target['labels']['instance']} ({target['labels']['job']})"


def complaint(prometheus: Prometheus, target: dict[str, Any]) -> str:
    """Return why a target does not answer, or an empty text. Prometheus itself is a target that needs the login."""
    try:
        # Read only a part: a node's answer may be endless.
        prometheus.fetch(target["scrapeUrl"], most=0)
    except OSError as error:
        return f"{target['scrapeUrl']}: {error}"
    return ""


def look(prometheus: Prometheus, elsewhere: set[str]) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the targets that are up, further ones that answer, and the errors of others by host.

    Raises SilentError if Prometheus does not return its targets.
    """
    try:
        text = prometheus.fetch(f"{prometheus.url}/api/v1/targets?state=active").decode()
        # Debian 12's Prometheus sometimes sends a second document after the requested one.
        answer, _ = json.JSONDecoder().raw_decode(text)
    except (OSError, ValueError) as error:
        raise SilentError(f"Prometheus at {prometheus.url}: {error}") from error
    targets = [target for target in answer["data"]["activeTargets"] if not_elsewhere(target, elsewhere)]
    if not targets:
        raise SilentError(f"Prometheus at {prometheus.url} has no targets")
    pending = [target for target in targets if target["health"] != "up"]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        complaints = list(pool.map(lambda target: complaint(prometheus, target), pending))
    up = [label(target) for target in targets if target["health"] == "up"]
    answering = [label(target) for target, error in zip(pending, complaints) if not error]  # noqa: B905 - Python 3.8
    down = {target["labels"]["instance"]: error for target, error in zip(pending, complaints) if error}  # noqa: B905
    return up, answering, down


def not_elsewhere(target: dict[str, Any], elsewhere: set[str]) -> bool:
    """Return whether a target's host can be reached. Its label is a name, or address and port."""
    instance = target["labels"]["instance"]
    return not {instance, instance.rpartition(":")[0]} & elsewhere


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "password": {"type": "str", "required": True, "no_log": True},
            "logins": {"type": "dict", "default": {}, "no_log": True},
            "authority": {"type": "path", "default": "/etc/prometheus/tls/authority.pem"},
            "certificate": {"type": "path", "default": "/etc/prometheus/tls/client-certificate.pem"},
            "key": {"type": "path", "default": "/etc/prometheus/tls/client-key.pem", "no_log": False},
            "elsewhere": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 60},
        },
    )
    login = f"{module.params['user']}:{module.params['password']}"
    try:
        client = (module.params["certificate"], module.params["key"])
        prometheus = Prometheus(
            module.params["url"], login, module.params["authority"], client, module.params["logins"]
        )
    except OSError as error:
        module.fail_json(msg=f"{module.params['authority']}, {module.params['certificate']}: {error}")
    deadline = time.monotonic() + module.params["timeout"]
    while True:
        late = time.monotonic() > deadline
        try:
            up, answering, down = look(prometheus, set(module.params["elsewhere"]))
            if late or not down:
                module.exit_json(changed=False, up=up, answering=answering, down=down)
        except SilentError as error:
            if late:
                module.fail_json(msg=str(error))
        time.sleep(0.5)


if __name__ == "__main__":
    main()
