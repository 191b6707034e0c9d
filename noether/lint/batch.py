"""Can the ranks of the job share the batch of its configuration?"""

from collections.abc import Iterator, Sequence

from noether.errors import RequestError
from noether.lint.finding import Finding
from noether.lint.job import Job
from noether.lint.launch import Launch
from noether.planning.batches import plan_batches


def world_size(job: Job, launch: Launch) -> int | None:
    """Returns the ranks that a training has, or None where the script does not say."""
    shape = job.step_shape(launch) if launch.layer("srun") else job.shape
    if shape is None:
        return None
    variables = job.variables_at(launch)
    per_node, mpirun = launch.layer("per-node"), launch.layer("mpirun")
    if per_node is not None:
        processes = variables.number(per_node.option("nproc_per_node", "num_gpus") or "", job.known)
        processes = processes or shape.gpus_per_node
        return None if processes is None else processes * (shape.nodes if launch.layer("srun") else 1)
    if mpirun is not None:
        return variables.number(mpirun.option("np", "n") or "", job.known) or shape.tasks
    if launch.layer("srun") is None:
        return (shape.gpus_per_node or 1) if launch.innermost.kind == "noether" else 1
    if launch.innermost.kind == "noether" and shape.tasks == shape.nodes and shape.total_gpus:
        return shape.total_gpus
    return shape.tasks


def batch(job: Job, hp: str | None, overrides: Sequence[str]) -> Iterator[Finding]:
    """batch-not-divisible, configuration-refused: the configuration given, or that of the script's `noether train`."""
    for launch in job.trainings:
        own = _own_configuration(job, launch)
        if own is None and hp is None and not overrides:
            continue
        ranks = world_size(job, launch)
        words, file = ((), None) if own is None else own
        from noether.config.compose import load_config  # Composing takes a second; most scripts need none.

        try:
            config = load_config((*words, *overrides), hp or file)
            if ranks is not None:
                plan_batches(config.trainer.effective_batch_size, None, ranks)
        except RequestError as error:
            rule = "batch-not-divisible" if "effective batch" in error.summary else "configuration-refused"
            message = error.summary + (f" ({error.seen})" if error.seen and rule == "configuration-refused" else "")
            yield Finding(launch.line, "error", rule, message, error.fix.splitlines()[0] if error.fix else "")
        return


def _own_configuration(job: Job, launch: Launch) -> tuple[tuple[str, ...], str | None] | None:
    """Returns the overrides and the file of a `noether train …` in the script, or None where they cannot be known."""
    if launch.innermost.kind != "noether":
        return None
    variables = job.variables_at(launch)
    texts = [variables.expand(word.text) for word in variables.splice(launch.innermost.words[1:])]
    texts = texts[1:] if texts[:1] == ["train"] else texts
    if any("$" in text or "`" in text or "@early" in text for text in texts):
        return None
    from noether.cli.arguments import parse_arguments
    from noether.cli.commands import verbs
    from noether.config.schema import RunConfig

    try:
        line = parse_arguments(["train", *texts], verbs(), tuple(RunConfig.model_fields))
    except RequestError:
        return None
    file = line.flags.get("hp")
    if isinstance(file, str) and not file.startswith("/"):
        beside = job.script.folder / file
        file = str(beside) if beside.is_file() else file
        if job.script.neighbour(file) is None:
            return None  # The script may change folders; a file that is not here says nothing of it.
    return line.positional, file if isinstance(file, str) else None
