"""Plan a run on this host: its ranks, the division of a batch, and the reason for each choice, without torch."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from noether import __version__
from noether.config.distributed import DistributedConfig, with_environment
from noether.config.schema import RunConfig
from noether.config.section import flat
from noether.launch.batches import BatchPlan, plan_batches
from noether.launch.detect.driver import nvml_gpus
from noether.launch.detect.endpoint import check_interfaces
from noether.launch.detect.identity import RunIdentity, configuration_digest, job_name, run_key, shared_settings
from noether.launch.detect.limits import check_processes, check_shared_memory, most_processes, shared_memory_size
from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.process_facts import ProcessFacts, read_process_facts
from noether.launch.detect.resolve import resolve_placement
from noether.launch.processes.context import RunInfo
from noether.launch.processes.spawner import start_methods

ROWS_SHOWN = 16
"""The maximum number of ranks in the printed table; the JSON output lists every rank."""


@dataclass(frozen=True)
class RunPlan:
    """The placement of a run's ranks, with the reasons for it, and the division of a batch among the ranks."""

    placement: Placement
    batch: BatchPlan

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as data for JSON; the key "workers" lists the ranks that this process is responsible for."""
        placement = self.placement
        return {
            "launcher": placement.launcher, "world_size": placement.world_size, "nodes": list(placement.nodes),
            "node_rank": placement.node_rank,
            "endpoint": {"host": placement.endpoint.host, "port": placement.endpoint.port},
            "restarts": placement.restarts,
            "workers": [{**asdict(worker), "device": str(worker.device)} for worker in placement.workers],
            "batch": asdict(self.batch), "threads": asdict(placement.cpus) if placement.cpus else None,
            "reasons": dict(placement.reasons), "warnings": list(placement.warnings),
        }  # fmt: skip


def launch_request(config: RunConfig, visible_devices: str | None = None) -> LaunchRequest:
    """Return the part of the settings that concerns the launch."""
    return LaunchRequest(
        accelerator=config.accelerator, devices=config.devices, visible_devices=visible_devices,
        nodes=config.nodes, node_rank=config.node_rank,
        master_addr=config.master_addr, master_port=config.master_port,
    )  # fmt: skip


def place(
    config: RunConfig, environ: Mapping[str, str], visible_devices: str | None = None, facts: ProcessFacts | None = None
) -> Placement:
    """Return the placement of this process in a run with these settings; the arguments are those of `plan_run`."""
    facts = read_process_facts() if facts is None else facts
    driver = partial(nvml_gpus, config.distributed.driver_timeout_s)
    return resolve_placement(launch_request(config, visible_devices), environ, socket.gethostname(), driver, facts)


def run_info(
    config: RunConfig | None, placement: Placement, environ: Mapping[str, str], script: Sequence[str] = ()
) -> RunInfo:
    """Return the information that all ranks of a run share, without reading the variables that `plan_run` checks.

    If `config` is None because the settings are invalid, the result contains only what is known without settings.
    `script`: the script that runs instead of noether's own training, and its arguments.
    """
    settings = config.model_dump(mode="json") if config is not None else {}
    if script and config is not None:
        settings = {"nodes": config.nodes, "script": list(script)}
    versions = {"noether": __version__, "torch": version("torch")}
    digest, kind = configuration_digest(settings), placement.workers[0].device.kind
    job = job_name(placement.launcher, environ)
    identity = RunIdentity(placement.launcher, placement.world_size, placement.restarts, digest, kind, job)
    return RunInfo(
        identity,
        key=run_key(settings, environ),
        start_key=run_key({}, environ),
        distributed=config.distributed if config is not None else DistributedConfig(),
        shared_folder=config.output_path.expanduser().absolute() if config is not None else None,
        settings={**versions, **dict(flat(shared_settings(settings)))} if settings else {},
    )


def share_batch(config: RunConfig, placement: Placement) -> BatchPlan:
    """Return how the ranks share a batch. RequestError: it cannot be shared equally."""
    limit = config.trainer.max_batch_size
    # For "auto", the limit is found later, by trials on the device; until then, the plan assumes no limit.
    known = limit if isinstance(limit, int) else None
    return plan_batches(config.trainer.effective_batch_size, known, placement.world_size)


def _check_interfaces(config: RunConfig, placement: Placement) -> None:
    if placement.world_size > 1 and (config.distributed.cpu_collectives or placement.workers[0].device.kind != "cuda"):
        check_interfaces(os.environ)  # On GPUs, NCCL reads its own variable.


HOST_CHECKS: dict[str, Callable[[RunConfig, Placement], object]] = {
    "processes": lambda _, placement: check_processes(len(placement.workers), most_processes()),
    "loaders": lambda config, placement: check_shared_memory(
        config.num_workers, placement.local_world_size, shared_memory_size()
    ),
    "batch": share_batch,
    "timeout": lambda config, _: with_environment(config.distributed, os.environ),
    "interface": _check_interfaces,
    "start method": lambda _, placement: start_methods(os.environ) if len(placement.workers) > 1 else None,
}
"""The checks of a placed run on its own host, each of which may refuse it; `noether doctor` shows them all."""


def plan_run(
    config: RunConfig,
    *,
    visible_devices: str | None = None,
    environ: Mapping[str, str] = os.environ,
    facts: ProcessFacts | None = None,
) -> RunPlan:
    """Plan a run from its configuration and from the environment of this process.

    `visible_devices`: the device mask of another machine, to plan for it. `facts`: facts about this process, or None.
    """
    placement = place(config, environ, visible_devices, facts)
    reasons = dict(placement.reasons)
    if visible_devices is None:
        for check in HOST_CHECKS.values():
            check(config, placement)
    trainer, batch = config.trainer, share_batch(config, placement)
    limit, steps = trainer.max_batch_size, batch.accumulation_steps
    reasons["batch"] = f"trainer.max_batch_size={limit}"
    if limit is None:
        reasons["batch"] = "no trainer.max_batch_size: each rank processes its whole share at once"
    elif limit == "auto":
        reasons["batch"] += ": found at the start, the largest that fits beside the optimiser's state"
    elif steps > 1:
        reasons["batch"] += f": {batch.per_rank} samples per rank do not fit, so {steps} micro-batches are accumulated"
    recipe = config.recipe
    if recipe is not None and recipe.of_the_data and recipe.max_updates == trainer.max_updates:
        reasons["length"] = f"{recipe.max_updates:,} updates of {batch.effective} cases, {recipe.reason}"
        reasons |= config.model.reasons()
    if placement.workers[0].device.kind == "cuda" and trainer.precision == "float32":
        reasons["products"] = "in TF32, of factors rounded to 10 bits; trainer.tf32=false: in float32"
        if not trainer.tf32:
            reasons["products"] = "in float32 (trainer.tf32=false), at a fraction of the rate of TF32"
    return RunPlan(replace(placement, reasons=reasons), batch)


def render_placement(placement: Placement, batch: BatchPlan | None = None, *, every_reason: bool = True) -> list[Any]:
    """Render the ranks, their shares of the batch, and the reasons, with rich.

    `batch` is None if a script divides its own batch. With `every_reason=False`, a local run gets one line of reasons.
    """
    nodes = f" on {len(placement.nodes)} nodes" if len(placement.nodes) > 1 else f" on {placement.host}"
    ranks = "1 rank" if placement.world_size == 1 else f"{placement.world_size} ranks"
    headline = Text.assemble((f"{placement.launcher}: {ranks}{nodes}", "bold"))
    # Long names are folded, because a narrow terminal would otherwise cut them off.
    names, share = ["rank", "host", "local rank", "device"], list[str]()
    if batch is not None:
        names, steps = [*names, "samples per update"], batch.accumulation_steps
        share = [f"{batch.per_rank}" + (f" in {steps} micro-batches" if steps > 1 else "")]
    table = Table(*(Column(name, overflow="fold") for name in names), box=None, padding=(0, 3, 0, 0))
    for worker in placement.workers[:ROWS_SHOWN]:
        host = placement.nodes[worker.node_rank]
        table.add_row(str(worker.rank), host, str(worker.local_rank), str(worker.device), *share)
    if len(placement.workers) > ROWS_SHOWN:
        table.add_row("…", "", "", f"{len(placement.workers) - ROWS_SHOWN} more")
    warnings = [Text(f"warning: {warning}", style="yellow") for warning in placement.warnings]
    shown = [headline, table, *([batch.describe(placement.world_size)] if batch is not None else [])]
    if not every_reason and placement.launcher == "local":
        return [*shown, Text(f"because {placement.reasons['launcher']}; {placement.reasons['workers']}"), *warnings]
    reasons = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 3, 0, 2))
    for name, reason in placement.reasons.items():
        reasons.add_row(Text(name, style="dim"), reason)
    return [*shown, "", Text("because"), reasons, *warnings]
