"""Read the few fields of certificates and their requests that the programs of a head need.

Nodes have no Python library for X.509. A request comes from a node, so what is not plain DER (X.690, 10) is refused.
Fields: RFC 2986 (requests), RFC 5280 (certificates).
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from datetime import datetime, timezone

SEQUENCE, SET, INTEGER, OBJECT, BITS, OCTETS, BOOLEAN = 0x30, 0x31, 0x02, 0x06, 0x03, 0x04, 0x01
CONTEXT_0 = 0xA0
UTC_TIME, TIME = 0x17, 0x18
TEXTS = (0x0C, 0x13, 0x16)  # UTF8String, PrintableString, IA5String
DNS, ADDRESS = 0x82, 0x87  # in the alternative names
COMMON_NAME, ORGANISATION = bytes.fromhex("550403"), bytes.fromhex("55040a")
ALTERNATIVE_NAMES = bytes.fromhex("551d11")
EXTENSIONS = bytes.fromhex("2a864886f70d01090e")


class FormatError(ValueError):
    """The data is not what was expected."""


def elements(data):
    """Return the elements in DER data, as (tag, content)."""
    found, at = [], 0
    while at < len(data):
        if at + 2 > len(data) or data[at] & 0x1F == 0x1F:
            raise FormatError("an element is cut off or has a long tag")
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[at : at + count], "big")
            if not 1 <= count <= 4 or at + count > len(data) or length < 1 << max(7, 8 * (count - 1)):
                raise FormatError("an element has a bad length")
            at += count
        if at + length > len(data):
            raise FormatError("an element is cut off")
        found.append((tag, data[at : at + length]))
        at += length
    return found


def inside(content, *tags):
    """Return the contents of the elements, which must have these tags.

    A further element is refused: what is ignored here could be what the API server reads.
    """
    found = elements(content)
    if [tag for tag, _ in found] != list(tags):
        raise FormatError(f"got the tags {[tag for tag, _ in found]}, expected {list(tags)}")
    return [part for _, part in found]


def each(content, tag):
    """Return the contents of all elements, which must have this tag."""
    return inside(content, *[tag for _ in elements(content)])


def pem(text, label):
    """Return the DER data of a text that is one PEM block with a label, and nothing else.

    Programs differ in the block that they find in other text, so the API server could sign another one.
    """
    match = re.fullmatch(f"-----BEGIN {label}-----\\n([A-Za-z0-9+/=\\n]+)-----END {label}-----\\n?", text)
    try:
        return base64.b64decode(match.group(1).replace("\n", ""), validate=True)
    except (AttributeError, binascii.Error):
        raise FormatError(f"there is no {label} in PEM format")


def subject(content):
    """Return the texts of a name by the identifiers of their types."""
    found = {}
    for part in each(content, SET):
        for pair in each(part, SEQUENCE):
            tags = [tag for tag, _ in elements(pair)]
            if tags[1:2] not in [[tag] for tag in TEXTS]:
                raise FormatError("a name is not text")
            kind, value = inside(pair, OBJECT, tags[1])
            found.setdefault(kind, []).append(value.decode("utf-8"))
    return found


def alternative_names(content):
    """Return the host names, the addresses, and the number of other names."""
    names, addresses, others = [], [], 0
    for tag, value in elements(inside(content, SEQUENCE)[0]):
        if tag == DNS:
            names.append(value.decode("ascii"))
        elif tag == ADDRESS and len(value) in (4, 16):
            addresses.append(str(ipaddress.ip_address(value)))
        else:
            others += 1
    return names, addresses, others


def request(text):
    """Return the fields of a certificate request in PEM: common names, organisations, names, addresses, others.

    Others is the number of all other fields: parts of the subject, names, extensions, attributes. Raises FormatError.
    """
    try:
        (whole,) = inside(pem(text, "CERTIFICATE REQUEST"), SEQUENCE)
        information, _, _ = inside(whole, SEQUENCE, SEQUENCE, BITS)
        _, who, _, attributes = inside(information, INTEGER, SEQUENCE, SEQUENCE, CONTEXT_0)
        owner = subject(who)
        found = {"common_names": owner.get(COMMON_NAME, []), "organisations": owner.get(ORGANISATION, [])}
        others = sum(len(texts) for kind, texts in owner.items() if kind not in (COMMON_NAME, ORGANISATION))
        found.update({"names": [], "addresses": [], "others": others})
        for attribute in each(attributes, SEQUENCE):
            kind, values = inside(attribute, OBJECT, SET)
            if kind != EXTENSIONS:
                found["others"] += 1
                continue
            for extension in each(inside(values, SEQUENCE)[0], SEQUENCE):
                add_names(found, extension)
        return found
    except UnicodeDecodeError as error:
        raise FormatError(str(error))


def add_names(found, extension):
    """Add the alternative names in an extension of a request, or count the extension."""
    is_critical = [tag for tag, _ in elements(extension)][1:2] == [BOOLEAN]
    kind, *_, content = inside(extension, OBJECT, *[BOOLEAN] * is_critical, OCTETS)
    names, addresses, others = alternative_names(content) if kind == ALTERNATIVE_NAMES else ([], [], 1)
    found["names"] += names
    found["addresses"] += addresses
    found["others"] += others


def validity(text):
    """Return the begin and the end of a certificate in PEM. Raises FormatError."""
    (whole,) = inside(pem(text, "CERTIFICATE"), SEQUENCE)
    fields = elements(inside(whole, SEQUENCE, SEQUENCE, BITS)[0])
    fields = fields[1:] if fields and fields[0][0] == CONTEXT_0 else fields  # the version
    if len(fields) < 4 or fields[3][0] != SEQUENCE:
        raise FormatError("the certificate has no period")
    begin, end = (moment(*one) for one in elements(fields[3][1]))
    return begin, end


def moment(tag, content):
    """Return a time of a certificate: RFC 5280, 4.1.2.5."""
    text = content.decode("ascii")
    if tag == UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != TIME:
        raise FormatError("the certificate has no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)
