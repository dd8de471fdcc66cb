#!/usr/bin/env python3
"""Server of prometheus_client with NUM_SERIES gauges, ten to a family: metrics_page.py NUM_SERIES PORT_FILE. Writes its port to the
file; ends when its stdin is closed."""
import os
import sys

import prometheus_client


def main():
    registry = prometheus_client.CollectorRegistry()
    for family in range(int(sys.argv[1]) // 10):
        gauge = prometheus_client.Gauge(f"lockstep_family_{family}_seconds", "A family of the benchmark.", ["place"], registry=registry)
        for place in range(10):
            gauge.labels(place=f"place_{place}").set(family + place / 7)
    server, _ = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=registry)
    with open(sys.argv[2] + ".tmp", "w") as file:
        file.write(str(server.server_port))
    os.rename(file.name, sys.argv[2])
    sys.stdin.read()


if __name__ == "__main__":
    main()
