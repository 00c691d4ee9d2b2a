#!/usr/bin/env bash
# The least time that a cluster costs: what `clusterctl bootstrap` brings three fresh Debian 13 nodes to, done by hand for
# one known cluster. One connection and one script per node, all at once; whatever can start early does. It checks nothing
# beforehand, records nothing, and works once. It ends when a job on two nodes is accounted for, and every target that Prometheus then knows answers.
#
# With a worker's name it brings that one alone into a cluster that runs, as `clusterctl add-node` does, and ends with its proof.
#
# usage: floor.sh DIRECTORY [WORKER]      with key and known_hosts of the nodes in it; the rest comes by the environment:
#   LOGIN CLUSTER NETWORK PROXY NAMESERVERS        login; names; network; the packages' proxy; upstream name servers by line
#   HEAD WORKERS                                   "name address", one worker on each line
#   CONFINE                                        what cgroups confine jobs to: cores devices memory swap
#   NODE_OPTIONS GPU_TYPE GPUS MEMORY_PER_CPU BUFFER_POOL_MB SCRAPE_INTERVAL    of Slurm, MariaDB, Prometheus
#   HEALTH_INTERVAL HEALTH_PORT HEALTH_RECORDS     of the GPUs' health checks; "name JSON", one worker on each line
#   HEALTH_KEY MUNGE_KEY (base64) DATABASE_PASSWORD PROMETHEUS_PASSWORD PROMETHEUS_HASH (bcrypt)
#   ALERTMANAGER_PASSWORD ALERTMANAGER_HASH (bcrypt) DRAIN_TOKEN DRAIN_CONFIGURATION (JSON)
#   LANDING_LOGIN (SHA-256) LANDING_CONFIGURATION (JSON)
#   PROMETHEUS_KEY PROMETHEUS_CERTIFICATE PROMETHEUS_AUTHORITY (PEM)    also Alertmanager's, the landing page's, and of drains by alerts
#   EXPORTER_KEY EXPORTER_CERTIFICATE CLIENT_KEY CLIENT_CERTIFICATE CLIENT_AUTHORITY (PEM)    of exporters and who reads them
# shellcheck disable=SC2153  # those names come from the environment
set -euo pipefail
roles=$(cd "$(dirname "$0")/../../roles" && pwd)
directory=$1
joining=${2:-}
read -r HEAD_NAME HEAD_IP <<<"$HEAD"
DOMAIN=$CLUSTER.cluster
RULES=$(cat "$roles/prometheus/files/rules.yml")
RECORDS=$(cat "$roles/prometheus/files/records.yml")
METRICS=$(cat "$roles/slurm_exporter/files/slurm-metrics")
METRICS_FILE=$(cat "$roles/node_exporter/files/metrics_file.py")
COUNTERS=$(cat "$roles/slurm_exporter/files/slurm_counters.py")
UPDATE_METRICS=$(cat "$roles/node_exporter/files/update-metrics")
ALERT_DRAIN=$(cat "$roles/alert_drain/files/alert-drain")
ALERT_TEST=$(cat "$roles/alertmanager/files/alert-test")
ALERT_TEXTS=$(cat "$roles/alertmanager/files/clusterctl.tmpl")
LANDING_PAGE=$(tar -C "$roles/landing_page/files" --exclude='__pycache__' -cz . | base64 -w 0)
HEALTH_CHECK=$(cat "$roles/gpu_health/files/gpu-health")
HEALTH_MODULES=$(tar -C "$roles/gpu_health/files" --exclude='__pycache__' --exclude='gpu-health' -cz . | base64 -w 0)
HEALTH_LISTENER=$(cat "$roles/slurm_head/files/slurm-health")
DRAIN=$(cat "$roles/slurm_head/files/slurm-drain")

# ------------------------------------------------------------------------------------------------- on every node

mark() { # WHAT: say when it was done, in seconds since this node began
  local passed=$((${EPOCHREALTIME/[.,]/} - BEGAN))
  printf '%5d.%d s  %s: %s\n' $((passed / 1000000)) $((passed / 100000 % 10)) "$(uname -n)" "$1"
}

packages() { # one transaction; nothing starts before its configuration is there
  printf 'Acquire::http::Proxy "%s";\nAcquire::https::Proxy "%s";\n' "$PROXY" "$PROXY" >/etc/apt/apt.conf.d/90proxy
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod 0755 /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  apt-get -qq update
  mark "package index"
  apt-get -qq -y --no-install-recommends install ca-certificates chrony nftables tzdata vim-tiny curl less lsof numactl pciutils \
    rsync tmux sudo munge slurm-client prometheus-node-exporter "$@" >/dev/null
  rm /usr/sbin/policy-rc.d
  # shellcheck disable=SC2046
  apt-mark -qq hold slurm-client $(printf '%s\n' "$@" | grep slurm) >/dev/null
  mark packages
}

put() { # PATH [MODE [OWNER]]: standard input becomes a file
  mkdir -p "${1%/*}"
  install -m "${2:-0644}" ${3:+-o "$3" -g "$3"} /dev/stdin "$1"
}

base() { # NAME IP NAMESERVER: name, names, time, limits, users
  echo "$1" >/etc/hostname
  hostname "$1"
  cat >/etc/hosts <<END
127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
ff02::1 ip6-allnodes
ff02::2 ip6-allrouters
$2 $1.$DOMAIN $1
END
  [ "$1" = "$HEAD_NAME" ] || echo "$HEAD_IP $HEAD_NAME.$DOMAIN $HEAD_NAME" >>/etc/hosts
  {
    echo "search $DOMAIN"
    printf '%s\n' "$3" "$NAMESERVERS" | head -n 3 | sed 's/^/nameserver /'
    echo "options timeout:1 attempts:2"
  } >/etc/resolv.conf
  echo 'make_resolv_conf() { :; }' | put /etc/dhcp/dhclient-enter-hooks.d/cluster
  echo "skip_hooks=\"\$skip_hooks resolv.conf\"" | put /etc/dhcpcd.enter-hook
  ln -sf /usr/share/zoneinfo/Etc/UTC /etc/localtime
  echo Etc/UTC >/etc/timezone
  echo LANG=C.UTF-8 >/etc/locale.conf
  printf '[Journal]\nSystemMaxUse=2G\nMaxRetentionSec=90day\n' | put /etc/systemd/journald.conf.d/60-cluster.conf
  for who in '*' root; do
    for limit in 'memlock unlimited' 'stack unlimited' 'nofile 65536'; do echo "$who soft $limit"; done
    for limit in 'memlock unlimited' 'stack unlimited' 'nofile 524288'; do echo "$who hard $limit"; done
  done | put /etc/security/limits.d/60-cluster.conf
  put /etc/sysctl.d/60-cluster.conf <<'END'
fs.inotify.max_user_instances = 8192
fs.inotify.max_user_watches = 524288
net.core.rmem_max = 67108864
net.core.somaxconn = 4096
net.core.wmem_max = 67108864
net.ipv4.neigh.default.gc_thresh1 = 2048
net.ipv4.neigh.default.gc_thresh2 = 4096
net.ipv4.neigh.default.gc_thresh3 = 8192
vm.max_map_count = 1048576
vm.swappiness = 10
END
  # What a container may not set stays as it is.
  /usr/lib/systemd/systemd-sysctl /etc/sysctl.d/60-cluster.conf 2>/dev/null || true
  groupadd --gid 64900 cluster
  groupadd --gid 5001 alice
  groupadd --gid 64999 clusterverify
  useradd --uid 5001 --gid alice --groups cluster --create-home --shell /bin/bash alice
  useradd --key UID_MAX=65000 --uid 64999 --gid clusterverify --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin \
    --comment "Proves that the cluster runs jobs" clusterverify
}

munge_and_exporter() { # IP: both need their packages' users and programs
  base64 -d <<<"$MUNGE_KEY" | put /etc/munge/munge.key 0400 munge
  install -d /var/lib/clusterctl-metrics /etc/clusterctl-metrics /usr/local/lib/clusterctl
  put /usr/local/lib/clusterctl/metrics_file.py <<<"$METRICS_FILE"
  put /usr/local/libexec/update-metrics 0755 <<<"$UPDATE_METRICS"
  put /etc/systemd/system/update-metrics.service <<'END'
[Unit]
Description=Count the security updates that the node lacks
PartOf=update-metrics.timer
[Service]
Type=oneshot
ExecStart=/usr/local/libexec/update-metrics /var/lib/clusterctl-metrics/updates.prom
TimeoutStartSec=15min
Nice=19
IOSchedulingClass=idle
LogLevelMax=notice
SyslogLevel=err
ProtectHome=true
PrivateTmp=true
NoNewPrivileges=true
END
  printf '%s\n' '[Unit]' "Description=Count the security updates that the node lacks regularly" '[Timer]' OnActiveSec=15min \
    OnUnitActiveSec=6h RandomizedDelaySec=30min '[Install]' WantedBy=timers.target | put /etc/systemd/system/update-metrics.timer
  systemctl enable --quiet update-metrics.timer
  put /etc/clusterctl-metrics/key.pem 0400 prometheus <<<"$EXPORTER_KEY"
  put /etc/clusterctl-metrics/certificate.pem <<<"$EXPORTER_CERTIFICATE"
  put /etc/clusterctl-metrics/clients.pem <<<"$CLIENT_AUTHORITY"
  printf '%s\n' tls_server_config: '  cert_file: certificate.pem' '  key_file: key.pem' \
    '  client_auth_type: RequireAndVerifyClientCert' '  client_ca_file: clients.pem' | put /etc/clusterctl-metrics/web.yml
  put /etc/systemd/system/prometheus-node-exporter.service.d/cluster.conf <<END
[Unit]
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
Restart=always
RestartSec=5
ExecStart=
ExecStart=/usr/bin/prometheus-node-exporter --web.listen-address=$1:9100 --web.config.file=/etc/clusterctl-metrics/web.yml \\
  --collector.textfile.directory=/var/lib/clusterctl-metrics --collector.systemd \\
  --collector.netclass.ignored-devices=^(veth|cali|lxc|cni-) --collector.netdev.device-exclude=^(veth|cali|lxc|cni-) \\
  --collector.filesystem.mount-points-exclude=^/(dev|proc|sys|run/.+|var/lib/(docker|containers|containerd|kubelet)/.+)(\$\$|/) \\
  --collector.systemd.unit-include=^((chronyd?|dnsmasq|mariadb|munge|prometheus|slurmctld|slurmd|slurmdbd|sshd?)[.]service|slurm-health[.]socket|slurm-metrics[.]timer)\$\$
END
}

firewall() { # PORT...: members reach every port, others SSH and these; loaded at boot and now
  put /etc/cluster-firewall.nft <<END
add table inet clusterctl
delete table inet clusterctl
table inet clusterctl {
  chain input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iifname "lo" accept
    meta l4proto { 1, 58 } accept
    udp sport 67 udp dport 68 accept
    ip saddr { ${NETWORK// /, } } accept
    tcp dport { 22${1:+, $1} } accept
  }
}
END
  put /usr/local/sbin/clusterctl-firewall 0755 <<'END'
#!/bin/sh
case $1 in
  start) nft -f /etc/cluster-firewall.nft ;;
  stop) nft delete table inet clusterctl ;;
  status) nft list table inet clusterctl >/dev/null ;;
esac
END
  put /etc/systemd/system/clusterctl-firewall.service <<'END'
[Unit]
DefaultDependencies=no
After=local-fs.target
Wants=network-pre.target
Before=network-pre.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/clusterctl-firewall start
ExecStop=/usr/local/sbin/clusterctl-firewall stop
[Install]
WantedBy=sysinit.target
END
  systemctl enable --quiet clusterctl-firewall
}

# --------------------------------------------------------------------------------------------------- on a worker

logins() { # users with a job only, by SSH; cron for root alone
  printf '%s\n' "+ : root $LOGIN (sudo) : ALL" "- : ALL : ALL" | put /etc/security/cluster-administrators.conf
  sed -i '/^@include common-account/i\
account [success=1 default=ignore] pam_access.so accessfile=/etc/security/cluster-administrators.conf noaudit nodefgroup\
account required pam_slurm_adopt.so action_adopt_failure=deny action_generic_failure=deny' /etc/pam.d/sshd
  for file in /etc/cron.allow /etc/at.allow; do echo root | put $file; done
  systemctl mask --quiet --now systemd-logind
}

worker() { # NAME IP
  packages slurmd libpam-slurm-adopt
  base "$1" "$2" "$HEAD_IP"
  munge_and_exporter "$2"
  printf 'server %s iburst\ndriftfile /var/lib/chrony/chrony.drift\nmakestep 1.0 3\nrtcsync\n' "$HEAD_IP" | put /etc/chrony/chrony.conf
  install -d -o slurm -g slurm /var/lib/slurm
  install -d -o slurm -g slurm -m 0750 /var/log/slurm
  install -d /var/lib/slurm/slurmd
  echo "SLURMD_OPTIONS=\"--conf-server $HEAD_IP\"" | put /etc/default/slurmd
  put /etc/systemd/system/slurmd.service.d/cluster.conf <<'END'
[Unit]
ConditionPathExists=
After=munge.service
[Service]
RuntimeDirectory=slurm
RuntimeDirectoryPreserve=yes
PIDFile=
Delegate=yes
Restart=on-failure
RestartSec=5
END
  put /usr/local/sbin/gpu-health 0755 <<<"$HEALTH_CHECK"
  install -d /usr/local/lib/clusterctl
  base64 -d <<<"$HEALTH_MODULES" | tar -C /usr/local/lib/clusterctl --no-same-owner -xz
  sed -n "s/^$1 //p" <<<"$HEALTH_RECORDS" | put /etc/clusterctl/gpu-health.json
  printf %s "$HEALTH_KEY$1" | sha256sum | cut -c 1-64 | tr -d '\n' | put /etc/clusterctl/gpu-health.key 0400
  firewall
  logins
  systemctl daemon-reload
  systemctl restart clusterctl-firewall chrony munge prometheus-node-exporter systemd-journald update-metrics.timer
  mark "everything but slurmd"
  until (: >"/dev/tcp/$HEAD_IP/6817") 2>/dev/null; do sleep 0.1; done
  systemctl restart slurmd
  mark slurmd
}

# ------------------------------------------------------------------------------------------------- on the head

head_files() { # what needs no package's user
  put /etc/dnsmasq.conf <<END
bind-dynamic
listen-address=127.0.0.1
listen-address=$HEAD_IP
domain=$DOMAIN
local=/$DOMAIN/
no-hosts
addn-hosts=/etc/dnsmasq.hosts
localise-queries
no-resolv
domain-needed
cache-size=10000
$(while read -r server; do echo "server=$server"; done <<<"$NAMESERVERS")
END
  while read -r name ip; do echo "$ip $name.$DOMAIN $name"; done <<<"$HEAD"$'\n'"$WORKERS" | put /etc/dnsmasq.hosts
  printf '%s\n' "pool 2.debian.pool.ntp.org iburst" "local stratum 10" "allow $NETWORK" \
    "driftfile /var/lib/chrony/chrony.drift" "makestep 1.0 3" rtcsync | put /etc/chrony/chrony.conf
  put /etc/mysql/mariadb.conf.d/60-slurm.cnf <<END
[mariadbd]
bind-address = 127.0.0.1
innodb_buffer_pool_size = ${BUFFER_POOL_MB}M
innodb_log_file_size = 64M
innodb_lock_wait_timeout = 900
max_allowed_packet = 16M
END
}

confines() { # RESOURCE
  [[ " $CONFINE " == *" $1 "* ]] && echo yes || echo no
}

slurm_files() {
  install -d -o slurm -g slurm /var/lib/slurm
  install -d -o slurm -g slurm -m 0750 /var/log/slurm
  install -d -o slurm -g slurm -m 0700 /var/lib/slurm/slurmctld
  put /etc/systemd/system/slurmdbd.service.d/cluster.conf <<'END'
[Unit]
After=munge.service mariadb.service
[Service]
User=slurm
Group=slurm
RuntimeDirectory=slurmdbd
PIDFile=
Restart=on-failure
RestartSec=5
ExecStartPost=/bin/sh -c 'until sacctmgr --noheader show cluster >/dev/null 2>&1; do sleep 0.1; done'
END
  put /etc/systemd/system/slurmctld.service.d/cluster.conf <<'END'
[Unit]
After=munge.service slurmdbd.service
[Service]
User=slurm
Group=slurm
RuntimeDirectory=slurmctld
PIDFile=
Restart=on-failure
RestartSec=5
ExecReload=
ExecReload=/usr/bin/scontrol reconfigure
END
  put /etc/slurm/slurmdbd.conf 0600 slurm <<END
AuthType=auth/munge
SlurmUser=slurm
DbdHost=$HEAD_NAME
DbdAddr=$HEAD_IP
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=$DATABASE_PASSWORD
StorageLoc=slurm_acct_db
PurgeEventAfter=12months
PurgeStepAfter=12months
PurgeSuspendAfter=12months
PurgeTXNAfter=12months
END
  printf '%s\n' CgroupPlugin=autodetect SystemdTimeout=30000 "ConstrainCores=$(confines cores)" "ConstrainDevices=$(confines devices)" \
    "ConstrainRAMSpace=$(confines memory)" "ConstrainSwapSpace=$(confines swap)" | put /etc/slurm/cgroup.conf
  echo "AutoDetect=off" | put /etc/slurm/gres.conf
  put /etc/slurm/slurm.conf <<END
ClusterName=$CLUSTER
SlurmctldHost=$HEAD_NAME($HEAD_IP)
SlurmctldParameters=enable_configless
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
PriorityType=priority/multifactor
PriorityWeightFairshare=10000
PriorityWeightAge=1000
DefMemPerCPU=$MEMORY_PER_CPU
GresTypes=gpu
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity,task/cgroup
PrologFlags=Contain
MpiDefault=pmix
LaunchParameters=use_interactive_step
KillOnBadExit=1
ReturnToService=1
SlurmctldTimeout=120
SlurmdTimeout=300
HealthCheckProgram=/usr/local/sbin/gpu-health
HealthCheckInterval=$HEALTH_INTERVAL
HealthCheckNodeState=ANY,CYCLE
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=$HEAD_IP
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu,gres/gpu:$GPU_TYPE
JobAcctGatherType=jobacct_gather/$([ "$(confines memory)" = yes ] && echo cgroup || echo linux)
JobAcctGatherFrequency=30
END
  while read -r name ip; do
    echo "NodeName=$name NodeAddr=$ip $NODE_OPTIONS" >>/etc/slurm/slurm.conf
    echo "NodeName=$name Name=gpu Type=$GPU_TYPE File=/dev/nvidia[0-$((GPUS - 1))]" >>/etc/slurm/gres.conf
  done <<<"$WORKERS"
  echo "PartitionName=main Nodes=ALL Default=YES State=UP" >>/etc/slurm/slurm.conf
}

health_files() { # workers report here whether they are fit for jobs; this drains and resumes them
  put /usr/local/sbin/slurm-drain 0755 <<<"$DRAIN"
  put /usr/local/sbin/slurm-health 0755 <<<"$HEALTH_LISTENER"
  printf %s "$HEALTH_KEY" | put /etc/slurm/health.key 0400
  put /etc/systemd/system/slurm-health.socket <<END
[Socket]
ListenStream=$HEAD_IP:$HEALTH_PORT
FreeBind=true
Accept=true
MaxConnections=64
MaxConnectionsPerSource=4
TriggerLimitIntervalSec=0
[Install]
WantedBy=sockets.target
END
  put /etc/systemd/system/slurm-health@.service <<'END'
[Unit]
CollectMode=inactive-or-failed
[Service]
ExecStart=-/usr/local/sbin/slurm-health
StandardInput=socket
StandardOutput=socket
StandardError=journal
RuntimeMaxSec=60
LogLevelMax=notice
SyslogLevel=notice
ProtectSystem=strict
ReadWritePaths=/var/lib/clusterctl /run
ProtectHome=true
PrivateTmp=true
NoNewPrivileges=true
END
  install -d -m 0700 /var/lib/clusterctl
}

alert_files() { # Alertmanager, which tells people, and the daemon that drains the nodes of some alerts
  local tls=/etc/prometheus/alertmanager-tls folder=/etc/clusterctl/alert-drain
  put $tls/key.pem 0400 prometheus <<<"$PROMETHEUS_KEY"
  put $tls/certificate.pem <<<"$PROMETHEUS_CERTIFICATE"
  put $tls/authority.pem <<<"$PROMETHEUS_AUTHORITY"
  printf '%s\n' tls_server_config: "  cert_file: $tls/certificate.pem" "  key_file: $tls/key.pem" \
    basic_auth_users: "  admin: $ALERTMANAGER_HASH" | put /etc/prometheus/alertmanager-web.yml 0640 prometheus
  put /etc/prometheus/alertmanager_templates/clusterctl.tmpl <<<"$ALERT_TEXTS"
  put /etc/prometheus/alertmanager.yml 0640 prometheus <<END
templates: [/etc/prometheus/alertmanager_templates/clusterctl.tmpl]
route:
  receiver: none
  group_by: [alertname, test]
  group_wait: 15s
  group_interval: 2m
  repeat_interval: 4h
  routes:
    - receiver: drain
      matchers: ['action="drain"']
      group_wait: 5s
      group_interval: 1m
      repeat_interval: 5m
inhibit_rules:
  - source_matchers: ['alertname="NodeDown"']
    target_matchers: ['alertname!="NodeDown"']
    equal: [node]
  - source_matchers: ['alertname="SlurmDown"']
    target_matchers: ['alertname=~"Slurm.+"', 'alertname!="SlurmDown"']
  - source_matchers: ['alertname="DatabaseDown"']
    target_matchers: ['alertname="SlurmdbdDown"']
  - source_matchers: ['alertname=~"LogStoreDown|LogStoreFull"']
    target_matchers: ['alertname="LogsNotShipped"']
receivers:
  - name: none
  - name: drain
    webhook_configs:
      - url: https://$HEAD_IP:9096/
        send_resolved: true
        http_config:
          authorization: {credentials: "$DRAIN_TOKEN"}
          tls_config: {ca_file: $tls/authority.pem}
END
  put /etc/systemd/system/prometheus-alertmanager.service.d/cluster.conf <<END
[Unit]
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
Restart=always
RestartSec=5
ExecStart=
ExecStart=/usr/bin/prometheus-alertmanager --config.file=/etc/prometheus/alertmanager.yml \\
  --web.config.file=/etc/prometheus/alertmanager-web.yml --web.listen-address=$HEAD_IP:9093 \\
  --web.external-url=https://$HEAD_IP:9093 --storage.path=/var/lib/prometheus/alertmanager --cluster.listen-address=
END
  put /usr/local/sbin/alert-test 0700 <<<"$ALERT_TEST"
  put /usr/local/sbin/alert-drain 0755 <<<"$ALERT_DRAIN"
  put $folder/certificate.pem <<<"$PROMETHEUS_CERTIFICATE"
  put $folder/key.pem 0400 <<<"$PROMETHEUS_KEY"
  printf %s "$DRAIN_TOKEN" | put $folder/token 0400
  put $folder/configuration.json <<<"$DRAIN_CONFIGURATION"
  put /etc/systemd/system/alert-drain.service <<'END'
[Unit]
Description=Drain the nodes of alerts
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/local/sbin/alert-drain /etc/clusterctl/alert-drain/configuration.json
Restart=always
RestartSec=5
ProtectSystem=strict
ReadWritePaths=/var/lib/clusterctl /run /var/lib/clusterctl-metrics
ProtectHome=true
PrivateTmp=true
NoNewPrivileges=true
[Install]
WantedBy=multi-user.target
END
  printf %s "$ALERTMANAGER_PASSWORD" | put /etc/prometheus/alertmanager-password 0400 prometheus
}

landing_files() { # the page of the cluster's state
  local folder=/etc/clusterctl/landing-page
  base64 -d <<<"$LANDING_PAGE" | tar -C /usr/local/lib/clusterctl --no-same-owner -xz
  mv /usr/local/lib/clusterctl/landing-page /usr/local/sbin/landing-page
  chmod 0755 /usr/local/sbin/landing-page
  put $folder/certificate.pem <<<"$PROMETHEUS_CERTIFICATE"
  put $folder/authority.pem <<<"$PROMETHEUS_AUTHORITY"
  put $folder/key 0400 prometheus <<<"$PROMETHEUS_KEY"
  printf %s "$LANDING_LOGIN" | put $folder/login 0400 prometheus
  printf %s "$PROMETHEUS_PASSWORD" | put $folder/prometheus-password 0400 prometheus
  put $folder/configuration.json <<<"$LANDING_CONFIGURATION"
  put /etc/systemd/system/landing-page.service <<'END'
[Unit]
Description=Serve the cluster's landing page
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/local/sbin/landing-page /etc/clusterctl/landing-page/configuration.json
Restart=always
RestartSec=5
User=prometheus
Group=prometheus
InaccessiblePaths=-/var/lib/prometheus
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true
NoNewPrivileges=true
[Install]
WantedBy=multi-user.target
END
}

probe_files() { # what asks the cluster's endpoints and the database
  put /etc/prometheus/endpoints/authority.pem <<<"$PROMETHEUS_AUTHORITY"
  put /etc/prometheus/endpoints/blackbox.yml <<END
modules:
  page:
    prober: http
    timeout: 10s
    http:
      preferred_ip_protocol: ip4
      fail_if_not_ssl: true
      valid_status_codes: [200, 401]
      tls_config: {ca_file: /etc/prometheus/endpoints/authority.pem}
  dns:
    prober: dns
    timeout: 5s
    dns: {preferred_ip_protocol: ip4, query_name: $HEAD_NAME.$DOMAIN, query_type: A, validate_answer_rrs: {fail_if_none_matches_regexp: ["."]}}
  ssh:
    prober: tcp
    timeout: 10s
    tcp: {preferred_ip_protocol: ip4, query_response: [{expect: "^SSH-2.0-"}]}
END
  while read -r name module target; do
    printf '{"labels": {"endpoint": "%s", "instance": "%s", "__param_module": "%s"}, "targets": ["%s"]}\n' \
      "$name" "$HEAD_NAME" "$module" "$target"
  done <<END | sed '1s/^/[/; $!s/$/,/; $s/$/]/' | put /etc/prometheus/targets/endpoints.json
landing page https://$HEAD_IP:9443/
prometheus page https://$HEAD_IP:9090/
alertmanager page https://$HEAD_IP:9093/
dns dns $HEAD_IP:53
ssh ssh $HEAD_IP:22
END
  printf '%s\n' '[client]' 'user = prometheus' 'password = unused' 'socket = /run/mysqld/mysqld.sock' | put /etc/prometheus/mysqld-exporter.cnf
  put /etc/systemd/system/prometheus-blackbox-exporter.service.d/cluster.conf <<END
[Unit]
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
Restart=always
RestartSec=5
ExecStart=
ExecStart=/usr/bin/prometheus-blackbox-exporter --config.file=/etc/prometheus/endpoints/blackbox.yml \\
  --web.listen-address=$HEAD_IP:9115 --web.config.file=/etc/clusterctl-metrics/web.yml
END
  put /etc/systemd/system/mariadb.service.d/exporter.conf <<'END'
[Service]
ExecStartPost=-+/usr/bin/mariadb --execute "CREATE USER IF NOT EXISTS prometheus@localhost IDENTIFIED VIA unix_socket WITH MAX_USER_CONNECTIONS 3"
END
  put /etc/systemd/system/prometheus-mysqld-exporter.service.d/cluster.conf <<END
[Unit]
Wants=network-online.target
After=network-online.target mariadb.service
StartLimitIntervalSec=0
[Service]
Restart=always
RestartSec=5
ExecStartPre=-+/usr/bin/mariadb --execute "CREATE USER IF NOT EXISTS prometheus@localhost IDENTIFIED VIA unix_socket WITH MAX_USER_CONNECTIONS 3"
ExecStart=
ExecStart=/usr/bin/prometheus-mysqld-exporter --config.my-cnf=/etc/prometheus/mysqld-exporter.cnf \\
  --web.listen-address=$HEAD_IP:9104 --web.config.file=/etc/clusterctl-metrics/web.yml --collect.global_status \\
  --collect.global_variables --no-collect.slave_status --no-collect.info_schema.innodb_cmp \\
  --no-collect.info_schema.innodb_cmpmem --no-collect.info_schema.query_response_time
END
}

monitoring_files() {
  put /usr/local/lib/clusterctl/slurm_counters.py <<<"$COUNTERS"
  put /usr/local/libexec/slurm-metrics 0755 <<<"$METRICS"
  put /etc/systemd/system/slurm-metrics.service <<'END'
[Unit]
Description=Count Slurm's nodes, jobs and GPUs
PartOf=slurm-metrics.timer
[Service]
Type=oneshot
ExecStart=/usr/local/libexec/slurm-metrics /var/lib/clusterctl-metrics/slurm.prom
TimeoutStartSec=60
LogLevelMax=notice
SyslogLevel=err
ProtectSystem=strict
ReadWritePaths=/var/lib/clusterctl-metrics
ProtectHome=true
PrivateTmp=true
NoNewPrivileges=true
END
  printf '%s\n' '[Unit]' "Description=Count Slurm's nodes, jobs and GPUs regularly" '[Timer]' OnActiveSec=0 OnUnitActiveSec=15 \
    AccuracySec=1 '[Install]' WantedBy=timers.target | put /etc/systemd/system/slurm-metrics.timer
  printf %s "$PROMETHEUS_PASSWORD" | put /etc/prometheus/own-password 0400 prometheus
  put /etc/prometheus/tls/key.pem 0400 prometheus <<<"$PROMETHEUS_KEY"
  put /etc/prometheus/tls/certificate.pem <<<"$PROMETHEUS_CERTIFICATE"
  put /etc/prometheus/tls/authority.pem <<<"$PROMETHEUS_AUTHORITY"
  put /etc/prometheus/tls/client-key.pem 0400 prometheus <<<"$CLIENT_KEY"
  put /etc/prometheus/tls/client-certificate.pem <<<"$CLIENT_CERTIFICATE"
  printf '%s\n' tls_server_config: '  cert_file: /etc/prometheus/tls/certificate.pem' '  key_file: /etc/prometheus/tls/key.pem' \
    basic_auth_users: "  admin: $PROMETHEUS_HASH" | put /etc/prometheus/web.yml 0640 prometheus
  put /etc/prometheus/rules/cluster.yml <<<"$RULES"
  put /etc/prometheus/rules/records.yml <<<"$RECORDS"
  put /var/lib/clusterctl-metrics/limits.prom <<'END'
# TYPE cluster_sample_limit gauge
cluster_sample_limit{scrape_job="node"} 20000
cluster_sample_limit{scrape_job="database"} 5000
cluster_sample_limit{scrape_job="endpoint"} 100
cluster_sample_limit{scrape_job="prometheus"} 5000
cluster_sample_limit{scrape_job="alertmanager"} 2000
END
  while read -r name ip; do
    printf '{"labels": {"instance": "%s"}, "targets": ["%s:9100"]}\n' "$name" "$ip"
  done <<<"$HEAD"$'\n'"$WORKERS" |
    cat - <(printf '{"labels": {"job": "database", "instance": "%s"}, "targets": ["%s:9104"]}\n' "$HEAD_NAME" "$HEAD_IP") | sed '1s/^/[/; $!s/$/,/; $s/$/]/' | put /etc/prometheus/targets/nodes.json
  put /etc/prometheus/prometheus.yml <<END
global:
  scrape_interval: $SCRAPE_INTERVAL
  evaluation_interval: $SCRAPE_INTERVAL
  external_labels: {cluster: $CLUSTER}
rule_files: [/etc/prometheus/rules/*.yml]
alerting:
  alert_relabel_configs:
    - {source_labels: [node, instance], regex: ";(.+)", target_label: node}
  alertmanagers:
    - scheme: https
      tls_config: {ca_file: /etc/prometheus/tls/authority.pem}
      basic_auth: {username: admin, password_file: /etc/prometheus/alertmanager-password}
      static_configs: [{targets: ["$HEAD_IP:9093"]}]
scrape_configs:
  - job_name: node
    scheme: https
    sample_limit: 20000
    tls_config:
      ca_file: /etc/prometheus/tls/authority.pem
      cert_file: /etc/prometheus/tls/client-certificate.pem
      key_file: /etc/prometheus/tls/client-key.pem
    file_sd_configs: [{files: [/etc/prometheus/targets/nodes.json]}]
  - job_name: endpoint
    scheme: https
    metrics_path: /probe
    sample_limit: 100
    scrape_interval: 1m
    tls_config:
      ca_file: /etc/prometheus/tls/authority.pem
      cert_file: /etc/prometheus/tls/client-certificate.pem
      key_file: /etc/prometheus/tls/client-key.pem
    file_sd_configs: [{files: [/etc/prometheus/targets/endpoints.json]}]
    relabel_configs:
      - {source_labels: [__address__], target_label: __param_target}
      - {target_label: __address__, replacement: "$HEAD_IP:9115"}
  - job_name: prometheus
    scheme: https
    sample_limit: 5000
    tls_config: {ca_file: /etc/prometheus/tls/authority.pem}
    basic_auth: {username: admin, password_file: /etc/prometheus/own-password}
    static_configs: [{targets: ["$HEAD_IP:9090"], labels: {instance: $HEAD_NAME}}]
  - job_name: alertmanager
    scheme: https
    sample_limit: 2000
    tls_config: {ca_file: /etc/prometheus/tls/authority.pem}
    basic_auth: {username: admin, password_file: /etc/prometheus/alertmanager-password}
    static_configs: [{targets: ["$HEAD_IP:9093"], labels: {instance: $HEAD_NAME}}]
END
  put /etc/systemd/system/prometheus.service.d/cluster.conf <<END
[Unit]
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
Restart=always
RestartSec=5
ExecStart=
ExecStart=/usr/bin/prometheus --config.file=/etc/prometheus/prometheus.yml --web.config.file=/etc/prometheus/web.yml \\
  --web.listen-address=$HEAD_IP:9090 --storage.tsdb.path=/var/lib/prometheus/metrics2 \\
  --storage.tsdb.retention.time=30d --storage.tsdb.retention.size=20GB
END
}

hidden_processes() { # users see their own
  echo 'g proc -' | put /etc/sysusers.d/cluster.conf
  systemd-sysusers /etc/sysusers.d/cluster.conf
  put /etc/systemd/system/clusterctl-hidepid.service <<'END'
[Unit]
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'exec mount -o remount,hidepid=2,gid=$$(getent group proc | cut -d: -f3) /proc'
[Install]
WantedBy=sysinit.target
END
  put /etc/systemd/system/systemd-logind.service.d/cluster.conf <<<$'[Service]\nSupplementaryGroups=proc'
  systemctl enable --quiet clusterctl-hidepid
}

head_node() {
  packages dnsmasq slurmctld slurmdbd mariadb-server prometheus prometheus-alertmanager prometheus-blackbox-exporter prometheus-mysqld-exporter gcc git htop jq make nano wget g++ libc6-dev
  head_files
  systemctl restart mariadb & # the slowest to start
  mariadb=$!
  base "$HEAD_NAME" "$HEAD_IP" 127.0.0.1
  munge_and_exporter "$HEAD_IP"
  monitoring_files
  alert_files
  landing_files
  probe_files
  slurm_files
  health_files
  firewall "9090, 9093, 9443"
  hidden_processes
  systemctl daemon-reload
  systemctl enable --quiet slurm-metrics.timer slurm-health.socket alert-drain landing-page
  systemctl restart clusterctl-firewall clusterctl-hidepid systemd-logind chrony dnsmasq munge prometheus \
    prometheus-alertmanager prometheus-blackbox-exporter alert-drain landing-page prometheus-node-exporter slurm-health.socket systemd-journald update-metrics.timer
  wait "$mariadb"
  mark "services but Slurm"
  mariadb <<END
CREATE DATABASE slurm_acct_db;
CREATE USER slurm@localhost IDENTIFIED BY '$DATABASE_PASSWORD';
GRANT ALL ON \`slurm\\_acct\\_db\`.* TO slurm@localhost;
END
  systemctl restart slurmdbd prometheus-mysqld-exporter
  sacctmgr --immediate --quiet add cluster "$CLUSTER" >/dev/null
  systemctl restart slurmctld # from here on the workers come
  sacctmgr --immediate --quiet add account cluster >/dev/null
  sacctmgr --immediate --quiet add user alice,clusterverify account=cluster >/dev/null
  systemctl start slurm-metrics.timer
  mark "Slurm and its accounts"
}

proof() { # a job on two nodes with two GPUs each, accounted for, and every target up
  until [ "$(sinfo --noheader --Node --format=%T | grep -cx idle)" -ge 2 ]; do sleep 0.1; done
  job=$(runuser --user clusterverify -- srun --nodes=2 --ntasks-per-node=1 --gres=gpu:2 --mem=64M --chdir=/ --quiet \
    sh -c "nvidia-smi -L >&2; echo \$SLURM_JOB_ID" 2>/tmp/gpus | sort -u)
  [ "$(grep -c '^GPU ' /tmp/gpus)" = 4 ]
  until [ "$(sacct --noheader --parsable2 --allocations --jobs="$job" --format=State)" = COMPLETED ]; do sleep 0.1; done
  mark "job accounted for"
  targets=$(($(wc -l <<<"$WORKERS") + 9))
  # As verify does: whether they answer is asked here, for Prometheus may wait a whole interval before it asks.
  (umask 077 && printf '%s\n' "user = \"admin:$PROMETHEUS_PASSWORD\"" 'cacert = /etc/prometheus/tls/authority.pem' \
    'cert = /etc/prometheus/tls/client-certificate.pem' 'key = /etc/prometheus/tls/client-key.pem' >/tmp/login)
  until curl --silent --config /tmp/login "https://$HEAD_IP:9090/api/v1/targets?state=active" |
    grep -o '"scrapeUrl":"[^"]*' | cut -d'"' -f4 | sed 's/\\u0026/\&/g' | sort -u >/tmp/targets && [ "$(wc -l </tmp/targets)" = "$targets" ]; do sleep 0.1; done
  grep -v :9093/ /tmp/targets | xargs --max-procs=32 -I{} curl --silent --fail --output /dev/null --config /tmp/login {}
  (umask 077 && printf '%s\n' "user = \"admin:$ALERTMANAGER_PASSWORD\"" 'cacert = /etc/prometheus/tls/authority.pem' >/tmp/login)
  curl --silent --fail --output /dev/null --config /tmp/login "https://$HEAD_IP:9093/metrics"
  rm /tmp/login
  mark "targets answer"
}

admit() { # NAME IP: add a worker to the head of a running cluster
  echo "$2 $1.$DOMAIN $1" >>/etc/dnsmasq.hosts
  echo "NodeName=$1 NodeAddr=$2 $NODE_OPTIONS" >>/etc/slurm/slurm.conf
  echo "NodeName=$1 Name=gpu Type=$GPU_TYPE File=/dev/nvidia[0-$((GPUS - 1))]" >>/etc/slurm/gres.conf
  sed -i "\$s/]\$/, {\"labels\": {\"instance\": \"$1\", \"job\": \"node\", \"node\": \"$1\"}, \"targets\": [\"$2:9100\"]}]/" /etc/prometheus/targets/nodes.json
  systemctl reload dnsmasq
  scontrol reconfigure
  mark "one more worker"
}

proof_of() { # NAME IP: a job there with two GPUs, accounted for, and its exporter answers
  until [ "$(sinfo --noheader --nodes="$1" --format=%T)" = idle ]; do sleep 0.1; done
  job=$(runuser --user clusterverify -- srun --nodelist="$1" --gres=gpu:2 --mem=64M --chdir=/ --quiet \
    sh -c "nvidia-smi -L >&2; echo \$SLURM_JOB_ID" 2>/tmp/gpus)
  [ "$(grep -c '^GPU ' /tmp/gpus)" = 2 ]
  until [ "$(sacct --noheader --parsable2 --allocations --jobs="$job" --format=State)" = COMPLETED ]; do sleep 0.1; done
  mark "job accounted for"
  curl --silent --fail --output /dev/null --cacert /etc/prometheus/tls/authority.pem --cert /etc/prometheus/tls/client-certificate.pem \
    --key /etc/prometheus/tls/client-key.pem "https://$2:9100/metrics"
  mark "its exporter answers"
}

# ------------------------------------------------------------------------------------------------------ from here

export -n HEALTH_KEY MUNGE_KEY DATABASE_PASSWORD PROMETHEUS_PASSWORD PROMETHEUS_HASH PROMETHEUS_KEY ALERTMANAGER_PASSWORD ALERTMANAGER_HASH \
  DRAIN_TOKEN LANDING_LOGIN EXPORTER_KEY CLIENT_KEY # no child's environment needs to hold them
on() { # IP SCRIPT: run a script there as root; all it needs, secrets too, goes through standard input
  {
    echo 'set -euo pipefail; export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8'
    declare -p LOGIN CLUSTER NETWORK PROXY NAMESERVERS HEAD WORKERS HEAD_NAME HEAD_IP DOMAIN CONFINE NODE_OPTIONS GPU_TYPE GPUS MEMORY_PER_CPU \
      BUFFER_POOL_MB SCRAPE_INTERVAL HEALTH_INTERVAL HEALTH_PORT HEALTH_RECORDS HEALTH_KEY MUNGE_KEY DATABASE_PASSWORD \
      PROMETHEUS_PASSWORD PROMETHEUS_HASH PROMETHEUS_KEY PROMETHEUS_CERTIFICATE PROMETHEUS_AUTHORITY ALERTMANAGER_PASSWORD ALERTMANAGER_HASH \
      DRAIN_TOKEN DRAIN_CONFIGURATION LANDING_LOGIN LANDING_CONFIGURATION EXPORTER_KEY EXPORTER_CERTIFICATE CLIENT_AUTHORITY CLIENT_KEY \
      CLIENT_CERTIFICATE LANDING_PAGE ALERT_DRAIN ALERT_TEST ALERT_TEXTS UPDATE_METRICS RULES RECORDS METRICS METRICS_FILE COUNTERS HEALTH_CHECK \
      HEALTH_MODULES HEALTH_LISTENER DRAIN
    declare -f mark packages put base munge_and_exporter firewall logins worker head_files confines slurm_files health_files \
      alert_files landing_files probe_files monitoring_files hidden_processes head_node proof admit proof_of
    echo "BEGAN=\${EPOCHREALTIME/[.,]/}; main() { $2; }; main </dev/null"
  } | ssh -F none -i "$directory/id_ed25519" -o IdentitiesOnly=yes -o "UserKnownHostsFile=$directory/known_hosts" \
    -o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=none "$LOGIN@$1" sudo bash -s
}

start() { # IP SCRIPT: the same in the background
  on "$@" &
  children+=($!)
}

children=()
[ "$joining" ] || start "$HEAD_IP" "head_node; proof"
while read -r name ip; do
  [ "${joining:-$name}" = "$name" ] || continue
  [ ! "$joining" ] || start "$HEAD_IP" "admit $name $ip; proof_of $name $ip"
  start "$ip" "worker $name $ip"
done <<<"$WORKERS"
for child in "${children[@]}"; do wait "$child"; done
