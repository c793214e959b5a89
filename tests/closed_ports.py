"""A check of the ports of Ray."""

import socket

import pytest
import ray


def check_that_only_this_machine_can_connect() -> None:
    """Check that the ports of Ray are closed on the address by which other machines reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 1))  # sends nothing
        address = probe.getsockname()[0]
    ports = [ray.nodes()[0]["NodeManagerPort"], int(ray.get_runtime_context().gcs_address.rpartition(":")[2])]
    for port in ports:
        socket.create_connection(("127.0.0.1", port)).close()
        if not address.startswith("127."):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port))
