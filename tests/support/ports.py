"""A TCP port for a server that a test or a bench starts."""
import random
import socket

LOWEST, HIGHEST = 20000, 32767  # below Linux's range for outgoing connections, one of which may otherwise take the port first


def free_port():
    """Free now, on all addresses of this host; it is not held."""
    while True:
        port = random.randint(LOWEST, HIGHEST)
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
