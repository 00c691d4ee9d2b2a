#!/usr/bin/python
"""Ansible module: the key that a package source is signed by, taken only if its fingerprint is the expected one."""

from __future__ import annotations

import base64
import hashlib
import re
import urllib.error
import urllib.request
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_tools import clean

DOCUMENTATION = r"""
module: signing_key
author: the clusterctl authors
short_description: Fetch a public key by its fingerprint
description:
  - Returns an armored public key whose fingerprint is the expected one; from a file on the node where it is there
    already, else from a URL. Another key is an error. Changes nothing.
options:
  url:
    description: Where the key is to be had.
    type: str
    required: true
  fingerprint:
    description: Fingerprint of its primary key, forty hexadecimal digits.
    type: str
    required: true
  known:
    description: Files in which it may be already.
    type: list
    elements: str
    default: []
  proxy:
    description: Proxy to fetch it through.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: It only reads.
"""

EXAMPLES = r"""
- name: Get the vendor's key
  signing_key:
    url: https://example.com/repository/key.asc
    fingerprint: 0123456789ABCDEF0123456789ABCDEF01234567
  register: key
"""

RETURN = r"""
key:
  description: The armored key.
  type: str
  returned: success
"""

TIMEOUT_S = 30
LARGEST = 1 << 20
_ARMOR = re.compile(r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[\w-]+:[^\n]*\n)*(.*?)-----END", re.DOTALL)


def fingerprint(armored: str) -> str:
    """Return the fingerprint of an armored key (version 4, RFC 9580), that of its first packet; empty for no key."""
    found = _ARMOR.search(armored)
    lines = [line for line in found[1].split() if not line.startswith("=")] if found else []
    try:
        data = base64.b64decode("".join(lines), validate=True)
        tag, at = data[0], 1
        if tag & 0x40:  # the new format of a packet's length
            first = data[1]
            size, at = (first, 2) if first < 192 else (((first - 192) << 8) + data[2] + 192, 3)
            kind = tag & 0x3F
            if first == 255:
                size, at = int.from_bytes(data[2:6], "big"), 6
        else:
            octets = 1 << (tag & 3)
            kind, size, at = tag >> 2 & 0x0F, int.from_bytes(data[1 : 1 + octets], "big"), 1 + octets
    except (ValueError, IndexError):
        return ""
    packet = data[at : at + size]
    if kind != 6 or len(packet) != size or packet[:1] != b"\4":
        return ""
    told = b"\x99" + len(packet).to_bytes(2, "big") + packet
    return hashlib.sha1(told).hexdigest().upper()  # noqa: S324 - what the fingerprint of such a key is


def fetch(url: str, proxy: str) -> str:
    """Return the text at a URL."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
    )
    with opener.open(url, timeout=TIMEOUT_S) as answer:
        return answer.read(LARGEST).decode("utf-8", "replace")


def main() -> None:
    """Ansible's entry point."""
    spec = {
        "url": {"type": "str", "required": True},
        "fingerprint": {"type": "str", "required": True, "no_log": False},
        "known": {"type": "list", "elements": "str", "default": []},
        "proxy": {"type": "str", "default": ""},
    }
    module = AnsibleModule(spec, supports_check_mode=True)
    given = module.params
    wanted = re.sub(r"\s", "", given["fingerprint"]).upper()
    for path in given["known"]:
        if Path(path).is_file() and fingerprint(text := Path(path).read_text(errors="replace")) == wanted:
            module.exit_json(changed=False, key=text)
    try:
        text = fetch(given["url"], given["proxy"])
    except urllib.error.HTTPError as error:
        module.fail_json(msg=f"{given['url']}: HTTP {error.code} {error.reason}")
    except (OSError, ValueError) as error:
        module.fail_json(msg=clean(f"{given['url']}: {getattr(error, 'reason', error)}"))
    found = fingerprint(text)
    if found != wanted:
        told = f"its fingerprint is {found}" if found else "that is no key"
        module.fail_json(msg=f"{given['url']}: {told}, expected {wanted}; nothing is installed from there")
    module.exit_json(changed=False, key=text)


if __name__ == "__main__":
    main()
