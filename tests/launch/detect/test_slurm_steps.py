"""Steps like those of the dumps, of any shape: every task finds the same world, and its own place in it."""

from hypothesis import given
from hypothesis import strategies as st
from placing import place
from slurm_steps import block, check_one_world, cyclic, het_step, own_het_step, step

from noether.launch.detect.endpoint import derived_port
from noether.launch.detect.placement import Endpoint, LaunchRequest

COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=6)
NAMES = st.sampled_from(["n{}", "rack{}node7", "gpu-{:03d}-ib", "n{}.lan"])


@given(COUNTS, st.data(), NAMES, st.integers(1, 10**7), st.integers(0, 400))
def test_any_distribution_on_cpus(counts: list[int], data: st.DataObject, name: str, job: int, step_id: int) -> None:
    rest = data.draw(st.permutations(block(counts)))
    rest.remove(0)
    where = data.draw(st.sampled_from([block(counts), cyclic(counts), [0, *rest]]))
    names = [name.format(number) for number in range(9, 9 + len(counts))]
    environs = step(counts, where, names=names, job=job, step_id=step_id)
    placements = [place(environ) for environ in environs]
    check_one_world(placements)
    for rank, placement in enumerate(placements):
        assert placement.launcher == "slurm"
        assert placement.world_size == sum(counts)
        assert placement.nodes == tuple(names)
        assert (placement.workers[0].rank, placement.node_rank) == (rank, where[rank])
        if len(where) > 1:
            assert placement.endpoint.port == derived_port(job, step_id)


@given(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans())
def test_one_task_a_device(nodes: int, tasks: int, own: bool, by_cycle: bool) -> None:
    counts = [tasks] * nodes
    devices = [str(local) for local in range(tasks)] if own else [",".join(map(str, range(tasks)))]
    environs = step(counts, cyclic(counts) if by_cycle else None, devices=devices, SLURM_GPUS_ON_NODE=str(tasks))
    placements = [place(environ) for environ in environs]
    check_one_world(placements)
    for placement in placements:
        (worker,) = placement.workers
        assert worker.device.name == str(worker.local_rank)
        assert worker.device.index == (0 if own else worker.local_rank)
        assert bool(placement.warnings) == (own and tasks > 1)


@given(st.integers(1, 5), st.integers(1, 4))
def test_one_task_a_node_with_several_devices(nodes: int, devices: int) -> None:
    environs = step([1] * nodes, devices=[",".join(map(str, range(devices)))])
    placements = [place(environ) for environ in environs]
    check_one_world(placements)
    for node, placement in enumerate(placements):
        assert placement.world_size == nodes * devices
        assert [worker.rank for worker in placement.workers] == list(range(node * devices, (node + 1) * devices))
        assert [worker.device.index for worker in placement.workers] == list(range(devices))


@given(COUNTS, st.integers(1, 2), st.booleans())
def test_several_cpu_workers_a_task(counts: list[int], workers: int, by_cycle: bool) -> None:
    environs = step(counts, cyclic(counts) if by_cycle else None)
    placements = [place(environ, LaunchRequest("cpu", str(workers))) for environ in environs]
    check_one_world(placements)
    assert placements[0].world_size == sum(counts) * workers


def test_a_heterogeneous_step_sums_over_its_nodes() -> None:
    placements = [place(environ) for environ in het_step(["a100:4", "2"])]
    check_one_world(placements)
    assert [[worker.rank for worker in placement.workers] for placement in placements] == [[0, 1, 2, 3], [4, 5], [6, 7]]


def test_devices_of_the_setting_are_as_many_on_every_node_of_a_heterogeneous_step() -> None:
    for environs in (het_step(["4", "2"]), own_het_step(["4", "2"])):
        placements = [place(environ, LaunchRequest(devices="2")) for environ in environs]
        check_one_world(placements)
        assert [[worker.rank for worker in placement.workers] for placement in placements] == [[0, 1], [2, 3], [4, 5]]


def test_fault_1_a_mask_is_counted_within() -> None:
    # A launcher that sets CUDA_VISIBLE_DEVICES to 0 and 1 in its children puts them on another job's GPUs.
    for mask in ("2,3", "GPU-2,GPU-3"):
        placements = [place(environ) for environ in step([2, 2], devices=[mask])]
        check_one_world(placements)
        assert [str(p.workers[0].device) for p in placements] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
        assert [p.workers[0].device.name for p in placements] == mask.split(",") * 2
        (hybrid,) = (place(environ) for environ in step([1], devices=[mask]))
        assert [(str(w.device), w.device.name) for w in hybrid.workers] == list(
            zip(["cuda:0", "cuda:1"], mask.split(","), strict=True)
        )


def test_fault_9_the_port_is_the_steps_own() -> None:
    # A random port that nobody holds may be taken before rank 0 binds it; two steps share one made of the job id.
    ports = {
        (job, number): place(step([1, 1], job=job, step_id=number)[0]).endpoint.port
        for job in (13, 14, 105)
        for number in range(3)
    }
    assert len(set(ports.values())) == len(ports)
    assert all(place(environ).endpoint.port == ports[14, 2] for environ in step([2, 1], job=14, step_id=2))
    # A process that starts every rank itself needs no agreement: any free port, bound and held.
    assert place(step([1], devices=["0,1"])[0]).endpoint == Endpoint("127.0.0.1", 0)


@given(st.integers(1, 10**8), st.integers(-92, 92), st.integers(0, 100), st.integers(0, 100))
def test_near_jobs_and_steps_never_share_a_port(job: int, apart: int, first: int, second: int) -> None:
    one, other = derived_port(job, first), derived_port(job + abs(apart), second)
    assert 20000 <= one < 29500
    assert (one == other) == (apart == 0 and first == second)
