"""How long a scrape of a large job takes, and what it costs the controller.

``python -m benchmarks.metrics``: simulated agents speak the real protocol to the real controller
(``benchmarks.controller_scale``), whose page is scraped as Prometheus does it, compressed, over the
loopback.
"""

from __future__ import annotations

import gzip
import http.client
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from benchmarks import common
from benchmarks.controller_scale import SETTLE_S, SPARES, job_of
from slurm_robust.config.job import Timings
from slurm_robust.controller.metrics import ScrapeTarget
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import read
from slurm_robust.policy.liveness import beacon_interval
from slurm_robust.telemetry.job import page

NODES = (8, 1200)
SCRAPES = 100
EVERY_S = 1.3
RENDERED = 20
FIGURES = ("p50_ms", "p99_ms", "longest_ms", "render_ms", "compress_ms", "bytes", "sent_bytes", "series")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/metrics.json."""
    options = common.parser(__doc__, 1)
    options.add_argument("--nodes", type=int, nargs="+", default=NODES, help="of the simulated jobs")
    options.add_argument("--scrapes", type=int, default=SCRAPES, help=f"of each job (default: {SCRAPES})")
    chosen = options.parse_args(argv)
    runs = [measure(nodes, chosen.scrapes) for nodes in chosen.nodes for _ in range(chosen.reps)]
    path = common.write("metrics", {"machine": common.machine(), "runs": runs})
    table = common.table("A scrape of a job's metrics", "")
    for run in runs:
        table.add_column(f"{run['nodes']:.0f} nodes", justify="right")
    for name in FIGURES:
        table.add_row(name, *(f"{run[name]:,.1f}" for run in runs))
    common.console().print(table)
    print(f"written to {path}", file=sys.stderr)
    return 0


def measure(nodes: int, scrapes: int) -> dict[str, float]:
    """One job that trains, a second per step."""
    with job_of(nodes, SPARES, 1.0, 1.0, beacon_interval(Timings().verdict_s, nodes + SPARES)) as job:
        job.wait("Running")
        time.sleep(SETTLE_S)
        directory = JobDirectory(job.folder)
        ((place,),) = (each.targets for each in _targets(directory.metrics))
        took, sent, plain = [], b"", b""
        for _ in range(scrapes):
            time.sleep(EVERY_S)
            begun = time.perf_counter()
            sent = scrape(place)
            took.append(1e3 * (time.perf_counter() - begun))
        plain = gzip.decompress(sent)
        moment = read(directory.live_status)
    rendered, compressed = [], []
    for _ in range(RENDERED):
        begun = time.thread_time()
        made = page(moment)
        between = time.thread_time()
        gzip.compress(made, 1)
        rendered.append(1e3 * (between - begun))
        compressed.append(1e3 * (time.thread_time() - between))
    took.sort()
    return {
        "nodes": nodes,
        "p50_ms": statistics.median(took),
        "p99_ms": took[min(len(took) - 1, int(0.99 * len(took)))],
        "longest_ms": took[-1],
        "render_ms": statistics.median(rendered),
        "compress_ms": statistics.median(compressed),
        "bytes": len(plain),
        "sent_bytes": len(sent),
        "series": sum(not line.startswith(b"#") for line in plain.splitlines()),
    }


def scrape(place: str) -> bytes:
    """The page as Prometheus asks for it. Raises :class:`common.BenchmarkFailed` for anything else."""
    with closing(http.client.HTTPConnection(place, timeout=10)) as connection:
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        body = answer.read()
    if answer.status != 200:
        raise common.BenchmarkFailed(f"{answer.status} {answer.reason}")
    return body


def _targets(path: Path) -> tuple[ScrapeTarget, ...]:
    return msgspec.json.decode(path.read_bytes(), type=tuple[ScrapeTarget, ...])


if __name__ == "__main__":
    sys.exit(main())
