"""The programs: each wires the pure parts to clients, sockets and clocks."""
