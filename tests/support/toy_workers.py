"""Several processes on this machine that TF_CONFIG joins, for the tests of multi-worker training."""

import json
import os
import socket
import subprocess
import sys

import processes


def join(count: int) -> list[str]:
    """Returns the TF_CONFIG of each of `count` workers, on ports that are free now."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    return [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        for index in range(count)
    ]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one_socket in sockets:
        one_socket.bind(("127.0.0.1", 0))
    ports = [one_socket.getsockname()[1] for one_socket in sockets]
    for one_socket in sockets:
        one_socket.close()
    return ports


def start_workers(path: str, mode: str, directory, count: int = 2) -> list[subprocess.Popen]:
    """Starts a test file as a script in joined processes; what they say goes to `log<index>.txt`."""
    workers = []
    for index, tf_config in enumerate(join(count)):
        environment = dict(os.environ, TF_CONFIG=tf_config)
        with open(os.path.join(directory, f"log{index}.txt"), "a") as log:
            command = [sys.executable, path, mode, str(directory)]
            workers.append(processes.popen(command, is_quick=True, env=environment, stdout=log, stderr=log))
    return workers
