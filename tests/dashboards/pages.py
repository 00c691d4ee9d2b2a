"""The dashboards: what each panel asks Prometheus, and how it is to be read."""

from tests.dashboards.parts import Choice, Limit, Page, Panel, Query

NODE = Choice("node", "Node", 'label_values(up{job="node"}, instance)')
DISKS = 'fstype!~"tmpfs|ramfs|squashfs|iso9660|overlay"'
LINKS = 'device!~"lo|veth.*|cni.*|flannel.*|docker.*|cali.*"'
GPU_UTILISATION = "Time in which a kernel ran on the GPU. Group gpu_metrics."
EITHER_SCHEDULER = '{__name__=~"slurm_node_gpus|kubernetes_gpus"'
HOT = (Limit(80, "orange"), Limit(90, "red"))
FULL = (Limit(80, "orange"), Limit(90, "red"))

CLUSTER = Page(
    "cluster",
    "Cluster",
    "Whether the cluster works, and how much of it is in use.",
    [
        Panel(
            "Nodes",
            "Hosts whose node exporter responds, of all hosts in the inventory.",
            "none",
            [Query('sum(up{job="node"})', "respond"), Query('count(up{job="node"})', "known")],
            "number",
            span=5,
            height=5,
        ),
        Panel(
            "Alerts that fire",
            "By severity. The alert Watchdog always fires and has the severity none.",
            "none",
            [Query('count by (severity) (ALERTS{alertstate="firing"})', "{{severity}}")],
            "number",
            span=7,
            height=5,
        ),
        Panel(
            "GPUs allocated",
            "GPUs that jobs or pods hold, of all GPUs, those out of service included.",
            "percent",
            [
                Query(
                    f'100 * sum({EITHER_SCHEDULER}, use="allocated"}}) / sum({EITHER_SCHEDULER}}})',
                    "allocated",
                )
            ],
            "number",
            span=4,
            height=5,
        ),
        Panel(
            "GPU utilisation",
            GPU_UTILISATION + " Much less than the GPUs allocated means that jobs hold GPUs that they do not use.",
            "percent",
            [Query("avg(DCGM_FI_DEV_GPU_UTIL)", "all GPUs")],
            "number",
            span=4,
            height=5,
        ),
        Panel(
            "GPU power",
            "Sum over all GPUs, without the rest of the nodes.",
            "watt",
            [Query("sum(DCGM_FI_DEV_POWER_USAGE)", "all GPUs")],
            "number",
            span=4,
            height=5,
        ),
        Panel(
            "GPUs by use",
            "Unavailable are the free GPUs of nodes that are drained, cordoned or down.",
            "none",
            [Query(f"sum by (use) (max without (instance) ({EITHER_SCHEDULER}}}))", "{{use}}")],
            stacked=True,
        ),
        Panel(
            "GPU utilisation",
            GPU_UTILISATION,
            "percent",
            [
                Query("max(avg by (instance) (DCGM_FI_DEV_GPU_UTIL))", "busiest node"),
                Query("avg(DCGM_FI_DEV_GPU_UTIL)", "average"),
                Query("min(avg by (instance) (DCGM_FI_DEV_GPU_UTIL))", "idlest node"),
            ],
            top=100,
        ),
        Panel(
            "Nodes by state",
            "Of Slurm or Kubernetes.",
            "none",
            [Query('count by (state) (max by (node, state) ({__name__=~"slurm_node_state|kubernetes_node_state"}))', "{{state}}")],
            stacked=True,
        ),
        Panel(
            "Each node",
            "As of now. Sort by a column to find the node that differs.",
            "none",
            [
                Query('100 * (1 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle"}[$__rate_interval])))', "CPU %"),
                Query("100 * max by (instance) (1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes)", "memory %"),
                Query("avg by (instance) (DCGM_FI_DEV_GPU_UTIL)", "GPU %"),
                Query("max by (instance) (DCGM_FI_DEV_GPU_TEMP)", "hottest GPU °C"),
                Query("sum by (instance) (DCGM_FI_DEV_POWER_USAGE)", "GPU W"),
                Query(f"100 * max by (instance) (1 - node_filesystem_avail_bytes{{{DISKS}}} / node_filesystem_size_bytes)", "fullest disk %"),
            ],
            "table",
            span=24,
            height=9,
            columns=("instance",),
        ),
    ],
)  # fmt: skip

NODES = Page(
    "node",
    "Node",
    "One host: is it the hardware, the system or the job?",
    [
        Panel(
            "CPU",
            "Time that all CPUs spent in each mode, of all their time. Much iowait means slow storage.",
            "percent",
            [
                Query(
                    '100 * sum by (mode) (rate(node_cpu_seconds_total{instance="$node",mode!="idle"}[$__rate_interval]))'
                    ' / scalar(count(node_cpu_seconds_total{instance="$node",mode="idle"}))',
                    "{{mode}}",
                )
            ],
            stacked=True,
            top=100,
        ),
        Panel(
            "Load and CPUs",
            "Processes that run or wait. A load well above the CPUs slows every job on the node.",
            "none",
            [
                Query('node_load1{instance="$node"}', "load, 1 minute"),
                Query('count(node_cpu_seconds_total{instance="$node",mode="idle"})', "CPUs"),
            ],
        ),
        Panel(
            "Memory",
            "Used is what programs cannot get without the kernel's killer.",
            "bytes",
            [
                Query('node_memory_MemTotal_bytes{instance="$node"} - node_memory_MemAvailable_bytes', "used"),
                Query('node_memory_MemTotal_bytes{instance="$node"}', "all"),
            ],
        ),
        Panel(
            "GPU utilisation",
            GPU_UTILISATION,
            "percent",
            [Query('max by (gpu) (DCGM_FI_DEV_GPU_UTIL{instance="$node"})', "GPU {{gpu}}")],
            top=100,
        ),
        Panel(
            "GPU temperature",
            "From 90 °C on most GPUs lower their clocks. One that is hotter than its neighbours may have a cooling problem.",
            "celsius",
            [Query('max by (gpu) (DCGM_FI_DEV_GPU_TEMP{instance="$node"})', "GPU {{gpu}}")],
            limits=HOT,
        ),
        Panel(
            "Network",
            "Received and sent, without virtual devices.",
            "Bps",
            [
                Query(f'sum(rate(node_network_receive_bytes_total{{instance="$node",{LINKS}}}[$__rate_interval]))', "received"),
                Query(f'sum(rate(node_network_transmit_bytes_total{{instance="$node",{LINKS}}}[$__rate_interval]))', "sent"),
            ],
        ),
        Panel(
            "Services",
            "1 for a service of the cluster that is active, 0 for one that is not.",
            "none",
            [Query('max by (name) (node_systemd_unit_state{instance="$node",state="active"})', "active")],
            "table",
            limits=(),
            columns=("name",),
            span=12,
        ),
        Panel(
            "Up since",
            "A younger start than expected is a reboot.",
            "dateTimeFromNow",
            [Query('1000 * node_boot_time_seconds{instance="$node"}', "boot")],
            "number",
            span=6,
        ),
        Panel(
            "Security updates",
            "Updates that are not installed. The node counts every six hours.",
            "none",
            [Query('max(cluster_node_security_updates{instance="$node"})', "missing")],
            "number",
            limits=(Limit(1, "orange"),),
            span=6,
        ),
    ],
    [NODE],
)  # fmt: skip

ONE = 'instance=~"$node",gpu=~"$gpu"'


def each_gpu(metric: str) -> list[Query]:
    return [Query(f"max by (instance, gpu) ({metric}{{{ONE}}})", "{{instance}} GPU {{gpu}}")]


GPUS = Page(
    "gpu",
    "GPUs",
    "The GPUs of a node or of all: use, heat, clocks, errors. Group gpu_metrics.",
    [
        Panel("Utilisation", GPU_UTILISATION, "percent", each_gpu("DCGM_FI_DEV_GPU_UTIL"), top=100),
        Panel("Memory used", "Of the GPU's own memory.", "decmbytes", each_gpu("DCGM_FI_DEV_FB_USED")),
        Panel("Power", "A GPU at its limit lowers its clocks.", "watt", each_gpu("DCGM_FI_DEV_POWER_USAGE")),
        Panel(
            "Temperature",
            "From 90 °C on most GPUs lower their clocks.",
            "celsius",
            each_gpu("DCGM_FI_DEV_GPU_TEMP"),
            limits=HOT,
        ),
        Panel("Clock", "Of the multiprocessors.", "rotmhz", each_gpu("DCGM_FI_DEV_SM_CLOCK")),
        Panel(
            "Slowed down",
            "Part of the time in which heat or the power limit lowered the clocks.",
            "percentunit",
            [
                Query(f"max by (instance, gpu) (rate(DCGM_FI_DEV_THERMAL_VIOLATION{{{ONE}}}[$__rate_interval])) / 1e9",
                      "{{instance}} GPU {{gpu}} heat"),
                Query(f"max by (instance, gpu) (rate(DCGM_FI_DEV_POWER_VIOLATION{{{ONE}}}[$__rate_interval])) / 1e9",
                      "{{instance}} GPU {{gpu}} power"),
            ],
            limits=(Limit(0.1, "orange"), Limit(0.5, "red")),
            top=1,
        ),
        Panel(
            "Errors",
            "The number of the last XID (docs/runbooks/GpuXid.md has their meaning), memory errors that ECC could not correct, "
            "rows of memory replaced after such errors, and errors on NVLinks before the fifth generation.",
            "none",
            [
                Query(f"max by (instance, gpu) (DCGM_FI_DEV_XID_ERRORS{{{ONE}}})", "last XID"),
                Query(f"max by (instance, gpu) (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{ONE}}})", "uncorrected"),
                Query(f"max by (instance, gpu) (DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{ONE}}})", "rows replaced"),
                Query(f"max by (instance, gpu) (DCGM_FI_DEV_ROW_REMAP_PENDING{{{ONE}}})", "rows wait for reset"),
                Query(f"max by (instance, gpu) (DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{{{ONE}}})", "NVLink retries"),
                Query(f"max by (instance, gpu) (DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{ONE}}})", "PCIe retries"),
            ],
            "table",
            columns=("instance", "gpu"),
            span=24,
            height=9,
        ),
    ],
    [
        Choice("node", "Node", "label_values(DCGM_FI_DEV_GPU_UTIL, instance)", several=True),
        Choice("gpu", "GPU", 'label_values(DCGM_FI_DEV_GPU_UTIL{instance=~"$node"}, gpu)', several=True),
    ],
)  # fmt: skip

JOB_GPUS = 'max by (node, gpu) (slurm_job_gpu{job_id="$job"})'
JOB_NODES = 'max by (node) (slurm_job_node{job_id="$job"})'


def of_job(metric: str) -> list[Query]:
    return [Query(f"max by (node, gpu) ({metric}) * on (node, gpu) {JOB_GPUS}", "{{node}} GPU {{gpu}}")]


JOB = Page(
    "job",
    "Job",
    "One job of Slurm by its number: its nodes, its GPUs, and what it does with them. Choose a period in which it ran.",
    [
        Panel("Nodes", "Nodes of the job now.", "none", [Query(f"count({JOB_NODES})", "nodes")], "number", span=4),
        Panel("GPUs", "GPUs of the job now.", "none", [Query(f"count({JOB_GPUS})", "GPUs")], "number", span=4),
        Panel(
            "GPUs of the job",
            "Which GPUs the job has, and what they do now.",
            "none",
            [
                Query(of_job("DCGM_FI_DEV_GPU_UTIL")[0].expression, "utilisation %"),
                Query(of_job("DCGM_FI_DEV_FB_USED")[0].expression, "memory MB"),
                Query(of_job("DCGM_FI_DEV_GPU_TEMP")[0].expression, "°C"),
                Query(of_job("DCGM_FI_DEV_XID_ERRORS")[0].expression, "last XID"),
            ],
            "table",
            columns=("node", "gpu"),
            span=16,
        ),
        Panel(
            "GPU utilisation",
            "A GPU of the job that stays at 0 is not used by it.",
            "percent",
            of_job("DCGM_FI_DEV_GPU_UTIL"),
            top=100,
        ),
        Panel("GPU memory used", "Near the GPU's size, the job may run out of memory.", "decmbytes", of_job("DCGM_FI_DEV_FB_USED")),
        Panel("GPU power", "Power shows work better than utilisation does.", "watt", of_job("DCGM_FI_DEV_POWER_USAGE")),
        Panel(
            "CPU of its nodes",
            "Of all CPUs of the node, other jobs included.",
            "percent",
            [
                Query(
                    '100 * (1 - avg by (node) (rate(node_cpu_seconds_total{mode="idle"}[$__rate_interval])))'
                    f" * on (node) {JOB_NODES}",
                    "{{node}}",
                )
            ],
            top=100,
        ),
        Panel(
            "Memory of its nodes",
            "Of all memory of the node, other jobs included.",
            "percent",
            [
                Query(
                    "100 * max by (node) (1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes)"
                    f" * on (node) {JOB_NODES}",
                    "{{node}}",
                )
            ],
            top=100,
            limits=(Limit(95, "red"),),
        ),
        Panel(
            "Network of its nodes",
            "Received, without virtual devices, other jobs included.",
            "Bps",
            [
                Query(
                    f"sum by (node) (rate(node_network_receive_bytes_total{{{LINKS}}}[$__rate_interval]))"
                    f" * on (node) {JOB_NODES}",
                    "{{node}}",
                )
            ],
        ),
    ],
    [Choice("job", "Job", "label_values(slurm_job_node, job_id)", free=True)],
    scheduler="slurm",
)  # fmt: skip

QUEUE = Page(
    "queue",
    "Queue and usage",
    "Who uses the GPUs of Slurm, and what waits. `clusterctl usage` has exact figures from Slurm's accounting.",
    [
        Panel(
            "Jobs",
            "By state. An array that waits counts as one job.",
            "none",
            [Query("sum by (state) (slurm_jobs)", "{{state}}")],
            stacked=True,
        ),
        Panel(
            "Why jobs wait",
            "By class of Slurm's reason. `resources` is normal in a full cluster.",
            "none",
            [Query("sum by (reason) (slurm_jobs_pending)", "{{reason}}")],
            stacked=True,
        ),
        Panel(
            "Waiting although free nodes can hold them",
            "Jobs that wait for resources while whole free nodes of their partition could run them. It should fall back to 0 soon.",
            "none",
            [Query("sum by (partition) (slurm_jobs_startable)", "{{partition}}")],
            limits=(Limit(1, "orange"),),
        ),
        Panel(
            "GPUs held, by user",
            "GPUs of running jobs. At most the ten users with the most.",
            "none",
            [Query("topk(10, sum by (user) (slurm_user_gpus))", "{{user}}")],
            stacked=True,
        ),
        Panel(
            "GPUs held, by partition",
            "A node in two partitions counts in both.",
            "none",
            [Query('sum by (partition) (slurm_gpus{use="allocated"})', "{{partition}}")],
            stacked=True,
        ),
        Panel(
            "Held and idle GPUs",
            "GPUs that a job holds, and those of them that did less than 1 % work.",
            "none",
            [
                Query("count(max by (node, gpu) (slurm_job_gpu))", "held"),
                Query(
                    "sum(max by (node, gpu) (slurm_job_gpu) * on (node, gpu) (max by (node, gpu) (DCGM_FI_DEV_GPU_UTIL) < bool 1))",
                    "idle",
                ),
            ],
        ),
        Panel(
            "How long jobs wait",
            "Since submission: the job that waits longest for resources, and the mean of the jobs that run.",
            "s",
            [
                Query("max by (partition) (time() - slurm_jobs_oldest_submit_seconds)", "{{partition}}, waits longest"),
                Query(
                    'sum by (partition) (slurm_jobs_waited_seconds) / sum by (partition) (slurm_jobs{state="running"})',
                    "{{partition}}, mean of those that run",
                ),
            ],
            span=12,
        ),
        Panel(
            "GPU-hours in the period",
            "By account and user, from a count each minute.",
            "none",
            [Query("sum_over_time(sum by (account, user) (slurm_user_gpus)[$__range:1m]) / 60", "GPU-hours")],
            "table",
            columns=("account", "user"),
            span=12,
        ),
        Panel(
            "Energy of the GPUs",
            "In the period, all GPUs of the cluster, without the rest of the nodes.",
            "kwatth",
            [Query("sum(increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[$__range])) / 3.6e9", "energy")],
            "number",
            span=12,
        ),
        Panel(
            "Records that wait for slurmdbd",
            "More than a few for long: accounting is down, and usage is missing until it is back.",
            "none",
            [Query("max(slurm_accounting_queue)", "records")],
            "number",
            limits=(Limit(100, "orange"), Limit(10000, "red")),
            span=12,
        ),
    ],
    period="now-24h",
    scheduler="slurm",
)  # fmt: skip

KUBERNETES = Page(
    "kubernetes",
    "Kubernetes",
    "Nodes, pods and GPUs of Kubernetes, and the state of its control plane.",
    [
        Panel(
            "Nodes",
            "By state.",
            "none",
            [Query("max by (state) (kubernetes_nodes)", "{{state}}")],
            "number",
            span=8,
            height=5,
        ),
        Panel(
            "GPUs",
            "By use. Unavailable are those of nodes that are cordoned or not ready.",
            "none",
            [Query("sum by (use) (max by (resource, use) (kubernetes_gpus))", "{{use}}")],
            "number",
            span=8,
            height=5,
        ),
        Panel(
            "Heads",
            "1 for a head whose API server responds.",
            "none",
            [Query("kubernetes_up", "{{instance}}")],
            "number",
            span=8,
            height=5,
        ),
        Panel(
            "Pods",
            "That have not ended, by phase.",
            "none",
            [Query("sum by (phase) (max by (namespace, phase) (kubernetes_pods))", "{{phase}}")],
            stacked=True,
        ),
        Panel(
            "GPUs held, by namespace",
            "GPUs that pods request.",
            "none",
            [Query("sum by (namespace) (max by (namespace, resource) (kubernetes_namespace_gpus))", "{{namespace}}")],
            stacked=True,
        ),
        Panel(
            "GPU utilisation, by pod",
            "Of the GPUs that a pod holds. Group gpu_metrics.",
            "percent",
            [Query('avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL{pod!="",namespace=~"$namespace"})', "{{namespace}}/{{pod}}")],
            top=100,
        ),
        Panel(
            "CPU of pods",
            "By namespace, in CPUs.",
            "none",
            [Query('sum by (namespace) (rate(pod_cpu_usage_seconds_total{namespace=~"$namespace"}[$__rate_interval]))', "{{namespace}}")],
            stacked=True,
        ),
        Panel(
            "Memory of pods",
            "By namespace.",
            "bytes",
            [Query('sum by (namespace) (pod_memory_working_set_bytes{namespace=~"$namespace"})', "{{namespace}}")],
            stacked=True,
        ),
        Panel(
            "Duration of API requests",
            "Average, without watches, which never end.",
            "s",
            [
                Query(
                    'sum by (verb) (rate(apiserver_request_duration_seconds_sum{verb!~"WATCH|CONNECT"}[$__rate_interval]))'
                    ' / (sum by (verb) (rate(apiserver_request_duration_seconds_count{verb!~"WATCH|CONNECT"}[$__rate_interval])) > 0)',
                    "{{verb}}",
                )
            ],
        ),
        Panel(
            "Size of etcd",
            "Of the size at which etcd refuses writes.",
            "percent",
            [Query("100 * etcd_mvcc_db_total_size_in_bytes / etcd_server_quota_backend_bytes", "{{instance}}")],
            limits=FULL,
            top=100,
        ),
    ],
    [Choice("namespace", "Namespace", "label_values(kubernetes_pods, namespace)", several=True)],
    scheduler="kubernetes",
)  # fmt: skip

STORAGE = Page(
    "storage",
    "Storage and network",
    "Disks that fill up, slow storage, and networks with errors.",
    [
        Panel(
            "File systems",
            "Used part. At most the ten fullest.",
            "percent",
            [
                Query(
                    f'topk(10, 100 * (1 - node_filesystem_avail_bytes{{instance=~"$node",{DISKS}}} / node_filesystem_size_bytes))',
                    "{{instance}} {{mountpoint}}",
                )
            ],
            limits=FULL,
            top=100,
        ),
        Panel(
            "Read",
            "By node.",
            "Bps",
            [Query('sum by (instance) (rate(node_disk_read_bytes_total{instance=~"$node"}[$__rate_interval]))', "{{instance}}")],
        ),
        Panel(
            "Written",
            "By node.",
            "Bps",
            [Query('sum by (instance) (rate(node_disk_written_bytes_total{instance=~"$node"}[$__rate_interval]))', "{{instance}}")],
        ),
        Panel(
            "Busy disks",
            "Part of the time in which a disk had requests. At most ten. NVMe disks can do more even at 100 %.",
            "percentunit",
            [
                Query(
                    'topk(10, rate(node_disk_io_time_seconds_total{instance=~"$node"}[$__rate_interval]))',
                    "{{instance}} {{device}}",
                )
            ],
            top=1,
        ),
        Panel(
            "Received",
            "By node, without virtual devices.",
            "Bps",
            [
                Query(
                    f'sum by (instance) (rate(node_network_receive_bytes_total{{instance=~"$node",{LINKS}}}[$__rate_interval]))',
                    "{{instance}}",
                )
            ],
        ),
        Panel(
            "Sent",
            "By node, without virtual devices.",
            "Bps",
            [
                Query(
                    f'sum by (instance) (rate(node_network_transmit_bytes_total{{instance=~"$node",{LINKS}}}[$__rate_interval]))',
                    "{{instance}}",
                )
            ],
        ),
        Panel(
            "Network errors",
            "Packets with errors, received and sent, per second. Above 0 for long: a cable, a plug or a card.",
            "pps",
            [
                Query(
                    f'sum by (instance) (rate(node_network_receive_errs_total{{instance=~"$node",{LINKS}}}[$__rate_interval])'
                    " + rate(node_network_transmit_errs_total[$__rate_interval]))",
                    "{{instance}}",
                )
            ],
            limits=(Limit(0.1, "orange"),),
            span=12,
        ),
        Panel(
            "InfiniBand",
            "Received by node. Nodes without InfiniBand have no data.",
            "Bps",
            [
                Query(
                    'sum by (instance) (rate(node_infiniband_port_data_received_bytes_total{instance=~"$node"}[$__rate_interval]))',
                    "{{instance}}",
                )
            ],
            span=12,
        ),
    ],
    [Choice("node", "Node", 'label_values(up{job="node"}, instance)', several=True)],
)  # fmt: skip


def of_disk(metric: str) -> str:
    return f'max by (instance, device) ({metric}{{instance=~"$node"}})'


def of_sensor(metric: str, legend: str = "{{instance}} {{name}}") -> list[Query]:
    return [Query(f'topk(20, max by (instance, name) ({metric}{{instance=~"$node"}}))', legend)]


HARDWARE = Page(
    "hardware",
    "Disks and sensors",
    "What disks report about themselves (SMART), and sensors of the boards (IPMI). Only servers that are not virtual have data.",
    [
        Panel(
            "Disks",
            "Healthy is what the disk reports, 0 if it expects to fail. Wear is the part of its endurance that is used. A kind of disk "
            "leaves columns empty that it does not have.",
            "none",
            [
                Query(of_disk("smartctl_device_smart_status"), "healthy"),
                Query(of_disk("smartctl_device_percentage_used"), "wear %"),
                Query(of_disk("smartctl_device_media_errors"), "media errors"),
                Query(
                    'max by (instance, device) '
                    '(smartctl_device_attribute{instance=~"$node",attribute_id=~"197|198",attribute_value_type="raw"})',
                    "sectors not readable",
                ),
                Query(of_disk("smartctl_device_temperature"), "°C"),
                Query(of_disk("smartctl_device_power_on_seconds") + " / 86400", "days on"),
            ],
            "table",
            columns=("instance", "device"),
            span=24,
            height=9,
        ),
        Panel(
            "Temperatures",
            "The 20 hottest sensors. Limits are in the BMC, see the next panel.",
            "celsius",
            of_sensor("ipmi_temperature_celsius"),
            span=12,
            height=9,
        ),
        Panel(
            "State of sensors",
            "By the BMC: 0 nominal, 1 warning, 2 critical. The 100 worst. Fans, power supplies and slots are among them.",
            "none",
            [
                Query(
                    'topk(100, max by (instance, name) ({__name__=~"ipmi_.+_state",instance=~"$node"}))',
                    "state",
                )
            ],
            "table",
            columns=("instance", "name"),
            limits=(Limit(1, "orange"), Limit(2, "red")),
            span=12,
            height=9,
        ),
        Panel("Fans", "The 20 fastest. One that stands still heats its neighbours.", "rotrpm", of_sensor("ipmi_fan_speed_rpm")),
        Panel(
            "Power of the servers",
            "As the BMC measures it, GPUs included.",
            "watt",
            [Query('max by (instance) (ipmi_dcmi_power_consumption_watts{instance=~"$node"})', "{{instance}}")],
            stacked=True,
        ),
        Panel(
            "Entries in the BMC's event log",
            "A full log records no more: `ipmi-sel --clear` after a look.",
            "none",
            [Query('max by (instance) (ipmi_sel_logs_count{instance=~"$node"})', "{{instance}}")],
        ),
    ],
    [Choice("node", "Node", "label_values(smartctl_devices, instance)", several=True)],
)  # fmt: skip

ALERTS = Page(
    "alerts",
    "Alerts",
    "What fires, who was notified, and whether the monitoring itself works.",
    [
        Panel(
            "Alerts that fire",
            "Now. `clusterctl docs runbooks/NAME` shows what to do. Watchdog always fires.",
            "none",
            [Query('max by (severity, alertname, instance, node, gpu) (ALERTS{alertstate="firing"})', "fires")],
            "table",
            columns=("severity", "alertname", "instance", "node", "gpu"),
            span=12,
            height=9,
        ),
        Panel(
            "Alerts by severity",
            "Watchdog, which always fires, has the severity none.",
            "none",
            [Query('count by (severity) (ALERTS{alertstate="firing"})', "{{severity}}")],
            stacked=True,
            span=12,
            height=9,
        ),
        Panel(
            "Messages sent",
            "By kind of receiver, in the last hour.",
            "none",
            [Query("sum by (integration) (increase(alertmanager_notifications_total[1h]))", "{{integration}}")],
        ),
        Panel(
            "Messages that failed",
            "By kind of receiver, in the last hour. `clusterctl alert test` shows why.",
            "none",
            [Query("sum by (integration) (increase(alertmanager_notifications_failed_total[1h]))", "{{integration}}")],
            limits=(Limit(1, "orange"),),
        ),
        Panel(
            "Exporters that do not respond",
            "By job of Prometheus.",
            "none",
            [Query("count by (job) (up) - sum by (job) (up)", "{{job}}")],
            limits=(Limit(1, "red"),),
        ),
        Panel(
            "Series",
            "Time series that Prometheus keeps in memory, about 4 kB each.",
            "none",
            [Query("prometheus_tsdb_head_series", "series")],
            span=24,
        ),
    ],
)  # fmt: skip

PAGES = (CLUSTER, NODES, GPUS, JOB, QUEUE, KUBERNETES, STORAGE, HARDWARE, ALERTS)
