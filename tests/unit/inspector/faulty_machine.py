"""A machine whose files the inspection reads, and whose parts break by a line in them."""

from __future__ import annotations

from pathlib import Path

from tests.unit.nodes.host_files import plant

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."
PORT = "/sys/class/infiniband/mlx5_0/ports/1"


class Machine:
    """With a kernel log and one InfiniBand port."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.yaml"
        self.config.write_text("{}\n")
        self._lines = 0
        self.host = plant(
            root,
            {
                "/dev/kmsg": "6,0,1000000,-;Linux version 6.1",
                "/proc/uptime": "1000.0 1000.0",
                "/proc/sys/kernel/tainted": "0",
                "/proc/meminfo": "MemTotal: 1048576 kB\nMemAvailable: 1048576 kB",
                f"{PORT}/state": "4: ACTIVE",
                f"{PORT}/phys_state": "5: LinkUp",
                f"{PORT}/counters/link_downed": "0",
            },
        )

    def says(self, text: str) -> None:
        """The kernel writes a line."""
        self._lines += 1
        with self.host.path("/dev/kmsg").open("a") as file:
            file.write(f"3,{self._lines},{900_000_000 + self._lines},-;{text}\n")

    def flaps(self, times: int) -> None:
        """How often the port's link was lost since the boot."""
        self.host.path(f"{PORT}/counters/link_downed").write_text(f"{times}\n")

    def carries(self, nbytes: int) -> None:
        """What the port has sent since the boot."""
        for name, words in {"port_rcv_data": 0, "port_xmit_data": nbytes // 4}.items():
            self.host.path(f"{PORT}/counters/{name}").write_text(f"{words}\n")

    def goes_down(self) -> None:
        """The port's link is lost for now."""
        self.flaps(1)
        self.host.path(f"{PORT}/state").write_text("1: DOWN\n")
