"""InfiniBand and RoCE: state, rate, errors and losses of the ports in ``/sys/class/infiniband``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from slurm_robust.config.node import NetworkLimits, NodeConfig
from slurm_robust.kernel import pci
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Effect, Finding, Outcome, Party, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import EVERYWHERE, SETTLED_S, AnyCheck, Check, Probe, Source, View, judged
from slurm_robust.nodes.counters import HOUR_S, flaps, grown, ignored, lasts, readings

SYSFS = "/sys/class/infiniband"
ACTIVE = "ACTIVE"
_UNTOLD = ("", "NOP", "UNKNOWN")
"""States that the kernel writes if the driver tells none."""

_CABLED = ("LinkUp", "LinkErrorRecovery", "PortConfigurationTraining")
"""Physical states that need a peer at the other end of the cable; Polling has none yet, or none at all."""


class Port(Record, omit_defaults=True):
    """One port."""

    state: str
    physical: str = ""
    rate_gb: float | None = None
    """In Gb/s."""

    layer: str = ""
    card: str = ""
    """The board's type."""

    netdev: str = ""
    """The interface of a RoCE port."""

    counters: dict[str, int] | None = None
    """Error counters by their names in ``/sys``, without those that are 0; None if there are none."""

    nbytes: int | None = None
    """Received and sent since it counts; None if that is not reported."""


class InfinibandFacts(Record):
    """Ports, and the adapters that they are on."""

    ports: dict[str, Port] = {}
    """By name (``mlx5_0/1``)."""

    driven: tuple[str, ...] = ()
    """PCI addresses of adapters with a driver."""

    undriven: tuple[str, ...] = ()
    """Addresses of adapters without a driver."""


class Counter(Record):
    """An error counter."""

    bits: int
    """Its width, at whose end it stands still."""

    meaning: str
    suggestion: Suggestion
    """What to do about too many of them."""


LOST = "link_downed"
SYMBOL = "symbol_error"
DATA = ("port_rcv_data", "port_xmit_data")
_WORD = 4  # bytes, in which they count
_DATA_END = 2**32 - 1  # at which those of old adapters, which have 32 bits, stand still
# The widths are those of PortCounters in the InfiniBand specification, which the kernel passes on.
ERRORS = {
    SYMBOL: Counter(bits=16, meaning="symbol errors", suggestion=Suggestion.RESET),
    "link_error_recovery": Counter(bits=8, meaning="link error recoveries", suggestion=Suggestion.RESET),
    "local_link_integrity_errors": Counter(
        bits=4, meaning="link integrity errors", suggestion=Suggestion.RESET
    ),
    "port_rcv_errors": Counter(bits=16, meaning="receive errors", suggestion=Suggestion.MONITOR),
    "excessive_buffer_overrun_errors": Counter(
        bits=4, meaning="buffer overruns", suggestion=Suggestion.MONITOR
    ),
    "VL15_dropped": Counter(bits=16, meaning="dropped management packets", suggestion=Suggestion.MONITOR),
}


def gather(host: Host, config: NodeConfig) -> InfinibandFacts:
    """Read all ports but those that the site ignores."""
    ports: dict[str, Port] = {}
    for device in host.names(SYSFS):
        card = host.read_or(f"{SYSFS}/{device}/board_id") or host.read_or(f"{SYSFS}/{device}/hca_type")
        for number in host.names(f"{SYSFS}/{device}/ports"):
            name = f"{device}/{number}"
            if not _is_ignored(config.network, name):
                ports[name] = _read_port(host, f"{SYSFS}/{device}/ports/{number}", card)
    driven, undriven = _adapters(host)
    return InfinibandFacts(ports=ports, driven=driven, undriven=undriven)


def _read_port(host: Host, folder: str, card: str) -> Port:
    counters = {name: host.number(f"{folder}/counters/{name}") for name in (LOST, *ERRORS)}
    rate = host.read_or(f"{folder}/rate").split()
    return Port(
        state=host.read_or(f"{folder}/state").rpartition(": ")[2],
        physical=host.read_or(f"{folder}/phys_state").rpartition(": ")[2],
        rate_gb=float(rate[0]) if rate and rate[0].replace(".", "", 1).isdecimal() else None,
        layer=host.read_or(f"{folder}/link_layer"),
        card=card,
        netdev=host.read_or(f"{folder}/gid_attrs/ndevs/0"),
        counters=None
        if set(counters.values()) == {None}
        else {name: value for name, value in counters.items() if value},
        nbytes=_carried(host, folder),
    )


def _carried(host: Host, folder: str) -> int | None:
    counts = [host.number(f"{folder}/counters/{name}") for name in DATA]
    known = [count for count in counts if count is not None and count != _DATA_END]
    return _WORD * sum(known) if len(known) == len(counts) else None


def _adapters(host: Host) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return adapters with and without a driver. Mellanox's Ethernet ones need none for InfiniBand."""
    driven, undriven = [], []
    for device in pci.devices(host):
        if not device.kind.startswith(pci.NETWORK):
            continue
        if host.names(f"{pci.DEVICES}/{device.address}/infiniband"):
            driven.append(device.address)
        elif not device.driver and (device.kind == pci.INFINIBAND or device.vendor == pci.MELLANOX):
            undriven.append(device.address)
    return tuple(driven), tuple(undriven)


def judge_state(view: View[InfinibandFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find ports that must be up and adapters that must have a driver."""
    for name, why in _wanted(view, config.network).items():
        yield _state(view, name, view.facts.ports.get(name), why)
    known = view.baseline.driven if view.baseline else ()
    for address in view.facts.undriven:
        was_driven = address in known
        yield Finding(
            check="infiniband.state",
            subject=address,
            outcome=Outcome.FAIL if was_driven else Outcome.UNKNOWN,
            text="no driver is bound to this network adapter",
            value="no driver",
            limit="a driver, as in the baseline" if was_driven else "",
            source=f"{pci.DEVICES}/{address}",
            blame=Party.SITE,
            suggestion=Suggestion.RESET if was_driven else Suggestion.NONE,
        )


def _wanted(view: View[InfinibandFacts], limits: NetworkLimits) -> dict[str, str]:
    """Return ports to judge with the reason for which they should be up; empty if there is none."""
    if limits.infiniband:
        return dict.fromkeys(limits.infiniband, "configured")
    wanted = dict.fromkeys(view.facts.ports, "")
    if view.baseline:
        recorded = view.baseline.ports.items()
        active = [name for name, port in recorded if port.state == ACTIVE and not _is_ignored(limits, name)]
        return wanted | dict.fromkeys(active, "as in the baseline")
    for name, port in view.facts.ports.items():
        # A link that was lost had been there; one that was never there may have no cable.
        was_up = any(was for _, was in readings(view, partial(_is_active, name=name)))
        if was_up or ((port.counters or {}).get(LOST) and port.physical != "Disabled"):
            wanted[name] = "as before in this boot"
    return wanted


def _is_ignored(limits: NetworkLimits, name: str) -> bool:
    return ignored(limits, name, name.partition("/")[0])


def _is_active(facts: InfinibandFacts, name: str) -> bool:
    return name in facts.ports and facts.ports[name].state == ACTIVE


def _state(view: View[InfinibandFacts], name: str, port: Port | None, why: str) -> Finding:
    about = partial(judged, "infiniband.state", subject=name, source=f"{_files(name)}/state")
    limit = f"{ACTIVE}, {why}"
    if port is None:
        return about("the port is gone", value="none", limit=limit, suggestion=Suggestion.REBOOT)
    value = f"{port.state or 'no state'}, {port.physical or 'no physical state'}"
    if port.state == ACTIVE:
        return about("", value=value, limit="")
    minutes = int(_lasts(view, name, port)) // 60
    is_old = minutes * 60 >= SETTLED_S
    lasting = f" for {minutes} minutes or more" if is_old else ""
    value += lasting
    if port.state in _UNTOLD:
        if why and is_old:
            bad = f"the driver tells no state for {minutes} minutes: jobs cannot rely on the port"
            return about(bad, value=value, limit=limit, suggestion=Suggestion.RESET)
        return Finding(
            check="infiniband.state",
            subject=name,
            outcome=Outcome.UNKNOWN,
            text="the driver does not tell the state",
            value=value,
            source=f"{_files(name)}/state",
        )
    is_infiniband = port.layer != "Ethernet"
    if not why:
        # A port that the baseline knows as not ACTIVE is meant to be so.
        is_meant = view.baseline is not None and name in view.baseline.ports
        is_stuck = is_old and is_infiniband and port.physical in _CABLED and not is_meant
        bad = f"cabled, but {port.state} for {minutes} minutes: NCCL and MPI cannot use it"
        value = value if is_stuck else f"{value}, not in use"
        return about(bad if is_stuck else "", value=value, limit="", blame=Party.FABRIC)
    is_linked = port.physical == "LinkUp" and is_infiniband
    link = f"link of {port.netdev}" if port.netdev else "link"
    bad = (
        f"port is {port.state}{lasting}: no subnet manager has set it up"
        if is_linked
        else f"{link} is {value}"
    )
    return about(bad, value=value, limit=limit, blame=Party.FABRIC, suggestion=Suggestion.RESET)


def _lasts(view: View[InfinibandFacts], name: str, port: Port) -> float:
    """Return for how many seconds at least this boot's runs saw the port as it is: told, and cabled."""

    def is_same(facts: InfinibandFacts) -> bool:
        known = facts.ports.get(name)
        return known is not None and _kind(known) == _kind(port)

    return lasts(view, is_same)


def _kind(port: Port) -> tuple[bool, bool, bool]:
    return port.state == ACTIVE, port.state in _UNTOLD, port.physical in _CABLED


def judge_rate(view: View[InfinibandFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find ports that are slower than they should be."""
    ports = view.facts.ports
    for name, port in ports.items():
        if port.state != ACTIVE or port.rate_gb is None or not _is_judged(config.network, name):
            continue
        limit, why = _rate_limit(view, config.network, name, port)
        is_slow = limit is not None and port.rate_gb < limit
        # Cards of one type need not be cabled alike: without a record that is a hint only.
        is_sure = why != "of the same cards"
        yield judged(
            "infiniband.rate",
            f"{port.rate_gb:g} Gb/s instead of {limit:g}" if is_slow else "",
            subject=name,
            value=f"{port.rate_gb:g} Gb/s",
            limit="" if limit is None else f"{limit:g} Gb/s, {why}",
            source=f"{_files(name)}/rate",
            suggestion=Suggestion.RESET if is_sure else Suggestion.MONITOR,
            blame=Party.FABRIC,
        )


def _is_judged(limits: NetworkLimits, name: str) -> bool:
    return not limits.infiniband or name in limits.infiniband


def _rate_limit(
    view: View[InfinibandFacts], limits: NetworkLimits, name: str, port: Port
) -> tuple[float | None, str]:
    if limits.min_rate_gb is not None and (limits.infiniband or port.layer == "InfiniBand"):
        return limits.min_rate_gb, "configured"
    recorded = view.baseline.ports.get(name) if view.baseline else None
    if recorded:
        return recorded.rate_gb if recorded.state == ACTIVE else None, "as in the baseline"
    same = [
        other.rate_gb
        for other in view.facts.ports.values()
        if (other.card, other.layer, other.state) == (port.card, port.layer, ACTIVE) and other.rate_gb
    ]
    return max(same) if port.card else None, "of the same cards"


def judge_errors(view: View[InfinibandFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find error counters that rose by more than is allowed within the last hour."""
    limits = config.network
    for name, port in view.facts.ports.items():
        if port.counters is None or not _is_judged(limits, name):
            continue
        found = [*_too_many(name, _tracks(view, name), view.at, limits)]
        source = f"{_files(name)}/errors"
        if stuck := [at for at, about in ERRORS.items() if port.counters.get(at) == 2**about.bits - 1]:
            found.append(
                Finding(
                    check="infiniband.errors",
                    subject=name,
                    outcome=Outcome.UNKNOWN,
                    text=f"{', '.join(stuck)} cannot count on; clear with perfquery -R",
                    value="at its end",
                    source=source,
                )
            )
        yield from found or [judged("infiniband.errors", "", subject=name, value="", limit="", source=source)]


def _tracks(view: View[InfinibandFacts], name: str) -> list[tuple[float, dict[str, int]]]:
    return readings(view, lambda facts: facts.ports[name].counters if name in facts.ports else None)


def _too_many(
    name: str, tracks: Sequence[tuple[float, dict[str, int]]], now: float, limits: NetworkLimits
) -> Iterator[Finding]:
    newest = tracks[-1][1]
    # Nearly always nothing rose anywhere, and then nothing needs to be added up.
    if all(counters == newest for _, counters in tracks):
        return
    for counter, about in ERRORS.items():
        rose = grown([(at, counters.get(counter, 0)) for at, counters in tracks], HOUR_S, now)
        limit = limits.max_symbol_errors_per_hour if counter == SYMBOL else limits.max_port_errors_per_hour
        if rose > limit:
            yield judged(
                "infiniband.errors",
                f"{rose} {about.meaning} within an hour",
                subject=name,
                value=f"{rose} per hour",
                limit=f"{limit} per hour",
                source=f"{_files(name)}/counters/{counter}",
                suggestion=about.suggestion,
                blame=Party.FABRIC,
            )


def judge_flaps(view: View[InfinibandFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find links that were lost and came back."""
    limits = config.network
    for name, port in view.facts.ports.items():
        if port.counters is None or not _is_judged(limits, name):
            continue
        track = [(at, counters.get(LOST, 0)) for at, counters in _tracks(view, name)]
        yield flaps("infiniband.flaps", name, track, view.at, limits, f"{_files(name)}/counters/{LOST}")


def _files(name: str) -> str:
    return f"{SYSFS}/{name.replace('/', '/ports/')}"


SOURCE = Source(
    name="infiniband", facts=InfinibandFacts, gather=gather, timeout_s=5.0, fresh_s=60.0, history_s=HOUR_S
)

CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="infiniband.state",
        source=SOURCE,
        judge=judge_state,
        effect=Effect.LINK_DOWN,
        written_by=Writer.PEER,
        contexts=EVERYWHERE,
        probe=Probe.NETWORK,
        hangs=True,
        explain="Ports of InfiniBand and RoCE adapters must be ACTIVE: those that network.infiniband "
        "names, else those of the baseline, else those that were up before in this boot. A port that is "
        "DOWN has lost its cable or its neighbour; one that stays in INIT waits for the subnet manager. One "
        "that has a peer and was not ACTIVE for 15 minutes is reported, though no run saw it in use: name it "
        "in network.ignore where that is meant. Look at the cable, the switch port and ibstat. "
        "An adapter on the PCI bus without a driver is "
        "reported, too: load mlx5_core and mlx5_ib, or look for their error in dmesg.",
    ),
    Check(
        name="infiniband.rate",
        source=SOURCE,
        judge=judge_rate,
        effect=Effect.LINK_DOWN,
        written_by=Writer.PEER,
        contexts=EVERYWHERE,
        probe=Probe.NETWORK,
        explain="An active port must have the rate of network.min_rate_gb, else of the baseline. Without "
        "either a port that is slower than others of the same card type is reported, and jobs go on. One "
        "bad lane makes a link fall back to a lower speed or width, and every collective then waits for "
        "it. Reseat or clean the cable, then reset the port (ibportstate).",
    ),
    Check(
        name="infiniband.errors",
        source=SOURCE,
        judge=judge_errors,
        written_by=Writer.PEER,
        contexts=EVERYWHERE,
        probe=Probe.NETWORK,
        explain="Error counters of each port may rise by so much per hour: symbol errors by "
        "network.max_symbol_errors_per_hour, any other by network.max_port_errors_per_hour. Symbol "
        "errors, recoveries and integrity errors are those of a bad cable or transceiver, and keep jobs "
        "away; receive errors, overruns and dropped management packets often begin elsewhere and are only "
        "reported. What was counted before the first run in this boot does not matter. A counter at the "
        "end of its range is unknown until it is cleared (perfquery -R).",
    ),
    Check(
        name="infiniband.flaps",
        source=SOURCE,
        judge=judge_flaps,
        warns_training=True,
        written_by=Writer.PEER,
        contexts=EVERYWHERE,
        probe=Probe.NETWORK,
        explain="How often a link was lost within an hour (link_downed). Once is reported; twice within "
        "network.flap_window_s, or more than network.max_link_downed_per_hour, keeps jobs away, because "
        "each loss stalls or ends the jobs that use it. Look at cable, transceiver and switch port.",
    ),
)
