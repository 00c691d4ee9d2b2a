"""What a node says to the modules that prove a cluster: no more than data, and of no other node."""

import json
import socket
import threading

from tests.unit.test_role_plugins import plugin

JOB = plugin("library/slurm_job_proof")
TARGETS = plugin("library/prometheus_targets")
GOOD = {"node": "gpu01", "job": "7", "user": 64999, "devices": {"/dev/nvidia0": "open"}, "listed": 1}


def test_only_whole_answers_of_chosen_nodes_count() -> None:
    foreign = [
        "{",
        "[" * 100_000,
        "[]",
        "{}",
        json.dumps(GOOD | {"node": "head1"}),
        json.dumps(GOOD | {"node": ["gpu02"]}),
        json.dumps(GOOD | {"node": "gpu02", "job": "7 --user=root"}),
        json.dumps(GOOD | {"node": "gpu02", "job": 7}),
        json.dumps(GOOD | {"node": "gpu02", "devices": "none"}),
        json.dumps({key: value for key, value in GOOD.items() if key != "user"} | {"node": "gpu02"}),
        "a prologue's greeting",
    ]
    assert JOB.answers_in("\n".join([*foreign, json.dumps(GOOD)]), ["gpu01", "gpu02"]) == {"gpu01": GOOD}


def test_a_target_whose_answer_has_no_end_is_not_heard_to_its_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            line, _ = server.accept()
            with line:
                line.recv(4096)
                line.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                try:
                    while True:
                        line.sendall(b"metric 1\n" * 1000)
                except OSError:
                    pass

        talker = threading.Thread(target=talk, daemon=True)
        talker.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        assert TARGETS.complaint({"scrapeUrl": url}, "http://10.0.0.1:9090", "secret") == ""
        talker.join(5)
        assert not talker.is_alive()
