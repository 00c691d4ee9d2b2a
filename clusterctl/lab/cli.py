"""`clusterctl lab`: up, down, list, status, ssh, fault."""

import dataclasses
import json
import os
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table

from clusterctl.cli import completion
from clusterctl.cli.groups import Verb, Verbs
from clusterctl.cli.options import Format
from clusterctl.lab import fault as faults
from clusterctl.lab import image, kit, kit_recipe
from clusterctl.lab.lab import HEAD, Lab, locked, names
from clusterctl.lab.lab_inventory import KUBERNETES_RECIPES
from clusterctl.lab.podman import LabError, host_has_v1
from clusterctl.lab.settings import Scheduler, Settings, gpu_models

app = typer.Typer(
    cls=Verbs,
    help="A cluster in containers on this machine, with simulated GPUs.",
    subcommand_metavar="VERB ...",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Name = Annotated[
    str,
    typer.Option("--name", help="Name of the lab; there can be several.", autocompletion=completion.labs),
]
Node = Annotated[str, typer.Argument(help="Name of the node.", autocompletion=completion.lab_nodes)]


@app.command(cls=Verb)
def up(
    name: Name = "lab",
    scheduler: Annotated[
        Scheduler | None,
        typer.Option(help="What the cluster schedules with; kubernetes needs the kit. [default: slurm]"),
    ] = None,
    heads: Annotated[int | None, typer.Option(min=1, max=7, help="Number of heads. [default: 1]")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=200, help="Number of workers. [default: 2]")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, max=16, help="Simulated GPUs of each worker. [default: 4]")] = None,
    gpu_model: Annotated[
        str | None, typer.Option(help="Model of the simulated GPUs. [default: a100-sxm4-80gb]")
    ] = None,
    cgroups: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2,
            help="Version of cgroups; 1 needs a machine with version 1. [default: 2; for Kubernetes the machine's]",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option("--os", help="Distribution. [default: debian-13]")] = None,
    worker_os: Annotated[str | None, typer.Option(help="Distribution of the workers. [default: as --os]")] = None,
    mirror: Annotated[str | None, typer.Option(help="Debian mirror to build the image from.")] = None,
    with_kit: Annotated[
        bool | None, typer.Option("--kit", help="Build the kit (see `lab kit`) and use it in the lab's inventory.")
    ] = None,
    recipes: Annotated[
        list[str] | None, typer.Option("--recipe", help="Build and use only this recipe of the kit; repeatable.")
    ] = None,
) -> None:
    """Create a lab, or repair and extend an existing one."""
    if gpu_model is not None and gpu_model not in gpu_models():
        raise LabError(f"--gpu-model {gpu_model}: not known; choose from {', '.join(gpu_models())}")
    for chosen in filter(None, (system, worker_os)):
        image.choose(chosen)
    lab = Lab(name)
    stored = lab.settings()
    if (scheduler or (stored and stored.scheduler)) == Scheduler.kubernetes:
        cgroups = cgroups or (1 if host_has_v1() else 2)
        further = [recipe.name for recipe in kit_recipe.load()] if with_kit else recipes
        before = stored.recipes if stored else ()
        recipes = list(dict.fromkeys((*KUBERNETES_RECIPES, *(further or before))))
    given: dict[str, Any] = {
        "scheduler": scheduler and scheduler.value, "heads": heads, "workers": workers,
        "gpus": gpus, "gpu_model": gpu_model, "cgroups": cgroups,
        "os": system, "worker_os": worker_os, "mirror": mirror,
        "kit": bool(recipes) or with_kit, "recipes": recipes or (() if with_kit else None),
    }  # fmt: skip
    wanted = dataclasses.replace(stored or Settings(name), **{k: v for k, v in given.items() if v is not None})
    console = Console(stderr=True)
    start = time.monotonic()
    with console.status(f"lab {name}: image, containers, SSH (the first image takes about a minute)") as shown:
        nodes, built = lab.up(wanted, Steps(console, shown))
    seconds = time.monotonic() - start
    console.print(
        f"Lab {name} is up: {len(nodes)} nodes answer over SSH after {seconds:.0f} s"
        f"{' (image built)' if built else ''}. Its GPUs are simulated.",
        highlight=False,
    )
    console.print(f"Next: clusterctl bootstrap {lab.inventory}", highlight=False, soft_wrap=True)


@app.command("kit", cls=Verb)
def build_kit(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Recipes to build. [default: all but optional ones]")
    ] = None,
    mirror: Annotated[str, typer.Option(help="Debian mirror to build from.")] = image.DEBIAN_MIRROR,
) -> None:
    """Build software that distributions do not package, and serve it to the labs of this machine."""
    recipes = kit_recipe.load(tuple(names or ()))
    console = Console(stderr=True)
    with console.status("kit") as shown:
        steps = Steps(console, shown)
        built = kit.build(recipes, steps, mirror)
        with locked():
            served = kit.serve(built, steps)
    for recipe in recipes:
        for place in served.places(recipe):
            typer.echo(f"{recipe.description} {recipe.version}: {place}")
    console.print("Next: clusterctl lab up --kit, whose inventory points there", highlight=False)


class Steps:
    """Print a line for each step, with the seconds since the start, and show the current one."""

    def __init__(self, console: Console, shown: Status) -> None:
        self.console, self.shown, self.started = console, shown, time.monotonic()

    def __call__(self, step: str) -> None:
        self.console.print(f"{time.monotonic() - self.started:4.0f} s  kit: {step}", highlight=False)
        self.shown.update(f"kit: {step}")


@app.command(cls=Verb)
def down(name: Name = "lab") -> None:
    """Remove a lab: its containers, volumes, network and directory."""
    lab = Lab(name)
    text = f"Lab {name} was removed." if lab.down() else f"There is no lab named {name}; nothing was removed."
    Console(stderr=True).print(text, highlight=False)


@app.command("list", cls=Verb)
def list_labs(output: Annotated[Format, typer.Option()] = Format.text) -> None:
    """List your labs with their inventories and running nodes."""
    rows = []
    for name in names():
        lab = Lab(name)
        _, nodes = lab.status()
        running = sum(node.state == "running" for node in nodes)
        rows.append({"name": name, "running": running, "nodes": len(nodes), "inventory": str(lab.inventory)})
    if output is Format.json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(f"{row['name']:<12}  {row['running']} of {row['nodes']} nodes run  {row['inventory']}")
    if not rows:
        typer.echo("There is no lab. Create one: clusterctl lab up")


@app.command(cls=Verb)
def status(name: Name = "lab", output: Annotated[Format, typer.Option()] = Format.text) -> None:
    """Show a lab's nodes, and which parts are simulated."""
    lab = Lab(name)
    settings, nodes = lab.status()
    if output is Format.json:
        document = {
            "name": name, "inventory": str(lab.inventory), "subnet": settings.subnet,
            "nodes": [dataclasses.asdict(node) for node in nodes],
        }  # fmt: skip
        typer.echo(json.dumps(document, indent=2))
    else:
        table = Table("node", "address", "state", "system", "GPUs", box=None, pad_edge=False, header_style="bold")
        for node in nodes:
            table.add_row(node.name, node.address, node.state, node.os, node.gpus)
        console = Console()
        console.print(table)
        console.print(
            "GPUs, driver and driver version are simulated at the driver's interface (NVML); everything else is real.",
            highlight=False, style="dim",
        )  # fmt: skip
        console.print(f"Inventory: {lab.inventory}", highlight=False, soft_wrap=True)
    if any(node.state != "running" for node in nodes):
        raise typer.Exit(4)


@app.command(cls=Verb, context_settings={"ignore_unknown_options": True})
def ssh(
    node: Node = HEAD,
    command: Annotated[list[str] | None, typer.Argument(help="Command to run on the node. [default: a shell]")] = None,
    name: Name = "lab",
) -> None:
    """Log in to a node as its administrator, who can use sudo."""
    argv = Lab(name).ssh_command(node, command or [])
    os.execvp(argv[0], argv)  # noqa: S606 - ssh gets the terminal, its size and its signals


@app.command(
    cls=Verb,
    help="Inject a fault into a node's simulated GPUs.\n\n"
    + "\n\n".join(f"{name}: {text}." for name, text in faults.FAULTS.items()),
)
def fault(
    node: Node,
    fault: Annotated[
        str,
        typer.Argument(help="Fault to inject.", metavar="FAULT", autocompletion=completion.faults),
    ],
    number: Annotated[int | None, typer.Argument(min=1, max=999, help="XID number, for gpu-xid.")] = None,
    gpu: Annotated[int | None, typer.Option(min=0, help="Index of the GPU. [default: 0; clear: all]")] = None,
    name: Name = "lab",
) -> None:
    """Inject a fault into a node's simulated GPUs."""
    Lab(name).fault(node, fault, number, gpu)
