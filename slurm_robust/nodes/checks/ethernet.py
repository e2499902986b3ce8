"""Ethernet: state, speed, MTU, errors and losses of the physical interfaces in ``/sys/class/net``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from slurm_robust.config.node import NetworkLimits, NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Effect, Finding, Party, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import EVERYWHERE, AnyCheck, Check, Probe, Source, View, judged
from slurm_robust.nodes.counters import HOUR_S, flaps, grown, ignored, readings

V = TypeVar("V")

SYSFS = "/sys/class/net"
_ARPHRD_ETHER = 1
_IFF_UP = 1
_UNKNOWN_SPEED = 2**31 - 1  # Drivers tell -1, with or without its sign.

DATA = ("rx_bytes", "tx_bytes")
CRC = "rx_crc_errors"
ERRORS = {CRC: "CRC errors", "rx_errors": "receive errors", "tx_errors": "transmit errors"}


class Interface(Record, omit_defaults=True):
    """One interface."""

    is_up: bool
    """As an administrator set it."""

    carrier: bool | None = None
    """Whether the link is there; None if the driver does not say."""

    gained: int | None = None
    """How often the link came since the driver was loaded."""

    lost: int | None = None
    """How often it went."""

    speed_mb: int | None = None
    """In Mb/s."""

    mtu: int | None = None
    errors: dict[str, int] = {}
    """Counters by their names in ``/sys``, without those that are 0."""

    nbytes: int | None = None
    """Received and sent."""

    @property
    def has_link(self) -> bool:
        """Whether packets can pass, by what the driver knows."""
        return self.is_up and self.carrier is not False


class EthernetFacts(Record):
    """Interfaces by name."""

    interfaces: dict[str, Interface] = {}


def gather(host: Host, config: NodeConfig) -> EthernetFacts:
    """Read physical interfaces, and those that the site names."""
    named = config.network.ethernet
    names = [
        name
        for name in host.names(SYSFS)
        if name in named or (_is_physical(host, name) and not ignored(config.network, name))
    ]
    return EthernetFacts(interfaces={name: _read(host, name) for name in names})


def _is_physical(host: Host, name: str) -> bool:
    """Return whether it has a port: it is no bridge, virtual function, IPoIB or USB link to the BMC."""
    device = host.path(f"{SYSFS}/{name}/device")
    return (
        device.is_symlink()
        and host.number(f"{SYSFS}/{name}/type") == _ARPHRD_ETHER
        and not (device / "physfn").is_symlink()
        and "/usb" not in os.path.realpath(device)
    )


def _read(host: Host, name: str) -> Interface:
    folder = f"{SYSFS}/{name}"
    # Reading the carrier or the speed of an interface that is down is an error.
    carrier, speed = host.number(f"{folder}/carrier"), host.number(f"{folder}/speed")
    errors = {error: host.number(f"{folder}/statistics/{error}") for error in ERRORS}
    carried = [host.number(f"{folder}/statistics/{name}") for name in DATA]
    return Interface(
        is_up=bool((host.number(f"{folder}/flags") or 0) & _IFF_UP),
        carrier=None if carrier is None else bool(carrier),
        gained=host.number(f"{folder}/carrier_up_count"),
        lost=host.number(f"{folder}/carrier_down_count"),
        speed_mb=speed if speed and 0 < speed < _UNKNOWN_SPEED else None,
        mtu=host.number(f"{folder}/mtu"),
        errors={error: value for error, value in errors.items() if value},
        nbytes=None if None in carried else sum(filter(None, carried)),
    )


def judge_state(view: View[EthernetFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find interfaces that must have a link and have none."""
    for name, why in _wanted(view, config.network).items():
        interface = view.facts.interfaces.get(name)
        bad, value, blame, suggestion = "", "not in use", Party.NODE, Suggestion.RESET
        if interface is None:
            bad, value, suggestion = "the interface is gone", "none", Suggestion.REBOOT
        elif interface.has_link:
            value = "up"
        elif why and interface.is_up:
            bad, value = "no link: cable, switch port or neighbour", "no carrier"
            blame = Party.FABRIC
        elif why:
            bad, value, blame = "interface is set down", "down", Party.SITE
        yield judged(
            "ethernet.state",
            bad,
            subject=name,
            value=value,
            limit=f"up, {why}" if bad else "",
            source=f"{SYSFS}/{name}/carrier",
            suggestion=suggestion,
            blame=blame,
        )


def _wanted(view: View[EthernetFacts], limits: NetworkLimits) -> dict[str, str]:
    """Return the interfaces to judge with the reason for which they should be up; empty if there is none."""
    if limits.ethernet:
        return dict.fromkeys(limits.ethernet, "configured")
    wanted = dict.fromkeys(view.facts.interfaces, "")
    if view.baseline:
        recorded = view.baseline.interfaces.items()
        linked = [name for name, old in recorded if old.has_link and not ignored(limits, name)]
        return wanted | dict.fromkeys(linked, "as in the baseline")
    for name, interface in view.facts.interfaces.items():
        # A link that was lost had been there; one that was never there may have no cable.
        was_up = any(had for _, had in _track(view, name, lambda one: one.has_link))
        if was_up or (interface.is_up and (interface.gained or 0) > 0):
            wanted[name] = "as before in this boot"
    return wanted


def _track(
    view: View[EthernetFacts], name: str, read: Callable[[Interface], V | None]
) -> list[tuple[float, V]]:
    """Return what ``read`` says of the interface over this boot; runs that did not see it are left out."""
    seen = readings(view, lambda facts: facts.interfaces.get(name))
    return [(at, value) for at, one in seen if (value := read(one)) is not None]


def judge_speed(view: View[EthernetFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find interfaces that agreed with their neighbours on less than in the baseline."""
    for name, interface, old in _pairs(view, config.network):
        if interface.speed_mb is None or old.speed_mb is None or not interface.has_link:
            continue
        is_slow = interface.speed_mb < old.speed_mb
        yield judged(
            "ethernet.speed",
            f"{interface.speed_mb} Mb/s instead of {old.speed_mb}" if is_slow else "",
            subject=name,
            value=f"{interface.speed_mb} Mb/s",
            limit=f"{old.speed_mb} Mb/s, as in the baseline",
            source=f"{SYSFS}/{name}/speed",
            suggestion=Suggestion.RESET,
            blame=Party.FABRIC,
        )


def judge_mtu(view: View[EthernetFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find interfaces whose largest packet is not that of the baseline."""
    for name, interface, old in _pairs(view, config.network):
        if interface.mtu is None or old.mtu is None:
            continue
        yield judged(
            "ethernet.mtu",
            f"MTU {interface.mtu} instead of {old.mtu}" if interface.mtu != old.mtu else "",
            subject=name,
            value=f"{interface.mtu} bytes",
            limit=f"{old.mtu} bytes, as in the baseline",
            source=f"{SYSFS}/{name}/mtu",
            blame=Party.SITE,
        )


def judge_errors(view: View[EthernetFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find error counters that rose by more than is allowed within the last hour."""
    limit = config.network.max_ethernet_errors_per_hour
    for name in _judged(view, config.network):
        tracks = _track(view, name, lambda one: one.errors)
        source = f"{SYSFS}/{name}/statistics"
        found = [
            judged(
                "ethernet.errors",
                f"{rose} {noun} within an hour",
                subject=name,
                value=f"{rose} per hour",
                limit=f"{limit} per hour",
                source=f"{source}/{error}",
                # Damaged frames speak of this very link; the other kinds also count what neighbours send.
                suggestion=Suggestion.RESET if error == CRC else Suggestion.MONITOR,
                blame=Party.FABRIC,
            )
            for error, noun in ERRORS.items()
            if (rose := grown([(at, seen.get(error, 0)) for at, seen in tracks], HOUR_S, view.at)) > limit
        ]
        yield from found or [judged("ethernet.errors", "", subject=name, value="", limit="", source=source)]


def judge_flaps(view: View[EthernetFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find links that were lost and came back."""
    for name, interface in _judged(view, config.network).items():
        if interface.lost is None:
            continue
        track = _track(view, name, lambda one: one.lost)
        source = f"{SYSFS}/{name}/carrier_down_count"
        yield flaps("ethernet.flaps", name, track, view.at, config.network, source)


def _judged(view: View[EthernetFacts], limits: NetworkLimits) -> dict[str, Interface]:
    named = limits.ethernet
    return {name: found for name, found in view.facts.interfaces.items() if not named or name in named}


def _pairs(view: View[EthernetFacts], limits: NetworkLimits) -> Iterator[tuple[str, Interface, Interface]]:
    recorded = view.baseline.interfaces if view.baseline else {}
    for name, interface in _judged(view, limits).items():
        if name in recorded:
            yield name, interface, recorded[name]


SOURCE = Source(name="ethernet", facts=EthernetFacts, gather=gather, history_s=HOUR_S)

CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="ethernet.state",
        source=SOURCE,
        judge=judge_state,
        effect=Effect.LINK_DOWN,
        written_by=Writer.PEER,
        contexts=EVERYWHERE,
        probe=Probe.NETWORK,
        hangs=True,
        explain="Physical Ethernet interfaces must have a link: those that network.ethernet names (these "
        "may also be bonds or bridges), else those of the baseline, else those that had one before in "
        "this boot. Look at the cable and the switch port; `ethtool IF` tells what the driver sees. Name "
        "interfaces that do not matter in network.ignore.",
    ),
    Check(
        name="ethernet.speed",
        source=SOURCE,
        judge=judge_speed,
        effect=Effect.LINK_DOWN,
        written_by=Writer.PEER,
        contexts=EVERYWHERE,
        probe=Probe.NETWORK,
        explain="An interface must have at least the speed of the baseline. A bad cable or transceiver "
        "makes it agree on less with the switch. Reseat or replace it; record a new baseline if the "
        "change was meant.",
    ),
    Check(
        name="ethernet.mtu",
        source=SOURCE,
        judge=judge_mtu,
        written_by=Writer.ROOT,
        contexts=EVERYWHERE,
        probe=Probe.NETWORK,
        explain="The largest packet (MTU) must be that of the baseline. Nodes with different ones can "
        "talk in small packets, and hang in large ones.",
    ),
    Check(
        name="ethernet.errors",
        source=SOURCE,
        judge=judge_errors,
        written_by=Writer.PEER,
        contexts=EVERYWHERE,
        probe=Probe.NETWORK,
        explain="Error counters may rise by network.max_ethernet_errors_per_hour. Frames with a wrong "
        "checksum (CRC) are those of this link's cable or transceiver, and keep jobs away; other errors "
        "are reported. What was counted before the first run in this boot does not matter.",
    ),
    Check(
        name="ethernet.flaps",
        source=SOURCE,
        judge=judge_flaps,
        warns_training=True,
        written_by=Writer.PEER,
        contexts=EVERYWHERE,
        probe=Probe.NETWORK,
        explain="How often a link was lost within an hour (carrier_down_count). Once is reported; twice "
        "within network.flap_window_s, or more than network.max_link_downed_per_hour, keeps jobs away. "
        "Look at cable, transceiver and switch port.",
    ),
)
