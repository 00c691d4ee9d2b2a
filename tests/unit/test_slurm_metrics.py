"""The reader of Slurm's metrics, on text that Slurm 24.11.5 and 22.05.8 printed for real nodes."""

from pathlib import Path

import pytest

from tests.unit.head_programs import load

NODE = (
    "NodeName=gpu01 Arch=x86_64 CoresPerSocket=2  CPUAlloc=2 CPUEfctv=2 CPUTot=2 CPULoad=3.39 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:a100:4 GresDrain=N/A GresUsed=gpu:a100:2(IDX:0-1) NodeAddr=10.87.43.11 "
    "NodeHostName=gpu01 Version=24.11.5 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=1488 AllocMem=20 "
    "FreeMem=19549 Sockets=1 Boards=1 State=ALLOCATED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
    "Partitions=main  BootTime=2026-11-21T01:48:02 SlurmdStartTime=2026-11-21T02:42:17 LastBusyTime=2026-11-21T02:41 "
    "ResumeAfterTime=None CfgTRES=cpu=2,mem=1488M,billing=2,gres/gpu=4,gres/gpu:a100=4 "
    "AllocTRES=cpu=2,mem=20M,gres/gpu=2,gres/gpu:a100=2 CurrentWatts=0 AveWatts=0 "
)
# An operator's reason that looks like fields: it stands last and is not believed.
DRAINED = (
    NODE.replace("State=ALLOCATED", "State=ALLOCATED+DRAIN")
    + ' Reason=State=DOWN Gres=gpu:evil:9 "x [root@2026-11-21T02:42:41]'
)
SILENT = (
    "NodeName=gpu02 CoresPerSocket=2  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.00 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:a100:4 GresDrain=N/A GresUsed=gpu:a100:0 NodeAddr=10.87.41.11 NodeHostName=gpu02  "
    "RealMemory=1000 AllocMem=0 FreeMem=N/A Sockets=1 Boards=1 State=UNKNOWN+NOT_RESPONDING ThreadsPerCore=1 TmpDisk=0 "
    "Weight=1 Owner=N/A MCS_label=N/A Partitions=main  BootTime=None SlurmdStartTime=None LastBusyTime=Unknown "
    "ResumeAfterTime=None CfgTRES=cpu=2,mem=1000M,billing=2 AllocTRES= CurrentWatts=0 AveWatts=0 "
)

# Debian 12's Slurm 22.05.8.
OLDER = (
    "NodeName=gpu01 Arch=x86_64 CoresPerSocket=2  CPUAlloc=1 CPUEfctv=2 CPUTot=2 CPULoad=5.83 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:a100:4 GresDrain=N/A GresUsed=gpu:a100:1(IDX:0) NodeAddr=10.213.3.11 "
    "NodeHostName=gpu01 Version=22.05.8 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=23593 AllocMem=11796 "
    "FreeMem=17630 Sockets=1 Boards=1 State=MIXED+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
    "Partitions=main  BootTime=2026-11-21T01:48:01 SlurmdStartTime=2026-11-21T03:27:46 "
    "LastBusyTime=2026-11-21T03:27:46 CfgTRES=cpu=2,mem=23593M,billing=2,gres/gpu=4,gres/gpu:a100=4 "
    "AllocTRES=cpu=1,mem=11796M,gres/gpu=1,gres/gpu:a100=1 CapWatts=n/a CurrentWatts=0 AveWatts=0 "
    "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s Reason=x [root@2026-11-21T03:29:46]"
)


EXPORTER = load("slurm-metrics")
FILE = load("metrics_file")


def lines(nodes: str, jobs: str = "") -> list[str]:
    text = FILE.render(EXPORTER.count(nodes, jobs), EXPORTER.DESCRIPTIONS)
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_a_busy_node() -> None:
    assert lines(NODE + "\n") == [
        "slurm_up 1",
        'slurm_nodes{state="allocated"} 1',
        'slurm_node_state{node="gpu01",state="allocated"} 1',
        'slurm_gpus{partition="main",type="a100",use="allocated"} 2',
        'slurm_gpus{partition="main",type="a100",use="idle"} 2',
        'slurm_gpus{partition="main",type="a100",use="unavailable"} 0',
        'slurm_node_gpus{node="gpu01",use="allocated"} 2',
        'slurm_node_gpus{node="gpu01",use="idle"} 2',
        'slurm_node_gpus{node="gpu01",use="unavailable"} 0',
    ]


def test_a_drained_nodes_free_gpus_are_not_idle_and_its_reason_is_only_a_label() -> None:
    text = lines(DRAINED)
    assert text.pop(3) == 'slurm_node_reason{node="gpu01",reason="State=DOWN Gres=gpu:evil:9 \\"x"} 1'
    assert 'slurm_node_state{node="gpu01",state="draining"} 1' in text
    assert 'slurm_gpus{partition="main",type="a100",use="unavailable"} 2' in text
    assert 'slurm_gpus{partition="main",type="a100",use="idle"} 0' in text
    assert not any("evil" in line for line in text)


def test_the_oldest_supported_release_writes_the_same() -> None:
    assert lines(OLDER)[1:] == [
        'slurm_nodes{state="draining"} 1',
        'slurm_node_state{node="gpu01",state="draining"} 1',
        'slurm_node_reason{node="gpu01",reason="x"} 1',
        'slurm_gpus{partition="main",type="a100",use="allocated"} 1',
        'slurm_gpus{partition="main",type="a100",use="idle"} 0',
        'slurm_gpus{partition="main",type="a100",use="unavailable"} 3',
        'slurm_node_gpus{node="gpu01",use="allocated"} 1',
        'slurm_node_gpus{node="gpu01",use="idle"} 0',
        'slurm_node_gpus{node="gpu01",use="unavailable"} 3',
    ]


def test_partitions_overlap_and_nodes_without_one_are_counted() -> None:
    both = NODE.replace("Partitions=main", "Partitions=main,debug")
    outside = SILENT.replace("Partitions=main", "Partitions=(null)")
    text = lines(f"{both}\n{outside}\n")
    assert 'slurm_nodes{state="not_responding"} 1' in text
    assert {line for line in text if "allocated" in line and "slurm_gpus" in line} == {
        'slurm_gpus{partition="main",type="a100",use="allocated"} 2',
        'slurm_gpus{partition="debug",type="a100",use="allocated"} 2',
    }


def test_jobs_wait_in_each_of_their_partitions() -> None:
    rest = "1 2 N/A (null)  (null)"
    waiting = f"PENDING main 1 N/A {rest} Priority\nPENDING main,debug 2 N/A {rest} Priority\n"
    jobs = f"{waiting}RUNNING main 3 9 {rest} None\n"
    assert [line for line in lines("", jobs) if line.startswith("slurm_jobs{")] == [
        'slurm_jobs{partition="debug",state="pending"} 1',
        'slurm_jobs{partition="main",state="pending"} 2',
        'slurm_jobs{partition="main",state="running"} 1',
    ]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("IDLE", "idle"),
        ("MIXED", "mixed"),
        ("IDLE+DRAIN", "drained"),
        ("MIXED+DRAIN", "draining"),
        ("IDLE+COMPLETING+DRAIN", "draining"),
        ("IDLE+COMPLETING", "completing"),
        ("DOWN*+DRAIN", "down"),
        ("DOWN+NOT_RESPONDING", "down"),
        ("IDLE*", "not_responding"),
        ("IDLE+NOT_RESPONDING", "not_responding"),
        ("IDLE+MAINTENANCE+RESERVED", "maintenance"),
        ("UNKNOWN+NOT_RESPONDING", "not_responding"),
        ("IDLE+POWERING_DOWN", "asleep"),
        ("IDLE+DRAIN+POWERED_DOWN", "asleep"),
        ("ALLOCATED+POWERING_UP+NOT_RESPONDING", "waking"),
        ("DOWN+POWERED_DOWN", "down"),
    ],
)
def test_states(text: str, state: str) -> None:
    assert EXPORTER.node_state(text) == state


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("(null)", {}),
        ("gpu:4", {"gpu": 4}),
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:a100:2(IDX:0,2),gpu:h100:1(IDX:1)", {"a100": 2, "h100": 1}),
        ("gpu:a100:0(IDX:N/A),shard:4", {"a100": 0}),
    ],
)
def test_gpus(text: str, count: dict[str, int]) -> None:
    assert dict(EXPORTER.gpus(text)) == count


def waiting(reason: str, nodes: str = "1", cpus: str = "2", each: str = "N/A", choices: str = "(null)  (null)") -> str:
    """A waiting job as squeue prints it; `choices` are its reservation, named nodes and features."""
    return f"PENDING main 1764206200 N/A {nodes} {cpus} {each} {choices} {reason}\n"


def test_gpus__of_a_node__are_counted_by_use() -> None:
    two = NODE.replace("Gres=gpu:a100:4", "Gres=gpu:a100:4,gpu:h100:1").replace("(IDX:0-1)", "(IDX:0-1),gpu:h100:1")
    assert [line for line in lines(two) if "slurm_node_gpus" in line] == [
        'slurm_node_gpus{node="gpu01",use="allocated"} 3',
        'slurm_node_gpus{node="gpu01",use="idle"} 2',
        'slurm_node_gpus{node="gpu01",use="unavailable"} 0',
    ]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Resources", "resources"),
        ("Priority", "resources"),
        ("Dependency", "dependency"),
        ("BeginTime", "begin_time"),
        ("JobHeldUser", "held"),
        ("JobHeldAdmin", "held"),
        ("QOSMaxGRESPerUser", "limit"),
        ("AssocGrpGRES", "limit"),
        ("PartitionTimeLimit", "limit"),
        ("Licenses", "limit"),
        ("ReqNodeNotAvail, UnavailableNodes:gpu01", "other"),
        ("PartitionDown", "other"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "other"),
    ],
)
def test_jobs__that_wait__have_the_class_of_their_reason(reason: str, expected: str) -> None:
    text = lines(FREE, waiting(reason))
    assert f'slurm_jobs_pending{{partition="main",reason="{expected}"}} 1' in text
    startable = int(expected == "resources")
    assert f'slurm_jobs_startable{{partition="main"}} {startable}' in text


FREE = NODE.replace("State=ALLOCATED", "State=IDLE").replace("GresUsed=gpu:a100:2(IDX:0-1)", "GresUsed=gpu:a100:0")


@pytest.mark.parametrize(
    ("job", "startable"),
    [
        ({}, 1),
        ({"each": "gres/gpu:a100:4"}, 1),
        ({"each": "gres:gpu:4"}, 1),  # Slurm 22.05
        ({"each": "gres/gpu:5"}, 0),
        ({"each": "gres/gpu:h100:1"}, 0),
        ({"each": "gres/shard:1"}, 0),
        ({"nodes": "2"}, 0),
        ({"cpus": "3"}, 0),
        ({"cpus": "2K"}, 0),
        ({"choices": "weekly  (null)"}, 0),
        ({"choices": "(null) gpu02 (null)"}, 0),
        ({"choices": "(null)  a100 & nvlink"}, 0),
    ],
)
def test_jobs__that_free_nodes_can_hold__are_startable(job: dict[str, str], startable: int) -> None:
    assert f'slurm_jobs_startable{{partition="main"}} {startable}' in lines(FREE, waiting("Resources", **job))


@pytest.mark.parametrize("state", ["IDLE+PLANNED", "IDLE+RESERVED", "IDLE+DRAIN", "MIXED", "DOWN"])
def test_jobs__beside_nodes_that_are_not_free__are_not_startable(state: str) -> None:
    """Slurm plans an idle node for a larger job: others wait for a reason."""
    nodes = FREE.replace("State=IDLE", f"State={state}")
    assert 'slurm_jobs_startable{partition="main"} 0' in lines(nodes, waiting("Priority"))


def test_last_start__of_a_partition__is_the_newest_of_its_jobs() -> None:
    starts = ("1764206252", "1764206300")
    jobs = "".join(f"RUNNING main 1764206200 {start} 1 2 N/A (null)  (null) None\n" for start in starts)
    found = [line for line in lines("", jobs + waiting("Resources")) if "last_start" in line]
    assert found == ['slurm_last_start_seconds{partition="main"} 1764206300']


def test_waits__of_a_partition__are_of_its_oldest_job_and_of_those_that_run() -> None:
    """squeue prints submission and start in seconds since 1970; a job that is held does not wait for resources."""
    needs = "1 2 N/A (null)  (null)"
    jobs = (
        f"PENDING main,debug 1764206100 N/A {needs} Priority\nPENDING main 1764206000 1764207000 {needs} Resources\n"
        f"PENDING main 1764200000 N/A {needs} JobHeldUser\nRUNNING main 1764206000 1764206060 {needs} None\n"
        f"RUNNING main 1764206000 1764206100 {needs} None\nCOMPLETING main 1764205000 1764206000 {needs} None\n"
    )
    assert [line for line in lines("", jobs) if line.startswith(("slurm_jobs_oldest", "slurm_jobs_waited"))] == [
        'slurm_jobs_oldest_submit_seconds{partition="debug"} 1764206100',
        'slurm_jobs_oldest_submit_seconds{partition="main"} 1764206000',
        'slurm_jobs_waited_seconds{partition="main"} 160',
    ]


@pytest.mark.parametrize(("text", "queue"), [("DBD Agent queue size: 12\nAgent count: 0\n", 12), ("Agents: 3\n", None)])
def test_accounting_queue__of_sdiag__is_that_of_slurmdbd(text: str, queue: int | None) -> None:
    """The text as Slurm 24.11's sdiag prints it."""
    assert EXPORTER.accounting_queue(text) == queue


def test_newest_backup__of_a_directory__is_the_schedulers_own(tmp_path: Path) -> None:
    for name in (
        "aurora-d4753120-20261125T142111Z.tar",
        "aurora-d4753120-20261124T142111Z.tar",
        "aurora-d4753120-kubernetes-20261126T142111Z.tar",
        ".new",
        "aurora-d4753120-20261127T142111Z.tar.part",
    ):
        (tmp_path / name).touch()
    assert FILE.newest_backup(str(tmp_path), "slurm") == {(("scheduler", "slurm"),): 1795616471}
    assert FILE.newest_backup(str(tmp_path), "kubernetes") == {(("scheduler", "kubernetes"),): 1795702871}
    assert FILE.newest_backup(str(tmp_path / "missing"), "slurm") == {}


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("Reason=clusterctl: alert: GpuXid [root@2026-11-27T06:31:20]", "clusterctl: alert: GpuXid"),
        ("Reason=clusterctl: alert: GpuXid [root@1795761080] Comment=for [x@y]", "clusterctl: alert: GpuXid"),
        ('Reason=new [fan] "\u00e9\\ [slurm@2026-11-27T06:31:20] ReservationName=a', 'new [fan] \\"?\\\\'),
        (f"Reason={'a' * 300} [root@Unknown]", "a" * 100),
    ],
    ids=["plain", "comment", "signs", "long"],
)
def test_reason__of_a_node_out_of_service__is_one_short_label(end: str, expected: str) -> None:
    node = NODE.replace("State=ALLOCATED", "State=IDLE+DRAIN")
    assert f'slurm_node_reason{{node="gpu01",reason="{expected}"}} 1' in lines(f"{node} {end}")


def test_reason__of_a_node_in_service__is_not_written() -> None:
    """Slurm keeps it until the node is drained again."""
    text = lines(NODE + " Reason=new fan [root@2026-11-27T06:31:20]")
    assert not any(line.startswith("slurm_node_reason") for line in text)


# What Slurm 24.11.5 printed for two jobs, shortened.
HOLDERS = "2 alice cluster main gpu01\n3 bob cluster main gpu[01-02]\n"
HELD = (
    "2                   cpu=1,mem=1M,node=1,billing=1,gres/gpu=2,gres/gpu:a100=2      \n"
    "3                   cpu=2,mem=2M,node=2,billing=2,gres/gpu=2,gres/gpu:a100=2      \n"
)
ALICES = (
    "JobId=2 JobName={name} UserId=alice(5001) GroupId=alice(5001) Account=cluster JobState=RUNNING Reason=None "
    "NodeList=gpu01 BatchHost=gpu01 NumNodes=1 NumCPUs=1 JOB_GRES=gpu:a100:2   Nodes=gpu01 CPU_IDs=0 Mem=1 "
    "GRES=gpu:a100:2(IDX:0-1) MinCPUsNode=1 Comment={comment} TresPerNode=gres/gpu:2 \n"
)
BOBS = (
    "JobId=3 JobName={name} UserId=bob(5002) GroupId=bob(5002) Account=cluster JobState=RUNNING Reason=None "
    "NodeList=gpu[01-02] BatchHost=gpu01 NumNodes=2 NumCPUs=2 JOB_GRES=gpu:a100:2   Nodes=gpu01 CPU_IDs=1 Mem=1 "
    "GRES=gpu:a100:1(IDX:2)   Nodes=gpu02 CPU_IDs=0 Mem=1 GRES=gpu:a100:1(IDX:0) MinCPUsNode=1 \n"
)
_ALICES, _BOBS = (f'user="{user}",account="cluster",partition="main"}} 1' for user in ("alice", "bob"))
OF_ALICE = [f'slurm_job_gpu{{job_id="2",node="gpu01",gpu="{gpu}",{_ALICES}' for gpu in (0, 1)]
OF_BOB = [f'slurm_job_gpu{{job_id="3",node="{node}",gpu="{gpu}",{_BOBS}' for node, gpu in (("gpu01", 2), ("gpu02", 0))]
BY_USER = [
    'slurm_job_node{job_id="2",node="gpu01"} 1',
    'slurm_job_node{job_id="3",node="gpu01"} 1',
    'slurm_job_node{job_id="3",node="gpu02"} 1',
    'slurm_user_gpus{user="alice",account="cluster",partition="main"} 2',
    'slurm_user_gpus{user="bob",account="cluster",partition="main"} 2',
]


def of_jobs(holders: str, held: str, details: str) -> list[str]:
    text = FILE.render(EXPORTER.count("", "", holders, held, details), EXPORTER.DESCRIPTIONS)
    return [line for line in text.splitlines() if line.startswith(("slurm_job_", "slurm_user"))]


def with_texts(name: str = "wrap", comment: str = "x") -> list[str]:
    """Return the series beside a name and a comment of alice's job."""
    return of_jobs(HOLDERS, HELD, ALICES.format(name=name, comment=comment) + BOBS.format(name="wrap"))


def test_job_gpus__of_two_jobs__are_slurms() -> None:
    assert sorted(with_texts()) == sorted(BY_USER + OF_ALICE + OF_BOB)


ENTRY = "  Nodes=gpu01 CPU_IDs=1 Mem=1 GRES={}"
TWO = ENTRY.format("gpu:a100:2(IDX:2-3)")


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("a UserId=bob(5002) Account=root Partition=x", True),
        ("a\nb UserId=bob(5002)", True),
        ("a\n4 bob other main gpu02", True),
        ("a" + TWO, False),
        (f"a{TWO}\nJobId=77 JobName=b", False),
        (f"a{TWO.replace('gpu01', 'gpu02')}\nJobId=77 JobName=b", False),
        ("a" + ENTRY.format("gpu:1(IDX:3)"), False),
        (f"a{ENTRY.format('gpu:1(IDX:1-x)')}", False),
        ("a  Nodes=gpu[01-x] CPU_IDs=1 Mem=1 GRES=gpu:1(IDX:3)", False),
    ],
    ids=["words", "line-break", "squeue-line", "as-many", "other-part", "other-node", "more", "no-number", "no-node"],
)
@pytest.mark.parametrize("field", ["name", "comment"])
def test_job_gpus__beside_a_text_that_looks_like_fields__are_slurms_or_missing(
    field: str, name: str, own: bool
) -> None:
    """Jobs lose GPUs that a text claims; nobody gets another's."""
    found = with_texts(**{field: name})
    assert set(found) >= set(BY_USER)
    assert set(found) <= {*BY_USER, *OF_ALICE, *OF_BOB}
    assert set(found) >= {*OF_ALICE, *OF_BOB} or not own


def test_job_gpus__of_a_part_that_pretends_to_be_anothers__are_not_written() -> None:
    """Also where the true part is gone from sight, behind a made-up number: bob's GPU is not alice's."""
    part = "JobId=3 JobName=b UserId=bob(5002) JobState=RUNNING"
    forged = part + ENTRY.format("gpu:a100:1(IDX:3)") + " Nodes=gpu02 CPU_IDs=0 Mem=1 GRES=gpu:a100:1(IDX:3)"
    assert sorted(with_texts(name=f"a\n{forged}\nJobId=77 JobName=c")) == sorted(BY_USER)
    stolen = ENTRY.format("gpu:a100:2(IDX:2,4)")
    assert sorted(with_texts(name=f"a{stolen}\n{part} \nJobId=77 JobName=c")) == sorted(BY_USER)


def test_user_gpus__of_jobs_without_details__are_those_of_squeue() -> None:
    assert of_jobs(HOLDERS, HELD, "") == BY_USER
    without = HELD.replace(",gres/gpu=2,gres/gpu:a100=2", "")
    assert 'slurm_user_gpus{user="bob",account="cluster",partition="main"} 0' in of_jobs(HOLDERS, without, "")


def test_job_series__of_very_many_jobs__are_those_of_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXPORTER, "JOB_SERIES", 2)
    found = of_jobs("".join(f"{n} alice cluster main gpu01\n" for n in range(1, 12)), "", "")
    assert [line for line in found if "job_node" in line] == [
        f'slurm_job_node{{job_id="{n}",node="gpu01"}} 1' for n in (10, 11)
    ]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", []),
        ("gpu01", ["gpu01"]),
        ("gpu[01-03,07],head1", ["gpu01", "gpu02", "gpu03", "gpu07", "head1"]),
        ("r[1-2]n[09-10]x", ["r1n09x", "r1n10x", "r2n09x", "r2n10x"]),
    ],
)
def test_hosts__of_a_list__are_each(text: str, nodes: list[str]) -> None:
    assert EXPORTER.hosts(text) == nodes
