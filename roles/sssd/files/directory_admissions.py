#!/usr/bin/python3 -IS
"""Print whether PAM lets each person log in whose name standard input has: a line with the name and yes, no or unknown.

slurm-directory runs this program as a process of its own, because it can end one that waits for PAM.

usage: directory-admissions
"""

import ctypes
import sys

SERVICE = b"clusterctl-directory"
SUCCESS, REFUSED = 0, (6, 7, 10, 13)  # PAM_PERM_DENIED, _AUTH_ERR, _USER_UNKNOWN, _ACCT_EXPIRED: security/_pam_types.h


class Response(ctypes.Structure):
    """pam_response of security/_pam_types.h."""

    _fields_ = [("text", ctypes.c_char_p), ("code", ctypes.c_int)]


CONVERSE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)


class Conversation(ctypes.Structure):
    """pam_conv of security/_pam_types.h."""

    _fields_ = [("function", CONVERSE), ("data", ctypes.c_void_p)]


class Pam:
    """Asks PAM whether a person can log in, by a service that asks SSSD and the file of role sssd."""

    def __init__(self):
        self.library = ctypes.CDLL("libpam.so.0")
        self.library.pam_start.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
        for name in ("pam_acct_mgmt", "pam_end"):
            getattr(self.library, name).argtypes = [ctypes.c_void_p, ctypes.c_int]
        # Messages to the person are not shown: PAM_CONV_ERR.
        self.conversation = Conversation(CONVERSE(lambda *_: 19), None)

    def admits(self, name):
        """Return True or False, None if that is not known."""
        handle = ctypes.c_void_p()
        conversation = ctypes.byref(self.conversation)
        if self.library.pam_start(SERVICE, name.encode(), conversation, ctypes.byref(handle)) != SUCCESS:
            return None
        status = self.library.pam_acct_mgmt(handle, 0)
        self.library.pam_end(handle, status)
        return True if status == SUCCESS else False if status in REFUSED else None


def main():
    """Answer line by line, so that a deadline loses no answer."""
    pam = Pam()
    for name in sys.stdin.read().split():
        print(name, {True: "yes", False: "no", None: "unknown"}[pam.admits(name)], flush=True)


if __name__ == "__main__":
    main()
