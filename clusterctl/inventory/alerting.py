"""Receivers of alerts: what each type needs in the inventory, and which secret."""

from typing import TYPE_CHECKING

from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import Reading

if TYPE_CHECKING:
    from clusterctl.inventory.model import Host, Inventory

RECEIVERS, MAIL = "alertmanager_receivers", "alertmanager_mail"
_SECRETS = {
    "pagerduty": "alertmanager_pagerduty_key",
    "slack": "alertmanager_slack_url",
    "teams": "alertmanager_teams_url",
    "watchdog": "alertmanager_watchdog_url",
}
_NEEDS = {"mail": "to", "webhook": "url"}
_BELONGS = {"to": "mail", "url": "webhook", "token": "webhook", "channel": "slack"}


def secrets(inventory: "Inventory") -> dict[str, str]:
    """Return the secrets that the receivers need, each with the variable that needs it."""
    found = {}
    for host in inventory.in_group("monitoring"):
        for index, receiver in enumerate(host.variables.get(RECEIVERS, [])):
            where = f"{RECEIVERS}[{index}]"
            if name := _SECRETS.get(receiver["type"]):
                found[name] = where
            if receiver.get("token"):
                found["alertmanager_webhook_token"] = where
            if receiver["type"] == "mail" and host.variables.get(MAIL, {}).get("user"):
                found["alertmanager_mail_password"] = f"{MAIL}.user"
    return found


def describe(host: "Host", name: str) -> str:
    """Return a receiver by its name in Alertmanager, such as `mail-1`, with where it sends to."""
    receivers, number = host.variables.get(RECEIVERS, []), int(name.rpartition("-")[2])
    receiver = receivers[number - 1] if 0 < number <= len(receivers) else {}
    to = [*receiver.get("to", []), *filter(None, [receiver.get("url"), receiver.get("channel")])]
    return f"{name.rpartition('-')[0]} {', '.join(to)}".strip()


def check(reading: Reading) -> None:
    """Refuse a receiver without what its type needs, or with what its type ignores."""
    for host in reading.hosts.values():
        mail = host.merged.get(MAIL)
        for index, receiver in enumerate(_items(host.merged.get(RECEIVERS))):
            items = receiver.value.items() if isinstance(receiver.value, dict) else ()
            fields: dict[str, Node] = dict(items)
            kind, where = str(fields["type"].value) if "type" in fields else "", f"{RECEIVERS}[{index}]"
            needed = _NEEDS.get(kind)
            if needed and (needed not in fields or not fields[needed].value):
                reading.refuse(receiver.position, where, f'incomplete, expected the key "{needed}" in it')
            for key in (key for key in fields if kind and _BELONGS.get(key, kind) != kind):
                message = f"has no effect for {shown(kind)}, expected only for {_BELONGS[key]}"
                reading.refuse(fields[key].position, f"{where}.{key}", message)
            if kind == "mail" and not (mail and mail.value):
                hint = f"{MAIL}: {{server: mail.example.org:587, from: cluster@example.org}}"
                reading.refuse(receiver.position, where, f"needs {MAIL}", hint)


def _items(node: Node | None) -> list[Node]:
    return node.value if node and isinstance(node.value, list) else []
